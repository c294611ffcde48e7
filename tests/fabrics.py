"""Clusters small enough to count by hand, and what must hold of any route."""

from __future__ import annotations

from typing import Any

import networkx
import numpy as np

from mpisim.base.quantity import Quantity
from mpisim.topo import Cluster, Topology
from mpisim.topo.fabrics import Fabric
from mpisim.topo.nodes import Node

PORT = 10e9
"""Bytes per second of a NIC in these clusters; links inside nodes are far faster."""

LINK = 7e9
"""Of a link between routers."""


def gb(value: float) -> Quantity:
    return Quantity(value, "GB/s", 0.1, "made up")


def cluster(gpus: int = 2, nics: int | None = None, **fabric: Any) -> Cluster:
    """Nodes with an NVSwitch and as many NICs as GPUs (or `nics`), in a fabric."""
    node = Node(
        kind="nvswitch",
        link_bandwidth=gb(1000),
        pcie_bandwidth=gb(1000),
        nics=gpus if nics is None else nics,
        nic_bandwidth=gb(PORT / 1e9),
        nic_path="pix",
    )
    one = Quantity(1.0, "1", 0.1, "made up")
    return Cluster("made up", "h100-sxm", gpus, node, Fabric(nic_efficiency=one, **fabric))


def direct(gpus: int = 1, injection: float = 1000, **fabric: Any) -> Cluster:
    """GPUs that are joined to the fabric themselves."""
    node = Node(kind="direct", link_bandwidth=gb(injection))
    if fabric["kind"] not in ("switch", "fat-tree"):
        fabric.setdefault("link_bandwidth", gb(LINK / 1e9))
    found = Fabric(**fabric)
    return Cluster("made up", "h100-sxm", gpus, node, found)


def check_route(topology: Topology, a: int, b: int, route: np.ndarray) -> None:
    """All of a flow leaves a, arrives at b, and nothing is lost between."""
    net = np.zeros(topology.n_nodes)
    np.add.at(net, topology.source[route], topology.share[route])
    np.subtract.at(net, topology.target[route], topology.share[route])
    expected = np.zeros(topology.n_nodes)
    expected[topology.gpu[a]] += 1
    expected[topology.gpu[b]] -= 1
    np.testing.assert_allclose(net, expected, atol=1e-12)
    assert len(np.unique(route)) == len(route)
    if (topology.share[route] == 1).all() and a != b:  # one path: consecutive links meet
        assert (topology.target[route[:-1]] == topology.source[route[1:]]).all()


def check_routes(topology: Topology, most: int = 400) -> None:
    """Check the ways between GPUs, evenly chosen from all pairs."""
    n = topology.n_gpus
    pairs = np.unique(np.linspace(0, n * n - 1, min(most, n * n)).astype(int))
    a, b = np.divmod(pairs, n)
    index, links = topology.routes(a, b)
    for i in range(len(pairs)):
        check_route(topology, int(a[i]), int(b[i]), links[index[i] : index[i + 1]])


def networkx_flow(topology: Topology) -> float:
    """The largest flow from the first half of the GPUs to the second, by networkx."""
    graph = networkx.DiGraph()
    for a, b, data in topology.graph().edges(data=True):
        before = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=before + round(data["bandwidth"]))
    half = topology.n_gpus // 2
    for rank, node in enumerate(topology.gpu.tolist()):
        ends = ("SOURCE", topology.names[node]) if rank < half else (topology.names[node], "SINK")
        graph.add_edge(*ends)  # without a capacity: unlimited
    return float(networkx.maximum_flow_value(graph, "SOURCE", "SINK"))
