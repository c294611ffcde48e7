"""A round trip through the routers of a grid that passes each link once at most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["round_trip"]


def round_trip(dims: Sequence[int], wraps: Sequence[bool]) -> NDArray[np.int64]:
    """From the sizes of a grid to the routers in the order of a round trip.

    A comb: along the first row, back and forth through all others but for their first places, and
    home through these. A row lies along all dimensions but one, as a ring or back and forth itself.
    Where a dimension is even, or rows are rings, every hop is to a neighbour; of a mesh whose
    dimensions are all odd one hop leads from the end of a row to its beginning.

    Parameters
    ----------
    dims : sequence of int
        Routers along each dimension; they are numbered with the last dimension fastest.
    wraps : sequence of bool
        Whether a dimension closes to a ring.

    Returns
    -------
    int64, shape (prod(dims),)

    Examples
    --------
    >>> round_trip([2, 3], [False, False]).tolist()
    [0, 1, 2, 5, 4, 3]
    """
    return np.ravel_multi_index(tuple(_trip(list(dims), list(wraps))[0].T), tuple(dims))


def _trip(dims: list[int], wraps: list[bool]) -> tuple[NDArray[np.int64], bool]:
    """Return router coordinates in visiting order, shape (n, d), and whether it is a cycle."""
    d = len(dims)
    wide = [axis for axis in range(d) if dims[axis] > 1]
    if len(wide) <= 1:
        size = max(dims, default=1)
        found = np.zeros((size, d), np.int64)
        if wide:
            found[:, wide[0]] = np.arange(size)
        return found, size <= 2 or wraps[wide[0]]
    # Rows lie along all dimensions but one; of an even number of them the way ends near the start.
    even = [axis for axis in wide if dims[axis] % 2 == 0]
    down = (even or wide)[0]
    others = [axis for axis in range(d) if axis != down]
    row, ring = _trip([dims[axis] for axis in others], [wraps[axis] for axis in others])
    if not ring:
        row = _snake([dims[axis] for axis in others])
    rows, length = dims[down], len(row)
    places = [(0, at) for at in range(length)]
    for i in range(1, rows):
        step = range(1, length) if i % 2 == 0 else range(length - 1, 0, -1)
        places += [(i, at) for at in step]
    places += [(i, 0) for i in range(rows - 1, 0, -1)]
    order = np.array(places, np.int64)
    found = np.empty((len(order), d), np.int64)
    found[:, down] = order[:, 0]
    found[:, others] = row[order[:, 1]]
    return found, rows % 2 == 0 or ring


def _snake(dims: list[int]) -> NDArray[np.int64]:
    """Return coordinates along a way that goes back and forth, from neighbour to neighbour."""
    found = np.zeros((1, 0), np.int64)
    for size in reversed(dims):
        rows = [found[:: 1 if i % 2 == 0 else -1] for i in range(size)]
        found = np.concatenate(
            [np.column_stack([np.full(len(row), i), row]) for i, row in enumerate(rows)]
        )
    return found
