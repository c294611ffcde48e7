"""Collectives dimension by dimension, over members that fill a block of a grid.

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

import numpy as np
from numpy.typing import NDArray

from mpisim.base.kinds import Operation

from .order import Block

__all__ = ["SERVED", "along_axes", "parts", "rings_of"]

Ranks = NDArray[np.int64]

SERVED = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
"""Operations that can go dimension by dimension."""


@cache
def parts(block: Block) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """From a block to the parts of the data: the share of each, and the axes in its order.

    Examples
    --------
    On 12 by 7, what begins along the 12 is a little less than half.

    >>> [(round(share, 3), axes) for share, axes in parts(Block((12, 7), (False, False), False))]
    [(0.462, (0, 1)), (0.538, (1, 0))]
    """
    first = (0,) if block.inside else ()
    axes = range(len(first), len(block.sizes))
    orders = [first + tuple(np.roll(axes, -k).tolist()) for k in range(len(axes))] or [first]
    if len(orders) == 1:
        return ((1.0, orders[0]),)
    # busy[i, p]: how long axis i is busy with part p; a ring has two ways round.
    busy = np.zeros((len(axes), len(orders)))
    for p, order in enumerate(orders):
        for axis, amount in along_axes(block, order):
            if axis in axes:
                busy[axis - len(first), p] = amount / (2 if block.rings[axis] else 1)
    return tuple(zip(_even(busy), orders, strict=True))


def _even(busy: NDArray[np.float64]) -> list[float]:
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


def along_axes(block: Block, order: tuple[int, ...]) -> list[tuple[int, float]]:
    """Return, by axis, what each member sends along it in a reduce-scatter of one byte."""
    found, left = [], 1.0
    for axis in order:
        n = block.sizes[axis]
        found.append((axis, left * (n - 1) / n))
        left /= n
    return found


def rings_of(members: Ranks, block: Block, axis: int) -> list[tuple[Ranks, Ranks]]:
    """Return the rings along an axis: next to each other's members, one row a ring.

    Returns
    -------
    list of (source, target)
        Of shape (rings, size); two of them where rings go both ways, each with half of the data.
    """
    n = block.sizes[axis]
    path = np.moveaxis(members.reshape(block.sizes), axis, -1).reshape(-1, n)
    if not block.rings[axis]:
        path = path[:, np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]])]
        return [(path, np.roll(path, -1, axis=1))]
    return [(path, np.roll(path, -1, axis=1)), (path, np.roll(path, 1, axis=1))]
