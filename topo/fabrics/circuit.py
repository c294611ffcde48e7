"""Optical circuit switching: any GPU reaches any other by a circuit of its own, once it is set up.

The graph has the circuits of all pairs, as if all stood at once. That a GPU has ports for few of
them, and what setting one up takes, is no property of a link: see `mpisim.topo.circuits`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from .fabric import Fabric
from .fabric_graph import FabricGraph, Ports

__all__ = ["circuit"]

MAX_PORTS = 2048
"""Of a fabric: each pair has a link in each direction."""


def circuit(fabric: Fabric, ports: Ports) -> FabricGraph:
    """Build an optical interface a port, and a circuit in each direction between each two.

    Parameters
    ----------
    fabric : Fabric
        Of kind ``"circuit"``, with `link_bandwidth`.
    ports : Ports
        What is to be joined; the graph keeps it.

    Raises
    ------
    InputError
        If there are more than `MAX_PORTS`.
    """
    n, link = ports.count, fabric.link_bandwidth
    assert link is not None
    if n > MAX_PORTS:
        raise InputError(f"kind = 'circuit' joins {n} GPUs; at most {MAX_PORTS} are possible")
    graph = FabricGraph(ports)
    optics = graph.add_switches([f"optics{i}" for i in range(n)])
    up, down = graph.connect_ports(optics)
    source, target = np.nonzero(~np.eye(n, dtype=bool))
    between = np.full((n, n), -1)
    between[source, target] = graph.add_links(optics[source], optics[target], link.si, ports.hop)

    def hops(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.stack([up[a], between[a, b], down[b]], axis=1)

    graph.hops = hops
    return graph
