"""Masks of ranges of what is drawn evenly among n → how many rows each selects.

Programs that sort rows by their target, as an adaptive softmax does its clusters, compare one
tensor with the ends of each range, and check that no row is left over. So two ranges of the same
tensor meet in a range, where masks of two tensors are independent; and ranges that together hold
all n have all rows: range (low, high) of N rows has those between N low / n and N high / n, each
rounded.
"""

from __future__ import annotations

from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Ranges", "written"]


def written(tensor: Any) -> int | None:
    """Tensor → how often something was written into it; None: not counted, in inference mode.

    Parameters
    ----------
    tensor : torch.Tensor
    """
    return None if tensor.is_inference() else tensor._version


class Ranges:
    """Which masks are true where one tensor has a number of a range.

    Attributes
    ----------
    within : WeakIdKeyDictionary
        Mask → what stands for the tensor as it was compared, low, high (not in it) and n.
    """

    def __init__(self) -> None:
        self.within: Any = WeakIdKeyDictionary()
        self._compared: Any = WeakIdKeyDictionary()

    def mark(self, mask: Any, drawn: Any, low: int, high: int, n: int) -> float:
        """Say that a mask is true where what is drawn has low, …, high - 1 → its share of rows.

        Parameters
        ----------
        mask, drawn : torch.Tensor
        low, high : int
            Cut to what is drawn.
        n : int
            Numbers from 0 that are drawn as often.
        """
        version, it = self._compared.get(drawn, (None, None))
        now = written(drawn)
        if version is None or version != now:  # something may have been written into it
            it = object()
            self._compared[drawn] = now, it
        return self._keep(mask, it, low, high, n)

    def meet(self, out: Any, first: Any, second: Any, either: bool) -> float | None:
        """Note the mask that "and" or "or" makes of two → its share; None: not of one tensor.

        Parameters
        ----------
        out, first, second : torch.Tensor
        either : bool
            Whether it is "or".
        """
        ours, theirs = self.within.get(first), self.within.get(second)
        self.forget(out)
        if ours is None or theirs is None or ours[0] is not theirs[0]:
            return None
        it, low, high, n = ours
        lower, upper = (low, high), theirs[1:3]
        if lower > upper:
            lower, upper = upper, lower
        if not either:
            return self._keep(out, it, upper[0], min(lower[1], upper[1]), n)
        if upper[0] <= lower[1]:
            return self._keep(out, it, lower[0], max(lower[1], upper[1]), n)
        return float(lower[1] - lower[0] + upper[1] - upper[0]) / n

    def forget(self, mask: Any) -> None:
        """Take a mask for one that is of no range."""
        self.within.pop(mask, None)

    def rows(self, mask: Any) -> int | None:
        """Return how many elements of a mask are true; None: it is of no range."""
        if mask not in self.within:
            return None
        _, low, high, n = self.within[mask]
        return round(high * mask.numel() / n) - round(low * mask.numel() / n)

    def _keep(self, mask: Any, it: object, low: int, high: int, n: int) -> float:
        low = min(max(low, 0), n)
        high = min(max(high, low), n)
        self.within[mask] = it, low, high, n
        return (high - low) / n
