"""Number of processes and work done → advice where fewer would have been as fast."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ..base.text import counted
from ..mpi.phases import progress_is_shown

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["advise"]

MIN_SHARED_WORK = 1.0
"""Seconds of work of all processes below which sharing does not pay: starting a process and
building the program takes most of a second of CPU time in each."""


def advise(comm: Intracomm, seconds: float, parts: int, of: str) -> None:
    """Print one line if fewer processes would have been as fast. **Collective.**

    Nothing is printed unless standard error is a terminal (see
    `mpisim.mpi.phases`).

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    seconds : float
        Wall-clock time of the work that processes share, on process 0.
    parts : int
        Largest number of processes that can share it.
    of : str
        What one of those parts is, for the message.
    """
    if comm.size == 1:
        return
    cores = _cores(comm)
    if comm.rank == 0 and progress_is_shown():
        note = advice(comm.size, cores, seconds, parts, of)
        if note:
            print(f"mpisim: note: {note}", file=sys.stderr)


def advice(processes: int, cores: int, seconds: float, parts: int, of: str) -> str:
    """Return why fewer processes would have been as fast; empty if they would not.

    Parameters
    ----------
    processes : int
    cores : int
        Cores the processes may run on, of all machines.
    seconds, parts, of
        See `advise`.
    """
    if processes > cores:
        return f"{processes} processes take turns on {cores} cores; {cores} or fewer are faster"
    if processes > parts:
        return f"{processes} processes share {counted(parts, of)} to simulate; more do not help"
    if seconds * processes < MIN_SHARED_WORK:
        return (
            f"the work that {processes} processes share took {seconds:.1f} s; one process is as "
            "fast (docs/scale.md)"
        )
    return ""


def _cores(comm: Intracomm) -> int:
    """Return how many cores the processes may run on, of all machines. **Collective.**"""
    # One that is bound to a core sees that one alone: what all of a machine see counts.
    found = comm.allgather((os.uname().nodename, os.sched_getaffinity(0)))
    return len({(name, core) for name, cores in found for core in cores})
