"""Collective, algorithm → its sends by step: sender, receiver, bytes, ring or tree.

`transfers` says how many bytes go from rank to rank over the whole of a collective; here they are
spread over the steps that follow one another, as a list of flows needs them. The two agree: the
bytes of all steps between two ranks add up to the transfer (`tests/test_steps.py`).

A *way* is one ring, one tree or one chain, which one or several of NCCL's channels follow. A step
is a level of dependencies within a way: a rank sends in step s what it has received before it. In
the switch (NVLS) ranks do not send to each other: flows go up to the switch and down from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from .grid_order import Subgrid, bytes_along_axes, data_parts, rings_along
from .transfers import (
    CHAIN_OPERATIONS,
    PAIRWISE_OPERATIONS,
    TWO_WAY_RINGS,
    chain_orders,
    channel_count,
    double_tree,
    members_by_node,
    path_through,
    transfers,
)

__all__ = ["Part", "Steps", "collective_steps"]

Ranks = NDArray[np.int64]


class Part(IntEnum):
    """The part of the route between two ranks that a flow takes."""

    WHOLE = 0
    UP = 1
    """From the sender to the switch, whatever goes on from there."""
    DOWN = 2
    """From the switch to the receiver."""


@frozen(eq=False)
class Steps:
    """Flows of a collective; all arrays have the shape (m,).

    Attributes
    ----------
    source, target : int64
        Global ranks. Of a flow to or from the switch both ends of the route that it is a part of.
    bytes : float64
        Of one step, per byte of payload.
    way : int64
        The ring, tree or chain, 0 and up.
    first, count : int64
        The first step, and how many steps in a row repeat the flow.
    part : int64
        `Part`.
    """

    source: Ranks
    target: Ranks
    bytes: NDArray[np.float64]
    way: Ranks
    first: Ranks
    count: Ranks
    part: Ranks

    @property
    def ways(self) -> int:
        """Number of rings, trees or chains that the bytes are split over."""
        return int(self.way.max()) + 1 if len(self.way) else 0


class _Flows(NamedTuple):
    """Flows of one step, or of several in a row, along one way."""

    source: Ranks
    target: Ranks
    bytes: float | NDArray[np.float64]
    way: int
    first: int = 0
    steps: int = 1
    part: Part = Part.WHOLE


def collective_steps(
    operation: Operation,
    algorithm: str,
    members: Sequence[int] | Ranks,
    gpus_per_node: int,
    *,
    meshed: bool = False,
    subgrid: Subgrid | None = None,
) -> Steps:
    """Operation, algorithm and members → steps.

    Parameters
    ----------
    operation, algorithm, members, gpus_per_node, meshed, subgrid
        As for `transfers`. Where GPUs of a node are joined pair by pair, all of NCCL's rings
        together are one way, which uses every pair equally.

    Returns
    -------
    Steps
        Empty for a group of one, and for barriers.

    Raises
    ------
    InputError
        For an algorithm or an operation without bytes of its own.

    Examples
    --------
    >>> found = collective_steps(Operation.ALL_REDUCE, "ring", (0, 1), 8)
    >>> found.source.tolist(), found.target.tolist(), found.bytes.tolist(), found.count.tolist()
    ([0, 1], [1, 0], [0.5, 0.5], [2, 2])
    """
    group = np.asarray(members, np.int64)
    whole = transfers(operation, algorithm, group, gpus_per_node, meshed=meshed, subgrid=subgrid)
    if not len(whole.source):
        return _joined([])
    n = len(group)
    nodes = members_by_node(group, gpus_per_node)
    if operation in CHAIN_OPERATIONS:
        return _joined(_chain_flows(chain_orders(operation, algorithm, group, nodes)))
    if operation in PAIRWISE_OPERATIONS:
        return _joined([_Flows(whole.source, whole.target, whole.bytes, 0)])
    if algorithm == "dimensions":
        return _joined(_dimension_flows(operation, group, subgrid or Subgrid.line(n), meshed))
    count = 2 * (n - 1) if operation is Operation.ALL_REDUCE else n - 1
    if algorithm in TWO_WAY_RINGS:
        paths = [group, group[::-1]]
        return _joined(_ring_flows(paths, count))
    if algorithm == "pat":
        return _joined(_pat_flows(group))
    if algorithm == "two-shot" and operation is Operation.ALL_REDUCE:
        return _joined([_Flows(whole.source, whole.target, whole.bytes / 2, 0, 0, 2)])
    in_switch = algorithm not in ("ring", "tree", "two-shot")
    if in_switch and operation is not Operation.ALL_REDUCE and len(nodes) == 1 and not meshed:
        share = (n - 1) / n
        return _joined(
            [
                _Flows(group, np.roll(group, -1), share, 0, 0, part=Part.UP),
                _Flows(group, np.roll(group, -1), share, 0, 1, part=Part.DOWN),
            ]
        )
    if algorithm == "ring" or operation is not Operation.ALL_REDUCE:
        if meshed and max(map(len, nodes)) > 2:
            return _joined([_Flows(whole.source, whole.target, whole.bytes / count, 0, 0, count)])
        paths = [path_through(nodes, channel) for channel in range(channel_count(nodes))]
        return _joined(_ring_flows(paths, count))
    if in_switch and meshed:  # reduced in the network, not in a switch of the node
        return _joined([_Flows(whole.source, whole.target, whole.bytes, 0)])
    return _joined(_tree_flows(nodes, in_switch=in_switch))


def _joined(flows: Sequence[_Flows]) -> Steps:
    """Put flows together, sorted by way, step, sender and receiver."""
    empty = np.empty(0, np.int64)
    size = [len(each.source) for each in flows]
    source = np.concatenate([empty, *(each.source for each in flows)])
    target = np.concatenate([empty, *(each.target for each in flows)])
    amount = np.concatenate(
        [np.empty(0), *(np.broadcast_to(each.bytes, len(each.source)) for each in flows)]
    )
    numbers = [(each.way, each.first, each.steps, int(each.part)) for each in flows]
    rest = np.repeat(np.array(numbers, np.int64).reshape(-1, 4), size, axis=0)
    order = np.lexsort((target, source, rest[:, 3], rest[:, 1], rest[:, 0]))
    way, first, count, part = rest[order].T
    return Steps(source[order], target[order], amount[order], way, first, count, part)


def _ring_flows(paths: Sequence[Ranks], count: int) -> list[_Flows]:
    """Rings that share the data: in each step everyone passes on one n-th of a ring's share."""
    share = 1 / (len(paths) * len(paths[0]))
    return [_Flows(path, np.roll(path, -1), share, way, 0, count) for way, path in enumerate(paths)]


def _chain_flows(paths: Sequence[Ranks]) -> list[_Flows]:
    """Chains that share the data: each hop follows the one before it."""
    return [
        _Flows(path[hop : hop + 1], path[hop + 1 : hop + 2], 1 / len(paths), way, hop)
        for way, path in enumerate(paths)
        for hop in range(len(path) - 1)
    ]


def _pat_flows(group: Ranks) -> list[_Flows]:
    """PAT: 1, 2, 4, … ranks further, one step after the other."""
    n = len(group)
    return [
        _Flows(group, np.roll(group, -(1 << bit)), min(1 << bit, n - (1 << bit)) / n, 0, bit)
        for bit in range(int(n - 1).bit_length())
    ]


def _dimension_flows(
    operation: Operation, group: Ranks, subgrid: Subgrid, meshed: bool
) -> list[_Flows]:
    """Rings along one axis after the other, and back the same way; every part of the data."""
    found = []
    both = operation is Operation.ALL_REDUCE
    way = 0
    for share, order in data_parts(subgrid):
        there = bytes_along_axes(subgrid, order)
        back = there[::-1]
        passes = there + back if both else back if operation is Operation.ALL_GATHER else there
        first = 0
        for axis, amount in passes:
            count = subgrid.sizes[axis] - 1
            each = share * amount / count
            if meshed and subgrid.inside and axis == 0:
                for row in group.reshape(subgrid.sizes[0], -1).T:
                    source, target = np.repeat(row, len(row)), np.tile(row, len(row))
                    others = source != target
                    found.append(
                        _Flows(source[others], target[others], each / count, way, first, count)
                    )
            else:
                rings = rings_along(group, subgrid, axis)
                for number, (a, b) in enumerate(rings):
                    to = way + number  # each way round is a way of its own
                    found.append(
                        _Flows(a.reshape(-1), b.reshape(-1), each / len(rings), to, first, count)
                    )
            first += count
        way += 2 if any(subgrid.rings) else 1
    return found


def _tree_flows(nodes: list[Ranks], *, in_switch: bool) -> list[_Flows]:
    """All-reduce by trees: in nodes along chains or through the switch, and between nodes."""
    k = channel_count(nodes)
    trees = _tree_parents(len(nodes))
    found: list[_Flows] = []
    for channel in range(k):
        heads = [int(ranks[channel]) for ranks in nodes]
        # Each node's members from the one that speaks to other nodes on.
        chains = [np.roll(ranks, -channel) for ranks in nodes]
        for tree, parent in enumerate(trees):
            found += _one_tree(
                chains, heads, parent, channel * len(trees) + tree, 1 / (k * len(trees)), in_switch
            )
    return found


def _tree_parents(n: int) -> list[list[int]]:
    """Return the parent of each node in both trees, -1 of the root; one empty tree of one node."""
    if n == 1:
        return [[-1]]
    edges = double_tree(n)
    found = []
    for tree in (edges[: n - 1], edges[n - 1 :]):
        parent = [-1] * n
        for child, above in tree.tolist():
            parent[child] = above
        found.append(parent)
    return found


def _one_tree(
    chains: list[Ranks],
    heads: list[int],
    parent: list[int],
    way: int,
    share: float,
    in_switch: bool,
) -> list[_Flows]:
    """One tree: each node sends up when its own members and its children have, and then down."""
    found: list[_Flows] = []
    ready = []  # the step in which a node has the sum of its own
    for chain in chains:
        n = len(chain)
        if in_switch and n > 1:
            after = np.roll(chain, -1)
            found.append(_Flows(chain, after, share, way, 0, part=Part.UP))
            found.append(_Flows(chain, after, share / n, way, 1, part=Part.DOWN))
            ready.append(2)
            continue
        found += [
            _Flows(chain[i : i + 1], chain[i - 1 : i], share, way, n - 1 - i)
            for i in range(n - 1, 0, -1)
        ]
        ready.append(n - 1)
    order = _from_root(parent)
    for node in reversed(order):
        above = parent[node]
        if above >= 0:
            found.append(_hop(heads[node], heads[above], share, way, ready[node]))
            ready[above] = max(ready[above], ready[node] + 1)
    known = [0] * len(chains)  # the step in which a node has the sum of all
    for node in order:
        above = parent[node]
        if above < 0:
            known[node] = ready[node]
        else:
            found.append(_hop(heads[above], heads[node], share, way, known[above]))
            known[node] = known[above] + 1
        chain = chains[node]
        n = len(chain)
        if in_switch and n > 1:
            after = np.roll(chain, -1)
            found.append(_Flows(chain, after, share / n, way, known[node], part=Part.UP))
            found.append(_Flows(chain, after, share, way, known[node] + 1, part=Part.DOWN))
            continue
        found += [
            _Flows(chain[i - 1 : i], chain[i : i + 1], share, way, known[node] + i - 1)
            for i in range(1, n)
        ]
    return found


def _hop(source: int, target: int, share: float, way: int, first: int) -> _Flows:
    return _Flows(np.array([source]), np.array([target]), share, way, first)


def _from_root(parent: list[int]) -> list[int]:
    """Return the nodes of a tree, each after its parent."""
    children: list[list[int]] = [[] for _ in parent]
    for node, above in enumerate(parent):
        if above >= 0:
            children[above].append(node)
    order = [parent.index(-1)]
    for node in order:  # grows as it goes
        order += children[node]
    return order
