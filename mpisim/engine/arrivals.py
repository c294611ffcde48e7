"""Who came last to a group of a folded run, of all its members and not only the simulated ones."""

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

__all__ = ["Arrivals"]


class Arrivals:
    """The ready times of the communications of every simulated rank, on every process.

    Groups that are alike start when members of the same classes are ready; but which of these
    has the lowest number, and so counts as the last of several, is another one in each group.
    """

    def __init__(self, plan: Distribution, ready: list[NDArray[np.int64]]) -> None:
        self._program, self._of_rank = plan.program, plan.cast.classes.of_rank
        self._ready = ready
        self._tables = plan.program.table[plan.cast.classes.representative].tolist()
        self._rows: dict[tuple[int, int], NDArray[np.intp]] = {}
        self._members: dict[int, list[tuple[int, int, int]]] = {}

    @classmethod
    def of(cls, plan: Distribution, solution: Solution, comm: Intracomm | None) -> Arrivals:
        """Share when the ranks hosted here were ready. **Collective** on `comm`.

        Parameters
        ----------
        plan : Distribution
            Of a folded run.
        solution : Solution
            Of the hosted ranks of the cast.
        comm : mpi4py.MPI.Intracomm or None
            None: one process.
        """
        tables = [plan.program.table_of(rank) for rank in plan.cast.classes.representative]
        own = [
            solution.rows(local).begin[tables[simulated].is_communication]
            for local, simulated in enumerate(plan.hosted.tolist())
        ]
        if comm is None:
            return cls(plan, own)
        counts = np.array([int(table.operations.sum()) for table in tables], np.int64)
        everything = np.empty(int(counts.sum()), np.int64)
        # Ranks of the cast lie on processes in blocks, so that what they send is in their order.
        on_process = np.bincount(plan.placement, counts, comm.size).astype(np.int64)
        mine = np.concatenate([np.empty(0, np.int64), *own])
        comm.Allgatherv(mine, [everything, (on_process, np.cumsum(on_process) - on_process)])
        return cls(plan, np.split(everything, np.cumsum(counts)[:-1]))

    def last(self, communicator: int, k: int, start: int) -> int:
        """Return the lowest of the members that were ready when their k-th operation started.

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
        raise AssertionError(f"nobody was the last to come to communicator {communicator}")

    def _row(self, simulated: int, slot: int, k: int) -> int:
        """The k-th operation on a slot, counted among all communications of its table."""
        number = self._tables[simulated]
        if (number, slot) not in self._rows:
            table = self._program.tables[number]
            assert table is not None
            rows = np.flatnonzero(table.is_communication)
            self._rows[number, slot] = np.searchsorted(rows, table.rows_on(slot))
        return int(self._rows[number, slot][k])

    def _entries(self, communicator: int) -> list[tuple[int, int, int]]:
        """The lowest member of each (simulated rank, slot), and these two; lowest first."""
        program: Program = self._program
        members = np.sort(np.array(program.communicators.group(communicator), np.int64))
        at, owner = ranges(program.slot_index, members)
        bound = np.flatnonzero(program.slots[at] == communicator)
        ranks = members[owner[bound]]
        slots = at[bound] - program.slot_index[ranks]
        pairs = np.stack([self._of_rank[ranks], slots], axis=1)
        _, first = np.unique(pairs, axis=0, return_index=True)
        return [(int(ranks[i]), int(pairs[i, 0]), int(pairs[i, 1])) for i in np.sort(first)]
