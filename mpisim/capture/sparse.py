"""Operators on sparse COO tensors → what they launch, recorded without data on fake tensors.

A sparse tensor is one tensor of indices and one of values. PyTorch's fake sparse tensors have a
shape, but lose the number of elements (nnz) where one is cloned, and do not know what is left of it
after ``coalesce`` has added up equal indices. So indices and values of each are kept here. What an
operator launches is recorded as the operator on dense tensors that its kernels do the work of
(SparseCUDATensor.cu and SparseCUDATensorMath.cu of aten/src/ATen/native/sparse/cuda).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from .recorder import Recorder
from .values import Values

__all__ = ["CONSTRUCTORS", "KEEP_INDICES", "SparseTensors", "has_sparse"]

CONSTRUCTORS = ("_sparse_coo_tensor_with_dims_and_tensors",)
"""Operators that make a sparse tensor of indices and numbers."""

_SPARSE_QUERIES = ("_nnz", "is_coalesced", "sparse_dim", "dense_dim")
_PART_ACCESSORS = ("_indices", "indices", "_values", "values")
KEEP_INDICES = ("clone", "_to_copy", "detach", "alias", "neg", "mul", "div", "sqrt", "pow", "abs")
"""Operators that make new numbers and leave the indices as they are."""

_PRODUCTS = ("mm", "_sparse_mm", "addmm", "_sparse_addmm")


def has_sparse(tensors: Any) -> bool:
    """Tensors → whether one of them is sparse (COO).

    Parameters
    ----------
    tensors : iterable of torch.Tensor

    Returns
    -------
    bool
    """
    return any(each.layout is torch.sparse_coo for each in tensors)


class SparseTensors:
    """The sparse tensors of a captured process.

    Parameters
    ----------
    recorder : Recorder
    values : Values
    fake : FakeTensorMode
        Makes tensors without values.
    run : callable
        Given an operator, types, arguments and keywords, runs it on dense tensors and records it.
    launch : callable
        Given a name, inputs and results, records a kernel.
    """

    def __init__(
        self,
        recorder: Recorder,
        values: Values,
        fake: Any,
        run: Callable[..., Any],
        launch: Callable[..., None],
    ) -> None:
        self._recorder, self._values, self._fake = recorder, values, fake
        self._run_dense, self._launch = run, launch
        self._parts: Any = WeakIdKeyDictionary()

    def run(self, func: Any, short: str, args: Any, kwargs: Any) -> Any:
        """Run an operator that makes a sparse tensor or has one as an operand, and record it.

        Parameters
        ----------
        func : OpOverload
        short : str
            Its name without namespace.
        args, kwargs
            Of the call.

        Returns
        -------
        object
            Its result; NotImplemented for operators that are run as all others are.
        """
        first = args[0]
        if short in CONSTRUCTORS:
            with self._fake:
                out = func(*args, **kwargs)
            self._parts[out] = tuple(args[3:5])
            return out
        if not isinstance(first, torch.Tensor):
            return NotImplemented
        if first.layout is torch.sparse_coo:
            return self._of_sparse(func, short, args, kwargs)
        if short in ("add_", "add") and args[1].layout is torch.sparse_coo:
            indices, numbers = self._of(args[1])
            to = first if short == "add_" else self._run(torch.ops.aten.clone.default, first)
            self._launch("aten::index_add_", (to, 0, indices, numbers), (to,))
            return to
        if short == "sparse_mask":
            indices, numbers = self._of(args[1])
            chosen = self._empty(tuple(numbers.shape), first.dtype, first.device)
            self._launch("aten::index_select", (first, 0, indices), (chosen,))
            return self._made(args[1], indices, chosen, args[1].is_coalesced())
        if short in _PRODUCTS:
            return self._product(*args[1:3])
        return NotImplemented

    def _of_sparse(self, func: Any, short: str, args: Any, kwargs: Any) -> Any:
        """Run an operator whose first operand is sparse."""
        first = args[0]
        if short in _SPARSE_QUERIES:
            with self._fake:
                return func(*args, **kwargs)
        if short in _PART_ACCESSORS:
            return self._run(torch.ops.aten.alias.default, self._of(first)["values" in short])
        if short == "_coalesce":
            return self._coalesced(first)
        if short in KEEP_INDICES and not (len(args) > 1 and isinstance(args[1], torch.Tensor)):
            indices, numbers = self._of(first)
            dense = {key: value for key, value in kwargs.items() if key != "layout"}
            if short == "_to_copy" and dense.get("device") is not None:
                where = {key: dense[key] for key in dense if key in ("device", "non_blocking")}
                indices = self._run(func, indices, **where)
            numbers = self._run(func, numbers, *args[1:], **dense)
            return self._made(first, indices, numbers, first.is_coalesced())
        if short in ("t", "transpose") and first.sparse_dim() == 2 and not first.dense_dim():
            indices, numbers = self._of(first)
            turned = self._run(torch.ops.aten.flip.default, indices, [0])
            return self._made(first, turned, numbers, False, first.shape[::-1])
        return self._product(*args[:2]) if short in _PRODUCTS else NotImplemented

    def _product(self, matrix: Any, dense: Any) -> Any:
        """Multiply a sparse matrix by a dense one."""
        if matrix.layout is not torch.sparse_coo or dense.layout is not torch.strided:
            return NotImplemented
        out = self._empty((matrix.shape[0], dense.shape[1]), dense.dtype, dense.device)
        self._launch("aten::_sparse_mm", (*self._of(matrix), dense), (out,))
        return out

    def _coalesced(self, tensor: Any) -> Any:
        """Add up elements of equal indices: as many are left as are known, or as even draws leave.

        Draws are from all places of the tensor, each as likely.
        """
        indices, numbers = self._of(tensor)
        known, given = self._values.sure(indices), indices.shape[1]
        if known is not None:
            with _disable_current_modes():
                rows = torch.unique(known, dim=1).shape[1]
        else:
            places = max(math.prod(tensor.shape[: tensor.sparse_dim()]), 1)
            even = round(places * (1 - (1 - 1 / places) ** given))
            what = "number of different indices of a sparse tensor, of even draws,"
            rows = int(self._recorder.values.unknown(what, max(even, min(given, 1))))
        left = self._empty((indices.shape[0], rows), torch.int64, indices.device)
        sums = self._empty((rows, *numbers.shape[1:]), numbers.dtype, indices.device)
        self._launch("aten::_coalesce", (indices, numbers), (left, sums))
        self._recorder.copy(8, "copy to the host", blocking=True)  # how many are left
        return self._made(tensor, left, sums, True)

    def _of(self, tensor: Any) -> tuple[Any, Any]:
        """Return indices and numbers of a sparse tensor."""
        found: tuple[Any, Any] | None = self._parts.get(tensor)
        if found is not None:
            return found
        if not isinstance(tensor, FakeTensor):
            with _disable_current_modes():
                return tensor._indices(), tensor._values()
        with self._fake:
            return tensor._indices(), tensor._values()

    def _made(
        self, like: Any, indices: Any, numbers: Any, coalesced: bool, shape: Any = None
    ) -> Any:
        """Return a sparse tensor of other elements."""
        with self._fake:
            out = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
                like.sparse_dim(), like.dense_dim(), list(shape or like.shape), indices, numbers,
                dtype=numbers.dtype, layout=torch.sparse_coo, device=numbers.device,
                is_coalesced=coalesced,
            )  # fmt: skip
        self._parts[out] = indices, numbers
        return out

    def _empty(self, size: tuple[int, ...], dtype: Any, device: Any) -> Any:
        with self._fake:
            return torch.empty(size, dtype=dtype, device=device)

    def _run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an operator on dense tensors, recorded as all are."""
        return self._run_dense(func, (), args, kwargs)
