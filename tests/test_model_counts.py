"""Formulas against published numbers."""

from __future__ import annotations

from typing import Any

import published_formulas
import pytest
from transformers import model

from mpisim.experiment import model_counts
from mpisim.experiment.model_presets import find_model
from mpisim.experiment.models import Transformer


def preset(name: str, **changes: Any) -> Transformer:
    return model(**{**find_model(name), **changes})


# Counted over the tensors of the published weights where there are any (Hugging Face model cards
# and safetensors indices), otherwise as printed in the paper.
PUBLISHED = {
    "gpt3-175b": 175e9,  # arXiv:2005.14165, table 2.1
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "bloom-176b": 176_247_271_424,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2": 236e9,  # arXiv:2405.04434
    # Of its text model: the safetensors' total less the vision tower (SigLIP: 27 layers of 1,152
    # and 4,304 on 4,096 patches of 14 × 14) and its projection.
    "gemma-3-12b": 12_187_325_040 - 416_866_032 - (1152 * 3840 + 1152),
    "glm-4-9b": 9_399_951_360,  # as its weights print
    "bert-large": 336_226_108,  # with both heads; arXiv:1810.04805 says 340M
    "t5-11b": 11_307_321_344,
    "vit-l-16": 304_326_632,  # torchvision
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name: str) -> None:
    assert model_counts.parameters(preset(name)) == pytest.approx(PUBLISHED[name], rel=5e-3)


def test_deepseek_v3() -> None:
    """671B in all, 37B of them for each token, 14B in its module that predicts a second token.

    arXiv:2412.19437 and the model card; the 14B hold copies of embedding and projection.
    """
    main = preset("deepseek-v3", mtp_layers=0)
    assert model_counts.parameters(main) == pytest.approx(671e9, rel=5e-3)
    vocabulary = main.vocab * main.hidden
    # The card counts the projection on the vocabulary among the 37B, and not the lookup.
    assert model_counts.active_matrices(main) == pytest.approx(37e9, rel=2e-2)
    module = model_counts.parameters(preset("deepseek-v3", mtp_layers=1)) - 671e9
    assert module + 2 * vocabulary == pytest.approx(14e9, rel=5e-2)


@pytest.mark.parametrize(
    ("name", "active"),
    # Published as "activated": 12.9B, 22B, 21B, 3.3B; all but the embedding are in the matrices.
    [("mixtral-8x7b", 12.9e9), ("qwen3-235b-a22b", 22e9), ("deepseek-v2", 21e9)],
)
def test_active_parameters(name: str, active: float) -> None:
    assert model_counts.active_matrices(preset(name)) == pytest.approx(active, rel=2.5e-2)


@pytest.mark.parametrize("name", ["gpt3-175b", "gpt3-22b", "megatron-145.6b"])
def test_flops_of_a_gpt_are_those_of_the_papers(name: str) -> None:
    """Both papers count all of attention, as for a model without a mask."""
    whole = preset(name, causal=False)
    flops = model_counts.model_flops(whole, 8)
    assert flops == pytest.approx(published_formulas.korthikanti_flops(whole, 8), rel=1e-12)
    # With everything but the scores of the vocabulary computed once more.
    head = 2 * 8 * whole.seq_len * whole.vocab * whole.hidden
    forward = model_counts.matrix_flops(whole, 8) + model_counts.attention_flops(whole, 8) - head
    assert flops + forward == pytest.approx(published_formulas.narayanan_flops(whole, 8), rel=1e-12)


def test_a_mask_leaves_half_of_attention() -> None:
    gpt = preset("gpt3-175b")
    whole = preset("gpt3-175b", causal=False)
    assert model_counts.attention_flops(gpt, 1) * 2 == model_counts.attention_flops(whole, 1)
    assert model_counts.attention_flops(whole, 1) == 96 * 4 * 2048**2 * 12288


def test_a_window_leaves_what_is_in_it() -> None:
    windowed = model("llama", layers=1, hidden=4, heads=1, seq_len=8, vocab=2, window=3)
    pairs = sum(min(i + 1, 3) for i in range(8))  # 21; half of each diagonal pair is masked
    assert model_counts.attention_flops(windowed, 1) == 2 * (4 + 4) * 20
    assert pairs == pytest.approx(20, rel=0.05)


def test_llama_flops_are_six_for_each_parameter_and_token_and_attention() -> None:
    """405B at 8,192 tokens: 6 N a token, and 12 × layers × width × length / 2 for attention."""
    llama = preset("llama-3-405b")
    flops = model_counts.model_flops(llama, 1) / llama.seq_len
    attention = 12 * 126 * 16384 * llama.seq_len / 2
    assert flops == pytest.approx(6 * 405.8e9 + attention, rel=6e-3)


def test_korthikanti_activations() -> None:
    """Figures in the text of arXiv:2205.05198, for 22B: s = 2048, h = 6144, a = 64."""
    m = model("gpt", layers=48, hidden=6144, heads=64, seq_len=2048, vocab=51200)
    sbh = 2048 * 4 * 6144
    scores = 5 * 64 * 2048 / 6144
    assert published_formulas.activation_bytes(m, 4) == pytest.approx(sbh * (34 + scores))
    assert published_formulas.activation_bytes(m, 4, tp=8, sp=True, selective=True) == 34 * sbh / 8
    with_tp = published_formulas.activation_bytes(m, 4, tp=8)
    assert with_tp == pytest.approx(sbh * (10 + 24 / 8 + scores / 8))
