"""The status of a run (`mpisim.base.status_file`) as text: a few lines, or one."""

from __future__ import annotations

import time
from typing import Any

from ..base.status_file import Condition, condition, seconds_of
from ..base.text import duration, one_line, shortened
from ..mpi.time_left import left_text, time_text

__all__ = ["render_status", "status_line"]

SAYING: dict[Condition, str] = {
    "running": "running",
    "ended": "ended",
    "failed": "failed",
    "killed": "gone: its process ended without a word, as one that is killed does",
    "silent": "silent",
}


def render_status(status: dict[str, Any], now: float, host: str) -> str:
    """Describe a run in lines of at most 100 characters.

    Parameters
    ----------
    status : dict
        Of `mpisim.base.status_file.read_status`.
    now : float
        Since the epoch, in s.
    host : str
        This machine.
    """
    lines = [
        ("run", status["command"]),
        ("where", f"{status['host']}, process {status['pid']}{_processes(status)}"),
        ("state", _state(status, now, host)),
        ("phase", _phase(status)),
        ("ranks", _ranks(status)),
        ("time", _times(status)),
        ("exchanges", _exchanges(status)),
        ("links", _links(status)),
        ("memory", _memory(status)),
        ("error", status["error"]),
    ]
    return "\n".join(shortened(f"{name:10s} {one_line(text)}", 100) for name, text in lines if text)


def status_line(status: dict[str, Any], now: float, host: str) -> str:
    """Describe a run in one line, with the time of day.

    Parameters
    ----------
    status : dict
    now : float
        Since the epoch, in s.
    host : str
        This machine.
    """
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    parts = [_state(status, now, host), _phase(status), _times(status), status["error"]]
    return one_line(f"mpisim: {at} " + "; ".join(part for part in parts if part))


def _processes(status: dict[str, Any]) -> str:
    return f", {status['processes']} processes" if status["processes"] > 1 else ""


def _state(status: dict[str, Any], now: float, host: str) -> str:
    how = condition(status, now, host)
    text = f"{SAYING[how]}, {time_text(status['seconds'])}"
    if how == "failed":
        text += f", exit code {status['exit_code']}"
    elif how == "silent":
        text += f"; no word for {time_text(now - seconds_of(status['updated']))}"
    return text


def _phase(status: dict[str, Any]) -> str:
    phase = status["phase"]
    if status["state"] != "running" or not phase.get("name"):
        return ""
    share = phase.get("share")
    text = phase["name"] + (f": {int(100 * share)} %" if share is not None else "")
    text += f" ({phase['inner']})" if phase.get("inner") else ""
    left = phase.get("left")
    left_words = left_text((left[0], left[1]) if left else None)
    return f"{text}, {left_words}" if left_words else text


def _ranks(status: dict[str, Any]) -> str:
    ranks, simulated = status.get("ranks"), status.get("simulated_ranks")
    if not ranks:
        return ""
    return f"{ranks:,}" + (f", of which {simulated:,} simulated" if simulated != ranks else "")


def _times(status: dict[str, Any]) -> str:
    times = status.get("time")
    if not times:
        return ""
    slowest, fastest = (
        duration(ps) if ps else "0 s" for ps in (times["slowest"], times["fastest"])
    )
    return f"slowest rank at {slowest}, fastest at {fastest}"


def _exchanges(status: dict[str, Any]) -> str:
    parts = []
    if status["rounds"]:
        parts.append(f"{status['rounds']:,} between processes")
    if status["passes"]:
        parts.append(f"{status['passes']:,} passes over all ranks")
    return ", ".join(parts)


def _links(status: dict[str, Any]) -> str:
    links = status.get("links")
    if not links:
        return ""
    parts = [f"{links['total']:,} that communications can share"]
    if links.get("in_use") is not None:
        parts.append(f"{links['in_use']:,} in use now")
    if links.get("full") is not None:
        parts.append(f"{links['full']:,} full at some time")
    return ", ".join(parts)


def _memory(status: dict[str, Any]) -> str:
    memory = status["memory"]
    resident, peak, limit = (memory.get(key) for key in ("resident", "peak", "limit"))
    if not resident:
        return ""
    text = f"{resident / 1e9:.2f} GB held, {peak / 1e9:.2f} GB at most"
    return text + (f", of {limit / 1e9:.1f} GB on this machine" if limit else "")
