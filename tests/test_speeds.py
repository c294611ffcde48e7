"""Speeds of a cluster's nodes set beside its file: the same as a file that has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import TWO_NODES

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.data import text
from mpisim.experiment import read
from mpisim.kernels import find_gpu
from mpisim.prediction.hardware import BEYOND_LINKS, hardware_of, link_excess
from mpisim.report.summary import summarise
from mpisim.simulate import simulate
from mpisim.topo import cluster_names, find_cluster
from mpisim.topo.nccl_system import cluster_system
from mpisim.topo.speeds import SPEEDS, nic_bottleneck, with_speeds

FASTER = {"nic_bandwidth": "800 Gb/s", "link_bandwidth": "720 GB/s", "pcie_bandwidth": "110 GB/s"}


def copied(folder: Path, **values: str) -> Path:
    """Write a copy of DGX H100 with other numbers in its file."""
    found = text("clusters/dgx-h100.toml")
    for key, value in values.items():
        found, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", found, flags=re.MULTILINE)
        assert count == 1
    path = folder / "mine.toml"
    path.write_text(found)
    return path


def quantity(value: float, unit: str, error: float) -> str:
    return f'{{ value = {value}, unit = "{unit}", error = {error}, source = "mine" }}'


@pytest.mark.parametrize("contention", ["true", "false"])
def test_a_key_is_the_same_as_a_file_with_that_number(tmp_path: Path, contention: str) -> None:
    own = copied(
        tmp_path,
        nic_bandwidth=quantity(800, "Gb/s", 0),
        link_bandwidth=quantity(720, "GB/s", 0.03),
        pcie_bandwidth=quantity(110, "GB/s", 0.1),
        nics="4",
    )
    rest = [f"network.contention={contention}"]
    keys = [f"cluster.{key}={value}" for key, value in FASTER.items()]
    plain, by_key, by_file = (
        simulate(read(TWO_NODES, "e", [*rest, *changes]))
        for changes in ([], [*keys, "cluster.nics=4"], [f"cluster.preset={own}"])
    )
    assert plain is not None
    assert by_key is not None
    assert by_file is not None
    assert by_key.digest == by_file.digest != plain.digest
    assert by_key.attributes["uncertainty"] == by_file.attributes["uncertainty"]


def test_every_number_of_the_node_is_that_of_the_file(tmp_path: Path) -> None:
    own = find_cluster(copied(tmp_path, nic_bandwidth=quantity(200, "Gb/s", 0), nics="16"))
    set_ = with_speeds(find_cluster("dgx-h100"), {"nic_bandwidth": "200 Gb/s", "nics": 16})
    assert cluster_system(set_) == cluster_system(own)
    for key in FASTER:
        ours, theirs = getattr(set_.node, key), getattr(own.node, key)
        assert (ours.si, ours.error) == (theirs.si, theirs.error)
    assert "nic_bandwidth 200 Gb/s, 16 NICs a node" in set_.title


@given(rate=st.floats(1e-3, 1e5), unit=st.sampled_from(["GB/s", "Gb/s", "MB/s", "TB/s"]))
def test_bandwidths_keep_their_error_bars(rate: float, unit: str) -> None:
    cluster = find_cluster("dgx-h100")
    found = with_speeds(cluster, dict.fromkeys(FASTER, f"{rate} {unit}"))
    for key in FASTER:
        assert getattr(found.node, key).error == getattr(cluster.node, key).error
        assert getattr(found.node, key).source == "set in the experiment"


def test_nothing_given_changes_nothing() -> None:
    cluster = find_cluster("dgx-h100")
    assert with_speeds(cluster, {}) is cluster
    assert with_speeds(cluster, dict.fromkeys(SPEEDS)) is cluster


def test_sizes_are_those_of_a_file_with_them(tmp_path: Path) -> None:
    found = text("clusters/dgx-h100.toml").replace("gpus_per_node = 8", "gpus_per_node = 4")
    own = tmp_path / "mine.toml"
    own.write_text(found.replace("leaf = 32", "leaf = 32\noversubscription = 4", 1))
    sizes = ["cluster.gpus_per_node=4", "cluster.oversubscription=4", "cluster.nics=8"]
    four = ["cluster.nodes=4", "plan.dp=4"]
    plain, by_key, by_file = (
        simulate(read(TWO_NODES, "e", [*four, *changes]))
        for changes in (["plan.dp=8"], sizes, [f"cluster.preset={own}"])
    )
    assert plain is not None
    assert by_key is not None
    assert by_file is not None
    assert (by_key.n_ranks, plain.n_ranks) == (16, 32)
    assert by_key.digest == by_file.digest
    title = by_key.attributes["assumptions"][0]
    assert "set: 8 NICs a node, 4 GPUs a node, oversubscription 4" in title


def test_oversubscription_makes_messages_between_leaves_slower() -> None:
    wide = ["cluster.nodes=16", "cluster.nics=8", "plan.dp=32", "plan.global_batch=32"]
    times = []
    for over in (1, 4, 16):
        results = simulate(read(TWO_NODES, "e", [*wide, f"cluster.oversubscription={over}"]))
        assert results is not None
        times.append(results.step_time)
    assert times == sorted(times)


def test_links_of_both_directions_are_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cluster_names():
        cluster = find_cluster(name)
        assert link_excess(cluster, find_gpu(cluster.gpu)) is None, name
    # An H100 has 18 links of 25 GB/s each way (NVIDIA's data sheet: 900 GB/s in both).
    results = simulate(read(TWO_NODES, "e", ["cluster.link_bandwidth=900 GB/s"]))
    assert results is not None
    (line,) = (each for each in results.attributes["assumptions"] if BEYOND_LINKS in each)
    assert "900 GB/s" in line
    assert "450 GB/s over NVLink or xGMI in one direction" in line
    assert BEYOND_LINKS in " ".join(summarise(results).split())
    options = ["--cluster", "dgx-h100", "--link-bandwidth", "900 GB/s"]
    assert main(["comm", "all_reduce", "--size", "1G", *options]) == 0
    assert BEYOND_LINKS in capsys.readouterr().err


def test_what_limits_cards_is_said() -> None:
    cluster = find_cluster("dgx-h100")
    assert nic_bottleneck(cluster) is None
    fast = with_speeds(cluster, {"nic_bandwidth": "800 Gb/s"})
    said = nic_bottleneck(fast)
    assert said is not None
    assert "NICs of 100 GB/s hang on PCIe connections of 54 GB/s: PCIe is the limit" in said
    both = with_speeds(cluster, {"nic_bandwidth": "800 Gb/s", "pcie_bandwidth": "110 GB/s"})
    assert nic_bottleneck(both) is None
    # Several small cards of a GPU count together: 4 × 25 GB/s.
    several = with_speeds(find_cluster("p5"), {"nic_bandwidth": "200 Gb/s"})
    assert str(nic_bottleneck(several)).startswith("NICs of 100 GB/s hang on PCIe")
    assert "over CPUs joined by 10 GB/s" in str(nic_bottleneck(find_cluster("dgx-v100-16gb")))
    assert nic_bottleneck(find_cluster("titan-xp-4gpu")) is None


def test_the_report_says_what_was_set_and_what_limits() -> None:
    changes = ["cluster.nic_bandwidth=800 Gb/s"]
    results = simulate(read(TWO_NODES, "e", changes))
    assert results is not None
    said = results.attributes["assumptions"]
    assert any("set: nic_bandwidth 800 Gb/s" in line for line in said)
    assert any("PCIe is the limit; set pcie_bandwidth" in line for line in said)
    again = simulate(read(TWO_NODES, "e", [*changes, "cluster.pcie_bandwidth=110 GB/s"]))
    assert again is not None
    assert again.digest != results.digest
    assert not any("is the limit" in line for line in again.attributes["assumptions"])


@pytest.mark.parametrize(
    ("cluster", "given", "message"),
    [
        ("titan-xp-4gpu", {"nic_bandwidth": "1 GB/s"}, "its nodes have no NICs"),
        ("titan-xp-4gpu", {"nics": 2}, "cluster.nics: .* its nodes have no NICs"),
        ("titan-xp-4gpu", {"link_bandwidth": "1 GB/s"}, "its GPUs have no NVLink or xGMI"),
        ("gb200-nvl72", {"nics": 5}, "cluster.nics: 'node.nics' is 5; it must be a multiple of 18"),
        ("titan-xp-4gpu", {"oversubscription": 2.0}, "its fabric is no tree of switches"),
        ("dgx-v100", {"gpus_per_node": 4}, "a hypercube-mesh has 8"),
        ("dgx-h100", {"nics": 0}, "cluster.nics is 0; it must be a number, 1 or more"),
        ("dgx-h100", {"nic_bandwidth": "800"}, "cluster.nic_bandwidth is '800'; it must have a"),
        ("dgx-h100", {"nic_bandwidth": "fast"}, "nic_bandwidth is 'fast'; it must be like"),
        ("dgx-h100", {"pcie_bandwidth": "0 GB/s"}, "pcie_bandwidth is '0 GB/s'; it must be"),
        ("dgx-h100", {"pcie_bandwidth": "9 Gbs"}, r"unknown unit 'Gbs' \(did you mean 'Gb/s'\?\)"),
    ],
)
def test_what_a_cluster_cannot_have_is_refused(
    cluster: str, given: dict[str, str | float], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        with_speeds(find_cluster(cluster), given)
    assert "\n" not in str(error.value)


def test_a_graph_of_links_has_its_own_speeds(tmp_path: Path) -> None:
    found = text("clusters/dgx-h100.toml").replace("[node]", 'graph = "links.graphml"\n[node]', 1)
    (tmp_path / "own.toml").write_text(found)
    with pytest.raises(InputError, match=r"lists its links in .*links\.graphml; set them there"):
        with_speeds(find_cluster(tmp_path / "own.toml"), {"nic_bandwidth": "800 Gb/s"})


def test_keys_of_the_experiment_are_checked() -> None:
    with pytest.raises(InputError, match=r"key 'cluster\.nics' is 0; it must be an integer from 1"):
        read(TWO_NODES, "e", ["cluster.nics=0"])
    with pytest.raises(InputError, match="'alpha-beta' has no use for it"):
        hardware_of(
            read(TWO_NODES, "e", ["cluster.nic_bandwidth=800 Gb/s", "network.model=alpha-beta"])
        )


def test_options_of_comm_and_topo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from mpisim.cli import main

    own = copied(tmp_path, nic_bandwidth=quantity(200, "Gb/s", 0))
    ask = ["comm", "all_reduce", "--size", "64M:1G", "--nodes", "4", "--cluster"]
    tables = []
    for options in (["dgx-h100", "--nic-bandwidth", "200 Gb/s"], [str(own)], ["dgx-h100"]):
        assert main([*ask, *options]) == 0
        tables.append(capsys.readouterr())
    bodies = [each.out.partition("\n")[2] for each in tables]
    assert bodies[0] == bodies[1] != bodies[2]
    assert "set: nic_bandwidth 200 Gb/s" in tables[0].out
    assert not any(each.err for each in tables)

    assert main([*ask, "dgx-h100", "--nic-bandwidth", "800 Gb/s"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("mpisim: note: NICs of 100 GB/s hang on PCIe connections of 54 GB/s")

    assert main(["topo", "show", "dgx-h100", "--nodes", "2", "--nic-bandwidth", "200 Gb/s"]) == 0
    assert "24.4" in capsys.readouterr().out  # 25 GB/s × the share that payload reaches


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--nic-bandwidth", "800"], "--nic-bandwidth is '800'; it must have a unit"),
        (["--nics", "0"], "--nics is 0; it must be a number, 1 or more"),
        (["--pcie-bandwidth", "1 GB/s", "--model", "alpha-beta"], "are for --model nccl"),
    ],
)
def test_options_that_cannot_be(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from mpisim.cli import main

    assert main(["comm", "all_reduce", "--cluster", "dgx-h100", "--size", "1M", *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
