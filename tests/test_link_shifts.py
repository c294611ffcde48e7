"""Groups a period further on load links a shift further on: against the routes themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fabrics import PORT, cluster, direct
from hypothesis import given
from hypothesis import strategies as st

from mpisim.program import Operation
from mpisim.topo import Topology
from mpisim.topo.changes import apply_changes
from mpisim.topo.nccl import Nccl
from mpisim.topo.nccl.system import System
from mpisim.topo.nccl_network import NcclNetwork
from mpisim.topo.traffic.patterns import Pattern

TREE = {"leaf": 4, "oversubscription": 2.0}
SPREAD = {**TREE, "spines": 3, "ecmp": "adaptive"}

FABRICS = [
    {"kind": "switch"},
    {"kind": "fat-tree", **TREE},
    {"kind": "fat-tree", **SPREAD},
    {"kind": "fat-tree", **TREE, "pod": 2, "core_oversubscription": 2.0},
    {"kind": "rail-fat-tree", **TREE},
    {"kind": "rail-fat-tree", **SPREAD, "pod": 2},
    {"kind": "hpn", **TREE},
    {"kind": "hpn", **SPREAD, "pod": 1, "core_oversubscription": 4.0},
]


def network(topology: Topology) -> NcclNetwork:
    """NCCL's on nodes of two GPUs."""
    system = System(
        "hopper", 2, "nvswitch", 1000e9, nics=2, nic_bandwidth=PORT, pcie_bandwidth=1000e9
    )
    return NcclNetwork(Nccl(system), topology)


def routes_shift(topology: Topology, gpus_per_node: int) -> bool:
    """Whether the route of every pair is that of the pair a period before, shifted."""
    assert topology.shift is not None
    apart = topology.period * gpus_per_node
    n = topology.n_gpus - apart
    assert n > 0
    a, b = np.divmod(np.arange(n * n), n)
    index, links = topology.routes(a, b)
    again, others = topology.routes(a + apart, b + apart)
    return np.array_equal(index, again) and np.array_equal(links + topology.shift.of(links), others)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("nodes", [11, 16])
def test_routes_shift_on_trees(fabric: dict[str, Any], nodes: int) -> None:
    assert routes_shift(cluster(**fabric).topology(nodes), 2)
    if fabric["kind"] in ("switch", "fat-tree"):
        assert routes_shift(direct(gpus=2, **fabric).topology(nodes), 2)


def test_it_is_not_known_where_a_hash_chooses_or_links_were_changed() -> None:
    hashed = {**SPREAD, "ecmp": "ecmp"}
    assert cluster(kind="fat-tree", **hashed).topology(8).shift is None
    plain = cluster(kind="fat-tree", **TREE).topology(8)
    slow = apply_changes(plain, {"links.node3.nic0->*.bandwidth": "50 %"})
    assert plain.shift is not None
    assert slow.shift is None


@given(
    fabric=st.sampled_from(FABRICS),
    nodes=st.integers(2, 24),
    data=st.data(),
    pattern=st.sampled_from(
        [
            Pattern(Operation.ALL_REDUCE, "ring"),
            Pattern(Operation.ALL_REDUCE, "tree"),
            Pattern(Operation.ALL_TO_ALL, "send"),
            Pattern(Operation.BROADCAST, "ring"),
        ]
    ),
)
def test_loads_are_those_of_each_group_by_itself(
    fabric: dict[str, Any], nodes: int, data: st.DataObject, pattern: Pattern
) -> None:
    """Of groups in any order, some of them copies of others nodes further on."""
    made = cluster(**fabric)
    topology = made.topology(nodes)
    ranks = st.integers(0, topology.n_gpus - 1)
    groups = []
    for members in data.draw(
        st.lists(st.lists(ranks, min_size=2, max_size=6, unique=True), max_size=3)
    ):
        room = nodes - 1 - max(members) // 2
        down = min(members) // 2
        groups += [[m + 2 * i for m in members] for i in range(-down, room + 1)]
    groups = data.draw(st.permutations(groups))
    index = np.cumsum([0, *map(len, groups)])
    members = np.array([m for group in groups for m in group], np.int32)
    found, plain = (
        network(each).loads(index, members, pattern)
        for each in (topology, replace(topology, shift=None))
    )
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one, other)
