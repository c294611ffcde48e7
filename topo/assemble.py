"""From the tables of a cluster to a topology: the node graph repeated, and the fabric between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from .fabrics import Fabric, FabricGraph, Ports, build_fabric
from .nodes import Node, NodeGraph, build_node_graph, hop_latency
from .topology import Grid, LinkKind, NodeKind, Topology

__all__ = ["assemble"]

MAX_GPUS = 2**20
"""GPUs: more, with a dozen links each, would fill the memory of a workstation."""


def assemble(
    title: str, node: Node, fabric: Fabric | None, gpus_per_node: int, nodes: int
) -> Topology:
    """Node table repeated, fabric between → topology: rank i is GPU i, nodes are filled in order.

    Parameters
    ----------
    title : str
        Of the cluster; messages begin with it.
    node : Node
    fabric : Fabric, optional
        Not needed for a single node.
    gpus_per_node, nodes : int

    Raises
    ------
    InputError
        If there are several nodes and nothing between them, or more than the fabric or memory has
        room for.
    """
    gpus = gpus_per_node
    if nodes * gpus > MAX_GPUS:
        raise InputError(f"{title}: {nodes * gpus:,} GPUs; a topology has {MAX_GPUS:,} at most")
    box = build_node_graph(node, gpus)
    cables = None
    if fabric is not None:
        cables = build_fabric(fabric, _ports(node, fabric, gpus, box, nodes))
    elif nodes > 1:
        raise InputError(
            f"{title}: {nodes} nodes, but its GPUs have no NIC: give 'nics' of [node] and "
            "a [fabric], or use 1 node"
        )
    wiring, here = box.wiring, len(box.wiring.names)
    first = np.arange(nodes)[:, None] * here
    ends = [
        (first + np.array(each, np.int64)[None, :]).reshape(-1)
        for each in (wiring.source, wiring.target)
    ]
    columns = [np.tile(np.array(each, float), nodes) for each in (wiring.bandwidth, wiring.latency)]
    kind = np.tile(np.array(wiring.link_kinds, np.uint8), nodes)
    share, feed = np.ones(len(kind)), np.full(len(kind), np.inf)
    node_kind = np.tile(np.array(wiring.kinds, np.uint8), nodes)
    names = _NodeNames(wiring.names, nodes, [] if cables is None else cables.names)
    if cables is not None:
        inner = (first + box.ports[None, :]).reshape(-1)
        outer = nodes * here + np.arange(len(cables.names))
        number = np.concatenate([inner, outer])
        for i, pieces in enumerate((cables.source, cables.target)):
            ends[i] = np.concatenate([ends[i], number[np.concatenate(pieces)]])
        for i, values in enumerate((cables.bandwidth, cables.latency)):
            columns[i] = np.concatenate([columns[i], *values])
        at_port = np.minimum(*map(np.concatenate, (cables.source, cables.target))) < len(inner)
        outside = np.where(at_port, LinkKind.NIC, LinkKind.FABRIC)
        kind = np.concatenate([kind, outside]).astype(np.uint8)
        share = np.concatenate([share, *cables.share])
        feed = np.concatenate([feed, *cables.feed])
        switches = np.full(len(outer), NodeKind.SWITCH, np.uint8)
        node_kind = np.concatenate([node_kind, switches])
    return Topology(
        title=title if nodes == 1 else f"{nodes} nodes of {title}",
        gpu=(first + np.arange(gpus)[None, :]).reshape(-1),
        names=names,
        node_kind=node_kind,
        source=ends[0].astype(np.int32),
        target=ends[1].astype(np.int32),
        bandwidth=columns[0],
        nominal=columns[0],
        latency=columns[1],
        kind=kind,
        share=share,
        paths=ClosedFormRoutes(box, cables, nodes, gpus),
        feed=feed,
        cards=nodes * node.nics,
        period=1 if cables is None else cables.period,
        labels=_parallel_link_names(names, ends[0], ends[1], kind == LinkKind.FABRIC),
        tour=None if cables is None else _tour(cables, box, nodes, gpus),
        grid=_grid(cables, box, nodes) if cables is not None and cables.grid is not None else None,
    )


def _own_ports(box: NodeGraph, nodes: int) -> NDArray[np.int64]:
    """Return the nearest port of each GPU."""
    return (np.arange(nodes)[:, None] * len(box.ports) + box.nearest[None, :]).reshape(-1)


def _tour(cables: FabricGraph, box: NodeGraph, nodes: int, gpus: int) -> NDArray[np.int64] | None:
    """Return the places of GPUs in a round trip; None if they go by their numbers.

    Those of a node that are joined inside it stay together, where its first port has its place.
    """
    if cables.tour is None:
        return None
    port = _own_ports(box, nodes)
    if box.inside.shape[2]:
        port = np.repeat(port[::gpus], gpus)
    place = cables.tour[port] * gpus + np.tile(np.arange(gpus), nodes)
    return None if (np.diff(place) > 0).all() else np.argsort(np.argsort(place))


def _grid(cables: FabricGraph, box: NodeGraph, nodes: int) -> Grid:
    """Return the places of GPUs on a grid."""
    assert cables.grid is not None
    return replace(cables.grid, place=cables.grid.place[_own_ports(box, nodes)])


class _NodeNames(Sequence[str]):
    """The names of nodes, made when asked for: there can be a million, and few are ever told."""

    def __init__(self, box: Sequence[str], boxes: int, others: Sequence[str]) -> None:
        self._box, self._others = box, others
        self._inside = boxes * len(box)

    def __len__(self) -> int:
        return self._inside + len(self._others)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        if at >= self._inside:
            return self._others[at - self._inside]
        node, part = divmod(at, len(self._box))
        return f"node{node}.{self._box[part]}"


def _parallel_link_names(
    names: Sequence[str],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    where: NDArray[np.bool_],
) -> dict[int, str]:
    """Return names of links that have others beside them: their number goes last."""
    (links,) = np.nonzero(where)
    pairs = source[links] * len(names) + target[links]
    order = np.argsort(pairs, kind="stable")
    _, first, count = np.unique(pairs[order], return_index=True, return_counts=True)
    rank = np.arange(len(links)) - np.repeat(first, count)
    several = np.repeat(count, count) > 1
    return {
        link: f"{names[source[link]]}->{names[target[link]]}#{i}"
        for link, i in zip(links[order][several].tolist(), rank[several].tolist(), strict=True)
    }


def _ports(node: Node, fabric: Fabric, gpus: int, box: NodeGraph, nodes: int) -> Ports:
    """Return the ports that a fabric joins, with their bandwidth and latency."""
    hop = hop_latency("switch", fabric.switch_latency)
    if node.nics:
        assert node.nic_bandwidth is not None
        assert fabric.nic_efficiency is not None
        total = node.nics * node.nic_bandwidth.si * fabric.nic_efficiency.si
        latency = hop_latency("nic", node.nic_latency)
    else:
        assert node.link_bandwidth is not None
        total = gpus * node.link_bandwidth.si
        latency = hop_latency("link", node.link_latency)
    return Ports(nodes, len(box.ports), total / len(box.ports), latency, hop)


@dataclass(frozen=True, eq=False)
class ClosedFormRoutes:
    """Routes in closed form: through a node, or out of one, across the fabric, into another."""

    box: NodeGraph
    cables: FabricGraph | None
    nodes: int
    gpus: int

    def __call__(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        box, per_node = self.box, len(self.box.wiring.source)
        (node_a, i), (node_b, j) = np.divmod(a, self.gpus), np.divmod(b, self.gpus)
        near = node_a == node_b
        hops: list[NDArray[np.int64]] = []

        def add(found: NDArray[np.int64], which: NDArray[np.bool_], shift: Any) -> None:
            every = bool(which.all())
            for hop in found.T:
                if every and (hop >= 0).all():
                    hops.append(hop + shift)
                    continue
                used = which & (hop >= 0)
                if used.any():
                    hops.append(np.where(used, hop + shift, -1))

        inside = box.inside.shape[2] > 0
        if inside and near.any():
            add(box.inside[i, j], near, node_a * per_node)
        # GPUs without links of their own inside reach their neighbours through the fabric.
        across = ~near if inside else a != b
        if self.cables is not None and across.any():
            port, each = box.port[i, j], len(box.ports)
            links = self.cables.hops(node_a * each + port, node_b * each + box.nearest[j])
            add(box.out[i, port], across, node_a * per_node)
            add(links, across, self.nodes * per_node)
            add(box.into[j], across, node_b * per_node)
        return np.array(hops, np.int64).reshape(len(hops), len(a)).T

    def crossings(self, gpus: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Count the ordered pairs of GPUs whose way leads over each link; see `Crowded`."""
        if not self._bare or self.cables is None or self.cables.pairs is None:
            return None
        return self.cables.pairs.crossings(gpus)

    def longest(self, gpus: NDArray[np.int64], value: NDArray[np.int64]) -> int | None:
        """Return the largest sum of values over the ways of all pairs; see `Crowded`."""
        if not self._bare or self.cables is None or self.cables.pairs is None:
            return None
        return self.cables.pairs.longest(gpus, value)

    @property
    def _bare(self) -> bool:
        """Whether there is nothing but the fabric: GPUs are its ports."""
        return not self.box.wiring.source and len(self.box.ports) == self.gpus

    def among(self, seen: NDArray[np.bool_]) -> ClosedFormRoutes:
        """The same without links of nodes that are not to be seen, if nodes do not differ."""
        per_node = len(self.box.wiring.source)
        of_node = seen[: self.nodes * per_node].reshape(self.nodes, per_node)
        if (of_node != of_node[0]).any():
            return self

        def left(table: NDArray[np.int64]) -> NDArray[np.int64]:
            table = np.where((table >= 0) & of_node[0][table], table, -1)
            return table[..., (table >= 0).any(axis=tuple(range(table.ndim - 1)))]

        box = replace(self.box, out=left(self.box.out), into=left(self.box.into))
        return replace(self, box=box)
