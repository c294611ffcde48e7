"""The compiled loops that join blocks, against their definitions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpisim.workloads._core.joining import joined, waits, with_micro_batches

blocks = st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=4)
"""Of each row of some blocks a number: its value, its lane, and how far back it waits."""


@given(blocks, st.data())
def test_a_table_is_its_blocks_one_after_another(
    drawn: list[list[int]], data: st.DataObject
) -> None:
    used = data.draw(st.lists(st.integers(0, len(drawn) - 1), max_size=6))
    length = np.array([len(each) for each in drawn])
    first = np.concatenate([[0], np.cumsum(length)[:-1]])
    parts = first[used].astype(np.int64), length[used].astype(np.int64)
    n = int(parts[1].sum())
    values = [value for block in drawn for value in block]
    expected = [value for number in used for value in drawn[number]]
    for dtype in (np.uint8, np.int16, np.int32, np.int64):
        found = joined(np.array(values, dtype), *parts, n)
        assert found.dtype == dtype
        assert found.tolist() == expected
    micro_batch = np.arange(4 * len(used), dtype=np.int16).reshape(-1, 4)
    assert with_micro_batches(np.array(values, np.int16), *parts, n, micro_batch).tolist() == [
        4 * u + lane for u, number in enumerate(used) for lane in drawn[number]
    ]

    # Rows await rows of their block before them, and the table's first where drawn.
    pairs = [[(i, i - k - 1) for i, k in enumerate(each) if k < i] for each in drawn]
    counts = np.array([len(each) for each in pairs])
    begin = np.concatenate([[0], np.cumsum(counts)[:-1]])
    inside = np.array([pair for each in pairs for pair in each], np.int64).reshape(-1, 2)
    move = np.concatenate([[0], np.cumsum(parts[1])[:-1]]).astype(np.int64)[: len(used)]
    outside = [(row, 0) for row in range(1, n) if data.draw(st.booleans())]
    index, row = waits(
        inside[:, 0].copy(),
        inside[:, 1].copy(),
        begin[used].astype(np.int64),
        counts[used].astype(np.int64),
        move,
        np.array(outside, np.int64).reshape(-1, 2),
        n,
    )
    awaited: list[list[int]] = [[] for _ in range(n)]
    for at, number in zip(move.tolist(), used, strict=True):
        for waiter, other in pairs[number]:
            awaited[at + waiter].append(at + other)
    for waiter, other in outside:
        awaited[waiter].append(other)
    assert [row[a:b].tolist() for a, b in pairwise(index.tolist())] == [
        sorted(each) for each in awaited
    ]
