"""Faults while a command runs: killed ranks, signals, full and read-only disks → how it ended.

Each of `EVENTS` is called with the name of an MPI, its ``mpirun``, the environment and a folder,
and returns an `FaultResult`. Disks are small file systems in memory, which take root to mount.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

__all__ = ["EVENTS", "FaultResult"]

TIMEOUT = 60.0
RUN = [
    "run",
    "echo-gpt3-175b-1024-h800",
    "--set",
    "variation.kernels=0.02",
    "--seeds",
    "2000",
    "-o",
    "r.h5",
]
"""Runs for minutes."""


@dataclass(frozen=True)
class FaultResult:
    """How a command ended.

    Attributes
    ----------
    fault, mpi : str
    code : int
        Negative for a signal, as Python counts.
    seconds : float
        From the fault to the end.
    line : str
        The last line of mpisim's on standard error.
    left : tuple of str
        Files that are there and should not.
    wrong : str
        What is not as it should be.
    """

    fault: str
    mpi: str
    code: int
    seconds: float
    line: str
    left: tuple[str, ...]
    wrong: str

    def row(self) -> str:
        """Return a row of a table in Markdown."""
        cells = (
            self.fault,
            self.mpi,
            str(self.code),
            f"{self.seconds:.1f}",
            self.line,
            ", ".join(self.left),
            f"**{self.wrong}**" if self.wrong else "ok",
        )
        return f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"


def _command(mpirun: str, processes: int, words: Sequence[str]) -> list[str]:
    launch = [] if processes == 1 else [mpirun, "-n", str(processes)]
    return [*launch, sys.executable, "-m", "mpisim", *words]


def _ranks(parent: int) -> list[int]:
    """Return the processes of mpisim below a process, oldest first."""
    found, waiting = [], [parent]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            waiting += map(int, children)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"mpisim" in words and b"python" in words[0]:
                found.append(pid)
    return sorted(found)


def _outliving(ranks: Sequence[int], seconds: float) -> list[int]:
    """Return the processes that are still there so long after their launcher's end."""
    limit = time.monotonic() + seconds
    while alive := [pid for pid in ranks if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > limit:
            break
        time.sleep(0.05)
    return alive


def struck(
    number: signal.Signals,
    whom: str,
    processes: int,
    mpi: str,
    mpirun: str,
    environment: Mapping[str, str],
    folder: Path,
) -> FaultResult:
    """Send a signal to the launcher or to the last rank, in the middle of a run."""
    process = subprocess.Popen(
        _command(mpirun, processes, RUN),
        env=dict(environment),
        cwd=folder,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(5)
    ranks = _ranks(process.pid)
    began = time.monotonic()
    wrong = ""
    if process.poll() is not None or len(ranks) != processes:
        wrong = f"{len(ranks)} of {processes} ranks were there to be struck"
    else:
        os.kill(ranks[-1] if whom == "a rank" else process.pid, number)
    try:
        _, said = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate()
        wrong = "hangs"
    seconds = time.monotonic() - began
    lines = [line.strip() for line in said.splitlines() if line.startswith("mpisim:")]
    left = tuple(sorted(path.name for path in folder.rglob("*")))
    if not wrong:
        alive = _outliving(ranks, 5.0)
        wrong = (
            "exit code 0"
            if process.returncode == 0
            else "a traceback"
            if "Traceback" in said
            else "leaves files"
            if left
            else f"{len(alive)} ranks live on"
            if alive
            else ""
        )
    fault = f"{number.name} to {whom} of {processes}"
    return FaultResult(fault, mpi, process.returncode, seconds, "; ".join(lines[-1:]), left, wrong)


@contextlib.contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory; needs root."""
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "mpisim-test", str(place)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


WRITERS: dict[str, list[str]] = {
    "-o": ["run", "-o", "disk/r.h5"],
    "-o --timeline": ["run", "-o", "disk/r.h5", "--timeline"],
    "--save-program": ["run", "--save-program", "disk/p.h5"],
    "--json": ["run", "--json", "disk/r.json"],
    "new": ["new", "disk/e.toml"],
}


def unwritable(
    how: str,
    writer: str,
    code: int,
    processes: int,
    mpi: str,
    mpirun: str,
    environment: Mapping[str, str],
    folder: Path,
) -> FaultResult:
    """Write to a disk that is full, or read-only."""
    fault = f"{how} disk, {writer}, {processes} processes"
    try:
        with disk(folder, "size=8k" if how == "full" else "ro,size=1m") as place:
            if how == "full":
                with contextlib.suppress(OSError):
                    (place / "fill").write_bytes(b"0" * 16384)
            before = set(place.iterdir())
            began = time.monotonic()
            done = subprocess.run(
                _command(mpirun, processes, WRITERS[writer]),
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )
            seconds = time.monotonic() - began
            left = tuple(sorted(path.name for path in set(place.iterdir()) - before))
    except subprocess.TimeoutExpired:
        return FaultResult(fault, mpi, -9, TIMEOUT, "", (), "hangs")
    except subprocess.CalledProcessError:
        return FaultResult(fault, mpi, 0, 0.0, "", (), "")  # no file system can be mounted here
    said = done.stderr.replace(str(folder), "@").splitlines()
    lines = [line for line in said if line.startswith("mpisim: error:")]
    wrong = (
        f"exit code {done.returncode}, not {code}"
        if done.returncode != code
        else "a traceback"
        if "Traceback" in done.stderr
        else f"{len(lines)} lines"
        if len(lines) != 1
        else "leaves files"
        if left
        else "no file named"
        if "disk/" not in lines[0]
        else ""
    )
    return FaultResult(fault, mpi, done.returncode, seconds, "; ".join(lines[-1:]), left, wrong)


Event = Callable[[str, str, Mapping[str, str], Path], FaultResult]

EVENTS: list[Event] = [
    partial(struck, signal.SIGKILL, "a rank", 2),
    partial(struck, signal.SIGTERM, "a rank", 2),
    partial(struck, signal.SIGINT, "mpirun", 2),
    partial(struck, signal.SIGTERM, "mpirun", 2),
    partial(struck, signal.SIGINT, "the process", 1),
    partial(struck, signal.SIGTERM, "the process", 1),
    *(partial(unwritable, "full", writer, 1, n) for writer in WRITERS for n in (1, 2)),
    *(partial(unwritable, "read-only", writer, 2, n) for writer in WRITERS for n in (1, 2)),
]
