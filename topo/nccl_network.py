"""A cluster as NCCL uses it: what communications cost, and which links they load.

The price of a communication that has the network to itself is

    NCCL's latency + the latency of the way beyond that + bytes / rate

where the rate is the lowest of what NCCL reaches between such GPUs and cards, on a fabric that
holds nobody back (:mod:`.nccl`, calibrated on measured nodes), and of what each link of this
network can carry under the bytes that the algorithm moves over it (:mod:`.alone`). Both mean the
same whether a link was built so or changed.

GPUs that are joined to the fabric themselves have no NCCL that was measured. There the library
(:mod:`.direct`) only adds the latency of a launch: the whole latency of the way counts, and the
rate is what links carry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation
from mpisim.base.lru_cache import LruCache
from mpisim.base.quantity import PICOSECONDS, Quantity

from .alone import (
    IMPOSSIBLE,
    UNLIMITED,
    Limits,
    excess_latency,
    highest_rates,
    lowest,
    usual,
    whole_latency,
)
from .carried import Carried
from .dimensions import SERVED
from .direct import UNMEASURED, Library, LinkLibrary
from .narrowest import behind_ports
from .nccl import Choice, Nccl, Shape
from .nccl.limits import LATENCY, limit_of
from .placement import Limit, Pattern, Placement
from .price import RATE_BITS, WEIGHT_ONE, Price, rate_of
from .routes import Rerouted
from .shapes import Alike, alike, shapes_of
from .topology import LinkKind, Paths, Topology
from .transfers import CHAINS

if TYPE_CHECKING:
    from .collectives.calibration import Regime

__all__ = ["Limit", "NcclNetwork", "Pattern", "Placement"]

Ints = NDArray[np.int64]

_SIZES = tuple(1 << bits for bits in range(10, 37, 2))
"""Sizes at which the highest rate of an algorithm is sought."""

_MOST_KNOWN = 1 << 26
"""Bytes of answers about groups that are remembered, of each kind."""

_DECADES = 13
"""Of sizes in bytes, each with an error bar of its own; the last holds all larger ones."""


class NcclNetwork:
    """Prices by a library's own choices, on the links of a topology.

    Inside nodes and at their cards, measured collectives exceed what one path carries where they
    use several: at its highest rate a communication fills no such link beyond the bandwidth that is
    usual among its like. Links that are slower than that, and all links between switches, limit it.
    With a `LinkLibrary` all links do.

    Parameters
    ----------
    library : Nccl or LinkLibrary
        NCCL of a system with the usual bandwidths (:func:`.graph_system.system_seen`).
    topology : Topology
    numbers : callable, optional
        From a number of bytes and ``"inside"`` or ``"across"`` nodes to the factor that prices of
        that decade of sizes rest on, 1 with its error bar. The two are off independently of each
        other.
    measured : bool
        Whether nodes and cards are such as NCCL's numbers were measured on; otherwise all links
        limit, as with a `LinkLibrary`.
    meshed : bool
        Whether GPUs of a node are joined pair by pair.
    dimensions : bool
        Whether what NCCL does by rings goes dimension by dimension where a group can.
    by_fabric : bool
        Whether NCCL's rings follow the fabric rather than the order of ranks.
    """

    def __init__(
        self,
        library: Nccl | LinkLibrary,
        topology: Topology,
        numbers: Callable[[float, Regime], Quantity] | None = None,
        *,
        measured: bool = True,
        meshed: bool = False,
        dimensions: bool = False,
        by_fabric: bool = False,
    ) -> None:
        self.library: Library = library
        self.nccl = library if isinstance(library, Nccl) else None
        self._links = library if isinstance(library, LinkLibrary) else None
        self.notes = () if self._links is None else (UNMEASURED,)
        self._dimensions = dimensions
        # Where links were cut others carry for them, which no measurement saw.
        cut = isinstance(topology.paths, Rerouted)
        self._measured = measured and self._links is None and not cut
        self.topology = topology
        self.numbers = {
            _number(where, decade): numbers(10.0**decade, regime)
            for where, regime in _REGIMES.items()
            for decade in range(_DECADES)
            if numbers is not None
        }
        self._carried = Carried(
            topology, library.system.gpus_per_node, meshed, by_fabric, self._links is None
        )
        self._highest: dict[tuple[Pattern, Shape], int] = {}
        # One program is often run several times, and asked about several times a run; programs
        # that are compared have many groups in common.
        self._placed: LruCache[tuple[Ints, list[Placement]]] = LruCache(_MOST_KNOWN, _size)
        self._loaded: LruCache[tuple[Ints, Ints, Ints]] = LruCache(_MOST_KNOWN, _size)
        self._arranged: LruCache[tuple[Ints, Ints, Ints]] = LruCache(_MOST_KNOWN, _size)
        self._limited: LruCache[Limits] = LruCache(_MOST_KNOWN, _size)

    # --- prices ---------------------------------------------------------------------------------

    def group_classes(
        self, index: Ints, members: NDArray[np.int32], operations: Ints | None = None
    ) -> tuple[Ints, list[Placement]]:
        """Return how groups stand on the network; see `Network`."""
        asked = np.full(len(index) - 1, -1) if operations is None else operations
        return self._placed.get(
            _fingerprint(index, members, asked), lambda: self._placements(index, members, asked)
        )

    def placement(self, members: Sequence[int], operation: Operation | None = None) -> Placement:
        """Return how one group stands on the network, for one operation or for any."""
        asked = None if operation is None else np.array([1 << operation])
        index, ranks = np.array([0, len(members)]), np.array(members, np.int32)
        label, classes = self.group_classes(index, ranks, asked)
        return classes[int(label[0])]

    def price(self, operation: Operation, bytes: int, group: Placement) -> Price:
        """Return what the library takes on these links; a rank with itself costs nothing."""
        return self.limited(self.nccl_price(operation, bytes, group), group)

    def nccl_price(self, operation: Operation, bytes: int, group: Placement) -> Price:
        """Return what the library takes where no link limits it, by the algorithm of its choice."""
        shape = group.shape
        if shape.ranks == 1:
            return Price(0)
        if self._links is None:
            choice = self.library.choose(operation, bytes, shape)
            return self._priced(operation, bytes, shape, choice)
        choice, _ = self.choices(operation, bytes, group)[0]
        return self._priced(operation, bytes, shape, choice)

    def _priced(self, operation: Operation, bytes: int, shape: Shape, choice: Choice) -> Price:
        latency = round(choice.latency * PICOSECONDS)
        if not bytes or operation is Operation.BARRIER:
            done = Operation.ALL_REDUCE if operation is Operation.BARRIER else operation
            return Price(latency, pattern=self._pattern(done, choice))
        pattern = self._pattern(operation, choice)
        rate = min(rate_of(choice.bandwidth), self._highest_rate(pattern, shape))
        return Price(latency, bytes, rate, pattern)

    def _pattern(self, operation: Operation, choice: Choice) -> Pattern:
        """Return by which pattern a choice is carried out."""
        named = self._dimensions and choice.algorithm == "ring" and operation in SERVED
        return Pattern(operation, "dimensions" if named else choice.algorithm)

    def limited(self, price: Price, group: Placement, factor: float = 1.0) -> Price:
        """Return NCCL's price as the links allow it.

        Parameters
        ----------
        price : Price
            From `nccl_price`, perhaps with a longer time.
        group : Placement
        factor : float
            How much longer its time is, inside nodes and at cards; their links allow so much less.
        """
        limit = group.limit(price.pattern) if group.limits else None
        if limit is not None:
            node_rate = limit.node_rate if factor == 1 else round(limit.node_rate / factor)
            rate = max(1, min(price.rate, node_rate, limit.fabric_rate)) if price.volume else 0
            latency = max(0, price.latency + limit.latency)
            price = price._replace(rate=rate, latency=latency)
        return price if price.volume else price._replace(pattern=None)

    def shares(self, operation: Operation, bytes: int, group: Placement) -> dict[str, float]:
        """Return the whole of it as the share of the factor for sizes of its decade."""
        if not self.numbers or not self.price(operation, bytes, group).duration:
            return {}
        decade = min(len(str(max(bytes, 1))) - 1, _DECADES - 1)
        return {_number("node" if group.nodes == 1 else "network", decade): 1.0}

    def choices(
        self, operation: Operation, bytes: int, group: Placement
    ) -> list[tuple[Choice, Price]]:
        """Return what the library may do, its choice first, and what each takes on these links.

        Raises
        ------
        InputError
            If that was not looked at: the operation is none of those that `group` was asked for.
        """
        found = []
        for choice in self.library.candidates(operation, bytes, group.shape):
            plain = self._priced(operation, bytes, group.shape, choice)
            # By links alone, what has no limits cannot be done by this group.
            if self._links is None or group.limit(plain.pattern) is not None:
                found.append((choice, self.limited(plain, group)))
        if not found:
            raise InputError(f"{operation.name}: not among what was asked of this group")
        if self._links is not None and found[0][0].algorithm != self._links.algorithm:
            found.sort(key=lambda each: each[1].duration)
        return found

    def better(
        self, operation: Operation, bytes: int, group: Placement
    ) -> tuple[Choice, Price] | None:
        """Return the fastest of `choices` where NCCL's own is clearly slower; see `Nccl.better`."""
        if self.nccl is None:
            return None
        choices = self.choices(operation, bytes, group)
        fastest = min(choices, key=lambda each: each[1].duration)
        clearly = self.nccl.clearly_slower(choices[0][1].duration, fastest[1].duration)
        return fastest if clearly else None

    def limit_of(self, operation: Operation, bytes: int, group: Placement) -> str:
        """Return what bounds the time of a communication that has the network to itself.

        One of `mpisim.topo.nccl.limits.LIMITS`, or the kind and the name of a link.
        """
        return self.limit_named(
            operation,
            bytes,
            group,
            self.nccl_price(operation, bytes, group),
            self.price(operation, bytes, group),
        )

    def limit_named(
        self, operation: Operation, bytes: int, group: Placement, nccl: Price, price: Price
    ) -> str:
        """Return what bounds a price that was made of NCCL's on these links; see `limit_of`."""
        if not price.duration:
            return ""
        limit = group.limit(nccl.pattern)
        flowing = price.duration - price.latency
        if limit is not None and price.rate < nccl.rate and 2 * flowing > price.duration:
            kind = LinkKind(self.topology.kind[limit.link])
            words = _LINKS if self.nccl is not None else _PORTS
            return f"{words[kind]} {self.link_name(limit.link)}"
        if limit is not None and 2 * limit.latency > price.duration:
            return "latency of links"
        if self.nccl is None:
            return LATENCY
        return limit_of(self.nccl, operation, bytes, group.shape)

    # --- links ----------------------------------------------------------------------------------

    @cached_property
    def capacity(self) -> Ints:
        """What each link carries, shape (n_links,), in 2**-40 bytes per ps."""
        return _rates(self.topology.bandwidth)

    def link_name(self, link: int) -> str:
        """Return the name of a link."""
        return self.topology.link_name(link)

    def loads(
        self, index: Ints, members: NDArray[np.int32], pattern: Pattern
    ) -> tuple[Ints, Ints, Ints]:
        """Return the links that groups load: see `SharedNetwork`."""
        return self._loaded.get(
            (pattern, _fingerprint(index, members)),
            lambda: self._all_loads(index, members, pattern),
        )

    def _all_loads(
        self, index: Ints, members: NDArray[np.int32], pattern: Pattern
    ) -> tuple[Ints, Ints, Ints]:
        found = [
            self._loads(each, pattern)
            for each in alike(index, members, self.library.system.gpus_per_node)
        ]
        group = np.concatenate([np.empty(0, np.int64), *(each[0] for each in found)])
        order = np.argsort(group, kind="stable")  # of one group links are ascending already
        links = np.concatenate([np.empty(0, np.int64), *(each[1] for each in found)])
        weights = np.concatenate([np.empty(0, np.int64), *(each[2] for each in found)])
        counts = np.bincount(group, minlength=len(index) - 1)
        return np.concatenate([[0], np.cumsum(counts)]), links[order], weights[order]

    def _loads(self, groups: Alike, pattern: Pattern) -> tuple[Ints, Ints, Ints]:
        """Return (group, link, weight) of groups of one arrangement, by group and link."""
        group, link, weight = self._arranged.get(
            (pattern, _fingerprint(groups.members, groups.base)),
            lambda: self._weights(groups.members, groups.base, pattern, ~self._wide, self._paths),
        )
        return groups.groups[group], link, weight

    @cached_property
    def _wide(self) -> NDArray[np.bool_]:
        """Links that hold nobody back."""
        return behind_ports(self.topology, self.library.system.gpus_per_node)

    @cached_property
    def _paths(self) -> Paths:
        return self.topology.among(~self._wide)

    @cached_property
    def _usual(self) -> Ints:
        """What is usual of each link of nodes and cards, or what it carries if that is more."""
        return np.maximum(_rates(usual(self.topology)), self.capacity)

    def _weights(
        self, members: Ints, base: Ints, pattern: Pattern, seen: NDArray[np.bool_], paths: Paths
    ) -> tuple[Ints, Ints, Ints]:
        """Return (place in `base`, link, weight) of groups of one arrangement, on links `seen`."""
        group, link, weight = self._carried.weights(pattern, members, base, seen, paths)
        if not self._measured:
            return group, link, weight
        highest = self._highest_rate(pattern, Shape.of(members.tolist(), self.library.system))
        # Links of nodes and cards are never beyond the usual bandwidth at the highest rate.
        whole, rest = np.divmod(self._usual[link], highest)
        most = whole * WEIGHT_ONE + rest * WEIGHT_ONE // highest
        exact = self.topology.kind[link] == LinkKind.FABRIC
        if pattern.algorithm == "send" or pattern.operation in CHAINS:  # no rows of these there
            exact |= self._shared_hosts[link]
        weight = np.where(exact, weight, np.maximum(np.minimum(weight, most), 1))
        return group, link, weight

    def _highest_rate(self, pattern: Pattern, shape: Shape) -> int:
        """The highest rate at which an algorithm moves its payload, whatever the size."""
        key = (pattern, shape)
        if key not in self._highest:
            self._highest[key] = max(
                rate_of(choice.bandwidth)
                for size in _SIZES
                for choice in self.library.candidates(pattern.operation, size, shape)
                if self._pattern(pattern.operation, choice) == pattern
            )
        return self._highest[key]

    # --- a communication alone ------------------------------------------------------------------

    @cached_property
    def _shared_hosts(self) -> NDArray[np.bool_]:
        """Links of hosts that GPUs without links of their own share, each pair by its own way."""
        if self.nccl is None or self.nccl.system.intra not in ("pcie", "pairs"):
            return np.zeros(self.topology.n_links, bool)
        return np.isin(self.topology.kind, (LinkKind.PCIE, LinkKind.HOST, LinkKind.SOCKET))

    @cached_property
    def _narrow(self) -> NDArray[np.bool_]:
        """Links that can limit a communication that is alone."""
        if not self._measured:
            return ~self._wide
        fabric = self.topology.kind == LinkKind.FABRIC
        inside = (self.capacity < self._usual) | (self._shared_hosts & ~self._wide)
        return np.where(fabric, ~self._wide, inside)

    @cached_property
    def _narrow_paths(self) -> Paths:
        return self.topology.among(self._narrow)

    @cached_property
    def _excess(self) -> Ints:
        found = excess_latency if self._links is None else whole_latency
        return found(self.topology)

    @cached_property
    def _late_paths(self) -> Paths:
        return self.topology.among(self._excess != 0)

    def _placements(
        self, index: Ints, members: NDArray[np.int32], operations: Ints
    ) -> tuple[Ints, list[Placement]]:
        """Sort groups by shape, and by what the links allow each."""
        system = self.library.system
        label, shapes = shapes_of(index, members, system)
        if not (self._narrow.any() or self._excess.any()):
            return label, [Placement(shape) for shape in shapes]
        known: dict[Placement, int] = {}
        found = np.empty(len(index) - 1, np.int64)
        for each in alike(index, members, system.gpus_per_node):
            shape = shapes[label[each.groups[0]]]
            for bits in np.unique(operations[each.groups]).tolist():
                same = operations[each.groups] == bits
                base, place = self._distinct(each.members, each.base[same])
                patterns = self._patterns(bits, shape)
                limits = [self._limits(each.members, base, pattern) for pattern in patterns]
                columns = [
                    column
                    for limit in limits
                    for column in (limit.node_rate, limit.fabric_rate, limit.latency)
                ]
                rows = np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))
                _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
                numbers = []
                for row in first.tolist():
                    placement = Placement(shape, _limits_at(patterns, limits, row))
                    numbers.append(known.setdefault(placement, len(known)))
                found[each.groups[same]] = np.array(numbers)[which.reshape(-1)][place]
        return found, list(known)

    def _patterns(self, operations: int, shape: Shape) -> list[Pattern]:
        """Return by which patterns a group may do what it does; bits of `Operation`."""
        if shape.ranks == 1:
            return []
        if operations < 0:  # not said
            operations = sum(1 << operation for operation in Operation)
            if shape.ranks > 2:
                operations &= ~(1 << Operation.SEND_RECV)
        if operations >> Operation.BARRIER & 1:
            operations |= 1 << Operation.ALL_REDUCE
        found: dict[Pattern, None] = {}
        for operation in Operation:
            if operation in _WITHOUT_LINKS or not operations >> operation & 1:
                continue
            for choice in self.library.candidates(operation, 1 << 20, shape):
                found[self._pattern(operation, choice)] = None
        return list(found)

    def _distinct(self, members: Ints, base: Ints) -> tuple[Ints, Ints]:
        """Return the places of groups of one arrangement that differ, and which each group has."""
        period = self.topology.period
        if not period:
            return base, np.arange(len(base))
        # Groups so far apart are equal; members may stand before the base.
        apart = period * self.library.system.gpus_per_node
        least = max(0, -int(members.min()))
        first = base % apart
        first += -(np.minimum(first - least, 0) // apart) * apart
        distinct, which = np.unique(first, return_inverse=True)
        return distinct, which.reshape(-1)

    def _limits(self, members: Ints, base: Ints, pattern: Pattern) -> Limits:
        """Return what the links allow groups of one arrangement."""
        return self._limited.get(
            (pattern, _fingerprint(members, base)),
            lambda: self._limits_of(members, base, pattern),
        )

    def _limits_of(self, members: Ints, base: Ints, pattern: Pattern) -> Limits:
        n = len(base)
        node_rate, fabric_rate, link = np.full(n, UNLIMITED), np.full(n, UNLIMITED), np.full(n, -1)
        if self._narrow.any():
            group, at, weight = self._weights(
                members, base, pattern, self._narrow, self._narrow_paths
            )
            rate = highest_rates(self.capacity[at], weight)
            fabric = self.topology.kind[at] == LinkKind.FABRIC
            node_rate, slow = lowest(group[~fabric], at[~fabric], rate[~fabric], n)
            fabric_rate, thin = lowest(group[fabric], at[fabric], rate[fabric], n)
            link = np.where(node_rate < fabric_rate, slow, thin)
        latency = np.zeros(n, np.int64)
        if self._excess.any():
            latency = self._carried.latency(pattern, members, base, self._late_paths, self._excess)
        fabric_rate[self._carried.impossible(pattern, members, base)] = IMPOSSIBLE
        return Limits(node_rate, fabric_rate, link, latency)


_LINKS = {
    LinkKind.NVLINK: "slow NVLink",
    LinkKind.PCIE: "slow PCIe link",
    LinkKind.HOST: "slow link to the CPU",
    LinkKind.SOCKET: "slow link between sockets",
    LinkKind.NIC: "slow NIC",
    LinkKind.FABRIC: "fabric",
}
"""What is said of links that limit."""

_PORTS = dict.fromkeys(LinkKind, "link") | {LinkKind.NIC: "GPU port"}
"""The same without cards and usual bandwidths."""

_REGIMES: dict[str, Regime] = {"node": "inside", "network": "across"}

_WITHOUT_LINKS = (Operation.NONE, Operation.BARRIER, Operation.UNKNOWN)


def _limits_at(patterns: list[Pattern], limits: list[Limits], row: int) -> tuple[Limit, ...]:
    """Return what limits one group, by pattern, where anything does."""
    found = []
    for pattern, limit in zip(patterns, limits, strict=True):
        node, fabric, link, latency = (int(column[row]) for column in limit)
        if fabric != IMPOSSIBLE and (latency or min(node, fabric) < UNLIMITED):
            found.append(Limit(pattern, node, fabric, latency, link))
    return tuple(found)


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


def _rates(bandwidth: NDArray[np.float64]) -> Ints:
    """Return bandwidths, bytes per second, as integer rates, at least 1."""
    rates = np.rint(bandwidth * ((1 << RATE_BITS) / PICOSECONDS))
    return np.maximum(rates, 1).astype(np.int64)
