"""Fragments of blocks: the rows of one operator, written once and copied wherever it stands again.

Layers of one kind share their operators, and each pass goes through them anew. What an operator
writes depends on the lane it is written into in three ways only: its rows wait for the lane's
latest kernel and for what is pending there, they have the lane's tags, and slots and streams have
the numbers of the table. So it is written once into an empty block, where the ports ``LAST`` and
``PENDING`` stand for the first; the copies have the rows of the lane in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..program import COLUMNS
from .operators import Step

if TYPE_CHECKING:
    from .blocks import BlockBuilder
    from .pricing import Priced, Pricing

__all__ = ["Fragment", "Fragments"]

Row = tuple[int, ...]

_SLOT, _STREAM = (list(COLUMNS).index(name) for name in ("slot", "stream"))


class Fragment(NamedTuple):
    """What an operator writes into an empty block.

    Attributes
    ----------
    rows : list of tuple of int
        Without tags.
    waits : list of sequence of int
        Of each row: rows of the fragment, and ports.
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
    waits: list[Sequence[int]]
    slots: dict[tuple[str, str], int]
    last: int
    pending: tuple[int, ...]
    flops: int
    duration: int
    priced: Priced

    def rows_as(self, numbers: Mapping[tuple[str, str], int]) -> list[Row]:
        """Return the rows with other numbers of slots and streams."""
        if numbers == self.slots:
            return self.rows
        new: dict[tuple[str, int], int] = {
            (each[0], number): numbers[each] for each, number in self.slots.items()
        }
        return [_numbered(row, new) for row in self.rows]


def _numbered(row: Row, new: Mapping[tuple[str, int], int]) -> Row:
    found = list(row)
    for column, what in ((_SLOT, "slot"), (_STREAM, "stream")):
        found[column] = new.get((what, row[column]), row[column])  # kernels' stream is no slot's
    return tuple(found)


class Fragments:
    """The fragments of the tables of a step, which have the same names and sizes of groups."""

    def __init__(self) -> None:
        # By identity: layers of one kind share their operators. What is kept keeps its identity.
        self._known: dict[tuple[int, int], tuple[Pricing, Sequence[Step], Fragment | None]] = {}

    def of(self, steps: Sequence[Step], builder: BlockBuilder) -> Fragment | None:
        """Return what steps write, by a builder like one; None if there is more to it.

        That is so where communications outlive the operator (`Communicate.carried`).
        """
        key = id(builder.pricing), id(steps)
        if key not in self._known:
            self._known[key] = builder.pricing, steps, builder.fragment(steps)
        return self._known[key][2]
