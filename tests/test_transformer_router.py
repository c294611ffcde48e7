"""Routers of mixtures of experts: their kernels, losses and capacities, worked out by hand."""

from __future__ import annotations

import pytest
from mixtures import LIMITED, SIZES, TINY, block
from transformers import lines, model, operator

from mpisim.experiment.models import Transformer
from mpisim.kernels.operations import Gemm
from mpisim.workloads.operators import Communicate, Compute


def test_a_router_by_transformer_engine() -> None:
    """RouterGatingLinearFunction: bf16 to fp32 forward; backward fp32 operands, hence tf32."""
    router = operator(block(TINY, ep=4, dp=4, moe_router="transformer-engine"), "router")
    tasks = (*router.forward, *router.backward)
    kernels = [each.kernel for each in tasks if isinstance(each, Compute)]
    products = [each for each in kernels if isinstance(each, Gemm)]
    assert products == [
        Gemm(8, 8, 16, dtype="bf16", output="fp32"),
        Gemm(8, 16, 8, dtype="tf32", output="fp32"),
        Gemm(8, 16, 8, dtype="tf32", output="fp32"),
    ]
    assert lines(router.forward)[0].startswith("router: ")
    cast = f"router cast: {8 * 16 * (2 + 4)} bytes"
    assert lines(router.backward).count(cast) == 1


def test_the_auxiliary_loss_of_megatron() -> None:
    """`aux_loss_load_balancing` of Megatron-LM: scores again, two sums, numbers of each expert."""
    fused = operator(block(TINY, ep=4, dp=4, moe_router_fusion=True), "load balancing")
    loss = [f"load balancing loss {i}: {2 * 4 * 8} bytes" for i in range(1, 5)]
    assert lines(fused.forward) == [
        f"load balancing scores: {8 * 8 * 9} bytes",
        f"load balancing token sums: {8 * 8} bytes",
        f"load balancing probability sums: {8 * 8 * 4} bytes",
        *loss,
    ]
    single = operator(block(TINY, ep=4, dp=4), "load balancing")
    # Without fusion the map is made twice, of the router's choice and of the loss's.
    assert sum(line.partition(": ")[0].endswith(" map") for line in lines(single.forward)) == 2
    shared = operator(block(TINY, tp=2, sp=True, ep=4, dp=4), "load balancing")
    assert f"load balancing all-reduce: AR tp {4 * 8}" in lines(shared.forward)
    names = [each.name for each in block(TINY, ep=4, dp=4, dp_style="ddp").operators]
    assert "load balancing" not in names


@pytest.mark.parametrize(("fusion", "published"), [(True, 31), (False, 72)])
def test_kernels_before_the_exchange_are_nearly_those_of_deepseek_v3(
    fusion: bool, published: int
) -> None:
    """Published: Megatron-LM, docs/discussions/deepseek-v3-gb200-optimization, 2.1.4."""
    assert 0.8 * published < launches_before_exchange(LIMITED, fusion) <= published
    assert launches_before_exchange(TINY, fusion) < launches_before_exchange(LIMITED, fusion)


def launches_before_exchange(found: Transformer, fusion: bool) -> int:
    layer = block(found, ep=4, dp=4, moe_router_fusion=fusion)
    names = [each.name for each in layer.operators]
    before = layer.operators[names.index("router") : names.index("dispatch") + 1]
    count = 0
    for step in (step for each in before for step in each.forward):
        if isinstance(step, Communicate) and step.group == "ep" and "counts" not in step.name:
            break
        count += step.launches if isinstance(step, Compute) else 0
    return count


def test_a_router_of_sigmoids_groups_and_biases() -> None:
    """`topk_routing_with_score_function` with score_function "sigmoid" and `group_limited_topk`."""
    layer = block(LIMITED, ep=4, dp=4)
    scores, chosen = 4 * 8 * 8, (4 + 8) * 8 * 2
    assert f"router sigmoid: {2 * scores} bytes" in lines(operator(layer, "router").forward)
    choice = lines(operator(layer, "load balancing").forward)
    assert choice[0] == f"router bias: {2 * scores} bytes"
    groups = [each for each in choice if each.startswith("router group ")]
    assert len(groups) == 11
    assert choice[1:12] == groups
    assert choice[12] == f"router gather: {chosen} bytes"
    shares = ["sum", "sum offset", "shares"]
    assert [each.partition(": ")[0] for each in choice[13:17]] == [
        *(f"router {each}" for each in shares),
        "router scale",
    ]
    assert [each for each in choice if each.startswith("load balancing s")][:4] == [
        f"load balancing sigmoid: {2 * scores} bytes",
        f"load balancing sum: {scores} bytes",
        f"load balancing sum offset: {2 * 4 * 8} bytes",
        f"load balancing shares: {2 * scores} bytes",
    ]
    back = [each.partition(": ")[0] for each in lines(operator(layer, "load balancing").backward)]
    assert sum(each.endswith("gradient sum") for each in back) == 3  # of two sums, and of scores
    assert "load balancing sigmoid backward" in back
    fused = block(LIMITED, ep=4, dp=4, moe_router_fusion=True)
    names = [each.partition(": ")[0] for each in lines(operator(fused, "load balancing").forward)]
    assert not [each for each in names if "group" in each or "shares" in each]


def test_a_single_sigmoid_has_no_share() -> None:
    single = model("moe", **{**SIZES, "topk": 1}, router_scores="sigmoid")
    names = lines(operator(block(single, ep=4, dp=4), "load balancing").forward)
    assert [each for each in names if "shares" in each] == [
        f"load balancing shares: {2 * 4 * 8 * 8} bytes"
    ]


@pytest.mark.parametrize("fusion", [False, True])
def test_a_capacity_chooses_the_tokens_of_each_expert(fusion: bool) -> None:
    """`apply_router_token_dropping`, which runs behind a fused choice, too."""
    found = operator(
        block(TINY, ep=4, dp=4, moe_capacity=True, moe_router_fusion=fusion), "load balancing"
    )
    forward = [each for each in lines(found.forward) if each.startswith("capacity ")]
    assert len(forward) == 5
    assert forward[-1] == f"capacity product: {8 * 8 * 9} bytes"
    assert f"capacity backward: {8 * 8 * 9} bytes" in lines(found.backward)
