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

from ..engine.fold import EquivalenceClasses
from ..engine.run import Run
from ..mpi.reductions import allreduce_max, allreduce_sum_words
from ..program import UNPRICED, Program, Table
from ._core.rows import fingerprint, n_differing
from .timeline import distinct_rows

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["RowTimes", "is_spread", "longest_of_members", "retimed", "row_times"]

Ints = NDArray[np.int64]


class RowTimes(NamedTuple):
    """Times of the rows of a table, in ps.

    Attributes
    ----------
    duration : int64, shape (n,)
        As `Table.duration`.
    delay : int64, shape (n,)
        As ``wire_delays`` of `mpisim.engine.simulate`: beside the network price.
    """

    duration: Ints
    delay: Ints

    @classmethod
    def of_class(cls, run: Run, number: int) -> RowTimes:
        """Return the times with which a class of a run was simulated.

        Parameters
        ----------
        run : Run
            With the table of the class's representative on this process.
        number : int
            Of the class, from 0.
        """
        rank = int(run.classes.representative[number])
        delays = run.setup.wire_delays
        delay = delays[int(run.program.table[rank])] if delays else None
        return cls.of_table(run.program.table_of(rank), delay)

    @classmethod
    def of_table(cls, table: Table, delay: Ints | None = None) -> RowTimes:
        """Return the times of a table, without delays unless some are given.

        Parameters
        ----------
        table : Table
        delay : int64, shape (n,), optional
            Beside the network price of each row, in ps. Kept as it is, like `table.duration`.
        """
        none = np.broadcast_to(np.int64(0), len(table))
        return cls(table.duration, none if delay is None else delay)

    def n_differing(self, other: RowTimes) -> int:
        """Return the number of rows in which two differ."""
        found: int = n_differing(*self, *other)
        return found

    def hash(self) -> NDArray[np.uint64]:
        """Return a 128-bit hash, shape (2,); sums of hashes may wrap around."""
        found: NDArray[np.uint64] = fingerprint(*self)
        return found

    def mean(self, other: RowTimes) -> RowTimes:
        """Return the mean of two, rounded down."""
        return RowTimes(*((a + b) // 2 for a, b in zip(self, other, strict=True)))


def row_times(table: Table, rows: Ints, duration: Ints, wire: Ints, alone: Ints) -> RowTimes:
    """Times of kernels and communications → times of all rows of a table.

    Parameters
    ----------
    table : Table
        With durations without slowdown.
    rows : int64, shape (m,)
        Its communications.
    duration : int64, shape (n,)
        Of kernels, in ps; other entries are ignored.
    wire, alone : int64, shape (m,)
        Wire times of communications, with and without slowdown, in ps.
    """
    found = duration.copy()
    given = table.duration[rows] != UNPRICED
    found[rows] = np.where(given, wire, UNPRICED)
    delay = np.zeros(len(table), np.int64)
    delay[rows] = np.where(given, 0, wire - alone)
    return RowTimes(found, delay)


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
    first = np.unique(which, return_index=True)[1]
    whole = not is_spread(run, comm)
    here = {int(which[number]): number for number in times}
    tables: list[Table | None] = []
    delays: list[Ints | None] = []
    for i, (base, changed) in enumerate(numbers):
        table = program.tables[base]
        assert table is not None  # the program is whole
        if not changed:
            tables.append(table)
            delays.append(None)
            continue
        found = times[here[i]] if i in here else None
        if whole and comm.size > 1:
            both = np.stack(found) if found else np.empty((2, len(table)), np.int64)
            comm.Bcast(both, root=int(home[first[i]]))
            found = RowTimes(*both)
        tables.append(None if found is None else table.replace(duration=found.duration))
        delays.append(None if found is None else found.delay)
    table_of_rank = which[classes.of_rank].astype(np.int32)
    return program.replace(tables=tuple(tables), table=table_of_rank), delays


def _numbered(
    program: Program, classes: EquivalenceClasses, times: Mapping[int, RowTimes], comm: Intracomm
) -> tuple[list[tuple[int, bool]], Ints]:
    """Number the distinct tables, equally on all processes.

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
            base = program.tables[tables[number]]
            assert base is not None  # the program is whole
            differs = each.n_differing(RowTimes.of_table(base))
            known[these] = each.hash() if differs else digests[number]
        digests[number] = known[these]
    digests = allreduce_sum_words(digests, comm)  # each is known to one process, 0 on the others
    table = program.table[classes.representative].astype(np.uint64)
    key = np.concatenate([table[:, None], digests], axis=1)
    different, which = np.unique(key, axis=0, return_inverse=True)
    return [(int(t), bool(a or b)) for t, a, b in different.tolist()], which.reshape(-1)


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
    counts = np.zeros(len(first), np.int64)
    for number, table in enumerate(program.tables):
        assert table is not None  # the program is whole
        here = np.flatnonzero(program.table[owner[first]] == number)
        active = here[members[here, 2] < table.n_slots]
        counts[active] = table.operations[members[active, 2]]
    n_operations = np.zeros(len(groups), np.int64)
    np.maximum.at(n_operations, members[:, 0], counts)
    at = np.concatenate([[0], np.cumsum(n_operations)])

    # Of each class simulated here, values in the order of slots, and where those of a slot begin.
    orders: dict[Table, tuple[NDArray[np.intp], Ints]] = {}
    ordered, index = {}, {}
    for number, values in own.items():
        table = program.table_of(int(classes.representative[number]))
        if table not in orders:
            order = np.argsort(table.slot[table.is_communication], kind="stable")
            orders[table] = order, np.cumsum([0, *table.operations.tolist()])
        order, index[number] = orders[table]
        ordered[number] = values[order]
    found = np.zeros(int(at[-1]), np.int64)
    first_of = at[members[:, 0]]
    held = (counts > 0) & np.isin(members[:, 1], np.array(list(own), np.int64))
    for number, s, low, count in zip(
        *(each[held].tolist() for each in (members[:, 1], members[:, 2], first_of, counts)),
        strict=True,
    ):
        part, begin = found[low : low + count], index[number][s]
        np.maximum(part, ordered[number][begin : begin + count], out=part)
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
