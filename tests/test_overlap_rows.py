"""The compiled sums and comparisons of the overlap pass against their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpisim.overlap._core.rows import (
    distinct_communications,
    distinct_rows,
    entries_of,
    fingerprint,
    fingerprint_at,
    slowdowns,
    stable_order,
    take_longest,
)

words = st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1), words), max_size=30))
def test_rows_are_alike_if_equal(drawn: list[tuple[int, int, int]]) -> None:
    first, kind = distinct_rows(np.array(drawn, np.int64).reshape(-1, 3))
    distinct = list(dict.fromkeys(drawn))
    assert [drawn[i] for i in first.tolist()] == distinct
    assert [distinct[k] for k in kind.tolist()] == drawn
    assert first.tolist() == [drawn.index(each) for each in distinct]


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 4, st.booleans()), max_size=30))
def test_communications_differ_in_some_flags(
    drawn: list[tuple[int, int, int, int, bool]],
) -> None:
    rows = [i for i, each in enumerate(drawn) if each[4]]
    operation, size, slot, flags, _ = np.array(drawn, np.int64).reshape(-1, 5).T.copy()
    for mask in (0, 1):
        first, kind = distinct_communications(
            np.array(rows, np.int64),
            operation.astype(np.uint8),
            size,
            slot.astype(np.int32),
            flags.astype(np.uint8),
            mask,
        )
        keys = [(*drawn[row][:3], drawn[row][3] & mask) for row in rows]
        distinct = list(dict.fromkeys(keys))
        assert first.tolist() == [rows[keys.index(key)] for key in distinct]
        assert [distinct[k] for k in kind.tolist()] == keys


@given(st.lists(st.integers(0, 4), max_size=30))
def test_equal_keys_stay_in_order(drawn: list[int]) -> None:
    keys = np.array(drawn, np.int64)
    assert stable_order(keys, 5).tolist() == np.argsort(keys, kind="stable").tolist()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), max_size=30),
    st.sets(st.integers(1, 6), max_size=5),
    st.data(),
)
def test_entries_are_those_of_duration_and_name(
    drawn: list[tuple[int, int]], known: set[int], data: st.DataObject
) -> None:
    lengths = sorted(known)
    entry = [[data.draw(st.integers(-1, 9)) for _ in range(3)] for _ in lengths]
    rows = [i for i in range(len(drawn)) if data.draw(st.booleans())]
    name, duration = np.array(drawn, np.int64).reshape(-1, 2).T.copy()
    found = entries_of(
        name.astype(np.int32),
        duration,
        np.array(rows, np.int64),
        np.array(lengths, np.int64),
        np.array(entry, np.int64).reshape(-1, 3),
    )
    expected = {(n, of): entry[i][n] for i, of in enumerate(lengths) for n in range(3)}
    assert found.tolist() == [expected.get(drawn[row], -1) for row in rows]


@given(st.lists(st.tuples(words, words), min_size=1, max_size=8), st.data())
def test_fingerprints_tell_arrays_apart(drawn: list[tuple[int, int]], data: st.DataObject) -> None:
    one, other = np.array(drawn, np.int64).T.copy()
    found = fingerprint(one, other).tolist()
    assert found == fingerprint(one.copy(), other.copy()).tolist()
    changed = (one.copy(), other.copy())
    which = changed[data.draw(st.integers(0, 1))]
    which[data.draw(st.integers(0, len(one) - 1))] += data.draw(st.integers(1, 5))
    assert fingerprint(*changed).tolist() != found
    if (one != other).any():
        assert fingerprint(other, one).tolist() != found
    if (one != one[::-1]).any():
        assert fingerprint(one[::-1].copy(), other).tolist() != found


@given(st.lists(words, min_size=1, max_size=8), st.data())
def test_a_fingerprint_of_some_rows(drawn: list[int], data: st.DataObject) -> None:
    values = np.array(drawn, np.int64)
    every = np.arange(len(values))
    found = fingerprint_at(every, values).tolist()
    assert found == fingerprint(values, np.zeros_like(values)).tolist()
    order = np.array(data.draw(st.permutations(every.tolist())))
    assert fingerprint_at(order, values[order]).tolist() == found
    assert fingerprint_at(every + 1, values).tolist() != found
    assert fingerprint_at(every[1:], values[1:].copy()).tolist() != found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 4)), max_size=5))
def test_parts_are_raised(parts: list[tuple[int, int, int]]) -> None:
    values, found = np.arange(10) * 7 % 10, np.arange(14) * 3 % 8
    expected = found.tolist()
    for low, begin, count in parts:
        for j in range(count):
            expected[low + j] = max(expected[low + j], int(values[begin + j]))
    take_longest(values, *np.array(parts, np.int64).reshape(-1, 3).T.copy(), found)
    assert found.tolist() == expected


KERNELS = st.tuples(
    st.integers(0, 2),
    st.one_of(st.integers(0, 9), st.integers(2**50, 2**52)),
    st.sampled_from((1.0, 1 / 3, 1.02, 7.3)),
    st.sampled_from((1.0, 1.0, 1.5, 1.0001)),
    st.booleans(),
)
"""Class, time alone, factor of the rank, slowdown, and whether it may be slowed."""


@given(st.lists(KERNELS, max_size=20))
def test_what_lasts_longer_is_added_up_by_class(
    drawn: list[tuple[int, int, float, float, bool]],
) -> None:
    kind, alone = np.array([each[:2] for each in drawn], np.int64).reshape(-1, 2).T.copy()
    scale, slower = np.array([each[2:4] for each in drawn]).reshape(-1, 2).T.copy()
    met = np.flatnonzero([each[4] for each in drawn])
    spent = (alone * scale * slower)[met]
    terms = np.stack([met * 0.5, met * 0.3], axis=1)
    by_kind, of_terms = np.zeros((3, 2), np.int64), np.zeros((3, 2), np.int64)
    which, lasting = slowdowns(kind, alone, scale, met, spent, terms, by_kind, of_terms)
    every = alone.copy()
    every[met] = np.maximum(np.rint(spent / scale[met]).astype(np.int64), alone[met])
    assert which.tolist() == np.flatnonzero(every > alone).tolist()
    assert lasting.tolist() == every[which].tolist()
    for k in range(3):
        here = (kind == k) & (every > alone)
        assert by_kind[k].tolist() == [alone[here].sum(), every[here].sum()]
        assert of_terms[k].tolist() == np.rint(terms[here[met]]).sum(axis=0).tolist()
