"""Mixtures of experts for tests, small enough to work out by hand."""

from __future__ import annotations

from typing import Any

from transformers import model, network, plan

from mpisim.experiment.models import Transformer
from mpisim.workloads.operators import Layer

# 8 tokens of 16 features, 8 experts of 32, two for each token.
SIZES: dict[str, Any] = {
    "layers": 1,
    "hidden": 16,
    "heads": 4,
    "seq_len": 8,
    "vocab": 256,
    "experts": 8,
    "topk": 2,
    "moe_ffn_hidden": 32,
}
TINY = model("moe", **SIZES)
SHARED = model("moe", **SIZES, shared_experts=1)
LIMITED = model(
    "moe", **SIZES, expert_groups=4, topk_groups=2, router_scores="sigmoid", expert_bias=True
)


def block(found: Transformer, **keys: Any) -> Layer:
    """Model, keys of the plan → its first block."""
    return network(found, plan(**keys)).of_role("block")[0]
