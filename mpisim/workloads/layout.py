"""Experiments laid out on ranks: grid, pipeline and networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..experiment import Cnn, Experiment, Plan, Transformer
from ..schedules import Pipeline, pipeline
from ..topo import find_cluster
from .grid import Grid
from .operators import Network
from .parts import Part, split

__all__ = ["Layout", "lay_out"]

MOST = 2**15
"""Micro-batches of a pipeline, and blocks of a model: what the columns of a table can count."""


@dataclass(frozen=True)
class Layout:
    """An experiment laid out on ranks, before anything is written row by row.

    Attributes
    ----------
    experiment : Experiment
    grid : Grid
    pipeline : Pipeline
        Of the replicas with the most micro-batches.
    networks : tuple of Network
    network : int64, shape (world,)
        Which network each rank has its share of; most models have one.
    parts : tuple of tuple of Part
        Of each network, its parts in sequence.
    shorter : tuple of Pipeline
        Of replicas with fewer micro-batches.
    pipeline_of : int64, shape (world,), optional
        Which pipeline each rank is in: 0, or ``1 + i`` for ``shorter[i]``; 0 if not given.
    gpu_of : int64, shape (world,), optional
        Which kind of GPU each rank has; 0 if not given.
    """

    experiment: Experiment
    grid: Grid
    pipeline: Pipeline
    networks: tuple[Network, ...]
    network: NDArray[np.int64]
    parts: tuple[tuple[Part, ...], ...]
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
        return replace(
            self,
            experiment=replace(self.experiment, plan=plan),
            shorter=(),
            pipeline_of=None,
            pipeline=_pipeline(plan, number),
        )

    def chunks(self, stage: int, network: int = 0) -> tuple[Part, ...]:
        """Return the model chunks a stage holds."""
        parts = self.parts[network]
        return tuple(
            parts[self.pipeline.part(stage, chunk)] for chunk in range(self.pipeline.chunks)
        )


def lay_out(experiment: Experiment, gpus: int, gpu_of: NDArray[np.int64] | None = None) -> Layout:
    """Lay an experiment out on a number of GPUs.

    Parameters
    ----------
    experiment : Experiment
    gpus : int
    gpu_of : int64, shape (gpus,), optional
        Which kind of GPU each is, where they are not all alike.

    Raises
    ------
    InputError
        If model, plan and GPUs do not fit together; the message names the keys.
    """
    plan = experiment.plan
    grid = Grid.of(plan, gpus, _per_node(experiment))
    counts = _micro_batches(plan, grid.dp)
    distinct = sorted(set(counts), reverse=True)
    networks, network = _networks(experiment, grid)
    parts = tuple(tuple(split(each, plan, plan.pp * plan.vpp)) for each in networks)
    # Last, since it takes longest, and other plans are tried that do not come out even.
    longest, *shorter = (_pipeline(plan, each) for each in distinct)
    return Layout(
        experiment,
        grid,
        longest,
        tuple(networks),
        network,
        parts,
        shorter=tuple(shorter),
        pipeline_of=np.array([distinct.index(each) for each in counts])[grid.index("dp")],
        gpu_of=None if gpu_of is None else gpu_of[: grid.world],
    )


def _pipeline(plan: Plan, micro_batches: int) -> Pipeline:
    return pipeline(plan.schedule, plan.pp, micro_batches, plan.vpp, paired=plan.ep_overlap)


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
    if max(counts) > MOST:
        raise InputError(
            f"plan.global_batch is {plan.global_batch}: {max(counts)} micro-batches of "
            f"dp × micro_batch = {dp} × {plan.micro_batch}; there can be {MOST}: raise "
            "micro_batch or dp"
        )
    return counts


def _per_node(experiment: Experiment) -> int | None:
    """Return how many GPUs fast links join, where what ranks send depends on it."""
    if experiment.plan.moe_dispatcher == "all-to-all":
        return None
    return find_cluster(experiment.cluster.preset).gpus_per_node


def _networks(experiment: Experiment, grid: Grid) -> tuple[Sequence[Network], NDArray[np.int64]]:
    """Return the networks of a model, and which of them each rank has."""
    model, plan = experiment.model, experiment.plan
    one = np.zeros(grid.world, np.int64)
    if isinstance(model, Transformer):
        from .transformer import transformer_network

        if model.experts:
            grid.check_experts()
        return [transformer_network(model, plan, grid)], one
    if isinstance(model, Cnn):
        from .cnn import cnn_network

        return [cnn_network(model, plan, grid)], one
    from .dlrm import dlrm_networks

    networks, by_data = dlrm_networks(model, plan, grid)
    return networks, by_data[grid.index("dp")]
