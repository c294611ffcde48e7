"""Small kernels that find out which token goes where: little work, but each is launched.

As Megatron-LM has them (``megatron/core/transformer/moe/token_dispatcher.py``): sums of the map of
tokens to experts, and the rows of copies, which Transformer Engine finds in three kernels
(``transformer_engine/pytorch/triton/permutation.py``, `make_row_id_map`) that work on one or two
numbers for each token and expert.
"""

from __future__ import annotations

from mpisim.kernels.operations import Elementwise

from ..operators import Compute

__all__ = ["FLAG", "chunk_rows", "count_sums", "local_counts", "token_rows"]

FLAG = 1
"""Bytes of an entry of the map of tokens to experts."""
ROW = 4
"""Bytes of a row's number."""
SUMS = 5
"""What each rank sends and gets, and what each of its experts does: four sums, and a copy."""


def local_counts(tokens: int, experts: int) -> Compute:
    """Tokens of each expert on this rank."""
    return Compute("token counts", Elementwise(FLAG * tokens * experts))


def count_sums(size: int) -> Compute:
    """Sums of all ranks' counts, `size` bytes of them (`preprocess`)."""
    return Compute("token count sums", Elementwise(size), launches=SUMS)


def token_rows(tokens: int, experts: int) -> Compute:
    """Rows of the copies of tokens: counted within blocks, over blocks, and put in order.

    A flag is read and a number written; it is read and written; read, and two are written.
    """
    traffic = (FLAG + ROW) + 2 * ROW + 3 * ROW
    return Compute("token rows", Elementwise(traffic * tokens * experts), launches=3)


def chunk_rows(rows: int) -> Compute:
    """Rows of the copies by expert, where they came by rank (`make_chunk_sort_map`)."""
    return Compute("chunk rows", Elementwise(ROW * rows))
