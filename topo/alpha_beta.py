"""Latency-bandwidth ("alpha-beta") model of communications, with the factors of rings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation
from mpisim.base.quantity import PICOSECONDS, Quantity

from .network import Price, bus_factor

__all__ = ["AlphaBeta"]


class AlphaBeta:
    """Latency plus bytes over bandwidth, one pair inside nodes and one across: a `Network`.

    Ranks ``i * ranks_per_node`` to ``(i + 1) * ranks_per_node - 1`` are on node i. A group inside
    one node uses the node's pair, any other the network's.

    In all methods `bytes` is the size of the full buffer, as in `Network.price`, and `group` a
    class from `group_classes`.

    Parameters
    ----------
    latency, bandwidth : float
        Across nodes, in seconds and bytes per second.
    ranks_per_node : int
        With 1 (default) every group crosses nodes.
    node_latency, node_bandwidth : float, optional
        Inside a node; as across nodes if not given.
    numbers : mapping of str to Quantity, optional
        ``network_latency``, ``network_bandwidth``, ``node_latency`` and ``node_bandwidth``, with
        their error bars.

    Raises
    ------
    InputError
        For a negative latency, a bandwidth that is not above 0, or ranks_per_node below 1.

    Examples
    --------
    >>> model = AlphaBeta(latency=1e-5, bandwidth=1e9)
    >>> model.price(Operation.ALL_REDUCE, 1_000_000, (2, False)).duration  # 10 us + 1 ms
    1010000000
    """

    def __init__(
        self,
        latency: float,
        bandwidth: float,
        ranks_per_node: int = 1,
        node_latency: float | None = None,
        node_bandwidth: float | None = None,
        numbers: Mapping[str, Quantity] | None = None,
    ) -> None:
        if ranks_per_node < 1:
            raise InputError(f"ranks_per_node is {ranks_per_node}; it must be 1 or more")
        self.ranks_per_node = ranks_per_node
        self.network = _checked("", latency, bandwidth)
        self.node = _checked(
            "node_",
            latency if node_latency is None else node_latency,
            bandwidth if node_bandwidth is None else node_bandwidth,
        )
        self.numbers = dict(numbers or {})

    def group_classes(
        self,
        index: NDArray[np.int64],
        members: NDArray[np.int32],
        operations: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], list[tuple[int, bool]]]:
        """Return classes (number of members, whether all are on one node).

        They are the same for every operation; see `Network.group_classes`.
        """
        sizes = np.diff(index)
        node = members // self.ranks_per_node
        one = np.maximum.reduceat(node, index[:-1]) == np.minimum.reduceat(node, index[:-1])
        kinds, label = np.unique(2 * sizes + one, return_inverse=True)
        return label.reshape(-1), [(kind // 2, bool(kind % 2)) for kind in kinds.tolist()]

    def price(self, operation: Operation, bytes: int, group: tuple[int, bool]) -> Price:
        """Return the price, all of it latency: links are not shared.

        A communication of one rank with itself costs nothing.

        Returns
        -------
        Price
            Latency in ps, rounded to the nearest; no volume, rate or pattern.
        """
        latency, transfer = self._seconds(operation, bytes, group)
        return Price(round((latency + transfer) * PICOSECONDS))

    def limit_of(self, operation: Operation, bytes: int, group: tuple[int, bool]) -> str:
        """Return whether latency or bandwidth takes longer, of the node or the network.

        Returns
        -------
        str
            ``"latency"``, ``"bandwidth of the node"``, ``"bandwidth of the network"``, or empty if
            the communication costs nothing.
        """
        latency, transfer = self._seconds(operation, bytes, group)
        if not latency + transfer:
            return ""
        where = "node" if group[1] else "network"
        return "latency" if latency >= transfer else f"bandwidth of the {where}"

    def shares(self, operation: Operation, bytes: int, group: tuple[int, bool]) -> dict[str, float]:
        """Return the shares of latency and bandwidth, where `numbers` has them.

        Returns
        -------
        dict of str to float
            By the names of `numbers`; of the sum 1. Empty if the communication costs nothing, or
            without `numbers`.
        """
        latency, transfer = self._seconds(operation, bytes, group)
        total = latency + transfer
        if not total or not self.numbers:
            return {}
        link = "node" if group[1] else "network"
        return {f"{link}_latency": latency / total, f"{link}_bandwidth": transfer / total}

    def _seconds(
        self, operation: Operation, bytes: int, group: tuple[int, bool]
    ) -> tuple[float, float]:
        n, inside = group
        factor = bus_factor(operation, n)
        latency, bandwidth = self.node if inside else self.network
        return (0.0, 0.0) if n == 1 else (latency, factor * bytes / bandwidth)


def _checked(prefix: str, latency: float, bandwidth: float) -> tuple[float, float]:
    if not 0 <= latency < float("inf"):
        raise InputError(f"{prefix}latency is {latency}; it must be 0 s or more")
    if not bandwidth > 0:
        raise InputError(f"{prefix}bandwidth is {bandwidth}; it must be above 0 bytes/s")
    return latency, bandwidth
