"""Runs of two short steps that are periodic → run of a step with many more rounds.

`mpisim.engine.periodic_window` says when two runs are periodic, and why the long step is then the
longer of the two with one of its periods inserted, as often as the step has it. Everything that
adds up over rows follows from the sums of both; flows, the critical path and the digest from what
lies in a period.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from .critical_path import CriticalPath, PathCycle
from .digest import (
    hash_communications,
    hash_ends,
    hash_sizes,
    hash_words,
    summed,
    summed_over_processes,
)
from .periodic_window import PeriodicWindow, first_of
from .run import Run

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from .flows import Flows

__all__ = ["Repetition", "path_cycle", "repeated"]

Ints = NDArray[np.int64]
Whole = TypeVar("Whole", np.int64, np.object_)

_HASHED_AT_ONCE = 1 << 14
"""Communications whose hashes are computed side by side: they stay in the cache."""


@frozen(eq=False)
class Repetition:
    """A long step as a shorter run, one period of which is inserted a number of times.

    Attributes
    ----------
    shorter, longer : Run
        As simulated; the second has a period more.
    window : PeriodicWindow
    times : int
        How often the period is inserted into `longer`.
    cycle : PathCycle
        Pieces of the critical path of `longer` that repeat.
    """

    shorter: Run
    longer: Run
    window: PeriodicWindow
    times: int
    cycle: PathCycle

    @property
    def added(self) -> int:
        """Time by which the long step is longer than `longer`, in ps."""
        return self.times * self.window.period

    def sums(self, shorter: NDArray[Whole], longer: NDArray[Whole]) -> NDArray[Whole]:
        """Sums over rows of both short runs → the sums of the long step.

        Parameters
        ----------
        shorter, longer : int64, or int of any size, shape (...)
        """
        assert shorter.shape == longer.shape, "runs that differ by a period have unequal parts"
        found: NDArray[Whole] = longer + self.times * (longer - shorter)
        return found

    def flows(self, found: Flows, at_once: int) -> Iterator[Flows]:
        """Yield the flows of the long step in parts, given those of `longer`.

        Parameters
        ----------
        found : Flows
        at_once : int
            About how many flows a part has.
        """
        until, period = self.window.end, self.window.period
        early = found.begin < until
        yield found.part(early)
        again = found.part(early & (found.begin >= until - period))
        copies = max(1, at_once // max(len(again.route), 1))
        for first in range(1, self.times + 1, copies):
            number = np.arange(first, min(first + copies, self.times + 1))
            yield again.copies(number * period)
        yield found.part(~early).copies(np.array([self.added]))

    def flows_of_period(self, found: Flows) -> Flows:
        """Return the parts of flows that lie in the period that is inserted, given all of them."""
        until, period = self.window.end, self.window.period
        here = found.part((found.begin < until) & (found.end > until - period))
        return replace(
            here,
            begin=np.maximum(here.begin, until - period),
            end=np.minimum(here.end, until),
        )

    def whole_path(self, path: CriticalPath) -> CriticalPath:
        """Return a critical path with each of its pieces once, on the rows of the long step.

        Parameters
        ----------
        path : CriticalPath
            Of the long run, in which a cycle of pieces stands for all its repeats.
        """
        cycle = self.cycle
        copies = np.arange(1, cycle.times + 1)
        piece = np.concatenate(
            [
                np.arange(cycle.last),
                np.tile(np.arange(cycle.first, cycle.last), cycle.times),
                np.arange(cycle.last, len(path.kind)),
            ]
        )
        later = np.concatenate(
            [
                np.zeros(cycle.last, np.int64),
                np.repeat(copies * cycle.periods, cycle.last - cycle.first),
                np.full(len(path.kind) - cycle.last, self.times),
            ]
        )
        rows = self.window.n_rows[path.rank]
        return replace(
            path,
            kind=path.kind[piece],
            rank=path.rank[piece],
            row=(path.row[piece] + later * rows[piece]).astype(np.int32),
            begin=path.begin[piece] + later * self.window.period,
            end=path.end[piece] + later * self.window.period,
            name=path.name[piece],
            cycle=None,
        )


# --- the long run ---------------------------------------------------------------------------------


def path_cycle(longer: Run, window: PeriodicWindow) -> PathCycle | None:
    """Return the cycle in which the critical path of a run repeats; None if it does not.

    What comes before a piece of the path follows from its row and its kind. So where a piece in the
    window is that of some periods before, the path between the two repeats.

    Parameters
    ----------
    longer : Run
        With its critical path.
    window : PeriodicWindow

    Returns
    -------
    PathCycle or None
        Its `times` is 0: how often it occurs is not known here.
    """
    path = longer.critical_path
    assert path is not None
    rows, low, high = (each[path.rank] for each in (window.n_rows, window.low, window.high))
    # Up to the cut all rows are below high + l, from there on at low + l or above: the CPU may be
    # ahead of the device, so that a window of time does not tell.
    last = first_of(path.row >= high + rows) - 1
    after_cut = len(rows) - first_of((path.row < low + rows)[::-1])
    after_first = len(rows) - first_of((path.row < low)[::-1])
    for cut in range(last, after_cut - 1, -1):
        here = path.kind[cut], path.rank[cut], path.row[cut]
        begin = int(path.begin[cut])
        for periods in range(1, begin // window.period + 1):
            time = begin - periods * window.period
            piece, end = (int(np.searchsorted(path.begin, t)) for t in (time, time + 1))
            if end <= after_first:
                break
            for first in range(max(piece, after_first), end):
                row = path.row[first] + periods * rows[first]
                if (path.kind[first], path.rank[first], row) == here:
                    return PathCycle(first, cut, periods, 0)
    return None


def repeated(repetition: Repetition, comm: Intracomm | None) -> Run:
    """Return the run of the long step. **Collective** on `comm` (None: one process).

    Parameters
    ----------
    repetition : Repetition
    comm : mpi4py.MPI.Intracomm or None

    Returns
    -------
    Run
        Times of ranks, the step time and the digest are those of the long step; the program, the
        timelines, the flows and the rows of the critical path those of the longer of the two that
        were simulated.
    """
    longer, added = repetition.longer, repetition.added
    path = longer.critical_path
    return replace(
        longer,
        rank_end=longer.rank_end + added,
        step_time=longer.step_time + added,
        digest=_digest(repetition, comm),
        rounds=repetition.shorter.rounds + longer.rounds,
        critical_path=None if path is None else replace(path, cycle=repetition.cycle),
        wall={
            phase: seconds + repetition.shorter.wall.get(phase, 0.0)
            for phase, seconds in longer.wall.items()
        },
    )


# --- digest ---------------------------------------------------------------------------------------


def _digest(repetition: Repetition, comm: Intracomm | None) -> str:
    """Return the digest of the long step: see `mpisim.engine.digest`. **Collective** on `comm`."""
    longer = repetition.longer
    sizes = longer.program.communicators.sizes
    total = 0
    known: dict[tuple[int, bytes], int] = {}
    for i, number in enumerate(longer.simulated.tolist()):
        rank = int(longer.hosted[number])
        of_slots = sizes[longer.program.slots_of(rank)]
        key = int(longer.identical[i]), of_slots.tobytes()
        if key not in known:
            known[key] = _digest_of_rank(repetition, i, of_slots)
        total += known[key] * int(longer.classes.count[longer.classes.of_rank[rank]])
    return summed_over_processes(total % (1 << 128), comm)


def _digest_of_rank(repetition: Repetition, i: int, sizes: Ints) -> int:
    """Return the sum of the hashes of a rank in the long step, modulo 2^128."""
    longer, window = repetition.longer, repetition.window
    number = int(longer.simulated[i])
    rank = int(longer.hosted[number])
    table, rows = longer.program.table_of(rank), longer.rows(number)
    n_rows, high = int(window.n_rows[rank]), int(window.high[rank])
    communications = np.flatnonzero(table.is_communication)
    a_period = communications[(communications >= high) & (communications < high + n_rows)]
    n_more = np.bincount(table.slot[a_period], minlength=table.n_slots)
    of_size = hash_sizes(sizes)

    def hashed(which: NDArray[np.intp], copies: Ints) -> int:
        """Return the sum of the hashes of some rows, that many periods later."""
        later = copies[:, None]
        slot = table.slot[which]
        shape = (len(copies), len(which))
        what = hash_words(
            np.broadcast_to(table.kind[which], shape).reshape(-1),
            np.broadcast_to(table.operation[which], shape).reshape(-1),
            np.broadcast_to(table.bytes[which], shape).reshape(-1),
            (table.ordinal[which] + later * n_more[slot]).reshape(-1),
        )
        time = later * window.period
        return summed(
            hash_communications(
                what,
                of_size[np.broadcast_to(slot, shape).reshape(-1)],
                (rows.wire[which] + time).reshape(-1),
                (rows.end[which] + time).reshape(-1),
            )
        )

    times = repetition.times
    total = hashed(communications[communications < high + n_rows], np.array([0]))
    total += hashed(communications[communications >= high + n_rows], np.array([times]))
    at_once = max(1, _HASHED_AT_ONCE // max(len(a_period), 1))
    for first in range(1, times + 1, at_once):
        total += hashed(a_period, np.arange(first, min(first + at_once, times + 1)))
    end = longer.rank_end[rank : rank + 1] + repetition.added
    return (total + summed(hash_ends(end))) % (1 << 128)
