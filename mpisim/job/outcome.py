"""Step, cluster, ``[job]`` → when the job is done, what it costs and where its time goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..experiment.job_choice import JobChoice
from .checkpoint import CheckpointTimes
from .closed_form import expected_time
from .fleets import Fleet
from .inputs import JobCluster, Step, assumptions, input_errors, job_model
from .interval import Intervals, best_interval, daly_steps
from .model import JobModel
from .monte_carlo import COUNTS, EXACT, FACTORS, MOST_RUNS, PARTS, Runs, runs_needed, simulate_runs

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "Change",
    "Costs",
    "JobOutcome",
    "Spread",
    "job_outcome",
]

FIRST_RUNS = 1000
MAX_P95_ERROR = 1e-3
"""Standard error of the p95, as a share of it, with which there are runs enough."""

CHANGE_RUNS = 256
"""Of each change: with the same random numbers as the job without it."""

MAX_EXPECTED_STRETCH = 100.0
"""Times the undisturbed job: if more is to be expected, the job does not come to an end."""

STATES: Mapping[str, str] = {
    "checkpoints": "standing",
    "detection": "hung",
    "waiting for nodes": "idle",
    "restart": "idle",
    "maintenance": "idle",
}
"""Parts in which no step runs → what the cluster does: what it draws is `Costs.watts_of`."""

SPARES = "spares"
"""Of the energy: nodes that stand ready, which is no part of the time."""

Floats = NDArray[np.float64]


@frozen
class Costs:
    """Costs of an hour of the cluster.

    Attributes
    ----------
    watts, idle_watts : float
        Of the whole building: in a step, and while nothing runs on any node.
    watts_error : float
        Relative, one standard deviation.
    standing_watts : float, optional
        While steps stand still for a checkpoint; as in a step if not given.
    hung_watts : float, optional
        Until a failure is noticed; as in a step if not given.
    idle_error, standing_error, hung_error : float
        As `watts_error`, of these.
    pue : float
        Watts of the building for each of the machines.
    usd_hour : float, optional
        Dollars of an hour, electricity not included where it is paid for; None: not known.
    usd_error : float
        Of it, relative, one standard deviation.
    usd_kwh : float
        Dollars of a kWh where electricity is paid for; else 0.
    missing : str
        Why dollars are not known.
    lines : tuple of str
        Where the figures are from, for people.
    """

    watts: float
    idle_watts: float
    watts_error: float = 0.0
    pue: float = 1.0
    usd_hour: float | None = None
    usd_error: float = 0.0
    usd_kwh: float = 0.0
    missing: str = ""
    lines: tuple[str, ...] = ()
    standing_watts: float | None = None
    hung_watts: float | None = None
    idle_error: float = 0.0
    standing_error: float = 0.0
    hung_error: float = 0.0

    def watts_of(self, state: str) -> tuple[float, float]:
        """State of the cluster → power of the facility in W, relative error of it.

        Parameters
        ----------
        state : str
            One of the values of `STATES`; anything else is a step.
        """
        watts: float | None = getattr(self, f"{state}_watts", None)
        if watts is None:
            return self.watts, self.watts_error
        return watts, getattr(self, f"{state}_error")


@frozen
class Spread:
    """Distribution of a number over the runs.

    Attributes
    ----------
    mean, p5, p50, p95 : float
    error : float
        Standard error of the p95, from the order statistics beside it.
    """

    mean: float
    p5: float
    p50: float
    p95: float
    error: float

    @classmethod
    def of(cls, values: Floats) -> Spread:
        """Values of runs → their spread."""
        ordered = np.sort(values)
        n = len(ordered)
        aside = math.sqrt(n * 0.95 * 0.05)
        low, high = (int(np.clip(round(0.95 * n + each), 0, n - 1)) for each in (-aside, aside))
        p5, p50, p95 = np.quantile(ordered, (0.05, 0.5, 0.95))
        error = float(ordered[high] - ordered[low]) / 2
        return cls(float(values.mean()), float(p5), float(p50), float(p95), error)

    def times(self, factor: float) -> Spread:
        """Return the spread of the number times a factor."""
        return Spread(*(factor * each for each in vars(self).values()))


@frozen
class Change:
    """Time of a job with one of its numbers changed.

    Attributes
    ----------
    name : str
    mean : float
        Seconds until it is done, in the mean.
    base : float
        Without the change, of the same random numbers.
    """

    name: str
    mean: float
    base: float

    @property
    def relative(self) -> float:
        """Change of the job's duration over the duration without it: -0.1 is 10 % shorter."""
        return self.mean / self.base - 1


@frozen
class JobOutcome:
    """When a job is done, and where its time goes. Times in seconds, energy in J.

    Attributes
    ----------
    step : Step
    cluster : JobCluster
    choice : JobChoice
    model : JobModel
    fleet : str
    fleet_table : Fleet
    storage : str
    times : CheckpointTimes
    intervals : Intervals
    expected : float
        Time by closed form, about.
    time : Spread
        Until it is done.
    time_with_errors : Spread
        The same with the errors of the step, of the failure rate and of the recovery.
    errors : mapping of str to float
        These errors, relative.
    goodput : Spread
        Share of the time that makes steps which count.
    goodput_with_errors : Spread
    parts : mapping of str to float
        Mean seconds of each part of the time.
    interruptions : Spread
    counts : mapping of str to float
        Mean number of failures, planned interruptions, nodes that left, checkpoints.
    energy, usd : Spread or None
    energy_parts : mapping of str to float
        Mean J of each part of the time, and of spares; empty where energy is not known.
    energy_error : float
        Of the energy, relative: one standard deviation, of what the cluster draws.
    changes : tuple of Change
    costs : Costs or None
    assumptions : tuple of str
    runs : Runs
        Of the one job.
    """

    step: Step
    cluster: JobCluster
    choice: JobChoice
    model: JobModel
    fleet: str
    fleet_table: Fleet
    storage: str
    times: CheckpointTimes
    intervals: Intervals
    expected: float
    time: Spread
    time_with_errors: Spread
    errors: Mapping[str, float]
    goodput: Spread
    goodput_with_errors: Spread
    parts: Mapping[str, float]
    interruptions: Spread
    counts: Mapping[str, float]
    energy: Spread | None
    usd: Spread | None
    energy_parts: Mapping[str, float]
    energy_error: float
    changes: tuple[Change, ...]
    costs: Costs | None
    assumptions: tuple[str, ...]
    runs: Runs

    @property
    def gpu_hours(self) -> Spread:
        """GPU-hours of the job, spares not included."""
        return self.time.times(self.cluster.gpus / 3600)

    @property
    def spare_gpu_hours(self) -> float:
        """GPU-hours of spares that stand ready, in the mean."""
        nodes = self.choice.spares or 0
        return nodes * self.cluster.gpus_per_node * self.time.mean / 3600


class _Bill(NamedTuple):
    """Energy and dollars of a job, as `JobOutcome` has them."""

    energy: Spread | None
    usd: Spread | None
    energy_parts: Mapping[str, float]
    energy_error: float


def job_outcome(
    step: Step,
    cluster: JobCluster,
    choice: JobChoice,
    costs: Costs | None = None,
    comm: Intracomm | None = None,
    *,
    changes: bool = True,
) -> JobOutcome:
    """Step, cluster, ``[job]`` → when the job is done. **Collective.**

    Parameters
    ----------
    step : Step
    cluster : JobCluster
    choice : JobChoice
    costs : Costs, optional
        For energy and dollars.
    comm : mpi4py.MPI.Intracomm, optional
        The processes that share the runs; all get the outcome, the same on any number of them.
    changes : bool
        Whether to look at what would change it.

    Raises
    ------
    InputError
        For unknown names, and jobs that would not come to an end.
    """
    model, parts = job_model(step, cluster, choice)
    intervals = best_interval(model, choice.seed, comm)
    if choice.checkpoint_interval is None:
        model = replace(model, interval=min(intervals.best, model.steps))
    expected = expected_time(model)
    if expected > MAX_EXPECTED_STRETCH * model.undisturbed:
        raise InputError(
            f"job: with a failure every {1 / model.rate / 60:,.1f} min and a checkpoint every "
            f"{model.interval * model.step / 60:,.1f} min the job would not come to an end"
        )
    runs = _enough_runs(model, choice, comm)
    errors = input_errors(step, choice, parts.fleet)
    with_errors = simulate_runs(
        [model], runs.parts.shape[1], choice.seed, comm, errors=[errors[name] for name in FACTORS]
    )
    time = runs.time[0]
    mean = runs.parts[0].mean(axis=0)
    counts = runs.counts[0]
    if costs is None:
        bill = _Bill(energy=None, usd=None, energy_parts={}, energy_error=0.0)
    else:
        bill = _bill(runs, cluster, choice, costs)
    return JobOutcome(
        step=step,
        cluster=cluster,
        choice=choice,
        model=model,
        fleet=parts.fleet_name,
        fleet_table=parts.fleet,
        storage=parts.storage_name,
        times=parts.times,
        intervals=intervals,
        expected=expected,
        time=Spread.of(time),
        time_with_errors=Spread.of(with_errors.time[0]),
        errors=errors,
        goodput=Spread.of(runs.parts[0][:, 0] / time),
        goodput_with_errors=Spread.of(with_errors.parts[0][:, 0] / with_errors.time[0]),
        parts=dict(zip(PARTS, mean.tolist(), strict=True)),
        interruptions=Spread.of((counts[:, 0] + counts[:, 1]).astype(np.float64)),
        counts=dict(zip(COUNTS, counts.mean(axis=0).tolist(), strict=True)),
        energy=bill.energy,
        usd=bill.usd,
        energy_parts=bill.energy_parts,
        energy_error=bill.energy_error,
        changes=_changes(model, step, cluster, choice, comm) if changes else (),
        costs=costs,
        assumptions=assumptions(model, choice, parts),
        runs=runs,
    )


def _bill(runs: Runs, cluster: JobCluster, choice: JobChoice, costs: Costs) -> _Bill:
    """Simulated runs, what hardware draws and costs → energy and dollars of the job."""
    # Spares stand idle, and are paid for like the others.
    spares = (choice.spares or 0) * cluster.gpus_per_node / cluster.gpus
    drawn = [costs.watts_of(STATES.get(name, "step")) for name in PARTS]
    drawn.append((spares * costs.idle_watts, costs.idle_error))
    time = runs.time[0]
    seconds = np.column_stack([runs.parts[0], time])
    each = seconds * np.array([watts for watts, _ in drawn])
    joules = each.sum(axis=1)
    means = each.mean(axis=0)
    # GPUs and hosts that draw more draw more in each part: the errors add up.
    off = float(means @ np.array([error for _, error in drawn]))
    usd = None
    if costs.usd_hour is not None:
        hours = (1 + spares) * time / 3600
        usd = Spread.of(hours * costs.usd_hour + joules / 3.6e6 * costs.usd_kwh)
    return _Bill(
        energy=Spread.of(joules),
        usd=usd,
        energy_parts=dict(zip((*PARTS, SPARES), means.tolist(), strict=True)),
        energy_error=off / max(float(means.sum()), 1e-300),
    )


def _enough_runs(model: JobModel, choice: JobChoice, comm: Intracomm | None) -> Runs:
    """Return as many runs as are asked for, or as make the p95 certain. **Collective.**"""
    if choice.runs is not None:
        return simulate_runs([model], choice.runs, choice.seed, comm)
    runs = simulate_runs([model], runs_needed(model, FIRST_RUNS), choice.seed, comm)
    while True:
        found = Spread.of(runs.time[0])
        n = runs.parts.shape[1]
        if found.error <= MAX_P95_ERROR * found.p95 or n >= MOST_RUNS:
            return runs
        more = simulate_runs([model], n, choice.seed, comm, first=n)
        runs = Runs(
            np.concatenate([runs.parts, more.parts], axis=1),
            np.concatenate([runs.counts, more.counts], axis=1),
        )


def _changes(
    model: JobModel,
    step: Step,
    cluster: JobCluster,
    choice: JobChoice,
    comm: Intracomm | None,
) -> tuple[Change, ...]:
    """Job → its time with each input better and worse by itself. **Collective.**"""

    def with_interval(changed: JobModel) -> JobModel:
        """Changed model → with its checkpoint interval changed as Daly's; a given one stays."""
        if choice.checkpoint_interval is not None:
            wanted = changed.interval
        else:
            wanted = round(changed.interval * daly_steps(changed) / max(daly_steps(model), 1))
        return replace(changed, interval=min(max(wanted, changed.least_interval), model.steps))

    def stored(factor: float) -> JobModel:
        """Factor → the model with storage and copies to hosts that many times as fast."""
        times = job_model(step, cluster, choice)[1].times
        faster = replace(
            model,
            stall=model.stall / factor,
            persist=model.persist / factor,
            restart=model.restart - times.load * (1 - 1 / factor),
        )
        return with_interval(faster)

    other: Literal["async", "sync"] = "sync" if choice.checkpoint == "async" else "async"
    switched = job_model(step, cluster, replace(choice, checkpoint=other))[0]
    jobs = {
        "failures half as often": with_interval(replace(model, rate=model.rate / 2)),
        "failures twice as often": with_interval(replace(model, rate=model.rate * 2)),
        "detection in half the time": replace(model, detection=model.detection / 2),
        "restart in half the time": replace(model, restart=model.restart / 2),
        "storage twice as fast": stored(2.0),
        "storage a quarter as fast": stored(0.25),
        f"{'synchronous' if other == 'sync' else 'asynchronous'} checkpoints": (
            switched
            if choice.checkpoint_interval is not None
            else replace(switched, interval=daly_steps(switched))
        ),
        "checkpoints twice as often": replace(
            model, interval=max(model.interval // 2, model.least_interval)
        ),
        "checkpoints half as often": replace(model, interval=min(2 * model.interval, model.steps)),
    }
    if choice.spares is not None:
        more = "twice as many spares" if choice.spares else "one spare"
        jobs[more] = replace(model, spares=max(2 * choice.spares, 1))
    if not model.rate and not model.planned_rate:
        return ()
    likely = {
        name: each
        for name, each in jobs.items()
        if expected_time(each) < MAX_EXPECTED_STRETCH * each.undisturbed
    }
    runs = runs_needed(model, CHANGE_RUNS)
    found = simulate_runs([model, *likely.values()], runs, choice.seed, comm, errors=EXACT)
    base, *others = found.time.mean(axis=1).tolist()
    changes = [Change(name, mean, base) for name, mean in zip(likely, others, strict=True)]
    return tuple(sorted(changes, key=lambda each: each.mean))
