"""Collective, algorithm → chains of hops, whose latencies add up to that of the collective.

`transfers` says how many bytes go from rank to rank, whenever that is. A latency needs the order: a
ring passes each part on from rank to rank, a tree goes from its leaves to its root and back. Each
*chain* is one such sequence; a communication waits for the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from .grid_order import Subgrid, rings_along
from .transfers import (
    CHAIN_OPERATIONS,
    PAIRWISE_OPERATIONS,
    TWO_WAY_RINGS,
    chain_orders,
    channel_count,
    double_tree,
    members_by_node,
    path_through,
    send_pairs,
)

__all__ = ["AllPairsHop", "HopChains", "hop_chains"]

Ranks = NDArray[np.int64]


@frozen(eq=False)
class HopChains:
    """Hops from rank to rank, sorted by chain.

    Attributes
    ----------
    source, target : int64, shape (m,)
        Global ranks.
    chain : int64, shape (m,)
        0 and up, ascending; every chain has a hop at least.
    rounds : int
        How many times each chain is passed: all-reduce goes twice around its ring.
    short : int
        Neighbouring hops that the last round leaves out, others for every part. Chains are then
        rings, all of one length.
    """

    source: Ranks
    target: Ranks
    chain: Ranks
    rounds: int = 1
    short: int = 0


@frozen(eq=False)
class AllPairsHop:
    """One hop from every rank to every other, all at once: an all-to-all.

    Attributes
    ----------
    ranks : int64, shape (n,)
        Global ranks.
    """

    ranks: Ranks


def hop_chains(
    operation: Operation,
    algorithm: str,
    members: Sequence[int] | Ranks,
    gpus_per_node: int,
    subgrid: Subgrid | None = None,
) -> list[HopChains | AllPairsHop]:
    """Communication → the chains of its hops, phase by phase.

    A phase begins when the one before it has ended; only ``"dimensions"`` and ``"two-shot"`` have
    more than one.

    Parameters
    ----------
    operation : Operation
    algorithm : str
        As for `transfers`.
    members : sequence of int
        Global ranks, in the communicator's order. Rank r is on node ``r // gpus_per_node``.
    gpus_per_node : int
    subgrid : Subgrid, optional
        As for `transfers`.

    Examples
    --------
    >>> (found,) = hop_chains(Operation.ALL_GATHER, "ring", (0, 1, 2), 1)
    >>> found.source.tolist(), found.target.tolist(), found.chain.tolist()
    ([0, 1, 2], [1, 2, 0], [0, 0, 0])
    >>> found.rounds, found.short  # two hop_chains: each part passes two of the three hops
    (1, 1)
    """
    group = np.asarray(members, np.int64)
    if len(group) == 1:
        return []
    if operation is Operation.ALL_TO_ALL:
        return [AllPairsHop(group)]
    if algorithm == "two-shot" and operation is Operation.ALL_REDUCE:
        return [AllPairsHop(group), AllPairsHop(group)]
    if algorithm == "dimensions":
        return _dimension_hops(operation, group, subgrid or Subgrid.line(len(group)))
    return [_single_phase(operation, algorithm, group, gpus_per_node)]


def _single_phase(
    operation: Operation, algorithm: str, group: Ranks, gpus_per_node: int
) -> HopChains:
    n = len(group)
    if operation in CHAIN_OPERATIONS:
        ways = chain_orders(operation, algorithm, group, members_by_node(group, gpus_per_node))
        return _joined([(way[:-1], way[1:]) for way in ways])
    if operation in PAIRWISE_OPERATIONS:
        return _single_hops(*_pairwise_ends(operation, group))
    count = 2 * (n - 1) if operation is Operation.ALL_REDUCE else n - 1
    if algorithm in TWO_WAY_RINGS:
        both = [(group, np.roll(group, -1)), (group, np.roll(group, 1))]
        return _ring_hops(both, count)
    nodes = members_by_node(group, gpus_per_node)
    if algorithm == "pat":
        return _pat_hops(group)
    if algorithm in ("ring", "two-shot") or (algorithm == "nvls" and len(nodes) > 1):
        parts = []
        for channel in range(channel_count(nodes)):
            path = path_through(nodes, channel)
            parts.append((path, np.roll(path, -1)))
        return _ring_hops(parts, count)
    if algorithm == "tree":
        return _tree_hops(nodes, inside=True)
    # In the switch: once up and once down, and a tree between nodes.
    within = [(ranks, np.roll(ranks, -1)) for ranks in nodes if len(ranks) > 1]
    if len(nodes) == 1:
        return _single_hops(*map(np.concatenate, zip(*within)))
    return _tree_hops(nodes, inside=False)


def _joined(paths: Sequence[tuple[Ranks, Ranks]], rounds: int = 1, short: int = 0) -> HopChains:
    """Paths → hop chains, one for each path."""
    empty = np.empty(0, np.int64)
    lengths = [len(source) for source, _ in paths]
    return HopChains(
        np.concatenate([empty, *(source for source, _ in paths)]),
        np.concatenate([empty, *(target for _, target in paths)]),
        np.repeat(np.arange(len(paths)), lengths),
        rounds,
        short,
    )


def _dimension_hops(
    operation: Operation, group: Ranks, subgrid: Subgrid
) -> list[HopChains | AllPairsHop]:
    """Axis by axis, as often as a reduce-scatter, an all-gather or both go along it.

    Each axis waits for the slowest of its rings: what goes along the next has come through all.
    """
    times = 2 if operation is Operation.ALL_REDUCE else 1
    found: list[HopChains | AllPairsHop] = []
    for axis, n in enumerate(subgrid.sizes):
        rings = [
            ring for a, b in rings_along(group, subgrid, axis) for ring in zip(a, b, strict=True)
        ]
        found.append(_ring_hops(rings, times * (n - 1)))
    return found


def _ring_hops(rings: Sequence[tuple[Ranks, Ranks]], count: int) -> HopChains:
    """Rings of one length → chains in which each part of the data passes `count` hops."""
    n = len(rings[0][0])
    rounds = -(-count // n)
    return _joined(rings, rounds, rounds * n - count)


def _single_hops(source: Ranks, target: Ranks) -> HopChains:
    """Senders and receivers → one message each, none of which waits for another."""
    return HopChains(source, target, np.arange(len(source)))


def _pairwise_ends(operation: Operation, group: Ranks) -> tuple[Ranks, Ranks]:
    n = len(group)
    if operation is Operation.SEND_RECV:
        return send_pairs(group)
    root = np.repeat(group[:1], n - 1)
    return (group[1:], root) if operation is Operation.GATHER else (root, group[1:])


def _pat_hops(group: Ranks) -> HopChains:
    """PAT: every rank sends 1, 2, 4, … ranks further, one after the other."""
    n = len(group)
    distances = [1 << bit for bit in range(int(n - 1).bit_length())]
    target = np.stack([np.roll(group, -d) for d in distances], axis=1)
    return HopChains(
        np.repeat(group, len(distances)),
        target.reshape(-1),
        np.repeat(np.arange(n), len(distances)),
    )


def _tree_hops(nodes: list[Ranks], *, inside: bool) -> HopChains:
    """Both trees between nodes, from each leaf to the root and back; with the chains in nodes."""
    child, parent, way, leaves = _leaf_to_root_paths(len(nodes))
    of_leaves = [nodes[leaf] for leaf in leaves.tolist()]
    leaf = np.repeat(np.arange(len(leaves)), [len(ranks) for ranks in of_leaves])
    near = leaf[1:] == leaf[:-1]
    parts: list[tuple[Ranks, Ranks, Ranks]] = []
    for channel in range(channel_count(nodes)):
        heads = np.array([ranks[channel] for ranks in nodes])
        first = channel * len(leaves)
        parts += _both_ways(heads[child], heads[parent], way + first)
        if inside and near.any():  # before the leaf's own node sends, and after it receives
            chain = path_through(of_leaves, channel)
            parts += _both_ways(chain[1:][near], chain[:-1][near], leaf[1:][near] + first)
    source, target, chains = (np.concatenate(each) for each in zip(*parts))
    order = np.argsort(chains, kind="stable")  # what is summed up has no order
    return HopChains(source[order], target[order], chains[order])


def _both_ways(source: Ranks, target: Ranks, chain: Ranks) -> list[tuple[Ranks, Ranks, Ranks]]:
    return [(source, target, chain), (target, source, chain)]


@lru_cache(maxsize=64)
def _leaf_to_root_paths(n: int) -> tuple[Ranks, Ranks, Ranks, Ranks]:
    """Return the hops (child, parent) of the ways from the leaves of both trees over n nodes.

    Returns
    -------
    child, parent, way : int64, shape (m,)
        `way` is the entry of `leaves` at which a way starts.
    leaves : int64
        Of one node that node, with no hops.
    """
    edges = double_tree(n)
    parts: list[tuple[Ranks, Ranks, Ranks]] = []
    leaves = [np.zeros(1 if n == 1 else 0, np.int64)]
    for tree in (edges[: n - 1], edges[n - 1 :]) if n > 1 else ():
        parent = np.full(n, -1)
        parent[tree[:, 0]] = tree[:, 1]
        is_leaf = np.zeros(n, bool)
        is_leaf[tree[:, 0]] = True
        is_leaf[tree[:, 1]] = False
        (node,) = np.nonzero(is_leaf)
        way = np.arange(len(node)) + sum(map(len, leaves))
        leaves.append(node)
        while len(node):  # from all leaves at once, a hop further up each time
            above = parent[node]
            under_way = above >= 0
            node, above, way = node[under_way], above[under_way], way[under_way]
            parts.append((node, above, way))
            node = above
    child, above, way = (
        (np.concatenate([leaves[0][:0], *each]) for each in zip(*parts))
        if parts
        else (leaves[0][:0],) * 3
    )
    order = np.argsort(way, kind="stable")
    return child[order], above[order], way[order], np.concatenate(leaves)
