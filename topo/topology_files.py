"""Topologies from files: lists of nodes and links in TOML, or a graph in GraphML."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpisim.base.errors import InputError, nearest
from mpisim.base.files import reason
from mpisim.base.frozen import frozen
from mpisim.base.presets import SUFFIX, load_file
from mpisim.base.schema import build

from .nodes import hop_latency
from .routes import ShortestTimeRoutes
from .topology import LinkKind, NodeKind, Topology, check_connected
from .units import parse_bandwidth, parse_latency

__all__ = ["GRAPHML", "is_topology_file", "read_topology"]

GRAPHML = ".graphml"


@frozen
class NodeEntry:
    """An entry of ``[[nodes]]``.

    Attributes
    ----------
    name : str
        Unique.
    kind : str
        What it is.
    rank : int, optional
        Of a GPU: the rank that runs on it. By default GPUs are numbered in the order of the file.
    """

    name: str
    kind: Literal["gpu", "nvswitch", "pcie", "cpu", "nic", "switch"]
    rank: int | None = None


@frozen
class LinkEntry:
    """An entry of ``[[links]]``.

    Attributes
    ----------
    ends : tuple of str
        Two names of nodes; the link leads from the first to the second.
    bandwidth : str
        In one direction, with a unit: ``"25 GB/s"``, ``"400 Gb/s"``.
    latency : str, optional
        ``"1.5 us"``; by default that of its kind in ``data/links.toml``.
    one_way : bool
        Whether there is no link back; otherwise that is the same.
    name : str, optional
        By default ``FIRST->SECOND``. The link back is called ``NAME.back`` if there is a name.
    kind : str, optional
        What it is; by default what its ends suggest.
    """

    ends: tuple[str, ...]
    bandwidth: Any
    latency: Any = None
    one_way: bool = False
    name: str | None = None
    kind: str | None = None


@frozen
class TomlLink:
    """`LinkEntry` as TOML has it, where amounts are texts."""

    ends: tuple[str, ...]
    bandwidth: str
    latency: str | None = None
    one_way: bool = False
    name: str | None = None
    kind: Literal["nvlink", "pcie", "host", "socket", "nic", "fabric"] | None = None


@frozen
class TopologyFile:
    """A TOML file with a topology."""

    nodes: tuple[NodeEntry, ...]
    links: tuple[TomlLink, ...]
    title: str = ""


_LATENCY = {
    LinkKind.NVLINK: "link",
    LinkKind.PCIE: "pcie",
    LinkKind.HOST: "pcie",
    LinkKind.SOCKET: "socket",
    LinkKind.NIC: "nic",
    LinkKind.FABRIC: "switch",
}


def is_topology_file(path: str | Path) -> bool:
    """Whether a file lists nodes and links; otherwise it describes a cluster."""
    if str(path).endswith(GRAPHML):
        return True
    return str(path).endswith(SUFFIX) and "links" in load_file(Path(path))


def read_topology(path: str | Path) -> Topology:
    """Read a topology from a file.

    Parameters
    ----------
    path : str or Path
        A ``.toml`` file with ``[[nodes]]`` and ``[[links]]``, or a ``.graphml`` file whose nodes
        have ``kind`` (and ``rank``) and whose edges ``bandwidth`` (``latency``, ``name``,
        ``kind``); edges of an undirected graph are links in both directions.

    Returns
    -------
    Topology
        Routes are the fastest for a message of 1 MiB.

    Raises
    ------
    InputError
        If it cannot be read or understood, names are used twice, or GPUs cannot reach one another.
    """
    source = str(path)
    if source.endswith(GRAPHML):
        return _build(source, *_read_graphml(source))
    table = load_file(Path(path))
    found = build(TopologyFile, table, source)
    links = [LinkEntry(**vars(each)) for each in found.links]
    return _build(source, found.title, list(found.nodes), links)


def _read_graphml(source: str) -> tuple[str, list[NodeEntry], list[LinkEntry]]:
    import networkx

    try:
        with warnings.catch_warnings(action="ignore"):  # of keys without a type, which are texts
            graph = networkx.read_graphml(source, force_multigraph=True)
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {reason(error)}") from error
    except Exception as error:  # of the parser, of networkx, of values of a wrong type
        text = " ".join(str(error).split())
        raise InputError(f"{source}: not valid GraphML: {text}") from error
    nodes = []
    for name, data in graph.nodes(data=True):
        entry = _known_attributes(data, ("kind", "rank")) | {"name": str(name)}
        nodes.append(build(NodeEntry, entry, source, f"node {name!r}"))
    links = []
    for a, b, data in graph.edges(data=True):
        if "bandwidth" not in data:
            raise InputError(f"{source}: the edge from {a!r} to {b!r} has no 'bandwidth'")
        kind = data.get("kind")
        if kind is not None and str(kind).upper() not in LinkKind.__members__:
            allowed = [each.name.lower() for each in LinkKind]
            raise InputError(
                f"{source}: the edge from {a!r} to {b!r} has the kind {kind!r}"
                f"{nearest(str(kind), allowed)}; allowed: {', '.join(allowed)}"
            )
        name = data.get("name")
        links.append(
            LinkEntry(
                (str(a), str(b)),
                one_way=graph.is_directed(),
                kind=kind and str(kind),
                name=None if name is None else str(name),
                **_known_attributes(data, ("bandwidth", "latency")),
            )
        )
    return str(graph.graph.get("title", "")), nodes, links


def _known_attributes(data: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the attributes that mean something here; GraphML files often have others."""
    return {key: data[key] for key in keys if key in data}


def _build(source: str, title: str, nodes: list[NodeEntry], links: list[LinkEntry]) -> Topology:
    names = [node.name for node in nodes]
    _check_unique(source, "nodes", names)
    number = {name: i for i, name in enumerate(names)}
    kinds = [NodeKind[node.kind.upper()] for node in nodes]
    ends: list[tuple[int, int]] = []
    rows: list[tuple[float, float, LinkKind]] = []
    labels: dict[int, str] = {}
    for i, link in enumerate(links):
        where = f"{source}: link {link.name or i}"
        if len(link.ends) != 2:
            raise InputError(f"{where}: 'ends' has {len(link.ends)} names; it must have 2")
        for end in link.ends:
            if end not in number:
                near = nearest(end, names)
                raise InputError(f"{where}: there is no node {end!r}{near}")
        a, b = (number[end] for end in link.ends)
        if a == b:
            raise InputError(f"{where}: both ends are {link.ends[0]!r}")
        where = f"{source}: link {link.name or '->'.join(link.ends)}"
        kind = LinkKind[link.kind.upper()] if link.kind else _default_kind(kinds[a], kinds[b])
        speed_of = parse_bandwidth(link.bandwidth, f"{where}: 'bandwidth'")
        given = None
        if link.latency is not None:
            given = parse_latency(link.latency, f"{where}: 'latency'")
        ways = [(a, b, "")] if link.one_way else [(a, b, ""), (b, a, ".back")]
        for one, other, mark in ways:
            if link.name:
                labels[len(ends)] = link.name + mark
            ends.append((one, other))
            time = _default_latency(kind, kinds[other]) if given is None else given
            rows.append((speed_of, time, kind))
    gpu = _gpu_nodes(source, nodes)
    pairs = np.array(ends, np.int32).reshape(-1, 2)
    speed = np.array([row[0] for row in rows], float)
    time_ = np.array([row[1] for row in rows], float)
    found = Topology(
        title=title or Path(source).stem,
        gpu=gpu,
        names=names,
        node_kind=np.array(kinds, np.uint8),
        source=pairs[:, 0],
        target=pairs[:, 1],
        bandwidth=speed,
        nominal=_nominal(speed, np.array(kinds), pairs),
        latency=time_,
        kind=np.array([row[2] for row in rows], np.uint8),
        share=np.ones(len(rows)),
        max_inflow=np.full(len(rows), np.inf),
        paths=ShortestTimeRoutes(names, gpu, pairs[:, 0], pairs[:, 1], speed, time_),
        nics=kinds.count(NodeKind.NIC),
        labels=labels,
        tour=_tour(gpu, pairs, len(names)),
    )
    _check_unique(source, "links", found.link_names)
    try:
        check_connected(found)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    return found


def _default_latency(kind: LinkKind, into: NodeKind) -> float:
    """Return a link's default latency in seconds; from a NIC into a switch, that of both."""
    found = hop_latency(_LATENCY[kind])
    if kind is LinkKind.NIC and into is NodeKind.SWITCH:
        found += hop_latency("switch")
    return found


def _nominal(
    speed: np.ndarray[Any, np.dtype[np.float64]],
    kinds: np.ndarray[Any, np.dtype[np.int64]],
    pairs: np.ndarray[Any, np.dtype[np.int32]],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return bandwidths with slow links raised to that of most links between such ends."""
    found = speed.copy()
    ends = kinds[pairs[:, 0]] * len(NodeKind) + kinds[pairs[:, 1]]
    for each in np.unique(ends):
        same_ends = ends == each
        values, counts = np.unique(speed[same_ends], return_counts=True)
        found[same_ends] = np.maximum(speed[same_ends], values[np.argmax(counts)])
    return found


def _tour(
    gpu: np.ndarray[Any, np.dtype[np.int64]], pairs: np.ndarray[Any, np.dtype[np.int32]], n: int
) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return each GPU's position in a depth-first search from the first, or None if ascending.

    In a tree its hops pass every link once in each direction, and round a ring too.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import depth_first_order

    joined = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    order = depth_first_order(joined, int(gpu[0]), return_predecessors=False)
    order_of = np.full(
        n, n, np.int64
    )  # nodes that nothing leads to are refused by `check_connected`
    order_of[order] = np.arange(len(order))
    place = order_of[gpu]
    return None if (np.diff(place) > 0).all() else np.argsort(np.argsort(place, kind="stable"))


def _check_unique(source: str, what: str, names: list[str]) -> None:
    name, times = Counter(names).most_common(1)[0] if names else ("", 1)
    if times > 1:
        hint = "; give parallel links a 'name' each" if what == "links" else ""
        raise InputError(f"{source}: {times} {what} are called {name!r}{hint}")


def _gpu_nodes(source: str, nodes: list[NodeEntry]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the node of each rank."""
    for node in nodes:
        if node.rank is not None and node.kind != "gpu":
            raise InputError(
                f"{source}: node {node.name!r} has a rank, {node.rank}, but is a {node.kind}"
            )
    gpus = [(i, node) for i, node in enumerate(nodes) if node.kind == "gpu"]
    if not gpus:
        raise InputError(f"{source}: there is no node of kind 'gpu'")
    given = [(node.rank, i, node.name) for i, node in gpus if node.rank is not None]
    if not given:
        return np.array([i for i, _ in gpus], np.int64)
    if len(given) < len(gpus):
        name = next(node.name for _, node in gpus if node.rank is None)
        raise InputError(f"{source}: GPU {name!r} has no 'rank', but others have; all or none must")
    given.sort()
    for (rank, _, name), (after, _, other) in pairwise(given):
        if rank == after:
            raise InputError(f"{source}: GPUs {name!r} and {other!r} both have rank {rank}")
    ranks = [rank for rank, _, _ in given]
    if ranks != list(range(len(gpus))):
        wrong = next(rank for i, rank in enumerate(ranks) if rank != i)
        raise InputError(
            f"{source}: there is a rank {wrong}, but {len(gpus)} GPUs have the ranks 0 to "
            f"{len(gpus) - 1}"
        )
    return np.array([i for _, i, _ in given], np.int64)


def _default_kind(a: NodeKind, b: NodeKind) -> LinkKind:
    """Return the default kind of a link between two kinds of nodes."""
    ends = {a, b}
    if ends <= {NodeKind.GPU, NodeKind.NVSWITCH}:
        return LinkKind.NVLINK
    if ends == {NodeKind.CPU}:
        return LinkKind.SOCKET
    if NodeKind.SWITCH in ends:
        return LinkKind.NIC if ends & {NodeKind.NIC, NodeKind.GPU} else LinkKind.FABRIC
    return LinkKind.FABRIC if ends == {NodeKind.NIC} else LinkKind.PCIE
