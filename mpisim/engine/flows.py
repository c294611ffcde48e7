"""Flows over shared links: one for each communication that has a route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..topo import Network, SharedNetwork
from .distribution import Distribution, Role
from .refine import ranges
from .routes import Routes

__all__ = ["Flows", "SharedLinks", "communicators_of", "shared_links"]

Ints = NDArray[np.int64]


@frozen(eq=False)
class Flows:
    """Communications over links that can saturate, `n` of them.

    Attributes
    ----------
    route : int64, shape (n,)
        Entry of `Routes`.
    begin, end : int64, shape (n,)
        When bytes begin and end to flow, in ps.
    volume : int64, shape (n,)
        Bytes of payload.
    """

    route: Ints
    begin: Ints
    end: Ints
    volume: Ints

    def part(self, chosen: NDArray[np.bool_]) -> Flows:
        """Return some of the flows.

        Parameters
        ----------
        chosen : bool, shape (n,)
        """
        return Flows(self.route[chosen], self.begin[chosen], self.end[chosen], self.volume[chosen])

    def copies(self, later: Ints) -> Flows:
        """Return the flows once for each time by which they are later, one after another.

        Parameters
        ----------
        later : int64, shape (k,)
            ps.
        """
        late = later[:, None]
        return Flows(
            np.tile(self.route, len(later)),
            (self.begin + late).reshape(-1),
            (self.end + late).reshape(-1),
            np.tile(self.volume, len(later)),
        )


@frozen(eq=False)
class SharedLinks:
    """The links that communications of a run could share, and their flows.

    Attributes
    ----------
    routes : Routes
        Of the simulated ranks.
    communicator : int64, shape (len(routes),)
        A communicator of the program that uses each route.
    flows : Flows
        Flows that this process simulated.
    link_name : callable
        Number of a link in the network → its name.
    """

    routes: Routes
    communicator: Ints
    flows: Flows
    link_name: Callable[[int], str]


def shared_links(
    distribution: Distribution, core: Any, network: Network | None
) -> SharedLinks | None:
    """Return the links that communications could share and the flows simulated here. Local.

    None where communications share no links.

    Parameters
    ----------
    distribution : Distribution
    core : Core
        After the run.
    network : Network or None
    """
    simulated, traffic = distribution.simulated, distribution.core_input.flows
    routes = simulated.routes
    if routes is None or traffic is None or not isinstance(network, SharedNetwork):
        return None
    communications = core.communications[: distribution.first_communication[-1]]
    numbers = np.flatnonzero(communications["route"] >= 0)
    is_ours = np.isin(distribution.role, (Role.LOCAL, Role.OWNER))
    if not is_ours.all():
        numbers = numbers[is_ours[distribution.locate(numbers)[0]]]
    price = communications["price"][numbers]
    return SharedLinks(
        routes=routes,
        communicator=communicators_of(distribution, routes),
        flows=Flows(
            route=communications["route"][numbers].astype(np.int64),
            begin=communications["time"][numbers] + traffic.latency[price],
            end=communications["end"][numbers],
            volume=traffic.volume[price],
        ),
        link_name=network.link_name,
    )


def communicators_of(distribution: Distribution, routes: Routes) -> Ints:
    """Return a communicator of the program that uses each route.

    Parameters
    ----------
    distribution : Distribution
    routes : Routes
        Of its simulated ranks.

    Returns
    -------
    int64, shape (len(routes),)
    """
    simulated = distribution.simulated
    bound, first = np.unique(simulated.slots, return_index=True)
    entry, _ = ranges(
        distribution.program.slot_index, simulated.classes.representative.astype(np.int64)
    )
    used_by = distribution.program.slots[entry[first]]
    found: Ints = used_by[np.searchsorted(bound, routes.group)].astype(np.int64)
    return found
