"""`RowBlock`: relocatable rows of a pass, written once and copied to many places of a table.

A table of a stage repeats the same rows for each micro-batch and layer. They are written once, with
waits that count from their own first row, and put into the table as often as needed
(:mod:`.assembly`).

Ports
-----
Such rows may wait for rows outside the block, whose numbers are not known yet. They name these by
negative numbers, *ports*: ``LAST`` is the latest kernel before the block, ``BEFORE`` the latest
before the block of that one, ``PENDING`` the communications before it that the next kernel has to
wait for. Further ports have names: a row exported under a name by one block is awaited under that
name by later ones.

A block of a kernel, an all-reduce that waits for it, and a second kernel that waits for what is
pending: of its waits two are rows of the block, and one is a port:

====  ==========  ===============================  ==================
row   is          waits for                        kept in
====  ==========  ===============================  ==================
0     kernel      PENDING (rows before the block)  ``outside``
1     all-reduce  row 0                            ``awaited``
2     kernel      row 1                            ``awaited``
====  ==========  ===============================  ==================

``last`` is 2, ``pending`` is empty, ``keeps_pending`` is false: row 0 has waited for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..program import COLUMNS
from .block_cache import Renumbering

__all__ = ["BEFORE", "LAST", "PENDING", "OperatorRows", "RowBlock"]

LAST, PENDING, BEFORE = -1, -2, -3
"""Ports without a name; those with names have the numbers below."""

SLOT, STREAM = (list(COLUMNS).index(column) for column in ("slot", "stream"))


@frozen(eq=False)
class RowBlock:
    """Relocatable rows: waits inside the block are relative, waits outside name ports.

    Attributes
    ----------
    values : int64, shape (n, len(COLUMNS))
        The rows. Layers are counted from `first_layer`; micro-batches are the numbers of the passes
        that alternate in the block (`BlockBuilder.select_pass`).
    waiter, awaited : int64
        Pairs of rows of this block.
    outside : tuple of (int, str or int)
        A row, and the port it waits for.
    exports : mapping of str to tuple of int
        Rows that later blocks can wait for by name.
    last : int
        The last kernel, or -1.
    pending : tuple of int
        Communications that the next kernel after the block has to wait for.
    keeps_pending : bool
        Whether what was pending before the block still is after it.
    flops : int
        Of the matrix units.
    duration : int
        Of all kernels together, in ps.
    first_layer : int
        Added to the layers of rows.
    """

    values: NDArray[np.int64]
    waiter: NDArray[np.int64]
    awaited: NDArray[np.int64]
    outside: tuple[tuple[int, str | int], ...]
    exports: Mapping[str, tuple[int, ...]]
    last: int
    pending: tuple[int, ...]
    keeps_pending: bool
    flops: int
    duration: int
    first_layer: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def renumbered(self, numbers: Renumbering) -> RowBlock:
        """Return the block with other numbers of slots and streams."""
        values = self.values.copy()
        for column, changed in ((SLOT, numbers.slots), (STREAM, numbers.streams)):
            for old, new in changed.items():
                if old != new:
                    values[self.values[:, column] == old, column] = new
        return replace(self, values=values)


class OperatorRows(NamedTuple):
    """Rows that a sequence of operators writes into an empty block.

    Attributes
    ----------
    rows : list of tuple of int
        Without tags.
    head : list of sequence of int
        What each of the first rows waits for, rows or ports, up to the last one that waits for a
        port.
    counts, awaited : list of int
        How many rows each of the others waits for, and which.
    last, pending, flops, duration
        As of a `RowBlock`; `last` may be ``LAST``, and `pending` has ports as well.
    """

    rows: list[tuple[int, ...]]
    head: list[Sequence[int]]
    counts: list[int]
    awaited: list[int]
    last: int
    pending: tuple[int, ...]
    flops: int
    duration: int

    def renumbered(self, numbers: Renumbering) -> OperatorRows:
        """Return the rows with other numbers of slots and streams."""
        rows = []
        for row in self.rows:
            values = list(row)
            values[SLOT] = numbers.slots.get(row[SLOT], row[SLOT])
            values[STREAM] = numbers.streams.get(row[STREAM], row[STREAM])
            rows.append(tuple(values))
        return self._replace(rows=rows)
