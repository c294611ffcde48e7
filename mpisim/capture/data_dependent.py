"""Operators whose results depend on values → results as far as values are known, else as told.

A value that the script reads, and the number of rows that a mask selects, follow from the values
that are known (:mod:`.values`). Where they are not, the user says them or a likely one is taken and
listed (`Recorder.unknown`, `Recorder.needed`). The CPU waits for each: PyTorch allocates as many
results as a kernel has counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .autograd import set_phase
from .recorder import Recorder
from .values import Values

__all__ = ["DataDependent", "counts_rows"]

_empty = torch.empty  # programs put their own there

_READS = ("_local_scalar_dense", "equal", "allclose", "is_nonzero")
_SELECTS = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive")


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def counts_rows(args: Any) -> bool:
    """Arguments of an ``index_put`` → whether the CPU waits for how many elements a mask selects.

    One number is written wherever the mask holds, as ``masked_fill`` does.

    Parameters
    ----------
    args : tuple
        The tensor, its indices, what is written, and whether it is added.
    """
    masks = [each for each in args[1] if _is_mask(each) and each.device.type == "cuda"]
    return bool(masks) and (args[2].numel() > 1 or bool(args[3:4] == (True,)))


class DataDependent:
    """Run operators whose results depend on values that a capture may not have.

    Parameters
    ----------
    recorder : Recorder
    values : Values
    fake : FakeTensorMode
        Makes tensors without values.
    note : callable
        Records an operator, given `func`, its name, its name without namespace, arguments,
        keywords, the tensors in these and its results.
    """

    def __init__(
        self, recorder: Recorder, values: Values, fake: Any, note: Callable[..., None]
    ) -> None:
        self.recorder, self.values, self.fake, self._note = recorder, values, fake, note
        self._masks_hold = False

    @contextmanager
    def masks_hold(self) -> Iterator[None]:
        """Have masks whose values are not known hold everywhere in this block."""
        before, self._masks_hold = self._masks_hold, True
        try:
            yield
        finally:
            self._masks_hold = before

    def run(self, func: Any, short: str, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        """Run an operator if its results depend on values, and record it.

        Parameters
        ----------
        func : OpOverload
        short : str
            Its name without namespace.
        args, kwargs
            Of the call.
        tensors : list of torch.Tensor
            Those in its arguments.

        Returns
        -------
        object
            What it gives; NotImplemented where that does not depend on values.
        """
        if short in _READS:
            return self._read(short, *args[:2])
        if func._schema.name == "torchvision::nms":
            return self._kept_boxes(func, short, args, kwargs, tensors)
        if short == "_pack_padded_sequence":
            return self._packed(func, short, args, kwargs, tensors)
        if short == "_linalg_check_errors":
            return self._checked(tensors[0])
        if short == "bincount" and tensors[0].device.type == "cuda":
            return self._bincount(func, short, args, kwargs, tensors)
        mask = self._selecting(short, args, kwargs)
        if mask is None:
            return NotImplemented
        return self._rows_by_value(func, short, args, kwargs, tensors, mask)

    def _selecting(self, short: str, args: Any, kwargs: Any) -> Any:
        """Return the tensor whose values say how many rows an operator gives; None: none does."""
        if short == "index":
            return next((each for each in args[1] if _is_mask(each)), None)
        if short == "masked_select":
            return args[1]
        if short in _SELECTS:
            return args[0]
        counts = short == "repeat_interleave" and len(args) == 1 and not kwargs.get("output_size")
        return args[0] if counts else None

    def _checked(self, failures: Any) -> None:
        """Note that the CPU waits for whether a factorization has failed; none has.

        ``_linalg_check_errors`` of aten/src/ATen/native/BatchLinearAlgebra.cpp.
        """
        failed = torch.ops.aten.any.default
        with self.fake:
            out = failed(failures)
        self._note(failed, failed._schema.name, "any", (failures,), {}, [failures], out)
        self.recorder.copy(out.element_size(), "copy to the host", blocking=True)

    def _read(self, short: str, tensor: Any, other: Any = None) -> Any:
        """Read a value: the CPU waits for it."""
        if tensor.device.type == "cuda":
            set_phase(self.recorder)
            self.recorder.copy(tensor.element_size(), "copy to the host", blocking=True)
        if short in ("equal", "allclose"):
            return self._equal(tensor, other)
        known = self.values.of(tensor)
        value = self.values.likely(tensor) if known is None else known.item()
        even = self.values.is_even(tensor)
        if self.values.sure(tensor) is None or even or self.recorder.values.asked():
            what = f"a value of type {str(tensor.dtype)[6:]}"
            value = self.recorder.values.unknown(what, value)
        return value if short == "_local_scalar_dense" else bool(value)

    def list_even(self, values: Any) -> None:
        """List that the CPU gets values which rest on an even spread.

        Parameters
        ----------
        values : torch.Tensor
        """
        low, high = values.min().item(), values.max().item()
        taken = f"{low}" if low == high else f"{low} to {high}"
        self.recorder.values.evenly(
            f"{values.numel()} values of type {str(values.dtype)[6:]}", taken
        )

    def _equal(self, one: Any, other: Any) -> bool:
        """Two tensors → whether they are equal (`torch.equal`); if unknown, what is likely."""
        what, sides = "whether two tensors are equal", (one, other)
        values = [self.values.of(each) for each in sides]
        if any(each is None for each in values):
            return bool(self.recorder.values.unknown(what, True))
        equal = bool(torch.equal(*values))
        if any(self.values.sure(each) is None for each in sides) or self.recorder.values.asked():
            return bool(self.recorder.values.unknown(what, equal))
        return equal

    def _rows_by_value(
        self, func: Any, short: str, args: Any, kwargs: Any, tensors: list[Any], mask: Any
    ) -> Any:
        """Run an operator whose number of results depends on values, as far as these are known."""
        out = self._with_values(func, args, kwargs, tensors)
        if out is None:
            out = self._with_rows(short, args, self._rows(short, mask))
        self._note(func, func._schema.name, short, args, kwargs, tensors, out)
        if tensors[0].device.type == "cuda":  # the CPU needs the number
            self.recorder.copy(8, "copy to the host", blocking=True)
        return out

    def _rows(self, short: str, mask: Any) -> int:
        """Return how many rows there are: as the user says, or as even spreads have it."""
        finds = "a mask" if short == "index" else short
        if self._masks_hold:
            return int(mask.numel())
        known = self.values.sure(mask) if short in ("index", "masked_select") else None
        if known is not None and not self.recorder.values.asked():
            if self.values.is_even(mask):
                self.list_even(known.sum())
            return int(known.count_nonzero())
        even = self.values.distinct(mask) if "unique" in short else self.values.rows(mask)
        if even is None:
            return self.recorder.values.needed(f"the number of rows that {finds} selects", "ROWS")
        what = f"number of rows that {finds} selects, of an even spread,"
        return int(self.recorder.values.unknown(what, even))

    def _with_values(self, func: Any, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        """Operator, arguments → its results, computed on known values; None if some are unknown."""
        if any(self.values.sure(each) is None for each in tensors):
            return None
        real_args, real_kwargs = tree_map(
            lambda each: self.values.of(each) if isinstance(each, torch.Tensor) else each,
            (args, kwargs),
        )
        results, spec = tree_flatten(func(*real_args, **real_kwargs))
        device = tensors[0].device
        made = []
        for each in results:
            with self.fake:
                made.append(_empty(each.shape, dtype=each.dtype, device=device))
            self.values.assign(made[-1], each)
        return tree_unflatten(made, spec)

    def _with_rows(self, short: str, args: Any, rows: int) -> Any:
        """Return the results of an operator that finds so many rows."""
        tensor = args[0]
        with self.fake:

            def empty(shape: tuple[int, ...], dtype: Any = torch.int64) -> Any:
                return _empty(shape, dtype=dtype, device=tensor.device)

            if short == "nonzero":
                return empty((rows, tensor.dim()))
            if short in ("masked_select", "repeat_interleave"):
                return empty((rows,), tensor.dtype)
            if short == "index":
                masks = [each for each in args[1] if each is not None]
                return empty((rows, *tensor.shape[masks[0].dim() :]), tensor.dtype)
            return empty((rows,), tensor.dtype), empty(tuple(tensor.shape)), empty((rows,))

    def _bincount(self, func: Any, short: str, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        """Record `torch.bincount`: ``minlength`` counts, or as many as known values need."""
        least = (*args[2:3], kwargs.get("minlength", 0))[0]
        known = self.values.sure(tensors[0])
        spread = self.values.among(tensors[0]) if known is None else int(known.max()) + 1
        if not least and spread is None:
            least = self.recorder.values.needed(
                "the largest number that bincount counts", "LARGEST"
            )
        weights = (*args[1:2], kwargs.get("weights"))[0]
        dtype = torch.int64 if weights is None else torch.float64
        if weights is not None and weights.dtype is torch.float32:
            dtype = torch.float32
        with self.fake:
            out = _empty((max(least, spread or 0),), dtype=dtype, device=tensors[0].device)
        self._note(func, func._schema.name, short, args, kwargs, tensors, out)
        self.recorder.copy(16, "copy to the host", blocking=True)  # the smallest and the largest
        return out

    def _kept_boxes(self, func: Any, short: str, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        """Leave out boxes that overlap: as many are kept as the user says."""
        rows = min(
            self.recorder.values.needed("the number of boxes that nms keeps", "ROWS"), len(args[0])
        )
        with self.fake:
            out = _empty((rows,), dtype=torch.int64, device=tensors[0].device)
        self._note(func, func._schema.name, short, args, kwargs, tensors, out)
        self.recorder.copy(8, "copy to the host", blocking=True)  # how many there are
        return out

    def _packed(self, func: Any, short: str, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        """`_pack_padded_sequence` → packed rows and the batch size of each time step."""
        given, lengths, batch_first = (*args, False)[:3]
        known = self.values.sure(lengths)
        if known is None:
            rows = self.recorder.values.needed("the number of rows of packed sequences", "ROWS")
            longest = given.shape[1 if batch_first else 0]
            known = torch.full((rows // longest,), longest)
        steps = torch.arange(int(known.max()))
        counts = (known[None, :] > steps[:, None]).sum(1)
        size = (int(counts.sum()), *given.shape[2:])
        with self.fake:
            out = _empty(size, dtype=given.dtype, device=given.device)
        self._note(func, func._schema.name, short, args, kwargs, tensors, out)
        return out, counts
