"""Step times, by one rule for recorded and replayed times.

Several profiled steps: the device period, from the end of the last device operation launched in a
step to that of the next; the first step is left out, since what ran before it is not recorded
whole. One step: from its begin on the host to the later of its end there and its last device
operation. No step: from the first device operation to the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .program import Kind, Table

__all__ = ["step_times"]


def step_times(
    table: Table, names: tuple[str, ...], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> dict[int, int]:
    """Return the time of each step of one rank.

    Parameters
    ----------
    table : Table
        Marks of steps are HOST rows named ``ProfilerStep#N begin`` and ``ProfilerStep#N end``.
    names : tuple of str
        Names of rows.
    begin, end : int64, shape (n_rows,)
        Begin and end of every row, recorded or replayed, in ps.

    Returns
    -------
    dict
        Time of each step in ps, by number; -1 stands for the whole file.
    """
    device = np.flatnonzero(table.is_device)
    if not len(device):
        return {}
    marks = _marks(table, names, end)
    if not marks:
        return {-1: int(end[device].max() - begin[device].min())}
    last = {
        step: int(end[device[table.step[device] == step]].max())
        for step in marks
        if (table.step[device] == step).any()
    }
    if len(marks) == 1:
        ((step, (first, until)),) = marks.items()
        return {step: max(until, last.get(step, until)) - first}
    steps = list(last)  # in the order of the rows, which is that of time
    return {now: last[now] - last[before] for before, now in itertools.pairwise(steps)}


def _marks(
    table: Table, names: tuple[str, ...], end: NDArray[np.int64]
) -> Mapping[int, tuple[int, int]]:
    """Begin and end on the host of every step: the earliest begin, the latest end."""
    found: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero(table.kind == Kind.HOST).tolist():
        name = names[table.name[row]]
        if not name.startswith("ProfilerStep#"):
            continue
        step, at = int(table.step[row]), int(end[row])
        first, until = found.get(step, (at, at))
        found[step] = (min(first, at), max(until, at))
    return found
