"""The pairs of algorithm and protocol that NCCL may use, with the numbers of their times.

Which are enabled, and what a :class:`.candidate.Candidate` of each consists of: the tuner's latency
and bandwidth with the speeds of NCCL's search, and those to expect with the speeds of the links.

Invariants
----------
1. The tuner's estimate depends on neither `Factors` nor `hardware`: a calibration, or a faster link
   that NCCL does not know of, changes times and never the choice.
2. Candidates are in NCCL's order: `ALGORITHMS`, then `PROTOCOLS`.
3. There is a candidate for every operation: where no algorithm may run it is the ring, and where no
   protocol may it is Simple, as in NCCL.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import numpy as np

from mpisim.base.kinds import Operation

from .candidate import Candidate, TunerEstimate
from .channels import (
    ChannelGraph,
    Factors,
    LinkBandwidths,
    channel_counts,
    graphs_at_link_speed,
    link_bandwidths,
    search_channels,
)
from .constants import ALGORITHMS, LL, LL128, PROTOCOLS, SIMPLE, NcclConstants
from .settings import Settings, allowed
from .shape import Shape
from .system import System
from .tuning import step_latency, tuner_bandwidth, tuner_latency

__all__ = ["bytes_per_channel", "candidates", "pipeline_fill"]

_GATHER_SCATTER = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)

_ALL_REDUCE_ALGORITHMS = frozenset(ALGORITHMS) - {"pat"}

_GATHER_SCATTER_ALGORITHMS = frozenset(("ring", "pat", "nvls", "collnet-direct"))

_CHAIN_ALGORITHMS = frozenset(("ring",))

_NO_SPREAD = (0.0, 0.0, 0.0)


def candidates(
    operation: Operation,
    shape: Shape,
    system: System,
    settings: Settings,
    factors: Factors,
    constants: NcclConstants,
    hardware: System | None = None,
) -> list[Candidate]:
    """Return the pairs that are enabled, in NCCL's order.

    Parameters
    ----------
    operation : Operation
        A collective that NCCL has an algorithm for.
    shape : Shape
        Of at least two ranks.
    system : System
        What NCCL sees, searches and chooses by.
    settings : Settings
        ``NCCL_*`` variables.
    factors : Factors
        Calibration; acts on the time to expect alone.
    constants : NcclConstants
        For the architecture and version of `system`.
    hardware : System, optional
        What carries the messages, where that is not `system`.
    """
    hardware = hardware or system
    seen = link_bandwidths(system, settings, shape, constants)
    scaled = factors.of(link_bandwidths(hardware, settings, shape, constants), hardware)
    searched = search_channels(seen, shape, constants)
    actual = graphs_at_link_speed(searched, scaled, shape, constants)
    counts = channel_counts(searched, shape, settings, constants, system.arch)
    found = []
    for algorithm in _enabled_algorithms(operation, shape, system, settings, constants):
        channels = counts[1] if algorithm in ("nvls", "nvls-tree") else counts[0]
        for protocol in _enabled_protocols(
            operation, algorithm, shape, system, settings, seen, constants
        ):
            pair = (operation, algorithm, protocol, shape)
            believed = tuner_bandwidth(*pair, searched, system, constants)
            reached = tuner_bandwidth(*pair, actual, system, constants, factors.cap(shape.nodes))
            if not believed or not reached:
                continue
            tuner = _tuner_estimate(*pair, channels, believed, system, settings, seen, constants)
            delays = _delays(*pair, hardware, settings, factors, seen, constants)
            pipeline = constants.raw["pipeline"]
            parts = shape.ranks if algorithm == "ring" else 1
            slow = _has_slow_ring(searched, constants)
            found.append(
                Candidate(
                    algorithm=algorithm,
                    protocol=protocol,
                    channels=channels,
                    bytes_per_channel=bytes_per_channel(
                        algorithm, protocol, shape, settings, slow, constants
                    ),
                    tuner=tuner,
                    latency=delays.latency,
                    bandwidth=reached,
                    bulk=delays.bulk,
                    growth=pipeline["growth"][protocol],
                    eager=pipeline["eager"] * parts if shape.nodes > 1 else float("inf"),
                    pace=delays.pace,
                    spread=pipeline["spread"].get(algorithm, _NO_SPREAD)[protocol],
                    channel_bandwidth=_channel_bandwidth(*pair, constants),
                    fill=pipeline_fill(*pair, channels, settings, constants),
                )
            )
    return found


def _tuner_estimate(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    channels: int,
    bandwidth: float,
    system: System,
    settings: Settings,
    seen: LinkBandwidths,
    constants: NcclConstants,
) -> TunerEstimate:
    """Return NCCL's belief: its constants, and the links as it sees them."""
    step = step_latency(algorithm, protocol, system, settings, shape, seen, constants)
    # NCCL counts one step for a chain on equal channels, as nothing else could be chosen.
    same = system.intra == "nvswitch" or shape.max_per_node == 1
    latency = tuner_latency(operation, algorithm, protocol, shape, step, same, constants)
    plateau = (
        algorithm == "ring"
        and protocol == SIMPLE
        and shape.nodes > 1
        and operation is Operation.ALL_REDUCE
    )
    corrected = algorithm == "tree"
    return TunerEstimate(
        latency=latency.inside + latency.across,
        bandwidth=bandwidth,
        plateau_from=constants.raw["plateau"]["bytes"] * channels * shape.ranks,
        plateau_factor=constants.plateau_factor if plateau else 1.0,
        correction=np.append(constants.correction[protocol], 1.0) if corrected else None,
    )


class _Delays(NamedTuple):
    """Latencies to expect, in seconds: `Candidate.latency`, `bulk` and `pace`."""

    latency: float
    bulk: float
    pace: float


def _delays(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    hardware: System,
    settings: Settings,
    factors: Factors,
    seen: LinkBandwidths,
    constants: NcclConstants,
) -> _Delays:
    """Return the latencies to expect on the hardware.

    A platform's factors are of LL, the protocol with the lowest latency: what they add there, in
    seconds, they add to the other protocols of rings and trees as well. Trees of multicast cross
    from node to node as trees do, and are added what those are.
    """
    step = step_latency(algorithm, protocol, hardware, settings, shape, seen, constants)
    own = tuner_latency(operation, algorithm, protocol, shape, step, False, constants)
    lowest = own
    like = "tree" if algorithm == "nvls-tree" else algorithm
    if like in ("ring", "tree") and (algorithm != like or protocol != LL):
        step = step_latency(like, LL, hardware, settings, shape, seen, constants)
        lowest = tuner_latency(operation, like, LL, shape, step, False, constants)
    inside = factors.latency * (own.inside + (factors.latency_inside - 1) * lowest.inside)
    # Simple waits for the NIC twice, the second time for the flush, as NCCL counts a NIC's latency.
    met = (2 if algorithm == "nvls-tree" else 1) * lowest.across
    across = factors.latency * (own.across + (factors.latency_across - 1) * met)
    bulk = factors.latency * factors.latency_bulk * met
    return _Delays(inside + across, bulk, own.crossings * (inside + across + bulk))


def _enabled_algorithms(
    operation: Operation, shape: Shape, system: System, settings: Settings, constants: NcclConstants
) -> list[str]:
    """Return the algorithms that can run and may, in NCCL's order; the ring if none does."""
    if operation is Operation.ALL_REDUCE:
        can = _ALL_REDUCE_ALGORITHMS
    else:
        can = _GATHER_SCATTER_ALGORITHMS if operation in _GATHER_SCATTER else _CHAIN_ALGORITHMS
    several = shape.nodes > 1
    switched = system.intra == "nvswitch" and not settings.p2p_disable
    multicast = constants.multicast and switched and settings.nvls_enable is not False
    without = set()
    if not multicast or shape.min_per_node < constants.raw["channels"]["nvls-ranks"]:
        without |= {"nvls", "nvls-tree"}
    if not several:
        without |= {"nvls-tree", "collnet-direct", "collnet-chain"}
    if not settings.collnet_enable:
        without |= {"collnet-direct", "collnet-chain"} | ({"nvls"} if several else set())
    if system.intra != "nvswitch":
        without.add("collnet-direct")
    if (
        operation in _GATHER_SCATTER
        and shape.max_per_node > constants.raw["channels"]["nvls-heads"]
    ):
        without.add("nvls")
    if operation in _GATHER_SCATTER and several and shape.nics < shape.max_per_node:
        without |= {"nvls", "collnet-direct"}
    if system.version < (2, 18):
        without |= {"nvls-tree"}
    pat = shape.max_per_node == 1 and several and system.version >= (2, 23)
    if not pat or settings.pat_enable is False or constants.generation < 60:
        without.add("pat")
    may = allowed(settings.algo, operation)
    wanted = [
        name
        for name in ALGORITHMS
        if name in can and name not in without and (may is None or name in may)
    ]
    return wanted or ["ring"]


def _enabled_protocols(
    operation: Operation,
    algorithm: str,
    shape: Shape,
    system: System,
    settings: Settings,
    found: LinkBandwidths,
    constants: NcclConstants,
) -> list[int]:
    if algorithm not in ("ring", "tree"):
        return [SIMPLE]
    may = allowed(settings.proto, operation)
    if may is not None:
        return [i for i, name in enumerate(PROTOCOLS) if name in may] or [SIMPLE]
    # From Hopper on, a way to the NIC over Grace's own links is as good as one over PCIe switches.
    near = system.nic_path in ("pix", "pxb") or (
        constants.generation >= 90 and system.cpu == "grace"
    )
    ordered = found.fast and (shape.nodes == 1 or near)
    if ordered and constants.generation >= 70 and constants.generation not in (75, 89):
        return [LL, LL128, SIMPLE]
    return [LL, SIMPLE]


def _has_slow_ring(graphs: dict[str, ChannelGraph], constants: NcclConstants) -> bool:
    ring = graphs["ring"]
    return ring.inside * ring.channels <= constants.raw["threads"]["slow"] * 1e9


def _channel_bandwidth(
    operation: Operation, algorithm: str, protocol: int, shape: Shape, constants: NcclConstants
) -> float:
    """Return the payload that one channel can move, in bytes of the full buffer.

    Half of what LL moves is flags, 8 of 128 bytes of LL128.
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
    """Return the bytes, of all channels together, that pass before a pipeline flows.

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
        That carry the message.
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
