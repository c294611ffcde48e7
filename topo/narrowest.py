"""Links behind narrower ones: who uses them has to pass cards that carry no more than they."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .topology import LinkKind, Topology

__all__ = ["behind_ports"]

_EQUAL = 1 + 1e-12
"""Sums of bandwidths are equal up to this factor."""


def behind_ports(topology: Topology, gpus_per_node: int) -> NDArray[np.bool_]:
    """Say which links can never be full, because NICs limit what comes to them.

    A link between a GPU and its NICs carries only what these carry if every route over it goes
    through one of them, and so does a link between switches. If it can take what all of them bring
    at once (`Topology.feed`), it holds nobody back, and need not be looked at.

    Parameters
    ----------
    topology : Topology
        Of equal nodes, as a cluster makes it; links of nodes come first, node by node.
    gpus_per_node : int

    Returns
    -------
    bool, shape (n_links,)
    """
    found = topology.feed <= topology.bandwidth * _EQUAL
    nodes = topology.n_gpus // gpus_per_node
    inside = int((topology.kind < LinkKind.NIC).sum())
    changed = topology.nominal != topology.bandwidth
    if nodes < 2 or inside % nodes or changed.any():  # nodes may differ
        return found
    each = inside // nodes
    here, both = np.arange(gpus_per_node), np.arange(2 * gpus_per_node)
    able = np.isin(topology.kind[:each], (LinkKind.PCIE, LinkKind.HOST, LinkKind.SOCKET))
    ports: list[set[int]] = [set() for _ in range(each)]
    # Routes that begin or end in the first node; the port of this node is the first or the last.
    for first, senders, receivers in ((True, here, both), (False, both, here)):
        index, links = topology.routes(
            np.repeat(senders, len(receivers)), np.tile(receivers, len(senders))
        )
        for i in range(len(index) - 1):
            route = links[index[i] : index[i + 1]]
            own = route[route < each]
            through = route[topology.kind[route] == LinkKind.NIC]
            if len(through):
                port = int(through[0 if first else -1])
                for link in own.tolist():
                    ports[link].add(port)
            else:
                able[own] = False
    for link in np.flatnonzero(able).tolist():
        brought = topology.bandwidth[sorted(ports[link])].sum()
        able[link] = bool(ports[link]) and brought <= topology.bandwidth[link]
    found[:inside] = np.tile(able, nodes)
    return found
