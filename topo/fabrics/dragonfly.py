"""Dragonfly and dragonfly+: groups of switches, every group joined to every other.

Dragonfly (Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA
2008): all routers of a group are joined. Minimal routes have at most one router to reach the link
between groups, this link, and one router behind it.

Dragonfly+ (Shpiner, Haramaty, Eliad, Zdornov, Gafni, Zahavi, "Dragonfly+: Low Cost Topology for
Scaling Datacenters", HiPINEB 2017): a group is a tree of two levels. Ports are on leaves; the
spines of a group lead to other groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from .fabric import Fabric
from .fabric_graph import FabricGraph, Ports, ecmp_hash

__all__ = ["dragonfly", "dragonfly_plus"]


def dragonfly(fabric: Fabric, ports: Ports) -> FabricGraph:
    """Fabric table and ports → a dragonfly of as many groups as the ports need.

    Global port j of a group, of router j // global_links, leads to the group that is number
    j modulo (groups - 1) of the others. What remains after each pair has the same number of links
    stays free.

    Parameters
    ----------
    fabric : Fabric
        With `router_ports`, `routers` and `global_links`. Without a `link_bandwidth` links between
        routers have that of a port.
    ports : Ports
        What is to be joined; the first `router_ports` are on the first router, and so on.

    Raises
    ------
    InputError
        If a group has too few global links to reach every other.
    """
    p, a, h = fabric.router_ports, fabric.routers, fabric.global_links
    assert p is not None
    assert a is not None
    assert h is not None
    groups = -(-ports.count // (p * a))
    if groups - 1 > a * h:
        raise InputError(
            f"a dragonfly of {a} routers with {h} global links each has {a * h + 1} groups at "
            f"most, of {p * a} ports; {ports.count} ports need {groups}"
        )
    a_group = a  # all of a group carry, though a single one is not built beyond its ports
    if groups == 1:
        a = -(-ports.count // p)
    others = groups - 1
    copies = a * h // others if others else 0
    bandwidth = fabric.link_bandwidth.si if fabric.link_bandwidth else ports.bandwidth

    graph = FabricGraph(ports)
    names = [f"group{g}.router{r}" for g in range(groups) for r in range(a)]
    routers = graph.add_switches(names).reshape(groups, a)
    router_of = np.arange(ports.count) // p
    up, down = graph.connect_ports(routers.reshape(-1)[router_of])
    if fabric.routing == "adaptive":
        totals = a_group * bandwidth / 2, copies * bandwidth
        _adaptive(graph, routers, router_of, totals, (up, down))
        if p % ports.each == 0:
            graph.period = p * (a if groups > 1 else 1) // ports.each
        return graph
    near = np.full((a, a), -1)
    one, two = np.nonzero(~np.eye(a, dtype=bool))
    near[one, two] = np.arange(len(one))
    local = graph.add_links(routers[:, one], routers[:, two], bandwidth, ports.hop)
    here, slot = np.divmod(np.arange(groups * copies * others), max(copies * others, 1))
    there = slot % others + (slot % others >= here) if others else slot
    back = np.where(here < there, here, here - 1)  # this group's number among the other's others
    arrival = (back + slot // max(others, 1) * others) // h
    far = graph.add_links(
        routers[here, slot // h], routers[there, arrival], bandwidth, ports.hop
    ).reshape(groups, copies * others)

    def hops(source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int64]:
        (ga, ra), (gb, rb) = np.divmod(router_of[source], a), np.divmod(router_of[target], a)
        columns = [up[source]]
        within = np.where((ga == gb) & (ra != rb), near[ra, rb], -1)
        columns.append(_links_at(local, ga, within))
        if others:
            crossing = ga != gb
            to_b, to_a = np.where(gb < ga, gb, gb - 1), np.where(ga < gb, ga, ga - 1)
            copy = _choose_copy(
                ra, to_b, rb, to_a, (h, others, copies), ecmp_hash(source, target, 2**30)
            )
            leave, enter = (to_b + copy * others) // h, (to_a + copy * others) // h
            steps = (
                (ga, np.where(crossing & (ra != leave), near[ra, leave % a], -1), local),
                (ga, np.where(crossing, to_b + copy * others, -1), far),
                (gb, np.where(crossing & (enter != rb), near[enter % a, rb], -1), local),
            )
            columns += [_links_at(links, group, which) for group, which, links in steps]
        columns.append(down[target])
        return np.stack(columns, axis=1)

    graph.hops = hops
    return graph


def _adaptive(
    graph: FabricGraph,
    routers: NDArray[np.int64],
    router_of: NDArray[np.int64],
    bandwidth: tuple[float, float],
    plugs: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> None:
    """Add links of routers that route adaptively, over whatever links are free (Slingshot).

    What a router can send inside its group has one link here, into what represents all links of the
    group. Of a routers, each sending X to another one, a link's worth b goes straight and the rest
    over two links: b + 2 (X - b) on a - 1 links of b, which X = a b / 2 fills. Links between two
    groups are as good as one, of their total. `bandwidth` holds these two.
    """
    groups, a = routers.shape
    (up, down), (local, between) = plugs, bandwidth
    ports = graph.ports
    brought = int(np.bincount(router_of).max()) * ports.bandwidth
    whole = graph.add_switches([f"group{g}" for g in range(groups)])
    out, into = graph.add_cables(routers, whole[:, None], local, max_inflow=brought)
    one, two = np.nonzero(~np.eye(groups, dtype=bool))
    far = np.full((groups, groups), -1)
    far[one, two] = graph.add_links(whole[one], whole[two], between, ports.hop)

    def hops(source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int64]:
        here, there = router_of[source], router_of[target]
        (ga, ra), (gb, rb) = np.divmod(here, a), np.divmod(there, a)
        other_router = here != there
        columns = [
            up[source],
            np.where(other_router, out[ga, ra], -1),
            far[ga, gb],
            np.where(other_router, into[gb, rb], -1),
            down[target],
        ]
        return np.stack(columns, axis=1)

    graph.hops = hops


def _links_at(
    links: NDArray[np.int64], group: NDArray[np.int64], which: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the links of groups, and -1 where `which` is."""
    if not links.shape[1]:
        return which
    return np.where(which >= 0, links[group, which], -1)


def _choose_copy(
    ra: NDArray[np.int64],
    to_b: NDArray[np.int64],
    rb: NDArray[np.int64],
    to_a: NDArray[np.int64],
    sizes: tuple[int, int, int],
    drawn: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Choose one of the links between two groups: at the sender's router, else the receiver's."""
    h, others, copies = sizes
    first, last = _copies_at(ra, to_b, h, others, copies)
    first_b, last_b = _copies_at(rb, to_a, h, others, copies)
    mine, theirs = last > first, last_b > first_b
    low = np.where(mine, first, np.where(theirs, first_b, 0))
    high = np.where(mine, last, np.where(theirs, last_b, copies))
    return low + drawn % (high - low)


def _copies_at(
    router: NDArray[np.int64], to: NDArray[np.int64], h: int, others: int, copies: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which copies m of the links to a group, at ports to + m × others, a router has."""
    first = -(-(router * h - to) // others)
    last = -(-((router + 1) * h - to) // others)
    return np.clip(first, 0, copies), np.clip(last, 0, copies)


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
