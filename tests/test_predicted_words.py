"""BERT's scores of the words that are masked, alone."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import lines, model, network, operator, plan

from mpisim.base.errors import InputError
from mpisim.experiment import model_counts

SIZES: dict[str, Any] = {"layers": 1, "hidden": 16, "heads": 4, "seq_len": 8, "vocab": 256}
ALL, SOME = model("bert", **SIZES), model("bert", **SIZES, predicted=2)


def test_scores_of_masked_words_alone() -> None:
    head = network(SOME, plan(micro_batch=3))
    assert lines(operator(head, "logits").forward) == ["logits: 6 x 256 x 16 bf16"]
    assert lines(operator(head, "head dense").forward) == ["head dense: 6 x 16 x 16 bf16"]
    # Other tokens' vectors are not touched; their gradients are zeros.
    picked = operator(head, "masked words")
    assert lines(picked.forward) == [f"masked words: {2 * 2 * 6 * 16} bytes"]
    assert lines(picked.backward) == [
        f"masked words fill: {2 * 24 * 16} bytes",
        f"masked words backward: {3 * 2 * 6 * 16} bytes",
    ]
    # The final norm and the block's output have all tokens as before.
    whole = network(ALL, plan(micro_batch=3))
    assert operator(head, "final norm") == operator(whole, "final norm")
    assert "masked words" not in [each.name for each in whole.layers[-1].operators]


def test_parameters_are_the_same_and_flops_are_spared() -> None:
    assert model_counts.parameters(SOME) == model_counts.parameters(ALL)
    spared = model_counts.matrix_flops(ALL, 3) - model_counts.matrix_flops(SOME, 3)
    assert spared == 2 * 3 * 6 * 16 * (256 + 16)


def test_refused() -> None:
    with pytest.raises(InputError, match="predicted is 9; only family 'bert'"):
        model("bert", **SIZES, predicted=9)
    with pytest.raises(InputError, match="predicted is 2; only family 'bert'"):
        model("gpt", **SIZES, predicted=2)
