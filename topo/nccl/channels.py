"""Links a group uses, and NCCL's search of channels over them.

NCCL searches paths of equal speed, from a list of speeds, until the links are full. The search of
regular nodes has closed forms: as many paths of the speed as the links of one GPU, or the NICs of
one node, carry. What the links carry in truth, not rounded to the list, is the same graph with
other speeds (`graphs_at_link_speed`).
"""

from __future__ import annotations

from dataclasses import fields, replace

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

from .constants import NcclConstants
from .settings import Settings
from .shape import Shape
from .system import System

__all__ = [
    "ChannelGraph",
    "Factors",
    "LinkBandwidths",
    "graphs_at_link_speed",
    "link_bandwidths",
    "search_channels",
]


@frozen
class LinkBandwidths:
    """What the links carry of a group, bytes per second.

    Attributes
    ----------
    inside : float
        Out of one GPU to others of its node.
    across : float
        Out of one node; 0 where all are on one.
    fast : bool
        Whether the GPUs of a node are joined by fast links.
    """

    inside: float
    across: float
    fast: bool


@frozen
class ChannelGraph:
    """Channels of one pattern.

    Attributes
    ----------
    channels : int
    inside, across : float
        Speed of one channel in a node and between nodes, bytes per second.
    """

    channels: int
    inside: float
    across: float


_HYPERCUBE_SHARE = {1: 1.0, 2: 1 / 6, 3: 1 / 3, 4: 2 / 3, 5: 2 / 3, 6: 2 / 3, 7: 2 / 3}
"""Share of the six links of a GPU of the DGX-1 that a group of the first n GPUs can use: one joins
the first pair (22 GB/s on two V100, vTrain's all-reduce), and a pair at least however a node is
split into pairs; a quad has four of the links of each of its members."""


def link_bandwidths(
    system: System, settings: Settings, shape: Shape, constants: NcclConstants
) -> LinkBandwidths:
    """Return what the links carry of a group. A NIC is never faster than its PCIe slot.

    Parameters
    ----------
    system : System
    settings : Settings
        May forbid direct transfers between GPUs, and some of the NICs.
    shape : Shape
        Of the group.
    constants : NcclConstants

    Returns
    -------
    LinkBandwidths
        In bytes per second.
    """
    n, per_node = shape.max_per_node, system.gpus_per_node
    slow = system.pcie_bandwidth
    if system.intra == "pcie" and n > per_node / 2 and per_node > 2:
        slow = min(slow, system.socket_bandwidth)  # the ring crosses between the sockets
    inside, fast = slow, False
    if not settings.p2p_disable:
        if system.intra == "nvswitch":
            inside, fast = system.link_bandwidth, True
        elif system.intra == "mesh":
            inside, fast = system.link_bandwidth * max(n - 1, 1) / max(per_node - 1, 1), True
        elif system.intra == "hypercube":
            inside, fast = system.link_bandwidth * _HYPERCUBE_SHARE.get(n, 1.0), True
        elif system.intra == "pairs" and (n == 1 or shape.bridged):
            inside, fast = system.link_bandwidth, True
    if shape.nodes == 1:
        return LinkBandwidths(inside, 0.0, fast)
    nics = shape.nics if settings.ib_hca is None else min(shape.nics, settings.ib_hca)
    nic = min(system.nic_bandwidth, system.pcie_bandwidth * constants.raw["links"]["pcie-reach"])
    if system.nic_path == "sys" or not system.gpudirect:
        nic = min(nic, system.socket_bandwidth)
    return LinkBandwidths(inside, max(nics, 1) * nic, fast)


def search_channels(
    found: LinkBandwidths, shape: Shape, constants: NcclConstants
) -> dict[str, ChannelGraph]:
    """Return the graphs that NCCL's search arrives at.

    Parameters
    ----------
    found : LinkBandwidths
        What the links carry of the group, in bytes per second.
    shape : Shape
        Of the group.
    constants : NcclConstants
        With the speeds that the search tries.

    Returns
    -------
    dict of str to ChannelGraph
        ``ring``, ``tree`` (which may be faster inside a node than across) and ``nvls``.
    """
    most = constants.raw["channels"]["most-searched"]
    n = shape.max_per_node
    # A ring of n enters and leaves the node once on each channel: all GPUs but one pass it on.
    passing = (n - 1) / n if shape.nodes > 1 else 1.0
    if shape.nodes == 1:
        speeds, limit = constants.inside_speeds, found.inside
    else:
        speeds, limit = constants.across_speeds, found.across / max(shape.nics, 1)
    best = ChannelGraph(1, speeds[-1], speeds[-1])
    reached = 0.0
    for speed in speeds:
        if speed > limit:
            continue
        if reached and speed < 0.49 * best.inside:
            break
        channels = int(limit / speed) * (1 if shape.nodes == 1 else shape.nics)
        if n > 1 and passing:
            channels = min(channels, int(found.inside / (speed * passing)))
        channels = max(1, min(channels, most))
        if channels * speed > reached:
            reached = channels * speed
            best = ChannelGraph(channels, speed, speed)
        # Enough: NCCL asks for no more than a GPU's own links carry, however fast the NICs are.
        if reached >= found.inside:
            break
    tree = best
    if shape.nodes == 2:
        room = found.inside / best.channels * (1 / passing if passing else 1)
        fits = [speed for speed in speeds if best.across <= speed <= min(room, 2 * best.across)]
        # Alone on its node a GPU has no others to reach, and no limit but the NIC's.
        tree = replace(best, inside=max(fits, default=best.inside))
    return {
        "ring": _duplicated(best, constants),
        "tree": _duplicated(tree, constants),
        "nvls": _nvls_graph(found, shape, constants),
    }


def _duplicated(graph: ChannelGraph, constants: NcclConstants) -> ChannelGraph:
    """Split fast channels in two, for more threads to share the work."""
    limits = constants.raw["channels"]
    many = constants.generation >= 90 and graph.inside < 50e9 and graph.channels > 4
    if graph.inside < limits["duplicated-from"] * 1e9 or many:
        return graph
    times = min(2, limits["most-searched"] // graph.channels)
    return ChannelGraph(graph.channels * times, graph.inside / times, graph.across / times)


def _nvls_graph(found: LinkBandwidths, shape: Shape, constants: NcclConstants) -> ChannelGraph:
    """Return the graph of NVLS: each GPU of a node reduces a part, in a channel of its own."""
    heads = min(shape.min_per_node, constants.raw["channels"]["nvls-heads"])
    one = found.inside / heads
    inside = max((speed for speed in constants.inside_speeds if speed <= one), default=0.0)
    if shape.nodes == 1:
        return ChannelGraph(heads, inside, inside)
    inside = max((speed for speed in constants.across_speeds if speed <= one), default=0.0)
    out = found.across / heads
    across = max((speed for speed in constants.across_speeds if speed <= out), default=0.0)
    return ChannelGraph(heads, inside, across)


def graphs_at_link_speed(
    graphs: dict[str, ChannelGraph], found: LinkBandwidths, shape: Shape, constants: NcclConstants
) -> dict[str, ChannelGraph]:
    """Return the graphs with the speeds that the links truly have.

    A ring goes over each link once. A tree of two nodes sends half as much between them as a ring
    does, so that each channel may be twice as fast inside; the first and the last of a node's
    chain have a link to spare.

    Parameters
    ----------
    graphs : dict of str to ChannelGraph
        From `search_channels`; their numbers of channels stay.
    found : LinkBandwidths
        What the links carry of the group, in bytes per second.
    shape : Shape
        Of the group.
    constants : NcclConstants

    Returns
    -------
    dict of str to ChannelGraph
        With the same keys.
    """
    inside, across = found.inside, found.across if shape.nodes > 1 else found.inside
    n = shape.max_per_node
    ring = min(inside, across) if n > 1 else across
    chain = inside * n / (n - 1) if shape.nodes > 1 and n > 1 else inside
    tree = min(chain, 2 * across if shape.nodes == 2 else across)
    if n == 1:
        tree = 2 * across if shape.nodes == 2 else across
    ring_channels, tree_channels = graphs["ring"].channels, graphs["tree"].channels
    heads = graphs["nvls"].channels
    wide = constants.raw["multicast"]
    reached = min(1.0, (wide["gpus"] / n) ** wide["power"]["value"])
    return {
        "ring": ChannelGraph(ring_channels, ring / ring_channels, ring / ring_channels),
        "tree": ChannelGraph(
            tree_channels, tree / tree_channels, min(tree, across) / tree_channels
        ),
        # The switch reads a part of every GPU's buffer for each head, and writes the head's result
        # to all: on one node a port carries n + 1 parts in place of n.
        "nvls": ChannelGraph(
            heads, reached * inside / (heads + (shape.nodes == 1)), across / heads
        ),
    }


def channel_counts(
    graphs: dict[str, ChannelGraph],
    shape: Shape,
    settings: Settings,
    constants: NcclConstants,
    arch: str,
) -> tuple[int, int]:
    """Return how many channels the communicator has: of rings and trees, and of NVLS.

    Parameters
    ----------
    graphs : dict of str to ChannelGraph
        From `search_channels`.
    shape : Shape
        Of all ranks of the communicator.
    settings : Settings
        May set the least and the most channels, and those of NVLS.
    constants : NcclConstants
    arch : str
        Kind of GPU; see `architectures`.

    Returns
    -------
    int
        Of rings and trees.
    int
        Of NVLS.
    """
    limits = constants.raw["channels"]
    ring = graphs["ring"]
    count = min(2 * min(ring.channels, graphs["tree"].channels), limits["most"])
    if constants.generation >= 90 and shape.nodes > 1 and ring.inside > 45e9 and count < 16:
        count *= 2
    low = settings.min_nchannels or 1
    high = settings.max_nchannels or limits["most"]
    if low > high:
        low = high
    nvls = limits["nvls"].get(arch, 16)
    if shape.nodes > 1:
        nvls = limits["nvls"].get(f"{arch}-across", nvls)
    nvls = settings.nvls_nchannels or nvls
    return min(max(count, low), high), min(nvls, high)


_MAY_BE_ZERO = ("latency_bulk", "latency")


@frozen
class Factors:
    """Multipliers; 1: as NCCL's constants and the links' numbers say.

    Attributes
    ----------
    bandwidth_inside, bandwidth_across : float
        Of links inside nodes, and of NICs.
    latency_inside, latency_across : float
        Of starting and of steps inside nodes, and of steps between nodes, with LL. What a platform
        adds there it adds to the other protocols of rings and trees as well: it is its software's
        and its wires', while the protocols' differences are NCCL's.
    latency_bulk : float
        Added to `latency_across` for messages too large for the network to send at once: it first
        asks the receiver. 0: as NCCL's constants say.
    latency : float
        Of all latencies, those that the other factors make: a network that answers sooner or later.
    """

    bandwidth_inside: float = 1.0
    bandwidth_across: float = 1.0
    latency_inside: float = 1.0
    latency_across: float = 1.0
    latency_bulk: float = 0.0
    latency: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (0 < value < float("inf") or (value == 0 and field.name in _MAY_BE_ZERO)):
                raise InputError(f"factor {field.name} is {value}; it must be above 0")

    def of(self, found: LinkBandwidths, system: System) -> LinkBandwidths:
        """Return what links carry of payload; NICs no more than their line rate.

        Parameters
        ----------
        found : LinkBandwidths
            In bytes per second, before the factors.
        system : System
            Whose NICs they are: it has the share of the line rate that payload reaches.
        """
        return replace(
            found,
            inside=found.inside * self.bandwidth_inside,
            # No more than the line rate.
            across=found.across * min(system.nic_efficiency * self.bandwidth_across, 1.0),
        )

    def cap(self, nodes: int) -> float:
        """Return the factor of what NVIDIA measured as highest, on 1 or several nodes."""
        return self.bandwidth_inside if nodes == 1 else self.bandwidth_across
