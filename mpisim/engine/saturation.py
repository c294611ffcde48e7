"""Which links can be full: those that all who use them, each at its highest rate, would overload.

Links that cannot are left out of a run: what uses only such links takes as long as it does alone.
On one communicator operations take turns, so that of its patterns only the heaviest counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Loaded", "can_be_full"]

Ints = NDArray[np.int64]

_LIMB = 20
_MASK = (1 << _LIMB) - 1


class Loaded(NamedTuple):
    """What the communicators that have one pattern load.

    Attributes
    ----------
    group : int64, shape (g,)
        Ascending.
    rate : int64, shape (g,)
        The highest of each.
    route : int64, shape (e,)
        Which of them a load is of, 0 to g - 1, ascending.
    link, weight : int64, shape (e,)
        Ascending links of each, each once.
    """

    group: Ints
    rate: Ints
    route: Ints
    link: Ints
    weight: Ints

    def only(self, links: NDArray[np.bool_]) -> Loaded:
        """Return the loads on some links."""
        kept = links[self.link]
        return self._replace(
            route=self.route[kept], link=self.link[kept], weight=self.weight[kept]
        )


def can_be_full(
    capacity: Ints, patterns: list[Loaded], one_by_one: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Say which links can be full.

    Parameters
    ----------
    capacity : int64, shape (n_links,)
        In 2**-40 bytes per ps.
    patterns : list of Loaded
    one_by_one : bool, shape (n_groups,)
        Whether a communicator's operations take turns; the links of others are always counted
        among those that can be full.

    Returns
    -------
    bool, shape (n_links,)
    """
    total = _Sums(len(capacity))
    loaded = np.zeros(len(capacity), bool)
    several_at_once = np.zeros(len(capacity), bool)
    n_patterns = np.zeros(len(one_by_one), np.int64)
    for one in patterns:
        n_patterns[one.group] += 1
    turns: list[Ints] = []  # of groups with several patterns: group, link, high, low
    for one in patterns:
        loaded[one.link] = True
        several_at_once[one.link[~one_by_one[one.group][one.route]]] = True
        high, low = _products(one.weight, one.rate[one.route])
        lone = (n_patterns[one.group] == 1)[one.route]
        total.add(one.link[lone], high[lone], low[lone])
        takes_turns = ~lone
        if takes_turns.any():
            group = one.group[one.route[takes_turns]]
            turns.append(
                np.stack([group, one.link[takes_turns], high[takes_turns], low[takes_turns]])
            )
    if turns:
        group, link, high, low = np.concatenate(turns, axis=1)
        total.add(*_heaviest(group, link, high, low, len(capacity)))
    return loaded & (several_at_once | total.exceed(capacity))


class _Sums:
    """Sums of products of 63 bits by link, exact: two limbs of 20 bits and the rest."""

    def __init__(self, n_links: int) -> None:
        self.high, self.low = np.zeros((2, n_links), np.int64)

    def add(self, link: Ints, high: Ints, low: Ints) -> None:
        np.add.at(self.high, link, high)
        np.add.at(self.low, link, low)

    def exceed(self, capacity: Ints) -> NDArray[np.bool_]:
        high, low = self.high + (self.low >> _LIMB), self.low & _MASK
        return (high > capacity) | ((high == capacity) & (low > 0))


def _products(weight: Ints, rate: Ints) -> tuple[Ints, Ints]:
    """Return weight times rate in units of 2**20, and the rest."""
    low = weight * (rate & _MASK)
    return weight * (rate >> _LIMB) + (low >> _LIMB), low & _MASK


def _heaviest(
    group: Ints, link: Ints, high: Ints, low: Ints, n_links: int
) -> tuple[Ints, Ints, Ints]:
    """Return (link, high, low) of the heaviest load of each group on each link."""
    least, most = np.full(n_links, np.iinfo(np.int64).max), np.full(n_links, -1)
    np.minimum.at(least, link, group)
    np.maximum.at(most, link, group)
    alone = least == most  # one group has the link to itself: no need to sort
    top = np.full(n_links, -1)
    np.maximum.at(top, link, high)
    rest = np.full(n_links, -1)
    heavy = high == top[link]
    np.maximum.at(rest, link[heavy], low[heavy])
    own = np.flatnonzero(alone)

    met = np.flatnonzero(~alone[link])
    order = met[np.lexsort((low[met], high[met], group[met], link[met]))]
    last = np.ones(len(order), bool)
    last[:-1] = np.diff(link[order]) | np.diff(group[order]) != 0
    order = order[last]
    return (
        np.concatenate([own, link[order]]),
        np.concatenate([top[own], high[order]]),
        np.concatenate([rest[own], low[order]]),
    )
