"""Runs of a step with n and n + 1 rounds of micro-batches → the rows that repeat periodically.

Once a pipeline is full, every round of micro-batches takes the times of the round before, later by
a constant, until the pipeline drains. A step of thousands of rounds then follows from a run *b* in
which some rounds are periodic, to the picosecond, and a run *a* of the same step without one of
them, which tells whether they are: the `PeriodicWindow`.

What is compared. Table *b* of a rank is table *a* with a period of `l` rows inserted. The rows
below `high` of *a* have the same columns and times in *b*. Those from `low` on are in *b* `l` rows
further down, with the same columns, and every time later by one and the same period D, on all
ranks. Between `low` and `high` both hold, so there *b* repeats: row i + l does at t + D what row i
does at t.

Claim: the step with another period takes T(i) = b(i) for i < high + l, and T(i) = b(i - l) + D for
i >= low + l. Where both apply they agree. Times are maxima of sums of earlier times, and the flows
over links that are shared follow from when they start. So it is to be shown that the inputs of
every row are those of the same row of *b*, or all later by D:

1. Rows of a rank. An input that moves with its row (the row before on the stream, a wait, a launch
   that must have left the queue) must be a row from `low` on, for rows that are not below `high`.
   An input that stays (it lies before what repeats) came too late to matter where all others are
   later by D > 0, as they are from *a* to *b*, and comes still more too late.
2. Communications. The k-th operation on a communicator must be below `high` for all members, or
   from `low` on for all.
3. The CPU. Its work in a period must be no longer than D, so that it falls behind in none; and
   where it waits for the device, its clock must be periodic, too.
4. Links, and kernels slowed by what runs beside them. All rows below low + l must have ended (at
   `begin`) before any row begins (at `end`) that is not below high + l, and all that run at
   `begin` must have ended by then. What runs at any time is then as in *b*, or as in *b* a period
   before.

By induction the same holds with any number of further periods: *b* may be cut at any time from
`begin` to `end`, and the period before it be inserted there as often as the step has it. Where
durations are made of earlier passes (slowdown by overlap), each pass must hold; `low` and `high`
then bound what is periodic in all of them.

Random factors on kernels repeat nowhere: there is then no window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..mpi.reductions import allreduce_any, allreduce_max, allreduce_min
from ..program import COLUMNS, Flag, Kind, Program, Table
from .rows import Binding, Rows
from .run import Run

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from .lowering import LoweredTable

__all__ = [
    "UNBOUND",
    "PeriodicWindow",
    "Side",
    "busy",
    "communications_match",
    "first_of",
    "known_before",
    "may_repeat",
    "periodic_window",
]

Ints = NDArray[np.int64]

SAME_COLUMNS = tuple(column for column in COLUMNS if column != "micro_batch")
"""Columns that rows of one kind share: all but the number of the micro-batch."""

UNBOUND = np.iinfo(np.int64).max // 4


@frozen(eq=False)
class PeriodicWindow:
    """Rows and times that are periodic in two runs of a step, the second with a period more.

    Attributes
    ----------
    period : int
        ps.
    n_rows : int64, shape (n_ranks,)
        Rows of a period of each rank.
    low, high : int64, shape (n_ranks,)
        Rows of the first run between which both runs agree; see the head of this module.
    begin, end : int
        Time of the second run, in ps, in which only rows that repeat are running.
    """

    period: int
    n_rows: Ints
    low: Ints
    high: Ints
    begin: int
    end: int


def may_repeat(shorter: Program, longer: Program) -> bool:
    """Two programs → whether their rows allow periodic runs. Local.

    Parameters
    ----------
    shorter, longer : Program
        Of one step; the second has a period more.
    """
    for a, b in zip(shorter.tables, longer.tables, strict=True):
        if a is None or b is None:
            continue
        more = len(b) - len(a)
        if more <= 0:
            return False
        early, late = _equal_rows(a, b)
        if first_of(~early) + first_of(~late[::-1]) < len(b):
            return False
    return True


def first_of(found: NDArray[np.bool_]) -> int:
    """Booleans → index of the first True; their number if there is none."""
    return int(np.argmax(found)) if found.any() else len(found)


def periodic_window(
    shorter: Run, longer: Run, comm: Intracomm | None, before: PeriodicWindow | None = None
) -> PeriodicWindow | None:
    """Return the periodic window of two runs; None, on all processes, if there is none.

    **Collective** on `comm` (None: one process).

    Parameters
    ----------
    shorter, longer : Run
        Of one step; the second has a period more. Both host the same ranks.
    comm : mpi4py.MPI.Intracomm or None
    before : PeriodicWindow, optional
        Of the pass before, whose times made the durations of this one.
    """
    period = longer.step_time - shorter.step_time
    same = period > 0 and _same_ranks(shorter, longer, period)
    if allreduce_any(not same, comm):
        return None
    pairs = _Pairs(shorter, longer, period, before)
    if allreduce_any(not pairs.hold, comm):
        return None
    if not communications_match(longer, pairs.classes, pairs.low, pairs.high, pairs.n_rows, comm):
        return None
    own = np.array([pairs.ended_below()], np.int64)
    begin = int(allreduce_max(own, comm)[0])
    running = int(allreduce_max(np.array([pairs.ended_of_running(begin)]), comm)[0])
    end = int(allreduce_min(np.array([pairs.begun_above()]), comm)[0])
    if not running <= end < UNBOUND:
        return None
    bounds = np.zeros((3, len(longer.classes)), np.int64)
    bounds[:, pairs.classes] = pairs.n_rows, pairs.low, pairs.high
    bounds = allreduce_max(bounds, comm)[:, longer.classes.of_rank]
    n_rows, low, high = bounds
    return PeriodicWindow(period, n_rows, low, high, begin, end)


def _same_ranks(shorter: Run, longer: Run, period: int) -> bool:
    """Whether two runs simulate the same ranks, and all end later by the period in the second."""
    return (
        np.array_equal(shorter.classes.of_rank, longer.classes.of_rank)
        and np.array_equal(shorter.hosted, longer.hosted)
        and shorter.program.names == longer.program.names[: len(shorter.program.names)]
        and np.array_equal(shorter.program.slots, longer.program.slots)
        and np.array_equal(shorter.rank_end + period, longer.rank_end)
    )


class _Rank(NamedTuple):
    """A rank simulated here in both runs; ranks with identical timelines share one."""

    number: int  # entry of `Run.hosted`
    low: int
    high: int
    n_rows: int


class _Pairs:
    """The ranks simulated here, in both runs: which rows agree, and when those run.

    Attributes
    ----------
    hold : bool
        Whether conditions 1 and 3 hold on all of them.
    classes : int64, shape (h,)
        The class of each.
    low, high, n_rows : int64, shape (h,)
    """

    def __init__(
        self, shorter: Run, longer: Run, period: int, before: PeriodicWindow | None
    ) -> None:
        self._longer, self._period = longer, period
        self.classes = longer.classes.of_rank[longer.hosted[longer.simulated]].astype(np.int64)
        self.hold = True
        h = len(longer.simulated)
        self.low, self.high, self.n_rows = np.zeros((3, h), np.int64)
        self._ranks: dict[tuple[int, int, int, int], _Rank] = {}
        lows, highs = known_before(longer, before)
        timelines = zip(shorter.identical.tolist(), longer.identical.tolist(), strict=True)
        for i, timeline in enumerate(timelines):
            bounds = int(lows[self.classes[i]]), int(highs[self.classes[i]])
            key = (*timeline, *bounds)
            if key not in self._ranks:
                number = int(longer.simulated[i])
                found = _paired(shorter, longer, number, period, bounds)
                if found is None:
                    self.hold = False
                    return
                self._ranks[key] = found
            _, self.low[i], self.high[i], self.n_rows[i] = self._ranks[key]

    def ended_below(self) -> int:
        """Return when the last row below low + l ended, in the second run."""
        return max(
            (int(end[: rank.low + rank.n_rows].max(initial=0)) for rank, _, end in self._times()),
            default=0,
        )

    def ended_of_running(self, time: int) -> int:
        """Return when the last row ended, in the second run, that had begun by a time."""
        found = [int(end[begin <= time].max(initial=0)) for _, begin, end in self._times()]
        return max(found, default=0)

    def begun_above(self) -> int:
        """Return when the first row begins that is not below high + l, in either run."""
        found = UNBOUND
        for rank, begin, _ in self._times():
            above = begin[rank.high :]
            found = min(found, int(above.min(initial=UNBOUND)) + self._period)
            found = min(found, int(above[rank.n_rows :].min(initial=UNBOUND)))
        return found

    def _times(self) -> Iterator[tuple[_Rank, Ints, Ints]]:
        """Yield begin and end of rows on the device; those on the CPU begin and end at no time."""
        for rank in self._ranks.values():
            rows = self._longer.rows(rank.number)
            table = self._longer.program.table_of(int(self._longer.hosted[rank.number]))
            yield (
                rank,
                np.where(table.is_device, rows.begin, UNBOUND),
                np.where(table.is_device, rows.end, 0),
            )


def known_before(longer: Run, before: PeriodicWindow | None) -> tuple[Ints, Ints]:
    """Return `low` and `high` of each class, as the pass before found them.

    Parameters
    ----------
    longer : Run
        The longer run of this pass.
    before : PeriodicWindow or None
        Of the pass before, whose classes may be others; None: nothing is known.

    Returns
    -------
    low, high : int64, shape (n_classes,)
    """
    n = len(longer.classes)
    low, high = np.zeros(n, np.int64), np.full(n, UNBOUND)
    if before is not None:
        np.maximum.at(low, longer.classes.of_rank, before.low)
        np.minimum.at(high, longer.classes.of_rank, before.high)
    return low, high


def _paired(
    shorter: Run, longer: Run, number: int, period: int, bounds: tuple[int, int]
) -> _Rank | None:
    """Return a rank of both runs; None if conditions 1 and 3 do not hold on it."""
    found = _agreeing(shorter, longer, number, period)
    if found is None:
        return None
    a, b, low, high = found
    low, high = max(low, bounds[0]), min(high, bounds[1])
    n_rows = len(b.table) - len(a.table)
    if high - low < n_rows or not _inputs_agree(a, b, low, high):
        return None
    if busy(b.table)[high : high + n_rows].sum() > period:
        return None
    return _Rank(number, low, high, n_rows)


class Side(NamedTuple):
    """One of the two runs of a rank."""

    table: Table
    code: LoweredTable
    start: int


def _agreeing(
    shorter: Run, longer: Run, number: int, period: int
) -> tuple[Side, Side, int, int] | None:
    """Return a rank of both runs, with `low` and `high`; None if its table has no period more."""
    rank = int(longer.hosted[number])
    a, b = shorter.program.table_of(rank), longer.program.table_of(rank)
    n, more = len(a), len(b) - len(a)
    if more <= 0 or a.queue_depth != b.queue_depth:
        return None
    rows_a, rows_b = shorter.rows(number), longer.rows(number)
    early, late = _equal_rows(a, b)
    on_cpu = ~a.is_device  # see the clocks below
    for of_a, of_b in zip(rows_a[:3], rows_b[:3], strict=True):
        early &= on_cpu | (of_a == of_b[:n])
        late &= on_cpu | (of_a + period == of_b[more:])
    early &= rows_a.binding == rows_b.binding[:n]  # the critical path depends on it
    late &= rows_a.binding == rows_b.binding[more:]
    start = int(longer.program.start[rank])
    one = Side(a, shorter.lowered(number), start)
    other = Side(b, longer.lowered(number), start)
    clock_a, clock_b = clock_of(one, rows_a), clock_of(other, rows_b)
    early &= clock_a == clock_b[:n]
    high = first_of(~early)
    # A CPU that waits for nothing in a period may run ahead of the device, until it waits.
    waiting = np.flatnonzero(_waiting(other)[high:]) + high
    first = waiting[0] if len(waiting) else len(b)
    free = first - more if first >= high + more else 0
    late[free:] &= clock_a[free:] + period == clock_b[more + free :]
    low = n - first_of(~late[::-1])
    return one, other, low, high


def _equal_rows(a: Table, b: Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Two tables → rows of the shorter equal to the longer's, counted from the start; from the end.

    Times and the rows waited for may differ.
    """
    n, more = len(a), len(b) - len(a)
    early, late = np.ones(n, bool), np.ones(n, bool)
    for column in SAME_COLUMNS:
        of_a, of_b = getattr(a, column), getattr(b, column)
        early &= of_a == of_b[:n]
        late &= of_a == of_b[more:]
    waits_a, waits_b = np.diff(a.wait_index), np.diff(b.wait_index)
    return early & (waits_a == waits_b[:n]), late & (waits_a == waits_b[more:])


def _inputs_agree(a: Side, b: Side, low: int, high: int) -> bool:
    """Whether condition 1 holds on a rank."""
    n, more = len(a.table), len(b.table) - len(a.table)
    first = high - more  # rows of `a` from here on are those of `b` that are not below `high`
    if not np.array_equal(_waits(a.table, 0, high), _waits(b.table, 0, high)):
        return False
    inputs = [
        (of_a[first:n], of_b[first + more :])
        for of_a, of_b in (
            (a.code.stream_row, b.code.stream_row),
            (a.code.queue_row, b.code.queue_row),
        )
    ]
    inputs.append((_waits(a.table, first, n), _waits(b.table, first + more, n + more)))
    for of_a, of_b in inputs:
        moves = (of_b == of_a + more) & (of_b >= low)
        stays = (of_b == of_a) & (of_a < high)
        if not (moves | stays).all():
            return False
    return True


def _waits(table: Table, first: int, last: int) -> NDArray[np.int32]:
    """Return the waits of some rows of a table, concatenated."""
    return table.wait_row[table.wait_index[first] : table.wait_index[last]]


def busy(table: Table) -> Ints:
    """Return the CPU time of each row, in ps."""
    called = np.where(table.kind == Kind.HOST, 0, table.launch_cost)
    joined = (table.flags & Flag.JOINED) != 0
    return np.where(joined, 0, table.host + called)


def _waiting(side: Side) -> NDArray[np.bool_]:
    """Return the rows at which the CPU may wait for the device."""
    return (side.table.kind == Kind.HOST_WAIT) | (side.code.queue_row >= 0)


def clock_of(side: Side, rows: Rows) -> Ints:
    """Return the clock of the CPU after each row, in ps.

    It is the sum of its work, and later by the longest wait so far.
    """
    table, code = side.table, side.code
    work = np.cumsum(busy(table))
    late = np.full(len(table), rows.host_end - UNBOUND)
    waits = np.flatnonzero(table.kind == Kind.HOST_WAIT)
    late[waits] = rows.end[waits] - work[waits]
    if table.queue_depth:
        queued = np.flatnonzero(rows.binding & Binding.QUEUE)
        kernels = np.flatnonzero(code.first == np.arange(len(table)))  # JOINED rows end with these
        ends = np.maximum.reduceat(rows.end, kernels)
        left = ends[np.searchsorted(kernels, code.first[code.queue_row[queued]])]
        late[queued] = left + table.launch_cost[queued] - work[queued]
    return work + np.maximum.accumulate(np.maximum(late, side.start))


def communications_match(
    longer: Run, classes: Ints, low: Ints, high: Ints, n_rows: Ints, comm: Intracomm | None
) -> bool:
    """Return whether condition 2 holds. **Collective** on `comm`.

    Parameters
    ----------
    longer : Run
    classes, low, high, n_rows : int64, shape (h,)
        Of the ranks simulated here, in the order of `Run.simulated`.
    comm : mpi4py.MPI.Intracomm or None
    """
    program = longer.program
    counts = np.diff(program.slot_index)
    # Operations on each slot of a class below low + l, and the negative of those below high + l.
    known = np.full((2, len(longer.classes), int(counts.max(initial=0))), -UNBOUND)
    counted: dict[tuple[Table, int, int], Ints] = {}  # most ranks have bounds of others, too
    for i, number in enumerate(longer.simulated.tolist()):
        table = program.table_of(int(longer.hosted[number])).structure
        key = table, int(low[i] + n_rows[i]), int(high[i] + n_rows[i])
        if key not in counted:
            below = [table.operations_below(bound) for bound in key[1:]]
            counted[key] = np.stack([below[0], -below[1]])
        known[:, classes[i], : table.n_slots] = counted[key]
    known = allreduce_max(known, comm)
    owner = np.repeat(np.arange(program.n_ranks), counts)
    slots = np.arange(len(owner)) - program.slot_index[owner]
    of_slot = known[:, longer.classes.of_rank[owner], slots]
    most = np.full((2, len(program.communicators)), -UNBOUND)
    for i in range(2):
        np.maximum.at(most[i], program.slots, of_slot[i])
    used = most[0] > -UNBOUND
    return bool((most[0, used] <= -most[1, used]).all())
