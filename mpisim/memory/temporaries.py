"""What is alive inside an operator: results of its steps until the next step has used them.

A framework frees a temporary once its last reader is done. Here every result lives until the step
after the next begins, and what an overlapped communication gathers until the operator ends; so at
any step there are its own result and the one before. Saved activations are counted elsewhere
(:mod:`mpisim.memory.activations`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..kernels.operations import (
    BYTES,
    Attention,
    Convolution,
    Copy,
    CrossEntropy,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    Softmax,
    operand_bytes,
)
from ..program import Operation
from ..workloads.operators import Await, Communicate, Compute, Operator, Task

__all__ = ["needed_for_weights", "output", "result", "working"]


def result(kernel: Kernel) -> int:
    """Return the bytes of the memory a kernel's result newly takes.

    What is added to a buffer that exists takes none (gradients of weights, the optimizer's step).
    Of kernels that say only how much they read and write, half is taken as written.
    """
    match kernel:
        case Gemm():
            if kernel.accumulate:
                return 0
            return BYTES[kernel.output] * kernel.batch * kernel.m * kernel.n
        case GroupedGemm():
            if kernel.accumulate:
                return 0
            elements = (
                kernel.groups * kernel.n * kernel.k if kernel.weight else kernel.rows * kernel.n
            )
            return BYTES[kernel.output] * elements
        case Attention():
            queries = kernel.heads * kernel.queries
            keys = kernel.kv_heads * kernel.keys
            if kernel.backward:
                elements = queries * kernel.head_size + keys * (
                    kernel.head_size + kernel.value_size
                )
            else:
                elements = queries * kernel.value_size
            return BYTES[kernel.dtype] * kernel.batch * elements
        case Softmax() | Norm():
            return BYTES[kernel.dtype] * kernel.rows * kernel.columns
        case CrossEntropy():
            dtype = kernel.dtype if kernel.backward else "fp32"
            return BYTES[dtype] * kernel.rows * kernel.columns
        case Embedding():
            if kernel.backward:
                return 0  # added to a gradient filled with zeros, or to the table itself
            rows = kernel.outputs or -(-kernel.lookups // kernel.pooling)
            return BYTES[kernel.dtype] * kernel.width * rows
        case Convolution():
            pixels = kernel.batch * kernel.height * kernel.width
            if kernel.direction == "forward":
                elements = pixels * kernel.outputs
            elif kernel.direction == "input":
                elements = pixels * kernel.stride**2 * kernel.inputs
            else:
                elements = kernel.outputs * (kernel.inputs // kernel.groups) * kernel.kernel**2
            return BYTES[kernel.dtype] * elements
        case Elementwise():
            return kernel.bytes // 2
        case Copy():
            return kernel.bytes if kernel.path in ("device", "fill") else 0
    return 0


def _received(step: Communicate, size: int) -> int | None:
    """Return the bytes of a communication's result; None where it replaces what it was given."""
    if step.operation in (Operation.ALL_GATHER, Operation.ALL_TO_ALL, Operation.SEND_RECV):
        return step.bytes
    if step.operation is Operation.REDUCE_SCATTER:
        return step.bytes // size
    return None


def working(steps: Iterable[Task], sizes: Mapping[str, int], given: int = 0) -> int:
    """Return the most that is alive at any of an operator's steps, in bytes.

    Parameters
    ----------
    steps : iterable of Task
        Of one operator and one direction.
    sizes : mapping of str to int
        Members of each group; communications in groups of one are left out.
    given : int
        Bytes of what the first step works on, where nobody else counts them.
    """
    before, most, beside = given, given, 0
    for step in steps:
        if isinstance(step, Await):
            continue
        if isinstance(step, Communicate):
            if sizes[step.group] == 1:
                continue
            found = _received(step, sizes[step.group])
            if found is None:
                continue
            if step.token and step.operation is Operation.ALL_GATHER:
                beside += found
                most = max(most, before + beside)
                continue
        else:
            found = result(step.kernel)
        most = max(most, before + found + beside)
        before = found or before
    return most


def output(operator: Operator, sizes: Mapping[str, int]) -> int:
    """Return the bytes an operator hands on, which is what its backward pass is given."""
    for step in reversed(operator.forward):
        if isinstance(step, Compute):
            return result(step.kernel)
        if isinstance(step, Communicate) and sizes[step.group] > 1:
            found = _received(step, sizes[step.group])
            if found is not None:
                return found
    return 0


def needed_for_weights(operator: Operator, sizes: Mapping[str, int]) -> int:
    """Return the bytes that gradients of an operator's weights need: its inputs and gradients.

    A schedule that puts these gradients off (arXiv:2401.10241) keeps them from the one backward to
    the other: 32sbh of a GPT layer, table 1 there. What is gathered for them is kept as a share.
    Gradients of biases are sums of what their matrices need too.
    """
    kept = 0
    for step in operator.backward:
        if not step.weight or isinstance(step, Await):
            continue
        if isinstance(step, Communicate):
            if step.operation is Operation.ALL_GATHER:
                kept -= step.bytes - step.bytes // sizes[step.group]
            continue
        match step.kernel:
            case Gemm() as gemm:
                kept += gemm.batch * operand_bytes(gemm.dtype, gemm.k * (gemm.m + gemm.n))
            case GroupedGemm() as gemm:
                kept += operand_bytes(gemm.dtype, gemm.rows * (gemm.n + gemm.k))
            case Convolution() as filters:
                pixels = filters.batch * filters.height * filters.width
                channels = filters.outputs + filters.inputs * filters.stride**2
                kept += BYTES[filters.dtype] * pixels * channels
    return max(kept, 0)
