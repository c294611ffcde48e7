"""NCCL sees in listed links what the builders of clusters meant by them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from machines import NODES_OF_GPUS

from mpisim.base.errors import InputError
from mpisim.prediction.network import network_of
from mpisim.program import Operation
from mpisim.topo import Cluster, class_of, find_cluster
from mpisim.topo.fabrics import Fabric
from mpisim.topo.nccl import System
from mpisim.topo.nccl_system import cluster_system, system_of_graph
from mpisim.topo.topology import LinkKind, NodeKind


@pytest.mark.parametrize("name", NODES_OF_GPUS)
def test_links_alone_say_what_the_cluster_says(name: str) -> None:
    cluster = find_cluster(name)
    meant = cluster_system(cluster)
    found = system_of_graph(
        cluster.topology(2 if cluster.fabric else 1),
        cluster.gpus_per_node,
        meant.arch,
        nic_efficiency=meant.nic_efficiency,
        cpu=meant.cpu,
        gpudirect=meant.gpudirect,
        version=meant.version,
        rccl=meant.rccl,
    )
    for field in dataclasses.fields(System):
        assert getattr(found, field.name) == getattr(meant, field.name), field.name


def test_what_most_links_have_counts() -> None:
    topology = find_cluster("dgx-h100").topology(2)
    names = topology.link_names
    slow = topology.bandwidth.copy()
    slow[[names.index(f"node0.{gpu}->node0.nvswitch") for gpu in ("gpu0", "gpu5")]] /= 9
    found = system_of_graph(
        dataclasses.replace(topology, bandwidth=slow), 8, "hopper", version=(2, 27)
    )
    assert found.link_bandwidth == pytest.approx(370.8e9)
    assert found.nics == 8
    assert found.nic_bandwidth == pytest.approx(0.978 * 50e9)


def test_nodes_that_are_not_whole_are_refused() -> None:
    topology = find_cluster("dgx-h100").topology(1)
    with pytest.raises(InputError, match="8 GPUs are no whole number of nodes of 3"):
        system_of_graph(topology, 3, "hopper", version=(2, 27))


def listed(cluster: Cluster, nodes: int, folder: Path, **changed: float) -> Cluster:
    """The same cluster as a list of its links, some with other bandwidths."""
    topology = cluster.topology(nodes)
    rank = {int(node): i for i, node in enumerate(topology.gpu)}
    lines = ["nodes = ["]
    for i, kind in enumerate(topology.node_kind.tolist()):
        text = f"name = '{topology.names[i]}', kind = '{NodeKind(kind).name.lower()}'"
        lines.append(f"{{ {text}{f', rank = {rank[i]}' if i in rank else ''} }},")
    lines.append("]")
    for link, name in enumerate(topology.link_names):
        ends = f"['{name.replace('->', chr(39) + ', ' + chr(39))}']"
        speed = float(topology.bandwidth[link]) * changed.get(name, 1.0)
        lines += [
            "[[links]]",
            f"ends = {ends}",
            f"bandwidth = '{speed!r} B/s'",
            "one_way = true",
            f"latency = '{float(topology.latency[link])!r} s'",
            f"kind = '{LinkKind(int(topology.kind[link])).name.lower()}'",
        ]
    path = folder / "listed.toml"
    path.write_text("\n".join(lines))
    fabric, node = cluster.fabric, cluster.node
    return dataclasses.replace(cluster, graph=str(path), fabric=fabric, node=node)


THIN = [{}, {"node2.gpu5->node2.nvswitch": 0.5}]
"""No slower: ways through listed links go round what is too slow."""


@pytest.mark.parametrize("thin", THIN)
def test_a_listed_cluster_takes_as_long_as_a_built_one(
    thin: dict[str, float], tmp_path: Path
) -> None:
    """One slow link is one slow link: listed, or changed."""
    base = find_cluster("dgx-h100")
    assert base.fabric is not None
    built = dataclasses.replace(
        base,
        fabric=Fabric(kind="switch", nic_efficiency=base.fabric.nic_efficiency),
        node=dataclasses.replace(base.node, pxn=False),  # ways through listed links are the fastest
    )
    changes = {f"links.{name}.bandwidth": f"{part} x" for name, part in thin.items()}
    networks = [
        network_of(dataclasses.replace(built, changes=changes), 4),
        network_of(listed(built, 4, tmp_path, **thin), 4),
    ]
    for operation in (Operation.ALL_GATHER, Operation.ALL_REDUCE, Operation.ALL_TO_ALL):
        for members in (list(range(32)), list(range(3, 32, 8)), list(range(16, 24))):
            for size in (1 << 12, 1 << 22, 1 << 32):
                one, two = (
                    each.price(operation, size, class_of(each, members, operation))
                    for each in networks
                )
                assert one == two, (operation, members, size)


def test_a_middle_link_counts(tmp_path: Path) -> None:
    """Two nodes whose cards meet over one link between two switches."""
    text = ["nodes = ["]
    for node in range(2):
        text += [f"{{ name = 'gpu{2 * node + i}', kind = 'gpu' }}," for i in range(2)]
        text += [
            f"{{ name = 'nv{node}', kind = 'nvswitch' }},",
            f"{{ name = 'nic{node}', kind = 'nic' }},",
            f"{{ name = 'sw{node}', kind = 'switch' }},",
        ]
    text.append("]")
    ends = [(f"gpu{2 * n + i}", f"nv{n}", 300) for n in range(2) for i in range(2)]
    ends += [(f"gpu{2 * n + i}", f"nic{n}", 50) for n in range(2) for i in range(2)]
    ends += [(f"nic{n}", f"sw{n}", 50) for n in range(2)]
    times = {}
    for middle in (50, 5, 0.05):
        rows = [*ends, ("sw0", "sw1", middle)]
        links = [
            f"[[links]]\nends = ['{a}', '{b}']\nbandwidth = '{speed} GB/s'" for a, b, speed in rows
        ]
        (tmp_path / "net.toml").write_text("\n".join([*text, *links]))
        (tmp_path / "cluster.toml").write_text(
            "title = 'two'\ngpu = 'h100-sxm'\ngpus_per_node = 2\ngraph = 'net.toml'\n"
        )
        net = network_of(find_cluster(tmp_path / "cluster.toml"), 2)
        group = class_of(net, range(4), Operation.ALL_GATHER)
        times[middle] = net.price(Operation.ALL_GATHER, 1 << 30, group).duration * 1e-12
    # A ring of four moves three quarters of the buffer over each of its hops.
    assert times[5] == pytest.approx(0.75 * 2**30 / 5e9, rel=0.05)
    assert times[0.05] == pytest.approx(0.75 * 2**30 / 5e7, rel=0.001)
    assert times[50] < times[5] / 4
