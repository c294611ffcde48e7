"""Parameters that ranks hold, together and apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import model, network, plan

from mpisim.experiment import model_counts
from mpisim.experiment.model_presets import find_model
from mpisim.experiment.models import Transformer
from mpisim.kernels.activations import ACTIVATIONS
from mpisim.workloads.operators import LayerStack, Parameter

WHOLE = ("position", "token type", "patch embedding", "class token")
"""Held whole by every rank of a tp group, all of whom see all tokens."""


def held(found: LayerStack) -> list[Parameter]:
    """Parameters of all layers, a matrix with two uses once."""
    parameters = [p for layer in found.layers for p in layer.parameters]
    tied = {p.size: p for p in reversed(parameters) if p.tied}
    return [p for p in parameters if not p.tied] + list(tied.values())


def split(parameters: Iterable[Parameter], tp: int, ep: int = 1, etp: int = 1) -> int:
    """Parameters of the whole model, from those of one rank."""
    total = 0
    for each in parameters:
        whole = each.replicated or any(word in each.name for word in WHOLE)
        copies = ep * etp if each.expert else 1 if whole else tp
        total += copies * each.size
    return total


def padded(found: Transformer, tp: int) -> int:
    """Parameters with a vocabulary that is a multiple of 128 tp."""
    if found.family == "vit":
        return model_counts.parameters(found)
    more = -found.vocab % (128 * tp)
    width = found.hidden * (1 if found.tied_embeddings else 2)
    bias = 1 if found.family == "bert" else 0
    return model_counts.parameters(found) + more * (width + bias)


@st.composite
def models(draw: st.DrawFn) -> Transformer:
    family = draw(st.sampled_from(["gpt", "llama", "moe", "bert", "t5"]))
    keys: dict[str, Any] = {
        "layers": draw(st.integers(1, 4)),
        "hidden": 64 * draw(st.integers(1, 4)),
        "heads": 8,
        "seq_len": 64,
        "vocab": draw(st.integers(2, 3000)),
        "ffn_hidden": 8 * draw(st.integers(1, 40)),
        "bias": draw(st.booleans()),
        "qk_norm": draw(st.booleans()),
        "tied_embeddings": draw(st.booleans()),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "activation": draw(st.sampled_from(sorted(ACTIVATIONS))),
    }
    if family != "t5":
        keys["position"] = draw(st.sampled_from(["learned", "rotary", "alibi", "none"]))
        keys["kv_heads"] = draw(st.sampled_from([4, 8]))
    else:
        keys["decoder_layers"] = draw(st.integers(1, 3))
    if family == "moe":
        keys |= {
            "experts": 8,
            "topk": draw(st.integers(1, 8)),
            "moe_ffn_hidden": 8 * draw(st.integers(1, 10)),
            "shared_experts": draw(st.integers(0, 2)),
            "dense_layers": draw(st.integers(0, keys["layers"])),
            "moe_every": draw(st.integers(1, 2)),
            "mtp_layers": draw(st.integers(0, 2)),
        }
    if family in ("llama", "moe") and draw(st.booleans()):
        keys |= {
            "attention": "mla",
            "qk_norm": False,
            "q_lora_rank": draw(st.sampled_from([0, 24])),
            "kv_lora_rank": 16,
            "qk_nope_head_size": 8,
            "qk_rope_head_size": 4,
            "v_head_size": 12,
        }
    return model(family, **keys)


@given(models(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.data())
def test_ranks_hold_the_model(found: Transformer, tp: int, cp: int, data: st.DataObject) -> None:
    keys: dict[str, Any] = {"tp": tp, "cp": 1 if found.family == "t5" else cp}
    ep = etp = 1
    if found.experts:
        ep = data.draw(st.sampled_from([1, 2, 8]))
        etp = data.draw(st.sampled_from([1, tp]))
        keys |= {"ep": ep, "etp": etp, "dp": 8}
    elif tp > 1:
        keys["sp"] = data.draw(st.booleans())
    assert split(held(network(found, plan(**keys))), tp, ep, etp) == padded(found, tp)


PUBLISHED = (
    "gpt3-175b",
    "llama-2-70b",
    "llama-3-405b",
    "mixtral-8x7b",
    "bert-large",
    "t5-11b",
    "vit-l-16",
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(name: str) -> None:
    found = model(**find_model(name))
    assert split(held(network(found, plan())), 1) == padded(found, 1)


def test_deepseek_v3_as_it_was_trained() -> None:
    """arXiv:2412.19437, section 3.2: experts over 64 ranks, no tensor parallelism."""
    found = model(**find_model("deepseek-v3"))
    parameters = held(network(found, plan(ep=64, pp=16, dp=128, stages=(4,) * 15 + (1,))))
    assert split(parameters, 1, 64) == padded(found, 1)
    assert {p.size for p in parameters if p.expert} == {
        4 * 7168 * 2 * 2048,
        4 * 2048 * 7168,
    }


def test_fewer_heads_of_keys_than_ranks_are_held_several_times() -> None:
    sizes: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 8, "seq_len": 8, "vocab": 256}
    found = model("llama", **sizes, kv_heads=2)
    qkv = {
        tp: next(p.size for p in held(network(found, plan(tp=tp))) if p.name == "qkv weight")
        for tp in (1, 2, 4, 8)
    }
    assert qkv == {1: 64 * (8 + 4) * 8, 2: 64 * (4 + 2) * 8, 4: 64 * (2 + 2) * 8, 8: 64 * 3 * 8}


def test_tied_matrices_are_listed_at_both_ends() -> None:
    sizes: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 8, "seq_len": 8, "vocab": 256}
    gpt = network(model("gpt", **sizes), plan(pp=2))
    assert [[p.name for p in layer.parameters if p.tied] for layer in gpt.layers] == [
        ["embedding weight"],
        [],
        [],
        ["logits weight"],
    ]
    llama = network(model("llama", **sizes), plan(pp=2))
    assert not [p for layer in llama.layers for p in layer.parameters if p.tied]


def test_modules_that_predict_further_use_the_embedding_and_the_head() -> None:
    sizes: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 8, "seq_len": 8, "vocab": 256}
    found = network(model("llama", **sizes, mtp_layers=2), plan(pp=1))
    assert [layer.name for layer in found.of_role("head")] == [
        "prediction 0",
        "prediction 1",
        "head",
    ]
    names = [p.name for p in held(found)]
    assert sum("embedding weight" in name for name in names) == 1
    assert names.count("logits weight") == 1
