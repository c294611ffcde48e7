"""Memory of parameters, gradients and the optimizer's states, and of buffers of their shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_layers import layer, operator, plan
from plans import ALONE, plan_of
from published_formulas import zero_states

from mpisim.base.errors import InputError
from mpisim.experiment import Plan
from mpisim.kernels.operations import Gemm
from mpisim.memory.states import (
    ModelStates,
    accumulated_gradients,
    gathered_parameters,
    gradient_buckets,
    model_states,
    parameter_counts,
    rates,
)
from mpisim.workloads.operators import Compute, Layer, Operator, Parameter


def states(layers: Sequence[Layer], chosen: Plan, sizes: Mapping[str, int]) -> ModelStates:
    return model_states(parameter_counts(layers), chosen, sizes)


def gathered(layers: Sequence[Layer], chosen: Plan) -> int:
    return gathered_parameters(parameter_counts(layers, chosen.framework.wrap_layers), chosen)


def buckets(layers: Sequence[Layer], chosen: Plan, sizes: Mapping[str, int]) -> int:
    return gradient_buckets(parameter_counts(layers, chosen.framework.wrap_layers), chosen, sizes)


def accumulated(layers: Sequence[Layer], chosen: Plan, sizes: Mapping[str, int]) -> int:
    return accumulated_gradients(parameter_counts(layers), chosen, sizes)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("n", [1, 4, 64])
def test_zero_as_published(stage: int, n: int) -> None:
    found = states([layer(size=6400)], plan(dp_style="deepspeed", zero=stage), ALONE | {"shard": n})
    assert sum(vars(found).values()) == zero_states(6400, stage, n)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (2, 4, 12)),  # Megatron-LM: 18
        ({"precision_gradients": "bf16"}, (2, 2, 12)),
        ({"zero": 1}, (2, 4, 12 / 4)),  # 6 + 12/dp
        ({"precision": "fp32"}, (4, 4, 8)),
        ({"precision": "tf32"}, (4, 4, 8)),
        ({"precision": "fp8"}, (4, 4, 12)),  # fp8 weights and their transposes besides
        ({"precision": "fp8", "fp8_transposed": False}, (3, 4, 12)),
        ({"precision": "fp8", "fp8_params": True}, (2, 4, 12)),
        ({"precision": "fp8", "fp8_params": True, "fp8_transposed": False}, (1, 4, 12)),
        ({"precision": "fp8", "fp8_scaling": "blocks", "fp8_transposed": False}, (4.0625, 4, 12)),
        ({"precision": "fp8", "fp8_weight_casts": True}, (2, 4, 12)),
        ({"precision": "fp8", "dp_style": "deepspeed"}, (2, 2, 12)),
        ({"precision": "bf16", "fp8_params": True}, (2, 4, 12)),
        ({"precision": "nvfp4"}, (3.125, 4, 12)),  # 9/16 of a byte twice
        ({"optimizer": "momentum"}, (2, 4, 8)),
        ({"optimizer": "sgd"}, (2, 4, 4)),
        ({"optimizer": "adagrad", "precision": "fp32"}, (4, 4, 4)),
        ({"dp_style": "ddp", "precision": "fp32"}, (4, 4, 8)),
        ({"dp_style": "ddp", "zero": 1, "precision": "fp32"}, (4, 4, 8 / 4)),
        ({"dp_style": "fsdp", "zero": 3}, (1, 1, 2)),  # 16/dp, the sharded weights in fp32
        ({"dp_style": "fsdp", "zero": 2}, (1, 1, 2)),
    ],
)
def test_bytes_of_a_parameter(keys: dict, expected: tuple[float, ...]) -> None:
    chosen = plan(**keys)
    product = Compute("product", Gemm(4, 4, 4, dtype=chosen.precision.products))
    linear = Operator("linear", (product,), (), (Parameter("linear weight", 6400),))
    found = states([layer(linear)], chosen, ALONE | {"shard": 4})
    each = (found.parameters / 6400, found.gradients / 6400, found.optimizer / 6400)
    assert each == pytest.approx(expected)


def test_only_weights_of_products_in_fp8_have_copies_in_fp8() -> None:
    product = Compute("product", Gemm(4, 4, 4, dtype="fp8"))
    linear = Operator(
        "linear", (product,), (), (Parameter("linear weight", 100), Parameter("linear bias", 10))
    )
    embedding = layer(size=1000, role="embedding")
    head = Operator(
        "head", (Compute("scores", Gemm(4, 4, 4)),), (), (Parameter("head weight", 1000),)
    )
    layers = [embedding, layer(linear), layer(head, role="head")]
    found = states(layers, plan(precision="fp8"), ALONE)
    assert found.parameters == 2 * 2110 + 2 * 100


def test_experts_are_shared_by_their_own_group() -> None:
    experts = operator(parameters=(Parameter("dense", 800), Parameter("expert", 80, expert=True)))
    found = states([layer(experts)], plan(zero=1), ALONE | {"shard": 8, "eshard": 2})
    assert found.optimizer == 12 * (800 // 8 + 80 // 2)
    assert found.parameters == 2 * 880


def test_tied_matrices_are_there_once() -> None:
    tied = operator(parameters=(Parameter("words", 50, tied=True),))
    found = states([layer(tied, role="embedding"), layer(tied, role="head")], plan(), ALONE)
    assert found.parameters == 2 * 50


def test_tables_of_one_rank_have_no_gradients_and_are_not_shared() -> None:
    table = operator(parameters=(Parameter("table", 1000, local=True), Parameter("mlp", 8)))
    keys = plan(dp_style="ddp", precision="fp32", optimizer="adagrad", zero=1)
    found = states([layer(table)], keys, ALONE | {"shard": 4})
    assert (found.parameters, found.gradients, found.optimizer) == (4032, 32, 4 * 1000 + 4 * 2)


@given(size=st.integers(1, 10**12), n=st.integers(1, 5000), stage=st.integers(0, 3))
def test_sharding_never_takes_more(size: int, n: int, stage: int) -> None:
    keys = plan(dp_style="deepspeed", zero=stage)
    alone = sum(vars(states([layer(size=size)], keys, ALONE)).values())
    shared = sum(vars(states([layer(size=size)], keys, ALONE | {"shard": n})).values())
    assert alone / n <= shared <= alone


def test_gathered_units_of_fsdp() -> None:
    layers = [layer(size=100, role="embedding"), *(layer(size=10 * i) for i in (1, 2, 3, 4))]
    fsdp = {"dp_style": "fsdp", "zero": 3}
    flat = fsdp | {"flat_shards": True}
    assert gathered(layers, plan(**flat)) == 2 * (100 + 30 + 40)
    assert gathered(layers, plan(**flat, prefetch=0)) == 2 * (100 + 40)
    assert gathered(layers, plan(**flat, wrap_layers=2, prefetch=0)) == 2 * (100 + 70)
    assert gathered(layers, plan(**flat, reshard_after_forward=False)) == 2 * 200
    assert gathered(layers, plan(dp_style="fsdp", zero=2, flat_shards=True)) == 2 * 200
    # fully_shard copies what it gathers out of a buffer: of the root unit, or of two others.
    assert gathered(layers, plan(**fsdp)) == 2 * (170 + 100)
    assert gathered(layers[1:], plan(**fsdp)) == 2 * (70 + 70)
    assert gathered(layers[1:], plan(dp_style="fsdp", zero=2)) == 2 * (100 + 70)
    assert gathered(layers, plan(zero=1)) == 0
    assert gathered(layers, plan(dp_style="deepspeed", zero=3)) == 2 * 200


def test_buckets() -> None:
    layers = [layer(size=100, role="embedding"), layer(size=30), layer(size=40)]
    shared = ALONE | {"dp": 4}
    assert buckets(layers, plan(), shared) == 0  # Megatron-LM reduces in place
    assert buckets(layers, plan(dp_style="ddp", precision="fp32"), shared) == 4 * 170
    assert buckets(layers, plan(dp_style="ddp", precision="fp32"), ALONE) == 0
    fsdp = {"dp_style": "fsdp", "precision_gradients": "fp32"}
    assert buckets(layers, plan(**fsdp, zero=3), shared) == (2 + 4) * 40 + 2 * 100
    assert buckets(layers, plan(**fsdp, zero=2, pp=2), shared) == 2 * 40
    assert accumulated(layers, plan(**fsdp, zero=2, pp=2), shared) == 4 * 170
    assert accumulated(layers, plan(**fsdp, zero=2, pp=2), ALONE) == 0
    assert accumulated(layers, plan(**fsdp, zero=3), shared) == 0
    # The documented 9 GB of DeepSpeed: 5e8 elements of two bytes, two buckets, 4.5 times.
    large = [layer(size=10**10)]
    assert buckets(large, plan(dp_style="deepspeed", zero=2), shared) == 9 * 10**9
    slow = plan(dp_style="deepspeed", zero=2, overlap_dp=False, bucket=1000)
    assert buckets(large, slow, shared) == 2000


@pytest.mark.parametrize(
    ("keys", "weight", "gradient", "optimizer"),
    [
        ({"dp_style": "fsdp", "zero": 3}, 4, 4, 8),
        ({"dp_style": "fsdp", "zero": 3, "precision_main_parameters": "bf16"}, 2, 2, 8),
        ({"dp_style": "ddp"}, 2, 2, 4 + 8),
        ({"dp_style": "ddp", "precision_main_parameters": "bf16"}, 2, 2, 8),
    ],
)
def test_models_read_in_16_bits_have_no_master_copy(
    keys: dict[str, Any], weight: int, gradient: int, optimizer: int
) -> None:
    found = rates(plan_of(global_batch=8, **keys).resolved(transformer=True))
    assert (found.weight, found.gradient, found.optimizer) == (weight, gradient, optimizer)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"precision_main_parameters": "fp16"}, "the passes read bf16"),
        ({"precision_main_parameters": "bf16"}, "'megatron' keeps a copy in fp32"),
    ],
)
def test_main_parameters_that_no_framework_has(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_of(global_batch=8, dp_style="megatron", **keys)
