"""Sends and receives, and the collectives that are made of them: all-to-all, gather, scatter.

Time model: latency, and the slowest of what leaves the GPUs and what leaves the nodes. All ranks
of a node share its NICs, so that an all-to-all on r of a node's GPUs loads each NIC with what
r GPUs over the number of NICs send to other nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpisim.program import Operation

from .graph import Links
from .latency import hops
from .settings import Settings
from .shape import Shape
from .system import System
from .tables import LL, SIMPLE, Tables

__all__ = ["OPERATIONS", "Traffic", "eager", "peer_channels", "traffic"]

OPERATIONS = frozenset(
    (Operation.SEND_RECV, Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER)
)


@dataclass(frozen=True)
class Traffic:
    """What an operation made of sends does, per byte of its full buffer.

    Attributes
    ----------
    latency_inside, latency_across : float
        Seconds.
    inside, across : float
        Seconds per byte on the links of the busiest GPU, and on the NICs of the busiest node.
    channels : int
        Connections to one peer.
    protocol : str
    """

    latency_inside: float
    latency_across: float
    inside: float
    across: float
    channels: int
    protocol: str


def traffic(
    operation: Operation,
    small: bool,
    shape: Shape,
    found: Links,
    system: System,
    settings: Settings,
    tables: Tables,
) -> Traffic:
    """Return what an operation does.

    Parameters
    ----------
    operation : Operation
        One of `OPERATIONS`.
    small : bool
        Whether each peer gets so little that flags travel with the data (LL).
    found : Links
        Of the wires.
    """
    protocol = LL if small else SIMPLE
    step = hops("ring", protocol, system, settings, shape, found, tables)
    n, r, nodes = shape.ranks, shape.most, shape.nodes
    there = n - shape.least if nodes > 1 else 0  # peers on other nodes
    here = max(r - 1, 0)
    latency_across = 0.0
    if there:
        latency_across = step.across + (there - 1) * step.post
    # On the way to another rail's NIC data crosses to the GPU next to it.
    relayed = settings.pxn_level == 2 and found.fast and r > 1
    latency_inside = tables.base["ring"][protocol] + (step.inside if here or relayed else 0.0)
    per_peer = peer_channels(shape, settings, tables)
    connection = min(per_peer * tables.connection.si, found.across) if there else 0.0
    if operation is Operation.SEND_RECV:
        pair = _pair(found, shape, system)
        if nodes > 1:
            return Traffic(latency_inside, latency_across, 0.0, 1 / connection, per_peer, "simple")
        return Traffic(latency_inside, 0.0, 1 / pair, 0.0, _inside_channels(tables), "simple")
    if operation is Operation.ALL_TO_ALL:
        relay = there / n * (r - 1) / r if relayed else 0.0
        inside = (here / n + relay) / found.inside if here else 0.0
        rate = min(found.across, r * there * connection) if there else 1.0
        across = r * there / n / rate
    else:  # everything through the links of one GPU and its NIC
        inside = here / n / found.inside if here else 0.0
        one = found.across / max(shape.nics, 1)
        across = there / n / min(one, there * connection) if there else 0.0
    name = "ll" if small else "simple"
    channels = per_peer if there else _inside_channels(tables)
    return Traffic(latency_inside, latency_across, inside, across, channels, name)


def eager(operation: Operation, shape: Shape, tables: Tables) -> int:
    """Return the largest full buffer whose parts travel with flags."""
    most: int = tables.raw["point-to-point"]["ll-most"]
    return most if operation is Operation.SEND_RECV else most * shape.ranks


def peer_channels(shape: Shape, settings: Settings, tables: Tables) -> int:
    """Return the connections a send over the network has: fewer in large groups."""
    if settings.nchannels_per_net_peer is not None:
        return settings.nchannels_per_net_peer
    limits = tables.raw["point-to-point"]
    count: int = limits["most-per-net-peer"]
    while count > 1 and count * shape.ranks > 4 * limits["channels-across"]:
        count //= 2
    return count


def _inside_channels(tables: Tables) -> int:
    channels: int = tables.raw["point-to-point"]["channels"]
    return channels


def _pair(found: Links, shape: Shape, system: System) -> float:
    """Return what one GPU can send to one other of its node."""
    if found.fast and system.intra == "mesh" and shape.most > 2:
        return found.inside / (shape.most - 1)
    return found.inside
