"""The compiled loops over the rows and columns of a table against their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpisim.program._core.building import rows_as_arrays
from mpisim.program._core.columns import communications_by_slot, counts_below, sum_of_sizes
from mpisim.workloads._core.joining import waits_inside

rows_of = st.tuples(st.integers(0, 6), st.integers(0, 12), st.integers(-1, 4))


@given(st.lists(rows_of, max_size=30))
def test_communications_are_sorted_by_slot(drawn: list[tuple[int, int, int]]) -> None:
    kind, operation, slot = np.array(drawn, np.int64).reshape(-1, 3).T
    rows, order, operations, kinds, bits = communications_by_slot(
        kind.astype(np.uint8), operation.astype(np.uint8), slot.astype(np.int32)
    )
    expected = [i for i, (_, _, on) in enumerate(drawn) if on >= 0]
    assert rows.tolist() == expected
    by_slot = sorted(expected, key=lambda i: drawn[i][2])
    assert rows[order].tolist() == by_slot
    n_slots = max((on for _, _, on in drawn), default=-1) + 1
    here = [[each for each in drawn if each[2] == on] for on in range(n_slots)]
    assert operations.tolist() == [len(some) for some in here]
    assert kinds.tolist() == [sum({1 << what for what, _, _ in some}) for some in here]
    assert bits.tolist() == [sum({1 << what for _, what, _ in some}) for some in here]
    for end in range(len(drawn) + 1):
        below = counts_below(rows, slot.astype(np.int32), n_slots, end)
        assert below.tolist() == [sum(on == s for *_, on in drawn[:end]) for s in range(n_slots)]


@given(st.lists(st.tuples(*[st.integers(-(2**40), 2**40)] * 4), max_size=30))
def test_sizes_are_added_up(drawn: list[tuple[int, int, int, int]]) -> None:
    columns = np.array(drawn, np.int64).reshape(-1, 4).T.copy()
    assert sum_of_sizes(*columns) == np.abs(columns).sum()


ROWS, FLAGGED = st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 3)), 2
"""Rows of a number and flags, and the flag of rows in one batch with the row before."""


@given(st.lists(ROWS, max_size=12), st.data())
def test_rows_become_arrays(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    n = len(rows)
    waits = data.draw(
        st.lists(st.lists(st.integers(-3, n + 1), max_size=3), min_size=n, max_size=n)
    )
    later = data.draw(st.lists(st.integers(0, n), max_size=4))
    tagged = [(row, (i, -i)) for i, row in enumerate([0, *sorted(later)])]
    counts, awaited = [len(each) for each in waits], [row for each in waits for row in each]
    values, index, found = rows_as_arrays(rows, tagged, counts, awaited, 4, 1, FLAGGED)
    tags = [[tag for row, tag in tagged if row <= i][-1] for i in range(n)]
    assert values.shape == (n, 4)
    assert values.tolist() == [[*row, *tag] for row, tag in zip(rows, tags, strict=True)]
    assert index.tolist() == [sum(counts[:i]) for i in range(n + 1)]

    def last(row: int) -> int:
        while 0 <= row < n - 1 and rows[row + 1][1] & FLAGGED:
            row += 1
        return row

    assert found.tolist() == [last(row) for row in awaited]


@given(st.lists(st.lists(st.integers(-3, 9), max_size=4), max_size=8))
def test_waits_are_for_rows_or_ports(waits: list[list[int]]) -> None:
    index = np.cumsum([0, *map(len, waits)])
    awaited = np.array([row for each in waits for row in each], np.int64)
    waiter, inside, outside = waits_inside(index, awaited)
    pairs = [(i, row) for i, each in enumerate(waits) for row in each]
    assert [*zip(waiter.tolist(), inside.tolist(), strict=True)] == [p for p in pairs if p[1] >= 0]
    assert outside == [pair for pair in pairs if pair[1] < 0]
