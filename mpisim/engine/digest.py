"""The digest of a run: one number that any number of processes must agree on.

Every communication of every rank, and every rank's end, gives a 128-bit hash; the digest is their
sum modulo 2^128. The order of a sum is free, so each process adds up its own ranks, and a folded
run multiplies by the number of ranks in a class. Numbers of ranks and communicators are therefore
no part of a hash: equivalent ranks have equal hashes.

A hash is two 64-bit words that differ in their seeds. A communication is hashed in two parts: the
columns of its table (kind, operation, bytes, position k), once for a table, and the outcome of the
run (group size, start, end). The compiled core has the second part in C, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..mpi.reductions import allreduce_sum
from ..program import Table

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "hash_communications",
    "hash_ends",
    "hash_rows",
    "hash_sizes",
    "hash_words",
    "mix",
    "summed",
    "summed_over_processes",
]

_LANES = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], np.uint64)
_SIZE_LANES = np.array([0x8CB92BA72F3D8DD7, 0xAAAAAAAAAAAAAAAB], np.uint64)
END_LANES = np.array([0x2545F4914F6CDD1D, 0xDA942042E4DD58B5], np.uint64)
"""Seeds of the hash of a rank's end."""


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit words: the finalizer of SplitMix64 (Steele, Lea, Flood 2014; bijective)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_rows(table: Table, rows: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Hash the columns of communication rows of a table.

    Parameters
    ----------
    table : Table
    rows : int32, shape (m,)
        Numbers of communication rows.

    Returns
    -------
    uint64, shape (m, 2)
    """
    return hash_words(
        table.kind[rows], table.operation[rows], table.bytes[rows], table.ordinal[rows]
    )


def hash_words(
    kind: NDArray[np.uint8],
    operation: NDArray[np.uint8],
    bytes: NDArray[np.int64],
    ordinal: NDArray[np.int32] | NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Hash the columns of a table that describe communications.

    Parameters
    ----------
    kind, operation : uint8, shape (m,)
    bytes : int64, shape (m,)
    ordinal : int32 or int64, shape (m,)
        Place of the operation among those of its slot.

    Returns
    -------
    uint64, shape (m, 2)
    """
    what = kind.astype(np.uint64) | (operation.astype(np.uint64) << np.uint64(8))
    state = np.tile(_LANES, (len(kind), 1))
    for word in (what, bytes.astype(np.uint64), ordinal.astype(np.uint64)):
        state = mix((state ^ word[:, None]) + _LANES)
    return state


def hash_sizes(sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash group sizes, shape (n,), to uint64 of shape (n, 2)."""
    return mix(sizes.astype(np.uint64)[:, None] ^ _SIZE_LANES)


def hash_communications(
    rows: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Complete the hashes of communications.

    Parameters
    ----------
    rows, sizes : uint64, shape (m, 2)
        From `hash_rows` and `hash_sizes`.
    start, end : int64, shape (m,)
        When the wire time began and ended, in ps.

    Returns
    -------
    uint64, shape (m, 2)
    """
    state = mix((rows + sizes) ^ start.astype(np.uint64)[:, None])
    return mix(state ^ end.astype(np.uint64)[:, None])


def hash_ends(end: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash the ends of ranks, shape (h,), to uint64 of shape (h, 2)."""
    return mix(end.astype(np.uint64)[:, None] ^ END_LANES)


def summed(hashes: NDArray[np.uint64]) -> int:
    """Return the sum modulo 2^128 of hashes of shape (m, 2), (low, high) words."""
    # Sums of 32-bit halves stay below 2^63 for 2^31 hashes.
    low = (hashes & np.uint64(0xFFFFFFFF)).sum(axis=0, dtype=np.int64).tolist()
    high = (hashes >> np.uint64(32)).sum(axis=0, dtype=np.int64).tolist()
    total = low[0] + (high[0] << 32) + (low[1] << 64) + (high[1] << 96)
    return int(total % (1 << 128))


def summed_over_processes(part: int, comm: Intracomm | None) -> str:
    """Return the digest, 32 hexadecimal digits, from each process's part.

    **Collective** on `comm`; with None, or one process, nothing is sent.

    Parameters
    ----------
    part : int
        Sum of this process's hashes modulo 2^128, as `summed`.
    comm : mpi4py.MPI.Intracomm or None
    """
    total = part
    if comm is not None and comm.size > 1:
        limbs = np.array([(part >> shift) & 0xFFFFFFFF for shift in (0, 32, 64, 96)], np.int64)
        total = sum(limb << (32 * i) for i, limb in enumerate(allreduce_sum(limbs, comm).tolist()))
    return f"{total % (1 << 128):032x}"
