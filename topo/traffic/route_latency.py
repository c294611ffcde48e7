"""Latency of routes, beyond what NCCL's constants hold, along the hops of a collective.

NCCL's constants represent the links of nodes, two NICs and one switch. What a route adds to that
(or saves) is its *excess* latency. Sums are of integers, in 1e-3 ps, so that they have no order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpisim.base.quantity import PICOSECONDS

from ..nodes import hop_latency
from ..topology import LinkKind, NodeKind, RouteFunction, Topology, all_pairs_routes
from .hops import AllPairsHop, HopChains

__all__ = ["added_latency", "excess_latency", "link_latency"]

Ints = NDArray[np.int64]

PARTS_PER_PS = 1000
"""Parts of a picosecond in which latencies are summed up: a sum of integers has no order."""

PAIRS_PER_BATCH = 1 << 18
"""Pairs of GPUs at a time: their ways are held in memory."""

MIN_RANKS_IN_CLOSED_FORM = 32
"""Ranks below which the pairs of many groups are looked at together."""

_LATENCY_NAME = {
    LinkKind.NVLINK: "link",
    LinkKind.PCIE: "pcie",
    LinkKind.HOST: "pcie",
    LinkKind.SOCKET: "socket",
    LinkKind.NIC: "nic",
}
"""What ``data/links.toml`` calls each kind; links of a fabric are no part of NCCL's constants."""


def link_latency(topology: Topology) -> Ints:
    """Topology → latency of each link, shape (n_links + 1,), in 1e-3 ps."""
    return _thousandths_of_ps(topology.latency * topology.share)


def excess_latency(topology: Topology) -> Ints:
    """Topology → latency of each link beyond what NCCL's constants hold, in 1e-3 ps.

    These hold the links of nodes, a NIC at each end and one switch. Where a flow is spread over
    parallel links each counts for its part.

    Returns
    -------
    int64, shape (n_links + 1,)
        The last is 0, for the link -1 of routes: none.
    """
    expected = np.zeros(topology.n_links)
    for kind, name in _LATENCY_NAME.items():
        expected[topology.kind == kind] = hop_latency(name)
    card_up = (topology.kind == LinkKind.NIC) & (
        topology.node_kind[topology.target] == NodeKind.SWITCH
    )
    expected[card_up] += hop_latency("switch")
    return _thousandths_of_ps((topology.latency - expected) * topology.share)


def _thousandths_of_ps(seconds: NDArray[np.float64]) -> Ints:
    """Seconds → 1e-3 ps, and a 0 behind them."""
    found = np.zeros(len(seconds) + 1, np.int64)
    found[:-1] = np.rint(seconds * (PICOSECONDS * PARTS_PER_PS))
    return found


def added_latency(
    paths: RouteFunction,
    excess: Ints,
    base: Ints,
    phases: Sequence[HopChains | AllPairsHop],
    period: int = 0,
) -> Ints:
    """Sum up the excess latency along the chains of a communication.

    Parameters
    ----------
    paths : callable
        At least with all links that have an excess latency.
    excess : int64, shape (n_links + 1,)
        From `excess_latency`, or from `link_latency`.
    base : int64, shape (g,)
        What is to be added to the ranks of the steps, for each group.
    phases : sequence of HopChains or AllPairsHop
        Of each of them, one after the other.
    period : int
        Pairs of GPUs that are so many GPUs further on have equal routes; 0 where that is not so.

    Returns
    -------
    int64, shape (g,)
        Of the longest chain of each phase, in ps.
    """
    found = np.zeros(len(base), np.int64)
    for phase in phases:
        if isinstance(phase, AllPairsHop):
            found += _all_pairs_latency(paths, excess, base, phase.ranks, period)
        elif len(phase.source):
            found += _chain_latency(paths, excess, base, phase)
    return found


def _chain_latency(paths: RouteFunction, excess: Ints, base: Ints, order: HopChains) -> Ints:
    found = np.zeros(len(base), np.int64)
    m = len(order.source)
    chains = np.flatnonzero(np.diff(order.chain, prepend=-1))
    step = max(1, PAIRS_PER_BATCH // m)
    for first in range(0, len(base), step):
        some = base[first : first + step]
        hops = np.empty((len(some), m), np.int64)
        each = min(m, PAIRS_PER_BATCH)
        for begin in range(0, m, each):  # of one group at a time, if there are that many
            part = slice(begin, begin + each)
            source, target = (
                (some[:, None] + ends[part]).reshape(-1) for ends in (order.source, order.target)
            )
            ways = excess[paths(source, target)].sum(axis=1)
            hops[:, part] = ways.reshape(len(some), -1)
        sums = np.add.reduceat(hops, chains, axis=1) * order.rounds
        if order.short:  # the part that leaves out the least waits longest
            ring = hops.reshape(len(some), len(chains), -1)
            least = sum(np.roll(ring, -i, axis=2) for i in range(order.short))
            sums -= np.min(least, axis=2)
        found[first : first + step] = sums.max(axis=1) // PARTS_PER_PS
    return found


def _all_pairs_latency(
    paths: RouteFunction, excess: Ints, base: Ints, ranks: Ints, period: int
) -> Ints:
    """Return the latency of the longest way between two of the ranks, in ps."""
    found = np.zeros(len(base), np.int64)
    n = len(ranks)
    if n < MIN_RANKS_IN_CLOSED_FORM:
        source, target = np.repeat(ranks, n), np.tile(ranks, n)
        others = source != target
        pairs = HopChains(source[others], target[others], np.arange(n * (n - 1)))
        return _chain_latency(paths, excess, base, pairs)
    crowd, step = all_pairs_routes(paths), max(1, PAIRS_PER_BATCH // (2 * n))
    for i, first in enumerate(base.tolist()):
        here = ranks + first
        longest = None if crowd is None else crowd.max_route_sum(here, excess[:-1])
        firsts = _first_of_pairs(here, period) if longest is None else here[:0]
        for low in range(0, len(firsts), step):
            first_ones = np.repeat(firsts[low : low + step], n)
            others = np.tile(here, len(first_ones) // n)
            both = first_ones < others  # both directions
            source = np.concatenate([first_ones[both], others[both]])
            target = np.concatenate([others[both], first_ones[both]])
            if not len(source):
                continue
            most = int(excess[paths(source, target)].sum(axis=1).max())
            longest = most if longest is None else max(longest, most)
        assert longest is not None
        found[i] = longest // PARTS_PER_PS
    return found


def _first_of_pairs(ranks: Ints, period: int) -> Ints:
    """Return ranks so that each pair has the route of one whose lower rank is among them.

    A pair has the route of the pair any number of periods before it. Where ranks are evenly spaced
    that one's higher rank is one of them, too, if its lower one is: so the lowest rank of each
    place in a period will do.
    """
    ranks = np.sort(ranks)
    if not period or len(np.unique(np.diff(ranks))) > 1:
        return ranks
    _, first = np.unique(ranks % period, return_index=True)
    return ranks[np.sort(first)]
