"""Uneven shares of the work on GPUs of several kinds: layers of stages, sequences of replicas.

A stage takes as long as its slowest GPU: layers are handed out one by one, each to the stage that
is done first with it, embedding and head counted where they are. A replica takes as long as its
slowest stage in every micro-batch: these are handed out one by one, too. Times are those of
kernels, alone; communications are not looked at. A search compares the result with even shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..experiment import Experiment, Plan, Transformer
from ..kernels import KernelModel
from ..prediction.hardware import gpu_kinds, hardware_of
from ..prediction.prepared import kernel_models
from ..schedules import SCHEDULES, parts_of_stage
from ..workloads.grid import Grid
from ..workloads.operators import Compute, Layer
from ..workloads.transformer import transformer_network

__all__ = ["BALANCED", "EVEN", "SHARES", "balanced_shares", "handed_out"]

EVEN, BALANCED = "even", "balanced"

SHARES = ("pipeline.stages", "replica_batch")
"""Keys of ``[plan]`` that may be `EVEN` or `BALANCED` in a search."""


def balanced_shares(experiment: Experiment, keys: Sequence[str]) -> dict[str, list[int]]:
    """Experiment → shares in proportion to the speed of its GPUs.

    Parameters
    ----------
    experiment : Experiment
        A transformer's; what its plan says of other shares is kept.
    keys : sequence of str
        Of `SHARES`.

    Raises
    ------
    InputError
        If there is nothing to share out.
    """
    model, plan = experiment.model, experiment.plan
    if not isinstance(model, Transformer):
        raise InputError(f"plan.{keys[0]} is {BALANCED!r}; that is for transformers")
    schedule = SCHEDULES[plan.pipeline.schedule]
    if "pipeline.stages" in keys and (schedule.mirrored or schedule.v_shaped):
        raise InputError(
            f"plan.pipeline.stages is {BALANCED!r}; stages of schedule = "
            f"{plan.pipeline.schedule!r} work both ways"
        )
    times = _Times.of(experiment, model)
    found: dict[str, list[int]] = {}
    parts = plan.pp * plan.vpp
    layers: Sequence[float] = list(plan.pipeline.stages) or [times.layers / parts] * parts
    if "pipeline.stages" in keys:
        layers = found["pipeline.stages"] = _stages(plan, times)
    if "replica_batch" in keys:
        found["replica_batch"] = _batches(plan, times, layers)
    return found


@frozen(eq=False)
class _Times:
    """Time of a micro-batch's kernels on each kind of GPU, and the ranks of each kind.

    Attributes
    ----------
    layers : int
        Blocks of the model.
    block, before, after : float64, shape (n_kinds,)
        Seconds of a block, of all layers before the blocks, and of all behind them.
    kind, stage, replica : int64, shape (n_ranks,)
        Of each rank: its kind of GPU, pipeline stage and data-parallel replica.
    """

    layers: int
    block: NDArray[np.float64]
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    kind: NDArray[np.int64]
    stage: NDArray[np.int64]
    replica: NDArray[np.int64]

    @classmethod
    def of(cls, experiment: Experiment, model: Transformer) -> _Times:
        """Price every layer of an experiment's model on each kind of its GPUs."""
        hardware = hardware_of(experiment)
        grid = Grid.of(experiment.plan, hardware.gpus)
        kinds = gpu_kinds(experiment.cluster, hardware.cluster, hardware.named)
        kind = np.zeros(grid.world, np.int64) if kinds is None else kinds[: grid.world]
        models, _ = kernel_models(experiment, hardware)
        layers = transformer_network(model, experiment.plan, grid).layers
        times = np.array([[_seconds(layer, each) for layer in layers] for each in models])
        roles = [layer.role for layer in layers]
        first = roles.index("block")
        last = first + roles.count("block")
        before, after = times[:, :first].sum(axis=1), times[:, last:].sum(axis=1)
        return cls(last - first, times[:, first], before, after, kind, grid.stage, grid.index("dp"))


def _stages(plan: Plan, times: _Times) -> list[int]:
    """Plan → blocks of each model chunk; stages of slower GPUs have fewer."""
    # Of every stage the slowest GPU in each respect.
    own = [np.unique(times.kind[times.stage == number]) for number in range(plan.pp)]
    already = [0.0] * plan.pp
    already[0] += float(times.before[own[0]].max())
    already[-1] += float(times.after[own[-1]].max())
    each = [float(times.block[kinds].max()) for kinds in own]
    blocks = handed_out(times.layers, each, already, least=plan.vpp)
    shares = []
    for part in range(plan.pp * plan.vpp):
        chunk, stage = divmod(part, plan.pp)
        whole, rest = divmod(blocks[stage], plan.vpp)
        shares.append(whole + (chunk < rest))
    return shares


def _batches(plan: Plan, times: _Times, layers: Sequence[float]) -> list[int]:
    """Plan and the blocks of each model chunk → sequences of each replica."""
    micro_batches, rest = divmod(plan.global_batch, plan.micro_batch)
    if rest:
        raise InputError(
            f"plan.global_batch is {plan.global_batch}, no multiple of micro_batch = "
            f"{plan.micro_batch}"
        )
    schedule = plan.pipeline.schedule
    on_stage = [
        sum(layers[part] for part in parts_of_stage(schedule, number, plan.pp, plan.vpp))
        for number in range(plan.pp)
    ]

    def seconds(replica: int, stage: int) -> float:
        kinds = np.unique(times.kind[(times.replica == replica) & (times.stage == stage)])
        taken = on_stage[stage] * times.block[kinds]
        if stage == 0:
            taken = taken + times.before[kinds]
        if stage == plan.pp - 1:
            taken = taken + times.after[kinds]
        return float(taken.max())

    replicas = range(int(times.replica.max()) + 1)
    slowest = [max(seconds(each, stage) for stage in range(plan.pp)) for each in replicas]
    filling = [(plan.pp - 1) * each for each in slowest]
    shares = handed_out(micro_batches, slowest, filling, least=1)
    return [each * plan.micro_batch for each in shares]


def handed_out(
    number: int, each: Sequence[float], already: Sequence[float], least: int
) -> list[int]:
    """Equal pieces of work, times of workers → pieces of each, so that all are done earliest.

    Parameters
    ----------
    number : int
        Of the pieces.
    each : sequence of float
        Time of one for each worker.
    already : sequence of float
        Time of what each worker has to do besides.
    least : int
        Pieces that each gets at least.

    Returns
    -------
    list of int

    Raises
    ------
    InputError
        If there are too few.
    """
    if number < least * len(each):
        raise InputError(
            f"{number} pieces of work cannot be shared by {len(each)}, {least} or more each"
        )
    found = [least] * len(each)
    for _ in range(number - least * len(each)):
        done = [
            (besides + (count + 1) * time, at)
            for at, (besides, count, time) in enumerate(zip(already, found, each, strict=True))
        ]
        found[min(done)[1]] += 1
    return found


def _seconds(layer: Layer, model: KernelModel) -> float:
    """Layer → seconds of its kernels, forward and backward."""
    tasks = [task for each in layer.operators for task in (*each.forward, *each.backward)]
    kernels = [task.kernel for task in tasks if isinstance(task, Compute)]
    return sum(model.estimate(kernel).duration for kernel in kernels) * 1e-12
