"""Clusters: which GPUs stand together in a node, and what connects them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mpisim.data import text
from mpisim.errors import InputError, nearest
from mpisim.quantity import Quantity
from mpisim.schema import Limits, build, parse

__all__ = ["Cluster", "cluster"]

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


def cluster(name: str) -> Cluster:
    """Return a cluster of ``data/clusters.toml`` by name.

    Raises
    ------
    InputError
        If there is none of that name.

    Examples
    --------
    >>> cluster("dgx-h100").gpus_per_node
    8
    """
    presets = parse(text(FILE), FILE)
    if name not in presets:
        raise InputError(
            f"unknown cluster {name!r}{nearest(name, presets)}; there are {', '.join(presets)}"
        )
    return build(Cluster, presets[name], FILE, name)
