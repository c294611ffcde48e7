"""Run, memory model → memory use of a rank over the time of a step.

From the first kernel of a forward or backward pass to its last, a stage holds the bytes that the
memory model (`mpisim.memory`) gives for that pass; after it, the bytes that the pass keeps. The
highest value is the total in reports.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engine.rows import Rows
from ..experiment import Transformer
from ..memory.model import StageMoments, moments
from ..program import Kind, Phase, Table
from ..schedules import Action
from .prepared import PreparedExperiment

__all__ = ["MemoryCourse", "MemoryParts"]

PASSES = "activations and temporaries"
"""What passes hold, as a part of memory."""

_OF_PASS = {Phase.RECOMPUTE: Phase.BACKWARD}
"""Phases of rows that are part of an action of another phase."""


class MemoryParts(NamedTuple):
    """Memory of a rank over a step, by part.

    Attributes
    ----------
    time : int64, shape (n,)
        ps, ascending.
    bytes : dict of str to int64, shape (n,)
        Of each part from that time on; `PASSES` is what passes keep and need for a while.
    """

    time: NDArray[np.int64]
    bytes: dict[str, NDArray[np.int64]]

    @property
    def total(self) -> NDArray[np.int64]:
        """Bytes of all parts, shape (n,)."""
        total: NDArray[np.int64] = np.sum(list(self.bytes.values()), axis=0)
        return total


class MemoryCourse:
    """Memory over the step of the ranks of an experiment, by part. Local.

    Parameters
    ----------
    prepared : PreparedExperiment
    """

    def __init__(self, prepared: PreparedExperiment) -> None:
        self._prepared = prepared
        self._layout = prepared.workload.layout
        self._known: dict[tuple[int, int, int], StageMoments] = {}

    def of(self, rank: int, table: Table, rows: Rows) -> MemoryParts | None:
        """Rows of a rank → its memory over time; None where rows do not tell passes apart.

        Parameters
        ----------
        rank : int
        table : Table
        rows : Rows
            Table and timeline of this rank.
        """
        layout = self._layout
        stage, network = int(layout.grid.stage[rank]), int(layout.network[rank])
        which = 0 if layout.pipeline_of is None else int(layout.pipeline_of[rank])
        key = stage, network, which
        if key not in self._known:
            experiment = layout.experiment
            self._known[key] = moments(
                layout.pipelines[which],
                layout.model_chunks[network],
                experiment.plan,
                layout.grid,
                stage,
                transformer=isinstance(experiment.model, Transformer),
                node=self._prepared.cluster.gpus_per_node,
            )
        found = self._known[key]
        actions = layout.pipelines[which].actions[stage]
        numbers = [set(chunk.numbers) - {-1} for chunk in layout.chunks(stage, network)]
        spans = _spans(actions, numbers, found, table, rows)
        if spans is None:
            return None
        times, passes = [0], [0]
        for (begin, end), moment in zip(spans, found.moments, strict=True):
            times += [begin, end]
            passes += [moment.during, moment.after]
        last = np.flatnonzero((table.kind == Kind.KERNEL) & (table.phase == Phase.OPTIMIZER))
        updating = len(times) if len(last) else -1
        if len(last):
            times += [int(rows.begin[last].min()), int(rows.end[last].max())]
            passes += [0, 0]
        by_part: dict[str, NDArray[np.int64]] = {}
        for name in dict.fromkeys((*found.parts, *found.optimizer_parts)):
            by_part[name] = np.full(len(times), found.parts.get(name, 0), np.int64)
            if len(last):
                by_part[name][updating] = found.optimizer_parts.get(name, 0)
        # Kernels of one pass may end beside the next one's on another stream.
        return MemoryParts(
            np.maximum.accumulate(np.array(times, np.int64)),
            {**by_part, PASSES: np.array(passes, np.int64)},
        )


def _spans(
    actions: tuple[Action, ...],
    numbers: list[set[int]],
    found: StageMoments,
    table: Table,
    rows: Rows,
) -> list[tuple[int, int]] | None:
    """Return begin and end of the kernels of each moment; rows are in the order of the actions.

    Parameters
    ----------
    actions : tuple of Action
    numbers : list of set of int
        Layers of each model chunk that the stage holds.
    found : StageMoments
    table : Table
    rows : Rows
    """
    at = np.flatnonzero(
        (table.kind == Kind.KERNEL)
        & (table.micro_batch >= 0)
        & np.isin(table.phase, [Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.WEIGHT])
    )
    # Rows of one phase, micro-batch and layer that follow each other count as one.
    columns = [each[at].astype(np.int32) for each in (table.phase, table.micro_batch, table.layer)]
    new = np.flatnonzero(np.any(np.diff(columns, axis=1, prepend=-2) != 0, axis=0))
    if not len(new):
        return None
    phases, micro_batches, layers = (each[new].tolist() for each in columns)
    of_phase = {int(phase): _OF_PASS.get(phase, phase) for phase in Phase}
    keys = list(zip((of_phase[phase] for phase in phases), micro_batches, strict=True))
    begin, end = np.minimum.reduceat(rows.begin[at], new), np.maximum.reduceat(rows.end[at], new)
    heads: list[int] = []
    first = 0
    for i, moment in enumerate(found.moments):
        running = actions[moment.first : moment.last + 1]
        mine = {(action.phase, action.micro_batch) for action in running}
        after: set[int] = set()
        if i + 1 < len(found.moments):
            following = actions[found.moments[i + 1].first]
            if (following.phase, following.micro_batch) in mine:  # the next chunk's turn
                own = set().union(*(numbers[action.chunk] for action in running))
                after = numbers[following.chunk] - own
        until = first
        while until < len(keys) and keys[until] in mine and layers[until] not in after:
            until += 1
        if until == first:
            return None
        heads.append(first)
        first = until
    # Rows behind the last moment belong to none.
    begin, end = begin[:first], end[:first]
    ends = np.maximum.reduceat(end, heads).tolist() if heads else []
    begins = np.minimum.reduceat(begin, heads).tolist() if heads else []
    return list(zip(begins, ends, strict=True))
