"""Sends and receives, and collectives made of them (all-to-all, gather, scatter) → their cost.

Time model: latency, and the slowest of what leaves the GPUs and what leaves the nodes. All ranks
of a node share its NICs, so that an all-to-all on r of a node's GPUs loads each NIC with what
r GPUs over the number of NICs send to other nodes.
"""

from __future__ import annotations

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from .constants import LL, PROTOCOLS, SIMPLE, LatencyConstants, NcclConstants
from .link_bandwidths import LinkBandwidths
from .settings import Settings
from .shape import Shape
from .system import System
from .tuning import StepLatency, step_latency

__all__ = ["SEND_OPERATIONS", "SendCost", "send_cost"]

SEND_OPERATIONS = frozenset(
    (Operation.SEND_RECV, Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER)
)


@frozen
class SendCost:
    """Cost of an operation made of sends, per byte of its full buffer.

    Attributes
    ----------
    latency_inside, latency_across : float
        Seconds.
    least_inside, least_across : float
        The part of them that a platform's factors are of: with LL, less what the CPU posts.
    inside, across : float
        Seconds per byte on the links of the busiest GPU, and on the NICs of the busiest node.
    channels : int
        Connections to one peer.
    protocol : str
    """

    latency_inside: float
    latency_across: float
    least_inside: float
    least_across: float
    inside: float
    across: float
    channels: int
    protocol: str


def send_cost(
    operation: Operation,
    bytes: float,
    shape: Shape,
    found: LinkBandwidths,
    system: System,
    settings: Settings,
    constants: NcclConstants,
    latencies: LatencyConstants | None = None,
) -> SendCost:
    """Operation made of sends and receives, bytes → its cost.

    Parameters
    ----------
    operation : Operation
        One of `SEND_OPERATIONS`.
    bytes : float
        The full buffer.
    found : LinkBandwidths
        Of the wires.
    latencies : LatencyConstants, optional
        RCCL's, in place of NCCL's.
    """
    latencies = latencies or constants
    limits = constants.raw["point-to-point"]
    part = bytes if operation is Operation.SEND_RECV else bytes / shape.ranks
    # So little that flags travel with the data.
    protocol = LL if part <= limits["ll-most"] else SIMPLE
    full = limits["message"]
    step = _send_step(part / full, system, settings, shape, found, latencies)
    least = _send_step(0.0, system, settings, shape, found, latencies)
    n, r, nodes = shape.ranks, shape.max_per_node, shape.nodes
    there = n - shape.min_per_node if nodes > 1 else 0  # peers on other nodes
    here = max(r - 1, 0)
    latency_across = least_across = 0.0
    if there:
        latency_across = step.across + (there - 1) * step.post
        least_across = least.across
    # On the way to another rail's NIC data crosses to the GPU next to it.
    relayed = settings.pxn_level == 2 and found.fast and r > 1
    base = latencies.base["ring"]
    latency_inside, least_inside = _between(part / full, base[LL], base[SIMPLE]), base[LL]
    if here or relayed:
        latency_inside += step.inside
        least_inside += least.inside
    per_peer = _net_channels(shape, settings, constants)
    connection = 0.0
    if there:
        one = found.across / max(shape.nics, 1)
        connection = min(
            per_peer * _connection_bandwidth(one, nodes, settings, constants), found.across
        )
    inside = across = 0.0
    channels = per_peer if there else _channels(part, shape, settings, constants)
    if operation is Operation.SEND_RECV:
        if there:
            across = 1 / connection
        else:
            inside = 1 / min(_pair_bandwidth(found, shape, system), channels * constants.block)
    elif operation is Operation.ALL_TO_ALL:
        if here:
            relay = there / n * (r - 1) / r if relayed else 0.0
            rate = (
                min(found.inside, here * channels * constants.block) if not there else found.inside
            )
            inside = (here / n + relay) / rate
        if there:
            across = r * there / n / min(found.across, r * there * connection)
    else:  # everything goes over the links of one GPU, and over its NIC
        if here:
            inside = here / n / found.inside
        if there:
            across = there / n / min(found.across / max(shape.nics, 1), there * connection)
    return SendCost(
        latency_inside,
        latency_across,
        least_inside,
        least_across,
        inside,
        across,
        channels,
        PROTOCOLS[protocol],
    )


def _between(filled: float, small: float, large: float) -> float:
    """Return a latency between that of the smallest sends and that of whole messages to a NIC."""
    return small + (large - small) * min(filled, 1.0)


def _send_step(
    filled: float,
    system: System,
    settings: Settings,
    shape: Shape,
    found: LinkBandwidths,
    constants: LatencyConstants,
) -> StepLatency:
    """Return the latencies of a send's step: with LL at first, with Simple for whole messages.

    No step of time is measured where sends leave LL: what Simple takes longer comes by degrees, as
    its messages fill. And each peer on another node costs what Simple's posts do, whatever the
    protocol: all-to-all of 2 kB takes 59 us on 16 A100 in 2 nodes, 36 on 8
    (github:argonne-lcf/alcf-nccl-tests).
    """
    small, large = (
        step_latency("ring", protocol, system, settings, shape, found, constants)
        for protocol in (LL, SIMPLE)
    )
    inside = _between(filled, small.inside, large.inside)
    across = _between(filled, small.across, large.across)
    return StepLatency(inside, across, large.post)


def _connection_bandwidth(
    nic: float, nodes: int, settings: Settings, constants: NcclConstants
) -> float:
    """Return the bandwidth of one connection over the network.

    A message takes as long as one of NCCL's default size does at the connection's speed, larger
    ones what the NIC takes for the rest besides, and none less than the NIC takes.
    """
    message, buffers = constants.raw["point-to-point"]["message"], constants.raw["buffers"]
    # NCCL takes no more than a step of the buffer (`computeBuffSizes` of src/init.cc).
    most = (settings.buffsize or buffers["simple"]) // buffers["steps"]
    size = min(settings.p2p_net_chunksize or message, most)
    first = max(message / constants.connections[nodes > 2].si, min(size, message) / nic)
    return size / (first + max(size - message, 0) / nic)


def _channels(part: float, shape: Shape, settings: Settings, constants: NcclConstants) -> int:
    """Return the connections of a send inside a node: more for large ones.

    They begin with the peer's share of all channels, and double while each would carry more than
    32 steps of the buffer.
    """
    limits = constants.raw["point-to-point"]
    most = min(limits["channels"], settings.max_nchannels or limits["channels"])
    count = min(most, 1 << max(0, (limits["channels"] // shape.ranks).bit_length() - 1))
    while 2 * count <= most and part / count > limits["most-per-channel"]:
        count *= 2
    return count


def _net_channels(shape: Shape, settings: Settings, constants: NcclConstants) -> int:
    """Return the connections a send over the network has: fewer in large groups."""
    if settings.nchannels_per_net_peer is not None:
        return settings.nchannels_per_net_peer
    limits = constants.raw["point-to-point"]
    count: int = limits["most-per-net-peer"]
    while count > 1 and count * shape.ranks > 4 * limits["channels-across"]:
        count //= 2
    return count


def _pair_bandwidth(found: LinkBandwidths, shape: Shape, system: System) -> float:
    """Return the bandwidth from one GPU to another of its node."""
    if found.fast and system.intra == "mesh" and shape.max_per_node > 2:
        return found.inside / (shape.max_per_node - 1)
    return found.inside
