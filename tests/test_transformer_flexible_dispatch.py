"""Tokens to experts and back by the flexible dispatcher: DeepEP and HybridEP."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from mixtures import TINY, block
from transformers import communications, lines, operator, plan

from mpisim.base.errors import InputError
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Elementwise
from mpisim.workloads.grid import Grid
from mpisim.workloads.operators import Await, Compute, Task
from mpisim.workloads.transformer import transformer_network
from mpisim.workloads.transformer.destinations import expected_destinations
from mpisim.workloads.transformer.hybrid_ep import Exchange, copy_rows, sum_rows


def test_the_flexible_dispatcher_sends_each_token_once_to_each_rank() -> None:
    # 4 ranks of 2 of 8 experts, two for each token: a rank is spared if both are among the other
    # 6, with probability 6/8 × 5/7 = 15/28, so that 4 × 13/28 = 13/7 ranks get a token; ⌈8 × 13/7⌉.
    # The links take 1.12 and 1.16 times as long as with NCCL, to the experts and back.
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
        f"dispatch all-to-all: A2A ep {math.ceil(1.12 * token * arrived)}",
        f"token rows: {arrived * 2 * 25} bytes",
        f"permutation: {token * (arrived + copies)} bytes",
    ]
    assert sent(dispatch.backward) == [
        f"permutation backward: {token * (arrived + copies)} bytes",
        f"dispatch gradient notification: {8 * 4 * 4} bytes",
        f"dispatch gradient all-to-all: A2A ep {math.ceil(1.16 * token * arrived)}",
    ]
    assert lines(combine.forward) == [
        f"unpermutation: {token * (arrived + copies)} bytes",
        f"combine notification: {8 * 4 * 4} bytes",
        f"combine all-to-all: A2A ep {math.ceil(1.16 * token * arrived)}",
    ]
    assert lines(combine.backward) == [
        f"combine gradient notification: {4 * 8 * 4} bytes",
        f"combine gradient all-to-all: A2A ep {math.ceil(1.12 * token * arrived)}",
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
    # On few nodes DeepEP's kernels take 1.1 and 1.4 times as long as NCCL.
    made = plan(ep=4, dp=4, etp=1, moe_dispatcher="flex")
    found = transformer_network(TINY, made, Grid.of(made, 4, per_node=2))
    sizes = [size for _, group, size in communications(found.of_role("block")[0]) if group == "ep"]
    assert sizes == [math.ceil(factor * 16 * 2 * 13) for factor in (1.1, 1.4)]


def test_hybrid_ep_gathers_maps_and_sends_probabilities_of_all_experts() -> None:
    # Its kernels take 0.97 and 1.04 times as long as NCCL, to the experts and back.
    layer = block(TINY, ep=4, dp=4, etp=1, moe_dispatcher="hybrid-ep")
    arrived = 15
    size = arrived * (16 * 2 + 8 * 4)
    dispatch = operator(layer, "dispatch")
    assert lines(dispatch.forward) == [
        f"token maps all-gather: AG ep {4 * 8 * 8}",
        f"token maps: {2 * 4 * 8 * 8} bytes",
        f"read token counts: {8 * (1 + 2)} bytes",
        "wait for token counts: read token counts",
        f"dispatch all-to-all: A2A ep {math.ceil(0.97 * size)}",
        f"token rows: {arrived * 2 * 17} bytes",
        f"permutation: {16 * 2 * (arrived + 16)} bytes",
    ]
    gradient = f"dispatch gradient all-to-all: A2A ep {math.ceil(1.04 * size)}"
    assert lines(dispatch.backward)[-1] == gradient
    assert lines(operator(layer, "combine").forward)[-1] == (
        f"combine all-to-all: A2A ep {math.ceil(1.04 * arrived * 16 * 2)}"
    )


def test_the_flexible_dispatcher_in_fp8_sends_a_byte_a_number() -> None:
    layer = block(TINY, ep=4, dp=4, etp=1, moe_dispatcher="flex", precision_dispatch="fp8")
    found = [line for line in lines(operator(layer, "dispatch").forward) if "map" not in line]
    assert found[4:] == [
        f"dispatch cast: {8 * 16 * 3} bytes",
        "wait for token counts: read token counts",
        f"dispatch all-to-all: A2A ep {math.ceil(1.12 * 15 * 16)}",
        f"dispatch cast back: {15 * 16 * 3} bytes",
        f"token rows: {15 * 2 * 25} bytes",
        f"permutation: {16 * 2 * (15 + 16)} bytes",
    ]
    gradient = f"combine gradient all-to-all: A2A ep {math.ceil(1.12 * 15 * 16)}"
    assert lines(operator(layer, "combine").backward)[2] == gradient


def test_experts_of_the_flexible_dispatcher_are_whole() -> None:
    with pytest.raises(InputError, match="set etp = 1"):
        plan(tp=2, ep=2, moe_dispatcher="flex")


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
