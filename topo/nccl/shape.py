"""`Shape`: numbers of ranks of a group on each node, on which NCCL's times depend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Protocol

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

__all__ = ["REGIMES", "NodeCounts", "Regime", "Shape"]

Regime = Literal["inside", "across"]

REGIMES: tuple[Regime, ...] = ("inside", "across")
"""Where the ranks of a group are: all on one node, or on several nodes."""


class NodeCounts(Protocol):
    """GPUs and NICs of a node: a `System`, or less."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a node has, whether in the group or not."""
        ...

    @property
    def nics(self) -> int:
        """NICs that a node has, whether the group uses them or not."""
        ...


@frozen
class Shape:
    """Numbers of ranks of a group on its nodes.

    Attributes
    ----------
    ranks : int
    nodes : int
    max_per_node : int
        Ranks on the node that has the most of them.
    min_per_node : int
        Ranks on the node that has the fewest.
    nics : int
        NICs of a node that are nearest to some rank of the group, the fewest over its nodes. A
        group with one rank a node has that GPU's own NIC, one with all GPUs has them all.
    bridged : bool
        Whether all ranks are the two GPUs of one bridge, where bridges join pairs.
    """

    ranks: int
    nodes: int = 1
    max_per_node: int = 1
    min_per_node: int = 1
    nics: int = 1
    bridged: bool = True

    @property
    def regime(self) -> Regime:
        """Whether the ranks are inside a node or across nodes."""
        return "inside" if self.nodes == 1 else "across"

    @property
    def mean(self) -> float:
        """Ranks a node in the mean."""
        return self.ranks / self.nodes

    @classmethod
    def of(cls, members: Sequence[int], system: NodeCounts) -> Shape:
        """Return the shape of a group.

        Parameters
        ----------
        members : sequence of int
            Global ranks; rank r runs on GPU ``r % gpus_per_node`` of node ``r // gpus_per_node``.
        system : System or Seats

        Examples
        --------
        >>> from .system import System
        >>> dgx = System("hopper", 8, link_bandwidth=370e9, nics=8, nic_bandwidth=50e9)
        >>> Shape.of((0, 8, 16), dgx)
        Shape(ranks=3, nodes=3, max_per_node=1, min_per_node=1, nics=1, bridged=False)
        """
        if not len(members):
            raise InputError("a group needs at least one member")
        size, nics = system.gpus_per_node, system.nics or 1
        counts = Counter([member // size for member in members])
        # NICs are numbered node by node: the one beside a GPU is a share of its rank.
        near = Counter([nic // nics for nic in {member * nics // size for member in members}])
        return cls(
            ranks=len(members),
            nodes=len(counts),
            max_per_node=max(counts.values()),
            min_per_node=min(counts.values()),
            nics=min(near.values()),
            bridged=len(counts) == 1 and len({member % size // 2 for member in members}) == 1,
        )

    @classmethod
    def regular(cls, nodes: int, per_node: int, system: NodeCounts) -> Shape:
        """Return the shape of a group of the first GPUs of some nodes.

        Parameters
        ----------
        nodes : int
            At least 1.
        per_node : int
            Ranks on each node, from 1 to all its GPUs.
        system : System, or other NodeCounts
            How many GPUs and NICs a node has.

        Raises
        ------
        InputError
            If a node has fewer GPUs, or there is no node.
        """
        if nodes < 1 or not 1 <= per_node <= system.gpus_per_node:
            raise InputError(
                f"{nodes} nodes of {per_node} GPUs; there must be at least 1 node, of 1 to "
                f"{system.gpus_per_node} GPUs"
            )
        near = {gpu * system.nics // system.gpus_per_node for gpu in range(per_node)}
        return cls(
            nodes * per_node, nodes, per_node, per_node, len(near), nodes == 1 and per_node <= 2
        )
