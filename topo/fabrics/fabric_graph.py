"""Graph of a fabric under construction: switches, links and the routes from port to port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpisim.base.frozen import frozen

from ..topology import AllPairsRoutes, MeshCoordinates

__all__ = ["FabricGraph", "PortRoutes", "Ports", "ecmp_hash"]

PortRoutes = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""From ports a and b, shape (m,), to the links between them, shape (m, h), padded with -1."""


@frozen
class Ports:
    """The ports of nodes that a fabric joins, numbered node by node.

    Attributes
    ----------
    nodes, each : int
        Nodes, and ports of each.
    bandwidth : float
        Of a port, one direction, bytes per second.
    latency : float
        Of a port, seconds: its NIC's part of a way.
    hop : float
        Of a switch with its cable, seconds.
    """

    nodes: int
    each: int
    bandwidth: float
    latency: float
    hop: float

    @property
    def count(self) -> int:
        """Ports of all nodes together."""
        return self.nodes * self.each


@dataclass
class FabricGraph:
    """Switches and links of a fabric, in bulk.

    Ends of links are numbered: ports first, then switches.

    Attributes
    ----------
    ports : Ports
    names : list of str
        Of the switches.
    source, target, bandwidth, latency, share, max_inflow : list of array
        Of the links, in pieces (`Topology`).
    period : int
        Nodes after which all repeats (`Topology`); 0, which is always right, if none is known.
    hops : callable
        The links from port to port.
    shift : list of int
        Beside `source`: by how much the number of each link of a way grows where both of its ends
        are a period further on. Empty where that is not known.
    tour : int64, shape (n_ports,), optional
        The place of each port in a round trip (`Topology`); by default their own order.
    grid : MeshCoordinates, optional
        The places of ports.
    all_pairs : AllPairsRoutes, optional
        The same ways as `hops`, of all pairs of many ports at once.
    """

    ports: Ports
    names: list[str] = field(default_factory=list)
    source: list[NDArray[np.int64]] = field(default_factory=list)
    target: list[NDArray[np.int64]] = field(default_factory=list)
    bandwidth: list[NDArray[np.float64]] = field(default_factory=list)
    latency: list[NDArray[np.float64]] = field(default_factory=list)
    share: list[NDArray[np.float64]] = field(default_factory=list)
    max_inflow: list[NDArray[np.float64]] = field(default_factory=list)
    period: int = 0
    hops: PortRoutes = field(init=False)
    n_links: int = 0
    shift: list[int] = field(default_factory=list)
    tour: NDArray[np.int64] | None = None
    grid: MeshCoordinates | None = None
    all_pairs: AllPairsRoutes | None = None
    _rows: list[int] = field(default_factory=list)  # links of each, beside `source`

    def add_switches(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Add switches and return their numbers."""
        first = self.ports.count + len(self.names)
        self.names.extend(names)
        return np.arange(first, first + len(names))

    def add_links(
        self,
        source: ArrayLike,
        target: ArrayLike,
        bandwidth: ArrayLike,
        latency: float,
        share: float = 1.0,
        max_inflow: float = np.inf,
    ) -> NDArray[np.int64]:
        """Add links, broadcasting, and return their numbers in the shape of the ends.

        Parameters
        ----------
        source, target : array_like of int
            Ports or switches that links lead from and to; of shapes that broadcast to one another.
        bandwidth : array_like of float
            Bytes per second, of a shape that broadcasts to that of the ends.
        latency : float
            Of every link, in seconds.
        share : float
            Part of a flow that a link carries if its route uses it: 1 (default), or less where
            flows are spread over parallel links.
        max_inflow : float
            The most that can come to each link, bytes per second; by default infinite: not known.

        Returns
        -------
        int64, of the shape of the ends
        """
        ends = np.broadcast_arrays(np.asarray(source, np.int64), np.asarray(target, np.int64))
        shape, n = ends[0].shape, ends[0].size
        self.source.append(ends[0].reshape(-1))
        self.target.append(ends[1].reshape(-1))
        self.bandwidth.append(np.broadcast_to(np.asarray(bandwidth, float), shape).reshape(-1))
        self.latency.append(np.full(n, latency))
        self.share.append(np.full(n, share))
        self.max_inflow.append(np.full(n, max_inflow))
        self._rows.append(n // shape[0] if shape and shape[0] else 1)
        self.n_links += n
        return np.arange(self.n_links - n, self.n_links).reshape(shape)

    def add_cables(
        self,
        lower: ArrayLike,
        upper: ArrayLike,
        bandwidth: ArrayLike,
        share: float = 1.0,
        max_inflow: float = np.inf,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add links between switches in both directions; return those up and those down.

        Parameters
        ----------
        lower, upper : array_like of int
            Switches at the ends; of shapes that broadcast to one another.
        bandwidth : array_like of float
            Of each direction, bytes per second.
        share : float
            Part of a flow that a link carries if its route uses it; see `add_links`.
        max_inflow : float
            The most that can come to each link, bytes per second; by default infinite: not known.

        Returns
        -------
        up, down : int64, of the shape of the ends
            Numbers of links.
        """
        return (
            self.add_links(lower, upper, bandwidth, self.ports.hop, share, max_inflow),
            self.add_links(upper, lower, bandwidth, self.ports.hop, share, max_inflow),
        )

    def repeat(self, nodes: int, *steps: int) -> None:
        """Set the period in nodes, and the links of a route one period further on.

        Parameters
        ----------
        nodes : int
            The period.
        *steps : int
            For each call of `add_links` by how many of its rows a route moves on in a period. Rows
            are numbered one after another.
        """
        self.period = nodes
        self.shift = [step * row for step, row in zip(steps, self._rows, strict=True)]

    def connect_ports(
        self, switch: ArrayLike, part: float = 1.0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Join every port to its switch by a part of its bandwidth; return links up and down.

        Parameters
        ----------
        switch : array_like of int, shape (n_ports,) or ()
            The switch of each port, or one for all.
        part : float
            Of the bandwidth, and of a flow: less than 1 (default) where a port is joined to several
            planes.

        Returns
        -------
        up, down : int64, shape (n_ports,)
            Numbers of links.
        """
        ports, all_ports = self.ports, np.arange(self.ports.count)
        bandwidth = ports.bandwidth * part
        return (
            self.add_links(all_ports, switch, bandwidth, ports.latency + ports.hop, part),
            self.add_links(switch, all_ports, bandwidth, ports.latency, part),
        )


def ecmp_hash(a: NDArray[np.int64], b: NDArray[np.int64], n: ArrayLike) -> NDArray[np.int64]:
    """Hash of each pair → number below n, spread evenly: which of n equal links ECMP takes.

    The mixing function of splitmix64 (Steele et al., OOPSLA 2014).

    Parameters
    ----------
    a, b : int64, shape (m,)
        From 0 to 2**32 - 1: numbers of the sending and the receiving port.
    n : array_like of int, shape (m,) or ()
        How many links there are to choose from, 1 or more.

    Returns
    -------
    int64, shape (m,)
        0 to n - 1.
    """
    mixed = a.astype(np.uint64) << np.uint64(32) | b.astype(np.uint64)
    mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.asarray(n, np.uint64)).astype(np.int64)
