"""Processes of captured ranks: those that end by themselves are told of, and none stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from captures import ONE_GPU, alone, needs_torch, script, written

from mpisim.base.errors import InputError

pytestmark = [needs_torch, pytest.mark.timeout(400)]  # the process that is forked loads PyTorch

KILLS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
WAITS = """
import os, pathlib, time
pathlib.Path("pids").write_text(f"{os.getppid()} {os.getpid()}")
while True:
    time.sleep(1)
"""


def test_a_rank_that_a_signal_ends_is_told_and_others_go_on(tmp_path: Path) -> None:
    path = written(tmp_path, KILLS_ITSELF)
    with pytest.raises(InputError, match="the process of rank 0 ended with code -9 and without a"):
        alone(script(path))
    (part,) = alone(script(written(tmp_path, ONE_GPU)))
    assert part.ranks == (0,)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_of_a_killed_capture_stays(
    number: signal.Signals, tmp_path: Path, launch_environment: dict[str, str]
) -> None:
    path = written(tmp_path, WAITS)
    words = [sys.executable, "-m", "mpisim", "capture", "--", "python", str(path)]
    with subprocess.Popen(words, cwd=tmp_path, env=launch_environment) as process:
        while not (found := _read(tmp_path / "pids")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
    for pid in map(int, found.split()):
        while _runs(pid):
            time.sleep(0.05)


def _read(path: Path) -> str:
    text = path.read_text() if path.exists() else ""
    return text if " " in text else ""


def _runs(pid: int) -> bool:
    """Whether a process is there that has not ended, waited for or not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
