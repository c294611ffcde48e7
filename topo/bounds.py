"""Topology → its capacity: cuts, bisection bandwidth, rails, sample routes.

Lower bounds of the time of a collective follow from cuts: the bytes that must cross a cut, over
the largest flow its links carry. No algorithm is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from .topology import LinkKind, NodeKind, Topology

__all__ = [
    "Cut",
    "SamplePath",
    "bisection",
    "bytes_across_cut",
    "cut_bound",
    "max_flow",
    "partition_bound",
    "rails",
    "sample_paths",
]


@frozen
class SamplePath:
    """A route from one GPU to another.

    Attributes
    ----------
    a, b : int
        GPUs.
    links : tuple of str
        Names, in order.
    bandwidth : float
        Of its narrowest link; of parallel links the sum, bytes per second.
    latency : float
        Seconds; of parallel ways one.
    """

    a: int
    b: int
    links: tuple[str, ...]
    bandwidth: float
    latency: float


def sample_paths(topology: Topology) -> list[SamplePath]:
    """Topology → routes from GPU 0 to GPUs 1, 2, 4, 8, … and the last."""
    n = topology.n_gpus
    others = [1 << i for i in range(n.bit_length()) if 1 << i < n - 1]
    others += [n - 1] if n > 1 else []
    found = []
    for other in others:
        route = topology.route(0, other)
        share = topology.share[route]
        found.append(
            SamplePath(
                0,
                other,
                tuple(topology.link_name(link) for link in route.tolist()),
                float((topology.bandwidth[route] / share).min()),
                float((topology.latency[route] * share).sum()),
            )
        )
    return found


def bisection(topology: Topology) -> float:
    """Topology → bytes per second from the first half of the GPUs to the second.

    The largest flow over all links, by whatever ways; an upper bound of what routes can use.
    """
    half = topology.n_gpus // 2
    return max_flow(topology, topology.gpu[:half], topology.gpu[half:])


def max_flow(topology: Topology, sources: NDArray[np.int64], sinks: NDArray[np.int64]) -> float:
    """Nodes of a topology → the largest flow to others, exact to 1 part in 10,000.

    Parameters
    ----------
    topology : Topology
    sources, sinks : int64, shape (m,) and (k,)
        Numbers of nodes of the graph (``topology.gpu`` has those of GPUs), without overlap.

    Returns
    -------
    float
        Bytes per second; 0 without sources or without sinks.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    if not len(sources) or not len(sinks):
        return 0.0
    n = topology.n_nodes
    total = float(topology.bandwidth[np.isin(topology.source, sources)].sum())
    source = np.concatenate([topology.source, np.full(len(sources), n), sinks])
    target = np.concatenate([topology.target, sources, np.full(len(sinks), n + 1)])
    ends = np.full(len(sources) + len(sinks), total)
    graph = csr_array(
        (np.concatenate([topology.bandwidth, ends]), (source, target)), shape=(n + 2, n + 2)
    )
    graph.sum_duplicates()
    # Capacities are 32-bit integers; no link needs more than all that can leave the sources.
    unit = total / 2**30
    capacity = np.clip(np.rint(graph.data / unit), 1, 2**30).astype(np.int32)
    flow = maximum_flow(csr_array((capacity, graph.indices, graph.indptr), graph.shape), n, n + 1)
    return float(flow.flow_value) * unit


def rails(topology: Topology) -> dict[str, float]:
    """Topology → bytes per second of each port of a node (``"nic0"``) into the fabric.

    The least of all nodes. Nodes of the graph whose names are equal but for what stands before the
    first dot are the same port of different nodes.
    """
    out = topology.kind == LinkKind.NIC
    out &= topology.node_kind[topology.target] == NodeKind.SWITCH
    sending: dict[int, float] = {}
    for node, amount in zip(
        topology.source[out].tolist(), topology.bandwidth[out].tolist(), strict=True
    ):
        sending[node] = sending.get(node, 0.0) + amount
    found: dict[str, float] = {}
    for node, amount in sending.items():
        name = topology.names[node].partition(".")[2] or topology.names[node]
        found[name] = min(amount, found.get(name, amount))
    return found


class Cut(NamedTuple):
    """A lower bound of the time of a communication.

    Attributes
    ----------
    seconds : float
        Bytes over capacity; latencies come on top.
    bytes : float
        Bytes that must go from one side to the other.
    capacity : float
        The largest flow between the sides, bytes per second, over all links and by whatever ways.
    side : tuple of int
        Ranks on the sending side.
    """

    seconds: float
    bytes: float
    capacity: float
    side: tuple[int, ...]


def bytes_across_cut(operation: Operation, bytes: float, side: int, ranks: int) -> float:
    """Operation, bytes → bytes that must leave `side` of the ranks of a group for the others.

    Parameters
    ----------
    operation : Operation
    bytes : float
        The full buffer, as `Network.price` has it.
    side : int
        Members of the group on the sending side, 1 to `ranks` - 1. Where one member sends to all it
        is among them, where one receives from all it is not.
    ranks : int
        Members of the group.

    Raises
    ------
    InputError
        For an operation without bytes of its own.

    Examples
    --------
    >>> bytes_across_cut(Operation.ALL_GATHER, 8.0, 1, 4)
    2.0
    """
    others = ranks - side
    shares = {
        Operation.ALL_REDUCE: 1.0,  # the sum over this side, whatever it is made of
        Operation.ALL_GATHER: side / ranks,
        Operation.REDUCE_SCATTER: others / ranks,
        Operation.BROADCAST: 1.0,
        Operation.REDUCE: 1.0,
        Operation.ALL_TO_ALL: side * others / ranks,
        Operation.GATHER: side / ranks,
        Operation.SCATTER: others / ranks,
        Operation.SEND_RECV: 1.0,
    }
    if operation not in shares:
        raise InputError(f"a communication of kind {operation.name} has no bytes to cross a cut")
    return bytes * shares[operation]


def cut_bound(
    topology: Topology,
    operation: Operation,
    bytes: float,
    members: Sequence[int],
    sides: Iterable[Sequence[int]] | None = None,
) -> Cut:
    """Communication, cuts → the tightest lower bound of its time among them.

    Parameters
    ----------
    topology : Topology
    operation : Operation
    bytes : float
        The full buffer.
    members : sequence of int
        Ranks, in the communicator's order.
    sides : iterable of sequences of int, optional
        Members on the sending side of each cut; by default `prefix_cuts`, and all others. Where an
        operation has a root, cuts count that it sends or receives over.

    Raises
    ------
    InputError
        For an operation without bytes of its own, and if no cut separates sender and receiver.
    """
    group = np.asarray(members, np.int64)
    found: Cut | None = None
    chosen = [
        np.isin(group, np.asarray(side, np.int64))
        for side in (prefix_cuts(members) if sides is None else sides)
    ]
    if sides is None:
        chosen += [~here for here in chosen]
    for here in chosen:
        if not 0 < here.sum() < len(here) or not _cut_counts(operation, here):
            continue
        need = bytes_across_cut(operation, bytes, int(here.sum()), len(here))
        capacity = max_flow(topology, topology.gpu[group[here]], topology.gpu[group[~here]])
        cut = Cut(need / capacity, need, capacity, tuple(group[here].tolist()))
        if found is None or cut.seconds > found.seconds:
            found = cut
    if found is None:
        raise InputError(f"{operation.name.lower()}: no cut separates who sends from who receives")
    return found


def partition_bound(
    operation: Operation,
    bytes: float,
    ranks: int,
    parts: int,
    capacity: float,
    *,
    reduced_in_network: bool = False,
) -> float:
    """Operation, a group of equal parts → lower bound of its time in seconds.

    Without reductions in switches the parts of an all-reduce send 2 (p - 1) buffers together, p of
    them: p - 1 to be summed up, p - 1 to be told the sum (Patarasuk, Yuan 2009). The links out of
    all parts carry p times `capacity`.

    Parameters
    ----------
    operation : Operation
        One in which all ranks do the same.
    bytes : float
        The full buffer.
    ranks, parts : int
        Of the group; parts of `ranks` / `parts` ranks each.
    capacity : float
        What one part can send to the others, bytes per second.
    reduced_in_network : bool
        Whether switches sum up.

    Examples
    --------
    >>> partition_bound(Operation.ALL_REDUCE, 8e9, 4, 4, 1e9)
    12.0
    """
    if operation is Operation.ALL_REDUCE and not reduced_in_network:
        return 2 * (parts - 1) * bytes / (parts * capacity)
    if operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER):  # what must come in, or go
        return (parts - 1) * bytes / (parts * capacity)
    return bytes_across_cut(operation, bytes, ranks // parts, ranks) / capacity


def prefix_cuts(members: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ranks of a group → the first 1, 2, 4, … and the first half of them, ascending.

    On regular networks these are a GPU, nodes, leaves, pods, and the bisection.
    """
    ordered = sorted(members)
    size = 1
    while size < len(ordered) / 2:
        yield tuple(ordered[:size])
        size *= 2
    yield tuple(ordered[: len(ordered) // 2])


def _cut_counts(operation: Operation, here: NDArray[np.bool_]) -> bool:
    """Whether the operation must send bytes from this side of a cut to the other."""
    if operation in (Operation.BROADCAST, Operation.SCATTER):
        return bool(here[0])
    if operation in (Operation.REDUCE, Operation.GATHER):
        return not here[0]
    if operation is Operation.SEND_RECV and len(here) == 2:
        return bool(here[0])
    return True
