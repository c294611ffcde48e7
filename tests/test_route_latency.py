"""Latency along routes: of pairs that differ, what it is of all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from mpisim.topo import find_cluster
from mpisim.topo.traffic.hops import AllPairsHop
from mpisim.topo.traffic.route_latency import added_latency, link_latency


@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-a100", "polaris", "gb200-nvl72"])
@pytest.mark.parametrize(("first", "step", "count"), [(0, 1, 200), (24, 8, 40), (3, 5, 64)])
def test_all_pairs_are_those_of_one_period(cluster: str, first: int, step: int, count: int) -> None:
    found = find_cluster(cluster)
    topology = found.topology(85)
    latency = link_latency(topology)
    pairs = [AllPairsHop(first + step * np.arange(count))]
    base = np.zeros(1, np.int64)
    paths = topology.filtered(latency[:-1] > 0)
    period = topology.period * found.gpus_per_node
    assert period > 0
    shortened = added_latency(paths, latency, base, pairs, period)
    assert shortened.tolist() == added_latency(paths, latency, base, pairs).tolist()
    assert shortened > 0


@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-a100"])
def test_a_period_says_what_routes_are_equal(cluster: str) -> None:
    """Each link of a route a period further on has the latency of that of the first."""
    found = find_cluster(cluster)
    topology = found.topology(3 * found.topology(2).period)
    latency = link_latency(topology)
    apart = topology.period * found.gpus_per_node
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 2 * apart, (2, 500))
    source, target = source[source != target], target[source != target]
    here, there = (
        latency[topology.filtered(latency[:-1] > 0)(source + more, target + more)].sum(axis=1)
        for more in (0, apart)
    )
    assert here.tolist() == there.tolist()
