"""NCCL sees in listed links what the builders of clusters meant by them."""

from __future__ import annotations

import dataclasses

import pytest

from mpisim.errors import InputError
from mpisim.topo import cluster_names, find_cluster
from mpisim.topo.graph_system import system_of_graph
from mpisim.topo.nccl import System


@pytest.mark.parametrize("name", cluster_names())
def test_links_alone_say_what_the_cluster_says(name: str) -> None:
    cluster = find_cluster(name)
    meant = System.of(cluster)
    found = system_of_graph(
        cluster.topology(2 if cluster.fabric else 1),
        cluster.gpus_per_node,
        meant.arch,
        nic_efficiency=meant.nic_efficiency,
        cpu=meant.cpu,
        gpudirect=meant.gpudirect,
        version=meant.version,
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
