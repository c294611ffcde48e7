"""What each kind of row does, in scenarios small enough to work out by hand. Times are ps."""

from __future__ import annotations

import numpy as np
import pytest
from programs import one_rank_a_table

from mpisim.base.errors import DeadlockError
from mpisim.engine import Binding, Run, simulate
from mpisim.program import Flag, Kind, Operation, ProgramBuilder, TableBuilder

HOST, STREAM, WAIT, QUEUE = Binding.HOST, Binding.STREAM, Binding.WAIT, Binding.QUEUE


class OneRank:
    """The table of a single rank, to be filled in; `run` simulates it."""

    def __init__(self) -> None:
        self.builder = ProgramBuilder()
        self.rows: TableBuilder = self.builder.table()

    def run(self, speed: float = 1.0, start: int = 0, queue_depth: int = 0) -> Run:
        self.builder.add_table(self.rows.build(queue_depth))
        self.builder.add_rank(0, speed=speed, start=start)
        return simulate(self.builder.build())


# --- one rank -----------------------------------------------------------------------------------


def test_kernels_follow_host_and_stream() -> None:
    one = OneRank()
    one.rows.kernel("a", 0, 100, host=10, launch=5, launch_cost=3)
    one.rows.kernel("b", 0, 50, host=2, launch=5, launch_cost=3, gap=4)
    one.rows.kernel("c", 1, 20, host=2, launch=5, launch_cost=3, kind=Kind.COPY)
    run = one.run()
    # a: call at 10, device at 15, ends 115; host goes on at 13.
    # b: call at 15, device at 20, but a's end plus the gap is 119; ends 169; host at 18.
    # c: call at 20, device at 25; ends 45; host at 23.
    assert run.rows(0).begin.tolist() == [15, 119, 25]
    assert run.rows(0).end.tolist() == [115, 169, 45]
    assert run.rows(0).wire.tolist() == [15, 119, 25]
    assert run.rows(0).binding.tolist() == [HOST, STREAM, HOST]
    assert run.step_time == 169
    assert run.rounds == 0


def test_waits_count_from_their_ends_plus_the_gap() -> None:
    one = OneRank()
    a = one.rows.kernel("a", 0, 100)
    b = one.rows.kernel("b", 1, 130)
    one.rows.kernel("c", 2, 10, waits=[a, b], gap=2)
    one.rows.kernel("d", 2, 10, waits=[a], gap=1)
    run = one.run()
    assert run.rows(0).begin.tolist() == [0, 0, 132, 143]
    assert run.rows(0).binding.tolist() == [HOST, HOST, WAIT + 1, STREAM]


def test_of_equal_inputs_the_stream_is_named_then_waits_then_the_host() -> None:
    one = OneRank()
    a = one.rows.kernel("a", 0, 10)
    b = one.rows.kernel("b", 1, 10)
    one.rows.kernel("c", 0, 1, waits=[b], launch=10)
    one.rows.kernel("d", 2, 1, waits=[a, b], launch=10)
    assert one.run().rows(0).binding.tolist() == [HOST, HOST, STREAM, WAIT]


def test_negative_launch_begins_before_the_call() -> None:
    one = OneRank()
    one.rows.kernel("a", 0, 10, host=20, launch=-5)
    run = one.run()
    assert run.rows(0).begin.tolist() == [15]
    assert run.rank_end.tolist() == [25]


def test_speed_divides_kernels_and_copies_and_rounds_once() -> None:
    one = OneRank()
    one.rows.kernel("a", 0, 100)
    one.rows.kernel("b", 0, 1, kind=Kind.COPY)
    one.rows.host(10)
    run = one.run(speed=3.0)
    # 100 / 3 = 33.3 and 1 / 3 = 0.33; the CPU is no faster.
    assert run.rows(0).end.tolist() == [33, 33, 10]


def test_start_moves_everything() -> None:
    one = OneRank()
    one.rows.host(10)
    one.rows.kernel("a", 0, 5)
    run = one.run(start=1000)
    assert run.rows(0).begin.tolist() == [1000, 1010]
    assert run.rank_end.tolist() == [1015]


def test_rank_without_rows_ends_when_it_starts() -> None:
    assert OneRank().run(start=7).rank_end.tolist() == [7]


def test_host_rows_and_host_waits() -> None:
    one = OneRank()
    a = one.rows.kernel("a", 0, 100, host=1, launch_cost=2)
    one.rows.host(10)
    one.rows.host_wait([a], host=5, tail=4)
    one.rows.host_wait([a], host=5, tail=4)
    one.rows.host_wait([], host=1, tail=1)
    run = one.run()
    # a: 1 to 101; the CPU goes on at 3 and works to 13. The wait is called at 18, a ends at 101,
    # the CPU goes on at 105. The second finds a ended: 105 + 5 + 4. The third waits for nothing.
    assert run.rows(0).begin.tolist() == [1, 3, 13, 105, 114]
    assert run.rows(0).end.tolist() == [101, 13, 105, 114, 116]
    assert run.rows(0).binding.tolist() == [HOST, HOST, WAIT, HOST, HOST]
    assert run.step_time == 116


def test_launch_queue_blocks_the_call() -> None:
    one = OneRank()
    for name in "abc":
        one.rows.kernel(name, 0, 100, host=1, launch_cost=2)
    one.rows.kernel("d", 1, 10, host=1, launch_cost=2)
    run = one.run(queue_depth=2)
    # a: 1 to 101. b: called at 4, 101 to 201. c would be called at 7, but a leaves at 101; then
    # it follows b: 201 to 301; the CPU goes on at 103. d is the first of its stream: called at 104.
    assert run.rows(0).begin.tolist() == [1, 101, 201, 104]
    assert run.rows(0).binding.tolist() == [HOST, STREAM, STREAM | QUEUE, HOST]


def test_bindings_of_more_than_126_waits() -> None:
    one = OneRank()
    waits = [one.rows.kernel("a", stream, 10 + stream) for stream in range(200)]
    one.rows.kernel("b", 200, 1, waits=waits)
    run = one.run()
    assert run.rows(0).begin[-1] == 209
    assert run.rows(0).binding[-1] == WAIT + 125


# --- several ranks ------------------------------------------------------------------------------


def test_collective_starts_with_its_last_member() -> None:
    builder = ProgramBuilder()
    tables = [builder.table(), builder.table()]
    for rows, work, wire in zip(tables, (100, 40), (30, 35), strict=True):
        a = rows.kernel("a", 0, work)
        c = rows.collective(
            Operation.ALL_REDUCE, 0, 1, 64, duration=wire, waits=[a], host=1, launch_cost=2
        )
        rows.kernel("free", 0, 5)
        rows.kernel("bound", 0, 5, waits=[c])
    group = builder.communicator((0, 1))
    run = simulate(one_rank_a_table(*tables, builder=builder, slots=[[group], [group]]))
    # Ready at 100 and 40; both start at 100. Each has its own duration.
    assert run.rows(0).begin.tolist() == [0, 100, 100, 130]
    assert run.rows(1).begin.tolist() == [0, 40, 40, 135]
    assert [run.rows(r).wire.tolist()[1] for r in run.hosted] == [100, 100]
    assert [run.rows(r).end.tolist()[1] for r in run.hosted] == [130, 135]
    assert run.rows(1).binding.tolist() == [HOST, WAIT, STREAM, WAIT]
    assert run.rank_end.tolist() == [135, 140]


def test_speed_does_not_touch_communications() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.collective(Operation.ALL_REDUCE, 0, 0, 64, duration=30)
    builder.add_table(rows.build())
    for _ in range(2):
        builder.add_rank(0, [builder.communicator((0, 1))], speed=2.0)
    assert simulate(builder.build()).step_time == 30


def test_posting_does_not_block() -> None:
    """Two ranks that post to two communicators in opposite orders, and only then wait."""
    builder = ProgramBuilder()
    tables = [builder.table(), builder.table()]
    groups = [builder.communicator((0, 1), name) for name in ("left", "right")]
    for rows, order in zip(tables, ((0, 1), (1, 0)), strict=True):
        posted = [
            rows.collective(Operation.ALL_REDUCE, slot, slot, 8, duration=10, host=5)
            for slot in order
        ]
        rows.host_wait(posted)
    run = simulate(one_rank_a_table(*tables, builder=builder, slots=[groups] * 2))
    # left: ready at 5 and 10; right: at 10 and 5. Both run from 10 to 20.
    assert [run.rows(r).end.tolist() for r in run.hosted] == [[20, 20, 20]] * 2


def test_one_stream_in_opposite_orders_is_a_deadlock() -> None:
    builder = ProgramBuilder()
    tables = [builder.table(), builder.table()]
    groups = [builder.communicator((0, 1), name) for name in ("left", "right")]
    for rows, order in zip(tables, ((0, 1), (1, 0)), strict=True):
        for slot in order:
            rows.collective(Operation.ALL_REDUCE, slot, 0, 8, duration=10, name=f"sum {slot}")
    whole = one_rank_a_table(*tables, builder=builder, slots=[groups] * 2)
    with pytest.raises(DeadlockError) as caught:
        simulate(whole)
    assert str(caught.value) == (
        "deadlock: rank 0 waits at row 1 (sum 1) for operation 0 of communicator 0 (left), to "
        "which rank 1 never came; rank 1 waits at row 1 (sum 0) for operation 0 of "
        "communicator 1 (right), to which rank 0 never came"
    )


def test_deadlock_message_of_many_ranks_is_abridged() -> None:
    builder = ProgramBuilder()
    tables = [builder.table() for _ in range(12)]
    everyone = builder.communicator(range(12), "world")
    pair = builder.communicator((10, 11), "pair")
    for rank, rows in enumerate(tables):
        if rank < 10:
            rows.collective(Operation.BARRIER, 0, 0, 0, duration=1)
            continue
        order = (1, 0) if rank == 10 else (0, 1)
        for slot in order:
            row = rows.collective(Operation.BARRIER, slot, 0, 0, duration=1)
            rows.host_wait([row])
    slots = [[everyone] if rank < 10 else [everyone, pair] for rank in range(12)]
    with pytest.raises(DeadlockError) as caught:
        simulate(one_rank_a_table(*tables, builder=builder, slots=slots))
    text = str(caught.value)
    assert text.startswith("deadlock: rank 0 waits at row 0 (barrier) for operation 0 of comm")
    assert text.count("never came") == 4
    assert text.endswith("to which rank 10 never came; and 8 more ranks wait")


def test_send_and_receive() -> None:
    builder = ProgramBuilder()
    sender, receiver = builder.table(), builder.table()
    a = sender.kernel("a", 0, 50)
    sender.point_to_point(Kind.SEND, 0, 1, 100, duration=20, waits=[a])
    r = receiver.point_to_point(Kind.RECV, 0, 1, 100, duration=20)
    receiver.kernel("b", 0, 5, waits=[r])
    pair = builder.communicator((0, 1))
    run = simulate(one_rank_a_table(sender, receiver, builder=builder, slots=[[pair], [pair]]))
    assert run.rows(0).end.tolist() == [50, 70]
    assert run.rows(1).begin.tolist() == [0, 70]
    assert run.rows(1).wire.tolist() == [50, 70]


def test_eager_member_does_not_wait_but_is_waited_for() -> None:
    builder = ProgramBuilder()
    tables = [builder.table(), builder.table()]
    group = builder.communicator((0, 1))
    for rows, delay, flags in zip(tables, (30, 100), (Flag.EAGER, Flag.NONE), strict=True):
        rows.host(delay)
        rows.collective(Operation.BROADCAST, 0, 0, 8, duration=10, flags=flags)
        rows.kernel("next", 0, 1)
    run = simulate(one_rank_a_table(*tables, builder=builder, slots=[[group]] * 2))
    assert run.rows(0).wire.tolist() == [0, 30, 40]
    assert run.rows(0).end.tolist() == [30, 40, 41]
    assert run.rows(1).end.tolist() == [100, 110, 111]

    late_root = simulate(
        one_rank_a_table(*reversed(tables), builder=builder_like(builder), slots=[[0], [0]]),
    )
    assert late_root.rows(0).end.tolist() == [100, 110, 111]


def builder_like(builder: ProgramBuilder) -> ProgramBuilder:
    """A new builder with the names of another, whose tables are written already."""
    other = ProgramBuilder()
    other.names = builder.names
    other.communicator((0, 1))
    return other


def test_batch_is_ready_together_and_frees_the_stream_when_all_have_ended() -> None:
    builder = ProgramBuilder()
    middle, left, right = (builder.table() for _ in range(3))
    to_left = middle.point_to_point(Kind.SEND, 0, 0, 8, duration=10, host=5, launch=1)
    middle.point_to_point(Kind.RECV, 1, 0, 8, duration=20, flags=Flag.JOINED)
    middle.kernel("stream", 0, 1)
    middle.kernel("wait", 1, 1, waits=[to_left])
    left.host(50)
    left.point_to_point(Kind.RECV, 0, 0, 8, duration=10)
    right.host(100)
    right.point_to_point(Kind.SEND, 0, 0, 8, duration=20)
    a, b = builder.communicator((0, 1)), builder.communicator((2, 0))
    run = simulate(
        one_rank_a_table(middle, left, right, builder=builder, slots=[[a, b], [a], [b]]),
    )
    # The batch is ready at 6; its send runs 50 to 60, its receive 100 to 120. A wait for the
    # send is a wait for the kernel, which ends at 120.
    assert run.rows(0).begin.tolist() == [6, 6, 120, 120]
    assert run.rows(0).wire.tolist() == [50, 100, 120, 120]
    assert run.rows(0).end.tolist() == [60, 120, 121, 121]
    assert run.rows(0).binding.tolist() == [HOST, HOST, STREAM, WAIT]


def test_ring_of_batches() -> None:
    """Three ranks of one table, each sending to the next: no deadlock, one wire time."""
    builder = ProgramBuilder()
    rows = builder.table()
    rows.point_to_point(Kind.SEND, 0, 0, 8, duration=10)
    row = rows.point_to_point(Kind.RECV, 1, 0, 8, duration=10, flags=Flag.JOINED)
    rows.host_wait([row])
    builder.add_table(rows.build())
    for rank in range(3):
        to = builder.communicator((rank, (rank + 1) % 3))
        builder.add_rank(0, [to, builder.communicator(((rank - 1) % 3, rank))], start=10 * rank)
    # Starts are 0, 10, 20. Of rank 0 the send starts with rank 1 at 10, the receive with rank 2
    # at 20; of rank 1 the send starts at 20, the receive at 10; of rank 2 both at 20.
    run = simulate(builder.build())
    assert [run.rows(r).wire.tolist()[:2] for r in run.hosted] == [[10, 20], [20, 10], [20, 20]]
    assert run.rank_end.tolist() == [30, 30, 30]


def test_row_arrays_belong_to_hosted_ranks() -> None:
    builder = ProgramBuilder()
    tables = [builder.table() for _ in range(3)]
    tables[0].kernel("a", 0, 1)
    tables[2].kernel("a", 0, 2)
    tables[2].host(3)
    run = simulate(one_rank_a_table(*tables, builder=builder, slots=[[]] * 3))
    assert [len(run.rows(r).end) for r in run.hosted] == [1, 0, 2]
    assert run.hosted.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(run.placement, [0, 0, 0])
    assert set(run.wall) == {"plan", "simulate", "finish"}
