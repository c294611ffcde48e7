"""A rank's table and the end of its rows → when its CPU called, and when its steps ran."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..program import Flag, Kind, Table

__all__ = ["batch_ends", "first_of_batch", "host_times", "profiled_steps"]


def first_of_batch(table: Table) -> list[int]:
    """Of each row, the first row of its launch.

    Parameters
    ----------
    table : Table

    Returns
    -------
    list of int
        One a row.
    """
    joined = (table.flags & Flag.JOINED) != 0
    return np.maximum.accumulate(np.where(joined, 0, np.arange(len(table)))).tolist()


def batch_ends(first: list[int], end: NDArray[np.int64]) -> list[int]:
    """End of each row's launch: of all its rows.

    Parameters
    ----------
    first : list of int
        Of each row, the first row of its launch (`first_of_batch`).
    end : int64, shape (n_rows,)
        End of each row, in ps.

    Returns
    -------
    list of int
        In ps, one a row; only a launch's first row has the launch's end, others keep their own.
    """
    ends: list[int] = end.tolist()
    for row, head in enumerate(first):
        ends[head] = max(ends[head], ends[row])
    return ends


def host_times(
    table: Table, start: int, first: list[int], end: list[int]
) -> tuple[list[int], list[int]]:
    """Begin and end of each row's call on the host.

    The end of a row's call is the host's clock after the row; its begin comes after the row's CPU
    time. A launching call that finds its stream's queue full begins and then blocks.

    Parameters
    ----------
    table : Table
    start : int
        When the rank's host started, in ps.
    first : list of int
        Of each row, the first row of its launch (`first_of_batch`).
    end : list of int
        End of each row's launch, in ps (`batch_ends`).

    Returns
    -------
    list of int
        Begin of each row's call, in ps.
    list of int
        End of each row's call, in ps.
    """
    host, begins, ends = start, [], []
    launched: dict[int, list[int]] = {}
    kinds, streams = table.kind.tolist(), table.stream.tolist()
    before, cost = table.host.tolist(), table.launch_cost.tolist()
    for row, kind in enumerate(kinds):
        begin = host + before[row]
        if kind == Kind.HOST_WAIT:
            host = end[row]
        elif kind == Kind.HOST:
            host = begin
        elif first[row] == row:
            queue = launched.setdefault(streams[row], [])
            full = table.queue_depth and len(queue) >= table.queue_depth
            host = max(begin, end[queue[-table.queue_depth]] if full else begin) + cost[row]
            queue.append(row)
        else:
            begin = host
        begins.append(begin)
        ends.append(host)
    return begins, ends


def profiled_steps(
    table: Table, names: Sequence[str], start: int, call_end: list[int]
) -> dict[str, tuple[int, int]]:
    """Begin and end on the host of each profiled step, by its name ``ProfilerStep#N``.

    From the table's own marks, else from the steps that its rows belong to.

    Parameters
    ----------
    table : Table
    names : sequence of str
        Names of rows, by their number in the table.
    start : int
        When the rank's host started, in ps.
    call_end : list of int
        End of each row's call on the host, in ps (`host_times`).

    Returns
    -------
    dict of str to (int, int)
        In ps.
    """
    marks: dict[str, list[int]] = {}
    for row in np.flatnonzero(table.kind == Kind.HOST).tolist():
        name = names[table.name[row]]
        if name.startswith("ProfilerStep#"):
            marks.setdefault(name.split(" ")[0], []).append(call_end[row])
    if not marks:
        for step in np.unique(table.step[table.step >= 0]).tolist():
            rows = np.flatnonzero(table.step == step)
            before = call_end[rows[0] - 1] if rows[0] else start
            marks[f"ProfilerStep#{step}"] = [before, call_end[rows[-1]]]
    return {name: (min(times), max(times)) for name, times in marks.items()}
