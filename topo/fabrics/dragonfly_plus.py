"""Dragonfly+: groups that are trees of two levels, every group joined to every other.

Shpiner, Haramaty, Eliad, Zdornov, Gafni, Zahavi, "Dragonfly+: Low Cost Topology for Scaling
Datacenters", HiPINEB 2017. Ports are on leaves; the spines of a group lead to other groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .fabric import Fabric
from .fabric_graph import FabricGraph, Ports

__all__ = ["dragonfly_plus"]


def dragonfly_plus(fabric: Fabric, ports: Ports) -> FabricGraph:
    """Fabric table and ports → a dragonfly+ of as many groups as the ports need.

    Switches route adaptively, so that the spines of a group are as good as one, of their total, and
    so are the links between two groups. Flows go straight to the group of their target; a detour
    over a third group is not taken.

    Parameters
    ----------
    fabric : Fabric
        With `leaf`, `pod` (leaves of a group) and `group_links`. Without a `link_bandwidth` links
        between groups have that of a port.
    ports : Ports
        What is to be joined; the first `leaf` are on the first leaf, and so on.
    """
    leaf, leaves, links = fabric.leaf, fabric.pod, fabric.group_links
    assert leaf is not None
    assert leaves is not None
    assert links is not None
    groups = -(-ports.count // (leaf * leaves))
    if groups == 1:
        leaves = -(-ports.count // leaf)
    graph = FabricGraph(ports)
    names = [f"group{g}.leaf{i}" for g in range(groups) for i in range(leaves)]
    below = graph.add_switches(names).reshape(groups, leaves)
    leaf_of = np.arange(ports.count) // leaf
    up, down = graph.connect_ports(below.reshape(-1)[leaf_of])
    if leaf % ports.each == 0:
        graph.period = leaf * (leaves if groups > 1 else 1) // ports.each
    if below.size == 1:
        graph.hops = lambda a, b: np.stack([up[a], down[b]], axis=1)
        return graph

    brought = leaf * ports.bandwidth
    spines = graph.add_switches([f"group{g}.spine" for g in range(groups)])
    climb, descend = graph.add_cables(
        below, spines[:, None], brought / fabric.oversubscription, max_inflow=brought
    )
    link = fabric.link_bandwidth.si if fabric.link_bandwidth else ports.bandwidth
    one, two = np.nonzero(~np.eye(groups, dtype=bool))
    far = np.full((groups, groups), -1)
    far[one, two] = graph.add_links(spines[one], spines[two], links * link, ports.hop)

    def hops(source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int64]:
        here, there = leaf_of[source], leaf_of[target]
        (ga, ia), (gb, ib) = np.divmod(here, leaves), np.divmod(there, leaves)
        columns = [
            up[source],
            np.where(here != there, climb[ga, ia], -1),
            far[ga, gb],
            np.where(here != there, descend[gb, ib], -1),
            down[target],
        ]
        return np.stack(columns, axis=1)

    graph.hops = hops
    return graph
