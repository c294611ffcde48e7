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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from mpisim.kernels.operations import Gemm, operand_bytes

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

SUFFIX = " adapter"

SPLIT_BY_ROWS = ("attention output", "feed-forward out", "mamba out")


def adapt(s: Shapes, operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Operators of a layer → the same frozen, with adapters; as they are where `lora_rank` is 0.

    Parameters
    ----------
    s : Shapes
    operators : iterable of Operator
    """
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
    return replace(operator, backward=backward, parameters=_as_frozen(operator), saved=saved)


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
