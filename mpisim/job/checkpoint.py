"""Layout → bytes of a checkpoint; bytes and storage → how long it takes.

A checkpoint has every parameter and every number of the optimizer once: of what ranks hold in
common, each writes a share (PyTorch's distributed checkpoints, Megatron-LM's
``--ckpt-fully-parallel-save``). Gradients are not saved. Weights in fp8 and NVFP4 are copies, made
again from those in 16 bits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..base.frozen import frozen
from ..experiment import OffloadOptions, Transformer
from ..memory.states import model_states, parameter_counts, rates
from ..workloads import Layout
from ..workloads.grid import Groups
from ..workloads.optimizer import OPTIMIZER_STATES
from .storage import Storage

__all__ = ["Checkpoint", "CheckpointTimes", "checkpoint_of", "checkpoint_times"]

FP32 = 4


@frozen
class Checkpoint:
    """Bytes of a checkpoint.

    Attributes
    ----------
    total : int
        Of the whole: every number once.
    gpu : int
        That the GPU which writes most writes.
    load : int
        That the GPU which reads most reads: all states it holds.
    load_total : int
        That all GPUs together read.
    """

    total: int
    gpu: int
    load: int
    load_total: int


def checkpoint_of(layout: Layout) -> Checkpoint:
    """Layout → bytes of a checkpoint.

    Parameters
    ----------
    layout : Layout
        Of an experiment on its cluster.
    """
    plan = layout.experiment.plan.resolved(
        transformer=isinstance(layout.experiment.model, Transformer)
    )
    # What lies in the host's memory is written and read as well.
    plan = replace(plan, offload=OffloadOptions())
    grid = layout.grid
    sizes = dict(Groups(grid, plan.zero_group).sizes)
    each = rates(plan)
    bytes_of_one = each.weight + each.optimizer
    of_local = each.weight + FP32 * OPTIMIZER_STATES[plan.optimizer]
    replicas, expert_replicas = grid.dp * grid.cp, grid.edp
    pipeline = layout.pipeline
    parts = [
        [pipeline.part(stage, number) for number in range(pipeline.chunks)]
        for stage in range(pipeline.stages)
    ]
    holders = Counter(part for each in parts for part in each)  # DualPipe's are held by two stages
    total = gpu = load = load_total = 0
    for network, chunks in enumerate(layout.model_chunks):
        # Ranks of a stage that have their share of this network: all, unless tables differ by rank.
        ranks = int((layout.network == network).sum()) // grid.pp
        for stage in range(pipeline.stages):
            layers = [layer for part in parts[stage] for layer in chunks[part].layers]
            counts = parameter_counts(layers, plan.framework.wrap_layers)
            copies = max(holders[part] for part in parts[stage])
            share = counts.dense / replicas + counts.experts / expert_replicas
            written = (bytes_of_one * share + of_local * counts.local) / copies
            states = model_states(counts, plan, sizes)
            held = states.parameters + states.optimizer
            total += round(ranks * written)
            gpu = max(gpu, round(written))
            load = max(load, held)
            load_total += ranks * held
    return Checkpoint(total, gpu, load, load_total)


@frozen
class CheckpointTimes:
    """Seconds of a checkpoint.

    Attributes
    ----------
    stall : float
        That training stands still.
    persist : float
        From there until it is whole; 0 of a synchronous one.
    load : float
        To read it at a restart.
    """

    stall: float
    persist: float
    load: float


def checkpoint_times(
    checkpoint: Checkpoint,
    storage: Storage,
    *,
    gpus_per_node: int,
    host_bandwidth: float,
    asynchronous: bool,
    overhead: float,
) -> CheckpointTimes:
    """Bytes, storage → seconds.

    Parameters
    ----------
    checkpoint : Checkpoint
    storage : Storage
    gpus_per_node : int
    host_bandwidth : float
        Of a GPU to its host's memory, in B/s.
    asynchronous : bool
        Whether training goes on once the checkpoint is in the hosts' memory.
    overhead : float
        Seconds of an asynchronous one beside the copy.
    """
    copy = checkpoint.gpu / host_bandwidth
    write = storage.seconds("write", checkpoint.gpu * gpus_per_node, checkpoint.total)
    read = storage.seconds("read", checkpoint.load * gpus_per_node, checkpoint.load_total)
    load = max(read, checkpoint.load / host_bandwidth)
    if asynchronous:
        return CheckpointTimes(copy + overhead, write, load)
    return CheckpointTimes(max(copy, write), 0.0, load)
