"""Tiles: results do not depend on which ranks are simulated side by side."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import programs, random_program
from reference.comparison import assert_matches, assert_times
from reference.rank_by_rank import rank_by_rank
from reference.simulation import simulate as expect

from mpisim.base.errors import DeadlockError
from mpisim.engine import Run, distribution, simulate
from mpisim.engine.tiling import SlotUses, Tiles, find_tiles, joined
from mpisim.program import Flag, Jitter, Kind, Operation, Program, ProgramBuilder

Finder = Callable[..., Tiles]


def forced(seed: int) -> Finder:
    """Tiles of any ranks of one table and duration, in any order, wherever they stand in chains."""
    rng = random.Random(seed)

    def find(table: np.ndarray, duration: np.ndarray, uses: SlotUses) -> Tiles:
        tiles: list[list[int]] = []
        for kind in sorted(set(zip(table.tolist(), duration.tolist(), strict=True))):
            ranks = np.flatnonzero((table == kind[0]) & (duration == kind[1])).tolist()
            rng.shuffle(ranks)
            while ranks:
                n = rng.randint(1, len(ranks))
                tiles.append(ranks[:n])
                del ranks[:n]
        lanes = [rank for tile in tiles for rank in tile]
        index = np.cumsum([0, *map(len, tiles)])
        return Tiles(np.array(lanes, np.int32), index.astype(np.int64))

    return find


def widest(table: np.ndarray, duration: np.ndarray, uses: SlotUses) -> Tiles:
    """One tile for all ranks of one table and duration."""
    kind = table * (1 + int(duration.max())) + duration
    lanes = np.argsort(kind, kind="stable").astype(np.int32)
    first = np.flatnonzero(np.diff(kind[lanes], prepend=-1))
    return Tiles(lanes, np.append(first, len(lanes)).astype(np.int64))


def one_by_one(table: np.ndarray, duration: np.ndarray, met: SlotUses) -> Tiles:
    """A tile for each rank."""
    return Tiles(np.arange(len(table), dtype=np.int32), np.arange(len(table) + 1))


def run_with(find: Finder, program: Program) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "find_tiles", find)
        return simulate(program, fold=False, critical_path=True)


many_replicas = programs(max_tables=3, max_replicas=12)
jitters = st.one_of(st.none(), st.builds(Jitter, st.floats(0, 0.5), st.integers(0, 99)))


@given(program=many_replicas, jitter=jitters, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_any_tiles_give_one_answer(program: Program, jitter: Jitter | None, seed: int) -> None:
    program = program.replace(jitter=jitter)
    expected = expect(program)
    assert_matches(run_with(find_tiles, program), expected)
    assert_matches(run_with(forced(seed), program), expected)


def chain(n: int, micro_batches: int) -> Program:
    """A pipeline of n stages whose inner ones share a table; each micro-batch is one send."""
    builder = ProgramBuilder()
    tables = [builder.table(name) for name in ("first", "middle", "last")]
    for rows, ends in zip(tables, ((1,), (0, 1), (0,)), strict=True):
        for _ in range(micro_batches):
            waits = []
            if 0 in ends:
                waits = [rows.point_to_point(Kind.RECV, ends.index(0), 1, 8, duration=3)]
            kernel = rows.kernel("work", 0, 10, waits=waits)
            if 1 in ends:
                rows.point_to_point(Kind.SEND, ends.index(1), 2, 8, duration=3, waits=[kernel])
        builder.add_table(rows.build())
    pairs = [builder.communicator((i, i + 1)) for i in range(n - 1)]
    for i in range(n):
        table = 0 if i == 0 else 2 if i == n - 1 else 1
        builder.add_rank(table, pairs[max(i - 1, 0) : i + 1])
    return builder.build()


@pytest.mark.parametrize("n", [3, 4, 9])
def test_a_tile_of_ranks_that_wait_for_each_other_is_split(n: int) -> None:
    program = chain(n, 5)
    # The fill of n stages, then 4 more micro-batches, at 10 ps each; a message takes 3 ps.
    assert run_with(widest, program).step_time == 10 * n + 3 * (n - 1) + 4 * 10
    assert_matches(run_with(widest, program), expect(program))


def test_members_of_a_group_can_be_split_from_each_other() -> None:
    """A ring that one rank begins, and all-reduces over the ring that were in place before."""
    builder = ProgramBuilder()
    rows = builder.table()
    for _ in range(3):
        rows.collective(Operation.ALL_REDUCE, 0, 0, 8, duration=2)
        came = rows.point_to_point(Kind.RECV, 1, 1, 8, duration=4)
        rows.kernel("work", 2, 5, waits=[came])
        rows.point_to_point(Kind.SEND, 2, 3, 8, duration=4, waits=[came + 1])
        rows.collective(Operation.BARRIER, 0, 0, 0, duration=1, waits=[came + 2])
    builder.add_table(rows.build())
    head, tail = builder.table("head"), builder.table("tail")
    for _ in range(3):
        head.point_to_point(Kind.SEND, 0, 0, 8, duration=4)
        tail.point_to_point(Kind.RECV, 0, 0, 8, duration=4)
    builder.add_table(head.build())
    builder.add_table(tail.build())
    n = 5
    everyone = builder.communicator(range(n))
    pairs = [builder.communicator(pair) for pair in [(n, 0), *((i, i + 1) for i in range(n - 1))]]
    pairs.append(builder.communicator((n - 1, n + 1)))
    for i in range(n):
        builder.add_rank(0, [everyone, pairs[i], pairs[i + 1]], start=7 * i)
    builder.add_rank(1, [pairs[0]])
    builder.add_rank(2, [pairs[n]])
    program = builder.build()
    expected = expect(program)
    assert_matches(run_with(widest, program), expected)
    assert_matches(run_with(find_tiles, program), expected)


def test_deadlock_message_does_not_depend_on_tiles() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    waits = [rows.point_to_point(Kind.RECV, 0, 0, 8, duration=1)]
    rows.point_to_point(Kind.SEND, 1, 1, 8, duration=1, waits=waits)
    builder.add_table(rows.build())
    pairs = [builder.communicator((i, (i + 1) % 4)) for i in range(4)]
    for i in range(4):
        builder.add_rank(0, [pairs[i - 1], pairs[i]])
    program = builder.build()
    messages = []
    for find in (widest, one_by_one):
        with pytest.raises(DeadlockError) as caught:
            run_with(find, program)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_eager_and_joined_communications_in_one_tile() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.host(3)
    rows.collective(Operation.ALL_REDUCE, 0, 0, 8, duration=4, launch=2)
    rows.collective(Operation.ALL_REDUCE, 1, 0, 8, duration=9, flags=Flag.JOINED)
    rows.collective(Operation.BROADCAST, 0, 0, 8, duration=5, flags=Flag.EAGER)
    rows.host_wait([1])
    builder.add_table(rows.build(queue_depth=1))
    rows = [builder.communicator((i, i + 1)) for i in (0, 2)]
    columns = [builder.communicator((i, i + 2)) for i in (0, 1)]
    for i in range(4):
        builder.add_rank(0, [rows[i // 2], columns[i % 2]], start=10 * i)
    program = builder.build()
    # Ready at 5, 15, 25, 35. Rows start at 15 and 35, columns at 25 and 35. The kernel ends with
    # its later half: 34, 44, 39 or 44, 44. The broadcast follows, without waiting for anybody.
    run = run_with(widest, program)
    assert [run.rows(i).end.tolist()[1:3] for i in range(4)] == [
        [19, 34],
        [19, 44],
        [39, 34],
        [39, 44],
    ]
    assert [run.rows(i).end.tolist()[3] for i in range(4)] == [39, 49, 44, 49]
    assert_matches(run, expect(program))


# --- which tiles are found ----------------------------------------------------------------------


def grid(tp: int, pp: int, dp: int) -> Program:
    """Stages of a pipeline, all of one table: many tp all-reduces, few dp ones, sends in a ring."""
    builder = ProgramBuilder()
    rows = builder.table()
    for _ in range(4):
        rows.collective(Operation.ALL_REDUCE, 0, 0, 8, duration=1)
    rows.collective(Operation.ALL_REDUCE, 1, 0, 8, duration=1)
    rows.point_to_point(Kind.SEND, 2, 1, 8, duration=1)
    rows.point_to_point(Kind.RECV, 3, 1, 8, duration=1, flags=Flag.JOINED)
    builder.add_table(rows.build())
    ranks = np.arange(pp * dp * tp).reshape(pp, dp, tp)
    of = {}
    for p, d in np.ndindex(pp, dp):
        of["tp", p, d] = builder.communicator(ranks[p, d].tolist())
    for p, t in np.ndindex(pp, tp):
        of["dp", p, t] = builder.communicator(ranks[p, :, t].tolist())
    for rank in range(ranks.size):
        p, d, t = np.unravel_index(rank, ranks.shape)
        of["pp", rank] = builder.communicator([rank, int(ranks[(p + 1) % pp, d, t])])
    for rank in range(ranks.size):
        p, d, t = np.unravel_index(rank, ranks.shape)
        before = int(ranks[p - 1, d, t])
        bound = [of["tp", p, d], of["dp", p, t], of["pp", rank], of["pp", before]]
        builder.add_rank(0, bound)
    return builder.build()


def tiles_of(program: Program) -> list[list[int]]:
    found: list[Tiles] = []

    def find(*args: object, **kwargs: object) -> Tiles:
        found.append(find_tiles(*args, **kwargs, max_lanes=16))
        return found[0]

    run_with(find, program)
    return [part.tolist() for part in np.split(found[0].lanes, found[0].index[1:-1])]


def test_groups_that_meet_often_are_lanes_of_one_tile() -> None:
    # 4 peers in each of 8 replicas: whole data parallel groups would be 32 lanes. 4 replicas fill
    # a tile, peers of one group 4 lanes apart.
    tiles = tiles_of(grid(tp=4, pp=2, dp=8))
    assert [len(tile) for tile in tiles] == [16] * 4
    assert tiles[0] == [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]
    assert sorted(rank for tile in tiles for rank in tile) == list(range(64))


def test_small_data_parallel_groups_are_lanes_of_one_tile_too() -> None:
    tiles = tiles_of(grid(tp=2, pp=2, dp=4))
    assert sorted(map(sorted, tiles)) == [list(range(16))]


def test_stages_of_a_pipeline_are_in_different_tiles() -> None:
    assert sorted(tiles_of(chain(5, 2))) == [[0], [1], [2], [3], [4]]


@given(program=programs(max_replicas=6))
@settings(max_examples=40, deadline=None)
def test_tiles_hold_every_rank_once(program: Program) -> None:
    tiles = tiles_of(program)
    assert sorted(rank for tile in tiles for rank in tile) == list(range(program.n_ranks))
    for tile in tiles:
        assert len(tile) <= 16
        assert len({int(program.table[rank]) for rank in tile}) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=20))
def test_joined_parts(members: list[tuple[int, int]]) -> None:
    """Against repeated relabelling of one pair of ranks after the other."""
    label = list(range(10))
    for _ in range(10):
        for rank, group in members:
            for other, same in members:
                if group == same:
                    label[rank] = label[other] = min(label[rank], label[other])
    ranks = np.array([rank for rank, _ in members], np.int64)
    groups = np.array([group for _, group in members], np.int64)
    assert joined(np.arange(10), ranks, groups).tolist() == label


def test_many_ranks_in_wide_tiles() -> None:
    program = random_program(3, n_tables=2, n_replicas=100, n_events=40)
    assert_times(run_with(find_tiles, program), rank_by_rank(program))
