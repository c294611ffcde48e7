"""Embedding tables of PyTorch and of FBGEMM, and sparse tensors → kernels.

Gradients of an embedding may be sparse tensors (COO), of which calls have the indices and the
numbers.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise

from ..kernels.operations import Embedding, Kernel
from .call import OperatorCall, TensorSpec
from .indexing import sort_kernels
from .streams import stream
from .tensors import (
    all_tensors,
    element_bytes,
    format_of,
    number,
    result,
    tensor,
    touched,
)

__all__ = [
    "bag",
    "bag_backward",
    "compressed_product",
    "embedding",
    "embedding_backward",
    "pooled_permuted",
    "sparse_coalesced",
    "sparse_product",
    "split_tables",
    "split_tables_backward",
]

Kernels = tuple[Kernel, ...]


def embedding(call: OperatorCall) -> Kernels | None:
    """``embedding(weight, indices)`` → one lookup an index."""
    weight, indices = tensor(call, 0), tensor(call, 1)
    if weight is None or indices is None or len(weight.shape) != 2:
        return None
    return _lookup(indices.elements, weight, 1)


def _lookup(lookups: int, weight: TensorSpec, pooling: int, backward: bool = False) -> Kernels:
    entries, width = weight.shape
    if min(lookups, entries, width) < 1:
        return ()
    kind = format_of(weight)
    return (
        Embedding(
            lookups, width, entries,
            pooling=pooling, backward=backward, dtype=kind, sorts=not backward,
        ),
    )  # fmt: skip


def embedding_backward(call: OperatorCall) -> Kernels | None:
    """``embedding_dense_backward(gradient, indices, entries, …)`` → zeros, a sort, sums of rows."""
    gradient, indices, to = tensor(call, 0), tensor(call, 1), result(call)
    if gradient is None or indices is None or not gradient.shape:
        return None
    width = gradient.shape[-1]
    entries = to.shape[0] if to is not None and to.shape else number(call, 2, 0)
    table = TensorSpec(gradient.dtype, (max(entries, 1), width))
    zeros = stream(touched(table)) if entries else ()
    sums = _lookup(indices.elements, table, 1, backward=True)
    return (*zeros, *sort_kernels(indices.elements, 8, 8), *sums)


def bag(call: OperatorCall) -> Kernels | None:
    """``_embedding_bag(weight, indices, offsets, …)`` → lookups pooled by bag."""
    weight, indices, offsets = (tensor(call, i) for i in range(3))
    if weight is None or indices is None or offsets is None or len(weight.shape) != 2:
        return None
    pooling = max(1, indices.elements // max(1, offsets.elements))
    return _lookup(indices.elements, weight, pooling)


def bag_backward(call: OperatorCall) -> Kernels | None:
    """Gradient of ``_embedding_bag`` (gradient, indices, …, entries) → zeros, a sort, sums."""
    gradient, indices, to = tensor(call, 0), tensor(call, 1), result(call)
    if gradient is None or indices is None or len(gradient.shape) != 2:
        return None
    at = 6 if "_dense_backward" in call.name else 7
    entries = to.shape[0] if to is not None and to.shape else number(call, at, 0)
    table = TensorSpec(gradient.dtype, (max(entries, 1), gradient.shape[1]))
    zeros = stream(touched(table)) if entries else ()
    pooling = max(1, indices.elements // max(1, gradient.shape[0]))
    sums = _lookup(indices.elements, table, pooling, backward=True)
    return (*zeros, *sort_kernels(indices.elements, 8, 8), *sums)


def split_tables(call: OperatorCall) -> Kernels | None:
    """FBGEMM's lookup in several tables → one kernel.

    Weights lie behind one another in one tensor, the largest of one dimension. Whole numbers are,
    in this order, widths' cumulated sums, sizes' cumulated sums (both of tables + 1), indices, and
    offsets of (tables × samples + 1): indices and offsets are the first neighbours behind the sums
    of which the second is longer by one than a multiple of the tables. The mean width follows from
    the result, or from the state of an optimizer that has one number a row.
    """
    sizes = _split(tuple(all_tensors(call.inputs)), result(call), call.name)
    return None if sizes is None else _tables(sizes, backward=False)


def split_tables_backward(call: OperatorCall) -> Kernels | None:
    """Backward of that, with the optimizer's step → keys of rows, a sort, sums of rows.

    What the forward was given is the last argument.
    """
    gradient = tensor(call, 0)
    forward = call.inputs[-1] if call.inputs and isinstance(call.inputs[-1], tuple) else ()
    given = tuple(all_tensors(forward))
    sizes = _split(given, gradient, call.name)
    if sizes is None:
        return None
    floats = [each for each in given if each.dtype.startswith("float")]
    weighted = any(each.shape == (sizes[1],) for each in floats)
    return _tables(sizes, backward=True, weighted=weighted)


def _split(
    given: tuple[TensorSpec, ...], pooled: TensorSpec | None, name: str
) -> tuple[TensorSpec, int, int, int, int] | None:
    """Return weights, lookups, output rows, the mean width, and tables."""
    floats = [t for t in given if t.dtype.startswith(("float", "bfloat")) and len(t.shape) == 1]
    offsets = [t for t in given if "int" in t.dtype and len(t.shape) == 1]
    if not floats or len(offsets) < 3:
        return None
    weights = max(floats, key=lambda t: t.elements)
    # Placements and offsets of weights come first, one a table.
    tables = next((t.elements for t in offsets if t.elements > 0), 0)
    if not tables:
        return None
    if pooled is not None and pooled.shape:
        width = pooled.shape[-1] // tables
    else:
        width = weights.elements // _rows(floats, name)
    sums = [i for i, t in enumerate(offsets) if t.elements == tables + 1][:2]
    if width < 1 or len(sums) < 2:
        return None
    for before, now in pairwise(offsets[sums[1] + 1 :]):
        samples, rest = divmod(now.elements - 1, tables)
        if rest == 0 and samples > 0 and before.elements > 0:
            return weights, before.elements, samples * tables, width, tables
    return None


def _rows(floats: list[TensorSpec], name: str) -> int:
    """Return the rows of all tables: row-wise Adagrad keeps a number for each, the last tensor."""
    of_rows = [t.elements for t in floats[1:] if t.elements > 0] if "rowwise" in name else []
    return of_rows[-1] if of_rows else sys.maxsize


def _tables(
    sizes: tuple[TensorSpec, int, int, int, int], backward: bool, weighted: bool = False
) -> Kernels:
    weights, lookups, outputs, width, _ = sizes
    entries = max(1, weights.elements // width)
    pooling = max(1, lookups // max(1, outputs))
    own = Embedding(
        lookups, width, entries, pooling=pooling, backward=backward,
        dtype=format_of(weights), outputs=outputs, sorts=not backward,
    )  # fmt: skip
    if not backward:
        return (own,)
    # fbgemm_gpu, transpose_embedding_input and the optimizer's kernels: a key of 8 bytes and a
    # place of 4 for each index, their sort by the bits that rows need; zeros for the lengths of
    # runs of equal keys and for their number, CUB's run lengths (begin, reduce by key), their
    # cumulated sum (a zero, begin, scan), zero for the number of long runs, the long runs, and the
    # sums. Weights of lookups have gradients, made as rows are looked up, and are sorted, too.
    one, runs = stream(8), min(lookups, entries)
    order = sort_kernels(lookups, 8, 4, entries.bit_length())
    keys = (*stream((8 + 8 + 4) * lookups), *order)
    if weighted:
        keys = (replace(own, backward=False, sorts=True), *keys, *order)
    lengths = (*stream(4 * lookups), *one, *one, *stream(8 * lookups + 12 * runs))
    cumulated_lengths = (*one, *one, *stream(8 * lookups))
    return (*keys, *lengths, *cumulated_lengths, *one, *stream(8 * runs), own)


def pooled_permuted(call: OperatorCall) -> Kernels | None:
    """``permute_pooled_embs(pooled, …)``, recat of gradients → read and written in another order.

    Each warp copies the columns of a table (permute_pooled_embs_kernel and recat_copy_async_kernel
    of fbgemm_gpu/src/permute_pooled_embedding_ops and layout_transform_ops).
    """
    pooled = tensor(call, 0)
    return None if pooled is None else stream(2 * touched(pooled))


def sparse_coalesced(call: OperatorCall) -> Kernels | None:
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


def sparse_product(call: OperatorCall) -> Kernels | None:
    """``_sparse_mm(indices, numbers, dense)`` → reads a row of the dense matrix for each element.

    Rows are found by a compressed form of the indices, made first.
    """
    indices, elements, to = tensor(call, 0), tensor(call, 1), result(call)
    if indices is None or elements is None or to is None or not to.shape:
        return None
    form = stream(touched(indices) + 4 * (to.shape[0] + 2 * elements.elements))
    product = _product_of_rows(elements, tensor(call, 2), to, touched(indices) // 2)
    return None if product is None else (*form, *product)


def compressed_product(call: OperatorCall) -> Kernels | None:
    """``spmm(begins, columns, numbers, dense)`` of cuSPARSE → the same in one kernel.

    The compressed form is there: where each row begins, and the column of each element.
    """
    begins, columns, elements = (tensor(call, i) for i in range(3))
    to = result(call)
    if begins is None or columns is None or elements is None or to is None:
        return None
    return _product_of_rows(elements, tensor(call, 3), to, touched(begins) + touched(columns))


def _product_of_rows(
    elements: TensorSpec, dense: TensorSpec | None, to: TensorSpec, indices: int
) -> Kernels | None:
    if dense is None or not dense.shape:
        return None
    rows = elements.elements * dense.shape[-1] * element_bytes(dense.dtype)
    return stream(rows + touched(elements) + indices + touched(to))
