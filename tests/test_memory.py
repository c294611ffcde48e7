"""The walk over a pipeline stage: activations, temporaries, buffers, communicators.

Layers are toys whose bytes can be added up by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_layers import layer, operator, plan
from plans import ALONE, changed, plan_of

from mpisim.experiment import read
from mpisim.kernels.operations import Attention, Copy, CrossEntropy, Elementwise, Embedding, Gemm
from mpisim.memory import StageMemory, memory
from mpisim.memory.activations import (
    ChunkMemory,
    chunk_memory,
    output_bytes,
    result_bytes,
    weight_gradient_inputs,
    working_bytes,
)
from mpisim.memory.communicators import connections
from mpisim.memory.constants import constants
from mpisim.memory.model import _messages as messages
from mpisim.memory.schedule_peak import peak
from mpisim.program import Operation, Phase
from mpisim.schedules import SCHEDULES, pipeline
from mpisim.workloads import lay_out
from mpisim.workloads.data_parallel import make_strategy
from mpisim.workloads.grid import Grid, Groups
from mpisim.workloads.layout import ModelChunk
from mpisim.workloads.operators import Communicate, Compute, Layer, Operator, Parameter


def part(*layers: Layer) -> ModelChunk:
    """A part of a pipeline."""
    numbers = []
    for each in layers:
        numbers.append(len(numbers) if each.role == "block" else -1)
    return ModelChunk(layers, tuple(numbers))


# --- temporaries ----------------------------------------------------------------------------------


def test_results_of_kernels() -> None:
    assert result_bytes(Gemm(4, 8, 16)) == 2 * 4 * 8
    assert result_bytes(Gemm(4, 8, 16, accumulate=True, output="fp32")) == 0
    heads = Attention(2, 4, 2, 10, 20, 8, 8)
    assert result_bytes(heads) == 2 * 2 * 4 * 10 * 8
    backward = replace(heads, backward=True)
    assert result_bytes(backward) == 2 * 2 * 8 * (4 * 10 + 2 * 2 * 20)
    assert result_bytes(CrossEntropy(3, 5)) == 4 * 15
    assert result_bytes(Embedding(7, 8, 100, backward=True)) == 0
    assert result_bytes(Copy(2 * 8 * 100, "fill")) == 2 * 8 * 100
    assert result_bytes(Embedding(70, 8, 100, outputs=7)) == 2 * 8 * 7
    assert result_bytes(Embedding(7, 8, 100, pooling=7)) == 2 * 8


def test_a_result_lives_until_the_next_has_used_it() -> None:
    steps = [Compute("a", Elementwise(2 * size)) for size in (10, 30, 20, 5)]
    assert working_bytes(steps, ALONE) == 50
    assert working_bytes(steps, ALONE, given=100) == 110
    # Gathered before, scattered after; in a group of one neither is there.
    around = (
        Communicate("gather", Operation.ALL_GATHER, "tp", 80),
        steps[0],
        Communicate("reduce", Operation.ALL_REDUCE, "tp", 10),
        Communicate("scatter", Operation.REDUCE_SCATTER, "tp", 10),
    )
    assert working_bytes(around, ALONE) == 10
    assert working_bytes(around, ALONE | {"tp": 2}) == 90
    assert output_bytes(Operator("o", around), ALONE | {"tp": 2}) == 5
    assert output_bytes(Operator("o", around), ALONE) == 10
    beside = (Communicate("gather", Operation.ALL_GATHER, "tp", 80, token="x"), *steps)
    assert working_bytes(beside, ALONE | {"tp": 2}) == 130


def test_what_gradients_of_weights_need() -> None:
    tokens, h = 6, 4
    weights = Gemm(h, 3 * h, tokens, accumulate=True)
    step = Compute("weight", weights, weight=True)
    assert weight_gradient_inputs(Operator("o", (), (step,)), ALONE) == 2 * tokens * 4 * h
    gather = Communicate("gather", Operation.ALL_GATHER, "tp", 2 * tokens * h, weight=True)
    shared = weight_gradient_inputs(Operator("o", (), (gather, step)), ALONE | {"tp": 2})
    assert shared == 2 * tokens * 4 * h - tokens * h


# --- activations ----------------------------------------------------------------------------------


def test_forward_leaves_what_it_saves_and_backward_frees_it() -> None:
    found = chunk_memory(
        part(layer(operator(100, 10, 30), operator(50, 20, 40)), layer(operator(70, 60, 5))),
        plan(),
        ALONE,
    )
    assert found.kept == 220
    # The last operator has saved 70 and makes 60.
    assert found.forward == 150 + 70 + 60
    # Last layer: given 60, makes 5. Then on 70 less: given 20, makes 40. On 120 less: 10 and 30.
    assert found.backward == 65


def test_recomputation() -> None:
    scores = operator(1000, 10, 20, selective=True)
    block = layer(operator(100, 10, 20), scores, checkpoint=16)
    whole = chunk_memory(part(block, block), plan(recompute="full"), ALONE)
    assert whole.kept == 32
    assert whole.forward == 16 + 16 + 10
    assert whole.backward == (1100 - 16) + 10 + 20
    inside = chunk_memory(part(block, block), plan(recompute="selective"), ALONE)
    assert inside.kept == 200
    assert inside.backward == 1000 + 10 + 20
    some = chunk_memory(part(block, block), plan(recompute="full", recompute_layers=1), ALONE)
    assert some.kept == 16 + 1100
    ends = chunk_memory(part(layer(scores, role="embedding"), block), plan(recompute="full"), ALONE)
    assert ends.kept == 1000 + 16


def test_a_backward_frees_while_the_forward_beside_it_keeps() -> None:
    """Two micro-batches, layer beside layer, hold about as much as one, not twice that.

    So it is with Megatron-LM's overlap of experts' exchanges.
    """
    blocks = part(*[layer(operator(100, 10, 20)) for _ in range(8)])
    found = chunk_memory(blocks, plan(), ALONE)
    alone = peak(pipeline("1f1b", 1, 4), 0, [found])
    beside = peak(pipeline("1f1b", 1, 4, paired=True), 0, [found])
    assert alone.kept == 800
    # The layer that is ahead, and the temporaries of both.
    assert beside.total == alone.total + 100 + 10
    assert beside.kept <= beside.total


def test_the_optimizer_works_when_gathered_parameters_are_gone() -> None:
    """FSDP: PyTorch's copy for the update is there when units and their gradients are not."""
    text = """
    model = { preset = "llama-3-70b", seq_len = 128 }
    plan = { global_batch = 8, zero = 3, recompute = "full" }
    framework = { dp_style = "fsdp" }
    cluster = { preset = "dgx-h100" }
    """
    laid = lay_out(read(text, "text"), 8)
    (found,) = memory(laid.pipeline, laid.model_chunks[0], laid.experiment.plan, laid.grid)
    assert found.moment == "the optimizer's step"
    assert found.working == found.parameters
    assert found.activations == found.gathered == found.buckets == 0


def test_gradients_of_weights_that_are_put_off() -> None:
    gemm = Gemm(4, 4, 5, accumulate=True)  # 2 × 5 × 8 = 80 bytes of inputs and gradients
    found = chunk_memory(part(layer(operator(100, 10, 20, gemm=gemm))), plan(), ALONE)
    assert found.for_weights == 80
    assert (found.backward, found.inputs, found.weights) == (30, 30, 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_walk_keeps_what_the_schedule_says(name: str) -> None:
    pipe = pipeline(name, 4, 8, 2 if name in ("interleaved", "zb-v", "dualpipe-v") else 1)
    for stage in range(4):
        saved, later = [7, 11][: pipe.chunks], [3, 4][: pipe.chunks]
        chunks = [
            ChunkMemory(kept, for_weights, kept, 0, 0, 0, (kept,), (0,))
            for kept, for_weights in zip(saved, later, strict=True)
        ]
        worst = peak(pipe, stage, chunks)
        assert worst.kept == pipe.peak(stage, saved, later)
        if not SCHEDULES[name].pairs_passes:
            assert worst.total == worst.kept


def test_gradients_are_added_up_from_the_first_backward_of_a_chunk_to_its_last() -> None:
    # One round of micro-batches: each chunk's backwards follow each other, the last chunk's first.
    once, twice = pipeline("interleaved", 2, 2, 2), pipeline("interleaved", 2, 4, 2)
    chunks = [ChunkMemory(1, 0, 1, 0, 0, 0, (1,), (0,))] * 2
    assert peak(once, 0, chunks).total == 4
    worst = peak(once, 0, chunks, [100, 30])
    assert (worst.kept, worst.gradients, worst.total) == (2, 100, 102)  # the last chunk's are done
    worst = peak(twice, 0, chunks, [100, 30])
    assert (worst.gradients, worst.total) == (130, worst.kept + 130)


def test_overlapped_actions_may_be_at_their_worst_at_once() -> None:
    pipe = pipeline("dualpipe", 2, 4)
    chunks = [ChunkMemory(10, 0, 15, 20, 20, 0, (15,), (20,))] * 2
    worst = peak(pipe, 0, chunks)
    paired = [i for i, action in enumerate(pipe.actions[0]) if action.paired]
    held, most = 0, 0
    for i, action in enumerate(pipe.actions[0]):
        top = 15 if action.phase is Phase.FORWARD else 20 if action.phase is Phase.BACKWARD else 0
        if i + 1 in paired:
            most = max(most, held + 35)
        most = max(most, held + top)
        if action.phase is not Phase.WEIGHT:
            held += 10 if action.phase is Phase.FORWARD else -10
    assert worst.total == most


# --- buffers --------------------------------------------------------------------------------------


def test_messages_of_a_pipeline() -> None:
    parts = [part(layer())] * 4
    pipe = pipeline("1f1b", 4, 4)
    assert [messages(pipe, stage, parts) for stage in range(4)] == [16, 32, 32, 16]
    assert messages(pipeline("1f1b", 1, 4), 0, parts) == 0


def test_connections() -> None:
    exchange = Communicate("tokens", Operation.ALL_TO_ALL, "ep", 64)
    reduce = Communicate("sum", Operation.ALL_REDUCE, "tp", 64)
    experts = Operator("o", (exchange, reduce), (), (Parameter("e", 8, expert=True),))
    keys = plan(tp=2, ep=8, etp=1, pp=2, dp=8)
    grid = Grid.of(keys, 32)
    sizes = dict(Groups(grid).sizes)
    found = connections([layer(experts)], 0, keys, grid, sizes, 8)
    # Collectives on tp, on edp, and of the gradient's norm; 8 neighbours are one node, with 7
    # peers; the other stage is in another node.
    assert (found.collective, found.peers, found.network) == (3, 7, 1)
    flex = changed(keys, moe_dispatcher="flex")
    flexible = connections([layer(experts)], 0, flex, grid, sizes, 8)
    assert (flexible.peers, flexible.deepep, flexible.hybridep) == (0, True, 0)
    hybrid = changed(keys, moe_dispatcher="hybrid-ep")
    flexible = connections([layer(experts)], 0, hybrid, grid, sizes, 8)
    assert (flexible.peers, flexible.deepep, flexible.hybridep) == (0, False, 8 * 16)
    known = constants()
    expected = 3 * known.collective.si + 7 * known.peer.si + known.network.si
    assert found.bytes(known) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("keys", "apart"),
    [
        ({"dp_style": "ddp"}, False),
        ({"dp_style": "ddp", "zero": 1}, False),
        ({"dp_style": "fsdp", "zero": 3}, False),
        ({"dp_style": "fsdp", "zero": 3, "zero_group": 4}, False),
        ({"dp_style": "fsdp", "zero": 3, "ep": 2}, True),
        ({"dp_style": "ddp", "ep": 2}, True),
        ({"dp_style": "fsdp", "zero": 3, "flat_shards": True}, True),  # Megatron-FSDP
        ({"dp_style": "megatron"}, True),
        ({"dp_style": "deepspeed", "zero": 1}, True),
    ],
)
def test_experts_have_communicators_where_the_program_tells_them_apart(
    keys: dict[str, Any], apart: bool
) -> None:
    net = [layer(operator(parameters=(Parameter("e", 80, expert=True),)), size=80)]
    shared = plan(dp=8, **keys)
    grid = Grid.of(shared, 8)
    groups = Groups(grid, shared.zero_group)
    found = connections(net, 0, shared, grid, dict(groups.sizes), 8)
    levels = 1 if shared.zero_group is None else 2
    assert found.collective == levels * (1 + apart)
    strategy = make_strategy(shared, [net], groups)
    assert strategy.parameter_count(expert=True) == (80 if apart else 0)


# --- together -------------------------------------------------------------------------------------


def walk(**keys: object) -> list[StageMemory]:
    """The memory of a toy of 8 blocks."""
    chosen = plan_of(**{"global_batch": 32, "dp": 2, **keys})  # type: ignore[arg-type]
    grid = Grid.of(chosen, 2 * chosen.pp)
    pipe = pipeline(chosen.pipeline.schedule, chosen.pp, 32 // 2, chosen.vpp)
    each = 8 // pipe.parts
    block = layer(operator(10**9, 10**8, 10**8), checkpoint=10**8, size=10**8)
    return memory(pipe, [part(*[block] * each)] * pipe.parts, chosen, grid)


def test_parts_add_up() -> None:
    (alone,) = walk()
    assert alone.total == sum(alone.parts.values())
    assert alone.states == 18 * 8 * 10**8
    assert alone.activations == 8 * 10**9
    assert alone.working == 2 * 10**8
    assert alone.tensors == alone.states + alone.activations + alone.working
    assert alone.fragmentation == round(constants().fragmentation.value * alone.tensors)


def test_stages_keep_what_is_in_flight() -> None:
    kept = [each.activations for each in walk(pp=4)]
    assert kept == [4 * 2 * 10**9, 3 * 2 * 10**9, 2 * 2 * 10**9, 2 * 10**9]
    assert [each.activations for each in walk(pp=4, schedule="gpipe")] == [16 * 2 * 10**9] * 4
    interleaved = walk(pp=4, schedule="interleaved", vpp=2)[0]
    assert interleaved.activations == 11 * 10**9  # p + (p - 1)/v stages of two layers


def test_dualpipe_holds_parameters_twice() -> None:
    once, twice = walk(pp=4), walk(pp=4, schedule="dualpipe")
    assert all(b.states == 2 * a.states for a, b in zip(once, twice, strict=True))
    assert max(each.activations for each in twice) == (4 + 1) * 2 * 10**9


def test_dualpipe_v_holds_parameters_once() -> None:
    """And activations of a chunk more than there are (README of deepseek-ai/DualPipe)."""
    once, in_a_v = walk(pp=4), walk(pp=4, vpp=2, schedule="dualpipe-v")
    assert sum(each.states for each in in_a_v) == sum(each.states for each in once)
    assert max(each.activations for each in in_a_v) == (2 * 4 + 1) * 10**9


def test_zb_h2_keeps_twice_the_activations() -> None:
    """(2p - 1) micro-batches on the first stage (arXiv:2401.10241, table 2)."""
    kept = [each.activations for each in walk(pp=4, schedule="zb-h2")]
    assert kept[0] == max(kept) == (2 * 4 - 1) * 2 * 10**9


def test_chimera_holds_parameters_twice_and_keeps_most_in_the_middle() -> None:
    """2 M of weights, p/2 + 1 to p micro-batches (arXiv:2107.06925, table 2)."""
    once, twice = walk(pp=4), walk(pp=4, schedule="chimera")
    assert all(b.states == 2 * a.states for a, b in zip(once, twice, strict=True))
    assert [each.activations for each in twice] == [n * 2 * 10**9 for n in (3, 4, 4, 3)]


def test_the_optimizer_may_set_the_peak() -> None:
    (found,) = walk(dp_style="ddp", precision="fp32", recompute="full")
    assert found.moment == "the optimizer's step"
    assert found.activations + found.working == 4 * 8 * 10**8


@pytest.mark.parametrize("fused", [True, False])
def test_updates_of_a_big_table_take_the_rows_looked_up_and_no_second_table(fused: bool) -> None:
    table = 10_000_000 * 64 * 4
    experiment = read(
        f"""
        [model]
        family = "dlrm"
        table_entries = [10_000_000, 1000]
        embedding = 64
        bottom_mlp = [64]
        top_mlp = [1]
        [plan]
        global_batch = 128
        micro_batch = 64
        precision = "fp32"
        optimizer = "sgd"

        [framework]
        fused = {str(fused).lower()}
        [cluster]
        preset = "dgx-h100"
        gpus = 2
        """,
        "test",
    )
    layout = lay_out(experiment, 2)
    (stage,) = memory(
        layout.pipeline, layout.model_chunks[0], experiment.plan, layout.grid, transformer=False
    )
    assert stage.parameters >= table
    assert stage.working < table / 100
