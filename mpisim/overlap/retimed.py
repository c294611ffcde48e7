"""A program with other durations: a table for each set of them, shared by ranks that have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engine.run import Classes, Run
from ..mpi.reductions import allreduce_sum_words
from ..program import UNPRICED, Program, Table
from ._core.rows import fingerprint

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Times", "is_spread", "retimed", "times_of"]

Ints = NDArray[np.int64]


class Times(NamedTuple):
    """Of the rows of a table.

    Attributes
    ----------
    duration, longer : int64, shape (n,)
        As `Table`.
    """

    duration: Ints
    longer: Ints

    @classmethod
    def of(cls, table: Table) -> Times:
        """Return those of a table."""
        none = np.zeros(len(table), np.int64)
        return cls(table.duration, none if table.longer is None else table.longer)

    def differing(self, other: Times) -> int:
        """Return in how many rows two differ."""
        return int(((self.duration != other.duration) | (self.longer != other.longer)).sum())

    def hash(self) -> NDArray[np.uint64]:
        """Return 128 bits that tell these times from others, shape (2,): sums wrap around."""
        found: NDArray[np.uint64] = fingerprint(*map(np.ascontiguousarray, self))
        return found

    def halfway(self, other: Times) -> Times:
        """Return the mean of two, rounded down."""
        return Times(*((a + b) // 2 for a, b in zip(self, other, strict=True)))


def times_of(table: Table, duration: Ints, wire: Ints, alone: Ints) -> Times:
    """Return the times of a table's rows.

    Parameters
    ----------
    table : Table
        With durations as they are alone.
    duration : int64, shape (n,)
        Of kernels; other entries are not looked at.
    wire, alone : int64, shape (m,)
        How long communications last, and would alone.
    """
    found = duration.copy()
    rows = np.flatnonzero(table.is_communication)
    given = table.duration[rows] != UNPRICED
    found[rows] = np.where(given, wire, UNPRICED)
    longer = np.zeros(len(table), np.int64)
    longer[rows] = np.where(given, 0, wire - alone)
    return Times(found, longer)


def is_spread(run: Run, comm: Intracomm) -> bool:
    """Say whether each process has the tables of its own ranks alone: nothing was folded."""
    return comm.size > 1 and len(run.classes) == run.program.n_ranks


def retimed(program: Program, run: Run, times: Mapping[int, Times], comm: Intracomm) -> Program:
    """Return a program whose ranks have the times of their classes.

    **Collective.** Where ranks were folded the program is whole on every process, so that it can
    be folded again; otherwise each process has the tables of its own ranks, which is what there is
    room for.

    Parameters
    ----------
    program : Program
        Whole, with durations as they are alone.
    run : Run
    times : mapping of int to Times
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
    for i, (base, changed) in enumerate(numbers):
        table = program.tables[base]
        assert table is not None  # the program is whole
        if not changed:
            tables.append(table)
            continue
        found = times[here[i]] if i in here else None
        if whole and comm.size > 1:
            both = np.stack(found) if found else np.empty((2, len(table)), np.int64)
            comm.Bcast(both, root=int(home[first[i]]))
            found = Times(*both)
        tables.append(None if found is None else table.replace(duration=found[0], longer=found[1]))
    return program.replace(tables=tuple(tables), table=which[classes.of_rank].astype(np.int32))


def _numbered(
    program: Program, classes: Classes, times: Mapping[int, Times], comm: Intracomm
) -> tuple[list[tuple[int, bool]], Ints]:
    """Number the distinct tables alike on all processes.

    Returns
    -------
    list of (int, bool)
        Of each: the table it is made from, and whether it differs from that.
    int64, shape (n_classes,)
        Which of them each class has.
    """
    digests = np.zeros((len(classes), 2), np.uint64)
    for number, each in times.items():
        base = program.table_of(int(classes.representative[number]))
        if each.differing(Times.of(base)):
            digests[number] = each.hash()
    digests = allreduce_sum_words(digests, comm)  # each is known to one process, 0 on the others
    table = program.table[classes.representative].astype(np.uint64)
    key = np.concatenate([table[:, None], digests], axis=1)
    different, which = np.unique(key, axis=0, return_inverse=True)
    return [(int(t), bool(a or b)) for t, a, b in different.tolist()], which.reshape(-1)
