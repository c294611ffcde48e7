"""Uneven shares of the work on GPUs of several kinds: layers of stages, sequences of replicas.

A stage takes as long as its slowest GPU: layers are handed out one by one, each to the stage that
is done first with it, embedding and head counted where they are. A replica takes as long as its
slowest stage in every micro-batch: these are handed out one by one, too. Times are those of
kernels, alone; communications are not looked at. A search compares the result with even shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.errors import InputError
from ..experiment import Experiment, Transformer
from ..kernels import KernelModel
from ..prediction.hardware import gpu_kinds, hardware_of
from ..prediction.prepared import kernel_models
from ..schedules import SCHEDULES
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
    if "pipeline.stages" in keys and SCHEDULES[plan.pipeline.schedule].mirrored:
        raise InputError(
            f"plan.pipeline.stages is {BALANCED!r}; stages of schedule = "
            f"{plan.pipeline.schedule!r} work both ways"
        )
    hardware = hardware_of(experiment)
    grid = Grid.of(plan, hardware.gpus)
    kinds = gpu_kinds(experiment.cluster, hardware.cluster, hardware.named)
    of_rank = np.zeros(grid.world, np.int64) if kinds is None else kinds[: grid.world]
    models, _ = kernel_models(experiment, hardware)
    layers = transformer_network(model, plan, grid).layers
    times = np.array([[_seconds(layer, each) for layer in layers] for each in models])
    roles = [layer.role for layer in layers]
    first = roles.index("block")
    last = first + roles.count("block")
    block = times[:, first]
    before, after = times[:, :first].sum(axis=1), times[:, last:].sum(axis=1)
    stage, replica = grid.stage, grid.index("dp")
    found: dict[str, list[int]] = {}
    parts = plan.pp * plan.vpp
    counts: Sequence[float] = list(plan.pipeline.stages) or [(last - first) / parts] * parts
    if "pipeline.stages" in keys:
        # Of every stage the slowest GPU in each respect.
        own = [np.unique(of_rank[stage == number]) for number in range(plan.pp)]
        already = [0.0] * plan.pp
        already[0] += float(before[own[0]].max())
        already[-1] += float(after[own[-1]].max())
        each = [float(block[kinds_here].max()) for kinds_here in own]
        blocks = handed_out(last - first, each, already, least=plan.vpp)
        found["pipeline.stages"] = [
            blocks[part % plan.pp] // plan.vpp
            + (part // plan.pp < blocks[part % plan.pp] % plan.vpp)
            for part in range(parts)
        ]
        counts = found["pipeline.stages"]
    if "replica_batch" in keys:
        micro_batches, rest = divmod(plan.global_batch, plan.micro_batch)
        if rest:
            raise InputError(
                f"plan.global_batch is {plan.global_batch}, no multiple of micro_batch = "
                f"{plan.micro_batch}"
            )
        on_stage = [sum(counts[number :: plan.pp]) for number in range(plan.pp)]
        slowest = []
        for number in range(grid.dp):
            stages = [
                float(
                    max(
                        on_stage[at] * block[kind]
                        + (before[kind] if at == 0 else 0.0)
                        + (after[kind] if at == plan.pp - 1 else 0.0)
                        for kind in np.unique(of_rank[(replica == number) & (stage == at)])
                    )
                )
                for at in range(plan.pp)
            ]
            slowest.append(max(stages))
        filling = [(plan.pp - 1) * each for each in slowest]
        shares = handed_out(micro_batches, slowest, filling, least=1)
        found["replica_batch"] = [each * plan.micro_batch for each in shares]
    return found


def handed_out(
    number: int, each: Sequence[float], already: Sequence[float], least: int
) -> list[int]:
    """Hand out equal pieces of work so that the last is done as early as can be.

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
    """Return how long the kernels of a layer take, forward and backward."""
    tasks = [task for each in layer.operators for task in (*each.forward, *each.backward)]
    kernels = [task.kernel for task in tasks if isinstance(task, Compute)]
    return sum(model.estimate(kernel).duration for kernel in kernels) * 1e-12
