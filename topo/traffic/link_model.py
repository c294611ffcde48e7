"""Groups, patterns, topology → bytes on each link, and the highest rate for a group alone.

The work is done once an *arrangement* (:mod:`.groups`): such groups have the same transfers and
hops, shifted by a base. Results are cached by the content of their arguments (a digest of the
arrays), so that programs that are compared share what they have in common.

Invariants
----------
- Weights and rates are integers, and all sums are of integers: the result does not depend on the
  order of groups, of links, or of the parts in which pairs are looked at.
- A link left out (`unlimiting_links`) can never be full, since the NICs behind it carry less: no
  rate depends on it, alone or shared.
- Alone and shared, a link means the same: `limits` divides the capacity by the same weight that
  `loads` hands to the engine.
- Groups that are `Topology.period` nodes apart have equal limits, because their routes are equal
  over links of equal bandwidth: only one of them is computed (`_distinct`). The links that they
  load are `Topology.shift` further on. A change of a link sets the period to 0.
- Where nodes are such as NCCL was measured on, measurements contain what their links carry, by
  however many paths: at its highest rate an algorithm fills no link of a node or NIC beyond the
  bandwidth that is typical of its kind. The weight on such a link is capped accordingly, and only
  links below the typical bandwidth, and links between switches, limit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from mpisim.base.array_keys import fingerprint, size_of
from mpisim.base.distinct import numbered
from mpisim.base.lru_cache import LruCache

from ..network import WEIGHT_ONE, integer_rates
from ..topology import LinkKind, RouteFunction, Topology
from .groups import Arrangement, arrangements
from .link_limits import (
    IMPOSSIBLE,
    UNLIMITED,
    LimitArrays,
    highest_rates,
    lowest_rate,
    typical_bandwidth,
    unlimiting_links,
)
from .patterns import Pattern, PatternTraffic
from .route_latency import excess_latency, link_latency
from .steps import Steps
from .transfers import CHAIN_OPERATIONS

__all__ = ["MAX_CACHE_BYTES", "LinkModel"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Loads = tuple[Ints, Ints, Ints]

MAX_CACHE_BYTES = 1 << 26
"""Bytes of each cache of results about groups."""

_HOST_LINKS = (LinkKind.PCIE, LinkKind.HOST, LinkKind.SOCKET)


class LinkModel:
    """Loads and limits of patterns on the links of a topology.

    Parameters
    ----------
    topology : Topology
    gpus_per_node : int
    traffic : PatternTraffic
    highest_rate : callable
        Pattern and members of a group (less their base) → the highest rate of the payload, in
        2**-40 bytes per ps, that the library reaches where no link limits it.
    measured : bool
        Whether nodes and NICs are such as NCCL was measured on; otherwise all links limit.
    host_links_limit : bool
        Whether GPUs of a node share links of the host, each pair on its own route (PCIe nodes).
    whole_latency : bool
        Whether the whole latency of a route counts, not only what NCCL's constants do not hold.
    """

    def __init__(
        self,
        topology: Topology,
        gpus_per_node: int,
        traffic: PatternTraffic,
        highest_rate: Callable[[Pattern, Ints], int],
        *,
        measured: bool,
        host_links_limit: bool,
        whole_latency: bool,
    ) -> None:
        self.topology = topology
        self._gpus_per_node = gpus_per_node
        self._traffic = traffic
        self._highest_rate = highest_rate
        self._measured = measured
        self._host_links_limit = host_links_limit
        self._whole_latency = whole_latency
        self._loads: LruCache[Loads] = LruCache(MAX_CACHE_BYTES, size_of)
        self._arrangement_loads: LruCache[Loads] = LruCache(MAX_CACHE_BYTES, size_of)
        self._limits: LruCache[LimitArrays] = LruCache(MAX_CACHE_BYTES, size_of)

    @cached_property
    def capacity(self) -> Ints:
        """Link bandwidths, shape (n_links,): integers in units of 2**-40 bytes per ps."""
        return integer_rates(self.topology.bandwidth)

    @cached_property
    def neutral(self) -> bool:
        """Whether no link limits or delays anything: prices are those of the library."""
        return not (self._any_limits or self._any_is_late)

    # --- loads of many groups ---------------------------------------------------------------------

    def loads(self, index: Ints, members: NDArray[np.int32], pattern: Pattern) -> Loads:
        """Return the links that groups load; see `SharedNetwork.loads`."""
        return self._loads.get(
            (pattern, fingerprint(index, members)), lambda: self._all_loads(index, members, pattern)
        )

    def _all_loads(self, index: Ints, members: NDArray[np.int32], pattern: Pattern) -> Loads:
        found = [
            self._loads_of(each, pattern)
            for each in arrangements(index, members, self._gpus_per_node)
        ]
        counts = np.zeros(len(index) - 1, np.int64)
        for each, count, _, _ in found:
            counts[each] = count
        first = np.concatenate([[0], np.cumsum(counts)])
        links, weights = np.empty((2, int(first[-1])), np.int64)
        for each, count, link, weight in found:
            # From one group after another of an arrangement to the same of all.
            at = np.repeat(first[each] - (np.cumsum(count) - count), count) + np.arange(len(link))
            links[at], weights[at] = link, weight
        return first, links, weights

    def _loads_of(self, groups: Arrangement, pattern: Pattern) -> tuple[Ints, Ints, Ints, Ints]:
        """Return groups of one arrangement, how many links each has, and these with weights.

        Of one group after another, links of each ascending.
        """
        members, base = groups.members, groups.base
        distinct, which = self._distinct(members, base)
        shift = self.topology.shift
        if shift is not None and 2 * len(distinct) <= len(base):
            count, link, weight = self._distinct_loads(members, distinct, pattern)
            periods = (base - distinct[which]) // (self.topology.period * self._gpus_per_node)
            at, owner = _ranges(np.cumsum(count) - count, count, which)
            links = link[at] + periods[owner] * shift.of(link)[at]
            begins = np.cumsum(count[which]) - count[which]
            ascend = np.diff(links, prepend=-1) > 0
            ascend[begins[begins < len(links)]] = True
            if ascend.all():
                return groups.groups, count[which], links, weight[at]
        return groups.groups, *self._distinct_loads(members, base, pattern)

    def _distinct_loads(self, members: Ints, base: Ints, pattern: Pattern) -> Loads:
        """Return the number of links of each group, links and weights; see `_loads_of`."""
        group, link, weight = self._arrangement_loads.get(
            (pattern, fingerprint(members, base)),
            lambda: self._weights(members, base, pattern, ~self._unlimiting, self._loaded_routes),
        )
        return np.bincount(group, minlength=len(base)), link, weight

    def _weights(
        self, members: Ints, base: Ints, pattern: Pattern, seen: Bools, routes: RouteFunction
    ) -> Loads:
        """Return (place in `base`, link, weight) of groups of one arrangement, on links `seen`."""
        group, link, weight = self._traffic.weights(pattern, members, base, seen, routes)
        if not self._measured:
            return group, link, weight
        highest = self._highest_rates(pattern, members, base)
        exact = self.topology.kind[link] == LinkKind.FABRIC
        if pattern.algorithm == "send" or pattern.operation in CHAIN_OPERATIONS:
            exact |= self._host_links[link]  # no measurements of these there
        # Links of nodes and NICs are never beyond the typical bandwidth at the highest rate.
        (measured,) = np.nonzero(~exact)
        if len(measured):
            typical = self._typical[link[measured]]
            capped = np.minimum(weight[measured], _weight_at(typical, highest[group[measured]]))
            weight[measured] = np.maximum(capped, 1)
        return group, link, weight

    def _highest_rates(self, pattern: Pattern, members: Ints, base: Ints) -> Ints:
        """Groups whose members lie alike → highest rates, as `capacity` if no link limits."""
        rows, which = Arrangement(np.arange(len(base)), members, base).by_seat(self._gpus_per_node)
        return np.array([self._highest_rate(pattern, row) for row in rows], np.int64)[which]

    def steps(self, pattern: Pattern, members: Ints) -> Steps:
        """Return the steps of one group, whose bytes are what `loads` puts on links.

        Parameters
        ----------
        pattern : Pattern
            A pattern that the group can carry out.
        members : int64, shape (s,)
            Global ranks, in the group's order.
        """
        return self._traffic.steps(pattern, members)

    # --- limits of a group that is alone ----------------------------------------------------------

    def limits(
        self, members: Ints, base: Ints, patterns: list[Pattern]
    ) -> tuple[list[LimitArrays], Ints]:
        """Return the limits of links for groups of one arrangement, each alone.

        Parameters
        ----------
        members : int64, shape (s,)
            Of each group, less its base.
        base : int64, shape (g,)
        patterns : list of Pattern

        Returns
        -------
        list of LimitArrays
            By pattern; of the distinct groups.
        int64, shape (g,)
            The distinct group that represents each.
        """
        distinct, which = self._distinct(members, base)
        found = [
            self._limits.get(
                (pattern, fingerprint(members, distinct)),
                partial(self._limits_of, members, distinct, pattern),
            )
            for pattern in patterns
        ]
        return found, which

    def _distinct(self, members: Ints, base: Ints) -> tuple[Ints, Ints]:
        """Return the bases of groups that differ, and the one that represents each group."""
        period = self.topology.period
        if not period:
            return base, np.arange(len(base))
        # Groups a whole number of periods apart are equal; members may stand before the base.
        shift = period * self._gpus_per_node
        lowest = max(0, -int(members.min()))
        first = base % shift
        first += -(np.minimum(first - lowest, 0) // shift) * shift
        distinct, _, which = numbered(first)
        return distinct, which

    def _limits_of(self, members: Ints, base: Ints, pattern: Pattern) -> LimitArrays:
        n = len(base)
        node_rate, fabric_rate, link = np.full(n, UNLIMITED), np.full(n, UNLIMITED), np.full(n, -1)
        if self._any_limits:
            group, at, weight = self._weights(
                members, base, pattern, self._limiting, self._limiting_routes
            )
            rate = highest_rates(self.capacity[at], weight)
            fabric = self.topology.kind[at] == LinkKind.FABRIC
            node_rate, node_link = lowest_rate(group[~fabric], at[~fabric], rate[~fabric], n)
            fabric_rate, fabric_link = lowest_rate(group[fabric], at[fabric], rate[fabric], n)
            link = np.where(node_rate < fabric_rate, node_link, fabric_link)
        latency = np.zeros(n, np.int64)
        if self._any_is_late:
            latency = self._traffic.latency(
                pattern, members, base, self._late_routes, self._latency
            )
        fabric_rate[self._traffic.infeasible(pattern, members, base)] = IMPOSSIBLE
        return LimitArrays(node_rate, fabric_rate, link, latency)

    # --- which links count ------------------------------------------------------------------------

    @cached_property
    def _unlimiting(self) -> Bools:
        """Links that can never be full."""
        return unlimiting_links(self.topology, self._gpus_per_node)

    @cached_property
    def _loaded_routes(self) -> RouteFunction:
        return self.topology.filtered(~self._unlimiting)

    @cached_property
    def _typical(self) -> Ints:
        """Typical rate of each link of nodes and NICs, or its own if that is higher."""
        if self.topology.is_nominal:
            return self.capacity
        return np.maximum(integer_rates(typical_bandwidth(self.topology)), self.capacity)

    @cached_property
    def _host_links(self) -> Bools:
        """Links of hosts that GPUs without links of their own share."""
        if not self._host_links_limit:
            return np.zeros(self.topology.n_links, bool)
        return np.isin(self.topology.kind, _HOST_LINKS)

    @cached_property
    def _limiting(self) -> Bools:
        """Links that can limit a communication that is alone."""
        if not self._measured:
            return ~self._unlimiting
        fabric = self.topology.kind == LinkKind.FABRIC
        inside = (self.capacity < self._typical) | (self._host_links & ~self._unlimiting)
        return np.where(fabric, ~self._unlimiting, inside)

    @cached_property
    def _any_limits(self) -> bool:
        return bool(self._limiting.any())

    @cached_property
    def _any_is_late(self) -> bool:
        return bool(self._latency.any())

    @cached_property
    def _limiting_routes(self) -> RouteFunction:
        return self.topology.filtered(self._limiting)

    @cached_property
    def _latency(self) -> Ints:
        """Latency of each link that the library's own does not hold, in 1e-3 ps, and a 0."""
        return (link_latency if self._whole_latency else excess_latency)(self.topology)

    @cached_property
    def _late_routes(self) -> RouteFunction:
        return self.topology.filtered(self._latency[:-1] != 0)


def _ranges(first: Ints, count: Ints, items: Ints) -> tuple[Ints, Ints]:
    """Return the entries of items, one item after another, and the place of each item in `items`.

    Item i has the entries ``first[i]`` to ``first[i] + count[i]``.
    """
    n = count[items]
    owner = np.repeat(np.arange(len(items)), n)
    return np.arange(len(owner)) + (first[items] - (np.cumsum(n) - n))[owner], owner


def _weight_at(bandwidth: Ints, rate: Ints) -> Ints:
    """Return the weights under which payload rates fill links, rounded down; int64, (m,)."""
    n = len(bandwidth)
    if (bandwidth == bandwidth[0]).all() and (rate == rate[0]).all():  # as a rule
        bandwidth, rate = bandwidth[:1], rate[:1]  # divisions take long
    whole, rest = np.divmod(bandwidth, rate)
    weight = np.asarray(whole * WEIGHT_ONE + rest * WEIGHT_ONE // rate)
    return weight if len(weight) == n else np.repeat(weight, n)
