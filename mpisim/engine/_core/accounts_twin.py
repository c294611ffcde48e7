"""Where the time of a rank went, in plain Python: what `accounts` compiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["COPY", "KERNEL", "WAITING", "WIRE", "account"]

KERNEL, COPY, WAITING, WIRE = 1, 2, 4, 8

SETS = (
    KERNEL,
    KERNEL | COPY,
    WAITING | WIRE,
    KERNEL | COPY | WIRE,
    KERNEL | COPY | WAITING | WIRE,
)
"""What `covered` tells: the time in which any of these was under way."""


def account(
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    wire: NDArray[np.int64],
    order: NDArray[np.int32],
    stream_index: NDArray[np.int64],
    layer: NDArray[np.uint8],
    key: NDArray[np.int32],
    n_keys: int,
    until: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Add up the rows of a rank.

    Parameters
    ----------
    begin, end, wire : int64, shape (n,)
        As in `mpisim.engine.rows.Rows`, in ps.
    order : int32, shape (m,)
        The device rows, stream after stream.
    stream_index : int64, shape (n_streams + 1,)
        The rows of stream i are ``order[stream_index[i]:stream_index[i + 1]]``.
    layer : uint8, shape (n,)
        KERNEL, COPY or, for communications, WIRE.
    key : int32, shape (n,)
        What a device row counts as.
    n_keys : int
    until : int
        ps. What lies outside [0, `until`] covers nothing.

    Returns
    -------
    covered : int64, shape (len(SETS),)
        ps.
    spent, waited, longest : int64, shape (n_keys,)
        ps from wire to end, from begin to wire, and the longest of the former.
    """
    spent, waited, longest = np.zeros((3, n_keys), np.int64)
    intervals = []
    for row in order.tolist():
        first, middle, last = int(begin[row]), int(wire[row]), int(end[row])
        spent[key[row]] += last - middle
        waited[key[row]] += middle - first
        longest[key[row]] = max(longest[key[row]], last - middle)
        if layer[row] == WIRE:
            intervals.append((first, middle, WAITING))
        intervals.append((middle, last, int(layer[row])))
    covered, reach = [0] * len(SETS), [0] * len(SETS)
    for first, last, what in sorted(intervals):
        for i, those in enumerate(SETS):
            new = max(first, reach[i])
            if what & those and min(last, until) > new:
                covered[i] += min(last, until) - new
                reach[i] = min(last, until)
    return np.array(covered, np.int64), spent, waited, longest
