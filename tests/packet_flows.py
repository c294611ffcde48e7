"""Topologies of a NIC a GPU, and flows on them, for tests of packets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import fabrics
import numpy as np

from mpisim.topo import Topology
from mpisim.topo.packets import PacketFlow, packet_settings

__all__ = ["BYTES", "PLAIN", "RATE", "US", "flow", "latency", "leaves", "star", "uneven"]

PLAIN = packet_settings(congestion="none", pfc=False)
"""Queues alone."""

RATE = fabrics.PORT
"""Of a port, bytes per second: 10,000 bytes a µs."""

BYTES = 1 << 22

US = 1_000_000


def star(gpus: int) -> Topology:
    """GPUs with a NIC each on one switch."""
    return fabrics.cluster(1, kind="switch").topology(gpus)


def leaves(gpus: int, leaf: int, spines: int) -> Topology:
    """GPUs with a NIC each below leaves, under spines."""
    fabric: dict[str, Any] = {"kind": "fat-tree", "leaf": leaf, "spines": spines}
    return fabrics.cluster(1, ecmp="adaptive", **fabric).topology(gpus)


def flow(
    topology: Topology, a: int, b: int, bytes: int = BYTES, channel: str = "0", **more: Any
) -> PacketFlow:
    given: dict[str, Any] = {"step": 0, "repeats": 1, "start": 0} | more
    links = tuple(topology.route(a, b).tolist())
    return PacketFlow(str(a), str(b), bytes, channel, links=links, **given)


def latency(topology: Topology, a: int, b: int) -> float:
    """Of all links of a way, ps."""
    return float(topology.latency[topology.route(a, b)].sum()) * 1e12


def uneven(topology: Topology, rng: np.random.Generator) -> Topology:
    """The same with bandwidths and latencies of links drawn anew."""
    return replace(
        topology,
        bandwidth=topology.bandwidth * rng.uniform(0.2, 1.0, topology.n_links),
        latency=topology.latency * rng.uniform(0.2, 3.0, topology.n_links),
    )
