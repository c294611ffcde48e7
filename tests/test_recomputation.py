"""What of a layer is computed again, and what it keeps: policies of JAX and PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import model, network, plan

from mpisim.base.errors import InputError
from mpisim.workloads.recomputation import kept_bytes, recomputed_operators

SIZES: dict[str, Any] = {"layers": 1, "hidden": 16, "heads": 4, "seq_len": 8, "vocab": 256}
LLAMA = model("llama", **SIZES, kv_heads=2, ffn_hidden=32)
BLOCK = [
    "attention norm",
    "qkv",
    "qkv split",
    "rotary",
    "attention",
    "attention output",
    "attention dropout add",
    "feed-forward norm",
    "feed-forward in",
    "feed-forward swiglu",
    "feed-forward out",
    "feed-forward dropout add",
]


def run_again(**keys: Any) -> list[str]:
    found = plan(recompute="full", **keys)
    return [
        each.name for each in recomputed_operators(found, network(LLAMA, found).layers[1].operators)
    ]


def test_megatron_runs_the_whole_layer() -> None:
    assert run_again() == BLOCK


def test_what_nobody_reads_is_not_computed_again() -> None:
    """The last matrix needs its input to go back, not its product."""
    assert run_again(recompute_stops=True) == BLOCK[:-2]


def test_operators_that_are_kept() -> None:
    keeps = ("qkv", "rotary", "attention")
    assert run_again(recompute_stops=True, recompute_keeps=keeps) == [
        name for name in BLOCK[:-2] if name not in keeps
    ]


def test_every_second_product_of_separate_matrices() -> None:
    """torchtitan's selective checkpoints: of wq, wk, wv, wo, w1, w3, w2 the odd ones are kept."""
    keeps = ("query", "value", "attention", "feed-forward gate")
    found = plan(
        recompute="full", recompute_stops=True, recompute_keeps=keeps, separate_projections=True
    )
    operators = network(LLAMA, found).layers[1].operators
    names = [each.name for each in recomputed_operators(found, operators)]
    products = ("query", "key", "value", "attention output", "gate", "feed-forward value")
    assert [name for name in names if name in products] == [
        "key",
        "attention output",
        "feed-forward value",
    ]
    # 8 tokens: queries 16, values 8, attention 16, gate 32 features of 2 bytes.
    assert kept_bytes(found, operators) == 8 * (16 + 8 + 16 + 32) * 2


def test_layers_in_a_loop_as_profiled() -> None:
    """What MaxText's profile of Llama 2 70B with ``save_qkv_proj`` has of such kernels.

    github:AI-Hypercomputer/maxtext MaxText/configs/a3/llama_2_70b/bf16/pgle/64vm.pbtxt: four
    ``loop_dynamic_update_slice_fusion`` in the loop forward, two of them an eighth as large, for
    keys and values; three ``loop_dynamic_slice_fusion`` in that back.
    """
    keeps = ("query", "key", "value", "rotary")
    keys: dict[str, Any] = {"recompute_keeps": keeps, "separate_projections": True}
    llama = model("llama", layers=1, hidden=64, heads=8, seq_len=8, vocab=256, kv_heads=1)
    for stops in (False, True):
        found = plan(recompute="full", recompute_stops=stops, stacked_layers=True, **keys)
        layer = network(llama, found).layers[1]
        stack = layer.operators[-1]
        whole, part = 2 * 8 * 64, 2 * 8 * 8  # bytes of a hidden state, and of one head
        sizes = [
            [task.kernel.traffic // 2 for task in tasks]
            for tasks in (stack.forward, stack.backward)
        ]
        assert sizes[0][1::2] == [whole, whole, part, part]
        assert sizes[0][::2] == [each // 2 for each in sizes[0][1::2]]  # filled: written alone
        assert sizes[1] == [whole, part, part]
        assert stack not in recomputed_operators(found, layer.operators)
        assert kept_bytes(found, layer.operators) == whole + 2 * part
    kept = network(llama, plan(stacked_layers=True, separate_projections=True)).layers[1]
    assert "layer stack" not in [each.name for each in kept.operators]


def test_separate_matrices_hold_the_same_parameters() -> None:
    """Their input is kept once; three gradients of it take two sums."""
    one, many = (network(LLAMA, plan(separate_projections=each)) for each in (False, True))
    sizes = [sum(each.size for each in found.layers[1].parameters) for found in (one, many)]
    assert sizes[0] == sizes[1]
    assert one.layers[1].saved == many.layers[1].saved
    names = [each.name for each in many.layers[1].operators]
    assert names[1:6] == ["qkv branch", "qkv branch", "query", "key", "value"]
    assert names.count("feed-forward branch") == 1


def test_a_tp_group_gathers_once() -> None:
    found = network(LLAMA, plan(tp=2, separate_projections=True)).layers[1].operators
    assert [each.name for each in found] == BLOCK


@pytest.mark.parametrize("key", ["recompute_stops", "recompute_keeps"])
def test_only_of_whole_layers(key: str) -> None:
    with pytest.raises(InputError, match=r"(keeps|stops) is given, but granularity is 'none'"):
        plan(**{key: True if key == "recompute_stops" else ("qkv",)})


def test_parts_of_a_layer_run_again_behind_what_reads_them() -> None:
    """The forward kernels of a part are the backward of an operator behind its readers."""
    found = plan(recompute_modules=("layernorm", "mlp"))
    operators = network(LLAMA, found).layers[1].operators
    names = [each.name for each in operators]
    again_at = names.index("attention norm again")
    assert names.index("qkv") < again_at < names.index("attention")
    forward = {each.name: each.forward for each in operators}
    assert operators[again_at].backward == forward["attention norm"]
    block = operators[names.index("feed-forward in again")]
    assert block.backward == tuple(
        step for name in ("in", "swiglu", "out") for step in forward[f"feed-forward {name}"]
    )
    assert not block.forward
    assert not block.saved


def test_parts_are_not_named_where_the_whole_layer_runs_again() -> None:
    with pytest.raises(InputError, match="modules is given"):
        plan(recompute="full", recompute_modules=("mlp",))
