"""Layout → `Workload`: the program of one training step.

    layout ─► one table for each stage, network, pipeline and kind of GPU ─► program

Ranks of the same stage execute the same operations and share a table; where ranks differ by network
(tables of a recommendation model), number of micro-batches or GPU, there is one table for each that
differs. Communications have no durations: the engine asks the network model for them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import numbered
from ..base.frozen import frozen
from ..base.numbered_texts import NumberedTexts
from ..kernels import KernelModel
from ..program import Communicators, Names, Program, Table
from ..schedules import Pipeline
from .block_cache import BlockCache
from .grid import Groups
from .layout import Layout
from .pricing import Pricing
from .stage_writer import StageTable, StageWriter

__all__ = ["Workload", "training_step"]

Ranks = NDArray[np.int64]


@frozen
class Workload:
    """The program of a step, with the pricing of its kernels.

    Attributes
    ----------
    layout : Layout
    program : Program
    pricings : tuple of Pricing
        Durations of kernels and launches on each kind of GPU.
    flops : int
        Model FLOPs of the step over all GPUs, see `LayerStack.flops`.
    executed_flops : int
        FLOPs of the kernels that the GPUs run, recomputation included.
    tokens : int
        Tokens (images, samples) of the step.
    """

    layout: Layout
    program: Program
    pricings: tuple[Pricing, ...]
    flops: int
    executed_flops: int
    tokens: int
    _writer: _StepWriter = field(repr=False)

    def with_micro_batches(self, number: int) -> Workload:
        """Return the step with another number of micro-batches a replica, of the same blocks.

        Raises
        ------
        InputError
            As `training_step`, or if the schedule cannot work with the number.
        """
        return self._writer.workload(self.layout.with_micro_batches(number))

    def pricing_of(self, rank: int) -> Pricing:
        """Return the pricing of a rank's kernels."""
        kinds = self.layout.gpu_of
        return self.pricings[0 if kinds is None else int(kinds[rank])]


def training_step(layout: Layout, *kernels: KernelModel) -> Workload:
    """Layout, kernel models → program of one training step.

    Parameters
    ----------
    layout : Layout
    *kernels : KernelModel
        One for each kind of GPU.

    Raises
    ------
    InputError
        If a rank's kernels together take longer than the simulation's clocks can hold.
    """
    return _StepWriter(layout, kernels).workload(layout)


class _StepWriter:
    """Write steps of one layout, with any number of micro-batches, of the same blocks.

    Parameters
    ----------
    layout : Layout
    kernels : sequence of KernelModel
        One for each kind of GPU.
    """

    def __init__(self, layout: Layout, kernels: Sequence[KernelModel]) -> None:
        plan = layout.experiment.plan
        self._names = Names()
        self._pricings = tuple(
            Pricing(
                each,
                cuda_graphs=plan.framework.cuda_graphs,
                launch_blocking=plan.framework.launch_blocking,
            )
            for each in kernels
        )
        self._groups = Groups(layout.grid, plan.zero_group)
        self._cache = BlockCache()
        self._writers: dict[Hashable, StageWriter] = {}

    def workload(self, layout: Layout) -> Workload:
        """Return the step of a layout that differs at most in the number of micro-batches."""
        grid = layout.grid
        pipeline = np.zeros(grid.world, int) if layout.pipeline_of is None else layout.pipeline_of
        gpu = np.zeros(grid.world, int) if layout.gpu_of is None else layout.gpu_of
        shape = (len(layout.networks), grid.pp, len(layout.pipelines), len(self._pricings))
        kinds = np.ravel_multi_index((layout.network, grid.stage, pipeline, gpu), shape)
        found, _, table = numbered(kinds)
        written: list[StageTable] = []
        for kind in found.tolist():
            network, stage, which, on = map(int, np.unravel_index(kind, shape))
            written.append(self._table(layout, stage, network, layout.pipelines[which], on))
        counts = np.bincount(table, minlength=len(found)).tolist()
        program = _bind(
            tuple(self._names),
            [each.table for each in written],
            [each.slots for each in written],
            table,
            self._groups,
            {"source": "workload generator", "title": layout.experiment.title},
        )
        times = layout.micro_batches
        return Workload(
            layout=layout,
            program=program,
            pricings=self._pricings,
            flops=layout.networks[0].flops * times,
            executed_flops=sum(n * each.flops for n, each in zip(counts, written, strict=True)),
            tokens=layout.networks[0].tokens * times,
            _writer=self,
        )

    def _table(
        self, layout: Layout, stage: int, network: int, pipeline: Pipeline, gpu: int
    ) -> StageTable:
        """Return the table of a stage on a kind of GPU, by a writer that serves others, too."""
        place = layout, stage, network, pipeline
        key = StageWriter.key(*place)
        writer = None if key is None else self._writers.get((gpu, key))
        if writer is None:
            writer = StageWriter(
                *place,
                names=self._names,
                pricing=self._pricings[gpu],
                groups=self._groups,
                cache=self._cache,
            )
            if key is not None:
                self._writers[gpu, key] = writer
        return writer.table(*place)


def _bind(
    names: Sequence[str],
    tables: Sequence[Table],
    slots: Sequence[Sequence[str]],
    table: Ranks,
    groups: Groups,
    attributes: Mapping[str, str],
) -> Program:
    """Tables, and the table of each rank → program, each slot bound to a communicator of the rank.

    Parameters
    ----------
    names : sequence of str
        Names of rows.
    tables : sequence of Table
    slots : sequence of sequence of str
        Names of the slots of each table.
    table : int64, shape (world,)
        The table of each rank.
    groups : Groups
    attributes : mapping of str to str
    """
    world = groups.grid.world
    counts = np.array([len(known) for known in slots], np.int64)[table]
    slot_index = np.concatenate([[0], np.cumsum(counts)])
    bound = np.full(slot_index[-1], -1, np.int32)
    members: list[Ranks] = []
    sizes: list[Ranks] = []
    labels: list[tuple[str, int]] = []

    def add(name: str, found: Ranks) -> Ranks:
        numbers = sum(count for _, count in labels) + np.arange(len(found))
        members.append(found.reshape(-1))
        sizes.append(np.full(len(found), found.shape[1], np.int64))
        labels.append((f"{name} ", len(found)))
        return numbers

    def bind(slot: str, ranks: Ranks, numbers: Ranks) -> None:
        places = [known.index(slot) if slot in known else -1 for known in slots]
        place = np.array(places)[table[ranks]]
        here = place >= 0
        bound[slot_index[ranks[here]] + place[here]] = numbers[here]

    used = dict.fromkeys(slot for known in slots for slot in known)
    for name in dict.fromkeys(slot.partition(":")[0] for slot in used):
        if f"{name}:send" in used:
            sending = np.array([f"{name}:send" in known for known in slots])
            pairs = groups.pairs(name, np.flatnonzero(sending[table]))
            numbers = add(name, pairs)
            bind(f"{name}:send", pairs[:, 0], numbers)
            bind(f"{name}:recv", pairs[:, 1], numbers)
        if name in used:
            found = groups.members(name)
            using = np.array([name in known for known in slots])[table]
            found = found[using[found].all(axis=1)]
            numbers = add(name, found)
            bind(name, found.reshape(-1), np.repeat(numbers, found.shape[1]))

    return Program(
        names=tuple(names),
        tables=tuple(tables),
        communicators=Communicators(
            np.concatenate([[0], *sizes]).cumsum(),
            np.concatenate([np.zeros(0, np.int64), *members]).astype(np.int32),
            NumberedTexts(labels),
        ),
        table=table.astype(np.int32),
        slot_index=slot_index,
        slots=bound,
        speed=np.ones(world),
        start=np.zeros(world, np.int64),
        attributes=dict(attributes),
    )
