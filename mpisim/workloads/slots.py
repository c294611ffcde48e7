"""Slots and streams of a table, by name."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COMPUTE", "Slots"]

COMPUTE = 0
"""The stream of kernels."""


class Slots:
    """Communicator slots of a table, numbered as they are first used.

    Parameters
    ----------
    sizes : mapping of str to int
        Members of each group a rank may use; groups of one are never communicated on.
    streams : mapping of str to str, optional
        Slots that share a stream with others: slot name to stream name. Otherwise each slot has a
        stream of its own.

    Attributes
    ----------
    asked : list of (str, str)
        Every slot and stream that was asked for so far: ``"slot"`` or ``"stream"``, and its name.
    """

    def __init__(self, sizes: Mapping[str, int], streams: Mapping[str, str] | None = None) -> None:
        self.sizes = sizes
        self._shared = streams or {}
        self._slots: dict[str, int] = {}
        self._streams: dict[str, int] = {"": COMPUTE}
        self.asked: list[tuple[str, str]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Of the slots used, in order."""
        return tuple(self._slots)

    def alone(self, group: str) -> bool:
        """Whether a group has one member."""
        return self.sizes[group] == 1

    def slot(self, name: str) -> int:
        """Return the number of a slot, new or known."""
        self.asked.append(("slot", name))
        return self._slots.setdefault(name, len(self._slots))

    def stream(self, name: str) -> int:
        """Return the stream of a slot, or one of that name."""
        self.asked.append(("stream", name))
        return self._streams.setdefault(self._shared.get(name, name), len(self._streams))

    def number(self, what: str, name: str) -> int:
        """Return the number of a ``"slot"`` or a ``"stream"``, as in `asked`."""
        return self.slot(name) if what == "slot" else self.stream(name)
