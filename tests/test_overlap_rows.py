"""The compiled sums and comparisons of the overlap pass against their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpisim.overlap._core.rows import add_slowdowns, distinct_rows, fingerprint

words = st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1), words), max_size=30))
def test_rows_are_alike_if_equal(drawn: list[tuple[int, int, int]]) -> None:
    first, kind = distinct_rows(np.array(drawn, np.int64).reshape(-1, 3))
    distinct = list(dict.fromkeys(drawn))
    assert [drawn[i] for i in first.tolist()] == distinct
    assert [distinct[k] for k in kind.tolist()] == drawn
    assert first.tolist() == [drawn.index(each) for each in distinct]


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


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 3)), max_size=20))
def test_what_lasts_longer_is_added_up_by_class(drawn: list[tuple[int, int, int]]) -> None:
    kind, alone, more = np.array(drawn, np.int64).reshape(-1, 3).T.copy()
    rows = np.flatnonzero(more != 2)  # the others have no terms
    terms = np.zeros((len(more), 2))
    terms[rows] = np.stack([more * 0.5, more * 0.3], axis=1)[rows]
    spent, of_terms = np.zeros((3, 2), np.int64), np.zeros((3, 2), np.int64)
    add_slowdowns(kind, alone, alone + more, rows, terms[rows], spent, of_terms)
    for k in range(3):
        here = (kind == k) & (more > 0)
        assert spent[k].tolist() == [alone[here].sum(), (alone + more)[here].sum()]
        assert of_terms[k].tolist() == np.rint(terms[here]).sum(axis=0).tolist()
