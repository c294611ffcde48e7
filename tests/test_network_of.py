"""The network of an experiment: built once for plans on one and the same cluster."""

from dataclasses import replace

from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import NetworkCache
from mpisim.topo import find_cluster


def test_equal_clusters_share_a_network() -> None:
    network_of = NetworkCache().network_of
    first = network_of(find_cluster("dgx-h100"), 2, NetworkChoice())
    assert network_of(find_cluster("dgx-h100"), 2, NetworkChoice()) is first


def test_another_cluster_size_or_choice_has_its_own() -> None:
    network_of = NetworkCache().network_of
    cluster, plain = find_cluster("dgx-h100"), NetworkChoice()
    first = network_of(cluster, 2, plain)
    assert network_of(cluster, 3, plain) is not first
    tree = network_of(cluster, 2, NetworkChoice(nccl={"NCCL_ALGO": "ring"}))
    assert tree is not network_of(cluster, 2, plain)
    slow = replace(cluster, changes={"links.node0.nic0->*.bandwidth": "50 %"})
    assert network_of(slow, 2, plain) is not network_of(cluster, 2, plain)


def test_what_was_asked_before_changes_no_price() -> None:
    """A network that has priced other communications gives the prices of a new one."""
    from mpisim.program import Operation
    from mpisim.topo import class_of

    network_of, plain = NetworkCache().network_of, NetworkChoice()
    used = network_of(find_cluster("dgx-h100"), 2, plain)
    pair = class_of(used, [0, 8])
    used.price(Operation.ALL_REDUCE, 1 << 26, pair)
    before = used.price(Operation.ALL_GATHER, 1 << 20, pair)
    network_of(find_cluster("dgx-h100"), 4, plain)
    new = network_of(find_cluster("dgx-h100"), 2, plain)
    assert new is not used
    assert new.price(Operation.ALL_GATHER, 1 << 20, pair) == before
