"""The order of a group's members on a fabric, and collectives dimension by dimension.

Rings may follow the fabric's tour (`Topology.tour`) rather than ranks. An algorithm that goes
dimension by dimension needs members that fill a subgrid: all combinations of some
coordinates in each dimension.

A reduce-scatter goes along one axis after another, each time with what is left of the data; an
all-gather goes the same way back; an all-reduce is one after the other. The data is split so that
each part begins with another axis, as on Blue Gene and TPUs: the links of all axes are then busy at
the same time. Members at one router come first in all parts, since what they share need not cross
the grid twice. Parts are as large as it takes for no axis to be busy longer than the others, if
that can be.

Along an axis members form a ring: in both directions at once where the torus closes it, half of the
data each way. On a line it goes up by every other member and down by the rest, and uses each cable
once in each direction.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from ..topology import MeshCoordinates, Topology
from .groups import group_equal_rows

__all__ = [
    "BY_DIMENSION",
    "OrderedGroups",
    "Subgrid",
    "bytes_along_axes",
    "data_parts",
    "order_by_subgrid",
    "order_by_tour",
    "rings_along",
]

Ints = NDArray[np.int64]


@frozen
class Subgrid:
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
    def line(cls, n: int) -> Subgrid:
        """Return a subgrid of one dimension: members that stand in a line."""
        return cls((n,), (False,), False)


class OrderedGroups(NamedTuple):
    """Groups of one arrangement whose members follow each other in the same way.

    Attributes
    ----------
    which : int64, shape (g,)
        Numbers of the groups within their arrangement, ascending.
    members : int64, shape (s,)
        Of each in that order, less its base.
    subgrid : Subgrid, optional
        Subgrid that they fill; None if there is none, or it is not needed.
    """

    which: Ints
    members: Ints
    subgrid: Subgrid | None = None


def order_by_tour(topology: Topology, members: Ints, base: Ints) -> list[OrderedGroups]:
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
        return [OrderedGroups(np.arange(len(base)), members[order])]
    place = topology.tour[base[:, None] + members]
    # Counted from the first member on.
    place = (place - place[:, :1]) % len(topology.tour)
    order = np.argsort(place, axis=1)
    return [OrderedGroups(rows, members[order[rows[0]]]) for rows in group_equal_rows(order)]


def order_by_subgrid(
    topology: Topology, members: Ints, base: Ints, gpus_per_node: int
) -> list[OrderedGroups]:
    """Order groups by the coordinates of the subgrid that they fill.

    Parameters
    ----------
    topology : Topology
    members, base
        See `order_by_tour`.
    gpus_per_node : int
        No base takes members of one node apart.
    """
    grid = topology.grid
    all_groups = np.arange(len(base))
    if grid is None:
        return [OrderedGroups(all_groups, members)]
    found = []
    size = np.array([n if wraps else 0 for n, wraps in zip(grid.dims, grid.wraps, strict=True)])
    place = grid.place[base[:, None] + members]
    place = place - place[:, :1]
    place = np.where(size > 0, place % np.maximum(size, 1), place)
    for rows in group_equal_rows(place.reshape(len(base), -1)):
        found.append(_order_block(rows, members, place[rows[0]], members % gpus_per_node, grid))
    return found


def _order_block(
    rows: Ints, members: Ints, place: Ints, seat: Ints, grid: MeshCoordinates
) -> OrderedGroups:
    """Order groups of one kind by coordinates (s, d) and by position at a router (s,)."""
    axes = [(seat, 0), *zip(place.T, _ring_sizes(grid), strict=True)]
    sizes, rings, numbers = [], [], []
    for at, ring in axes:
        values = np.unique(at)
        if len(values) > 1:
            start, closed = _line_start(values, ring)
            values = np.roll(values, -start)
            sizes.append(len(values))
            rings.append(closed)
            number = np.argsort(values)  # of the values in rising order, their place along the axis
            numbers.append(number[np.searchsorted(np.sort(values), at)])
    if prod(sizes) != len(members):
        return OrderedGroups(rows, members)
    order = np.argsort(np.ravel_multi_index(numbers, sizes)) if sizes else np.arange(1)
    inside = bool(sizes) and len(np.unique(seat)) > 1
    return OrderedGroups(rows, members[order], Subgrid(tuple(sizes), tuple(rings), inside))


def _ring_sizes(grid: MeshCoordinates) -> list[int]:
    return [n if wraps else 0 for n, wraps in zip(grid.dims, grid.wraps, strict=True)]


def _line_start(values: Ints, ring: int) -> tuple[int, bool]:
    """Return where a line begins among rising coordinates, and whether it is a ring."""
    if not ring:
        return 0, False
    gaps = np.diff(values, append=values[0] + ring)
    widest = int(np.argmax(gaps))
    # Across a gap of more than half of the torus, ways go back along the line.
    return (widest + 1) % len(values), bool(len(values) > 2 and 2 * gaps[widest] <= ring)


Ranks = NDArray[np.int64]

BY_DIMENSION = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
"""Operations that can go dimension by dimension."""


@cache
def data_parts(subgrid: Subgrid) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Subgrid → parts of the data: the share of each, and the axes in its order.

    Examples
    --------
    On 12 by 7, what begins along the 12 is a little less than half.

    >>> subgrid = Subgrid((12, 7), (False, False), False)
    >>> [(round(share, 3), axes) for share, axes in data_parts(subgrid)]
    [(0.462, (0, 1)), (0.538, (1, 0))]
    """
    first = (0,) if subgrid.inside else ()
    axes = range(len(first), len(subgrid.sizes))
    orders = [first + tuple(np.roll(axes, -k).tolist()) for k in range(len(axes))] or [first]
    if len(orders) == 1:
        return ((1.0, orders[0]),)
    # busy[i, p]: how long axis i is busy with part p; a ring has two ways round.
    busy = np.zeros((len(axes), len(orders)))
    for p, order in enumerate(orders):
        for axis, amount in bytes_along_axes(subgrid, order):
            if axis in axes:
                busy[axis - len(first), p] = amount / (2 if subgrid.rings[axis] else 1)
    return tuple(zip(_even_shares(busy), orders, strict=True))


def _even_shares(busy: NDArray[np.float64]) -> list[float]:
    """Return shares of parts, of the sum 1, with which the busiest axis is least busy."""
    from scipy.optimize import linprog

    n = busy.shape[1]
    found = linprog(
        np.append(np.zeros(n), 1.0),  # the time of the busiest axis, a variable of its own
        A_ub=np.column_stack([busy, -np.ones(len(busy))]),
        b_ub=np.zeros(len(busy)),
        A_eq=[np.append(np.ones(n), 0.0)],
        b_eq=[1.0],
    )
    shares = np.rint(found.x[:n] * (1 << 20)) / (1 << 20)
    shares[int(np.argmax(shares))] += 1 - shares.sum()
    return [float(share) for share in shares]


def bytes_along_axes(subgrid: Subgrid, order: tuple[int, ...]) -> list[tuple[int, float]]:
    """Subgrid, order → bytes a member sends along each axis in a reduce-scatter of one byte.

    Parameters
    ----------
    subgrid : Subgrid
    order : tuple of int
        Axes of the subgrid, each once, in the order in which data goes along them.

    Returns
    -------
    list of (int, float)
        Axis and bytes per byte of the full buffer, in the order of `order`.
    """
    found, left = [], 1.0
    for axis in order:
        n = subgrid.sizes[axis]
        found.append((axis, left * (n - 1) / n))
        left /= n
    return found


def rings_along(members: Ranks, subgrid: Subgrid, axis: int) -> list[tuple[Ranks, Ranks]]:
    """Subgrid, axis → rings along it, one row a ring.

    Parameters
    ----------
    members : int64, shape (s,)
        Ranks in the order of the subgrid: the last axis fastest.
    subgrid : Subgrid
        Of s places.
    axis : int
        Number of an axis of the subgrid.

    Returns
    -------
    list of (source, target)
        Of shape (rings, size); two of them where rings go both ways, each with half of the data.
    """
    n = subgrid.sizes[axis]
    path = np.moveaxis(members.reshape(subgrid.sizes), axis, -1).reshape(-1, n)
    if not subgrid.rings[axis]:
        path = path[:, np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]])]
        return [(path, np.roll(path, -1, axis=1))]
    return [(path, np.roll(path, -1, axis=1)), (path, np.roll(path, 1, axis=1))]
