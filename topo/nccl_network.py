"""A cluster as NCCL uses it: what communications cost, and which links they load."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.program import Operation
from mpisim.quantity import PICOSECONDS, Quantity
from mpisim.recent import Recent

from .loads import link_weights
from .narrowest import behind_ports
from .nccl import Nccl, Shape
from .price import RATE_BITS, WEIGHT_ONE, Price, rate_of
from .shapes import Alike, alike, shapes_of
from .topology import Paths, Topology
from .transfers import transfers

__all__ = ["NcclNetwork", "Pattern"]

Ints = NDArray[np.int64]

_SIZES = tuple(1 << bits for bits in range(10, 37, 2))
"""Sizes at which the highest rate of an algorithm is sought."""

_MOST_KNOWN = 1 << 26
"""Bytes of answers about groups that are remembered, of each kind."""

_DECADES = 13
"""Of sizes in bytes, each with an error bar of its own; the last holds all larger ones."""


class Pattern(NamedTuple):
    """Which links a communication loads: what it does, and by which of NCCL's algorithms."""

    operation: Operation
    algorithm: str


class NcclNetwork:
    """Prices by NCCL's own choices, on the links of a topology.

    With the network to itself a communication has the latency and the bandwidth of `Nccl`, which is
    calibrated on measurements. It loads links with the bytes that its algorithm moves over them. At
    its highest rate it fills no link beyond its nominal bandwidth: measured collectives exceed what
    one path carries where they use several. Links that were slowed (`changed`) do limit it.

    Parameters
    ----------
    nccl : Nccl
    topology : Topology
    nominal : Topology, optional
        The same links before some were slowed.
    numbers : callable, optional
        From a number of bytes to the factor that prices of that decade of sizes rest on, 1 with its
        error bar. Inside nodes and across them prices are off independently of each other.
    meshed : bool
        Whether GPUs of a node are joined pair by pair.
    """

    def __init__(
        self,
        nccl: Nccl,
        topology: Topology,
        nominal: Topology | None = None,
        numbers: Callable[[float], Quantity] | None = None,
        *,
        meshed: bool = False,
    ) -> None:
        self.nccl = nccl
        self.topology = topology
        self.numbers = {
            _number(where, decade): numbers(10.0**decade)
            for where in ("node", "network")
            for decade in range(_DECADES)
            if numbers is not None
        }
        self._nominal = nominal or topology
        self._meshed = meshed
        self._limits: dict[tuple[Pattern, Shape], int] = {}
        # One program is often run several times, and asked about several times a run; programs
        # that are compared have many groups in common.
        self._shapes: Recent[tuple[Ints, list[Shape]]] = Recent(_MOST_KNOWN, _size)
        self._loaded: Recent[tuple[Ints, Ints, Ints]] = Recent(_MOST_KNOWN, _size)
        self._arranged: Recent[tuple[Ints, Ints, Ints]] = Recent(_MOST_KNOWN, _size)

    def group_classes(
        self, index: Ints, members: NDArray[np.int32]
    ) -> tuple[Ints, list[Shape]]:
        """Return the shapes of groups: ranks, nodes, and how the one stand on the other."""
        return self._shapes.answer(
            _fingerprint(index, members), lambda: shapes_of(index, members, self.nccl.system)
        )

    def price(self, operation: Operation, bytes: int, group: Shape) -> Price:
        """Return what NCCL takes; a communication of one rank with itself costs nothing."""
        if group.ranks == 1:
            return Price(0)
        choice = self.nccl.choose(operation, bytes, group)
        latency = round(choice.latency * PICOSECONDS)
        if not bytes or operation is Operation.BARRIER:
            return Price(latency)
        pattern = Pattern(operation, choice.algorithm)
        rate = min(rate_of(choice.bandwidth), self._limit(pattern, group))
        return Price(latency, bytes, rate, pattern)

    def shares(self, operation: Operation, bytes: int, group: Shape) -> dict[str, float]:
        """Return the whole of it as the share of the factor for sizes of its decade."""
        if not self.numbers or not self.price(operation, bytes, group).duration:
            return {}
        decade = min(len(str(max(bytes, 1))) - 1, _DECADES - 1)
        return {_number("node" if group.nodes == 1 else "network", decade): 1.0}

    @cached_property
    def capacity(self) -> Ints:
        """What each link carries, shape (n_links,), in 2**-40 bytes per ps."""
        return _rates(self.topology)

    @cached_property
    def _wide(self) -> NDArray[np.bool_]:
        """Links that hold nobody back; only where no link was changed."""
        if self._nominal is not self.topology:
            return np.zeros(self.topology.n_links, bool)
        return behind_ports(self.topology, self.nccl.system.gpus_per_node)

    @cached_property
    def _paths(self) -> Paths:
        return self.topology.among(~self._wide)

    @cached_property
    def _capacity_nominal(self) -> Ints:
        return _rates(self._nominal)

    def link_name(self, link: int) -> str:
        """Return the name of a link."""
        return self.topology.link_name(link)

    def loads(
        self, index: Ints, members: NDArray[np.int32], pattern: Pattern
    ) -> tuple[Ints, Ints, Ints]:
        """Return the links that groups load: see `SharedNetwork`."""
        return self._loaded.answer(
            (pattern, _fingerprint(index, members)),
            lambda: self._all_loads(index, members, pattern),
        )

    def _all_loads(
        self, index: Ints, members: NDArray[np.int32], pattern: Pattern
    ) -> tuple[Ints, Ints, Ints]:
        found = [
            self._loads(each, pattern)
            for each in alike(index, members, self.nccl.system.gpus_per_node)
        ]
        group = np.concatenate([np.empty(0, np.int64), *(each[0] for each in found)])
        order = np.argsort(group, kind="stable")  # of one group links are ascending already
        links = np.concatenate([np.empty(0, np.int64), *(each[1] for each in found)])
        weights = np.concatenate([np.empty(0, np.int64), *(each[2] for each in found)])
        counts = np.bincount(group, minlength=len(index) - 1)
        return np.concatenate([[0], np.cumsum(counts)]), links[order], weights[order]

    def _loads(self, groups: Alike, pattern: Pattern) -> tuple[Ints, Ints, Ints]:
        """Return (group, link, weight) of groups of one arrangement, by group and link."""
        group, link, weight = self._arranged.answer(
            (pattern, _fingerprint(groups.members, groups.base)),
            lambda: self._weights(groups, pattern),
        )
        return groups.groups[group], link, weight

    def _weights(self, groups: Alike, pattern: Pattern) -> tuple[Ints, Ints, Ints]:
        """Return (place in `groups`, link, weight) of groups of one arrangement."""
        system = self.nccl.system
        sent = transfers(*pattern, groups.members, system.gpus_per_node, meshed=self._meshed)
        group, link, weight = link_weights(
            self._paths, self.topology.share, groups.base, sent, ~self._wide
        )
        limit = self._limit(pattern, Shape.of(groups.members.tolist(), system))
        # Never beyond the nominal bandwidth at the highest rate.
        whole, rest = np.divmod(self._capacity_nominal[link], limit)
        most = whole * WEIGHT_ONE + rest * WEIGHT_ONE // limit
        return group, link, np.minimum(weight, most)

    def _limit(self, pattern: Pattern, shape: Shape) -> int:
        """The highest rate at which an algorithm moves its payload, whatever the size."""
        key = (pattern, shape)
        if key not in self._limits:
            self._limits[key] = max(
                rate_of(choice.bandwidth)
                for size in _SIZES
                for choice in self.nccl.candidates(pattern.operation, size, shape)
                if choice.algorithm == pattern.algorithm
            )
        return self._limits[key]


def _fingerprint(*arrays: NDArray[Any]) -> bytes:
    """Return what tells apart the contents of arrays."""
    found = blake2b(digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
        found.update(len(array).to_bytes(8, "little"))
    return found.digest()


def _size(answer: tuple[Any, ...]) -> int:
    """Return the bytes of the arrays of an answer, and a little for what is around them."""
    return 1024 + sum(part.nbytes for part in answer if isinstance(part, np.ndarray))


def _number(where: str, decade: int) -> str:
    return f"{where}_collectives_1e{decade}"


def _rates(topology: Topology) -> Ints:
    """Bandwidths as integer rates, at least 1."""
    rates = np.rint(topology.bandwidth * ((1 << RATE_BITS) / PICOSECONDS))
    return np.maximum(rates, 1).astype(np.int64)
