"""One run of a step → where its rounds repeat, and by how much a further round makes it longer.

Once a pipeline is full, each further micro-batch adds one forward and one backward to every rank,
and where everything is in step, all times of these are those of the micro-batch before, later by
one and the same period D. `mpisim.engine.periodic_window` finds that from two runs, the second with
a round more, for the run of the step as a whole. Here one run has to do, and only times follow.

What is compared. `l` rows of a rank make a period: those from the forward of the last but one
micro-batch to the last one's. The *window* of a rank is the longest range of rows around them,
`low` to `high`, in which row i + l has the columns of row i (but for the number of the
micro-batch), waits for the rows that are `l` further than those that row i waits for, and begins,
is joined by its last partner and ends D later. D is one for all ranks.

Claim: the step with a micro-batch more takes T(i) = b(i) for i < high + l, and T(i) = b(i - l) + D
for i >= low + l, if its tables are those of the run b with `l` rows inserted within the windows, as
they are in a schedule that alternates forwards and backwards. Where both apply they agree. Its
windows have the same `low`, and a `high` that is `l` higher, so that by induction any number of
micro-batches more make the step longer by D each, to the picosecond. As in `periodic_window`, it is
to be shown for rows i >= high of *b* that their inputs are those of row i, all later by D:

1. Rows of a rank. An input from `low` on moves with its row: its copy is `l` rows further down, and
   later by D. An input below `low` may stay, or be the row `l` further; it does not matter if both
   have ended, gap included, before row i begins: others made it begin then, and these are later
   by D. Nothing but the number of launches, which here has no limit (`queue_depth`), ties a row to
   others.
2. Communications. The k-th operation on a communicator must be below `high` for all members, or
   from `low` on for all, and all members must have as many of them in a period.
3. The CPU. Let c(i) be its clock after row i. Before row high + l it is that of *b*, so at first it
   is later, in the longer step, by c(high + l - 1) - c(high - 1), which must not be above D. Where
   it is D the clock is periodic. Where it is less, the CPU runs ahead: inputs are no later than by
   D, so neither is any clock. That changes nothing if no row on the device waits for the CPU alone,
   until the CPU itself has to wait for the device (HOST_WAIT): from there it is later by D again.
   After the longer step's own window the difference is no more than that, which is the induction.
4. Links, and kernels slowed by what runs beside them: as in `periodic_window`. All rows below
   low + l must have ended (at `begin`) before any row begins (at `end`) that is not below high + l,
   in *b* or D later in the longer step, and all that run at `begin` must have ended by then.

Where durations are made of earlier passes each pass must hold; `low` and `high` then bound what is
periodic in all of them. Random factors on kernels repeat nowhere: there is then no window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..mpi.reductions import allreduce_any, allreduce_max, allreduce_min
from ..program import Kind, Phase, Table
from .periodic_window import (
    SAME_COLUMNS,
    UNBOUND,
    PeriodicWindow,
    Side,
    clock_of,
    communications_match,
    first_of,
    known_before,
)
from .rows import Binding, Rows
from .run import Run

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["steady_period", "steady_window"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def steady_period(passes: Sequence[Run], comm: Intracomm | None) -> int | None:
    """Return by how much each further micro-batch makes a step longer, in ps; None: unknown.

    **Collective** on `comm` (None: one process).

    Parameters
    ----------
    passes : sequence of Run
        Of a step, of which each made the durations of the next; the last is its run.
    comm : mpi4py.MPI.Intracomm or None
    """
    window: PeriodicWindow | None = None
    rounds: dict[Table, _Rounds | None] = {}
    for run in passes:
        window = steady_window(run, comm, before=window, rounds=rounds)
        if window is None:
            return None
    return None if window is None else window.period


def steady_window(
    run: Run,
    comm: Intracomm | None,
    micro_batches: int = 1,
    before: PeriodicWindow | None = None,
    rounds: dict[Table, _Rounds | None] | None = None,
) -> PeriodicWindow | None:
    """Return where a run is periodic; None, on all processes, if it is nowhere.

    **Collective** on `comm` (None: one process).

    Parameters
    ----------
    run : Run
    comm : mpi4py.MPI.Intracomm or None
    micro_batches : int
        Of a round.
    before : PeriodicWindow, optional
        Of the pass before, whose times made the durations of this one.
    rounds : dict of Table to _Rounds, optional
        By `Table.structure`. The caller's, who has it for all passes; what is missing is added.
    """
    rounds = {} if rounds is None else rounds
    lows, highs = known_before(run, before)
    classes = run.classes.of_rank[run.hosted[run.simulated]].astype(np.int64)
    known: dict[tuple[int, ...], _Rank | None] = {}
    ranks: list[_Rank] = []
    for i, identical in enumerate(run.identical.tolist()):
        bounds = int(lows[classes[i]]), int(highs[classes[i]])
        number = int(run.simulated[i])
        key = (identical, *bounds)
        if key not in known:
            structure = run.program.table_of(int(run.hosted[number])).structure
            if structure not in rounds:
                rounds[structure] = _Rounds.of(structure, micro_batches)
            known[key] = _periodic(run, number, rounds[structure], bounds)
        found = known[key]
        if found is None:
            break
        ranks.append(found)
    fails = len(ranks) < len(classes) or run.program.jitter is not None
    periods = np.array([each.period for each in ranks] or [0], np.int64)
    period = int(allreduce_max(periods.max(keepdims=True), comm)[0])
    if allreduce_any(fails or bool((periods[: len(ranks)] != period).any()), comm):
        return None
    low, high, n_rows = (
        np.array([getattr(each, name) for each in ranks], np.int64)
        for name in ("low", "high", "n_rows")
    )
    if not communications_match(run, classes, low, high, n_rows, comm):
        return None
    if not _as_many_of_all(run, classes, low, n_rows, comm):
        return None
    own = np.array([max((each.ended_below for each in ranks), default=0)], np.int64)
    begin = int(allreduce_max(own, comm)[0])
    distinct = [each for each in known.values() if each is not None]
    running = max((each.ended_of_running(begin) for each in distinct), default=0)
    running = int(allreduce_max(np.array([running], np.int64), comm)[0])
    above = min((each.begun_above for each in ranks), default=UNBOUND)
    end = int(allreduce_min(np.array([above], np.int64), comm)[0])
    if not running <= end < UNBOUND:
        return None
    of_class = np.zeros((3, len(run.classes)), np.int64)
    of_class[:, classes] = n_rows, low, high
    n_rows, low, high = allreduce_max(of_class, comm)[:, run.classes.of_rank]
    return PeriodicWindow(period, n_rows, low, high, begin, end)


class _Rank(NamedTuple):
    """A rank that is periodic.

    Attributes
    ----------
    low, high, n_rows : int
        See the module's head.
    period : int
        ps.
    ended_below, begun_above : int
        When the last row below low + l ended, and the first one begins that is not below high + l.
    begin, end : int64, shape (n,)
        Of rows on the device; those on the CPU begin and end at no time.
    """

    low: int
    high: int
    n_rows: int
    period: int
    ended_below: int
    begun_above: int
    begin: Ints
    end: Ints

    def ended_of_running(self, time: int) -> int:
        """Return when the last row ended that had begun by a time."""
        return int(self.end[self.begin <= time].max(initial=0))


class _Rounds(NamedTuple):
    """The last two rounds of a table, whatever its rows' durations.

    Attributes
    ----------
    first : int
        Where the last but one begins: its forward's first row on the device.
    n_rows : int
        From there to the same row of the last round.
    same : bool, shape (n - n_rows,)
        Whether each row has a copy so many rows further down, which waits for the copies of what it
        waits for.
    """

    first: int
    n_rows: int
    same: Flags

    @classmethod
    def of(cls, table: Table, micro_batches: int) -> _Rounds | None:
        """Return the rounds of so many micro-batches; None if there are no two."""
        found = _last_forwards(table, micro_batches)
        if found is None or table.queue_depth:
            return None
        first, second = found
        if second <= first:
            return None
        return cls(first, second - first, _repeats(table, second - first))


def _periodic(
    run: Run, number: int, rounds: _Rounds | None, bounds: tuple[int, int]
) -> _Rank | None:
    """Return a rank that is periodic between two rows; None if conditions 1 and 3 do not hold."""
    if rounds is None:
        return None
    rank = int(run.hosted[number])
    side = Side(run.program.table_of(rank), run.lowered(number), int(run.program.start[rank]))
    table, rows = side.table, run.rows(number)
    first, n_rows = rounds.first, rounds.n_rows
    period = int(rows.begin[first + n_rows] - rows.begin[first])
    if period <= 0:
        return None
    same = rounds.same & (table.duration[n_rows:] == table.duration[:-n_rows])
    on_cpu = ~table.is_device[n_rows:]  # their times follow from clocks, which are looked at apart
    for times in rows[:3]:
        same &= on_cpu | (times[n_rows:] - times[:-n_rows] == period)
    if not same[first]:
        return None
    low = max(first + 1 - first_of(~same[first::-1]), bounds[0])
    high = min(first + first_of(~same[first:]), bounds[1])
    if high - low < n_rows:
        return None
    begin = np.where(table.is_device, rows.begin, UNBOUND)
    end = np.where(table.is_device, rows.end, 0)
    if not _inputs_move(side, begin, end, low, high, n_rows):
        return None
    if not _cpu_keeps_up(side, rows, high, n_rows, period, int(end.max(initial=0))):
        return None
    above = int(begin[high:].min(initial=UNBOUND)) + period
    above = min(above, int(begin[high + n_rows :].min(initial=UNBOUND)))
    return _Rank(
        low, high, n_rows, period, int(end[: low + n_rows].max(initial=0)), above, begin, end
    )


def _last_forwards(table: Table, micro_batches: int) -> tuple[int, int] | None:
    """Return the first rows on the device of the last forward and of the one a round before."""
    forward = np.flatnonzero(
        table.is_device & (table.phase == Phase.FORWARD) & (table.micro_batch >= 0)
    )
    last = int(table.micro_batch[forward].max(initial=0))
    first, second = (
        forward[table.micro_batch[forward] == n][:1] for n in (last - micro_batches, last)
    )
    return (int(first[0]), int(second[0])) if len(first) and len(second) else None


def _repeats(table: Table, n_rows: int) -> Flags:
    """Return which rows have a copy so many rows further down, whatever their durations."""
    same = np.ones(len(table) - n_rows, bool)
    for name in SAME_COLUMNS:
        if name != "duration":
            column = getattr(table, name)
            same &= column[n_rows:] == column[:-n_rows]
    waits = np.diff(table.wait_index)
    same &= waits[n_rows:] == waits[:-n_rows]
    # Of rows with as many waits each wait of the copy is looked at.
    begin = table.wait_index[:-1]
    some = np.flatnonzero(same & (waits[:-n_rows] > 0))
    for i in range(int(waits.max(initial=0))):
        some = some[waits[some] > i]
        moved = table.wait_row[begin[some] + i] + n_rows
        same[some] &= table.wait_row[begin[some + n_rows] + i] == moved
    return same


def _inputs_move(side: Side, begin: Ints, end: Ints, low: int, high: int, n_rows: int) -> bool:
    """Whether condition 1 holds on a rank."""
    table, code = side.table, side.code
    ended = np.maximum.accumulate(end)  # the last of all rows so far

    def holds(row: Ints, source: Ints) -> bool:
        late = source < low
        row, source = row[late], source[late]
        by = ended[code.last[source] + n_rows] + table.gap[row]
        return bool((table.is_device[row] & (by < begin[row])).all())

    rows = np.arange(high, len(table))
    stream = code.stream_row[high:].astype(np.int64)
    has = stream >= 0
    waits = table.wait_index[high:]
    waiting = np.repeat(rows, np.diff(waits))
    waited = table.wait_row[waits[0] : waits[-1]].astype(np.int64)
    return holds(rows[has], stream[has]) and holds(waiting, waited)


def _cpu_keeps_up(
    side: Side, rows: Rows, high: int, n_rows: int, period: int, device_end: int
) -> bool:
    """Whether condition 3 holds on a rank, whose last row on the device ends at `device_end`."""
    table, clock = side.table, clock_of(side, rows)
    drift = int(clock[high + n_rows - 1] - clock[high - 1])
    if drift > period:
        return False
    if drift == period:
        return True
    kind, binding = table.kind[high:], rows.binding[high:]
    by_cpu = binding == Binding.HOST
    until = first_of((kind == Kind.HOST_WAIT) & ~by_cpu)
    if (by_cpu & table.is_device[high:])[:until].any():
        return False
    return until < len(kind) or int(clock[-1]) <= device_end


def _as_many_of_all(
    run: Run, classes: Ints, low: Ints, n_rows: Ints, comm: Intracomm | None
) -> bool:
    """Whether all members of a communicator have as many operations on it in a period.

    **Collective** on `comm`.
    """
    program = run.program
    counts = np.diff(program.slot_index)
    known = np.full((len(run.classes), int(counts.max(initial=0))), -1)
    for i, number in enumerate(run.simulated.tolist()):
        table = program.table_of(int(run.hosted[number]))
        some = slice(int(low[i]), int(low[i] + n_rows[i]))
        slots = table.slot[some]
        on = np.bincount(slots[slots >= 0], minlength=table.n_slots)
        known[classes[i], : len(on)] = on
    known = allreduce_max(known, comm)
    owner = np.repeat(np.arange(program.n_ranks), counts)
    slot = np.arange(len(owner)) - program.slot_index[owner]
    of_slot = known[run.classes.of_rank[owner], slot]
    least = np.full(len(program.communicators), UNBOUND)
    most = np.full(len(program.communicators), -1)
    np.minimum.at(least, program.slots, of_slot)
    np.maximum.at(most, program.slots, of_slot)
    return bool(((least == most) | (most < 0)).all())
