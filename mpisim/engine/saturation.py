"""Which links can be full: those that all who use them, each at its highest rate, would overload.

Links that cannot are left out of a run: what uses only such links takes as long as it does alone.
On one communicator operations take turns, so that of its patterns only the heaviest counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._core import full_links

__all__ = ["Loaded", "can_be_full"]

Ints = NDArray[np.int64]


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
        return self._replace(route=self.route[kept], link=self.link[kept], weight=self.weight[kept])


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
    columns = [tuple(np.ascontiguousarray(each, np.int64) for each in one) for one in patterns]
    found: NDArray[np.bool_] = full_links(
        np.ascontiguousarray(capacity, np.int64), columns, one_by_one.view(np.uint8)
    )
    return found
