"""Clusters: which GPUs stand together in a node, and what connects them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mpisim.errors import InputError
from mpisim.presets import SUFFIX, find, names
from mpisim.quantity import Quantity
from mpisim.schema import Limits, build

from .alpha_beta import AlphaBeta

__all__ = ["Cluster", "cluster_names", "find_cluster"]

FILE = "clusters.toml"


@dataclass(frozen=True)
class Cluster:
    """Nodes of one kind, as two latencies and two bandwidths.

    A group inside one node uses the node's pair, any other the network's. The network's bandwidth
    is one GPU's share of its node's NICs when all GPUs of the node communicate at once, each in a
    group of its own, as data-parallel groups of a model that is split inside nodes do. A group with
    several members a node could use the NICs of all of them, and a group on a node whose other GPUs
    are silent all of the node's: both are charged too much.

    Attributes
    ----------
    title : str
        Its full name.
    gpu : str
        The GPU's name in ``data/gpus.toml``, or the path of a file with one.
    gpus_per_node : int
        GPUs that the fast links join: those of a server, or of a rack (NVL72).
    node_bandwidth : Quantity
        What one GPU of a group inside a node sends, and receives at the same time, in a ring.
    node_latency : Quantity
        Of one collective inside a node, whatever its size.
    network_bandwidth, network_latency : Quantity, optional
        The same for a group that spans nodes. Without them there is one node.
    nics_per_node : int, optional
        Network cards, which the GPUs of a node share.
    nic_bandwidth : Quantity, optional
        Line rate of one of them, one direction.
    aliases : tuple of str
        Other names it goes by.
    """

    title: str
    gpu: str
    gpus_per_node: Annotated[int, Limits(least=1)]
    node_bandwidth: Quantity
    node_latency: Quantity
    network_bandwidth: Quantity | None = None
    network_latency: Quantity | None = None
    nics_per_node: Annotated[int, Limits(least=1)] | None = None
    nic_bandwidth: Quantity | None = None
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for first, second in (
            ("network_bandwidth", "network_latency"),
            ("nics_per_node", "nic_bandwidth"),
        ):
            given = [key for key in (first, second) if getattr(self, key) is not None]
            if len(given) == 1:
                missing = second if given == [first] else first
                raise InputError(f"{given[0]!r} is given without {missing!r}; give both or neither")
        for key in ("node_bandwidth", "network_bandwidth", "nic_bandwidth"):
            number = getattr(self, key)
            if number is not None and not number.value:
                raise InputError(f"{key!r} is 0; it must be above 0")

    def cost(self, nodes: int = 1) -> AlphaBeta:
        """Return the cost model of communications on some nodes of this cluster.

        Raises
        ------
        InputError
            If there is more than one node and nothing between them.
        """
        numbers = {"node_latency": self.node_latency, "node_bandwidth": self.node_bandwidth}
        inside = (self.node_latency.si, self.node_bandwidth.si)
        if self.network_bandwidth is None or self.network_latency is None:
            if nodes > 1:
                raise InputError(
                    f"{self.title}: {nodes} nodes, but it has no network; give its "
                    "'network_bandwidth' and 'network_latency', or use 1 node"
                )
            across = inside
        else:
            across = (self.network_latency.si, self.network_bandwidth.si)
            numbers |= {
                "network_latency": self.network_latency,
                "network_bandwidth": self.network_bandwidth,
            }
        return AlphaBeta(*across, self.gpus_per_node, *inside, numbers)


def find_cluster(name: str | Path) -> Cluster:
    """Return a cluster by name, or from a file.

    Parameters
    ----------
    name : str or Path
        A name or alias of ``data/clusters.toml``, in any case of letters, or the path of a
        ``.toml`` file with one table of the same form. Where that names a GPU by a path, the path
        starts at the file's folder.

    Raises
    ------
    InputError
        If there is none of that name, or the file is not a cluster's.

    Examples
    --------
    >>> find_cluster("dgx-h100").gpus_per_node
    8
    """
    preset = find(name, FILE, "cluster")
    table = preset.table
    gpu = table.get("gpu")
    if preset.source != FILE and isinstance(gpu, str) and gpu.endswith(SUFFIX):
        table = table | {"gpu": str(Path(preset.source).parent / gpu)}
    return build(Cluster, table, preset.source, preset.name)


def cluster_names() -> list[str]:
    """Return the names of the clusters of ``data/clusters.toml``."""
    return names(FILE)
