"""Fabrics: what they consist of and carry, by closed forms and by networkx; routes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import networkx
import numpy as np
import pytest
from fabrics import LINK, PORT, check_routes, cluster, direct, networkx_flow
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity
from mpisim.topo import Topology
from mpisim.topo.bounds import bisection, rails
from mpisim.topo.fabrics import BUILDERS, Fabric
from mpisim.topo.fabrics.fabric import COMMON, KEYS, Kind
from mpisim.topo.topology import LinkKind, NodeKind, check_connected

TREE = {"leaf": 4, "oversubscription": 2.0}

# Fabric, nodes of 2 GPUs with a NIC each, switches, links between switches, bisection.
TREES = [
    ({"kind": "switch"}, 4, 1, 0, 2 * 2 * PORT),  # 2 nodes a half
    # 16 NICs on 4 leaves, each with 4 × PORT / 2 up to the spine; 2 leaves a half.
    ({"kind": "fat-tree", **TREE}, 8, 4 + 1, 4 * 2, 2 * 2 * PORT),
    ({"kind": "fat-tree", **TREE, "spines": 4, "ecmp": "ecmp"}, 8, 4 + 4, 16 * 2, 4 * PORT),
    ({"kind": "fat-tree", **TREE, "spines": 4, "ecmp": "adaptive"}, 8, 8, 16 * 2, 4 * PORT),
    # Pods of 2 leaves: what those send up, 4 × PORT, halved again on the way to the core.
    (
        {"kind": "fat-tree", **TREE, "pod": 2, "core_oversubscription": 2.0},
        8,
        4 + 2 + 1,
        (4 + 2) * 2,
        2 * PORT,
    ),
    # A leaf a rail for 4 nodes: 2 rows of 2 leaves; a row is a half.
    ({"kind": "rail-fat-tree", **TREE}, 8, 4 + 1, 4 * 2, 2 * 2 * PORT),
    # The same in two planes, each of half the bandwidth.
    ({"kind": "hpn", **TREE}, 8, 2 * (4 + 1), 2 * 4 * 2, 2 * 2 * PORT),
    (
        {"kind": "hpn", **TREE, "pod": 1, "core_oversubscription": 4.0},
        8,
        2 * (4 + 2 + 1),
        2 * (4 + 2) * 2,
        2 * 2 * PORT / 4,
    ),
]

# Fabric, nodes of one GPU, routers, links between routers, bisection.
GRIDS = [
    ({"kind": "torus", "dims": (4, 4)}, 16, 16, 16 * 4, 2 * 4 * LINK),  # two rows of 4 cut twice
    ({"kind": "torus", "dims": (4, 2, 3)}, 24, 24, 24 * (2 + 1 + 2), 2 * 6 * LINK),
    ({"kind": "mesh", "dims": (4, 4)}, 16, 16, 2 * 2 * 12, 4 * LINK),
    ({"kind": "mesh", "dims": (2, 3, 2)}, 12, 12, 2 * (6 + 8 + 6), 6 * LINK),
    ({"kind": "wafer", "dims": (3, 4)}, 24, 24, 2 * (5 * 4 + 6 * 3), 4 * LINK),  # two wafers
]


def of_kind(topology: Topology, kind: LinkKind) -> int:
    return int((topology.kind == kind).sum())


@pytest.mark.parametrize(("fabric", "nodes", "switches", "links", "expected"), TREES)
def test_trees(
    fabric: dict[str, Any], nodes: int, switches: int, links: int, expected: float
) -> None:
    found = cluster(**fabric).topology(nodes)
    planes = 2 if fabric["kind"] == "hpn" else 1
    assert found.n_gpus == 2 * nodes
    assert (found.node_kind == NodeKind.SWITCH).sum() == switches
    assert of_kind(found, LinkKind.FABRIC) == links
    assert of_kind(found, LinkKind.NIC) == 2 * 2 * nodes * planes
    assert bisection(found) == pytest.approx(expected, rel=1e-4)
    assert networkx_flow(found) == pytest.approx(expected, rel=1e-6)
    assert rails(found) == pytest.approx({"nic0": PORT, "nic1": PORT})
    check_routes(found)


@pytest.mark.parametrize(("fabric", "nodes", "switches", "links", "expected"), GRIDS)
def test_grids(
    fabric: dict[str, Any], nodes: int, switches: int, links: int, expected: float
) -> None:
    found = direct(**fabric).topology(nodes)
    assert found.n_gpus == nodes
    assert (found.node_kind == NodeKind.SWITCH).sum() == switches
    assert of_kind(found, LinkKind.FABRIC) == links
    assert bisection(found) == pytest.approx(expected, rel=1e-4)
    assert networkx_flow(found) == pytest.approx(expected, rel=1e-6)
    check_routes(found)
    check_shortest(found)


def test_circuits_lead_from_each_to_each() -> None:
    setup = Quantity(20, "ms", 0.1, "made up")
    found = direct(kind="circuit", ports=3, setup_latency=setup).topology(6)
    assert (found.node_kind == NodeKind.SWITCH).sum() == 6
    assert of_kind(found, LinkKind.FABRIC) == 6 * 5
    assert bisection(found) == pytest.approx(3 * 3 * LINK, rel=1e-4)
    assert networkx_flow(found) == pytest.approx(3 * 3 * LINK, rel=1e-6)
    check_routes(found)
    check_shortest(found)


def test_wafers_are_joined_at_their_edges() -> None:
    edge = {"edge_bandwidth": direct(kind="mesh", dims=(2,)).fabric.link_bandwidth}
    slow = {key: type(value)(1, "GB/s", 0.1, "made up") for key, value in edge.items()}
    found = direct(kind="wafer", dims=(2, 3), **slow).topology(12)
    assert bisection(found) == pytest.approx(3 * 1e9, rel=1e-4)
    inside = direct(kind="wafer", dims=(2, 3), **slow).topology(6)
    assert bisection(inside) == pytest.approx(3 * LINK, rel=1e-4)


# Router ports, routers a group, global links; nodes of one GPU. Groups = ports / (p × a).
DRAGONFLIES = [
    (2, 2, 1, 12, 3),  # all groups that 2 global links allow
    (2, 4, 2, 16, 2),  # 8 links between the two
    (1, 3, 2, 12, 4),  # 2 links for each of 3 others
    (4, 4, 2, 7, 1),  # two routers, no global links
]


@pytest.mark.parametrize(("p", "a", "h", "nodes", "groups"), DRAGONFLIES)
def test_dragonflies(p: int, a: int, h: int, nodes: int, groups: int) -> None:
    found = direct(kind="dragonfly", router_ports=p, routers=a, global_links=h).topology(nodes)
    routers = a if groups > 1 else -(-nodes // p)
    assert (found.node_kind == NodeKind.SWITCH).sum() == groups * routers
    copies = a * h // (groups - 1) if groups > 1 else 0
    links = groups * routers * (routers - 1) + groups * (groups - 1) * copies
    assert of_kind(found, LinkKind.FABRIC) == links
    # Every global link leads back: as many from a group to another as the other way.
    between = np.zeros((groups, groups), int)
    group = {name: int(name.split(".")[0][5:]) for name in found.names if name.startswith("group")}
    for a_, b_ in zip(found.source, found.target, strict=True):
        one, other = group.get(found.names[a_]), group.get(found.names[b_])
        if one is not None and other is not None and one != other:
            between[one, other] += 1
    assert (between == copies * (1 - np.eye(groups, dtype=int))).all()
    assert bisection(found) == pytest.approx(networkx_flow(found), rel=1e-4)
    check_routes(found)
    index, _ = found.routes(*np.divmod(np.arange(nodes**2), nodes))
    assert np.diff(index).max() <= 2 + 3  # in and out, and at most three between routers
    if copies == 1:
        check_shortest(found)


# NICs of a leaf, leaves a group, links to each other group; nodes of one GPU; groups, switches.
DRAGONFLIES_PLUS = [
    (2, 3, 2, 18, 3, 9 + 3),
    (4, 2, 3, 16, 2, 4 + 2),  # two groups: the links between them are the bisection
    (3, 2, 1, 16, 3, 6 + 3),  # the last group is not full
    (4, 4, 2, 7, 1, 2 + 1),  # two leaves of one group
    (4, 4, 2, 3, 1, 1),  # one leaf
]


@pytest.mark.parametrize(
    ("leaf", "leaves", "links", "nodes", "groups", "switches"), DRAGONFLIES_PLUS
)
def test_dragonflies_plus(
    leaf: int, leaves: int, links: int, nodes: int, groups: int, switches: int
) -> None:
    keys: dict[str, Any] = {"kind": "dragonfly+", "leaf": leaf, "pod": leaves, "group_links": links}
    found = direct(**keys).topology(nodes)
    assert (found.node_kind == NodeKind.SWITCH).sum() == switches
    cables = switches - groups if switches > 1 else 0  # a leaf's, which are one here
    assert of_kind(found, LinkKind.FABRIC) == 2 * cables + groups * (groups - 1)
    between = found.bandwidth[
        ["spine->" in name and "spine" in name[8:] for name in found.link_names]
    ]
    assert between == pytest.approx(links * LINK)
    assert bisection(found) == pytest.approx(networkx_flow(found), rel=1e-4)
    if groups == 2:
        assert bisection(found) == pytest.approx(links * LINK, rel=1e-4)
    check_routes(found)
    check_shortest(found)


def test_a_dragonfly_plus_blocks_where_its_leaves_do() -> None:
    # 2 groups of 2 leaves of 4 NICs: a leaf sends a third of what comes to it, and four links
    # between the groups carry more than both leaves of one.
    keys: dict[str, Any] = {"leaf": 4, "pod": 2, "group_links": 4, "oversubscription": 3.0}
    found = cluster(kind="dragonfly+", **keys).topology(8)
    assert bisection(found) == pytest.approx(2 * 4 * PORT / 3, rel=1e-4)
    assert networkx_flow(found) == pytest.approx(2 * 4 * PORT / 3, rel=1e-6)


def check_shortest(found: Topology) -> None:
    """Routes have as few links as the graph allows."""
    lengths = dict(networkx.all_pairs_shortest_path_length(networkx.DiGraph(found.graph())))
    n = found.n_gpus
    index, _ = found.routes(*np.divmod(np.arange(n * n), n))
    names = [found.names[node] for node in found.gpu]
    for i, length in enumerate(np.diff(index).tolist()):
        assert length == lengths[names[i // n]][names[i % n]]


def test_hashes_spread_flows_over_all_spines() -> None:
    found = cluster(kind="fat-tree", leaf=8, spines=4, ecmp="ecmp").topology(16)
    n = found.n_gpus
    a, b = np.divmod(np.arange(n * n), n)
    _, links = found.routes(a, b)
    up = [link for link in links if "->spine" in found.link_name(link)]
    load = np.unique(up, return_counts=True)[1]
    # 4 leaves; a leaf sends 8 × 24 pairs up, 48 a spine, standard deviation 6.
    assert len(load) == 4 * 4
    assert load.sum() == 4 * 8 * 24
    assert load.min() > 48 - 24
    again = found.routes(a, b)[1]
    assert (again == links).all()


def test_the_rails_of_a_rack_are_shared() -> None:
    # 4 NICs on 2 rails: NIC 2 is on the leaf of NIC 0.
    found = cluster(4, kind="rail-fat-tree", leaf=4, rails=2).topology(2)
    leaves = [name for name in found.names if name.startswith("leaf")]
    assert leaves == ["leaf0.rail0", "leaf0.rail1"]
    joined = {name for name in found.link_names if name.endswith("->leaf0.rail0")}
    assert joined >= {f"node{i}.nic{k}->leaf0.rail0" for i in range(2) for k in (0, 2)}


COUNTS = st.integers(1, 5)
FABRICS = st.one_of(
    st.builds(
        lambda kind, mode, **keys: {
            "kind": kind,
            **keys,
            **({"spines": 3, "ecmp": mode} if mode != "ideal" else {}),
        },
        st.sampled_from(["fat-tree", "rail-fat-tree", "hpn"]),
        st.sampled_from(["ideal", "ecmp", "adaptive"]),
        leaf=COUNTS,
        pod=COUNTS,
        oversubscription=st.sampled_from([1.0, 3.0]),
    ),
    st.builds(
        dict,
        kind=st.just("dragonfly"),
        router_ports=st.integers(2, 4),
        routers=st.integers(3, 5),
        global_links=st.integers(2, 4),
    ),
    st.builds(
        dict,
        kind=st.just("dragonfly+"),
        leaf=COUNTS,
        pod=COUNTS,
        group_links=COUNTS,
        oversubscription=st.sampled_from([1.0, 3.0]),
    ),
    st.builds(
        dict,
        kind=st.just("torus"),
        dims=st.tuples(COUNTS, COUNTS, st.just(9)),
        link_bandwidth=st.just(direct(kind="mesh", dims=(1,)).node.link_bandwidth),
    ),
)


@settings(max_examples=60, deadline=None)
@given(fabric=FABRICS, gpus=st.integers(1, 4), nics=st.integers(1, 4), nodes=st.integers(1, 9))
def test_any_fabric_joins_all(fabric: dict[str, Any], gpus: int, nics: int, nodes: int) -> None:
    found = cluster(gpus, nics, **fabric).topology(nodes)
    check_connected(found)
    check_routes(found, 60)
    assert len(set(found.names)) == found.n_nodes
    assert len(set(found.link_names)) == found.n_links
    assert (found.bandwidth > 0).all()
    assert found.nics == nics * nodes


@pytest.mark.parametrize(
    ("fabric", "nodes", "message"),
    [
        ({"kind": "mesh", "dims": (10**9, 10**9)}, 5, "allowed are 1,048,576 at most"),
        ({"kind": "torus", "dims": (2, 2)}, 5, r"dims = \[2, 2\] has 4 places, and there are 5 no"),
        ({"kind": "wafer", "dims": (2, 2)}, 6, r"has 4 places a wafer, and there are 6 nodes: no"),
        (
            {"kind": "dragonfly", "router_ports": 1, "routers": 2, "global_links": 1},
            7,
            r"a dragonfly of 2 routers with 1 global links each has 3 groups at most, "
            r"of 2 ports; 7",
        ),
    ],
)
def test_what_does_not_fit_is_refused(fabric: dict[str, Any], nodes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        direct(**fabric).topology(nodes)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "fat-tree"}, "'leaf' is missing; kind = 'fat-tree' needs it"),
        ({"kind": "switch", "dims": (2,)}, "'dims' is given, a key of torus, mesh, wafer; kind is"),
        ({"kind": "fat-tree", "leaf": 4, "rails": 2}, "'rails' is given, a key of rail-fat-tree,"),
        ({"kind": "dragonfly+", "leaf": 4, "pod": 2}, "'group_links' is missing; kind = 'dragonf"),
        ({"kind": "fat-tree", "leaf": 4, "spines": 2}, "it must be given with ecmp = 'ecmp' or 'a"),
        ({"kind": "fat-tree", "leaf": 4, "ecmp": "ecmp"}, "'spines' is missing; it must be given"),
        ({"kind": "wafer", "dims": (2,)}, "'link_bandwidth' is missing; kind = 'wafer' needs it"),
        ({"kind": "circuit"}, "'link_bandwidth' is missing; kind = 'circuit' needs it"),
        ({"kind": "switch", "ports": 8}, "'ports' is given, a key of circuit; kind is 'switch'"),
    ],
)
def test_keys_that_contradict_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Fabric(**keys)


def test_every_kind_has_a_builder_and_its_keys_have_rows() -> None:
    kinds = set(get_args(Kind))
    for table, where in ((BUILDERS, "__init__.py: BUILDERS"), (KEYS, "fabric.py: KEYS")):
        assert set(table) == kinds, (
            f"topo/fabrics/{where} and Kind (topo/fabrics/fabric.py) name different kinds: "
            f"{sorted(kinds ^ set(table))}"
        )
    keys = {key for needed, allowed in KEYS.values() for key in (*needed, *allowed)}
    unlisted = (keys | set(COMMON)) ^ {field.name for field in fields(Fabric)}
    assert not unlisted, f"topo/fabrics/fabric.py: KEYS and the fields of Fabric differ: {unlisted}"
    page = Path(__file__).parents[1].joinpath("docs/topologies.md").read_text(encoding="utf-8")
    tables = page.partition("### `[fabric]`")[2].partition("###")[0]
    heads = [line.split("|")[1] for line in tables.splitlines() if line.startswith("|")]
    named = {word for head in heads for word in head.split("`")[1::2]}
    undocumented = named ^ (kinds | (keys | set(COMMON)) - {"kind"})
    assert not undocumented, (
        f"docs/topologies.md, tables under [fabric]: rows missing or too many: {undocumented}"
    )
