"""Kernels that work on a rank's share of the optimizer's states, with a share of another size.

They are found by their place: behind the last reduction of a step's gradients, before parameters
are gathered, or the step ends. Each takes some time besides its work, which does not shrink.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..program import Kind, Operation, Program, Table
from .parallel_axes import bulk_rows
from .parallel_structure import ParallelStructure

__all__ = ["scaled_optimizers", "sharded_rows", "share_of_time"]

_REDUCES = (Operation.REDUCE_SCATTER, Operation.ALL_REDUCE, Operation.REDUCE)


def scaled_optimizers(
    program: Program, structure: ParallelStructure, along: int | None, replicas: int, floor: int
) -> tuple[list[Table], float, float]:
    """Tables with the kernels of sharded optimizers at the share of so many replicas.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
    along : int, optional
        The axis of replicas.
    replicas : int
        Its new size.
    floor : int
        Time of a kernel besides its work, in ps.

    Returns
    -------
    list of Table
        Of every recorded rank.
    float, float
        Seconds that such kernels take on the rank where they take longest, before and after.
    """
    tables = [program.table_of(rank) for rank in range(program.n_ranks)]
    if along is None or Operation.ALL_GATHER not in structure.carried("dp"):
        return tables, 0.0, 0.0
    size = structure.axes[along].size
    share = size / replicas
    before = after = 0
    if share == 1:
        return tables, 0.0, 0.0
    done: dict[int, tuple[Table, int, int]] = {}
    for rank, table in enumerate(tables):
        if id(table) not in done:
            slots = [
                slot
                for slot, c in enumerate(program.slots_of(rank).tolist())
                if structure.spans[c, along]
            ]
            rows = sharded_rows(table, slots)
            duration = share_of_time(table, rows, share, floor)
            sums = int(table.duration[rows].sum()), int(duration[rows].sum())
            done[id(table)] = table.replace(duration=duration), *sums
        tables[rank], was, now = done[id(table)]
        if was > before:
            before, after = was, now
    return tables, before / 1e12, after / 1e12


def share_of_time(
    table: Table, rows: NDArray[np.intp], share: float, floor: int
) -> NDArray[np.int64]:
    """Durations of a table whose kernels in some rows do a share of their work.

    Parameters
    ----------
    table : Table
    rows : int, shape (n,)
    share : float
    floor : int
        Of each kernel's time, what it takes besides its work, in ps.
    """
    own, duration = table.duration[rows], table.duration.copy()
    fixed = np.minimum(own, floor)
    duration[rows] = fixed + np.rint((own - fixed) * share).astype(np.int64)
    return duration


def sharded_rows(table: Table, slots: Sequence[int]) -> NDArray[np.intp]:
    """Rows of kernels that work on a rank's share of the optimizer's states.

    Those between the last reduction of a step's gradients and the all-gather behind it, or the end
    of the step.

    Parameters
    ----------
    table : Table
    slots : sequence of int
        Of the groups over which the states are sharded.
    """
    large = bulk_rows(table, np.flatnonzero(np.isin(table.slot, slots)))
    reduces = large[np.isin(table.operation[large], _REDUCES)]
    gathers = large[table.operation[large] == Operation.ALL_GATHER]
    chosen: list[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    for step in np.unique(table.step[reduces]).tolist():
        last = int(reduces[table.step[reduces] == step].max())
        inside = np.flatnonzero((np.arange(len(table)) > last) & (table.step == step))
        until = min(gathers[gathers > last].tolist(), default=len(table))
        rows = inside[inside < until]
        chosen.append(rows[table.kind[rows] == Kind.KERNEL])
    return np.concatenate(chosen)
