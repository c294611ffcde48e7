"""One run of a step → time that each further round of micro-batches adds to it.

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
from ..program import Phase, Table
from ._core.steady import ended_of_running, last_forwards, steady_rows
from .periodic_window import UNBOUND, PeriodicWindow, communications_match, known_before
from .rows import Rows
from .run import Run

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["steady_period"]

Ints = NDArray[np.int64]


def steady_period(passes: Sequence[Run], comm: Intracomm | None) -> int | None:
    """Run → time that each further micro-batch adds to the step, in ps; None: unknown.

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
    """Return the periodic window of a run; None, on all processes, if there is none.

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
    table : Table
    rows : Rows
    """

    low: int
    high: int
    n_rows: int
    period: int
    ended_below: int
    begun_above: int
    table: Table
    rows: Rows

    def ended_of_running(self, time: int) -> int:
        """Return when the last row ended that had begun by a time."""
        return int(ended_of_running(self.table, self.rows, time))


class _Rounds(NamedTuple):
    """The last two rounds of a table, whatever its rows' durations.

    Attributes
    ----------
    first : int
        Where the last but one begins: its forward's first row on the device.
    n_rows : int
        From there to the same row of the last round.
    """

    first: int
    n_rows: int

    @classmethod
    def of(cls, table: Table, micro_batches: int) -> _Rounds | None:
        """Return the rounds of so many micro-batches; None if there are no two."""
        first, second = last_forwards(table, int(Phase.FORWARD), micro_batches)
        if first < 0 or table.queue_depth or second <= first:
            return None
        return cls(first, second - first)


def _periodic(
    run: Run, number: int, rounds: _Rounds | None, bounds: tuple[int, int]
) -> _Rank | None:
    """Return a rank that is periodic between two rows; None if conditions 1 and 3 do not hold."""
    if rounds is None:
        return None
    rank = int(run.hosted[number])
    table, code, rows = run.program.table_of(rank), run.lowered(number), run.rows(number)
    first, n_rows = rounds
    period = int(rows.begin[first + n_rows] - rows.begin[first])
    if period <= 0:
        return None
    start = int(run.program.start[rank])
    sources = code.last, code.stream_row
    found = steady_rows(table, rows, start, *sources, first, n_rows, period, *bounds)
    if found is None:
        return None
    low, high, ended_below, begun_above = found
    return _Rank(low, high, n_rows, period, ended_below, begun_above, table, rows)


def _as_many_of_all(
    run: Run, classes: Ints, low: Ints, n_rows: Ints, comm: Intracomm | None
) -> bool:
    """Whether all members of a communicator have as many operations on it in a period.

    **Collective** on `comm`.
    """
    program = run.program
    counts = np.diff(program.slot_index)
    known = np.full((len(run.classes), int(counts.max(initial=0))), -1)
    counted: dict[tuple[Table, int, int], Ints] = {}
    for i, number in enumerate(run.simulated.tolist()):
        table = program.table_of(int(run.hosted[number])).structure
        key = table, int(low[i]), int(low[i] + n_rows[i])
        if key not in counted:
            counted[key] = table.operations_below(key[2]) - table.operations_below(key[1])
        known[classes[i], : table.n_slots] = counted[key]
    known = allreduce_max(known, comm)
    owner = np.repeat(np.arange(program.n_ranks), counts)
    slot = np.arange(len(owner)) - program.slot_index[owner]
    of_slot = known[run.classes.of_rank[owner], slot]
    least = np.full(len(program.communicators), UNBOUND)
    most = np.full(len(program.communicators), -1)
    np.minimum.at(least, program.slots, of_slot)
    np.maximum.at(most, program.slots, of_slot)
    return bool(((least == most) | (most < 0)).all())
