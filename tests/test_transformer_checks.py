"""Plans that cannot share a model are refused, naming the keys."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import model, network, plan

from mpisim.base.errors import InputError

SIZES: dict[str, Any] = {"layers": 2, "hidden": 48, "heads": 6, "seq_len": 24, "vocab": 256}
GPT = model("gpt", **SIZES)
MOE = model("moe", **SIZES, experts=6, topk=2, moe_ffn_hidden=30, ffn_hidden=48)
T5 = model("t5", **SIZES, decoder_layers=1, decoder_seq_len=10)

REFUSED = {
    "heads": (GPT, {"tp": 4}, "model.heads is 6, which is not a multiple of plan.tp = 4"),
    "kv heads": (
        model("gpt", **{**SIZES, "heads": 12, "kv_heads": 4}),
        {"tp": 6},
        "model.kv_heads is 4, neither a multiple nor a divisor of plan.tp = 6",
    ),
    "ffn": (
        model("gpt", **SIZES, ffn_hidden=49),
        {"tp": 2},
        "model.ffn_hidden is 49, which is not a multiple of plan.tp = 2",
    ),
    "sequence": (
        model("gpt", **{**SIZES, "seq_len": 25}),
        {"tp": 2},
        "model.seq_len is 25, which is not a multiple of plan.tp = 2, as plan.sp shares the "
        "sequence; set plan.sp = false",
    ),
    "sequence and context": (
        GPT,
        {"tp": 6, "cp": 6},
        "model.seq_len is 24, which is not a multiple of plan.cp × plan.tp = 6 × 6, as",
    ),
    "context": (GPT, {"cp": 8}, "model.seq_len is 24, which is not a multiple of 2 × plan.cp = 16"),
    "decoder": (
        T5,
        {"tp": 3},
        "model.decoder_seq_len is 10, which is not a multiple of plan.tp = 3",
    ),
    "decoder context": (T5, {"cp": 2}, "model.decoder_seq_len is 10, which is not a multiple of 2"),
    "encoder and decoder": (
        model("t5", **SIZES, decoder_layers=1),
        {"cp": 2},
        "plan.cp is 2; family 't5' has no context parallelism",
    ),
    "experts": (
        MOE,
        {"ep": 4, "dp": 4},
        "model.experts is 6, which is not a multiple of plan.ep = 4",
    ),
    "width of experts": (
        MOE,
        {"etp": 4, "dp": 4},
        "model.moe_ffn_hidden is 30, which is not a multiple of plan.etp = 4",
    ),
    "width of shared experts": (
        model("moe", **SIZES, experts=2, shared_ffn_hidden=9, moe_ffn_hidden=32),
        {"tp": 2},
        "model.shared_ffn_hidden is 9, which is not a multiple of plan.tp = 2",
    ),
    "experts without sp": (
        MOE,
        {"tp": 2, "sp": False},
        "plan.sp is false with experts and plan.tp = 2",
    ),
    "no experts": (GPT, {"ep": 2, "dp": 2}, "plan.ep is 2, but the model has no experts"),
    "scores in memory": (
        GPT,
        {"cp": 2, "kernels": "eager"},
        "plan.cp is 2 with framework.kernels = 'eager'",
    ),
    "window": (
        model("gpt", **SIZES, window=8),
        {"cp": 2},
        "model.window is 8 with plan.cp = 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    found, keys, message = REFUSED[case]
    with pytest.raises(InputError) as error:
        network(found, plan(**keys))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_what_only_some_layers_need_is_not_asked_of_others() -> None:
    """A model whose layers all have experts has no dense feed-forward block to split."""
    sizes = {**SIZES, "ffn_hidden": 49}
    network(model("moe", **sizes, experts=6, moe_ffn_hidden=32), plan(tp=2, etp=1, dp=1))
    with pytest.raises(InputError, match="ffn_hidden"):
        moe = model("moe", **sizes, experts=6, moe_ffn_hidden=32, dense_layers=1)
        network(moe, plan(tp=2, etp=1))


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    windowed = network(model("gpt", **SIZES, window=24), plan(cp=2))
    assert windowed == network(model("gpt", **SIZES), plan(cp=2))
