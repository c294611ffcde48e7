"""A network whose prices are calibrated by what a recording measured of the same communications.

A communication that was recorded has a measured wire time and, on the network that it was recorded
on, a time by NCCL's model. Their ratio is carried over to another group or network by these rules:

- within the same regime (inside a node, or across nodes) the ratio holds: latencies and times of
  bytes are multiplied by it;
- where the regime changes, from NVLink to NICs or back, the model stands alone: what NVLink did
  better or worse than the model says nothing of NICs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import Quantity
from ..program import Operation
from ..topo.network import Price

if TYPE_CHECKING:
    from ..topo.nccl_network import NcclNetwork, Pattern, Placement

__all__ = ["Key", "MeasuredNetwork", "regime"]

Ints = NDArray[np.int64]

Key = tuple[Operation, int, "Placement"]
"""Operation, bytes and class of the group of a communication."""


def regime(group: Placement) -> str:
    """Whether a group stands ``inside`` a node or ``across`` nodes."""
    return "inside" if group.nodes == 1 else "across"


class MeasuredNetwork:
    """A network with prices multiplied, each communication's by a ratio of its own.

    Parameters
    ----------
    network : NcclNetwork
    ratios : mapping of Key to float
        Measured time over the model's; 1 for what is not in it.
    errors : mapping of Key to float
        Error bar of the model's time of each, relative.
    """

    def __init__(
        self, network: NcclNetwork, ratios: Mapping[Key, float], errors: Mapping[Key, float]
    ) -> None:
        self._network, self._ratios, self._errors = network, ratios, errors
        self.topology = network.topology

    def late(self) -> MeasuredNetwork:
        """Return the network on which each communication takes its error bar longer."""
        longer = {
            key: ratio * (1 + self._errors.get(key, 0.0)) for key, ratio in self._ratios.items()
        }
        return MeasuredNetwork(self._network, longer, self._errors)

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Those of the network."""
        return self._network.numbers

    def group_classes(
        self, index: Ints, members: NDArray[np.int32], operations: Ints | None = None
    ) -> tuple[Ints, Sequence[Placement]]:
        """Return what the network returns; parameters as of `Network.group_classes`.

        Parameters
        ----------
        index : int64, shape (n + 1,)
        members : int32
        operations : int64, shape (n,), optional
        """
        return self._network.group_classes(index, members, operations)

    def price(self, operation: Operation, bytes: int, group: Placement) -> Price:
        """Return the network's price times the ratio, as the links allow it.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Of the full buffer; see `Network.price`.
        group : Placement
            One of the classes of `group_classes`.
        """
        factor = self._ratios.get((operation, bytes, group), 1.0)
        if factor == 1:
            return self._network.price(operation, bytes, group)
        found = self._network.nccl_price(operation, bytes, group)
        rate = max(1, round(found.rate / factor)) if found.rate else 0
        longer = Price(round(found.latency * factor), found.volume, rate, found.pattern)
        return self._network.limited(longer, group, max(1.0, factor))

    def shares(self, operation: Operation, bytes: int, group: Placement) -> dict[str, float]:
        """Return the network's shares.

        Parameters
        ----------
        operation : Operation
        bytes : int
        group : Placement
        """
        return self._network.shares(operation, bytes, group)

    def limit_of(self, operation: Operation, bytes: int, group: Placement) -> str:
        """Return what the network says limits a communication.

        Parameters
        ----------
        operation : Operation
        bytes : int
        group : Placement
        """
        return self._network.limit_of(operation, bytes, group)

    @property
    def capacity(self) -> Ints:
        """What each link carries."""
        return self._network.capacity

    def link_name(self, link: int) -> str:
        """Return the name of a link."""
        return self._network.link_name(link)

    def loads(
        self, index: Ints, members: NDArray[np.int32], pattern: Pattern
    ) -> tuple[Ints, Ints, Ints]:
        """Return the weights of groups on links; parameters as of `SharedNetwork.loads`.

        Parameters
        ----------
        index : int64, shape (n + 1,)
        members : int32
        pattern : Pattern
        """
        return self._network.loads(index, members, pattern)
