"""Ranks of one process → tiles: ranks that run side by side, as lanes of SIMD vectors.

Any partition of the ranks into tiles gives the same times, provided that ranks of a tile have one
table and one array of durations: the core splits a tile whose lanes wait for each other. Which
partition is chosen decides the speed alone.

Ranks that wait for each other through a chain of messages would hold up a common tile, so only
ranks at the same place of every chain share one; colour refinement finds the places. Ranks that
communicate often stay together: the more operations a slot has, the sooner its communicators are
put into tiles as a whole, since the core need not look outside the tile for those.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense
from ..base.frozen import frozen
from .refine import Incidences, refine

__all__ = ["SlotUses", "Tiles", "find_tiles", "joined"]

MAX_LANES = 64
"""Wide enough to hide what decoding a row costs; registers of a tile stay in the first cache."""

Ints = NDArray[np.int64]


@frozen(eq=False)
class SlotUses:
    """Slots on which the hosted ranks of one process communicate: `m` pairs of a rank and a slot.

    Attributes
    ----------
    rank : int64, shape (m,)
        Local numbers, ascending.
    slot : int64, shape (m,)
        Ascending for each rank.
    communicator : int64, shape (m,)
        Bound to that slot; numbered 0 to n_communicators - 1.
    operations : int64, shape (m,)
        How many on that slot.
    inside : bool, shape (n_communicators,)
        Whether all members of a communicator are hosted here.
    """

    rank: Ints
    slot: Ints
    communicator: Ints
    operations: Ints
    inside: NDArray[np.bool_]


@frozen(eq=False)
class Tiles:
    """Tiles as lists of ranks.

    Attributes
    ----------
    lanes : int32, shape (h,)
        Local numbers of ranks, tile after tile.
    index : int64, shape (n_tiles + 1,)
        Tile t has ``lanes[index[t]:index[t + 1]]``.
    """

    lanes: NDArray[np.int32]
    index: Ints


def find_tiles(
    table: NDArray[np.int32],
    duration: NDArray[np.int32],
    uses: SlotUses,
    max_lanes: int = MAX_LANES,
) -> Tiles:
    """Partition the hosted ranks into tiles.

    Parameters
    ----------
    table, duration : int32, shape (h,)
        Equal for ranks of equal tables and durations; 0 and up.
    uses : SlotUses
    max_lanes : int
        1 or more.
    """
    n = len(table)
    if n == 0:
        return Tiles(np.empty(0, np.int32), np.zeros(1, np.int64))
    place, _ = dense(_places(table, uses) * (int(duration.max()) + 1) + duration)
    together, main = _components(place, uses, max_lanes)
    size = np.bincount(together)[together]
    lowest = np.full(n, n)
    np.minimum.at(lowest, together, np.arange(n))
    # Components of one place and size, in order of their lowest ranks, fill tiles.
    kind, _ = dense(place * (max_lanes + 1) + size)
    order = np.lexsort((np.arange(n), lowest[together], kind))
    new_kind = np.diff(kind[order], prepend=-1) != 0
    first = np.maximum.accumulate(np.where(new_kind, np.arange(n), 0))
    per_tile = np.maximum(max_lanes // size[order], 1) * size[order]
    tile = np.cumsum((np.arange(n) - first) % per_tile == 0) - 1
    # Members of the communicators used most lie a fixed number of lanes apart, lowest first.
    nth = _nth_member(main)
    lanes = order[np.lexsort((main[order], nth[order], tile))]
    return Tiles(lanes.astype(np.int32), np.searchsorted(tile, np.arange(tile[-1] + 2)))


def joined(part: Ints, rank: Ints, group: Ints) -> Ints:
    """Join parts that share a group: labels of ranks before → labels after.

    A label is the lowest rank of a part.

    Parameters
    ----------
    part : int64, shape (n,)
        The label of each rank.
    rank, group : int64, shape (m,)
        Pairs of a rank and a group that it is a member of.
    """
    while len(rank):
        lowest = np.full(int(group.max()) + 1, len(part))
        np.minimum.at(lowest, group, part[rank])
        low = part.copy()
        np.minimum.at(low, part[rank], lowest[group])  # at the rank that names the part
        while (low[low] != low).any():
            low = low[low]
        if (low[part] == part).all():
            break
        part = low[part]
    return part


def _places(table: NDArray[np.int32], uses: SlotUses) -> Ints:
    """Number ranks by their table and their place in chains of messages."""
    n, n_communicators = len(table), len(uses.inside)
    incidences = Incidences(
        index=np.searchsorted(uses.rank, np.arange(n + 1)).astype(np.int64),
        slot=uses.slot,
        group=uses.communicator,
        n_groups=n_communicators,
    )
    sizes, _ = dense(np.bincount(uses.communicator, minlength=n_communicators))
    found = refine(dense(table.astype(np.int64))[0], sizes, incidences)
    assert found is not None  # only with a limit
    return found.rank


def _components(place: Ints, uses: SlotUses, max_lanes: int) -> tuple[Ints, Ints]:
    """Return the ranks each rank shares a tile with, and the communicator it uses most among them.

    The first as a label, the lowest rank; the second as a number, that of the rank itself after all
    communicators if there is none.
    """
    n, n_communicators = len(place), len(uses.inside)
    together = np.arange(n)
    main = n_communicators + together
    # A slot of a place can be put into tiles whole if all its communicators are inside the process,
    # with all their members at this place and bound by this slot.
    n_slots = int(uses.slot.max(initial=-1)) + 1
    key = place[uses.rank] * n_slots + uses.slot
    key_of = np.full(n_communicators, -1)
    key_of[uses.communicator] = key
    inside = uses.inside.copy()
    inside[uses.communicator[key_of[uses.communicator] != key]] = False
    leaves = np.zeros((int(place.max()) + 1) * n_slots, bool)
    leaves[key[~inside[uses.communicator]]] = True
    fits = ~leaves[key]
    rank, communicator, key, operations = (
        x[fits] for x in (uses.rank, uses.communicator, key, uses.operations)
    )
    # The busiest slots of each place first.
    for j in range(int(np.bincount(rank, minlength=1).max())):
        order = np.lexsort((key, -operations, rank))
        nth = np.arange(len(rank)) - np.searchsorted(rank, rank)
        now = order[nth == j]
        new = joined(together, rank[now], communicator[now])
        size = np.bincount(new, minlength=n)
        # All parts of a place take a slot in, or none: tiles are made of equal parts.
        largest = np.zeros(int(place.max()) + 1, np.int64)
        np.maximum.at(largest, place, size[new])
        takes = largest[place] <= max_lanes
        together = np.where(takes, new, together)
        fresh = takes[rank[now]] & (main[rank[now]] >= n_communicators)
        main[rank[now][fresh]] = communicator[now][fresh]
    return together, main


def _nth_member(main: Ints) -> Ints:
    """Return which of the ranks of its communicator each is, in order of numbers."""
    order = np.argsort(main, kind="stable")
    first = np.searchsorted(main[order], main[order])
    nth = np.empty(len(main), np.int64)
    nth[order] = np.arange(len(main)) - first
    return nth
