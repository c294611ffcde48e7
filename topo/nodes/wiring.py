"""A small graph that grows: names, links in both directions, and which link joins two nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..topology import LinkKind, NodeKind

__all__ = ["Wiring"]


class Wiring:
    """Nodes and links as lists.

    Attributes
    ----------
    names : list of str
    kinds : list of NodeKind
    source, target : list of int
        Ends of each directed link.
    bandwidth, latency : list of float
        In bytes per second and seconds.
    link_kinds : list of LinkKind
    at : dict
        The link from a node to another.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kinds: list[NodeKind] = []
        self.source: list[int] = []
        self.target: list[int] = []
        self.bandwidth: list[float] = []
        self.latency: list[float] = []
        self.link_kinds: list[LinkKind] = []
        self.at: dict[tuple[int, int], int] = {}

    def add(self, kind: NodeKind, name: str) -> int:
        """Add a node and return its number."""
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1

    def join(self, a: int, b: int, bandwidth: float, latency: float, kind: LinkKind) -> None:
        """Join two nodes by a link in each direction."""
        for source, target in ((a, b), (b, a)):
            self.at[source, target] = len(self.source)
            self.source.append(source)
            self.target.append(target)
            self.bandwidth.append(bandwidth)
            self.latency.append(latency)
            self.link_kinds.append(kind)

    def path(self, nodes: Sequence[int]) -> list[int]:
        """Return the links along some nodes."""
        return [self.at[pair] for pair in pairwise(nodes)]

    def width(self, a: int, b: int) -> float:
        """Return the bandwidth of the link between two nodes, 0 if there is none."""
        return self.bandwidth[self.at[a, b]] if (a, b) in self.at else 0.0

    def adjacency(self, gpus: int) -> NDArray[np.bool_]:
        """Whether fast links join two of the first nodes, directly or by one NVSwitch."""
        fast = np.zeros((len(self.names), len(self.names)), bool)
        for source, target, kind in zip(self.source, self.target, self.link_kinds, strict=True):
            fast[source, target] = kind is LinkKind.NVLINK
        switches = [i for i, kind in enumerate(self.kinds) if kind is NodeKind.NVSWITCH]
        near = fast[:gpus, :gpus].copy()
        for switch in switches:
            near |= fast[:gpus, switch][:, None] & fast[switch, :gpus][None, :]
        return near
