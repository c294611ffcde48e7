"""Weights in fp8 of Transformer Engine in captures: casts, copies and memory, counted by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from captures import captured, flops, needs_torch, operators_in

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.capture.recording import ItemKind, Recording

pytestmark = [pytest.mark.timeout(400), needs_torch]

SCRIPT = """
import sys
import torch
import transformer_engine.pytorch as te
from transformer_engine.common import recipe
scaling, weights, optimizer = sys.argv[1:]
chosen = getattr(recipe, scaling)()
with te.fp8_model_init(enabled=weights == "fp8", recipe=chosen):
    model = te.Linear(1024, 2048, bias=False, params_dtype=torch.bfloat16)
assert isinstance(model.weight, te.QuantizedTensor) == (weights == "fp8")
if optimizer == "te":
    optimizer = te.optimizers.FusedAdam(model.parameters(), master_weights=True)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for _ in range(3):
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with te.fp8_autocast(True, fp8_recipe=chosen):
        loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SIZE = 1024 * 2048


def of_weights(recording: Recording, phase: Phase) -> Counter[str]:
    """Operators of a pass by name, of those with a tensor as large as the weight."""
    found: Counter[str] = Counter()
    for item in recording.items:
        if item.kind is ItemKind.CALL and item.phase == phase:
            call = recording.calls[item.number]
            shapes = [getattr(each, "shape", ()) for each in (*call.inputs, *call.outputs)]
            if {(2048, 1024), (1024, 2048)} & set(shapes):
                found[call.name.partition("::")[2]] += 1
    return found


def test_weights_in_fp8_are_cast_by_the_optimizer(tmp_path: Path) -> None:
    found = captured(tmp_path, SCRIPT, "DelayedScaling", "fp8", "te")
    # Hopper multiplies along k only: the gradient of the input reads a transposed copy.
    forward = of_weights(found, Phase.FORWARD)
    assert forward == {"fp8_transpose": 1, "generic_gemm": 1}
    assert of_weights(found, Phase.OPTIMIZER) == {}  # one kernel over lists, and nothing else
    assert operators_in(found)["apex::multi_tensor_adam"] == 1
    assert flops(found)["gemm"] == 3 * 2 * 256 * SIZE

    usual = captured(tmp_path, SCRIPT, "DelayedScaling", "bf16", "te")
    assert of_weights(usual, Phase.FORWARD) == {"quantize": 1, "generic_gemm": 1}
    assert flops(usual) == flops(found)


def test_no_transposed_copy_on_blackwell(tmp_path: Path) -> None:
    found = captured(tmp_path, SCRIPT, "DelayedScaling", "fp8", "te", gpu="b200-sxm")
    assert of_weights(found, Phase.FORWARD) == {"generic_gemm": 1}


def test_another_optimizer_works_on_a_copy(tmp_path: Path) -> None:
    found = captured(tmp_path, SCRIPT, "Float8CurrentScaling", "fp8", "sgd")
    assert of_weights(found, Phase.FORWARD) == {"generic_gemm": 1}  # both forms by the last cast
    assert of_weights(found, Phase.OPTIMIZER) == {"dequantize": 1, "add_": 1, "quantize": 1}


def test_a_weight_in_fp8_takes_a_byte_a_number(tmp_path: Path) -> None:
    found = captured(tmp_path, SCRIPT, "DelayedScaling", "fp8", "te")
    holds = [each for each in found.allocations if found.holders.get(each.storage) == "weights"]
    assert {each.bytes for each in holds if each.bytes} == {SIZE}


def test_sharding_of_weights_in_fp8_is_refused(tmp_path: Path) -> None:
    text = SCRIPT.replace("if optimizer ==", "model.weight.chunk(2)\nif optimizer ==", 1)
    with pytest.raises(InputError, match=r"train\.py:11: .* of a weight in fp8 .* stands in for"):
        captured(tmp_path, text, "DelayedScaling", "fp8", "te")
