"""Experiment, number of GPUs → `Layout`: rank grid, pipeline schedule, layers of each stage.

    experiment, number of GPUs ─► Layout

A layout says which rank holds which layers, in which shapes, and which passes each pipeline stage
runs. It has no rows yet; the memory model needs no more than a layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..experiment import Cnn, Experiment, Plan, Transformer
from ..experiment.plan_options import OffloadOptions, PipelineOptions
from ..experiment.traced import Traced
from ..schedules import Pipeline, check_schedule, pipeline
from ..topo import find_cluster
from ..topo.speeds import with_speeds
from .grid import Grid
from .operators import Layer, LayerStack

__all__ = ["Layout", "ModelChunk", "lay_out", "networks_of", "split_layers"]

MAX_MICRO_BATCHES = 2**15
"""Micro-batches of a pipeline: what a table's column can count."""

MOST_NETWORKS = 256
"""Networks of transformers that are kept, of up to 100 KB each."""

MAX_CHUNKS_LISTED = 16
"""Model chunks up to which a message lists the layers of each."""


@frozen
class ModelChunk:
    """Consecutive layers of a model, which one pipeline stage holds.

    Attributes
    ----------
    layers : tuple of Layer
    numbers : tuple of int
        The number of each layer among the model's blocks; -1 for embedding and head.
    """

    layers: tuple[Layer, ...]
    numbers: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """Number of layers that are neither embedding nor head."""
        return sum(number >= 0 for number in self.numbers)


@frozen
class Layout:
    """Grid of ranks, pipeline schedule and model chunks of an experiment.

    Attributes
    ----------
    experiment : Experiment
    grid : Grid
    pipeline : Pipeline
        Of the replicas with the most micro-batches.
    networks : tuple of LayerStack
    network : int64, shape (world,)
        Index in `networks` of each rank's network; most models have one network.
    model_chunks : tuple of tuple of ModelChunk
        The chunks of each network, in the order of execution.
    shorter : tuple of Pipeline
        Pipelines of replicas with fewer micro-batches.
    pipeline_of : int64, shape (world,), optional
        Which pipeline each rank is in: 0, or ``1 + i`` for ``shorter[i]``; 0 if not given.
    gpu_of : int64, shape (world,), optional
        Which kind of GPU each rank has; 0 if not given.
    """

    experiment: Experiment
    grid: Grid
    pipeline: Pipeline
    networks: tuple[LayerStack, ...]
    network: NDArray[np.int64]
    model_chunks: tuple[tuple[ModelChunk, ...], ...]
    shorter: tuple[Pipeline, ...] = ()
    pipeline_of: NDArray[np.int64] | None = None
    gpu_of: NDArray[np.int64] | None = None

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """All pipelines, by `pipeline_of`."""
        return (self.pipeline, *self.shorter)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of all replicas together."""
        plan = self.experiment.plan
        return plan.global_batch // plan.micro_batch

    def with_micro_batches(self, number: int) -> Layout:
        """Return the layout with so many micro-batches in each replica.

        Raises
        ------
        InputError
            If the schedule cannot work with the number.
        """
        plan = self.experiment.plan
        plan = replace(
            plan, global_batch=number * self.grid.dp * plan.micro_batch, replica_batch=()
        )
        experiment, grid = replace(self.experiment, plan=plan), self.grid
        found = replace(
            self,
            experiment=experiment,
            shorter=(),
            pipeline_of=None,
            pipeline=_pipeline(plan, number),
        )
        if _accumulates(plan, grid) == _accumulates(self.experiment.plan, grid):
            return found
        networks, network = _networks(experiment, grid)
        return replace(
            found, networks=tuple(networks), network=network, model_chunks=_chunks(networks, plan)
        )

    def chunks(self, stage: int, network: int = 0) -> tuple[ModelChunk, ...]:
        """Return the model chunks a stage holds.

        Parameters
        ----------
        stage : int
            Of the pipeline, from 0.
        network : int
            Index into `networks`; 0 by default.

        Returns
        -------
        tuple of ModelChunk
            By the number of the chunk in the stage.
        """
        chunks = self.model_chunks[network]
        return tuple(
            chunks[self.pipeline.part(stage, chunk)] for chunk in range(self.pipeline.chunks)
        )


def lay_out(experiment: Experiment, gpus: int, gpu_of: NDArray[np.int64] | None = None) -> Layout:
    """Experiment, number of GPUs → `Layout`.

    Parameters
    ----------
    experiment : Experiment
    gpus : int
    gpu_of : int64, shape (gpus,), optional
        Which kind of GPU each rank has, where the cluster has several.

    Raises
    ------
    InputError
        If model, plan and GPUs do not fit together; the message names the keys.
    """
    plan = experiment.plan
    grid = _grid(experiment, gpus)
    counts = check_layout(experiment, grid)
    distinct = sorted(set(counts), reverse=True)
    networks, network = _networks(experiment, grid)
    chunks = _chunks(networks, plan)
    # Last, since it takes longest: callers try many plans whose sizes do not divide.
    longest, *shorter = (_pipeline(plan, each) for each in distinct)
    return Layout(
        experiment,
        grid,
        longest,
        tuple(networks),
        network,
        chunks,
        shorter=tuple(shorter),
        pipeline_of=np.array([distinct.index(each) for each in counts])[grid.index("dp")],
        gpu_of=None if gpu_of is None else gpu_of[: grid.world],
    )


def check_layout(experiment: Experiment, grid: Grid) -> list[int]:
    """Refuse a plan that does not fit the GPUs; return the micro-batches of each replica.

    What this takes depends on sizes alone; networks of layers do not.

    Parameters
    ----------
    experiment : Experiment
    grid : Grid
        Of its plan.

    Raises
    ------
    InputError
        As `lay_out`.
    """
    model, plan = experiment.model, experiment.plan
    counts = _micro_batches(plan, grid.dp)
    if isinstance(model, Transformer) and model.experts:
        grid.check_experts()
    for count in sorted(set(counts)):
        check_schedule(
            plan.pipeline.schedule,
            plan.pp,
            count,
            plan.vpp,
            paired=plan.overlap.ep,
            run=plan.pipeline.run,
        )
    return counts


def _pipeline(plan: Plan, micro_batches: int) -> Pipeline:
    return pipeline(
        plan.pipeline.schedule,
        plan.pp,
        micro_batches,
        plan.vpp,
        paired=plan.overlap.ep,
        run=plan.pipeline.run,
    )


def _micro_batches(plan: Plan, dp: int) -> list[int]:
    """Return the number of micro-batches of each replica."""
    if plan.replica_batch:
        if len(plan.replica_batch) != dp:
            raise InputError(
                f"plan.replica_batch has {len(plan.replica_batch)} entries; dp is {dp}"
            )
        counts = [batch // plan.micro_batch for batch in plan.replica_batch]
    else:
        each = dp * plan.micro_batch
        count, rest = divmod(plan.global_batch, each)
        if rest:
            raise InputError(
                f"plan.global_batch is {plan.global_batch}, which is not a multiple of dp × "
                f"micro_batch = {dp} × {plan.micro_batch} = {each}"
            )
        counts = [count] * dp
    if max(counts) > MAX_MICRO_BATCHES:
        raise InputError(
            f"plan.global_batch is {plan.global_batch}: {max(counts)} micro-batches of "
            f"dp × micro_batch = {dp} × {plan.micro_batch}; there can be {MAX_MICRO_BATCHES}: "
            "raise micro_batch or dp; a batch counts samples, not tokens"
        )
    return counts


def _grid(experiment: Experiment, gpus: int) -> Grid:
    """Return the plan's grid, with what the machine's links do where messages depend on it."""
    plan, choice = experiment.plan, experiment.cluster
    if not plan.framework.dispatches_by_kernels:
        return Grid.of(plan, gpus)
    cluster = with_speeds(find_cluster(choice.preset), choice.speeds)
    rates = cluster.rates(choice.node_gpus if choice.nics else None)
    return Grid.of(plan, gpus, choice.node_gpus, rates)


def networks_of(experiment: Experiment, gpus: int) -> Sequence[LayerStack]:
    """Experiment → the networks of its layout, without its pipelines and chunks.

    Parameters
    ----------
    experiment : Experiment
        Of which `check_layout` has refused nothing.
    gpus : int

    Raises
    ------
    InputError
        As `lay_out`.
    """
    return _networks(experiment, _grid(experiment, gpus))[0]


def _networks(experiment: Experiment, grid: Grid) -> tuple[Sequence[LayerStack], NDArray[np.int64]]:
    """Return the networks of a model, and which of them each rank has."""
    model, plan = experiment.model, experiment.plan
    one = np.zeros(grid.world, np.int64)
    if isinstance(model, Transformer):
        return [_transformer(model, _plan_of_layers(model, plan, grid), grid)], one
    if isinstance(model, Cnn):
        from .cnn import cnn_network

        return [cnn_network(model, plan, grid)], one
    if isinstance(model, Traced):
        makers = (model.network, *model.others)
        which = one if model.of_rank is None else model.of_rank[: grid.world]
        return [cast(LayerStack, make(plan, grid)) for make in makers], which
    from .dlrm import dlrm_networks

    networks, by_data = dlrm_networks(model, plan, grid)
    return networks, by_data[grid.index("dp")]


@lru_cache(maxsize=MOST_NETWORKS)
def _transformer(model: Transformer, plan: Plan, grid: Grid) -> LayerStack:
    """Return the network of a transformer; the last few are kept, since plans share them."""
    from .transformer import transformer_network

    return transformer_network(model, plan, grid)


def _plan_of_layers(model: Transformer, plan: Plan, grid: Grid) -> Plan:
    """Plan → canonical plan with the same layers, equal for all plans that have these layers.

    A transformer's layers do not depend on how they are shared out to stages, and of the batch only
    on whether gradients are accumulated; of ZeRO on whether gradients are sharded, too. Adapters
    and experts that are modules look at its stage.
    """
    accumulates = _accumulates(plan, grid)
    by_stage = model.lora_rank or (model.experts and plan.experts == "modules")
    zero = plan.zero if by_stage else plan.zero - plan.zero % 2
    return replace(
        plan,
        global_batch=(1 + accumulates) * grid.dp * plan.micro_batch,
        replica_batch=(),
        zero=zero,
        zero_group=plan.zero_group if zero else None,
        offload=OffloadOptions(),
        overlap=replace(plan.overlap, mirror=False),
        # With two micro-batches that take turns a plan says which schedule has them.
        vpp=plan.vpp if plan.overlap.ep else 1,
        pipeline=plan.pipeline if plan.overlap.ep else PipelineOptions(),
    )


def _accumulates(plan: Plan, grid: Grid) -> bool:
    """Whether gradients of several micro-batches are added up, which layers heed."""
    return plan.global_batch > grid.dp * plan.micro_batch


def _chunks(networks: Sequence[LayerStack], plan: Plan) -> tuple[tuple[ModelChunk, ...], ...]:
    """Return the model chunks of each network, as of `Layout.model_chunks`."""
    return tuple(tuple(split_layers(each, plan, plan.pp * plan.vpp)) for each in networks)


def split_layers(network: LayerStack, plan: Plan, parts: int) -> list[ModelChunk]:
    """LayerStack → model chunks, evenly or as ``plan.pipeline.stages`` says.

    Embeddings are in the first, heads in the last.

    Parameters
    ----------
    network : LayerStack
    plan : Plan
    parts : int
        Number of chunks: stages times chunks of a stage.

    Raises
    ------
    InputError
        If the blocks cannot be spread evenly, or a chunk is left without a layer.
    """
    roles = [layer.role for layer in network.layers]
    blocks = roles.count("block")
    counts = list(plan.pipeline.stages) or _even(blocks, plan, parts)
    if sum(counts) != blocks:
        raise InputError(
            f"plan.pipeline.stages = {counts} adds up to {sum(counts)} layers; the model has "
            f"{blocks}"
        )
    first = roles.index("block") if blocks else len(roles)
    number = 0
    found = []
    for part, count in enumerate(counts):
        begin, end = first + number, first + number + count
        layers = list(network.layers[begin:end])
        numbers = list(range(number, number + count))
        if part == 0:
            layers = [*network.layers[:first], *layers]
            numbers = [-1] * first + numbers
        if part == parts - 1:
            rest = network.layers[first + blocks :]
            layers += rest
            numbers += [-1] * len(rest)
        number += count
        found.append(ModelChunk(tuple(layers), tuple(numbers)))
    for part, each in enumerate(found):
        if not each.layers:
            raise InputError(
                f"part {part} of the pipeline has no layer; plan.pipeline.stages = {counts}"
            )
    return found


def _even(blocks: int, plan: Plan, parts: int) -> list[int]:
    """Return the number of blocks of each chunk; embedding and loss may count as one each."""
    extra = plan.pipeline.account_for_embedding + plan.pipeline.account_for_loss
    each, rest = divmod(blocks + extra, parts)
    if rest:
        counted = "1 layer" if blocks == 1 else f"{blocks} layers"
        if extra:
            counted += f" and {extra} for embedding and loss"
        uneven = [blocks // parts + (part < blocks % parts) for part in range(parts)]
        such = f", such as {uneven}" if min(uneven) > 0 and parts <= MAX_CHUNKS_LISTED else ""
        raise InputError(
            f"{counted} cannot be spread evenly over plan.pp × plan.vpp = {parts} parts of the "
            f"pipeline; give the layers of each in plan.pipeline.stages{such}"
        )
    counts = [each] * parts
    counts[0] -= plan.pipeline.account_for_embedding
    counts[-1] -= plan.pipeline.account_for_loss
    return counts
