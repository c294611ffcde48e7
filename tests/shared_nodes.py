"""A network of nodes for tests: every rank has a port, every node a link up and one down.

Few links, small round numbers: symmetries are many, and so are events at one time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpisim.base.quantity import Quantity
from mpisim.program import Operation
from mpisim.topo import Price
from mpisim.topo.network import RATE_BITS, WEIGHT_ONE

__all__ = ["Nodes"]

BYTE_PER_PS = 1 << RATE_BITS
WAYS = 4
"""Links of one rank or node: out, in; up, down."""


class Nodes:
    """Ranks on nodes.

    Rank r has the links ``4 r`` (out) and ``4 r + 1`` (in); node i has ``4 i + 2`` (up) and
    ``4 i + 3`` (down).

    Parameters
    ----------
    node : sequence of int
        The node of each rank.
    port, up : int
        Capacities in bytes per ps.
    slow : mapping of int to float
        Factors of the capacities of single links.
    rate : int
        Highest rate of a communication, in bytes per ps.
    """

    numbers: Mapping[str, Quantity] = {}

    def __init__(
        self,
        node: Sequence[int],
        port: int = 100,
        up: int = 150,
        slow: Mapping[int, float] | None = None,
        rate: int = 100,
    ) -> None:
        self.node = np.asarray(node)
        self.rate = rate
        each = np.array([port, port, up, up]) * BYTE_PER_PS
        self.capacity: NDArray[np.int64] = np.tile(each, len(node)).astype(np.int64)
        for link, factor in (slow or {}).items():
            at = link % len(self.capacity)
            self.capacity[at] = max(1, int(self.capacity[at] * factor))

    def group_classes(
        self,
        index: NDArray[np.int64],
        members: NDArray[np.int32],
        operations: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], list[Any]]:
        """Return classes (number of members, number of nodes)."""
        nodes = [len(set(self.node[own].tolist())) for own in np.split(members, index[1:-1])]
        kinds = list(zip(np.diff(index).tolist(), nodes))
        classes = sorted(set(kinds))
        return np.array([classes.index(kind) for kind in kinds], np.int64), classes

    def price(self, operation: Operation, bytes: int, group: tuple[int, int]) -> Price:
        """Inside a node communications are twice as fast; some have no volume."""
        size, nodes = group
        if size == 1 or operation is Operation.BARRIER:
            return Price(size)
        pattern = "pair" if operation is Operation.SEND_RECV else "ring"
        if operation is Operation.ALL_TO_ALL:
            pattern = "exchange"
        rate = self.rate * BYTE_PER_PS // (1 if nodes > 1 else 2)
        return Price(2 * nodes, bytes, rate, pattern)

    def shares(self, operation: Operation, bytes: int, group: Any) -> dict[str, float]:
        """Nothing is uncertain."""
        return {}

    def loads(
        self, index: NDArray[np.int64], members: NDArray[np.int32], pattern: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Every member sends and receives; what leaves a node goes up, what comes down."""
        found = [self._load(own.tolist(), pattern) for own in np.split(members, index[1:-1])]
        pairs = np.array([pair for one in found for pair in sorted(one.items())], np.int64)
        links, weights = pairs.reshape(-1, 2).T
        return np.cumsum([0, *map(len, found)]), links, weights

    def _load(self, members: list[int], pattern: str) -> dict[int, int]:
        one = WEIGHT_ONE if pattern != "exchange" else WEIGHT_ONE // len(members) + 1
        senders, receivers = (members[:1], members[1:]) if pattern == "pair" else (members, members)
        weights: dict[int, int] = {}
        crosses = len(set(self.node[members].tolist())) > 1
        for way, ranks in enumerate((senders, receivers)):
            for rank in ranks:
                weights[WAYS * rank + way] = one
                if crosses:
                    link = WAYS * int(self.node[rank]) + 2 + way
                    weights[link] = weights.get(link, 0) + one
        return weights

    def link_name(self, link: int) -> str:
        """Return for example "3 up"."""
        return f"{link // WAYS} {('out', 'in', 'up', 'down')[link % WAYS]}"
