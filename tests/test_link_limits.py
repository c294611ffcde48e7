"""Links that NICs keep from being full: every route over them goes through one that is narrower."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpisim.base.quantity import Quantity
from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import network_of
from mpisim.program import Operation
from mpisim.topo import Cluster, cluster_names, find_cluster
from mpisim.topo.changes import apply_changes
from mpisim.topo.nccl_network import NcclNetwork
from mpisim.topo.topology import LinkKind
from mpisim.topo.traffic.link_limits import typical_bandwidth, unlimiting_links

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


def test_links_that_are_all_unlike_limit_whom_they_join() -> None:
    """Four GPUs in a mesh of 80 GB/s, each link divided by a factor of its own."""
    factors = {(0, 1): 2, (0, 2): 3, (0, 3): 4, (1, 2): 5, (1, 3): 6, (2, 3): 7}
    changes = {
        f"links.node0.gpu{a}->node0.gpu{b}.bandwidth": f"{1 / factor} x"
        for (i, j), factor in factors.items()
        for a, b in ((i, j), (j, i))
    }
    found = network_of(find_cluster("a100-4gpu"), 1, NetworkChoice(changes=changes))
    assert isinstance(found, NcclNetwork)
    for pair, factor in factors.items():
        price = found.price(Operation.SEND_RECV, 1 << 30, found.placement(pair))
        rate = (1 << 30) / (price.duration / 1e12)
        # The fastest pair is what was measured on such links, a little less or more than they say.
        assert rate == pytest.approx(80e9 / factor, rel=0.15 if factor == 2 else 0.01)


@pytest.mark.parametrize(("slowed", "typical"), [(0, 1.0), (1, 1.0), (4, 1.0), (5, 0.5), (8, 0.5)])
def test_typical_is_what_more_than_half_have(slowed: int, typical: float) -> None:
    built = find_cluster("dgx-h100").topology(1)
    changes = {f"links.node0.gpu{gpu}->node0.nvswitch.bandwidth": "0.5 x" for gpu in range(slowed)}
    changes |= {f"links.node0.nvswitch->node0.gpu{gpu}.bandwidth": "0.5 x" for gpu in range(slowed)}
    topology = apply_changes(built, changes) if changes else built
    of_kind = built.kind == LinkKind.NVLINK
    ratio = typical_bandwidth(topology)[of_kind] / built.bandwidth[of_kind]
    assert (ratio == typical).all()


def test_typical_of_links_that_are_all_unlike_is_the_highest() -> None:
    built = find_cluster("dgx-h100").topology(1)
    changes = {
        f"links.node0.gpu{gpu}->node0.nvswitch.bandwidth": f"{0.9 - gpu / 10:.1f} x"
        for gpu in range(8)
    }
    changes |= {
        f"links.node0.nvswitch->node0.gpu{gpu}.bandwidth": f"{0.95 - gpu / 10:.2f} x"
        for gpu in range(8)
    }
    of_kind = built.kind == LinkKind.NVLINK
    found = typical_bandwidth(apply_changes(built, changes))[of_kind] / built.bandwidth[of_kind]
    assert found == pytest.approx(0.95)
