"""Small messages: channels that stay idle, and chunks that fill a pipeline before it flows."""

from __future__ import annotations

from math import log2

from mpisim.base.kinds import Operation

from .settings import Settings
from .shape import Shape
from .tables import LL, LL128, PROTOCOLS, SIMPLE, Tables

__all__ = ["fill", "quantum"]


def quantum(
    algorithm: str, protocol: int, shape: Shape, settings: Settings, slow: bool, tables: Tables
) -> int:
    """Return the bytes that a channel must have before NCCL uses one more.

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
    limits = tables.raw["threads"]
    of = limits[PROTOCOLS[protocol]]
    threads = of["most"]
    if protocol == SIMPLE and algorithm == "ring" and slow:
        threads = limits["slow-ring"]
    chosen = settings.ll128_nthreads if protocol == LL128 else settings.nthreads
    if chosen is not None:
        threads = min(threads, chosen)
    ranks = shape.ranks if protocol == LL and algorithm == "ring" else 1
    return threads * of["bytes"] * ranks


def fill(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    channels: int,
    settings: Settings,
    tables: Tables,
) -> float:
    """Return the bytes, of all channels together, that pass before a pipeline flows.

    That is a chunk of each channel (of each head of each channel, for multicast) for each step
    that the last rank is away from the first. Rings that all ranks feed (all-reduce and its halves)
    run at full speed from the first step; what trees lose is in NCCL's own correction.
    """
    buffers = tables.raw["buffers"]
    heads = min(shape.least, tables.raw["channels"]["nvls-heads"])
    if algorithm == "nvls":
        return float(buffers["nvls"] * channels * heads * (1 if shape.nodes == 1 else 3))
    if algorithm == "nvls-tree":
        size = buffers["nvls" if shape.nodes < 4 else "nvls-tree-large"]
        return size * channels * heads * (2 + 2 * log2(shape.nodes))
    chains = operation in (Operation.BROADCAST, Operation.REDUCE)
    if algorithm == "ring" and chains:
        return max(shape.ranks - 2, 0) * _chunk(protocol, settings, tables) * channels
    return 0.0


def _chunk(protocol: int, settings: Settings, tables: Tables) -> float:
    """Return the payload of one step of a connection's buffer."""
    buffers = tables.raw["buffers"]
    if protocol == SIMPLE:
        return (settings.buffsize or buffers["simple"]) / buffers["steps"]
    name = PROTOCOLS[protocol]
    return float(buffers[name] * buffers[f"{name}-payload"] / buffers["steps"])
