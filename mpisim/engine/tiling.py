"""Tiles: ranks of one process that run side by side, as lanes of short vectors.

Ranks of one table and the same durations may share a tile. They had better be at the same place of
every chain of messages, too: ranks that wait for each other in one tile would hold it up, until the
core splits it. Colour refinement finds the places. Ranks that meet often stay together: the more
operations a slot has, the sooner its groups are put into tiles whole, since the core need not look
outside the tile for those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .refine import Incidences, dense, refine

__all__ = ["MOST_LANES", "Meetings", "Tiles", "find_tiles", "joined"]

MOST_LANES = 64
"""Wide enough to hide what decoding a row costs; registers of a tile stay in the first cache."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Meetings:
    """Where the hosted ranks of one process communicate: `m` pairs of a rank and a slot.

    Attributes
    ----------
    rank : int64, shape (m,)
        Local numbers, ascending.
    slot : int64, shape (m,)
        Ascending for each rank.
    group : int64, shape (m,)
        The communicator, numbered 0 to n_groups - 1.
    operations : int64, shape (m,)
        How many on that slot.
    inside : bool, shape (n_groups,)
        Whether all members of a communicator are hosted here.
    """

    rank: Ints
    slot: Ints
    group: Ints
    operations: Ints
    inside: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Tiles:
    """Which ranks make up which tile.

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
    table: NDArray[np.int32], duration: NDArray[np.int32], met: Meetings, most: int = MOST_LANES
) -> Tiles:
    """Put ranks into tiles.

    Parameters
    ----------
    table, duration : int32, shape (h,)
        Equal for ranks of equal tables and durations; 0 and up.
    met : Meetings
    most : int
        No tile has more lanes, 1 or more.
    """
    n = len(table)
    if n == 0:
        return Tiles(np.empty(0, np.int32), np.zeros(1, np.int64))
    place, _ = dense(_places(table, met) * (int(duration.max()) + 1) + duration)
    whole, main = _components(place, met, most)
    size = np.bincount(whole)[whole]
    lowest = np.full(n, n)
    np.minimum.at(lowest, whole, np.arange(n))
    # Components of one place and size, in order of their lowest ranks, fill tiles.
    kind, _ = dense(place * (most + 1) + size)
    order = np.lexsort((np.arange(n), lowest[whole], kind))
    new_kind = np.diff(kind[order], prepend=-1) != 0
    first = np.maximum.accumulate(np.where(new_kind, np.arange(n), 0))
    a_tile = np.maximum(most // size[order], 1) * size[order]
    tile = np.cumsum((np.arange(n) - first) % a_tile == 0) - 1
    # Members of the groups met most often lie a fixed number of lanes apart, lowest first.
    nth = _nth_member(main)
    lanes = order[np.lexsort((main[order], nth[order], tile))]
    return Tiles(lanes.astype(np.int32), np.searchsorted(tile, np.arange(tile[-1] + 2)))


def joined(part: Ints, rank: Ints, group: Ints) -> Ints:
    """Join parts that share groups: return a label of each rank, the lowest rank of its part.

    Parameters
    ----------
    part : int64, shape (n,)
        Such labels.
    rank, group : int64, shape (m,)
        Who is a member of what.
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


def _places(table: NDArray[np.int32], met: Meetings) -> Ints:
    """Tell ranks apart that have different tables, or places in chains of messages."""
    n, n_groups = len(table), len(met.inside)
    incidences = Incidences(
        index=np.searchsorted(met.rank, np.arange(n + 1)).astype(np.int64),
        slot=met.slot,
        group=met.group,
        n_groups=n_groups,
    )
    sizes, _ = dense(np.bincount(met.group, minlength=n_groups))
    found = refine(dense(table.astype(np.int64))[0], sizes, incidences)
    assert found is not None  # only with a limit
    return found.rank


def _components(place: Ints, met: Meetings, most: int) -> tuple[Ints, Ints]:
    """Return what ranks stay together with, and the group each rank meets most often there.

    The first is a label, the lowest rank; the second a group, or the rank itself after all groups.
    """
    n, n_groups = len(place), len(met.inside)
    whole = np.arange(n)
    main = n_groups + whole
    # Slots whose groups are each of ranks in one place, by that slot.
    n_slots = int(met.slot.max(initial=-1)) + 1
    key = place[met.rank] * n_slots + met.slot
    one = np.full(n_groups, -1)
    one[met.group] = key
    inside = met.inside.copy()
    inside[met.group[one[met.group] != key]] = False
    out = np.zeros((int(place.max()) + 1) * n_slots, bool)
    out[key[~inside[met.group]]] = True
    fit = ~out[key]
    rank, group, key, operations = (x[fit] for x in (met.rank, met.group, key, met.operations))
    # The busiest slots of each place first.
    for j in range(int(np.bincount(rank, minlength=1).max())):
        order = np.lexsort((key, -operations, rank))
        nth = np.arange(len(rank)) - np.searchsorted(rank, rank)
        now = order[nth == j]
        new = joined(whole, rank[now], group[now])
        size = np.bincount(new, minlength=n)
        # All parts of a place take a slot in, or none: tiles are made of equal parts.
        largest = np.zeros(int(place.max()) + 1, np.int64)
        np.maximum.at(largest, place, size[new])
        takes = largest[place] <= most
        whole = np.where(takes, new, whole)
        fresh = takes[rank[now]] & (main[rank[now]] >= n_groups)
        main[rank[now][fresh]] = group[now][fresh]
    return whole, main


def _nth_member(main: Ints) -> Ints:
    """Return which of the ranks of its group each is, in order of numbers."""
    order = np.argsort(main, kind="stable")
    first = np.searchsorted(main[order], main[order])
    nth = np.empty(len(main), np.int64)
    nth[order] = np.arange(len(main)) - first
    return nth
