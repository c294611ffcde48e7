"""Collective, algorithm → bytes from each rank to each other rank.

All numbers are bytes per byte of payload, as `Price` counts it. Only what crosses links matters
here: the order in which chunks go does not, since a collective is one flow that uses all of its
links at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mpisim.base.distinct import numbered
from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from .grid_order import Subgrid, bytes_along_axes, data_parts, rings_along

__all__ = [
    "ALGORITHMS",
    "CHAIN_OPERATIONS",
    "NCCL_ALGORITHMS",
    "PAIRWISE_OPERATIONS",
    "TWO_WAY_RINGS",
    "Transfers",
    "UniformAllToAll",
    "chain_orders",
    "channel_count",
    "double_tree",
    "members_by_node",
    "path_through",
    "send_pairs",
    "transfers",
]

Ranks = NDArray[np.int64]


@frozen(eq=False)
class Transfers:
    """Bytes from rank to rank.

    Attributes
    ----------
    source, target : int64, shape (m,)
        Global ranks.
    bytes : float64, shape (m,)
        Per byte of payload.
    """

    source: Ranks
    target: Ranks
    bytes: NDArray[np.float64]

    @classmethod
    def joined(cls, parts: Sequence[Transfers]) -> Transfers:
        """Put transfers together; there may be none."""
        return cls(
            np.concatenate([np.empty(0, np.int64), *(part.source for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.target for part in parts)]),
            np.concatenate([np.empty(0), *(part.bytes for part in parts)]),
        )


@frozen(eq=False)
class UniformAllToAll:
    """The same number of bytes from every rank to every other, without a list of pairs.

    Attributes
    ----------
    ranks : int64, shape (n,)
        Global ranks.
    each : float
        Bytes from one to one other, per byte of payload.
    """

    ranks: Ranks
    each: float

    @cached_property
    def _ends(self) -> tuple[Ranks, Ranks]:
        n = len(self.ranks)
        source, target = np.repeat(self.ranks, n), np.tile(self.ranks, n)
        others = source != target
        return source[others], target[others]

    @property
    def source(self) -> Ranks:
        """The senders, as `Transfers` lists them."""
        return self._ends[0]

    @property
    def target(self) -> Ranks:
        """Receiving rank of each transfer, in the order of `source`."""
        return self._ends[1]

    @property
    def bytes(self) -> NDArray[np.float64]:
        """Bytes of each transfer."""
        return np.full(len(self.source), self.each)


def transfers(
    operation: Operation,
    algorithm: str,
    members: Sequence[int] | Ranks,
    gpus_per_node: int,
    *,
    meshed: bool = False,
    subgrid: Subgrid | None = None,
) -> Transfers | UniformAllToAll:
    """Operation, algorithm and members → transfers.

    Parameters
    ----------
    operation : Operation
    algorithm : str
        One of `ALGORITHMS`.
    members : sequence of int
        Global ranks, in the communicator's order. Rank r is on node ``r // gpus_per_node``.
    gpus_per_node : int
    meshed : bool
        Whether GPUs of a node are joined by links of their own, pair by pair. Rings then take all
        of them in turn, each as often as any other; otherwise one path does for all.
    subgrid : Subgrid, optional
        What the members fill, in the order of its axes, for ``"dimensions"``; by default a line.

    Returns
    -------
    Transfers or UniformAllToAll
        Empty for a group of one, and for barriers.

    Raises
    ------
    InputError
        For an algorithm or an operation without bytes of its own.

    Examples
    --------
    >>> found = transfers(Operation.ALL_REDUCE, "ring", (0, 1), 8)
    >>> found.source.tolist(), found.target.tolist(), found.bytes.tolist()
    ([0, 1], [1, 0], [1.0, 1.0])
    """
    if algorithm not in ALGORITHMS:
        raise InputError(f"unknown algorithm {algorithm!r}; known are {', '.join(ALGORITHMS)}")
    group = np.asarray(members, np.int64)
    n = len(group)
    if n == 1 or operation is Operation.BARRIER:
        return Transfers.joined([])
    nodes = members_by_node(group, gpus_per_node)
    if operation in CHAIN_OPERATIONS:
        return _chain_transfers(operation, algorithm, group, nodes)
    if operation in PAIRWISE_OPERATIONS:
        return _pairwise_transfers(operation, group)
    if operation not in _RING_FACTOR:
        raise InputError(
            f"no transfers are known for a communication of kind {operation.name}; known are "
            f"{', '.join(o.name for o in (*_RING_FACTOR, *CHAIN_OPERATIONS, *PAIRWISE_OPERATIONS))}"
        )
    if algorithm == "dimensions":
        return _dimension_transfers(
            _RING_FACTOR[operation], group, subgrid or Subgrid.line(n), meshed
        )
    factor = _RING_FACTOR[operation] * (n - 1) / n
    if algorithm in TWO_WAY_RINGS:
        half = np.full(n, factor / 2)
        after, before = np.roll(group, -1), np.roll(group, 1)
        return Transfers.joined([Transfers(group, after, half), Transfers(group, before, half)])
    if algorithm == "pat":
        return _pat_transfers(group)
    if algorithm == "two-shot" and operation is Operation.ALL_REDUCE:
        return _all_pairs(group, factor)
    if algorithm == "ring" or operation is not Operation.ALL_REDUCE:
        # In-switch gathers and scatters move at each port what a ring does.
        return _ring_transfers(nodes, factor, meshed)
    if algorithm == "tree":
        return _tree_transfers(nodes)
    # In the switch: every GPU sends its buffer once to be reduced, and its share of the sum.
    inside = [
        _ring_transfers([ranks], 1 + 1 / len(ranks), meshed) for ranks in nodes if len(ranks) > 1
    ]
    return Transfers.joined([*inside, *_between_trees(nodes)])


TWO_WAY_RINGS = ("two-way-ring", "tour")
"""Rings that carry half of the data each way round; the second follows the fabric."""

NCCL_ALGORITHMS = (
    "ring",
    "tree",
    "nvls",
    "nvls-tree",
    "collnet-direct",
    "collnet-chain",
    "pat",
    "two-shot",
    "send",
)
"""``"send"`` is what NCCL builds from sends and receives; ``"two-shot"`` is RCCL's all-reduce from
each to each, which first scatters and then gathers."""

ALGORITHMS = (*NCCL_ALGORITHMS, "dimensions", *TWO_WAY_RINGS)
"""NCCL's, and those of other fabrics."""

_RING_FACTOR = {
    Operation.ALL_REDUCE: 2.0,
    Operation.ALL_GATHER: 1.0,
    Operation.REDUCE_SCATTER: 1.0,
}

CHAIN_OPERATIONS = (Operation.BROADCAST, Operation.REDUCE)

PAIRWISE_OPERATIONS = (
    Operation.ALL_TO_ALL,
    Operation.GATHER,
    Operation.SCATTER,
    Operation.SEND_RECV,
)


def members_by_node(group: Ranks, gpus_per_node: int) -> list[Ranks]:
    """Group → members of each node, nodes in the order in which they appear in it.

    Parameters
    ----------
    group : int64, shape (n,)
        Ranks, in the group's order.
    gpus_per_node : int
        Rank r is on node r // gpus_per_node.

    Returns
    -------
    list of int64
        One array a node, its ranks in the group's order.
    """
    node = group // gpus_per_node
    _, first, number = numbered(node)
    place = np.argsort(np.argsort(first))[number]
    order = np.argsort(place, kind="stable")
    ends = [0, *np.cumsum(np.bincount(place)).tolist()]
    ordered = group[order]
    return [ordered[begin:end] for begin, end in pairwise(ends)]  # np.split takes ten times as long


def path_through(nodes: Sequence[Ranks], channel: int) -> Ranks:
    """Nodes, channel → ring of all ranks, node after node; each node begins at its rank `channel`.

    Parameters
    ----------
    nodes : sequence of int64
        Members of each node, at least one node.
    channel : int
        The place of the member of each node that comes first; those before it come last.

    Returns
    -------
    int64, shape (n,)

    Examples
    --------
    >>> path_through([np.array([0, 1, 2]), np.array([4, 5])], 1).tolist()
    [1, 2, 0, 5, 4]
    """
    ranks = np.concatenate(nodes)
    if not channel:
        return ranks
    size = np.array([len(each) for each in nodes])
    each, first = np.repeat(size, size), np.repeat(np.cumsum(size) - size, size)
    return ranks[first + (np.arange(len(ranks)) - first + channel) % each]


def channel_count(nodes: list[Ranks]) -> int:
    """Nodes → number of channels between them: one a member of each node."""
    return min(len(ranks) for ranks in nodes) if len(nodes) > 1 else 1


def _ring_transfers(nodes: list[Ranks], factor: float, meshed: bool) -> Transfers:
    """A ring through all members of each node in turn; each channel enters at another member."""
    k = channel_count(nodes)
    parts = []
    for channel in range(k):
        path = path_through(nodes, channel)
        share = np.full(len(path), factor / k)
        parts.append(Transfers(path, np.roll(path, -1), share))
    if not meshed or max(len(ranks) for ranks in nodes) <= 2:
        return Transfers.joined(parts)
    ends = np.cumsum([len(ranks) for ranks in nodes]) - 1
    last = [Transfers(each.source[ends], each.target[ends], each.bytes[ends]) for each in parts]
    hops = 1 if len(nodes) > 1 else 0  # of a ring between nodes one hop a node leaves it
    return Transfers.joined(
        [
            *(_all_pairs(ranks, factor * (len(ranks) - hops) / len(ranks)) for ranks in nodes),
            *(last if hops else []),
        ]
    )


def _all_pairs(ranks: Ranks, each: float) -> Transfers:
    """Every rank sends `each` bytes, the same part of it to every other."""
    n = len(ranks)
    source, target = np.repeat(ranks, n), np.tile(ranks, n)
    others = source != target
    return Transfers(source[others], target[others], np.full(n * (n - 1), each / max(n - 1, 1)))


def chain_orders(
    operation: Operation, algorithm: str, group: Ranks, nodes: list[Ranks]
) -> list[Ranks]:
    """Group → ways from its first member, or to it in a reduction; each takes an equal part.

    NCCL's follow its rings from the root: each channel enters nodes at another member.

    Parameters
    ----------
    operation : Operation
        A broadcast or a reduction to one rank.
    algorithm : str
        One of `TWO_WAY_RINGS`, or one of NCCL's.
    group : int64, shape (n,)
        Ranks, in the group's order; the first is the root.
    nodes : list of int64
        The same ranks by node, from `members_by_node`.

    Returns
    -------
    list of int64, shape (n,)
        One array a way, its ranks in the order in which data goes.
    """
    if algorithm in TWO_WAY_RINGS:
        paths = [group, np.roll(group[::-1], 1)] if len(group) > 2 else [group]
    else:
        paths = []
        for channel in range(channel_count(nodes)):
            ring = path_through(nodes, channel)
            paths.append(np.roll(ring, -int(np.argmax(ring == group[0]))))
    return paths if operation is Operation.BROADCAST else [path[::-1] for path in paths]


def _chain_transfers(
    operation: Operation, algorithm: str, group: Ranks, nodes: list[Ranks]
) -> Transfers:
    """Chains: everything goes from the first to the second, and on to the last."""
    paths = chain_orders(operation, algorithm, group, nodes)
    return Transfers.joined(
        [Transfers(p[:-1], p[1:], np.full(len(p) - 1, 1 / len(paths))) for p in paths]
    )


def _dimension_transfers(factor: float, group: Ranks, subgrid: Subgrid, meshed: bool) -> Transfers:
    """Return the transfers of rings along every axis, by what each part has left to send there."""
    found = []
    for share, order in data_parts(subgrid):
        for axis, amount in bytes_along_axes(subgrid, order):
            each = factor * share * amount
            if meshed and subgrid.inside and axis == 0:
                rows = group.reshape(subgrid.sizes[0], -1).T
                found += [_all_pairs(row, each) for row in rows]
                continue
            rings = rings_along(group, subgrid, axis)
            found += [
                Transfers(a.reshape(-1), b.reshape(-1), np.full(a.size, each / len(rings)))
                for a, b in rings
            ]
    return Transfers.joined(found)


def send_pairs(group: Ranks) -> tuple[Ranks, Ranks]:
    """Group → senders, receivers: first to second; of more, each to the next (nccl-tests)."""
    return (group[:1], group[1:2]) if len(group) == 2 else (group, np.roll(group, -1))


def _pairwise_transfers(operation: Operation, group: Ranks) -> Transfers | UniformAllToAll:
    n = len(group)
    if operation is Operation.SEND_RECV:
        return Transfers(*send_pairs(group), np.ones(1 if n == 2 else n))
    share = np.full(n - 1, 1 / n)
    root = np.repeat(group[:1], n - 1)
    if operation is Operation.GATHER:
        return Transfers(group[1:], root, share)
    if operation is Operation.SCATTER:
        return Transfers(root, group[1:], share)
    return UniformAllToAll(group, 1 / n)


def _pat_transfers(group: Ranks) -> Transfers:
    """Parallel aggregated trees: in step d = 1, 2, 4, … missing data goes d ranks further."""
    n = len(group)
    distances = 1 << np.arange(int(n - 1).bit_length())
    return Transfers.joined(
        [
            Transfers(group, np.roll(group, -int(d)), np.full(n, min(int(d), n - int(d)) / n))
            for d in distances
        ]
    )


def _tree_transfers(nodes: list[Ranks]) -> Transfers:
    """All-reduce: chains in nodes, up and down, and two trees of half of the bytes between."""
    k = channel_count(nodes)
    node = np.repeat(np.arange(len(nodes)), [len(ranks) for ranks in nodes])
    inside = node[1:] == node[:-1]
    parts = []
    for channel in range(k if inside.any() else 0):
        path = path_through(nodes, channel)
        near, far = path[:-1][inside], path[1:][inside]
        share = np.full(len(near), 1 / k)
        parts += [Transfers(far, near, share), Transfers(near, far, share)]
    return Transfers.joined([*parts, *_between_trees(nodes)])


def _between_trees(nodes: list[Ranks]) -> list[Transfers]:
    """Both trees between nodes, each of a half of the bytes, up and down, spread over channels."""
    if len(nodes) == 1:
        return []
    k = channel_count(nodes)
    edges = double_tree(len(nodes))
    parts = []
    for channel in range(k):
        head = np.array([ranks[channel] for ranks in nodes])
        child, parent = head[edges[:, 0]], head[edges[:, 1]]
        share = np.full(len(edges), 0.5 / k)
        parts += [Transfers(child, parent, share), Transfers(parent, child, share)]
    return parts


def double_tree(n: int) -> NDArray[np.int64]:
    """n nodes → edges (child, parent) of NCCL's two binary trees, shape (2n - 2, 2).

    The second is the mirror of the first where n is even, and shifted by one where it is odd, so
    that (almost) no rank is an inner node of both (nccl, src/graph/trees.cc; Sanders, Speck, Träff
    2009).
    """
    child = np.arange(1, n)
    bit = child & -child
    parent = (child ^ bit) | (bit << 1)
    parent = np.where(parent >= n, child ^ bit, parent)
    first = np.stack([child, parent], axis=1)
    second = n - 1 - first if n % 2 == 0 else (first + 1) % n
    return np.concatenate([first, second])
