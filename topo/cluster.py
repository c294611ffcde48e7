"""Clusters: which GPUs stand together in a node, and what connects them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mpisim.data import text
from mpisim.errors import InputError, nearest
from mpisim.program import Operation
from mpisim.quantity import Quantity
from mpisim.schema import Limits, build, parse

from .alpha_beta import AlphaBeta

__all__ = ["Cluster", "find_cluster"]

FILE = "clusters.toml"


@dataclass(frozen=True)
class Cluster:
    """Nodes of one kind, as two latencies and two bandwidths.

    Attributes
    ----------
    title : str
        Its full name.
    gpu : str
        The GPU's name in ``data/gpus.toml``.
    gpus_per_node : int
    node_bandwidth : Quantity
        What one GPU of a group inside a node sends, and receives at the same time, in a ring.
    node_latency : Quantity
        Of one collective inside a node, whatever its size.
    network_bandwidth, network_latency : Quantity
        The same for a group that spans nodes.
    """

    title: str
    gpu: str
    gpus_per_node: Annotated[int, Limits(least=1)]
    node_bandwidth: Quantity
    node_latency: Quantity
    network_bandwidth: Quantity
    network_latency: Quantity

    def cost(self) -> AlphaBeta:
        """Return the cost model of communications on this cluster."""
        return AlphaBeta(
            latency=self.network_latency.si,
            bandwidth=self.network_bandwidth.si,
            ranks_per_node=self.gpus_per_node,
            node_latency=self.node_latency.si,
            node_bandwidth=self.node_bandwidth.si,
        )

    def shares(
        self, operation: Operation, bytes: int, members: tuple[int, ...]
    ) -> dict[str, float]:
        """Return the share of a communication's cost that rests on each number.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Size of the full buffer.
        members : tuple of int
            Global ranks.

        Returns
        -------
        dict of str to float
            By the name of an attribute; a relative error e of the number changes the cost by
            share × e. Empty if the communication costs nothing.
        """
        model = self.cost()
        group = model.group_class(members)
        total = model.cost(operation, bytes, group)
        if total == 0:
            return {}
        latency = model.cost(operation, 0, group) / total
        nodes = {member // self.gpus_per_node for member in members}
        link = "node" if len(nodes) == 1 else "network"
        return {f"{link}_latency": latency, f"{link}_bandwidth": 1 - latency}


def find_cluster(name: str) -> Cluster:
    """Return a cluster of ``data/clusters.toml`` by name.

    Raises
    ------
    InputError
        If there is none of that name.

    Examples
    --------
    >>> find_cluster("dgx-h100").gpus_per_node
    8
    """
    presets = parse(text(FILE), FILE)
    if name not in presets:
        raise InputError(
            f"unknown cluster {name!r}{nearest(name, presets)}; there are {', '.join(presets)}"
        )
    return build(Cluster, presets[name], FILE, name)
