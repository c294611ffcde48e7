"""Small messages: channels that stay idle, and chunks that fill a pipeline before it flows."""

from __future__ import annotations

from mpisim.program import Operation

from .settings import Settings
from .shape import Shape
from .tables import LL, LL128, PROTOCOLS, SIMPLE, Tables

__all__ = ["chunk", "depth", "quantum"]


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


def chunk(protocol: int, settings: Settings, tables: Tables) -> float:
    """Return the payload of one step of a connection's buffer."""
    buffers = tables.raw["buffers"]
    if protocol == SIMPLE:
        return (settings.buffsize or buffers["simple"]) / buffers["steps"]
    name = PROTOCOLS[protocol]
    return buffers[name] * buffers[f"{name}-payload"] / buffers["steps"]


def depth(operation: Operation, algorithm: str, shape: Shape) -> int:
    """Return how many chunks' times pass before the last rank of a pipeline receives its first.

    Rings that all ranks feed (all-reduce and its halves) run at full speed from the first step.
    What trees lose is in NCCL's own correction.
    """
    chains = operation in (Operation.BROADCAST, Operation.REDUCE)
    return max(shape.ranks - 2, 0) if algorithm == "ring" and chains else 0
