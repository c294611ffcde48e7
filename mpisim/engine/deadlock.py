"""Telling a deadlock: which ranks wait, where, and who never came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import DeadlockError
from .plan import Plan

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["deadlock"]

_SHOWN = 4
"""Ranks, and members that never came, that a message names."""


class _Blocked(NamedTuple):
    rank: int
    row: int
    name: str
    communicator: int
    k: int


def deadlock(plan: Plan, core: Any, comm: Intracomm | None) -> DeadlockError:
    """Return the error that describes a run in which no rank can move.

    **Collective** on `comm` (None: one process); the error is the same on every process.
    """
    local = np.flatnonzero(core.blocked() >= 0)
    own = [_describe(plan, core, i) for i in local[:_SHOWN].tolist()]
    found = [(own, len(local))] if comm is None else comm.allgather((own, len(local)))
    shown = sorted(one for part, _ in found for one in part)[:_SHOWN]
    n_blocked = sum(n for _, n in found)

    absent = [_absent(plan, core, one) for one in shown]
    parts = [absent] if comm is None else comm.allgather(absent)
    texts = []
    for i, one in enumerate(shown):
        missing = sorted(rank for part in parts for rank in part[i])
        group = f"communicator {one.communicator} ({_group_name(plan, one.communicator)})"
        texts.append(
            f"rank {one.rank} waits at row {one.row} ({one.name}) for operation {one.k} of "
            f"{group}, to which {_listed(missing)} never came"
        )
    more = f"; and {n_blocked - len(shown)} more ranks wait" if n_blocked > len(shown) else ""
    return DeadlockError("deadlock: " + "; ".join(texts) + more)


def _describe(plan: Plan, core: Any, local: int) -> _Blocked:
    """Say where a hosted rank waits."""
    rank = int(plan.hosted[local])
    table = plan.program.table_of(rank)
    index, k = plan.locate(core.blocked()[local : local + 1])
    communicator = int(plan.communicators[index[0]])
    row = int(core.rows()[local])
    if row == len(table):  # all rows are launched; what it waits for is its own communication
        row = _row_of(plan, rank, communicator, int(k[0]))
    name = plan.program.names[table.name[row]]
    return _Blocked(rank, row, name, communicator, int(k[0]))


def _absent(plan: Plan, core: Any, where: _Blocked) -> list[int]:
    """Return the hosted members of a communicator that have not posted to its k-th operation."""
    members = np.array(plan.program.communicators.group(where.communicator))
    rows: NDArray[np.int32] = core.rows()
    absent = []
    for rank in members[np.isin(members, plan.hosted)].tolist():
        local = int(np.searchsorted(plan.hosted, rank))
        if rows[local] <= _row_of(plan, rank, where.communicator, where.k):
            absent.append(rank)
    return absent


def _row_of(plan: Plan, rank: int, communicator: int, k: int) -> int:
    slot = int(np.flatnonzero(plan.program.slots_of(rank) == communicator)[0])
    table = plan.program.table_of(rank)
    return int(np.flatnonzero((table.slot == slot) & (table.ordinal == k))[0])


def _group_name(plan: Plan, communicator: int) -> str:
    return plan.program.communicators.names[communicator]


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"
