"""Pattern, group, links → highest rate of a communication that has the network to itself.

NCCL's model (:mod:`mpisim.topo.nccl`) says what a communication reaches between such GPUs and NICs
on a fabric without a bottleneck. This module adds the limits of the actual fabric and of slower
links: the highest rate at which no link carries more than its bandwidth.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen

from ..nccl.shape import Shape
from ..network import WEIGHT_ONE
from ..topology import LinkKind, Topology
from .patterns import Pattern

__all__ = [
    "IMPOSSIBLE",
    "UNLIMITED",
    "LimitArrays",
    "LinkLimit",
    "Placement",
    "highest_rates",
    "lowest_rate",
    "typical_bandwidth",
    "unlimiting_links",
]
Floats = NDArray[np.float64]

Ints = NDArray[np.int64]

UNLIMITED = 1 << 62
"""The rate of what no link limits."""

IMPOSSIBLE = -1
"""The rate of what a group cannot do."""


class LimitArrays(NamedTuple):
    """Limits of links for groups of one arrangement that communicate by one pattern.

    Attributes
    ----------
    node_rate : int64, shape (g,)
        Highest rate of the payload by links of nodes and by NICs, in 2**-40 bytes per ps, or
        `UNLIMITED`.
    fabric_rate : int64, shape (g,)
        The same by links between switches; `IMPOSSIBLE` where a group cannot do it by this pattern.
    link : int64, shape (g,)
        The link that sets the lower of the two, or -1.
    latency : int64, shape (g,)
        ps to be added, which can be below 0.
    """

    node_rate: Ints
    fabric_rate: Ints
    link: Ints
    latency: Ints


def typical_bandwidth(topology: Topology) -> Floats:
    """Topology → of each link, the bandwidth of most links that were built like it.

    NCCL takes all nodes for equal, and so do the numbers that were measured on them. Where links
    were changed, the usual one tells which of them are slow. Where no bandwidth is that of more
    than half, the highest is typical: what the others allow follows from their own, whereas groups
    on fast links would take a lower one for a limit.

    Returns
    -------
    float64, shape (n_links,)
        Of links of nodes and of NICs; of all others their own.
    """
    if topology.is_nominal:
        return topology.bandwidth
    found = topology.bandwidth.copy()
    for kind in np.unique(topology.kind[topology.kind != LinkKind.FABRIC]).tolist():
        of_kind = np.flatnonzero(topology.kind == kind)
        for nominal in np.unique(topology.nominal[of_kind]).tolist():
            alike = of_kind[topology.nominal[of_kind] == nominal]
            values, counts = np.unique(topology.bandwidth[alike], return_counts=True)
            most = np.argmax(counts)
            found[alike] = values[most] if 2 * counts[most] > len(alike) else values[-1]
    return found


def highest_rates(capacity: Ints, weight: Ints) -> Ints:
    """Capacities, weights → payload rates at which links are full, rounded down.

    Parameters
    ----------
    capacity : int64, shape (m,)
        In 2**-40 bytes per ps.
    weight : int64, shape (m,)
        Bytes over the link per byte of payload, in units of 2**-20; 1 at least.

    Returns
    -------
    int64, shape (m,)
        In 2**-40 bytes per ps, below `UNLIMITED`.
    """
    whole, rest = np.divmod(capacity, weight)
    # The remainder is below the weight, a few bytes per byte: no overflow.
    return np.minimum(whole, UNLIMITED // WEIGHT_ONE - 1) * WEIGHT_ONE + rest * WEIGHT_ONE // weight


def lowest_rate(group: Ints, link: Ints, rate: Ints, n_groups: int) -> tuple[Ints, Ints]:
    """Rates of the links of groups → the lowest of each group, and a link that sets it.

    Parameters
    ----------
    group, link, rate : int64, shape (m,)
        One entry for each link of each group; rates in 2**-40 bytes per ps.
    n_groups : int

    Returns
    -------
    rate : int64, shape (n_groups,)
        `UNLIMITED` where there is no entry.
    link : int64, shape (n_groups,)
        The first of those, or -1.
    """
    found, at = np.full(n_groups, UNLIMITED), np.full(n_groups, -1)
    order = np.lexsort((link, rate, group))
    first = order[np.flatnonzero(np.diff(group[order], prepend=-1))]
    found[group[first]], at[group[first]] = rate[first], link[first]
    return found, at


_TOLERANCE = 1 + 1e-12
"""Sums of bandwidths are equal up to this factor."""


def unlimiting_links(topology: Topology, gpus_per_node: int) -> NDArray[np.bool_]:
    """Topology → which links can never be full, because NICs limit what comes to them.

    A link between a GPU and its NICs carries only what these carry if every route over it goes
    through one of them, and so does a link between switches. If it can take what all of them bring
    at once (`Topology.max_inflow`), it never limits, and is left out.

    Parameters
    ----------
    topology : Topology
        Of equal nodes, as a cluster makes it; links of nodes come first, node by node.
    gpus_per_node : int

    Returns
    -------
    bool, shape (n_links,)
    """
    found = topology.max_inflow <= topology.bandwidth * _TOLERANCE
    nodes = topology.n_gpus // gpus_per_node
    inside = int((topology.kind < LinkKind.NIC).sum())
    if nodes < 2 or inside % nodes or not topology.is_nominal:  # nodes may differ
        return found
    each = inside // nodes
    here, both = np.arange(gpus_per_node), np.arange(2 * gpus_per_node)
    able = np.isin(topology.kind[:each], (LinkKind.PCIE, LinkKind.HOST, LinkKind.SOCKET))
    ports: list[set[int]] = [set() for _ in range(each)]
    # Routes that begin or end in the first node; the port of this node is the first or the last.
    for first, senders, receivers in ((True, here, both), (False, both, here)):
        index, links = topology.routes(
            np.repeat(senders, len(receivers)), np.tile(receivers, len(senders))
        )
        for i in range(len(index) - 1):
            route = links[index[i] : index[i + 1]]
            own = route[route < each]
            through = route[topology.kind[route] == LinkKind.NIC]
            if len(through):
                port = int(through[0 if first else -1])
                for link in own.tolist():
                    ports[link].add(port)
            else:
                able[own] = False
    for link in np.flatnonzero(able).tolist():
        brought = topology.bandwidth[sorted(ports[link])].sum()
        able[link] = bool(ports[link]) and brought <= topology.bandwidth[link]
    found[:inside] = np.tile(able, nodes)
    return found


@frozen
class LinkLimit:
    """Limits of links for communications of one pattern on one group, alone.

    Attributes
    ----------
    pattern : Pattern
    node_rate, fabric_rate : int
        Highest rates by links of nodes and NICs that are slower than usual, and by links between
        switches; in 2**-40 bytes per ps, or `UNLIMITED`.
    latency : int
        ps to be added to NCCL's.
    link : int
        One that sets the lower rate, -1 if none does. Equal limits may have different ones.
    """

    pattern: Pattern
    node_rate: int
    fabric_rate: int
    latency: int
    link: int = field(default=-1, compare=False)


@frozen
class Placement:
    """Shape and link limits of a group: all that the price of its communications depends on.

    Attributes
    ----------
    shape : Shape
        Ranks on nodes.
    limits : tuple of LinkLimit
        Of the patterns that links limit or delay; none: the network is as NCCL's model takes it.
    """

    shape: Shape
    limits: tuple[LinkLimit, ...] = ()

    @property
    def nodes(self) -> int:
        """Number of nodes that the group stands on."""
        return self.shape.nodes

    def limit(self, pattern: Hashable) -> LinkLimit | None:
        """Return the limit of a pattern; None if there is none."""
        return next((each for each in self.limits if each.pattern == pattern), None)
