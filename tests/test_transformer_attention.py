"""Attention of all kinds: steps worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from transformers import communications, lines, model, network, operator, plan

from mpisim.kernels.operations import ATTENTION_VARIANTS, Attention
from mpisim.workloads.operators import Compute, Task

SIZES: dict[str, Any] = {"layers": 1, "hidden": 16, "heads": 4, "seq_len": 8, "vocab": 256}

SCORES = 2 * 4 * 8 * 8
"""Two sequences, four heads, 8 tokens on both sides."""


def test_scores_in_memory() -> None:
    attention = operator(
        network(model("gpt", **SIZES), plan(kernels="eager", micro_batch=2)), "attention"
    )
    assert lines(attention.forward) == [
        "attention scores: 8 x 8 x 8 x 4 bf16",
        f"attention softmax: {SCORES * 4} bytes",
        f"attention dropout: {SCORES * (2 + 2 + 1)} bytes",
        "attention context: 8 x 8 x 4 x 8 bf16",
        f"attention transposition: {2 * 2 * 2 * 8 * 16} bytes",
    ]
    assert lines(attention.backward) == [
        "attention probabilities gradient: 8 x 8 x 8 x 4 bf16",
        "attention values gradient: 8 x 8 x 4 x 8 bf16",
        f"attention dropout backward: {SCORES * (2 + 2 + 1)} bytes",
        f"attention softmax backward: {SCORES * 6} bytes",
        "attention queries gradient: 8 x 8 x 4 x 8 bf16",
        "attention keys gradient: 8 x 8 x 4 x 8 bf16",
    ]


def test_heads_of_odd_sizes_run_on_cuda_cores_before_cuda_11_7() -> None:
    def formats(hidden: int, **keys: Any) -> set[str]:
        sizes = {**SIZES, "hidden": hidden}
        found = operator(network(model("gpt", **sizes), plan(kernels="eager", **keys)), "attention")
        products = [line for line in lines((*found.forward, *found.backward)) if " x " in line]
        assert len(products) == 6
        return {line.split()[-1] for line in products}

    # Four heads of 6 and of 8 elements: 12 and 16 bytes.
    assert formats(24, unaligned="cores") == {"fp32"}
    assert formats(24) == {"bf16"}
    assert formats(32, unaligned="cores", precision="fp16") == {"fp16"}
    assert formats(24, unaligned="cores", precision="tf32") == {"tf32"}


def test_a_causal_softmax_reads_half_of_the_scores() -> None:
    keys: dict[str, Any] = {"kernels": "eager", "scores_softmax": "causal", "micro_batch": 2}

    def attention(length: int, **changes: Any) -> tuple[list[str], list[str]]:
        sizes = {**SIZES, "seq_len": length}
        found = operator(network(model("gpt", **sizes), plan(**{**keys, **changes})), "attention")
        return tuple(  # type: ignore[return-value]
            [line for line in lines(steps) if "softmax" in line]
            for steps in (found.forward, found.backward)
        )

    scores = 2 * 4 * 32 * 32
    # In: half of the scores, or of probabilities and gradients; out: all.
    assert attention(32) == (
        [f"attention softmax: {scores * (1 + 2)} bytes"],
        [f"attention softmax backward: {scores * (2 + 2)} bytes"],
    )
    # One sequence and two heads of a rank are no multiple of four: single operations in fp32.
    few = scores // 4
    steps = [
        f"attention softmax{{0}} cast: {few * 6} bytes",
        f"attention softmax{{0}} scale: {few * 8} bytes",
        f"attention softmax{{0}} mask: {few * 8} bytes",
    ]
    assert attention(32, micro_batch=1, tp=2, sp=False) == (
        [
            *(step.format("") for step in steps),
            f"attention softmax: {few * 8} bytes",
            steps[0].format(""),
        ],
        [
            steps[0].format(" backward"),
            f"attention softmax backward: {few * 12} bytes",
            *(step.format(" backward") for step in (steps[2], steps[1], steps[0])),
        ],
    )
    assert len(attention(8)[0]) == 5
    assert len(attention(32, fused=False)[0]) == 1


def test_scores_of_local_layers_of_megatron_core() -> None:
    keys = {"kernels": "eager", "micro_batch": 2, "scores_softmax": "operations"}
    found = operator(network(model("gpt", **SIZES), plan(fused=False, **keys)), "attention")
    fp32, heads, mask = 4 * SCORES, 2 * 2 * 2 * 8 * 16, 8 * 8
    masked = 2 * fp32 + mask
    assert lines(found.forward) == [
        "attention scores: 8 x 8 x 8 x 4 bf16",  # scaled by the product
        f"attention softmax cast: {6 * SCORES} bytes",
        f"attention softmax mask ones: {4 * mask} bytes",
        f"attention softmax mask triangle: {8 * mask} bytes",
        f"attention softmax mask cast: {5 * mask} bytes",
        f"attention softmax mask: {masked} bytes",
        f"attention softmax: {2 * fp32} bytes",
        f"attention softmax cast back: {6 * SCORES} bytes",
        f"attention dropout: {5 * SCORES} bytes",
        "attention context: 8 x 8 x 4 x 8 bf16",
        f"attention transposition: {heads} bytes",
    ]
    assert lines(found.backward) == [
        "attention probabilities gradient: 8 x 8 x 8 x 4 bf16",
        "attention values gradient: 8 x 8 x 4 x 8 bf16",
        f"attention dropout backward: {5 * SCORES} bytes",
        f"attention softmax backward cast: {6 * SCORES} bytes",
        f"attention softmax backward product: {3 * fp32} bytes",
        f"attention softmax backward: {3 * fp32} bytes",
        f"attention softmax backward mask: {masked} bytes",
        f"attention softmax backward cast back: {6 * SCORES} bytes",
        "attention queries gradient: 8 x 8 x 4 x 8 bf16",
        f"attention queries scale: {heads} bytes",
        "attention keys gradient: 8 x 8 x 4 x 8 bf16",
        f"attention keys scale: {heads} bytes",
        f"attention concatenated gradients: {3 * heads} bytes",
    ]
    # The softmax in fp32, what is multiplied, the mask of dropout, and the causal one.
    assert found.saved == (4 + 2 + 1) * SCORES + mask


def test_scores_step_by_step() -> None:
    keys = {"kernels": "eager", "micro_batch": 2, "fused": False}
    attention = operator(network(model("gpt", **SIZES), plan(**keys)), "attention")
    inputs = 2 * 2 * 2 * 8 * 3 * 16  # read and written: 3 x 16 features of 2 x 8 tokens
    steps = lines(attention.forward)
    assert steps[0] == f"attention heads in batches: {inputs} bytes"
    assert steps[2:4] == [
        f"attention scale: {SCORES * 4} bytes",
        f"attention mask: {SCORES * 4} bytes",
    ]
    steps = lines(attention.backward)
    assert steps[0] == f"attention transposition backward: {inputs // 3} bytes"
    assert f"attention mask backward: {SCORES * 4} bytes" in steps
    assert f"attention scale backward: {SCORES * 4} bytes" in steps
    assert steps[-1] == f"attention concatenated gradients: {inputs} bytes"


def test_gradients_of_queries_keys_and_values_are_put_together() -> None:
    attention = operator(network(model("gpt", **SIZES), plan(fused=False)), "attention")
    # Read and written: 3 × 16 features of 8 tokens.
    assert lines(attention.backward)[-1] == (
        f"attention concatenated gradients: {2 * 2 * 8 * 3 * 16} bytes"
    )


@pytest.mark.parametrize("name", ["newest", "cudnn", "cudnn-9.13", "flash-2", "aotriton", "triton"])
def test_the_kernel_is_the_plan_s(name: str) -> None:
    for keys in ({}, {"cp": 2}, {"cp": 2, "cp_style": "all-gather"}):
        found = operator(network(model("gpt", **SIZES), plan(attention=name, **keys)), "attention")
        kernels = [
            step.kernel
            for step in (*found.forward, *found.backward)
            if isinstance(step, Compute) and isinstance(step.kernel, Attention)
        ]
        assert {each.variant for each in kernels} == {ATTENTION_VARIANTS[name]}


def test_grouped_queries_in_memory_repeat_their_keys() -> None:
    llama = model("llama", **SIZES, kv_heads=2)
    attention = operator(network(llama, plan(kernels="eager")), "attention")
    repeated = 2 * 8 * (2 + 4) * (4 + 4)
    assert lines(attention.forward)[0] == f"attention repeated heads: {repeated} bytes"
    fused = operator(network(llama, plan()), "attention")
    assert lines(fused.forward) == ["attention: 4/2 heads 8 x 8 causal"]
    assert lines(fused.backward) == ["attention backward: 4/2 heads 8 x 8 causal"]


def test_a_window_limits_the_keys_of_a_query() -> None:
    def kernel(window: int, **keys: Any) -> list[str]:
        found = model("gpt", **SIZES, window=window, **keys)
        return lines(operator(network(found, plan()), "attention").forward)

    assert kernel(8) == kernel(100) == ["attention: 4/4 heads 8 x 8 causal"]
    assert kernel(4) == ["attention: 4/4 heads 8 x 8 causal window 4"]
    assert kernel(4, causal=False) == ["attention: 4/4 heads 8 x 8 window 4"]


def test_cudnn_has_no_window_in_fp8_on_the_way_back() -> None:
    found = network(
        model("gpt", **SIZES, window=4),
        plan(attention="cudnn", precision="fp8", precision_attention="fp8"),
    )
    attention = operator(found, "attention")
    assert lines(attention.forward)[-1] == "attention: 4/4 heads 8 x 8 causal window 4"
    assert lines(attention.backward)[-1] == "attention backward: 4/4 heads 8 x 8 causal"


def test_rotary_positions() -> None:
    llama = model("llama", **SIZES, kv_heads=2)
    queries, keys = 8 * 16 * 2, 8 * 8 * 2
    fused = operator(network(llama, plan()), "rotary")
    assert lines(fused.forward) == [
        f"query rotary: {2 * queries} bytes",
        f"key rotary: {2 * keys} bytes",
    ]
    separate = operator(network(llama, plan(fused=False)), "rotary")
    parts = {"cosine": 2, "negation": 1, "concatenation": 2, "sine": 2, "sum": 3}
    assert lines(separate.forward) == [
        f"{name} rotary {what}: {times * size} bytes"
        for name, size in (("query", queries), ("key", keys))
        for what, times in parts.items()
    ]
    names = [o.name for o in network(model("gpt", **SIZES), plan()).layers[1].operators]
    assert "rotary" not in names


def test_norms_of_queries_and_keys() -> None:
    qwen = network(model("llama", **SIZES, kv_heads=2, qk_norm=True), plan(tp=2))
    norm = operator(qwen, "query norm")
    assert lines(norm.forward) == [f"query norm: {2 * 2 * 8 * 2 * 4} bytes"]
    assert [(p.size, p.replicated, p.partial) for p in norm.parameters] == [(4, True, True)]
    assert operator(qwen, "key norm").saved == 2 * 8 * 1 * 4


LATENT = model(
    "llama",
    **SIZES,
    attention="mla",
    q_lora_rank=12,
    kv_lora_rank=6,
    qk_nope_head_size=4,
    qk_rope_head_size=2,
    v_head_size=3,
)


def test_latent_attention() -> None:
    names = [o.name for o in network(LATENT, plan()).layers[1].operators]
    assert names[:11] == [
        "attention norm",
        "latent branch",
        "query down",
        "query latent norm",
        "query up",
        "key-value down",
        "key position",
        "key-value latent norm",
        "key-value up",
        "rotary",
        "attention",
    ]
    found = network(LATENT, plan())
    products = {
        "query down": "8 x 12 x 16",
        "query up": "8 x 24 x 12",
        "key-value down": "8 x 8 x 16",
        "key-value up": "8 x 28 x 6",
        "attention output": "8 x 16 x 12",
    }
    for name, product in products.items():
        assert lines(operator(found, name).forward) == [f"{name}: {product} bf16"]
    assert lines(operator(found, "attention").forward) == ["attention: 4/4 heads 8 x 8 causal"]
    kernel = operator(found, "attention").forward[0].kernel  # type: ignore[union-attr]
    assert (kernel.head_size, kernel.value_size) == (6, 3)  # type: ignore[attr-defined]


def test_latent_attention_gathers_short_vectors() -> None:
    layer = network(LATENT, plan(tp=2)).layers[1]
    tokens = 2 * 8
    assert communications(layer)[:4] == [
        ("AG", "tp", tokens * 12),
        ("AG", "tp", tokens * 2),
        ("AG", "tp", tokens * 6),
        ("RS", "tp", tokens * 16),
    ]
    assert lines(operator(layer, "query down").forward) == ["query down: 4 x 12 x 16 bf16"]
    down = operator(layer, "key-value down")
    assert [(p.size, p.replicated) for p in down.parameters] == [(16 * 8, True)]
    assert lines(operator(layer, "key position").backward) == [
        f"key position gradient reduce-scatter: RS tp {tokens * 2}"
    ]


def test_latent_rotary_puts_the_heads_together() -> None:
    fused = operator(network(LATENT, plan()), "rotary")
    up, pairs = 4 * (4 + 3) + 2, 4 * (6 + 3)
    assert lines(fused.forward) == [
        f"query rotary: {2 * 2 * 8 * 4 * 2} bytes",
        f"key-value rotary: {2 * 8 * (up + pairs)} bytes",
    ]
    separate = lines(operator(network(LATENT, plan(fused=False)), "rotary").forward)
    assert separate[-3:] == [
        f"query concatenation: {2 * 2 * 8 * 4 * 6} bytes",
        f"key concatenation: {2 * 2 * 8 * 4 * 6} bytes",
        f"value copy: {2 * 2 * 8 * 4 * 3} bytes",
    ]


def test_latent_rotary_operation_by_operation() -> None:
    """As Megatron-Core before 0.13: sines of each call, features in order, part that is turned."""
    rotary = operator(network(LATENT, plan(rotary="operations")), "rotary")
    separate = operator(network(LATENT, plan(fused=False)), "rotary")
    forward = [step.name for step in rotary.forward]
    assert forward[:2] == ["query rotary sines", "query rotary order"]
    assert forward[7:9] == ["query rotary copy", "key rotary sines"]
    assert forward[-3:] == ["query concatenation", "key concatenation", "value copy"]
    more = {"sines": 6, "order": 1, "copy": 1}
    assert launches(rotary.forward) == launches(separate.forward) + 2 * sum(more.values())
    assert launches(rotary.backward) == launches(separate.backward) + 2 * (3 + 2 + 2)


def launches(steps: Iterable[Task]) -> int:
    """Steps → kernels that they start."""
    return sum(step.launches for step in steps if isinstance(step, Compute))


@pytest.mark.parametrize(
    ("family", "copied"), [("gpt", []), ("llama", [f"query copy: {2 * 2 * 8 * 16} bytes"])]
)
def test_megatron_cuts_and_puts_together(family: str, copied: list[str]) -> None:
    """Two heads of 8 to a key are copied; queries, keys and values become one gradient again."""
    keys = {"layers": 1, "hidden": 16, "heads": 2, "ffn_hidden": 32, "vocab": 100, "seq_len": 8}
    if copied:
        keys["kv_heads"] = 1
    found = operator(network(model(family, **keys), plan()), "qkv split")
    assert lines(found.forward) == copied
    # Heads of two do not lie behind one another: places are divided out, 8 tokens of 16 elements.
    assert [step.kernel.indexed for step in found.forward] == [8 * 16] * len(copied)
    width = 16 + 2 * 8 * (1 if copied else 2)
    assert lines(found.backward) == [f"qkv gradient concatenation: {2 * 2 * 8 * width} bytes"]
    torch = network(model(family, **keys), plan(dp_style="ddp"))
    assert "qkv split" not in {each.name for each in torch.layers[1].operators}
