"""The work of generated networks against closed formulas."""

from __future__ import annotations

from typing import Any

import published_formulas
import pytest
from transformers import model, network, plan

from mpisim.experiment import model_counts
from mpisim.experiment.models import Transformer
from mpisim.kernels.operations import Attention
from mpisim.workloads.operators import Compute, LayerStack

COMMON: dict[str, Any] = {
    "layers": 4,
    "hidden": 512,
    "heads": 8,
    "seq_len": 256,
    "vocab": 2048,
}
MIXTURE: dict[str, Any] = {"experts": 8, "topk": 2, "moe_ffn_hidden": 256, "ffn_hidden": 1024}
LATENT: dict[str, Any] = {
    "attention": "mla",
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_size": 32,
    "qk_rope_head_size": 16,
    "v_head_size": 48,
}

MODELS = {
    "gpt": model("gpt", **COMMON),
    "llama": model("llama", **COMMON, kv_heads=4, ffn_hidden=1408),
    "window": model("llama", **COMMON, kv_heads=4, ffn_hidden=1408, window=96),
    "mixtral": model("moe", **COMMON, **MIXTURE, kv_heads=4),
    "deepseek": model(
        "moe", **COMMON, **MIXTURE, **LATENT, shared_experts=1, dense_layers=1, mtp_layers=1
    ),
    "bert": model("bert", **COMMON),
    "t5": model("t5", **COMMON, decoder_layers=3, decoder_seq_len=64, head_size=32),
    "vit": model("vit", layers=4, hidden=512, heads=8, seq_len=197),
}

PLANS: dict[str, dict[str, Any]] = {
    "one GPU": {},
    "tp": {"tp": 4},
    "tp without sp": {"tp": 2, "sp": False},
    "chunks": {"tp": 2, "overlap_tp": True},
    "ring": {"cp": 2},
    "gathered context": {"cp": 4, "cp_style": "all-gather", "tp": 2},
    "shared heads": {"cp": 2, "cp_style": "all-to-all", "tp": 2},
    "experts": {"ep": 4, "dp": 4},
    "all": {"tp": 2, "cp": 2, "ep": 4, "etp": 2, "pp": 2, "dp": 2, "overlap_moe": True},
    "step by step": {"fused": False},
}


def fits(found: Transformer, keys: dict[str, Any]) -> bool:
    if "ep" in keys and not found.experts:
        return False
    if found.experts and keys.get("sp") is False:
        return False
    if "cp" in keys and (found.family == "t5" or (found.window and keys.get("cp_style") is None)):
        return False
    if found.family == "bert" and keys.get("sp") is False:
        return False  # see the test of work that ranks repeat
    return found.family != "vit" or set(keys) <= {"fused"}


CASES = [(m, p) for m, found in MODELS.items() for p, keys in PLANS.items() if fits(found, keys)]


def executed(found: LayerStack, keys: dict[str, Any], phase: str) -> int:
    """FLOPs on all ranks that share a micro-batch, forward or backward."""
    ranks = keys.get("tp", 1) * keys.get("cp", 1)
    return ranks * sum(
        step.kernel.flops
        for layer in found.layers
        for operator in layer.operators
        for step in (operator.forward if phase == "forward" else operator.backward)
        if isinstance(step, Compute)
    )


@pytest.mark.parametrize(("name", "sharing"), CASES)
def test_a_network_does_the_work_of_the_formula(name: str, sharing: str) -> None:
    found, keys = MODELS[name], PLANS[sharing]
    generated = network(found, plan(micro_batch=2, **keys))
    attention = model_counts.attention_flops(found, 2)
    forward = model_counts.matrix_flops(found, 2) + attention
    patches = model_counts.patch_flops(found, 2)
    done = executed(generated, keys, "forward")
    assert done == pytest.approx(forward + patches, rel=5e-3)
    # Fused attention computes its scores again: the head size once more.
    head, value = found.head, found.value_head
    again = attention * head / (head + value)
    done = executed(generated, keys, "backward")
    assert done == pytest.approx(2 * forward + patches + again, rel=5e-3)
    assert generated.flops == 3 * forward + 2 * patches


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_ranks_of_a_tp_group_repeat_what_is_not_split(name: str) -> None:
    found, keys = MODELS[name], PLANS["tp without sp"]
    h, tokens = found.hidden, 2 * found.seq_len
    if name == "bert":
        repeated = 2 * tokens * h * h + 2 * 2 * (h * h + 2 * h)
    else:
        repeated = model_counts.patch_flops(found, 2) + 2 * 2 * h * found.classes
    forward = model_counts.matrix_flops(found, 2) + model_counts.attention_flops(found, 2)
    forward += model_counts.patch_flops(found, 2)
    assert executed(network(found, plan(micro_batch=2, **keys)), keys, "forward") == (
        forward + repeated
    )


@pytest.mark.parametrize("name", MODELS)
def test_scores_in_memory_are_computed_once_and_whole(name: str) -> None:
    found = MODELS[name]
    generated = network(found, plan(micro_batch=2, kernels="eager"))
    matrices = model_counts.matrix_flops(found, 2)
    if found.family == "t5":
        pairs = 4 * 256**2 + 3 * 64**2 + 3 * 64 * 256
    else:
        pairs = (found.layers + found.mtp_layers) * found.seq_len**2
    scores = 2 * 2 * found.heads * (found.head + found.value_head) * pairs
    patches = model_counts.patch_flops(found, 2)
    forward = executed(generated, {}, "forward")
    assert forward == pytest.approx(matrices + scores + patches, rel=5e-3)
    backward = executed(generated, {}, "backward")
    assert backward == pytest.approx(2 * (matrices + scores) + patches, rel=5e-3)


def test_full_recomputation_runs_the_blocks_again() -> None:
    """arXiv:2104.04473: blocks four times a forward, the scores of the vocabulary three times."""
    found = model("gpt", **COMMON, causal=False)
    generated = network(found, plan(micro_batch=2, kernels="eager"))
    once = executed(generated, {}, "forward") + executed(generated, {}, "backward")
    again = sum(
        step.kernel.flops
        for layer in generated.of_role("block")
        for operator in layer.operators
        for step in operator.forward
        if isinstance(step, Compute)
    )
    assert once + again == pytest.approx(published_formulas.narayanan_flops(found, 2), rel=5e-3)


def test_selective_recomputation_runs_attention_again() -> None:
    found = MODELS["gpt"]
    generated = network(found, plan(micro_batch=2))
    again = sum(
        step.kernel.flops
        for layer in generated.layers
        for operator in layer.operators
        if operator.selective
        for step in operator.forward
        if isinstance(step, Compute)
    )
    assert again == model_counts.attention_flops(found, 2)


def test_counted_tokens() -> None:
    assert network(MODELS["gpt"], plan(micro_batch=3, cp=2)).tokens == 3 * 256
    assert network(MODELS["t5"], plan(micro_batch=3)).tokens == 3 * (256 + 64)
    assert network(MODELS["vit"], plan(micro_batch=3)).tokens == 3


def test_all_kernels_of_attention_are_fused_or_none() -> None:
    for kernels in ("flash", "eager"):
        fused = [
            step
            for layer in network(MODELS["t5"], plan(kernels=kernels)).layers
            for step in layer.kernels()
            if isinstance(step.kernel, Attention)
        ]
        # Encoder, and both of the decoder's, forward and backward.
        assert len(fused) == (2 * (4 + 2 * 3) if kernels == "flash" else 0)
