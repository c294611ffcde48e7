"""Durations of rows: speed, rounding, prices of communications."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from contended import Links
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity
from mpisim.engine import simulate
from mpisim.engine.cost import price, varied
from mpisim.program import Kind, Operation, Program, ProgramBuilder
from mpisim.topo import Price


class Counting:
    """A model that remembers what it was asked; a group of n ranks costs n ps a byte."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, int, int]] = []

    numbers: ClassVar[dict[str, Quantity]] = {}

    def group_classes(
        self, index: np.ndarray, members: np.ndarray, operations: np.ndarray | None = None
    ) -> tuple[np.ndarray, range]:
        return np.diff(index), range(len(members) + 1)

    def price(self, operation: Operation, bytes: int, group: int) -> Price:
        self.asked.append((operation, bytes, group))
        return Price(bytes * group)

    def shares(self, operation: Operation, bytes: int, group: int) -> dict[str, float]:
        return {}


def sums(sizes: list[int], groups: list[list[int]], speeds: list[float] | None = None) -> Program:
    """Ranks of one table, with all-reduces of these sizes, one slot, in groups."""
    builder = ProgramBuilder()
    rows = builder.table("sums")
    rows.kernel("a", 0, 10)
    for size in sizes:
        rows.collective(Operation.ALL_REDUCE, 0, 0, size)
    builder.add_table(rows.build())
    group_of = {rank: group for group in groups for rank in group}
    for rank in sorted(group_of):
        slots = [builder.communicator(group_of[rank])]
        builder.add_rank(0, slots, speed=speeds[rank] if speeds else 1.0)
    return builder.build()


def everyone(program: Program) -> np.ndarray:
    return np.arange(program.n_ranks, dtype=np.int32)


def test_each_operation_is_priced_once_per_class() -> None:
    model = Counting()
    program = sums([8, 16, 8], [[0, 1], [2, 3], [4, 5, 6]])
    durations, which, *_ = price(program, everyone(program), model)
    # Two classes of groups, so two arrays; the second 8 bytes are known by then.
    assert which.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert [d.tolist() for d in durations] == [[10, 16, 32, 16], [10, 24, 48, 24]]
    assert model.asked == [
        (Operation.ALL_REDUCE, size, group) for group in (2, 3) for size in (8, 16)
    ]


@given(
    st.lists(st.sampled_from([0, 8, 16, 32]), max_size=6),
    st.booleans(),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
def test_durations_made_when_asked_for_are_those_kept(
    sizes: list[int], shared: bool, delays: list[int]
) -> None:
    links = Links((1.0, 1.0), {"nic": (((0, 1.0),), ((0, 1.0),), ((1, 1.0),), ((1, 1.0),))})
    program = sums(sizes, [[0, 1], [2, 3]])
    table = program.table_of(0)
    delay = np.zeros(len(table), np.int64)
    delay[1:] = np.resize(delays, len(delay) - 1)
    patterns = ("nic",) if shared else ()
    kept, made = (
        price(program, everyone(program), links, patterns, [delay], size) for size in (1 << 20, 0)
    )
    assert kept.known == made.known
    np.testing.assert_array_equal(kept.which, made.which)
    for one, other in ((kept.durations, made.durations), (kept.prices, made.prices)):
        assert [each.tolist() for each in one] == [each.tolist() for each in other]
    rows = np.flatnonzero(table.duration < 0)
    for entry in range(len(made.durations) if shared else 0):
        of, durations, prices = made.requested(entry)
        assert of.tolist() == rows.tolist()
        np.testing.assert_array_equal(durations, made.durations[entry][rows])
        np.testing.assert_array_equal(prices, made.prices[entry][rows])


def test_ranks_of_different_speeds_have_different_durations() -> None:
    program = sums([8], [[0, 1, 2]], speeds=[1.0, 2.0, 1.0])
    priced = price(program, everyone(program), Counting())
    assert priced.which.tolist() == [0, 0, 0]
    durations, which, *_ = varied(program, everyone(program), priced)
    assert which.tolist() == [0, 1, 0]
    assert [d.tolist() for d in durations] == [[10, 24], [5, 24]]


def test_halves_round_up() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    for duration in (1, 3, 5):
        rows.kernel("a", 0, duration, kind=Kind.COPY)
    builder.add_table(rows.build())
    builder.add_rank(0, speed=2.0)
    program, ranks = builder.build(), np.array([0], np.int32)
    durations, *_ = varied(program, ranks, price(program, ranks))
    assert durations[0].tolist() == [1, 2, 3]  # 0.5, 1.5, 2.5


def test_tables_are_not_changed() -> None:
    program = sums([8], [[0, 1]], speeds=[2.0, 2.0])
    price(program, everyone(program), Counting())
    assert program.table_of(0).duration.tolist() == [10, -1]


def test_no_network() -> None:
    with pytest.raises(InputError) as caught:
        simulate(sums([8], [[0, 1]]))
    assert str(caught.value) == (
        "rank 0, row 1 (all_reduce) of table 'sums': the communication has no duration; give one, "
        "or a network (mpisim run --set cluster.preset=NAME)"
    )


def test_unknown_size() -> None:
    with pytest.raises(InputError) as caught:
        simulate(sums([8, -1], [[0, 1]]), network=Counting())
    assert str(caught.value) == (
        "rank 0, row 2 (all_reduce) of table 'sums': the communication has neither a duration nor "
        "a number of bytes to price it by"
    )


def test_barrier_needs_no_size() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.collective(Operation.BARRIER, 0, 0, -1)
    builder.add_table(rows.build())
    builder.add_rank(0, [builder.communicator((0,))])
    assert simulate(builder.build(), network=Counting()).step_time == 0


@pytest.mark.parametrize(("duration", "speed"), [(1 << 61, 1.0), (10, 1e-300), (1 << 40, 1e-8)])
def test_durations_beyond_the_range_of_clocks_are_refused(duration: int, speed: float) -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.kernel("a", 0, duration)
    builder.add_table(rows.build())
    builder.add_rank(0, speed=speed)
    with pytest.raises(InputError, match=r"rank 0: its rows take .* s, more than the 1.15e\+06 s"):
        simulate(builder.build())


def test_starts_beyond_the_range_of_clocks_are_refused() -> None:
    builder = ProgramBuilder()
    builder.add_table(builder.table().build())
    builder.add_rank(0, start=1 << 61)
    with pytest.raises(InputError, match="rank 0: it starts at 2305843009213693952 ps"):
        simulate(builder.build())
