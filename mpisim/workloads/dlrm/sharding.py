"""Embedding tables → ranks that hold them: the sharders of Lin et al. (arXiv:2404.12674).

The paper's table of sharders, for tables x with E rows, width D and L lookups a sample:

==================  ========================  ===================================================
here                in the paper              rank, or cost of a table
==================  ========================  ===================================================
naive               naive                     x.index mod ranks
random              random                    random(ranks), always the same draw
size-greedy         size_greedy               x.E
lookup-greedy       lookup_greedy             x.L * x.D
norm-lookup-greedy  norm_lookup_greedy        x.L / x.E
size-lookup-greedy  size_lookup_greedy        x.L * x.D * log10(x.E)
bytes-greedy        -                         x.E * x.D
dim-greedy          -                         x.D
naive-chunk         -                         consecutive tables, the first ranks have one more
==================  ========================  ===================================================

Code and paper differ in two places. ``size_greedy`` of github.com/daochenzha/dreamshard
(``dreamshard/sharders.py``), from which the tasks come, costs E D, the memory of a table: that is
bytes-greedy here; where all widths are equal both are the same. The logarithm is printed with and
without its base, which does not change an order; the code has base 10. Of the others,
dim-greedy is that code's and naive-chunk that of facebookresearch/dlrm (``extend_distributed.py``,
`get_my_slice`); ``run_random_experiments.sh`` of github.com/owensgroup/ml_perf_model runs both.

How a greedy sharder assigns is the code's, where the paper is silent: the dearest table first, each
to the rank that has the least so far; of equal costs the larger table, of equal sizes the later; of
equal ranks the one with fewer elements. Ranks without room for a table are passed over, if it is
said how much room there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...base.errors import InputError
from .tables import EmbeddingTable

__all__ = ["COSTS", "RULES", "SHARDERS", "TableAssignment", "assign_tables", "sharded"]

TableAssignment = tuple[tuple[int, ...], ...]
"""Of each rank the numbers of its tables, ascending."""

RANDOM_SHARDER_SEED = 0
"""Of the random sharder."""

Sharder = Callable[[Sequence[EmbeddingTable], int, float], list[int]]
"""Tables, ranks, elements that a rank has room for → the rank of each table."""


def assign_tables(
    sharder: str, tables: Sequence[EmbeddingTable], ranks: int, room: float = math.inf
) -> TableAssignment:
    """Tables, number of ranks → the tables of each rank.

    Parameters
    ----------
    sharder : str
        A key of `SHARDERS`.
    tables : sequence of EmbeddingTable
    ranks : int
    room : float
        Elements that each rank can hold; only the greedy sharders heed it.

    Returns
    -------
    tuple of tuple of int
        Of each rank the numbers of its tables, ascending; a rank may have none.
    """
    of = sharded(sharder, tables, ranks, room)
    return tuple(
        tuple(number for number, rank in enumerate(of) if rank == here) for here in range(ranks)
    )


def sharded(
    sharder: str, tables: Sequence[EmbeddingTable], ranks: int, room: float = math.inf
) -> list[int]:
    """Return the rank of each table; parameters as of `assign_tables`.

    Raises
    ------
    InputError
        If a greedy sharder finds no rank with room for a table.
    """
    return SHARDERS[sharder](tables, ranks, room)


def _naive(tables: Sequence[EmbeddingTable], ranks: int, room: float) -> list[int]:
    return [number % ranks for number in range(len(tables))]


def _naive_chunk(tables: Sequence[EmbeddingTable], ranks: int, room: float) -> list[int]:
    each, more = divmod(len(tables), ranks)
    return [rank for rank in range(ranks) for _ in range(each + (rank < more))]


def _random(tables: Sequence[EmbeddingTable], ranks: int, room: float) -> list[int]:
    drawn: list[int] = (
        np.random.default_rng(RANDOM_SHARDER_SEED).integers(ranks, size=len(tables)).tolist()
    )
    return drawn


def _greedy(cost: Callable[[EmbeddingTable], float]) -> Sharder:
    """Cost of a table → the sharder that gives the dearest first, each to who has least."""

    def sharder(tables: Sequence[EmbeddingTable], ranks: int, room: float) -> list[int]:
        costs, sizes = [0.0] * ranks, [0] * ranks
        of = [0] * len(tables)
        order = sorted(
            range(len(tables)), key=lambda i: (cost(tables[i]), tables[i].size, i), reverse=True
        )
        for number in order:
            table = tables[number]
            open_ = [rank for rank in range(ranks) if sizes[rank] + table.size <= room]
            if not open_:
                raise InputError(f"no rank has room for table {number}: {table.size:,} elements")
            rank = min(open_, key=lambda r: (costs[r], sizes[r]))
            of[number] = rank
            costs[rank] += cost(table)
            sizes[rank] += table.size
        return of

    return sharder


COSTS: Mapping[str, Callable[[EmbeddingTable], float]] = {
    "dim-greedy": lambda x: x.width,
    "bytes-greedy": lambda x: x.entries * x.width,
    "size-greedy": lambda x: x.entries,
    "lookup-greedy": lambda x: x.pooling * x.width,
    "norm-lookup-greedy": lambda x: x.pooling / x.entries,
    "size-lookup-greedy": lambda x: x.pooling * x.width * math.log10(x.entries),
}
"""What the greedy sharders balance."""

RULES: Mapping[str, str] = {
    "naive": "x.index mod ranks",
    "naive-chunk": "consecutive tables",
    "random": "random(ranks)",
    "dim-greedy": "x.D",
    "bytes-greedy": "x.E * x.D",
    "size-greedy": "x.E",
    "lookup-greedy": "x.L * x.D",
    "norm-lookup-greedy": "x.L / x.E",
    "size-lookup-greedy": "x.L * x.D * log10(x.E)",
}
"""Rule or cost of each sharder, as the paper prints them."""

SHARDERS: Mapping[str, Sharder] = {
    "naive": _naive,
    "naive-chunk": _naive_chunk,
    "random": _random,
    **{name: _greedy(cost) for name, cost in COSTS.items()},
}
"""The values of ``plan.tables.sharder``."""
