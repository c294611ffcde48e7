"""How a group stands on a network: what the price of its communications depends on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from mpisim.base.kinds import Operation

from .nccl.shape import Shape

__all__ = ["Limit", "Pattern", "Placement"]


class Pattern(NamedTuple):
    """Which links a communication loads: what it does, and by which algorithm of the library."""

    operation: Operation
    algorithm: str


@dataclass(frozen=True)
class Limit:
    """What links allow communications of one pattern on one group, alone.

    Attributes
    ----------
    pattern : Pattern
    node_rate, fabric_rate : int
        Highest rates by links of nodes and cards that are slower than usual, and by links between
        switches; in 2**-40 bytes per ps, or `UNLIMITED`.
    latency : int
        ps to be added to NCCL's.
    link : int
        One that sets the lower rate, -1 if none does. Equal limits may have different ones.
    """

    pattern: Pattern
    node_rate: int
    fabric_rate: int
    latency: int
    link: int = field(default=-1, compare=False)


@dataclass(frozen=True)
class Placement:
    """How a group stands on the network: all that the price of its communications depends on.

    Attributes
    ----------
    shape : Shape
        Ranks on nodes.
    limits : tuple of Limit
        Of the patterns that links limit or delay; none: the network is as NCCL's model takes it.
    """

    shape: Shape
    limits: tuple[Limit, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes of the group."""
        return self.shape.nodes

    def limit(self, pattern: Hashable) -> Limit | None:
        """Return what limits a pattern, if anything does."""
        return next((each for each in self.limits if each.pattern == pattern), None)
