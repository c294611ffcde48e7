"""Graph → routes of shortest time for a message of a given size."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

from .topology import RouteFunction

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["ReroutedPaths", "ShortestTimeRoutes"]

ROUTING_MESSAGE = 2.0**20
"""Bytes of the message: fast links win over few hops, as they do for NCCL, but not at any price."""

SOURCES_PER_BATCH = 64
"""Senders at a time: their distances to all nodes are held in memory."""


@frozen(eq=False)
class ShortestTimeRoutes:
    """Shortest-time routes by Dijkstra's algorithm: latency plus `ROUTING_MESSAGE` over bandwidth.

    Attributes
    ----------
    names : sequence of str
        Of the nodes, for messages.
    gpu : int64, shape (n_gpus,)
    source, target : int32, shape (n_links,)
    bandwidth, latency : float64, shape (n_links,)
    """

    names: list[str]
    gpu: NDArray[np.int64]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]

    @cached_property
    def _best(self) -> tuple[csr_array, NDArray[np.int64], NDArray[np.int64]]:
        """The time of the best link between each pair of nodes; keys of pairs, and their links."""
        from scipy.sparse import csr_array

        time = self.latency + ROUTING_MESSAGE / self.bandwidth
        order = np.lexsort((np.arange(len(time)), time, self.target, self.source))
        source, target = self.source[order], self.target[order]
        first = np.ones(len(order), bool)
        first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
        kept = order[first]
        ends = (self.source[kept].astype(np.int64), self.target[kept].astype(np.int64))
        n = len(self.names)
        return csr_array((time[kept], ends), shape=(n, n)), ends[0] * n + ends[1], kept

    def __call__(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        from scipy.sparse.csgraph import dijkstra

        matrix, keys, links = self._best
        n = len(self.names)
        columns: list[NDArray[np.int64]] = []
        senders, which = np.unique(self.gpu[a], return_inverse=True)
        for low in range(0, len(senders), SOURCES_PER_BATCH):
            chunk = senders[low : low + SOURCES_PER_BATCH]
            _, before = dijkstra(matrix, indices=chunk, return_predecessors=True)
            (pairs,) = np.nonzero((which >= low) & (which < low + SOURCES_PER_BATCH))
            row, node = which[pairs] - low, self.gpu[b[pairs]]
            hop = 0
            while True:  # from the receivers back, all pairs at once
                under_way = node != chunk[row]
                pairs, row, node = pairs[under_way], row[under_way], node[under_way]
                if not len(pairs):
                    break
                previous = before[row, node].astype(np.int64)
                if (previous < 0).any():
                    i = pairs[np.argmin(previous)]
                    raise InputError(
                        f"GPU {a[i]} ({self.names[self.gpu[a[i]]]}) cannot reach GPU {b[i]} "
                        f"({self.names[self.gpu[b[i]]]})"
                    )
                if hop == len(columns):
                    columns.append(np.full(len(a), -1, np.int64))
                columns[hop][pairs] = links[np.searchsorted(keys, previous * n + node)]
                node, hop = previous, hop + 1
        return np.array(columns[::-1], np.int64).reshape(len(columns), len(a)).T


@frozen(eq=False)
class ReroutedPaths:
    """Routes as before, except around links that were cut.

    Attributes
    ----------
    before : callable
        The routes without cuts, in old numbers of links.
    number : int64
        The new number of each old link, -1 if it was cut.
    around : ShortestTimeRoutes
        The routes of pairs that had a cut link on their way, in new numbers.
    """

    before: RouteFunction
    number: NDArray[np.int64]
    around: ShortestTimeRoutes

    def __call__(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        old = self.before(a, b)
        new = np.where(old >= 0, self.number[old], -1)
        hit = ((old >= 0) & (new < 0)).any(axis=1)
        if not hit.any():
            return new
        others = self.around(a[hit], b[hit])
        found = np.full((len(new), max(new.shape[1], others.shape[1])), -1, np.int64)
        found[:, : new.shape[1]] = new
        found[hit] = -1
        found[np.flatnonzero(hit)[:, None], np.arange(others.shape[1])] = others
        return found
