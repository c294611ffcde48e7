"""One training step of an experiment as a program.

    experiment ─► grid of ranks ─► network in one rank's shapes ─► parts of the pipeline
               ─► blocks (forward, backward, …) ─► one table a stage ─► program

Ranks at the same stage do the same things and share a table; where ranks differ by network (tables
of a recommendation model), number of micro-batches or GPU, there is one table for each that
differs. Communications are unpriced: the engine asks a cost model for their durations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..kernels import KernelModel
from ..program import Names, Program
from .fragments import Fragments
from .groups import Groups, program_of
from .layout import Layout
from .pricing import Pricing
from .shelf import Shelf
from .writer import Workshop, Written

__all__ = ["Workload", "training_step"]


@dataclass(frozen=True)
class Workload:
    """A program and what its durations rest on.

    Attributes
    ----------
    layout : Layout
    program : Program
    pricings : tuple of Pricing
        Of kernels and launches, on each kind of GPU.
    flops : int
        Model FLOPs of the step over all GPUs, see `Network.flops`.
    executed_flops : int
        Those of the kernels the GPUs run, recomputation included.
    tokens : int
        Tokens (images, samples) of the step.
    """

    layout: Layout
    program: Program
    pricings: tuple[Pricing, ...]
    flops: int
    executed_flops: int
    tokens: int
    _workshop: Workshop = field(repr=False)

    def with_micro_batches(self, number: int) -> Workload:
        """Return the step with so many micro-batches a replica, of the blocks of this one.

        Raises
        ------
        InputError
            As `training_step`, or if the schedule cannot work with the number.
        """
        return _step(self.layout.with_micro_batches(number), self._workshop)

    def pricing_of(self, rank: int) -> Pricing:
        """Return the pricing of a rank's kernels."""
        kinds = self.layout.gpu_of
        return self.pricings[0 if kinds is None else int(kinds[rank])]


def training_step(layout: Layout, *kernels: KernelModel) -> Workload:
    """Return the program of one training step.

    Parameters
    ----------
    layout : Layout
    *kernels : KernelModel
        Each prices the kernels of one kind of GPU.

    Raises
    ------
    InputError
        If a rank's kernels together take longer than the simulation's clocks can hold.
    """
    grid, plan = layout.grid, layout.experiment.plan
    names = Names()
    launching = {"cuda_graphs": plan.cuda_graphs, "launch_blocking": plan.launch_blocking}
    pricings = tuple(Pricing(each, **launching) for each in kernels)
    groups = Groups(grid, plan.zero_group)
    return _step(layout, Workshop(names, pricings, groups, Shelf(), Fragments()))


def _step(layout: Layout, workshop: Workshop) -> Workload:
    """Return one training step, of what a workshop has."""
    grid, pricings = layout.grid, workshop.pricings
    pipeline = np.zeros(grid.world, int) if layout.pipeline_of is None else layout.pipeline_of
    gpu = np.zeros(grid.world, int) if layout.gpu_of is None else layout.gpu_of
    shape = (len(layout.networks), grid.pp, len(layout.pipelines), len(pricings))
    kinds = np.ravel_multi_index((layout.network, grid.stage, pipeline, gpu), shape)
    found, table = np.unique(kinds, return_inverse=True)
    written: list[Written] = []
    for kind in found.tolist():
        network, stage, which, on = map(int, np.unravel_index(kind, shape))
        written.append(workshop.table(layout, layout.pipelines[which], network, stage, on))
    counts = np.bincount(table, minlength=len(found)).tolist()
    program = program_of(
        tuple(workshop.names),
        [each.table for each in written],
        [each.slots for each in written],
        table,
        workshop.groups,
        {"source": "workload generator", "title": layout.experiment.title},
    )
    times = layout.micro_batches
    return Workload(
        layout=layout,
        program=program,
        pricings=pricings,
        flops=layout.networks[0].flops * times,
        executed_flops=sum(n * each.flops for n, each in zip(counts, written, strict=True)),
        _workshop=workshop,
        tokens=layout.networks[0].tokens * times,
    )
