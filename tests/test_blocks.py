"""Blocks: waits that follow from order, ports, and tables joined from blocks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import Times

from mpisim.base.errors import InputError, ProgramError
from mpisim.kernels.operations import Elementwise
from mpisim.program import Flag, Kind, Names, Operation, Phase, Table
from mpisim.workloads.assembly import TableAssembler
from mpisim.workloads.block_cache import BlockCache, Slots
from mpisim.workloads.block_rows import LAST, PENDING
from mpisim.workloads.blocks import BlockBuilder
from mpisim.workloads.operators import Communicate, Compute, Operator
from mpisim.workloads.pricing import MAX_DURATION, Pricing

GATHER, REDUCE = Operation.ALL_GATHER, Operation.REDUCE_SCATTER


def builder(names: Names | None = None, slots: Slots | None = None) -> BlockBuilder:
    names = Names() if names is None else names
    return BlockBuilder(names, Pricing(Times()), slots or Slots({"tp": 2, "cp": 4, "dp": 1}))


def waits(table: Table) -> list[list[int]]:
    index = table.wait_index.tolist()
    return [table.wait_row[a:b].tolist() for a, b in pairwise(index)]


def table(*blocks: BlockBuilder) -> Table:
    rows = TableAssembler("test")
    for i, each in enumerate(blocks):
        rows.add(each.done(), i)
    return rows.table()


def kernel(name: str, *after: str) -> Compute:
    return Compute(name, Elementwise(10), after=after)


def test_kernels_and_communications_take_turns() -> None:
    block = builder()
    block.write([kernel("a"), Communicate("gather", GATHER, "tp", 64), kernel("b"), kernel("c")])
    found = table(block)
    assert waits(found) == [[], [0], [1], []]
    assert found.stream.tolist() == [0, 1, 0, 0]
    assert found.bytes.tolist()[1] == 64


@pytest.mark.parametrize("blocking", [False, True])
def test_a_kernel_written_again_is_as_if_written_so_often(blocking: bool) -> None:
    blocks = []
    for times in ([3], [1, 1, 1]):
        block = builder()
        block.pricing = Pricing(Times(), launch_blocking=blocking)
        block.write([kernel("a"), Communicate("gather", GATHER, "tp", 64)])
        for each in times:
            block.compute_again(kernel("b"), each)
        block.write([kernel("c"), Communicate("gather", GATHER, "tp", 64)])
        blocks.append(block)
    one, other = (block.done() for block in blocks)
    assert (one.flops, one.duration, one.last) == (other.flops, other.duration, other.last)
    assert (one.values == other.values).all()
    assert waits(table(blocks[0])) == waits(table(blocks[1]))


def test_a_layer_is_repeated_if_the_next_one_begins_as_it_did() -> None:
    reduce = Communicate("reduce", REDUCE, "tp", 64)
    carried = Communicate("exchange", GATHER, "tp", 64, token="rows", carried=True)
    cases = [
        ([kernel("lookup")], (kernel("a"), reduce, kernel("b")), True),
        # What a layer leaves pending the next one waits for.
        ([kernel("lookup")], (kernel("a"), kernel("b"), reduce), True),
        # The first layer has waited for what was carried; the second has nothing to wait for.
        ([kernel("lookup"), carried], (kernel("a", "rows"),), True),
        # Any of the further layers may end up waiting for it, and it does not move with them.
        ([kernel("lookup"), carried], (kernel("a"),), False),
    ]
    for before_all, layer, repeats in cases:
        blocks = []
        for numbers in ([0, 1], [0, 1, 2, 3, 4]):
            block = BlockBuilder(Names(), Pricing(Times()), Slots({"tp": 2}), BlockCache())
            block.write(before_all)
            for number in numbers:
                before = block.mark()
                block.tags(layer=number)
                for _ in block.write_operator(Operator("one", layer), "forward"):
                    pass
            if len(numbers) == 2:
                assert block.repeat_layer(before, [2, 3, 4]) == repeats
            block.write([kernel("last")])
            blocks.append(block)
        one, other = (block.done() for block in blocks)
        assert (len(one) == len(other)) == repeats
        if repeats:
            assert (one.flops, one.duration, one.last) == (other.flops, other.duration, other.last)
            assert (one.values == other.values).all()
            assert waits(table(blocks[0])) == waits(table(blocks[1]))


def test_groups_of_one_do_not_communicate() -> None:
    block = builder()
    block.write([kernel("a"), Communicate("reduce", REDUCE, "dp", 64), kernel("b")])
    assert len(table(block)) == 2
    assert block.slots.names == ()


def test_tokens_let_kernels_run_beside() -> None:
    # The backward of a column-parallel matrix: its input is gathered beside the input's gradient,
    # whose reduction runs beside the weights' gradient.
    backward = (
        Communicate("gather", GATHER, "tp", 64, weight=True, token="input"),
        kernel("input gradient"),
        Communicate("reduce", REDUCE, "tp", 64, token="gradient"),
        Compute("weight gradient", Elementwise(10), weight=True, after=("input",)),
    )
    operator = Operator("matrix", (kernel("forward"),), backward)
    block = builder()
    for steps in (operator.forward, operator.backward, operator.forward):
        block.write(steps)
    assert waits(table(block)) == [[], [0], [], [2], [1], [3]]


def test_a_carried_token_outlives_its_operator() -> None:
    exchange = Communicate("exchange", GATHER, "tp", 64, token="rows", carried=True)
    block = builder()
    block.write([kernel("lookup"), exchange])
    block.write([kernel("beside")])
    block.write([kernel("use", "rows")])
    block.write([kernel("next")])
    assert waits(table(block)) == [[], [0], [], [1], []]

    # Where nobody names it, the kernel after the block waits.
    first, second = builder(), builder()
    first.write([kernel("lookup"), exchange])
    first.write([kernel("beside")])
    second.write([kernel("next")])
    assert waits(table(first, second)) == [[], [0], [], [1]]


def test_a_communication_can_wait_for_tokens_alone() -> None:
    block = builder()
    block.write(
        [
            kernel("a"),
            Communicate("one", Operation.SEND_RECV, "cp", 8, token="1"),
            kernel("b"),
            Communicate("two", Operation.SEND_RECV, "cp", 8, token="2", after=("1",)),
            kernel("c", "1"),
            kernel("d", "2"),
        ]
    )
    found = table(block)
    # Each exchange is a SEND and a RECV in one batch; whoever waits for it waits for its last row.
    assert found.kind.tolist() == [0, 3, 4, 0, 3, 4, 0, 0]
    assert (found.flags & Flag.JOINED).tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert waits(found) == [[], [0], [], [], [2], [], [2], [5]]
    assert block.slots.names == ("cp:send", "cp:recv")


def test_backward_parts() -> None:
    steps = (kernel("input"), Compute("weight", Elementwise(10), weight=True))
    operator = Operator("o", (), steps)
    for part, expected in (("all", 2), ("input", 1), ("weight", 1)):
        block = builder()
        block.write(operator.backward_part(part))
        assert len(table(block)) == expected


def test_ports_reach_across_blocks() -> None:
    names, slots = Names(), Slots({"tp": 2, "dp": 2})
    first, empty, second, third = (builder(names, slots) for _ in range(4))
    first.write([kernel("a"), Communicate("gather", GATHER, "tp", 64)])
    reduced = first.communicate(Communicate("reduce", REDUCE, "dp", 8))
    assert reduced is not None
    first.export("gradients", [reduced])
    second.write([kernel("b")])
    third.await_next([third.port("gradients"), third.port("nothing")])
    third.write([Communicate("again", GATHER, "tp", 64), kernel("c")])
    found = table(first, empty, second, third)
    # b waits for what was pending, through the block without a kernel; "again" for b (the last
    # kernel) and what c was told to wait for.
    assert waits(found) == [[], [0], [0, 1], [2], [2, 3], [4]]
    assert found.micro_batch.tolist() == [0, 0, 0, 2, 3, 3]


def test_a_block_can_be_used_again() -> None:
    block = builder()
    block.tags(phase=Phase.FORWARD, layer=3)
    block.write([Communicate("gather", GATHER, "tp", 64), kernel("a")])
    done = block.done()
    rows = TableAssembler("twice")
    for micro_batch in (5, 6, 7):
        rows.add(done, micro_batch)
    found = rows.table()
    assert waits(found) == [[], [0], [1], [2], [3], [4]]
    assert found.micro_batch.tolist() == [5, 5, 6, 6, 7, 7]
    assert set(found.layer.tolist()) == {3}
    assert rows.duration == 30


def test_pairs_in_one_batch_share_a_stream() -> None:
    slots = Slots({}, {"a:send": "p2p", "b:recv": "p2p"})
    block = builder(slots=slots)
    block.point_to_point(Kind.SEND, "a:send", 8, "send", waits=(LAST, PENDING))
    row = block.point_to_point(Kind.RECV, "b:recv", 8, "receive", joined=True)
    block.await_next([row])
    block.write([kernel("a")])
    found = table(block)
    assert found.stream.tolist() == [1, 1, 0]
    assert waits(found)[2] == [1]


@given(cuts=st.lists(st.integers(0, 12), max_size=5), seed=st.integers(0, 1000))
def test_where_blocks_are_cut_does_not_matter(cuts: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    steps = [
        kernel(f"k{i}")
        if random.random() < 0.6
        else Communicate(f"c{i}", GATHER, ("tp", "cp")[i % 2], 8 * i + 8)
        for i in range(12)
    ]
    whole = builder()
    for step in steps:
        whole.write([step])
    names, slots = Names(), Slots({"tp": 2, "cp": 4, "dp": 1})
    pieces = []
    edges = [0, *sorted(cuts), len(steps)]
    for begin, end in pairwise(edges):
        piece = builder(names, slots)
        for step in steps[begin:end]:
            piece.write([step])
        pieces.append(piece)
    one, many = table(whole), table(*pieces)
    for column in ("kind", "stream", "slot", "duration", "bytes", "name"):
        assert np.array_equal(getattr(one, column), getattr(many, column))
    assert [set(each) for each in waits(one)] == [set(each) for each in waits(many)]


def test_limits() -> None:
    block = builder()
    with pytest.raises(InputError, match="the simulation's clocks cannot hold"):
        block.compute(Compute("long", Elementwise(MAX_DURATION + 1)))
    block.write([kernel("a")])
    rows = TableAssembler("many")
    rows.add(block.done(), 40_000)
    with pytest.raises(ProgramError, match="micro_batch is 40000; it must be at most 32767"):
        rows.table()
