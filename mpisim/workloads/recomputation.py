"""Activation recomputation: which layers and operators run again, and what they keep nonetheless.

Full recomputation keeps the input of a layer and runs the layer again before its backward pass,
either of all layers or of the first few of each model chunk (Megatron-LM's ``--recompute-method
block``). Megatron-LM runs the whole layer. PyTorch's checkpoints without reentry stop when the last
value that the backward pass reads is there, and XLA drops what no one reads: the matrix that ends a
layer is not multiplied again, since its backward pass reads its input (`plan.recompute.stops`).
Policies keep the results of some operators (`plan.recompute.keeps`): ``jax.checkpoint_policies``,
PyTorch's selective checkpoints.

Selective recomputation (Korthikanti et al., arXiv:2205.05198) runs single operators again
(`Operator.selective`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mpisim.kernels.operations import BYTES, Attention, Gemm

from ..experiment.plan import Plan
from .operators import Compute, Operator

__all__ = ["STACK", "kept_bytes", "recomputed_layers", "recomputed_operators"]

STACK = "layer stack"
"""The operator that keeps results of a layer in arrays of all (:mod:`.stacked_layers`): it is never
recomputed."""


def recomputed_layers(plan: Plan, numbers: Sequence[int]) -> list[bool]:
    """Layers of a model chunk → whether each is recomputed as a whole.

    Parameters
    ----------
    plan : Plan
    numbers : sequence of int
        The number of each layer among the model's blocks; -1 for embedding and head, which are
        never recomputed (`ModelChunk.numbers`).
    """
    found, blocks = [], 0
    for number in numbers:
        recomputes = number >= 0 and plan.recompute.granularity == "full"
        if recomputes and plan.recompute.layers is not None:
            recomputes = blocks < plan.recompute.layers
        found.append(recomputes)
        blocks += number >= 0
    return found


def recomputed_operators(plan: Plan, operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Operators of a recomputed layer → those that run again before its backward pass.

    Parameters
    ----------
    plan : Plan
        Its `recompute.stops` and `recompute.keeps` are read.
    operators : sequence of Operator
        All of the layer, in the order of the forward.

    Returns
    -------
    tuple of Operator
        In the same order; may be empty.
    """
    found = list(operators)
    if plan.recompute.stops:
        while found and not found[-1].saved:
            found.pop()
        # What a matrix product saves is its input: no one reads its result.
        if found and _products(found[-1]):
            found.pop()
    once = (*plan.recompute.keeps, STACK)
    return tuple(each for each in found if each.name not in once)


def kept_bytes(plan: Plan, operators: Sequence[Operator]) -> int:
    """Operators of a recomputed layer → bytes of the results that it keeps beside its input.

    Parameters
    ----------
    plan : Plan
        Its `recompute.keeps` is read.
    operators : sequence of Operator
        All of the layer, in the shapes of one rank.

    Returns
    -------
    int
        Bytes for one micro-batch; only results of matrix products and attentions count.
    """
    return sum(
        BYTES[kernel.output] * kernel.m * kernel.n
        if isinstance(kernel, Gemm)
        else BYTES[kernel.dtype] * kernel.batch * kernel.heads * kernel.queries * kernel.value_size
        for each in operators
        if each.name in plan.recompute.keeps
        for kernel in _products(each)
    )


def _products(operator: Operator) -> list[Gemm | Attention]:
    """Return the matrix products and attentions of an operator's forward."""
    kernels = [task.kernel for task in operator.forward if isinstance(task, Compute)]
    return [kernel for kernel in kernels if isinstance(kernel, (Gemm, Attention))]
