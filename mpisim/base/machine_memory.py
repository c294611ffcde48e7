"""Memory in bytes: of this machine, and resident and peak of its processes (``/proc``)."""

from __future__ import annotations

import os
import resource
import sys
from functools import cache
from pathlib import Path
from typing import Literal

__all__ = ["UNLIMITED", "capacity", "group_limits", "peak", "resident", "resident_of"]

UNLIMITED = 1 << 62
"""A capacity that no run exceeds."""


@cache
def capacity() -> int:
    """Return the bytes that the processes of a user may have on this machine.

    Physical memory, or the limit of the control group of this process (containers,
    batch jobs) where that is less. Looked up once: a search asks before each of its simulations.
    """
    try:
        built_in = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known on this system
        built_in = UNLIMITED
    return min([built_in if built_in > 0 else UNLIMITED, *group_limits(Path("/"))])


def group_limits(root: Path) -> list[int]:
    """Return the memory limits of the control group of this process and of those around it.

    Parameters
    ----------
    root : Path
        Of the file system.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []  # no control groups
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        folder = top / path.strip("/")
        for each in (folder, *folder.parents):
            if each.is_relative_to(top):
                limits += _limit(each / name)
    return limits


def _limit(file: Path) -> list[int]:
    """Return the number in a file; nothing if there is no file, or ``max`` in it."""
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []


def resident() -> int:
    """Return the resident bytes of this process; the peak where the system does not tell."""
    return resident_of("self") or peak()


def resident_of(process: int | Literal["self"]) -> int:
    """Return the resident bytes of a process of this machine; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/statm", "rb", buffering=0) as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Return the peak of resident bytes of this process so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
