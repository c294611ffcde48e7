"""The status file of a run: written by the run, about once a second, read by ``mpisim watch``.

A JSON object, described key by key in docs/monitoring.md. It is replaced as a whole, so a reader
never sees half of one. Keys may be added to a version of the format; what is there keeps its
meaning.
"""

from __future__ import annotations

import calendar
import json
import os
import time
from pathlib import Path
from typing import Any, Literal

from .errors import DestinationError, InputError
from .files import check_output, os_errors_reported, read_text

__all__ = [
    "FORMAT",
    "VERSION",
    "Condition",
    "check_status_file",
    "condition",
    "find_status",
    "read_status",
    "this_host",
    "timestamp",
    "write_status",
]

FORMAT = "mpisim-status"
VERSION = 1
SUFFIX = ".status.json"
"""How names of status files end that mpisim chooses itself, in a folder."""

SILENCE = 60.0
"""Seconds without an update after which a run is taken to have been stopped or cut off."""

_TIME = "%Y-%m-%dT%H:%M:%SZ"

Condition = Literal["running", "ended", "failed", "killed", "silent"]


def timestamp(seconds: float) -> str:
    """Time since the epoch in s → text in UTC, as in the status file.

    Examples
    --------
    >>> timestamp(0)
    '1970-01-01T00:00:00Z'
    """
    return time.strftime(_TIME, time.gmtime(seconds))


def this_host() -> str:
    """Return the name of this machine, as in the status file."""
    return os.uname().nodename


def seconds_of(text: str) -> int:
    """Time as `timestamp` writes it → time since the epoch in s."""
    return calendar.timegm(time.strptime(text, _TIME))


def check_status_file(path: str | Path, host: str, pid: int) -> Path:
    """Check that a run can write its status to a file, or to a new one in a folder.

    Parameters
    ----------
    path : str or Path
        A file, or a folder that exists.
    host : str
    pid : int
        Of the run; they name a file in a folder.

    Returns
    -------
    Path
        The file. What is there already is the status of a run that is over.

    Raises
    ------
    DestinationError
        If it cannot be written, is no status file, or is that of a run that goes on.
    """
    if Path(path).is_dir():
        path = Path(path) / f"mpisim-{host}-{pid}{SUFFIX}"
    target = check_output(path, overwrite=True)
    if target.exists():
        try:
            before = read_status(target)
        except InputError as error:
            raise DestinationError(
                f"--monitor {path}: exists already and is no status file; name another file"
            ) from error
        if before["pid"] != pid and condition(before, time.time(), host) == "running":
            raise DestinationError(
                f"--monitor {path}: is the status of a run that goes on, process {before['pid']} "
                f"on {before['host']}; name another file"
            )
    return target


def write_status(target: Path, status: dict[str, Any]) -> None:
    """Replace a status file as a whole.

    Parameters
    ----------
    target : Path
    status : dict

    Raises
    ------
    OutputError
        If it cannot be written; the one before is left as it was.
    """
    hidden = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    with os_errors_reported(target):
        try:
            # What is no valid unicode, in names of files, is escaped: the text is ASCII.
            hidden.write_text(json.dumps(status, indent=1) + "\n", "ascii")
            hidden.replace(target)
        except OSError:
            hidden.unlink(missing_ok=True)
            raise


def find_status(path: str | Path) -> Path:
    """Return a status file: the one that is named, or the newest of a folder.

    Raises
    ------
    InputError
        If there is none.
    """
    given = Path(path)
    if not given.is_dir():
        return given
    with os_errors_reported(path):
        found = [(each.stat().st_mtime, each) for each in given.glob(f"*{SUFFIX}")]
    if not found:
        raise InputError(f"{path}: a folder without a status file (*{SUFFIX})")
    return max(found)[1]


def _no_status(path: str | Path) -> InputError:
    return InputError(
        f"{path}: is no status file of mpisim; name one that a run with --monitor writes"
    )


def read_status(path: str | Path) -> dict[str, Any]:
    """Read a status file.

    Raises
    ------
    InputError
        If it cannot be read, is no status file, or is of a version that is not known.
    """
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise _no_status(path) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _no_status(path)
    if found.get("version") != VERSION:
        raise InputError(
            f"{path}: is a status file of version {found.get('version')!r}; this mpisim reads "
            f"version {VERSION}"
        )
    missing = [key for key, kind in _KINDS.items() if not isinstance(found.get(key), kind)]
    if missing or found["state"] not in ("running", "ended", "failed"):
        raise InputError(f"{path}: a damaged status file: {(missing or ['state'])[0]} is not valid")
    for key in ("started", "updated"):
        try:
            seconds_of(found[key])
        except ValueError as error:
            raise InputError(f"{path}: a damaged status file: {key} is no time") from error
    return found


_KINDS: dict[str, type | tuple[type, ...]] = {
    "command": str,
    "host": str,
    "pid": int,
    "started": str,
    "updated": str,
    "seconds": (int, float),
    "state": str,
    "error": str,
    "phase": dict,
    "processes": int,
    "rounds": int,
    "passes": int,
    "memory": dict,
}
"""What every reader may rely on."""


def condition(status: dict[str, Any], now: float, host: str) -> Condition:
    """Status of a run → its condition: its state, unless its process is gone or silent.

    Parameters
    ----------
    status : dict
        Of `read_status`.
    now : float
        Since the epoch, in s.
    host : str
        This machine.

    Returns
    -------
    Condition
        ``killed`` where the process is gone and did not say so, which is only known on the machine
        that it ran on; ``silent`` where it has not said anything for `SILENCE` seconds.
    """
    state: Condition = status["state"]
    if state != "running":
        return state
    if status["host"] == host and not _lives(status["pid"]):
        return "killed"
    return "silent" if now - seconds_of(status["updated"]) > SILENCE else "running"


def _lives(pid: int) -> bool:
    """Whether a process of that number runs on this machine."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
        # One that has ended and that its parent has not asked for yet is still there.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except (OSError, OverflowError, IndexError):  # of another user; a system without /proc
        return True
