"""Nodes, whole clusters, and what a topology answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from fabrics import PORT, check_route, check_routes, cluster, direct, gb, networkx_flow
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import NODES_OF_GPUS

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity
from mpisim.topo import Cluster, Topology, find_cluster
from mpisim.topo.bounds import bisection, sample_paths
from mpisim.topo.changes import apply_changes
from mpisim.topo.fabrics import Fabric
from mpisim.topo.nodes import Node
from mpisim.topo.topology import LinkKind, NodeKind


def box(kind: str, gpus: int, **keys: Any) -> Cluster:
    """Nodes of a kind, joined by one switch if they have NICs."""
    if kind != "pcie":
        keys["link_bandwidth"] = gb(120)
    keys.setdefault("pcie_bandwidth", gb(24))
    if keys.get("numa_nodes", 1) > 1:
        keys["socket_bandwidth"] = gb(16)
    fabric = None
    if keys.get("nics"):
        keys["nic_bandwidth"] = gb(PORT / 1e9)
        fabric = Fabric(kind="switch", nic_efficiency=Quantity(1.0, "1", 0.1, "made up"))
    return Cluster("made up", "h100-sxm", gpus, Node(kind=kind, **keys), fabric)  # type: ignore[arg-type]


def path(topology: Topology, a: int, b: int) -> list[str]:
    """The nodes along a route, without the first."""
    return [topology.names[topology.target[link]] for link in topology.route(a, b)]


@pytest.mark.parametrize(
    ("kind", "gpus", "links", "most"),
    [
        ("nvswitch", 8, 2 * 8, 2),
        ("nvlink-mesh", 4, 4 * 3, 1),
        ("xgmi-mesh", 8, 8 * 7, 1),
        ("hypercube-mesh", 8, 2 * 16, 2),
    ],
)
def test_fast_links(kind: str, gpus: int, links: int, most: int) -> None:
    found = box(kind, gpus).topology()
    fast = found.kind == LinkKind.NVLINK
    assert fast.sum() == links
    for node in found.gpu:  # what a GPU can send over all its links
        assert found.bandwidth[fast & (found.source == node)].sum() == pytest.approx(120e9)
        assert found.bandwidth[fast & (found.target == node)].sum() == pytest.approx(120e9)
    index, used = found.routes(*np.divmod(np.arange(gpus**2), gpus))
    assert np.diff(index).max() == most
    assert fast[used].all()
    check_routes(found)


def test_the_hypercube_is_that_of_a_dgx_1() -> None:
    found = box("hypercube-mesh", 8).topology()
    # As nvidia-smi prints it for GPU 0: NV1 to 1 and 2, NV2 to 3 and 4.
    width = {
        found.names[b]: round(speed / 20e9)
        for a, b, speed, kind in zip(
            found.source, found.target, found.bandwidth, found.kind, strict=True
        )
        if a == found.gpu[0] and kind == LinkKind.NVLINK
    }
    assert width == {"node0.gpu1": 1, "node0.gpu2": 1, "node0.gpu3": 2, "node0.gpu4": 2}
    # To 7 through 3 or 4: a link of 1 behind 2, or of 2 behind 2.
    assert path(found, 0, 7) == ["node0.gpu4", "node0.gpu7"]


def test_pairs_meet_over_pcie() -> None:
    found = box("nvlink-pairs", 4, numa_nodes=2).topology()
    assert path(found, 2, 3) == ["node0.gpu3"]
    assert path(found, 1, 2) == ["node0.cpu0", "node0.cpu1", "node0.gpu2"]


@pytest.mark.parametrize("gpus", range(1, 9))
def test_pcie_boxes(gpus: int) -> None:
    found = box("pcie", gpus, numa_nodes=2, pcie_switches=2).topology()
    check_routes(found)
    assert (found.node_kind == NodeKind.PCIE).sum() == 2
    if gpus == 8:
        assert path(found, 0, 3) == ["node0.pcie0", "node0.gpu3"]
        assert path(found, 0, 4) == [
            f"node0.{n}" for n in ("pcie0", "cpu0", "cpu1", "pcie1", "gpu4")
        ]
    if gpus > 1:
        # Everything to the other half goes through one connection of CPUs; but a first half of
        # fewer GPUs than a CPU has also reaches one beside it.
        assert bisection(found) == pytest.approx(networkx_flow(found), rel=1e-4)
        if gpus % 2 == 0:
            assert bisection(found) == pytest.approx(16e9, rel=1e-4)


@pytest.mark.parametrize(
    ("nic_path", "between"),
    [
        ("pix", ["pcie0"]),
        ("pxb", ["pcie0", "bridge0"]),
        ("phb", ["cpu0"]),
        ("sys", ["cpu0", "cpu1"]),
    ],
)
def test_what_lies_between_gpu_and_nic(nic_path: str, between: list[str]) -> None:
    found = box("nvswitch", 4, numa_nodes=2, nics=4, nic_path=nic_path).topology(2)
    way = path(found, 0, 4)
    assert way[: len(between) + 1] == [f"node0.{n}" for n in [*between, "nic0"]]
    assert way[len(between) + 1] == "switch"
    back = [f"node1.{n}" for n in ["nic0", *between[::-1], "gpu0"]]
    assert way[len(between) + 2 :] == back


def test_without_gpudirect_data_passes_the_cpu() -> None:
    found = box("nvswitch", 2, nics=2, nic_path="pix", gpudirect=False).topology(2)
    assert path(found, 0, 2)[:4] == ["node0.pcie0", "node0.cpu0", "node0.pcie0", "node0.nic0"]
    check_route(found, 1, 2, found.route(1, 2))


def test_the_card_of_another_rail_is_reached_over_nvlink() -> None:
    nodes = {"nics": 4, "nic_path": "pix"}
    found = box("nvswitch", 4, **nodes).topology(2)  # type: ignore[arg-type]
    over = ["node0.nvswitch", "node0.gpu3", "node0.pcie1", "node0.nic3", "switch", "node1.nic3"]
    assert path(found, 0, 7)[:6] == over
    own = ["node0.pcie0", "node0.nic0", "switch", "node1.nic3"]
    assert path(box("nvswitch", 4, pxn=False, **nodes).topology(2), 0, 7)[:4] == own  # type: ignore[arg-type]
    assert path(box("pcie", 4, **nodes).topology(2), 0, 7)[:4] == own  # type: ignore[arg-type]
    # On the hypercube GPU 0 has no link to GPU 6, whose card is nic3; with GPU 7 neither.
    cube = box("hypercube-mesh", 8, **nodes).topology(2)  # type: ignore[arg-type]
    assert path(cube, 0, 14)[:4] == own
    # To GPU 4 of the other node by nic2, the card of GPU 4 here, which has a link.
    assert path(cube, 0, 12)[:3] == ["node0.gpu4", "node0.pcie2", "node0.nic2"]


def test_many_cards_of_a_gpu_are_one_port() -> None:
    found = box("nvswitch", 2, nics=8, nic_path="pix").topology(2)
    assert found.nics == 16
    assert (found.node_kind == NodeKind.NIC).sum() == 4
    ports = found.bandwidth[found.kind == LinkKind.NIC]
    assert ports == pytest.approx(4 * PORT)


def test_few_cards_are_shared() -> None:
    found = box("nvswitch", 8, numa_nodes=2, nics=2, nic_path="phb").topology(2)
    assert path(found, 3, 8 + 3)[:2] == ["node0.cpu0", "node0.nic0"]
    assert path(found, 4, 8 + 4)[:2] == ["node0.cpu1", "node0.nic1"]


def test_trays_of_a_rack_meet_over_nvlink_alone() -> None:
    found = find_cluster("gb200-nvl72").topology(2)
    assert found.n_gpus == 144
    assert (found.node_kind == NodeKind.CPU).sum() == 2 * 18 * 2
    across = path(found, 0, 72 + 71)
    assert across[:2] == ["node0.nvswitch", "node0.gpu71"]
    check_routes(found, 100)


@pytest.mark.parametrize("name", NODES_OF_GPUS)
def test_presets_have_topologies(name: str) -> None:
    found = find_cluster(name)
    nodes = 3 if found.fabric else 1
    topology = found.topology(nodes)
    assert topology.n_gpus == nodes * found.gpus_per_node
    assert topology.nics == nodes * found.node.nics
    check_routes(topology, 60)
    for each in sample_paths(topology):
        assert 0 < each.latency < 1e-5
    near = found.node.nic_path in ("pix", "pxb") and found.node.nics >= found.node.numa_nodes
    if found.fabric and near:
        # The way to another node is as wide as the cards of a GPU: nothing before is narrower, but
        # where one card serves the GPUs of two CPUs, which their connection joins.
        others = [each for each in sample_paths(topology) if each.b >= found.gpus_per_node]
        narrowest = min(each.bandwidth for each in others)
        ports = topology.bandwidth[topology.kind == LinkKind.NIC]
        assert narrowest == pytest.approx(ports.min(), rel=0.05)


def test_a_large_cluster() -> None:
    found = find_cluster("dgx-h100").topology(1024)
    assert found.n_gpus == 8192
    # A node: 8 to the NVSwitch, 8 to 4 PCIe switches, those to the CPUs, CPUs, bridges, 8 NICs.
    links = 2 * (8 + 8 + 4 + 1 + 4 + 8)
    assert found.n_links == 1024 * (links + 2 * 8) + 2 * (1024 // 32) * 8
    # Half of the nodes: 512 × 8 cards.
    assert found.bandwidth[found.kind == LinkKind.NIC].max() == pytest.approx(48.9e9)
    assert bisection(found) == pytest.approx(512 * 8 * 48.9e9, rel=1e-3)
    check_routes(found, 40)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["nvswitch", "nvlink-mesh", "xgmi-mesh", "nvlink-pairs", "pcie"]),
    gpus=st.integers(1, 9),
    nics=st.integers(1, 12),
    numa=st.integers(1, 3),
    nic_path=st.sampled_from(["pix", "pxb", "phb", "sys"]),
    gpudirect=st.booleans(),
    pxn=st.booleans(),
)
def test_any_node_reaches_any(
    kind: str, gpus: int, nics: int, numa: int, nic_path: str, gpudirect: bool, pxn: bool
) -> None:
    if nic_path == "sys":
        numa += 1
    found = box(
        kind, gpus, nics=nics, numa_nodes=numa, nic_path=nic_path, gpudirect=gpudirect, pxn=pxn
    ).topology(2)
    n = found.n_gpus
    index, links = found.routes(*np.divmod(np.arange(n * n), n))
    for i in range(n * n):
        a, b = divmod(i, n)
        route = links[index[i] : index[i + 1]]
        assert (found.target[route[:-1]] == found.source[route[1:]]).all()
        if a != b:
            assert found.source[route[0]] == found.gpu[a]
            assert found.target[route[-1]] == found.gpu[b]


# --- changes ------------------------------------------------------------------------------------


def test_links_are_slowed_and_cut() -> None:
    before = cluster(kind="fat-tree", leaf=4, spines=2, ecmp="ecmp").topology(4)
    slow = apply_changes(
        before, {"links.leaf0->spine?.bandwidth": "50 %", "links.spine1->*.latency": "7us"}
    )
    hit = [i for i in range(before.n_links) if before.link_name(i).startswith("leaf0->spine")]
    assert len(hit) == 2
    np.testing.assert_allclose(slow.bandwidth[hit], before.bandwidth[hit] / 2)
    others = np.setdiff1d(np.arange(before.n_links), hit)
    assert (slow.bandwidth[others] == before.bandwidth[others]).all()
    late = [i for i in range(before.n_links) if before.link_name(i).startswith("spine1->")]
    assert slow.latency[late] == pytest.approx(7e-6)
    assert before.latency[late].max() < 1e-6  # the first is as it was


def test_flows_go_round_a_cut_link() -> None:
    before = cluster(kind="fat-tree", leaf=4, spines=2, ecmp="ecmp").topology(4)
    after = apply_changes(before, {"links.leaf0->spine0": "cut"})
    assert after.n_links == before.n_links - 1
    assert "leaf0->spine0" not in after.link_names
    check_routes(after)
    n, moved = before.n_gpus, 0
    for a, b in (divmod(i, n) for i in range(n * n)):
        old = [before.link_name(link) for link in before.route(a, b)]
        new = [after.link_name(link) for link in after.route(a, b)]
        if "leaf0->spine0" in old:
            moved += 1
            assert "leaf0->spine1" in new
        else:
            assert new == old
    assert moved > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"links.leaf0->spin.bandwidth": "1GB/s"}, r"no such link \(did you mean 'leaf0->spine'"),
        ({"links.nothing*": "cut"}, "links.nothing.: .* has no such link; names are like 'node0.g"),
        ({"link.leaf0->spine": "cut"}, "unknown change 'link.leaf0->spine'; allowed: links.NAME.b"),
        ({"links.leaf0->spine": "slow"}, "is 'slow'; it must be 'cut', or the name end in .bandw"),
        ({"links.leaf0->spine.bandwidth": "0 %"}, "is '0 %'; a share of what it was must be above"),
        ({"links.leaf0->spine.bandwidth": "1e30GB/s"}, "it must be at most 100000 TB/s"),
        ({"links.leaf0->spine.bandwidth": "-1GB/s"}, "is '-1GB/s'; it must be above 0"),
        ({"links.leaf0->spine.bandwidth": "fast"}, "is 'fast'; it must be like \"400 Gb/s\""),
        ({"links.leaf0->spine.bandwidth": "1 GB"}, r"unknown unit 'GB' \(did you mean 'GB/s'\?\)"),
        ({"links.leaf0->spine.latency": "-1us"}, "is '-1us'; it must be 0 or more"),
        ({"links.leaf0->spine": "cut"}, r"GPU 0 \(node0.gpu0\) cannot reach GPU 4 \(node2.gpu0\)"),
    ],
)
def test_bad_changes_are_refused(changes: dict[str, str], message: str) -> None:
    before = cluster(kind="fat-tree", leaf=4).topology(4)
    with pytest.raises(InputError, match=message) as caught:
        apply_changes(before, changes)
    assert "\n" not in str(caught.value)


# --- clusters -----------------------------------------------------------------------------------


def test_changes_of_a_cluster() -> None:
    one = cluster(kind="switch")
    slow = dataclasses.replace(one, changes={"links.node1.nic0->switch.bandwidth": "1 GB/s"})
    assert slow.topology(2).bandwidth.min() == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: box("nvswitch", 2).topology(2), "2 nodes, but its GPUs have no NIC: give 'nics'"),
        (lambda: box("hypercube-mesh", 4), "'gpus_per_node' is 4; a hypercube-mesh has 8"),
        (lambda: box("nvswitch", 6, tray=4), "'gpus_per_node' is 6; it must be a multiple of node"),
        (lambda: box("nvlink-mesh", 8, tray=4), "'tray' is 4; only GPUs behind an NVSwitch can be"),
        (lambda: box("nvswitch", 8, tray=4, nics=3), "'node.nics' is 3; it must be a multiple of"),
        (lambda: direct(kind="switch").topology(2).route(0, 2), "there is no GPU 2; it has 2"),
        (lambda: direct(kind="switch").topology(0), "0 nodes; there must be 1 or more"),
    ],
)
def test_what_cannot_be_is_refused(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_graphs_have_everything() -> None:
    found = cluster(kind="switch").topology(2)
    graph = found.graph()
    assert graph.number_of_edges() == found.n_links
    assert graph.nodes["node1.gpu0"] == {"kind": "gpu", "rank": 2}
    edge = graph["node0.nic0"]["switch"][0]
    assert edge["name"] == "node0.nic0->switch"
    assert edge["bandwidth"] == pytest.approx(PORT)


def test_names_are_made_when_asked_for() -> None:
    found = box("nvswitch", 2, nics=2).topology(3)
    names = list(found.names)
    assert len(names) == len(found.names) == found.n_nodes == len(set(names))
    inside = [name.partition(".")[2] for name in names if name.startswith("node1.")]
    assert inside
    assert [f"node2.{name}" for name in inside] == [
        name for name in names if name.startswith("node2.")
    ]
    assert found.names[-1] == names[-1] == "switch"
    assert list(found.names[1:-1:2]) == names[1:-1:2]
    with pytest.raises(IndexError):
        found.names[len(names)]
