"""The status of a run, for those who follow it: gathered here, written by the first process.

``mpisim … --monitor FILE`` starts a :class:`Monitor` on every process. On the first a thread writes
the status file (`mpisim.base.status_file`) about once a second, from what is there without asking
anybody: the phases that are under way (`phases`), and the figures of the engine. These the engine
leaves behind about once a second between two pieces of its work (:meth:`Monitor.look`); those of
other processes travel with the messages that it exchanges anyway (:meth:`Monitor.words`,
:meth:`Monitor.hear`). Nothing waits for the status, and no result depends on it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, OutputError
from ..base.machine_memory import UNLIMITED, capacity, peak, resident, resident_of
from ..base.status_file import (
    FORMAT,
    VERSION,
    check_status_file,
    read_status,
    this_host,
    timestamp,
    write_status,
)
from ..base.version import __version__

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Monitor"]

INTERVAL = 1.0
"""Seconds between two statuses, and between two looks at the engine."""

NOT_LOOKED = (int(np.iinfo(np.int64).max), int(np.iinfo(np.int64).min), -1, 0)
"""What a process tells the others of itself, before it has looked: times of its slowest and fastest
rank, links in use (-1 where none are simulated), resident bytes."""


PhaseStatus = Callable[[float], dict[str, Any]]


@dataclass
class _Run:
    """Sizes of the run that is simulated; None where they are not known."""

    ranks: int | None = None
    simulated: int | None = None
    links: int | None = None
    full: int | None = None


class Monitor:
    """The status of this process's run.

    Parameters
    ----------
    path : str or Path
        The status file, or a folder for it.
    command : str
        What was asked for.
    phase_status : callable
        Returns how the phase under way stands, at a time by `time.monotonic`: `Phases.status`.
    first : bool
        Whether this is the first process, which writes.
    processes : int

    Attributes
    ----------
    error : DestinationError or None
        On the first process, why the file cannot be written: nothing is started then.
    """

    def __init__(
        self,
        path: str | Path,
        command: str,
        phase_status: PhaseStatus,
        *,
        first: bool,
        processes: int,
    ) -> None:
        self.host, self.pid, self._phase_status = this_host(), os.getpid(), phase_status
        self.path, self.command, self.first, self.processes = path, command, first, processes
        self.rounds = self.passes = 0
        self._run = _Run()
        self._heard: NDArray[np.int64] = np.array([NOT_LOOKED], np.int64)
        self._own, self._looked = NOT_LOOKED, 0.0
        self._here: list[int] = [self.pid]  # processes on this machine
        self._elsewhere: list[int] = []  # numbers of those that are not
        self._peak = 0
        self._began, self._monotonic = time.time(), time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._state: tuple[str, int | None, str] = ("running", None, "")
        self._limit = 0
        self.error: OutputError | None = None
        if first:
            self._limit = capacity()
            try:
                self.target = check_status_file(path, self.host, self.pid)
                write_status(self.target, self.status())
            except OutputError as error:
                self.error = error
                return
            threading.Thread(target=self._keep_writing, daemon=True).start()

    def join(self, comm: Intracomm) -> None:
        """Learn which processes take part. **Collective.**

        Raises
        ------
        OutputError
            On all processes, if the status cannot be written.
        """
        error: OutputError | None = comm.bcast(self.error, root=0)
        if error is not None:
            raise error
        found = comm.allgather((self.host, self.pid))
        with self._lock:
            self.processes = comm.size
            self._here = [pid for host, pid in found if host == self.host]
            self._elsewhere = [i for i, (host, _) in enumerate(found) if host != self.host]

    # --- the engine -----------------------------------------------------------------------------

    def begin(self, ranks: int, simulated: int, links: int | None) -> None:
        """Note what is simulated from here on. Local.

        Parameters
        ----------
        ranks, simulated : int
            Ranks of the program; those that are simulated, one of each equivalence class.
        links : int or None
            Links that communications share; None where they share none.
        """
        self._run = _Run(ranks, simulated, links)
        self._own, self._looked = NOT_LOOKED, 0.0
        self._heard = np.array([NOT_LOOKED], np.int64)

    def begin_pass(self, full: int | None = None) -> None:
        """Note that ranks are run again from their beginning. Local.

        Parameters
        ----------
        full : int, optional
            Links that have been full at some time, as far as is known.
        """
        self.passes += 1
        self._run.full = full

    def look(self, core: Any, contended: bool, alone: bool) -> None:
        """Look how far ranks have come, if that is due. Local, and cheap if not.

        Parameters
        ----------
        core : Core
            Of the engine, while it does not run.
        contended : bool
            Whether it simulates links.
        alone : bool
            Whether this process has all ranks of the run, so that there is no one to hear.
        """
        now = time.monotonic()
        if now - self._looked < INTERVAL:
            return
        self._looked = now
        slowest, fastest = core.reached()
        in_use = core.n_links_in_use if contended else NOT_LOOKED[2]
        self._own = (slowest, fastest, in_use, resident())
        if alone:
            self._heard = np.array([self._own], np.int64)

    def words(self) -> NDArray[np.int64]:
        """Words of this process for the others: int64, shape (4,), as `NOT_LOOKED`."""
        return np.array(self._own, np.int64)

    def hear(self, notes: NDArray[np.int64]) -> None:
        """Take the words of all processes, int64, shape (processes, 4)."""
        self.rounds += 1
        self._heard = notes

    def end(self, slowest: int, fastest: int) -> None:
        """Note when the ranks of a run have ended, in ps. Local."""
        self._own = (slowest, fastest, *self._own[2:])
        self._heard = np.array([self._own], np.int64)

    # --- the status -----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return what is to be written: see docs/monitoring.md."""
        now = time.monotonic()
        state, code, error = self._state
        run, heard = self._run, self._heard
        slowest, fastest = int(heard[:, 0].min()), int(heard[:, 1].max())
        links = None
        if run.links is not None:
            used = heard[heard[:, 2] >= 0, 2]
            in_use = int(used.sum()) if len(used) else None
            links = {"total": run.links, "in_use": in_use, "full": run.full}
        return {
            "format": FORMAT,
            "version": VERSION,
            "mpisim": __version__,
            "command": self.command,
            "host": self.host,
            "pid": self.pid,
            "started": timestamp(self._began),
            "updated": timestamp(time.time()),
            "seconds": round(now - self._monotonic, 1),
            "state": state,
            "exit_code": code,
            "error": error,
            "phase": self._phase_status(now),
            "processes": self.processes,
            "ranks": run.ranks,
            "simulated_ranks": run.simulated,
            "rounds": self.rounds,
            "passes": self.passes,
            "time": {"slowest": slowest, "fastest": fastest} if slowest <= fastest else None,
            "links": links,
            "memory": self._memory(heard),
        }

    def _memory(self, heard: NDArray[np.int64]) -> dict[str, int | None]:
        held = sum(map(resident_of, self._here)) or resident()
        if len(heard) == self.processes:
            held += int(heard[self._elsewhere, 3].sum())
        own = peak() if len(self._here) == 1 else 0
        self._peak = max(self._peak, held, own)
        limit = self._limit if self._limit < UNLIMITED else None
        return {"resident": held, "peak": self._peak, "limit": limit}

    def finish(self, code: int, error: str) -> None:
        """Write the last status.

        On another process than the first, which fails while the first may be waiting inside MPI:
        add that to what the first has written.

        Parameters
        ----------
        code : int
            The exit code.
        error : str
            The line that is printed; empty if all is well.
        """
        if self.error is not None:
            return
        state = "failed" if code else "ended"
        if self.first:
            self._over.set()
            with self._lock:
                self._state = (state, code, error)
                self._write()
        elif code and not Path(self.path).is_dir():
            with suppress(InputError, OutputError):
                status = read_status(self.path)
                if status["state"] == "running":
                    status |= {"state": state, "exit_code": code, "error": error}
                    write_status(Path(os.path.realpath(self.path)), status)

    def _keep_writing(self) -> None:
        while not self._over.wait(INTERVAL):
            with self._lock:
                if not self._over.is_set():
                    self._write()

    def _write(self) -> None:
        with suppress(OutputError):  # a full disk: the run goes on, and the next second is tried
            write_status(self.target, self.status())
