"""Relaxation: end times of communications on shared links, by repeated passes of dataflow.

Where communications share links, the duration of each depends on when all others run, and when they
run depends on the durations. *Waveform relaxation* (Lelarasmee, Ruehli and
Sangiovanni-Vincentelli, IEEE Trans. CAD 1, 1982) separates the two, and repeats passes until
the durations no longer change. A pass

1. runs all ranks with fixed durations of communications, in the first pass those without sharing:
   this is dataflow, so the tiled core does it, over any number of processes;
2. takes the start times of communications, and lets their flows share links: `FlowSchedule`;
3. gives new durations of communications. If they equal the fixed ones, the times of step 1 are the
   result.

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
progress (`_is_slow`), or there are many of them where that core is fast (`_PATIENCE`), relaxation
stops, and `mpisim.engine.dataflow` starts that core. Runs that take over the setup of such a run do
not try relaxation again (`RunSetup.relaxes`).

**What is done again.** Flows are simulated again only where they begin at other times than in the
pass before, until all goes on as it did (`flow_timeline`).

**Horizons.** What changes early moves all that is late, in every pass, and none of that helps. So
from the third pass on ranks run only until they need to know of a communication that it ends at the
*horizon* or later, and flows that start later are left where they were. The horizon is four times
the time up to which nothing has changed; when nothing has changed up to it, the next pass has none.
This only chooses what communications are held to take: the result is that of a pass without a
horizon that has changed nothing. Nor can it keep passes from ending: where they make too little
progress with horizons, there are none from then on.

All processes hold all flows, so they decide the same; the links to be looked at, and the contention
domains to be simulated, are distributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct, numbered
from ..mpi.reductions import allreduce_any, allreduce_max, allreduce_min
from ..topo import Network, Price, SharedNetwork
from ._core.by_communication import mark_flows
from ._core.flow_schedule import FlowSchedule
from ._core.flow_timeline import Timeline
from ._core.links import joined
from ._core.sharing import Sharing
from .distribution import Distribution
from .flows import Flows, SharedLinks, communicators_of
from .refine import ranges

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Relaxation"]

Ints = NDArray[np.int64]

_PASSES_TO_HALVE = 12
"""Passes within which the number of flows that begin at other times must halve, or the time double
up to which nothing changes."""

_PATIENCE, _FEW_GROUPS = 6, 512
"""Passes after which a folded run with so few communicators on shared links, on one process, goes
event by event: that takes as long as about five passes. Most runs need fewer; where six do not do,
two or three dozen follow."""

_NEVER = int(np.iinfo(np.int64).max)

_PASSES_WITHOUT_HORIZON = 2
"""The first passes, which have no horizon: most runs need no more than one besides."""

_FIRST_HORIZON, _LAST_HORIZON = 1 / 8, 3 / 4
"""The least horizon, and from which on there is none: of the time until the last flow starts."""


class Relaxation:
    """Flows of a run over all processes, and their end times. **Collective**, all of it.

    Parameters
    ----------
    distribution : Distribution
        Without contention: its core holds fixed how long communications take.
    prices : tuple of Price
        By number, the same on all processes.
    waited : int64, shape (n_communications + 1,), or None
        By how much longer than alone each communication is held to take at first, in ps.
    comm : mpi4py.MPI.Intracomm or None
        None: this process alone.

    Attributes
    ----------
    horizon : int
        Of the next pass, in ps; the largest int64 if it has none.
    """

    def __init__(
        self,
        distribution: Distribution,
        prices: tuple[Price, ...],
        waited: Ints | None,
        comm: Intracomm | None,
    ) -> None:
        routes, given = distribution.simulated.routes, distribution.core_input.sharing
        assert routes is not None
        assert given is not None
        self._given, self._alone = given, given.taken.copy()
        if waited is not None:
            np.add(given.taken, waited, out=given.taken)
        self._distribution, self._comm, self._routes = distribution, comm, routes
        self._changes: list[int] = []
        self._finals: list[int] = []
        self._may_stop, self._until = True, 0
        self._passes = 0
        self.horizon = _NEVER
        self._group, _, self._route_group = numbered(routes.group)
        few = len(self._group) <= _FEW_GROUPS and not distribution.placement.any()
        self._has_few_groups = few and distribution.simulated.folded
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
        # Of each contention domain, by its first group: how many groups it has and which process
        # simulates it; and of those that this process does, the simulation.
        self._domains: dict[int, tuple[int, int]] = {}
        self._timelines: dict[int, Timeline] = {}

    def _prices_of_flows(self) -> NDArray[np.int32]:
        """Return the price of each flow, or -1 of operations that are none."""
        distribution = self._distribution
        at, _ = ranges(distribution.simulated.slot_index, distribution.hosted.astype(np.int64))
        bound = distribution.simulated.slots[at]
        group = np.searchsorted(self._group, bound).clip(max=len(self._group) - 1)
        slot_flow = np.where(self._group[group] == bound, self._first[group], -1)
        found = np.full(self._first[-1], -1, np.int32)
        mark_flows(distribution.core_input, self._given.prices, slot_flow, found)
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

    @property
    def waited(self) -> Ints:
        """Slowdown of each communication by sharing links, in ps, once times are final."""
        return self._given.taken - self._alone

    @property
    def is_whole(self) -> bool:
        """Whether the pass that runs, or has run, has no horizon: all ranks run to their ends."""
        return self.horizon == _NEVER

    @property
    def n_full(self) -> int:
        """Number of links that have been full at some time, in some pass."""
        return int(self._hot.sum())

    def settle(self, core: Any) -> bool | None:
        """Start times of communications in a pass → whether all times are final; None: give up.

        Parameters
        ----------
        core : Core
            Of this process, after a pass; what it was given as `taken` is changed for the next.
        """
        self._start.fill(np.iinfo(np.int64).min)
        state = core.communications
        ended = not allreduce_any(core.unfinished > 0, self._comm)
        self._schedule.gather(self._here, state["time"], state["posted"], ended, self._start)
        if self._comm is not None:
            self._start = allreduce_max(self._start, self._comm)
        self._changes.append(self._schedule.update(self._start, self.horizon))
        contended = True
        while contended:
            if not self._simulate():
                return None  # some flow ends later than int64 can say
            contended = self._contend()
        changed = self._schedule.scatter(self._here, self._given.taken)
        changed = int(allreduce_min(np.array([changed], np.int64), self._comm)[0])
        if changed == _NEVER and self.is_whole:
            return True
        self._passes += 1
        if self._passes >= _PATIENCE and self._has_few_groups:
            return None
        self._finals.append(min(changed, self.horizon))
        if self._is_slow():
            if self.is_whole:
                return None
            self._may_stop = False
            self._changes.clear()
            self._finals.clear()
        self.horizon = self._next_horizon(changed)
        return False

    def _next_horizon(self, changed: int) -> int:
        """Time of the earliest change, in ps → horizon of the next pass."""
        if (
            len(self._changes) < _PASSES_WITHOUT_HORIZON
            or not self._may_stop
            or changed >= self.horizon
        ):
            return _NEVER
        self._until = max(self._until, int(self._start.max()))
        horizon = max(4 * changed, int(self._until * _FIRST_HORIZON))
        return horizon if horizon < self._until * _LAST_HORIZON else _NEVER

    def _is_slow(self) -> bool:
        """Return whether the last passes have changed hardly less than those before them."""
        done = len(self._changes)
        if (
            done <= _PASSES_TO_HALVE
            or 2 * self._changes[-1] <= self._changes[-1 - _PASSES_TO_HALVE]
        ):
            return False
        return self._finals[-1] < 2 * self._finals[-1 - _PASSES_TO_HALVE]

    def _contend(self) -> bool:
        """Find links that bind, and flows on them; return whether there are any not known yet."""
        if self._comm is None:
            flows, links = self._schedule.sweep(0, 1)
        else:
            found = self._comm.allgather(self._schedule.sweep(self._comm.rank, self._comm.size))
            flows, links = (np.concatenate(one) for one in zip(*found, strict=True))
        self._schedule.swept()
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
        number, first, which = numbered(self._domain)
        size = np.bincount(which)
        first, size = first[number >= 0], size[number >= 0]
        # The largest first, round about.
        order = np.argsort(-size, kind="stable")
        n_processes = 1 if self._comm is None or len(order) == 1 else self._comm.size
        assigned = enumerate(zip(first[order].tolist(), size[order].tolist()))
        domains = {one: (n, i % n_processes) for i, (one, n) in assigned}
        # Domains only grow together: one with as many groups as before is the same.
        same = [one for one in self._timelines if domains.get(one) == self._domains[one]]
        self._timelines = {one: self._timelines[one] for one in same}
        self._domains = domains
        fresh = ~np.isin(self._domain, self._domain[np.array(same, np.int64)])
        self._schedule.restart(np.flatnonzero(fresh & (self._domain >= 0)))
        self._schedule.changed[:] = 1  # all processes look at the same domains

    def _simulate(self) -> bool:
        """Let contended flows share links where any has changed; return whether all end."""
        touched = self._schedule.changed[:-1] != 0
        self._schedule.changed[:] = 0
        domains = distinct(self._domain[touched & (self._domain >= 0)])
        if not len(domains):
            return True
        order = np.argsort(self._domain, kind="stable")
        begin = np.searchsorted(self._domain[order], domains)
        end = np.searchsorted(self._domain[order], domains, side="right")
        comm = self._comm if len(self._domains) > 1 else None
        finite, others = True, [np.empty(0, np.int64)]
        for i in range(len(domains)):
            groups = order[begin[i] : end[i]]
            first = int(groups[0])
            if comm and self._domains[first][1] != comm.rank:
                others.append(groups)
                continue
            timeline = self._timelines.setdefault(first, Timeline())
            finite = self._schedule.simulate(timeline, self._sharing, groups) and finite
        if comm:
            ends = self._schedule.ends_without(np.concatenate(others))
            self._schedule.learn(allreduce_max(ends, comm))
            finite = not allreduce_any(not finite, comm)
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
