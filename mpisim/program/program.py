"""Programs: tables, the ranks that execute them, and their communicators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.array_keys import fingerprint
from ..base.errors import ProgramError
from ..base.frozen import frozen
from ..base.kinds import Kind
from .table import Table

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["KEPT_STEP", "RANK_COLUMNS", "Communicators", "Jitter", "Names", "Program", "gather"]

KEPT_STEP = "captured step"
"""Attribute of a program that was captured on one rank: its calls, with shapes, as a text that
`mpisim.capture.kept_step` writes and `mpisim extrapolate` reads. Results leave it out."""

RANK_COLUMNS: dict[str, type] = {
    "table": np.int32,
    "slot_index": np.int64,
    "slots": np.int32,
    "speed": np.float64,
    "start": np.int64,
}
"""Arrays of a `Program` that bind ranks to tables and communicators, with their types."""

PAIR_POSITIONS = ((Kind.SEND, 0), (Kind.RECV, 1))
"""Position of the sender and of the receiver in the communicator of a point-to-point pair."""

MAX_SPREAD = 1.0
"""Largest spread of jitter: one standard deviation is then a factor of 2.7."""


class Names:
    """Row names and their numbers; every distinct text is kept once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


@frozen
class Jitter:
    """Random factors on the durations of KERNEL and COPY rows, independent of each other.

    Attributes
    ----------
    spread : float
        Standard deviation of the logarithm of the factor, which is lognormal with mean 1.
    seed : int
        The same seed gives the same factors, for any number of processes.

    Raises
    ------
    ProgramError
        For a spread outside 0 to 1 or a seed outside 64 bits.
    """

    spread: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.spread) and 0 <= self.spread <= MAX_SPREAD):
            raise ProgramError(f"jitter: spread is {self.spread}; allowed is 0 to {MAX_SPREAD:g}")
        if not 0 <= self.seed < 1 << 64:
            raise ProgramError(f"jitter: seed is {self.seed}; allowed is 0 to 2^64 - 1")


@frozen(eq=False)
class Communicators:
    """Ordered groups of global ranks, stored as one array with an index.

    Attributes
    ----------
    index : int64, shape (n + 1,)
        Communicator ``c`` has the members ``members[index[c]:index[c + 1]]``.
    members : int32
        Global ranks, in the communicator's own order. A communicator that carries SEND and RECV
        has exactly two members: the sender, then the receiver.
    names : sequence of str
        One name a communicator, for reports.
    """

    index: NDArray[np.int64]
    members: NDArray[np.int32]
    names: Sequence[str]

    def __post_init__(self) -> None:
        for column, dtype in (("index", np.int64), ("members", np.int32)):
            values = np.ascontiguousarray(getattr(self, column), dtype=dtype)
            values.setflags(write=False)
            object.__setattr__(self, column, values)
        if len(self.index) != len(self.names) + 1 or self.index[0] != 0:
            raise ProgramError(
                f"communicators: {len(self.names)} names but an index of {len(self.index)}"
            )
        if self.index[-1] != len(self.members) or (np.diff(self.index) < 1).any():
            raise ProgramError("communicators: every communicator needs one member or more")

    @classmethod
    def of(
        cls, groups: Iterable[Sequence[int]], names: Iterable[str] | None = None
    ) -> Communicators:
        """Build from a sequence of member sequences.

        Parameters
        ----------
        groups : iterable of sequences of int
            Global ranks of each, in the communicator's own order.
        names : iterable of str, optional
            One for each; by default ``group 0``, ``group 1`` and so on.

        Examples
        --------
        >>> Communicators.of([(0, 1), (2, 3)]).group(1)
        (2, 3)
        """
        groups = [tuple(group) for group in groups]
        index = np.concatenate([[0], np.cumsum([len(group) for group in groups], dtype=np.int64)])
        members = np.array([rank for group in groups for rank in group], np.int32)
        names = tuple(f"group {c}" for c in range(len(groups))) if names is None else tuple(names)
        return cls(index, members, names)

    def __len__(self) -> int:
        return len(self.index) - 1

    @cached_property
    def digest(self) -> bytes:
        """Members of all → their digest, a key for what depends on these alone."""
        return fingerprint(self.index, self.members)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of members of each communicator."""
        return np.diff(self.index)

    def group(self, communicator: int) -> tuple[int, ...]:
        """Return the members of one communicator."""
        return tuple(self.members[self.index[communicator] : self.index[communicator + 1]].tolist())


@dataclass(frozen=True, eq=False)
class Program:
    """Input of the engine: tables of rows, the ranks that execute them, and communicators.

    A rank is a table, a binding of the table's communicator slots to communicators, a speed and a
    start time. Tables may be shared by any number of ranks.

    A program read by several processes may be *partial*: each process then holds only the tables
    of its own ranks, the others are None; everything else is the same on every process.

    Attributes
    ----------
    names : tuple of str
        Names of rows; `Table.name` indexes it. In a partial program each process has its own.
    tables : tuple of Table or None
    communicators : Communicators
    table : int32, shape (n_ranks,)
        The table of each rank.
    slot_index : int64, shape (n_ranks + 1,)
    slots : int32
        Rank ``r`` binds slot ``s`` to communicator ``slots[slot_index[r] + s]``.
    speed : float64, shape (n_ranks,)
        Durations of a rank's KERNEL and COPY rows are divided by its speed.
    start : int64, shape (n_ranks,)
        When the rank's host starts, in ps.
    jitter : Jitter, optional
        Random factors on KERNEL and COPY rows, another for each row of each rank.
    attributes : mapping of str to str
        Where the program came from; free text for reports.
    checked : Program, optional
        Only for the constructor: a program that passed the checks. If this one differs from it in
        durations alone, communicators, bindings and tables are not checked again.

    Raises
    ------
    ProgramError
        When the parts do not fit together; the message names the rank or communicator.
    """

    names: tuple[str, ...]
    tables: tuple[Table | None, ...]
    communicators: Communicators
    table: NDArray[np.int32]
    slot_index: NDArray[np.int64]
    slots: NDArray[np.int32]
    speed: NDArray[np.float64]
    start: NDArray[np.int64]
    jitter: Jitter | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    checked: InitVar[Program | None] = None

    def __post_init__(self, checked: Program | None) -> None:
        for column, dtype in RANK_COLUMNS.items():
            values: NDArray[Any] = np.ascontiguousarray(getattr(self, column), dtype=dtype)
            values.setflags(write=False)
            object.__setattr__(self, column, values)
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "tables", tuple(self.tables))
        _check_parts(self)
        if checked is None or not _same_bindings(self, checked):
            _check_bindings(self)
        elif "operation_bits" in vars(checked):  # nothing of these depends on durations
            vars(self)["operation_bits"] = vars(checked)["operation_bits"]

    @property
    def n_ranks(self) -> int:
        """Number of simulated ranks."""
        return len(self.table)

    @property
    def is_partial(self) -> bool:
        """Whether some tables are held by other processes."""
        return any(table is None for table in self.tables)

    def table_of(self, rank: int) -> Table:
        """Return the table of a rank.

        Raises
        ------
        ProgramError
            If another process holds it.
        """
        table = self.tables[self.table[rank]]
        if table is None:
            raise ProgramError(f"rank {rank}: its table is held by another process")
        return table

    def slots_of(self, rank: int) -> NDArray[np.int32]:
        """Return the communicator of each slot of a rank."""
        return self.slots[self.slot_index[rank] : self.slot_index[rank + 1]]

    @cached_property
    def n_rows(self) -> int:
        """Rows over all ranks whose tables are held here."""
        return sum(
            len(t) * n for t, n in zip(self.tables, self._uses, strict=True) if t is not None
        )

    @cached_property
    def operation_bits(self) -> NDArray[np.int64]:
        """Operations on each communicator, by tables held here: the sum of 1 << `Operation`."""
        found = np.zeros(len(self.communicators), np.int64)
        counts = np.diff(self.slot_index)
        of_table = np.zeros((len(self.tables), int(counts.max(initial=0))), np.int64)
        for number, table in enumerate(self.tables):
            if table is not None:
                of_table[number, : table.n_slots] = table.operation_bits[: of_table.shape[1]]
        owner = np.repeat(np.arange(self.n_ranks), counts)
        slot = np.arange(len(owner)) - self.slot_index[owner]
        np.bitwise_or.at(found, self.slots, of_table[self.table[owner], slot])
        found.setflags(write=False)
        return found

    @cached_property
    def _uses(self) -> list[int]:
        return np.bincount(self.table, minlength=len(self.tables)).tolist()

    def replace(self, **parts: object) -> Program:
        """Return a copy with some attributes changed."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Program(**{**values, **parts}, checked=self)


def gather(program: Program, comm: Intracomm) -> Program | None:
    """Partial program → whole program on process 0, with the tables of all processes.

    **Collective.**

    Parameters
    ----------
    program : Program
        Whole or partial; names may differ between processes.
    comm : mpi4py.MPI.Intracomm
        The processes that hold it.

    Returns
    -------
    Program or None
        The whole program on process 0; None on the others. A table that several processes hold
        is taken from the first.
    """
    if comm.size == 1:
        return program
    held = {n: table for n, table in enumerate(program.tables) if table is not None}
    parts = comm.gather((program.names, held), root=0)
    if parts is None:
        return None
    names = Names()
    tables: list[Table | None] = [None] * len(program.tables)
    for own_names, own_tables in parts:
        number = np.array([names[text] for text in own_names], np.int32)
        for n, table in own_tables.items():
            if tables[n] is None:
                tables[n] = table.replace(name=number[table.name])
    return program.replace(names=tuple(names), tables=tuple(tables))


def _check_parts(program: Program) -> None:
    """Refuse arrays whose shapes or values do not fit together; bindings are checked elsewhere."""
    n = program.n_ranks
    if n == 0:
        raise ProgramError("a program needs one rank or more")
    for column, length in (("slot_index", n + 1), ("speed", n), ("start", n)):
        if len(getattr(program, column)) != length:
            raise ProgramError(
                f"{column!r} has {len(getattr(program, column))} entries; {n} ranks need {length}"
            )
    bad = (program.table < 0) | (program.table >= len(program.tables))
    if bad.any():
        rank = int(np.argmax(bad))
        raise ProgramError(
            f"rank {rank}: table {program.table[rank]} does not exist "
            f"(there are {len(program.tables)})"
        )
    bad = ~(np.isfinite(program.speed) & (program.speed > 0))
    if bad.any():
        rank = int(np.argmax(bad))
        raise ProgramError(f"rank {rank}: speed is {program.speed[rank]}; it must be above 0")
    for table in program.tables:
        if (
            table is not None
            and len(table)
            and not 0 <= table.name.min() <= table.name.max() < len(program.names)
        ):
            raise ProgramError(
                f"table {table.label!r}: a row's name is not one of the {len(program.names)} names"
            )


def _same_bindings(program: Program, other: Program) -> bool:
    """Whether ranks bind the same communicators, in tables that differ in durations alone."""
    parts = ("communicators", "slot_index", "slots")
    if any(getattr(program, part) is not getattr(other, part) for part in parts):
        return False
    if len(program.table) != len(other.table):
        return False
    numbers: dict[Table | None, int] = {}
    own, others = (
        np.array(
            [
                numbers.setdefault(None if table is None else table.structure, len(numbers))
                for table in each.tables
            ]
        )[each.table]
        for each in (program, other)
    )
    return bool((own == others).all())


def _check_bindings(program: Program) -> None:
    """Refuse ranks bound to communicators that do not exist or that they are no member of."""
    n, groups, slots = program.n_ranks, program.communicators, program.slots
    bad = (slots < 0) | (slots >= len(groups))
    owner = np.repeat(np.arange(n), np.diff(program.slot_index))
    if len(owner) != len(slots):
        raise ProgramError(f"slot_index ends at {len(owner)}, but there are {len(slots)} slots")
    if bad.any():
        at = int(np.argmax(bad))
        raise ProgramError(
            f"rank {owner[at]}, slot {at - program.slot_index[owner[at]]}: unknown communicator "
            f"{slots[at]} (there are {len(groups)})"
        )
    bad = (groups.members < 0) | (groups.members >= n)
    if bad.any():
        at = int(np.argmax(bad))
        c = int(np.searchsorted(groups.index, at, side="right")) - 1
        raise ProgramError(
            f"communicator {c} ({groups.names[c]}): member {groups.members[at]} is not one of the "
            f"{n} ranks"
        )
    member_of = np.repeat(np.arange(len(groups), dtype=np.int64), groups.sizes)
    membership = np.sort(member_of * n + groups.members)
    if (membership[1:] == membership[:-1]).any():
        c, rank = divmod(int(membership[:-1][membership[1:] == membership[:-1]][0]), n)
        raise ProgramError(f"communicator {c} ({groups.names[c]}): rank {rank} is in it twice")
    bound = slots.astype(np.int64) * n + owner
    if len(bound) == len(membership) and (np.sort(bound) == membership).all():
        _check_pairs(program)  # every member binds each of its communicators once
        return
    missing = np.append(membership, -1)[np.searchsorted(membership, bound)] != bound
    if missing.any():
        at = int(np.argmax(missing))
        raise ProgramError(
            f"rank {owner[at]} is bound to communicator {slots[at]} "
            f"({groups.names[slots[at]]}), but is not a member"
        )
    bound = np.sort(bound)
    twice = bound[1:][bound[1:] == bound[:-1]]
    if len(twice):
        c, rank = divmod(int(twice[0]), n)
        raise ProgramError(f"rank {rank} binds two slots to communicator {c} ({groups.names[c]})")
    _check_pairs(program)


def _check_pairs(program: Program) -> None:
    """Refuse ranks with too few slots, or SEND and RECV on anything but an ordered pair."""
    for rank in _unpaired(program)[:1].tolist():
        table = program.tables[program.table[rank]]
        assert table is not None
        _refuse_pairs(program, rank, table)


def _unpaired(program: Program) -> NDArray[np.intp]:
    """Return the ranks that `_check_pairs` refuses, ascending."""
    groups, n_bound = program.communicators, np.diff(program.slot_index)
    n_slots = np.array([0 if table is None else table.n_slots for table in program.tables])
    bad = n_bound < n_slots[program.table]
    # The kinds on the slots of all tables; if all ranks have too few slots for a table, its slots
    # may be any numbers, and nothing is counted by slot.
    most = n_bound.max()
    kinds = [
        np.zeros(0, np.int64) if table is None or table.n_slots > most else table.kind_bits
        for table in program.tables
    ]
    first = np.cumsum([0, *map(len, kinds)])
    owner = np.repeat(np.arange(program.n_ranks), n_bound)
    slot = np.arange(len(owner)) - program.slot_index[owner]
    (used,) = np.nonzero((slot < n_slots[program.table[owner]]) & ~bad[owner])
    owner, bound = owner[used], program.slots[used]
    kind = np.concatenate(kinds)[first[program.table[owner]] + slot[used]]
    for each, position in PAIR_POSITIONS:
        (at,) = np.nonzero(kind >> int(each) & 1)
        of_two = groups.sizes[bound[at]] == 2
        bad[owner[at[~of_two]]] = True
        at = at[of_two]
        there = groups.members[groups.index[bound[at]] + position]
        bad[owner[at[there != owner[at]]]] = True
    return np.flatnonzero(bad)


def _refuse_pairs(program: Program, rank: int, table: Table) -> None:
    """Raise the error of a rank of `_unpaired`: too few slots, or no ordered pair."""
    bound = program.slots_of(rank)
    if table.n_slots > len(bound):
        raise ProgramError(
            f"rank {rank}: table {table.label!r} uses {table.n_slots} communicator slots, "
            f"{len(bound)} are bound"
        )
    for kind, position in PAIR_POSITIONS:
        for slot in np.flatnonzero(table.kind_bits >> int(kind) & 1).tolist():
            group = program.communicators.group(int(bound[slot]))
            if len(group) != 2 or group[position] != rank:
                raise ProgramError(
                    f"rank {rank}, slot {slot}: {kind.name} needs a communicator of two ranks, "
                    f"sender first; communicator {bound[slot]} is {group}"
                )
