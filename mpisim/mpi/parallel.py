"""Idioms for code that every process runs: errors raised on all, progress shown on one.

Simulated ranks are called ranks elsewhere; here a rank is that of a process in its communicator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..base.errors import MpisimError
from .phases import Phase, phases, way_shown
from .reductions import allreduce_min

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Update", "collective_errors", "progress"]


class Update(Protocol):
    """Shows how far a phase has come, and a note."""

    def __call__(self, done: float, note: str = "") -> None:
        """Show what is done, and words behind it."""


@contextmanager
def collective_errors(comm: Intracomm) -> Iterator[None]:
    """Run local code that may fail, and fail on all ranks if it failed on any.

    **Collective** at the end of the block. The code inside must not communicate on `comm`: a rank
    that fails leaves the block at once and waits for the others at its end. Errors other than
    :class:`MpisimError` are bugs: they leave at once, and the command line aborts.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks that enter the block. With one rank the block costs nothing.

    Raises
    ------
    MpisimError
        On every rank, the error of the lowest rank that raised one.

    Examples
    --------
    >>> with collective_errors(comm):           # doctest: +SKIP
    ...     trace = read(paths[comm.rank])
    """
    error: MpisimError | None = None
    try:
        yield
    except MpisimError as caught:
        if comm.size == 1:
            raise
        error = caught
    if comm.size == 1:
        return

    own = np.array([comm.size if error is None else comm.rank], np.int64)
    first = int(allreduce_min(own, comm)[0])
    if first == comm.size:
        return
    shared: MpisimError = comm.bcast(error, root=first)
    # The rank that failed raises its own object, which still has its traceback.
    raise error if error is not None and comm.rank == first else shared


@contextmanager
def progress(
    comm: Intracomm | None,
    label: str,
    total: float = 0,
    *,
    steady: bool = True,
    interval: float = 0.5,
) -> Iterator[Update]:
    """Show how far a long run has come: on process 0, on standard error.

    Local. On a terminal a line moves: nothing before the first `interval` has passed, and the line
    is wiped at the end. Elsewhere, in a log and under ``mpirun``, a line is added every minute
    after the first. The environment variable ``MPISIM_PROGRESS`` (1: the line that moves; 0:
    nothing) overrides. `mpisim.mpi.phases` has what the line says; a status file says it, too
    (`mpisim.mpi.monitor`).

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or None
        Only its rank is looked at; None: this process is the only one.
    label : str
        What is being done. Empty: this phase is shown as part of the one around it.
    total : float
        The value of `done` at the end; 0 if there is none.
    steady : bool
        Whether equal shares take about equal times. Then the time left is shown, of this phase
        or of the outermost one around it that has a total.
    interval : float
        Seconds between two updates of the line.

    Yields
    ------
    Update
        ``update(done)``, cheap enough to be called once a round; ``update(done, note)`` shows words
        behind the share, too.
    """
    if not label or (comm is not None and comm.rank != 0):
        yield _nothing
        return
    way = way_shown()
    if not way and phases.monitor is None:
        yield _nothing
        return
    phase = Phase(label, total, steady, time.monotonic())
    phases.enter(phase, way, interval)
    try:
        yield lambda done, note="": phases.update(phase, done, note)
    finally:
        phases.leave(phase)


def _nothing(done: float, note: str = "") -> None:
    """Take a progress update and show nothing."""
