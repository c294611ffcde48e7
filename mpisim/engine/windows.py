"""Windows: several processes run flows that share links, each as far as it cannot be wrong.

Contention domains are dealt out to processes; the *owner* of a domain runs its flows. When nothing
can move without an event, all agree on a time up to which every owner may let events happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .fold import Cast

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["count_operations", "open_window"]

_NONE = int(np.iinfo(np.int64).max)


def count_operations(
    cast: Cast, placement: NDArray[np.int32], comm: Intracomm
) -> NDArray[np.int64]:
    """Return how many operations each group of a cast has. **Collective** on `comm`."""
    from mpi4py import MPI

    count = np.zeros(len(cast.sizes), np.int64)
    for i in np.flatnonzero(placement == comm.rank).tolist():
        on_slot = cast.program.table_of(int(cast.classes.representative[i])).operations
        first = cast.slot_index[i]
        np.maximum.at(count, cast.slots[first : first + len(on_slot)], on_slot)
    comm.Allreduce(MPI.IN_PLACE, count, op=MPI.MAX)
    return count


def open_window(core: Any, comm: Intracomm) -> bool:
    """Let events happen that nothing can precede any more. **Collective** on `comm`.

    Nothing may be able to move, on any process, and no message be under way.

    Returns
    -------
    bool
        False if there are no events.
    """
    from mpi4py import MPI

    earliest = np.array([core.next_event()], np.int64)
    comm.Allreduce(MPI.IN_PLACE, earliest, op=MPI.MIN)
    if earliest[0] == _NONE:
        return False
    core.commit(int(earliest[0]))
    return True
