"""Links that NICs keep from being full: every route over them goes through one that is narrower."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpisim.quantity import Quantity
from mpisim.topo import cluster_names, find_cluster
from mpisim.topo.narrowest import behind_ports
from mpisim.topo.topology import LinkKind

FABRICS = [name for name in cluster_names() if find_cluster(name).fabric is not None]


@pytest.mark.parametrize("name", FABRICS)
def test_all_that_comes_over_them_fits(name: str) -> None:
    cluster = find_cluster(name)
    nodes = 3 if cluster.gpus_per_node <= 16 else 2
    topology = cluster.topology(nodes)
    left_out = behind_ports(topology, cluster.gpus_per_node)
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
    assert behind_ports(cluster.topology(2), 8).sum() == 2 * 8 * 5
    # One PCIe connection is narrower than its card of 48.9; two switches share one to the CPU.
    assert not behind_ports(narrow.topology(2), 8).any()
    assert not behind_ports(cluster.topology(1), 8).any()  # one node has no ports
