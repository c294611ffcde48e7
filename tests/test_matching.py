"""Which kernels of different ranks are one operation, and how long it was on the wire."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import US, communication

from mpisim.program import Operation
from mpisim.traces.assemble import Layout, break_cycles
from mpisim.traces.communications import Communication
from mpisim.traces.matching import Matched, Matching, match_communications

A2A, ALL_REDUCE, BROADCAST = Operation.ALL_TO_ALL, Operation.ALL_REDUCE, Operation.BROADCAST


def together(
    begins: list[list[float]], wire: float, operation: Operation = ALL_REDUCE, **more: object
) -> dict[int, list[Communication]]:
    """Operations of all ranks: a row of begins (µs) each; all end `wire` µs after the last."""
    return {
        rank: [
            communication(rank, op, row[rank], max(row) + wire, operation, **more)  # type: ignore
            for op, row in enumerate(begins)
        ]
        for rank in range(len(begins[0]))
    }


def shifted(ranks: dict[int, list[Communication]], offset: dict[int, float]) -> None:
    """Let clocks of ranks show too much, in µs."""
    for rank, by in offset.items():
        for item in ranks[rank]:
            item.begin += round(by * US)
            item.end += round(by * US)


def members(matching: Matching) -> set[tuple[tuple[int, int], ...]]:
    """Of each operation its (rank, device operation) members."""
    return {
        tuple(sorted((item.rank, item.op) for item in operation.members))
        for operation in matching.operations
    }


def begins(rng: random.Random, n: int, ranks: int) -> list[list[float]]:
    """Begins of n operations, 1 ms apart or so."""
    return [[1000 * op + rng.randint(0, 400) for _ in range(ranks)] for op in range(n)]


# --- wire time ----------------------------------------------------------------------------------


def test_wire_time_is_what_remains_after_the_last_arrival() -> None:
    found = match_communications(together([[0, 300, 120], [1000, 1010, 1500]], wire=80))
    assert [operation.wire for operation in found.operations] == [[80 * US] * 3] * 2
    assert [operation.eager for operation in found.operations] == [[False] * 3] * 2
    assert found.counts["kernels matched"] == 6
    assert found.counts["kernels without a partner"] == 0


@given(
    seed=st.integers(0, 10_000),
    offsets=st.lists(st.integers(0, 100), min_size=3, max_size=3),
    operation=st.sampled_from([ALL_REDUCE, A2A]),
)
def test_clock_offsets_do_not_count(seed: int, offsets: list[int], operation: Operation) -> None:
    rows = begins(random.Random(seed), 12, 3)
    ranks = together(rows, wire=60, operation=operation)
    # Real ends scatter; clocks are off by more.
    shifted(ranks, dict(enumerate(offsets)))
    found = match_communications(ranks)
    assert found.counts["kernels matched"] == 36
    for each in found.operations:
        assert each.wire == [60 * US] * 3
    assert [found.offset[r] - found.offset[0] for r in range(3)] == [
        (offsets[r] - offsets[0]) * US for r in range(3)
    ]


def test_a_member_that_ends_before_the_last_comes_is_eager() -> None:
    ranks = together([[1000 * n, 1000 * n + 5, 1000 * n + 9] for n in range(8)], 40)
    for rank in range(3):
        for item in ranks[rank]:
            item.operation, item.stem = BROADCAST, "Broadcast"
    # In one of them rank 0 is done 60 µs before rank 2 comes.
    ranks[0][3].begin, ranks[0][3].end = 2_900 * US, 2_949 * US
    found = match_communications(ranks)
    odd = found.operations[3]
    assert odd.eager == [True, False, False]
    assert odd.wire == [49 * US, 40 * US, 40 * US]
    assert found.counts["kernels that did not wait for all members"] == 1


def test_uneven_all_to_all() -> None:
    # All wait for rank 1 at 50; after that each has as much to receive as it has.
    ranks = together([[1000 * n, 1000 * n + 50, 1000 * n + 20] for n in range(6)], 30, A2A)
    for item in ranks[2]:
        item.end += 15 * US * (item.op == 2)
    found = match_communications(ranks)
    assert found.operations[2].wire == [30 * US, 30 * US, 45 * US]
    assert found.operations[3].wire == [30 * US] * 3


# --- groups -------------------------------------------------------------------------------------


def test_a_rank_that_lacks_calls() -> None:
    rows = begins(random.Random(1), 10, 3)
    ranks = together(rows, 50)
    del ranks[1][4]
    found = match_communications(ranks)
    assert ((0, 4), (2, 4)) in members(found)
    assert ((0, 5), (1, 5), (2, 5)) in members(found)
    assert found.counts["operations matched by name and end"] == 10
    assert found.counts["kernels without a partner"] == 0


def test_windows_cut_at_different_times() -> None:
    rows = begins(random.Random(2), 12, 2)
    ranks = together(rows, 50)
    ranks[0] = ranks[0][:9]
    ranks[1] = ranks[1][3:]
    found = match_communications(ranks)
    assert found.counts["kernels matched"] == 12  # operations 3 to 8
    assert found.counts["kernels without a partner"] == 6
    # What is alone keeps its recorded time, waiting included.
    for operation in found.operations:
        if len(operation.members) == 1:
            (item,) = operation.members
            assert operation.wire == [item.end - item.begin]


def test_two_groups_in_lockstep_stay_apart() -> None:
    """Tensor-parallel pairs do the same at the same time, but their ends differ by some 100 µs."""
    rng = random.Random(3)
    ranks: dict[int, list[Communication]] = {r: [] for r in range(4)}
    for op in range(30):
        for pair in ((0, 1), (2, 3)):
            start = [1000 * op + rng.randint(0, 500) for _ in pair]
            for rank, at in zip(pair, start, strict=True):
                ranks[rank].append(communication(rank, op, at, max(start) + 50))
    found = match_communications(ranks)
    assert members(found) == {((a, op), (a + 1, op)) for a in (0, 2) for op in range(30)}
    assert found.counts["communicators found by equal ends"] == 2


def test_groups_named_in_the_files() -> None:
    # Names and sequence numbers decide, whatever the clocks say (here: 5 ms apart).
    rows = begins(random.Random(4), 6, 2)
    ranks = together(rows, 50, group=(0, 1), group_name="7")
    for line in ranks.values():
        for item in line:
            item.sequence = 10 + item.op
    del ranks[0][2]
    shifted(ranks, {1: 5000})
    found = match_communications(ranks)
    assert found.counts["communicators named in the files"] == 1
    assert found.counts["operations matched by sequence number"] == 6
    assert found.counts["kernels without a partner"] == 1
    assert found.offset[1] - found.offset[0] == 5000 * US


def test_two_communicators_of_the_same_ranks() -> None:
    """One rank calls them in one order, the other in the other: on two streams that is legal."""
    ranks: dict[int, list[Communication]] = {0: [], 1: []}
    for n in range(5):
        for op, (name, stream) in enumerate((("a", 1), ("b", 2))):
            for rank in (0, 1):
                order = op if rank == 0 else 1 - op
                ranks[rank].append(
                    communication(
                        rank,
                        2 * n + order,
                        1000 * n + 10 * order,
                        1000 * n + 90,
                        stream=stream,
                        group=(0, 1),
                        group_name=name,
                        sequence=n,
                    )
                )
    for line in ranks.values():
        line.sort(key=lambda item: item.op)
    found = match_communications(ranks)
    break_cycles(found)
    assert found.counts["operations in contradictory order"] == 0
    layout = Layout(found, [0, 1])
    communicators = layout.communicators()
    assert [communicators.group(c) for c in range(len(communicators))] == [(0, 1), (0, 1)]
    assert communicators.names == ("ranks 0,1", "ranks 0,1 #2")


# --- pairs --------------------------------------------------------------------------------------


def test_pairs_by_complement_and_end() -> None:
    ranks = {
        0: [communication(0, 0, 0, 100, Operation.SEND_RECV, directions="S")],
        1: [
            communication(1, 0, 40, 110, Operation.SEND_RECV, directions="R"),
            communication(1, 1, 500, 510, Operation.SEND_RECV, directions="R"),
        ],
    }
    found = match_communications(ranks)
    assert members(found) == {((0, 0), (1, 0)), ((1, 1),)}
    (pair,) = [operation for operation in found.operations if operation.is_pair]
    # The last to come was the receiver at 40: 60 and 70 µs after that.
    assert pair.wire == [70 * US, 70 * US]
    assert found.counts["kernels without a partner"] == 1


def test_one_distance_of_ranks() -> None:
    """Tensor-parallel peers send at the same time: the distance that fits most pairs is taken."""
    rng = random.Random(5)
    ranks: dict[int, list[Communication]] = {r: [] for r in range(4)}
    for op in range(10):
        for source in (0, 1):
            end = 1000 * op + rng.randint(0, 60)
            for rank, way in ((source, "S"), (source + 2, "R")):
                ranks[rank].append(
                    communication(
                        rank,
                        op,
                        end - 200,
                        end + rng.randint(0, 40),
                        Operation.SEND_RECV,
                        directions=way,
                    )
                )
    found = match_communications(ranks)
    assert members(found) == {((a, op), (a + 2, op)) for a in (0, 1) for op in range(10)}
    assert found.counts["send/receive pairs at a distance of 2 ranks"] == 20


def both_ways(offset: float, lag: float, known: bool) -> dict[int, list[Communication]]:
    """Two ranks send to each other in turn; the clock of the second is ahead, all in µs."""
    ranks: dict[int, list[Communication]] = {0: [], 1: []}
    for op in range(8):
        source = op % 2
        for rank in (0, 1):
            sends = rank == source
            end = 1000 * op + 100 - (lag if sends else 0)
            ranks[rank].append(
                communication(
                    rank,
                    op,
                    1000 * op + 20 * rank,
                    end,
                    Operation.SEND_RECV,
                    directions="S" if sends else "R",
                    peer=1 - rank if known else -1,
                )
            )
    shifted(ranks, {1: offset})
    return ranks


@pytest.mark.parametrize("lag", [0, 80])
@pytest.mark.parametrize(("offset", "known"), [(60, False), (60, True), (7000, True)])
def test_pairs_tell_clocks_where_messages_go_both_ways(
    offset: float, known: bool, lag: float
) -> None:
    """A send that ends early looks like a clock; with both directions that cancels."""
    found = match_communications(both_ways(offset, lag, known))
    assert found.offset[1] - found.offset[0] == offset * US
    assert members(found) == {((0, op), (1, op)) for op in range(8)}
    if known:
        assert found.counts["send/receive pairs named in the files"] == 8


def test_known_pairs_go_by_order_not_by_time() -> None:
    # The clock is ahead by just the distance of two messages.
    ranks: dict[int, list[Communication]] = {0: [], 1: []}
    for op in range(6):
        for rank, way in ((0, "S"), (1, "R")):
            ranks[rank].append(
                communication(
                    rank,
                    op,
                    100 * op,
                    100 * op + 50,
                    Operation.SEND_RECV,
                    directions=way,
                    peer=1 - rank,
                )
            )
    shifted(ranks, {1: 100})
    assert members(match_communications(ranks)) == {((0, op), (1, op)) for op in range(6)}


# --- orders that cannot be ----------------------------------------------------------------------


def test_contradictory_order_is_taken_apart() -> None:
    a, b = (communication(0, op, 10 * op, 10 * op + 5) for op in (0, 1))
    x, y = (communication(1, op, 10 * op, 10 * op + 5) for op in (0, 1))
    c, z = communication(0, 2, 30, 35), communication(1, 2, 30, 35)
    wire, no = [5 * US] * 2, [False] * 2
    # Rank 0 does a before b, rank 1 their partners the other way round.
    matching = Matching(
        [Matched([a, y], wire, no), Matched([b, x], wire, no), Matched([c, z], wire, no)],
        {0: 0, 1: 0},
    )
    break_cycles(matching)
    # What comes behind them on the stream cannot be reached either.
    assert members(matching) == {((r, op),) for r in (0, 1) for op in (0, 1, 2)}
    assert matching.counts["operations in contradictory order"] == 3


def test_good_order_is_left_alone() -> None:
    ranks = together(begins(random.Random(6), 9, 3), 30)
    found = match_communications(ranks)
    before = members(found)
    break_cycles(found)
    assert members(found) == before
    assert len(before) == 9


@given(seed=st.integers(0, 1000))
def test_the_order_of_files_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    ranks = together(begins(rng, 8, 4), 40, rng.choice([ALL_REDUCE, A2A]))
    shifted(ranks, {r: rng.randint(-50, 50) for r in range(4)})
    shuffled = list(ranks.items())
    rng.shuffle(shuffled)
    one, other = match_communications(ranks), match_communications(dict(shuffled))
    assert members(one) == members(other)
    assert [o.wire for o in one.operations] == [o.wire for o in other.operations]
