"""Idioms for code that every rank runs: failing together, and showing progress once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from mpisim.errors import MpisimError
from mpisim.reductions import smallest

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["agreed", "progress"]


@contextmanager
def agreed(comm: Intracomm) -> Iterator[None]:
    """Run local code that may fail, and fail on all ranks if it failed on any.

    **Collective** at the end of the block. The code inside must not communicate on `comm`: a rank
    that fails leaves the block at once and waits for the others at its end. Errors other than
    :class:`~mpisim.errors.MpisimError` are bugs: they leave at once, and the command line aborts.

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
    >>> with agreed(comm):                      # doctest: +SKIP
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
    first = int(smallest(own, comm)[0])
    if first == comm.size:
        return
    shared: MpisimError = comm.bcast(error, root=first)
    # The rank that failed raises its own object, which still has its traceback.
    raise error if error is not None and comm.rank == first else shared


@contextmanager
def progress(
    comm: Intracomm, label: str, total: int, *, interval: float = 0.5
) -> Iterator[Callable[[int], None]]:
    """Show how far a long run has come: on rank 0, on standard error, only for a person.

    Local. Nothing is written unless standard error is a terminal; nothing before the first
    `interval` has passed; and the line is wiped at the end. Under ``mpirun`` no rank sees the
    terminal, so the environment variable ``MPISIM_PROGRESS`` (1 or 0) overrides the test.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Only its rank is looked at.
    label : str
        What is being done.
    total : int
        The value of `done` at the end.
    interval : float
        Seconds between two updates of the line.

    Yields
    ------
    callable
        ``update(done)``, cheap enough to be called once a round.
    """
    wanted = os.environ.get("MPISIM_PROGRESS") or ("1" if _terminal() else "0")
    if comm.rank != 0 or wanted == "0" or total <= 0:
        yield _nothing
        return

    begun = shown = time.monotonic()
    width = 0

    def update(done: int) -> None:
        nonlocal shown, width
        now = time.monotonic()
        if now - shown < interval:
            return
        shown = now
        share = min(done / total, 1.0)
        text = f"{label}: {share:4.0%}"
        if share > 0:
            text += f", {(now - begun) * (1 - share) / share:.0f} s left"
        sys.stderr.write("\r" + text.ljust(width))
        sys.stderr.flush()
        width = len(text)

    try:
        yield update
    finally:
        if width:
            sys.stderr.write("\r" + " " * width + "\r")
            sys.stderr.flush()


def _terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _nothing(done: int) -> None:
    """Take a progress update and show nothing."""
