"""Operators on compressed sparse tensors (CSR, CSC) → what they launch, recorded without data.

Such a tensor is where each row begins, the column of each element, and the elements; CSC is the
same by columns. PyTorch's fakes of them have a shape alone, so these three are kept here. A product
with a dense matrix is one kernel of cuSPARSE; a matrix compressed by columns, which the gradient of
a product has, is sorted by rows first (addmm_out_sparse_csr of
aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from ..base.errors import InputError
from .recorder import Recorder
from .sparse import KEEP_INDICES

__all__ = ["CONSTRUCTORS", "CONVERTS", "CompressedTensors", "has_compressed"]

CONSTRUCTORS = ("sparse_compressed_tensor", "_sparse_compressed_tensor_unsafe")
"""Operators that make a compressed tensor of its parts."""

CONVERTS = "_to_sparse_csr"
"""The operator that compresses a sparse tensor of another layout."""

_LAYOUTS = (torch.sparse_csr, torch.sparse_csc)
_PART_ACCESSORS = {
    "crow_indices": 0, "ccol_indices": 0, "col_indices": 1, "row_indices": 1, "values": 2,
}  # fmt: skip
_SPARSE_QUERIES = ("device", "sparse_dim", "dense_dim")

_PRODUCTS = {"mm": 0, "_sparse_mm": 0, "addmm": 1, "_sparse_addmm": 1}
"""Products of a sparse and a dense matrix → which argument the first of them is."""


class _Parts(NamedTuple):
    """Where rows begin, columns, and numbers; of CSC with rows and columns exchanged."""

    begins: Any
    places: Any
    numbers: Any


def has_compressed(tensors: Any) -> bool:
    """Tensors → whether one of them is compressed (CSR, CSC).

    Parameters
    ----------
    tensors : iterable of torch.Tensor

    Returns
    -------
    bool
    """
    return any(each.layout in _LAYOUTS for each in tensors)


class CompressedTensors:
    """The compressed sparse tensors of a captured process.

    Parameters
    ----------
    recorder : Recorder
    fake : FakeTensorMode
        Makes tensors without values.
    run : callable
        Given an operator, types, arguments and keywords, runs it on other tensors and records it.
    launch : callable
        Given a name, inputs and results, records a kernel.
    """

    def __init__(
        self,
        recorder: Recorder,
        fake: Any,
        run: Callable[..., Any],
        launch: Callable[..., None],
    ) -> None:
        self._recorder, self._fake, self._run_other, self._launch = recorder, fake, run, launch
        self._kept: Any = WeakIdKeyDictionary()

    def run(self, short: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that makes a compressed tensor or has one as an operand, and record it.

        Parameters
        ----------
        short : str
            Its name without namespace.
        func : OpOverload
        args, kwargs
            Of the call.

        Returns
        -------
        object
            Its result; NotImplemented for a dense tensor that is to be compressed.

        Raises
        ------
        InputError
            If the operator is none of those that are known of such tensors.
        """
        aten, first = torch.ops.aten, args[0]
        if short in CONSTRUCTORS:
            return self._made(_Parts(*args[:3]), tuple(args[3]), kwargs["layout"])
        if short == CONVERTS and first.layout is torch.sparse_coo:
            return self._of_elements(first)
        if short == CONVERTS and first.layout is torch.strided:
            return NotImplemented
        at = _PRODUCTS.get(short, 0)
        sparse = args[at] if len(args) > at else None
        if isinstance(sparse, torch.Tensor) and sparse.layout in _LAYOUTS:
            found = self._operated(short, func, sparse, args, kwargs)
            if found is not NotImplemented:
                return found
        if short == "_sparse_mm" or func is aten.mm.default:
            what = "a product of two sparse tensors, or of a dense and a sparse one"
        else:
            what = f"{func._schema.name} of compressed sparse tensors"
        raise InputError(
            f"{self._recorder.user_line()}: {what} cannot be captured; a product with a dense "
            "matrix on its right can, and what changes all numbers alike (docs/capture.md)"
        )

    def _operated(self, short: str, func: Any, sparse: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator of a compressed tensor."""
        parts = self._of(sparse)
        if short in _PART_ACCESSORS:
            return self._run(torch.ops.aten.alias.default, parts[_PART_ACCESSORS[short]])
        if short == "_nnz":
            return parts.numbers.shape[0]
        if short in _SPARSE_QUERIES:
            with self._fake:
                return func(*args, **kwargs)
        if short in KEEP_INDICES and not (len(args) > 1 and isinstance(args[1], torch.Tensor)):
            return self._renewed(short, func, sparse, parts, args, kwargs)
        if short in ("t", "transpose") and sparse.dim() == 2:
            other = next(each for each in _LAYOUTS if each is not sparse.layout)
            return self._made(parts, tuple(sparse.shape[::-1]), other)
        if short in _PRODUCTS:
            dense = args[_PRODUCTS[short] + 1]
            if dense.layout is not torch.strided:
                return NotImplemented
            if sparse.layout is torch.sparse_csc:
                parts = self._by_rows(parts, sparse.shape[0])
            with self._fake:
                out = torch.empty(
                    (sparse.shape[0], dense.shape[1]), dtype=dense.dtype, device=dense.device
                )
            self._launch("cusparse::spmm", (*parts, dense), (out,))
            added = args[0] if _PRODUCTS[short] and kwargs.get("beta", 1) else None
            return out if added is None else self._run(torch.ops.aten.add.Tensor, out, added)
        return NotImplemented

    def _renewed(
        self, short: str, func: Any, sparse: Any, parts: _Parts, args: Any, kwargs: Any
    ) -> Any:
        """Run an operator on the numbers; all three parts go to another device together."""
        rest = {key: value for key, value in kwargs.items() if key != "layout"}
        if short == "_to_copy" and rest.get("device") is not None:
            where = {key: rest[key] for key in rest if key in ("device", "non_blocking")}
            begins, places = (self._run(func, each, **where) for each in parts[:2])
            parts = _Parts(begins, places, parts.numbers)
        numbers = self._run(func, parts.numbers, *args[1:], **rest)
        return self._made(parts._replace(numbers=numbers), tuple(sparse.shape), sparse.layout)

    def _of_elements(self, tensor: Any) -> Any:
        """Compress a sparse tensor of indices and numbers; equal ones are added up before."""
        aten = torch.ops.aten
        if not tensor.is_coalesced():
            tensor = self._run(aten._coalesce.default, tensor)
        indices = self._run(aten._indices.default, tensor)
        numbers = self._run(aten._values.default, tensor)
        rows, columns = (self._run(aten.select.int, indices, 0, each) for each in (0, 1))
        convert = aten._convert_indices_from_coo_to_csr.default
        begins = self._run(convert, rows, tensor.shape[0])
        columns = self._run(aten.clone.default, columns)
        return self._made(_Parts(begins, columns, numbers), tuple(tensor.shape), torch.sparse_csr)

    def _by_rows(self, parts: _Parts, rows: int) -> _Parts:
        """Compress by rows what was by columns (sparse_compressed_to_flipped)."""
        aten = torch.ops.aten
        both = self._run(aten._convert_indices_from_csr_to_coo.default, *parts[:2])
        placed = self._run(aten.select.int, both, 0, 1)
        ordered, order = self._run(aten.sort.default, placed)
        columns = self._run(aten.index_select.default, parts.places, 0, order)
        numbers = self._run(aten.index_select.default, parts.numbers, 0, order)
        convert = aten._convert_indices_from_coo_to_csr.default
        return _Parts(self._run(convert, ordered, rows), columns, numbers)

    def _of(self, tensor: Any) -> _Parts:
        """Return the parts of a compressed tensor, of a real one its own."""
        found: _Parts | None = self._kept.get(tensor)
        if found is not None:
            return found
        with _disable_current_modes():
            by_rows = tensor.layout is torch.sparse_csr
            begins = tensor.crow_indices() if by_rows else tensor.ccol_indices()
            places = tensor.col_indices() if by_rows else tensor.row_indices()
            return _Parts(begins, places, tensor.values())

    def _made(self, parts: _Parts, shape: tuple[int, ...], layout: Any) -> Any:
        """Return a compressed tensor without values, of these parts."""
        with _disable_current_modes():
            empty = (
                torch.empty(tuple(each.shape), dtype=each.dtype, device="meta") for each in parts
            )
            meta = torch.sparse_compressed_tensor(*empty, shape, layout=layout, device="meta")
            out: Any = FakeTensor(self._fake, meta, parts.numbers.device)
        self._kept[out] = parts
        return out

    def _run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an operator on other tensors, recorded as all are."""
        return self._run_other(func, (), args, kwargs)
