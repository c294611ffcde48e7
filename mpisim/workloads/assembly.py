"""Blocks in the order of a schedule → table, with ports replaced by rows.

A table uses its blocks thousands of times, in the order of the schedule. The uses are therefore
arrays: compiled loops copy the rows, then go once through the uses and replace each port by the row
that it stands for at that point (`port_waits`).

A port names earlier rows only, and rows never move. So the result equals that of writing every row
of the table in order.

The arrays made of blocks before they are copied (`_Blocks`) do not depend on the stage: tables of
the same blocks, as most stages of a pipeline have, share them through an `AssembledBlocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ProgramError
from ..program import COLUMNS, Table, columns_of
from ._core.joining import joined, port_waits, waits, with_micro_batches
from .block_rows import BEFORE, LAST, PENDING, RowBlock

__all__ = ["AssembledBlocks", "TableAssembler", "spread"]

LAYER = list(COLUMNS).index("layer")

Ints = NDArray[np.int64]


class _Blocks(NamedTuple):
    """Blocks end to end.

    Attributes
    ----------
    blocks : tuple of RowBlock
    lengths : int64, shape (b,)
        Rows of each.
    columns : mapping of str to array, shape (rows,)
        Of `Table`, sound; layers are those of the first stage that has these blocks.
    layer : int64, shape (rows,)
        Numbers of layers, to which a table adds its own; -1: none.
    n_waits : int64, shape (b,)
        Waits inside each.
    waiter, awaited : int64
        Of all, as in `RowBlock`.
    ports : tuple of arrays, and the number of ports
        What `port_waits` takes of blocks.
    """

    blocks: tuple[RowBlock, ...]
    lengths: Ints
    columns: dict[str, Any]
    layer: Ints
    n_waits: Ints
    waiter: Ints
    awaited: Ints
    ports: tuple[Any, ...]


class AssembledBlocks:
    """Blocks laid end to end, kept for further tables of the same blocks."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], _Blocks] = {}

    def of(self, blocks: Sequence[RowBlock], label: str) -> _Blocks:
        """Return blocks end to end; refuse rows that no rank could execute.

        Parameters
        ----------
        blocks : sequence of RowBlock
        label : str
            Of the table, for messages.
        """
        key = tuple(map(id, blocks))  # of what is kept alive in `_Blocks.blocks`
        if key not in self._known:
            self._known[key] = _end_to_end(blocks, label)
        return self._known[key]


class TableAssembler:
    """Join blocks into a table.

    Parameters
    ----------
    label : str
        Of the table.
    first_layer : int
        Added to the numbers of all layers.
    known : AssembledBlocks, optional
        Of tables that have blocks in common.
    """

    def __init__(
        self, label: str, *, first_layer: int = 0, known: AssembledBlocks | None = None
    ) -> None:
        self.label, self.first_layer = label, first_layer
        self._known = AssembledBlocks() if known is None else known
        self._blocks: list[RowBlock] = []
        self._numbers: dict[int, int] = {}  # of each block, which equals itself only
        self._used: list[Ints] = []  # numbers of blocks, in the order of the table
        self._micro_batches: list[Ints] = []  # of each use, shape (uses, passes)

    def add(self, block: RowBlock, *micro_batches: int) -> None:
        """Append a block, with the micro-batch of each pass that alternates in it (none: -1)."""
        self.extend([block], np.zeros(1, np.int64), np.array([micro_batches or (-1,)], np.int64))

    def extend(self, blocks: Sequence[RowBlock], used: Ints, micro_batches: Ints) -> None:
        """Append blocks, each as often as it is used.

        Parameters
        ----------
        blocks : sequence of RowBlock
        used : int64, shape (u,)
            Indices into `blocks`, in the order of the table.
        micro_batches : int64, shape (u, passes)
            Of each pass that alternates in the block; a block with fewer passes has any numbers in
            the rest.
        """
        numbers = np.array([self._number(each) for each in blocks], np.int64)
        self._used.append(numbers[used])
        self._micro_batches.append(micro_batches)

    def _number(self, block: RowBlock) -> int:
        number = self._numbers.setdefault(id(block), len(self._blocks))
        if number == len(self._blocks):
            self._blocks.append(block)
        return number

    @property
    def flops(self) -> int:
        """FLOP of the kernels of all uses."""
        return self._total([block.flops for block in self._blocks])

    @property
    def duration(self) -> int:
        """Duration of the kernels of all uses, in ps."""
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
        rows = self._known.of(blocks, self.label)
        ends = np.cumsum(rows.lengths[used])
        at, n = ends - rows.lengths[used], int(ends[-1])
        parts = _starts(rows.lengths)[used], rows.lengths[used], n
        columns: dict[str, Any] = {
            name: joined(values, *parts)
            for name, values in rows.columns.items()
            if name not in ("layer", "micro_batch")
        }
        columns["layer"] = joined(self._layers(rows), *parts)
        which = rows.columns["micro_batch"]
        columns["micro_batch"] = with_micro_batches(which, *parts, micro_batch.astype(np.int16))

        # Waits inside blocks in the same way, moved to where each use begins; then the others.
        index, awaited = waits(
            rows.waiter,
            rows.awaited,
            _starts(rows.n_waits)[used],
            rows.n_waits[used],
            at,
            port_waits(used, at, *rows.ports),
            n,
        )
        # Sound, since rows are copies of sound ones, and name earlier ones: see the module's head.
        return Table(**columns, wait_index=index, wait_row=awaited, label=self.label, checked=True)

    def _layers(self, rows: _Blocks) -> NDArray[np.int16]:
        """Return the numbers of layers of all blocks' rows in this table."""
        layer = np.where(rows.layer >= 0, rows.layer + self.first_layer, rows.layer)
        if layer.max(initial=0) > np.iinfo(np.int16).max:
            raise ProgramError(
                f"table {self.label!r}: layer is {layer.max()}; it must be at most "
                f"{np.iinfo(np.int16).max}"
            )
        return layer.astype(np.int16)


def _end_to_end(blocks: Sequence[RowBlock], label: str) -> _Blocks:
    """Lay blocks end to end; refuse rows that no rank could execute."""
    lengths = np.array([len(block) for block in blocks])
    values = np.concatenate([block.values for block in blocks])
    layer = values[:, LAYER]
    layer[layer >= 0] += np.repeat([block.first_layer for block in blocks], lengths)[layer >= 0]
    return _Blocks(
        blocks=tuple(blocks),
        lengths=lengths,
        columns=_checked(values, label),
        layer=layer.copy(),
        n_waits=np.array([len(block.waiter) for block in blocks]),
        waiter=np.concatenate([block.waiter for block in blocks]),
        awaited=np.concatenate([block.awaited for block in blocks]),
        ports=_ports(blocks),
    )


def _checked(values: Ints, label: str) -> dict[str, Any]:
    """Rows of all blocks, end to end → their columns; refuse rows that no rank could execute.

    A block begins with a launch of its own, so what a row asks of the row before it holds, or does
    not, wherever the block is used.
    """
    columns = columns_of(values, label)
    none = np.zeros(len(values) + 1, np.int64), np.zeros(0, np.int32)
    Table(**columns, wait_index=none[0], wait_row=none[1], label=label)
    return columns


def _ports(blocks: Sequence[RowBlock]) -> tuple[Any, ...]:
    """Return the arguments of `port_waits` from blocks: kernels, pending waits, exports, ports."""
    ports: dict[str | int, int] = {LAST: 0, BEFORE: 1, PENDING: 2}

    def numbered(pairs: Sequence[Sequence[tuple[int, str | int]]]) -> tuple[Ints, Ints]:
        """Pairs of row and port of each block → start of each block, and all pairs, numbered."""
        counts = [len(each) for each in pairs]
        found = [(row, ports.setdefault(port, len(ports))) for each in pairs for row, port in each]
        return _index(counts), np.array(found, np.int64).reshape(-1, 2)

    exports = [
        [(row, name) for name, rows in block.exports.items() for row in rows] for block in blocks
    ]
    exported, awaited = numbered(exports), numbered([block.outside for block in blocks])
    return (
        np.array([block.last for block in blocks], np.int64),
        np.array([block.keeps_pending for block in blocks], np.uint8),
        _index([len(block.pending) for block in blocks]),
        np.array([row for block in blocks for row in block.pending], np.int64),
        *exported,
        *awaited,
        len(ports) - 3,
    )


def spread(counts: Sequence[int], used: Ints) -> tuple[Ints, Ints]:
    """Number of items of each kind, sequence of kinds → indices of the items in that sequence.

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
    return _index(lengths)[:-1]


def _index(lengths: Sequence[int] | Ints) -> Ints:
    """Lengths of consecutive parts → start of each part, and end of the last one."""
    found = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=found[1:])
    return found
