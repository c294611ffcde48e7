"""Low-rank adapters (LoRA, arXiv:2106.09685): frozen matrices with small trained ones beside them.

A frozen parameter has a weight, and neither gradient nor states of the optimizer: the products and
gathers that make its gradient are left out, and so is what was kept for them. A matrix that is
adapted has two more beside it, from its input down to `lora_rank` features and up to its output,
whose result is added. As NeMo's `ParallelLinearAdapter` (github:NVIDIA-NeMo/Megatron-Bridge,
``src/megatron/bridge/peft/utils.py``): beside a matrix split by columns the first makes a share of
the features, gathered over the tp group, the second a share of the columns; beside one split by
rows the first adds up over the group, and the columns of the second are gathered.

Nothing below the first adapter needs gradients: the embedding has none. The gradient of the first
layer's input is made all the same.

QLoRA (arXiv:2305.14314, ``precision.frozen``): frozen matrices of layers are kept, gathered and
offloaded in 4 bits where they are ``nn.Linear`` (github:huggingface/transformers,
``src/transformers/integrations/bitsandbytes.py``, ``replace_with_bnb_linear``): those of attention,
feed-forward blocks and shared experts, and those of routed experts and their router where experts
are modules (``moe_experts = "modules"``). All other routed experts stay in 16 bits: since
transformers 5 they are one parameter of three dimensions
(github:bitsandbytes-foundation/bitsandbytes, issue 1849), and Transformer Engine's
``GroupedLinear``, which multiplies expert by expert (``"loop"``), is no ``nn.Linear``
(``transformer_engine/pytorch/module/grouped_linear.py``). Before each product that reads a matrix
of 4 bits, a kernel writes it out in 16, forward, again where the forward is computed again, and
backward (github:bitsandbytes-foundation/bitsandbytes, ``bitsandbytes/autograd/_functions.py``,
MatMul4Bit: ``dequantize_4bit`` in both; of an expert without rows neither). Constants of blocks are
in 8 bits themselves: two small kernels before it make them fp32 (``bitsandbytes/functional.py``,
``dequantize_4bit`` of a nested state).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mpisim.kernels.operations import Elementwise, Gemm, operand_bytes

from ...base.errors import InputError
from ...program import Operation
from ..operators import Compute, Operator, Parameter, Task
from .pointwise import elementwise
from .precision import weight_gradient
from .shapes import Shapes
from .tensor_parallel import tp_collective

__all__ = ["adapt", "freeze_embedding"]

ADAPTED: dict[str, tuple[str, ...]] = {
    "qkv": ("qkv", "query", "key", "value"),
    "proj": ("attention output",),
    "fc1": ("feed-forward in", "feed-forward gate", "feed-forward value", "mamba in"),
    "fc2": ("feed-forward out", "mamba out"),
}
"""Names of operators, by what NeMo calls their modules (``linear_qkv``, …)."""

LINEAR = frozenset(
    (
        *(name for names in ADAPTED.values() for name in names),
        *(f"shared expert {part}" for part in ("in", "gate", "value", "out")),
    )
)
"""Operators of a layer whose one matrix is an ``nn.Linear``, routed experts apart."""

MODULES = frozenset(("router", "expert", "experts"))
"""Operators of a mixture whose matrices are ``nn.Linear`` where experts are modules."""

SUFFIX = " adapter"

NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
"""Bits of an element in NF4: a constant of 8 bits for each block of 64, and one of 32 bits for each
256 of these (arXiv:2305.14314, section 3: 0.127 bits a parameter for constants)."""

STORED_BITS = 16
"""Of the numbers as which packed matrices are kept and sharded (``bnb_4bit_quant_storage``)."""

CONSTANT_KERNELS = 2
"""Small kernels that make constants of blocks fp32, before a matrix is written out."""

SPLIT_BY_ROWS = ("attention output", "feed-forward out", "mamba out")


def adapt(s: Shapes, operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Operators of a layer → the same frozen, with adapters; as they are where `lora_rank` is 0.

    Parameters
    ----------
    s : Shapes
    operators : iterable of Operator
    """
    _check_frozen(s)
    if not s.model.lora_rank:
        return tuple(operators)
    wanted = {name for module in s.model.lora_modules for name in ADAPTED[module]}
    found: list[Operator] = []
    for each in operators:
        if each.name.endswith(SUFFIX) or any(parameter.frozen for parameter in each.parameters):
            found.append(each)  # of a block that was adapted before
            continue
        adapted = each.name in wanted
        found.append(_frozen(s, each, keeps_input=adapted))
        if adapted:
            found += _adapter(s, each)
    return tuple(found)


def _check_frozen(s: Shapes) -> None:
    """Refuse 4 bits where nothing is frozen, or where the rest is kept in 32."""
    precision = s.plan.precision
    if precision.frozen is None:
        return
    start = f"plan.precision.frozen is {precision.frozen!r}, but"
    if not s.model.lora_rank:
        raise InputError(
            f"{start} model.lora_rank is 0: nothing is frozen; set model.lora_rank, as 16"
        )
    if s.plan.style(transformer=True) in ("ddp", "fsdp") and precision.main_parameters == "fp32":
        raise InputError(
            f"{start} plan.precision.main_parameters is 'fp32'; beside weights of 4 bits only a "
            f"model that was read in 16 is modelled: set it to {s.storage_format!r}"
        )


def freeze_embedding(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Operators of an embedding → the same without a backward pass."""
    return tuple(
        replace(each, backward=(), saved=0, parameters=_as_frozen(each)) for each in operators
    )


def _as_frozen(operator: Operator) -> tuple[Parameter, ...]:
    return tuple(replace(parameter, frozen=True) for parameter in operator.parameters)


def _frozen(s: Shapes, operator: Operator, *, keeps_input: bool) -> Operator:
    """Operator → the same without weight gradients and the activations saved for them."""
    saved = operator.saved
    product = _product(operator)
    if product is not None and operator.parameters and not keeps_input:
        # Of a matrix split by columns each rank keeps its share of the sequence.
        rows = product.m if operator.name in SPLIT_BY_ROWS else min(product.m, s.sharded_tokens)
        saved = max(0, saved - operand_bytes(product.dtype, rows * product.k))
    backward = tuple(task for task in operator.backward if not task.weight)
    frozen = replace(operator, backward=backward, parameters=_as_frozen(operator), saved=saved)
    return _quantised(s, frozen) if s.plan.precision.frozen is not None else frozen


def _quantised(s: Shapes, operator: Operator) -> Operator:
    """Frozen operator → the same with its matrices in 4 bits, written out before products."""
    modules = operator.name in MODULES and s.plan.experts == "modules"
    if not modules and operator.name not in LINEAR:
        return operator
    matrices = [each.size for each in operator.parameters if each.rows]
    if modules:
        forward, backward = (
            _before_each_product(s, tasks) for tasks in (operator.forward, operator.backward)
        )
    else:
        written = _written_out(s, operator.name, sum(matrices))
        forward = _before_product(operator.forward, written)
        backward = _before_product(operator.backward, written)
    parameters = tuple(_packed(each) if each.rows else each for each in operator.parameters)
    return replace(operator, forward=forward, backward=backward, parameters=parameters)


def _written_out(s: Shapes, name: str, elements: int) -> Compute:
    """Elements of a matrix in 4 bits → the kernels that write it out in 16."""
    traffic = round(elements * (NF4_BITS / 8 + s.element_size))
    return Compute(f"{name} dequantize", Elementwise(traffic), calls=CONSTANT_KERNELS)


def _packed(parameter: Parameter) -> Parameter:
    return replace(parameter, size=math.ceil(parameter.size * NF4_BITS / STORED_BITS), rows=0)


def _before_product(tasks: tuple[Task, ...], written: Compute) -> tuple[Task, ...]:
    """Return tasks with one before the first matrix product; as they are if there is none."""
    for i, task in enumerate(tasks):
        if isinstance(task, Compute) and isinstance(task.kernel, Gemm):
            return (*tasks[:i], written, *tasks[i:])
    return tasks


def _before_each_product(s: Shapes, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Tasks of modules → the same with a matrix written out before each product, which reads it."""
    found: list[Task] = []
    for task in tasks:
        if isinstance(task, Compute) and isinstance(task.kernel, Gemm):
            found.append(_written_out(s, task.name, task.kernel.n * task.kernel.k))
        found.append(task)
    return tuple(found)


def _product(operator: Operator) -> Gemm | None:
    """Return the first product of an operator's forward."""
    for task in operator.forward:
        if isinstance(task, Compute) and isinstance(task.kernel, Gemm):
            return task.kernel
    return None


def _adapter(s: Shapes, operator: Operator) -> Iterator[Operator]:
    """The two small matrices beside a matrix, and the sum of the results.

    The frozen matrix keeps the input for them.
    """
    product = _product(operator)
    assert product is not None
    name, rank, e, tp = f"{operator.name}{SUFFIX}", s.model.lora_rank, s.element_size, s.grid.tp
    rows = operator.name in SPLIT_BY_ROWS
    tokens, k = s.tokens, product.k
    features = product.n // tp if rows else product.n
    inner = rank if rows else -(-rank // tp)

    def gemm(n: int, k: int) -> Gemm:
        return Gemm(tokens, n, k, dtype=s.matmul_format, output=s.storage_format)

    small, output = e * tokens * rank, e * tokens * product.n
    total = e * (s.sharded_tokens if rows else tokens) * product.n
    forward: list[Task] = [Compute(f"{name} down", gemm(inner, k))]
    backward: list[Task] = []
    if tp > 1 and rows:
        forward.append(tp_collective(s, f"{name} down", Operation.ALL_REDUCE, small))
        backward.append(tp_collective(s, f"{name} gradient", Operation.ALL_GATHER, output))
    elif tp > 1:
        forward.append(tp_collective(s, f"{name} down", Operation.ALL_GATHER, small))
    forward.append(Compute(f"{name} up", gemm(features, rank)))
    if tp > 1 and rows:
        forward.append(tp_collective(s, f"{name} up", Operation.ALL_GATHER, output))
    forward.append(elementwise(f"{name} sum", 3 * total))
    backward.append(Compute(f"{name} up input gradient", gemm(rank, features)))
    backward += weight_gradient(s, f"{name} up", tokens, features, rank, linear=False)
    if tp > 1:
        backward.append(tp_collective(s, f"{name} up gradient", Operation.ALL_REDUCE, small))
    backward.append(Compute(f"{name} down input gradient", gemm(k, inner)))
    backward += weight_gradient(s, f"{name} down", tokens, inner, k, linear=False)
    backward.append(elementwise(f"{name} input gradient sum", 3 * e * tokens * k))
    parameters = (
        Parameter(f"{name} down weight", inner * k, rows=inner),
        Parameter(f"{name} up weight", features * rank, rows=features),
    )
    yield Operator(name, tuple(forward), tuple(backward), parameters, small)
