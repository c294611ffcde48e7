"""Which rank holds which embedding tables: the sharders that Lin et al. compare (arXiv:2404.12674).

Names are those of their experiments (github.com/owensgroup/ml_perf_model,
``run_random_experiments.sh``), the costs those of github.com/daochenzha/dreamshard
(``dreamshard/sharders.py``), from which their tasks come:

naive
    Round robin.
naive-chunk
    Consecutive tables, as facebookresearch/dlrm places them (``extend_distributed.py``,
    `get_my_slice`): the first ranks have one more.
random
    Each table on a rank drawn by itself, always the same draw.
dim-greedy, size-greedy, lookup-greedy, norm-lookup-greedy, size-lookup-greedy
    The dearest table first, each to the rank that has the least so far. A table's cost is its width
    D, its elements E D, what a sample reads D L, its lookups an entry L / E (the paper's table of
    sharders), or D L log₁₀ E; for E entries and L lookups.

Memory is no limit here; whether tables fit is for the memory model to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...base.frozen import frozen

__all__ = ["SHARDERS", "EmbeddingTable", "TableAssignment", "assign_tables"]

TableAssignment = tuple[tuple[int, ...], ...]
"""Of each rank the numbers of its tables, ascending."""

RANDOM_SHARDER_SEED = 0
"""Of the random sharder."""


@frozen
class EmbeddingTable:
    """An embedding table.

    Attributes
    ----------
    entries : int
        Rows.
    width : int
        Elements of a row.
    pooling : int
        Rows that one sample looks up.
    """

    entries: int
    width: int
    pooling: int

    @property
    def size(self) -> int:
        """Elements."""
        return self.entries * self.width


Sharder = Callable[[Sequence[EmbeddingTable], int], list[int]]
"""Returns the rank of each table."""


def assign_tables(sharder: str, tables: Sequence[EmbeddingTable], ranks: int) -> TableAssignment:
    """Tables and number of ranks → which rank holds which tables.

    Parameters
    ----------
    sharder : str
        A key of `SHARDERS`.
    tables : sequence of EmbeddingTable
    ranks : int

    Returns
    -------
    tuple of tuple of int
        Of each rank the numbers of its tables, ascending; a rank may have none.
    """
    of = SHARDERS[sharder](tables, ranks)
    return tuple(
        tuple(number for number, rank in enumerate(of) if rank == here) for here in range(ranks)
    )


def _naive(tables: Sequence[EmbeddingTable], ranks: int) -> list[int]:
    return [number % ranks for number in range(len(tables))]


def _naive_chunk(tables: Sequence[EmbeddingTable], ranks: int) -> list[int]:
    each, more = divmod(len(tables), ranks)
    return [rank for rank in range(ranks) for _ in range(each + (rank < more))]


def _random(tables: Sequence[EmbeddingTable], ranks: int) -> list[int]:
    drawn: list[int] = (
        np.random.default_rng(RANDOM_SHARDER_SEED).integers(ranks, size=len(tables)).tolist()
    )
    return drawn


def _greedy(cost: Callable[[EmbeddingTable], float]) -> Sharder:
    """The dearest table first; of equal costs the larger, of equal sizes the later in the list.

    It goes to the rank with the least cost; of these to one with the least elements, of these to
    the first.
    """

    def sharder(tables: Sequence[EmbeddingTable], ranks: int) -> list[int]:
        costs, sizes = [0.0] * ranks, [0] * ranks
        of = [0] * len(tables)
        order = sorted(
            range(len(tables)), key=lambda i: (cost(tables[i]), tables[i].size, i), reverse=True
        )
        for number in order:
            rank = min(range(ranks), key=lambda r: (costs[r], sizes[r]))
            of[number] = rank
            costs[rank] += cost(tables[number])
            sizes[rank] += tables[number].size
        return of

    return sharder


SHARDERS: Mapping[str, Sharder] = {
    "naive": _naive,
    "naive-chunk": _naive_chunk,
    "random": _random,
    "dim-greedy": _greedy(lambda table: table.width),
    "size-greedy": _greedy(lambda table: table.size),
    "lookup-greedy": _greedy(lambda table: table.width * table.pooling),
    "norm-lookup-greedy": _greedy(lambda table: table.pooling / table.entries),
    "size-lookup-greedy": _greedy(
        lambda table: table.width * table.pooling * math.log10(table.entries)
    ),
}
"""The values of ``plan.sharder``."""
