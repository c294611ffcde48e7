"""The compiled loops of the overlap pass against the definitions, moment by moment."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpisim.overlap.timeline import (
    CommunicationFactors,
    KernelFactors,
    Orders,
    load_intervals,
    slowed_communications,
    slowed_kernels,
)

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


@given(st.lists(moments, min_size=1, max_size=8), st.lists(st.integers(-1, 2), min_size=8))
def test_loads_are_those_of_every_moment(drawn: list[tuple[int, ...]], stream: list[int]) -> None:
    """On whichever streams communications are, in order there or not."""
    begin, wire, end, taken, bandwidth = columns(drawn)
    orders = Orders.of(taken, np.array(stream[: len(drawn)]))
    found = load_intervals(begin, wire, end, taken, bandwidth, None, orders)
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
    rows = np.arange(len(kernels))[::-1].copy()  # kernels are rows in any order
    met, of_met, of_rows = slowed_kernels(
        *(begin[::-1].copy(), rows, numbers, lasting.copy()),
        *(np.full(len(kernels), 0.7), loads, known),
    )
    lasting = lasting * 0.7
    spent, terms = lasting.copy(), np.zeros((len(kernels), 2))
    spent[met], terms[met] = of_met, of_rows
    assert len(asked) == len(set(asked))
    edges = [*loads.time.tolist(), None]
    held = (loads.load.taken > 0) | (loads.load.bandwidth > 0)
    for row, (first, length) in enumerate(kernels):
        left, now, rests = length * 0.7, float(first), np.zeros(2)
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
    zero = np.array([0])
    met, *_ = slowed_kernels(
        *(np.array([-1]), zero, zero, np.array([4]), np.array([1 / 3])), loads, factors
    )
    assert not len(met)


def test_times_so_long_that_rounding_shows() -> None:
    """They are handed on though nothing runs beside them."""
    loads = load_intervals(*columns([(0, 0, 1, 1, 1)]))
    factors = KernelFactors(lambda *_: pytest.fail("there is no load"), 0)
    alone = np.array([2**52, 1])
    met, spent, _ = slowed_kernels(
        *(np.array([5, 5]), np.arange(2), np.arange(2), alone, np.full(2, 1 / 3)), loads, factors
    )
    assert met.tolist() == [0]
    assert spent.tolist() == [2**52 * (1 / 3)]


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
        rows = np.arange(2 * n)
        met, spent, terms = slowed_kernels(
            *(begin, rows, kernel, np.ones(2 * n, np.int64), np.ones(2 * n)), loads, factors
        )
        assert (spent == 2 + kernel % 3).all()
        assert (met == rows).all()
        assert (terms[:, 0] == spent * (1 + kernel)).all()
    assert n < sum(n_asked) <= 2 * n


def test_factors_of_all_loads_that_a_kernel_is_sure_to_meet_are_asked_for_at_once() -> None:
    """A kernel of 25 ps beside loads that change every 10: of 8 loads it is sure to meet 3."""
    asked = []

    def factor(kernel: Ints, taken: Ints, bandwidth: Floats, which: Ints) -> tuple[Floats, Floats]:
        asked.append(which.tolist())
        return np.full(len(kernel), 2.0), np.zeros((len(kernel), 1))

    begin = 10 * np.arange(8)
    loads = load_intervals(begin, begin, begin + 10, np.ones(8, np.int64), 1 + np.arange(8))
    one = np.zeros(1, np.int64)
    _, spent, _ = slowed_kernels(
        *(one, one, one, np.array([25]), np.ones(1)), loads, KernelFactors(factor, 1)
    )
    # Twice as slow it has 10 ps left at 30, and may end where the fifth load begins.
    assert asked == [[0, 1, 2], [3], [4]]
    assert spent.tolist() == [50.0]


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 5)),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(-5, 50), st.integers(0, 30)), min_size=1, max_size=5),
    st.randoms(),
)
def test_communications_last_as_their_progress_says(
    kernels: list[tuple[int, int, int]], drawn: list[tuple[int, int]], random: Random
) -> None:
    """In exact fractions, moment by moment."""
    one = 8
    rows = random.sample(range(10), len(kernels))
    begin, end, parts = np.zeros(10, np.int64), np.zeros(10, np.int64), []
    for row, (first, length, part) in zip(rows, kernels, strict=True):
        begin[row], end[row] = first, first + length
        parts.append(part)
    factors = CommunicationFactors(lambda use: 1 + use, one)
    for _ in range(2):  # the second time all factors are known
        time, use = factors.memory_use(begin, end, np.array(rows), np.array(parts))
        assert (np.diff(time) > 0).all()
        start, lasting = np.array(drawn, np.int64).T
        found = slowed_communications(start.copy(), lasting.astype(float), time, use, factors)
    for (first, length), spent in zip(drawn, found.tolist(), strict=True):
        left, now = Fraction(length), first
        while left > 0:
            using = sum(part for at, long, part in kernels if at <= now < at + long)
            pace = 1 / (1 + Fraction(min(using, one), one))
            if left <= pace:
                break
            left, now = left - pace, now + 1
        expected = now - first + (left / pace if left else 0)
        assert spent == pytest.approx(float(expected), rel=1e-12, abs=1e-9)
