"""Link bandwidths of a group → number and speed of NCCL's channels.

A *channel* is one ring, tree or multicast group over all ranks, driven by one block of threads on
each GPU. NCCL looks for channels that are all equally fast, with a speed from a fixed list, until
the links are full (src/graph/search.cc). Regular nodes need no search of paths: as many channels of
a speed fit as the links of one GPU, or the NICs of one node, carry.

Three things are made of one group, in this order:

1. `search_channels`: the graphs that NCCL arrives at. Its tuner believes in their speeds.
2. `graphs_at_link_speed`: the same channels with what the links carry in truth, not rounded down to
   the list. The time to expect is made of these.
3. `channel_counts`: how many channels the communicator opens, as the ``NCCL_*`` variables allow.

Invariants
----------
- The graphs of 1 and 2 have the same number of channels; only speeds differ.
- Rings of 1 do not overfill links, unless not even one channel fits: channels × speed is at most
  what leaves a node, and its share (n - 1) / n at most what a GPU sends inside (all of it on one
  node).
- Nothing here depends on the operation or on a message's size.

One node of 8 GPUs whose links carry 370.8 GB/s. The list has 60, 50, 40, … GB/s: 6 channels of 60
are 360, no other speed makes more of the links. Channels of 25 GB/s or more are split in two, so
that the search ends with 12 of 30, which truly run at 370.8 / 12 = 30.9:

>>> from mpisim.topo.nccl.constants import nccl_constants
>>> from mpisim.topo.nccl.system import System
>>> node = System("hopper", 8, "nvswitch", link_bandwidth=370.8e9)
>>> group, constants = Shape.regular(1, 8, node), nccl_constants("hopper", (2, 27))
>>> links = LinkBandwidths(inside=370.8e9, across=0.0, fast=True)
>>> searched = search_channels(links, group, constants)
>>> searched["ring"]
ChannelGraph(channels=12, inside=30000000000.0, across=30000000000.0)
>>> graphs_at_link_speed(searched, links, group, constants)["ring"].inside
30900000000.0
>>> channel_counts(searched, group, Settings(), constants, "hopper")  # rings and trees; NVLS
(24, 16)
"""

from __future__ import annotations

from dataclasses import replace

from mpisim.base.frozen import frozen

from .constants import NcclConstants
from .link_bandwidths import LinkBandwidths
from .settings import Settings
from .shape import Shape

__all__ = ["ChannelGraph", "channel_counts", "graphs_at_link_speed", "search_channels"]


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


def search_channels(
    found: LinkBandwidths, shape: Shape, constants: NcclConstants
) -> dict[str, ChannelGraph]:
    """Bandwidths of a group's links → the graphs that NCCL's search arrives at.

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
    ring = _search_ring(found, shape, constants)
    return {
        "ring": _duplicated(ring, constants),
        "tree": _duplicated(_tree_graph(ring, found, shape, constants), constants),
        "nvls": _nvls_graph(found, shape, constants),
    }


def _share_passed_on(shape: Shape) -> float:
    """Return the share of a node's GPUs that send on a ring to another GPU of the node.

    On several nodes a ring enters and leaves a node once on each channel: all GPUs but one.
    """
    n = shape.max_per_node
    return (n - 1) / n if shape.nodes > 1 else 1.0


def _search_ring(found: LinkBandwidths, shape: Shape, constants: NcclConstants) -> ChannelGraph:
    """Return as many channels of one speed as move the most together.

    From the highest speed down (``ncclTopoCompute`` of src/graph/search.cc), until channels are
    less than half as fast as those found, or a GPU's own links are full. Of equally good speeds the
    highest stays. Where no speed of the list fits it is one channel of the lowest.
    """
    limits = constants.raw["channels"]
    n, passing = shape.max_per_node, _share_passed_on(shape)
    if shape.nodes == 1:
        speeds, limit = constants.inside_speeds, found.inside
    else:
        speeds, limit = constants.across_speeds, found.across / max(shape.nics, 1)
    best = ChannelGraph(1, speeds[-1], speeds[-1])
    reached = 0.0
    for speed in speeds:
        if speed > limit:
            continue
        if reached and speed < limits["slowest-tried"] * best.inside:
            break
        channels = int(limit / speed) * (1 if shape.nodes == 1 else shape.nics)
        if n > 1 and passing:
            channels = min(channels, int(found.inside / (speed * passing)))
        channels = max(1, min(channels, limits["most-searched"]))
        if channels * speed > reached:
            reached = channels * speed
            best = ChannelGraph(channels, speed, speed)
        # Enough: NCCL asks for no more than a GPU's own links carry, however fast the NICs are.
        if reached >= found.inside:
            break
    return best


def _tree_graph(
    ring: ChannelGraph, found: LinkBandwidths, shape: Shape, constants: NcclConstants
) -> ChannelGraph:
    """Return the channels of trees: those of rings, on two nodes up to twice as fast inside them.

    A tree of two nodes sends half as much between them as a ring does.
    """
    if shape.nodes != 2:
        return ring
    room = found.inside / ring.channels * (1 / (_share_passed_on(shape) or 1))
    speeds = constants.across_speeds
    fits = [speed for speed in speeds if ring.across <= speed <= min(room, 2 * ring.across)]
    # Alone on its node a GPU has no others to reach, and no limit but the NIC's.
    return replace(ring, inside=max(fits, default=ring.inside))


def _duplicated(graph: ChannelGraph, constants: NcclConstants) -> ChannelGraph:
    """Split fast channels in two, for more threads to share the work."""
    limits = constants.raw["channels"]
    kept = limits["kept"]
    many = (
        constants.generation > kept["generation"]
        and graph.inside < kept["below"] * 1e9
        and graph.channels > kept["channels"]
    )
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
    """Graphs of NCCL's search → the same at the speeds that the links truly have.

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
    """Graphs → channels of the communicator: for rings and trees, and for NVLS.

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
    doubled = limits["doubled"]
    fast = ring.inside > doubled["above"] * 1e9 and constants.generation >= doubled["generation"]
    if fast and shape.nodes > 1 and count < doubled["fewer"]:
        count *= 2
    low = settings.min_nchannels or 1
    high = settings.max_nchannels or limits["most"]
    if low > high:
        low = high
    nvls = limits["nvls"].get(arch, limits["nvls"]["other"])
    if shape.nodes > 1:
        nvls = limits["nvls"].get(f"{arch}-across", nvls)
    nvls = settings.nvls_nchannels or nvls
    return min(max(count, low), high), min(nvls, high)
