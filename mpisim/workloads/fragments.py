"""Fragments of blocks: the rows of one operator, written once and copied wherever it stands again.

Layers of one kind share their operators, and each pass goes through them anew. What an operator
writes depends on the lane it is written into in three ways only: its rows wait for the lane's
latest kernel and for what is pending there, they have the lane's tags, and slots and streams have
the numbers of the table. So it is written once into an empty block, where the ports ``LAST`` and
``PENDING`` stand for the first; the copies have the rows of the lane in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..program import COLUMNS
from .operators import Step

if TYPE_CHECKING:
    from .blocks import BlockBuilder
    from .pricing import Priced

__all__ = ["Fragment", "Fragments"]

Row = tuple[int, ...]

_SLOT, _STREAM = (list(COLUMNS).index(name) for name in ("slot", "stream"))


class Fragment(NamedTuple):
    """What an operator writes into an empty block.

    Attributes
    ----------
    rows : list of tuple of int
        Without tags.
    head : list of sequence of int
        Of the first rows, as far as any waits for a port: the rows of the fragment, and the ports,
        that each waits for.
    counts, awaited : list of int
        Of the other rows: how many rows of the fragment each waits for, and which.
    slots : dict of (str, str) to int
        The slots and streams it uses, in that order, and their numbers in `rows`; as
        `.blocks.Slots.number`.
    last : int
        The last kernel, or ``LAST``.
    pending : tuple of int
        Rows and ports that the next kernel has to wait for.
    flops, duration : int
        Of its kernels.
    priced : Priced
        What the durations of its kernels rest on.
    """

    rows: list[Row]
    head: list[Sequence[int]]
    counts: list[int]
    awaited: list[int]
    slots: dict[tuple[str, str], int]
    last: int
    pending: tuple[int, ...]
    flops: int
    duration: int
    priced: Priced

    @classmethod
    def of(cls, rows: list[Row], waits: list[list[int]], **rest: Any) -> Fragment:
        """Make one of rows and what each waits for."""
        head = max((i + 1 for i, each in enumerate(waits) if min(each, default=0) < 0), default=0)
        return cls(
            rows,
            [*waits[:head]],
            [len(each) for each in waits[head:]],
            [row for each in waits[head:] for row in each],
            **rest,
        )

    def with_slots(self, numbers: dict[tuple[str, str], int]) -> Fragment:
        """Return it with other numbers of slots and streams."""
        if numbers == self.slots:
            return self
        new: dict[tuple[str, int], int] = {
            (each[0], number): numbers[each] for each, number in self.slots.items()
        }
        return self._replace(rows=[_numbered(row, new) for row in self.rows], slots=numbers)


def _numbered(row: Row, new: Mapping[tuple[str, int], int]) -> Row:
    found = list(row)
    for column, what in ((_SLOT, "slot"), (_STREAM, "stream")):
        found[column] = new.get((what, row[column]), row[column])  # kernels' stream is no slot's
    return tuple(found)


class Fragments:
    """The fragments of the tables of a step, which have the same names and sizes of groups."""

    def __init__(self) -> None:
        # By identity: layers of one kind share their operators. What is kept keeps its identity.
        self._written: dict[tuple[int, int], Fragment | None] = {}
        self._known: dict[tuple[int, int, int], Fragment | None] = {}
        self._kept: list[object] = []

    def of(self, steps: Sequence[Step], builder: BlockBuilder) -> Fragment | None:
        """Return what steps write, by a builder like one; None if there is more to it.

        That is so where communications outlive the operator (`Communicate.carried`). Slots and
        streams are numbered as if it were written.
        """
        slots, pricing = builder.slots, builder.pricing
        key = id(pricing), id(slots), id(steps)
        if key in self._known:
            found = self._known[key]
            if found is not None:
                slots.asked.extend(found.slots)
            return found
        self._kept += pricing, slots, steps
        written = id(pricing), id(steps)
        if written not in self._written:
            self._written[written] = builder.fragment(steps)
        found = self._written[written]
        if found is not None:
            found = found.with_slots({each: slots.number(*each) for each in found.slots})
        self._known[key] = found
        return found
