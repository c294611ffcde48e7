"""Embedding tables: rows looked up, or gradients added → bytes of memory traffic."""

from __future__ import annotations

from typing import ClassVar

from mpisim.base.frozen import frozen

from .kernel import BYTES, Kernel, Precision

__all__ = ["CACHE_BYTES", "Embedding", "EmbeddingTables"]

CACHE_BYTES = tuple(1 << exponent for exponent in range(20, 28))
"""Sizes of caches, 1 to 128 MiB, for which lookups in tables say what misses."""


@frozen
class Embedding(Kernel):
    """Look up rows of a table, or add gradients to them.

    Attributes
    ----------
    lookups : int
        Rows read, with repetition.
    width : int
        Elements of a row.
    entries : int
        Rows of the table.
    pooling : int
        Lookups added into one output row; 1 for a language model.
    backward : bool
    dtype : Precision
    outputs : int, optional
        Output rows, where one kernel serves tables of different pooling; otherwise as many as
        `pooling` makes of the lookups.
    sorts : bool
        Whether a gradient's time holds the sort of the indices; otherwise other kernels sort them.
    """

    family: ClassVar[str] = "embedding"
    lookups: int
    width: int
    entries: int
    pooling: int = 1
    backward: bool = False
    dtype: Precision = "bf16"
    outputs: int | None = None
    sorts: bool = True

    @property
    def traffic(self) -> int:
        """Bytes: rows read, outputs written; backward gradients read, rows read and written."""
        row = BYTES[self.dtype] * self.width
        outputs = self.outputs or -(-self.lookups // self.pooling)
        indices = 8 * self.lookups
        return indices + row * (outputs + self.lookups * (2 if self.backward else 1))


@frozen
class EmbeddingTables(Kernel):
    """Look up and pool rows of several tables in one kernel, or add gradients to them.

    FBGEMM's table-batched embeddings, for tables of any width and accesses of any skew.

    Attributes
    ----------
    lookups : int
        Rows read, with repetition.
    row_bytes : int
        Of all these rows.
    distinct_bytes : int
        Of the rows without repetition.
    output_bytes : int
        Of the pooled rows.
    missed : tuple of int
        Bytes of the rows that caches of `CACHE_BYTES` miss: the miss-ratio curve of the accesses.
    backward : bool
    dtype : Precision
    """

    family: ClassVar[str] = "embedding"
    lookups: int
    row_bytes: int
    distinct_bytes: int
    output_bytes: int
    missed: tuple[int, ...]
    backward: bool = False
    dtype: Precision = "fp32"

    @property
    def traffic(self) -> int:
        """Bytes: rows read, outputs written; backward gradients read, rows read and written."""
        return 8 * self.lookups + self.output_bytes + self.row_bytes * (2 if self.backward else 1)
