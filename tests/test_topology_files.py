"""Topologies from TOML and GraphML files, pictures, and the mistakes in files."""

from __future__ import annotations

from pathlib import Path

import networkx
import numpy as np
import pytest
from fabrics import check_routes, cluster

from mpisim.base.errors import InputError
from mpisim.topo import find_cluster
from mpisim.topo.bounds import bisection
from mpisim.topo.topology import LinkKind
from mpisim.topo.topology_files import read_topology

RING = """
title = "Four GPUs in a ring, and a switch"
nodes = [
    { name = "a", kind = "gpu" },
    { name = "b", kind = "gpu" },
    { name = "c", kind = "gpu" },
    { name = "d", kind = "gpu" },
    { name = "box", kind = "switch" },
]

[[links]]
ends = ["a", "b"]
bandwidth = "25 GB/s"
latency = "1 us"

[[links]]
ends = ["b", "c"]
bandwidth = "200 Gb/s"
latency = "1 us"

[[links]]
ends = ["c", "d"]
bandwidth = "25 GB/s"
latency = "1 us"
name = "last"

[[links]]
ends = ["d", "a"]
bandwidth = "25 GB/s"
latency = "1 us"
one_way = true

[[links]]
ends = ["a", "box"]
bandwidth = "5 GB/s"

[[links]]
ends = ["d", "box"]
bandwidth = "5 GB/s"
"""


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "ring.toml"
    path.write_text(RING)
    return path


def test_a_list_of_nodes_and_links(ring: Path) -> None:
    found = read_topology(ring)
    assert found.title == "Four GPUs in a ring, and a switch"
    assert found.n_gpus == 4
    assert found.n_links == 2 * 3 + 1 + 2 * 2
    assert found.bandwidth[:7] == pytest.approx(25e9)
    assert found.latency[0] == pytest.approx(1e-6)
    assert found.latency[-1] == pytest.approx(1.2e-6)  # of a port: data/links.toml
    assert {"last", "last.back", "d->a", "a->box"} <= set(found.link_names)
    assert "a->d" not in found.link_names
    assert (found.kind[:7] == LinkKind.NVLINK).all()
    assert (found.kind[7:] == LinkKind.NIC).all()
    check_routes(found)
    # 1 MiB: over a link 1 + 42 us; from a to d three links, 129 us, or by the switch, 420 and more.
    assert [found.link_name(each) for each in found.route(3, 0)] == ["d->a"]
    assert [found.link_name(each) for each in found.route(0, 3)] == ["a->b", "b->c", "last"]
    # From a, b to c, d: b->c and the switch, nothing back round the ring.
    assert bisection(found) == pytest.approx(30e9, rel=1e-4)


def test_ranks_may_be_given(ring: Path) -> None:
    text = RING
    for name, rank in zip("abcd", (2, 3, 0, 1), strict=True):
        text = text.replace(f'"{name}", kind = "gpu"', f'"{name}", kind = "gpu", rank = {rank}')
    ring.write_text(text)
    found = read_topology(ring)
    assert [found.names[node] for node in found.gpu] == ["c", "d", "a", "b"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('ends = ["a", "b"]', 'ends = ["a", "bx"]', "link 0: there is no node 'bx' .did you mean"),
        ('ends = ["a", "b"]', 'ends = ["a"]', "link 0: 'ends' has 1 names; it must have 2"),
        ('ends = ["a", "b"]', 'ends = ["a", "a"]', "link 0: both ends are 'a'"),
        ('"25 GB/s"', '"0 GB/s"', "link a->b: 'bandwidth' is '0 GB/s'; it must be above 0"),
        ('"25 GB/s"', '"-3 GB/s"', "link a->b: 'bandwidth' is '-3 GB/s'; it must be above 0"),
        ('"25 GB/s"', '"25 GiB/s"', "unknown unit 'GiB/s' .did you mean 'GB/s'"),
        ('"25 GB/s"', '"nan GB/s"', "'bandwidth' is 'nan GB/s'; it must be like"),
        ('"25 GB/s"', "25", r"key 'links\[0\].bandwidth' is 25; it must be a text in quotes"),
        ('"1 us"', '"-1 us"', "link a->b: 'latency' is '-1 us'; it must be 0 or more"),
        ('"b", kind = "gpu"', '"a", kind = "gpu"', "2 nodes are called 'a'"),
        ('ends = ["b", "c"]', 'ends = ["a", "b"]', "2 links are called 'a->b'; give parallel"),
        ('kind = "switch"', 'kind = "swich"', r"'nodes\[4\].kind' is 'swich' .did you mean 'swit"),
        ('kind = "switch"', 'kind = "switch", rank = 3', "node 'box' has a rank, 3, but is a swi"),
        ('"a", kind = "gpu"', '"a", kind = "gpu", rank = 0', "GPU 'b' has no 'rank', but others h"),
        ("ends", "end", r"unknown key 'end' in \[links\[0\]\] .did you mean 'ends'"),
        ('kind = "gpu"', 'kind = "cpu"', None),
    ],
)
def test_mistakes_are_named(ring: Path, old: str, new: str, message: str | None) -> None:
    if message is None:
        ring.write_text(RING.replace(old, new))
        message = "there is no node of kind 'gpu'"
    else:
        ring.write_text(RING.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        read_topology(ring)
    assert str(caught.value).startswith(str(ring))
    assert "\n" not in str(caught.value)


def test_ranks_are_unique_and_whole(ring: Path) -> None:
    for ranks, message in (
        ((0, 1, 1, 2), "GPUs 'b' and 'c' both have rank 1"),
        ((0, 1, 2, 4), "there is a rank 4, but 4 GPUs have the ranks 0 to 3"),
        ((-1, 0, 1, 2), "there is a rank -1, but 4 GPUs have the ranks 0 to 3"),
    ):
        text = RING
        for name, rank in zip("abcd", ranks, strict=True):
            text = text.replace(f'"{name}", kind = "gpu"', f'"{name}", kind = "gpu", rank = {rank}')
        ring.write_text(text)
        with pytest.raises(InputError, match=message):
            read_topology(ring)


def test_gpus_that_cannot_meet_are_named(ring: Path) -> None:
    head, *links = RING.split("[[links]]")
    for kept, message in (
        (links[:2], r"GPU 0 \(a\) cannot reach GPU 3 \(d\): no path of links leads there"),
        ([*links[:2], links[3]], r"GPU 0 \(a\) cannot reach GPU 3 \(d\)"),  # d reaches a
        ([], r"GPU 0 \(a\) cannot reach GPU 1 \(b\)"),
    ):
        ring.write_text(
            head + "".join(f"[[links]]{link}" for link in kept)
            if kept
            else head.replace("nodes", "links = []\nnodes")
        )
        with pytest.raises(InputError, match=message):
            read_topology(ring)


def test_graphml_and_back(tmp_path: Path) -> None:
    before = cluster(kind="rail-fat-tree", leaf=2).topology(4)
    path = tmp_path / "net.graphml"
    networkx.write_graphml(before.graph(), path)
    after = read_topology(path)
    assert sorted(after.names) == sorted(before.names)
    assert [after.names[i] for i in after.gpu] == [before.names[i] for i in before.gpu]
    assert sorted(after.link_names) == sorted(before.link_names)
    old = {before.link_name(i): i for i in range(before.n_links)}
    order = [old[name] for name in after.link_names]
    np.testing.assert_allclose(after.bandwidth, before.bandwidth[order])
    np.testing.assert_allclose(after.latency, before.latency[order])
    assert (after.kind == before.kind[order]).all()
    assert bisection(after) == pytest.approx(bisection(before), rel=1e-4)
    check_routes(after)
    # No way is faster than the closed form's, except those by another card of the PCIe switch.
    for a, b in ((0, 1), (0, 2), (1, 7)):
        assert len(after.route(a, b)) == len(before.route(a, b))


def test_undirected_graphml_has_links_both_ways(tmp_path: Path) -> None:
    graph = networkx.Graph()
    for i in range(3):
        graph.add_node(f"g{i}", kind="gpu", colour="red")
    networkx.add_path(graph, graph.nodes, bandwidth="10GB/s", latency=1e-6)
    path = tmp_path / "net.graphml"
    networkx.write_graphml(graph, path)
    found = read_topology(path)
    assert found.title == "net"
    assert sorted(found.link_names) == ["g0->g1", "g1->g0", "g1->g2", "g2->g1"]
    assert found.latency == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("<graphml", "not valid GraphML"),
        ("", "not valid GraphML"),
        (
            '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">'
            '<node id="a"/></graph></graphml>',
            "'a'.kind. is missing",
        ),
        (
            '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
            '<key id="k" for="node" attr.name="kind" attr.type="string"/>'
            '<graph edgedefault="directed"><node id="a"><data key="k">gpu</data></node>'
            '<node id="b"><data key="k">gpu</data></node><edge source="a" target="b"/></graph>'
            "</graphml>",
            "the edge from 'a' to 'b' has no 'bandwidth'",
        ),
    ],
)
def test_bad_graphml_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "net.graphml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_topology(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


CLUSTER = """
title = "A ring of four"
gpu = "v100-sxm2-16gb"
gpus_per_node = 4
graph = "ring.toml"

[node]
kind = "nvlink-mesh"
link_bandwidth = { value = 50, unit = "GB/s", error = 0.1, source = "made up" }
pcie_bandwidth = { value = 12, unit = "GB/s", error = 0.1, source = "made up" }

[changes]
"links.last.bandwidth" = "50 %"
"""


def test_a_cluster_may_have_a_graph(ring: Path) -> None:
    path = ring.with_name("mine.toml")
    path.write_text(CLUSTER)
    found = find_cluster(path).topology()
    assert found.bandwidth[found.link_names.index("last")] == pytest.approx(12.5e9)
    assert found.bandwidth[found.link_names.index("last.back")] == pytest.approx(25e9)
    with pytest.raises(InputError, match=r"ring\.toml: has 4 GPUs; 2 nodes of 4 need 8"):
        find_cluster(path).topology(2)
    path.write_text(CLUSTER.replace("gpus_per_node = 4", "gpus_per_node = 2"))
    assert find_cluster(path).topology().n_gpus == 2
