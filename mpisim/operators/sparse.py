"""Operators on sparse tensors (COO), of which calls have the indices and the numbers."""

from __future__ import annotations

from ..kernels.operations import Kernel
from .call import OperatorCall
from .streams import sort_kernels, stream
from .tensors import element_bytes, result, tensor, touched

__all__ = ["coalesced", "product"]

Kernels = tuple[Kernel, ...]


def coalesced(call: OperatorCall) -> Kernels | None:
    """``_coalesce(indices, numbers)`` of a sparse tensor → equal indices are sorted and added up.

    Indices become one number each, which is sorted with its position; those that differ are
    gathered, and rows of the same are added up by one kernel
    (coalesce_sparse_cuda of aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu).
    """
    indices, elements = tensor(call, 0), tensor(call, 1)
    if indices is None or elements is None or len(indices.shape) != 2:
        return None
    given, to = indices.shape[1], result(call)
    left = to.shape[-1] if to is not None and to.shape else given
    row = touched(elements) // max(1, given)
    flat, unique = stream(touched(indices) + 8 * given), stream(8 * (2 * given + 2 * left))
    sums = stream(touched(elements) + left * row + 8 * (given + left))
    split = stream(8 * left * (1 + indices.shape[0]))
    return (*flat, *sort_kernels(given, 8, 8), *unique, *sums, *split)


def product(call: OperatorCall) -> Kernels | None:
    """``_sparse_mm(indices, numbers, dense)`` → reads a row of the dense matrix for each element.

    Rows are found by a compressed form of the indices, made first.
    """
    indices, elements, dense = (tensor(call, i) for i in range(3))
    to = result(call)
    if (
        indices is None
        or elements is None
        or dense is None
        or to is None
        or not dense.shape
        or not to.shape
    ):
        return None
    rows = elements.elements * dense.shape[-1] * element_bytes(dense.dtype)
    form = stream(touched(indices) + 4 * (to.shape[0] + 2 * elements.elements))
    return (*form, *stream(rows + touched(elements) + touched(indices) // 2 + touched(to)))
