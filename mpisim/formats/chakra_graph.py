"""Chakra trace of another tool → its nodes in an order of execution.

A Chakra trace is a graph; a program's rank is a list of rows on a CPU and on streams. Nodes are put
in an order that respects their data dependencies: the order of their recorded starts where there
are any, else of their numbers, which is how ASTRA-sim issues them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from ..base.frozen import frozen
from .chakra_schema import NodeType, attributes

__all__ = ["GraphNode", "ordered_nodes"]

READ = (
    NodeType.INVALID_NODE,
    NodeType.METADATA_NODE,
    NodeType.MEM_LOAD_NODE,
    NodeType.MEM_STORE_NODE,
    NodeType.COMP_NODE,
    NodeType.COMM_SEND_NODE,
    NodeType.COMM_RECV_NODE,
    NodeType.COMM_COLL_NODE,
)
_MOST_US = 10**12


@frozen
class GraphNode:
    """One node.

    Attributes
    ----------
    place : int
        In the file, from 0.
    id : int
    name : str
    type : NodeType
    on_cpu : bool
    duration : int
        Recorded, in ps; 0 where the file does not say.
    attributes : dict
    before : tuple of int
        Places of the nodes that it depends on; all come earlier in the order.
    """

    place: int
    id: int
    name: str
    type: NodeType
    on_cpu: bool
    duration: int
    attributes: dict[str, Any]
    before: tuple[int, ...]


def ordered_nodes(path: Path, nodes: Sequence[Any]) -> tuple[list[GraphNode], Counter[str]]:
    """Nodes of one file → the same in an order in which they can be executed.

    Converters leave dependencies on nodes that they dropped, and on the node itself: these are
    passed over. A control dependency (in PyTorch's traces the caller of an operator) counts as far
    as it does not contradict the data dependencies.

    Parameters
    ----------
    path : Path
        For messages.
    nodes : sequence
        Messages of a file.

    Returns
    -------
    list of GraphNode
    Counter
        What was passed over.

    Raises
    ------
    InputError
        If a node cannot be understood, two have one number, or they depend on each other in a
        circle.
    """
    counts: Counter[str] = Counter()
    place_of: dict[int, int] = {}
    for place, node in enumerate(nodes):
        if node.id in place_of:
            raise InputError(
                f"{path}: node {place} ({node.name!r}) has the id {node.id} of node "
                f"{place_of[node.id]}"
            )
        place_of[node.id] = place

    def known(place: int, numbers: Sequence[int]) -> list[int]:
        found = dict.fromkeys(place_of.get(n, -1) for n in numbers)
        counts["dependencies on nodes that are not there"] += found.pop(-1, 0) is None
        found.pop(place, None)
        return list(found)

    data = [known(place, node.data_deps) for place, node in enumerate(nodes)]
    order = _topological(path, nodes, data)
    rank = {place: i for i, place in enumerate(order)}
    found = []
    for place in order:
        control = known(place, nodes[place].ctrl_deps)
        kept = [other for other in control if rank[other] < rank[place]]
        counts["control dependencies against the data's order"] += len(control) - len(kept)
        found.append(_node(path, place, nodes[place], tuple(dict.fromkeys([*data[place], *kept]))))
    return found, counts


def _topological(path: Path, nodes: Sequence[Any], before: Sequence[Sequence[int]]) -> list[int]:
    """Nodes, what each waits for → places in order of dependencies, of starts, of numbers."""
    missing = [len(each) for each in before]
    after: list[list[int]] = [[] for _ in nodes]
    for place, each in enumerate(before):
        for other in each:
            after[other].append(place)
    key = [(node.start_time_micros, node.id) for node in nodes]
    heap = [(*key[place], place) for place, n in enumerate(missing) if not n]
    heapq.heapify(heap)
    order = []
    while heap:
        place = heapq.heappop(heap)[-1]
        order.append(place)
        for other in after[place]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(heap, (*key[other], other))
    if len(order) < len(nodes):
        left = next(place for place, n in enumerate(missing) if n)
        raise InputError(
            f"{path}: node {left} ({nodes[left].name!r}) is one of {len(nodes) - len(order)} "
            "that wait for each other in a circle"
        )
    return order


def _node(path: Path, place: int, node: Any, before: tuple[int, ...]) -> GraphNode:
    if node.type not in READ:
        name = NodeType(node.type).name if node.type in list(NodeType) else "unknown"
        raise InputError(
            f"{path}: node {place} ({node.name!r}) is of type {node.type} ({name}), which is not "
            f"read; allowed: {', '.join(kind.name for kind in READ)}"
        )
    if node.duration_micros > _MOST_US:
        raise InputError(
            f"{path}: node {place} ({node.name!r}) takes {node.duration_micros} µs; at most "
            f"{_MOST_US} are read"
        )
    found = attributes(node)
    return GraphNode(
        place=place,
        id=node.id,
        name=node.name or NodeType(node.type).name.lower(),
        type=NodeType(node.type),
        on_cpu=bool(found.get("is_cpu_op", False)),
        duration=node.duration_micros * 1_000_000,
        attributes=found,
        before=before,
    )
