"""Links that NICs keep from being full: every route over them goes through one that is narrower."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpisim.base.quantity import Quantity
from mpisim.topo import Cluster, cluster_names, find_cluster
from mpisim.topo.topology import LinkKind
from mpisim.topo.traffic.link_limits import unlimiting_links

FABRICS = [name for name in cluster_names() if find_cluster(name).fabric is not None]


@pytest.mark.parametrize("name", FABRICS)
def test_all_that_comes_over_them_fits(name: str) -> None:
    cluster = find_cluster(name)
    nodes = 3 if cluster.gpus_per_node <= 16 else 2
    topology = cluster.topology(nodes)
    left_out = unlimiting_links(topology, cluster.gpus_per_node)
    gpus = np.arange(topology.n_gpus)
    index, links = topology.routes(np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus)))
    ports: dict[int, set[int]] = {}
    for i in range(len(index) - 1):
        route = links[index[i] : index[i + 1]]
        through = np.flatnonzero(topology.kind[route] == LinkKind.NIC)
        for at in np.flatnonzero(left_out[route]).tolist():
            assert len(through)
            port = through[0] if at < through[0] else through[-1]
            ports.setdefault(int(route[at]), set()).add(int(route[port]))
    for link, through in ports.items():
        assert topology.bandwidth[sorted(through)].sum() <= topology.bandwidth[link]


def test_what_is_narrower_than_its_cards_stays() -> None:
    cluster = find_cluster("dgx-h100")
    slow = Quantity(40, "GB/s", 0, "a test")
    narrow = dataclasses.replace(
        cluster, node=dataclasses.replace(cluster.node, pcie_bandwidth=slow)
    )
    assert inside(cluster, 2) == 2 * 8 * 5
    # One PCIe connection is narrower than its card of 48.9; two switches share one to the CPU.
    assert inside(narrow, 2) == 0
    assert inside(cluster, 1) == 0  # one node has no ports


def inside(cluster: Cluster, nodes: int) -> int:
    """How many links of nodes are left out."""
    topology = cluster.topology(nodes)
    return int((unlimiting_links(topology, 8) & (topology.kind < LinkKind.NIC)).sum())


@pytest.mark.parametrize(("over", "left_out"), [(1.0, True), (1.01, False)])
def test_a_leaf_that_sends_on_all_it_is_sent_holds_nobody_back(over: float, left_out: bool) -> None:
    cluster = find_cluster("dgx-h100")
    assert cluster.fabric is not None
    fabric = dataclasses.replace(cluster.fabric, leaf=2, oversubscription=over)
    topology = dataclasses.replace(cluster, fabric=fabric).topology(4)
    between = topology.kind == LinkKind.FABRIC
    assert between.any()
    assert unlimiting_links(topology, 8)[between].all() == left_out
