"""Idioms for code that every process runs: errors raised on all, progress shown on one.

Simulated ranks are called ranks elsewhere; here a rank is that of a process in its communicator.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import MpisimError
from .reductions import allreduce_min

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["collective_errors", "progress", "progress_is_shown"]


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
    comm: Intracomm, label: str, total: int = 0, *, interval: float = 0.5
) -> Iterator[Callable[[int], None]]:
    """Show how far a long run has come: on rank 0, on standard error, only for a person.

    Local. Nothing is written unless standard error is a terminal; nothing before the first
    `interval` has passed; and the line is wiped at the end. Under ``mpirun`` no rank sees the
    terminal, so the environment variable ``MPISIM_PROGRESS`` (1 or 0) overrides the test.

    The line says what is being done, the share of it where that is known, and the time since the
    outermost phase began; it moves on by itself while nothing is reported. How long is left is not
    said: equal shares do not take equal times, and which phases follow depends on the outcome.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Only its rank is looked at.
    label : str
        What is being done. Empty: this phase is shown as part of the one around it.
    total : int
        The value of `done` at the end; 0 if there is none.
    interval : float
        Seconds between two updates of the line.

    Yields
    ------
    callable
        ``update(done)``, cheap enough to be called once a round.
    """
    if comm.rank != 0 or not label or not progress_is_shown():
        yield _nothing
        return
    phase = _Phase(label, total)
    _line.enter(phase, interval)
    try:
        yield lambda done: _line.update(phase, done)
    finally:
        _line.leave(phase)


@dataclass
class _Phase:
    """What is being done."""

    label: str
    total: int
    done: int = 0

    def __str__(self) -> str:
        share = f": {min(self.done / self.total, 1.0):4.0%}" if self.total > 0 else ""
        return f"{self.label}{share}"


class _Line:
    """The line on the terminal: the innermost of the phases that are under way.

    A thread draws it again and again, so that it moves while the work itself has nothing to report.
    """

    def __init__(self) -> None:
        self.phases: list[_Phase] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None
        self.interval = self.begun = self.shown = 0.0
        self.width = 0

    def enter(self, phase: _Phase, interval: float) -> None:
        with self.lock:
            self.phases.append(phase)
            self.interval = interval
            if self.thread is None:
                self.begun = self.shown = time.monotonic()
                self.ended.clear()
                self.thread = threading.Thread(target=self._keep_drawing, daemon=True)
                self.thread.start()

    def update(self, phase: _Phase, done: int) -> None:
        phase.done = done
        if time.monotonic() - self.shown >= self.interval:
            with self.lock:
                self._draw()

    def leave(self, phase: _Phase) -> None:
        with self.lock:
            self.phases.remove(phase)
            if self.phases:
                return
            thread, self.thread = self.thread, None
            self.ended.set()
        if thread is not None:
            thread.join()
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()
            self.width = 0

    def _keep_drawing(self) -> None:
        while not self.ended.wait(max(self.interval, 0.05)):
            with self.lock:
                if self.phases and time.monotonic() - self.shown >= self.interval:
                    self._draw()

    def _draw(self) -> None:
        self.shown = time.monotonic()
        text = f"{self.phases[-1]}, {self.shown - self.begun:.0f} s"
        sys.stderr.write("\r" + text.ljust(self.width))
        sys.stderr.flush()
        self.width = len(text)


_line = _Line()  # standard error is one for the whole process, and so is its line


def progress_is_shown() -> bool:
    """Whether a person reads standard error: a terminal, or ``MPISIM_PROGRESS`` says so."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return (os.environ.get("MPISIM_PROGRESS") or ("1" if terminal else "0")) != "0"


def _nothing(done: int) -> None:
    """Take a progress update and show nothing."""
