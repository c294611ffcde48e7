"""Operation, group, machine → pairs of algorithm and protocol NCCL may use, with their times.

`candidates` asks, in this order: what links carry (:mod:`.link_bandwidths`), which channels NCCL
finds there (:mod:`.channels`), which pairs may run (:mod:`.enabled`). Each pair becomes a
:class:`.candidate.Candidate` with two models of its time: the tuner's latency and bandwidth with
the speeds of NCCL's *search*, and those to expect with the speeds of the *links*.

Invariants
----------
1. The tuner's estimate depends on neither `Factors` nor `hardware`: a calibration, or a faster link
   that NCCL does not know of, changes times and never the choice.
2. Candidates are in NCCL's order: `ALGORITHMS`, then `PROTOCOLS`.
3. There is a candidate for every operation: where no algorithm may run it is the ring, and where no
   protocol may it is Simple, as in NCCL.

What may carry an all-reduce on one node with multicast: algorithm, protocol (0 LL, 1 LL128,
2 Simple), channels, and the bytes of the buffer that it truly moves in a second:

>>> from mpisim.topo.nccl.constants import nccl_constants
>>> node = System("hopper", 8, "nvswitch", link_bandwidth=370.8e9)
>>> group, constants = Shape.regular(1, 8, node), nccl_constants("hopper", (2, 27))
>>> all_reduce = (Operation.ALL_REDUCE, group, node, Settings(), Factors(), constants)
>>> for each in candidates(*all_reduce):
...     print(each.algorithm, each.protocol, each.channels, f"{each.bandwidth / 1e9:.0f} GB/s")
tree 0 24 45 GB/s
tree 1 24 133 GB/s
tree 2 24 171 GB/s
ring 0 24 81 GB/s
ring 1 24 195 GB/s
ring 2 24 212 GB/s
nvls 2 16 280 GB/s
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.kinds import Operation

from .candidate import N_SIZES, Candidate, TunerEstimate
from .channel_payload import bytes_per_channel, channel_bandwidth, pipeline_fill
from .channels import ChannelGraph, channel_counts, graphs_at_link_speed, search_channels
from .constants import LL, SIMPLE, TWO_SHOT, LatencyConstants, NcclConstants
from .enabled import enabled_algorithms, enabled_protocols
from .factors import Factors
from .link_bandwidths import LinkBandwidths, link_bandwidths
from .rccl import RcclConstants, rccl_bandwidth, runs_two_shot, two_shot_bandwidth
from .settings import Settings
from .shape import Shape
from .system import System
from .tuning import step_latency, tuner_bandwidth, tuner_latency

__all__ = ["candidates"]

_NO_SPREAD = (0.0, 0.0, 0.0)


def candidates(
    operation: Operation,
    shape: Shape,
    system: System,
    settings: Settings,
    factors: Factors,
    constants: NcclConstants,
    hardware: System | None = None,
    rccl: RcclConstants | None = None,
) -> list[Candidate]:
    """Operation of a group → enabled pairs of algorithm and protocol, in NCCL's order.

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
    rccl : RcclConstants, optional
        What AMD's library believes, in place of `constants`.
    """
    hardware = hardware or system
    seen = link_bandwidths(system, settings, shape, constants)
    scaled = factors.of(link_bandwidths(hardware, settings, shape, constants), hardware)
    searched = search_channels(seen, shape, constants)
    actual = graphs_at_link_speed(searched, scaled, shape, constants)
    counts = channel_counts(searched, shape, settings, constants, system.arch)
    latencies: LatencyConstants = constants if rccl is None else rccl.times
    pipeline = constants.raw["pipeline"] if rccl is None else rccl.pipeline
    found = []
    for algorithm in enabled_algorithms(operation, shape, system, settings, constants):
        channels = counts[1] if algorithm in ("nvls", "nvls-tree") else counts[0]
        for protocol in enabled_protocols(
            operation, algorithm, shape, system, settings, seen, constants, rccl
        ):
            pair = (operation, algorithm, protocol, shape)
            if rccl is None:
                believed = tuner_bandwidth(*pair, searched, system, constants)
            else:
                believed = rccl_bandwidth(*pair, system, seen, rccl)
            reached = tuner_bandwidth(*pair, actual, system, constants, factors.cap(shape.nodes))
            if not believed or not reached:
                continue
            tuner = _tuner_estimate(
                *pair, channels, believed, system, settings, seen, constants, rccl
            )
            delays = _delays(*pair, hardware, settings, factors, seen, latencies)
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
                    channel_bandwidth=channel_bandwidth(*pair, constants),
                    fill=pipeline_fill(*pair, channels, settings, constants),
                )
            )
    chosen_by_name = settings.algo or settings.proto
    if rccl and not chosen_by_name and seen.fast and runs_two_shot(operation, shape, rccl):
        found += _two_shot_candidates(shape, scaled, factors, rccl)
    return found


def _two_shot_candidates(
    shape: Shape, scaled: LinkBandwidths, factors: Factors, rccl: RcclConstants
) -> list[Candidate]:
    """Return RCCL's kernel from each GPU to each, by protocol; its tuner never takes it."""
    kernel = rccl.two_shot
    if kernel is None:
        return []
    found = []
    for protocol in kernel.ranges:
        base, hop = rccl.times.base["ring"], rccl.times.hop["nvlink"]["ring"]
        least = base[LL] + 2 * hop[LL]
        own = base[protocol] + 2 * hop[protocol]
        found.append(
            Candidate(
                algorithm=TWO_SHOT,
                protocol=protocol,
                channels=kernel.channels,
                bytes_per_channel=0,
                tuner=TunerEstimate(float("inf"), float("inf"), 0.0, 1.0, None),
                latency=factors.latency * (own + (factors.latency_inside - 1) * least),
                bandwidth=two_shot_bandwidth(protocol, shape.ranks, scaled.inside, kernel),
                bulk=0.0,
                growth=0.0,
                eager=float("inf"),
                pace=0.0,
                spread=0.0,
                channel_bandwidth=float("inf"),
                fill=0.0,
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
    rccl: RcclConstants | None,
) -> TunerEstimate:
    """Candidate → time that the tuner of NCCL or RCCL estimates with its own constants."""
    of: LatencyConstants = constants if rccl is None else rccl.believed
    step = step_latency(algorithm, protocol, system, settings, shape, seen, of)
    # NCCL counts one step for a chain on equal channels, as nothing else could be chosen.
    same = system.intra == "nvswitch" or shape.max_per_node == 1
    latency = tuner_latency(operation, algorithm, protocol, shape, step, same, of)
    plateau = (
        rccl is None
        and algorithm == "ring"
        and protocol == SIMPLE
        and shape.nodes > 1
        and operation is Operation.ALL_REDUCE
    )
    return TunerEstimate(
        latency=latency.inside + latency.across,
        bandwidth=bandwidth,
        plateau_from=constants.raw["plateau"]["bytes"] * channels * shape.ranks,
        plateau_factor=constants.plateau_factor if plateau else 1.0,
        correction=_correction(algorithm, protocol, shape, constants, rccl),
    )


def _correction(
    algorithm: str,
    protocol: int,
    shape: Shape,
    constants: NcclConstants,
    rccl: RcclConstants | None,
) -> NDArray[np.float64] | None:
    """Return the tuner's factors of a bandwidth by size: NCCL's of trees, RCCL's of rings too."""
    if rccl is not None:
        corrected = algorithm == "tree" or (algorithm == "ring" and shape.nodes > 1)
        return rccl.correction[algorithm][protocol] if corrected else None
    if algorithm != "tree":
        return None
    factors = constants.correction[protocol]
    return np.pad(factors, (0, N_SIZES - len(factors)), constant_values=1.0)


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
    constants: LatencyConstants,
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


def _has_slow_ring(graphs: dict[str, ChannelGraph], constants: NcclConstants) -> bool:
    ring = graphs["ring"]
    return ring.inside * ring.channels <= constants.raw["threads"]["slow"] * 1e9
