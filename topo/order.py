"""How the members of a group follow each other in an algorithm that goes by the fabric.

Rings may go by the fabric's round trip (`Topology.tour`) rather than by ranks; an algorithm that
goes dimension by dimension needs members that fill a block of the grid: all combinations of some
coordinates in each dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .shapes import equal_rows
from .topology import Grid, Topology

__all__ = ["Block", "Ordered", "by_tour", "in_blocks"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """The part of a grid that a group fills.

    Attributes
    ----------
    sizes : tuple of int
        Members along each axis that has several: those of one router if there are, then the
        dimensions. Members are in order with the last axis fastest.
    rings : tuple of bool
        Whether the last member along an axis is nearer to the first by going on round the torus.
    inside : bool
        Whether the first axis is of members of one router.
    """

    sizes: tuple[int, ...]
    rings: tuple[bool, ...]
    inside: bool

    @classmethod
    def line(cls, n: int) -> Block:
        """Return a line of members."""
        return cls((n,), (False,), False)


class Ordered(NamedTuple):
    """Groups of one arrangement whose members follow each other in the same way.

    Attributes
    ----------
    which : int64, shape (g,)
        Which of the groups they are, ascending.
    members : int64, shape (s,)
        Of each in that order, less its base.
    block : Block, optional
        What they fill; None if they fill none, or it was not asked for.
    """

    which: Ints
    members: Ints
    block: Block | None = None


def by_tour(topology: Topology, members: Ints, base: Ints) -> list[Ordered]:
    """Order groups by the fabric's round trip; the first member stays the first.

    Parameters
    ----------
    topology : Topology
    members : int64, shape (s,)
        Of each group, less its base.
    base : int64, shape (g,)
    """
    if topology.tour is None:
        order = np.argsort(members, kind="stable")
        order = np.roll(order, -int(np.flatnonzero(order == 0)[0]))
        return [Ordered(np.arange(len(base)), members[order])]
    place = topology.tour[base[:, None] + members]
    # Counted from the first member on.
    place = (place - place[:, :1]) % len(topology.tour)
    order = np.argsort(place, axis=1)
    return [Ordered(rows, members[order[rows[0]]]) for rows in equal_rows(order)]


def in_blocks(topology: Topology, members: Ints, base: Ints, gpus_per_node: int) -> list[Ordered]:
    """Order groups by the coordinates of the block of the grid that they fill.

    Parameters
    ----------
    topology : Topology
    members, base
        See `by_tour`.
    gpus_per_node : int
        Each base is a multiple of it.
    """
    grid = topology.grid
    everyone = np.arange(len(base))
    if grid is None:
        return [Ordered(everyone, members)]
    found = []
    size = np.array([n if wraps else 0 for n, wraps in zip(grid.dims, grid.wraps, strict=True)])
    place = grid.place[base[:, None] + members]
    place = place - place[:, :1]
    place = np.where(size > 0, place % np.maximum(size, 1), place)
    for rows in equal_rows(place.reshape(len(base), -1)):
        found.append(_ordered(rows, members, place[rows[0]], members % gpus_per_node, grid))
    return found


def _ordered(rows: Ints, members: Ints, place: Ints, seat: Ints, grid: Grid) -> Ordered:
    """Order one kind of groups: their places (s, d), and seats (s,) at a router."""
    axes = [(seat, 0), *zip(place.T, _ring_sizes(grid), strict=True)]
    sizes, rings, numbers = [], [], []
    for at, ring in axes:
        values = np.unique(at)
        if len(values) > 1:
            start, closed = _start(values, ring)
            values = np.roll(values, -start)
            sizes.append(len(values))
            rings.append(closed)
            number = np.argsort(values)  # of the values in rising order, their place along the axis
            numbers.append(number[np.searchsorted(np.sort(values), at)])
    if prod(sizes) != len(members):
        return Ordered(rows, members)
    order = np.argsort(np.ravel_multi_index(numbers, sizes)) if sizes else np.arange(1)
    inside = bool(sizes) and len(np.unique(seat)) > 1
    return Ordered(rows, members[order], Block(tuple(sizes), tuple(rings), inside))


def _ring_sizes(grid: Grid) -> list[int]:
    return [n if wraps else 0 for n, wraps in zip(grid.dims, grid.wraps, strict=True)]


def _start(values: Ints, ring: int) -> tuple[int, bool]:
    """Return where a line begins among rising coordinates, and whether it is a ring."""
    if not ring:
        return 0, False
    gaps = np.diff(values, append=values[0] + ring)
    widest = int(np.argmax(gaps))
    # Across a gap of more than half of the torus, ways go back along the line.
    return (widest + 1) % len(values), bool(len(values) > 2 and 2 * gaps[widest] <= ring)
