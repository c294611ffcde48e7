"""Node → its graph: GPUs, NVLink or xGMI, PCIe tree, CPUs and NICs, and the routes between them.

`build_node_graph` wires a node once, and the assembly repeats the result for every node of a
cluster. GPUs are nodes 0 to g - 1 of the graph. A *port* is where the fabric begins: the NICs of a
GPU, or those that several GPUs share, taken together; of a node without NICs the GPU itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen

from .nodes import Node, hop_latency
from .topology import LinkKind, NodeKind

__all__ = ["GraphBuilder", "NodeGraph", "build_node_graph"]


class GraphBuilder:
    """A small graph under construction: nodes and links as lists.

    Attributes
    ----------
    names : list of str
    kinds : list of NodeKind
    source, target : list of int
        Ends of each directed link.
    bandwidth, latency : list of float
        In bytes per second and seconds.
    link_kinds : list of LinkKind
    link_between : dict
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
        self.link_between: dict[tuple[int, int], int] = {}

    def add_node(self, kind: NodeKind, name: str) -> int:
        """Add a node and return its number.

        Parameters
        ----------
        kind : NodeKind
        name : str
            Unique in the graph.
        """
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1

    def connect(self, a: int, b: int, bandwidth: float, latency: float, kind: LinkKind) -> None:
        """Join two nodes by a link in each direction.

        Parameters
        ----------
        a, b : int
            Numbers of nodes, from `add_node`.
        bandwidth : float
            Of each direction, bytes per second.
        latency : float
            Of each direction, in seconds.
        kind : LinkKind
        """
        for source, target in ((a, b), (b, a)):
            self.link_between[source, target] = len(self.source)
            self.source.append(source)
            self.target.append(target)
            self.bandwidth.append(bandwidth)
            self.latency.append(latency)
            self.link_kinds.append(kind)

    def links_along(self, nodes: Sequence[int]) -> list[int]:
        """Return the links along some nodes."""
        return [self.link_between[pair] for pair in pairwise(nodes)]

    def bandwidth_between(self, a: int, b: int) -> float:
        """Return the bandwidth of the link between two nodes, 0 if there is none.

        Parameters
        ----------
        a, b : int
            Numbers of nodes: the link leads from a to b.

        Returns
        -------
        float
            Bytes per second; of several links the one added last.
        """
        return self.bandwidth[self.link_between[a, b]] if (a, b) in self.link_between else 0.0

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


# Links between the GPUs of a DGX-1 with V100, as `nvidia-smi topo -m` prints them; each GPU has 6.
_HYPERCUBE = (
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
)

_HYPERCUBE_LINKS = 6
"""NVLinks of a V100 (NVIDIA Tesla V100 GPU architecture), over which its bandwidth is divided."""


@frozen(eq=False)
class NodeGraph:
    """A node's graph and its routes. GPUs are its nodes 0 to g - 1.

    A port is where the fabric begins: the NICs of a GPU, or those that several share, taken
    together; of a node without NICs the GPU.

    Attributes
    ----------
    graph : GraphBuilder
        The graph.
    ports : int64, shape (r,)
        The node of each port.
    gpu_routes : int64, shape (g, g, h)
        Links from GPU to GPU, padded with -1 anywhere.
    exit_port : int64, shape (g, g)
        The port by which a GPU here reaches a GPU of the same position in another node.
    to_port : int64, shape (g, r, h)
        Links from a GPU to a port.
    from_port : int64, shape (g, h)
        Links to a GPU from its own port.
    own_port : int64, shape (g,)
        The own port of a GPU.
    """

    graph: GraphBuilder
    ports: NDArray[np.int64]
    gpu_routes: NDArray[np.int64]
    exit_port: NDArray[np.int64]
    to_port: NDArray[np.int64]
    from_port: NDArray[np.int64]
    own_port: NDArray[np.int64]


def build_node_graph(node: Node, gpus: int) -> NodeGraph:
    """Node table and number of GPUs → graph and routes.

    Parameters
    ----------
    node : Node
    gpus : int
        How many it has.
    """
    builder = GraphBuilder()
    for i in range(gpus):
        builder.add_node(NodeKind.GPU, f"gpu{i}")
    _add_fast_links(builder, node, gpus)
    if node.kind == "direct":
        all_gpus = np.arange(gpus)
        empty = np.empty((gpus, gpus, 0), np.int64)
        return NodeGraph(
            builder,
            all_gpus,
            empty,
            np.tile(all_gpus[:, None], gpus),
            empty,
            np.empty((gpus, 0), np.int64),
            all_gpus,
        )
    above, ports, nearest = _add_hosts(builder, node, gpus)
    inside = _inside_routes(builder, node, gpus, above)
    if not len(ports):
        return NodeGraph(
            builder,
            ports,
            inside,
            np.zeros((gpus, gpus), np.int64),
            np.empty((gpus, 0, 0), np.int64),
            np.empty((gpus, 0), np.int64),
            nearest,
        )
    first = np.searchsorted(nearest, np.arange(len(ports)))  # of the GPUs at each port
    fast = builder.adjacency(gpus) if node.pxn else np.zeros((gpus, gpus), bool)
    # Over NVLink to the GPU at the receiver's rail, if there is a way (NCCL's PXN).
    own = nearest[:, None] == np.arange(len(ports))[None, :]
    via = np.where(own, np.arange(gpus)[:, None], first[None, :])
    reachable = own | fast[np.arange(gpus)[:, None], via]
    port = np.where(reachable[:, nearest], nearest[None, :], nearest[:, None])

    ways = [_tree_route(builder, above, i, int(ports[nearest[i]]), node) for i in range(gpus)]
    up = _padded([builder.links_along(way) for way in ways])
    into = _padded([builder.links_along(way[::-1]) for way in ways])
    out = np.concatenate([inside[np.arange(gpus)[:, None], via], up[via]], axis=2)
    return NodeGraph(builder, ports, inside, port, out, into, nearest)


def _add_fast_links(builder: GraphBuilder, node: Node, gpus: int) -> None:
    """Add NVLink or xGMI."""
    if node.link_bandwidth is None or node.kind == "direct":
        return
    bandwidth = node.link_bandwidth.si
    latency = hop_latency("link", node.link_latency)
    if node.kind == "nvswitch":
        switch = builder.add_node(NodeKind.NVSWITCH, "nvswitch")
        pairs = [(i, switch, 1.0) for i in range(gpus)]
    elif node.kind == "hypercube-mesh":
        pairs = [(i, j, width / _HYPERCUBE_LINKS) for i, j, width in _HYPERCUBE]
    elif node.kind == "nvlink-pairs":
        pairs = [(i, i + 1, 1.0) for i in range(0, gpus - 1, 2)]
    else:
        pairs = [(i, j, 1 / (gpus - 1)) for i in range(gpus) for j in range(i + 1, gpus)]
    for i, j, part in pairs:
        builder.connect(i, j, bandwidth * part, latency, LinkKind.NVLINK)


def _add_hosts(
    builder: GraphBuilder, node: Node, gpus: int
) -> tuple[dict[int, int], NDArray[np.int64], NDArray[np.int64]]:
    """Node → parents in the tree of PCIe, ports, nearest port of each GPU; adds what is in it."""
    trays = gpus // (node.tray or gpus)
    tree = _PcieTree(builder, node, gpus, trays)
    for tray in range(trays):
        tree.add_tray(tray)
    return tree.above, np.array(tree.ports, np.int64), tree.nearest


class _PcieTree:
    """CPUs, PCIe switches and NICs of a node, added tray by tray.

    Attributes
    ----------
    above : dict of int to int
        Parent of each unit below a CPU.
    ports : list of int
        NICs, in their order.
    nearest : int64, shape (gpus,)
        Index of the port nearest to each GPU.
    """

    def __init__(self, builder: GraphBuilder, node: Node, gpus: int, trays: int) -> None:
        assert node.pcie_bandwidth is not None
        self._builder, self._node = builder, node
        self._pcie, self._latency = node.pcie_bandwidth.si, hop_latency("pcie", node.pcie_latency)
        self._trays, self._gpus_of_tray = trays, node.tray or gpus
        self._nics_of_tray = min(node.nics, gpus) // trays  # ports of a tray
        self._lanes = node.nics / min(node.nics, gpus) if node.nics else 0.0
        self._switches = node.switches(gpus)
        self.above: dict[int, int] = {}
        self.ports: list[int] = []
        self.nearest = np.zeros(gpus, np.int64)

    def _attach(self, lower: int, upper: int, lanes: float = 1.0) -> None:
        self._builder.connect(lower, upper, self._pcie * lanes, self._latency, LinkKind.PCIE)
        self.above[lower] = upper

    def add_tray(self, tray: int) -> None:
        """Add what is in a tray, counted from 0; a node without trays is one."""
        builder, node = self._builder, self._node
        mark = f"tray{tray}." if self._trays > 1 else ""
        cpus = [builder.add_node(NodeKind.CPU, f"{mark}cpu{k}") for k in range(node.numa_nodes)]
        for k, one in enumerate(cpus):
            for other in cpus[k + 1 :]:
                assert node.socket_bandwidth is not None
                builder.connect(
                    one, other, node.socket_bandwidth.si, hop_latency("socket"), LinkKind.SOCKET
                )
        tops, n = cpus, self._switches
        if n:
            tops = [builder.add_node(NodeKind.PCIE, f"{mark}pcie{k}") for k in range(n)]
            for k, switch in enumerate(tops):
                self._attach(switch, cpus[k * len(cpus) // n])
        self._attach_gpus(tray, tops)
        self._attach_nics(tray, cpus, len(tops))

    def _attach_gpus(self, tray: int, tops: Sequence[int]) -> None:
        """Join the GPUs of a tray to its switches, or to its CPUs where it has none."""
        node, size = self._node, self._gpus_of_tray
        for j in range(size):
            gpu, top = tray * size + j, tops[j * len(tops) // size]
            if node.host_bandwidth is not None and not self._switches:
                bandwidth = node.host_bandwidth.si
                self._builder.connect(gpu, top, bandwidth, self._latency, LinkKind.HOST)
                self.above[gpu] = top
            else:
                self._attach(gpu, top)
            self.nearest[gpu] = tray * self._nics_of_tray + j * self._nics_of_tray // size

    def _attach_nics(self, tray: int, cpus: Sequence[int], n_tops: int) -> None:
        """Join the NICs of a tray where the node's `nic_path` has them."""
        builder, path, n = self._builder, self._node.nic_path, self._nics_of_tray
        bridges: dict[int, int] = {}
        for k in range(n):
            nic = builder.add_node(NodeKind.NIC, f"nic{tray * n + k}")
            self.ports.append(nic)
            if path == "sys":
                upper = cpus[(k * len(cpus) // n + 1) % len(cpus)]
            elif path == "phb" or not self._switches:
                upper = cpus[k * len(cpus) // n]
            else:
                first = tray * self._gpus_of_tray - (-k * self._gpus_of_tray // n)  # GPU at it
                upper = self.above[first]
                if path != "pix":
                    if upper not in bridges:
                        name = builder.names[upper].replace("pcie", "bridge")
                        bridges[upper] = builder.add_node(NodeKind.PCIE, name)
                        below = max(1, n // n_tops)
                        self._attach(bridges[upper], upper, self._lanes * below)
                    upper = bridges[upper]
            self._attach(nic, upper, self._lanes)


def _tree_route(
    builder: GraphBuilder, above: dict[int, int], a: int, b: int, node: Node
) -> list[int]:
    """Return the nodes from a to b up and down the PCIe tree, across CPUs where needed."""
    up, down = _ancestors(above, a), _ancestors(above, b)
    if node.gpudirect or builder.kinds[b] != NodeKind.NIC:
        shared = [each for each in up if each in down]
        if shared:  # turn at the first common ancestor
            return up[: up.index(shared[0]) + 1] + down[: down.index(shared[0])][::-1]
    elif up[-1] == down[-1]:
        return up + down[:-1][::-1]
    return up + down[::-1]


def _ancestors(above: dict[int, int], node: int) -> list[int]:
    """Return a node and all above it; the last is its CPU."""
    chain = [node]
    while chain[-1] in above:
        chain.append(above[chain[-1]])
    return chain


def _inside_routes(
    builder: GraphBuilder, node: Node, gpus: int, above: dict[int, int]
) -> NDArray[np.int64]:
    """Return the links from each GPU to each, shape (g, g, h)."""
    if node.kind == "nvswitch":
        switch = builder.names.index("nvswitch")
        up = np.array([builder.link_between[i, switch] for i in range(gpus)])
        down = np.array([builder.link_between[switch, i] for i in range(gpus)])
        found = np.stack(np.broadcast_arrays(up[:, None], down[None, :]), axis=2)
        found[np.arange(gpus), np.arange(gpus)] = -1
        return found
    ways = [
        builder.links_along(_gpu_route(builder, node, gpus, above, i, j)) if i != j else []
        for i in range(gpus)
        for j in range(gpus)
    ]
    padded = _padded(ways)
    return padded.reshape(gpus, gpus, padded.shape[1])


def _gpu_route(
    builder: GraphBuilder, node: Node, gpus: int, above: dict[int, int], i: int, j: int
) -> list[int]:
    """Return the nodes from GPU i to GPU j."""
    if (i, j) in builder.link_between:
        return [i, j]
    if node.kind == "hypercube-mesh":
        # NCCL goes through one GPU between, by the widest links.
        width = [
            min(builder.bandwidth_between(i, k), builder.bandwidth_between(k, j))
            if k not in (i, j)
            else 0.0
            for k in range(gpus)
        ]
        return [i, int(np.argmax(width)), j]
    return _tree_route(builder, above, i, j, node)


def _padded(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    found = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int64)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found
