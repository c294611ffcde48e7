"""Cluster, NCCL's choices → price of each communication, and the links it loads.

The price of a communication that has the network to itself is

    NCCL's latency + the latency of the route beyond that + bytes / rate

where the rate is the lowest of what NCCL reaches between such GPUs and NICs on a fabric without a
bottleneck (:mod:`.nccl`, calibrated on measured nodes), and of what each link of this network can
carry under the bytes that the algorithm moves over it (:mod:`.traffic.link_model`). A link means
the same whether it was built so or changed. Which groups may share a price is found in
:mod:`.group_placement`, by which algorithms a communication may go in :mod:`.algorithm_patterns`.

A worked example: an all-reduce of 1 GiB by rings on two nodes of 8 H100, each with 8 NICs of 50
GB/s. Under one leaf switch NCCL's own limits hold: 169 GB/s, 6.4 ms. Where each node has a leaf of
its own that passes on half of what its NICs send, payload is 0.978 of 200 GB/s, and a ring of 16
sends each byte 2 × 15/16 times: 104 GB/s, 10.4 ms. `nccl_price` is the first in both cases, `price`
and `limit_of` know the difference.

GPUs that are joined to the fabric themselves have no NCCL that was measured. There the library
(:mod:`.link_library`) only adds the latency of a launch: the whole latency of the route counts, and
the rate is what links carry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from mpisim.base.array_keys import fingerprint, size_of
from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation
from mpisim.base.lru_cache import LruCache
from mpisim.base.quantity import PICOSECONDS, Quantity

from .algorithm_patterns import AlgorithmPatterns
from .circuits import SETUP, Circuits
from .elasticities import PriceElasticities
from .group_placement import place_groups
from .link_library import UNMEASURED, CollectiveLibrary, LinkLibrary
from .nccl import Choice, Nccl, Shape
from .nccl.bottleneck import LATENCY, bottleneck_of
from .nccl.constants import AMD
from .nccl.model import remember
from .nccl.shape import Regime
from .network import Price, rate_of
from .routes import ReroutedPaths
from .topology import LinkKind, Topology
from .traffic.link_limits import LinkLimit, Placement
from .traffic.link_model import MAX_CACHE_BYTES, LinkModel
from .traffic.patterns import Pattern, PatternTraffic
from .traffic.steps import Steps

__all__ = ["LinkLimit", "NcclNetwork", "Pattern", "Placement"]

Ints = NDArray[np.int64]

N_DECADES = 13
"""Of sizes in bytes, each with an error bar of its own; the last holds all larger ones."""

_REGIMES: dict[str, Regime] = {"node": "inside", "network": "across"}

_LINK_WORDS = {
    LinkKind.NVLINK: "slow NVLink",
    LinkKind.PCIE: "slow PCIe link",
    LinkKind.HOST: "slow link to the CPU",
    LinkKind.SOCKET: "slow link between sockets",
    LinkKind.NIC: "slow NIC",
    LinkKind.FABRIC: "fabric",
}
"""What messages call links that limit."""

_AMD_WORDS = {**_LINK_WORDS, LinkKind.NVLINK: "slow xGMI"}
"""The same with AMD's GPUs."""

_PORT_WORDS = dict.fromkeys(LinkKind, "link") | {LinkKind.NIC: "GPU port"}
"""The same without NICs and typical bandwidths."""


class NcclNetwork:
    """Prices by a library's own choices, on the links of a topology: a `SharedNetwork`.

    In all methods `bytes` is the size of the full buffer, as in `Network.price`, and `group` a
    `Placement` from `group_classes` or `placement` that was made for the operation, or for any.
    Where both are taken, `nccl` is a price from `nccl_price`, perhaps with a longer time, and
    `price` the same on these links, from `price` or `limited`.

    Parameters
    ----------
    library : Nccl or LinkLibrary
        NCCL of a system with the typical bandwidths (:func:`.nccl_system.changed_system`).
    topology : Topology
    numbers : callable, optional
        From a number of bytes and ``"inside"`` or ``"across"`` nodes to the factor that prices of
        that decade of sizes depend on, 1 with its error bar. The two are off independently of each
        other.
    measured : bool
        Whether nodes and NICs are such as NCCL's numbers were measured on; otherwise all links
        limit, as with a `LinkLibrary`.
    meshed : bool
        Whether GPUs of a node are joined pair by pair.
    dimensions : bool
        Whether what NCCL does by rings goes dimension by dimension where a group can.
    by_fabric : bool
        Whether NCCL's rings follow the fabric rather than the order of ranks.
    latency : float
        Factor of the latencies of links, and of a `LinkLibrary`; an `Nccl` has its own.
    switches_follow : bool
        Whether links between switches are as wide as NICs need them: `elasticities` asks.
    circuits : Circuits, optional
        Where links are circuits that have to be set up. Prices are those with all that a
        communication needs in place.
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
        latency: float = 1.0,
        switches_follow: bool = False,
        circuits: Circuits | None = None,
    ) -> None:
        self.circuits = circuits
        self.library: CollectiveLibrary = library
        self.topology = topology
        self.nccl = library if isinstance(library, Nccl) else None
        self._link_library = library if isinstance(library, LinkLibrary) else None
        self.notes = () if self._link_library is None else (UNMEASURED,)
        self._patterns = AlgorithmPatterns(library, dimensions)
        self._latency = latency
        self._elasticities = PriceElasticities(self.nccl, topology, switches_follow)
        self.numbers = {
            _quantity_name(where, decade): numbers(10.0**decade, regime)
            for where, regime in _REGIMES.items()
            for decade in range(N_DECADES)
            if numbers is not None
        }
        if circuits is not None:
            self.numbers[SETUP] = circuits.latency
        # Groups of one shape have one price but for links, of which each may have others.
        self._unlimited: dict[tuple[Operation, int, Shape], Price] = {}
        self._bottlenecks: dict[tuple[Operation, int, Shape], str] = {}
        gpus_per_node = library.system.gpus_per_node
        # Where links were cut others carry for them, which no measurement saw.
        cut = isinstance(topology.paths, ReroutedPaths)
        self._links = LinkModel(
            topology,
            gpus_per_node,
            PatternTraffic(topology, gpus_per_node, meshed, by_fabric, self.nccl is not None),
            lambda pattern, members: self._patterns.highest_rate(
                pattern, Shape.of(members.tolist(), library.system)
            ),
            measured=measured and self.nccl is not None and not cut,
            host_links_limit=self.nccl is not None and self.nccl.system.intra in ("pcie", "pairs"),
            whole_latency=self._link_library is not None,
        )
        # One program is often run several times, with several queries a run.
        self._placements: LruCache[tuple[Ints, list[Placement]]] = LruCache(
            MAX_CACHE_BYTES, size_of
        )
        # The arrays of the last query and its answer: all queries of a run are of the same arrays,
        # which are large where there are many GPUs.
        self._last: tuple[tuple[ref[NDArray[Any]], ...], tuple[Ints, list[Placement]]] | None = None

    # --- classes of groups ----------------------------------------------------------

    def group_classes(
        self, index: Ints, members: NDArray[np.int32], operations: Ints | None = None
    ) -> tuple[Ints, list[Placement]]:
        """Sort groups by shape and link limits; see `Network.group_classes`.

        The list of classes is owned by the network, which remembers it: not to be changed.
        """
        bits = np.full(len(index) - 1, -1) if operations is None else operations
        asked: tuple[NDArray[Any], ...] = index, members, bits
        if self._last is not None and all(map(is_, asked, (each() for each in self._last[0]))):
            return self._last[1]
        found = self._placements.get(
            fingerprint(*asked),
            lambda: place_groups(index, members, bits, self._links, self._patterns),
        )
        if all(map(_stays, asked)):
            self._last = tuple(map(ref, asked)), found
        return found

    def placement(self, members: Sequence[int], operation: Operation | None = None) -> Placement:
        """Return the placement of one group, for one operation or for any.

        Parameters
        ----------
        members : sequence of int
            Global ranks, in the communicator's order.
        operation : Operation, optional
            The operation that will be priced; by default any.
        """
        bits = None if operation is None else np.array([1 << operation])
        index, ranks = np.array([0, len(members)]), np.array(members, np.int32)
        label, classes = self.group_classes(index, ranks, bits)
        return classes[int(label[0])]

    # --- prices -----------------------------------------------------------------------------------

    def price(self, operation: Operation, bytes: int, group: Placement) -> Price:
        """Return the library's price on these links; a rank with itself costs nothing.

        Returns
        -------
        Price
            In ps and bytes.
        """
        return self.limited(self.nccl_price(operation, bytes, group), group)

    def nccl_price(self, operation: Operation, bytes: int, group: Placement) -> Price:
        """Return the library's price where no link limits it, by the algorithm of its choice.

        Returns
        -------
        Price
            In ps and bytes; of several ranks with a pattern, which `limited` needs.
        """
        shape = group.shape
        if shape.ranks == 1:
            return Price(0)
        if self._link_library is not None:
            choice, _ = self.choices(operation, bytes, group)[0]
            return self._unlimited_price(operation, bytes, shape, choice)
        key = (operation, bytes, shape)
        found = self._unlimited.get(key)
        if found is None:
            choice = self.library.choose(operation, bytes, shape)
            found = self._unlimited_price(operation, bytes, shape, choice)
            remember(self._unlimited, key, found)
        return found

    def _unlimited_price(
        self, operation: Operation, bytes: int, shape: Shape, choice: Choice
    ) -> Price:
        factor = 1.0 if self._link_library is None else self._latency
        latency = round(choice.latency * factor * PICOSECONDS)
        if not bytes or operation is Operation.BARRIER:
            done = Operation.ALL_REDUCE if operation is Operation.BARRIER else operation
            return Price(latency, pattern=self._patterns.of_choice(done, choice))
        pattern = self._patterns.of_choice(operation, choice)
        rate = min(rate_of(choice.bandwidth), self._patterns.highest_rate(pattern, shape))
        return Price(latency, bytes, rate, pattern)

    def limited(self, price: Price, group: Placement, factor: float = 1.0) -> Price:
        """Return NCCL's price as the links allow it.

        Parameters
        ----------
        price : Price
            From `nccl_price`, perhaps with a longer time.
        group : Placement
        factor : float
            How much longer its time is, inside nodes and at NICs; their links allow so much less.
        """
        limit = group.limit(price.pattern) if group.limits else None
        if limit is not None:
            node_rate = limit.node_rate if factor == 1 else round(limit.node_rate / factor)
            rate = max(1, min(price.rate, node_rate, limit.fabric_rate)) if price.volume else 0
            late = limit.latency if self._latency == 1 else round(self._latency * limit.latency)
            latency = max(0, price.latency + late)
            price = price._replace(rate=rate, latency=latency)
        return price if price.volume else price._replace(pattern=None)

    def shares(self, operation: Operation, bytes: int, group: Placement) -> dict[str, float]:
        """Return the whole of the time as the share of the factor for sizes of its decade.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Of the full buffer; its decade names the factor.
        group : Placement
            From `group_classes` or `placement`.

        Returns
        -------
        dict of str to float
            1 by the name of the factor; empty without factors, and where the time is 0.
        """
        if not self.numbers or not self.price(operation, bytes, group).duration:
            return {}
        decade = min(len(str(max(bytes, 1))) - 1, N_DECADES - 1)
        return {_quantity_name("node" if group.nodes == 1 else "network", decade): 1.0}

    # --- alternatives and bottlenecks -------------------------------------------------------------

    def choices(
        self, operation: Operation, bytes: int, group: Placement
    ) -> list[tuple[Choice, Price]]:
        """Return all enabled choices with their prices on these links, the library's choice first.

        Returns
        -------
        list of (Choice, Price)
            Not empty. What the group cannot carry out is left out of a `LinkLibrary`'s.

        Raises
        ------
        InputError
            If the operation is none of those that `group` was made for.
        """
        found = []
        for choice in self.library.candidates(operation, bytes, group.shape):
            plain = self._unlimited_price(operation, bytes, group.shape, choice)
            # By links alone, what has no limits cannot be done by this group.
            if self._link_library is None or group.limit(plain.pattern) is not None:
                found.append((choice, self.limited(plain, group)))
        if not found:
            raise InputError(f"{operation.name}: not among what was asked of this group")
        library = self._link_library
        if library is not None and found[0][0].algorithm != library.algorithm:
            found.sort(key=lambda each: each[1].duration)
        return found

    def better(
        self, operation: Operation, bytes: int, group: Placement
    ) -> tuple[Choice, Price] | None:
        """Return the fastest of `choices` where the library's is clearly slower; see `Nccl.better`.

        Returns
        -------
        (Choice, Price) or None
            None where the choice is as good as any, and for a `LinkLibrary`.
        """
        if self.nccl is None:
            return None
        choices = self.choices(operation, bytes, group)
        found = self.nccl.better_of(
            [choice for choice, _ in choices], [price.duration for _, price in choices]
        )
        return None if found is None else choices[found]

    def limit_of(self, operation: Operation, bytes: int, group: Placement) -> str:
        """Return the bottleneck of a communication that has the network to itself.

        One of `mpisim.topo.nccl.bottleneck.BOTTLENECKS`, or the kind and the name of a link.
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
        """Return the bottleneck behind a price made of NCCL's on these links; see `limit_of`.

        Returns
        -------
        str
            Empty for what takes no time.
        """
        if not price.duration:
            return ""
        limit = group.limit(nccl.pattern)
        flowing = price.duration - price.latency
        if limit is not None and price.rate < nccl.rate and 2 * flowing > price.duration:
            kind = LinkKind(self.topology.kind[limit.link])
            words = _PORT_WORDS
            if self.nccl is not None:
                words = _AMD_WORDS if self.nccl.system.arch == AMD else _LINK_WORDS
            return f"{words[kind]} {self.link_name(limit.link)}"
        if limit is not None and 2 * limit.latency > price.duration:
            return "latency of links"
        if self.nccl is None:
            return LATENCY
        key = (operation, bytes, group.shape)
        if key not in self._bottlenecks:
            remember(self._bottlenecks, key, bottleneck_of(self.nccl, *key))
        return self._bottlenecks[key]

    def steps(
        self, operation: Operation, bytes: int, members: Sequence[int]
    ) -> tuple[Choice, Steps]:
        """Return the library's choice for a communication, and its sends step by step.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Of the full buffer; see `Network.price`.
        members : sequence of int
            Global ranks, in the communicator's order; two at least.

        Raises
        ------
        InputError
            For an operation of unknown kind.
        """
        choice, _ = self.choices(operation, bytes, self.placement(members, operation))[0]
        pattern = self._patterns.of_choice(operation, choice)
        return choice, self._links.steps(pattern, np.array(members, np.int64))

    # --- what prices depend on --------------------------------------------------------------------

    def elasticities(self, operation: Operation, bytes: int, group: Placement) -> dict[str, float]:
        """Return the elasticities of a price to the hardware; see `PriceElasticities.of`."""
        nccl = self.nccl_price(operation, bytes, group)
        return self.elasticities_of(operation, bytes, group, nccl, self.limited(nccl, group))

    def elasticities_of(
        self, operation: Operation, bytes: int, group: Placement, nccl: Price, price: Price
    ) -> dict[str, float]:
        """Return how a price that was made of NCCL's on these links answers; see `elasticities`."""
        limit = group.limit(nccl.pattern) if group.limits else None
        limiting = limit.link if limit is not None and price.rate < nccl.rate else None
        return self._elasticities.of(operation, bytes, group.shape, limiting, nccl, price)

    def scales_of_link(self, link: int) -> tuple[str, ...]:
        """Return the factors of `mpisim.topo.scaled` that the bandwidth of a link goes with."""
        return self._elasticities.scales_of_link(link)

    # --- links ------------------------------------------------------------------------------------

    @property
    def capacity(self) -> Ints:
        """Link bandwidths, shape (n_links,): integers in units of 2**-40 bytes per ps."""
        return self._links.capacity

    def link_name(self, link: int) -> str:
        """Return the name of a link."""
        return self.topology.link_name(link)

    def loads(
        self, index: Ints, members: NDArray[np.int32], pattern: Pattern
    ) -> tuple[Ints, Ints, Ints]:
        """Return the links that groups load; see `SharedNetwork.loads`."""
        return self._links.loads(index, members, pattern)


def _quantity_name(where: str, decade: int) -> str:
    return f"{where}_collectives_1e{decade}"


def _stays(array: NDArray[Any]) -> bool:
    """Return whether nothing can change an array, nor what it is a view of."""
    while isinstance(array, np.ndarray) and not array.flags.writeable:
        if array.base is None:
            return True
        array = array.base
    return False
