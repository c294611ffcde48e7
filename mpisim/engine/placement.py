"""Placement: ranks → MPI processes that simulate (host) them.

Processes work at the same time as long as they need not wait for each other, so ranks that
communicate often should share a process. Communicators are kept on one process in the order of
their number of operations, the busiest first, as long as the work can still be divided evenly. In a
training step these are tensor-parallel groups, then whole pipelines; replicas, which communicate a
few times at the end of the step, are divided among processes. A single replica is divided by
stages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import ProgramError, UsageError
from ..program import Program
from .tiling import joined

__all__ = ["block_placement", "check_placement", "check_tables_held", "default_placement"]

Ints = NDArray[np.int64]

_MAX_IMBALANCE = 1.2
"""Largest work of a process, relative to the mean, for the sake of ranks that communicate often."""


def block_placement(n_ranks: int, n_processes: int) -> NDArray[np.int32]:
    """Place ranks in contiguous blocks whose sizes differ by one at most.

    Parameters
    ----------
    n_ranks : int
    n_processes : int
        At least 1. The first ones get a rank more; those beyond `n_ranks` get none.

    Returns
    -------
    int32, shape (n_ranks,)
        The process of every rank, ascending.

    Examples
    --------
    >>> block_placement(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    quotient, remainder = divmod(n_ranks, n_processes)
    sizes = np.full(n_processes, quotient)
    sizes[:remainder] += 1
    return np.repeat(np.arange(n_processes, dtype=np.int32), sizes)


def default_placement(program: Program, n_processes: int) -> NDArray[np.int32]:
    """Place the ranks of a whole program so that those that communicate often share a process.

    Contiguous blocks where nothing can be kept together.

    Parameters
    ----------
    program : Program
    n_processes : int
        At least 1.

    Returns
    -------
    int32, shape (n_ranks,)
    """
    blocks = block_placement(program.n_ranks, n_processes)
    if n_processes == 1 or program.n_ranks <= n_processes:
        return blocks
    rows = np.array([0 if table is None else len(table) for table in program.tables], np.int64)
    work = rows[program.table] + 1
    rank, group, operations = _bound_slots(program)
    busiest = np.zeros(len(program.communicators), np.int64)
    np.maximum.at(busiest, group, operations)
    # Eighths of an octave: groups of different stages differ a little in their operations.
    level = np.floor(8 * np.log2(np.maximum(busiest, 1)))[group]

    part, placed = np.arange(program.n_ranks), blocks
    heaviest = float(np.bincount(placed, work).max())
    max_work = max(_MAX_IMBALANCE * float(work.sum()) / n_processes, heaviest)
    for one in sorted(set(level.tolist()), reverse=True):
        at = level == one
        new = joined(part, rank[at], group[at])
        assigned = _assigned(new, work, n_processes)
        if np.bincount(assigned, work).max() <= max_work:
            part, placed = new, assigned
    return placed


def _bound_slots(program: Program) -> tuple[Ints, Ints, Ints]:
    """Return rank, communicator and number of operations of every slot in use."""
    n_slots = np.diff(program.slot_index)
    rank = np.repeat(np.arange(program.n_ranks), n_slots)
    slot = np.arange(len(rank)) - program.slot_index[rank]
    counts = np.zeros((len(program.tables), int(n_slots.max(initial=0))), np.int64)
    for number, table in enumerate(program.tables):
        if table is not None:
            counts[number, : table.n_slots] = table.operations
    operations = counts[program.table[rank], slot]
    used = operations > 0
    return rank[used], program.slots[used].astype(np.int64), operations[used]


def _assigned(part: Ints, work: Ints, n_processes: int) -> NDArray[np.int32]:
    """Assign parts to processes in the order of their lowest ranks, equal work for each."""
    of_part = np.bincount(part, work, len(part))
    middle = np.cumsum(of_part) - of_part / 2  # parts are named by their lowest ranks
    process = np.minimum(middle * n_processes / of_part.sum(), n_processes - 1)
    return process.astype(np.int32)[part]


def check_placement(program: Program, placement: ArrayLike, n_processes: int) -> NDArray[np.int32]:
    """Placement → the same as an array, checked.

    Parameters
    ----------
    program : Program
    placement : array_like of int, shape (n_ranks,)
        The process of every rank, 0 to `n_processes` - 1.
    n_processes : int

    Returns
    -------
    int32, shape (n_ranks,)

    Raises
    ------
    UsageError
        If it does not give every rank a process that exists.
    """
    placed = np.ascontiguousarray(placement, np.int32)
    if placed.shape != (program.n_ranks,):
        raise UsageError(
            f"placement has shape {placed.shape}; {program.n_ranks} ranks need ({program.n_ranks},)"
        )
    bad = (placed < 0) | (placed >= n_processes)
    if bad.any():
        rank = int(np.argmax(bad))
        raise UsageError(
            f"placement: rank {rank} is on process {placed[rank]}; there are {n_processes}"
        )
    return placed


def check_tables_held(program: Program, hosted: NDArray[np.int32]) -> None:
    """Refuse ranks whose tables are held by another process.

    Parameters
    ----------
    program : Program
        Whole or partial.
    hosted : int32, shape (h,)
        Global ranks that are placed on this process.

    Raises
    ------
    ProgramError
    """
    missing = [number for number, table in enumerate(program.tables) if table is None]
    bad = np.isin(program.table[hosted], missing)
    if bad.any():
        rank = int(hosted[np.argmax(bad)])
        raise ProgramError(
            f"rank {rank} is placed on a process that does not hold its table {program.table[rank]}"
        )
