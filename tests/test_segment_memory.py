"""Transformer-XL: parameters, products of a memory, clusters of words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_transformer_parameters import held
from transformers import model, network, plan

from mpisim.base.errors import InputError
from mpisim.experiment import Transformer, model_counts
from mpisim.experiment.model_presets import find_model
from mpisim.kernels.operations import Copy, Elementwise, Gemm, Softmax
from mpisim.workloads.operators import Compute, LayerStack

SMALL: dict[str, Any] = {
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "seq_len": 32,
    "memory": 16,
    "vocab": 5000,
    "cutoffs": (1000, 3000),
    "cutoff_shares": (0.25, 0.125),
    "cutoff_divisor": 4,
    "position": "none",
    "qkv_bias": False,
}


def products(found: LayerStack, phase: str) -> int:
    return sum(
        task.kernel.flops
        for layer in found.layers
        for operator in layer.operators
        for task in getattr(operator, phase)
        if isinstance(task, Compute) and isinstance(task.kernel, Gemm)
    )


@pytest.mark.parametrize(
    ("name", "count"), [("transformer-xl-base", 192e6), ("transformer-xl-large", 285e6)]
)
def test_published_counts(name: str, count: float) -> None:
    """As its scripts print them."""
    found = model(**find_model(name))
    assert model_counts.parameters(found) == pytest.approx(count, rel=8e-3)


def test_ranks_hold_the_model() -> None:
    found = model("gpt", **SMALL)
    parameters = held(network(found, plan(kernels="eager")))
    assert sum(each.size for each in parameters) == model_counts.parameters(found)


def test_products_by_hand() -> None:
    h, head, heads, q, k, batch = 64, 16, 4, 32, 48, 2
    found = network(model("gpt", **SMALL), plan(kernels="eager", micro_batch=batch))
    tokens, seen = batch * q, batch * k
    linear = 2 * (seen * h * 3 * h + k * h * h + tokens * h * h + 8 * tokens * h * h)
    scores = 2 * batch * heads * q * k * head
    # Of 64 tokens 16 are among the second 2,000 words (16 wide), 8 among the last (4 wide).
    words = 2 * (tokens * 1002 * h + 16 * 16 * (2000 + 2 * h) + 8 * 4 * (2000 + 2 * h))
    assert products(found, "forward") == 2 * (linear + 3 * scores) + words
    # Keys of positions are made of data: no gradient of these.
    backward = 2 * (2 * linear - 2 * k * h * h + 6 * scores) + 2 * words
    assert products(found, "backward") == backward


def head(**changes: Any) -> dict[str, Any]:
    """Kernels of the layer with the loss, by name: of two sequences in fp32."""
    keys = plan(kernels="eager", micro_batch=2, precision="fp32", fused=False)
    found = network(model("gpt", **{**SMALL, **changes}), keys)
    tasks = (
        task
        for operator in found.layers[-1].operators
        for phase in ("forward", "backward")
        for task in getattr(operator, phase)
    )
    return {task.name: task.kernel for task in tasks if isinstance(task, Compute)}


def test_the_loss_takes_rows_of_the_first_cluster_for_each() -> None:
    """`ProjectedAdaptiveLogSoftmax` of proj_adaptive_softmax.py, 64 tokens: 40, 16 and 8."""
    found, entries, tokens = head(), 1000 + 2, 64
    assert found["logits 0 log-softmax"] == Softmax(tokens, entries, dtype="fp32")
    assert found["logits 2 log-softmax"] == Softmax(8, 2000, dtype="fp32")
    for i, own in enumerate((40, 16, 8)):
        assert found[f"logits {i} rows"] == Elementwise(2 * 4 * own * entries)
        assert found[f"logits {i} picked gradient"] == Copy(4 * own * entries, "fill")
        assert found[f"logits {i} rows gradient"] == Copy(4 * tokens * entries, "fill")
        assert (f"logits {i} rows gradient sum" in found) is (i < 2)
    assert found["logits 1 log-softmax gradient"] == Copy(4 * 16 * 2000, "fill")
    assert not any(name.startswith("logits 0 words") for name in found)


def test_clusters_of_one_matrix_add_gradients_as_large_as_it() -> None:
    found = head(cutoff_divisor=1)
    for i, words in enumerate((1000, 2000, 2000)):
        assert found[f"logits {i} words gradient"] == Copy(4 * 5000 * 64, "fill")
        assert found[f"logits {i} words backward"] == Elementwise(2 * 4 * words * 64)
        assert found[f"logits {i} words gradient sum"] == Elementwise(3 * 4 * 5000 * 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "llama"}, "only dense models of family 'gpt' have them"),
        ({"cutoffs": (3000, 1000)}, "cutoffs is [3000, 1000]; it must ascend"),
        ({"cutoffs": (1000, 5000)}, "end below vocab = 5000"),
        ({"cutoff_shares": (0.5,)}, "cutoff_shares has 1 entries"),
        ({"cutoff_shares": (0.5, 0.5)}, "some tokens are before the first"),
    ],
)
def test_what_no_model_has(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        model(**{"family": "gpt", **SMALL, **changes})


@pytest.mark.parametrize(
    ("keys", "message"), [({"tp": 2}, "not shared by tensor"), ({}, "shifted scores need 'eager'")]
)
def test_what_no_plan_has(keys: dict[str, Any], message: str) -> None:
    found: Transformer = model("gpt", **SMALL)
    with pytest.raises(InputError, match=message):
        network(found, plan(**keys))
