"""Numbering of communicator slots and streams in a table, and cache of the rows that use it.

A step's tables share most of their content: layers of one kind, stages that hold such layers, and
steps with other numbers of micro-batches. `BlockCache` keeps everything that was written once, at
two levels: the rows of an operator, and whole blocks.

Why reuse is right
------------------
Rows are a pure function of three things: the operators (values, see :mod:`.operators`), the model
that prices their kernels, and the numbers of slots and streams in the table. The first two are the
key; the third is undone by renumbering. Two invariants make that sound:

- Slots and streams are numbered in the order of their first request. A copy therefore requests the
  same names in the same order as writing anew would, before it is renumbered (`Slots.requests`).
- All tables of a step let the same slots share a stream, so that equal numbers stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar

from ..base.frozen import frozen

__all__ = ["COMPUTE", "BlockCache", "Renumbering", "Slots"]

COMPUTE = 0
"""The stream of kernels."""

Request = tuple[Literal["slot", "stream"], str]
"""What a number was requested for, and its name."""


class Slots:
    """Communicator slots and streams of a table, numbered as they are first requested.

    Parameters
    ----------
    sizes : mapping of str to int
        Members of each group of ranks; groups of one never communicate.
    streams : mapping of str to str, optional
        Slots that share a stream with others: slot name → stream name. Otherwise each slot has a
        stream of its own.

    Attributes
    ----------
    requests : list of (str, str)
        Every request so far.
    """

    def __init__(self, sizes: Mapping[str, int], streams: Mapping[str, str] | None = None) -> None:
        self.sizes = sizes
        self._shared = streams or {}
        self._slots: dict[str, int] = {}
        self._streams: dict[str, int] = {"": COMPUTE}
        self.requests: list[Request] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the slots used, in the order of their numbers."""
        return tuple(self._slots)

    def has_one_member(self, group: str) -> bool:
        """Whether a group has one member."""
        return self.sizes[group] == 1

    def slot(self, name: str) -> int:
        """Return the number of a slot, new or known."""
        self.requests.append(("slot", name))
        return self._slots.setdefault(name, len(self._slots))

    def stream(self, name: str) -> int:
        """Return the number of a slot's stream, or of the stream of that name."""
        self.requests.append(("stream", name))
        return self._streams.setdefault(self._shared.get(name, name), len(self._streams))

    def number(self, request: Request) -> int:
        """Return the number of a slot or a stream."""
        what, name = request
        return self.slot(name) if what == "slot" else self.stream(name)


@frozen
class Renumbering:
    """New numbers of slots and streams, by their old ones; what is not listed stays.

    Attributes
    ----------
    slots, streams : mapping of int to int
    """

    slots: Mapping[int, int]
    streams: Mapping[int, int]

    @classmethod
    def between(
        cls, requests: Sequence[Request], old: Sequence[int], new: Sequence[int]
    ) -> Renumbering:
        """Return the renumbering that takes the old numbers of some requests to the new ones.

        Parameters
        ----------
        requests : sequence of Request
            Name that each number was requested for.
        old, new : sequence of int
            Numbers before and after, one for each request; as many as `requests`.
        """
        slots: dict[int, int] = {}
        streams: dict[int, int] = {}
        for (what, _), number, other in zip(requests, old, new, strict=True):
            (slots if what == "slot" else streams)[number] = other
        return cls(slots, streams)


class Renumbered(Protocol):
    """Entry of a cache: rows that can be copied with other numbers of slots and streams."""

    def renumbered(self, numbers: Renumbering) -> Self:
        """Return a copy with other numbers."""
        ...


R = TypeVar("R", bound=Renumbered)


@dataclass
class _Entry:
    """Rows written under a key: the requests they made, and a version for each numbering."""

    requests: tuple[Request, ...]
    first: tuple[int, ...]
    versions: dict[tuple[int, ...], Any]


class BlockCache:
    """Cache of the rows that tables of one step share, each written once.

    The tables of a step agree in their plan, in the names of rows and in the sizes of groups.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, slots: Slots, write: Callable[[], R]) -> R:
        """Return the rows written under a key, with a table's numbers of slots and streams.

        Parameters
        ----------
        key : hashable
            All inputs of the rows, except the numbers of slots and streams.
        slots : Slots
            Of the table; it sees the same requests as if the rows were written anew.
        write : callable
            Writes the rows for `slots`; called for the first table alone.
        """
        entry = self._entries.get(key)
        if entry is None:
            before = len(slots.requests)
            written = write()
            requests = tuple(dict.fromkeys(slots.requests[before:]))
            numbers = tuple(map(slots.number, requests))
            self._entries[key] = _Entry(requests, numbers, {numbers: written})
            return written
        numbers = tuple(map(slots.number, entry.requests))
        if numbers not in entry.versions:
            change = Renumbering.between(entry.requests, entry.first, numbers)
            entry.versions[numbers] = entry.versions[entry.first].renumbered(change)
        found: R = entry.versions[numbers]
        return found
