"""From blocks to a table: blocks, each used for many micro-batches, joined by array operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ProgramError
from ..program import COLUMNS, Table, columns_of
from ._core.joining import joined, numbered, waits
from .blocks import BEFORE, LAST, PENDING, Block

__all__ = ["TableAssembler"]

LAYER = list(COLUMNS).index("layer")


class TableAssembler:
    """Joins blocks into a table.

    Parameters
    ----------
    label : str
    further : int
        Added to the numbers of all layers.
    """

    def __init__(self, label: str, *, further: int = 0) -> None:
        self.label, self.further = label, further
        self._blocks: dict[int, Block] = {}
        self._used: list[tuple[Block, int, tuple[int, ...]]] = []
        self._outside: list[tuple[int, int]] = []
        self._length = 0
        self._last: list[int] = []
        self._before: list[int] = []
        self._pending: list[int] = []
        self._exports: dict[str, list[int]] = {}
        self.flops = self.duration = 0

    def add(self, block: Block, *micro_batches: int) -> None:
        """Append a block, the rows of its lanes tagged with a micro-batch each (none: -1)."""
        at = self._length
        self._blocks[id(block)] = block
        self._used.append((block, at, micro_batches or (-1,)))
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
        if not block.hands_on:
            self._pending = []
        if block.pending:
            self._pending += [at + row for row in block.pending]
        for name, exported in block.exports.items():
            self._exports.setdefault(name, []).extend(at + row for row in exported)
        self._length += block.values.shape[0]
        self.flops += block.flops
        self.duration += block.duration

    def table(self) -> Table:
        """Return the table.

        Raises
        ------
        ProgramError
            If a column cannot hold a value, such as too many micro-batches.
        """
        blocks = list(self._blocks.values())
        place = {key: i for i, key in enumerate(self._blocks)}
        used = np.array([place[id(block)] for block, _, _ in self._used], np.int64)
        at = np.array([at for _, at, _ in self._used], np.int64)
        lanes = max(len(each) for _, _, each in self._used)
        micro_batch = np.array(
            [each + each[:1] * (lanes - len(each)) for _, _, each in self._used], np.int64
        )
        if micro_batch.max() > np.iinfo(np.int16).max:
            raise ProgramError(
                f"table {self.label!r}: micro_batch is {micro_batch.max()}; it must be at most "
                f"{np.iinfo(np.int16).max}"
            )

        # Rows: for each use of a block, its rows of all blocks' rows laid end to end.
        lengths = np.array([len(block) for block in blocks])
        values = np.concatenate([block.values for block in blocks])
        numbers = values[:, LAYER]
        numbers[numbers >= 0] += self.further
        rows = columns_of(values, self.label)
        part = _starts(lengths)[used], lengths[used], self._length
        lane = rows.pop("micro_batch")
        columns: dict[str, Any] = {name: joined(values, *part) for name, values in rows.items()}
        columns["micro_batch"] = numbered(lane, *part, micro_batch.astype(np.int16))

        # Waits inside blocks in the same way, moved to where each block stands; then the others.
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
