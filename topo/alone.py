"""What the links of a network allow a communication that has it to itself.

NCCL's model (:mod:`.nccl`) says what a communication reaches between such GPUs and cards on a
fabric that holds nobody back. Here is what this fabric, and links that are slower or later than
usual, make of it: the highest rate at which no link carries more than its bandwidth, and what the
way adds to the latency that NCCL's constants stand for (two cards and one switch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.quantity import PICOSECONDS

from .nodes import hop_latency
from .price import WEIGHT_ONE
from .steps import EveryPair, Steps
from .topology import LinkKind, NodeKind, Paths, Topology, crowded

__all__ = [
    "IMPOSSIBLE",
    "UNLIMITED",
    "Limits",
    "added_latency",
    "excess_latency",
    "highest_rates",
    "lowest",
    "usual",
    "whole_latency",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNLIMITED = 1 << 62
"""The rate of what no link limits."""

IMPOSSIBLE = -1
"""The rate of what a group cannot do."""

_FINE = 1000
"""Parts of a picosecond in which latencies are summed up: a sum of integers has no order."""

_PAIRS = 1 << 18
"""Pairs of GPUs at a time: their ways are held in memory."""

_FEW = 32
"""Ranks below which the pairs of many groups are looked at together."""

_LATENCY = {
    LinkKind.NVLINK: "link",
    LinkKind.PCIE: "pcie",
    LinkKind.HOST: "pcie",
    LinkKind.SOCKET: "socket",
    LinkKind.NIC: "nic",
}
"""What ``data/links.toml`` calls each kind; links of a fabric are no part of NCCL's constants."""


class Limits(NamedTuple):
    """What links allow groups of one arrangement that communicate by one pattern.

    Attributes
    ----------
    node_rate : int64, shape (g,)
        Highest rate of the payload by links of nodes and by cards, in 2**-40 bytes per ps, or
        `UNLIMITED`.
    fabric_rate : int64, shape (g,)
        The same by links between switches; `IMPOSSIBLE` where a group cannot do it by this pattern.
    link : int64, shape (g,)
        The link that sets the lower of the two, or -1.
    latency : int64, shape (g,)
        ps to be added, which can be below 0.
    """

    node_rate: Ints
    fabric_rate: Ints
    link: Ints
    latency: Ints


def usual(topology: Topology) -> Floats:
    """Return the bandwidth that most links have of those that were built like each.

    NCCL takes all nodes for equal, and so do the numbers that were measured on them. Where links
    were changed, the usual one tells which of them are slow.

    Returns
    -------
    float64, shape (n_links,)
        Of links of nodes and of cards; of all others their own. If two bandwidths are equally
        frequent, the lower.
    """
    found = topology.bandwidth.copy()
    if (topology.nominal == topology.bandwidth).all():
        return found
    for kind in np.unique(topology.kind[topology.kind != LinkKind.FABRIC]).tolist():
        of_kind = np.flatnonzero(topology.kind == kind)
        for nominal in np.unique(topology.nominal[of_kind]).tolist():
            alike = of_kind[topology.nominal[of_kind] == nominal]
            values, counts = np.unique(topology.bandwidth[alike], return_counts=True)
            found[alike] = values[np.argmax(counts)]
    return found


def whole_latency(topology: Topology) -> Ints:
    """Return each link's latency, shape (n_links,), in 1e-3 ps; see `excess_latency`."""
    return np.rint(topology.latency * topology.share * (PICOSECONDS * _FINE)).astype(np.int64)


def excess_latency(topology: Topology) -> Ints:
    """Return each link's latency beyond what NCCL's constants hold, shape (n_links,), in 1e-3 ps.

    These hold the links of nodes, a card at each end and one switch. Where a flow is spread over
    parallel links each counts for its part.
    """
    expected = np.zeros(topology.n_links)
    for kind, name in _LATENCY.items():
        expected[topology.kind == kind] = hop_latency(name)
    card_up = (topology.kind == LinkKind.NIC) & (
        topology.node_kind[topology.target] == NodeKind.SWITCH
    )
    expected[card_up] += hop_latency("switch")
    excess = (topology.latency - expected) * topology.share
    return np.rint(excess * (PICOSECONDS * _FINE)).astype(np.int64)


def highest_rates(capacity: Ints, weight: Ints) -> Ints:
    """Return the payload rates at which links are full: capacity over weight, rounded down.

    Parameters
    ----------
    capacity : int64, shape (m,)
        In 2**-40 bytes per ps.
    weight : int64, shape (m,)
        Bytes over the link per byte of payload, in units of 2**-20; 1 at least.

    Returns
    -------
    int64, shape (m,)
        In 2**-40 bytes per ps, below `UNLIMITED`.
    """
    whole, rest = np.divmod(capacity, weight)
    # The remainder is below the weight, a few bytes per byte: no overflow.
    return np.minimum(whole, UNLIMITED // WEIGHT_ONE - 1) * WEIGHT_ONE + rest * WEIGHT_ONE // weight


def lowest(group: Ints, link: Ints, rate: Ints, n_groups: int) -> tuple[Ints, Ints]:
    """Return the lowest rate of each group and a link that sets it.

    Parameters
    ----------
    group, link, rate : int64, shape (m,)
        One entry for each link of each group; rates in 2**-40 bytes per ps.
    n_groups : int

    Returns
    -------
    rate : int64, shape (n_groups,)
        `UNLIMITED` where there is no entry.
    link : int64, shape (n_groups,)
        The first of those, or -1.
    """
    found, at = np.full(n_groups, UNLIMITED), np.full(n_groups, -1)
    order = np.lexsort((link, rate, group))
    first = order[np.flatnonzero(np.diff(group[order], prepend=-1))]
    found[group[first]], at[group[first]] = rate[first], link[first]
    return found, at


def added_latency(
    paths: Paths, excess: Ints, base: Ints, phases: Sequence[Steps | EveryPair]
) -> Ints:
    """Sum up the excess latency along the chains of a communication.

    Parameters
    ----------
    paths : callable
        At least with all links that have an excess latency.
    excess : int64, shape (n_links,)
        From `excess_latency`.
    base : int64, shape (g,)
        What is to be added to the ranks of the steps, for each group.
    phases : sequence of Steps or EveryPair
        Of each of them, one after the other.

    Returns
    -------
    int64, shape (g,)
        Of the longest chain of each phase, in ps.
    """
    found = np.zeros(len(base), np.int64)
    for phase in phases:
        if isinstance(phase, EveryPair):
            found += _of_pairs(paths, excess, base, phase.ranks)
        elif len(phase.source):
            found += _of_chains(paths, excess, base, phase)
    return found


def _of_chains(paths: Paths, excess: Ints, base: Ints, order: Steps) -> Ints:
    found = np.zeros(len(base), np.int64)
    m = len(order.source)
    padded = np.append(excess, 0)  # the entry of -1: no link
    chains = np.flatnonzero(np.diff(order.chain, prepend=-1))
    step = max(1, _PAIRS // m)
    for first in range(0, len(base), step):
        some = base[first : first + step]
        hops = np.empty((len(some), m), np.int64)
        each = min(m, _PAIRS)
        for begin in range(0, m, each):  # of one group at a time, if there are that many
            part = slice(begin, begin + each)
            source, target = (
                (some[:, None] + ends[part]).reshape(-1) for ends in (order.source, order.target)
            )
            ways = padded[paths(source, target)].sum(axis=1)
            hops[:, part] = ways.reshape(len(some), -1)
        sums = np.add.reduceat(hops, chains, axis=1) * order.rounds
        if order.short:  # the part that leaves out the least waits longest
            ring = hops.reshape(len(some), len(chains), -1)
            least = sum(np.roll(ring, -i, axis=2) for i in range(order.short))
            sums -= np.min(least, axis=2)
        found[first : first + step] = sums.max(axis=1) // _FINE
    return found


def _of_pairs(paths: Paths, excess: Ints, base: Ints, ranks: Ints) -> Ints:
    """Return the latency of the longest way between two of the ranks, in ps."""
    found = np.zeros(len(base), np.int64)
    n, padded = len(ranks), np.append(excess, 0)
    if n < _FEW:
        source, target = np.repeat(ranks, n), np.tile(ranks, n)
        others = source != target
        pairs = Steps(source[others], target[others], np.arange(n * (n - 1)))
        return _of_chains(paths, excess, base, pairs)
    crowd, step = crowded(paths), max(1, _PAIRS // n)
    for i, first in enumerate(base.tolist()):
        here = ranks + first
        longest = None if crowd is None else crowd.longest(here, excess)
        for low in range(0, n if longest is None else 0, step):
            source = np.repeat(here[low : low + step], n)
            target = np.tile(here, len(source) // n)
            others = source != target
            ways = padded[paths(source[others], target[others])].sum(axis=1)
            most = int(ways.max())
            longest = most if longest is None else max(longest, most)
        assert longest is not None
        found[i] = longest // _FINE
    return found
