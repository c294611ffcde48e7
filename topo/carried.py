"""Patterns of communications on a topology: the order of a group in them, and what they load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .alone import added_latency
from .dimensions import SERVED
from .loads import link_weights
from .order import Ordered, by_tour, in_blocks
from .placement import Pattern
from .steps import steps
from .topology import Paths, Topology
from .transfers import CHAINS, transfers

__all__ = ["Carried"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Carried:
    """How patterns are carried out by many groups of one arrangement.

    Groups are given by `members`, shape (s,), less the `base` of each, shape (g,): see
    `mpisim.topo.shapes.Alike`.

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
        self, pattern: Pattern, members: Ints, base: Ints, seen: NDArray[np.bool_], paths: Paths
    ) -> tuple[Ints, Ints, Ints]:
        """Return (place in `base`, link, weight) on links `seen`; see `link_weights`."""
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
                block=each.block,
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
        self, pattern: Pattern, members: Ints, base: Ints, paths: Paths, excess: Ints
    ) -> Ints:
        """Return the latency that the way adds, shape (g,), in ps; see `added_latency`."""
        found = np.zeros(len(base), np.int64)
        for each in self._ordered(pattern, members, base):
            algorithm = self._algorithm(pattern, each)
            if algorithm is not None:
                phases = steps(
                    pattern.operation, algorithm, each.members, self.gpus_per_node, each.block
                )
                found[each.which] = added_latency(paths, excess, base[each.which], phases)
        return found

    def impossible(self, pattern: Pattern, members: Ints, base: Ints) -> NDArray[np.bool_]:
        """Say which groups cannot do it by this pattern, shape (g,)."""
        found = np.zeros(len(base), bool)
        if pattern.algorithm == "dimensions" and not self.rings_instead:
            for each in self._ordered(pattern, members, base):
                found[each.which] = each.block is None
        return found

    def _ordered(self, pattern: Pattern, members: Ints, base: Ints) -> list[Ordered]:
        """Sort groups by how their members follow each other."""
        if pattern.operation in SERVED and pattern.algorithm == "dimensions":
            return in_blocks(self.topology, members, base, self.gpus_per_node)
        toured = pattern.algorithm == "tour" or (pattern.algorithm == "ring" and self.by_fabric)
        if pattern.operation in SERVED + CHAINS and toured:
            return by_tour(self.topology, members, base)
        return [Ordered(np.arange(len(base)), members)]

    def _algorithm(self, pattern: Pattern, groups: Ordered) -> str | None:
        """Return by which algorithm groups do it, None if not at all."""
        if pattern.algorithm != "dimensions" or groups.block is not None:
            return pattern.algorithm
        return "ring" if self.rings_instead else None
