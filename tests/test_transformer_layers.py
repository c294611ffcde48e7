"""Families and their layers; operators between the matrix products."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import communications, lines, model, network, operator, plan

from mpisim.experiment.models import Transformer
from mpisim.kernels.operations import Norm
from mpisim.workloads.operators import Compute

SIZES: dict[str, Any] = {"layers": 2, "hidden": 16, "heads": 4, "seq_len": 8, "vocab": 256}
GPT = model("gpt", **SIZES)
LLAMA = model("llama", **SIZES, ffn_hidden=32)

TOKENS = 8 * 16
"""Elements of the hidden states of a sequence."""


def test_a_block_of_gpt() -> None:
    assert [o.name for o in network(GPT, plan()).layers[1].operators] == [
        "attention norm",
        "qkv",
        "qkv split",
        "attention",
        "attention output",
        "attention dropout add",
        "feed-forward norm",
        "feed-forward in",
        "feed-forward gelu",
        "feed-forward out",
        "feed-forward dropout add",
    ]


def test_layers_of_one_kind_are_one() -> None:
    first, second = network(GPT, plan()).of_role("block")
    assert first.operators is second.operators
    assert [layer.name for layer in network(GPT, plan()).layers] == [
        "embedding",
        "layer 0",
        "layer 1",
        "head",
    ]


def test_norms_share_the_sequence() -> None:
    norm = operator(network(GPT, plan(tp=2)), "attention norm")
    size = TOKENS // 2 * 2
    small = [
        f"attention norm {what} gradient accumulation: 160 bytes (weight)"
        for what in ("weight", "bias")
    ]
    assert lines(norm.forward) == [f"attention norm: {2 * size} bytes"]
    assert lines(norm.backward) == [
        f"attention norm backward: {3 * size} bytes",
        *small,
        f"attention norm residual gradient sum: {3 * size} bytes",
    ]


@pytest.mark.parametrize(("family", "kind"), [(GPT, "layer"), (LLAMA, "rms")])
def test_norms_may_keep_rows_in_registers(family: Transformer, kind: str) -> None:
    norm = operator(network(family, plan(persistent_norms=True)), "attention norm")
    steps = [norm.forward[0], norm.backward[0]]
    for step, backward in zip(steps, (False, True), strict=True):
        assert isinstance(step, Compute)
        assert step.kernel == Norm(8, 16, kind, backward, variant="persistent")  # type: ignore[arg-type]


def test_norms_may_add_up_the_residual_stream() -> None:
    """Forward two inputs, their sum and its norm; backward the gradient that is added to, too."""
    net = network(model("gpt", **SIZES, dropout=False), plan(residual_norms=True))
    norm = operator(net, "attention norm")
    size = TOKENS * 2
    assert lines(norm.forward) == [f"attention norm: {4 * size} bytes"]
    assert lines(norm.backward)[0] == f"attention norm backward: {4 * size} bytes"
    assert not any("residual" in line for line in lines(norm.backward))
    assert not operator(net, "attention dropout add").forward
    last = operator(net, "final norm")
    assert lines(last.forward) == [f"final norm: {2 * size} bytes"]


def test_dropout_is_before_the_sum_that_no_norm_adds_up_then() -> None:
    assert GPT.dropout
    assert network(GPT, plan(residual_norms=True)) == network(GPT, plan())


@pytest.mark.parametrize("fused", [True, False])
def test_packed_attention_leaves_gradients_where_they_are(fused: bool) -> None:
    def names(packed: bool) -> list[str]:
        net = network(GPT, plan(fused=fused, packed_attention=packed))
        return [step.name for each in net.layers[1].operators for step in each.backward]

    joined = [name for name in names(packed=False) if "concatenat" in name]
    assert len(joined) == 1
    assert [name for name in names(packed=False) if name not in joined] == names(packed=True)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("found", "keys"),
    [
        (LLAMA, {}),
        (model("gpt", **SIZES, qk_norm=True), {}),
        (model("gpt", **SIZES, kv_heads=2), {"repeats_heads": True}),
        (GPT, {"cp": 2}),
    ],
)
def test_packed_attention_is_none_where_queries_or_keys_are_written_apart(
    found: Transformer, keys: dict[str, Any], fused: bool
) -> None:
    plain, packed = (
        network(found, plan(fused=fused, packed_attention=each, **keys)) for each in (False, True)
    )
    assert packed == plain


def test_rms_norm_step_by_step() -> None:
    norm = operator(network(LLAMA, plan(fused=False)), "attention norm")
    assert [line.partition(": ")[0] for line in lines(norm.forward)] == [
        f"attention norm {what}"
        for what in ("cast", "square", "mean", "root", "scale", "round", "weight")
    ]


@pytest.mark.parametrize(
    ("fused", "forward", "backward"),
    [
        (True, [("feed-forward swiglu", 3)], [("feed-forward swiglu backward", 5)]),
        (
            False,
            [("feed-forward swiglu", 2), ("feed-forward swiglu gate", 3)],
            [
                ("feed-forward swiglu gate backward", 3),
                ("feed-forward swiglu value backward", 3),
                ("feed-forward swiglu backward", 3),
                ("feed-forward swiglu concatenation", 4),
            ],
        ),
    ],
)
def test_gated_activation(
    fused: bool, forward: list[tuple[str, int]], backward: list[tuple[str, int]]
) -> None:
    found = operator(network(LLAMA, plan(fused=fused)), "feed-forward swiglu")
    size = 8 * 32 * 2
    assert lines(found.forward) == [f"{name}: {times * size} bytes" for name, times in forward]
    assert lines(found.backward) == [f"{name}: {times * size} bytes" for name, times in backward]


def test_bias_and_gelu() -> None:
    size = 8 * 64
    fused = operator(network(GPT, plan()), "feed-forward gelu")
    assert lines(fused.forward) == [f"feed-forward gelu: {4 * size} bytes"]
    assert lines(fused.backward) == [
        f"feed-forward gelu backward: {6 * size} bytes",
        f"feed-forward gelu bias gradient: {2 * size + 2 * 64} bytes",
        f"feed-forward gelu bias gradient accumulation: {64 * 10} bytes (weight)",
    ]
    (sums,) = (each.kernel for each in fused.backward if each.name.endswith("gelu bias gradient"))
    assert (sums.summed, sums.sums) == (8, 64)
    separate = operator(network(GPT, plan(fused=False)), "feed-forward gelu")
    # The matrix product before it has added the bias.
    assert lines(separate.forward) == [f"feed-forward gelu: {4 * size} bytes"]


def test_the_end_of_a_block() -> None:
    fused = operator(network(GPT, plan()), "attention dropout add")
    # Twice in, once out, and a mask.
    assert lines(fused.forward) == [f"attention dropout add: {TOKENS * 7} bytes"]
    assert lines(fused.backward)[0] == f"attention dropout add backward: {TOKENS * 5} bytes"
    separate = operator(network(GPT, plan(fused=False)), "attention dropout add")
    assert lines(separate.forward) == [
        f"attention dropout add dropout: {TOKENS * 5} bytes",
        f"attention dropout add: {TOKENS * 6} bytes",
    ]
    # Where ranks add their results up, the bias comes after.
    reduced = operator(network(GPT, plan(fused=False, tp=2, sp=False)), "attention dropout add")
    assert lines(reduced.forward)[0] == f"attention dropout add bias: {TOKENS * 4} bytes"
    plain = operator(network(LLAMA, plan()), "attention dropout add")
    assert lines(plain.forward) == [f"attention dropout add: {TOKENS * 6} bytes"]
    assert plain.backward == ()


def test_embedding() -> None:
    words = operator(network(GPT, plan(tp=2)), "embedding")
    # Rows read, rows written, indices; this rank's half of the vocabulary.
    assert lines(words.forward)[0] == f"embedding: {2 * TOKENS * 2 + 8 * 8} bytes"
    table = 128 * 16
    assert lines(words.backward)[1:] == [
        f"embedding gradient fill: {2 * table} bytes (weight)",
        f"embedding backward: {3 * TOKENS * 2 + 8 * 8} bytes (weight)",
        f"embedding weight gradient accumulation: {10 * table} bytes (weight)",
    ]


@pytest.mark.parametrize(("tp", "padded"), [(1, 50304), (2, 50432), (8, 51200)])
def test_vocabulary_is_padded(tp: int, padded: int) -> None:
    """50,257 entries, as Megatron-LM pads them: 50,304; 51,200 for eight ranks."""
    found = model("gpt", **{**SIZES, "heads": 8, "vocab": 50257})
    matrix = operator(network(found, plan(tp=tp)), "logits")
    assert matrix.parameters[0].size == padded // tp * 16


def test_what_a_layer_hands_on() -> None:
    keys: dict[str, Any] = {"micro_batch": 3}
    assert network(GPT, plan(**keys)).layers[1].output == 3 * TOKENS * 2
    assert network(GPT, plan(**keys, precision="fp32")).layers[1].output == 3 * TOKENS * 4
    assert network(GPT, plan(**keys, precision="fp8")).layers[1].output == 3 * TOKENS * 2
    assert network(GPT, plan(**keys, tp=2, sp=False)).layers[1].output == 3 * TOKENS * 2
    assert network(GPT, plan(**keys, tp=2, cp=2)).layers[1].output == 3 * TOKENS * 2 // 4


def test_bert() -> None:
    found = network(model("bert", **SIZES), plan(tp=2))
    assert [o.name for o in found.layers[0].operators] == [
        "embedding",
        "embedding position",
        "embedding token type",
        "embedding scatter",
        "embedding norm",
        "embedding dropout",
    ]
    head = found.layers[-1]
    assert lines(operator(head, "pooler").forward) == ["pooler: 1 x 16 x 16 bf16"]
    assert lines(operator(head, "sentence order").forward) == ["sentence order: 1 x 2 x 16 bf16"]
    assert lines(operator(head, "head dense").forward) == ["head dense: 4 x 16 x 16 bf16"]
    assert lines(operator(head, "logits").forward)[1] == "logits: 8 x 128 x 16 bf16"
    assert lines(operator(found, "attention").forward) == ["attention: 2/2 heads 8 x 8"]


T5 = model("t5", **SIZES, decoder_layers=2, decoder_seq_len=4, head_size=8)


def test_t5() -> None:
    found = network(T5, plan(micro_batch=3))
    roles = [layer.role for layer in found.layers]
    assert roles == ["embedding", *["block"] * 4, "head"]
    assert [o.name for o in found.layers[4].operators] == [
        "attention norm",
        "qkv",
        "qkv split",
        "attention",
        "attention output",
        "attention dropout add",
        "cross attention norm",
        "cross query",
        "encoder output branch",
        "cross key-value",
        "cross attention",
        "cross attention output",
        "cross attention dropout add",
        "feed-forward norm",
        "feed-forward in",
        "feed-forward relu",
        "feed-forward out",
        "feed-forward dropout add",
    ]
    decoder = found.layers[4]
    assert lines(operator(decoder, "attention").forward) == ["attention: 4/4 heads 4 x 4 causal"]
    assert lines(operator(decoder, "cross attention").forward) == [
        "cross attention: 4/4 heads 4 x 8"
    ]
    assert lines(operator(decoder, "cross query").forward) == ["cross query: 12 x 32 x 16 bf16"]
    assert lines(operator(decoder, "cross key-value").forward) == [
        "cross key-value: 24 x 64 x 16 bf16"
    ]


def test_t5_hands_on_the_encoders_output_too() -> None:
    outputs = [layer.output for layer in network(T5, plan(tp=2)).layers]
    encoder, decoder = 2 * 4 * 16, 2 * 2 * 16
    assert outputs == [encoder] * 3 + [encoder + decoder] * 2 + [decoder]


def test_t5_looks_up_both_sequences_in_one_table() -> None:
    found = network(T5, plan())
    assert operator(found, "decoder embedding").parameters == ()
    assert [o.name for o in found.layers[3].operators][:3] == [
        "decoder embedding",
        "decoder embedding dropout",
        "decoder relative bias",
    ]
    # One bias for each head, of all layers of the encoder and of all of the decoder.
    biases = [p for layer in found.layers for p in layer.parameters if "relative" in p.name]
    assert [p.size for p in biases] == [32 * 4, 32 * 4]


def test_vit() -> None:
    found = network(model("vit", layers=1, hidden=16, heads=4, seq_len=197), plan(micro_batch=2))
    patches = operator(found, "patch embedding")
    image, filters, result = 2 * 3 * 224 * 224, 16 * 3 * 16 * 16, 2 * 16 * 14 * 14
    traffic = 2 * (image + filters + result)
    assert lines(patches.forward) == [
        f"patch embedding: {traffic} bytes",
        f"class token: {2 * 2 * 2 * 197 * 16} bytes",
    ]
    head = found.layers[-1]
    assert lines(operator(head, "classifier").forward) == ["classifier: 2 x 1000 x 16 bf16"]
    assert communications(head) == []


def test_prediction_of_further_tokens() -> None:
    deep = model("llama", **SIZES, mtp_layers=1)
    layer = network(deep, plan(tp=2)).layers[-2]
    names = [o.name for o in layer.operators]
    assert names[:6] == [
        "prediction embedding",
        "prediction embedding norm",
        "prediction hidden norm",
        "prediction join",
        "prediction",
        "prediction columns",
    ]
    assert names[-3:] == ["prediction final norm", "logits", "loss"]
    assert lines(operator(layer, "prediction").forward) == [
        f"prediction all-gather: AG tp {2 * 2 * TOKENS}",
        "prediction: 8 x 8 x 32 bf16",
    ]
    assert layer.role == "head"
