"""Low-rank adapters and packed sequences: what ranks hold, compute and keep."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transformers import model, network, plan

from mpisim.base.errors import InputError
from mpisim.experiment import Transformer, model_counts
from mpisim.kernels.operations import Attention, Elementwise, Gemm
from mpisim.memory.states import gathered_parameters, model_states, parameter_counts
from mpisim.workloads.data_parallel.buckets import chunk_parameters
from mpisim.workloads.operators import Compute, LayerStack, Parameter

COMMON: dict[str, Any] = {
    "layers": 3,
    "hidden": 256,
    "heads": 8,
    "kv_heads": 4,
    "seq_len": 256,
    "vocab": 2048,
    "ffn_hidden": 512,
}
RANK = 16
ALL = ("qkv", "proj", "fc1", "fc2")


def adapted(**keys: Any) -> Transformer:
    return model("llama", **COMMON, lora_rank=RANK, **keys)


def parameters(found: LayerStack) -> list[Parameter]:
    return [each for layer in found.layers for each in layer.parameters]


def flops(found: LayerStack, what: str) -> int:
    return sum(
        task.kernel.flops
        for layer in found.layers
        for operator in layer.operators
        for task in getattr(operator, what)
        if isinstance(task, Compute) and not isinstance(task.kernel, Attention)
    )


def trained(modules: tuple[str, ...]) -> int:
    """Parameters of adapters of one layer: rank × (features in + features out) of each."""
    h, f, kv = 256, 512, 128
    sizes = {"qkv": h + h + 2 * kv, "proj": 2 * h, "fc1": h + 2 * f, "fc2": f + h}
    return RANK * sum(sizes[each] for each in modules)


@pytest.mark.parametrize("modules", [("qkv",), ("qkv", "proj"), ALL])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_only_adapters_are_trained(modules: tuple[str, ...], tp: int) -> None:
    found = network(adapted(lora_modules=modules), plan(tp=tp))
    whole = network(model("llama", **COMMON), plan(tp=tp))
    held = parameters(found)
    assert sum(p.size for p in held if p.frozen) == sum(p.size for p in parameters(whole))
    own = [p.size for p in held if not p.frozen]
    # A rank has all of one of the two matrices' rank, and its share of the other features.
    if tp == 1:
        assert sum(own) == 3 * trained(modules)
    assert sum(each.size for each in chunk_parameters(found.layers)) == sum(own)


def test_work_is_that_of_the_formula() -> None:
    """Frozen matrices: forward and the gradient of the input; adapters thrice."""
    found, whole = network(adapted(), plan(micro_batch=2)), model("llama", **COMMON)
    tokens = 2 * 256
    matrices = model_counts.matrix_flops(whole, 2)
    small = 2 * tokens * 3 * trained(ALL)
    assert flops(found, "forward") == matrices + small
    assert flops(found, "backward") == matrices + 2 * small
    attention = model_counts.attention_flops(whole, 2)
    assert found.flops == 2 * matrices + 3 * attention
    assert not any(
        task.weight
        for layer in found.layers
        for operator in layer.operators
        for task in operator.backward
        if not operator.name.endswith("adapter")
    )


def test_states_are_those_of_the_adapters() -> None:
    keys = plan(dp=1, zero=0, precision="bf16", dp_style="megatron")
    layers = network(adapted(), keys).layers
    counts = parameter_counts(layers)
    assert counts.total == 3 * trained(ALL)
    assert counts.frozen == sum(p.size for p in parameters(network(adapted(), keys)) if p.frozen)
    states = model_states(counts, keys, {"shard": 1, "eshard": 1})
    assert states.parameters == 2 * (counts.total + counts.frozen)
    assert (states.gradients, states.optimizer) == (4 * counts.total, 12 * counts.total)


def test_frozen_matrices_keep_nothing_without_an_adapter() -> None:
    def kept(found: Transformer) -> int:
        return sum(layer.saved for layer in network(found, plan()).of_role("block"))

    none = kept(model("llama", **COMMON))
    some, many = kept(adapted(lora_modules=("qkv",))), kept(adapted(lora_modules=ALL))
    assert some < many
    # The inputs of three of four matrices, less the small features of one adapter.
    inputs = 2 * 256 * (256 + 256 + 512)
    assert none - some == 3 * (inputs - 2 * 256 * RANK)


def test_modules_of_prediction_are_adapted_once() -> None:
    found = network(adapted(mtp_layers=1), plan())
    heads = [layer for layer in found.layers if "prediction" in layer.name]
    own = [p for p in heads[0].parameters if not p.frozen]
    assert sum(p.size for p in own) == trained(ALL)


@pytest.mark.parametrize(("length", "examples"), [(256, 1), (128, 2), (64, 4), (100, 3)])
@pytest.mark.parametrize("cp", [1, 2])
def test_tokens_attend_to_their_own_example(length: int, examples: int, cp: int) -> None:
    found = model("llama", **COMMON, example_length=length)
    sharing = plan(micro_batch=2, cp=cp)
    kernels = [
        task.kernel
        for operator in network(found, sharing).of_role("block")[0].operators
        for task in operator.forward
        if isinstance(task, Compute) and isinstance(task.kernel, Attention)
    ]
    done = cp * sum(kernel.flops for kernel in kernels)
    assert done == pytest.approx(model_counts.attention_flops(found, 2) / 3, rel=0.06)
    whole = model_counts.attention_flops(model("llama", **COMMON), 2)
    assert model_counts.attention_flops(found, 2) == pytest.approx(whole / examples, rel=0.01)


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        ("bert", {"lora_rank": 8}, "family 'bert' has no adapters"),
        ("llama", {"lora_rank": 8, "lora_modules": ()}, "lora_modules is empty"),
        ("llama", {"example_length": 512}, "example_length is 512; it is for packed sequences"),
    ],
)
def test_what_no_model_has(family: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        model(family, **COMMON, **keys)


@pytest.mark.parametrize("style", ["fsdp", "deepspeed"])
def test_frozen_parameters_are_sharded_like_others(style: str) -> None:
    keys = plan(dp=4, zero=3, precision="bf16", dp_style=style, prefetch=0)
    counts = parameter_counts(network(adapted(), keys).layers)
    states = model_states(counts, keys, {"shard": 4, "eshard": 4})
    assert counts.held_root + sum(counts.held_units) == counts.total + counts.frozen
    # FSDP keeps shards in fp32; DeepSpeed in the passes' format, with a copy of what it trains.
    each = 4 if style == "fsdp" else 2
    assert states.parameters == pytest.approx(each * (counts.total + counts.frozen) / 4, abs=16)
    assert states.gradients == each * counts.total // 4
    # The largest unit, gathered and copied out of the buffer; DeepSpeed may hold 1e9 elements.
    root, unit = counts.held_root, counts.held_units[0]
    fsdp = 2 * (root + unit + max(root, unit))
    gathered = fsdp if style == "fsdp" else 2 * (counts.total + counts.frozen)
    assert gathered_parameters(counts, keys) == gathered


FOUR_BITS: dict[str, Any] = {
    "precision": "bf16",
    "precision_main_parameters": "bf16",
    "precision_frozen": "nf4",
}


def written_out(found: LayerStack, what: str) -> list[tuple[str, int]]:
    """Kernels that write matrices of 4 bits out in 16: names, bytes moved."""
    return [
        (task.name, task.kernel.bytes)
        for layer in found.layers
        for operator in layer.operators
        for task in getattr(operator, what)
        if isinstance(task, Compute) and task.name.endswith("dequantize")
        if isinstance(task.kernel, Elementwise)
    ]


def test_matrices_of_four_bits_are_packed_and_written_out_before_each_product() -> None:
    wide = network(adapted(), plan(**{**FOUR_BITS, "precision_frozen": None}))
    four = network(adapted(), plan(**FOUR_BITS))
    h, f, kv = 256, 512, 128
    # 4 bits and, for each 64 elements, a constant of 8 bits, of which 256 share one of 32.
    bits = 4 + 8 / 64 + 32 / (64 * 256)
    matrices = h * (h + 2 * kv) + h * h + 3 * h * f
    held = {each: sum(p.size for p in parameters(each)) for each in (wide, four)}
    saved = 3 * matrices * (1 - bits / 16)
    assert held[wide] - held[four] == pytest.approx(saved, abs=3 * 7)
    for what in ("forward", "backward"):
        assert not written_out(wide, what)
        kernels = written_out(four, what)
        assert sum(size for _, size in kernels) == pytest.approx(
            3 * matrices * (bits / 8 + 2), abs=3 * 7
        )
    for layer in four.layers:
        for operator in layer.operators:
            for tasks in (operator.forward, operator.backward):
                names = [task.name for task in tasks]
                if f"{operator.name} dequantize" in names:
                    at = names.index(f"{operator.name} dequantize")
                    product = tasks[at + 1]
                    assert isinstance(product, Compute)
                    assert isinstance(product.kernel, Gemm)
    # Adapters, norms, embedding and head are as before; so is what is trained.
    trained = [[p for p in parameters(each) if not p.frozen] for each in (wide, four)]
    assert trained[0] == trained[1]


def test_four_bits_need_sixteen_around_them() -> None:
    with pytest.raises(InputError, match="products is 'fp8'"):
        plan(**{**FOUR_BITS, "precision": "fp8"})
    wide = plan(**{**FOUR_BITS, "precision_main_parameters": "fp32"}, dp_style="fsdp", zero=3)
    with pytest.raises(InputError, match="main_parameters is 'fp32'"):
        network(adapted(), wide)


def test_four_bits_need_adapters() -> None:
    with pytest.raises(InputError, match=r"model\.lora_rank is 0"):
        network(model("llama", **COMMON), plan(**FOUR_BITS))


MIXTURE: dict[str, Any] = COMMON | {"experts": 8, "topk": 2, "moe_ffn_hidden": 128}


QLORA_MIXTURE: dict[str, Any] = MIXTURE | {"lora_rank": RANK, "lora_modules": ("qkv",)}


@pytest.mark.parametrize("experts", ["loop", "grouped"])
def test_experts_that_are_no_modules_stay_in_16_bits(experts: str) -> None:
    """Transformer Engine's GroupedLinear, and one parameter of transformers since 5."""
    found = network(model("llama", **QLORA_MIXTURE), plan(**FOUR_BITS, moe_experts=experts))
    sizes = {"experts in weight": 2 * 8 * 256 * 128, "experts out weight": 8 * 256 * 128}
    held = {each.name: each.size for each in parameters(found) if each.name in sizes}
    assert held == sizes
    for what in ("forward", "backward"):
        assert not [name for name, _ in written_out(found, what) if name.startswith("expert")]


def test_experts_that_are_modules_are_packed() -> None:
    """Transformers before 5: nn.Linear each, and so is the router."""
    found = network(model("llama", **QLORA_MIXTURE), plan(**FOUR_BITS, moe_experts="modules"))
    bits = 4 + 8 / 64 + 32 / (64 * 256)
    layers = COMMON["layers"]
    sizes = [each.size for each in parameters(found) if each.name.startswith("expert ")]
    assert sizes == [pytest.approx(bits / 16 * 256 * 128, abs=1)] * (3 * 8 * layers)
    routers = [each.size for each in parameters(found) if each.name == "router weight"]
    assert routers == [pytest.approx(bits / 16 * 256 * 8, abs=1)] * layers
    moved = round(256 * 128 * (bits / 8 + 2))
    for what, names in (
        ("forward", ("expert gate", "expert value", "expert out", "router")),
        ("backward", tuple(f"{n} input gradient" for n in ("expert gate", "expert out", "router"))),
    ):
        kernels = written_out(found, what)
        for name in names:
            of = [size for each, size in kernels if each == f"{name} dequantize"]
            experts = 1 if name.startswith("router") else 8
            assert len(of) == experts * layers
            assert experts == 1 or set(of) == {moved}
