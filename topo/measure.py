"""What a topology can carry: across its middle, out of its nodes, from GPU to GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .topology import LinkKind, NodeKind, Topology

__all__ = ["Path", "bisection", "max_flow", "rails", "sample_paths"]


@dataclass(frozen=True)
class Path:
    """The way from one GPU to another.

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


def sample_paths(topology: Topology) -> list[Path]:
    """Return the ways from GPU 0 to the next, and to GPUs twice as far each time, and the last."""
    n = topology.n_gpus
    others = [1 << i for i in range(n.bit_length()) if 1 << i < n - 1]
    others += [n - 1] if n > 1 else []
    found = []
    for other in others:
        route = topology.route(0, other)
        share = topology.share[route]
        found.append(
            Path(
                0,
                other,
                tuple(topology.link_name(link) for link in route.tolist()),
                float((topology.bandwidth[route] / share).min()),
                float((topology.latency[route] * share).sum()),
            )
        )
    return found


def bisection(topology: Topology) -> float:
    """Return what the first half of the GPUs can send to the second, bytes per second.

    The largest flow over all links, by whatever ways; an upper bound of what routes can use.
    """
    half = topology.n_gpus // 2
    return max_flow(topology, topology.gpu[:half], topology.gpu[half:])


def max_flow(topology: Topology, sources: NDArray[np.int64], sinks: NDArray[np.int64]) -> float:
    """Return the largest flow from some nodes to others, exact to 1 part in 10,000."""
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
    """Return by port of a node (``"nic0"``) what it can send into the fabric, bytes per second.

    The least of all nodes. Nodes of the graph that are called alike but for what stands before the
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
