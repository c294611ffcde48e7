"""When the CPU of a simulated rank made its calls, found again after a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..program import Flag, Kind, Table

__all__ = ["batch_ends", "first_of_batch", "host_times", "profiled_steps"]


def first_of_batch(table: Table) -> list[int]:
    """Of each row, the first row of its launch."""
    joined = (table.flags & Flag.JOINED) != 0
    return np.maximum.accumulate(np.where(joined, 0, np.arange(len(table)))).tolist()


def batch_ends(first: list[int], end: NDArray[np.int64]) -> list[int]:
    """End of each row's launch: of all its rows."""
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
