"""Events of DeepEP, and the stream that a buffer has for its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .library import Launcher

__all__ = ["EventHandle", "EventOverlap", "OwnStream", "launch"]

launch = Launcher("deep-ep", "1.2.1")


class EventHandle:
    """A place on the current stream."""

    def __init__(self) -> None:
        self.place = launch.recorder.place(launch.recorder.stream)

    def current_stream_wait(self) -> None:
        launch.recorder.wait(launch.recorder.stream, self.place)


class EventOverlap:
    """An event, or none, and what waits for it."""

    def __init__(self, event: Any = None, extra_tensors: Any = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        assert self.event is not None
        self.event.current_stream_wait()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        if self.event is not None:
            self.event.current_stream_wait()


class OwnStream:
    """What buffers issue on a stream of their own, and what waits for it.

    Attributes
    ----------
    group : ProcessGroup
    group_size : int
    """

    group: Any
    group_size: int
    _stream: int

    @contextmanager
    def _on(self, stream: int) -> Iterator[None]:
        """Issue to a stream."""
        before, launch.recorder.stream = launch.recorder.stream, stream
        try:
            yield
        finally:
            launch.recorder.stream = before

    @contextmanager
    def _on_own_stream(self, previous: Any, made: Iterable[Any], allocate: bool
                       ) -> Iterator[None]:  # fmt: skip
        """Issue to the buffer's stream, behind an event or the caller's stream."""
        launch.note()
        if not allocate:
            launch.keep(made)
        event = getattr(previous, "event", None)
        place = launch.recorder.place(launch.recorder.stream) if event is None else event.place
        launch.recorder.wait(self._stream, place)
        with self._on(self._stream):
            launch.keep(made)
            yield

    def _after(self, asynchronous: bool) -> Any:
        """Return the event of what was issued last, or have the caller's stream wait for it."""
        place = launch.recorder.place(self._stream)
        if not asynchronous:
            launch.recorder.wait(launch.recorder.stream, place)
            return EventOverlap()
        event = EventHandle()
        event.place = place
        return EventOverlap(event)
