"""Routes: which links the communications of simulated groups load, and how heavily."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Routes"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Routes:
    """The routes of those communications that can share a link which can saturate; no others.

    A *route* is what the communications of one group and one pattern load; there are r of them.
    Links are numbered anew, 0 to m - 1: only those that can saturate. In a folded run one link
    stands for all of its class, and a route's weight on it is the sum of the weights of all
    groups of a class on that one link: flows then share it as they share each of those it stands
    for, to the bit.

    Attributes
    ----------
    group : int64, shape (r,)
        The simulated group (unfolded: the communicator of the program).
    pattern : int64, shape (r,)
        Entry of `patterns`. Routes are sorted by (group, pattern), each of which is there once.
    index : int64, shape (r + 1,)
        Route i has the links ``link[index[i]:index[i + 1]]``, of which there is one at least.
    link, weight : int64
        Each link of a route once, ascending; weights are bytes over the link per byte of payload,
        scaled by 2**20.
    capacity : int64, shape (m,)
        Of each link, in 2**-40 bytes per ps.
    patterns : tuple of hashable
        As in prices.
    names : int64, shape (n_named,)
        The network's numbers of all links that can saturate, ascending.
    simulated_link : int64, shape (n_named,)
        The link 0 to m - 1 that is simulated for each of those (unfolded: 0, 1, 2, ...).
    """

    group: Ints
    pattern: Ints
    index: Ints
    link: Ints
    weight: Ints
    capacity: Ints
    patterns: tuple[Hashable, ...]
    names: Ints
    simulated_link: Ints

    def __len__(self) -> int:
        return len(self.group)
