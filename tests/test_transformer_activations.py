"""What a layer keeps for its backward pass, against arXiv:2205.05198."""

from __future__ import annotations

from typing import Any

import published_formulas
import pytest
from transformers import model, network, operator, plan

from mpisim.workloads.operators import Layer

GPT = model("gpt", layers=2, hidden=512, heads=8, seq_len=256, vocab=1024)


def block(**keys: Any) -> Layer:
    return network(GPT, plan(micro_batch=3, **keys)).of_role("block")[0]


SHARING = [
    ({}, {}),
    ({"tp": 4, "sp": False}, {"tp": 4}),
    ({"tp": 4}, {"tp": 4, "sp": True}),
]


@pytest.mark.parametrize(("keys", "terms"), SHARING)
def test_a_layer_keeps_what_is_published(keys: dict[str, Any], terms: dict[str, Any]) -> None:
    layer = block(kernels="eager", **keys)
    assert layer.saved == published_formulas.activation_bytes(GPT, 3, **terms)
    kept = published_formulas.activation_bytes(GPT, 3, selective=True, **terms)
    assert layer.saved_selective == kept


@pytest.mark.parametrize(("keys", "terms"), SHARING)
def test_fused_attention_keeps_a_number_a_row_for_all_scores(
    keys: dict[str, Any], terms: dict[str, Any]
) -> None:
    layer = block(**keys)
    without = published_formulas.activation_bytes(GPT, 3, selective=True, **terms)
    assert layer.saved_selective == without
    assert layer.saved == without + 4 * 3 * 256 * 8 // keys.get("tp", 1)


def test_a_checkpoint_is_the_input_alone() -> None:
    sbh = 256 * 3 * 512
    assert block().checkpoint == 2 * sbh
    assert block(tp=4).checkpoint == 2 * sbh // 4
    assert block(tp=4, sp=False).checkpoint == 2 * sbh
    assert block(tp=4, cp=2).checkpoint == 2 * sbh // 8


def test_input_and_output_layers() -> None:
    """Section 4.3: the dropout mask of the embedding; norm, inputs and fp32 scores at the end."""
    sbh = 256 * 3 * 512
    embedding, *_, head = network(GPT, plan(micro_batch=3, tp=4)).layers
    assert embedding.saved == sbh // 4
    assert head.saved == 2 * sbh // 4 + 2 * sbh // 4 + 2 * 256 * 3 * 1024 // 4


def test_wider_formats_keep_twice_as_much_but_for_masks() -> None:
    sbh = 256 * 3 * 512
    masks = 2 * sbh
    saved = block(kernels="eager", precision="fp32").saved_selective
    assert saved - masks == 2 * (block(kernels="eager").saved_selective - masks)


def test_a_model_without_dropout_keeps_no_masks() -> None:
    """Llama-like: no masks, a gate: inputs of the activation twice as wide as its output."""
    llama = model(
        "llama", layers=1, hidden=64, heads=4, kv_heads=2, ffn_hidden=128, seq_len=32, vocab=256
    )
    layer = network(llama, plan(kernels="eager")).of_role("block")[0]
    norms, qkv, out = 2 * 64, 64 + (64 + 2 * 32), 64
    feed_forward = 64 + 2 * 128 + 128
    assert layer.saved_selective == 2 * 32 * (norms + qkv + out + feed_forward)
    assert layer.saved - layer.saved_selective == 2 * 4 * 32 * 32  # the softmax alone


def test_fp8_keeps_inputs_of_linear_layers_in_one_byte() -> None:
    half, full = (operator(block(precision=p), "feed-forward in").saved for p in ("fp8", "bf16"))
    assert 2 * half == full
