"""Check before a run that members of a communicator issue the same sequence of operations.

The k-th operation on a communicator is the same operation for all its members, or the program is
wrong: a real run would hang or corrupt data. Ranks with one table have the same sequences, so the
check compares one hash for each (table, slot), and compares sequences only where hashes differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct
from ..base.errors import MatchError
from ..base.kinds import Operation
from ._core.columns import hashes_by_slot
from .program import Program
from .table import Table

__all__ = ["check_matching", "differing", "sequence", "signatures"]

_SIZES_MAY_DIFFER = np.isin(
    np.arange(256),
    (Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER, Operation.UNKNOWN),
)
"""Whether members may have different numbers of bytes, by `Operation`."""


def _sequences(table: Table, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return what members of a communicator must agree in, (operation, bytes) of some rows."""
    found = np.empty((len(rows), 2), np.int64)
    operation = found[:, 0] = table.operation[rows]
    found[:, 1] = np.where(_SIZES_MAY_DIFFER[operation], -1, table.bytes[rows])
    return found


def signatures(program: Program) -> NDArray[np.int64]:
    """Return length and hash of each local rank's sequence of operations on each communicator.

    Returns
    -------
    ndarray of int64, shape (n, 4)
        Rows (communicator, rank, number of operations, hash of the sequence of operations).
    """
    n_bound = np.diff(program.slot_index)
    owner = np.repeat(np.arange(program.n_ranks), n_bound)
    slot = np.arange(len(owner)) - program.slot_index[owner]
    widest = np.zeros(len(program.tables), np.int64)
    np.maximum.at(widest, program.table, n_bound)
    offset = np.cumsum(widest) - widest
    # Length and hash of the sequence of each (table held here, slot).
    sequences = np.zeros((int(widest.sum()), 2), np.int64)
    held = np.array([table is not None for table in program.tables], bool)
    for number in np.flatnonzero(held & (widest > 0)).tolist():
        table = program.tables[number]
        assert table is not None
        of_table = sequences[offset[number] : offset[number] + table.n_slots]
        of_table[:, 0] = table.operations
        of_table[:, 1] = hashes_by_slot(
            *(table.by_slot, table.operations, table.operation, table.bytes),
            _SIZES_MAY_DIFFER.view(np.uint8),
        )
    here = held[program.table[owner]]
    owner, slot = owner[here], slot[here]
    count, digests = sequences[offset[program.table[owner]] + slot].T
    # Each column by itself in memory: there may be a million rows.
    return np.stack([program.slots[here].astype(np.int64), owner, count, digests]).T


def differing(found: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the (communicator, rank) pairs whose sequences must be compared entry by entry.

    These are all members of communicators on which sequences of one length have different hashes:
    they may differ only in sizes that are unknown to some members.

    Parameters
    ----------
    found : ndarray, shape (n, 4)
        The `signatures` of all ranks.
    """
    found = found[np.lexsort((found[:, 1], found[:, 0]))]
    same = found[1:, 0] == found[:-1, 0]
    unlike = np.unique(found[1:][same & (found[1:, 3] != found[:-1, 3]), 0])
    return [(c, r) for c, r in found[np.isin(found[:, 0], unlike), :2].tolist()]


def check_matching(
    program: Program,
    found: NDArray[np.int64] | None = None,
    sequences: Mapping[tuple[int, int], NDArray[np.int64]] | None = None,
) -> None:
    """Refuse a program whose communicators have members with different sequences of operations.

    Parameters
    ----------
    program : Program
    found : ndarray, shape (n, 4), optional
        The `signatures` of all ranks, when this process does not hold all tables.
    sequences : mapping of (communicator, rank) to ndarray, optional
        The `sequence` of each pair in `differing`, when this process does not hold all tables.

    Raises
    ------
    MatchError
        Naming the communicator, the ranks that differ and the first operation where they do.
    """
    found = signatures(program) if found is None else found
    if _all_agree(program, found):
        return
    found = found[np.lexsort((found[:, 1], found[:, 0]))]
    groups = program.communicators
    active = distinct(found[found[:, 2] > 0, 0])
    bound = np.bincount(found[:, 0], minlength=len(groups))
    for c in active[bound[active] != groups.sizes[active]].tolist():
        present = set(found[found[:, 0] == c, 1].tolist())
        absent = [rank for rank in groups.group(c) if rank not in present]
        raise MatchError(
            f"{_where(program, c)}: rank {min(present)} communicates on it, but "
            f"rank {absent[0]} is a member without any operation on it"
        )
    longer = (found[1:, 0] == found[:-1, 0]) & (found[1:, 2] != found[:-1, 2])
    if longer.any():
        at = int(np.argmax(longer))
        (c, first, n_first, _), (_, other, n_other, _) = found[at : at + 2].tolist()
        raise MatchError(
            f"{_where(program, c)}: rank {first} does {n_first} operations on it, "
            f"rank {other} {n_other}"
        )
    pairs = differing(found)
    if sequences is None:
        sequences = {(c, rank): sequence(program, rank, c) for c, rank in pairs}
    for c, members in groupby(pairs, key=lambda pair: pair[0]):
        _compare(program, c, {rank: sequences[c, rank] for _, rank in members})


def _all_agree(program: Program, found: NDArray[np.int64]) -> bool:
    """Return whether all members of every communicator in use have equal signatures, as a rule."""
    sizes = program.communicators.sizes
    group, _, *columns = found.T
    bound = np.bincount(group, minlength=len(sizes))
    active = group[columns[0] > 0]
    if (bound[active] != sizes[active]).any():
        return False
    for column in columns:
        of_one = np.zeros(len(sizes), np.int64)
        of_one[group] = column  # of one member each
        if (of_one[group] != column).any():
            return False
    return True


def _compare(program: Program, c: int, of_rank: dict[int, NDArray[np.int64]]) -> None:
    """Raise unless all sequences agree but for unknown sizes."""
    ranks = list(of_rank)
    agreed = of_rank[ranks[0]].copy()
    size_from = np.full(len(agreed), ranks[0])  # the first rank with a known size
    for rank in ranks[1:]:
        own = of_rank[rank]
        known = (agreed[:, 1] >= 0) & (own[:, 1] >= 0)
        differ = (agreed[:, 0] != own[:, 0]) | (known & (agreed[:, 1] != own[:, 1]))
        if differ.any():
            k = int(np.argmax(differ))
            texts = [f"{Operation(int(s[k, 0])).name} of {_size(s[k, 1])}" for s in (agreed, own)]
            raise MatchError(
                f"{_where(program, c)}, operation {k}: rank {size_from[k]} has {texts[0]}, "
                f"rank {rank} has {texts[1]}"
            )
        new = (agreed[:, 1] < 0) & (own[:, 1] >= 0)
        agreed[new], size_from[new] = own[new], rank


def sequence(program: Program, rank: int, communicator: int) -> NDArray[np.int64]:
    """Return a local rank's sequence of (operation, bytes) on a communicator; shape (k, 2).

    Parameters
    ----------
    program : Program
        Whole, or partial with the rank's table.
    rank : int
    communicator : int
        One that the rank binds to a slot.

    Returns
    -------
    int64, shape (k, 2)
        Bytes are -1 where they are unknown or may differ between members.
    """
    slot = int(np.flatnonzero(program.slots_of(rank) == communicator)[0])
    table = program.table_of(rank)
    return _sequences(table, table.rows_on(slot))


def _where(program: Program, communicator: int) -> str:
    return f"communicator {communicator} ({program.communicators.names[communicator]})"


def _size(size: int) -> str:
    return f"{size} bytes" if size >= 0 else "unknown size"
