"""Keys of the network that change nothing of a run are named in its report, and no others are."""

from __future__ import annotations

import pytest
from plans import TWO_NODES

from mpisim.experiment import read
from mpisim.results import Results
from mpisim.simulate import simulate

ONE_NODE = TWO_NODES.replace("nodes = 2", "nodes = 1").replace("dp = 4", "dp = 2")
CARD = "links.node0.nic3->*"


def run(text: str, *changes: str) -> Results:
    results = simulate(read(text, "e", ["framework.name=none", *changes]))
    assert results is not None
    return results


def named(results: Results) -> list[str]:
    """Return the keys that the report says have no effect."""
    said = results.attributes["assumptions"]
    return [line.partition(":")[0] for line in said if ": no effect" in line]


CASES = [
    (TWO_NODES, "true", f"network.changes.'{CARD}.bandwidth'=50 %"),
    (TWO_NODES, "false", f"network.changes.'{CARD}.bandwidth'=50 %"),
    (TWO_NODES, "true", f"network.changes.'{CARD}.latency'=5 us"),
    (TWO_NODES, "true", f"network.changes.'{CARD}.bandwidth'=50 GB/s"),
    (TWO_NODES, "true", f"network.changes.'{CARD}.bandwidth'=30 GB/s"),
    (ONE_NODE, "true", f"network.changes.'{CARD}.bandwidth'=50 %"),
    (ONE_NODE, "true", "network.changes.'links.node0.gpu1->*.bandwidth'=5 %"),
    (ONE_NODE, "true", "cluster.nic_bandwidth=100 Gb/s"),
    (ONE_NODE, "true", "cluster.link_bandwidth=100 GB/s"),
    (TWO_NODES, "true", "cluster.nic_bandwidth=100 Gb/s"),
    (TWO_NODES, "false", "cluster.pcie_bandwidth=63 GB/s"),
    (TWO_NODES, "false", "cluster.pcie_bandwidth=20 GB/s"),
    (TWO_NODES, "false", "network.nccl.NCCL_NVLS_ENABLE=0"),
    (TWO_NODES, "false", "network.nccl.NCCL_PROTO=ll"),
    (TWO_NODES, "false", "network.nccl.NCCL_MAX_NCHANNELS=1"),
]


@pytest.mark.parametrize(("text", "contention", "change"), CASES)
def test_a_key_without_effect_leaves_the_digest_and_one_with_it_is_not_named(
    text: str, contention: str, change: str
) -> None:
    rest = (f"network.contention={contention}",)
    plain, changed = run(text, *rest), run(text, *rest, change)
    keys = {key for key in named(changed) if key != "network.contention"}
    if keys:
        assert keys == {change.partition("=")[0]}
        assert changed.digest == plain.digest
    else:
        assert changed.digest != plain.digest
    assert set(named(plain)) <= {"network.contention"}
    if "network.contention" in named(changed):  # nothing shares a link: it may as well be true
        assert contention == "false"
        assert changed.digest == run(text, change).digest


def test_both_kinds_are_among_the_cases() -> None:
    said = {
        change: bool(
            set(named(run(text, f"network.contention={contention}", change)))
            - {"network.contention"}
        )
        for text, contention, change in CASES
        if text == TWO_NODES
    }
    assert set(said.values()) == {True, False}


def test_a_table_is_looked_at_entry_by_entry() -> None:
    changes = ["network.nccl.NCCL_NVLS_ENABLE=0", "network.nccl.NCCL_PROTO=ll"]
    assert named(run(TWO_NODES, *changes)) == ["network.nccl.NCCL_NVLS_ENABLE"]


def test_the_factors_that_come_along_are_no_others(tmp_path: object) -> None:
    from mpisim.data import path

    own = path("calibration/collectives.toml")
    assert named(run(TWO_NODES, f"network.calibration={own}")) == ["network.calibration"]


def test_one_gpu_talks_to_nobody() -> None:
    alone = ONE_NODE.replace("tp = 4", "tp = 1").replace("dp = 2", "dp = 1\ngpus = 1")
    alone = alone.replace("\ngpus = 1", "").replace("nodes = 1", "nodes = 1\ngpus = 1")
    found = run(alone, "network.nccl.NCCL_PROTO=ll", "cluster.link_bandwidth=100 GB/s")
    assert sorted(named(found)) == ["cluster.link_bandwidth", "network.nccl.NCCL_PROTO"]


def test_links_are_not_shared_with_two_latencies_and_two_bandwidths() -> None:
    found = run(TWO_NODES, "network.model=alpha-beta", "network.contention=true")
    assert named(found) == ["network.contention"]
    assert not any("network.contention = true" in each for each in found.attributes["assumptions"])
