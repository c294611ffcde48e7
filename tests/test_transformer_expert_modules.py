"""Experts that are modules of PyTorch, which a loop in Python calls: Hugging Face's transformers.

Kernels are counted by hand, and beside those that PyTorch launches for the same block
(tests/captured/expert_modules.py, written as transformers' source has it).
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from captures import SCRIPTS, alone, kernels_in, needs_torch, script
from mixtures import SIZES, TINY, block
from plans import plan_of
from transformers import model, operator

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.experiment import load
from mpisim.kernels.operations import Copy, Kernel
from mpisim.workloads.operators import Await, Compute, Layer

KEYS = {"moe_experts": "modules", "fused": False, "dp_style": "ddp", "global_batch": 1}
TOKENS, HIDDEN, INNER = 512, 256, 128


def launched(layer: Layer, way: str) -> Counter[Kernel]:
    """Kernels of router and experts, one way, and of the sum of both's gradients."""
    names = ("router", "expert", "experts", "routed branch")
    return Counter(
        task.kernel
        for each in layer.operators
        if each.name in names
        for task in getattr(each, way)
        if isinstance(task, Compute)
    )


def test_each_expert_has_the_kernels_of_its_lines() -> None:
    """Of 8 tokens of 2 of 8 experts 7 have rows, by expectation: 7.2."""
    layer = block(TINY, **KEYS)
    experts = [each for each in layer.operators if each.name == "expert"]
    assert [bool(each.backward) for each in experts] == [True] * 7 + [False]
    # where: 5; index, three products, silu, product; index, product, index_add_; a copied count.
    assert [len([t for t in e.forward if isinstance(t, Compute)]) for e in experts] == [
        *[5 + 1 + 5 + 3 + 1] * 7,
        5,  # where, of no rows: no numbers to divide, and the count
    ]
    assert all(isinstance(e.forward[-1 if not e.backward else 6], Await) for e in experts)
    # index_select, two products, a sum; zeros, a sort, sums; six products, three between them, the
    # sum of two; zeros, a sort, sums. All but the first add twice to what others left.
    assert [len(each.backward) for each in experts] == [4 + 3 + 6 + 3 + 1 + 3 + 2] * 6 + [20, 0]
    assert all(len(each.parameters) == 3 for each in experts)
    assert not any(p.expert for each in experts for p in each.parameters)


def test_rows_of_all_experts_are_those_of_all_tokens() -> None:
    layer = block(TINY, **KEYS)
    ways = ("forward", "backward")
    flops = [sum(k.flops * n for k, n in launched(layer, way).items()) for way in ways]
    router, experts = 2 * 8 * 16 * 8, 2 * 8 * 2 * 3 * 16 * 32
    assert flops == [router + experts, 2 * (router + experts)]


def test_zero_3_takes_the_block_for_one_module() -> None:
    keys = KEYS | {"dp_style": "deepspeed", "zero": 3}
    apart = block(TINY, **keys, leaf_modules=False)
    layer = block(TINY, **keys)
    assert len(operator(layer, "experts").parameters) == 3 * 8
    for way in ("forward", "backward"):
        assert launched(layer, way) == launched(apart, way)
    assert "experts" not in {each.name for each in apart.operators}


@pytest.mark.parametrize("split", [{"tp": 2}, {"ep": 2}])
def test_all_experts_are_on_each_rank(split: dict[str, int]) -> None:
    key = next(iter(split))
    with pytest.raises(InputError, match=f"moe_experts is 'modules', but {key} is 2"):
        plan_of(global_batch=8, moe_experts="modules", **split)


def test_nothing_is_dispatched() -> None:
    with pytest.raises(InputError, match="moe_dispatcher is 'one-hot': nothing is dispatched"):
        plan_of(global_batch=8, moe_experts="modules", moe_dispatcher="one-hot")
    with pytest.raises(InputError, match="'modules', but model\\.moe_latent is 8"):
        block(model("moe", **SIZES, moe_latent=8), **KEYS)


def test_profiles_of_transformers_before_5_have_them() -> None:
    """Of models whose blocks are such loops; others, and later ones, multiply experts at once."""

    def experts(name: str, framework: str, version: str, **keys: int) -> str:
        named = {"model.preset": name, "framework.name": framework, "framework.version": version}
        given = {**named, "plan.zero": 3, **{f"plan.{key}": value for key, value in keys.items()}}
        changes = [f"{key}={json.dumps(value)}" for key, value in given.items()]
        return load(None, changes)[1].plan.experts

    for model_name in ("Mixtral 8x7B", "Qwen3-30B-A3B"):
        assert experts(model_name, "hf-transformers", "4.51") == "modules"
        assert experts(model_name, "hf-transformers", "5.0") == "grouped"
        assert experts(model_name, "deepspeed", "0.16.7") == "modules"
        assert experts(model_name, "deepspeed", "0.16.7", ep=2) == "grouped"
    assert experts("DeepSeek-V3", "hf-transformers", "4.51") == "grouped"


@needs_torch
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("experts", "topk"), [(8, 2), (4, 1)])
def test_kernels_are_those_that_pytorch_launches(experts: int, topk: int) -> None:
    """As many of each kind, with the same operations and the same bytes, both ways."""
    path = SCRIPTS / "expert_modules.py"
    (part,) = alone(script(path, str(experts), str(topk)))
    sizes = {"experts": experts, "topk": topk, "layers": 1, "hidden": HIDDEN, "heads": 4}
    found = model("moe", **sizes, seq_len=TOKENS, vocab=256, moe_ffn_hidden=INNER)
    layer = block(found, **KEYS)
    for way, phase in (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD)):
        ours, theirs = launched(layer, way), kernels_in(part.recording, phase)
        copies = ours.pop(Copy(8, path="host"), 0)  # recorded as what the CPU waits for
        assert copies == (experts if way == "forward" else 0)
        assert ours == theirs
