"""What flowed over shared links: one entry a communication that had a route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .routes import Routes

__all__ = ["Flows", "Shared"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Flows:
    """Communications that loaded links which can be full.

    Attributes
    ----------
    route : int64, shape (n,)
        Entry of `Routes`.
    begin, end : int64, shape (n,)
        From when bytes flowed, and until when, in ps.
    volume : int64, shape (n,)
        Bytes of payload.
    """

    route: Ints
    begin: Ints
    end: Ints
    volume: Ints

    @classmethod
    def of(cls, rows: Ints) -> Flows:
        """Make of rows as `rows` returns them."""
        return cls(*np.ascontiguousarray(rows.T))

    def rows(self) -> Ints:
        """Return the columns side by side, shape (n, 4)."""
        return np.stack([self.route, self.begin, self.end, self.volume], axis=1)


@dataclass(frozen=True, eq=False)
class Shared:
    """The links of a run that communications could share.

    Attributes
    ----------
    routes : Routes
        Of the ranks that were simulated.
    communicator : int64, shape (len(routes),)
        A communicator of the program that uses each route.
    flows : Flows
        Those that this process ran.
    link_name : callable
        From a link's number in the network to its name.
    """

    routes: Routes
    communicator: Ints
    flows: Flows
    link_name: Callable[[int], str]
