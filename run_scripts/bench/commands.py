"""Whole commands → what each took: wall time, memory of its largest process, what it printed.

Shared by the scripts of this folder that time whole commands, with the experiment that most of
them run.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Failed", "Taken", "gpt", "taken"]

GPT = """
[model]
preset = "gpt3-175b"
seq_len = 2048
[plan]
tp = {tp}
pp = {pp}
micro_batch = 1
global_batch = {batch}
[cluster]
preset = "{cluster}"
nodes = {nodes}
[run]
allow_oom = true
"""


class Failed(SystemExit):
    """A command that ended badly, and how, in one line; nobody catching it, the script ends so."""


class Taken(NamedTuple):
    """What a command took."""

    seconds: float
    memory: int
    """Bytes resident at most, of the largest of its processes."""
    output: str
    cpu: float
    """Seconds of its processes on a core, those of the system included."""


def gpt(
    gpus: int, tp: int = 8, pp: int = 16, micro_batches: int = 64, cluster: str = "dgx-h100"
) -> str:
    """GPT-3 175B on nodes of eight GPUs → the text of its experiment.

    Parameters
    ----------
    gpus : int
        Of all replicas.
    tp, pp : int
    micro_batches : int
        Of a replica, a sequence each.
    cluster : str
        A name, or the path of a file.
    """
    batch = gpus // (tp * pp) * micro_batches
    return GPT.format(tp=tp, pp=pp, batch=batch, cluster=cluster, nodes=gpus // 8)


def taken(command: Sequence[str], limit: float | None = None, folder: Path | None = None) -> Taken:
    """Run a command → what it took.

    A child begins as a copy of this process, and what that has resident counts as the child's:
    scripts that measure small commands import little.

    Parameters
    ----------
    command : sequence of str
    limit : float, optional
        Seconds after which it is ended.
    folder : Path, optional
        In which it runs.

    Raises
    ------
    Failed
        If it ends with an exit code other than 0, or takes longer than the limit.
    """
    limited = [] if limit is None else ["timeout", "--kill-after=10", f"{limit}"]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [*limited, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=folder
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        code = process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        printed, said = output.read(), errors.read().splitlines()
    if code:
        ended = "refused" if code == 2 else f"exit code {code}"
        if limit is not None and seconds >= limit:
            ended = f"took more than {limit:g} s"
        reason = [line for line in said if "mpisim: " in line] or said[-1:]
        raise Failed(": ".join([" ".join(command)[:200], ended, *reason[:1]]))
    cpu = usage.ru_utime + usage.ru_stime
    return Taken(seconds, usage.ru_maxrss * 1024, printed, cpu)
