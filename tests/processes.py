"""Fewer processes, and ranks anywhere on them, for tests of any number of processes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpisim.program import Program

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["first", "shuffled"]


@contextmanager
def first(comm: Intracomm, n: int) -> Iterator[Intracomm | None]:
    """A communicator of the first n processes; None on the others."""
    from mpi4py import MPI

    part = comm.Split(0 if comm.rank < n else MPI.UNDEFINED, comm.rank)
    try:
        yield part if part != MPI.COMM_NULL else None
    finally:
        if part != MPI.COMM_NULL:
            part.Free()


def shuffled(program: Program, n: int, seed: int) -> list[int]:
    """A placement that puts each rank on any of n processes; some processes may get none."""
    rng = random.Random(seed)
    return [rng.randrange(n) for _ in range(program.n_ranks)]
