"""Windows: several processes run flows that share links, each as far as it cannot be wrong.

Contention domains are dealt out to processes; the *owner* of a domain runs its flows. When nothing
can move without an event, all agree on a time before which no flow can arrive that some rank has
still to post: until then every owner lets events happen. The earliest event of all is always safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..mpi.reductions import allreduce_max, allreduce_min
from .fold import SimulatedRanks

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["count_operations", "open_window"]

_shortened: Callable[[int, int], int] | None = None
"""Tests put a function here that ends a window between its earliest event and its end."""


def count_operations(
    simulated: SimulatedRanks, placement: NDArray[np.int32], comm: Intracomm
) -> NDArray[np.int64]:
    """Return how many operations each simulated group has. **Collective** on `comm`."""
    count = np.zeros(len(simulated.sizes), np.int64)
    for i in np.flatnonzero(placement == comm.rank).tolist():
        on_slot = simulated.program.table_of(int(simulated.classes.representative[i])).operations
        first = simulated.slot_index[i]
        np.maximum.at(count, simulated.slots[first : first + len(on_slot)], on_slot)
    return allreduce_max(count, comm)


def open_window(core: Any, earliest: int, comm: Intracomm) -> None:
    """Let events happen that nothing can precede any more. **Collective** on `comm`.

    Nothing may be able to move, on any process, and no message be under way.

    Parameters
    ----------
    core : Core
    earliest : int
        When the next event of all processes is, in ps.
    comm : mpi4py.MPI.Intracomm
    """
    safe = allreduce_min(np.array([core.horizon(earliest)], np.int64), comm)
    until = max(int(safe[0]), earliest)
    if _shortened is not None:
        until = _shortened(earliest, until)
    core.commit(until)
