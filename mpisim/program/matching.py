"""Do the communications of all ranks match? Checked before anything is simulated.

The k-th operation on a communicator is the same operation for all its members, or the program is
wrong: a real run would hang or corrupt data. Ranks that share a table share its sequences, so the
check compares one hash for each (table, slot), and looks closer only where hashes differ.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from ..errors import MatchError
from .kinds import Operation
from .program import Program
from .table import Table

__all__ = ["check_matching", "signatures"]

_SIZES_MAY_DIFFER = (Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER, Operation.UNKNOWN)
"""Operations in which each member may bring another number of bytes."""


def _sequence(table: Table, slot: int) -> NDArray[np.int64]:
    """What a table does on a slot: (operation, bytes) a communication, shape (k, 2)."""
    rows = np.flatnonzero(table.slot == slot)
    size = table.bytes[rows].copy()
    size[np.isin(table.operation[rows], _SIZES_MAY_DIFFER)] = -1
    return np.stack([table.operation[rows].astype(np.int64), size], axis=1)


def signatures(program: Program) -> NDArray[np.int64]:
    """Return what each rank held here does on each of its communicators.

    Returns
    -------
    ndarray of int64, shape (n, 4)
        Rows (communicator, rank, number of operations, hash of the sequence of operations).
    """
    known: dict[tuple[int, int], tuple[int, int]] = {}
    rows = []
    for rank in range(program.n_ranks):
        number = int(program.table[rank])
        table = program.tables[number]
        if table is None:
            continue
        for slot, communicator in enumerate(program.slots_of(rank).tolist()):
            if (number, slot) not in known:
                sequence = _sequence(table, slot)
                digest = hashlib.blake2b(sequence.tobytes(), digest_size=8).digest()
                known[number, slot] = (len(sequence), int.from_bytes(digest, "little", signed=True))
            rows.append((communicator, rank, *known[number, slot]))
    return np.array(rows, np.int64).reshape(-1, 4)


def check_matching(program: Program, found: NDArray[np.int64] | None = None) -> None:
    """Refuse a program in which members of a communicator disagree.

    Parameters
    ----------
    program : Program
    found : ndarray, shape (n, 4), optional
        The `signatures` of all ranks, when this process does not hold all tables.

    Raises
    ------
    MatchError
        Naming the communicator, the ranks that differ and the first operation where they do.
    """
    found = signatures(program) if found is None else found
    found = found[np.lexsort((found[:, 1], found[:, 0]))]
    groups = program.communicators
    active = np.unique(found[found[:, 2] > 0, 0])
    bound = np.bincount(found[:, 0], minlength=len(groups))
    for c in active[bound[active] != groups.sizes[active]].tolist():
        present = set(found[found[:, 0] == c, 1].tolist())
        absent = [rank for rank in groups.group(c) if rank not in present]
        raise MatchError(
            f"communicator {c} ({groups.names[c]}): rank {min(present)} communicates on it, but "
            f"rank {absent[0]} is a member without any operation on it"
        )
    same = (found[1:, 0] == found[:-1, 0]) & (found[1:, 2:] != found[:-1, 2:]).any(axis=1)
    for at in np.flatnonzero(same):
        communicator, first, other = int(found[at, 0]), int(found[at, 1]), int(found[at + 1, 1])
        _compare(program, communicator, first, other, found[at, 2], found[at + 1, 2])


def _compare(
    program: Program, communicator: int, first: int, other: int, n_first: int, n_other: int
) -> None:
    """Raise unless two members' sequences agree but for unknown sizes."""
    where = f"communicator {communicator} ({program.communicators.names[communicator]})"
    if n_first != n_other:
        raise MatchError(
            f"{where}: rank {first} does {n_first} operations on it, rank {other} {n_other}"
        )
    if not (program.holds(first) and program.holds(other)):
        raise MatchError(f"{where}: the operations of ranks {first} and {other} differ")
    a, b = (_sequence_of(program, rank, communicator) for rank in (first, other))
    known = (a[:, 1] >= 0) & (b[:, 1] >= 0)
    differ = (a[:, 0] != b[:, 0]) | (known & (a[:, 1] != b[:, 1]))
    if differ.any():
        k = int(np.argmax(differ))
        said = [f"{Operation(int(s[k, 0])).name} of {s[k, 1]} bytes" for s in (a, b)]
        raise MatchError(
            f"{where}, operation {k}: rank {first} has {said[0]}, rank {other} has {said[1]}"
        )


def _sequence_of(program: Program, rank: int, communicator: int) -> NDArray[np.int64]:
    slot = int(np.flatnonzero(program.slots_of(rank) == communicator)[0])
    return _sequence(program.table_of(rank), slot)
