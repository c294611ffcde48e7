"""NCCL on a topology: prices, and the links they load."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.base.quantity import Quantity
from mpisim.program import Operation
from mpisim.topo import SharedNetwork, class_of, find_cluster
from mpisim.topo.changes import apply_changes
from mpisim.topo.nccl import Nccl
from mpisim.topo.nccl_network import NcclNetwork, Pattern
from mpisim.topo.nccl_system import cluster_system
from mpisim.topo.network import WEIGHT_ONE

OPERATIONS = [o for o in Operation if o not in (Operation.NONE, Operation.UNKNOWN)]
CLUSTERS = ("dgx-h100", "dgx-a100", "polaris", "dgx-v100", "p4de", "v100-4gpu")
NODES = 3


def network(name: str, nodes: int = NODES, **changes: object) -> NcclNetwork:
    cluster = find_cluster(name)
    nominal = cluster.topology(nodes)
    return NcclNetwork(
        Nccl(cluster_system(cluster)),
        apply_changes(
            nominal, {f"links.{link}.bandwidth": value for link, value in changes.items()}
        ),
        meshed=cluster.node.kind.endswith("mesh"),
    )


NETWORKS = {name: network(name, NODES if find_cluster(name).fabric else 1) for name in CLUSTERS}


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_alone_a_communication_never_fills_a_link_beyond_its_bandwidth(data: st.DataObject) -> None:
    net = NETWORKS[data.draw(st.sampled_from(CLUSTERS))]
    ranks = st.integers(0, net.topology.n_gpus - 1)
    operation = data.draw(st.sampled_from(OPERATIONS))
    most = 2 if operation is Operation.SEND_RECV else 12
    members = data.draw(st.lists(ranks, min_size=2, max_size=most, unique=True))
    price = net.price(operation, data.draw(st.integers(0, 1 << 34)), class_of(net, members))
    if price.pattern is None:
        assert price.volume == 0
        return
    index, links, weights = net.loads(
        np.array([0, len(members)]), np.array(members, np.int32), price.pattern
    )
    assert index.tolist() == [0, len(links)]
    assert (np.diff(links) > 0).all()
    for link, weight in zip(links.tolist(), weights.tolist(), strict=True):
        assert weight * price.rate <= int(net.capacity[link]) * WEIGHT_ONE


@given(
    st.sampled_from(CLUSTERS),
    st.sampled_from([Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.ALL_TO_ALL]),
    st.lists(
        st.lists(st.integers(0, 3), min_size=2, max_size=4, unique=True), min_size=1, max_size=6
    ),
)
@settings(max_examples=60, deadline=None)
def test_many_groups_load_what_each_loads(
    name: str, operation: Operation, groups: list[list[int]]
) -> None:
    net = NETWORKS[name]
    pattern = Pattern(operation, "send" if operation is Operation.ALL_TO_ALL else "ring")
    stride = net.topology.n_gpus // 4
    groups = [[rank * stride for rank in group] for group in groups]
    members = np.array([rank for group in groups for rank in group], np.int32)
    index, links, weights = net.loads(np.cumsum([0, *map(len, groups)]), members, pattern)
    for i, group in enumerate(groups):
        one = net.loads(np.array([0, len(group)]), np.array(group, np.int32), pattern)
        here = slice(index[i], index[i + 1])
        assert (links[here].tolist(), weights[here].tolist()) == (one[1].tolist(), one[2].tolist())


def test_prices_are_those_of_nccl() -> None:
    net = NETWORKS["dgx-h100"]
    assert isinstance(net, SharedNetwork)
    group = class_of(net, range(8))
    price = net.price(Operation.ALL_REDUCE, 1 << 28, group)
    seconds = net.nccl.seconds(Operation.ALL_REDUCE, 1 << 28, group.shape)
    assert price.duration == pytest.approx(seconds * 1e12, rel=1e-9)
    assert net.price(Operation.ALL_REDUCE, 1 << 28, class_of(net, (3,))).duration == 0
    barrier = net.price(Operation.BARRIER, 0, group)
    assert (barrier.volume, barrier.pattern) == (0, None)
    assert barrier.duration > 0


def test_neighbours_in_a_pipeline_use_one_card_each() -> None:
    net = NETWORKS["dgx-h100"]
    _, links, weights = net.loads(
        np.array([0, 2]), np.array([3, 11], np.int32), Pattern(Operation.SEND_RECV, "send")
    )
    names = [net.link_name(link) for link in links.tolist()]
    assert {"node0.nic3->leaf0.rail3", "leaf0.rail3->node1.nic3"} <= set(names)
    assert not any("nvswitch" in name for name in names)
    assert (weights == WEIGHT_ONE).all()


def test_a_slow_card_limits_who_uses_it() -> None:
    net = network("dgx-h100", **{"node1.nic3->leaf*": "10 %"})
    members = np.array([3, 11, 19], np.int32)
    price = net.price(Operation.ALL_REDUCE, 1 << 28, class_of(net, members.tolist()))
    _, links, weights = net.loads(np.array([0, 3]), members, price.pattern)
    full = weights * float(price.rate) > 0.999 * net.capacity[links] * float(WEIGHT_ONE)
    assert [net.link_name(link) for link in links[full].tolist()] == ["node1.nic3->leaf0.rail3"]
    net = NETWORKS["dgx-h100"]
    fast = net.price(Operation.ALL_REDUCE, 1 << 28, class_of(net, members.tolist()))
    assert price.rate < fast.rate / 9


def test_a_price_rests_on_the_factor_of_its_decade() -> None:
    plain = NETWORKS["dgx-h100"]
    net = NcclNetwork(
        plain.nccl, plain.topology, lambda bytes, regime: Quantity(1, "1", 1 / bytes, "a test")
    )
    inside, across, alone = (class_of(net, group) for group in ((0, 1, 2), (0, 8), (3,)))
    assert net.shares(Operation.ALL_REDUCE, 999_999, inside) == {"node_collectives_1e5": 1.0}
    assert net.shares(Operation.ALL_REDUCE, 1_000_000, across) == {"network_collectives_1e6": 1.0}
    assert net.numbers["network_collectives_1e6"].error == 1e-6
    assert net.shares(Operation.ALL_REDUCE, 10**18, across) == {"network_collectives_1e12": 1.0}
    assert net.shares(Operation.ALL_REDUCE, 1 << 20, alone) == {}
    assert plain.shares(Operation.ALL_REDUCE, 1 << 20, inside) == {}


def test_arrays_that_may_change_are_looked_at_again() -> None:
    """A view that cannot be written to shows what is written to its base."""
    net, base = network("dgx-h100"), np.arange(16, dtype=np.int32)
    index, bits = np.array([0, 8]), np.array([1 << Operation.ALL_REDUCE])
    members = base[:8]
    for each in (index, bits, members):
        each.setflags(write=False)
    assert net.group_classes(index, members, bits)[1][0].shape.nodes == 1
    base[:8] = np.arange(0, 16, 2)
    assert net.group_classes(index, members, bits)[1][0].shape.nodes == 2


def test_arrays_of_the_last_query_are_not_kept_alive() -> None:
    net, index, bits = network("dgx-h100"), np.array([0, 8]), np.array([1 << Operation.ALL_REDUCE])
    members = np.arange(8, dtype=np.int32)
    for each in (index, bits, members):
        each.setflags(write=False)
    found = net.group_classes(index, members, bits)
    assert net.group_classes(index, members, bits) is found
    gone = weakref.ref(members)
    del members, each
    assert gone() is None
