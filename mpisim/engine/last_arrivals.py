"""Ready times of communications in a folded run → the member that arrived last.

A folded run simulates one rank of each equivalence class. Equivalent communicators start when
members of the same classes are ready. Of several members that were ready last at the same time, the
one with the lowest number counts as the last. It differs between equivalent communicators, and is
found here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..program import Program
from .distribution import Distribution
from .refine import ranges
from .rows import Solution

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["LastArrivals"]


class LastArrivals:
    """Ready times of the communications of every simulated rank, on every process.

    Parameters
    ----------
    distribution : Distribution
        Of a folded run.
    ready : list of int64 arrays
        By simulated rank, when it was ready for each of its communications, in ps.
    """

    def __init__(self, distribution: Distribution, ready: list[NDArray[np.int64]]) -> None:
        self._program, self._of_rank = distribution.program, distribution.simulated.classes.of_rank
        self._ready = ready
        self._tables = distribution.program.table[
            distribution.simulated.classes.representative
        ].tolist()
        self._rows: dict[tuple[int, int], NDArray[np.intp]] = {}
        self._members: dict[int, list[tuple[int, int, int]]] = {}

    @classmethod
    def of(
        cls, distribution: Distribution, solution: Solution, comm: Intracomm | None
    ) -> LastArrivals:
        """Exchange the ready times of hosted ranks. **Collective** on `comm`.

        Parameters
        ----------
        distribution : Distribution
            Of a folded run.
        solution : Solution
            Of the hosted simulated ranks.
        comm : mpi4py.MPI.Intracomm or None
            None: one process.
        """
        tables = [
            distribution.program.table_of(rank)
            for rank in distribution.simulated.classes.representative
        ]
        own = [
            solution.rows(local).begin[tables[simulated].is_communication]
            for local, simulated in enumerate(distribution.hosted.tolist())
        ]
        if comm is None:
            return cls(distribution, own)
        counts = np.array([int(table.operations.sum()) for table in tables], np.int64)
        everything = np.empty(int(counts.sum()), np.int64)
        # Simulated ranks lie on processes in contiguous blocks: parts arrive in their order.
        on_process = np.bincount(distribution.placement, counts, comm.size).astype(np.int64)
        mine = np.concatenate([np.empty(0, np.int64), *own])
        comm.Allgatherv(mine, [everything, (on_process, np.cumsum(on_process) - on_process)])
        return cls(distribution, np.split(everything, np.cumsum(counts)[:-1]))

    def last(self, communicator: int, k: int, start: int) -> int:
        """Return the lowest member that became ready when the k-th operation started.

        Parameters
        ----------
        communicator : int
            Of the program.
        k : int
        start : int
            ps.
        """
        if communicator not in self._members:
            self._members[communicator] = self._entries(communicator)
        for rank, simulated, slot in self._members[communicator]:
            if self._ready[simulated][self._row(simulated, slot, k)] == start:
                return rank
        raise AssertionError(f"no member arrived last at communicator {communicator}")

    def _row(self, simulated: int, slot: int, k: int) -> int:
        """Return the index of the k-th operation on a slot among all those of its table."""
        number = self._tables[simulated]
        if (number, slot) not in self._rows:
            table = self._program.tables[number]
            assert table is not None
            rows = np.flatnonzero(table.is_communication)
            self._rows[number, slot] = np.searchsorted(rows, table.rows_on(slot))
        return int(self._rows[number, slot][k])

    def _entries(self, communicator: int) -> list[tuple[int, int, int]]:
        """Return (lowest member, simulated rank, slot) of each pair of the latter, lowest first."""
        program: Program = self._program
        members = np.sort(np.array(program.communicators.group(communicator), np.int64))
        at, owner = ranges(program.slot_index, members)
        bound = np.flatnonzero(program.slots[at] == communicator)
        ranks = members[owner[bound]]
        slots = at[bound] - program.slot_index[ranks]
        pairs = np.stack([self._of_rank[ranks], slots], axis=1)
        _, first = np.unique(pairs, axis=0, return_index=True)
        return [(int(ranks[i]), int(pairs[i, 0]), int(pairs[i, 1])) for i in np.sort(first)]
