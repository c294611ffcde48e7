"""The different values of an array: what they are, and which of them each entry is."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["dense", "distinct"]

Number = TypeVar("Number", bound=np.generic)


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Return the different values of an array, ascending, as `np.unique` does.

    `np.unique` takes several times as long for small arrays, of which a plan has a hundred, and
    loads all of ``numpy.ma`` first, to see whether the array is a masked one.

    Parameters
    ----------
    values : array of any shape
        Of numbers, none of them NaN.
    """
    ordered = np.sort(values, axis=None)
    first = np.empty(ordered.shape, bool)
    first[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def dense(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Numbers, at least 0 → the same in 0 to n - 1, in their order, and n.

    Examples
    --------
    >>> dense(np.array([7, 3, 7]))
    (array([1, 0, 1]), 2)
    """
    end = int(keys.max(initial=-1)) + 1
    if end > 8 * len(keys) + 4096:
        found, number = np.unique(keys, return_inverse=True)
        return number.reshape(-1).astype(np.int64), len(found)
    present = np.zeros(end, bool)
    present[keys] = True
    number = np.cumsum(present) - 1
    return number[keys], int(present.sum())
