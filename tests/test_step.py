"""A training step put together from blocks: order, waits, messages, bubbles; with toy networks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Free, Times, block, layout

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.kernels.operations import Elementwise
from mpisim.program import Kind, Operation, Phase, Program, Table, check_matching
from mpisim.workloads import Workload, training_step
from mpisim.workloads.operators import Await, Communicate, Compute, Layer, LayerStack, Operator


def network(layers: int, forward: int, inputs: int, weights: int) -> LayerStack:
    names = (f"layer {i}" for i in range(layers))
    return LayerStack(tuple(block(name, forward, inputs, weights) for name in names), 6, 1)


def step(layers: int, times: tuple[int, int, int], gpus: int, **plan: object) -> Workload:
    # PyTorch's DDP does nothing on one data-parallel rank, and clips no gradients.
    laid = layout(network(layers, *times), gpus, **{"dp_style": "ddp", **plan})
    return training_step(laid, Times())


def listed(program: Program, rank: int) -> list[str]:
    """What a rank does before the optimizer: names, with the micro-batch."""
    table = program.table_of(rank)
    return [
        f"{program.names[table.name[row]]} {table.micro_batch[row]}"
        for row in range(len(table))
        if table.phase[row] != Phase.OPTIMIZER and table.micro_batch[row] >= 0
    ]


def waits(table: Table, row: int) -> list[int]:
    return table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()


def test_one_rank_does_forward_and_backward_in_turn() -> None:
    done = step(2, (5, 6, 7), 1, global_batch=2)
    assert listed(done.program, 0) == [
        f"{name} {micro_batch}"
        for micro_batch in (0, 1)
        for name in (
            "layer 0 forward",
            "layer 1 forward",
            "layer 1 backward",
            "layer 1 weight",
            "layer 0 backward",
            "layer 0 weight",
        )
    ]
    run = engine.simulate(done.program, network=Free())
    table = done.program.table_of(0)
    passes = table.micro_batch >= 0
    begun = int(run.rows(0).end[passes].min()) - 5
    assert run.rows(0).end[passes].max() - begun == 2 * 2 * (5 + 6 + 7)


def test_messages_of_1f1b_as_megatron_sends_them() -> None:
    # pp 2, 3 micro-batches, forward_backward_pipelining_without_interleaving: the first stage warms
    # up with one forward, then sends forward and receives backward in one batch.
    program = step(2, (5, 6, 7), 2, global_batch=3, pp=2).program
    check_matching(program)
    assert listed(program, 0) == [
        "layer 0 forward 0",
        "send activation 0",
        "layer 0 forward 1",
        "send activation 1",
        "receive gradient 0",
        "layer 0 backward 0",
        "layer 0 weight 0",
        "layer 0 forward 2",
        "send activation 2",
        "receive gradient 1",
        "layer 0 backward 1",
        "layer 0 weight 1",
        "receive gradient 2",
        "layer 0 backward 2",
        "layer 0 weight 2",
    ]
    assert listed(program, 1) == [
        "receive activation 0",
        "layer 1 forward 0",
        "layer 1 backward 0",
        "layer 1 weight 0",
        "send gradient 0",
        "receive activation 1",
        "layer 1 forward 1",
        "layer 1 backward 1",
        "layer 1 weight 1",
        "send gradient 1",
        "receive activation 2",
        "layer 1 forward 2",
        "layer 1 backward 2",
        "layer 1 weight 2",
        "send gradient 2",
    ]
    table = program.table_of(0)
    sends = np.flatnonzero(table.kind == Kind.SEND)
    # Batches on one stream: after the kernel before, and the kernel after waits.
    assert len(np.unique(table.stream[table.is_communication])) == 1
    assert waits(table, int(sends[0])) == [int(sends[0]) - 1]
    assert waits(table, int(sends[0]) + 1) == [int(sends[0])]
    assert set(table.bytes[table.is_communication].tolist()) == {16}


def test_megatron_synchronises_with_the_gpu_after_each_batch_of_messages() -> None:
    # torch.cuda.synchronize() at the end of _communicate, megatron/core/pipeline_parallel.
    program = step(2, (5, 6, 7), 2, global_batch=2, pp=2, dp_style="megatron").program
    assert listed(program, 0) == [
        "layer 0 forward 0",
        "send activation 0",
        "wait for messages 0",
        "layer 0 forward 1",
        "send activation 1",
        "receive gradient 0",
        "wait for messages 0",
        "layer 0 backward 0",
        "layer 0 weight 0",
        "receive gradient 1",
        "wait for messages 1",
        "layer 0 backward 1",
        "layer 0 weight 1",
    ]
    table = program.table_of(0)
    for row in np.flatnonzero((table.kind == Kind.HOST_WAIT) & (table.micro_batch >= 0)):
        assert waits(table, int(row)) == [int(row) - 1]


@pytest.mark.parametrize("overlap", [False, True])
def test_messages_may_be_split_over_a_tensor_parallel_group(overlap: bool) -> None:
    # 16 bytes that both ranks of a tp group hold: each sends 8 to its own peer, and the two gather
    # what they received before they compute with it (arXiv:2104.04473, section 4.1).
    plan = {"global_batch": 1, "pp": 2, "tp": 2, "sp": False, "overlap_p2p": overlap}
    program = step(2, (5, 6, 7), 4, **plan, p2p_split=True).program
    check_matching(program)
    assert listed(program, 2) == [
        "receive activation 0",
        "activation all-gather 0",
        "layer 1 forward 0",
        "layer 1 backward 0",
        "layer 1 weight 0",
        "send gradient 0",
    ]
    table = program.table_of(2)
    messages = np.isin(table.kind, (Kind.SEND, Kind.RECV))
    assert set(table.bytes[messages].tolist()) == {8}
    names = [program.names[name] for name in table.name]
    gather, received = names.index("activation all-gather"), names.index("receive activation")
    assert table.bytes[gather] == 16
    assert received in waits(table, gather)
    assert gather in waits(table, names.index("layer 1 forward"))
    # Split already by sequence parallelism, they are what they were.
    shared = {**plan, "sp": True}
    whole = step(2, (5, 6, 7), 4, **shared).program.table_of(2)
    split = step(2, (5, 6, 7), 4, **shared, p2p_split=True).program.table_of(2)
    assert np.array_equal(split.bytes, whole.bytes)


def test_messages_that_do_not_come_out_even_are_sent_whole() -> None:
    plan = {"global_batch": 1, "pp": 2, "tp": 3, "sp": False, "p2p_split": True}
    program = step(2, (5, 6, 7), 6, **plan).program  # 16 bytes, 3 ranks
    assert "activation all-gather" not in program.names
    table = program.table_of(3)
    assert set(table.bytes[np.isin(table.kind, (Kind.SEND, Kind.RECV))].tolist()) == {16}


@pytest.mark.parametrize(
    "plan", [{"dp_style": "ddp"}, {"schedule": "gpipe"}, {"overlap_p2p": True}], ids=str
)
def test_the_cpu_does_not_wait_for_messages_elsewhere(plan: dict[str, object]) -> None:
    program = step(2, (5, 6, 7), 2, **{"global_batch": 2, "pp": 2, "dp_style": "megatron", **plan})
    assert "wait for messages" not in program.program.names


def test_with_overlap_each_message_has_a_stream_and_receives_are_early() -> None:
    program = step(2, (5, 6, 7), 2, global_batch=3, pp=2, overlap_p2p=True).program
    table = program.table_of(0)
    assert len(np.unique(table.stream[table.is_communication])) == 2
    receives = np.flatnonzero(table.kind == Kind.RECV)
    # A gradient is received behind the backward before: forwards 0 and 1, of which nothing, then
    # backward 0 behind forward 0, backward 1 behind backward 0 and, last, behind backward 1.
    passes = [(p, m) for p, m in zip(table.phase.tolist(), table.micro_batch.tolist(), strict=True)]
    last = {each: row for row, each in enumerate(passes) if table.kind[row] == Kind.KERNEL}
    forward, backward = int(Phase.FORWARD), int(Phase.BACKWARD)
    behind = [(forward, 0), (backward, 0), (backward, 1)]
    assert [waits(table, int(row)) for row in receives] == [[last[each]] for each in behind]
    # The backward's first kernel waits for its gradient, no kernel for a send.
    sends = set(np.flatnonzero(table.kind == Kind.SEND).tolist())
    assert not sends & set(table.wait_row.tolist())
    assert all(int(row) in waits(table, int(row) + 1) for row in receives)


def bubble(done: Workload) -> int:
    """What a step of the passes takes beyond the busiest rank's kernels."""
    run = engine.simulate(done.program, network=Free())
    ends, busy = [], []
    for rank in range(done.program.n_ranks):
        table = done.program.table_of(rank)
        passes = (table.micro_batch >= 0) & (table.kind == Kind.KERNEL)
        ends.append(int(run.rows(rank).end[passes].max()))
        busy.append(int(table.duration[passes].sum()))
    return max(ends) - max(busy)


times = st.integers(1, 1000)


@settings(deadline=None, max_examples=25)
@given(
    stages=st.integers(1, 5),
    more=st.integers(0, 4),
    times=st.tuples(times, times, times),
    overlap=st.booleans(),
)
def test_bubbles_of_gpipe_and_1f1b(
    stages: int, more: int, times: tuple[int, int, int], overlap: bool
) -> None:
    # arXiv:1811.06965, arXiv:2104.04473: (p - 1) (F + B), however the messages are waited for.
    for schedule in ("gpipe", "1f1b"):
        done = step(
            stages,
            times,
            stages,
            pp=stages,
            schedule=schedule,
            global_batch=stages + more,
            overlap_p2p=overlap,
        )
        assert bubble(done) == (stages - 1) * sum(times)


@settings(deadline=None, max_examples=15)
@given(
    stages=st.integers(2, 4),
    groups=st.integers(1, 3),
    chunks=st.sampled_from([2, 4]),
    times=st.tuples(times, times, times),
)
def test_bubble_of_the_interleaved_schedule(
    stages: int, groups: int, chunks: int, times: tuple[int, int, int]
) -> None:
    # arXiv:2104.04473: (p - 1) (F + B) / v; one layer a chunk, so F and B are v times a layer's.
    done = step(
        stages * chunks,
        times,
        stages,
        pp=stages,
        vpp=chunks,
        schedule="interleaved",
        global_batch=stages * groups,
    )
    check_matching(done.program)
    assert bubble(done) == (stages - 1) * sum(times)


@settings(deadline=None, max_examples=15)
@given(stages=st.integers(2, 5), more=st.integers(0, 4), time=times, weight=times)
def test_bubble_of_zb_h1(stages: int, more: int, time: int, weight: int) -> None:
    # arXiv:2401.10241: (p - 1) (F + B - 2 W), B the gradients of the inputs and W those of weights;
    # where W is no longer than either of the others.
    weight = min(weight, time)
    done = step(
        stages,
        (time, time, weight),
        stages,
        pp=stages,
        schedule="zb-h1",
        global_batch=stages + more,
    )
    assert bubble(done) == (stages - 1) * (time + time - weight)


@settings(deadline=None, max_examples=10)
@given(stages=st.integers(2, 4), more=st.integers(0, 4), time=times)
def test_bubble_of_zb_v(stages: int, more: int, time: int) -> None:
    # With equal times a stage waits for its first forward: p - 1 of the parts before it.
    done = step(
        2 * stages,
        (time, time, time),
        stages,
        pp=stages,
        vpp=2,
        schedule="zb-v",
        global_batch=2 * stages - 1 + more,
    )
    check_matching(done.program)
    assert bubble(done) == (stages - 1) * time
    # The first stage holds both ends, the last the middle, which it hands on to itself.
    first, last = (set(done.program.table_of(rank).layer.tolist()) for rank in (0, stages - 1))
    assert (first, last) == ({-1, 0, 2 * stages - 1}, {-1, stages - 1, stages})


@settings(deadline=None, max_examples=10)
@given(stages=st.integers(2, 4), more=st.integers(0, 4), time=times, weight=times)
def test_bubble_of_zb_h2(stages: int, more: int, time: int, weight: int) -> None:
    # (p - 1) (F + B - 2 W) of a stage (arXiv:2401.10241); of the step at least the last one's wait.
    weight = min(weight, time)
    done = step(
        stages,
        (time, time, weight),
        stages,
        pp=stages,
        schedule="zb-h2",
        global_batch=2 * stages - 1 + more,
    )
    check_matching(done.program)
    assert bubble(done) == (stages - 1) * max(time, 2 * time - 2 * weight)


def test_dualpipe_v_runs_and_its_messages_match() -> None:
    done = step(8, (5, 5, 5), 4, pp=4, vpp=2, schedule="dualpipe-v", global_batch=8)
    check_matching(done.program)
    engine.simulate(done.program, network=Free())
    # The first stage holds both ends, the last the middle, which it hands on to itself.
    first, last = (set(done.program.table_of(rank).layer.tolist()) for rank in (0, 3))
    assert (first, last) == ({-1, 0, 7}, {-1, 3, 4})


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
def test_both_directions_run_and_their_messages_match(schedule: str) -> None:
    done = step(4, (5, 5, 5), 4, pp=4, schedule=schedule, global_batch=8)
    check_matching(done.program)
    engine.simulate(done.program, network=Free())
    # Stage 0 holds parts 0 and 3, the second for micro-batches that come from the other end.
    table = done.program.table_of(0)
    layers = {(int(layer), int(n)) for layer, n in zip(table.layer, table.micro_batch, strict=True)}
    assert {n for layer, n in layers if layer == 0} == {0, 1, 2, 3}
    assert {n for layer, n in layers if layer == 3} == {4, 5, 6, 7}


@pytest.mark.parametrize(("stages", "units"), [(2, 1), (4, 1), (4, 3), (6, 2)])
def test_bubble_of_a_step_with_chimera(stages: int, units: int) -> None:
    """(p-2)(B + (m/p-1)(B-F)), as the catalogue says, where messages are free."""
    forward, inputs, weights = 10, 10, 5
    done = step(
        stages,
        (forward, inputs, weights),
        stages,
        pp=stages,
        schedule="chimera",
        global_batch=stages * units,
    )
    backward = inputs + weights
    more = (units - 1) * (backward - forward)
    assert bubble(done) == (stages - 2) * (backward + more)


def test_paired_passes_hide_each_others_communication() -> None:
    # Forward and backward of 10 ps kernels with an all-reduce of 30 ps before each: in turns the
    # kernels of one run while the other waits.
    def layer(name: str) -> Layer:
        steps = tuple(
            each
            for i in range(2)
            for each in (
                Communicate(f"{name} reduce {i}", Operation.ALL_REDUCE, "tp", 30),
                Compute(f"{name} {i}", Elementwise(10)),
            )
        )
        return Layer(name, (Operator(name, steps, steps),), "block", output=16, checkpoint=10)

    laid = layout(
        LayerStack((layer("a"), layer("b")), 6, 1),
        4,
        tp=2,
        pp=2,
        sp=False,
        schedule="dualpipe",
        global_batch=4,
    )
    program = training_step(laid, Times()).program
    check_matching(program)
    table = program.table_of(0)
    names = [program.names[name] for name in table.name]
    micro_batches = table.micro_batch.tolist()
    # Where a forward and a backward are paired, their kernels alternate micro-batch by micro-batch.
    kernels = [n for n, kind in zip(micro_batches, table.kind, strict=True) if kind == Kind.KERNEL]
    assert any(
        kernels[i] == kernels[i + 2] != kernels[i + 1] == kernels[i + 3]
        for i in range(len(kernels) - 3)
    ), names


def test_recomputation_runs_forward_again() -> None:
    done = step(3, (5, 6, 7), 1, global_batch=1, recompute="full", recompute_layers=2)
    table = done.program.table_of(0)
    again = table.phase == Phase.RECOMPUTE
    assert table.duration[again].tolist() == [5, 5]
    assert table.layer[again].tolist() == [1, 0]  # the first two layers, from the last on


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"pp": 2}, "3 layers cannot be spread evenly over plan.pp × plan.vpp = 2 parts"),
        ({"pp": 2, "stages": (1, 1)}, "adds up to 2 layers; the model has 3"),
        ({"pp": 2, "stages": (3, 0)}, "part 1 of the pipeline has no layer"),
    ],
)
def test_splits_that_do_not_come_out(plan: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        step(3, (1, 1, 1), 2, global_batch=4, **plan)
    assert message in str(error.value)


def test_an_uneven_split() -> None:
    done = step(5, (5, 6, 7), 2, pp=2, stages=(2, 3), global_batch=1)
    assert [len(part.layers) for part in done.layout.model_chunks[0]] == [2, 3]
    assert done.layout.model_chunks[0][1].numbers == (2, 3, 4)


@pytest.mark.parametrize("captured", [False, True])
def test_the_cpu_waits_for_what_it_needs(captured: bool) -> None:
    operator = Operator(
        "route",
        (
            Compute("count", Elementwise(5)),
            Compute("copy", Elementwise(7)),
            Await("wait for count", "count"),
            Compute("use", Elementwise(9)),
        ),
    )
    net = LayerStack((Layer("a", (operator,), "block", 16, 8),), 6, 1)
    program = training_step(layout(net, 1, global_batch=1, cuda_graphs=captured), Times()).program
    table = program.table_of(0)
    names = [program.names[name] for name in table.name]
    assert ("wait for count" in names) is not captured
    if not captured:
        row = names.index("wait for count")
        assert table.kind[row] == Kind.HOST_WAIT
        assert [names[each] for each in waits(table, row)] == ["count"]
        assert names[row - 1 : row + 2] == ["copy", "wait for count", "use"]


def test_launches_that_block() -> None:
    net = network(1, 6, 8, 4)
    keys = {"global_batch": 1, "launch_blocking": True}
    program = training_step(layout(net, 1, **keys), Times()).program
    table = program.table_of(0)
    for row in np.flatnonzero(table.kind == Kind.KERNEL).tolist():
        assert table.kind[row + 1] == Kind.HOST_WAIT
        assert waits(table, row + 1) == [row]
    with pytest.raises(InputError, match="launch_blocking is true, but cuda_graphs, too"):
        layout(net, 1, cuda_graphs=True, **keys)
