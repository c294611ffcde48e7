"""A topology: nodes, directed links and routes as arrays.

`Topology` is what builders (a cluster's tables, a graph file) make and all else reads. Links are
numbered; a cable is two of them. A route is a sequence of link numbers, found for many pairs of
GPUs at once by a `RouteFunction`; two optional protocols let a route function leave out links
(`FilterableRoutes`) and answer questions about all pairs of many GPUs in closed form
(`AllPairsRoutes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.plain_integers import PlainInteger

if TYPE_CHECKING:
    import networkx

__all__ = [
    "AllPairsRoutes",
    "LinkKind",
    "LinkShift",
    "MeshCoordinates",
    "NodeKind",
    "RouteFunction",
    "Topology",
    "all_pairs_routes",
    "check_connected",
]

RouteFunction = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""From GPUs a and b, shape (m,), to the links between them in order, shape (m, h), padded anywhere
with -1."""


@runtime_checkable
class FilterableRoutes(Protocol):
    """A route function that can leave out links."""

    def filtered(self, seen: NDArray[np.bool_]) -> RouteFunction:
        """Return the same paths, which may leave out links that are not in `seen`."""
        ...


@runtime_checkable
class AllPairsRoutes(Protocol):
    """A route function that answers questions about all pairs of many GPUs in closed form."""

    def pairs_per_link(self, gpus: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Count the ordered pairs of GPUs whose route uses each link, shape (n_links,).

        None if that has to be found pair by pair.
        """
        ...

    def max_route_sum(self, gpus: NDArray[np.int64], value: NDArray[np.int64]) -> int | None:
        """Return the largest sum of `value`, shape (n_links,), over the links of a route.

        None if that has to be found pair by pair.

        Parameters
        ----------
        gpus : int64, shape (m,)
            Numbers of GPUs, each once; routes are those of all ordered pairs of two different ones.
        value : int64, shape (n_links,)
            Of each link, in any unit.

        Returns
        -------
        int or None
            In the unit of `value`.
        """
        ...


class NodeKind(IntEnum):
    """Kind of a node of the graph."""

    GPU = 0
    NVSWITCH = 1
    PCIE = 2
    CPU = 3
    NIC = 4
    SWITCH = 5


class LinkKind(PlainInteger, IntEnum):
    """Kind of a link; NVLINK also represents AMD's xGMI."""

    NVLINK = 0
    PCIE = 1
    HOST = 2
    SOCKET = 3
    NIC = 4
    FABRIC = 5


def all_pairs_routes(paths: object) -> AllPairsRoutes | None:
    """Return paths if they are `AllPairsRoutes`."""
    return paths if isinstance(paths, AllPairsRoutes) else None


@frozen(eq=False)
class MeshCoordinates:
    """Coordinates of GPUs on a torus, a mesh or a wafer.

    Attributes
    ----------
    place : int64, shape (n_gpus, d)
        The coordinates of each GPU's router.
    dims : tuple of int
        Routers along each dimension.
    wraps : tuple of bool
        Whether the last router of a dimension is joined to the first as well.
    """

    place: NDArray[np.int64]
    dims: tuple[int, ...]
    wraps: tuple[bool, ...]


@frozen(eq=False)
class LinkShift:
    """Shift of a route's link numbers from one period of a topology to the next.

    Attributes
    ----------
    first : int64, shape (k,)
        The first link of each piece of links that shift alike; ascending.
    step : int64, shape (k,)
    """

    first: NDArray[np.int64]
    step: NDArray[np.int64]

    def of(self, links: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shift of some links."""
        return self.step[np.searchsorted(self.first, links, side="right") - 1]


@frozen(eq=False)
class Topology:
    """GPUs, switches and NICs, the links between them, and routes.

    Links are directed: a cable is two of them. Nodes are those of a graph: GPUs, NICs, switches.

    Attributes
    ----------
    title : str
        Name for messages and reports.
    gpu : int64, shape (n_gpus,)
        The node of GPU i; rank i runs on GPU i.
    names : sequence of str
        Of the nodes; unique.
    node_kind : uint8, shape (n_nodes,)
        `NodeKind`.
    source, target : int32, shape (n_links,)
        Nodes that each link leads from and to.
    bandwidth : float64, shape (n_links,)
        Bytes per second that it carries.
    nominal : float64, shape (n_links,)
        The same before links were changed; of listed links that are slower than most between such
        ends, what these have.
    latency : float64, shape (n_links,)
        Seconds.
    kind : uint8, shape (n_links,)
        `LinkKind`.
    share : float64, shape (n_links,)
        Part of a flow that a link carries if its route uses it: 1, but less where flows are spread
        over parallel links.
    paths : callable
        Finds routes.
    max_inflow : float64, shape (n_links,)
        The most that can come to a link of a fabric: the bandwidth of all ports whose routes lead
        over it, times their part there. Infinite where that is not known.
    nics : int
        NICs; those of one GPU may be a single node of the graph.
    period : int
        Groups that are this many nodes apart have equal routes, over links of equal bandwidth; 0
        where that is not so.
    shift : LinkShift, optional
        Where the links of a route are if both GPUs are `period` nodes further on; None where that
        is not known.
    labels : mapping of int to str
        Names of single links that have one of their own.
    tour : int64, shape (n_gpus,), optional
        The place of each GPU in a round trip through all of them that passes each link as seldom as
        it can. By default they are in the order of their numbers.
    grid : MeshCoordinates, optional
        Their coordinates, if the fabric is a grid. Neither depends on links that were changed.
    """

    title: str
    gpu: NDArray[np.int64]
    names: Sequence[str]
    node_kind: NDArray[np.uint8]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    bandwidth: NDArray[np.float64]
    nominal: NDArray[np.float64]
    latency: NDArray[np.float64]
    kind: NDArray[np.uint8]
    share: NDArray[np.float64]
    paths: RouteFunction
    max_inflow: NDArray[np.float64]
    nics: int = 0
    period: int = 0
    shift: LinkShift | None = None
    labels: dict[int, str] = field(default_factory=dict)
    tour: NDArray[np.int64] | None = None
    grid: MeshCoordinates | None = None

    @property
    def n_gpus(self) -> int:
        """Number of GPUs, of all nodes together."""
        return len(self.gpu)

    @property
    def n_nodes(self) -> int:
        """Number of graph nodes: GPUs, switches, NICs and so on."""
        return len(self.names)

    @property
    def n_links(self) -> int:
        """Number of links, each direction counted."""
        return len(self.source)

    @cached_property
    def is_nominal(self) -> bool:
        """Whether all links have the bandwidth that they were built with."""
        same = self.bandwidth is self.nominal  # as where nothing was changed
        return same or bool((self.bandwidth == self.nominal).all())

    def link_name(self, link: int) -> str:
        """Return the name of a link: its own, or those of its ends."""
        own = self.labels.get(link)
        if own is not None:
            return own
        return f"{self.names[self.source[link]]}->{self.names[self.target[link]]}"

    @cached_property
    def link_names(self) -> list[str]:
        """Names of all links, by their index: ``source->target``, or the file's own."""
        names = list(self.names)  # of a million nodes, perhaps, which make them on access
        ends = zip(self.source.tolist(), self.target.tolist(), strict=True)
        found = [f"{names[source]}->{names[target]}" for source, target in ends]
        for link, own in self.labels.items():
            found[link] = own
        return found

    def routes(self, a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the links between pairs of GPUs: the routes of NCCL's point-to-point transfers.

        Parameters
        ----------
        a, b : array_like of int, shape (m,)
            Senders and receivers. From a GPU to itself there are no links.

        Returns
        -------
        index : int64, shape (m + 1,)
        links : int64
            Pair i uses ``links[index[i]:index[i + 1]]``, in order. Where a flow is spread over
            parallel paths (`share` below 1), the links of all of them.

        Raises
        ------
        InputError
            For a GPU that is not there, or two that cannot reach one another.
        """
        senders, receivers = (np.atleast_1d(np.asarray(each, np.int64)) for each in (a, b))
        for each in (senders, receivers):
            wrong = (each < 0) | (each >= self.n_gpus)
            if wrong.any():
                raise InputError(
                    f"{self.title}: there is no GPU {each[wrong][0]}; it has {self.n_gpus}"
                )
        return to_csr(self.paths(senders, receivers))

    def route(self, a: int, b: int) -> NDArray[np.int64]:
        """Return the links from GPU a to GPU b, in order.

        Parameters
        ----------
        a, b : int
            Sender and receiver, 0 to n_gpus - 1.

        Returns
        -------
        int64, shape (h,)
            Numbers of links, none from a GPU to itself. Where a flow is spread over parallel paths,
            the links of all of them.

        Raises
        ------
        InputError
            For a GPU that is not there, or two that cannot reach one another.
        """
        return self.routes([a], [b])[1]

    def filtered(self, seen: NDArray[np.bool_]) -> RouteFunction:
        """Return the route function restricted to some links: others may be left out."""
        return self.paths.filtered(seen) if isinstance(self.paths, FilterableRoutes) else self.paths

    def first_gpus(self, gpus: int) -> Topology:
        """Return the topology of the first GPUs; all links and switches stay."""
        tour, grid = self.tour, self.grid
        return replace(
            self,
            gpu=self.gpu[:gpus],
            tour=None if tour is None else tour[:gpus],
            grid=None if grid is None else replace(grid, place=grid.place[:gpus]),
        )

    def graph(self) -> networkx.MultiDiGraph:
        """Return a networkx graph: nodes by name, with ``kind`` and ``rank`` (of GPUs).

        Edges have ``name``, ``kind``, ``bandwidth`` (bytes/s) and ``latency`` (s).
        """
        import networkx

        found = networkx.MultiDiGraph(title=self.title)
        kinds = [NodeKind(kind).name.lower() for kind in self.node_kind.tolist()]
        found.add_nodes_from(
            (name, {"kind": kind}) for name, kind in zip(self.names, kinds, strict=True)
        )
        for rank, node in enumerate(self.gpu.tolist()):
            found.nodes[self.names[node]]["rank"] = rank
        for link in range(self.n_links):
            found.add_edge(
                self.names[self.source[link]],
                self.names[self.target[link]],
                name=self.link_name(link),
                kind=LinkKind(self.kind[link]).name.lower(),
                bandwidth=float(self.bandwidth[link]),
                latency=float(self.latency[link]),
            )
        return found


def to_csr(padded: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn rows padded with -1, shape (m, h), into index (m + 1,) and entries."""
    used = padded >= 0
    index = np.zeros(len(padded) + 1, np.int64)
    np.cumsum(used.sum(axis=1), out=index[1:])
    return index, padded[used]


def check_connected(topology: Topology) -> None:
    """Check that every GPU can reach every other.

    Raises
    ------
    InputError
        Naming two that cannot.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n = topology.n_nodes
    matrix = csr_array(
        (np.ones(topology.n_links), (topology.source, topology.target)), shape=(n, n)
    )
    _, label = connected_components(matrix, connection="strong")
    of_gpus = label[topology.gpu]
    unreached = np.flatnonzero(of_gpus != of_gpus[0]) if len(of_gpus) else of_gpus
    if not len(unreached):
        return
    from scipy.sparse.csgraph import breadth_first_order

    first, other = 0, int(unreached[0])
    reached = breadth_first_order(matrix, int(topology.gpu[first]), return_predecessors=False)
    if topology.gpu[other] in reached:  # one direction is missing
        first, other = other, first
    names = [topology.names[topology.gpu[each]] for each in (first, other)]
    raise InputError(
        f"{topology.title}: GPU {first} ({names[0]}) cannot reach GPU {other} ({names[1]}): no "
        "path of links leads there"
    )
