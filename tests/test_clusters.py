"""Cluster presets: whole, below line rates, near measurements. Clusters from a user's file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mpisim.errors import InputError
from mpisim.kernels import find_gpu
from mpisim.presets import packaged
from mpisim.program import Operation
from mpisim.quantity import Quantity
from mpisim.topo import Cluster, class_of, cluster_names, find_cluster

OWN = """
[mine]
title = "My own cluster"
gpu = "h100-sxm"
gpus_per_node = 2
node_bandwidth = { value = 100, unit = "GB/s", error = 0.1, source = "measured" }
node_latency = { value = 10, unit = "us", error = 0.1, source = "measured" }
network_bandwidth = { value = 10, unit = "GB/s", error = 0.1, source = "measured" }
network_latency = { value = 20, unit = "us", error = 0.1, source = "measured" }
nics_per_node = 1
nic_bandwidth = { value = 200, unit = "Gb/s", error = 0.0, source = "datasheet" }
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("name", cluster_names())
def test_presets_are_whole(name: str) -> None:
    cluster = find_cluster(name)
    assert len(cluster.title) <= 96  # a line of a report
    gpu = find_gpu(cluster.gpu)
    for field in dataclasses.fields(Cluster):
        number = getattr(cluster, field.name)
        if isinstance(number, Quantity):
            # Only line rates are exact.
            assert (number.error > 0) != (field.name == "nic_bandwidth"), field.name
    links = [gpu.pcie.si] + ([gpu.nvlink.si] if gpu.nvlink else [])
    assert cluster.node_bandwidth.si < max(links)
    if cluster.network_bandwidth is None:
        assert cluster.nics_per_node is None
        return
    assert cluster.network_bandwidth.si < cluster.node_bandwidth.si
    assert cluster.nic_bandwidth is not None
    assert cluster.nics_per_node is not None
    # One GPU's share: below that of the line rate, and above half of it.
    line = cluster.nics_per_node * cluster.nic_bandwidth.si / cluster.gpus_per_node
    assert 0.5 * line < cluster.network_bandwidth.si < line


@pytest.mark.parametrize("name", cluster_names())
def test_clusters_of_any_size_have_a_cost(name: str) -> None:
    cluster = find_cluster(name)
    if cluster.network_bandwidth is None:
        with pytest.raises(InputError, match=r": 2 nodes, but it has no network; give its"):
            cluster.cost(2)
    else:
        cluster.cost(2)
    model = cluster.cost()
    assert model.ranks_per_node == cluster.gpus_per_node
    group = class_of(model, (0, 1))
    price = model.price(Operation.ALL_REDUCE, 10**9, group)
    assert price.duration > cluster.node_latency.si * 1e12


def test_names_and_aliases_are_unique() -> None:
    tables = packaged("clusters.toml")
    names = [n.casefold() for name, t in tables.items() for n in (name, *t.get("aliases", ()))]
    assert len(set(names)) == len(names)
    assert find_cluster("HGX-H100") == find_cluster("dgx-h100")


# Published nccl-tests and rccl-tests runs: (members, bytes, us). Those on A100 had no part in the
# presets' numbers.
@pytest.mark.parametrize(
    ("name", "operation", "members", "size", "us"),
    [
        ("a100-4gpu", Operation.ALL_REDUCE, range(4), 2**30, 7163.5),  # CoreWeave
        ("dgx-h100", Operation.ALL_GATHER, range(8), 17179869184, 41526),  # xxrjun, 362 GB/s
        ("dgx-h100", Operation.ALL_REDUCE, range(0, 80, 8), 33554432, 1405.25),  # xxrjun
        ("dgx-h200", Operation.REDUCE_SCATTER, range(8), 17179869184, 41422.9),  # stas00
        ("dgx-b200", Operation.ALL_REDUCE, range(4), 8589934592, 19139.8),  # stas00
        ("dgx-a100", Operation.ALL_REDUCE, range(8), 17179869184, 127992),  # stas00, 235 GB/s
        ("mi300x-8gpu", Operation.ALL_REDUCE, range(8), 4294967296, 24020.1),  # stas00
    ],
)
def test_presets_meet_measurements(
    name: str, operation: Operation, members: range, size: int, us: float
) -> None:
    model = find_cluster(name).cost()
    cost = model.price(operation, size, class_of(model, members)).duration
    assert cost / 1e6 == pytest.approx(us, rel=0.08)


def test_a_cluster_of_ones_own(own: Path) -> None:
    cluster = find_cluster(own)
    assert cluster.title == "My own cluster"
    model = cluster.cost(2)
    # Inside a node 10 us and 1 MB × 2/2 at 100 GB/s = 10 us; across 20 us and 1 MB at 10 GB/s.
    inside, across = class_of(model, (0, 1)), class_of(model, (0, 2))
    assert model.price(Operation.ALL_REDUCE, 1_000_000, inside).duration == 20_000_000
    assert model.price(Operation.ALL_REDUCE, 1_000_000, across).duration == 120_000_000
    assert model.shares(Operation.ALL_REDUCE, 1_000_000, across) == pytest.approx(
        {"network_latency": 1 / 6, "network_bandwidth": 5 / 6}
    )
    assert model.shares(Operation.ALL_REDUCE, 1_000_000, class_of(model, (0,))) == {}


def test_a_gpu_beside_the_file(own: Path) -> None:
    own.write_text(OWN.replace('"h100-sxm"', '"gpus/new.toml"'))
    assert find_cluster(own).gpu == str(own.parent / "gpus" / "new.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("network_latency", "# ", r"\[mine\] 'network_bandwidth' is given without 'network_lat"),
        ("network_bandwidth", "# ", r"\[mine\] 'network_latency' is given without 'network_band"),
        ("nic_bandwidth", "# ", r"\[mine\] 'nics_per_node' is given without 'nic_bandwidth'"),
        ("node_latency", "# ", r"key 'mine.node_latency' is missing"),
        ("node_latency", "node_latncy", r"unknown key 'node_latncy' in \[mine\] \(did you mean"),
        ("value = 100,", "value = 0,", r"\[mine\] 'node_bandwidth' is 0; it must be above 0"),
        ("per_node = 2", "per_node = 0", r"key 'mine.gpus_per_node' is 0; it must be an integer"),
        ('"Gb/s"', '"Gbit/s"', r"unknown unit 'Gbit/s' \(did you mean 'Gb/s'\?\)"),
        ("[mine]", "[a]\n[mine]", r"holds a, mine at the top level; it must be one table"),
    ],
)
def test_bad_files_are_refused(own: Path, old: str, new: str, message: str) -> None:
    own.write_text(OWN.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        find_cluster(own)
    assert str(caught.value).startswith(str(own))
    assert "\n" not in str(caught.value)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown cluster 'dgx-h10' \(did you mean 'dgx-h"):
        find_cluster("dgx-h10")
