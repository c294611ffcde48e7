"""Cluster, or links of a topology → `System`: GPUs, NICs and bandwidths that NCCL sees.

Three sources: the tables of a cluster (`cluster_system`), a graph file that lists all links
(`listed_system`), and links changed after a cluster was built (`changed_system`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.presets import find_table

from .cluster import Cluster
from .nccl import System
from .nccl.constants import AMD
from .nccl.rccl import rccl_arch
from .nccl.system import DEFAULT_VERSION, version_of
from .topology import LinkKind, NodeKind, Topology
from .traffic.link_limits import typical_bandwidth

__all__ = ["changed_system", "cluster_system", "listed_system", "system_of_graph"]

_INTRA_OF_KIND = {
    "nvswitch": "nvswitch",
    "nvlink-mesh": "mesh",
    "xgmi-mesh": "mesh",
    "hypercube-mesh": "hypercube",
    "nvlink-pairs": "pairs",
    "pcie": "pcie",
}
"""Kinds of nodes in files of clusters."""

_HOST_LINKS = (LinkKind.PCIE, LinkKind.HOST, LinkKind.SOCKET)

_PCIE_PLACEHOLDER = 12e9
"""Placeholder in bytes per second for a graph without PCIe links: a `System` needs one above 0,
and no byte takes that way. NCCL's own for PCIe 3.0 x16 (src/graph/topo.h)."""


def cluster_system(cluster: Cluster, version: tuple[int, ...] | None = None) -> System:
    """Cluster → `System`, its nodes as NCCL sees them.

    Parameters
    ----------
    cluster : Cluster
    version : tuple of int, optional
        NCCL's; by default the cluster's own, or `DEFAULT_VERSION`.

    Raises
    ------
    InputError
        If the GPUs are in no nodes (a wafer, a torus).
    """
    node, fabric = cluster.node, cluster.fabric
    if node is None:
        raise InputError(f"{cluster.title}: NCCL's model needs a [node]; it has a graph alone")
    if node.pcie_bandwidth is None or node.kind not in _INTRA_OF_KIND:
        raise InputError(
            f"{cluster.title}: NCCL's model needs GPUs in nodes with NICs; node.kind is "
            f"{node.kind!r}"
        )
    nics = node.nics
    line_rate = node.nic_bandwidth.si if node.nic_bandwidth else 0.0
    if nics > cluster.gpus_per_node:
        # Several small NICs a GPU are one to NCCL: plugins bundle them, and NCCL itself does.
        line_rate *= nics / cluster.gpus_per_node
        nics = cluster.gpus_per_node
    efficiency = fabric.nic_efficiency if fabric else None
    written = cluster.nccl.version
    pcie, socket = node.pcie_bandwidth.si, node.socket_bandwidth
    return System(
        arch=arch_of(cluster.gpu),
        gpus_per_node=cluster.gpus_per_node,
        intra=_INTRA_OF_KIND[node.kind],
        link_bandwidth=node.link_bandwidth.si if node.link_bandwidth else 0.0,
        pcie_bandwidth=pcie,
        socket_bandwidth=socket.si if socket else pcie,
        nics=nics if fabric else 0,
        nic_bandwidth=line_rate,
        nic_efficiency=efficiency.si if efficiency else 1.0,
        nic_path=node.nic_path,
        cpu=node.cpu,
        gpudirect=node.gpudirect,
        version=version or (version_of(written) if written else DEFAULT_VERSION),
        rccl=rccl_arch(_family(cluster.gpu)),
    )


def arch_of(gpu: str) -> str:
    """GPU → its architecture, as ``[arch]`` of ``data/nccl.toml`` names it."""
    family = _family(gpu)
    return AMD if rccl_arch(family) else family


def _family(gpu: str) -> str:
    return str(find_table(gpu, "gpus.toml", "GPU").table.get("family", ""))


def changed_system(system: System, topology: Topology) -> System:
    """System, changed links → system as NCCL sees it: typical bandwidth of each kind.

    Parameters
    ----------
    system : System
        Of the cluster as it was built.
    topology : Topology
        With changes.
    """
    if topology.is_nominal:
        return system
    common = typical_bandwidth(topology)
    changes = {}
    for kind, key in _SYSTEM_KEYS.items():
        of_kind = topology.kind == kind
        if not of_kind.any() or (common[of_kind] == topology.nominal[of_kind]).all():
            continue
        values, counts = np.unique(common[of_kind] / topology.nominal[of_kind], return_counts=True)
        changes[key] = getattr(system, key) * float(values[np.argmax(counts)])
    return replace(system, **changes)


_SYSTEM_KEYS = {
    LinkKind.NVLINK: "link_bandwidth",
    LinkKind.PCIE: "pcie_bandwidth",
    LinkKind.SOCKET: "socket_bandwidth",
    LinkKind.NIC: "nic_bandwidth",
}
"""Numbers of a `System`, by the links that they are of."""


def listed_system(cluster: Cluster, topology: Topology) -> System:
    """Cluster whose file names a graph → `System`.

    ``[node]`` and ``[fabric]``, where they are given, say what links cannot: the CPUs' maker,
    whether NICs reach the memory of GPUs, and the share of the line rate that NICs' bandwidths
    represent.

    Parameters
    ----------
    cluster : Cluster
    topology : Topology
        Its graph, with changes.
    """
    node, fabric = cluster.node, cluster.fabric
    efficiency = fabric.nic_efficiency if fabric else None
    return system_of_graph(
        topology,
        cluster.gpus_per_node,
        arch_of(cluster.gpu),
        nic_efficiency=efficiency.si if efficiency else 1.0,
        cpu=node.cpu if node else "intel",
        gpudirect=node.gpudirect if node else True,
        version=version_of(cluster.nccl.version) if cluster.nccl.version else DEFAULT_VERSION,
        rccl=rccl_arch(_family(cluster.gpu)),
    )


def system_of_graph(
    topology: Topology,
    gpus_per_node: int,
    arch: str,
    *,
    nic_efficiency: float = 1.0,
    cpu: str = "intel",
    gpudirect: bool = True,
    version: tuple[int, ...],
    rccl: str = "",
) -> System:
    """Listed topology → `System`.

    Where GPUs, NICs or nodes differ, the most frequent number counts, of equally frequent ones the
    lower: NCCL takes all nodes for equal. What single links carry limits communications besides.

    Parameters
    ----------
    topology : Topology
        With NICs (`NodeKind.NIC`) if it has several nodes.
    gpus_per_node : int
        Ranks r with the same r // gpus_per_node are in one node.
    arch : str
        Of the GPUs.
    nic_efficiency : float
        Share of the NICs' line rate that the listed bandwidths represent.
    cpu : str
        Maker of the CPUs.
    gpudirect : bool
        Whether NICs reach the memory of GPUs.
    version : tuple of int
        NCCL's.
    rccl : str
        Kind of GPU to RCCL; empty: NCCL runs.

    Raises
    ------
    InputError
        If the GPUs do not fill whole nodes, or nodes have different numbers of NICs.
    """
    if topology.n_gpus % gpus_per_node:
        raise InputError(
            f"{topology.title}: {topology.n_gpus} GPUs are no whole number of nodes of "
            f"{gpus_per_node} ('gpus_per_node')"
        )
    nodes = topology.n_gpus // gpus_per_node
    nic_nodes = np.flatnonzero(topology.node_kind == NodeKind.NIC)
    if len(nic_nodes) % nodes:
        raise InputError(
            f"{topology.title}: {len(nic_nodes)} NICs on {nodes} nodes; every node must have as "
            "many as the others"
        )
    each = len(nic_nodes) // nodes
    fast = _bandwidth_out(topology, topology.gpu, (LinkKind.NVLINK,))
    nics = _bandwidth_out(topology, nic_nodes, (LinkKind.NIC, LinkKind.FABRIC))
    # Several small NICs a GPU are one to NCCL.
    bundled = max(1.0, each / gpus_per_node)
    sockets = topology.bandwidth[topology.kind == LinkKind.SOCKET]
    # GPUs that hang on a CPU by links of its own have NICs on PCIe.
    of_gpus, of_nics = (
        _most_frequent(_bandwidth_out(topology, ends, (LinkKind.PCIE,)))
        for ends in (topology.gpu, nic_nodes)
    )
    pcie = of_gpus or of_nics or _PCIE_PLACEHOLDER
    return System(
        arch=arch,
        gpus_per_node=gpus_per_node,
        intra=_intra(topology, gpus_per_node),
        link_bandwidth=_most_frequent(fast),
        pcie_bandwidth=pcie,
        socket_bandwidth=_most_frequent(sockets) or pcie,
        nics=min(each, gpus_per_node),
        nic_bandwidth=_most_frequent(nics) / nic_efficiency * bundled,
        nic_efficiency=nic_efficiency,
        nic_path=_nic_path(topology),
        cpu=cpu,
        gpudirect=gpudirect,
        version=version,
        rccl=rccl,
    )


def _bandwidth_out(
    topology: Topology, nodes: NDArray[np.int64], kinds: tuple[LinkKind, ...]
) -> NDArray[np.float64]:
    """Return the total bandwidth out of each of some nodes over links of some kinds."""
    of_kind = np.isin(topology.kind, kinds)
    total = np.bincount(
        topology.source[of_kind], topology.bandwidth[of_kind], minlength=topology.n_nodes
    )
    found: NDArray[np.float64] = total[nodes].astype(np.float64)
    return found


def _most_frequent(values: NDArray[np.float64]) -> float:
    """Return the most frequent of some numbers, the lowest of those; 0 of none."""
    if not len(values):
        return 0.0
    found, counts = np.unique(values, return_counts=True)
    return float(found[np.argmax(counts)])


def _intra(topology: Topology, gpus_per_node: int) -> str:
    """Return the kind of links between the GPUs of a node: see `mpisim.topo.nccl.system.INTRA`."""
    fast = topology.kind == LinkKind.NVLINK
    ends = zip(topology.source[fast].tolist(), topology.target[fast].tolist(), strict=True)
    rank = {node: rank for rank, node in enumerate(topology.gpu.tolist())}
    if not fast.any():
        return "pcie"
    if NodeKind.NVSWITCH in topology.node_kind:
        return "nvswitch"
    pairs = {(rank[a], rank[b]) for a, b in ends if a in rank and b in rank}
    neighbours = Counter(a for a, _ in pairs)
    most = max(neighbours.values(), default=0)
    if most <= 1:
        return "pairs"
    return "hypercube" if gpus_per_node == 8 and most == 4 else "mesh"  # as in the DGX-1


def _nic_path(topology: Topology) -> str:
    """Return the distance from GPUs to their nearest NICs, as nvidia-smi writes it.

    Of GPUs that share a NIC the first counts: through it others reach what is far from them.
    """
    near: dict[int, list[int]] = {}
    for a, b, kind in zip(
        topology.source.tolist(), topology.target.tolist(), topology.kind.tolist(), strict=True
    ):
        if kind in _HOST_LINKS:
            near.setdefault(a, []).append(b)
    first = topology.gpu[:: max(1, topology.n_gpus // max(topology.nics, 1))].tolist()
    found = Counter(_nic_distance(topology, near, gpu) for gpu in first)
    return found.most_common(1)[0][0]


def _nic_distance(topology: Topology, near: dict[int, list[int]], gpu: int) -> str:
    before: dict[int, int] = {gpu: gpu}
    queue = deque([gpu])
    while queue:
        node = queue.popleft()
        if topology.node_kind[node] == NodeKind.NIC:
            return _path_name(
                int(topology.node_kind[each]) for each in _back_to_start(before, node)
            )
        for other in near.get(node, []):
            if other not in before:
                before[other] = node
                queue.append(other)
    return "pxb"


def _back_to_start(before: dict[int, int], node: int) -> Iterable[int]:
    while before[node] != node:
        node = before[node]
        yield node


def _path_name(kinds: Iterable[int]) -> str:
    counts = Counter(kinds)
    if counts[NodeKind.CPU]:
        return "phb" if counts[NodeKind.CPU] == 1 else "sys"
    return "pix" if counts[NodeKind.PCIE] <= 1 else "pxb"
