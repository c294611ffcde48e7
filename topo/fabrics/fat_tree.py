"""One switch, and trees of switches: classic, by rails, and in planes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .fabric import Fabric
from .fabric_graph import FabricGraph, Ports, ecmp_hash

__all__ = ["fat_tree", "switch"]


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
    classic = fabric.kind == "fat-tree"
    rails = 1 if classic else min(fabric.rails or ports.each, ports.each)
    planes = fabric.planes if fabric.kind == "hpn" else 1
    spread = fabric.spines if fabric.ecmp == "adaptive" and fabric.spines else 1
    spines = fabric.spines or 1

    port = np.arange(ports.count)
    node, card = np.divmod(port, ports.each)
    deepest = -(-ports.each // rails)  # NICs of a node on one rail
    place = port if classic else node * deepest + card // rails
    step = ports.each if classic else deepest  # places of a node in its row of leaves
    row, rail = place // fabric.leaf, np.zeros_like(port) if classic else card % rails
    rows = int(row[-1]) + 1 if classic else -(-ports.nodes * deepest // fabric.leaf)
    leaf = row * rails + rail
    leaves = rows * rails
    pod_rows = min(fabric.pod or rows, rows)
    pods = -(-rows // pod_rows)
    pod = np.arange(leaves) // rails // pod_rows

    graph = FabricGraph(ports, tour=np.argsort(np.argsort(leaf, kind="stable")))
    part = 1 / planes
    total = fabric.leaf * ports.bandwidth * part / fabric.oversubscription  # up from a leaf
    core = total * (fabric.pod or rows) * rails / fabric.core_oversubscription  # up from a pod
    # What comes to a leaf's links, and to a pod's, unless a hash sends all of it to one of them.
    even = fabric.ecmp != "ecmp"
    brought = fabric.leaf * ports.bandwidth * part / spines if even else np.inf
    gathered = brought * pod_rows * rails
    # Links up and down from ports, leaves and pods; one array a plane.
    port_up: list[NDArray[np.int64]] = []
    port_down: list[NDArray[np.int64]] = []
    leaf_up: list[NDArray[np.int64]] = []
    leaf_down: list[NDArray[np.int64]] = []
    pod_up: list[NDArray[np.int64]] = []
    pod_down: list[NDArray[np.int64]] = []
    for plane in range(planes):
        mark = f"plane{plane}." if planes > 1 else ""
        leaf_names = (
            [f"{mark}leaf{i}" for i in range(rows)]
            if rails == 1
            else [f"{mark}leaf{i}.rail{k}" for i in range(rows) for k in range(rails)]
        )
        low = graph.add_switches(leaf_names)
        for links, into in zip(
            graph.connect_ports(low[leaf], part), (port_up, port_down), strict=True
        ):
            into.append(links)
        if leaves == 1:
            continue
        groups = [f"{mark}pod{i}." for i in range(pods)] if pods > 1 else [mark]
        names = [_name(f"{group}spine", s, spines) for group in groups for s in range(spines)]
        middle = graph.add_switches(names).reshape(pods, spines)
        up, down = graph.add_cables(
            low[:, None], middle[pod], total / spines, part / spread, brought
        )
        leaf_up.append(up)
        leaf_down.append(down)
        if pods > 1:
            top = graph.add_switches([_name(f"{mark}core", s, spines) for s in range(spines)])
            up, down = graph.add_cables(
                middle, top[None, :], core / spines, part / spread, gathered
            )
            pod_up.append(up)
            pod_down.append(down)
    if fabric.ecmp != "ecmp" and fabric.leaf % step == 0:
        period_rows = pod_rows if pods > 1 else 1
        period = period_rows * fabric.leaf // step
        per_plane = [period * ports.each] * 2
        per_plane += [period_rows * rails] * 2 if leaf_up else []
        per_plane += [1] * 2 if pod_up else []  # a row a pod
        graph.repeat(period, *per_plane * planes)

    def hops(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        apart, far = leaf[a] != leaf[b], pod[leaf[a]] != pod[leaf[b]]
        chosen = (
            np.tile(np.arange(spines), (len(a), 1))
            if fabric.ecmp == "adaptive"
            else ecmp_hash(a, b, spines)[:, None]
        )
        columns = []
        for plane in range(planes):
            columns.append(port_up[plane][a][:, None])
            for s in chosen.T if leaf_up else ():
                columns.append(np.where(apart, leaf_up[plane][leaf[a], s], -1)[:, None])
                if pod_up:
                    columns.append(np.where(far, pod_up[plane][pod[leaf[a]], s], -1)[:, None])
                    columns.append(np.where(far, pod_down[plane][pod[leaf[b]], s], -1)[:, None])
                columns.append(np.where(apart, leaf_down[plane][leaf[b], s], -1)[:, None])
            columns.append(port_down[plane][b][:, None])
        return np.concatenate(columns, axis=1)

    graph.hops = hops
    return graph


def _name(kind: str, i: int, n: int) -> str:
    return f"{kind}{i}" if n > 1 else kind
