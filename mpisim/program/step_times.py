"""Step times, by one rule for recorded and replayed times.

Several profiled steps: the device period, from the end of the last device operation launched in a
step to that of the next; the first step is left out, since what ran before it is not recorded
whole. One step: from its begin on the host to the later of its end there and its last device
operation. No step: from the first device operation to the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import Kind, Table

__all__ = ["Spans", "job_spans", "step_spans", "step_times"]


class Spans(NamedTuple):
    """When each step of one rank began and ended, in ps.

    Attributes
    ----------
    of : dict of int to (int, int)
        By number of the step; -1 stands for the whole file.
    periods : bool
        Whether a step begins where the one before it ended.
    """

    of: dict[int, tuple[int, int]]
    periods: bool


def step_spans(
    table: Table, names: tuple[str, ...], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> Spans:
    """Return begin and end of each step of one rank.

    Parameters
    ----------
    table : Table
        Marks of steps are HOST rows named ``ProfilerStep#N begin`` and ``ProfilerStep#N end``.
    names : tuple of str
        Names of rows.
    begin, end : int64, shape (n_rows,)
        Begin and end of every row, recorded or replayed, in ps.
    """
    device = np.flatnonzero(table.is_device)
    if not len(device):
        return Spans({}, False)
    marks = _marks(table, names, end)
    if not marks:
        return Spans({-1: (int(begin[device].min()), int(end[device].max()))}, False)
    last = {
        step: int(end[device[table.step[device] == step]].max())
        for step in marks
        if (table.step[device] == step).any()
    }
    if len(marks) == 1:
        ((step, (first, until)),) = marks.items()
        return Spans({step: (first, max(until, last.get(step, until)))}, False)
    steps = list(last)  # in the order of the rows, which is that of time
    return Spans({now: (last[was], last[now]) for was, now in itertools.pairwise(steps)}, True)


def step_times(
    table: Table, names: tuple[str, ...], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> dict[int, int]:
    """Return the time of each step of one rank in ps, by number: as `step_spans`."""
    spans = step_spans(table, names, begin, end).of
    return {step: until - first for step, (first, until) in spans.items()}


def job_spans(ranks: Sequence[Spans]) -> dict[int, tuple[int, int]]:
    """Return begin and end of each step of a job, from those of its ranks, in ps.

    A step that begins where the one before it ended begins when the last rank has ended that one,
    any other when the first rank begins; it ends when the last rank does. Only steps that all ranks
    have count, and only those that take time.
    """
    if not ranks:
        return {}
    periods = all(rank.periods for rank in ranks)
    found = {}
    for step in ranks[0].of:
        if all(step in rank.of for rank in ranks):
            begins, ends = zip(*(rank.of[step] for rank in ranks), strict=True)
            begin, end = (max if periods else min)(begins), max(ends)
            if begin < end:
                found[step] = (begin, end)
    return found


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
