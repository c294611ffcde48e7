"""Topology → contents of its picture: equal nodes once, switches by levels, cables.

What lies between two switches is a *machine*: a component of the graph without switches. Machines
that are equal, node by node and link by link, are shown once, with their number; so are the nodes
inside a machine of many GPUs, and the switches of a level of many, where they have equal links.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen

from .topology import NodeKind, Topology

__all__ = ["Cables", "Machine", "Shown", "Unit", "shown"]

MAX_WIDE = 16
"""GPUs of a machine, and switches of a level, that are shown one by one."""

MAX_MACHINES = 4
"""Machines, or kinds of them, that are shown; the rest is counted."""

MAX_NODES = 160
"""Nodes of all machines together up to which equal ones are shown one by one."""


@frozen
class Unit:
    """A node, or equal ones that are shown once.

    Attributes
    ----------
    label : str
    kind : NodeKind
    count : int
        Nodes that it stands for inside its machine; of switches, in all.
    level : int
        Of switches: 1 for those that NICs are joined to; 0 of other nodes.
    """

    label: str
    kind: NodeKind
    count: int
    level: int = 0


@frozen
class Machine:
    """A machine, or equal ones that are shown once.

    Attributes
    ----------
    units, nodes : tuple of int
        Of the first one that it stands for.
    count : int
        Machines that it stands for.
    name : str
        What names of its nodes begin with, of the first one.
    """

    units: tuple[int, ...]
    nodes: tuple[int, ...]
    count: int
    name: str


@frozen
class Cables:
    """Parallel links of one kind and bandwidth between two nodes, drawn as one line.

    Attributes
    ----------
    a, b : int
        Numbers of the units.
    kind : int
        `LinkKind`.
    bandwidth : float
        Bytes per second, one way.
    count : int
        Cables in all the topology.
    own : bool
        Whether a machine that is shown has one, and not only others that are like it.
    """

    a: int
    b: int
    kind: int
    bandwidth: float
    count: int
    own: bool


@frozen(eq=False)
class Shown:
    """Contents of a picture.

    Attributes
    ----------
    units : list of Unit
    machines : list of Machine
    hidden : int
        Machines of further kinds, which are not shown.
    cables : list of Cables
    unit : int64, shape (n_nodes,)
        The unit of each node; -1 of nodes that are not shown.
    """

    units: list[Unit]
    machines: list[Machine]
    hidden: int
    cables: list[Cables]
    unit: NDArray[np.int64]


def shown(topology: Topology) -> Shown:
    """Topology → contents of its picture."""
    is_switch = topology.node_kind == NodeKind.SWITCH
    units: list[Unit] = []
    unit = np.full(topology.n_nodes, -1, np.int64)
    machines, hidden = _machines(topology, is_switch, units, unit)
    _switches(topology, is_switch, units, unit)
    own = is_switch.copy()
    for machine in machines:
        own[list(machine.nodes)] = True
    return Shown(units, machines, hidden, _cables(topology, unit, own), unit)


def _machines(
    topology: Topology, is_switch: NDArray[np.bool_], units: list[Unit], unit: NDArray[np.int64]
) -> tuple[list[Machine], int]:
    """Group nodes that are no switches into machines, and equal machines into one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    inner = ~is_switch[topology.source] & ~is_switch[topology.target]
    source, target = topology.source[inner], topology.target[inner]
    n = topology.n_nodes
    graph = coo_array((np.ones(len(source), bool), (source, target)), (n, n))
    _, component = connected_components(graph, directed=False)
    members: dict[int, list[int]] = defaultdict(list)
    for node in np.flatnonzero(~is_switch).tolist():
        members[component[node]].append(node)
    rank = np.zeros(n, np.int64)
    for nodes in members.values():
        rank[nodes] = np.arange(len(nodes))
    links: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
    for link in np.flatnonzero(~is_switch[topology.source]).tolist():
        a, b = int(topology.source[link]), int(topology.target[link])
        other = -1 if is_switch[b] else int(rank[b])
        links[component[a]].append((int(rank[a]), other, float(topology.bandwidth[link])))
    kinds: dict[Hashable, list[list[int]]] = defaultdict(list)
    one_by_one = len(members) <= MAX_MACHINES and n <= MAX_NODES
    for number, nodes in members.items():
        key = (tuple(topology.node_kind[nodes].tolist()), tuple(sorted(links[number])))
        kinds[(number, key) if one_by_one else key].append(nodes)
    machines = []
    for (_, equal), _ in zip(kinds.items(), range(MAX_MACHINES)):
        first = equal[0]
        name = _common([topology.names[node] for node in first])
        groups = _inside(topology, first)
        begin = len(units)
        for label, places in groups:
            for nodes in equal:
                unit[[nodes[place] for place in places]] = len(units)
            kind = NodeKind(topology.node_kind[first[places[0]]])
            units.append(Unit(label.removeprefix(name), kind, len(places)))
        numbers = tuple(range(begin, len(units)))
        machines.append(Machine(numbers, tuple(first), len(equal), name.rstrip(".")))
    return machines, len(members) - sum(each.count for each in machines)


def _inside(topology: Topology, nodes: list[int]) -> list[tuple[str, list[int]]]:
    """Nodes of a machine → names and places of those that are shown as one."""
    kinds = topology.node_kind[nodes]
    if (kinds == NodeKind.GPU).sum() <= MAX_WIDE:
        return [(topology.names[node], [place]) for place, node in enumerate(nodes)]
    found: dict[Hashable, list[int]] = defaultdict(list)
    inside = np.isin(topology.source, nodes)
    links: dict[int, Counter[Hashable]] = defaultdict(Counter)
    for link in np.flatnonzero(inside).tolist():
        other = int(topology.node_kind[topology.target[link]])
        links[int(topology.source[link])][other, float(topology.bandwidth[link])] += 1
    for place, node in enumerate(nodes):
        found[int(kinds[place]), frozenset(links[node].items())].append(place)
    return [(topology.names[nodes[places[0]]], places) for places in found.values()]


def _switches(
    topology: Topology, is_switch: NDArray[np.bool_], units: list[Unit], unit: NDArray[np.int64]
) -> None:
    """Give switches their levels, and group equal ones where a level has many."""
    level = np.where(is_switch, np.inf, 0.0)
    inner = is_switch[topology.target]
    for _ in range(6):
        np.minimum.at(level, topology.target[inner], level[topology.source[inner]] + 1)
    level[np.isinf(level)] = 1
    _lower_unused(topology, is_switch, level)
    links: dict[int, Counter[Hashable]] = defaultdict(Counter)
    for link in np.flatnonzero(is_switch[topology.source]).tolist():
        a, b = int(topology.source[link]), int(topology.target[link])
        links[a][int(level[b]), round(float(topology.bandwidth[link]), -6)] += 1
    for height in sorted({int(each) for each in level[is_switch]}):
        members = np.flatnonzero(is_switch & (level == height)).tolist()
        found: dict[Hashable, list[int]] = defaultdict(list)
        for node in members:
            neighbours = frozenset(links[node].items()) if len(members) > MAX_WIDE else node
            found[neighbours].append(node)
        if len(found) > MAX_WIDE:  # all different: at least by what they are
            found = {height: members}
        for nodes in found.values():
            unit[nodes] = len(units)
            units.append(Unit(topology.names[nodes[0]], NodeKind.SWITCH, len(nodes), height))


def _lower_unused(
    topology: Topology, is_switch: NDArray[np.bool_], level: NDArray[np.float64]
) -> None:
    """Put switches whose ports are all free beside those of their kind that have NICs."""
    both = is_switch[topology.source] & is_switch[topology.target]
    source, target = topology.source[both], topology.target[both]
    degree = np.bincount(topology.source, minlength=topology.n_nodes)
    below = np.zeros(topology.n_nodes, bool)  # has switches of a lower level
    below[source[level[target] < level[source]]] = True
    free = (degree[source] == 1) & (level[target] < level[source]) & below[target]
    level[source[free]] = level[target[free]] - 1


def _cables(topology: Topology, unit: NDArray[np.int64], own: NDArray[np.bool_]) -> list[Cables]:
    """Count cables between units, by kind and bandwidth; `own` are nodes that stand for others."""
    ends = np.stack([unit[topology.source], unit[topology.target]])
    kept = (ends >= 0).all(axis=0)
    low, high = np.sort(ends[:, kept], axis=0)
    forward = ends[0, kept] <= ends[1, kept]
    keys = np.stack([low, high, topology.kind[kept], topology.bandwidth[kept]], axis=1)
    rows, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.reshape(-1)
    ahead = np.bincount(index, weights=forward, minlength=len(rows))
    every = np.bincount(index, minlength=len(rows))
    shows = own[topology.source[kept]] & own[topology.target[kept]]
    has = np.bincount(index, weights=shows, minlength=len(rows)) > 0
    found = []
    for (a, b, kind, bandwidth), there, both, mine in zip(rows.tolist(), ahead, every, has):
        # Both directions of a cable between nodes of one unit count as forward.
        count = both / 2 if a == b else max(there, both - there)
        found.append(Cables(int(a), int(b), int(kind), bandwidth, int(np.ceil(count)), bool(mine)))
    return found


def _common(names: Sequence[str]) -> str:
    """Return the common prefix of a machine's node names, up to and with a dot."""
    low, high = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(low, high)) if a != b), len(low))
    return low[: low.rfind(".", 0, same) + 1]
