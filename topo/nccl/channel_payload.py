"""Algorithm and protocol → bandwidth, minimum bytes and buffered bytes of one channel.

A channel is a block of threads that copies through a buffer of eight steps. Three things follow:

`channel_bandwidth`
    What the block moves at most, as bytes of the *full* buffer of the operation: of an all-reduce
    on a ring each byte passes a GPU 2 (n - 1) / n times.
`bytes_per_channel`
    NCCL uses a channel more only if each has so many bytes: a small message runs on few channels.
`pipeline_fill`
    Bytes that are under way before the last rank receives: chains and multicast begin slowly.

A block of an H100 that moves B with Simple carries B × 8 / 14 of an all-reduce on a ring of 8:

>>> from mpisim.topo.nccl.constants import nccl_constants
>>> constants = nccl_constants("hopper", (2, 27))
>>> ring = Shape(ranks=8, max_per_node=8, min_per_node=8)
>>> carried = channel_bandwidth(Operation.ALL_REDUCE, "ring", SIMPLE, ring, constants)
>>> round(carried / constants.block, 3)
0.571
"""

from __future__ import annotations

from math import log2

from mpisim.base.kinds import Operation

from .constants import LL, LL128, PROTOCOLS, SIMPLE, NcclConstants
from .settings import Settings
from .shape import Shape

__all__ = ["bytes_per_channel", "channel_bandwidth", "pipeline_fill"]

_GATHER_SCATTER = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)


def channel_bandwidth(
    operation: Operation, algorithm: str, protocol: int, shape: Shape, constants: NcclConstants
) -> float:
    """Algorithm, protocol → payload that one channel moves, in bytes/s of the full buffer.

    Half of what LL moves is flags, 8 of 128 bytes of LL128.

    Parameters
    ----------
    operation : Operation
    algorithm : str
        Of `ALGORITHMS`.
    protocol : {0, 1, 2}
        Index in `PROTOCOLS`.
    shape : Shape
        Of the group.
    constants : NcclConstants

    Returns
    -------
    float
        Bytes per second; infinite for NVLS, whose channels do not limit it.
    """
    if algorithm in ("nvls", "nvls-tree"):
        return float("inf")
    most = constants.block * (1 / 2, 120 / 128, 1)[protocol]
    ranks = shape.ranks
    if algorithm == "ring" and operation is Operation.ALL_REDUCE:
        return most * ranks / (2 * (ranks - 1))
    if algorithm == "ring" and operation in _GATHER_SCATTER:
        return most * ranks / (ranks - 1)
    # A tree's blocks have threads for the way up and others for the way down.
    return most


def bytes_per_channel(
    algorithm: str,
    protocol: int,
    shape: Shape,
    settings: Settings,
    slow: bool,
    constants: NcclConstants,
) -> int:
    """Algorithm, protocol → bytes that a channel must have before NCCL uses one more.

    Parameters
    ----------
    slow : bool
        Whether the ring is no faster than PCIe: its blocks then have fewer threads.

    Returns
    -------
    int
        0 where all channels are used whatever the size (multicast).
    """
    if algorithm in ("nvls", "nvls-tree"):
        return 0
    limits = constants.raw["threads"]
    of = limits[PROTOCOLS[protocol]]
    threads = of["most"]
    if protocol == SIMPLE and algorithm == "ring" and slow:
        threads = limits["slow-ring"]
    chosen = settings.ll128_nthreads if protocol == LL128 else settings.nthreads
    if chosen is not None:
        threads = min(threads, chosen)
    ranks = shape.ranks if protocol == LL and algorithm == "ring" else 1
    return threads * of["bytes"] * ranks


def pipeline_fill(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    channels: int,
    settings: Settings,
    constants: NcclConstants,
) -> float:
    """Operation, channels → bytes, of all channels, that pass before the pipeline flows.

    That is a chunk of each channel (of each head of each channel, for multicast) for each step
    that the last rank is away from the first. Rings that all ranks feed (all-reduce and its halves)
    run at full speed from the first step; what trees lose is in NCCL's own correction.

    Parameters
    ----------
    operation : Operation
    algorithm : str
        One of `ALGORITHMS`.
    protocol : int
        Index in `PROTOCOLS`.
    shape : Shape
    channels : int
        Number of channels that carry the message.
    settings : Settings
        May set the size of the buffers.
    constants : NcclConstants

    Returns
    -------
    float
        0 for trees, and for rings that all ranks feed.
    """
    buffers = constants.raw["buffers"]
    heads = min(shape.min_per_node, constants.raw["channels"]["nvls-heads"])
    if algorithm == "nvls":
        return float(buffers["nvls"] * channels * heads * (1 if shape.nodes == 1 else 3))
    if algorithm == "nvls-tree":
        size = buffers["nvls" if shape.nodes < 4 else "nvls-tree-large"]
        return size * channels * heads * (2 + 2 * log2(shape.nodes))
    chains = operation in (Operation.BROADCAST, Operation.REDUCE)
    if algorithm == "ring" and chains:
        return max(shape.ranks - 2, 0) * _chunk(protocol, settings, constants) * channels
    return 0.0


def _chunk(protocol: int, settings: Settings, constants: NcclConstants) -> float:
    """Return the payload of one step of a connection's buffer."""
    buffers = constants.raw["buffers"]
    if protocol == SIMPLE:
        return (settings.buffsize or buffers["simple"]) / buffers["steps"]
    name = PROTOCOLS[protocol]
    return float(buffers[name] * buffers[f"{name}-payload"] / buffers["steps"])
