"""Activation recomputation: layers and operators that run again, and the results they keep.

Full recomputation keeps the input of a layer and runs the layer again before its backward pass,
either of all layers or of the first few of each model chunk (Megatron-LM's ``--recompute-method
block``). Megatron-LM runs the whole layer. PyTorch's checkpoints without reentry stop when the last
value that the backward pass reads is there, and XLA drops what no one reads: the matrix that ends a
layer is not multiplied again, since its backward pass reads its input (`plan.recompute.stops`).
Policies keep the results of some operators (`plan.recompute.keeps`): ``jax.checkpoint_policies``,
PyTorch's selective checkpoints.

Selective recomputation (Korthikanti et al., arXiv:2205.05198) runs single operators again
(`Operator.selective`).

Layers in one loop (`plan.framework.stacked_layers`): ``jax.lax.scan`` compiles a layer once. What
the backward loop reads of a layer, the forward loop writes into an array with a place for each
layer: XLA's dynamic-update-slice, a kernel of its own behind products and attention, since library
kernels do not write there themselves. (``xla_gpu_enable_dynamic_slice_fusion``, once
``xla_gpu_enable_address_computation_fusion``, would let them; it is off by default.) The array is
filled with zeros first. The backward loop copies out of it what products and attention read
(dynamic-slice); kernels that XLA generates read the place itself.

A profile of MaxText's Llama 2 70B shows these kernels (github:AI-Hypercomputer/maxtext
MaxText/configs/a3/llama_2_70b/bf16/pgle/64vm.pbtxt, remat_policy save_qkv_proj): layer input,
queries, keys and values are written in the forward pass; queries, keys and values are copied in the
backward pass; arrays of 80 layers are filled at once, of which each layer here has its share.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpisim.kernels.operations import BYTES, Attention, Elementwise, Gemm

from ..experiment.plan import Plan
from .operators import Compute, Operator

__all__ = ["kept_bytes", "recomputed_layers", "recomputed_operators", "with_stack_writes"]

STACK = "layer stack"
"""The operator that keeps results of a layer in arrays of all layers: it is never recomputed."""

READ_BY_LIBRARIES = frozenset({"qkv", "query", "key", "value", "attention"})
"""Operators whose results attention or a product reads in the backward pass; norms, activations and
residual sums read the others."""

UNREAD = "feed-forward out"
"""The operator whose result is in the next layer's input, and read there."""


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


def with_stack_writes(
    plan: Plan, operators: Sequence[Operator], checkpoint: int
) -> tuple[Operator, ...]:
    """Operators of a layer → these, with the kernels that write its results into stacks and back.

    Parameters
    ----------
    plan : Plan
        Only with `framework.stacked_layers` and whole layers recomputed are kernels added.
    operators : sequence of Operator
        Of one layer, in the order of the forward pass.
    checkpoint : int
        Bytes of the layer's input, which is kept, too.

    Returns
    -------
    tuple of Operator
        Those given, and at the end `STACK` where kernels are added.
    """
    if not (plan.framework.stacked_layers and plan.recompute.granularity == "full"):
        return tuple(operators)
    written = [("layer input", checkpoint)]
    copied = []
    for each in operators:
        size = kept_bytes(plan, [each])
        if size and each.name != UNREAD:
            written.append((each.name, size))
            if each.name in READ_BY_LIBRARIES:
                copied.append((each.name, size))
    forward = tuple(
        kernel
        for name, size in written
        for kernel in (
            Compute(f"{name} stack fill", Elementwise(size), launches=0),
            Compute(f"{name} to stack", Elementwise(2 * size, variant="slice_writes")),
        )
    )
    backward = tuple(Compute(f"{name} from stack", Elementwise(2 * size)) for name, size in copied)
    # The arrays are what the layer keeps, which is counted as such.
    return (*operators, Operator(STACK, forward, backward, alive=(0, 0)))


def _products(operator: Operator) -> list[Gemm | Attention]:
    """Return the matrix products and attentions of an operator's forward."""
    kernels = [task.kernel for task in operator.forward if isinstance(task, Compute)]
    return [kernel for kernel in kernels if isinstance(kernel, (Gemm, Attention))]
