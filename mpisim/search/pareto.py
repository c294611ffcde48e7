"""Pareto fronts, and which candidates can still matter to an answer. All values are minimised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["dominated", "front"]

Values = NDArray[np.float64]

CHUNK = 256
"""Points compared at once with all others."""


def dominated(points: Values, by: Values) -> NDArray[np.bool_]:
    """Points → whether some other point is as good in all respects, and better in one.

    Parameters
    ----------
    points : float64, shape (n, d)
    by : float64, shape (m, d)

    Returns
    -------
    bool, shape (n,)
    """
    found = np.zeros(len(points), bool)
    for at in range(0, len(points), CHUNK):
        some = points[at : at + CHUNK, None, :]
        as_good: NDArray[np.bool_] = np.all(by[None] <= some, axis=2)
        better: NDArray[np.bool_] = np.any(by[None] < some, axis=2)
        found[at : at + CHUNK] = (as_good & better).any(axis=1)
    return found


def front(points: Values) -> NDArray[np.int64]:
    """Points → those that no other dominates, the best in the first respect first.

    Parameters
    ----------
    points : float64, shape (n, d)

    Returns
    -------
    int64
        Their numbers; of equal points all.
    """
    # One that dominates another stands before it in this order, so a running front suffices.
    order = np.lexsort(points.T[::-1])
    kept: list[int] = []
    for number in order.tolist():
        if not len(kept) or not dominated(points[[number]], points[kept])[0]:
            kept.append(number)
    return np.array(kept, np.int64)
