"""Tables from blocks: rows laid end to end, and ports replaced by the rows they represent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ProgramError
from ..program import COLUMNS, Table, columns_of
from ._core.joining import joined, waits, with_micro_batches
from .blocks import BEFORE, LAST, PENDING, Block

__all__ = ["TableAssembler"]

LAYER = list(COLUMNS).index("layer")


class TableAssembler:
    """Join blocks into a table.

    `add` resolves ports one block at a time, since they depend on all blocks before; it keeps which
    rows each port represents now. `table` copies the rows, by compiled loops over the uses.

    A port is resolved once and for all when its block is added: it names earlier rows only, and
    rows never move. So the result equals that of writing every row of the table in order.

    Parameters
    ----------
    label : str
        Of the table.
    first_layer : int
        Added to the numbers of all layers.

    Attributes
    ----------
    flops, duration : int
        Of the kernels of all blocks; the duration in ps.
    """

    def __init__(self, label: str, *, first_layer: int = 0) -> None:
        self.label, self.first_layer = label, first_layer
        self._blocks: list[Block] = []
        self._numbers: dict[int, int] = {}  # of each block, which equals itself only
        self._uses: list[tuple[int, int, tuple[int, ...]]] = []  # block, row, micro-batches
        self._outside: list[tuple[int, int]] = []
        self._length = 0
        self._last: list[int] = []
        self._before: list[int] = []
        self._pending: list[int] = []
        self._exports: dict[str, list[int]] = {}
        self.flops = self.duration = 0

    def add(self, block: Block, *micro_batches: int) -> None:
        """Append a block, with the micro-batch of each pass that alternates in it (none: -1)."""
        at = self._length
        number = self._numbers.get(id(block))
        if number is None:
            number = self._numbers[id(block)] = len(self._blocks)
            self._blocks.append(block)
        self._uses.append((number, at, micro_batches or (-1,)))
        for row, port in block.outside:
            if port == LAST:
                rows = self._last
            elif port == BEFORE:
                rows = self._before
            elif port == PENDING:
                rows = self._pending
            else:
                rows = self._exports.get(str(port), [])
            for each in rows:
                self._outside.append((at + row, each))
        if block.last >= 0:
            self._before, self._last = self._last, [at + block.last]
        if not block.keeps_pending:
            self._pending = []
        if block.pending:
            self._pending += [at + row for row in block.pending]
        if block.exports:
            for name, exported in block.exports.items():
                self._exports.setdefault(name, []).extend(at + row for row in exported)
        self._length += len(block.values)
        self.flops += block.flops
        self.duration += block.duration

    def table(self) -> Table:
        """Return the table.

        Raises
        ------
        ProgramError
            If a column cannot hold a value, such as too many micro-batches.
        """
        blocks = self._blocks
        used = np.array([number for number, _, _ in self._uses], np.int64)
        at = np.array([at for _, at, _ in self._uses], np.int64)
        passes = max(len(each) for _, _, each in self._uses)
        micro_batch = np.array(
            [each + each[:1] * (passes - len(each)) for _, _, each in self._uses], np.int64
        )
        if micro_batch.max() > np.iinfo(np.int16).max:
            raise ProgramError(
                f"table {self.label!r}: micro_batch is {micro_batch.max()}; it must be at most "
                f"{np.iinfo(np.int16).max}"
            )

        # All blocks' rows laid end to end; then for each use of a block a copy of its part.
        lengths = np.array([len(block) for block in blocks])
        values = np.concatenate([block.values for block in blocks])
        first_layer = np.repeat([block.first_layer for block in blocks], lengths)
        layers = values[:, LAYER]
        layers[layers >= 0] += (first_layer + self.first_layer)[layers >= 0]
        rows = columns_of(values, self.label)
        parts = _starts(lengths)[used], lengths[used], self._length
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
            np.array(self._outside, np.int64).reshape(-1, 2),
            self._length,
        )
        return Table(**columns, wait_index=index, wait_row=awaited, label=self.label)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])
