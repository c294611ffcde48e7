"""Table ``[node]`` → graph of a node: GPUs, NVLink or xGMI, PCIe tree, CPUs and NICs.

`Node` is the table ``[node]`` of a cluster; `build_node_graph` wires it once, and the assembly
repeats the result for every node of a cluster. GPUs are nodes 0 to g - 1 of the graph. A *port* is
where the fabric begins: the NICs of a GPU, or those that several GPUs share, taken together; of a
node without NICs the GPU itself.

A new kind of node is a value of `Node.kind` and its pairs of GPUs in `_add_fast_links`; what NCCL
sees in it is a line of `mpisim.topo.nccl_system`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import Limits, build

from .topology import LinkKind, NodeKind

__all__ = ["GraphBuilder", "Node", "NodeGraph", "build_node_graph", "hop_latency"]

Count = Annotated[int, Limits(least=1)]


@frozen
class Node:
    """The table ``[node]`` of a cluster.

    Attributes
    ----------
    kind : str
        ``"nvswitch"``: every GPU on a switch; ``"nvlink-mesh"``, ``"xgmi-mesh"``: a link from each
        to each; ``"hypercube-mesh"``: the eight V100 of a DGX-1; ``"nvlink-pairs"``: bridges
        between GPUs 0 and 1, 2 and 3, …; ``"pcie"``: no fast links; ``"direct"``: GPUs are joined
        to the fabric themselves (a wafer, a torus).
    link_bandwidth : Quantity
        What one GPU can send over all its fast links together, one direction, usable. Not for
        ``"pcie"``.
    pcie_bandwidth : Quantity
        Of one PCIe connection, one direction, usable. Not for ``"direct"``.
    host_bandwidth : Quantity, optional
        Between a GPU and its CPU where that is not PCIe (NVLink-C2C).
    cpu : str
        Maker of the CPUs: ``"intel"``, ``"amd"``, ``"grace"``, ``"arm"``, ``"power"``.
    numa_nodes : int
        CPUs of a node, or of a tray; GPUs and NICs are spread over them evenly.
    cores, clock : Quantity, optional
        Cores of all CPUs of a node, or of a tray, and their base clock, where known.
    memory, memory_bandwidth : Quantity, optional
        Of the memory of all CPUs of a node, or of a tray, and of its channels together.
    socket_bandwidth : Quantity, optional
        Between two of the CPUs, one direction, usable. Needed where there are several.
    tray : int, optional
        GPUs that share CPUs, where those of a rack have one NVLink domain but many hosts.
    pcie_switches : int, optional
        In a node; by default one for two GPUs if NICs are reached through switches, else none.
    host_links : int, optional
        Links by which its GPUs, or those of a tray, copy to and from the CPUs' memory; by default
        one for each PCIe switch, and for each GPU where there is none.
    nics : int
        NICs of a node. 0: it is not connected, or is joined ``"direct"``.
    nic_bandwidth : Quantity, optional
        Line rate of one of them, one direction.
    nic_path : str
        What lies between a GPU and its nic, as ``nvidia-smi topo`` says: ``"pix"`` one PCIe
        switch, ``"pxb"`` several, ``"phb"`` the CPU, ``"sys"`` a connection between CPUs.
    gpudirect : bool
        Whether NICs read and write the memory of GPUs; otherwise data rests in the CPU's memory.
    pxn : bool
        Whether a GPU reaches the NIC of another rail over NVLink and that rail's GPU.
    link_latency, pcie_latency, nic_latency : Quantity, optional
        Of one hop; by default those of ``data/links.toml``.
    """

    kind: Literal[
        "nvswitch", "nvlink-mesh", "xgmi-mesh", "hypercube-mesh", "nvlink-pairs", "pcie", "direct"
    ]
    link_bandwidth: Quantity | None = None
    pcie_bandwidth: Quantity | None = None
    host_bandwidth: Quantity | None = None
    cpu: Literal["intel", "amd", "grace", "arm", "power"] = "intel"
    numa_nodes: Count = 1
    cores: Quantity | None = None
    clock: Quantity | None = None
    memory: Quantity | None = None
    memory_bandwidth: Quantity | None = None
    socket_bandwidth: Quantity | None = None
    tray: Count | None = None
    pcie_switches: Annotated[int, Limits(least=0)] | None = None
    host_links: Count | None = None
    nics: Annotated[int, Limits(least=0)] = 0
    nic_bandwidth: Quantity | None = None
    nic_path: Literal["pix", "pxb", "phb", "sys"] = "pxb"
    gpudirect: bool = True
    pxn: bool = True
    link_latency: Quantity | None = None
    pcie_latency: Quantity | None = None
    nic_latency: Quantity | None = None

    def __post_init__(self) -> None:
        needs = {
            "link_bandwidth": self.kind != "pcie",
            "pcie_bandwidth": self.kind != "direct",
            "nic_bandwidth": self.nics > 0,
        }
        for key, needed in needs.items():
            if needed != (getattr(self, key) is not None):
                what = f"kind = {self.kind!r}" if key != "nic_bandwidth" else f"nics = {self.nics}"
                verb, must = ("missing", "must be") if needed else ("given", "must not be")
                raise InputError(f"{key!r} is {verb}; with {what} it {must}")
        if self.kind == "direct" and self.nics:
            raise InputError(f"'nics' is {self.nics}; GPUs that are joined directly have none")
        if self.tray is not None and self.kind != "nvswitch":
            raise InputError(f"'tray' is {self.tray}; only GPUs behind an NVSwitch can be in trays")
        if self.numa_nodes > 1 and self.socket_bandwidth is None:
            raise InputError(f"'socket_bandwidth' is missing; there are {self.numa_nodes} CPUs")
        if self.nic_path == "sys" and self.nics and self.numa_nodes < 2:
            raise InputError("'nic_path' is 'sys', between CPUs; 'numa_nodes' must be 2 or more")
        for key in ("link", "pcie", "host", "socket", "nic"):
            number = getattr(self, f"{key}_bandwidth")
            if number is not None and not number.value:
                raise InputError(f"'{key}_bandwidth' is 0; it must be above 0")
        for key in ("cores", "clock", "memory", "memory_bandwidth"):
            number = getattr(self, key)
            if number is not None and not number.value:
                raise InputError(f"{key!r} is 0; it must be above 0")

    def switches(self, gpus: int) -> int:
        """GPUs of a node → PCIe switches between them and the CPUs, of the node or of a tray."""
        if self.pcie_switches is not None:
            return self.pcie_switches
        tray = self.tray or gpus
        nics = min(self.nics, gpus) // (gpus // tray)
        return -(-tray // 2) if nics and self.nic_path in ("pix", "pxb") else 0

    def host_sharers(self, gpus: int) -> int:
        """GPUs of a node → number of them that share a link to the CPUs' memory."""
        # A Grace's GPUs have NVLink-C2C to it; switches are between them and the NICs alone.
        own = self.host_bandwidth is not None or self.cpu == "grace"
        links = self.host_links or (0 if own else self.switches(gpus))
        return -(-(self.tray or gpus) // links) if links else 1


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


def hop_latency(kind: str, own: Quantity | None = None) -> float:
    """Return the latency of a hop in seconds: `own`, or that of ``data/links.toml``.

    Parameters
    ----------
    kind : {"link", "pcie", "socket", "nic", "switch"}
        A table of ``data/links.toml``.
    own : Quantity, optional
        What a file says instead, a time.
    """
    if own is None:
        own = build(Quantity, packaged("links.toml")[kind]["latency"], "links.toml", kind)
    return own.si


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
    """Add CPUs, PCIe switches and NICs; return parents in the tree, ports, nearest ports."""
    assert node.pcie_bandwidth is not None
    pcie, latency = node.pcie_bandwidth.si, hop_latency("pcie", node.pcie_latency)
    tray = node.tray or gpus
    trays = gpus // tray
    nics_of_tray = min(node.nics, gpus) // trays  # ports of a tray
    switches = node.switches(gpus)
    above: dict[int, int] = {}
    ports: list[int] = []
    nearest = np.zeros(gpus, np.int64)

    def attach(lower: int, upper: int, lanes: float = 1.0) -> None:
        builder.connect(lower, upper, pcie * lanes, latency, LinkKind.PCIE)
        above[lower] = upper

    for t in range(trays):
        mark = f"tray{t}." if trays > 1 else ""
        cpus = [builder.add_node(NodeKind.CPU, f"{mark}cpu{k}") for k in range(node.numa_nodes)]
        for k, one in enumerate(cpus):
            for other in cpus[k + 1 :]:
                assert node.socket_bandwidth is not None
                builder.connect(
                    one, other, node.socket_bandwidth.si, hop_latency("socket"), LinkKind.SOCKET
                )
        tops = cpus
        if switches:
            tops = [builder.add_node(NodeKind.PCIE, f"{mark}pcie{k}") for k in range(switches)]
            for k, switch in enumerate(tops):
                attach(switch, cpus[k * len(cpus) // switches])
        for j in range(tray):
            gpu, top = t * tray + j, tops[j * len(tops) // tray]
            if node.host_bandwidth is not None and not switches:
                builder.connect(gpu, top, node.host_bandwidth.si, latency, LinkKind.HOST)
                above[gpu] = top
            else:
                attach(gpu, top)
            nearest[gpu] = t * nics_of_tray + j * nics_of_tray // tray
        bridges: dict[int, int] = {}
        for k in range(nics_of_tray):
            nic = builder.add_node(NodeKind.NIC, f"nic{t * nics_of_tray + k}")
            ports.append(nic)
            gpu = t * tray + -(-k * tray // nics_of_tray)  # the first at this NIC
            lanes = node.nics / min(node.nics, gpus)
            if node.nic_path == "sys":
                attach(nic, cpus[(k * len(cpus) // nics_of_tray + 1) % len(cpus)], lanes)
            elif node.nic_path == "phb" or not switches:
                attach(nic, cpus[k * len(cpus) // nics_of_tray], lanes)
            elif node.nic_path == "pix":
                attach(nic, above[gpu], lanes)
            else:
                top = above[gpu]
                if top not in bridges:
                    name = builder.names[top].replace("pcie", "bridge")
                    bridges[top] = builder.add_node(NodeKind.PCIE, name)
                    below = max(1, nics_of_tray // len(tops))
                    attach(bridges[top], top, lanes * below)
                attach(nic, bridges[top], lanes)
    return above, np.array(ports, np.int64), nearest


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
