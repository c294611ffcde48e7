"""Echo's formulas as the network model of an experiment."""

from __future__ import annotations

import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import network_of
from mpisim.program import Operation
from mpisim.topo import Network, class_of, cluster_names, find_cluster

MiB = 1 << 20


def echo(cluster: str = "dgx-h100", nodes: int = 1) -> Network:
    return network_of(find_cluster(cluster), nodes, NetworkChoice(model="echo"))


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 8), (4, 32)])
def test_large_all_reduces_are_in_reach_of_the_calibrated_model(nodes: int, ranks: int) -> None:
    network, nccl = echo(nodes=nodes), network_of(find_cluster("dgx-h100"), nodes)
    times = []
    for size in (64 * MiB, 1024 * MiB):
        price = network.price(
            Operation.ALL_REDUCE, size, class_of(network, range(ranks), Operation.ALL_REDUCE)
        )
        reference = nccl.price(Operation.ALL_REDUCE, size, class_of(nccl, range(ranks)))
        assert abs(np.log(price.duration / reference.duration)) < np.log(2)
        assert price.volume == 0  # nothing is shared
        times.append(price.duration)
    assert times[0] < times[1]


def test_a_rank_alone_pays_nothing_and_a_price_rests_on_the_models_error() -> None:
    network = echo()
    alone, pair = class_of(network, [3]), class_of(network, [0, 1])
    assert network.price(Operation.ALL_REDUCE, MiB, alone).duration == 0
    assert network.shares(Operation.ALL_REDUCE, MiB, alone) == {}
    assert network.shares(Operation.ALL_REDUCE, MiB, pair) == {"echo_collectives": 1.0}
    assert network.numbers["echo_collectives"].error > 0.2
    barrier = network.price(Operation.BARRIER, 0, pair)
    assert barrier == network.price(Operation.ALL_REDUCE, 4, pair)


def test_keys_of_other_models_are_refused() -> None:
    with pytest.raises(InputError, match="'echo' has no use for it"):
        NetworkChoice(model="echo", calibration="mine.toml")


def test_a_cluster_without_nodes_of_nics_is_refused() -> None:
    clusters = {name: find_cluster(name) for name in cluster_names()}
    direct = [name for name, each in clusters.items() if each.node and each.node.kind == "direct"]
    for name in direct:
        with pytest.raises(InputError, match="NCCL's model needs GPUs in nodes"):
            echo(name)


def test_an_operation_without_a_formula_is_refused() -> None:
    network = echo()
    with pytest.raises(InputError, match="Echo's formulas do not cover unknown"):
        network.price(Operation.UNKNOWN, MiB, class_of(network, range(8)))
