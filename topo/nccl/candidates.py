"""CANDDOC"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np
from numpy.typing import NDArray

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

__all__ = ["Candidate", "TunerRanking", "bytes_per_channel", "candidates", "pipeline_fill"]

Floats = np.float64 | NDArray[np.float64]

Sizes = float | Floats


_GATHER_SCATTER = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)

_ALL_REDUCE_ALGORITHMS = frozenset(ALGORITHMS) - {"pat"}

_GATHER_SCATTER_ALGORITHMS = frozenset(("ring", "pat", "nvls", "collnet-direct"))

_CHAIN_ALGORITHMS = frozenset(("ring",))


_LOGARITHMS = np.arange(6, 31)
"""Of the sizes for which the correction of trees is given: 64 bytes and on; the last is 1."""


_POWERS = 2.0 ** _LOGARITHMS[1:]


_NO_SPREAD = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Candidate:
    """One algorithm with one protocol, for one operation on one group.

    Attributes
    ----------
    algorithm : str
    protocol : int
    channels : int
        Of the communicator.
    quantum : int
        Bytes a channel must have before one more is used; 0: all are.
    expected_latency, expected_bandwidth : float
        What NCCL's tuner believes, seconds and bytes per second.
    latency, bandwidth : float
        What to expect. `latency` is that of messages that a network sends at once.
    bulk : float
        What larger messages add to it.
    growth : float
        Power of the size, over `eager`, with which that grows.
    eager : float
        Size from which messages are large: half of it still travels at once. Between the two,
        which no table tells apart, the latency of large messages sets in by degrees.
    pace : float
        Latency that every chunk of a pipeline meets again, times its tree's crossings; seconds.
    spread : float
        How much of it counts: see `lasting`.
    channel_bandwidth : float
        What one channel can move of payload.
    fill : float
        Bytes that pass before a pipeline is full, all channels together.
    plateau_from, plateau_factor : float
        Size from which NCCL believes in so much longer a latency.
    correction : float64, shape (25,), optional
        Of the bandwidth by size, in NCCL's belief.
    """

    algorithm: str
    protocol: int
    channels: int
    quantum: int
    expected_latency: float
    expected_bandwidth: float
    latency: float
    bandwidth: float
    bulk: float
    growth: float
    eager: float
    pace: float
    spread: float
    channel_bandwidth: float
    fill: float
    plateau_from: float
    plateau_factor: float
    correction: NDArray[np.float64] | None

    def predicted(self, bytes: Sizes) -> Floats:
        """Return the time to expect, for one size or an array of them."""
        return self.lasting(bytes) + bytes / self.flowing(bytes)

    def used(self, bytes: Sizes) -> Floats:
        """Return how many channels carry a message, not rounded."""
        if not self.quantum:
            return np.float64(self.channels)
        return np.minimum(np.maximum(np.divide(bytes, self.quantum), 1.0), self.channels)

    def flowing(self, bytes: Sizes) -> Floats:
        """Return bytes per second once they flow."""
        rate: Floats = np.minimum(self.bandwidth, self.used(bytes) * self.channel_bandwidth)
        return rate

    def lasting(self, bytes: Sizes) -> Floats:
        """Return the seconds in which no bytes flow.

        What a message that is not sent at once costs beyond one that is grows with its size where
        the CPU reads every line of it, looking for flags (LL): that passes from node to node before
        the next may send. Others go in chunks. A pipeline whose steps take `pace` together moves
        what would take t in chunks: few of them, and the last steps wait long for the first; many,
        and each costs its steps. The best number loses 2 (pace t)^1/2. Steps that vary lose as much
        of the same form, and each crossing of a tree adds its own: on 16 and on 64 nodes of Alps a
        crossing costs the same. `spread` stands for all of these.
        """
        lasting = self._starting(bytes) + self._losing(bytes)
        if not self.fill:
            return lasting
        # Chunks shrink with the message: a small one fills with little, a large one with whole
        # buffers.
        filling: Floats = np.asarray(bytes * self.fill / (bytes + self.fill) / self.bandwidth)
        return lasting + filling

    def waiting(self, bytes: Sizes) -> Floats:
        """Return the seconds that are due to latencies: twice as long ones would add as many.

        To first order: what a pipeline loses is due to its latency and its bandwidth in equal
        parts.
        """
        return self._starting(bytes) + 0.5 * self._losing(bytes)

    def _starting(self, bytes: Sizes) -> Floats:
        """Return the latency of a message of some size."""
        if not self.bulk:
            return np.float64(self.latency)
        more: Floats = np.float64(self.bulk)
        if self.growth:
            more = more * np.maximum(np.divide(bytes, self.eager), 1.0) ** self.growth
        part = np.divide(bytes, self.eager * self.used(bytes))
        return self.latency + np.clip(2 * part - 1, 0.0, 1.0) * more

    def _losing(self, bytes: Sizes) -> Floats:
        """Return what a pipeline of chunks loses."""
        if not self.spread:
            return np.float64(0.0)
        lost: Floats = self.spread * np.sqrt(self.pace * bytes / self.flowing(bytes))
        return lost


class TunerRanking:
    """Candidates side by side, for NCCL's choice.

    Parameters
    ----------
    candidates : list of Candidate
        In NCCL's order: of equally fast ones it takes the first.
    """

    def __init__(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self._latency = np.array([[each.expected_latency] for each in candidates])
        self._longer = self._latency * np.array([[each.plateau_factor - 1] for each in candidates])
        self._plateau_from = np.array([[each.plateau_from] for each in candidates])
        self._has_plateau = bool(self._longer.any())
        even = np.ones(len(_LOGARITHMS))
        self._per_byte = 1 / np.array(
            [
                each.expected_bandwidth * (even if each.correction is None else each.correction)
                for each in candidates
            ]
        )

    def expected(self, bytes: Sizes) -> NDArray[np.float64]:
        """Return the tuner's times, shape (candidates, sizes)."""
        sizes = np.atleast_1d(bytes)
        times: NDArray[np.float64] = self._per_byte[:, _POWERS.searchsorted(sizes, "right")] * sizes
        times += self._latency
        if self._has_plateau:
            times += self._longer * (sizes >= self._plateau_from)
        return times


def candidates(
    operation: Operation,
    shape: Shape,
    system: System,
    settings: Settings,
    factors: Factors,
    tables: NcclConstants,
    machine: System | None = None,
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
    machine : System, optional
        What carries the messages, where that is not the same.
    """
    machine = machine or system
    seen = link_bandwidths(system, settings, shape, tables)
    scaled = factors.of(link_bandwidths(machine, settings, shape, tables), machine)
    graphs = search_channels(seen, shape, tables)
    wired = graphs_at_link_speed(graphs, scaled, shape, tables)
    counts = channel_counts(graphs, shape, settings, tables, system.arch)
    pipeline = tables.raw["pipeline"]
    found = []
    for algorithm in _enabled_algorithms(operation, shape, system, settings, tables):
        for protocol in _enabled_protocols(
            operation, algorithm, shape, system, settings, seen, tables
        ):
            of = (operation, algorithm, protocol, shape)
            expected = tuner_bandwidth(*of, graphs, system, tables)
            reached = tuner_bandwidth(*of, wired, system, tables, factors.cap(shape.nodes))
            if not expected or not reached:
                continue
            step = step_latency(algorithm, protocol, system, settings, shape, seen, tables)
            same = system.intra == "nvswitch" or shape.most == 1
            believed = tuner_latency(*of, step, same, tables)
            # NCCL counts one step for a chain on equal channels, as nothing else could be chosen.
            felt = step_latency(algorithm, protocol, machine, settings, shape, seen, tables)
            real = tuner_latency(*of, felt, False, tables)
            count = counts[1] if algorithm in ("nvls", "nvls-tree") else counts[0]
            several = shape.nodes > 1 and operation is Operation.ALL_REDUCE
            plateau = algorithm == "ring" and protocol == SIMPLE and several
            fewest = real  # what the factors are of
            if algorithm in ("ring", "tree") and protocol != LL:
                flags = step_latency(algorithm, LL, machine, settings, shape, seen, tables)
                fewest = tuner_latency(operation, algorithm, LL, shape, flags, False, tables)
            inside = real.inside + (factors.latency_inside - 1) * fewest.inside
            eager = real.across + (factors.latency_across - 1) * fewest.across
            bulk = factors.latency_bulk * fewest.across
            parts = shape.ranks if algorithm == "ring" else 1
            found.append(
                Candidate(
                    algorithm,
                    protocol,
                    count,
                    bytes_per_channel(
                        algorithm, protocol, shape, settings, _has_slow_ring(graphs, tables), tables
                    ),
                    believed.inside + believed.across,
                    expected,
                    inside + eager,
                    reached,
                    bulk,
                    pipeline["growth"][protocol],
                    pipeline["eager"] * parts if shape.nodes > 1 else float("inf"),
                    real.crossings * (inside + eager + bulk),
                    pipeline["spread"].get(algorithm, _NO_SPREAD)[protocol],
                    _channel_bandwidth(operation, algorithm, protocol, shape, tables),
                    pipeline_fill(operation, algorithm, protocol, shape, count, settings, tables),
                    tables.raw["plateau"]["bytes"] * count * shape.ranks,
                    tables.plateau_factor if plateau else 1.0,
                    np.append(tables.correction[protocol], 1.0) if algorithm == "tree" else None,
                )
            )
    return found


def _enabled_algorithms(
    operation: Operation, shape: Shape, system: System, settings: Settings, tables: NcclConstants
) -> list[str]:
    """Return the algorithms that can run and may, in NCCL's order; the ring if none does."""
    if operation is Operation.ALL_REDUCE:
        can = _ALL_REDUCE_ALGORITHMS
    else:
        can = _GATHER_SCATTER_ALGORITHMS if operation in _GATHER_SCATTER else _CHAIN_ALGORITHMS
    several = shape.nodes > 1
    switched = system.intra == "nvswitch" and not settings.p2p_disable
    multicast = tables.multicast and switched and settings.nvls_enable is not False
    without = set()
    if not multicast or shape.least < tables.raw["channels"]["nvls-ranks"]:
        without |= {"nvls", "nvls-tree"}
    if not several:
        without |= {"nvls-tree", "collnet-direct", "collnet-chain"}
    if not settings.collnet_enable:
        without |= {"collnet-direct", "collnet-chain"} | ({"nvls"} if several else set())
    if system.intra != "nvswitch":
        without.add("collnet-direct")
    if operation in _GATHER_SCATTER and several and shape.nics < shape.most:
        without |= {"nvls", "collnet-direct"}
    if system.version < (2, 18):
        without |= {"nvls-tree"}
    pat = shape.most == 1 and several and system.version >= (2, 23)
    if not pat or settings.pat_enable is False or tables.generation < 60:
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
    tables: NcclConstants,
) -> list[int]:
    if algorithm not in ("ring", "tree"):
        return [SIMPLE]
    may = allowed(settings.proto, operation)
    if may is not None:
        return [i for i, name in enumerate(PROTOCOLS) if name in may] or [SIMPLE]
    # From Hopper on, a way to the NIC over Grace's own links is as good as one over PCIe switches.
    near = system.nic_path in ("pix", "pxb") or (tables.generation >= 90 and system.cpu == "grace")
    ordered = found.fast and (shape.nodes == 1 or near)
    if ordered and tables.generation >= 70 and tables.generation not in (75, 89):
        return [LL, LL128, SIMPLE]
    return [LL, SIMPLE]


def _has_slow_ring(graphs: dict[str, ChannelGraph], tables: NcclConstants) -> bool:
    ring = graphs["ring"]
    return ring.inside * ring.channels <= tables.raw["threads"]["slow"] * 1e9


def _channel_bandwidth(
    operation: Operation, algorithm: str, protocol: int, shape: Shape, tables: NcclConstants
) -> float:
    """Return the payload that one channel can move, in bytes of the full buffer.

    Half of what LL moves is flags, 8 of 128 bytes of LL128.
    """
    if algorithm in ("nvls", "nvls-tree"):
        return float("inf")
    most = tables.block * (1 / 2, 120 / 128, 1)[protocol]
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
    tables: NcclConstants,
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


def pipeline_fill(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    channels: int,
    settings: Settings,
    tables: NcclConstants,
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


def _chunk(protocol: int, settings: Settings, tables: NcclConstants) -> float:
    """Return the payload of one step of a connection's buffer."""
    buffers = tables.raw["buffers"]
    if protocol == SIMPLE:
        return (settings.buffsize or buffers["simple"]) / buffers["steps"]
    name = PROTOCOLS[protocol]
    return float(buffers[name] * buffers[f"{name}-payload"] / buffers["steps"])
