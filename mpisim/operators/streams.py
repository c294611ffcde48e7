"""Operators that stream through memory: elementwise, copies, reductions, pooling.

Their time is that of the bytes they touch. Results that were not recorded follow from the inputs:
an elementwise result has the broadcast shape and the widest type.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..kernels.numbers import quantity
from ..kernels.operations import Copy, Elementwise, Kernel
from .call import OperatorCall, TensorSpec
from .tensors import (
    all_tensors,
    broadcast,
    element_bytes,
    is_dense,
    lie_alike,
    number,
    numbers,
    promoted,
    result,
    tensor,
    tensor_list,
    touched,
)

__all__ = [
    "by_bytes",
    "column_sums",
    "concatenation",
    "copy",
    "copy_into",
    "copy_out",
    "cumulated",
    "dropout",
    "elementwise",
    "fill",
    "fill_result",
    "fourier",
    "fused",
    "key_values",
    "masked",
    "nothing",
    "packing",
    "padding",
    "permuted",
    "pooling",
    "pooling_backward",
    "predicate",
    "rearranged",
    "reduction",
    "reduction_to_scalar",
    "scan",
    "stream",
]

Kernels = tuple[Kernel, ...]

_LONGEST_IN_SHARED = 8192
"""Complex numbers of 8 bytes that a block holds in 64 KiB of shared memory: a longer transform goes
through memory more than once (D. Tolmachev, "VkFFT", IEEE Access 11, 2023)."""
_CHECK_LOADS = quantity("index_check_loads").si / quantity("index_check_warps").si
"""Waits of a warp of FBGEMM's checks of indices, in those of warps that fill a multiprocessor."""
_PERMUTATION_LOADS = quantity("permutation_loads").si
_POOL_PLACES = quantity("max_pool_places").si


def stream(amount: int, *, indexed: int = 0, loads: int = 0) -> Kernels:
    """Bytes → elementwise kernel that moves them; no kernel for no bytes.

    Parameters
    ----------
    amount : int
        Bytes read and written.
    indexed : int
        Elements whose addresses are computed from strides or indices.
    loads : int
        Loads that warps wait for one after another, in all warps.

    Returns
    -------
    tuple of Kernel
    """
    if amount <= 0:
        return ()
    return (Elementwise(bytes=amount, indexed=indexed or None, loads=loads or None),)


def nothing(call: OperatorCall) -> Kernels:
    """View, allocation or host operator → no kernel."""
    return ()


def by_bytes(call: OperatorCall) -> Kernels:
    """Any operator → one kernel that reads all inputs and writes all results."""
    amount = sum(touched(each) for each in all_tensors((*call.inputs, *call.outputs)))
    return stream(amount)


def fused(call: OperatorCall) -> Kernels:
    """Kernel of Inductor (bytes, tensors, …) → one that reads and writes so many bytes.

    What it reads twice, as rows of a reduction, comes from a cache the second time.
    """
    return stream(number(call, 0, 0))


def elementwise(call: OperatorCall) -> Kernels | None:
    """Elementwise operator → reads its operands, writes a result of the broadcast shape."""
    operands = tuple(all_tensors(call.inputs))
    return _streamed(call, operands, promoted(operands) if operands else "float32")


def predicate(call: OperatorCall) -> Kernels | None:
    """Comparison → reads its operands, writes one byte an element."""
    return _streamed(call, tuple(all_tensors(call.inputs)), "bool")


def _streamed(call: OperatorCall, operands: tuple[TensorSpec, ...], dtype: str) -> Kernels | None:
    if not operands:
        return None
    written = result(call)
    if written is None:
        if call.name.endswith("_"):
            written = operands[0]
        else:
            written = TensorSpec(dtype, broadcast(each.shape for each in operands))
    if not written.elements:
        return ()
    if written.strides is None:  # a result has the strides of operands with one layout
        whole = (each for each in operands if each.shape == written.shape)
        strides = next((each.strides for each in whole if lie_alike(each, each)), None)
        written = replace(written, strides=strides)
    dense = all(_lies_like(each, written) for each in operands)
    amount = touched(written) + sum(map(touched, operands))
    return stream(amount, indexed=0 if dense else written.elements)


_FROM_PYTHON = ("float64", "int64", "bool")
"""Types of numbers of Python where an operator takes a tensor: they are arguments of the kernel."""


def _lies_like(operand: TensorSpec, written: TensorSpec) -> bool:
    """Whether an operand has the layout of the result."""
    if not operand.shape:
        return operand.dtype in _FROM_PYTHON or not written.shape
    return lie_alike(operand, written)


def masked(call: OperatorCall) -> Kernels | None:
    """``masked_fill`` and ``where`` → elementwise, but the mask does not widen the result."""
    operands = tuple(all_tensors(call.inputs))
    values = [each for each in operands if each.dtype != "bool"] or operands
    return _streamed(call, operands, promoted(values)) if operands else None


def copy(call: OperatorCall) -> Kernels | None:
    """``copy_(to, from)`` → a copy of memory if both have one layout, else a kernel."""
    to, source = tensor(call, 0), tensor(call, 1)
    return None if to is None or source is None else _copied(source, to)


def copy_into(call: OperatorCall) -> Kernels | None:
    """``_to_copy``, ``clone`` → the kernel from the input to the result.

    A clone has the type of its input. What a cast writes has to be recorded.
    """
    source, to = tensor(call, 0), result(call)
    if source is None or (to is None and call.name != "aten::clone"):
        return None
    return _copied(source, to or TensorSpec(source.dtype, source.shape))


def rearranged(call: OperatorCall) -> Kernels | None:
    """``contiguous``, ``reshape`` where they copy → a copy of what does not lie densely."""
    source = tensor(call, 0)
    return None if source is None else stream(2 * touched(source), indexed=source.elements)


def copy_out(call: OperatorCall) -> Kernels:
    """Value of one element → a copy to the host."""
    source = tensor(call, 0)
    return (Copy(bytes=touched(source), path="host"),) if source and source.elements else ()


def _copied(source: TensorSpec, to: TensorSpec) -> Kernels:
    if not to.elements or not source.elements:
        return ()
    same = source.dtype == to.dtype and source.shape == to.shape
    same_layout = lie_alike(source, to)
    if same and source.strides is not None and same_layout:
        return (Copy(bytes=touched(to)),)
    broadcasts = source.elements != to.elements
    return stream(
        touched(source) + touched(to), indexed=to.elements if broadcasts or not same_layout else 0
    )


def padding(call: OperatorCall) -> Kernels | None:
    """``constant_pad_nd`` → fills the result, and copies the input into it."""
    source, to = tensor(call, 0), result(call)
    if source is None:
        return None
    filled = stream(touched(to or source))
    return (*filled, *stream(2 * touched(source), indexed=source.elements))


def packing(call: OperatorCall) -> Kernels | None:
    """``_pack_padded_sequence`` and its gradient → rows are copied, and joined.

    By a copy of its own for each step where lengths differ (PackedSequence.cpp of
    aten/src/ATen/native): here two kernels that move as much.
    """
    source, to = tensor(call, 0), result(call)
    if source is None:
        return None
    size = min(touched(each) for each in (source, to or source))
    return (*stream(2 * size), *stream(2 * size))


def key_values(call: OperatorCall) -> Kernels | None:
    """``reshape_and_cache`` (keys, values, cache, …) → both are written to their places."""
    keys, values = tensor(call, 0), tensor(call, 1)
    if keys is None or values is None:
        return None
    return stream(2 * (touched(keys) + touched(values)))


def fill(call: OperatorCall) -> Kernels:
    """``fill_``, ``zero_`` → writes its first input."""
    to = tensor(call, 0)
    return stream(touched(to)) if to is not None else ()


def fill_result(call: OperatorCall) -> Kernels | None:
    """``zeros``, ``full``, ``arange``, random numbers → writes the result."""
    to = result(call)
    if to is None:
        like = tensor(call, 0)
        if like is None or "_like" not in call.name:
            return None
        to = like
    return stream(touched(to))


def reduction(call: OperatorCall) -> Kernels | None:
    """Sum, mean, norm over some dimensions → reads the input, writes what is left."""
    source, to = tensor(call, 0), result(call)
    if source is None:
        return None
    if tensor(call, 1) is not None:  # the larger of two tensors
        return elementwise(call)
    left = 1
    if to is None:
        dims = numbers(call, 1)
        rank = len(source.shape)
        if dims:
            over = math.prod(source.shape[d] for d in dims if -rank <= d < rank)
            left = source.elements // max(1, over)
    written = touched(to) if to is not None else element_bytes(source.dtype) * left
    if not source.elements:
        return ()
    rows = _summed_rows(call, source)
    return column_sums(source, rows, to) if rows else stream(touched(source) + written)


def column_sums(source: TensorSpec, rows: int, to: TensorSpec | None) -> Kernels:
    """Matrix, its rows, sums if recorded → the kernel that adds rows up, column by column.

    Parameters
    ----------
    source : TensorSpec
    rows : int
    to : TensorSpec or None
        The sums, which may have another format: of those not recorded the matrix's.

    Returns
    -------
    tuple of Kernel
        One.
    """
    sums = source.elements // rows
    written = element_bytes(source.dtype if to is None else to.dtype) * sums
    return (Elementwise(bytes=touched(source) + written, summed=rows, sums=sums),)


def _summed_rows(call: OperatorCall, source: TensorSpec) -> int:
    """Return the rows that are added up where the first dimensions of a dense tensor are; or 0."""
    rank, to = len(source.shape), result(call)
    dims = sorted(d % rank for d in numbers(call, 1) or () if -rank <= d < rank)
    if not dims and to is not None and 0 < len(to.shape) < rank:
        last = rank - len(to.shape)
        dims = list(range(last)) if to.shape == source.shape[last:] else []
    if not 0 < len(dims) < rank or dims != list(range(len(dims))) or not is_dense(source):
        return 0
    rows = math.prod(source.shape[: len(dims)])
    return rows if 1 < rows < source.elements else 0


def reduction_to_scalar(call: OperatorCall) -> Kernels | None:
    """Loss of two tensors → reads both, writes one number."""
    operands = tuple(all_tensors(call.inputs))
    return stream(sum(map(touched, operands))) if operands else None


def cumulated(call: OperatorCall) -> Kernels | None:
    """FBGEMM's running sums → zeros for the result, and the two kernels of CUB's scan."""
    source = tensor(call, 0)
    if source is None:
        return None
    size = touched(source)
    return (*stream(size), *stream(element_bytes(source.dtype)), *stream(2 * size))


def permuted(call: OperatorCall) -> Kernels | None:
    """``permute_2D_sparse_data(order, lengths, values, …)`` → lengths, their sums, values.

    fbgemm_gpu/src/sparse_ops: lengths are permuted, offsets before and after are running sums, and
    values are copied, by a warp for each length, which loads where its table goes, where its values
    begin, and values (permute_indices_weights_kernel).
    """
    lengths, values = tensor(call, 1), tensor(call, 2)
    if lengths is None or values is None:
        return None
    size = touched(lengths)
    sums = (*stream(size), *stream(element_bytes(lengths.dtype)), *stream(2 * size))
    copied = stream(2 * touched(values), loads=round(_PERMUTATION_LOADS * lengths.elements))
    return (*stream(2 * size), *sums, *sums, *copied)


def index_checks(call: OperatorCall) -> Kernels | None:
    """``bounds_check_indices(rows, indices, offsets, …)`` → reads the indices, a warp a sample.

    The warp of a sample of a table waits three times: for the table's rows and both offsets at
    once, for the indices, for the last offset. Its registers leave room for half as many warps as a
    multiprocessor holds (`index_check_loads`, `index_check_warps`). The warning is cleared first.
    """
    indices, offsets, warning = tensor(call, 1), tensor(call, 2), tensor(call, 4)
    if indices is None or offsets is None:
        return None
    loads = round(_CHECK_LOADS * max(0, offsets.elements - 1))
    waits = stream(touched(indices) + touched(offsets), loads=loads)
    return (*(() if warning is None else stream(touched(warning))), *waits)


def scan(call: OperatorCall) -> Kernels | None:
    """Running sum → reads the input once, writes a result of its shape."""
    source = tensor(call, 0)
    return None if source is None else stream(2 * touched(source))


def concatenation(call: OperatorCall) -> Kernels | None:
    """``cat``, ``stack`` → reads all, writes as much; the result tells where the list does not.

    Parts that are not known to lie densely have the places of their elements divided out of their
    numbers, but along the first dimension (CatArrayBatchedCopy of
    aten/src/ATen/native/cuda/Shape.cu, whose faster kernels take dense tensors).
    """
    parts, to = tensor_list(call, 0), result(call)
    if not parts:
        if to is None:
            return None
        return stream(2 * touched(to), indexed=to.elements if number(call, 1, 0) else 0)
    dense = all(each.strides is not None and is_dense(each) for each in parts)
    indexed = 0 if dense or not number(call, 1, 0) else sum(each.elements for each in parts)
    return stream(2 * sum(map(touched, parts)), indexed=indexed)


def dropout(call: OperatorCall) -> Kernels | None:
    """``native_dropout`` → reads the input, writes the result and a mask of bytes."""
    source = tensor(call, 0)
    return None if source is None else stream(2 * touched(source) + source.elements)


def fourier(call: OperatorCall) -> Kernels | None:
    """``_fft_r2c(x, dimensions, normalisation, …)`` → a pass over all for each dimension.

    Two or more where a dimension does not fit into shared memory, and one that scales
    (aten/src/ATen/native/cuda/SpectralOps.cpp). A real tensor is half of a complex one.
    """
    source, to = tensor(call, 0), result(call)
    dims = numbers(call, 1)
    if source is None or to is None or not dims:
        return None
    whole, real = (to, source) if call.name.endswith("r2c") else (source, to)
    found: Kernels = ()
    for number_of, axis in enumerate(reversed(dims)):
        length = real.shape[axis]
        passes = 1
        while _LONGEST_IN_SHARED**passes < length:
            passes += 1
        moved = 2 * touched(whole) if number_of else touched(source) + touched(to)
        found = (*found, *(stream(moved) * passes))
    return (*found, *stream(2 * touched(to))) if number(call, 2, 0) else found


def pooling(call: OperatorCall) -> Kernels | None:
    """Pooling → reads the input, writes the result, and positions where a maximum is taken."""
    source, to = tensor(call, 0), result(call)
    if source is None:
        return None
    if to is None:
        steps = numbers(call, 2) or numbers(call, 1) or (2,)
        fewer = math.prod(steps) if len(steps) > 1 else steps[0] ** 2
        written = source.elements // max(1, fewer)
    else:
        written = to.elements
    with_positions = 8 if "indices" in call.name else 0
    return stream(touched(source) + written * (element_bytes(source.dtype) + with_positions))


def pooling_backward(call: OperatorCall) -> Kernels | None:
    """Gradient of pooling → reads gradient and positions, writes the gradient of the input."""
    gradient, source = tensor(call, 0), tensor(call, 1)
    if gradient is None or source is None:
        return None
    positions = 8 * gradient.elements if "indices" in call.name else 0
    amount = touched(gradient) + touched(source) + positions
    if "max_pool2d" not in call.name or (source.strides and source.strides[1:2] == (1,)):
        return stream(amount)
    # Where a maximum may have come from is asked of every window around an element.
    zeros = stream(touched(source))
    return (*zeros, *stream(amount, indexed=round(_POOL_PLACES * source.elements)))
