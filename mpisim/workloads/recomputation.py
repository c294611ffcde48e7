"""What a layer that is computed again runs again, and what it keeps nonetheless.

Megatron-LM runs the whole layer. PyTorch's checkpoints without reentry stop when the last value
that the backward pass reads is there, and XLA drops what nobody reads: the matrix that ends a layer
is not multiplied again, since its backward pass reads its input (`Plan.recompute_stops`). Policies
keep the results of some operators (`Plan.recompute_keeps`): ``jax.checkpoint_policies``, PyTorch's
selective checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpisim.kernels.operations import BYTES, Attention, Gemm

from ..experiment.plan import Plan
from .operators import Compute, Operator

__all__ = ["again", "kept_bytes"]


def again(plan: Plan, operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return the operators of a layer that run again before its backward pass."""
    found = list(operators)
    if plan.recompute_stops:
        while found and not found[-1].saved:
            found.pop()
        # What a matrix saves is its input: its product is read by nobody.
        if found and _products(found[-1]):
            found.pop()
    return tuple(each for each in found if each.name not in plan.recompute_keeps)


def kept_bytes(plan: Plan, operators: Sequence[Operator]) -> int:
    """Return the bytes of the results that such a layer keeps, beside its input."""
    return sum(
        BYTES[kernel.output] * kernel.m * kernel.n
        if isinstance(kernel, Gemm)
        else BYTES[kernel.dtype] * kernel.batch * kernel.heads * kernel.queries * kernel.value_size
        for each in operators
        if each.name in plan.recompute_keeps
        for kernel in _products(each)
    )


def _products(operator: Operator) -> list[Gemm | Attention]:
    """Return the kernels of an operator whose results are its own, forward."""
    kernels = [step.kernel for step in operator.forward if isinstance(step, Compute)]
    return [kernel for kernel in kernels if isinstance(kernel, (Gemm, Attention))]
