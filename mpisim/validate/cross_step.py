"""Times of one recorded step → predictions of the other steps, beside their measurements.

The rows of a step get the CPU times, latencies, gaps, kernel and wire times of the step before;
what runs, in which order, and what waits for what stays the target's own. The step is then replayed
and compared with its measurement. The baseline takes the measured time of the step before.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..engine import simulate
from ..program import Kind, Table
from ..results.step_times import step_times
from .traces import TraceResult

__all__ = ["CrossStep", "cross_steps", "transfer"]

_TIMES = ("host", "launch", "launch_cost", "gap", "duration")


@frozen
class CrossStep:
    """One step of one rank predicted from the step before, in seconds.

    `copied` is the measured time of the step before; `unmatched` the share of the step's rows
    that have no counterpart there.
    """

    id: str
    measured: float
    predicted: float
    copied: float
    unmatched: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1


def transfer(table: Table, source: int, target: int) -> tuple[Table, float]:
    """Table → the same with the times of one step in the rows of another.

    The k-th row of a name, kind and stream in the target takes the times of the k-th such row of
    the source. A row without a counterpart takes the medians of its kind in the source.

    Parameters
    ----------
    table : Table
        Not changed.
    source, target : int
        Numbers of the steps that times are taken from and given to.

    Returns
    -------
    Table
    float
        Share of the target's rows without a counterpart.
    """
    there, here = (np.flatnonzero(table.step == step) for step in (source, target))
    known = dict(zip(_keys(table, there), there.tolist(), strict=True))
    found = np.array([known.get(key, -1) for key in _keys(table, here)], np.int64)
    changed: dict[str, NDArray[np.int64]] = {}
    for column in _TIMES:
        values = getattr(table, column).copy()
        for kind in np.unique(table.kind[here]):
            same = there[table.kind[there] == kind]
            lost = here[(found < 0) & (table.kind[here] == kind)]
            values[lost] = np.median(values[same]) if len(same) else 0
        values[here[found >= 0]] = getattr(table, column)[found[found >= 0]]
        changed[column] = values
    changed["duration"][table.duration < 0] = -1
    return table.replace(**changed), float((found < 0).mean()) if len(here) else 0.0


def _keys(table: Table, rows: NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
    """Rows → (kind, stream, name, occurrence) of each; marks of steps count as one name."""
    seen: dict[tuple[int, int, int], int] = {}
    keys = []
    for row in rows.tolist():
        kind = int(table.kind[row])
        name = -1 if kind == Kind.HOST else int(table.name[row])
        key = (kind, int(table.stream[row]), name)
        seen[key] = seen.get(key, 0) + 1
        keys.append((*key, seen[key]))
    return keys


def cross_steps(result: TraceResult, comm: Any) -> list[CrossStep]:
    """Replay of a trace → each step but the first, from the one before. **Collective.**

    Parameters
    ----------
    result : TraceResult
        Of a trace that was not skipped.
    comm : mpi4py.MPI.Intracomm

    Returns
    -------
    list of CrossStep
        One for each rank and step measured, in order of step; the same on every process.
    """
    assert result.job is not None
    assert result.replay is not None
    job, program = result.job, result.job.program
    numbers = sorted({each.step for each in result.replay.steps if each.step >= 0})
    measured = {(each.rank, each.step): each.measured for each in result.replay.steps}
    found: list[CrossStep] = []
    for source, target in itertools.pairwise(numbers):
        moved = [
            (None, 0.0) if table is None else transfer(table, source, target)
            for table in program.tables
        ]
        changed = program.replace(tables=tuple(table for table, _ in moved))
        run = simulate(changed, comm, placement=job.placement)
        mine = []
        for i, index in enumerate(run.hosted.tolist()):
            rank = job.traces.ranks[index]
            rows = run.rows(i)
            times = step_times(changed.table_of(index), changed.names, rows.begin, rows.end)
            if target in times and (rank, target) in measured:
                mine.append((rank, times[target] / 1e12, moved[index][1]))
        for rank, predicted, unmatched in (e for part in comm.allgather(mine) for e in part):
            found.append(
                CrossStep(
                    f"{result.name}/rank{rank}/step{target}",
                    measured[rank, target],
                    predicted,
                    measured[rank, source],
                    unmatched,
                )
            )
    return found
