"""Program and setup → memory that the simulator needs, estimated before the run starts.

The system would kill a run that does not fit, after minutes and without a message. The largest
parts of its memory follow from counts: rows, groups (operations of communicators) and slots (ranks
× the communicators they are on), times measured bytes (``data/simulation_memory.toml``). Tables
that differ in durations alone share their instructions: each needs only its durations.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import numbered
from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.machine_memory import capacity, peak, resident
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..mpi.reductions import allreduce_sum
from .fold import SimulatedRanks
from .refine import ranges

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..program import Program

__all__ = ["Counts", "Memory", "count", "needed", "on_this_machine"]

FILE = "simulation_memory.toml"


@frozen
class CoreBytes:
    """Bytes that a core needs for one item of each of the `Counts`."""

    structure_row: Quantity
    table_row: Quantity
    row: Quantity
    varied_row: Quantity
    rank: Quantity
    group: Quantity
    slot: Quantity


@frozen
class TimelineBytes:
    """Bytes that writing the timeline needs for a row."""

    row: Quantity


@frozen
class Constants:
    """The constants of the data file."""

    dataflow: CoreBytes
    contended: CoreBytes
    timeline: TimelineBytes


@cache
def _constants() -> Constants:
    return build(Constants, packaged(FILE), FILE)


class Counts(NamedTuple):
    """Numbers of items that a run needs memory for, on one process.

    Attributes
    ----------
    structure_rows, table_rows : int
        Rows of tables that differ in more than durations; of tables that differ at all.
    rows, varied_rows : int
        Rows of all simulated ranks; of those with duration factors, equal ones counted once.
    ranks, groups, slots : int
    """

    structure_rows: int
    table_rows: int
    rows: int
    varied_rows: int
    ranks: int
    groups: int
    slots: int


class Memory(NamedTuple):
    """Memory of all processes of a run on one machine, in bytes.

    Attributes
    ----------
    needed : int
        An estimate of the peak.
    capacity : int
        Memory that the processes may use.
    """

    needed: int
    capacity: int

    def __str__(self) -> str:
        return f"{_size(self.needed)} of {_size(self.capacity)} of memory"

    def check(self, *, folded: bool, timeline: bool) -> None:
        """Refuse a run that cannot fit. Local.

        Parameters
        ----------
        folded, timeline : bool
            Properties of the run, for the advice in the message.

        Raises
        ------
        InputError
        """
        if self.needed <= self.capacity:
            return
        advice = ["spread it over more machines with mpirun"]
        if not folded:
            advice.insert(0, "let equivalent ranks be simulated once")
        if timeline:
            advice.insert(0, "leave out the timeline")
        raise InputError(
            f"this run needs about {_size(self.needed)} of memory, and this machine has "
            f"{_size(self.capacity)}: {', or '.join(advice)}"
        )


def count(simulated: SimulatedRanks, hosted: NDArray[np.int32]) -> Counts:
    """Simulated ranks of this process → numbers of items that need memory. Local.

    Parameters
    ----------
    simulated : SimulatedRanks
        Of a program with the tables of the ranks hosted here.
    hosted : int32, shape (h,)
        The simulated ranks that are hosted here.
    """
    program = simulated.program
    ranks = simulated.classes.representative[hosted]
    numbers, _, entry = numbered(program.table[ranks])
    held = [table for n in numbers.tolist() if (table := program.tables[n]) is not None]
    lengths = np.array([len(table) for table in held], np.int64)
    at, owner = ranges(simulated.slot_index, hosted.astype(np.int64))
    first = np.searchsorted(owner, np.arange(len(hosted)))
    mine = np.zeros(len(at), np.int64)
    for i, table in enumerate(held):  # which need not use the last slots that a rank has
        used = np.arange(len(table.operations))
        mine[first[entry == i][:, None] + used] = table.operations
    communicators, _, which = numbered(simulated.slots[at])
    operations = np.zeros(len(communicators), np.int64)
    np.maximum.at(operations, which, mine)  # all members do as many
    structures = {table.structure: len(table) for table in held}
    return Counts(
        structure_rows=sum(structures.values()),
        table_rows=int(lengths.sum()),
        rows=int(lengths[entry].sum()),
        varied_rows=_varied_rows(program, ranks, entry, lengths),
        ranks=len(hosted),
        groups=int(operations.sum()),
        slots=len(at),
    )


def _varied_rows(
    program: Program, ranks: NDArray[np.int32], entry: NDArray[np.intp], lengths: NDArray[np.int64]
) -> int:
    """Count the rows of ranks with duration factors, equal ones once.

    `entry` is the table of each rank, `lengths` the number of rows of each table.
    """
    if program.jitter is not None:
        return int(lengths[entry].sum())
    speed = program.speed[ranks]
    if (speed == 1).all():
        return 0
    pairs = np.unique(np.stack([entry.astype(float), speed]), axis=1)
    return int(lengths[pairs[0].astype(int)].sum())


def needed(counts: Counts, contended: bool, timeline: bool) -> int:
    """Counts → bytes that a run needs beyond those its process already has. Local.

    Parameters
    ----------
    counts : Counts
    contended : bool
        Whether communications share links.
    timeline : bool
        Whether all rows are written.
    """
    constants = _constants()
    costs = constants.contended if contended else constants.dataflow
    total = (
        counts.structure_rows * costs.structure_row.si
        + counts.table_rows * costs.table_row.si
        + counts.rows * costs.row.si
        + counts.varied_rows * costs.varied_row.si
        + counts.ranks * costs.rank.si
        + counts.groups * costs.group.si
        + counts.slots * costs.slot.si
    )
    if timeline:
        total += counts.rows * constants.timeline.row.si
    return int(total)


def on_this_machine(more: int, comm: Intracomm | None) -> Memory:
    """Add up the memory that the processes of a run need on this machine. **Collective** on `comm`.

    Parameters
    ----------
    more : int
        Bytes that this process needs on top of what it has.
    comm : mpi4py.MPI.Intracomm or None
        None: one process.
    """
    total = np.array([max(more + resident(), peak())], np.int64)
    if comm is not None:
        from mpi4py import MPI

        machine = cast("Intracomm", comm.Split_type(MPI.COMM_TYPE_SHARED))
        total = allreduce_sum(total, machine)
        machine.Free()
    return Memory(int(total[0]), capacity())


def _size(number: int) -> str:
    """Number of bytes → text with a unit.

    Examples
    --------
    >>> _size(23_400_000_000), _size(850_000_000)
    ('23 GB', '0.85 GB')
    """
    return f"{number / 1e9:.2g} GB" if number < 1e11 else f"{number / 1e9:,.0f} GB"
