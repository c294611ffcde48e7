"""Mixtures of experts: steps worked out by hand, volumes, overlap."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import published_formulas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import SHARED, TINY, block
from transformers import communications, lines, operator, plan

from mpisim.base.errors import InputError
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Elementwise, Gemm, GroupedGemm
from mpisim.workloads.grid import Grid
from mpisim.workloads.operators import Await, Communicate, Compute, Layer, Task
from mpisim.workloads.transformer import transformer_network
from mpisim.workloads.transformer.destinations import expected_destinations
from mpisim.workloads.transformer.exchange_rates import slowdown
from mpisim.workloads.transformer.hybrid_ep import Exchange, copy_rows, sum_rows


def test_dispatch_to_the_experts_and_back() -> None:
    layer = block(TINY, ep=4, dp=4)
    copies = 8 * 2 * 16 * 2
    assert lines(operator(layer, "router").forward) == [
        f"router cast: {8 * 16 * (2 + 4)} bytes",
        "router: 8 x 8 x 16 fp32",
        f"router softmax: {8 * 8 * 2 * 4} bytes",
        f"router top k: {8 * 8 * 9} bytes",
    ]
    dispatch, combine = operator(layer, "dispatch"), operator(layer, "combine")
    assert lines(dispatch.forward) == [
        f"token counts: {8 * 8} bytes",
        f"token counts all-gather: AG ep {4 * 8 * 8}",
        f"token count sums: {4 * 8 * 8} bytes",
        f"read token counts: {8 * (4 + 4 + 2)} bytes",
        # A flag read and a row written; read and written; read, and two written, for each pair.
        f"token rows: {8 * 8 * (1 + 6 * 4)} bytes",
        f"permutation: {8 * 16 * 2 + copies} bytes",
        "wait for token counts: read token counts",
        f"dispatch all-to-all: A2A ep {copies}",
        f"probabilities all-to-all: A2A ep {8 * 2 * 4}",
        f"chunk rows: {8 * 2 * 4} bytes",
        f"sort by expert: {2 * copies} bytes",
    ]
    assert lines(operator(layer, "experts in").forward) == [
        "experts in: 2 experts 16 x 64 x 16 bf16"
    ]
    assert lines(operator(layer, "experts out").backward) == [
        "experts out input gradient: 2 experts 16 x 32 x 16 bf16",
        "experts out weight gradient: 2 experts 16 x 16 x 32 bf16 (weight)",
    ]
    assert lines(combine.forward) == [
        f"unsort by expert: {2 * copies} bytes",
        f"combine all-to-all: A2A ep {copies}",
        f"unpermutation: {8 * 16 * 2 + copies} bytes",
    ]
    assert lines(combine.backward) == [
        f"unpermutation backward: {8 * 16 * 2 + copies} bytes",
        f"combine gradient all-to-all: A2A ep {copies}",
        f"unsort by expert backward: {2 * copies} bytes",
    ]
    assert lines(dispatch.backward) == [
        f"sort by expert backward: {2 * copies} bytes",
        f"probabilities gradient all-to-all: A2A ep {8 * 2 * 4}",
        f"dispatch gradient all-to-all: A2A ep {copies}",
        f"permutation backward: {8 * 16 * 2 + copies} bytes",
    ]


def test_experts_that_are_tensor_parallel_gather_their_tokens() -> None:
    layer = block(TINY, tp=2, etp=2, ep=2, dp=2)
    tokens = 4  # of 8, with sequence parallelism
    copies = tokens * 2 * 16 * 2
    exchanged = [each for each in communications(layer) if each[1] != "tp"]
    assert exchanged == [
        ("AG", "etp-ep", 2 * 2 * 8 * 8),
        ("A2A", "ep", copies),
        ("A2A", "ep", tokens * 2 * 4),
        ("AG", "etp", 2 * copies),
        ("AG", "etp", 2 * tokens * 2 * 4),
        ("RS", "etp", 2 * copies),
        ("A2A", "ep", copies),
    ]
    exchanged = [each for each in communications(layer, backward=True) if each[1] != "tp"]
    assert exchanged == [
        ("A2A", "ep", copies),
        ("AG", "etp", 2 * copies),
        ("RS", "etp", 2 * tokens * 2 * 4),
        ("RS", "etp", 2 * copies),
        ("A2A", "ep", tokens * 2 * 4),
        ("A2A", "ep", copies),
    ]
    assert lines(operator(layer, "experts in").forward) == [
        "experts in: 4 experts 16 x 32 x 16 bf16"
    ]


def test_all_experts_on_one_rank_exchange_nothing() -> None:
    assert communications(block(TINY)) == []
    # Then the CPU needs the number of rows of each expert alone, for their products.
    dispatch = operator(block(TINY), "dispatch")
    assert [line.partition(":")[0] for line in lines(dispatch.forward)] == [
        "token counts",
        "read token counts",
        "token rows",
        "permutation",
        "chunk rows",
        "sort by expert",
        "wait for token counts",
    ]
    layer = block(TINY, tp=2, etp=1, ep=2)
    assert {group for _, group, _ in communications(layer)} == {"tp", "ep"}


@pytest.mark.parametrize(("tp", "ep"), [(1, 2), (1, 8), (2, 4), (4, 2)])
def test_volume_is_the_published_one(tp: int, ep: int) -> None:
    layer = block(TINY, tp=tp, ep=ep, etp=1, dp=max(1, ep // tp))
    volume = published_formulas.expert_parallel_bytes(TINY, 8 // tp)
    steps = [
        step
        for operator in layer.operators
        for step in (*operator.forward, *operator.backward)
        if isinstance(step, Communicate) and step.group == "ep"
    ]
    tokens = [s.bytes for s in steps if s.name.partition(" ")[0] in ("dispatch", "combine")]
    assert tokens == [volume] * 4


def test_tokens_in_fp8_return_in_bf16() -> None:
    layer = block(TINY, ep=4, dp=4, precision_dispatch="fp8")
    copies = 8 * 2 * 16
    sizes = [size for operation, _, size in communications(layer) if operation == "A2A"]
    assert sizes == [copies, 8 * 2 * 4, 2 * copies]
    backward = communications(layer, backward=True)
    assert [size for _, _, size in backward] == [copies, 8 * 2 * 4, 2 * copies]
    assert "dispatch cast: 768 bytes" in lines(operator(layer, "dispatch").forward)


def test_the_busiest_rank_is_the_measure() -> None:
    layer = block(TINY, ep=4, dp=4, moe_imbalance=1.3)
    assert communications(layer)[1] == ("A2A", "ep", 21 * 16 * 2)  # 16 copies × 1.3, rounded up
    assert "2 experts 21 x 64 x 16" in lines(operator(layer, "experts in").forward)[0]
    alone = block(TINY, moe_imbalance=1.3)
    assert "8 experts 16 x 64 x 16" in lines(operator(alone, "experts in").forward)[0]


def test_shared_experts_come_first_and_are_added_last() -> None:
    names = [operator.name for operator in block(SHARED, ep=4, dp=4).operators]
    assert names[names.index("feed-forward norm") + 1 :] == [
        "routed branch",
        "shared expert branch",
        "shared expert in",
        "shared expert swiglu",
        "shared expert out",
        "router",
        "load balancing",
        "dispatch",
        "experts in",
        "experts swiglu",
        "experts out",
        "combine",
        "shared expert sum",
        "feed-forward dropout add",
    ]


def test_shared_experts_beside_dispatch_and_combination() -> None:
    layer = block(SHARED, ep=4, dp=4, overlap_moe=True)
    mixture = operator(layer, "mixture of experts")
    forward = [line.partition(":")[0] for line in lines(mixture.forward)]
    assert forward[forward.index("token counts") :] == [
        "token counts",
        "token counts all-gather",
        "token count sums",
        "read token counts",
        "token rows",
        "permutation",
        "wait for token counts",
        "dispatch all-to-all",
        "probabilities all-to-all",
        "shared expert in",
        "shared expert swiglu",
        "chunk rows",
        "sort by expert",
        "experts in",
        "experts swiglu",
        "experts out",
        "unsort by expert",
        "combine all-to-all",
        "shared expert out",
        "unpermutation",
    ]
    waits = {step.name: step.after for step in mixture.forward if isinstance(step, Compute)}
    tokens = {s.name: s.token for s in mixture.forward if isinstance(s, Communicate)}
    assert waits["shared expert in"] == waits["shared expert out"] == ()
    assert waits["chunk rows"] == (
        tokens["dispatch all-to-all"],
        tokens["probabilities all-to-all"],
    )
    assert waits["unpermutation"] == (tokens["combine all-to-all"],)
    backward = [line.partition(":")[0] for line in lines(mixture.backward)]
    beside = backward.index("combine gradient all-to-all")
    assert backward[beside + 1] == "shared expert out input gradient"
    beside = backward.index("dispatch gradient all-to-all")
    assert backward[beside + 1] == "shared expert swiglu backward"


def test_overlap_changes_the_order_and_nothing_else() -> None:
    plain, overlapped = (block(SHARED, ep=4, dp=4, overlap_moe=each) for each in (False, True))

    def work(layer: Layer) -> list[str]:
        steps = [s for o in layer.operators for s in (*o.forward, *o.backward)]
        return sorted(line.partition(" =>")[0].partition(" after")[0] for line in lines(steps))

    assert work(plain) == work(overlapped)
    assert plain.saved == overlapped.saved
    assert sorted(p.name for p in plain.parameters) == sorted(p.name for p in overlapped.parameters)


def test_inside_an_expert_group_gathers_wait_for_the_all_to_alls() -> None:
    layer = block(SHARED, tp=2, etp=2, ep=2, dp=2, overlap_moe=True)
    steps = operator(layer, "mixture of experts").forward
    found = [s for s in steps if isinstance(s, Communicate)]
    exchange = {s.token for s in found if s.name.startswith(("dispatch all-to", "probab"))} - {""}
    gathers = [s for s in found if s.group == "etp" and "all-gather" in s.name]
    assert len(gathers) == 2
    assert all(set(gather.after or ()) == exchange for gather in gathers)


def test_the_flexible_dispatcher_sends_each_token_once_to_each_rank() -> None:
    # 4 ranks of 2 of 8 experts, two for each token: a rank is spared if both are among the other
    # 6, with probability 6/8 × 5/7 = 15/28, so that 4 × 13/28 = 13/7 ranks get a token; ⌈8 × 13/7⌉.
    layer = block(TINY, ep=4, dp=4, etp=1, moe_dispatcher="flex")
    token, arrived, copies = 16 * 2, 15, 16
    dispatch, combine = operator(layer, "dispatch"), operator(layer, "combine")

    def sent(steps: tuple[Task, ...]) -> list[str]:
        return [line for line in lines(steps) if "expert map" not in line]

    assert sent(dispatch.forward) == [
        f"chosen experts: {8 * 8 * 4} bytes",
        f"dispatch layout: {8 * 4 * 4} bytes",
        f"dispatch notification: {4 * 8 * 4} bytes",
        f"read token counts: {8 * (1 + 2)} bytes",
        "wait for token counts: read token counts",
        f"dispatch all-to-all: A2A ep {token * arrived}",
        f"token rows: {arrived * 2 * 25} bytes",
        f"permutation: {token * (arrived + copies)} bytes",
    ]
    assert sent(dispatch.backward) == [
        f"permutation backward: {token * (arrived + copies)} bytes",
        f"dispatch gradient notification: {8 * 4 * 4} bytes",
        f"dispatch gradient all-to-all: A2A ep {token * arrived}",
    ]
    assert lines(combine.forward) == [
        f"unpermutation: {token * (arrived + copies)} bytes",
        f"combine notification: {8 * 4 * 4} bytes",
        f"combine all-to-all: A2A ep {token * arrived}",
    ]
    assert lines(combine.backward) == [
        f"combine gradient notification: {4 * 8 * 4} bytes",
        f"combine gradient all-to-all: A2A ep {token * arrived}",
        f"unpermutation backward: {token * (arrived + copies)} bytes",
    ]


def test_lists_of_experts_that_deep_ep_brings_become_a_map() -> None:
    """`_indices_to_multihot` and `fused_indices_to_multihot` of Megatron-LM."""
    layer = block(TINY, ep=4, dp=4, etp=1, moe_dispatcher="flex")
    dispatch = operator(layer, "dispatch")
    # indices[mask], repeat_interleave and probs[mask]; backward the gradient of probs[mask].
    waits = [step.name for step in dispatch.forward if isinstance(step, Await)]
    assert waits == [
        "wait for token counts",
        *(f"wait for expert map {each}" for each in ("experts", "rows", "probabilities")),
    ]
    assert sum(isinstance(step, Await) for step in dispatch.backward) == 1
    arrived, copies, listed = 15, 16, 15 * 2
    found = lines(dispatch.forward)
    assert f"expert map zeros: {8 * arrived * 2} bytes" in found
    assert f"expert map mask: {9 * listed} bytes" in found
    assert f"expert map experts: {(8 + 8 + 16) * copies} bytes" in found
    assert f"expert map: {9 * arrived * 2} bytes" in found
    fused = operator(
        block(TINY, ep=4, dp=4, etp=1, moe_dispatcher="flex", moe_multihot_fusion=True), "dispatch"
    )
    (forward,) = (line for line in lines(fused.forward) if "expert map" in line)
    assert forward == f"expert map: {12 * listed + 9 * arrived * 2} bytes"
    (back,) = (line for line in lines(fused.backward) if "expert map" in line)
    assert back == f"expert map gradient: {8 * arrived * 2 + 4 * listed} bytes"


def test_the_flexible_dispatcher_sends_each_token_once_to_each_node() -> None:
    # Two nodes of two of these ranks: 2 (1 - 4/8 × 3/7) = 11/7 nodes get a token; ⌈8 × 11/7⌉.
    # On few nodes DeepEP's kernels take 1.12 and 1.13 times as long as NCCL.
    made = plan(ep=4, dp=4, etp=1, moe_dispatcher="flex")
    found = transformer_network(TINY, made, Grid.of(made, 4, per_node=2))
    sizes = [size for _, group, size in communications(found.of_role("block")[0]) if group == "ep"]
    assert sizes == [math.ceil(factor * 16 * 2 * 13) for factor in (1.12, 1.13)]


def test_dispatchers_are_slower_than_nccl_by_what_was_measured() -> None:
    assert slowdown("hybrid-ep", "dispatch", 8, 1) == 1.02
    assert slowdown("hybrid-ep", "combine", 4, 1) == 1.12
    assert slowdown("hybrid-ep", "combine", 72, 1) == 1.28
    assert slowdown("hybrid-ep", "combine", 32, 4) == 1.13
    between = slowdown("hybrid-ep", "combine", 64, 6)  # log(6/4) / log(8/4) of the way
    assert between == pytest.approx(1.13 - 0.02 * math.log(1.5, 2))
    assert slowdown("flex", "dispatch", 8, 1) == slowdown("all-to-all", "dispatch", 64, 8) == 1


def test_a_mixture_that_is_computed_again_keeps_its_input_alone() -> None:
    kept, again = (
        block(SHARED, ep=4, dp=4, moe_dispatcher="hybrid-ep", recompute_modules=modules)
        for modules in ((), ("moe",))
    )
    inside = ("router", "dispatch", "experts in", "experts out", "combine", "shared expert in")
    tokens = 8 * 16
    assert sum(operator(again, name).saved for name in inside) == 2 * tokens
    assert sum(operator(kept, name).saved for name in inside) > 2 * tokens
    run_again = operator(again, "mixture of experts again")
    assert (run_again.forward, run_again.saved) == ((), 0)
    forward = [step for each in kept.operators for step in each.forward]
    names = [each.name for each in again.operators]
    assert names.index("combine") < names.index("mixture of experts again")
    exchanges = [step for step in run_again.backward if isinstance(step, Communicate)]
    assert exchanges == [step for step in forward if isinstance(step, Communicate)]
    # Where the norm runs again, too, not even the input is kept.
    both = block(SHARED, ep=4, dp=4, recompute_modules=("layernorm", "moe"))
    assert sum(operator(both, name).saved for name in inside) == 0


def test_products_in_mxfp8_have_a_variant_of_their_own() -> None:
    layer = block(TINY, precision="fp8", fp8_scaling="blocks")
    found = {
        kernel.variant
        for each in layer.operators
        for step in (*each.forward, *each.backward)
        if isinstance(step, Compute)
        and isinstance(kernel := step.kernel, Gemm | GroupedGemm)
        and kernel.dtype == "fp8"
    }
    assert found == {"blocks"}


@pytest.mark.parametrize(("apart", "into", "weights"), [(False, 1, 0), (True, 2, 2)])
def test_scales_of_blocks_are_put_in_order_before_products(
    apart: bool, into: int, weights: int
) -> None:
    """Those of weights, and until Transformer Engine's pull request 2486 those of what was cast."""
    blocks = {"precision": "fp8", "fp8_scaling": "blocks", "fp8_transposed": False}
    layer = block(TINY, **blocks, scales_apart=apart)
    for name in ("qkv", "experts in"):
        found = operator(layer, name)
        products = [
            step
            for step in (*found.forward, *found.backward)
            if isinstance(step, Compute) and isinstance(step.kernel, Gemm | GroupedGemm)
        ]
        assert [step.calls for step in products] == [into, into, weights]
    fused = operator(block(TINY, **blocks, moe_experts="fused"), name)
    assert [step.calls for step in fused.forward if isinstance(step, Compute)] == [0, 0]


def test_hybrid_ep_gathers_maps_and_sends_probabilities_of_all_experts() -> None:
    # Its kernels take 1.02 and 1.12 times as long as NCCL, to the experts and back.
    layer = block(TINY, ep=4, dp=4, etp=1, moe_dispatcher="hybrid-ep")
    arrived = 15
    size = arrived * (16 * 2 + 8 * 4)
    dispatch = operator(layer, "dispatch")
    assert lines(dispatch.forward) == [
        f"token maps all-gather: AG ep {4 * 8 * 8}",
        f"token maps: {2 * 4 * 8 * 8} bytes",
        f"read token counts: {8 * (1 + 2)} bytes",
        "wait for token counts: read token counts",
        f"dispatch all-to-all: A2A ep {math.ceil(1.02 * size)}",
        f"token rows: {arrived * 2 * 17} bytes",
        f"permutation: {16 * 2 * (arrived + 16)} bytes",
    ]
    gradient = f"dispatch gradient all-to-all: A2A ep {math.ceil(1.12 * size)}"
    assert lines(dispatch.backward)[-1] == gradient
    assert lines(operator(layer, "combine").forward)[-1] == (
        f"combine all-to-all: A2A ep {math.ceil(1.12 * arrived * 16 * 2)}"
    )


def test_masks_bring_tokens_to_experts() -> None:
    # Two sequences of 8 tokens, 2 experts each, half as many places again: 24 of a sequence.
    layer = block(
        TINY, ep=4, dp=4, micro_batch=2, moe_dispatcher="one-hot", moe_capacity_factor=1.5
    )
    tokens, places, size = 8, 24, 24 * 16 * 2
    masks = 2 * 2 * 2 * tokens * places
    dispatch, combine = operator(layer, "dispatch"), operator(layer, "combine")
    assert lines(dispatch.forward) == [
        f"dispatch masks: {masks} bytes",
        "dispatch: 2 x 24 x 16 x 8 bf16",
        f"dispatch all-to-all: A2A ep {2 * size}",
    ]
    assert lines(dispatch.backward) == [
        f"dispatch gradient all-to-all: A2A ep {2 * size}",
        "dispatch backward: 2 x 8 x 16 x 24 bf16",
        f"dispatch masks backward: {masks // 2} bytes",
    ]
    assert lines(combine.forward) == [
        f"combine all-to-all: A2A ep {2 * size}",
        "combine: 2 x 8 x 16 x 24 bf16",
    ]
    assert lines(combine.backward) == [
        "combine mask gradient: 2 x 8 x 24 x 16 bf16",
        "combine backward: 2 x 24 x 16 x 8 bf16",
        f"combine gradient all-to-all: A2A ep {2 * size}",
    ]
    experts = operator(layer, "experts in").forward[-1]
    assert isinstance(experts, Compute)
    assert isinstance(experts.kernel, GroupedGemm)
    assert experts.kernel.rows == 2 * places


def test_nobody_asks_where_every_expert_gets_as_many() -> None:
    dispatch = operator(block(TINY, ep=4, dp=4, moe_capacity=True), "dispatch")
    assert [line.partition(":")[0] for line in lines(dispatch.forward)] == [
        "token rows",
        "permutation",
        "dispatch all-to-all",
        "probabilities all-to-all",
        "chunk rows",
        "sort by expert",
    ]


def test_rows_in_fp8_are_copied_to_multiples_and_back() -> None:
    def padded(**keys: Any) -> list[str]:
        layer = block(TINY, ep=4, dp=4, etp=1, precision="fp8", **keys)
        return [each.name for each in layer.operators if "padding" in each.name]

    assert padded() == ["experts padding", "experts unpadding"]
    layer = block(TINY, ep=4, dp=4, precision="fp8")
    copied = f"{2 * 2 * 16 * 16} bytes"
    assert lines(operator(layer, "experts padding").forward) == [f"experts padding: {copied}"]
    assert padded(moe_dispatcher="hybrid-ep") == padded(moe_capacity=True) == []


def test_the_flexible_dispatcher_in_fp8_sends_a_byte_a_number() -> None:
    layer = block(TINY, ep=4, dp=4, etp=1, moe_dispatcher="flex", precision_dispatch="fp8")
    found = [line for line in lines(operator(layer, "dispatch").forward) if "map" not in line]
    assert found[4:] == [
        f"dispatch cast: {8 * 16 * 3} bytes",
        "wait for token counts: read token counts",
        f"dispatch all-to-all: A2A ep {15 * 16}",
        f"dispatch cast back: {15 * 16 * 3} bytes",
        f"token rows: {15 * 2 * 25} bytes",
        f"permutation: {16 * 2 * (15 + 16)} bytes",
    ]
    gradient = f"combine gradient all-to-all: A2A ep {15 * 16}"
    assert lines(operator(layer, "combine").backward)[2] == gradient


@given(st.integers(1, 6), st.integers(0, 6), st.data())
def test_places_that_a_token_needs(each: int, doublings: int, data: st.DataObject) -> None:
    parts = 2**doublings
    topk = data.draw(st.integers(1, each * parts))
    needed = expected_destinations(each * parts, topk, parts)
    assert max(1, topk / each) - 1e-9 <= needed <= min(topk, parts) + 1e-9


def test_experts_of_the_flexible_dispatcher_are_whole() -> None:
    with pytest.raises(InputError, match="set etp = 1"):
        plan(tp=2, ep=2, moe_dispatcher="flex")


def test_gradients_of_experts_in_fp8_have_split_sums() -> None:
    layer = block(TINY, ep=4, dp=4, precision="fp8")
    forward, backward = (
        {
            step.kernel.variant
            for each in layer.operators
            for step in steps(each)
            if isinstance(step, Compute) and isinstance(step.kernel, GroupedGemm)
        }
        for steps in (lambda each: each.forward, lambda each: each.backward)
    )
    assert (forward, backward) == ({None}, {"split"})


@pytest.mark.parametrize(
    ("experts", "topk", "copied", "added"),
    [(32, 36, 393.6, 267.3), (32, 8, 257.2, 127.3), (16, 8, 153.8, 103.5)],
)
def test_hybrid_ep_goes_through_all_experts_of_a_rank(
    experts: int, topk: int, copied: float, added: float
) -> None:
    """8 B200, 8,192 tokens of 512: harryzhou2000/megatron-lm-moe-experiments, sparse-opt-new.

    Instructions for each expert are from the second and third of these times: what they say of the
    formula is that memory and instructions make them up; the first, of other choices, is a check.
    """
    tokens, ranks, row = 8192, 8, 2 * 512
    needed = expected_destinations(ranks * experts, topk, ranks) / ranks
    arrived = round(ranks * tokens * needed)
    exchange = Exchange(ranks * tokens, ranks, arrived, tokens * topk, experts)
    model = Analytical(find_gpu("b200"))
    for step, microseconds in (
        (copy_rows("rows", exchange, row), copied),
        (sum_rows("rows", exchange, row), added),
    ):
        assert model.estimate(step.kernel).duration == pytest.approx(microseconds * 1e6, rel=0.15)


def test_hybrid_ep_streams_long_rows_of_few_experts() -> None:
    # DeepSeek-V3 on 64 ranks, 4 experts each: copies are as fast as memory, sums are not.
    exchange = Exchange(64 * 4096, 64, 30_900, 8 * 4096, 4)
    model = Analytical(find_gpu("gb200"))

    def took(step: Compute) -> tuple[int, int]:
        assert isinstance(step.kernel, Elementwise)
        plain = replace(step.kernel, instructions=None)
        return model.estimate(step.kernel).duration, model.estimate(plain).duration

    loops, memory = took(copy_rows("rows", exchange, 2 * 7168))
    assert loops == memory
    loops, memory = took(sum_rows("rows", exchange, 2 * 7168))
    assert loops > 1.5 * memory
