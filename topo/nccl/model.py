"""Operation, group, bytes → NCCL's choice of algorithm and protocol, and its expected time.

Choosing: the tuner's own latency and bandwidth, with NCCL's constants and the speeds of its search
(:mod:`.tuning`, :mod:`.channels`). The fastest pair that is enabled wins.

Predicting differs in five ways. The links have their own speeds, not those of the search's list. A
message too small for all channels has only the speed of those it uses. A chain (broadcast, reduce)
must fill before its end receives. What pipelines of chunks lose grows with the square root of the
size, in place of NCCL's correction of trees and its plateau of rings (:mod:`.candidates`). Messages
that a network does not send at once have a latency of their own. Latencies and bandwidths are as a
platform's `Factors` say.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from .candidate import Candidate, TunerRanking
from .candidates import candidates
from .constants import PROTOCOLS, nccl_constants
from .factors import Factors
from .link_bandwidths import link_bandwidths
from .point_to_point import SEND_OPERATIONS, send_cost
from .rccl import rccl_constants, size_ranges
from .settings import Settings
from .shape import Shape
from .system import System

__all__ = ["Choice", "Nccl", "remember"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

Floats = NDArray[np.float64]

COLLECTIVES = frozenset(
    (
        Operation.ALL_REDUCE,
        Operation.ALL_GATHER,
        Operation.REDUCE_SCATTER,
        Operation.BROADCAST,
        Operation.REDUCE,
    )
)

_OPERATIONS = (*sorted(COLLECTIVES), *sorted(SEND_OPERATIONS), Operation.BARRIER)

BARRIER_BYTES = 4
"""Bytes of the all-reduce that frameworks use as a barrier."""

MAX_CHOICES_CACHED = 1 << 16
"""Choices that are remembered, some 30 MB; one experiment has dozens."""


@frozen
class Choice:
    """NCCL's algorithm, protocol and channels for one communication, and its time.

    Attributes
    ----------
    algorithm : str
        ``ring``, ``tree``, ``nvls``, ...; ``send`` for what is made of sends; ``none`` for a group
        of one.
    protocol : str
        ``ll``, ``ll128``, ``simple``.
    channels : int
        Number of channels that carry the communication.
    latency : float
        Seconds until bytes flow.
    bandwidth : float
        Bytes of the full buffer per second that then flow.
    """

    algorithm: str
    protocol: str
    channels: int
    latency: float
    bandwidth: float

    def seconds(self, bytes: float) -> float:
        """Bytes of the full buffer → expected duration, in seconds."""
        return self.latency + bytes / self.bandwidth

    @property
    def settings(self) -> dict[str, str]:
        """The variables that make NCCL take this pair; none for sends and RCCL's own kernels."""
        if self.algorithm not in NCCL_NAMES:
            return {}
        return {
            "NCCL_ALGO": NCCL_NAMES[self.algorithm],
            "NCCL_PROTO": NCCL_NAMES[self.protocol],
        }


NCCL_NAMES = {
    "tree": "Tree",
    "ring": "Ring",
    "collnet-direct": "CollNetDirect",
    "collnet-chain": "CollNetChain",
    "nvls": "NVLS",
    "nvls-tree": "NVLSTree",
    "pat": "PAT",
    "ll": "LL",
    "ll128": "LL128",
    "simple": "Simple",
}
"""NCCL's own names of algorithms and protocols."""


class Nccl:
    """NCCL on one kind of machine.

    In all methods `bytes` is the size of the full buffer: what an all-gather ends with and a
    reduce-scatter starts with; what one rank of an all-to-all sends, its own part included; of a
    barrier it is ignored. `shape` is that of the group.

    Parameters
    ----------
    system : System
    settings : Settings, optional
        Environment variables.
    factors : Factors, optional
        Calibration of the platform.
    hardware : System, optional
        What carries the messages, if not `system`, which is what NCCL sees: it then searches,
        chooses and counts channels as on `system`, and times are those of the hardware.

    Examples
    --------
    >>> h200 = Nccl(System("hopper", 8, "nvswitch", link_bandwidth=370.8e9))
    >>> node = Shape.regular(1, 8, h200.system)
    >>> h200.choose(Operation.ALL_REDUCE, 1 << 20, node).algorithm
    'ring'
    >>> h200.choose(Operation.ALL_REDUCE, 1 << 21, node).algorithm
    'nvls'
    """

    def __init__(
        self,
        system: System,
        settings: Settings | None = None,
        factors: Factors | None = None,
        hardware: System | None = None,
    ) -> None:
        self.system = system
        self.hardware = hardware or system
        self.settings = settings or Settings()
        self.factors = factors or Factors()
        self.constants = nccl_constants(system.arch, system.version)
        self.rccl = rccl_constants(system.rccl, system.version) if system.rccl else None
        self._rankings: dict[tuple[Operation, Shape], TunerRanking] = {}
        self._choices: dict[tuple[Operation, int, Shape], Choice] = {}

    def choose(self, operation: Operation, bytes: int, shape: Shape) -> Choice:
        """Return the library's choice, NCCL's or RCCL's.

        Raises
        ------
        InputError
            For an operation of unknown kind, or a group on several nodes of a machine without
            NICs.
        """
        key = (operation, bytes, shape)
        found = self._choices.get(key)
        if found is None:
            found = self._choose(operation, bytes, shape)
            remember(self._choices, key, found)
        return found

    def seconds(self, operation: Operation, bytes: int, shape: Shape) -> float:
        """Return the duration of a communication with the network to itself."""
        found = self.choose(operation, bytes, shape)
        return found.seconds(BARRIER_BYTES if operation is Operation.BARRIER else bytes)

    def seconds_of(self, operation: Operation, bytes: ArrayLike, shape: Shape) -> Floats:
        """Return the durations of communications of many sizes.

        Parameters
        ----------
        bytes : array_like, shape (n,)

        Returns
        -------
        float64, shape (n,)
        """
        sizes = np.asarray(bytes, dtype=float)
        self._check(operation, shape)
        if shape.ranks == 1:
            return np.zeros(sizes.shape)
        if operation is Operation.BARRIER:
            return np.full(sizes.shape, self.seconds(operation, 0, shape))
        if operation in SEND_OPERATIONS:
            # Sizes of sends are few, and the channels of each differ.
            each = [self.seconds(operation, int(size), shape) for size in sizes.flat]
            return np.reshape(each, sizes.shape)
        ranking = self._ranking(operation, shape)
        chosen = ranking.chosen(sizes.reshape(-1)).reshape(sizes.shape)
        times = np.empty(sizes.shape)
        for i in np.unique(chosen):
            at = chosen == i
            times[at] = ranking.candidates[i].seconds(sizes[at])
        return times

    def candidates(self, operation: Operation, bytes: int, shape: Shape) -> list[Choice]:
        """Return all pairs of algorithm and protocol that are enabled, the library's choice first.

        Returns
        -------
        list of Choice
            By the time that NCCL expects. For sends, barriers and groups of one the choice alone.
        """
        self._check(operation, shape)
        if operation in SEND_OPERATIONS or operation is Operation.BARRIER or shape.ranks == 1:
            return [self.choose(operation, bytes, shape)]
        ranking = self._ranking(operation, shape)
        return [_choice(ranking.candidates[i], bytes) for i in ranking.order(bytes)]

    def highest_bandwidths(
        self, operation: Operation, sizes: Sequence[int], shape: Shape
    ) -> dict[str, float]:
        """Return the highest bandwidth of each algorithm of `candidates` at some sizes, in bytes/s.

        Parameters
        ----------
        sizes : sequence of int
            In bytes.
        """
        self._check(operation, shape)
        if operation in SEND_OPERATIONS or operation is Operation.BARRIER or shape.ranks == 1:
            every = [self.choose(operation, size, shape) for size in sizes]
            pairs = [(each.algorithm, each.bandwidth) for each in every]
        else:
            some, known = np.array(sizes, float), self._ranking(operation, shape).candidates
            pairs = [(each.algorithm, float(np.max(each.rate(some)))) for each in known]
        found: dict[str, float] = {}
        for algorithm, bandwidth in pairs:
            found[algorithm] = max(found.get(algorithm, 0.0), bandwidth)
        return found

    def better(self, operation: Operation, bytes: int, shape: Shape) -> Choice | None:
        """Return the fastest pair that one can ask for, where the library's is clearly slower.

        Clearly: by more than ``better.margin`` of ``data/nccl.toml``. The tuner believes in
        bandwidths and latencies of its own; with ``NCCL_ALGO`` and ``NCCL_PROTO`` one may overrule
        it.

        Returns
        -------
        Choice or None
            None where the choice is as good as any, or there is none, as for sends.
        """
        every = self.candidates(operation, bytes, shape)
        found = self.better_of(every, [each.seconds(bytes) for each in every])
        return None if found is None else every[found]

    def better_of(self, choices: Sequence[Choice], times: Sequence[float]) -> int | None:
        """Return the place of the fastest pair that variables name, where the first is slower.

        RCCL's own kernels have no variable that chooses among their protocols.

        Parameters
        ----------
        choices : sequence of Choice
            NCCL's own first.
        times : sequence of float
            Of each, in one unit.

        Returns
        -------
        int or None
            None where the first is not clearly slower (`clearly_slower`).
        """
        named = [i for i, each in enumerate(choices) if each.settings] or range(len(choices))
        fastest = min(named, key=times.__getitem__)
        return fastest if self.clearly_slower(times[0], times[fastest]) else None

    def clearly_slower(self, time: float, fastest: float) -> bool:
        """Say whether a time is longer than another by more than ``better.margin``.

        Parameters
        ----------
        time : float
            In the unit of `fastest`, whichever that is.
        fastest : float
        """
        return time > (1 + float(self.constants.raw["better"]["margin"])) * fastest

    def due_to_latency(self, operation: Operation, bytes: int, shape: Shape) -> float:
        """Return the part of a duration that is due to latencies, in seconds.

        Were all latencies twice as long, a communication would take so much longer, to first order.
        """
        self._check(operation, shape)
        if operation is Operation.BARRIER:
            return self.due_to_latency(Operation.ALL_REDUCE, BARRIER_BYTES, shape)
        if operation in SEND_OPERATIONS or shape.ranks == 1:
            return self.choose(operation, bytes, shape).latency
        ranking = self._ranking(operation, shape)
        chosen = ranking.choice(bytes)
        return float(chosen.due_to_latency(bytes))

    def fits_buffers(self, bytes: int, shape: Shape) -> bool:
        """Return whether a send fits into NCCL's buffers, so that it ends without its receiver.

        A send inside a node writes up to 8 steps ahead of what the receiver has taken, so much as
        the buffer of each of its connections holds (``waitPeer`` with `NCCL_STEPS`, github:NVIDIA/
        nccl src/device/prims_simple.h). Over the network it has fewer connections and is taken to
        wait.

        Parameters
        ----------
        bytes : int
            Bytes that the send transfers.
        shape : Shape
            Of the two ranks.
        """
        choice = self.choose(Operation.SEND_RECV, bytes, shape)
        size = self.settings.buffsize or self.constants.raw["buffers"]["simple"]
        return shape.nodes == 1 and bytes <= choice.channels * size

    def _choose(self, operation: Operation, bytes: int, shape: Shape) -> Choice:
        self._check(operation, shape)
        if shape.ranks == 1:
            return Choice("none", "simple", 0, 0.0, float("inf"))
        if operation is Operation.BARRIER:
            return self.choose(Operation.ALL_REDUCE, BARRIER_BYTES, shape)
        if operation in SEND_OPERATIONS:
            return self._sends(operation, bytes, shape)
        ranking = self._ranking(operation, shape)
        return _choice(ranking.choice(bytes), bytes)

    def _ranking(self, operation: Operation, shape: Shape) -> TunerRanking:
        key = (operation, shape)
        if key not in self._rankings:
            found = candidates(
                operation,
                shape,
                self.system,
                self.settings,
                self.factors,
                self.constants,
                self.hardware,
                self.rccl,
            )
            by_size = (
                ()
                if self.rccl is None or self.settings.proto
                else size_ranges(operation, shape, self.rccl)
            )
            self._rankings[key] = TunerRanking(found, by_size)
        return self._rankings[key]

    def _sends(self, operation: Operation, bytes: int, shape: Shape) -> Choice:
        wires = link_bandwidths(self.hardware, self.settings, shape, self.constants)
        scaled = self.factors.of(wires, self.hardware)
        latencies = None if self.rccl is None else self.rccl.times
        found = send_cost(
            operation, bytes, shape, scaled, self.hardware, self.settings, self.constants, latencies
        )
        latency = (
            found.latency_inside
            + (self.factors.latency_inside - 1) * found.least_inside
            + found.latency_across
            + (self.factors.latency_across - 1) * found.least_across
        )
        slowest = max(found.inside, found.across)
        latency *= self.factors.latency
        return Choice("send", found.protocol, found.channels, latency, 1 / slowest)

    def _check(self, operation: Operation, shape: Shape) -> None:
        if operation not in _OPERATIONS:
            raise InputError(
                f"no cost is known for a communication of kind {operation.name}; known are "
                f"{', '.join(each.name for each in _OPERATIONS)}"
            )
        if shape.nodes > 1 and not self.system.nics:
            raise InputError(f"a group on {shape.nodes} nodes, but the nodes have no NICs")


def remember(known: dict[Key, Value], key: Key, value: Value) -> None:
    """Add an entry to a cache of at most `MAX_CHOICES_CACHED`; a full one is emptied first.

    Parameters
    ----------
    known : dict
        The cache.
    key, value
        Of the entry.
    """
    if len(known) >= MAX_CHOICES_CACHED:
        known.clear()
    known[key] = value


def _choice(candidate: Candidate, bytes: float) -> Choice:
    latency = float(candidate.overhead(bytes))
    return Choice(
        candidate.algorithm,
        PROTOCOLS[candidate.protocol],
        int(candidate.channels_used(bytes)),
        latency,
        float(candidate.rate(bytes)),
    )
