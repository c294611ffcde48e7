"""What changes over a step beside rows: memory of a rank, use of links.

Memory is that of the memory model (`mpisim.memory`), at the times of the run: from the first kernel
of a pass to its last its stage holds what the model says of the pass, and behind it what the pass
leaves. Its highest value is the total that reports state. The use of links is that of the results
file, in hundredths of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engine.rows import Rows
from ..experiment import Transformer
from ..memory.model import StageMoments, moments
from ..prediction.prepared import PreparedExperiment
from ..program import Kind, Phase, Table
from ..results.link_use import BINS, LinkUse
from ..schedules import Action

__all__ = ["Counter", "MemoryCounters", "link_counters"]

MOST_LINKS = 16
"""Links, or sets of links used alike, that are shown: the most used ones."""

_OF_PASS = {Phase.RECOMPUTE: Phase.BACKWARD}
"""Phases of rows that are part of an action of another phase."""


class Counter(NamedTuple):
    """A quantity over time.

    Attributes
    ----------
    name, unit : str
    time : int64, shape (n,)
        ps, ascending.
    value : float64, shape (n,)
        From that time on.
    """

    name: str
    unit: str
    time: NDArray[np.int64]
    value: NDArray[np.float64]


def link_counters(links: LinkUse, step_time_ps: int) -> list[Counter]:
    """Use of links → a counter each, in percent of its capacity; the most used first.

    Parameters
    ----------
    links : LinkUse
    step_time_ps : int
    """
    edges = np.arange(BINS + 1) * step_time_ps // BINS
    return [
        Counter(
            links.links["name"][i] + (f" and {count - 1} alike" if count > 1 else ""),
            "%",
            edges,
            np.append(100 * links.utilisation[i], 0.0),
        )
        for i, count in enumerate(links.links["count"][:MOST_LINKS].tolist())
    ]


class MemoryCounters:
    """Memory over the step of the ranks of an experiment. Local.

    Parameters
    ----------
    prepared : PreparedExperiment
    """

    def __init__(self, prepared: PreparedExperiment) -> None:
        self._prepared = prepared
        self._layout = prepared.workload.layout
        self._known: dict[tuple[int, int, int], StageMoments] = {}

    def of(self, rank: int, table: Table, rows: Rows) -> Counter | None:
        """Return the memory of a rank; None where its rows do not tell its passes apart.

        Parameters
        ----------
        rank : int
        table : Table
        rows : Rows
            Both of this rank.
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
        times, values = [0], [found.fixed]
        for (begin, end), moment in zip(spans, found.moments, strict=True):
            times += [begin, end]
            values += [found.fixed + moment.during, found.fixed + moment.after]
        last = np.flatnonzero((table.kind == Kind.KERNEL) & (table.phase == Phase.OPTIMIZER))
        if len(last):
            times += [int(rows.begin[last].min()), int(rows.end[last].max())]
            values += [found.optimizer, found.fixed]
        # Kernels of one pass may end beside the next one's on another stream.
        return Counter(
            "GPU memory",
            "bytes",
            np.maximum.accumulate(np.array(times, np.int64)),
            np.array(values, np.float64),
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
    phases = [_OF_PASS.get(Phase(phase), Phase(phase)) for phase in table.phase[at].tolist()]
    keys = list(zip(phases, table.micro_batch[at].tolist(), strict=True))
    layers = table.layer[at].tolist()
    begin, end = rows.begin[at], rows.end[at]
    spans, first = [], 0
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
        spans.append((int(begin[first:until].min()), int(end[first:until].max())))
        first = until
    return spans
