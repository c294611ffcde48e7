"""Programs whose parts do not fit together are refused; the lowest bad rank is named."""

from __future__ import annotations

import tracemalloc

import pytest

from mpisim.base.errors import ProgramError
from mpisim.program import Kind, Operation, Program, ProgramBuilder

GROUPS = [(0, 1), (1, 0), (0, 1, 2), (2, 3), (3, 2)]


def pairs(*bound: list[int]) -> Program:
    """Even ranks send, odd ones receive, on their first slot; `bound` are numbers of GROUPS."""
    builder = ProgramBuilder()
    for kind in (Kind.SEND, Kind.RECV):
        rows = builder.table(kind.name)
        rows.point_to_point(kind, 0, 0, 8, duration=1)
        builder.add_table(rows.build())
    numbers = [builder.communicator(group) for group in GROUPS]
    for rank, groups in enumerate(bound):
        builder.add_rank(rank % 2, [numbers[g] for g in groups])
    return builder.build()


def test_pairs_that_fit() -> None:
    assert pairs([0, 1], [0, 1], [3], [3]).n_ranks == 4


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (([0], [1], [2], [4]), r"rank 1, slot 0: RECV needs .* sender first; comm.* 1 is \(1, 0\)"),
        (([1], [0], [3], [3]), r"rank 0, slot 0: SEND needs .* sender first; comm.* 1 is \(1, 0\)"),
        (([0], [0], [2], [3]), r"rank 2, slot 0: SEND needs .* of two .* 2 is \(0, 1, 2\)"),
        (([0], [0], [], [4]), "rank 2: table 'SEND' uses 1 communicator slots, 0 are bound"),
        (([0], [], [2], [3]), "rank 1: table 'RECV' uses 1 communicator slots, 0 are bound"),
        (([0], [3], [3], [3]), r"rank 1 is bound to communicator 3 \(group 3\), but is not a mem"),
        (([0], [0, 0], [3], [3]), r"rank 1 binds two slots to communicator 0 \(group 0\)"),
    ],
)
def test_the_lowest_bad_rank_is_named(bound: tuple[list[int], ...], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        pairs(*bound)


def test_a_rank_without_communicators() -> None:
    builder = ProgramBuilder()
    rows = builder.table("alone")
    rows.collective(Operation.BARRIER, 0, 0, 0, duration=1)
    builder.add_table(rows.build())
    builder.add_rank(0)
    with pytest.raises(ProgramError, match=r"rank 0: table 'alone' uses 1 .* 0 are bound"):
        builder.build()


@pytest.mark.parametrize("slot", [10**8, 2**31 - 1])
def test_slots_that_no_rank_can_bind_take_no_memory(slot: int) -> None:
    builder = ProgramBuilder()
    rows = builder.table("far")
    rows.collective(Operation.BARRIER, slot, 0, 8, duration=1)
    builder.add_table(rows.build())
    builder.add_rank(0, [builder.communicator([0])])
    tracemalloc.start()
    with pytest.raises(ProgramError, match=rf"rank 0: table 'far' uses {slot + 1} .* 1 are bound"):
        builder.build()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
