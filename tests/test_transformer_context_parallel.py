"""Context parallelism: steps worked out by hand, volumes and work."""

from __future__ import annotations

import published_formulas
import pytest
from transformers import communications, lines, model, network, operator, plan

from mpisim.base.errors import InputError
from mpisim.experiment import model_counts
from mpisim.workloads.operators import Compute

# 16 tokens, 4 heads of 4, two of keys and values.
TINY = model(
    "llama", layers=1, hidden=16, heads=4, kv_heads=2, ffn_hidden=32, seq_len=16, vocab=256
)

PAIR = 2 * 4 * 2 * (4 + 4)
"""Bytes of keys and values of the 4 tokens of one of four ranks."""


def test_ring_forward() -> None:
    attention = operator(network(TINY, plan(cp=4)), "attention")
    result = 2 * 4 * 16
    half = "4/2 heads 4 x 2"
    assert lines(attention.forward) == [
        f"attention packing: {2 * PAIR} bytes",
        f"attention exchange: ring cp {PAIR} => ring 1",
        "attention: 4/2 heads 4 x 4 causal",
        f"attention exchange: ring cp {PAIR} => ring 2 after ring 1",
        f"attention: {half} after ring 1",
        f"attention correction: {3 * result} bytes",
        f"attention exchange: ring cp {PAIR} => ring 3 after ring 2",
        f"attention: {half} after ring 2",
        f"attention correction: {3 * result} bytes",
        f"attention: {half} after ring 3",
        f"attention correction: {3 * result} bytes",
    ]


def test_ring_backward() -> None:
    attention = operator(network(TINY, plan(cp=4)), "attention")
    queries = 3 * 2 * 4 * 16
    half = "4/2 heads 4 x 2"

    def sums(ring: int) -> list[str]:
        return [
            f"attention queries gradient sum: {queries} bytes",
            f"attention keys gradient sum: {3 * PAIR} bytes after ring {ring}",
        ]

    assert lines(attention.backward) == [
        f"attention packing backward: {2 * PAIR} bytes",
        f"attention exchange: ring cp {PAIR} => ring 1",
        f"attention backward: {half}",
        f"attention keys gradient copy: {2 * PAIR} bytes",
        # Keys and values, and the gradients of those sent on before.
        f"attention exchange: ring cp {2 * PAIR} => ring 2",
        f"attention backward: {half} after ring 1",
        *sums(2),
        f"attention exchange: ring cp {2 * PAIR} => ring 3",
        f"attention backward: {half} after ring 2",
        *sums(3),
        # The gradients come home; the own keys and values are there.
        f"attention exchange: ring cp {PAIR} => ring 4",
        "attention backward: 4/2 heads 4 x 4 causal after ring 3",
        *sums(4),
    ]


def test_ring_without_a_mask_meets_all_keys_of_all_ranks() -> None:
    bert = model("bert", layers=1, hidden=16, heads=4, seq_len=16, vocab=256)
    attention = operator(network(bert, plan(cp=2)), "attention")
    kernels = [line for line in lines(attention.forward) if line.startswith("attention: ")]
    assert kernels == ["attention: 4/4 heads 8 x 8", "attention: 4/4 heads 8 x 8 after ring 1"]


def test_all_gather() -> None:
    attention = operator(network(TINY, plan(cp=4, cp_style="all-gather")), "attention")
    whole = 2 * 16 * 2 * 4
    gathered = [
        f"attention keys all-gather: AG cp {whole}",
        f"attention values all-gather: AG cp {whole}",
        f"attention keys reordering: {2 * whole} bytes",
        f"attention values reordering: {2 * whole} bytes",
    ]
    assert lines(attention.forward) == [*gathered, "attention: 4/2 heads 4 x 16 causal"]
    assert lines(attention.backward) == [
        *gathered,
        "attention backward: 4/2 heads 4 x 16 causal",
        f"attention keys gradient reordering: {2 * whole} bytes",
        f"attention keys reduce-scatter: RS cp {whole}",
        f"attention values gradient reordering: {2 * whole} bytes",
        f"attention values reduce-scatter: RS cp {whole}",
    ]


def test_all_to_all() -> None:
    # Four ranks share four heads; two of keys and values go to two ranks each.
    attention = operator(network(TINY, plan(cp=4, cp_style="all-to-all")), "attention")
    size = 2 * 4 * 4 * 4

    def exchanged(what: str) -> list[str]:
        return [
            f"attention {what} exchange copy: {2 * size} bytes",
            f"attention {what} all-to-all: A2A cp {size}",
            f"attention {what} exchange order: {2 * size} bytes",
        ]

    assert lines(attention.forward) == [
        *exchanged("queries"),
        *exchanged("keys"),
        *exchanged("values"),
        "attention: 1/1 heads 16 x 16 causal",
        *exchanged("output"),
    ]
    assert lines(attention.backward) == [
        *exchanged("output gradient"),
        "attention backward: 1/1 heads 16 x 16 causal",
        *exchanged("queries gradient"),
        *exchanged("keys gradient"),
        *exchanged("values gradient"),
    ]


def test_ranks_share_whole_heads() -> None:
    message = "shares heads: a rank has 4 of queries and 2 of keys"
    with pytest.raises(InputError, match=message):
        network(TINY, plan(cp=8, cp_style="all-to-all"))


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (8, 1), (4, 2), (2, 4)])
def test_ring_volume_is_the_published_one(cp: int, tp: int) -> None:
    llama = model(
        "llama", layers=1, hidden=128, heads=8, kv_heads=4, seq_len=128, vocab=256, ffn_hidden=256
    )
    block = network(llama, plan(cp=cp, tp=tp, micro_batch=3)).of_role("block")[0]
    volume = published_formulas.context_parallel_bytes(llama, 3, cp=cp, tp=tp)

    def sent(backward: bool) -> int:
        return sum(
            size for _, group, size in communications(block, backward=backward) if group == "cp"
        )

    assert sent(False) == volume
    assert sent(True) == 2 * volume


@pytest.mark.parametrize("style", ["ring", "all-gather", "all-to-all"])
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_ranks_share_the_work(style: str, cp: int) -> None:
    def flops(cp: int, *, backward: bool) -> int:
        attention = operator(network(TINY, plan(cp=cp, cp_style=style)), "attention")
        steps = attention.backward if backward else attention.forward
        return cp * sum(step.kernel.flops for step in steps if isinstance(step, Compute))

    assert flops(cp, backward=False) == model_counts.attention_flops(TINY, 1)
    assert flops(cp, backward=True) == flops(1, backward=True)


def test_the_rest_of_the_model_sees_a_share_of_the_tokens() -> None:
    embedding, block, _ = network(TINY, plan(cp=4, tp=2)).layers
    assert embedding.output == block.output == 2 * (16 // 4 // 2) * 16
    assert lines(operator(block, "qkv").forward)[1] == "qkv: 4 x 16 x 16 bf16"
