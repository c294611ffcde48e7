"""How experts are launched, what gpt-oss adds to them, and layers with windows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from transformers import lines, model, network, operator, plan

from mpisim.base.errors import InputError
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Attention, Elementwise
from mpisim.program import Phase
from mpisim.schedules import pipeline
from mpisim.workloads.operators import Compute, Layer, Operator, Task
from mpisim.workloads.pricing import Pricing

# 8 tokens of 16 features, 8 experts of 32, two for each token: 16 rows for 2 experts of a rank.
SIZES: dict[str, Any] = {
    "layers": 2,
    "hidden": 16,
    "heads": 4,
    "seq_len": 8,
    "vocab": 256,
    "experts": 8,
    "topk": 2,
    "moe_ffn_hidden": 32,
    "activation": "swiglu",
}
ROWS, HIDDEN, WIDTH = 16, 16, 32
TINY = model("moe", **SIZES)
OSS = model("moe", **SIZES, bias=True, swiglu_limit=7.0, window=2, window_every=2)


def block(found: Any = TINY, **keys: Any) -> Layer:
    return network(found, plan(**{"ep": 4, "dp": 4, **keys})).of_role("block")[0]


def launches(steps: Iterable[Task]) -> list[int]:
    return [step.launches for step in steps if isinstance(step, Compute)]


def indexed(operator: Operator) -> dict[str, int]:
    """Kernels whose operands are broadcast or not dense: elements of their results by name."""
    steps = (*operator.forward, *operator.backward)
    return {
        step.name: step.kernel.indexed
        for step in steps
        if isinstance(step, Compute) and isinstance(step.kernel, Elementwise)
        if step.kernel.indexed is not None
    }


class TestLaunches:
    def test_a_product_for_each_expert_in_megatron(self) -> None:
        into = operator(block(), "experts in")
        assert launches(into.forward) == [2]
        assert launches(into.backward) == [2, 2]
        # With casts, of which each expert has its own, but with delayed scaling.
        for scaling, casts, calls in (("delayed", 1, 0), ("current", 2, 2 * 3), ("blocks", 2, 0)):
            experts = operator(block(precision="fp8", fp8_scaling=scaling), "experts in")
            for steps in (experts.forward, experts.backward):
                assert launches(steps)[:2] == [casts, 2]
                assert isinstance(steps[0], Compute)
                assert steps[0].calls == calls

    def test_one_kernel_elsewhere(self) -> None:
        assert launches(operator(block(dp_style="ddp"), "experts in").forward) == [1]
        assert launches(operator(block(moe_experts="grouped"), "experts in").forward) == [1]

    def test_what_launches_cost_the_cpu(self) -> None:
        pricing = Pricing(Analytical(find_gpu("h100-sxm")))
        one, three = pricing.launching_of(1), pricing.launching_of(3)
        cost = one["host"] + one["launch_cost"]
        assert three["host"] + three["launch_cost"] == 3 * cost
        assert set(pricing.launching_of(0).values()) == {0}

    def test_graphs_are_launched_once(self) -> None:
        layer = block(cuda_graph_modules=("attn", "moe_router", "moe_preprocess"))
        names = [each.name for each in layer.operators]
        dispatch, norm = names.index("dispatch"), names.index("feed-forward norm")
        for operators in (layer.operators[:norm], layer.operators[norm:dispatch]):
            there = [n for each in operators for n in launches(each.forward)]
            back = [n for each in reversed(operators) for n in launches(each.backward)]
            assert there == [1] + [0] * (len(there) - 1)
            assert back == [1] + [0] * (len(back) - 1)
        # Reading numbers of tokens and copying tokens; what follows the exchange is no part of it.
        assert launches(layer.operators[dispatch].forward) == [1, 0, 0, 0, 0, 1, 1]
        assert launches(layer.operators[dispatch + 1].forward) == [2]


class TestFused:
    def test_activation_and_casts_are_part_of_the_products(self) -> None:
        layer = block(OSS, precision="fp8", moe_experts="fused")
        between = operator(layer, "experts swiglu")
        assert (between.forward, between.backward) == ((), ())
        assert between.saved > 0
        into, out = operator(layer, "experts in"), operator(layer, "experts out")
        assert [line.partition(":")[0] for line in lines(into.forward)] == [
            "experts in cast",
            "experts in",
        ]
        assert [line.partition(":")[0] for line in lines(out.forward)] == ["experts out"]
        assert lines(into.backward)[0].startswith("experts in input gradient")
        assert lines(out.backward)[0].startswith("experts out gradient cast")
        assert "experts bias" not in [each.name for each in layer.operators]


class TestGptOss:
    def test_the_scaled_bias_is_added_in_fp32_expert_by_expert(self) -> None:
        bias = operator(block(OSS), "experts bias")
        size = ROWS * HIDDEN
        assert lines(bias.forward) == [
            f"experts bias product: {4 * size} bytes",
            f"experts bias sum: {(2 + 4 + 4) * size} bytes",
            f"experts bias concatenation: {(4 + 4) * size} bytes",
            f"experts bias rounding: {(4 + 2) * size} bytes",
        ]
        assert launches(bias.forward) == [2, 2, 1, 1]
        assert sum(launches(bias.backward)) == 2 + 5 * 2

    def test_places_of_broadcast_and_cut_operands_are_divided_out(self) -> None:
        layer = block(OSS)
        bias, clamped = operator(layer, "experts bias"), operator(layer, "experts swiglu")
        assert indexed(bias) == {
            "experts bias product": ROWS * HIDDEN,
            "experts bias product backward": ROWS * HIDDEN,
        }
        assert indexed(clamped) == {
            f"experts swiglu clamp {half}{way}": ROWS * WIDTH
            for half in ("gate", "values")
            for way in ("", " backward")
        }

    def test_stretched_positions_are_elementary_operations_of_pytorch(self) -> None:
        rotary = operator(block(model("moe", **SIZES, yarn=True)), "rotary")
        kernels = {
            step.name: step.kernel
            for step in (*rotary.forward, *rotary.backward)
            if isinstance(step, Compute)
        }
        query = indexed(rotary)["query rotary cosine"]
        assert indexed(rotary)["query rotary negation"] == query // 2
        assert indexed(rotary)["query rotary backward sine"] == query
        # What is turned is joined with what is not, of which there is nothing.
        assert kernels["query rotary copy"] == Elementwise(2 * 2 * query)
        assert kernels["query rotary backward zeros"] == Elementwise(2 * query)
        assert kernels["query rotary backward zeros sum"] == Elementwise(3 * 2 * query)
        plain = operator(block(), "rotary")
        assert [step.name for step in plain.forward] == ["query rotary", "key rotary"]

    def test_biases_are_parameters_of_the_experts(self) -> None:
        layer = block(OSS)
        found = {each.name: each for each in layer.parameters if "bias" in each.name}
        assert found["experts in bias"].size == 2 * 2 * WIDTH
        assert found["experts out bias"].size == 2 * HIDDEN
        assert found["experts in bias"].expert

    def test_clamping_joins_again_what_it_cut(self) -> None:
        clamped = operator(block(OSS), "experts swiglu")
        size = ROWS * WIDTH
        assert lines(clamped.forward) == [
            f"experts swiglu clamp gate: {2 * 2 * size} bytes",
            f"experts swiglu clamp values: {2 * 2 * size} bytes",
            f"experts swiglu concatenation: {2 * 2 * 2 * size} bytes",
            "copy offset: 2 bytes",
            "wait for offset: copy offset",
            f"experts swiglu: {3 * 2 * size} bytes",
        ]
        assert clamped.saved == 2 * operator(block(), "experts swiglu").saved

    def test_every_other_layer_has_the_window(self) -> None:
        first, second = network(OSS, plan(ep=4, dp=4)).of_role("block")
        seen = [
            step.kernel
            for layer in (first, second)
            for step in operator(layer, "attention").forward
            if isinstance(step, Compute)
        ]
        assert [each.window for each in seen if isinstance(each, Attention)] == [2, None]


def test_attention_in_fp8_casts_what_comes_in() -> None:
    attention = operator(block(precision="fp8", precision_attention="fp8"), "attention")
    (cast, kernel) = [step for step in attention.forward if isinstance(step, Compute)]
    assert cast.kernel.traffic == 8 * 3 * 16 * (2 + 1)  # queries, keys and values
    assert isinstance(kernel.kernel, Attention)
    assert kernel.kernel.dtype == "fp8"


def test_passes_of_one_stage_can_overlap() -> None:
    (actions,) = pipeline("1f1b", stages=1, micro_batches=3, paired=True).actions
    phases = [(each.phase, each.micro_batch, each.paired) for each in actions]
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    assert phases == [
        (forward, 0, False),
        (forward, 1, False),
        (backward, 0, True),
        (forward, 2, False),
        (backward, 1, True),
        (backward, 2, False),
    ]
    with pytest.raises(InputError, match=r"overlap\.ep is true, but pipeline\.schedule = '1f1b'"):
        plan(overlap_ep=True, pp=2)
