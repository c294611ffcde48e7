"""Values of tensors that have none: computed where they are few, else the likely ones.

Three things are kept of tensors of the device, in this order of trust:

- **Values.** A small tensor whose operands all have values gets its own, computed on the CPU:
  offsets of sequences, counts, positions.
- **Spread.** Indices that a choice among n gives (``topk``, ``argmax``, ``randint``) take each of
  the n as often: experts get equally many tokens. What follows from that has values again
  (``histc``, sums of masks) or a known number of rows (``nonzero`` of a mask). These are *even*:
  the CPU gets them where it reads, and the read is listed.
- **Likely values.** 1 for a number and true for a truth value; 0 for what comes from ``isnan``.
  What follows from likely values of a few numbers is computed, and as likely: that a norm is not
  negative.

Other ranks are taken to have the values that this one has: gathered they are repeated, added up
they are multiplied.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from ..base.kinds import Operation
from .drawn_ranges import Ranges, written

__all__ = ["Values"]

MAX_KEPT_INTEGERS = 1 << 14
"""Elements of a tensor of integers above which its values are not kept."""

MAX_KEPT_NUMBERS = 64
"""Elements of a tensor of any other type above which its values are not kept."""

_full = torch.full  # programs put functions of their own there

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

_PASSED_ON = {
    "_to_copy", "clone", "any", "all", "max", "amax", "sum", "view", "reshape", "detach", "copy",
    "logical_or", "bitwise_or", "logical_and", "bitwise_and", "squeeze", "unsqueeze", "stack",
    "cat", "add", "mul", "select", "alias", "lift_fresh", "abs", "expand", "_unsafe_view", "slice",
    "unbind", "split", "maximum", "wait_tensor", "all_reduce",
}  # fmt: skip
"""Operators whose result is as likely as their operands: not a number stays that."""

_SAME_SPREAD = {
    "_to_copy", "clone", "view", "reshape", "detach", "squeeze", "unsqueeze", "select", "alias",
    "expand", "_unsafe_view", "slice", "unbind", "split", "split_with_sizes", "transpose", "t",
    "permute", "flatten", "gather", "index", "index_select", "contiguous", "_reshape_alias",
    "as_strided", "chunk", "masked_fill", "clamp", "cat", "wait_tensor", "all_to_all_single",
    "all_gather_into_tensor",
}  # fmt: skip
"""Operators whose result has the values of the first operand, each as often."""

_ZEROS = ("zeros", "zeros_like", "new_zeros", "zero")
"""Operators whose results are zeros."""

_STILL_ZEROS = {
    "_to_copy", "clone", "view", "reshape", "_unsafe_view", "expand", "detach", "alias", "select",
    "slice", "transpose", "t", "permute", "unsqueeze", "squeeze",
}  # fmt: skip
"""Operators whose results are zeros if their first operand is."""

_DRAWS = {"argmax", "max", "multinomial", "sort", "topk"}
"""Operators that draw a model's next token: of scores, they give whole numbers."""

_UNKNOWN = ("empty", "new_empty", "rand", "normal", "bernoulli", "uniform", "_local_scalar")
"""Beginnings of operators whose results have no values that follow from their operands'."""


def _real(tensor: Any) -> bool:
    return not isinstance(tensor, FakeTensor)


class Values:
    """What is known of the values of tensors that have shapes alone."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()
        self._likely: Any = WeakIdKeyDictionary()
        self._spread: Any = WeakIdKeyDictionary()
        self._share: Any = WeakIdKeyDictionary()
        self._ranges = Ranges()
        self._chosen: Any = WeakIdKeyDictionary()
        self._drawn: Any = WeakIdKeyDictionary()
        self._total: Any = WeakIdKeyDictionary()
        self._zeros: Any = WeakIdKeyDictionary()
        self._uniform: Any = WeakIdKeyDictionary()

    # --- what is asked ----------------------------------------------------------------------------

    def of(self, tensor: Any) -> Any:
        """Return a real tensor with the values; None: not known.

        Parameters
        ----------
        tensor : torch.Tensor
        """
        if _real(tensor):
            return tensor
        found = self._known.get(tensor)
        if found is not None and found[1][0]:
            return found[0]
        return getattr(tensor, "constant", None)

    def likely(self, tensor: Any) -> Any:
        """Return what is taken for a value of a tensor: 1, true; where "not finite" is asked, 0."""
        value = self._likely.get(tensor, 1.0)
        if tensor.dtype is torch.bool:
            return bool(value)
        return value if tensor.is_floating_point() else int(value)

    def rows(self, mask: Any) -> int | None:
        """Return how many elements of a mask are true if what it is made of is spread evenly.

        Of counts that are sums of a mask: their sum. Ranges that together hold all n have all rows.
        """
        in_range = self._ranges.rows(mask)
        if in_range is not None:
            return in_range
        share = self._share.get(mask)
        return self._total.get(mask) if share is None else round(share * mask.numel())

    def distinct(self, tensor: Any) -> int | None:
        """Return how many different numbers there are, if each of n is drawn as often."""
        n = self._spread.get(tensor)
        if n is None:
            return None
        return max(round(n * (1 - (1 - 1 / n) ** tensor.numel())), 1)

    def among(self, tensor: Any) -> int | None:
        """Return the n of which numbers take each as often; None: not known."""
        known: int | None = self._spread.get(tensor)
        return known

    def sure(self, tensor: Any) -> Any:
        """Return what `of` does if it is more than likely; else None."""
        found = None if _real(tensor) else self._known.get(tensor)
        if found is not None and found[1][:2] == [True, False]:
            return None
        return self.of(tensor)

    def is_even(self, tensor: Any) -> bool:
        """Whether values are known, but rest on indices that take each of n values as often."""
        found = None if _real(tensor) else self._known.get(tensor)
        return found is not None and found[1][0] and found[1][2]

    def assign(self, tensor: Any, values: Any, sure: bool = True, even: bool = False) -> None:
        """Say what the values of a tensor are.

        Parameters
        ----------
        tensor, values : torch.Tensor
            The one without, and the real one.
        sure : bool
            Whether they are more than likely.
        even : bool
            Whether they rest on an even spread.
        """
        self._known[tensor] = (values, [True, sure, even])

    def chosen(self, tensor: Any, share: float) -> None:
        """Say which share of numbers stands for something; the others are -1.

        Parameters
        ----------
        tensor : torch.Tensor
        share : float
        """
        self._chosen[tensor] = share

    # --- following operators ----------------------------------------------------------------------

    def follow(
        self, func: Any, short: str, args: Any, kwargs: Any, tensors: list[Any], results: list[Any]
    ) -> None:
        """Note what an operator does to values.

        Parameters
        ----------
        func : OpOverload
        short : str
            Its name without namespace.
        args, kwargs
            Of the call.
        tensors, results : list of torch.Tensor
            In its arguments, and what it gave.
        """
        with _disable_current_modes():
            self._followed(func, short, args, kwargs, tensors, results)

    def _followed(
        self, func: Any, short: str, args: Any, kwargs: Any, tensors: list[Any], results: list[Any]
    ) -> None:
        self._follow_zeros(short, args, results)
        self._follow_copies(short, args, results)
        self._follow_drawn(short, tensors, results)
        if not self._computed(func, short, args, kwargs, tensors, results):
            self._forget(func, args, kwargs)
            if results:
                self._follow_spread(short, args, tensors, results)
            self._follow_likely(short, args, tensors, results)
            self._guess(results)

    def _guess(self, results: list[Any]) -> None:
        """Give few numbers their likely values, for what follows from them."""
        for each in results:
            spread = each in self._share or each in self._uniform
            few = each.numel() <= MAX_KEPT_NUMBERS and not spread and self.of(each) is None
            if few and (each.is_floating_point() or each.dtype is torch.bool) and not _real(each):
                likely = self.likely(each)
                values = _full(tuple(each.shape), likely, dtype=each.dtype)
                self.assign(each, values, sure=False)

    def _computed(
        self, func: Any, short: str, args: Any, kwargs: Any, tensors: list[Any], results: list[Any]
    ) -> bool:
        """Compute the values of results if those of all operands are known."""
        if not results or short.startswith(_UNKNOWN) or any(map(_real, results)):
            return False
        if any(self.of(each) is None for each in tensors):
            return False
        if torch.Tag.nondeterministic_seeded in func.tags:
            return False
        for each in results:
            if each.layout is not torch.strided:
                return False  # a sparse tensor has no storage
            few = MAX_KEPT_INTEGERS if each.dtype in _INTEGERS else MAX_KEPT_NUMBERS
            if each.numel() > few and each.untyped_storage().nbytes() > few * each.element_size():
                return False

        def real(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.of(value)
            if isinstance(value, torch.device):
                return torch.device("cpu")
            return value

        with torch.no_grad():
            try:
                out = tree_leaves(func(*tree_map(real, args), **tree_map(real, kwargs)))
            except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
                return False
        found = [each for each in out if isinstance(each, torch.Tensor)]
        if [tuple(each.shape) for each in found] != [tuple(each.shape) for each in results]:
            return False
        entries = [self._known[each] for each in tensors if each in self._known]
        sure = all(cell[1] for _, cell in entries)
        even = any(cell[2] for _, cell in entries)
        by_storage = {values.untyped_storage()._cdata: cell for values, cell in entries}
        for each, values in zip(results, found, strict=True):
            cell = by_storage.get(values.untyped_storage()._cdata, [True, sure, even])
            cell[1], cell[2] = cell[1] and sure, cell[2] or even
            self._known[each] = (values, cell)
        return True

    def _forget(self, func: Any, args: Any, kwargs: Any) -> None:
        """Forget values of what an operator writes to, and of its views."""
        if not self._known:
            return
        schema = func._schema
        for number, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            for each in tree_leaves(value):
                if isinstance(each, torch.Tensor) and each in self._known:
                    self._known[each][1][0] = False

    def _follow_spread(self, short: str, args: Any, tensors: list[Any], results: list[Any]) -> None:
        """Follow indices that take each of n values as often, and masks made of them."""
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        out = results[0]
        name = short.rstrip("_")
        if name in ("topk", "sort", "max", "min") and len(results) > 1 and first is not None:
            axis = args[2] if name == "topk" and len(args) > 2 else -1
            if name in ("max", "min"):
                axis = args[1] if len(args) > 1 else -1
            axis = axis if isinstance(axis, int) and not isinstance(axis, bool) else -1
            self._spread[results[1]] = first.shape[axis] if first.dim() else 1
            if first in self._spread:
                self._spread[out] = self._spread[first]
        elif name == "multinomial" and first is not None:
            self._spread[out] = first.shape[-1]
        elif name in ("rand", "rand_like", "uniform") and out.is_floating_point():
            bounds = args[1:3] if name == "uniform" else ()
            self._uniform[out] = (*bounds, 0.0, 1.0)[:2] if len(bounds) == 2 else (0.0, 1.0)
        elif name in ("argmax", "argmin", "argsort", "randint", "randint_like", "random"):
            number = args[1] if len(args) > 1 else None
            if name == "argsort" or name.startswith("arg"):
                axis = number if isinstance(number, int) else -1
                self._spread[out] = first.shape[axis] if first is not None else 1
            elif args and all(isinstance(each, int) for each in args[:2]):
                self._spread[out] = args[1] - args[0]
            elif args and isinstance(args[0], int):
                self._spread[out] = args[0]
        elif name in _SAME_SPREAD and first is not None:
            kinds = self._spread, self._share, self._ranges.within, self._chosen, self._uniform
            for kept in kinds:
                if first in kept:
                    for each in results:
                        kept[each] = kept[first]
        elif first is None:
            return
        elif first in self._uniform:
            self._of_uniform(name, args, first, out)
        elif first in self._spread:
            self._of_spread(name, args, first, out)
        elif first in self._share:
            self._of_share(name, args, first, out)
        elif first in self._chosen:
            self._of_chosen(name, args, first, out)

    def _follow_zeros(self, short: str, args: Any, results: list[Any]) -> None:
        """Follow zeros, of which indices that a choice gives make a mask.

        A tensor is zeros as long as it has the version that it had then; what has none, in
        inference mode, is not followed. Of a row, indices of a choice are different ones, so that
        each place that is written to is another.
        """
        name = short.rstrip("_")
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name in _ZEROS:
            for each in results:  # what is written in place gets its version after this
                count = written(each)
                if count is not None:
                    self._zeros[each] = count + short.endswith("_")
        elif first is None or not results or self._zeros.get(first, -1) != written(first):
            return
        elif name in _STILL_ZEROS:
            for each in results:
                self._zeros[each] = written(each)
        elif name in ("scatter", "index_put"):
            indices = (
                args[2:3] if name == "scatter" else [each for each in args[1] if each is not None]
            )
            if name == "scatter" or len(indices) == first.dim():
                places = math.prod(torch.broadcast_shapes(*(each.shape for each in indices)))
                share = min(places / max(first.numel(), 1), 1.0)
                self._share[results[0]] = self._share[first] = share

    def _follow_drawn(self, short: str, tensors: list[Any], results: list[Any]) -> None:
        """Follow tokens that are drawn, to the texts that hold them.

        What chooses among scores counts as drawn, experts of a router too.
        """
        if short in ("fill_", "zero_") or (
            short == "copy_" and tensors[1:] and tensors[1] not in self._drawn
        ):
            self._drawn.pop(results[0], None)
            return
        draws = short in _DRAWS and bool(tensors) and tensors[0].is_floating_point()
        if draws or any(each in self._drawn for each in tensors):
            for each in results:
                if each.dtype in _INTEGERS and each.dtype is not torch.bool:
                    self._drawn[each] = True

    def _follow_copies(self, short: str, args: Any, results: list[Any]) -> None:
        """Keep of a tensor of the CPU that is copied what its numbers are spread over."""
        source = args[1] if short == "copy_" and len(args) > 1 else args[0] if args else None
        if short not in ("_to_copy", "copy_") or not isinstance(source, torch.Tensor):
            return
        if (
            not _real(source)
            or source.dtype not in _INTEGERS
            or source.numel() <= MAX_KEPT_INTEGERS
        ):
            return
        if source.dtype is torch.bool:
            self._share[results[0]] = int(source.sum()) / source.numel()
        elif int(source.min()) >= 0:
            self._spread[results[0]] = int(source.max()) + 1

    def _of_spread(self, name: str, args: Any, first: Any, out: Any) -> None:
        """Follow an operator of indices of which each of n is as frequent."""
        n = self._spread[first]
        other = args[1] if len(args) > 1 else None
        if name == "eq" and isinstance(other, int):
            self._share[out] = self._ranges.mark(out, first, other, other + 1, n)
        elif name == "eq":
            self._share[out] = 1 / n
        elif name == "ne":
            self._share[out] = 1 - 1 / n
        elif name in ("lt", "le", "gt", "ge") and isinstance(other, int | float):
            border = math.ceil(other) if name in ("lt", "ge") else math.floor(other) + 1
            low, high = (0, border) if name in ("lt", "le") else (border, n)
            self._share[out] = self._ranges.mark(out, first, low, high, n)
        elif name == "one_hot":
            self._share[out] = 1 / n
        elif name in ("histc", "bincount") and out.numel() <= MAX_KEPT_INTEGERS:
            self._counts(out, first.numel(), out.numel())
        elif name in ("floor_divide", "div", "bitwise_right_shift") and isinstance(other, int):
            self._spread[out] = max(n // (other if name[0] != "b" else 1 << other), 1)

    def _of_uniform(self, name: str, args: Any, first: Any, out: Any) -> None:
        """Follow a comparison of numbers that are drawn evenly between two bounds."""
        low, high = self._uniform[first]
        other = args[1] if len(args) > 1 else None
        if name in ("lt", "le", "gt", "ge") and isinstance(other, int | float) and high > low:
            below = min(max((other - low) / (high - low), 0.0), 1.0)
            self._share[out] = below if name in ("lt", "le") else 1 - below

    def _of_share(self, name: str, args: Any, first: Any, out: Any) -> None:
        """Follow an operator of a mask of which a share is true."""
        share = self._share[first]
        other = args[1] if len(args) > 1 else None
        if name in ("logical_not", "bitwise_not"):
            self._ranges.forget(out)
            self._share[out] = 1 - share
        elif name in ("bitwise_and", "logical_and", "mul", "bitwise_or", "logical_or"):
            second = self._share.get(other) if isinstance(other, torch.Tensor) else None
            if second is not None:
                either = "or" in name
                met = self._ranges.meet(out, first, other, either)
                if met is None:  # as masks that are independent
                    both = share * second
                    met = share + second - both if either else both
                self._share[out] = met
        elif name in ("sum", "count_nonzero"):
            if out.numel() <= MAX_KEPT_INTEGERS:
                self._counts(out, share * first.numel(), out.numel())
            else:
                self._total[out] = round(share * first.numel())

    def _of_chosen(self, name: str, args: Any, first: Any, out: Any) -> None:
        """Follow a comparison of numbers of which some are -1, that stand for nothing."""
        share, asked = self._chosen[first], (name, args[1] if len(args) > 1 else None)
        if asked in (("ne", -1), ("ge", 0), ("gt", -1)):
            self._share[out] = share
        elif asked in (("eq", -1), ("lt", 0), ("le", -1)):
            self._share[out] = 1 - share

    def _counts(self, out: Any, total: float, parts: int) -> None:
        """Give a tensor of counts its values: as equal as whole numbers are."""
        each, more = divmod(round(total), parts)
        values = _full((parts,), each, dtype=torch.int64)
        values[:more] += 1
        self.assign(out, values.reshape(out.shape).to(out.dtype), even=True)

    # --- communications ---------------------------------------------------------------------------

    def exchanged(
        self, operation: Operation, out: Any, given: Any, size: int, mine: int, sums: bool = True
    ) -> None:
        """Note what a communication does to values; other ranks have those that this one has.

        Parameters
        ----------
        operation : Operation
        out, given : torch.Tensor
            What it writes, and what this rank gives.
        size, mine : int
            Ranks of the group, and the position of this one.
        sums : bool
            Whether a reduction adds up; else the values stay what they are.
        """
        if _real(out):
            return
        with _disable_current_modes():
            values = self.of(given)
            entry = None if _real(given) else self._known.get(given)
            if out in self._known:
                self._known[out][1][0] = False
            if values is None:
                return
            sure, even = (True, False) if entry is None else entry[1][1:]
            found = values.reshape(-1)
            if operation is Operation.ALL_GATHER:
                found = found.repeat(out.numel() // max(found.numel(), 1))
            elif operation in (Operation.ALL_TO_ALL, Operation.REDUCE_SCATTER):
                if found.numel() % size:
                    return
                found = found.reshape(size, -1)[mine]
                if operation is Operation.ALL_TO_ALL:
                    found = found.repeat(size)
            if operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER) and sums:
                found = found * size
            if found.numel() == out.numel():
                self.assign(out, found.reshape(tuple(out.shape)).to(out.dtype), sure, even)

    def _follow_likely(self, short: str, args: Any, tensors: list[Any], results: list[Any]) -> None:
        """Keep what is likely of values that no tensor has."""
        name = short.rstrip("_")
        other = args[1] if len(args) > 1 else None
        if name in ("isnan", "isinf"):
            zero = True
        elif name == "ne":  # not a number is what does not equal itself
            zero = other is args[0]
        elif name == "eq":
            zero = isinstance(other, float) and math.isinf(other)
            zero = zero or (results[0] in self._share and self._share[results[0]] < 1 / 2)
        elif name == "isin":  # a drawn token is rarely one of few that end a text
            zero = args[0] in self._drawn
        elif name == "_amp_foreach_non_finite_check_and_unscale":
            self._likely[args[1]] = 0.0  # from which the next scale follows
            self._guess(args[1:2])
            return
        elif name in _PASSED_ON:
            zero = bool(tensors) and all(map(self._is_zero, tensors))
        elif name.endswith("_ex") and "linalg_" in name:  # a factorization says that it succeeded
            self._likely[results[-1]] = 0.0
            return
        elif name in ("logical_not", "bitwise_not") and tensors[0] in self._likely:
            self._likely[results[0]] = 1.0 - self._likely[tensors[0]]
            return
        else:
            zero = False
        for each in results:
            if zero:
                self._likely[each] = 0.0
            elif each in self._likely:
                del self._likely[each]

    def _is_zero(self, tensor: Any) -> bool:
        """Whether all values of a tensor are likely 0."""
        if tensor in self._likely:
            return bool(self._likely[tensor] == 0.0)
        known = self.of(tensor)
        return known is not None and known.numel() <= MAX_KEPT_INTEGERS and not known.any()
