"""`Cluster`: the TOML file of a machine, its nodes and its fabric."""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.presets import SUFFIX, find_file, match_name, packaged, packaged_folder
from mpisim.base.quantity import Quantity
from mpisim.base.schema import Limits, build

from .alpha_beta import AlphaBeta
from .assemble import assemble
from .changes import apply_changes, check_changes
from .fabrics import Fabric
from .nodes import Node
from .topology import LinkKind, Topology

__all__ = ["Cluster", "LatencyBandwidth", "NcclChoice", "cluster_names", "find_cluster"]

FOLDER = "clusters"

MOST_NAMES = 64
"""Names of packaged clusters whose clusters are kept."""

MAX_GPUS_PER_NODE = 4096
"""GPUs of a node: the ways between each two of them are held in memory."""

UNITS_OF = {
    "bandwidth": ("B/s", "GB/s", "TB/s", "Gb/s"),
    "latency": ("s", "ms", "us"),
    "buffer": ("B", "MB", "GB"),
    "memory": ("B", "MB", "GB"),
    "clock": ("MHz",),
}
"""Units that numbers may have, by the last word of their keys."""


@frozen
class LatencyBandwidth:
    """The table ``[alpha_beta]``: two latencies and two bandwidths, of whole collectives.

    Those of the presets are fits of latency + factor × bytes / bandwidth, with the ring factors of
    nccl-tests, to the logarithms of times, so that small and large messages have one weight.

    A group inside one node uses the node's pair, any other the network's. The network's bandwidth
    is one GPU's share of its node's NICs when all GPUs of the node communicate at once, each in a
    group of its own, as data-parallel groups of a model that is split inside nodes do. A group with
    several members a node could use the NICs of all of them, and a group on a node whose other GPUs
    are silent all of the node's: both are charged too much.

    Attributes
    ----------
    node_bandwidth : Quantity
        What one GPU of a group inside a node sends, and receives at the same time, in a ring.
    node_latency : Quantity
        Of one collective inside a node, whatever its size.
    network_bandwidth, network_latency : Quantity, optional
        The same for a group that spans nodes. Without them there is one node.
    """

    node_bandwidth: Quantity
    node_latency: Quantity
    network_bandwidth: Quantity | None = None
    network_latency: Quantity | None = None

    def __post_init__(self) -> None:
        keys = ("network_bandwidth", "network_latency")
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) == 1:
            missing = keys[given == [keys[0]]]
            raise InputError(f"{given[0]!r} is given without {missing!r}; give both or neither")
        for key in ("node_bandwidth", "network_bandwidth"):
            number = getattr(self, key)
            if number is not None and not number.value:
                raise InputError(f"{key!r} is 0; it must be above 0")


@frozen
class NcclChoice:
    """The table ``[nccl]``: the communication library of a cluster.

    Attributes
    ----------
    version : str, optional
        Such as ``"2.20"``.
    platform : str, optional
        The calibration of measured collectives that fits it.
    kindred : str, optional
        The calibration that stands in where its platform was not measured, inside nodes or across:
        of a platform with the same NICs, or of a family such as ``"hopper-infiniband"``.
    """

    version: str | None = None
    platform: str | None = None
    kindred: str | None = None


@frozen
class Cluster:
    """A cluster: nodes of one kind, and the fabric between them.

    Attributes
    ----------
    title : str
        Its full name.
    gpu : str
        The GPU's name in ``data/gpus.toml``, or the path of a file with one.
    gpus_per_node : int
        GPUs that the fast links join: those of a server, or of a rack (NVL72).
    node : Node, optional
        The inside of a node. Only a `graph` does without.
    fabric : Fabric, optional
        What joins them. Without it there is one node.
    alpha_beta : LatencyBandwidth, optional
        Measured latencies and bandwidths of collectives.
    nccl : NcclChoice
        The communication library.
    graph : str, optional
        Path of a file that lists all GPUs, switches and links (:mod:`.topology_files`), in place of
        what `node` and `fabric` would make.
    changes : dict of str to str
        Links to slow or cut, as for :func:`.changes.apply_changes`.
    aliases : tuple of str
        Other names it goes by.
    latency : float
        Factor of what is known of the latencies of communications: of starts, steps, links and
        switches.
    """

    title: str
    gpu: str
    gpus_per_node: Annotated[int, Limits(least=1, most=MAX_GPUS_PER_NODE)]
    node: Node | None = None
    fabric: Fabric | None = None
    alpha_beta: LatencyBandwidth | None = None
    nccl: NcclChoice = field(default_factory=NcclChoice)
    graph: str | None = None
    changes: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    latency: Annotated[float, Limits(least=0, most=1e4)] = 1.0

    def __post_init__(self) -> None:
        node, fabric = self.node, self.fabric
        check_changes(self.changes)
        for name in ("node", "fabric", "alpha_beta"):
            _check_units(name, getattr(self, name))
        if node is None:
            if self.graph is None:
                raise InputError("[node] is missing; only a cluster with a 'graph' needs none")
            if fabric is not None:
                raise InputError("[fabric] is given, but 'graph' says what joins the GPUs")
            return
        if self.gpus_per_node % (node.tray or 1):
            raise InputError(
                f"'gpus_per_node' is {self.gpus_per_node}; it must be a multiple of node.tray, "
                f"{node.tray}"
            )
        trays = self.gpus_per_node // (node.tray or self.gpus_per_node)
        if node.nics % trays:
            raise InputError(f"'node.nics' is {node.nics}; it must be a multiple of {trays} trays")
        if node.kind == "hypercube-mesh" and self.gpus_per_node != 8:
            raise InputError(f"'gpus_per_node' is {self.gpus_per_node}; a hypercube-mesh has 8")
        if fabric is None and node.kind == "direct":
            raise InputError("[fabric] is missing; node.kind = 'direct' joins GPUs to one")
        if fabric is not None and node.nics == 0 and node.kind != "direct":
            raise InputError("[fabric] is given, but node.nics is 0: GPUs need a NIC to reach it")
        if fabric is not None and node.nics and fabric.nic_efficiency is None:
            raise InputError("'fabric.nic_efficiency' is missing; NICs need it")

    def has_direct_gpus(self, topology: Topology) -> bool:
        """Whether the GPUs of its topology are joined to a fabric themselves, without NICs.

        So it is where ``node.kind`` says so, and in a graph without NICs whose GPUs are on switches
        or are in several nodes.
        """
        if self.node is not None:
            return self.node.kind == "direct"
        switched = bool((topology.kind >= LinkKind.NIC).any())
        return topology.nics == 0 and (switched or topology.n_gpus > self.gpus_per_node)

    def rates(self, gpus: int | None = None) -> tuple[float, float] | None:
        """Bytes per second that a GPU sends to others of its node, and by its share of the NICs.

        Where nothing leads to other nodes both are the links inside one.

        Parameters
        ----------
        gpus : int, optional
            That share the NICs of a node, in place of all.

        Returns
        -------
        tuple of float, optional
            None for nodes without links of their own.
        """
        node = self.node
        if node is None or node.link_bandwidth is None:
            return None
        inside = node.link_bandwidth.si
        if not node.nics or node.nic_bandwidth is None:
            return inside, inside
        return inside, node.nic_bandwidth.si * node.nics / (gpus or self.gpus_per_node)

    def topology(self, nodes: int = 1) -> Topology:
        """Number of nodes → topology: GPUs, switches, links and routes.

        Raises
        ------
        InputError
            If there are several nodes and nothing between them, more than the fabric or the
            cluster's graph has room for, or a change that fits no link.
        """
        if nodes < 1:
            raise InputError(f"{self.title}: {nodes} nodes; there must be 1 or more")
        if self.graph is None:
            assert self.node is not None  # only a graph does without
            found = assemble(self.title, self.node, self.fabric, self.gpus_per_node, nodes)
        else:
            from .topology_files import read_topology

            found = read_topology(self.graph)
            wanted = nodes * self.gpus_per_node
            if wanted > found.n_gpus:
                raise InputError(
                    f"{self.graph}: has {found.n_gpus} GPUs; {nodes} nodes of "
                    f"{self.gpus_per_node} need {wanted}"
                )
            found = found.first_gpus(wanted)
        return apply_changes(found, self.changes) if self.changes else found

    def cost(self, nodes: int = 1) -> AlphaBeta:
        """Return the cost model of communications on some nodes of this cluster.

        Raises
        ------
        InputError
            If there are no measured latencies and bandwidths, or more than one node and nothing
            between them.
        """
        measured = self.alpha_beta
        if measured is None:
            raise InputError(f"{self.title}: it has no [alpha_beta]; this network model needs it")
        numbers = {
            "node_latency": measured.node_latency,
            "node_bandwidth": measured.node_bandwidth,
        }
        inside = (self.latency * measured.node_latency.si, measured.node_bandwidth.si)
        if measured.network_bandwidth is None or measured.network_latency is None:
            if nodes > 1:
                raise InputError(
                    f"{self.title}: {nodes} nodes, but it has no network; give its "
                    "'network_bandwidth' and 'network_latency', or use 1 node"
                )
            across = inside
        else:
            across = (self.latency * measured.network_latency.si, measured.network_bandwidth.si)
            numbers |= {
                "network_latency": measured.network_latency,
                "network_bandwidth": measured.network_bandwidth,
            }
        return AlphaBeta(*across, self.gpus_per_node, *inside, numbers)


def _check_units(name: str, part: Node | Fabric | LatencyBandwidth | None) -> None:
    """Refuse a bandwidth in seconds, and the like."""
    for key, number in vars(part).items() if part is not None else ():
        allowed = UNITS_OF.get(key.rpartition("_")[2])
        if isinstance(number, Quantity) and allowed and number.unit not in allowed:
            raise InputError(
                f"'{name}.{key}' has the unit {number.unit!r}; allowed: {', '.join(allowed)}"
            )


def find_cluster(name: str | Path) -> Cluster:
    """Name or path → cluster.

    Parameters
    ----------
    name : str or Path
        A name or alias of ``data/clusters``, in any case of letters, or the path of a ``.toml``
        file of the same form. Where that names a GPU or a graph by a path, the path starts at the
        file's folder.

    Raises
    ------
    InputError
        If there is none of that name, or the file is not a cluster's.

    Examples
    --------
    >>> find_cluster("dgx-h100").gpus_per_node
    8
    """
    if not str(name).endswith(SUFFIX):
        return _packaged_cluster(str(name))
    from .topology_files import GRAPHML

    preset = find_file(name, FOLDER, "cluster")
    table = preset.table
    for key, suffixes in (("gpu", (SUFFIX,)), ("graph", (SUFFIX, GRAPHML))):
        path = table.get(key)
        if isinstance(path, str) and path.endswith(suffixes):
            table = table | {key: str(Path(preset.source).parent / path)}
        elif key == "graph" and isinstance(path, str):
            raise InputError(
                f"{preset.source}: key 'graph' is {path!r}; it must be a file, "
                f"{SUFFIX} or {GRAPHML}"
            )
    return build(Cluster, table, preset.source)


@lru_cache(maxsize=MOST_NAMES)
def _packaged_cluster(name: str) -> Cluster:
    """Return a cluster of ``data/clusters``; reading an experiment asks for its own many times."""
    try:
        preset = find_file(name, FOLDER, "cluster")
    except InputError as error:
        gpu = _gpu_called(name)
        if gpu is None:
            raise
        having = [each for each, table in packaged_folder(FOLDER).items() if table["gpu"] == gpu]
        raise InputError(
            f"unknown cluster {name!r}: it is a GPU, "
            + (
                f"which these have: {', '.join(having)}"
                if having
                else "which none of 'mpisim list clusters' has; kernels.gpu puts it in the place "
                "of another one's, or a file of your own (docs/topologies.md)"
            )
        ) from error
    return build(Cluster, preset.table, preset.source)


def _gpu_called(name: str) -> str | None:
    """Return the GPU of ``data/gpus.toml`` that has a name or alias; None if none has it."""
    try:
        return match_name(name, packaged("gpus.toml"), "GPU", "")
    except InputError:
        return None


def cluster_names() -> list[str]:
    """Return the names of the clusters of ``data/clusters``."""
    return list(packaged_folder(FOLDER))
