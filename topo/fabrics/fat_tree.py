"""One switch, and trees of switches: classic, by rails, and in planes."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen

from .fabric import Fabric
from .fabric_graph import FabricGraph, Ports, ecmp_hash

__all__ = ["fat_tree", "switch", "unused_oversubscription"]


def switch(fabric: Fabric, ports: Ports) -> FabricGraph:
    """Build one switch that never blocks: every port is joined to it.

    Parameters
    ----------
    fabric : Fabric
        Of no account: what it says of latency is in `ports`.
    ports : Ports
        What is to be joined; the graph keeps it.
    """
    graph = FabricGraph(ports)
    up, down = graph.connect_ports(graph.add_switches(["switch"])[0])
    graph.repeat(1, ports.each, ports.each)

    def hops(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.stack([up[a], down[b]], axis=1)

    graph.hops = hops
    return graph


@frozen(eq=False)
class _Tree:
    """Which switches a tree has, and which of them every port is below.

    A *row* is the leaves of all rails under the same nodes; a classic tree has one rail.

    Attributes
    ----------
    rows, rails : int
        There are rows × rails leaves in each plane, rail by rail within a row.
    pods, pod_rows : int
        Pods, and rows of leaves in each; one pod where there is no core.
    spines : int
        Spines of a pod, and core switches.
    planes : int
        Copies of the tree, each with a port of every NIC.
    places_per_node : int
        Places that a node takes in its row of leaves, of `Fabric.leaf` in each.
    leaf : int64, shape (n_ports,)
        The leaf of each port.
    pod : int64, shape (rows * rails,)
        The pod of each leaf.
    """

    rows: int
    rails: int
    pods: int
    pod_rows: int
    spines: int
    planes: int
    places_per_node: int
    leaf: NDArray[np.int64]
    pod: NDArray[np.int64]

    @classmethod
    def of(cls, fabric: Fabric, ports: Ports) -> _Tree:
        """Place ports below leaves: neighbouring ones, or those of one rail."""
        assert fabric.leaf is not None
        classic = fabric.kind == "fat-tree"
        rails = 1 if classic else min(fabric.rails or ports.each, ports.each)
        port = np.arange(ports.count)
        node, card = np.divmod(port, ports.each)
        deepest = -(-ports.each // rails)  # NICs of a node on one rail
        place = port if classic else node * deepest + card // rails
        row, rail = place // fabric.leaf, np.zeros_like(port) if classic else card % rails
        rows = int(row[-1]) + 1 if classic else -(-ports.nodes * deepest // fabric.leaf)
        pod_rows = min(fabric.pod or rows, rows)
        return cls(
            rows=rows,
            rails=rails,
            pods=-(-rows // pod_rows),
            pod_rows=pod_rows,
            spines=fabric.spines or 1,
            planes=fabric.planes if fabric.kind == "hpn" else 1,
            places_per_node=ports.each if classic else deepest,
            leaf=row * rails + rail,
            pod=np.arange(rows * rails) // rails // pod_rows,
        )


def unused_oversubscription(fabric: Fabric, nics: int, nodes: int) -> str | None:
    """Fabric, NICs of a node, nodes → a line that says no leaf sends up; None if one does.

    Parameters
    ----------
    fabric : Fabric
        Of any kind.
    nics : int
        Of each node.
    nodes : int
    """
    if fabric.leaf is None or fabric.oversubscription == 1 or nodes * nics < 2:
        return None
    classic = fabric.kind == "fat-tree"
    rails = 1 if classic else min(fabric.rails or nics, nics)
    below = nodes * (nics if classic else -(-nics // rails))
    if below > fabric.leaf or rails > 1:
        return None
    return (
        f"oversubscription {fabric.oversubscription:g} has no effect: all {below} NICs are below "
        f"one leaf switch, which has room for {fabric.leaf} (fabric.leaf)"
    )


class _Plane(NamedTuple):
    """Links of one plane, up and down: of each port, leaf × spine, and pod × spine to the core."""

    port: tuple[NDArray[np.int64], NDArray[np.int64]]
    leaf: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    pod: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None


def fat_tree(fabric: Fabric, ports: Ports) -> FabricGraph:
    """Build leaves, spines and, between pods, core switches; once in each plane.

    Up from a full leaf leads what its ports bring, divided by the oversubscription; the same holds
    of a pod and the core. Both are built for full leaves and pods, however few ports are in use.
    Spine s of a pod is joined to core switch s, so that the spine decides the whole way.

    Parameters
    ----------
    fabric : Fabric
        Of kind ``"fat-tree"``, ``"rail-fat-tree"`` or ``"hpn"`` (with planes), with `leaf`.
    ports : Ports
        What is to be joined; the graph keeps it.
    """
    assert fabric.leaf is not None
    tree = _Tree.of(fabric, ports)
    graph = FabricGraph(ports, tour=np.argsort(np.argsort(tree.leaf, kind="stable")))
    planes = [_add_plane(graph, fabric, tree, number) for number in range(tree.planes)]
    if fabric.ecmp != "ecmp" and fabric.leaf % tree.places_per_node == 0:
        period_rows = tree.pod_rows if tree.pods > 1 else 1
        period = period_rows * fabric.leaf // tree.places_per_node
        per_plane = [period * ports.each] * 2
        per_plane += [period_rows * tree.rails] * 2 if planes[0].leaf else []
        per_plane += [1] * 2 if planes[0].pod else []  # a row a pod
        graph.repeat(period, *per_plane * tree.planes)
    graph.hops = partial(_hops, tree, planes, fabric.ecmp == "adaptive")
    return graph


def _add_plane(graph: FabricGraph, fabric: Fabric, tree: _Tree, number: int) -> _Plane:
    """Add the switches and links of one plane to a graph."""
    assert fabric.leaf is not None
    rows, rails, pods, spines = tree.rows, tree.rails, tree.pods, tree.spines
    part = 1 / tree.planes
    spread = spines if fabric.ecmp == "adaptive" else 1
    bandwidth = graph.ports.bandwidth
    total = fabric.leaf * bandwidth * part / fabric.oversubscription  # up from a leaf
    core = total * (fabric.pod or rows) * rails / fabric.core_oversubscription  # up from a pod
    # What comes to a leaf's links, and to a pod's, unless a hash sends all of it to one of them.
    even = fabric.ecmp != "ecmp"
    brought = fabric.leaf * bandwidth * part / spines if even else np.inf
    gathered = brought * tree.pod_rows * rails

    mark = f"plane{number}." if tree.planes > 1 else ""
    leaf_names = (
        [f"{mark}leaf{i}" for i in range(rows)]
        if rails == 1
        else [f"{mark}leaf{i}.rail{k}" for i in range(rows) for k in range(rails)]
    )
    leaves = graph.add_switches(leaf_names)
    to_ports = graph.connect_ports(leaves[tree.leaf], part)
    if len(leaves) == 1:
        return _Plane(to_ports)
    groups = [f"{mark}pod{i}." for i in range(pods)] if pods > 1 else [mark]
    names = [_name(f"{group}spine", s, spines) for group in groups for s in range(spines)]
    middle = graph.add_switches(names).reshape(pods, spines)
    to_leaves = graph.add_cables(
        leaves[:, None], middle[tree.pod], total / spines, part / spread, brought
    )
    if pods == 1:
        return _Plane(to_ports, to_leaves)
    top = graph.add_switches([_name(f"{mark}core", s, spines) for s in range(spines)])
    to_pods = graph.add_cables(middle, top[None, :], core / spines, part / spread, gathered)
    return _Plane(to_ports, to_leaves, to_pods)


def _hops(
    tree: _Tree,
    planes: list[_Plane],
    adaptive: bool,
    a: NDArray[np.int64],
    b: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the links from ports a to ports b: over one spine, or all of them if `adaptive`."""
    leaf_a, leaf_b = tree.leaf[a], tree.leaf[b]
    pod_a, pod_b = tree.pod[leaf_a], tree.pod[leaf_b]
    other_leaf, far = leaf_a != leaf_b, pod_a != pod_b
    chosen = (
        np.tile(np.arange(tree.spines), (len(a), 1))
        if adaptive
        else ecmp_hash(a, b, tree.spines)[:, None]
    )
    columns = []
    for plane in planes:
        columns.append(plane.port[0][a])
        for s in chosen.T if plane.leaf else ():
            assert plane.leaf is not None
            columns.append(np.where(other_leaf, plane.leaf[0][leaf_a, s], -1))
            if plane.pod:
                columns.append(np.where(far, plane.pod[0][pod_a, s], -1))
                columns.append(np.where(far, plane.pod[1][pod_b, s], -1))
            columns.append(np.where(other_leaf, plane.leaf[1][leaf_b, s], -1))
        columns.append(plane.port[1][b])
    return np.stack(columns, axis=1)


def _name(kind: str, i: int, n: int) -> str:
    return f"{kind}{i}" if n > 1 else kind
