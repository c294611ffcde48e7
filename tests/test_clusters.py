"""Cluster presets: whole, below line rates, near measurements. Clusters from a user's file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from machines import NODES_OF_GPUS

from mpisim.base.errors import InputError
from mpisim.base.presets import packaged_folder
from mpisim.base.quantity import Quantity
from mpisim.kernels import find_gpu
from mpisim.program import Operation
from mpisim.topo import class_of, find_cluster

OWN = """
title = "My own cluster"
gpu = "h100-sxm"
gpus_per_node = 2

[node]
kind = "pcie"
pcie_bandwidth = { value = 24, unit = "GB/s", error = 0.1, source = "guess" }
nics = 1
nic_bandwidth = { value = 200, unit = "Gb/s", error = 0.0, source = "datasheet" }
nic_path = "phb"

[fabric]
kind = "switch"
nic_efficiency = { value = 0.9, unit = "1", error = 0.1, source = "guess" }

[alpha_beta]
node_bandwidth = { value = 100, unit = "GB/s", error = 0.1, source = "measured" }
node_latency = { value = 10, unit = "us", error = 0.1, source = "measured" }
network_bandwidth = { value = 10, unit = "GB/s", error = 0.1, source = "measured" }
network_latency = { value = 20, unit = "us", error = 0.1, source = "measured" }
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("name", NODES_OF_GPUS)
def test_presets_are_whole(name: str) -> None:
    cluster = find_cluster(name)
    assert len(cluster.title) <= 96  # a line of a report
    gpu = find_gpu(cluster.gpu)
    node, fabric, measured = cluster.node, cluster.fabric, cluster.alpha_beta
    exact = ("nic_bandwidth", "cores", "memory")
    for part in (node, fabric, measured):
        for field in dataclasses.fields(part) if part else ():
            number = getattr(part, field.name)
            if not isinstance(number, Quantity):
                continue
            if field.name == "clock":
                # Exact where the model of the CPU is published, which its maker rates.
                assert 1.5e9 < number.si < 4e9
                assert number.error == 0 or "datasheet" not in number.source
                assert number.error > 0 or "from memory" not in number.source
            else:
                # Only line rates and counts are exact, and not without a source.
                known = field.name in exact and "from memory" not in number.source
                assert (number.error > 0) != known, field.name
    links = [gpu.pcie.si] + ([gpu.nvlink.si] if gpu.nvlink else [])
    assert measured is not None
    assert measured.node_bandwidth.si < max(links)
    if node.link_bandwidth is not None:  # usable: below the line rate
        assert gpu.nvlink is not None
        assert node.link_bandwidth.si < gpu.nvlink.si
    assert node.pcie_bandwidth is not None
    if node.nic_path != "pix":  # cards with a switch inside are faster than the way to the CPU
        assert node.pcie_bandwidth.si < gpu.pcie.si
    if measured.network_bandwidth is None:
        assert node.nics == 0
        assert fabric is None
        return
    assert measured.network_bandwidth.si < measured.node_bandwidth.si
    assert node.nic_bandwidth is not None
    # One GPU's share: below that of the line rate, and above half of it; the one NIC that was
    # measured to do less is Jean Zay's Omni-Path, by verbs.
    share_of_line = 0.4 if name == "jean-zay-a100" else 0.5
    line = node.nics * node.nic_bandwidth.si / cluster.gpus_per_node
    assert share_of_line * line < measured.network_bandwidth.si < line
    assert fabric is not None
    assert fabric.nic_efficiency is not None
    share = fabric.nic_efficiency.si * line
    assert share == pytest.approx(measured.network_bandwidth.si, rel=0.01) or gpu.nvlink is None


@pytest.mark.parametrize("name", NODES_OF_GPUS)
def test_clusters_of_any_size_have_a_cost(name: str) -> None:
    cluster = find_cluster(name)
    if cluster.fabric is None:
        with pytest.raises(InputError, match=r": 2 nodes, but it has no network; give its"):
            cluster.cost(2)
    else:
        cluster.cost(2)
    model = cluster.cost()
    assert model.ranks_per_node == cluster.gpus_per_node
    group = class_of(model, (0, 1))
    price = model.price(Operation.ALL_REDUCE, 10**9, group)
    assert price.duration > cluster.alpha_beta.node_latency.si * 1e12


def test_names_and_aliases_are_unique() -> None:
    tables = packaged_folder("clusters")
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
        ("network_latency", "# ", r"\[alpha_beta\] 'network_bandwidth' is given without 'netw"),
        ("network_bandwidth", "# ", r"\[alpha_beta\] 'network_latency' is given without 'netw"),
        ("nic_bandwidth", "# ", r"\[node\] 'nic_bandwidth' is missing; with nics = 1 it must be"),
        ("pcie_bandwidth", "# ", r"\[node\] 'pcie_bandwidth' is missing; with kind = 'pcie' it"),
        ("nics = 1", "nics = 0", r"\[node\] 'nic_bandwidth' is given; with nics = 0 it must"),
        ('kind = "pcie"', 'kind = "nvlink"', r"key 'node.kind' is 'nvlink'.*allowed: nvswitch, "),
        (
            "nics = 1",
            "nics = 9999",
            r"key 'node.nics' is 9999; it must be an integer from 0 to 4096",
        ),
        (
            "nics = 1",
            "nics = 1\nnuma_nodes = 100",
            r"key 'node.numa_nodes' is 100; it must be an integer from 1 to 64",
        ),
        ('"phb"', '"sys"', r"\[node\] 'nic_path' is 'sys', between CPUs; 'numa_nodes' must be"),
        ("nic_efficiency", "# ", r"'fabric.nic_efficiency' is missing"),
        ('kind = "switch"', 'kind = "fat-tree"', r"\[fabric\] 'leaf' is missing; kind = 'fat-"),
        ('kind = "switch"', 'kind = "switch"\nleaf = 4', r"'leaf' is given, a key of fat-tree, "),
        ("node_latency", "# ", r"key 'alpha_beta.node_latency' is missing"),
        ("node_latency", "node_latncy", r"unknown key 'node_latncy' in \[alpha_beta\] \(did you "),
        ("value = 100,", "value = 0,", r"\[alpha_beta\] 'node_bandwidth' is 0; it must be above 0"),
        ("per_node = 2", "per_node = 0", r"key 'gpus_per_node' is 0; it must be an integer"),
        ('"Gb/s"', '"Gbit/s"', r"unknown unit 'Gbit/s' \(did you mean 'Gb/s'\?\)"),
        ("[node]", "[[node]]", r"key 'node' is .* it must be a table, \[node\]"),
    ],
)
def test_bad_files_are_refused(own: Path, old: str, new: str, message: str) -> None:
    own.write_text(OWN.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        find_cluster(own)
    assert str(caught.value).startswith(str(own))
    assert "\n" not in str(caught.value)


# As on the pages of the clouds: GPUs of an instance, and Gb/s of all its NICs, one direction.
@pytest.mark.parametrize(
    ("name", "gpu", "gbps"),
    [
        ("p3dn.24xlarge", "v100-sxm2-32gb", 100),
        ("p4d.24xlarge", "a100-sxm-40gb", 400),
        ("p4de.24xlarge", "a100-sxm", 400),
        ("p5.48xlarge", "h100-sxm", 3200),
        ("p5e.48xlarge", "h200-sxm", 3200),
        ("p5en.48xlarge", "h200-sxm", 3200),
        ("p6-b200.48xlarge", "b200-sxm", 3200),
        ("p6-b300.48xlarge", "b300-sxm", 6400),
        ("g5.48xlarge", "a10g", 100),
        ("g6e.48xlarge", "l40s", 400),
        ("g4dn.metal", "t4", 100),
        ("a2-highgpu-8g", "a100-sxm-40gb", 100),
        ("a3-highgpu-8g", "h100-sxm", 800),
        ("a3-megagpu-8g", "h100-sxm", 1600),
        ("a3-ultragpu-8g", "h200-sxm", 3200),
        ("a4-highgpu-8g", "b200-sxm", 3200),
        ("ND A100 v4", "a100-sxm-40gb", 1600),
        ("Standard_ND96isr_H100_v5", "h100-sxm", 3200),
        ("ND H200 v5", "h200-sxm", 3200),
        ("BM.GPU4.8", "a100-sxm-40gb", 1600),
        ("BM.GPU.H100.8", "h100-sxm", 3200),
        ("BM.GPU.B300.8", "b300", 6400),
        ("g7e.48xlarge", "rtx-pro-6000", 1600),
        ("g4-standard-384", "rtx-pro-6000", 400),
        ("ND MI300X v5", "mi300x", 3200),
    ],
)
def test_instances_of_clouds_are_clusters(name: str, gpu: str, gbps: float) -> None:
    cluster = find_cluster(name)
    assert find_gpu(cluster.gpu) == find_gpu(gpu)
    assert cluster.gpus_per_node == 8
    node = cluster.node
    assert node.nics * node.nic_bandwidth.si * 8 / 1e9 == pytest.approx(gbps)


# As on the pages of the centres: GPUs of a node, Gb/s of all its NICs, one direction, and groups,
# as many as the nodes of the whole machine need.
@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "gbps", "nodes", "groups"),
    [
        ("Perlmutter", "a100-sxm-40gb", 4, 800, 1536, 24),
        ("perlmutter-80gb", "a100-sxm", 4, 800, 256, 4),
        ("leonardo-booster", "a100-sxm-64gb", 4, 400, 19 * 180, 19),
        ("juwels-booster", "a100-sxm-40gb", 4, 800, 936, 19),  # 20, of 48 nodes, there
        ("JUPITER", "gh200", 4, 800, 25 * 240, 25),
        ("mn5", "h100-sxm-64gb", 4, 800, 1120, None),
        ("isambard-ai", "gh200", 4, 800, 1320, 11),
        ("deltaai", "gh200", 4, 800, 114, 1),
        ("delta", "a100-sxm-40gb", 4, 200, 100, 1),
        ("tsubame4.0", "h100-sxm-94gb", 4, 800, 240, None),
        ("abci-3.0", "h200", 8, 1600, 766, None),
        ("jean-zay-h100", "h100-sxm", 4, 1600, 364, None),
        ("karolina", "a100-sxm-40gb", 8, 800, 72, None),
        ("meluxina", "a100-sxm-40gb", 4, 400, 200, 2),
        ("baskerville", "a100-sxm-40gb", 4, 200, 46, None),
        ("vista", "gh200", 1, 400, 600, None),
        ("tuolumne", "mi300a", 4, 800, 1152, 9),
        ("summit", "v100-sxm2-16gb-power9", 6, 200, 4608, None),
        ("alex", "a100-sxm-40gb", 8, 400, 20, None),
        ("kestrel", "h100-sxm", 4, 400, 132, 1),
        ("adastra", "mi250x-gcd", 8, 800, 356, 3),
        ("eos", "h100-sxm", 8, 3200, 576, None),
        ("selene", "a100-sxm", 8, 1600, 560, None),
    ],
)
def test_machines_of_centres_are_clusters(
    name: str, gpu: str, gpus: int, gbps: float, nodes: int, groups: int | None
) -> None:
    cluster = find_cluster(name)
    assert find_gpu(cluster.gpu) == find_gpu(gpu)
    assert cluster.gpus_per_node == gpus
    node = cluster.node
    assert node.nics * node.nic_bandwidth.si * 8 / 1e9 == pytest.approx(gbps)
    names = cluster.topology(nodes).names
    found = {name.partition(".")[0] for name in names if name.startswith("group")}
    assert len(found) == (groups or 0)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown cluster 'dgx-h10' \(did you mean 'dgx-h"):
        find_cluster("dgx-h10")
    with pytest.raises(InputError, match=r"did you mean 'p5\.48xlarge'"):
        find_cluster("p5.47xlarge")
    with pytest.raises(
        InputError, match=r"'h200': it is a GPU, which these have: a3-ultra, abci-3, "
    ):
        find_cluster("h200")
    with pytest.raises(InputError, match=r"'rtx-5090': it is a GPU, which none of .* has; kernels"):
        find_cluster("rtx-5090")
    with pytest.raises(InputError, match=r"^unknown cluster 'trn1\.32xlarge'; "):
        find_cluster("trn1.32xlarge")  # spelt like g4dn.12xlarge, and nothing like it


@pytest.mark.parametrize(
    ("key", "old", "new", "message"),
    [
        ("link_bandwidth", "GB/s", "us", "'node.link_bandwidth' has the unit 'us'; allowed: B/s"),
        ("memory", "GB", "GB/s", "'node.memory' has the unit 'GB/s'; allowed: B, MB, GB"),
        ("clock", "MHz", "us", "'node.clock' has the unit 'us'; allowed: MHz"),
        ("nic_efficiency", "1", "GB/s", "'nic_efficiency' has the unit 'GB/s'; allowed: 1"),
    ],
)
def test_units_are_of_what_a_key_is(
    key: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    from mpisim.data import path

    lines = Path(path("clusters/dgx-h100.toml")).read_text(encoding="utf-8").splitlines()
    lines = [
        line.replace(f'unit = "{old}"', f'unit = "{new}"') if line.startswith(f"{key} ") else line
        for line in lines
    ]
    target = tmp_path / "mine.toml"
    target.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        find_cluster(target)
