"""Groups of ranks → arrangements: groups that are shifts of each other and lie on nodes alike.

By which links a transfer goes depends on its two ranks. Which transfers there are depends on the
order of a group's members and on which of them share a node, so all groups of an arrangement have
the same transfers and hops, each shifted by its `base`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mpisim.base.distinct import distinct, numbered
from mpisim.base.frozen import frozen

from ..nccl.shape import NodeCounts, Shape

__all__ = ["Arrangement", "arrangements", "group_equal_rows", "shapes_of"]

Ints = NDArray[np.int64]


@frozen(eq=False)
class Arrangement:
    """Groups that are shifts of each other, with the same members together on nodes.

    Attributes
    ----------
    groups : int64, shape (g,)
        Numbers of the groups, ascending.
    members : int64, shape (s,)
        Of each, in its own order, less its `base`. The first is a GPU of node 0.
    base : int64, shape (g,)
        0 or more; a multiple of the GPUs of a node for some group at least.
    """

    groups: Ints
    members: Ints
    base: Ints

    def by_seat(self, gpus_per_node: int) -> tuple[Ints, Ints]:
        """Return members on and after node 0, and which of these rows each group is shifted from.

        Groups that differ by whole nodes share a row: it says on which GPUs of its nodes, and so
        next to which NICs, a group is.

        Returns
        -------
        members : int64, shape (k, s)
        which : int64, shape (g,)
        """
        seat, _, which = numbered(self.base % gpus_per_node)
        return self.members + seat[:, None], which


def arrangements(index: Ints, members: NDArray[np.int32], gpus_per_node: int) -> list[Arrangement]:
    """Sort groups into arrangements.

    Parameters
    ----------
    index : int64, shape (n + 1,)
        Communicator c has the members ``members[index[c]:index[c + 1]]``.
    members : int32
        Global ranks.
    gpus_per_node : int

    Examples
    --------
    >>> found = arrangements(np.array([0, 2, 4, 6]), np.array([2, 10, 17, 25, 7, 9]), 8)
    >>> [(each.groups.tolist(), each.members.tolist(), each.base.tolist()) for each in found]
    [([2], [7, 9], [0]), ([0, 1], [1, 9], [1, 16])]
    """
    sizes = np.diff(index)
    found = []
    for size in distinct(sizes).tolist():
        groups = np.flatnonzero(sizes == size)
        ranks = members[index[groups, None] + np.arange(size)].astype(np.int64)
        node = ranks // gpus_per_node
        first = ranks[:, 0].copy()
        seat = first - node[:, 0] * gpus_per_node
        ranks -= first[:, None]
        node -= node[:, :1].copy()
        # Shift and node of each other member, as one number: nodes differ by less than a half.
        apart = 2 * int(np.abs(node).max(initial=0)) + 1
        for which in group_equal_rows(ranks[:, 1:] * apart + node[:, 1:]):
            lowest = seat[which].min()
            found.append(
                Arrangement(groups[which], ranks[which[0]] + lowest, first[which] - lowest)
            )
    return found


def group_equal_rows(rows: Ints) -> list[NDArray[np.intp]]:
    """Rows of a matrix → indices of equal rows, ascending, an array for each distinct row."""
    which = _number_few(rows) if rows.shape[1] <= 2 else None
    if which is None:
        which = _number_rows(rows)
    count = np.bincount(which)
    small = which.astype(np.min_scalar_type(len(count)))  # of 16 bits these are not compared
    order = np.argsort(small, kind="stable")
    ends = [0, *np.cumsum(count).tolist()]
    return [order[begin:end] for begin, end in pairwise(ends)]


def _number_few(rows: Ints) -> Ints | None:
    """Number the distinct rows of up to two columns without a sort; None if they span too much."""
    key, count = np.zeros(len(rows), np.int64), 1
    for column in rows.T:
        low = int(column.min(initial=0))
        span = int(column.max(initial=0)) - low + 1
        count *= span
        if count > 16 * len(rows) + 4096:
            return None
        key = key * span + (column - low)
    present = np.zeros(count, bool)
    present[key] = True
    return np.asarray((np.cumsum(present) - 1)[key])


def _number_rows(rows: Ints) -> Ints:
    """Number the distinct rows."""
    # One word a row: sorting whole rows takes far longer. Rows of one word are compared after.
    # The factors are SplitMix64's, made odd; numpy.random takes longer to load than all of this.
    odd = np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        odd = (odd ^ (odd >> np.uint64(shift))) * np.uint64(factor)
    odd |= np.uint64(1)
    with np.errstate(over="ignore"):
        word = (rows * odd.view(np.int64)).sum(axis=1)
    _, first, number = numbered(word)
    if not (rows == rows[first[number]]).all():  # two kinds of rows have one word: 1 in 10**10
        number = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    return number


def shapes_of(
    index: Ints,
    members: NDArray[np.int32],
    system: NodeCounts,
    arranged: Sequence[Arrangement] | None = None,
) -> tuple[Ints, list[Shape]]:
    """Communicators → `Shape` of each, each distinct shape once.

    Parameters
    ----------
    index, members
        See `arrangements`.
    system : System or Seats
    arranged : sequence of Arrangement, optional
        What `arrangements` says of them, where that is known.

    Returns
    -------
    label : int64, shape (n,)
        The entry of each communicator in `shapes`.
    shapes : list of Shape
    """
    if arranged is None:
        arranged = arrangements(index, members, system.gpus_per_node)
    label = np.empty(len(index) - 1, np.int64)
    known: dict[Shape, int] = {}
    for each in arranged:
        rows, which = each.by_seat(system.gpus_per_node)
        shapes = [Shape.of(row, system) for row in rows.tolist()]
        numbers = [known.setdefault(shape, len(known)) for shape in shapes]
        label[each.groups] = np.array(numbers)[which]
    return label, list(known)
