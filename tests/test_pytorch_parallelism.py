"""What PyTorch's own parallelism does otherwise than Megatron-LM: steps worked out by hand."""

from __future__ import annotations

import pytest
from sharing import layer, stepped, told
from transformers import communications, lines, model, network, operator, plan

# 16 tokens, 4 heads of 4, two of keys and values.
LLAMA = model(
    "llama", layers=1, hidden=16, heads=4, kv_heads=2, ffn_hidden=32, seq_len=16, vocab=256
)
TOKENS = 16
HIDDEN = 2 * TOKENS * 16
"""Bytes of all tokens in bf16."""


# --- tensor parallelism ---------------------------------------------------------------------------


def test_what_is_gathered_is_kept_and_copied_to_its_place() -> None:
    torch = plan(tp=2, sp_style="pytorch", dp_style="fsdp", zero=3)
    matrix = operator(network(LLAMA, torch), "qkv")
    assert lines(matrix.forward) == [
        f"qkv all-gather: AG tp {HIDDEN}",
        f"qkv all-gather copy: {2 * HIDDEN} bytes",
        "qkv: 16 x 16 x 16 bf16",
    ]
    assert lines(matrix.backward) == [
        "qkv input gradient: 16 x 16 x 16 bf16",
        "qkv weight gradient: 16 x 16 x 16 bf16 (weight)",
        f"qkv input gradient copy: {2 * HIDDEN} bytes",
        f"qkv input gradient reduce-scatter: RS tp {HIDDEN}",
    ]
    assert matrix.saved - 2 * TOKENS * 16 == HIDDEN  # the result, and the input of all tokens


def test_separate_matrices_gather_once_and_reduce_the_sum_of_their_gradients() -> None:
    torch = {"sp_style": "pytorch", "separate_projections": True, "dp_style": "fsdp", "zero": 3}
    found = network(LLAMA, plan(tp=2, **torch))
    gathered = operator(found, "qkv")
    assert lines(gathered.backward) == [
        f"qkv gradient sum: {(3 + 1) * HIDDEN} bytes",
        f"qkv input gradient reduce-scatter: RS tp {HIDDEN}",
    ]
    assert lines(operator(found, "query").forward) == ["query: 16 x 8 x 16 bf16"]
    block = found.layers[1]
    assert [what for what, _, _ in communications(block)] == ["AG", "RS"] * 2
    assert [what for what, _, _ in communications(block, backward=True)] == ["AG", "RS"] * 2


@pytest.mark.parametrize(("scaling", "reads"), [("delayed", 1), ("current", 3)])
def test_scales_of_the_operand_itself_take_another_pass(scaling: str, reads: int) -> None:
    keys = {"precision": "fp8", "fp8_scaling": scaling, "fp8_weight_casts": True}
    found = network(LLAMA, plan(fp8_casts="compiled", **keys))
    matrix = operator(found, "attention output")
    weights = 16 * 16
    looks = 1 if scaling == "delayed" else 2
    assert lines(matrix.forward)[:2] == [
        f"attention output cast: {(2 * reads + 2) * TOKENS * 16} bytes",
        f"attention output weight cast: {(2 * looks + 1) * weights} bytes",
    ]
    # The kernel that makes a gradient finds its largest value.
    assert lines(matrix.backward)[:2] == [
        f"attention output gradient cast: {(2 + 2) * TOKENS * 16} bytes",
        f"attention output weight cast backward: {(2 + 1) * weights} bytes",
    ]


# --- context parallelism --------------------------------------------------------------------------


def test_keys_are_gathered_once_and_their_gradients_go_round_in_fp32() -> None:
    torch = plan(cp=2, cp_style="pytorch", repeats_heads=True)
    attention = operator(network(LLAMA, torch), "attention")
    local = 8
    pair = local * 4 * (4 + 4)  # elements of keys and values, of as many heads as queries
    compact = local * 2 * (4 + 4)
    output = local * 16
    gathered = [
        f"attention contiguous keys: {2 * 2 * pair} bytes",
        f"attention packing: {2 * 2 * pair} bytes",
        f"attention all-gather: AG cp {2 * 2 * pair} => gathered",
    ]
    assert lines(attention.forward) == [
        f"attention repeated heads: {2 * (compact + pair)} bytes",
        *gathered,
        "attention: 4/4 heads 8 x 8 causal",
        "attention: 4/4 heads 8 x 4 after gathered",
        f"attention merge: {(2 + 8) * output} bytes",
        f"attention round: {(4 + 2) * output} bytes",
    ]

    def sums(step: int) -> list[str]:
        after = f" after gradients {step}" if step else ""
        return [
            f"attention keys gradient sum: {(2 + 8) * pair} bytes{after}",
            f"attention gradients exchange: ring cp {4 * pair} => gradients {step + 1}",
            f"attention queries gradient sum: {(2 + 8) * output} bytes",
        ]

    assert lines(attention.backward) == [
        *gathered,
        f"attention gradients fill: {4 * (output + pair)} bytes",
        "attention backward: 4/4 heads 8 x 8 causal",
        *sums(0),
        "attention backward: 4/4 heads 8 x 4 after gathered",
        *sums(1),
        f"attention queries gradient round: {(4 + 2) * output} bytes",
        f"attention keys gradient round: {(4 + 2) * pair} bytes after gradients 2",
        f"attention repeated heads backward: {2 * (compact + pair)} bytes",
    ]


# --- Llama's reference code -----------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
def test_complex_rotary_positions_are_three_kernels(fused: bool) -> None:
    size = TOKENS * 16
    rotary = operator(network(LLAMA, plan(rotary="complex", fused=fused)), "rotary")
    assert lines(rotary.forward)[:3] == [
        f"query rotary cast: {(2 + 4) * size} bytes",
        f"query rotary product: {8 * size} bytes",
        f"query rotary round: {(4 + 2) * size} bytes",
    ]


def test_loss_of_scores_cast_to_fp32() -> None:
    scores = TOKENS * 256
    loss = operator(network(LLAMA, plan(eager_loss=True)), "loss")
    assert [each.name for each in loss.forward] == ["loss cast", "loss softmax", "loss target"]
    assert lines(loss.backward)[0] == f"loss target backward: {4 * scores} bytes"


# --- fully sharded data parallelism in a pipeline -------------------------------------------------


def test_a_pipeline_gathers_and_reduces_once_a_step() -> None:
    net = (layer("embedding", 8), layer("a", 40, 6), layer("b", 40, 6), layer("head", 8))
    plan = {"dp_style": "fsdp", "zero": 2, "pp": 2, "fsdp_pipeline": "pytorch", "global_batch": 8}
    rows = told(stepped(net, 4, **plan).program)
    gathers = [row for row in rows if row.startswith("parameter all-gather")]
    scatters = [row for row in rows if row.startswith("gradient reduce-scatter")]
    assert [row.partition("[")[2].partition("]")[0] for row in gathers] == ["dp 16", "dp 92"]
    assert [row.partition("[")[2].partition("]")[0] for row in scatters] == ["dp 92", "dp 16"]
    # 4 micro-batches, a unit and a root.
    assert rows.count("gradient accumulation") == 4 * 2
    backward = max(row for row, what in enumerate(rows) if what.startswith("embedding backward"))
    assert rows.index(scatters[0]) > backward
