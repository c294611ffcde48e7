"""Jobs → recordings: each rank runs in a fork of one process that has loaded PyTorch.

Loading PyTorch takes longer than most scripts do until they have shown a step (5 s), and a script
is run for two ranks and more. ``python -m mpisim.capture.rank_processes FD`` loads it, before
anything of a rank is known, and forks a process for each file of a `Job` that a line of its input
names; it writes the exit code of each to the file descriptor FD. ``multiprocessing``'s fork server
does not serve: its children load the main module of the parent, share its environment, and are
taken by scripts for workers of theirs.

When a process ends, for whatever reason, the kernel kills those that it has started
(``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from ..base.errors import InputError
from .job import Job
from .recording import Recording

__all__ = ["RankProcesses"]

_HIDDEN = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "MV2_", "JSM_", "CUDA_VISIBLE_DEVICES")
"""Beginnings of variables that scripts look at, of launchers and of this machine's GPUs."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class RankProcesses:
    """Runs ranks of scripts, one after another; a context manager, which ends what it has started.

    Parameters
    ----------
    show : bool
        Whether output of the scripts is shown.
    """

    def __init__(self, *, show: bool) -> None:
        self._show = show
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="mpisim-capture-")
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()
        self._folder.cleanup()

    def record(self, job: Job) -> Recording:
        """Run the script as the rank of `job` → its recording.

        Raises
        ------
        InputError
            With the line in which the script failed.
        """
        path = job.recording.with_name("job")
        job.save(path)
        code = self._run(path)
        if job.failure.exists():
            raise InputError(job.failure.read_text())
        if code or not job.recording.exists():
            raise InputError(
                f"{job.script}: the process of rank {job.rank} ended with code {code} and without "
                "a recording; --show-output shows what it wrote"
            )
        return Recording.load(job.recording)

    def _run(self, path: Path) -> int:
        """Have the server run the job of a file → the exit code, -N if signal N ended it."""
        server = self._server or self._started()
        assert server.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            server.stdin.write(b"%s\n" % os.fsencode(path))
            server.stdin.flush()
        return int(self._codes.readline() or self._end())

    def _end(self) -> int:
        """End the server, if there is one → its exit code; the next job starts another."""
        server, self._server = self._server, None
        if server is None:
            return 0
        server.kill()  # which leaves the code of one that has ended as it is
        assert server.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            server.stdin.close()
        self._codes.close()
        return server.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(_HIDDEN)
        }
        output = None if self._show else subprocess.DEVNULL
        reads, writes = os.pipe()
        self._codes = os.fdopen(reads, "rb")
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(writes)],
            env={
                "PYTHONHASHSEED": "0",  # sets of names are in the same order on all ranks
                **environment,
                **_scratch(self._folder.name),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(writes,),
        )
        os.close(writes)
        return self._server


def _scratch(folder: str) -> dict[str, str]:
    """Return the variables that name a folder for what libraries make when they are loaded."""
    return {"TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}


def _serve(codes: int) -> None:
    """Load PyTorch, then fork a process for each job; ends with the input."""
    _end_with(os.getppid())
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode()  # which loads the compiler, as long again as all else
    for line in sys.stdin.buffer:
        server = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            os.close(codes)
            _end_with(server)
            _become(Path(os.fsdecode(line.rstrip(b"\n"))))
        _, status = os.waitpid(child, 0)
        os.write(codes, b"%d\n" % os.waitstatus_to_exitcode(status))


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which has started it, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _become(path: Path) -> None:
    """Run the job of a file in this process, as if it had been started for it."""
    from .process import run_job

    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    job = Job.load(path)
    os.chdir(job.folder)
    os.environ |= _scratch(str(job.recording.parent))
    tempfile.tempdir = None  # else that of the parent
    run_job(job)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
