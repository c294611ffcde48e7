"""Retiming: the row times of classes → a program with those durations, for the next run.

Each rank works out times by itself, from its own timeline. What processes must agree on is done
here: a communication lasts as long as for the slowest of its members (`longest_of_members`), and
tables with equal times get equal numbers on all processes (`retimed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import numbered
from ..engine.fold import EquivalenceClasses
from ..engine.run import Run
from ..mpi.reductions import allreduce_max, allreduce_sum_words
from ..program import Program, Table
from ._core.rows import fingerprint_at, take_longest
from .timeline import distinct_rows

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from .communication_kernels import RankCommunications

__all__ = [
    "RowTimes",
    "delay_of_class",
    "is_spread",
    "longest_of_members",
    "retimed",
    "row_times",
]

Ints = NDArray[np.int64]


class RowTimes(NamedTuple):
    """Times of rows of a table that are not those of its model without slowdown, in ps.

    Few rows are slowed, and there are as many of these as ranks: nothing is kept of the others.

    Attributes
    ----------
    table : Table
        With durations without slowdown.
    rows : int64, shape (s,)
        Ascending; kernels, and communications with a duration.
    duration : int64, shape (s,)
        Another than in the table.
    late : int64, shape (l,)
        Ascending; communications that the network prices.
    delay : int64, shape (l,)
        As ``wire_delays`` of `mpisim.engine.simulate`: beside the network price; not 0.
    """

    table: Table
    rows: Ints
    duration: Ints
    late: Ints
    delay: Ints

    @classmethod
    def of_class(cls, program: Program, run: Run, number: int) -> RowTimes:
        """Return the times with which a class of a run was simulated.

        Parameters
        ----------
        program : Program
            With durations without slowdown.
        run : Run
            With the table of the class's representative on this process.
        number : int
            Of the class, from 0.
        """
        rank = int(run.classes.representative[number])
        now, delay = run.program.table_of(rank), delay_of_class(run, number)
        return cls.of_rows(program.table_of(rank), now.duration, delay)

    @classmethod
    def of_rows(cls, table: Table, duration: Ints, delay: Ints | None = None) -> RowTimes:
        """Return the times of all rows, and their delays, as those that differ from a table's.

        Parameters
        ----------
        table : Table
            With durations without slowdown.
        duration : int64, shape (n,)
        delay : int64, shape (n,), optional
            By default 0.
        """
        none = np.empty(0, np.int64)
        rows = none if duration is table.duration else np.flatnonzero(duration != table.duration)
        late = none if delay is None else np.flatnonzero(delay)
        return cls(table, rows, duration[rows], late, none if delay is None else delay[late])

    @property
    def all_durations(self) -> Ints:
        """As `Table.duration`, shape (n,)."""
        found = self.table.duration.copy()
        found[self.rows] = self.duration
        return found

    @property
    def all_delays(self) -> Ints:
        """Of every row, shape (n,)."""
        found = np.zeros(len(self.table), np.int64)
        found[self.late] = self.delay
        return found

    @property
    def differs(self) -> bool:
        """Whether any row has another time than in the table."""
        return len(self.rows) + len(self.late) > 0

    def n_differing(self, other: RowTimes) -> int:
        """Return the number of rows in which two differ, of one table."""
        if not other.differs:
            return len(self.rows) + len(self.late)  # delays are of other rows than durations
        changed = self.all_durations != other.all_durations
        return int((changed | (self.all_delays != other.all_delays)).sum())

    def hash(self) -> NDArray[np.uint64]:
        """Return a 128-bit hash of the times, shape (2,), of one table; sums may wrap around."""
        # No row has both: delays are of communications that the table gives no duration.
        return fingerprint_at(self.rows, self.duration) + fingerprint_at(self.late, self.delay)

    def mean(self, other: RowTimes) -> RowTimes:
        """Return the mean of two of one table, rounded down."""
        duration = (self.all_durations + other.all_durations) // 2
        return RowTimes.of_rows(self.table, duration, (self.all_delays + other.all_delays) // 2)


def delay_of_class(run: Run, number: int) -> Ints | None:
    """Return the wire delays with which a class of a run was simulated; None: there were none.

    Parameters
    ----------
    run : Run
        With the table of the class's representative on this process.
    number : int
        Of the class, from 0.
    """
    delays = run.setup.wire_delays
    rank = int(run.classes.representative[number])
    return delays[int(run.program.table[rank])] if delays else None


def row_times(
    table: Table, own: RankCommunications, rows: Ints, duration: Ints, wire: Ints
) -> RowTimes:
    """Slowed kernels and communications → the times of all rows of a table.

    Parameters
    ----------
    table : Table
        With durations without slowdown.
    own : RankCommunications
        Its communications.
    rows, duration : int64, shape (s,)
        Its kernels that take longer, ascending, and how long, in ps.
    wire : int64, shape (m,)
        Wire times of communications with slowdown, in ps.
    """
    longer = wire != own.alone
    late = np.flatnonzero(longer & ~own.is_given)
    delay = wire[late] - own.alone[late]
    if own.is_given.any():
        given = np.flatnonzero(longer & own.is_given)
        rows, duration = np.append(rows, own.rows[given]), np.append(duration, wire[given])
        order = np.argsort(rows)
        rows, duration = rows[order], duration[order]
    return RowTimes(table, rows, duration, own.rows[late], delay)


def is_spread(run: Run, comm: Intracomm) -> bool:
    """Return whether each process has the tables of its own ranks alone: nothing was folded.

    Parameters
    ----------
    run : Run
    comm : mpi4py.MPI.Intracomm
        The processes that share the run.
    """
    return comm.size > 1 and len(run.classes) == run.program.n_ranks


def retimed(
    program: Program, run: Run, times: Mapping[int, RowTimes], comm: Intracomm
) -> tuple[Program, list[Ints | None]]:
    """Return a program whose ranks have the times of their classes, and its wire delays.

    **Collective.** After a folded run the program is whole on every process, so that it can be
    folded again; otherwise each process has the tables of its own ranks, since memory may not
    suffice for more.

    Parameters
    ----------
    program : Program
        Whole, with durations without slowdown.
    run : Run
    times : mapping of int to RowTimes
        Of the classes simulated here.
    comm : mpi4py.MPI.Intracomm
    """
    classes = run.classes
    numbers, which = _numbered(program, classes, times, comm)
    home = run.placement[classes.representative]
    _, first, _ = numbered(which)
    whole = not is_spread(run, comm)
    here = {int(which[number]): number for number in times}
    tables: list[Table | None] = []
    delays: list[Ints | None] = []
    known: dict[tuple[int, bytes, bytes], Ints] = {}  # most ranks have equal delays
    for i, (base, changed) in enumerate(numbers):
        table = program.tables[base]
        assert table is not None  # the program is whole
        if not changed:
            tables.append(table)
            delays.append(None)
            continue
        found = times[here[i]] if i in here else None
        if whole and comm.size > 1:
            both = np.empty((2, len(table)), np.int64)
            if found is not None:
                both[0], both[1] = found.all_durations, found.all_delays
            comm.Bcast(both, root=int(home[first[i]]))
            found = RowTimes.of_rows(table, *both)
        if found is None:
            tables.append(None)
            delays.append(None)
            continue
        key = len(table), found.late.tobytes(), found.delay.tobytes()
        if key not in known:
            known[key] = found.all_delays
        duration = found.all_durations if len(found.rows) else table.duration
        tables.append(table.replace(duration=duration))
        delays.append(known[key])
    table_of_rank = which[classes.of_rank].astype(np.int32)
    return program.replace(tables=tuple(tables), table=table_of_rank), delays


def _numbered(
    program: Program, classes: EquivalenceClasses, times: Mapping[int, RowTimes], comm: Intracomm
) -> tuple[list[tuple[int, bool]], Ints]:
    """Number the distinct tables by the first class that has each, equally on all processes.

    Returns
    -------
    list of (int, bool)
        For each, the table of `program` it is made from, and whether its times differ.
    int64, shape (n_classes,)
        The number of the table of each class.
    """
    digests = np.zeros((len(classes), 2), np.uint64)
    known: dict[tuple[int, int], NDArray[np.uint64]] = {}
    tables = program.table[classes.representative].tolist()
    for number, each in times.items():
        these = tables[number], id(each)  # classes may share their times
        if these not in known:
            known[these] = each.hash() if each.differs else digests[number]
        digests[number] = known[these]
    digests = allreduce_sum_words(digests, comm)  # each is known to one process, 0 on the others
    first, which = distinct_rows(np.array(tables), *digests.view(np.int64).T)
    return [(tables[i], bool(digests[i].any())) for i in first.tolist()], which


def longest_of_members(
    program: Program, classes: EquivalenceClasses, own: Mapping[int, Ints], comm: Intracomm
) -> dict[int, Ints]:
    """Return the largest of a value over the members of each communication.

    **Collective.** Values of a representative are those of its class, so one member of each class
    counts, for the communicators that representatives bind.

    Parameters
    ----------
    program : Program
        Whole.
    classes : EquivalenceClasses
        Equal on all processes.
    own : mapping of int to int64 arrays, shape (m,)
        The value of each communication of each class that is simulated here, in order of rows.
    comm : mpi4py.MPI.Intracomm

    Returns
    -------
    dict
        As `own`.
    """
    groups = program.communicators
    bound_here = np.zeros(len(groups), bool)
    for rank in classes.representative.tolist():
        bound_here[program.slots_of(rank)] = True
    entry = np.flatnonzero(bound_here[program.slots])
    owner = np.searchsorted(program.slot_index, entry, side="right") - 1
    group = program.slots[entry].astype(np.int64)
    slot = entry - program.slot_index[owner]

    # Members of one class that bind a communicator by the same slot have equal values.
    keys = (group, classes.of_rank[owner].astype(np.int64), slot)
    first, _ = distinct_rows(*keys)
    members = np.stack([column[first] for column in keys], axis=1)
    operations = []
    for each in program.tables:
        assert each is not None  # the program is whole
        operations.append(each.operations)
    begins = np.cumsum([0, *map(len, operations)])
    table_of = program.table[owner[first]]
    # A rank may bind more slots than its table has.
    used = members[:, 2] < np.diff(begins)[table_of]
    counts = np.zeros(len(first), np.int64)
    counts[used] = np.concatenate(operations)[(begins[table_of] + members[:, 2])[used]]
    n_operations = np.zeros(len(groups), np.int64)
    np.maximum.at(n_operations, members[:, 0], counts)
    at = np.concatenate([[0], np.cumsum(n_operations)])

    # Of each class simulated here, values in the order of slots, and where those of a slot begin.
    orders: dict[Table, tuple[NDArray[np.intp], Ints]] = {}
    ordered, index = {}, {}
    for number, values in own.items():
        table = program.table_of(int(classes.representative[number]))
        if table not in orders:
            orders[table] = table.slot_order, np.cumsum([0, *table.operations.tolist()])
        order, index[number] = orders[table]
        ordered[number] = values[order]
    found = np.zeros(int(at[-1]), np.int64)
    first_of = at[members[:, 0]]
    held = (counts > 0) & np.isin(members[:, 1], np.array(list(own), np.int64))
    held_by = members[held, 1]
    order = np.argsort(held_by, kind="stable")
    numbers, begins, _ = numbered(held_by[order])
    slot_of, low, count = (each[held][order] for each in (members[:, 2], first_of, counts))
    for number, some in zip(numbers.tolist(), np.split(np.arange(len(order)), begins[1:])):
        begin = index[number][slot_of[some]]
        take_longest(ordered[number], low[some], begin, count[some], found)
    found = allreduce_max(found, comm)

    longest: dict[int, Ints] = {}
    for number in own:
        rank = int(classes.representative[number])
        order, begins = orders[program.table_of(rank)]
        sizes = np.diff(begins)
        bound = program.slots_of(rank)[: len(sizes)]
        longest[number] = mine = np.empty(len(order), np.int64)
        mine[order] = found[np.repeat(at[bound] - begins[:-1], sizes) + np.arange(len(order))]
    return longest
