"""A network whose prices are calibrated by what a recording measured of the same communications.

A communication that was recorded has a measured wire time and, on the network that it was recorded
on, a time by NCCL's model. Their ratio is carried over to another group or network by these rules:

- within the same regime (inside a node, or across nodes) the ratio holds: latencies and times of
  bytes are multiplied by it;
- where the regime changes, from NVLink to NICs or back, the model stands alone: what NVLink did
  better or worse than the model says nothing of NICs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..prediction.calibrated import MultipliedNetwork
from ..program import Operation
from ..topo.network import Price

if TYPE_CHECKING:
    from ..topo.nccl_network import NcclNetwork, Placement

__all__ = ["Key", "MeasuredNetwork", "regime"]

Key = tuple[Operation, int, "Placement"]
"""Operation, bytes and class of the group of a communication."""


def regime(group: Placement) -> str:
    """Placement of a group → ``inside`` one node or ``across`` nodes.

    Parameters
    ----------
    group : Placement

    Returns
    -------
    str
    """
    return "inside" if group.nodes == 1 else "across"


class MeasuredNetwork(MultipliedNetwork):
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
        super().__init__(network)
        self._ratios, self._errors = ratios, errors

    def late(self) -> MeasuredNetwork:
        """Return the network on which each communication takes its error bar longer."""
        longer = {
            key: ratio * (1 + self._errors.get(key, 0.0)) for key, ratio in self._ratios.items()
        }
        return MeasuredNetwork(self._network, longer, self._errors)

    def factor(self, operation: Operation, bytes: int, group: Placement) -> float:
        """Return the ratio of a communication; see `MultipliedNetwork`."""
        return self._ratios.get((operation, bytes, group), 1.0)

    def price(self, operation: Operation, bytes: int, group: Placement) -> Price:
        """Return NCCL's price times the ratio, but no faster than links are."""
        factor = max(1.0, self.factor(operation, bytes, group))
        return self._network.limited(self._multiplied(operation, bytes, group), group, factor)
