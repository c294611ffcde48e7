"""What every row of a rank did, worked out when asked for.

The cores keep no record of rows: a run of many ranks has more rows than a machine has memory. They
know when each communication began and ended; all else of a rank follows from that, its table and
its durations, in one pass that waits for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._core import Ledger, fingerprint, rows_of

if TYPE_CHECKING:
    from .plan import Layout

__all__ = ["Rows", "Solution"]

_KEPT = 4
"""Ranks whose rows are kept, in case they are asked for again."""


class Rows(NamedTuple):
    """What the rows of one rank did. Times are in ps.

    Attributes
    ----------
    begin : int64, shape (n,)
        KERNEL, COPY: start on the device. Communications: the rank's own ready time, from which
        its kernel occupies the stream. HOST, HOST_WAIT: when the CPU began the row's own work.
    end : int64, shape (n,)
        End on the device; for HOST and HOST_WAIT when the CPU had finished.
    wire : int64, shape (n,)
        Communications: when the last member was ready, from which the wire time runs (EAGER: the
        own ready time, from which its wire time runs); other rows as `begin`.
    binding : uint8, shape (n,)
        A `Binding` of each row.
    host_end : int
        When the CPU was done with the last row.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    wire: NDArray[np.int64]
    binding: NDArray[np.uint8]
    host_end: int


class Solution:
    """The ranks simulated on this process, by their local numbers, after a run.

    Parameters
    ----------
    layout : Layout
    core : Core
        After the run.
    """

    def __init__(self, layout: Layout, core: Any) -> None:
        self._layout, self._core = layout, core
        self._kept: dict[int, Rows] = {}

    def rows(self, local: int) -> Rows:
        """Return what the rows of a rank did."""
        found = self._kept.pop(local, None)
        if found is None:
            layout = self._layout
            found = Rows(
                *rows_of(
                    layout.codes[layout.code[local]],
                    layout.durations_of(local),
                    int(layout.start[local]),
                    *self._core.met(local),
                )
            )
        self._kept[local] = found
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]  # the one asked for the longest time ago
        return found

    def account(
        self, local: int, ledger: Ledger, until: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Add up what the rows of a rank did, as `Ledger.of_rank` says, without keeping them."""
        layout = self._layout
        found: tuple[NDArray[np.int64], NDArray[np.int64], int] = ledger.of_rank(
            layout.codes[layout.code[local]],
            layout.durations_of(local),
            int(layout.start[local]),
            *self._core.met(local),
            until,
        )
        return found

    def last(self, local: int) -> NDArray[np.int32]:
        """Return which simulated rank was ready last for each communication of a rank."""
        found: NDArray[np.int32] = self._core.last(local)
        return found

    def alike(self) -> NDArray[np.int64]:
        """Find ranks whose rows did the same at the same times, whomever they met.

        Returns
        -------
        int64, shape (h,)
            Of each rank the lowest whose rows are the same.
        """
        layout = self._layout
        lowest: dict[tuple[Any, ...], int] = {}
        found = np.empty(len(layout.numbers), np.int64)
        code, start = layout.code.tolist(), layout.start.tolist()
        for local in range(len(found)):
            met = fingerprint(*self._core.met(local))
            key = (code[local], layout.duration_key(local), start[local], *met)
            found[local] = lowest.setdefault(key, local)
        return found
