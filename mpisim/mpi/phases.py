"""Phases of a command, one within another → a progress line on a terminal or in a log.

All of a run is one line: the outermost phase whose end is known, or else the innermost, with its
share, the time since the outermost began, and what is left of that phase (`time_left`). A thread
writes it, so that it moves on while the work itself has nothing to report.

On a terminal the line is drawn again twice a second and wiped at the end. Where standard error is
none, in a log or under ``mpirun``, a line is added every minute from the first one on: a run that
is shorter leaves none.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from .time_left import TimeLeft, left_text, time_text

if TYPE_CHECKING:
    from .monitor import Monitor

__all__ = ["Phase", "Phases", "phases", "progress_is_shown", "way_shown"]

Way = Literal["line", "log", ""]

LOG_INTERVAL = 60.0
"""Seconds between two lines of a log, and before the first."""


def way_shown() -> Way:
    """How progress is shown: as a line that moves, in a log, or not at all.

    ``MPISIM_PROGRESS`` decides where it is set: 0 is not at all, anything else the line that moves.
    """
    setting = os.environ.get("MPISIM_PROGRESS") or ""
    if sys.stderr is None or setting == "0":
        return ""
    return "line" if setting or sys.stderr.isatty() else "log"


def progress_is_shown() -> bool:
    """Whether a person reads standard error: a terminal, or ``MPISIM_PROGRESS`` says so."""
    return way_shown() == "line"


class Phase:
    """A phase of a command: its label, and how much of it is done.

    Parameters
    ----------
    label : str
    total : float
        The value of `done` at the end; 0 if it is not known.
    steady : bool
        Whether equal shares take about equal times, so that the time left can be predicted.
    begun : float
        By `time.monotonic`.
    """

    def __init__(self, label: str, total: float, steady: bool, begun: float) -> None:
        self.label, self.total, self.begun = label, total, begun
        self.done, self.note = 0.0, ""
        self.left = TimeLeft(total if steady else 0, begun)

    def update(self, done: float, now: float, note: str = "") -> None:
        """Learn how much is done, at a time by `time.monotonic`, and a note to show beside it."""
        self.done, self.note = done, note
        self.left.update(done, now)

    def __str__(self) -> str:
        share = f": {int(100 * min(self.done / self.total, 1.0))} %" if self.total > 0 else ""
        return f"{self.label}{share}"


class Phases:
    """The phases that are under way, and the line that shows them.

    Attributes
    ----------
    current : list of Phase
        The outermost first.
    monitor : mpisim.mpi.monitor.Monitor or None
        What writes a status file, if anything does.
    """

    def __init__(self) -> None:
        self.monitor: Monitor | None = None
        self.current: list[Phase] = []
        self.lock = threading.RLock()
        self.way: Way = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._interval = self._begun = self._shown = 0.0
        self._width = 0

    def enter(self, phase: Phase, way: Way, interval: float) -> None:
        """Begin a phase within those under way.

        Parameters
        ----------
        phase : Phase
        way : Way
            Of a phase that is within no other; the others are shown as that is.
        interval : float
            Seconds between two lines.
        """
        with self.lock:
            self.current.append(phase)
            if len(self.current) > 1:
                return
            self.way, self._interval = way, LOG_INTERVAL if way == "log" else interval
            self._begun = self._shown = phase.begun
            if way:
                self._ended.clear()
                self._thread = threading.Thread(target=self._keep_showing, daemon=True)
                self._thread.start()

    def leave(self, phase: Phase) -> None:
        """End a phase; the last one wipes the line."""
        with self.lock:
            self.current.remove(phase)
            if self.current:
                return
            thread, self._thread = self._thread, None
            self._ended.set()
        if thread is not None:
            thread.join()
        self._wipe()

    def update(self, phase: Phase, done: float, note: str = "") -> None:
        """Note how much of a phase is done, and show it.

        Parameters
        ----------
        phase : Phase
        done : float
            In the unit of its total.
        note : str
            Shown beside it.
        """
        now = time.monotonic()
        phase.update(done, now, note)
        if self.way and now - self._shown >= self._interval:
            with self.lock:
                self._show(now)

    def leading(self) -> tuple[Phase | None, Phase | None]:
        """Return the phase that is counted, the outermost with a known end, and the innermost."""
        with self.lock:
            inner = self.current[-1] if self.current else None
            return next((each for each in self.current if each.total > 0), inner), inner

    def status(self, now: float) -> dict[str, Any]:
        """Return the phase that is counted, the one inside it, and how far it is, for a status.

        Parameters
        ----------
        now : float
            By `time.monotonic`.
        """
        lead, inner = self.leading()
        if lead is None or inner is None:
            return dict.fromkeys(("name", "inner"), "") | dict.fromkeys(
                ("done", "total", "share", "left")
            )
        counted = lead.total > 0
        left = lead.left.seconds(now)
        return {
            "name": lead.label,
            "inner": inner.label if inner is not lead else "",
            "done": lead.done if counted else None,
            "total": lead.total if counted else None,
            "share": round(min(lead.done / lead.total, 1.0), 4) if counted else None,
            "left": None if left is None else [round(each, 1) for each in left],
        }

    def text(self, now: float) -> str:
        """Return the line.

        Parameters
        ----------
        now : float
            By `time.monotonic`.
        """
        lead, inner = self.leading()
        assert inner is not None
        assert lead is not None
        parts = [str(lead) if lead is inner else f"{lead} ({inner.label})"]
        parts += [lead.note, time_text(now - self._begun), left_text(lead.left.seconds(now))]
        return ", ".join(part for part in parts if part)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Wipe the line for a block that prints to the same terminal."""
        with self.lock:
            self._wipe()
            yield

    def _keep_showing(self) -> None:
        while not self._ended.wait(max(min(self._interval, 1.0), 0.05)):
            with self.lock:
                now = time.monotonic()
                if self.current and now - self._shown >= self._interval:
                    self._show(now)

    def _show(self, now: float) -> None:
        self._shown = now
        text = self.text(now)
        if self.way == "log":
            _write(f"mpisim: {time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            return
        text = text[: _columns() - 1]
        _write("\r" + text.ljust(self._width))
        self._width = len(text)

    def _wipe(self) -> None:
        if self._width:
            _write("\r" + " " * self._width + "\r")
            self._width = 0


def _write(text: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # no one listens
            sys.stderr.write(text)
            sys.stderr.flush()


def _columns() -> int:
    """Return how wide the terminal is: a line that wraps cannot be drawn over."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 1000
    except (OSError, ValueError, AttributeError):
        return 1000


phases = Phases()  # standard error is one for the whole process, and so is its line
