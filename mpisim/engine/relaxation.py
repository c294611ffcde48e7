"""Relaxation: communications that share links, found by running dataflow again and again.

Where communications share links, how long each takes depends on when all others run, and when they
run depends on how long each takes. *Waveform relaxation* (Lelarasmee, Ruehli and
Sangiovanni-Vincentelli, IEEE Trans. CAD 1, 1982) parts the two. A pass

1. runs all ranks, with how long each communication takes held fixed, at first as long as alone:
   dataflow, so the tiled core does it, over any number of processes;
2. takes when communications start from that, and lets their flows share links: `FlowSchedule`;
3. ends with how long each communication takes now. If all take as long as they were held to take,
   the times of step 1 are the result.

**Why the result is right.** Then starts follow from ends, by the recurrence of the ranks, and ends
from starts, by max-min sharing: these are all the conditions that a run meets. No other run meets
them: take the earliest instant at which two runs differ. Ends up to it follow from arrivals before
it, since a flow with bytes takes time; starts follow from ends by maxima of sums. Both are the same
in either run, so there is no such instant. It takes that no gap and no launch latency is negative,
otherwise a flow may start before what led to it has ended: see `Contention.backwards`.

**Why it ends.** By the same argument: where two passes agree up to an instant, the next agrees with
them beyond it. Each pass makes final at least what follows directly from what was final. In a step
of training, in which few communications meet, a handful of passes does; chains of communications
that meet one after another, each delaying the next, take a pass for each link of the chain. For
these the contended core, which goes from event to event, is faster: when passes make too little
progress (`_is_slow`), relaxation stops, and `mpisim.engine.dataflow` starts that core.

All processes hold all flows, so they decide alike; the links to be looked at, and the contention
domains to be simulated, are dealt out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..mpi.reductions import allreduce_any, allreduce_max
from ..topo import Network, Price, SharedNetwork
from ._core.by_communication import mark_flows
from ._core.flow_schedule import FlowSchedule
from ._core.links import joined
from ._core.sharing import Sharing
from .distribution import Distribution
from .flows import Flows, SharedLinks, communicators_of
from .refine import ranges

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Relaxation"]

Ints = NDArray[np.int64]

_WINDOW = 12
"""Passes within which the number of flows that begin at other times must halve."""


class Relaxation:
    """The flows of a run, over all processes, and when they end. **Collective**, all of it.

    Parameters
    ----------
    distribution : Distribution
        Without contention: its core holds fixed how long communications take.
    prices : tuple of Price
        By number, the same on all processes.
    comm : mpi4py.MPI.Intracomm or None
        None: this process alone.
    """

    def __init__(
        self, distribution: Distribution, prices: tuple[Price, ...], comm: Intracomm | None
    ) -> None:
        routes, given = distribution.simulated.routes, distribution.core_input.sharing
        assert routes is not None
        assert given is not None
        self._given = given
        self._distribution, self._comm, self._routes = distribution, comm, routes
        self._changes: list[int] = []
        self._group, self._route_group = np.unique(routes.group, return_inverse=True)
        # Where the communications of each group begin on this process, and how many there are.
        self._here, size = np.full((2, len(self._group)), -1)
        _, at, held = np.intersect1d(
            self._group, distribution.communicators, assume_unique=True, return_indices=True
        )
        self._here[at] = distribution.first_communication[held]
        size[at] = np.diff(distribution.first_communication)[held]
        self._first = np.concatenate([[0], np.cumsum(allreduce_max(size, comm).clip(min=0))])
        columns = np.array([price[:3] for price in prices], np.int64).reshape(-1, 3)
        latency, self._volume, rate = columns.T.copy()
        self._price = self._prices_of_flows()
        self._route = self._routes_of_flows(prices)
        self._price[self._route < 0] = -1
        self._start = np.empty(self._first[-1], np.int64)
        self._schedule = FlowSchedule(
            self._first,
            self._price,
            self._route,
            latency,
            self._volume,
            rate,
            self._route_group,
            routes.index,
            routes.link,
            routes.weight,
            routes.capacity,
        )
        self._hot = np.zeros(len(routes.capacity), bool)
        self._sharing = Sharing(routes.capacity, routes.index, routes.link, routes.weight)
        self._domain = np.full(len(self._group), -1)

    def _prices_of_flows(self) -> NDArray[np.int32]:
        """Return the price of each flow, or -1 of operations that are none."""
        plan = self._distribution
        at, _ = ranges(plan.simulated.slot_index, plan.hosted.astype(np.int64))
        bound = plan.simulated.slots[at]
        group = np.searchsorted(self._group, bound).clip(max=len(self._group) - 1)
        slot_flow = np.where(self._group[group] == bound, self._first[group], -1)
        found = np.full(self._first[-1], -1, np.int32)
        mark_flows(plan.core_input, self._given.prices, slot_flow, found)
        return allreduce_max(found.astype(np.int64), self._comm).astype(np.int32)

    def _routes_of_flows(self, prices: tuple[Price, ...]) -> NDArray[np.int32]:
        """Return the route of each flow, or -1 if its communicator has none of that pattern."""
        routes = self._routes
        pattern = {one: i for i, one in enumerate(routes.patterns)}
        of_price = np.array([pattern[price.pattern] for price in prices] + [-1], np.int64)
        route = np.full((len(self._group), len(pattern) + 1), -1, np.int32)
        route[self._route_group, routes.pattern] = np.arange(len(routes))
        group = np.repeat(np.arange(len(self._group)), np.diff(self._first))
        found: NDArray[np.int32] = route[group, of_price[self._price]]
        return found

    def settle(self, core: Any) -> bool | None:
        """Starts of communications in a pass → whether its times are final; None: give up.

        Parameters
        ----------
        core : Core
            Of this process, after a pass; what it was given as `taken` is changed for the next.
        """
        self._start.fill(np.iinfo(np.int64).min)
        self._schedule.gather(self._here, core.communications["time"], self._start)
        if self._comm is not None:
            self._start = allreduce_max(self._start, self._comm)
        changes = self._schedule.update(self._start)
        self._changes.append(changes)
        contended = True
        while contended:
            if not self._simulate():
                return None  # some flow ends later than int64 can say
            contended = self._contend()
        differs = self._schedule.scatter(self._here, self._given.taken)
        if not allreduce_any(differs, self._comm):
            return True
        return None if self._is_slow() else False

    def _is_slow(self) -> bool:
        """Return whether the last passes have changed hardly less than those before them."""
        done = len(self._changes)
        return done > _WINDOW and 2 * self._changes[-1] > self._changes[-1 - _WINDOW]

    def _contend(self) -> bool:
        """Find links that bind, and flows on them; return whether there are any not known yet."""
        if self._comm is None:
            flows, links = self._schedule.sweep(0, 1)
        else:
            found = self._comm.allgather(self._schedule.sweep(self._comm.rank, self._comm.size))
            flows, links = (np.concatenate(one) for one in zip(*found, strict=True))
        self._schedule.changed[:] = 0
        self._schedule.contend(flows)
        links = links[~self._hot[links]]
        if len(links):
            self._hot[links] = True
            self._join(links)
        return bool(len(flows) or len(links))

    def _join(self, links: Ints) -> None:
        """Number contention domains again, since more links have been seen to bind."""
        routes = self._routes
        kept = self._hot[routes.link]
        group = np.repeat(self._route_group, np.diff(routes.index))[kept]
        domain = joined(group, routes.link[kept], len(self._group), len(routes.capacity))
        is_hot = np.zeros(len(self._group), bool)
        is_hot[group] = True
        self._domain = np.where(is_hot, domain, -1)
        joining = np.isin(routes.link, links)
        self._schedule.changed[np.repeat(self._route_group, np.diff(routes.index))[joining]] = 1

    def _simulate(self) -> bool:
        """Let contended flows share links where any has changed; return whether all end."""
        touched = self._schedule.changed[:-1] != 0
        domains = np.unique(self._domain[touched & (self._domain >= 0)])
        if not len(domains):
            return True
        order = np.argsort(self._domain, kind="stable")
        begin = np.searchsorted(self._domain[order], domains)
        end = np.searchsorted(self._domain[order], domains, side="right")
        parts, mine = 1, 0
        if self._comm is not None and len(domains) > 1:
            parts, mine = self._comm.size, self._comm.rank
        finite = True
        # The largest first, round about.
        for i, one in enumerate(np.argsort(begin - end, kind="stable").tolist()):
            groups = order[begin[one] : end[one]]
            if i % parts != mine:
                self._schedule.forget(groups)
            else:
                finite = self._schedule.simulate(self._sharing, groups) and finite
        if parts > 1:
            self._schedule.learn(allreduce_max(self._schedule.end, self._comm))
            finite = not allreduce_any(not finite, self._comm)
        return finite

    def shared_links(self, network: Network | None) -> SharedLinks | None:
        """Return the links that communications could share, and flows of this process. Local.

        Every flow is returned by one process.

        Parameters
        ----------
        network : Network or None
        """
        if not isinstance(network, SharedNetwork):
            return None
        flows = self._price >= 0
        if self._comm is not None:
            group = np.repeat(np.arange(len(self._group)), np.diff(self._first))
            flows &= group % self._comm.size == self._comm.rank
        return SharedLinks(
            routes=self._routes,
            communicator=communicators_of(self._distribution, self._routes),
            flows=Flows(
                route=self._route[flows].astype(np.int64),
                begin=self._schedule.begin[:-1][flows],
                end=self._schedule.end[:-1][flows],
                volume=self._volume[self._price[flows]],
            ),
            link_name=network.link_name,
        )
