"""`Pattern` (operation and algorithm), topology → bytes over links and latency of routes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from ..topology import RouteFunction, Topology
from .grid_order import BY_DIMENSION, OrderedGroups, order_by_subgrid, order_by_tour
from .hops import hop_chains
from .link_loads import link_weights
from .route_latency import added_latency
from .steps import Steps, collective_steps
from .transfers import CHAIN_OPERATIONS, transfers

__all__ = ["Pattern", "PatternTraffic"]


class Pattern(NamedTuple):
    """An operation and the algorithm that carries it out: decides which links are loaded."""

    operation: Operation
    algorithm: str


Ints = NDArray[np.int64]


@frozen(eq=False)
class PatternTraffic:
    """Loads and latencies of patterns, for many groups of one arrangement.

    In all methods groups are given by `members`, int64, shape (s,), each in its own order less its
    base, and `base`, int64, shape (g,), what is to be added for each group: see
    `mpisim.topo.traffic.groups.Arrangement`.

    Attributes
    ----------
    topology : Topology
    gpus_per_node : int
    meshed : bool
        Whether GPUs of a node are joined pair by pair.
    by_fabric : bool
        Whether ``"ring"`` follows the fabric rather than the order of ranks.
    rings_instead : bool
        Whether groups that cannot go dimension by dimension go in rings; otherwise not at all.
    """

    topology: Topology
    gpus_per_node: int
    meshed: bool
    by_fabric: bool
    rings_instead: bool

    def weights(
        self,
        pattern: Pattern,
        members: Ints,
        base: Ints,
        seen: NDArray[np.bool_],
        paths: RouteFunction,
    ) -> tuple[Ints, Ints, Ints]:
        """Return (place in `base`, link, weight) on links `seen`; see `link_weights`.

        Parameters
        ----------
        seen : bool, shape (n_links,)
            Links that count.
        paths : callable
            Finds routes, at least with all links in `seen`.

        Returns
        -------
        group, link : int64, shape (e,)
            Ascending by group, then by link; each pair once.
        weight : int64, shape (e,)
            Bytes over the link per byte of payload, in units of 2**-20, rounded up.
        """
        parts = []
        for each in self._ordered(pattern, members, base):
            algorithm = self._algorithm(pattern, each)
            if algorithm is None:
                continue
            sent = transfers(
                pattern.operation,
                algorithm,
                each.members,
                self.gpus_per_node,
                meshed=self.meshed,
                subgrid=each.subgrid,
            )
            some, at, load = link_weights(paths, self.topology.share, base[each.which], sent, seen)
            parts.append((each.which[some], at, load))
        group, link, weight = (
            np.concatenate([np.empty(0, np.int64), *(part[i] for part in parts)]) for i in range(3)
        )
        if len(parts) > 1:
            order = np.argsort(group, kind="stable")  # of one group links are ascending already
            group, link, weight = group[order], link[order], weight[order]
        return group, link, weight

    def latency(
        self, pattern: Pattern, members: Ints, base: Ints, paths: RouteFunction, excess: Ints
    ) -> Ints:
        """Return the latency that the route adds, shape (g,), in ps; see `added_latency`.

        Parameters
        ----------
        paths : callable
            Finds routes, at least with all links that have an excess latency.
        excess : int64, shape (n_links + 1,)
            The part of each link's latency that counts, in 1e-3 ps: from `excess_latency` or
            `link_latency`.
        """
        found = np.zeros(len(base), np.int64)
        for each in self._ordered(pattern, members, base):
            algorithm = self._algorithm(pattern, each)
            if algorithm is not None:
                phases = hop_chains(
                    pattern.operation, algorithm, each.members, self.gpus_per_node, each.subgrid
                )
                period = self.topology.period * self.gpus_per_node
                found[each.which] = added_latency(paths, excess, base[each.which], phases, period)
        return found

    def steps(self, pattern: Pattern, members: Ints) -> Steps:
        """Return the steps of one group; see `collective_steps`.

        Parameters
        ----------
        pattern : Pattern
            A pattern that the group can carry out.
        members : int64, shape (s,)
            Global ranks, in the group's order.
        """
        base = members[:1] // self.gpus_per_node * self.gpus_per_node
        (groups,) = self._ordered(pattern, members - base, base)
        algorithm = self._algorithm(pattern, groups)
        assert algorithm is not None  # feasible
        return collective_steps(
            pattern.operation,
            algorithm,
            groups.members + base,
            self.gpus_per_node,
            meshed=self.meshed,
            subgrid=groups.subgrid,
        )

    def infeasible(self, pattern: Pattern, members: Ints, base: Ints) -> NDArray[np.bool_]:
        """Return which groups cannot use a pattern.

        Parameters
        ----------
        pattern : Pattern
        members : int64, shape (s,)
            Ranks of the groups, less their base.
        base : int64, shape (g,)
            What is to be added for each group.

        Returns
        -------
        bool, shape (g,)
        """
        found = np.zeros(len(base), bool)
        if pattern.algorithm == "dimensions" and not self.rings_instead:
            for each in self._ordered(pattern, members, base):
                found[each.which] = each.subgrid is None
        return found

    def _ordered(self, pattern: Pattern, members: Ints, base: Ints) -> list[OrderedGroups]:
        """Sort groups by how their members follow each other."""
        if pattern.operation in BY_DIMENSION and pattern.algorithm == "dimensions":
            return order_by_subgrid(self.topology, members, base, self.gpus_per_node)
        toured = pattern.algorithm == "tour" or (pattern.algorithm == "ring" and self.by_fabric)
        if pattern.operation in BY_DIMENSION + CHAIN_OPERATIONS and toured:
            return order_by_tour(self.topology, members, base)
        return [OrderedGroups(np.arange(len(base)), members)]

    def _algorithm(self, pattern: Pattern, groups: OrderedGroups) -> str | None:
        """Return by which algorithm groups do it, None if not at all."""
        if pattern.algorithm != "dimensions" or groups.subgrid is not None:
            return pattern.algorithm
        return "ring" if self.rings_instead else None
