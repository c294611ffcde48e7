"""Tables of a cluster → topology: the node graph repeated, and the fabric between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpisim.base.distinct import numbered
from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

from .fabrics import Fabric, FabricGraph, Ports, build_fabric
from .node_graph import NodeGraph, build_node_graph
from .nodes import Node, hop_latency
from .topology import LinkKind, LinkShift, MeshCoordinates, NodeKind, Topology

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
    node_graph = build_node_graph(node, gpus)
    fabric_graph = None
    if fabric is not None:
        fabric_graph = build_fabric(fabric, _ports(node, fabric, gpus, node_graph, nodes))
    elif nodes > 1:
        raise InputError(
            f"{title}: {nodes} nodes, but its GPUs have no NIC: give 'nics' of [node] and "
            "a [fabric], or use 1 node"
        )
    graph, here = node_graph.graph, len(node_graph.graph.names)
    first = np.arange(nodes)[:, None] * here
    ends = [
        (first + np.array(each, np.int64)[None, :]).reshape(-1)
        for each in (graph.source, graph.target)
    ]
    columns = [np.tile(np.array(each, float), nodes) for each in (graph.bandwidth, graph.latency)]
    kind = np.tile(np.array(graph.link_kinds, np.uint8), nodes)
    share, max_inflow = np.ones(len(kind)), np.full(len(kind), np.inf)
    node_kind = np.tile(np.array(graph.kinds, np.uint8), nodes)
    names = _NodeNames(graph.names, nodes, [] if fabric_graph is None else fabric_graph.names)
    if fabric_graph is not None:
        inner = (first + node_graph.ports[None, :]).reshape(-1)
        outer = nodes * here + np.arange(len(fabric_graph.names))
        number = np.concatenate([inner, outer])
        for i, pieces in enumerate((fabric_graph.source, fabric_graph.target)):
            ends[i] = np.concatenate([ends[i], number[np.concatenate(pieces)]])
        for i, values in enumerate((fabric_graph.bandwidth, fabric_graph.latency)):
            columns[i] = np.concatenate([columns[i], *values])
        at_port = np.minimum(
            *map(np.concatenate, (fabric_graph.source, fabric_graph.target))
        ) < len(inner)
        outside = np.where(at_port, LinkKind.NIC, LinkKind.FABRIC)
        kind = np.concatenate([kind, outside]).astype(np.uint8)
        share = np.concatenate([share, *fabric_graph.share])
        max_inflow = np.concatenate([max_inflow, *fabric_graph.max_inflow])
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
        paths=ClosedFormRoutes(node_graph, fabric_graph, nodes, gpus),
        max_inflow=max_inflow,
        nics=nodes * node.nics,
        period=1 if fabric_graph is None else fabric_graph.period,
        shift=_shift(fabric_graph, nodes * len(graph.source), len(graph.source)),
        labels=_parallel_link_names(names, ends[0], ends[1], kind == LinkKind.FABRIC),
        tour=None if fabric_graph is None else _tour(fabric_graph, node_graph, nodes, gpus),
        grid=_grid(fabric_graph, node_graph, nodes)
        if fabric_graph is not None and fabric_graph.grid is not None
        else None,
    )


def _shift(fabric_graph: FabricGraph | None, inside: int, each: int) -> LinkShift | None:
    """Return `Topology.shift`: of `inside` links of nodes, `each` of one, and of the fabric."""
    if fabric_graph is None or not fabric_graph.shift:
        return None
    sizes = np.array([inside, *map(len, fabric_graph.source)], np.int64)
    first = np.cumsum(sizes) - sizes
    return LinkShift(first, np.array([fabric_graph.period * each, *fabric_graph.shift], np.int64))


def _own_ports(node_graph: NodeGraph, nodes: int) -> NDArray[np.int64]:
    """Return the nearest port of each GPU."""
    return (
        np.arange(nodes)[:, None] * len(node_graph.ports) + node_graph.own_port[None, :]
    ).reshape(-1)


def _tour(
    fabric_graph: FabricGraph, node_graph: NodeGraph, nodes: int, gpus: int
) -> NDArray[np.int64] | None:
    """Return the place of each GPU in the tour; None if the tour is in order of their numbers.

    Those of a node that are joined inside it stay together, where its first port has its place.
    """
    if fabric_graph.tour is None:
        return None
    port = _own_ports(node_graph, nodes)
    if node_graph.gpu_routes.shape[2]:
        port = np.repeat(port[::gpus], gpus)
    place = fabric_graph.tour[port] * gpus + np.tile(np.arange(gpus), nodes)
    return None if (np.diff(place) > 0).all() else np.argsort(np.argsort(place))


def _grid(fabric_graph: FabricGraph, node_graph: NodeGraph, nodes: int) -> MeshCoordinates:
    """Return the coordinates of GPUs on the grid."""
    assert fabric_graph.grid is not None
    return replace(fabric_graph.grid, place=fabric_graph.grid.place[_own_ports(node_graph, nodes)])


class _NodeNames(Sequence[str]):
    """Names of nodes, made on access: there can be a million, and few are ever printed."""

    def __init__(self, node_names: Sequence[str], nodes: int, others: Sequence[str]) -> None:
        self._node_names, self._others = node_names, others
        self._inside = nodes * len(node_names)

    def __len__(self) -> int:
        return self._inside + len(self._others)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        if at >= self._inside:
            return self._others[at - self._inside]
        node, part = divmod(at, len(self._node_names))
        return f"node{node}.{self._node_names[part]}"


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
    _, first, which = numbered(pairs[order])
    count = np.bincount(which)
    rank = np.arange(len(links)) - first[which]
    several = np.repeat(count, count) > 1
    return {
        link: f"{names[source[link]]}->{names[target[link]]}#{i}"
        for link, i in zip(links[order][several].tolist(), rank[several].tolist(), strict=True)
    }


def _ports(node: Node, fabric: Fabric, gpus: int, node_graph: NodeGraph, nodes: int) -> Ports:
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
    return Ports(nodes, len(node_graph.ports), total / len(node_graph.ports), latency, hop)


@frozen(eq=False)
class ClosedFormRoutes:
    """Routes in closed form: through a node, or out of one, across the fabric, into another."""

    node_graph: NodeGraph
    fabric_graph: FabricGraph | None
    nodes: int
    gpus: int

    def __call__(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        node_graph, per_node = self.node_graph, len(self.node_graph.graph.source)
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

        inside = node_graph.gpu_routes.shape[2] > 0
        if inside and near.any():
            add(node_graph.gpu_routes[i, j], near, node_a * per_node)
        # GPUs without links of their own inside reach their neighbours through the fabric.
        across = ~near if inside else a != b
        if self.fabric_graph is not None and across.any():
            port, each = node_graph.exit_port[i, j], len(node_graph.ports)
            links = self.fabric_graph.hops(
                node_a * each + port, node_b * each + node_graph.own_port[j]
            )
            add(node_graph.to_port[i, port], across, node_a * per_node)
            add(links, across, self.nodes * per_node)
            add(node_graph.from_port[j], across, node_b * per_node)
        return np.array(hops, np.int64).reshape(len(hops), len(a)).T

    def pairs_per_link(self, gpus: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Count the ordered pairs of GPUs whose route uses each link; see `AllPairsRoutes`."""
        if not self._bare or self.fabric_graph is None or self.fabric_graph.all_pairs is None:
            return None
        return self.fabric_graph.all_pairs.pairs_per_link(gpus)

    def max_route_sum(self, gpus: NDArray[np.int64], value: NDArray[np.int64]) -> int | None:
        """Return the largest sum of values over the routes of all pairs; see `AllPairsRoutes`."""
        if not self._bare or self.fabric_graph is None or self.fabric_graph.all_pairs is None:
            return None
        return self.fabric_graph.all_pairs.max_route_sum(gpus, value)

    @property
    def _bare(self) -> bool:
        """Whether there is nothing but the fabric: GPUs are its ports."""
        return not self.node_graph.graph.source and len(self.node_graph.ports) == self.gpus

    def filtered(self, seen: NDArray[np.bool_]) -> ClosedFormRoutes:
        """Return the routes without links of nodes that are not in `seen`, if nodes are equal."""
        per_node = len(self.node_graph.graph.source)
        of_node = seen[: self.nodes * per_node].reshape(self.nodes, per_node)
        if (of_node != of_node[0]).any():
            return self

        def left(table: NDArray[np.int64]) -> NDArray[np.int64]:
            table = np.where((table >= 0) & of_node[0][table], table, -1)
            return table[..., (table >= 0).any(axis=tuple(range(table.ndim - 1)))]

        node_graph = replace(
            self.node_graph,
            to_port=left(self.node_graph.to_port),
            from_port=left(self.node_graph.from_port),
        )
        return replace(self, node_graph=node_graph)
