"""The compiled loops of the overlap pass against the definitions, moment by moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpisim.overlap.timeline import KernelFactors, load_intervals, slowed_kernels

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

moments = st.tuples(
    st.integers(0, 30), st.integers(0, 10), st.integers(1, 20), st.integers(1, 8), st.integers(0, 9)
)
"""Begin, time until data moves, time after that, multiprocessors, bandwidth."""


def columns(drawn: list[tuple[int, ...]]) -> list[Ints]:
    """Begin, wire, end, taken, bandwidth of communications."""
    begin, wait, moving, taken, bandwidth = np.array(drawn, np.int64).T
    return [
        np.ascontiguousarray(each)
        for each in (begin, begin + wait, begin + wait + moving, taken, bandwidth)
    ]


@given(st.lists(moments, min_size=1, max_size=8))
def test_loads_are_those_of_every_moment(drawn: list[tuple[int, ...]]) -> None:
    begin, wire, end, taken, bandwidth = columns(drawn)
    found = load_intervals(begin, wire, end, taken, bandwidth)
    assert (np.diff(found.time) > 0).all()
    for i, now in enumerate(found.time.tolist()):
        moving = (wire <= now) & (now < end)
        assert found.load.taken[i] == taken[(begin <= now) & (now < end)].sum()
        assert found.load.bandwidth[i] == bandwidth[moving].sum()
        most = max(np.flatnonzero(moving).tolist(), key=lambda k: (taken[k], k), default=-1)
        assert found.load.which[i] == most


@given(
    st.lists(moments, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(-20, 60), st.integers(0, 40)), min_size=1, max_size=6),
)
def test_kernels_last_as_their_progress_says(
    drawn: list[tuple[int, ...]], kernels: list[tuple[int, int]]
) -> None:
    loads = load_intervals(*columns(drawn))
    begin, lasting = np.array(kernels, np.int64).T

    asked = []

    def factor(kernel: Ints, taken: Ints, bandwidth: Floats, which: Ints) -> tuple[Floats, Floats]:
        asked.extend(zip(*(each.tolist() for each in (kernel, taken, bandwidth, which))))
        return 1 + taken / 4 + kernel / 8, np.stack([taken / 2, bandwidth], axis=1)

    numbers = np.arange(len(kernels)) % 2
    known = KernelFactors(factor, 2)
    spent, with_terms, of_rows = slowed_kernels(
        np.ascontiguousarray(begin), numbers, lasting.astype(float), loads, known
    )
    terms = np.zeros((len(kernels), 2))
    terms[with_terms] = of_rows
    assert len(asked) == len(set(asked))
    edges = [*loads.time.tolist(), None]
    held = (loads.load.taken > 0) | (loads.load.bandwidth > 0)
    for row, (first, length) in enumerate(kernels):
        left, now, rests = float(length), float(first), np.zeros(2)
        at = int(np.searchsorted(loads.time, first, side="right")) - 1
        while left > 0:
            slower, on = np.ones(1), np.zeros((1, 2))
            if at >= 0 and held[at]:
                slower, on = factor(numbers[[row]], *loads.load.at(np.array([at])))
            edge = edges[at + 1]
            step = left * slower[0]
            if edge is not None and now + step > edge:
                step = edge - now
            now += step
            rests += on[0] * step
            left = left - step / slower[0] if edge is not None and now >= edge else 0.0
            at += 1
        np.testing.assert_allclose(spent[row], now - first, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(terms[row], rests, rtol=1e-12, atol=1e-9)
    free = np.array([not held.any()] * len(kernels))
    assert (spent[free] == lasting[free]).all()


def test_no_load_after_a_begin_before_zero() -> None:
    """A kernel may begin before the call that launches it, and so before 0."""
    loads = load_intervals(*columns([(10, 0, 28, 0, 0)]))
    factors = KernelFactors(lambda *_: pytest.fail("there is no load"), 0)
    spent, rows, _ = slowed_kernels(
        np.array([-1]), np.array([0]), np.array([4 / 3]), loads, factors
    )
    assert spent.tolist() == [4 / 3]
    assert not len(rows)


def test_more_factors_than_are_kept() -> None:
    """Factors beyond those kept are worked out again."""
    n = 40_000
    begin = np.repeat(np.arange(n), 2) * 10
    n_asked = []

    def factor(kernel: Ints, taken: Ints, bandwidth: Floats, which: Ints) -> tuple[Floats, Floats]:
        n_asked.append(len(kernel))
        return 2 + kernel % 3, bandwidth[:, None]

    moving = np.arange(n) * 10
    loads = load_intervals(moving, moving, moving + 10, np.ones(n, np.int64), 1 + np.arange(n))
    kernel = np.arange(2 * n) // 2
    factors = KernelFactors(factor, 1)
    for _ in range(2):
        spent, rows, terms = slowed_kernels(begin, kernel, np.ones(2 * n), loads, factors)
        assert (spent == 2 + kernel % 3).all()
        assert (rows == np.arange(2 * n)).all()
        assert (terms[:, 0] == spent * (1 + kernel)).all()
    assert n < sum(n_asked) <= 2 * n
