"""Deadlock diagnostics: the row each rank is blocked at, and the members that never posted.

A core knows rows and numbers of communications; the names come from the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import DeadlockError
from .distribution import Distribution

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["deadlock"]

_MAX_NAMED = 4
"""Ranks that wait, and members that never posted, that a message names."""


class _Blocked(NamedTuple):
    """A rank that waits at a row for the k-th operation of a communicator."""

    rank: int
    row: int
    name: str
    communicator: int
    k: int


def deadlock(distribution: Distribution, core: Any, comm: Intracomm | None) -> DeadlockError:
    """Run in which no rank can move → the error that says why. **Collective** on `comm`.

    Parameters
    ----------
    distribution : Distribution
    core : Core
        Of which no rank can move.
    comm : mpi4py.MPI.Intracomm or None
        None: one process.

    Returns
    -------
    DeadlockError
        The same on every process.
    """
    local = np.flatnonzero(core.blocked() >= 0)
    own = [_describe(distribution, core, i) for i in local[:_MAX_NAMED].tolist()]
    found = [(own, len(local))] if comm is None else comm.allgather((own, len(local)))
    shown = sorted(one for part, _ in found for one in part)[:_MAX_NAMED]
    n_blocked = sum(n for _, n in found)

    absent = [_absent(distribution, core, one) for one in shown]
    parts = [absent] if comm is None else comm.allgather(absent)
    texts = []
    for i, one in enumerate(shown):
        missing = sorted(rank for part in parts for rank in part[i])
        name = distribution.program.communicators.names[one.communicator]
        texts.append(
            f"rank {one.rank} waits at row {one.row} ({one.name}) for operation {one.k} of "
            f"communicator {one.communicator} ({name}), to which {_listed(missing)} never came"
        )
    more = f"; and {n_blocked - len(shown)} more ranks wait" if n_blocked > len(shown) else ""
    return DeadlockError("deadlock: " + "; ".join(texts) + more)


def _describe(distribution: Distribution, core: Any, local: int) -> _Blocked:
    """Hosted rank → the row at which it waits."""
    rank = int(distribution.hosted[local])
    table = distribution.program.table_of(rank)
    index, k = distribution.locate(core.blocked()[local : local + 1])
    communicator = int(distribution.communicators[index[0]])
    row = int(core.rows()[local])
    if row == len(table):  # all rows are launched; what it waits for is its own communication
        row = _row_of(distribution, rank, communicator, int(k[0]))
    name = distribution.program.names[table.name[row]]
    return _Blocked(rank, row, name, communicator, int(k[0]))


def _absent(distribution: Distribution, core: Any, where: _Blocked) -> list[int]:
    """Operation → hosted members of its communicator that have not posted to it."""
    members = np.array(distribution.program.communicators.group(where.communicator))
    rows: NDArray[np.int32] = core.rows()
    absent = []
    for rank in members[np.isin(members, distribution.hosted)].tolist():
        local = int(np.searchsorted(distribution.hosted, rank))
        if rows[local] <= _row_of(distribution, rank, where.communicator, where.k):
            absent.append(rank)
    return absent


def _row_of(distribution: Distribution, rank: int, communicator: int, k: int) -> int:
    """Return the row of a rank that is the k-th operation of a communicator."""
    slot = int(np.flatnonzero(distribution.program.slots_of(rank) == communicator)[0])
    table = distribution.program.table_of(rank)
    return int(np.flatnonzero((table.slot == slot) & (table.ordinal == k))[0])


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MAX_NAMED]))
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"
