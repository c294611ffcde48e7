"""Communications last as long as for the slowest of their members: maxima over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..engine.run import Classes
from ..mpi.reductions import allreduce_max
from ..program import Program
from .timeline import alike

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["slowest"]

Ints = NDArray[np.int64]


def slowest(
    program: Program, classes: Classes, own: Mapping[int, Ints], comm: Intracomm
) -> dict[int, Ints]:
    """Return the longest of what members of communications have, for each of them.

    **Collective.** One member of a class speaks for all: the members of the communicators that a
    representative binds are looked up, and what their classes' representatives have counts.

    Parameters
    ----------
    program : Program
        Whole.
    classes : Classes
        Equal on all processes.
    own : mapping of int to int64 arrays, shape (m,)
        What the communications of each class that is simulated here have, in the order of its rows.
    comm : mpi4py.MPI.Intracomm

    Returns
    -------
    dict
        As `own`.
    """
    groups = program.communicators
    asked = np.zeros(len(groups), bool)
    for rank in classes.representative.tolist():
        asked[program.slots_of(rank)] = True
    entry = np.flatnonzero(asked[program.slots])
    owner = np.searchsorted(program.slot_index, entry, side="right") - 1
    group = program.slots[entry].astype(np.int64)
    slot = entry - program.slot_index[owner]

    # The members of a class that bind a communicator by the same slot have the same to say.
    what = (group, classes.of_rank[owner].astype(np.int64), slot)
    first, _ = alike(*what)
    members = np.stack([column[first] for column in what], axis=1)
    counts = np.zeros(len(first), np.int64)
    for number, table in enumerate(program.tables):
        assert table is not None  # the program is whole
        here = np.flatnonzero(program.table[owner[first]] == number)
        active = here[members[here, 2] < table.n_slots]
        counts[active] = table.operations[members[active, 2]]
    n_operations = np.zeros(len(groups), np.int64)
    np.maximum.at(n_operations, members[:, 0], counts)
    at = np.concatenate([[0], np.cumsum(n_operations)])

    rows = {}  # of the communications of a class, the entries on each slot
    for number in own:
        table = program.table_of(int(classes.representative[number]))
        on_slot = table.slot[table.is_communication]
        rows[number] = [np.flatnonzero(on_slot == s) for s in range(table.n_slots)]
    found = np.zeros(int(at[-1]), np.int64)
    for (c, number, s), count in zip(members.tolist(), counts.tolist(), strict=True):
        if count and number in own:
            part = found[at[c] : at[c] + count]
            np.maximum(part, own[number][rows[number][s]], out=part)
    found = allreduce_max(found, comm)

    longest: dict[int, Ints] = {}
    for number, mine in own.items():
        longest[number] = mine.copy()
        bound = program.slots_of(int(classes.representative[number])).tolist()
        for s, some in enumerate(rows[number]):
            longest[number][some] = found[at[bound[s]] : at[bound[s]] + len(some)]
    return longest
