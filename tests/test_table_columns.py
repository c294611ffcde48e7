"""The compiled loops over the columns of a table against their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpisim.program._core.columns import communications_by_slot, counts_below, sum_of_sizes

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
