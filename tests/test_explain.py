"""Why a communication takes as long as it does, on every packaged cluster."""

from __future__ import annotations

import pytest

from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import network_of
from mpisim.program import Operation
from mpisim.topo import cluster_names, find_cluster
from mpisim.topo.explain import explain
from mpisim.topo.nccl_network import NcclNetwork

ALL = (
    Operation.ALL_REDUCE,
    Operation.ALL_GATHER,
    Operation.REDUCE_SCATTER,
    Operation.ALL_TO_ALL,
    Operation.BROADCAST,
    Operation.REDUCE,
    Operation.GATHER,
    Operation.SCATTER,
    Operation.SEND_RECV,
)


@pytest.mark.parametrize("name", cluster_names())
def test_no_price_is_below_its_bound(name: str) -> None:
    cluster = find_cluster(name)
    nodes = 2 if cluster.fabric else 1
    net = network_of(cluster, nodes)
    assert isinstance(net, NcclNetwork)
    members = range(nodes * cluster.gpus_per_node)
    for operation in ALL:
        found = explain(net, operation, 1 << 32, members)
        assert found.cut is not None
        # NCCL's tuner has n / (2 n - 2) of the NICs where trees of two nodes move half, n of 16.
        slack = 1 / 15 if found.choice.algorithm == "nvls-tree" else 1e-3
        assert found.seconds >= found.cut.seconds * (1 - slack), operation
        assert found.link_rate <= found.nccl_rate
        assert found.limit


@pytest.mark.parametrize("operation", [Operation.ALL_GATHER, Operation.ALL_TO_ALL])
def test_a_card_that_is_cut_leaves_its_bytes_to_another(operation: Operation) -> None:
    cluster = find_cluster("dgx-h100")
    members, size = range(16), 1 << 30
    changes = {"links.node0.nic3->leaf*": "cut", "links.leaf*->node0.nic3": "cut"}
    times = []
    for changed in ({}, {"links.node0.nic3->leaf*.bandwidth": "99 %"}, changes):
        net = network_of(cluster, 2, NetworkChoice(changes=changed))
        assert isinstance(net, NcclNetwork)
        times.append(explain(net, operation, size, members).seconds)
    assert times[0] <= times[1]
    assert times[2] > 1.5 * times[0]


def test_more_than_two_send_each_to_the_next() -> None:
    cluster = find_cluster("dgx-h100")
    slow = {"links.node1.nic*->leaf*.bandwidth": "1 GB/s"}
    net = network_of(cluster, 2, NetworkChoice(changes=slow))
    assert isinstance(net, NcclNetwork)
    found = explain(net, Operation.SEND_RECV, 1 << 30, range(16))
    assert found.seconds > (1 << 30) / 1e9
    assert "slow NIC" in found.limit


@pytest.mark.parametrize(
    ("cluster", "words"), [("dgx-h100", "slow NVLink"), ("mi300x-8gpu", "slow xGMI")]
)
def test_slow_links_of_a_gpu_have_the_name_of_their_maker(cluster: str, words: str) -> None:
    net = network_of(
        find_cluster(cluster), 1, NetworkChoice(changes={"links.node0.gpu1->*.bandwidth": "2 %"})
    )
    assert isinstance(net, NcclNetwork)
    assert explain(net, Operation.ALL_REDUCE, 1 << 30, range(8)).limit.startswith(words)
