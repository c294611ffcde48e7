"""SIGINT and SIGTERM → exceptions, so that partial outputs are removed before the process ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

__all__ = ["Terminated", "ended_by_signals"]

GRACE_PERIOD = 1.0
"""Seconds a command has to clean up after a signal before its process is ended."""

AGAIN = 0.005
"""Seconds after which a signal is sent again whose exception was lost."""


class Terminated(BaseException):
    """The process was asked to end, by ``kill`` or by a batch system (SIGTERM)."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in the block, as Ctrl-C raises `KeyboardInterrupt`.

    Python raises them between two of its instructions. In what runs as an object is freed it only
    prints them; there they are sent again. And the process may be inside a message of
    MPI that never arrives. A thread then ends it after `GRACE_PERIOD` seconds. Nothing changes
    outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    over = threading.Event()
    threading.Thread(target=_watch, args=(reader, over), daemon=True).start()
    handler = signal.signal(signal.SIGTERM, _terminate)
    unraisable = sys.unraisablehook
    sys.unraisablehook = partial(_raise_again, otherwise=unraisable)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        sys.unraisablehook = unraisable
        signal.set_wakeup_fd(previous)
        signal.signal(signal.SIGTERM, handler)
        os.close(writer)


def _raise_again(
    found: sys.UnraisableHookArgs, otherwise: Callable[[sys.UnraisableHookArgs], object]
) -> None:
    """Send a signal again that came while Python freed an object, where no exception is passed on.

    It comes a little later, so that it finds the code that freed the object, or what follows.
    """
    signals = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}
    if found.exc_type not in signals:
        otherwise(found)
        return
    timer = threading.Timer(AGAIN, os.kill, (os.getpid(), signals[found.exc_type]))
    timer.daemon = True
    timer.start()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _watch(reader: int, over: threading.Event) -> None:
    """Wait for a signal, then end the process after the grace period."""
    with open(reader, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] in (signal.SIGINT, signal.SIGTERM) and not over.wait(GRACE_PERIOD):
                os._exit(128 + number[0])
