"""Hybrids: layers with recurrences, by published counts, formulas and what ranks do."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_transformer_parameters import held, padded, split
from transformers import model, network, plan

from mpisim.base.errors import InputError
from mpisim.experiment import FAMILIES, Transformer, model_counts
from mpisim.experiment.model_presets import find_model
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Gemm, GroupedGemm
from mpisim.program import Operation
from mpisim.workloads.operators import Communicate, Compute, LayerStack

COMMON: dict[str, Any] = {
    "hidden": 256,
    "heads": 8,
    "kv_heads": 4,
    "head_size": 32,
    "seq_len": 256,
    "vocab": 2048,
    "ffn_hidden": 512,
}
MAMBA: dict[str, Any] = {
    "mamba_heads": 8,
    "mamba_head_size": 64,
    "mamba_groups": 4,
    "mamba_state": 32,
}
DELTA: dict[str, Any] = {
    "delta_key_heads": 4,
    "delta_value_heads": 8,
    "delta_key_size": 32,
    "delta_value_size": 64,
}
MIXTURE: dict[str, Any] = {"experts": 8, "topk": 2, "moe_ffn_hidden": 128}

MODELS = {
    "dense": model("llama", **COMMON, **MAMBA, layers=5, pattern="M-M*-"),
    "latent": model(
        "moe",
        **COMMON,
        **MAMBA,
        **MIXTURE,
        layers=6,
        pattern="MEM*E-",
        moe_latent=64,
        shared_experts=1,
        mtp_layers=2,
        mtp_pattern="*E",
        mtp_shared=True,
    ),
    "delta": model(
        "moe",
        **COMMON,
        **DELTA,
        **MIXTURE,
        layers=4,
        pattern="GE GE GE *E",
        attention_gate=True,
        qk_norm=True,
    ),
}

PLANS: dict[str, dict[str, Any]] = {
    "one GPU": {},
    "tp": {"tp": 4},
    "context": {"cp": 2},
    "experts": {"ep": 4, "dp": 4},
    "all": {"tp": 2, "cp": 2, "ep": 4, "etp": 2, "pp": 2, "dp": 2},
}
CASES = [
    (name, sharing)
    for name, found in MODELS.items()
    for sharing, keys in PLANS.items()
    if found.experts or "ep" not in keys
]


def preset(name: str, **changes: Any) -> Transformer:
    """Return a published hybrid."""
    keys = find_model(name)
    return Transformer(**{**FAMILIES[keys["family"]][1], **keys, **changes})


def matrices(found: LayerStack, ranks: int, phase: str) -> int:
    """FLOPs of all products but those inside recurrences."""
    inside = re.compile(r"scan |delta (?!in\b|out\b)")
    return ranks * sum(
        task.kernel.flops
        for layer in found.layers
        for operator in layer.operators
        for task in getattr(operator, phase)
        if isinstance(task, Compute) and not inside.match(task.name)
    )


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("nemotron-h-8b", 8.10e9, None),  # huggingface.co/nvidia/Nemotron-H-8B-Base-8K
        ("nemotron-h-47b", 46.8e9, None),
        ("nemotron-h-56b", 56.3e9, None),
        ("nemotron-nano-9b-v2", 8.89e9, None),
        # arXiv:2512.20848: 31.6B in all, 3.2B a token without the embedding
        ("nemotron-3-nano", 31.6e9, 3.2e9),
        # Nemotron 3 Super: 120.6B in all, 12.7B a token; without multi-token prediction
        ("nemotron-3-super", 120.6e9, 12.4e9),
        ("nemotron-3-ultra", 550e9, 55e9),  # "550B-A55B"
        ("qwen3-next-80b-a3b", 79.7e9, 3.5e9),  # "80B-A3B", matrix of scores included
    ],
)
def test_counts_of_published_models(name: str, total: float, active: float | None) -> None:
    found = preset(name, mtp_layers=0, mtp_pattern="", mtp_shared=False)
    assert model_counts.parameters(found) == pytest.approx(total, rel=5e-3)
    if active is not None:
        assert model_counts.active_matrices(found) == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize(("name", "sharing"), CASES)
def test_ranks_hold_the_model_together(name: str, sharing: str) -> None:
    found, keys = MODELS[name], PLANS[sharing]
    parameters = held(network(found, plan(**keys)))
    tp = keys.get("tp", 1)
    total = split(parameters, tp, keys.get("ep", 1), keys.get("etp", tp))
    assert total == padded(found, tp)


@pytest.mark.parametrize(("name", "sharing"), CASES)
def test_products_are_those_of_the_formula(name: str, sharing: str) -> None:
    found, keys = MODELS[name], PLANS[sharing]
    ranks = keys.get("tp", 1) * keys.get("cp", 1)
    generated = network(found, plan(micro_batch=2, **keys))
    attention = model_counts.attention_flops(found, 2)
    forward = model_counts.matrix_flops(found, 2) + attention
    assert matrices(generated, ranks, "forward") == pytest.approx(forward, rel=5e-3)
    backward = 2 * forward + attention / 2  # fused attention computes scores again
    assert matrices(generated, ranks, "backward") == pytest.approx(backward, rel=5e-3)
    recurrence = model_counts.recurrence_flops(found, 2)
    assert generated.flops == 3 * (forward + recurrence)


def test_the_scan_in_chunks_by_hand() -> None:
    """Per token and head: L N of pairs a group, 2 P N twice for the state, P L for what is near."""
    found = MODELS["dense"]
    scans = [
        operator
        for layer in network(found, plan(micro_batch=2)).layers
        for operator in layer.operators
        if operator.name == "scan"
    ]
    assert len(scans) == 2
    length, tokens = 128, 2 * 256
    heads, size, groups, state = 8, 64, 4, 32
    pairs = 2 * length * state * groups
    states = 2 * 2 * heads * size * state
    near = heads * size * length  # half of the pairs
    done = sum(task.kernel.flops for task in scans[0].forward if isinstance(task, Compute))
    assert done == tokens * (pairs + states + near)
    # Backward: the first two products again, and the adjoints of all, those of pairs twice.
    again = pairs + states // 2
    adjoints = 2 * (pairs + states) + 3 * near
    done = sum(task.kernel.flops for task in scans[0].backward if isinstance(task, Compute))
    assert done == tokens * (again + adjoints)


@pytest.mark.parametrize(
    ("tokens", "rate"),
    [(8_192, 12.62e6), (16_384, 12.92e6), (32_768, 11.80e6), (65_536, 11.07e6)],
)
def test_a_measured_scan(tokens: int, rate: float) -> None:
    """mamba_chunk_scan_combined forward on an H100 (vLLM, pull request 27299)."""
    measured = model(
        "llama",
        **{**COMMON, "seq_len": tokens},
        **{**MAMBA, "mamba_heads": 128, "mamba_groups": 1, "mamba_state": 128, "mamba_chunk": 256},
        layers=2,
        pattern="M-",
    )
    (scan,) = (
        operator
        for layer in network(measured, plan()).layers
        for operator in layer.operators
        if operator.name == "scan"
    )
    gpu = Analytical(find_gpu("h100-sxm"), alone=True)
    found = [gpu.estimate(task.kernel) for task in scan.forward if isinstance(task, Compute)]
    seconds = 1e-12 * sum(each.duration for each in found)
    assert tokens / seconds == pytest.approx(rate, rel=0.2)
    assert max(each.error for each in found) > 0.2  # and it says that it is not sure


def test_exchanges_of_a_context_in_two() -> None:
    """Before the convolution all that the matrix in made, behind the recurrence its results."""
    found = MODELS["dense"]
    layer = network(found, plan(micro_batch=2, cp=2)).of_role("block")[0]
    exchanges = [
        task
        for operator in layer.operators
        for task in (*operator.forward, *operator.backward)
        if isinstance(task, Communicate) and task.operation is Operation.ALL_TO_ALL
    ]
    inner, width = 512, 2 * 512 + 2 * 4 * 32 + 8
    assert [(each.group, each.bytes) for each in exchanges] == 2 * [
        ("cp", 2 * 2 * 128 * width)
    ] + 2 * [("cp", 2 * 2 * 128 * inner)]


def test_tokens_travel_in_the_latent_width() -> None:
    found = MODELS["latent"]
    experts = network(found, plan(micro_batch=2, ep=4, dp=4)).of_role("block")[1]
    sent = [
        task.bytes
        for operator in experts.operators
        for task in operator.forward
        if isinstance(task, Communicate) and task.group == "ep" and task.bytes > 4096
    ]
    assert sent == [2 * 2 * 256 * 2 * 64] * 2


def formats(found: LayerStack, layer: str) -> dict[str, str]:
    """Matrix → format of its product forward, of linear layers of one layer."""
    operators = next(each for each in found.layers if each.name == layer).operators
    return {
        task.name: task.kernel.dtype
        for operator in operators
        for task in operator.forward
        if isinstance(task, Compute) and isinstance(task.kernel, Gemm | GroupedGemm)
    }


def test_products_that_stay_in_16_bits() -> None:
    found = network(
        MODELS["latent"],
        plan(
            precision="nvfp4",
            precision_first_wide=1,
            precision_last_wide=2,
            precision_wide_modules=("attention", "latent", "mtp"),
            moe_experts="loop",
        ),
    )
    # M, E, M, *, E, -: the first and the last two, whatever they are.
    assert formats(found, "layer 0")["mamba in"] == "bf16"
    assert formats(found, "layer 2")["mamba in"] == "nvfp4"
    quantised, wide = formats(found, "layer 1"), formats(found, "layer 4")
    assert (quantised["experts in"], wide["experts in"]) == ("nvfp4", "bf16")
    assert (quantised["experts latent down"], quantised["shared expert in"]) == ("bf16", "nvfp4")
    assert formats(found, "layer 3")["qkv"] == "bf16"
    assert formats(found, "layer 5")["feed-forward in"] == "bf16"
    assert formats(found, "prediction 1")["experts in"] == "bf16"
    # Nothing is cast where products are in 16 bits.
    assert not any("cast" in task.name for task in found.layers[5].operators[0].forward)


def test_wide_layers_change_nothing_in_16_bits() -> None:
    wide = plan(precision_last_wide=3, precision_wide_modules=("attention", "latent", "mtp"))
    assert network(MODELS["latent"], wide).layers == network(MODELS["latent"], plan()).layers


def test_shared_modules_of_prediction_hold_one_set() -> None:
    found = MODELS["latent"]
    heads = [layer for layer in network(found, plan()).layers if "prediction" in layer.name]
    assert len(heads) == 2
    assert heads[0].parameters
    assert not heads[1].parameters
    assert [len(layer.operators) for layer in heads] == [len(heads[0].operators)] * 2


@given(st.text("MG*-E ", min_size=1, max_size=12).filter(str.strip), st.integers(1, 30))
def test_patterns(pattern: str, layers: int) -> None:
    letters = set(pattern) - {" "}
    keys = {**COMMON, **MAMBA, **DELTA, "layers": layers, "pattern": pattern}
    parts = pattern.split() if len(pattern.split()) > 1 else list(pattern.strip())
    expected = [parts[i % len(parts)] for i in range(layers)]
    if any("E" in part for part in expected):
        keys |= MIXTURE
    found = model("llama", **keys)
    assert [found.kind(i) for i in range(layers)] == expected
    assert [found.is_moe(i) for i in range(layers)] == ["E" in part for part in expected]
    blocks = network(found, plan()).of_role("block")
    names = {
        "M": "scan",
        "G": "delta rule",
        "*": "attention",
        "-": "feed-forward out",
        "E": "router",
    }
    for block, part in zip(blocks, expected, strict=True):
        held = Counter(operator.name for operator in block.operators)
        assert {letter: held[names[letter]] for letter in letters} == {
            letter: part.count(letter) for letter in letters
        }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "M*x"}, "'x' is none of its letters: M, G, *, -, E, and a blank"),
        ({"pattern": "M*E"}, "layers with E need experts, others"),
        ({"pattern": "MG", "delta_key_heads": 0}, "delta_key_heads is 0; layers with G"),
        ({"mamba_heads": 0}, "mamba_heads is 0; layers with M"),
        ({"mamba_groups": 3}, "mamba_heads is 8, which is not a multiple of mamba_groups = 3"),
        ({"window": 64}, "window is 64; models with a pattern have none"),
        ({"mtp_pattern": "*-", "pattern": " "}, "pattern is empty; mtp_pattern needs it"),
        ({"moe_latent": 64}, "moe_latent is 64, but experts is 0"),
    ],
)
def test_what_no_hybrid_is(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        model("llama", **{**COMMON, **MAMBA, **DELTA, "layers": 6, "pattern": "M-M*--", **changes})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tp": 8}, "model.mamba_groups is 4, which is not a multiple of plan.tp = 8"),
        (
            {"tp": 4, "cp": 4},
            "model.mamba_heads is 8, which is not a multiple of plan.tp × plan.cp",
        ),
    ],
)
def test_what_no_plan_can_share(keys: dict[str, Any], message: str) -> None:
    found = model("llama", **{**COMMON, **MAMBA, "kv_heads": 8}, layers=2, pattern="M-")
    with pytest.raises(InputError, match=re.escape(message)):
        network(found, plan(**keys))
