"""Which kernels of different ranks are one operation, and how long it was on the wire."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import US, HandMade, communication

from mpisim.program import Operation
from mpisim.traces.assemble import CommunicatorSlots, break_cycles
from mpisim.traces.communications import Communication, rank_communications
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
    layout = CommunicatorSlots(found, [0, 1])
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


def message(rank: int, op: int, way: str, peer: int, part: int = 0) -> Communication:
    """A message of a kernel at 100 µs × `op`; both ends are named."""
    return communication(
        *(rank, op, 100 * op, 100 * op + 50, Operation.SEND_RECV),
        directions=way,
        peer=peer,
        part=part,
    )


def test_messages_of_a_batch_have_partners_of_their_own() -> None:
    """A batch sends to one rank and receives from another, which lists its own the other way."""
    ranks = {
        0: [message(0, 0, "S", 1)],
        1: [message(1, 0, "R", 0, 0), message(1, 0, "S", 2, 1), message(1, 1, "R", 2)],
        2: [message(2, 0, "R", 1), message(2, 1, "S", 1)],
    }
    found = match_communications(ranks)
    assert members(found) == {((0, 0), (1, 0)), ((1, 0), (2, 0)), ((1, 1), (2, 1))}
    assert all(operation.is_pair for operation in found.operations)


def test_messages_of_a_batch_are_done_in_any_order() -> None:
    """Each of two ranks lists its send first: no contradiction, as they run at once."""
    ranks = {
        rank: [message(rank, 0, "S", 1 - rank, 0), message(rank, 0, "R", 1 - rank, 1)]
        for rank in (0, 1)
    }
    found = match_communications(ranks)
    break_cycles(found)
    assert [operation.is_pair for operation in found.operations] == [True, True]
    assert not found.counts["operations in contradictory order"]


def test_partners_are_of_one_group() -> None:
    """Of ranks that exchange at the same time those are pairs that are in the named group."""
    ranks = {
        rank: [
            communication(
                *(rank, 0, 0, 50, Operation.SEND_RECV),
                directions="SR",
                group=(rank % 2, 2 + rank % 2),
                group_name=f"pp {rank % 2}",
            )
        ]
        for rank in range(4)
    }
    assert members(match_communications(ranks)) == {((0, 0), (2, 0)), ((1, 0), (3, 0))}


def test_the_other_rank_of_each_message_is_read(tmp_path: Path) -> None:
    """PyTorch's arguments name where a send goes, and where a receive comes from, not both."""
    made = HandMade()
    ends = {"c10d::send": {"Dst Rank": 4}, "c10d::recv_": {"Src Rank": 2}}
    for i, (name, end) in enumerate(ends.items()):
        begin = 10.0 * i
        made.operator(name, begin, begin + 8)
        sizes = {"In msg nelems": 16 * (i + 1), "Out msg nelems": 16 * (i + 1), "dtype": "Float"}
        made.operator("record_param_comms", begin + 1, begin + 7, **sizes, **end)
    made.launch(20, 22, 30, 90, stream=20, name="ncclDevKernel_SendRecv(ncclDevComm*)")
    trace, calls = made.read(tmp_path)
    found = rank_communications(trace, calls, 3)
    assert [(c.directions, c.peer, c.part, c.bytes) for c in found] == [
        ("S", 4, 0, 64),
        ("R", 2, 1, 128),
    ]


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
