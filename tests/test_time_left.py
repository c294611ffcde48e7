"""Time left, with a clock that the tests turn: said only where it is known, and never growing."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.mpi.time_left import AGREEMENT, TimeLeft, left_text, time_text

Said = list[tuple[float, float, float]]


def spoken(durations: list[float], look_every: float = 1.0) -> tuple[Said, float]:
    """Items that take so long each → (time, least, most) of all that is said, and the end."""
    left, at, said = TimeLeft(len(durations), 0.0), 0.0, []
    looked = 0.0
    for done, duration in enumerate(durations, 1):
        while looked < at + duration:
            if looked >= at and (found := left.seconds(looked)) is not None:
                said.append((looked, *found))
            looked += look_every
        at += duration
        left.update(done, at)
    return said, at


@given(st.floats(0.05, 600), st.integers(20, 500))
def test_equal_items_are_told_to_the_second(duration: float, n: int) -> None:
    said, end = spoken([duration] * n, look_every=max(1.0, duration / 3))
    for now, low, high in said:
        assert low == pytest.approx(high)
        assert low == pytest.approx(end - now, rel=1e-6, abs=1e-6 * end)
    assert bool(said) is (end > 30) or end < 60  # what takes a minute is told


@pytest.mark.parametrize("spread", [0.1, 0.4, 0.8])
def test_uneven_items_are_told_about_right(spread: float) -> None:
    """Of 40 runs whose items take times of a log-normal distribution."""
    later = good = 0
    for seed in range(40):
        source = random.Random(seed)
        said, end = spoken([source.lognormvariate(0, spread) * 3 for _ in range(100)])
        told = [each for each in said if each[0] > end / 4]
        assert told  # it is said at all
        later += len(told)
        good += sum(low / 1.5 - 6 <= end - now <= high * 1.5 + 6 for now, low, high in told)
    assert good >= 0.9 * later


def test_a_number_counts_down() -> None:
    """Numbers are kept while they are about right, so that they do not jump to and fro."""
    source = random.Random(3)
    said, _ = spoken([source.uniform(2, 4) for _ in range(200)])
    numbers = [(now, low) for now, low, high in said if low == high]
    ends = [now + low for now, low in numbers]
    moves = [abs(a - b) > 1e-6 for a, b in itertools.pairwise(ends)]
    assert len(numbers) > 300
    assert sum(moves) < len(moves) / 20


@pytest.mark.parametrize("factor", [1.01, 1.02, 1.05, 1.2])
def test_what_slows_down_is_not_told_with_growing_numbers(factor: float) -> None:
    """A number that was too low is taken back, and then not soon replaced."""
    said, end = spoken([factor**i for i in range(int(5 / (factor - 1)))])
    single = [(now, low) for now, low, high in said if low == high]
    grown = [b for (_, a), (_, b) in itertools.pairwise(single) if b > a]
    assert len(grown) <= math.log2(end / 10)


def test_what_changes_its_pace_is_a_range_or_nothing() -> None:
    said, end = spoken([1.0] * 100 + [2.0] * 100)
    ranges = [each for each in said if each[1] != each[2]]
    assert ranges
    assert all(low <= (end - now) * 1.05 for now, low, _ in ranges)
    assert all(high <= 3.1 * max(low, 1) for _, low, high in ranges)
    said, _ = spoken([1.0] * 100 + [20.0] * 20)
    assert not [each for each in said if 200 < each[0] < 220]  # four times as slow: nothing


def test_an_item_that_takes_very_long_ends_what_is_said() -> None:
    left = TimeLeft(10, 0.0)
    for done in range(1, 9):
        left.update(done, 10.0 * done)
    assert left.seconds(80) == (20, 20)
    assert left.seconds(95) == (5, 5)
    assert left.seconds(150) is None  # overdue: it is not known


@pytest.mark.parametrize(
    ("total", "updates"),
    [
        (0, [(5, 20.0), (6, 30.0), (7, 40.0)]),  # no total
        (100, [(50, 9.0), (60, 9.5), (70, 9.9)]),  # too soon
        (1000, [(1, 10.0), (2, 20.0), (3, 30.0)]),  # too little
        (10, [(4, 20.0), (5, 30.0)]),  # too few
        (10, [(8, 20.0), (9, 30.0), (10, 40.0)]),  # over
    ],
)
def test_nothing_is_said_of_what_is_not_known(
    total: float, updates: list[tuple[float, float]]
) -> None:
    left = TimeLeft(total, 0.0)
    for done, at in updates:
        left.update(done, at)
    assert left.seconds(updates[-1][1]) is None


def test_a_million_updates_take_little_room() -> None:
    left = TimeLeft(1e6, 0.0)
    for done in range(0, 10**6, 7):
        left.update(done, done / 1e4)
    assert len(left._samples) <= 129
    found = left.seconds(100.0)
    assert found is None or math.isclose(found[0], 0, abs_tol=1)
    half = TimeLeft(1e6, 0.0)
    for done in range(0, 500_000, 7):
        half.update(done, done / 1e4)
    said = half.seconds(50.0)
    assert said is not None
    assert said[0] == pytest.approx(50, rel=AGREEMENT - 1)


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (None, ""),
        ((3.2, 3.2), "about 3 s left"),
        ((0.2, 0.2), "about 1 s left"),
        ((47.0, 47.0), "about 45 s left"),
        ((83.0, 83.0), "about 80 s left"),
        ((299.0, 301.0), "about 5 min left"),
        ((50.0, 130.0), "50 s to 2 min left"),
        ((180.0, 480.0), "3 to 8 min left"),
        ((7500.0, 7500.0), "about 2 h 5 min left"),
    ],
)
def test_texts(left: tuple[float, float] | None, text: str) -> None:
    assert left_text(left) == text


@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_longer_times_are_not_shorter_texts(a: float, b: float) -> None:
    def minutes(text: str) -> float:
        words = text.split()
        sizes = {"s": 1 / 60, "min": 1, "h": 60}
        return sum(float(n) * sizes[unit] for n, unit in zip(words[::2], words[1::2]))

    show: Callable[[float], float] = lambda each: minutes(time_text(each))  # noqa: E731
    low, high = sorted((a, b))
    assert show(low) <= show(high)
