"""Where the time of a rank went, in plain Python: what `accounts` compiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rows_twin import rows_of

__all__ = ["COPY", "KERNEL", "WAITING", "WIRE", "Ledger"]

KERNEL, COPY, WAITING, WIRE = 1, 2, 4, 8

SETS = (
    KERNEL,
    KERNEL | COPY,
    WAITING | WIRE,
    KERNEL | COPY | WIRE,
    KERNEL | COPY | WAITING | WIRE,
)
"""What `covered` tells: the time in which any of these was under way."""


class Ledger:
    """Adds up the rows of ranks of one table.

    Parameters
    ----------
    order : int32, shape (m,)
        The device rows, stream after stream.
    stream_index : int64, shape (n_streams + 1,)
        The rows of stream i are ``order[stream_index[i]:stream_index[i + 1]]``.
    layer : uint8, shape (n,)
        KERNEL, COPY or, for communications, WIRE.
    key : int32, shape (n,)
        What a device row counts as.
    n_keys : int
    """

    def __init__(
        self,
        order: NDArray[np.int32],
        stream_index: NDArray[np.int64],
        layer: NDArray[np.uint8],
        key: NDArray[np.int32],
        n_keys: int,
    ) -> None:
        self._order, self._layer, self._key = order.tolist(), layer.tolist(), key.tolist()
        self._n_keys = n_keys

    def of_rows(
        self,
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        wire: NDArray[np.int64],
        until: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add up the rows of a rank.

        Parameters
        ----------
        begin, end, wire : int64, shape (n,)
            As in `mpisim.engine.rows.Rows`, in ps.
        until : int
            ps. What lies outside [0, `until`] covers nothing.

        Returns
        -------
        covered : int64, shape (len(SETS),)
            ps.
        sums : int64, shape (3, n_keys)
            ps from wire to end, from begin to wire, and the longest of the former.
        """
        sums = np.zeros((3, self._n_keys), np.int64)
        spent, waited, longest = sums
        intervals = []
        for row in self._order:
            first, middle, last = int(begin[row]), int(wire[row]), int(end[row])
            key = self._key[row]
            spent[key] += last - middle
            waited[key] += middle - first
            longest[key] = max(longest[key], last - middle)
            if self._layer[row] == WIRE:
                intervals.append((first, middle, WAITING))
            intervals.append((middle, last, self._layer[row]))
        covered, reach = [0] * len(SETS), [0] * len(SETS)
        for first, last, what in sorted(intervals):
            for i, those in enumerate(SETS):
                new = max(first, reach[i])
                if what & those and min(last, until) > new:
                    covered[i] += min(last, until) - new
                    reach[i] = min(last, until)
        return np.array(covered, np.int64), sums

    def of_rank(
        self,
        code: Any,
        durations: NDArray[np.int64],
        start: int,
        met_start: NDArray[np.int64],
        met_end: NDArray[np.int64],
        until: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Add up the rows of a rank, which are found anew and not kept.

        Parameters
        ----------
        code, durations, start, met_start, met_end
            As for `mpisim.engine._core.rows_twin.rows_of`.
        until : int

        Returns
        -------
        covered, sums
        host_end : int
        """
        begin, end, wire, _, host_end = rows_of(code, durations, start, met_start, met_end)
        return *self.of_rows(begin, end, wire, until), host_end
