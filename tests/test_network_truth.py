"""Links, latencies and speed-ups count: properties over random networks, and closed forms."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from mpi4py.MPI import Intracomm
from test_fold import check

from mpisim import engine
from mpisim.base.quantity import Quantity
from mpisim.experiment import read
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.program import Operation
from mpisim.topo import Cluster, Topology, class_of, find_cluster
from mpisim.topo.bounds import cut_bound
from mpisim.topo.changes import apply_changes
from mpisim.topo.fabrics import Fabric
from mpisim.topo.nccl import Nccl
from mpisim.topo.nccl_network import NcclNetwork
from mpisim.topo.nccl_system import changed_system, cluster_system
from mpisim.topo.network import WEIGHT_ONE
from mpisim.topo.topology import LinkKind

pytestmark = pytest.mark.two_processes

OPERATIONS = [o for o in Operation if o not in (Operation.NONE, Operation.UNKNOWN)]
MOVING = [o for o in OPERATIONS if o is not Operation.BARRIER]

NODES = 12


def speed(gigabytes: float) -> Quantity:
    return Quantity(gigabytes, "GB/s", 0, "a test")


EFFICIENCY = Quantity(1, "1", 0, "a test")

FABRICS: dict[str, dict[str, Any]] = {
    "switch": {},
    "fat-tree": {"leaf": 16, "oversubscription": 4.0},
    "rail-fat-tree": {"leaf": 2, "oversubscription": 2.0},
    "fat-tree, hashed": {"leaf": 16, "spines": 3, "ecmp": "ecmp"},
    "fat-tree, adaptive": {"leaf": 8, "spines": 4, "ecmp": "adaptive"},
    "fat-tree, pods": {"leaf": 8, "pod": 3, "core_oversubscription": 3.0},
    "hpn": {"leaf": 4, "oversubscription": 1.5},
    "dragonfly": {"router_ports": 8, "routers": 4, "global_links": 2, "link_bandwidth": speed(20)},
    "dragonfly+": {"leaf": 16, "pod": 2, "group_links": 4, "link_bandwidth": speed(20)},
    "torus": {"dims": (3, 4), "link_bandwidth": speed(40)},
    "mesh": {"dims": (3, 4), "link_bandwidth": speed(400)},
}


def cluster(fabric: str, **node: Any) -> Cluster:
    """DGX H100 on another fabric."""
    found = find_cluster("dgx-h100")
    kind = fabric.partition(",")[0]
    return dataclasses.replace(
        found,
        fabric=Fabric(kind=kind, nic_efficiency=EFFICIENCY, **FABRICS[fabric]),  # type: ignore[arg-type]
        node=dataclasses.replace(found.node, **node),
    )


def network(of: Cluster, topology: Topology) -> NcclNetwork:
    """NCCL on a topology, whose links it sees as they are."""
    seen = changed_system(cluster_system(of), topology)
    return NcclNetwork(Nccl(seen), topology, meshed=of.node.kind.endswith("mesh"))


CLUSTERS = {fabric: cluster(fabric) for fabric in FABRICS}
TOPOLOGIES = {fabric: of.topology(NODES) for fabric, of in CLUSTERS.items()}


def duration(net: NcclNetwork, operation: Operation, size: int, members: list[int]) -> int:
    return net.price(operation, size, class_of(net, members, operation)).duration


@st.composite
def communications(draw: st.DrawFn) -> tuple[str, Operation, int, list[int]]:
    fabric = draw(st.sampled_from(sorted(FABRICS)))
    operation = draw(st.sampled_from(MOVING))
    most = 2 if operation is Operation.SEND_RECV else 24
    ranks = st.integers(0, NODES * 8 - 1)
    whole = st.integers(1, NODES).map(lambda n: list(range(8 * n)))
    some = st.lists(ranks, min_size=2, max_size=most, unique=True)
    members = draw(some if operation is Operation.SEND_RECV else st.one_of(some, whole))
    return fabric, operation, 1 << draw(st.integers(8, 34)), members


@given(communications(), st.data())
@settings(max_examples=250, deadline=None)
def test_less_never_helps_and_more_never_hurts(
    case: tuple[str, Operation, int, list[int]], data: st.DataObject
) -> None:
    fabric, operation, size, members = case
    of, plain = CLUSTERS[fabric], TOPOLOGIES[fabric]
    parts = ("*", "node*nic*", "leaf*", "*nvswitch", "router*", "node3.*")
    part = data.draw(st.sampled_from(parts))
    up = data.draw(st.booleans())
    key = data.draw(st.sampled_from(["bandwidth", "latency"]))
    factor = data.draw(st.floats(1.0, 30.0)) ** (1 if up else -1)
    try:
        other = apply_changes(plain, {f"links.{part}.{key}": f"{factor:.6f} x"})
    except Exception:
        return  # no link of that name here
    net = network(of, plain)
    new = NcclNetwork(Nccl(net.nccl.system, hardware=changed_system(net.nccl.system, other)), other)
    before, after = (duration(each, operation, size, members) for each in (net, new))
    better = up == (key == "bandwidth")
    # A link's bytes per byte of payload are whole units of 1 / WEIGHT_ONE, and the bottleneck
    # carries at least a 24th of the payload.
    slack = 1 + before * 24 // WEIGHT_ONE
    assert after <= before + slack if better else after >= before - slack


@given(communications(), st.data())
@settings(max_examples=120, deadline=None)
def test_nothing_beats_a_cut(
    case: tuple[str, Operation, int, list[int]], data: st.DataObject
) -> None:
    fabric, operation, size, members = case
    plain = TOPOLOGIES[fabric]
    if data.draw(st.booleans()):
        link = data.draw(st.integers(0, plain.n_links - 1))
        plain = apply_changes(plain, {f"links.{plain.link_name(link)}.bandwidth": "3 %"})
    net = network(CLUSTERS[fabric], plain)
    sides = [[members[0]], members[: len(members) // 2]]
    if operation in (Operation.REDUCE, Operation.GATHER):
        sides = [members[1:], members[len(members) // 2 :]]
    bound = cut_bound(plain, operation, size, members, sides)
    seconds = duration(net, operation, size, members) * 1e-12
    assert seconds >= bound.seconds * (1 - 1e-3)


@pytest.mark.parametrize("fabric", sorted(FABRICS))
def test_one_capacity_one_answer(fabric: str) -> None:
    """Built at half of the speed or changed to it: the same, to the picosecond."""
    slow = cluster(fabric, nic_bandwidth=Quantity(200, "Gb/s", 0, "a test"))
    built = network(slow, slow.topology(NODES))
    plain = CLUSTERS[fabric].topology(NODES)
    # A tree's own links follow its cards, also those of a dragonfly+'s groups; those of grids and
    # between groups have speeds of their own.
    names = ["*nic*->*", "*->*nic*"]
    if "tree" in fabric or fabric in ("hpn", "dragonfly+"):
        names += ["*leaf*->*spine*", "*spine*->*leaf*", "*spine*->*core*", "*core*->*spine*"]
    present = {
        f"links.{name}.bandwidth": "50 %"
        for name in names
        if any(fnmatchcase(link, name) for link in plain.link_names)
    }
    # A card's links inside its node are PCIe; they stay.
    inside = {
        f"links.{link}.bandwidth": "2 x"
        for link, kind in zip(plain.link_names, plain.kind.tolist(), strict=True)
        if kind == LinkKind.PCIE and "nic" in link
    }
    half = apply_changes(plain, present | inside)
    assert (half.bandwidth == built.topology.bandwidth).all()
    net = network(CLUSTERS[fabric], half)
    for operation in OPERATIONS:
        groups = (
            [[3, 11], [0, 95]]
            if operation is Operation.SEND_RECV
            else [list(range(96)), [8 * i + 1 for i in range(12)], [0, 9, 17, 40], [0, 1, 2]]
        )
        for members in groups:
            for size in (1 << 12, 1 << 22, 1 << 31):
                one, two = (
                    each.price(operation, size, class_of(each, members, operation))
                    for each in (built, net)
                )
                assert one == two, (operation, members, size)


# --- closed forms --------------------------------------------------------------------------------

GIB = 1 << 30


def seconds(net: NcclNetwork, operation: Operation, size: int, members: list[int]) -> float:
    return duration(net, operation, size, members) * 1e-12


def rate(net: NcclNetwork, operation: Operation, members: list[int], algorithm: str) -> float:
    """Bytes per second of the buffer that the links allow, or infinity."""
    group: Any = class_of(net, members, operation)
    limit = group.limit((operation, algorithm))
    if limit is None or min(limit.fabric_rate, limit.node_rate) >= 1 << 62:
        return float("inf")
    return min(limit.fabric_rate, limit.node_rate) * 1e12 / 2**40


def leaves(oversubscription: float, nodes: int, leaf: int, **fabric: Any) -> NcclNetwork:
    """DGX H100 on rails: leaves of `leaf` nodes."""
    base = find_cluster("dgx-h100")
    kind = fabric.pop("kind", "rail-fat-tree")
    of = dataclasses.replace(
        base,
        fabric=Fabric(
            kind=kind,
            leaf=leaf,
            oversubscription=oversubscription,
            nic_efficiency=EFFICIENCY,
            **fabric,
        ),
    )
    return network(of, of.topology(nodes))


def test_a_ring_that_crosses_the_spine_twice_ignores_oversubscription() -> None:
    # 16 nodes in leaves of 4, 4:1. In order, a ring leaves each leaf once on each rail: one card's
    # bytes on links that carry four cards' over four. Scattered, every hop crosses: four times it.
    net = leaves(4, nodes=16, leaf=4)
    free = leaves(1, nodes=16, leaf=4)
    ordered = list(range(128))
    scattered = [8 * (4 * (i % 4) + i // 4) + gpu for i in range(16) for gpu in range(8)]
    gather = Operation.ALL_GATHER
    assert seconds(net, gather, GIB, ordered) == seconds(free, gather, GIB, ordered)
    card, n = 50e9, 128
    # A channel a rail: each of 8 carries (n - 1) / n / 8 of the buffer over every hop.
    expected = 8 * card / 4 * n / (n - 1)
    assert rate(net, gather, scattered, "ring") == pytest.approx(expected, rel=1e-5)
    assert seconds(net, gather, GIB, scattered) > GIB / expected


@pytest.mark.parametrize("over", [2.0, 4.0, 8.0])
def test_all_to_all_over_an_oversubscribed_spine(over: float) -> None:
    # Of a leaf of 4 nodes 4 * 8 GPUs send the (1 - 32 / n)th part of their buffers to other leaves,
    # over 8 rails of 4 cards each, divided by the oversubscription.
    net = leaves(over, nodes=16, leaf=4)
    n = 128
    expected = 8 * 4 * 50e9 / over / (32 * (1 - 32 / n))
    found = rate(net, Operation.ALL_TO_ALL, list(range(n)), "send")
    assert found == pytest.approx(expected, rel=1e-5)


def test_racks_over_a_thin_spine() -> None:
    # Two NVL72 racks, leaves of one rack's rail each, 16:1: an all-to-all sends half of each GPU's
    # buffer to the other rack, over a sixteenth of what the rack's cards carry.
    base = find_cluster("gb200-nvl72")
    assert base.node.nic_bandwidth is not None
    of = dataclasses.replace(
        base,
        fabric=Fabric(
            kind="rail-fat-tree",
            leaf=1,
            oversubscription=16.0,
            nic_efficiency=EFFICIENCY,
        ),
    )
    net = network(of, of.topology(2))
    everyone = list(range(144))
    cards = base.node.nics * base.node.nic_bandwidth.si
    expected = cards / 16 / (72 * 0.5)
    assert rate(net, Operation.ALL_TO_ALL, everyone, "send") == pytest.approx(expected, rel=1e-5)
    inside = list(range(72))
    assert rate(net, Operation.ALL_TO_ALL, inside, "send") == float("inf")


def test_one_thin_link_of_one_gpu() -> None:
    # An all-gather in a ring of 8 brings 7 / 8 of the buffer over each GPU's link.
    of = find_cluster("dgx-h100")
    plain = of.topology(1)
    thin = apply_changes(plain, {"links.node0.gpu5->node0.nvswitch.bandwidth": "10 GB/s"})
    net = network(of, thin)
    assert rate(net, Operation.ALL_GATHER, list(range(8)), "ring") == pytest.approx(
        10e9 * 8 / 7, rel=0.02
    )
    assert rate(net, Operation.ALL_GATHER, [0, 1, 2, 3], "ring") == float("inf")


def test_latency_is_summed_along_the_hops() -> None:
    # A ring of 4 nodes with one GPU each: in an all-gather each part passes three of the four hops,
    # and some part the one behind the late card; in an all-reduce some part passes it twice.
    of = find_cluster("dgx-h100")
    plain = of.topology(4)
    late = apply_changes(plain, {"links.node1.nic0->leaf*.latency": "1001.4 us"})
    before, after = network(of, plain), network(of, late)
    nic = 1000e-6
    ring, size = [0, 8, 16, 24], 1 << 10
    for operation, times in ((Operation.ALL_GATHER, 1), (Operation.ALL_REDUCE, 2)):
        limit: Any = class_of(after, ring, operation).limit((operation, "ring"))
        assert limit.latency == pytest.approx(times * nic * 1e12, rel=1e-2)
    sent = [seconds(net, Operation.SEND_RECV, size, [8, 16]) for net in (before, after)]
    assert sent[1] - sent[0] == pytest.approx(nic, rel=1e-3)
    sent = [seconds(net, Operation.SEND_RECV, size, [16, 24]) for net in (before, after)]
    assert sent[1] == sent[0]


# --- in runs -------------------------------------------------------------------------------------

THIN = """
title = "DGX H100 nodes, a leaf each, 8:1"
gpu = "h100-sxm"
gpus_per_node = 8
[node]
kind = "nvswitch"
link_bandwidth = { value = 370.8, unit = "GB/s", error = 0.03, source = "a test" }
pcie_bandwidth = { value = 54, unit = "GB/s", error = 0.1, source = "a test" }
numa_nodes = 2
socket_bandwidth = { value = 22, unit = "GB/s", error = 0.3, source = "a test" }
nics = 8
nic_bandwidth = { value = 400, unit = "Gb/s", error = 0, source = "a test" }
nic_path = "pxb"
[fabric]
kind = "KIND"
KEYS
nic_efficiency = { value = 0.978, unit = "1", error = 0.05, source = "a test" }
"""

LINK = 'link_bandwidth = { value = 100, unit = "GB/s", error = 0, source = "a test" }'

KINDS = {
    "rail-fat-tree": "leaf = 1\noversubscription = 8",
    "fat-tree": 'leaf = 8\nspines = 2\necmp = "ecmp"\noversubscription = 4',
    "torus": f"dims = [2, 2]\n{LINK}",
    "dragonfly": f'router_ports = 8\nrouters = 2\nglobal_links = 2\nrouting = "adaptive"\n{LINK}',
}


def case_on(folder: Path, kind: str, plan: str) -> PreparedExperiment:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cluster.toml"
    path.write_text(THIN.replace("KIND", kind).replace("KEYS", KINDS[kind]))
    text = f"""
[model]
family = "gpt"
layers = 4
hidden = 1024
heads = 8
vocab = 32000
seq_len = 512
[plan]
{plan}
micro_batch = 1
global_batch = 32
[cluster]
preset = "{path}"
nodes = 4
"""
    return prepare(read(text, "e"))


@pytest.mark.mpi
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", ["tp = 8\ndp = 4", "dp = 32\nzero = 3", "tp = 4\npp = 2\ndp = 4"])
def test_folded_is_unfolded_on_thin_fabrics(
    tmp_path_factory: pytest.TempPathFactory, comm: Intracomm, kind: str, plan: str
) -> None:
    case = case_on(tmp_path_factory.mktemp("thin"), kind, plan)
    check(case.program, comm, case.network)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_alone_takes_as_long_with_contention_as_without(tmp_path: Path, kind: str) -> None:
    """One communicator whose operations take turns shares its links with nobody."""
    case = case_on(tmp_path, kind, "dp = 32\nzero = 3")
    runs = [
        engine.simulate(case.program, MPI.COMM_SELF, network=case.network, contention=shared)
        for shared in (True, False)
    ]
    assert runs[0].step_time == runs[1].step_time
    assert runs[0].digest == runs[1].digest
