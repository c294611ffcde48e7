"""Activation functions: each is in one place, and models and plans can use every one."""

from __future__ import annotations

from typing import get_args

import pytest
from transformers import model, network, operator, plan

from mpisim.base.schema import build
from mpisim.experiment.plan import FrameworkOptions
from mpisim.kernels.activations import ACTIVATIONS, ActivationName, ComposedActivation

SIZES = {"layers": 1, "hidden": 64, "heads": 2, "seq_len": 16, "vocab": 128}


def test_every_function_can_be_named_in_a_model() -> None:
    assert get_args(ActivationName) == tuple(ACTIVATIONS)


def test_every_composed_function_can_be_named_in_a_plan() -> None:
    composed = tuple(name for name, each in ACTIVATIONS.items() if each.forward)
    assert get_args(ComposedActivation) == composed
    assert composed == tuple(name for name, each in ACTIVATIONS.items() if each.backward)
    for name in composed:
        found = build(FrameworkOptions, {"primitive": [name]}, "test")
        assert found.primitive == (name,)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gate_doubles_what_enters(name: str) -> None:
    found = model("gpt", activation=name, **SIZES)
    assert found.gated is ACTIVATIONS[name].gated
    # 16 tokens of 4 × 64 features in bf16: the inputs are read, and the results written.
    inputs = 2 if found.gated else 1
    (step,) = operator(network(found, plan(tp=1)), f"feed-forward {name}").forward
    assert step.kernel.traffic == 2 * 16 * 256 * (inputs + 1)


@pytest.mark.parametrize("name", [name for name, each in ACTIVATIONS.items() if each.forward])
def test_composed_functions_launch_each_operation(name: str) -> None:
    found = network(
        model("gpt", activation=name, bias=False, **SIZES), plan(fused=False, primitive=(name,))
    )
    each = operator(found, f"feed-forward {name}")
    tensor = 2 * 16 * 256
    for steps, operations in (
        (each.forward, ACTIVATIONS[name].forward),
        (each.backward, ACTIVATIONS[name].backward),
    ):
        assert [step.name for step in steps] == [
            f"feed-forward {name} {what}" for what, _ in operations
        ]
        assert [step.kernel.traffic for step in steps] == [n * tensor for _, n in operations]
