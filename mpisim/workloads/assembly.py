"""Tables from blocks: rows laid end to end, and ports replaced by the rows they represent.

A table uses its blocks thousands of times, in an order that nothing but the schedule decides. So
the uses are columns, and what a port represents is worked out for all uses at once (`_Ports`): the
rows that can be meant are laid end to end in the order in which they come, and each port of a use
means a run of these that follows from counts. Compiled loops copy the rows.

A port names earlier rows only, and rows never move. So the result equals that of writing every row
of the table in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ProgramError
from ..program import COLUMNS, Table, columns_of
from ._core.joining import joined, waits, with_micro_batches
from .blocks import BEFORE, LAST, PENDING, Block

__all__ = ["TableAssembler", "spread"]

LAYER = list(COLUMNS).index("layer")

Ints = NDArray[np.int64]


class TableAssembler:
    """Join blocks into a table.

    Parameters
    ----------
    label : str
        Of the table.
    first_layer : int
        Added to the numbers of all layers.
    """

    def __init__(self, label: str, *, first_layer: int = 0) -> None:
        self.label, self.first_layer = label, first_layer
        self._blocks: list[Block] = []
        self._numbers: dict[int, int] = {}  # of each block, which equals itself only
        self._used: list[Ints] = []  # numbers of blocks, in the order of the table
        self._micro_batches: list[Ints] = []  # of each use, shape (uses, passes)

    def add(self, block: Block, *micro_batches: int) -> None:
        """Append a block, with the micro-batch of each pass that alternates in it (none: -1)."""
        self.extend([block], np.zeros(1, np.int64), np.array([micro_batches or (-1,)], np.int64))

    def extend(self, blocks: Sequence[Block], used: Ints, micro_batches: Ints) -> None:
        """Append blocks, each as often as it is used.

        Parameters
        ----------
        blocks : sequence of Block
        used : int64, shape (u,)
            Indices into `blocks`, in the order of the table.
        micro_batches : int64, shape (u, passes)
            Of each pass that alternates in the block; a block with fewer passes has any numbers in
            the rest.
        """
        numbers = np.array([self._number(each) for each in blocks], np.int64)
        self._used.append(numbers[used])
        self._micro_batches.append(micro_batches)

    def _number(self, block: Block) -> int:
        number = self._numbers.setdefault(id(block), len(self._blocks))
        if number == len(self._blocks):
            self._blocks.append(block)
        return number

    @property
    def flops(self) -> int:
        """Of the kernels of all uses."""
        return self._total([block.flops for block in self._blocks])

    @property
    def duration(self) -> int:
        """Of the kernels of all uses, in ps."""
        return self._total([block.duration for block in self._blocks])

    def _total(self, of_blocks: Sequence[int]) -> int:
        times = np.bincount(np.concatenate(self._used), minlength=len(of_blocks)).tolist()
        return sum(n * each for n, each in zip(times, of_blocks, strict=True))

    def table(self) -> Table:
        """Return the table.

        Raises
        ------
        ProgramError
            If a column cannot hold a value, such as too many micro-batches.
        """
        blocks, used = self._blocks, np.concatenate(self._used)
        passes = max(each.shape[1] for each in self._micro_batches)
        micro_batch = np.concatenate([_widened(each, passes) for each in self._micro_batches])
        if micro_batch.max() > np.iinfo(np.int16).max:
            raise ProgramError(
                f"table {self.label!r}: micro_batch is {micro_batch.max()}; it must be at most "
                f"{np.iinfo(np.int16).max}"
            )

        # All blocks' rows laid end to end; then for each use of a block a copy of its part.
        lengths = np.array([len(block) for block in blocks])
        ends = np.cumsum(lengths[used])
        at, n = ends - lengths[used], int(ends[-1])
        values = np.concatenate([block.values for block in blocks])
        first_layer = np.repeat([block.first_layer for block in blocks], lengths)
        layers = values[:, LAYER]
        layers[layers >= 0] += (first_layer + self.first_layer)[layers >= 0]
        rows = columns_of(values, self.label)
        parts = _starts(lengths)[used], lengths[used], n
        which = rows.pop("micro_batch")
        columns: dict[str, Any] = {name: joined(values, *parts) for name, values in rows.items()}
        columns["micro_batch"] = with_micro_batches(which, *parts, micro_batch.astype(np.int16))

        # Waits inside blocks in the same way, moved to where each use begins; then the others.
        counts = np.array([len(block.waiter) for block in blocks])
        index, awaited = waits(
            np.concatenate([block.waiter for block in blocks]),
            np.concatenate([block.awaited for block in blocks]),
            _starts(counts)[used],
            counts[used],
            at,
            _Ports(blocks, used, at).waits(),
            n,
        )
        return Table(**columns, wait_index=index, wait_row=awaited, label=self.label)


class _Ports:
    """What the ports of all uses represent.

    Parameters
    ----------
    blocks : sequence of Block
    used : int64, shape (u,)
        The block of each use.
    at : int64, shape (u,)
        The row of the table with which it begins.
    """

    def __init__(self, blocks: Sequence[Block], used: Ints, at: Ints) -> None:
        self._blocks, self._used, self._at = blocks, used, at
        self._rows: list[Ints] = []  # laid end to end: all that a port can mean
        self._length = 0

    def waits(self) -> Ints:
        """Return the rows that wait for ports, and those they wait for, shape (n, 2)."""
        outside = [block.outside for block in self._blocks]
        ports = list(dict.fromkeys(port for each in outside for _, port in each))
        if not ports:
            return np.zeros((0, 2), np.int64)
        numbers = {port: i for i, port in enumerate(ports)}
        ends = [self._meant(port) for port in ports]  # shape (ports, 2, uses)
        first, last = (np.stack([each[i] for each in ends]) for i in (0, 1))
        use, pair = spread([len(each) for each in outside], self._used)
        row = np.array([row for each in outside for row, _ in each], np.int64)[pair]
        port = np.array([numbers[port] for each in outside for _, port in each], np.int64)[pair]
        count = last[port, use] - first[port, use]
        which = np.repeat(np.arange(len(use)), count)
        within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        meant = np.concatenate(self._rows)[first[port, use][which] + within]
        return np.stack([(self._at[use] + row)[which], meant], axis=1)

    def _meant(self, port: str | int) -> tuple[Ints, Ints]:
        """Return where the rows that a port means to each use begin and end."""
        if port in (LAST, BEFORE):
            last = np.array([block.last for block in self._blocks], np.int64)[self._used]
            known = last >= 0
            before: Ints = np.cumsum(known) - known  # uses with a kernel before each
            back = 1 if port == LAST else 2
            first: Ints = self._lay((self._at + last)[known]) + before - back
            return first, first + (before >= back)
        if port == PENDING:
            counts, rows = self._named([block.pending for block in self._blocks])
            # What was pending before the latest block that does not keep it is no longer awaited.
            kept = np.array([block.keeps_pending for block in self._blocks])[self._used]
            dropped = np.where(kept, -1, np.arange(len(kept)))
            latest = np.concatenate([[-1], np.maximum.accumulate(dropped)[:-1]])
            begins: Ints = np.where(latest < 0, 0, counts[latest])
        else:
            counts, rows = self._named([block.exports.get(str(port), ()) for block in self._blocks])
            begins = np.zeros_like(counts)
        base = self._lay(rows)
        return base + begins, base + counts

    def _named(self, of_blocks: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
        """Rows of each block → how many there are before each use, and the rows of all uses."""
        use, which = spread([len(each) for each in of_blocks], self._used)
        rows = np.array([row for each in of_blocks for row in each], np.int64)[which]
        counts = np.bincount(use, minlength=len(self._used))
        return np.cumsum(counts) - counts, self._at[use] + rows

    def _lay(self, rows: Ints) -> int:
        """Lay rows behind the others; return where they begin."""
        begin = self._length
        self._rows.append(rows)
        self._length += len(rows)
        return begin


def spread(counts: Sequence[int], used: Ints) -> tuple[Ints, Ints]:
    """Numbers of items that kinds of things have, kinds of things in turn → their items in turn.

    Parameters
    ----------
    counts : sequence of int
        Items of each kind, which are laid end to end.
    used : int64, shape (u,)
        Kinds.

    Returns
    -------
    use, item : int64, shape (n,)
        Which of `used` each item belongs to, and its place among those of all kinds.
    """
    each = np.array(counts, np.int64)
    times = each[used]
    use = np.repeat(np.arange(len(used)), times)
    moved = _starts(each)[used] - (np.cumsum(times) - times)
    return use, np.arange(len(use)) + moved[use]


def _widened(numbers: Ints, passes: int) -> Ints:
    """Return micro-batches with more columns, which repeat the first."""
    missing = passes - numbers.shape[1]
    return np.hstack([numbers, np.repeat(numbers[:, :1], missing, axis=1)]) if missing else numbers


def _starts(lengths: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])
