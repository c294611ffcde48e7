"""A damaged file → what the command that reads it does, in a process of its own.

The process may take a fixed amount of memory and 20 times the file's size, may run no program, and
has to be through in time; it serves many files, and is started again when it dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from seeds import Seed

BASE_MEMORY = 400 << 20
"""Bytes that a command may take whatever the file: libraries, tables, a small simulation."""

MEMORY_A_BYTE = 20
PATIENCE = 30.0
"""Seconds; a small file takes well below one."""

CHILD = Path(__file__).with_name("fuzz_child.py")


class Left(NamedTuple):
    """What a command left: its exit code, negative for a signal, and the ends of its outputs."""

    rc: int
    out: str
    err: str


class Child:
    """A process that runs command lines."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, args: list[str], memory: int) -> Left:
        """Run one; a process that does not answer in time is ended."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"args": args, "memory": memory}).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], PATIENCE)[0]:
            self.close()
            return Left(-9, "", f"no answer within {PATIENCE:.0f} s")
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            return Left(code or -1, "", f"the process died ({code})")
        return Left(**json.loads(line))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
            self._process = subprocess.Popen(
                [sys.executable, str(CHILD)],
                env={**os.environ, **single},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    def close(self) -> None:
        """End the process, if one runs."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None


def complaint(child: Child, seed: Seed, folder: Path) -> str:
    """Run the command that reads a file; say what it did that it must not do, or nothing."""
    size = (folder / seed.file).stat().st_size
    before = _listing(folder)
    left = child.run(seed.command(folder), BASE_MEMORY + MEMORY_A_BYTE * size)
    after = _listing(folder)
    lines = left.err.splitlines()
    wrong = ""
    if "Traceback" in left.err:
        wrong = "a traceback"
    elif left.rc not in (0, 2):
        wrong = f"exit code {left.rc}"
    elif left.rc == 2 and (len(lines) != 1 or not lines[0].startswith("mpisim: error: ")):
        wrong = f"{len(lines)} lines of error"
    elif left.rc == 2 and str(folder) not in lines[0] and not _own(lines[0]):
        wrong = "a message without the file"
    elif left.rc == 2 and len(lines[0]) > 3100:
        wrong = f"a message of {len(lines[0])} characters"
    elif left.rc == 2 and after != before:
        wrong = f"left {set(after) - set(before)}"
    return wrong and f"{seed.name}: {wrong}\n{left.err}"


def _own(line: str) -> bool:
    """Whether a message is about what was read well and cannot be simulated."""
    return any(word in line for word in ("deadlock", "communicator", "has no such link"))


def _listing(folder: Path) -> dict[str, Any]:
    return {str(path): path.lstat().st_size for path in folder.rglob("*") if path.is_file()}
