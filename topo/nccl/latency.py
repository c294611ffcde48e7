"""The latencies of NCCL's tuner: what a communication of no bytes takes."""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from mpisim.base.kinds import Operation

from .graph import Links
from .settings import Settings
from .shape import Shape
from .system import System
from .tables import SIMPLE, Tables

__all__ = ["Latency", "hops", "latency"]

_HALVES = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
_CHAINS = (Operation.BROADCAST, Operation.REDUCE)


class Latency(NamedTuple):
    """Seconds, by where they are spent.

    Attributes
    ----------
    inside : float
        Starting, and steps inside nodes.
    across : float
        Steps between nodes.
    crossings : int
        Steps between nodes that a tree takes one after the other; 1 for all that is no tree.
    """

    inside: float
    across: float
    crossings: int = 1


def steps(operation: Operation, ranks: int) -> int:
    """Return how many times a ring passes a part on."""
    if operation is Operation.ALL_REDUCE:
        return 2 * (ranks - 1)
    return ranks - 1 if operation in _HALVES else ranks


class Hops(NamedTuple):
    """Latency of one step of an algorithm, in seconds."""

    inside: float
    across: float
    post: float


def hops(
    algorithm: str,
    protocol: int,
    system: System,
    settings: Settings,
    shape: Shape,
    found: Links,
    tables: Tables,
) -> Hops:
    """Return the latencies of the steps of an algorithm.

    A Simple message waits for the NIC twice, the second time until its data is flushed to the GPU,
    and costs the CPU three posts. A node with one rank receives and sends at the same GPU, as
    inner nodes of trees do.
    """
    inside = tables.hop["nvlink" if found.fast else "pcie"][algorithm][protocol]
    network = tables.hop["network"]
    alone = algorithm == "ring" and shape.mean == 1
    across = network["tree" if alone else algorithm][protocol]
    across += system.nic_latency * (2 if protocol == SIMPLE else 1)
    post = 0.0
    if shape.nodes > 1:
        post = tables.post.get(system.cpu, tables.post["other"])
        if settings.net_overhead is not None:
            post = settings.net_overhead * 1e-9
        if protocol == SIMPLE:
            post *= 3
    return Hops(inside, across, post)


def latency(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    step: Hops,
    same_channels: bool,
    tables: Tables,
) -> Latency:
    """Return the tuner's latency of an operation.

    Parameters
    ----------
    operation : Operation
    algorithm : str
    protocol : int
    shape : Shape
    step : Hops
    same_channels : bool
        Whether all channels visit the GPUs in one order.
    tables : Tables
    """
    ranks, nodes = shape.ranks, shape.nodes
    base = tables.base[algorithm][protocol]
    per_node = ranks // nodes
    depth = int(log2(nodes))
    several = nodes > 1
    if algorithm == "ring":
        count = steps(operation, ranks)
        if operation in _CHAINS:
            times = 1 if same_channels else count
            return (
                Latency(base, times * step.across)
                if several
                else Latency(base + times * step.inside, 0.0)
            )
        crossings = (2 if operation is Operation.ALL_REDUCE else 1) * (nodes - 1)
        inside = max(step.inside, step.post)
        return Latency(base + (count - crossings) * inside, crossings * step.across)
    if algorithm == "tree":
        crossings = 2 * depth
        inside = base + 2 * (per_node - 1) * step.inside
        return Latency(inside, crossings * step.across, max(1, crossings))
    if algorithm == "collnet-direct":
        arity = 0.4e-6 * (per_node - 1)
        return Latency(base + 2 * (min(1, per_node - 1) * step.inside + arity), step.across)
    if algorithm == "collnet-chain":
        return Latency(base + 2 * (per_node - 1) * step.inside, step.across)
    if algorithm == "nvls":
        return Latency(step.inside, step.across if several else 0.0)
    if algorithm == "nvls-tree":
        return Latency(base + step.inside, 2 * depth * step.across)
    assert algorithm == "pat"
    return Latency(base + 2.8e-6 * ranks, depth * step.across / 3.5)
