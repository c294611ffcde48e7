"""The pairs of algorithm and protocol that NCCL may use: the tuner's estimate, the time to expect.

A `Candidate` has two models of its time, which are kept apart.

- `TunerEstimate`: what NCCL *believes*, with the constants of its source and the speeds of its
  channel search (src/graph/tuning.cc). `TunerRanking` evaluates it; the lowest is NCCL's choice.
- `Candidate.seconds`: the time to *expect* of the hardware ::

      seconds  = overhead + bytes / rate
      rate     = min(bandwidth, channels used × bandwidth of a channel)
      overhead = start latency + loss of a pipeline of chunks + filling of a chain

Invariants
----------
1. The estimate depends on neither `Factors` nor `hardware`: a calibration, or a faster link that
   NCCL does not know of, changes times and never the choice.
2. Candidates are in NCCL's order (`ALGORITHMS`, then `PROTOCOLS`): of equal estimates the first
   wins, as in NCCL, whose loop takes a later pair only if it is faster.
3. There is a candidate for every operation: where no algorithm may run it is the ring, and where no
   protocol may it is Simple, as in NCCL.
4. A time is continuous in the size and never falls as it grows. Channels used are constant or
   proportional to the bytes, so that bytes / rate is constant or grows. The start latency has a
   factor that rises from 0 to 1 with bytes over channels used, which does not fall either. The loss
   is the root of a multiple of bytes / rate. Filling, b f / (b + f), grows with b.
5. `due_to_latency` is the derivative of a time by a common factor of all latencies: a root of
   latency times bytes over bandwidth counts by half.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

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

__all__ = [
    "Candidate",
    "TunerEstimate",
    "TunerRanking",
    "bytes_per_channel",
    "candidates",
    "pipeline_fill",
]

Floats = np.float64 | NDArray[np.float64]

Sizes = float | Floats

_GATHER_SCATTER = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)

_ALL_REDUCE_ALGORITHMS = frozenset(ALGORITHMS) - {"pat"}

_GATHER_SCATTER_ALGORITHMS = frozenset(("ring", "pat", "nvls", "collnet-direct"))

_CHAIN_ALGORITHMS = frozenset(("ring",))

_SIZE_LOGARITHMS = np.arange(6, 31)
"""Of the sizes for which the correction of trees is given: 64 bytes and on; the last is 1."""

_SIZE_POWERS = 2.0 ** _SIZE_LOGARITHMS[1:]

_NO_SPREAD = (0.0, 0.0, 0.0)


@frozen
class TunerEstimate:
    """What NCCL's tuner believes of a candidate.

    Attributes
    ----------
    latency, bandwidth : float
        Seconds, and bytes per second.
    plateau_from, plateau_factor : float
        Size from which the tuner believes in so much longer a latency.
    correction : float64, shape (25,), optional
        Factor of the bandwidth by size (`_SIZE_LOGARITHMS`).
    """

    latency: float
    bandwidth: float
    plateau_from: float
    plateau_factor: float
    correction: NDArray[np.float64] | None


@frozen
class Candidate:
    """One algorithm with one protocol, for one operation on one group.

    Attributes
    ----------
    algorithm : str
    protocol : int
    channels : int
        Of the communicator.
    bytes_per_channel : int
        Bytes a channel must have before one more is used; 0: all are.
    tuner : TunerEstimate
    latency : float
        Seconds, of messages that a network sends at once.
    bandwidth : float
        Bytes per second with all channels.
    bulk : float
        Seconds that larger messages add to the latency.
    growth : float
        Power of the size, over `eager`, with which `bulk` grows.
    eager : float
        Size from which messages are large: half of it still travels at once. Between the two,
        which no table distinguishes, the latency of large messages sets in by degrees.
    pace : float
        Latency that every chunk of a pipeline meets again, times its tree's crossings; seconds.
    spread : float
        How much of it counts: see `_pipeline_loss`.
    channel_bandwidth : float
        Payload one channel can move, bytes per second.
    fill : float
        Bytes that pass before a pipeline is full, all channels together.
    """

    algorithm: str
    protocol: int
    channels: int
    bytes_per_channel: int
    tuner: TunerEstimate
    latency: float
    bandwidth: float
    bulk: float
    growth: float
    eager: float
    pace: float
    spread: float
    channel_bandwidth: float
    fill: float

    def seconds(self, bytes: Sizes) -> Floats:
        """Return the time to expect, for one size or an array of them."""
        return self.overhead(bytes) + bytes / self.rate(bytes)

    def channels_used(self, bytes: Sizes) -> Floats:
        """Return how many channels carry a message, not rounded."""
        if not self.bytes_per_channel:
            return np.float64(self.channels)
        wanted = np.maximum(np.divide(bytes, self.bytes_per_channel), 1.0)
        return np.minimum(wanted, self.channels)

    def rate(self, bytes: Sizes) -> Floats:
        """Return bytes per second once they flow."""
        by_channels = self.channels_used(bytes) * self.channel_bandwidth
        rate: Floats = np.minimum(self.bandwidth, by_channels)
        return rate

    def overhead(self, bytes: Sizes) -> Floats:
        """Return the seconds in which no bytes flow."""
        overhead = self._start_latency(bytes) + self._pipeline_loss(bytes)
        if not self.fill:
            return overhead
        # Chunks shrink with the message: a small one fills with little, a large one with whole
        # buffers.
        filling: Floats = np.asarray(bytes * self.fill / (bytes + self.fill) / self.bandwidth)
        return overhead + filling

    def due_to_latency(self, bytes: Sizes) -> Floats:
        """Return the seconds that latencies of twice the length would add.

        To first order: what a pipeline loses is due to its latency and its bandwidth in equal
        parts.
        """
        return self._start_latency(bytes) + 0.5 * self._pipeline_loss(bytes)

    def _start_latency(self, bytes: Sizes) -> Floats:
        """Return the latency of a message of some size.

        What a message that is not sent at once costs beyond one that is grows with its size where
        the CPU reads every line of it, looking for flags (LL): that passes from node to node before
        the next may send.
        """
        if not self.bulk:
            return np.float64(self.latency)
        more: Floats = np.float64(self.bulk)
        if self.growth:
            more = more * np.maximum(np.divide(bytes, self.eager), 1.0) ** self.growth
        part = np.divide(bytes, self.eager * self.channels_used(bytes))
        return self.latency + np.clip(2 * part - 1, 0.0, 1.0) * more

    def _pipeline_loss(self, bytes: Sizes) -> Floats:
        """Return what a pipeline of chunks loses.

        A pipeline whose steps take `pace` together moves what would take t in chunks: few of them,
        and the last steps wait long for the first; many, and each costs its steps. The best number
        loses 2 (pace t)^1/2. Steps that vary lose as much of the same form, and each crossing of a
        tree adds its own: on 16 and on 64 nodes of Alps a crossing costs the same. `spread` stands
        for all of these.
        """
        if not self.spread:
            return np.float64(0.0)
        lost: Floats = self.spread * np.sqrt(self.pace * bytes / self.rate(bytes))
        return lost


class TunerRanking:
    """The tuner's times of candidates, side by side: the lowest is NCCL's choice.

    Parameters
    ----------
    candidates : list of Candidate
        In NCCL's order: of equally fast ones it takes the first.
    """

    def __init__(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        estimates = [each.tuner for each in candidates]
        self._latency = np.array([[each.latency] for each in estimates])
        self._longer = self._latency * np.array([[each.plateau_factor - 1] for each in estimates])
        self._plateau_from = np.array([[each.plateau_from] for each in estimates])
        self._has_plateau = bool(self._longer.any())
        even = np.ones(len(_SIZE_LOGARITHMS))
        self._per_byte = 1 / np.array(
            [
                each.bandwidth * (even if each.correction is None else each.correction)
                for each in estimates
            ]
        )

    def estimates(self, bytes: Sizes) -> NDArray[np.float64]:
        """Return the tuner's times, shape (candidates, sizes), seconds."""
        sizes = np.atleast_1d(bytes)
        column = _SIZE_POWERS.searchsorted(sizes, "right")
        times: NDArray[np.float64] = self._per_byte[:, column] * sizes
        times += self._latency
        if self._has_plateau:
            times += self._longer * (sizes >= self._plateau_from)
        return times

    def choice(self, bytes: float) -> Candidate:
        """Return NCCL's choice for one size."""
        return self.candidates[int(self.estimates(bytes).argmin())]


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
