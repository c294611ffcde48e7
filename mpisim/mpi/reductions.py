"""Reductions over processes that give the same on every MPI and for any number of processes.

The only place where values of several processes become one. What may be reduced is narrow on
purpose: 64-bit signed integers by sum, largest and smallest. MPI libraries differ in the
rest: Open MPI 4.1 compares unsigned integers as if they were signed, and a sum of floating point
numbers depends on the order of the processes. Unsigned words are therefore added in halves.

All functions are **collective** on the communicator; with None, or with one process, nothing is
sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "allreduce_any",
    "allreduce_max",
    "allreduce_min",
    "allreduce_sum",
    "allreduce_sum_whole",
    "allreduce_sum_words",
]

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def allreduce_sum(values: NDArray[np.int64], comm: Intracomm | None) -> NDArray[np.int64]:
    """Add up the values of all processes, element by element. **Collective.**

    Parameters
    ----------
    values : int64, any shape
        The shape is the same on all processes.
    comm : mpi4py.MPI.Intracomm or None

    Returns
    -------
    int64, same shape
    """
    return _reduced(values, "SUM", comm)


def allreduce_max(values: NDArray[np.int64], comm: Intracomm | None) -> NDArray[np.int64]:
    """Return the largest values of all processes, element by element. **Collective.**

    See `allreduce_sum` for the arguments.
    """
    return _reduced(values, "MAX", comm)


def allreduce_min(values: NDArray[np.int64], comm: Intracomm | None) -> NDArray[np.int64]:
    """Return the smallest values of all processes, element by element. **Collective.**

    See `allreduce_sum` for the arguments.
    """
    return _reduced(values, "MIN", comm)


def allreduce_any(here: bool, comm: Intracomm | None) -> bool:
    """Say whether something is so on any process. **Collective.**

    Parameters
    ----------
    here : bool
        Whether it is so on this process.
    comm : mpi4py.MPI.Intracomm or None
    """
    return bool(allreduce_max(np.array([here], np.int64), comm)[0])


def allreduce_sum_words(words: NDArray[np.uint64], comm: Intracomm | None) -> NDArray[np.uint64]:
    """Add up the words of all processes modulo 2^64, as `allreduce_sum`. **Collective.**

    Parameters
    ----------
    words : uint64, any shape
    comm : mpi4py.MPI.Intracomm or None

    Returns
    -------
    uint64, same shape
    """
    if words.dtype != np.uint64:
        raise TypeError(f"words are uint64, not {words.dtype}")
    if comm is None or comm.size == 1:
        return words
    # A sum of halves stays below 2^63 for 2^31 processes.
    halves = np.stack([words & _LOW, words >> _HALF]).astype(np.int64)
    low, high = allreduce_sum(halves, comm).astype(np.uint64)
    found: NDArray[np.uint64] = low + (high << _HALF)
    return found


def allreduce_sum_whole(values: NDArray[np.object_], comm: Intracomm | None) -> NDArray[np.object_]:
    """Add up whole numbers of any size of all processes, as `allreduce_sum`. **Collective.**

    Parameters
    ----------
    values : int, any shape
        Below 2^94 in size.
    comm : mpi4py.MPI.Intracomm or None

    Returns
    -------
    int, same shape
    """
    if comm is None or comm.size == 1:
        return values
    # A sum of halves stays below 2^63 for 2^31 processes.
    halves = np.stack([values & int(_LOW), values >> int(_HALF)]).astype(np.int64)
    low, high = allreduce_sum(halves, comm).astype(object)
    found: NDArray[np.object_] = low + (high << int(_HALF))
    return found


def _reduced(
    values: NDArray[np.int64], operation: Literal["SUM", "MAX", "MIN"], comm: Intracomm | None
) -> NDArray[np.int64]:
    if values.dtype != np.int64:
        raise TypeError(f"int64 is reduced, not {values.dtype}")
    if comm is None or comm.size == 1:
        return values
    from mpi4py import MPI  # there is a communicator, so this is loaded already

    found = np.empty(values.shape, np.int64)
    comm.Allreduce(np.ascontiguousarray(values), found, op=getattr(MPI, operation))
    return found
