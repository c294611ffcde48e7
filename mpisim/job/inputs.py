"""Step, cluster, ``[job]`` → the job in seconds, its errors and assumptions.

What ``[job]`` does not say comes from the tables of published fleets, of storages, and of the times
of an interruption (``data/failures.toml``, ``data/storage.toml``, ``data/recovery.toml``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import SECONDS_OF_A_DAY, Quantity
from ..base.schema import build
from ..base.text import percentage
from ..experiment.job_choice import JobChoice, seconds
from .checkpoint import Checkpoint, CheckpointTimes, checkpoint_times
from .fleets import DEFAULT, NONE, Fleet, find_fleet, rate_spread
from .interval import daly_steps
from .model import JobModel
from .storage import Storage, find_storage

__all__ = [
    "JobCluster",
    "JobParts",
    "Recovery",
    "Step",
    "assumptions",
    "input_errors",
    "job_model",
    "named_tables",
    "recovery",
]

RECOVERY = "recovery.toml"


@frozen
class Step:
    """One step of the job.

    Attributes
    ----------
    seconds : float
    error : float
        Relative, one standard deviation.
    tokens : int
        Tokens, or samples of a model without.
    """

    seconds: float
    error: float = 0.0
    tokens: int = 1


@frozen
class JobCluster:
    """Size, checkpoints and host links of the cluster that a job runs on.

    Attributes
    ----------
    gpus : int
        That the job uses.
    gpus_per_node : int
    checkpoint : Checkpoint
    host_bandwidth : float
        Of a GPU to its host's memory, in B/s.
    """

    gpus: int
    gpus_per_node: int
    checkpoint: Checkpoint
    host_bandwidth: float


@frozen
class Recovery:
    """Times of an interruption; the data file explains each.

    Attributes
    ----------
    detection : Quantity
        Until the cause is found.
    restart : Quantity
        From there to the first step, without loading the checkpoint.
    swap : Quantity
        To put a spare in the place of a node.
    repair : Quantity
        Until a node that left is a spare again.
    maintenance : Quantity
        Of a planned interruption.
    stall : Quantity
        Of an asynchronous checkpoint, beside the copy to the host.
    host : Quantity
        What a GPU copies to its host, where the cluster does not say.
    """

    detection: Quantity
    restart: Quantity
    swap: Quantity
    repair: Quantity
    maintenance: Quantity
    stall: Quantity
    host: Quantity


@cache
def recovery() -> Recovery:
    """Return the times of ``data/recovery.toml``: what passes from a failure to the next step."""
    return build(Recovery, packaged(RECOVERY), RECOVERY)


@frozen
class JobParts:
    """Tables and choices that the numbers of a job come from.

    Attributes
    ----------
    fleet_name : str
    fleet : Fleet
    storage_name : str
    storage : Storage
    times : CheckpointTimes
    """

    fleet_name: str
    fleet: Fleet
    storage_name: str
    storage: Storage
    times: CheckpointTimes


def named_tables(choice: JobChoice) -> tuple[str, Fleet, str, Storage]:
    """``[job]`` → name and table of its fleet, and of its storage.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    return *find_fleet(choice.failures or DEFAULT), *find_storage(choice.storage)


def job_model(step: Step, cluster: JobCluster, choice: JobChoice) -> tuple[JobModel, JobParts]:
    """Step, cluster, ``[job]`` → the job in seconds, with Daly's interval if none is given.

    Parameters
    ----------
    step : Step
    cluster : JobCluster
    choice : JobChoice

    Returns
    -------
    model : JobModel
    parts : JobParts

    Raises
    ------
    InputError
        For the name of a fleet or a storage that there is not.
    """
    fleet_name, fleet, storage_name, storage = named_tables(choice)
    known = recovery()
    times = checkpoint_times(
        cluster.checkpoint,
        storage,
        gpus_per_node=min(cluster.gpus, cluster.gpus_per_node),
        host_bandwidth=cluster.host_bandwidth,
        asynchronous=choice.checkpoint == "async",
        overhead=known.stall.si,
    )
    each = fleet.per_gpu_day
    if choice.failure_rate is not None:
        each = choice.failure_rate / 1000
    planned = fleet.planned_per_gpu_day * cluster.gpus
    if choice.planned is not None:
        planned = choice.planned / 30
    steps = choice.steps
    if steps is None:
        assert choice.tokens is not None  # one of the two is given
        steps = math.ceil(choice.tokens / step.tokens)
    model = JobModel(
        steps=steps,
        step=step.seconds,
        interval=1,
        stall=times.stall,
        persist=times.persist,
        rate=each * cluster.gpus / SECONDS_OF_A_DAY,
        shape=choice.failure_shape,
        planned_rate=planned / SECONDS_OF_A_DAY,
        detection=_time(choice, "detection", known.detection),
        restart=_time(choice, "restart", known.restart) + times.load,
        rewarmup=choice.rewarmup_steps * (choice.rewarmup_slowdown - 1) * step.seconds,
        node_share=fleet.node_share,
        spares=-1 if choice.spares is None else choice.spares,
        swap=_time(choice, "swap", known.swap),
        repair=_time(choice, "repair", known.repair),
        maintenance=_time(choice, "maintenance", known.maintenance),
    )
    wanted = daly_steps(model)
    if choice.checkpoint_interval is not None:
        requested = round(seconds(choice.checkpoint_interval, "checkpoint_interval") / step.seconds)
        wanted = min(max(requested, model.least_interval), steps)
    model = replace(model, interval=wanted)
    return model, JobParts(fleet_name, fleet, storage_name, storage, times)


def _time(choice: JobChoice, key: str, default: Quantity) -> float:
    """Return the seconds of a key of ``[job]``, or of the data file."""
    given = getattr(choice, key)
    return default.si if given is None else seconds(given, key)


def input_errors(step: Step, choice: JobChoice, fleet: Fleet) -> dict[str, float]:
    """Return the relative errors of `monte_carlo.FACTORS`; what the user gives has none.

    Parameters
    ----------
    step, choice
        As of `job_model`.
    fleet : Fleet
        Whose failures the job has.
    """
    known = recovery()
    rate = 0.0
    if choice.failure_rate is None:
        rate = math.hypot(fleet.rate_error, rate_spread() if choice.failures is None else 0.0)
    return {
        "step": step.error,
        "detection": known.detection.error if choice.detection is None else 0.0,
        "restart": known.restart.error if choice.restart is None else 0.0,
        "rate": rate,
    }


def assumptions(model: JobModel, choice: JobChoice, parts: JobParts) -> tuple[str, ...]:
    """Job → its assumptions, a line each.

    Parameters
    ----------
    model : JobModel
    choice : JobChoice
    parts : JobParts
        Of `job_model`.
    """
    known = recovery()
    fleet = parts.fleet
    lines = []
    if choice.failure_rate is None:
        lines.append(
            f"failures as of {parts.fleet_name} ({fleet.title}): {1000 * fleet.per_gpu_day:.3g} of "
            f"1,000 GPU-days ± {percentage(fleet.rate_error)}; {fleet.source}"
        )
    if choice.failures is None and choice.failure_rate is None:
        lines.append(
            f"failures is not given: fleets lie apart by a factor of {math.exp(rate_spread()):.2g} "
            "(one σ), which the errors cover"
        )
    if parts.fleet_name != NONE and not fleet.causes:
        lines.append(f"{parts.fleet_name} does not say why: every failure costs a node")
    if choice.planned is None and fleet.planned:
        lines.append(
            f"planned interruptions as of {parts.fleet_name}: "
            f"{1000 * fleet.planned_per_gpu_day:.3g} of 1,000 GPU-days"
        )
    for key, quantity in (
        ("detection", known.detection),
        ("restart", known.restart),
        ("swap", known.swap),
        ("maintenance", known.maintenance),
    ):
        if getattr(choice, key) is None:
            lines.append(
                f"{key} = {quantity.si / 60:g} min ± {percentage(quantity.error)} (default): "
                f"{quantity.source}"
            )
    if choice.spares is None:
        lines.append("spares: one is always ready (default)")
    elif choice.repair is None:
        lines.append(
            f"repair = {known.repair.si / 3600:g} h ± {percentage(known.repair.error)} (default): "
            f"{known.repair.source}"
        )
    rates = {
        name: getattr(parts.storage, name)
        for name in ("node_write", "total_write", "node_read", "total_read")
    }
    given = ", ".join(
        f"{name} {each.value:g} {each.unit} ± {percentage(each.error)}"
        for name, each in rates.items()
        if each is not None
    )
    lines.append(f"storage {parts.storage_name} ({parts.storage.title}): {given}")
    if choice.checkpoint == "async":
        lines.append(
            f"a checkpoint stalls {known.stall.si:g} s ± {percentage(known.stall.error)} beside "
            f"the copy to the hosts: {known.stall.source}"
        )
    if choice.checkpoint_interval is not None:
        requested = seconds(choice.checkpoint_interval, "checkpoint_interval")
        if model.least_interval * model.step > requested + model.step:
            lines.append(
                f"checkpoint_interval = {choice.checkpoint_interval!r} is less than the "
                f"{model.persist:,.0f} s in which one becomes whole: one after the other"
            )
    lines.append("every step takes the same time: [variation] says how GPUs and kernels vary in it")
    return tuple(lines)
