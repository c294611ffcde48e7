"""Which rank holds which embedding table: by hand, and what holds of every sharder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.workloads.dlrm import SHARDERS, EmbeddingTable, assign_tables

SIZES = [(100, 1), (1000, 10), (10, 90), (10**6, 2), (9, 1)]
TABLES = [EmbeddingTable(entries, 8, pooling) for entries, pooling in SIZES]
# Sizes over 8: 100, 1000, 10, 10⁶, 9.  Lookups over 8: 1, 10, 90, 2, 1.
# Lookups × log₁₀ of the entries, over 8: 2, 30, 90, 12, 0.95.


@pytest.mark.parametrize(
    ("sharder", "placed"),
    [
        ("naive", ((0, 2, 4), (1, 3))),
        ("naive-chunk", ((0, 1, 2), (3, 4))),
        # Equal widths: the largest first (3, 1, 0, 2, 4), alternately to who has less: ranks
        # 0, 1; then equal in width, rank 1 has less of size: 0; then 2 to rank 0; equal, 4 to 1.
        ("dim-greedy", ((2, 3), (0, 1, 4))),
        ("size-greedy", ((3,), (0, 1, 2, 4))),
        # 2 (90) to 0; 1 (10) to 1; 3 (2) to 1; of the two with 1 the larger, 0, then 4: to 1.
        ("lookup-greedy", ((2,), (0, 1, 3, 4))),
        ("size-lookup-greedy", ((2,), (0, 1, 3, 4))),
    ],
)
def test_placement_by_hand(sharder: str, placed: tuple[tuple[int, ...], ...]) -> None:
    assert assign_tables(sharder, TABLES, 2) == placed


def test_greedy_sharders_differ_in_their_cost() -> None:
    # Size: 3 to 0; 1 to 1; 0 to 2; 2 to 2 (100 < 1000); 4 to 2.
    assert assign_tables("size-greedy", TABLES, 3) == ((3,), (1,), (0, 2, 4))
    # Lookups: 90 to 0; 10 to 1; 2 to 2; 1 (0) to 2; 1 (4) to 2.
    assert assign_tables("lookup-greedy", TABLES, 3) == ((2,), (1,), (0, 3, 4))
    # Lookups an entry: 2 (9) to 0; 4 (1/9) to 1; of two with 1/100 the larger, 1, then 0: to 2; 3.
    assert assign_tables("norm-lookup-greedy", TABLES, 3) == ((2,), (4,), (0, 1, 3))
    # With 50 lookups in table 1 and 20 in table 3, by lookups 90, 50, 20, 1, 1; times the logarithm
    # of the entries 90, 150, 120, 2, 0.95: of three ranks the first takes table 2 or table 1.
    tables = [*TABLES]
    tables[1], tables[3] = EmbeddingTable(1000, 8, 50), EmbeddingTable(10**6, 8, 20)
    assert assign_tables("lookup-greedy", tables, 3) == ((2,), (1,), (0, 3, 4))
    assert assign_tables("size-lookup-greedy", tables, 3) == ((1,), (3,), (0, 2, 4))


@given(
    sharder=st.sampled_from(sorted(SHARDERS)),
    ranks=st.integers(1, 9),
    sizes=st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 99)), min_size=1, max_size=40),
)
def test_every_table_is_placed_once(sharder: str, ranks: int, sizes: list[tuple[int, int]]) -> None:
    tables = [EmbeddingTable(entries, 16, pooling) for entries, pooling in sizes]
    placed = assign_tables(sharder, tables, ranks)
    assert sorted(number for numbers in placed for number in numbers) == list(range(len(tables)))
    assert assign_tables(sharder, tables, ranks) == placed
    if sharder.endswith("greedy"):
        # No rank has more than another by more than its dearest table.
        cost = {
            "dim-greedy": lambda t: t.width,
            "bytes-greedy": lambda t: t.entries * t.width,
            "size-greedy": lambda t: t.entries,
            "lookup-greedy": lambda t: t.width * t.pooling,
            "norm-lookup-greedy": lambda t: t.pooling / t.entries,
            "size-lookup-greedy": lambda t: t.width * t.pooling * np.log10(t.entries),
        }[sharder]
        sums = [sum(cost(tables[i]) for i in numbers) for numbers in placed]
        for numbers, own in zip(placed, sums, strict=True):
            least = min((cost(tables[i]) for i in numbers), default=0)
            assert own - least <= min(sums) + 1e-6
