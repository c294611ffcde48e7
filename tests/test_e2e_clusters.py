"""Measured steps as experiments: the cluster of a row, its nodes, its NICs and its network."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from measured_steps import NEUSIGHT, VTRAIN, mapped, read_row, why
from mpi4py import MPI

from mpisim.validate.e2e import Mapped, experiment_of
from mpisim.validate.e2e import settings as declared
from mpisim.validate.e2e.predict import UNKNOWN_NETWORK, digest, predict
from mpisim.validate.e2e.settings import ClusterFor, Settings


@pytest.fixture
def row(tmp_path: Path) -> Any:
    return partial(read_row, tmp_path / "t.csv")


def test_a_gpu_that_no_cluster_has(row: Any) -> None:
    found = mapped(row(NEUSIGHT, gpu="P4"))
    assert found.experiment.kernels.gpu == "P4"
    assert found.experiment.cluster.gpus == 1
    assert why(row(NEUSIGHT, gpu="P4", num_gpus=4, dp=4)).startswith("no cluster of P4")
    assert why(row(NEUSIGHT, gpu="Z1")).startswith("unknown GPU 'Z1'")


@pytest.mark.parametrize(
    ("gpu", "preset"),
    [
        ("A100", "dgx-a100"),
        ("A100 80GB", "dgx-a100"),
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("A100-40GB", "dgx-a100-40gb"),
        ("V100 16GB", "dgx-v100-16gb"),
        ("A800", "a800-8gpu"),
        ("MI325X", "mi325x-8gpu"),
        ("RTX 4090", "rtx-4090-8gpu"),
        ("MI350X", "mi355x-8gpu"),
    ],
)
def test_clusters_by_any_name_of_their_gpu(row: Any, gpu: str, preset: str) -> None:
    stated = mapped(row(VTRAIN, gpu=gpu, node_network_gbps="")).experiment.cluster
    assert (stated.preset, stated.nodes) == (preset, 1)


def test_a_board_that_no_cluster_has_is_in_a_box_of_its_like(row: Any) -> None:
    eight = {"gpus_per_node": "", "num_gpus": 8, "node_network_gbps": "", "dp": 2}
    found = mapped(row(VTRAIN, **eight, gpu="RTX 2080 Ti")).experiment
    cluster = found.cluster
    assert (cluster.preset, cluster.nodes, cluster.gpus_per_node) == ("titan-xp-4gpu", 1, 8)
    assert found.kernels.gpu == "rtx-2080-ti"
    # No box has more than eight, unless the row says so.
    for gpus in (9, 16, 512):
        refused = why(row(VTRAIN, **eight | {"num_gpus": gpus, "dp": 1}, gpu="RTX 2080 Ti"))
        assert refused.startswith(
            f"no cluster of RTX 2080 Ti with {gpus} GPUs: its nodes have no NICs, and at most 8"
        )
    stated = {"gpus_per_node": 16, "num_gpus": 16, "dp": 4}
    sixteen = mapped(row(VTRAIN, **eight | stated, gpu="RTX 2080 Ti")).experiment.cluster
    assert (sixteen.nodes, sixteen.gpus_per_node) == (1, 16)
    assert mapped(row(NEUSIGHT)).experiment.kernels.gpu == "v100-pcie-32gb"


def test_boxes_of_geforce_boards_are_joined(row: Any) -> None:
    two = {"gpus_per_node": 8, "num_gpus": 16, "node_network_gbps": 25, "dp": 4}
    found = mapped(row(VTRAIN, **two, gpu="RTX 4090")).experiment.cluster
    assert (found.preset, found.nodes) == ("rtx-4090-8gpu", 2)


def test_nics_have_the_rate_that_a_row_states(row: Any) -> None:
    two = {"gpus_per_node": 8, "num_gpus": 16, "dp": 4, "gpu": "H800"}
    found = mapped(row(VTRAIN, **two, node_network_gbps=1600))
    assert (found.experiment.cluster.nics, found.experiment.cluster.nic_bandwidth) == (
        None,
        "200 Gb/s",
    )
    assert "1600 Gb/s a node in place of 3200" in str(found.defaults)
    as_is = mapped(row(VTRAIN, **two, node_network_gbps=3200)).experiment.cluster
    assert as_is.nic_bandwidth is None


def test_the_rate_of_nics_of_a_cluster_with_changes(row: Any) -> None:
    four = {"gpus_per_node": 4, "num_gpus": 8, "dp": 2, "tp": 4, "gpu": "H100-SXM-80GB"}

    def nics(settings: Settings, network: float, **changes: Any) -> tuple[int | None, str | None]:
        found = experiment_of(row(VTRAIN, **four | changes, node_network_gbps=network), settings)
        assert isinstance(found, Mapped)
        return found.experiment.cluster.nics, found.experiment.cluster.nic_bandwidth

    known = declared()
    assert nics(known, 1600) == (4, None)  # half of a node of 8 with its 8 NICs
    assert nics(known, 1000) == (4, "250 Gb/s")
    assert nics(known, 4000 / 3) == (4, "333.333333333 Gb/s")
    # What was chosen for a cluster stays.
    changes = ("cluster.gpus_per_node=4", "cluster.nics=4", "cluster.nic_bandwidth=50 Gb/s")
    cluster = ClusterFor("H100-SXM-80GB", "dgx-h100", 4, 1600, changes=changes, why="a test")
    kept = replace(known, clusters=(cluster,))
    assert nics(kept, 800) == (4, "50 Gb/s")
    found = experiment_of(row(VTRAIN, **four, node_network_gbps=800), kept)
    assert isinstance(found, Mapped)
    assert "dgx-h100, its NICs in place of 800 Gb/s a node" in str(found.defaults)
    # One GPU of a node of 4 with 2 NICs has a whole one.
    one = {"gpus_per_node": 1, "num_gpus": 2, "gpu": "L40S", "dp": 2, "tp": 1}
    assert nics(known, 400, **one) == (1, None)
    assert nics(known, 200, **one) == (1, "200 Gb/s")


def test_nodes_of_other_sizes(row: Any) -> None:
    four = {"gpus_per_node": 4, "num_gpus": 4, "node_network_gbps": ""}
    found = mapped(row(VTRAIN, **four, gpu="H200", tp=4)).experiment.cluster
    assert (found.preset, found.nodes) == ("dgx-h200", 1)
    dies = {"gpus_per_node": 8, "num_gpus": 8, "node_network_gbps": ""}
    assert mapped(row(VTRAIN, **dies, gpu="MI250")).experiment.cluster.preset == "frontier"
    cards = {"gpus_per_node": 8, "num_gpus": 16, "node_network_gbps": ""}
    many = mapped(row(VTRAIN, **cards, gpu="L40S", dp=4))
    assert many.experiment.cluster.preset == "l40s-4gpu"
    assert "cluster.gpus_per_node=8, cluster.nics=4" in str(many.defaults)
    # Links of a mesh depend on how many there are.
    sixteen = {"gpus_per_node": 16, "num_gpus": 16, "node_network_gbps": ""}
    unlike = row(VTRAIN, **sixteen, gpu="MI300X", dp=4)
    assert why(unlike) == "no cluster of MI300X with 16 GPUs a node"


def test_a_part_of_a_mesh_has_the_links_between_its_gpus(row: Any) -> None:
    half = {"gpus_per_node": 4, "num_gpus": 8, "node_network_gbps": ""}
    found = mapped(row(VTRAIN, **half, gpu="MI355X", dp=2)).experiment.cluster
    assert (found.preset, found.nodes, found.gpus_per_node) == ("mi355x-8gpu", 2, 4)
    assert (found.link_bandwidth, found.nics) == (f"{403 * 3 / 7:.4g} GB/s", 4)


def test_nodes_without_nics_reach_no_other(row: Any) -> None:
    four = {"gpus_per_node": 4, "num_gpus": 4, "node_network_gbps": 800, "dp": 1}
    one = mapped(row(VTRAIN, **four, gpu="A100-40GB", tp=4)).experiment.cluster
    assert one.preset == "a100-40gb-4gpu"
    two = mapped(row(VTRAIN, **four | {"num_gpus": 8, "dp": 2}, gpu="A100-40GB", tp=4))
    assert two.experiment.cluster.preset == "juwels-booster"  # the first with 4 NICs of 200 Gb/s
    assert two.experiment.cluster.nodes == 2


ON_V100 = {"gpu": "V100-SXM2-32GB", "gpus_per_node": 8, "num_gpus": 16, "dp": 4}


def test_a_row_without_a_network_may_have_had_others(row: Any) -> None:
    found = mapped(row({**VTRAIN, "source": "a blog"}, **ON_V100, node_network_gbps=""))
    # Of the packaged clusters of 8 such GPUs a node two of three have 100 Gb/s, one has 400.
    assert found.experiment.cluster.preset == "nd40rs-v2"
    (same, _), (other, share) = found.others
    assert (same.cluster.preset, other.cluster.preset) == ("p3dn", "dgx-v100")
    assert (other.cluster.nodes, share) == (2, pytest.approx(1 / 3))
    assert replace(other, cluster=found.experiment.cluster, title=found.experiment.title) == (
        found.experiment
    )


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("a blog", {"node_network_gbps": 400}),
        ("a blog", {"node_network_gbps": "", "num_gpus": 8, "dp": 2}),
        ("a blog", {"node_network_gbps": "", "cluster.preset": "dgx-v100"}),
        ("NVIDIA/DeepLearningExamples", {"node_network_gbps": ""}),
    ],
    ids=["stated", "one node", "a cluster is named", "the source's machines are known"],
)
def test_networks_that_are_known(row: Any, source: str, changes: dict[str, Any]) -> None:
    assert mapped(row({**VTRAIN, "source": source}, **(ON_V100 | changes))).others == ()


def test_a_network_in_the_middle_is_assumed(row: Any) -> None:
    """The cluster that comes first, if it has such a network, else one that fits with it."""
    many = {"num_gpus": 16, "dp": 4, "node_network_gbps": ""}
    a100 = mapped(row({**VTRAIN, "source": "a blog"}, **many))
    assert a100.experiment.cluster.preset == "a100-800g"  # of 100, 400, 400, 800, 1600 and 1600
    h100 = mapped(row({**VTRAIN, "source": "a blog"}, **many, gpu="H100-SXM-80GB"))
    assert h100.experiment.cluster.preset == "dgx-h100"
    ours = mapped(row({**VTRAIN, "source": "NVIDIA/DeepLearningExamples"}, **many))
    assert ours.experiment.cluster.preset == "dgx-a100"


def test_not_knowing_the_network_is_in_the_error_bar(row: Any) -> None:
    """By how far steps on the other networks lie apart, as `run` predicts them."""
    found = mapped(row({**VTRAIN, "source": "a blog"}, **ON_V100, node_network_gbps=""))
    _, (other, share) = found.others
    found = replace(found, others=((other, share),))
    alone = replace(found, others=())
    elsewhere = replace(found, experiment=other, others=())
    unsure, sure, fast = predict([found, alone, elsewhere], MPI.COMM_SELF) or []
    assert unsure.seconds == sure.seconds > fast.seconds
    # A normal distribution's mean absolute deviation is √(2/π) of its standard deviation.
    error = math.sqrt(math.pi / 2) * share * math.log(sure.seconds / fast.seconds)
    assert unsure.effects[UNKNOWN_NETWORK] == pytest.approx(error)
    assert unsure.inputs == pytest.approx(math.hypot(sure.inputs, error))
    assert digest(found, every=False) != digest(alone, every=False)
