"""Operators that choose elements by indices or by order: gather, scatter, masks, sorting.

Their time is that of the bytes they touch, in as many kernels as PyTorch and CUB launch.
"""

from __future__ import annotations

import math
from typing import Any

from ..kernels.numbers import quantity
from ..kernels.operations import Copy, Elementwise, Kernel
from .call import OperatorCall, TensorSpec
from .streams import stream
from .tensors import (
    all_tensors,
    broadcast,
    element_bytes,
    number,
    result,
    tensor,
    tensor_list,
    touched,
)

__all__ = [
    "gather",
    "index_put",
    "index_select",
    "nonzero",
    "scatter",
    "sort",
    "sort_kernels",
    "topk",
]

Kernels = tuple[Kernel, ...]

_RADIX_BITS = 8
"""Bits of the keys that a pass of CUB's onesweep radix sort orders (cub/agent policies)."""
_SINGLE_TILE = 4096
"""Items that CUB sorts in one block, by a single kernel, of the order of its tile."""
_MASKS = ("bool", "uint8")
"""Types of tensors that select elements where they stand as indices."""
_SMALL_SLICE = 32
"""Elements of a slice up to which ``index_put_`` adds up slices in other ways: those of a warp."""
_PUT_LOADS = round(quantity("index_put_loads").si)


def index_select(call: OperatorCall) -> Kernels | None:
    """``index_select(table, dimension, indices)``, ``index`` → reads and writes what is chosen."""
    table, indices, to = tensor(call, 0), tensor(call, 2), result(call)
    if to is not None and table is not None:
        masks = [each for each in tensor_list(call, 1) if each.dtype in _MASKS]
        if masks:
            rows = to.shape[0] if to.shape else 1
            places = 8 * rows * sum(len(each.shape) for each in masks)
            found = (kernel for each in masks for kernel in _selected(each, rows))
            return (*found, *stream(2 * touched(to) + places))
        chosen = sum(touched(each) for each in all_tensors(call.inputs[1:]))
        return stream(2 * touched(to) + chosen)
    if table is None or indices is None or not table.shape:
        listed = tensor_list(call, 1)
        if table is None or not listed:
            return None
        rest = math.prod(table.shape[len(listed) :])
        rows = math.prod(broadcast(each.shape for each in listed))
        amount = 2 * element_bytes(table.dtype) * rows * rest
        return stream(amount + sum(map(touched, listed)))
    across = number(call, 1, 0)
    if not -len(table.shape) <= across < len(table.shape):
        return None
    row = table.elements // max(1, table.shape[across])
    return stream(2 * element_bytes(table.dtype) * row * indices.elements + touched(indices))


def gather(call: OperatorCall) -> Kernels | None:
    """``gather(table, dimension, indices)`` → reads indices and values, writes values."""
    table, indices = tensor(call, 0), tensor(call, 2)
    if table is None or indices is None:
        return None
    values = 2 * element_bytes(table.dtype) * indices.elements
    return stream(values + touched(indices))


def scatter(call: OperatorCall) -> Kernels | None:
    """``scatter``, ``index_add`` → reads indices and values, adds them to or writes the table."""
    table, indices = tensor(call, 0), tensor(call, 2)
    source = tensor(call, 3)
    if table is None or indices is None:
        return None
    moved = (source or indices).elements * element_bytes(table.dtype)
    begun = () if call.name.endswith("_") else stream(2 * touched(table))
    return (*begun, *stream(3 * moved + touched(indices)))


def index_put(call: OperatorCall) -> Kernels | None:
    """``index_put_(to, indices, values, accumulate)`` → with accumulation a sort of the indices."""
    to, values = tensor(call, 0), tensor(call, 2)
    if to is None or values is None:
        return None
    moved = max(1, values.elements) * element_bytes(to.dtype)
    listed = tensor_list(call, 1)
    masks = [each for each in listed if each.dtype in _MASKS]
    if values.elements == 1 and to.elements > 1 and (masks or not values.shape):
        # A mask: one number wherever it holds (masked_fill).
        begun = () if call.name.endswith("_") else (Copy(bytes=touched(to)),)
        return (*begun, *stream(2 * touched(to) + to.elements, indexed=to.elements))
    rows = values.elements // max(1, to.elements // max(1, to.shape[0] if to.shape else 1))
    chosen = math.prod(broadcast(each.shape for each in listed)) if listed else max(1, rows)
    found: Kernels = ()
    if masks:
        chosen = values.shape[0] if values.shape else 1
        found = tuple(kernel for each in masks for kernel in _selected(each, chosen))
    amount = 3 * moved + 8 * chosen
    if number(call, 3, 0) and values.shape:
        places = max(1, _places(to.shape, call.inputs[1]))
        bits = max(1, (places - 1).bit_length())
        sums = _added(amount, values.elements, chosen, places)
        return (*found, *sort_kernels(chosen, 8, 8, bits), *sums)
    return (*found, *stream(amount, indexed=values.elements))


def _added(amount: int, elements: int, slices: int, places: int) -> Kernels:
    """Bytes, elements, slices and places → the kernel that adds up slices of one place.

    A warp adds them to what is there one after another; places are taken to have equally many.
    Slices of up to 32 elements have other kernels, whose waits are not counted.
    """
    if amount <= 0:
        return ()
    alike = -(-slices // places) if elements > _SMALL_SLICE * slices else 0
    waits = _PUT_LOADS * alike if alike > 1 else None
    return (Elementwise(amount, indexed=elements or None, chained=waits),)


def _places(shape: tuple[int, ...], indices: Any) -> int:
    """Shape and indices, some None → slices that numbers of rows are sorted among.

    Numbers have no more bits than that of the last slice. A slice has the dimensions behind those
    that are indexed; where others lie between these, all others (`makeLinearIndex` and
    ``index_put_with_sort_kernel`` of aten/src/ATen/native/cuda/Indexing.cu, `hasContiguousSubspace`
    and `expandTensors` of IndexingUtils.h there). A mask indexes as many as it has.
    """
    indexed: list[bool] = []
    for each in indices if isinstance(indices, tuple) else (indices,):
        mask = isinstance(each, TensorSpec) and each.dtype in _MASKS
        indexed += [each is not None] * (len(each.shape) if mask else 1)
    if True not in indexed:
        return math.prod(shape)
    first, behind = indexed.index(True), len(indexed) - indexed[::-1].index(True)
    if all(indexed[first:behind]):
        return math.prod(shape[:behind])
    return math.prod(size for size, each in zip(shape, indexed) if each)


def nonzero(call: OperatorCall) -> Kernels | None:
    """``nonzero(x)`` → how many there are, and their places."""
    source, to = tensor(call, 0), result(call)
    if source is None:
        return None
    return _selected(source, to.shape[0] if to is not None and to.shape else source.elements)


def _selected(mask: TensorSpec, rows: int) -> Kernels:
    """Mask → the kernels that list the places where it holds.

    A sum, of tiles and of their sums; CUB's selection of numbers of elements, which begins with a
    kernel of its own; numbers divided into places, where there is more than one dimension
    (nonzero_cuda_out_impl of aten/src/ATen/native/cuda/Nonzero.cu).
    """
    size = touched(mask)
    found = (*stream(size), *stream(8), *stream(8), *stream(size + 8 * rows))
    rank = len(mask.shape)
    return (*found, *stream(8 * (1 + rank) * rows)) if rank > 1 else found


def sort_kernels(items: int, key: int, value: int, bits: int | None = None) -> Kernels:
    """Number and sizes of keys and values → kernels of CUB's radix sort.

    A histogram of all digits, then a pass for each digit that reads and writes keys and values;
    few items are sorted by one block. D. Merrill and M. Garland, "Onesweep" (arXiv:2206.01784).

    Parameters
    ----------
    items : int
        Keys, each with a value.
    key, value : int
        Bytes of one.
    bits : int, optional
        Of keys that differ; all if not given.

    Returns
    -------
    tuple of Kernel
        In order; none for no items.
    """
    if items < 1:
        return ()
    if items <= _SINGLE_TILE:
        return stream(2 * items * (key + value))
    passes = -(-(bits or 8 * key) // _RADIX_BITS)
    each = Elementwise(bytes=2 * items * (key + value), variant="sort_passes")
    return (*stream(items * key), *((each,) * passes))


def sort(call: OperatorCall) -> Kernels | None:
    """``sort`` → a radix sort of the values with their positions."""
    source = tensor(call, 0) or tensor(call, 1)
    if source is None:
        return None
    return sort_kernels(source.elements, element_bytes(source.dtype), 8)


def topk(call: OperatorCall) -> Kernels | None:
    """``topk`` → reads the input for each digit of a radix selection, and sorts what is left."""
    source = tensor(call, 0)
    if source is None or not source.elements:
        return None if source is None else ()
    chosen = number(call, 1, 1) * (
        source.elements // max(1, source.shape[-1] if source.shape else 1)
    )
    digits = 4 * element_bytes(
        source.dtype
    )  # of two bits (aten/src/ATen/native/cuda/TensorTopK.cu)
    # A row stays in the caches while its digits are looked at.
    select = stream(touched(source) * (1 if source.elements < 1 << 20 else digits // 2))
    return (*select, *stream(2 * chosen * (element_bytes(source.dtype) + 8)))
