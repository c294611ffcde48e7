"""One node as a small graph: wired once, then repeated for every node of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

from ..topology import LinkKind, NodeKind
from .node import Node
from .wiring import Wiring

__all__ = ["Box", "build_box", "hop_latency"]

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


@dataclass(frozen=True, eq=False)
class Box:
    """A node's graph and the ways through it. GPUs are its nodes 0 to g - 1.

    A port is where the fabric begins: the cards of a GPU, or those that several share, taken
    together; of a node without cards the GPU.

    Attributes
    ----------
    wiring : Wiring
        The graph.
    ports : int64, shape (r,)
        The node of each port.
    inside : int64, shape (g, g, h)
        Links from GPU to GPU, padded with -1 anywhere.
    port : int64, shape (g, g)
        The port by which a GPU here reaches a GPU of the same position in another node.
    out : int64, shape (g, r, h)
        Links from a GPU to a port.
    into : int64, shape (g, h)
        Links to a GPU from its own port.
    nearest : int64, shape (g,)
        The own port of a GPU.
    """

    wiring: Wiring
    ports: NDArray[np.int64]
    inside: NDArray[np.int64]
    port: NDArray[np.int64]
    out: NDArray[np.int64]
    into: NDArray[np.int64]
    nearest: NDArray[np.int64]


def hop_latency(kind: str, own: Quantity | None = None) -> float:
    """Return the latency of a hop in seconds: `own`, or that of ``data/links.toml``."""
    if own is None:
        own = build(Quantity, packaged("links.toml")[kind]["latency"], "links.toml", kind)
    return own.si


def build_box(node: Node, gpus: int) -> Box:
    """Wire a node.

    Parameters
    ----------
    node : Node
    gpus : int
        How many it has.
    """
    wiring = Wiring()
    for i in range(gpus):
        wiring.add(NodeKind.GPU, f"gpu{i}")
    _join_fast(wiring, node, gpus)
    if node.kind == "direct":
        everyone = np.arange(gpus)
        empty = np.empty((gpus, gpus, 0), np.int64)
        return Box(
            wiring,
            everyone,
            empty,
            np.tile(everyone[:, None], gpus),
            empty,
            np.empty((gpus, 0), np.int64),
            everyone,
        )
    above, ports, nearest = _join_hosts(wiring, node, gpus)
    inside = _inside(wiring, node, gpus, above)
    if not len(ports):
        return Box(
            wiring,
            ports,
            inside,
            np.zeros((gpus, gpus), np.int64),
            np.empty((gpus, 0, 0), np.int64),
            np.empty((gpus, 0), np.int64),
            nearest,
        )
    first = np.searchsorted(nearest, np.arange(len(ports)))  # of the GPUs at each port
    fast = wiring.adjacency(gpus) if node.pxn else np.zeros((gpus, gpus), bool)
    # Over NVLink to the GPU at the receiver's rail, if there is a way (NCCL's PXN).
    own = nearest[:, None] == np.arange(len(ports))[None, :]
    via = np.where(own, np.arange(gpus)[:, None], first[None, :])
    reachable = own | fast[np.arange(gpus)[:, None], via]
    port = np.where(reachable[:, nearest], nearest[None, :], nearest[:, None])

    ways = [_tree(wiring, above, i, int(ports[nearest[i]]), node) for i in range(gpus)]
    up = _padded([wiring.path(way) for way in ways])
    into = _padded([wiring.path(way[::-1]) for way in ways])
    out = np.concatenate([inside[np.arange(gpus)[:, None], via], up[via]], axis=2)
    return Box(wiring, ports, inside, port, out, into, nearest)


def _join_fast(wiring: Wiring, node: Node, gpus: int) -> None:
    """Add NVLink or xGMI."""
    if node.link_bandwidth is None or node.kind == "direct":
        return
    bandwidth = node.link_bandwidth.si
    latency = hop_latency("link", node.link_latency)
    if node.kind == "nvswitch":
        switch = wiring.add(NodeKind.NVSWITCH, "nvswitch")
        pairs = [(i, switch, 1.0) for i in range(gpus)]
    elif node.kind == "hypercube-mesh":
        pairs = [(i, j, width / _HYPERCUBE_LINKS) for i, j, width in _HYPERCUBE]
    elif node.kind == "nvlink-pairs":
        pairs = [(i, i + 1, 1.0) for i in range(0, gpus - 1, 2)]
    else:
        pairs = [(i, j, 1 / (gpus - 1)) for i in range(gpus) for j in range(i + 1, gpus)]
    for i, j, part in pairs:
        wiring.join(i, j, bandwidth * part, latency, LinkKind.NVLINK)


def _join_hosts(
    wiring: Wiring, node: Node, gpus: int
) -> tuple[dict[int, int], NDArray[np.int64], NDArray[np.int64]]:
    """Add CPUs, PCIe switches and cards; return what is above each, the ports, the nearest."""
    assert node.pcie_bandwidth is not None
    pcie, latency = node.pcie_bandwidth.si, hop_latency("pcie", node.pcie_latency)
    tray = node.tray or gpus
    trays = gpus // tray
    cards = min(node.nics, gpus) // trays  # ports of a tray
    switched = cards > 0 and node.nic_path in ("pix", "pxb")
    switches = (
        (-(-tray // 2) if switched else 0) if node.pcie_switches is None else (node.pcie_switches)
    )
    above: dict[int, int] = {}
    ports: list[int] = []
    nearest = np.zeros(gpus, np.int64)

    def attach(lower: int, upper: int, lanes: float = 1.0) -> None:
        wiring.join(lower, upper, pcie * lanes, latency, LinkKind.PCIE)
        above[lower] = upper

    for t in range(trays):
        mark = f"tray{t}." if trays > 1 else ""
        cpus = [wiring.add(NodeKind.CPU, f"{mark}cpu{k}") for k in range(node.numa_nodes)]
        for k, one in enumerate(cpus):
            for other in cpus[k + 1 :]:
                assert node.socket_bandwidth is not None
                wiring.join(
                    one, other, node.socket_bandwidth.si, hop_latency("socket"), LinkKind.SOCKET
                )
        tops = cpus
        if switches:
            tops = [wiring.add(NodeKind.PCIE, f"{mark}pcie{k}") for k in range(switches)]
            for k, switch in enumerate(tops):
                attach(switch, cpus[k * len(cpus) // switches])
        for j in range(tray):
            gpu, top = t * tray + j, tops[j * len(tops) // tray]
            if node.host_bandwidth is not None and not switches:
                wiring.join(gpu, top, node.host_bandwidth.si, latency, LinkKind.HOST)
                above[gpu] = top
            else:
                attach(gpu, top)
            nearest[gpu] = t * cards + j * cards // tray
        bridges: dict[int, int] = {}
        for k in range(cards):
            card = wiring.add(NodeKind.NIC, f"nic{t * cards + k}")
            ports.append(card)
            gpu = t * tray + -(-k * tray // cards)  # the first at this card
            lanes = node.nics / min(node.nics, gpus)
            if node.nic_path == "sys":
                attach(card, cpus[(k * len(cpus) // cards + 1) % len(cpus)], lanes)
            elif node.nic_path == "phb" or not switches:
                attach(card, cpus[k * len(cpus) // cards], lanes)
            elif node.nic_path == "pix":
                attach(card, above[gpu], lanes)
            else:
                top = above[gpu]
                if top not in bridges:
                    name = wiring.names[top].replace("pcie", "bridge")
                    bridges[top] = wiring.add(NodeKind.PCIE, name)
                    below = max(1, cards // len(tops))
                    attach(bridges[top], top, lanes * below)
                attach(card, bridges[top], lanes)
    return above, np.array(ports, np.int64), nearest


def _tree(wiring: Wiring, above: dict[int, int], a: int, b: int, node: Node) -> list[int]:
    """Return the nodes from a to b up and down the PCIe tree, across CPUs where needed."""
    up, down = _chain(above, a), _chain(above, b)
    if node.gpudirect or wiring.kinds[b] != NodeKind.NIC:
        shared = [each for each in up if each in down]
        if shared:  # turn where the ways meet first
            return up[: up.index(shared[0]) + 1] + down[: down.index(shared[0])][::-1]
    elif up[-1] == down[-1]:
        return up + down[:-1][::-1]
    return up + down[::-1]


def _chain(above: dict[int, int], node: int) -> list[int]:
    """Return a node and all above it; the last is its CPU."""
    chain = [node]
    while chain[-1] in above:
        chain.append(above[chain[-1]])
    return chain


def _inside(wiring: Wiring, node: Node, gpus: int, above: dict[int, int]) -> NDArray[np.int64]:
    """Return the links from each GPU to each, shape (g, g, h)."""
    if node.kind == "nvswitch":
        switch = wiring.names.index("nvswitch")
        up = np.array([wiring.at[i, switch] for i in range(gpus)])
        down = np.array([wiring.at[switch, i] for i in range(gpus)])
        found = np.stack(np.broadcast_arrays(up[:, None], down[None, :]), axis=2)
        found[np.arange(gpus), np.arange(gpus)] = -1
        return found
    ways = [
        wiring.path(_way(wiring, node, gpus, above, i, j)) if i != j else []
        for i in range(gpus)
        for j in range(gpus)
    ]
    padded = _padded(ways)
    return padded.reshape(gpus, gpus, padded.shape[1])


def _way(wiring: Wiring, node: Node, gpus: int, above: dict[int, int], i: int, j: int) -> list[int]:
    """Return the nodes from GPU i to GPU j."""
    if (i, j) in wiring.at:
        return [i, j]
    if node.kind == "hypercube-mesh":
        # NCCL goes through one GPU between, by the widest links.
        width = [
            min(wiring.width(i, k), wiring.width(k, j)) if k not in (i, j) else 0.0
            for k in range(gpus)
        ]
        return [i, int(np.argmax(width)), j]
    return _tree(wiring, above, i, j, node)


def _padded(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    found = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int64)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found
