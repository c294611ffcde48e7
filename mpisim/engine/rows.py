"""Start, end and binding input of every row of a rank, recomputed on demand.

The cores keep no record of rows: a run of many ranks has more rows than a machine has memory. They
keep when each communication began and ended; all else of a rank follows from that, its table and
its durations, in one pass over the rank by itself. The pass evaluates the recurrence that the
cores evaluate, on the same integers, so the rows are those of the run, to the bit.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.array_keys import size_of
from ..base.lru_cache import LruCache
from ..base.plain_integers import PlainInteger
from ._core import N_LANES, Ledger, fingerprint, rows_of

if TYPE_CHECKING:
    from .core_input import CoreInput
    from .lowering import LoweredTable

__all__ = ["Binding", "Rows", "Solution"]

_MAX_CACHED_BYTES = 1 << 24
"""Of cached rows, 25 a row and rank: those of all tables of most plans, which several passes over a
run ask for one after another."""


class Binding(PlainInteger, IntEnum):
    """Binding input of a row: the one that arrived last and so set the time the row was ready."""

    HOST = 0
    """The CPU: its clock plus the launch latency (HOST_WAIT: nothing waited for was later)."""
    STREAM = 1
    """The previous kernel of the stream, plus the gap."""
    WAIT = 2
    """``WAIT + i``: the i-th of the row's waits, plus the gap. A row with more than 126 waits says
    ``WAIT + 125`` for the 126th and all later ones."""
    QUEUE = 128
    """Bit set beside the above: the launching call itself had to wait for the stream's launch
    queue. Of equal inputs the stream counts before waits, waits before the host; JOINED rows say
    what their batch's first row says, without this bit."""


class Rows(NamedTuple):
    """Timeline of the rows of one rank. Times are in ps.

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
    """Timelines of the ranks simulated on this process, by their local numbers, after a run.

    Parameters
    ----------
    core_input : CoreInput
        Input of the core.
    core : Core
        After the run.
    """

    def __init__(self, core_input: CoreInput, core: Any) -> None:
        self._input, self._core = core_input, core
        self._cached: LruCache[Rows] = LruCache(_MAX_CACHED_BYTES, size_of)

    def rows(self, local: int) -> Rows:
        """Return the timeline of a rank."""
        return self._cached.get(local, lambda: Rows(*rows_of(*self._known(local))))

    def lasting(self, local: int) -> NDArray[np.int64]:
        """Return the time of each row of a rank without waits, in ps: its end less its `wire`.

        Known without the timeline of the rank, which takes several times as long.
        """
        begin, end = self._core.communication_times(local)
        found = self._input.durations_of(local).copy()
        found[self._input.lowered_of(local).communications["row"]] = end - begin
        return found

    def lowered(self, local: int) -> LoweredTable:
        """Return the lowered table of a rank."""
        return self._input.lowered_of(local)

    def accounts(
        self, locals: NDArray[np.int64], ledger: Ledger, until: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Add up the times of the rows of ranks without storing them: see `Ledger.of_ranks`.

        Parameters
        ----------
        locals : int64, shape (n,)
            The ranks.
        ledger : Ledger
            For the ranks' tables, which differ in durations alone.
        until : int
            End of the run, in ps: what lies after it does not count.

        Returns
        -------
        covered : int64, shape (n, n_parts + 1)
        sums : int64, shape (n, 3, n_keys)
        host_end : int64, shape (n,)
        """
        given = self._input
        found = []
        for first in range(0, len(locals), N_LANES):
            some = locals[first : first + N_LANES]
            ranks = some.tolist()
            varies, factors = given.variation, None
            if varies is not None:
                factors = varies.factor[some], varies.key[some], varies.table
            found.append(
                ledger.of_ranks(
                    given.lowered_of(ranks[0]),
                    [given.durations[given.duration[i]] for i in ranks],
                    factors,
                    given.start[some],
                    [self._core.communication_times(i) for i in ranks],
                    until,
                )
            )
        covered, sums, host_end = (np.concatenate(each) for each in zip(*found, strict=True))
        return covered, sums, host_end

    def _known(self, local: int) -> tuple[Any, ...]:
        """Inputs of the timeline of a rank, in the order of `rows_of`."""
        return (
            self._input.lowered_of(local),
            self._input.durations_of(local),
            int(self._input.start[local]),
            *self._core.communication_times(local),
        )

    def last_ready(self, local: int) -> NDArray[np.int32]:
        """Return the simulated rank that was ready last, for each communication of a rank."""
        found: NDArray[np.int32] = self._core.last_ready(local)
        return found

    def identical(self) -> NDArray[np.int64]:
        """Find ranks with identical timelines, whichever ranks they communicate with.

        Returns
        -------
        int64, shape (h,)
            For each rank the lowest local number with the same timeline.
        """
        given = self._input
        keys: dict[tuple[Any, ...], list[int]] = {}
        of_rank = zip(given.table.tolist(), given.start.tolist(), strict=True)
        for local, (table, start) in enumerate(of_rank):
            keys.setdefault((table, given.duration_key(local), start), []).append(local)
        found = np.arange(len(given.numbers))
        for ranks in keys.values():
            if len(ranks) == 1:  # with jitter all are: no need to look at times
                continue
            lowest: dict[tuple[int, int], int] = {}
            for local in ranks:
                times = fingerprint(*self._core.communication_times(local))
                found[local] = lowest.setdefault(times, local)
        return found
