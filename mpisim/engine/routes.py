"""Routes: the links that the communications of each communicator load, and how heavily."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen

__all__ = ["Routes"]

Ints = NDArray[np.int64]


@frozen(eq=False)
class Routes:
    """Routes of the communications that can share a link which can saturate; no others.

    A *route* is the set of links that the communications of one communicator and one pattern load,
    with weights; there are r of them. Links are numbered 0 to m - 1: only those that can saturate.
    In a folded run one link represents all equivalent ones, and a route's weight on it is the sum
    of the weights of all communicators of a class on that one link: flows then share it as they
    share each link that it represents, to the bit.

    Attributes
    ----------
    group : int64, shape (r,)
        The communicator (folded: the class of communicators).
    pattern : int64, shape (r,)
        Entry of `patterns`. Routes are sorted by (group, pattern), without duplicates.
    index : int64, shape (r + 1,)
        Route i has the links ``link[index[i]:index[i + 1]]``, of which there is one at least.
    link, weight : int64
        Each link of a route once, ascending; weights are bytes over the link per byte of payload,
        scaled by 2**20.
    capacity : int64, shape (m,)
        Of each link, in 2**-40 bytes per ps.
    patterns : tuple of hashable
        See `mpisim.topo.Price`.
    names : int64, shape (n_named,)
        The network's numbers of all links that can saturate, ascending.
    simulated_link : int64, shape (n_named,)
        Of each of those, the link 0 to m - 1 that represents it (unfolded: 0, 1, 2, ...).
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
