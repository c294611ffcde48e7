"""Matrix products of PyTorch → matrix products of the kernel models."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..kernels.operations import BYTES, Gemm, GroupedGemm, Kernel
from .call import OperatorCall, TensorSpec
from .streams import stream
from .tensors import all_tensors, element_bytes, format_of, result, tensor, tensor_list, touched

__all__ = [
    "addmm",
    "baddbmm",
    "bmm",
    "dot",
    "gradient_accumulation",
    "gradient_accumulation_backward",
    "grouped",
    "linear",
    "linear_backward",
    "matmul",
    "mm",
    "product",
    "scaled",
]

Kernels = tuple[Kernel, ...]


def product(
    a: TensorSpec, m: int, n: int, k: int, batch: int = 1, output: str | None = None,
    *, accumulate: bool = False, aligned: bool = True,
) -> Kernels:  # fmt: skip
    """Sizes → one kernel; nothing for empty products, a fill for products over nothing.

    Parameters
    ----------
    a : TensorSpec
        An operand, for its number format.
    m, n, k, batch : int
    output : str, optional
        Type of the result's elements, if not the operands'.
    accumulate : bool
    aligned : bool
        Whether rows of all three matrices begin at multiples of 4 bytes.
    """
    if min(m, n, batch) < 1:
        return ()
    if k < 1:
        return stream(m * n * batch * element_bytes(a.dtype))
    if a.dtype == "float64" or "int" in a.dtype:
        # No format of the kernel models: fp64 runs at a rate of its own on each chip.
        return stream(batch * (m * k + k * n + m * n) * element_bytes(a.dtype))
    kind = format_of(a)
    if kind == "fp32" and batch > 1 and min(m, n, k) == 1:
        # cuBLAS has kernels for batches of products with a vector (gemv2N_kernel, gemv2T_kernel)
        # and of a column with a row (gemmk1_kernel), which read operands once, in no tiles.
        return stream(batch * (m * k + k * n + m * n) * element_bytes(a.dtype))
    written = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(output or a.dtype)
    if written is None:
        written = "bf16" if kind in ("fp8", "nvfp4") else kind
    assert written in BYTES
    odd = not aligned and kind in ("bf16", "fp16")
    return (
        Gemm(m, n, k, batch, dtype=kind, output=written, accumulate=accumulate,  # type: ignore[arg-type]
             variant="unaligned" if odd else None),
    )  # fmt: skip


def _are_aligned(operands: Iterable[TensorSpec], n: int) -> bool:
    """Whether rows of operands, and of a dense result of `n` columns, are of an even length.

    In 16 bits these begin at multiples of the 4 bytes that a thread copies past its registers at
    least (PTX ISA, cp.async: 4, 8 or 16). Libraries have kernels of alignment 8, 4 and 2 elements
    for them, and of alignment 1 for others (CUTLASS, library names ending in ``_align1``).
    """
    for each in operands:
        if each.strides is None or len(each.strides) != len(each.shape):
            steps = tuple(math.prod(each.shape[i + 1 :]) for i in range(len(each.shape)))
        else:
            steps = each.strides
        if any(step % 2 and step != 1 for size, step in zip(each.shape, steps) if size > 1):
            return False
    return n == 1 or n % 2 == 0


def mm(call: OperatorCall) -> Kernels | None:
    """``mm(a, b)`` → (m, k) × (k, n)."""
    return _matrices(call, 0)


def addmm(call: OperatorCall) -> Kernels | None:
    """``addmm(bias, a, b)`` → a product; a bias of one row is added as the result is written.

    A matrix is copied to the result first, to which the product is added (addmm_out_cuda_impl of
    aten/src/ATen/native/cuda/Blas.cpp).
    """
    bias, product_of_two = tensor(call, 0), _matrices(call, 1)
    if product_of_two is None or bias is None or len(bias.shape) < 2 or call.name.endswith("_"):
        return product_of_two
    rows, columns = (tensor(call, i).shape[i - 1] for i in (1, 2))  # type: ignore[union-attr]
    written = element_bytes(bias.dtype) * rows * columns
    return (*stream(touched(bias) + written), *product_of_two)


def _matrices(call: OperatorCall, first: int) -> Kernels | None:
    a, b = tensor(call, first), tensor(call, first + 1)
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2:
        return None
    aligned = _are_aligned((a, b), b.shape[1])
    return product(
        a, a.shape[0], b.shape[1], a.shape[1], output=_written(call), aligned=aligned
    )  # fmt: skip


def _written(call: OperatorCall) -> str | None:
    to = result(call)
    return to.dtype if to is not None else None


def bmm(call: OperatorCall) -> Kernels | None:
    """``bmm(a, b)`` → `batch` products."""
    return _batched(call, 0)


def baddbmm(call: OperatorCall) -> Kernels | None:
    """``baddbmm(c, a, b)`` → `batch` products."""
    return _batched(call, 1)


def _batched(call: OperatorCall, first: int) -> Kernels | None:
    a, b = tensor(call, first), tensor(call, first + 1)
    if a is None or b is None or len(a.shape) != 3 or len(b.shape) != 3:
        return None
    aligned = _are_aligned((a, b), b.shape[2])
    return product(
        a, a.shape[1], b.shape[2], a.shape[2], a.shape[0], _written(call), aligned=aligned
    )  # fmt: skip


def dot(call: OperatorCall) -> Kernels | None:
    """``mv``, ``dot``, ``addmv`` → as fast as the matrix is read."""
    operands = tuple(all_tensors(call.inputs))
    return stream(sum(element_bytes(t.dtype) * t.elements for t in operands)) if operands else None


def linear(call: OperatorCall) -> Kernels | None:
    """``linear(x, weight, bias)`` → (tokens, in) × (in, out)."""
    x, weight = tensor(call, 0), tensor(call, 1)
    if x is None or weight is None or not x.shape or not weight.shape:
        return None
    inputs = weight.shape[-1]
    outputs = weight.elements // max(1, inputs)
    aligned = _are_aligned((x, weight), outputs)
    return product(x, x.elements // max(1, inputs), outputs, inputs, aligned=aligned)


def linear_backward(call: OperatorCall) -> Kernels | None:
    """``linear_backward(x, gradient, weight)`` → gradients of input and weight."""
    x, gradient, weight = (tensor(call, i) for i in range(3))
    if x is None or gradient is None or weight is None or len(weight.shape) != 2:
        return None
    outputs, inputs = weight.shape
    rows = x.elements // max(1, inputs)
    aligned = _are_aligned((x, gradient, weight), inputs)
    return (
        *product(x, rows, inputs, outputs, aligned=aligned),
        *product(x, outputs, inputs, rows, aligned=aligned),
    )


def matmul(call: OperatorCall) -> Kernels | None:
    """``matmul(a, b)`` of any dimensions → one product, batched where both have more than two."""
    a, b = tensor(call, 0), tensor(call, 1)
    if a is None or b is None or not a.shape or not b.shape:
        return None
    k = a.shape[-1]
    n = b.shape[-1] if len(b.shape) > 1 else 1
    m = a.shape[-2] if len(a.shape) > 1 else 1
    aligned = _are_aligned((a, b), n)
    if len(b.shape) <= 2:
        return product(a, a.elements // max(1, k), n, k, aligned=aligned)
    batch = max(math.prod(a.shape[:-2]), math.prod(b.shape[:-2]))
    return product(a, m, n, k, batch, aligned=aligned)


def scaled(call: OperatorCall) -> Kernels | None:
    """``_scaled_mm(a, b, …)`` → a product in fp8."""
    a, b = tensor(call, 0), tensor(call, 1)
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2:
        return None
    return product(a, a.shape[0], b.shape[1], a.shape[1], output=_written(call) or "bfloat16")


def grouped(call: OperatorCall) -> Kernels | None:
    """``_grouped_mm(a, b, offsets)`` → products of several experts in one kernel.

    Tokens (rows, k) with (experts, k, n), or (k, rows) with (rows, n) for gradients of weights.
    Where experts' rows end is data; they count as what a router without preference gives.
    """
    a, b = tensor(call, 0), tensor(call, 1)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2:
        return None
    kind = format_of(a)
    if len(a.shape) == 2 and len(b.shape) == 3:
        groups, k, n = b.shape
        rows, weight = a.shape[0], False
    elif len(a.shape) == 2 and len(b.shape) == 2:
        (k, rows), n, weight = a.shape, b.shape[1], True
        to = result(call)
        offsets = tensor(call, 2) or tensor(call, 4)
        groups = to.shape[0] if to is not None and len(to.shape) == 3 else 0
        groups = groups or (offsets.elements if offsets is not None else 0)
    else:
        return product(a, a.shape[-2], b.shape[-1], a.shape[-1], a.shape[0])
    if min(rows, groups, n, k) < 1:
        return () if groups else None
    return (GroupedGemm(rows, groups, n, k, dtype=kind, weight=weight, ragged=not weight),)


def gradient_accumulation(call: OperatorCall) -> Kernels | None:
    """Fused product of Apex and Megatron-LM (x, gradient, main gradient) → adds to the last."""
    found = tensor_list(call, 0) + tensor_list(call, 1) + tensor_list(call, 2)
    if len(found) < 3 or not found[0].shape or not found[1].shape:
        return None
    x, gradient, main = found[:3]
    inputs, outputs = x.shape[-1], gradient.shape[-1]
    rows = x.elements // max(1, inputs)
    return product(x, outputs, inputs, rows, output=main.dtype, accumulate=True)


def gradient_accumulation_backward(call: OperatorCall) -> Kernels | None:
    """Backward of Megatron-LM's linear layer → its own kernel, the gradient of the weight.

    The gradient of the input is a product of PyTorch, called inside. The last argument is what the
    forward pass was given: input and weight. Gradients are added to a buffer in fp32
    (``gradient_accumulation_fusion`` of Megatron-LM).
    """
    gradient = tensor(call, 0)
    forward = call.inputs[-1] if call.inputs and isinstance(call.inputs[-1], tuple) else ()
    given = tuple(all_tensors(forward))
    if gradient is None or not given or not gradient.shape:
        return None
    weight = next((each for each in given if len(each.shape) == 2), None)
    if weight is None:
        return None
    outputs, inputs = weight.shape
    rows = gradient.elements // max(1, gradient.shape[-1])
    return (
        *product(gradient, rows, inputs, outputs),
        *product(gradient, outputs, inputs, rows, output="float32", accumulate=True),
    )
