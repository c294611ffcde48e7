"""The bandwidths of NCCL's tuner: payload per second once a communication flows.

The same formulas serve twice: with the speeds of NCCL's search they say what NCCL expects, and
choose; with those of the wires they say what to expect of it (:mod:`.model`).
"""

from __future__ import annotations

from mpisim.base.kinds import Operation

from .graph import Graph
from .latency import steps
from .shape import Shape
from .system import System
from .tables import LL, LL128, SIMPLE, Tables

__all__ = ["bandwidth", "column"]

_HALVES = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)

_LL128_SHARE = 0.92
_TREE_SHARE = 0.92
_PAT_SHARE = 0.75


def column(shape: Shape) -> int:
    """Return the column of tables by nodes: one, two, more."""
    return min(shape.nodes, 3) - 1


def bandwidth(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    graphs: dict[str, Graph],
    system: System,
    tables: Tables,
    caps: float = 1.0,
) -> float:
    """Return bytes per second of the full buffer; 0 where the algorithm cannot run.

    Parameters
    ----------
    graphs : dict of str to Graph
        Speeds of the search, or of the wires.
    caps : float
        Factor of the highest bandwidths of the tables.
    """
    ranks = shape.ranks
    ring_share = ranks / steps(operation, ranks)
    if algorithm == "ring":
        graph = graphs["ring"]
        bus = graph.channels * (graph.inside if shape.nodes <= 2 else graph.across)
        return _ring(bus, graph.channels, protocol, shape, system, tables, caps) * ring_share
    if algorithm == "tree":
        graph = graphs["tree"]
        bus = graph.channels * (graph.inside if shape.nodes <= 2 else graph.across)
        return _tree(bus, graph.channels, protocol, shape, system, tables, caps) / 2
    if protocol != SIMPLE:
        return 0.0
    if algorithm == "nvls":
        return _multicast(operation, shape, graphs["nvls"], tables) * ring_share
    if algorithm == "nvls-tree":
        return _multicast_tree(shape, graphs["nvls"], tables, caps) * ring_share
    graph = graphs["ring"]
    bus = graph.channels * graph.inside
    if algorithm == "pat":
        return graph.channels * (graph.inside if shape.nodes <= 2 else graph.across) * _PAT_SHARE
    if algorithm == "collnet-direct":
        if operation in _HALVES:
            return shape.mean * min(graph.inside, 0.9 * graph.across)
        # Fewer NICs than GPUs: half of what that costs is hidden.
        share = shape.mean / graph.channels
        bus /= share - (share - 1) / 2
        if tables.generation >= 90:
            bus *= 0.85
    return bus / 2


def ll_most(shape: Shape, system: System, tables: Tables) -> float:
    """Return the highest bandwidth of LL, which spends half of what it moves on flags."""
    if shape.nodes == 1:
        return tables.caps["ll"][0]
    by_cpu = tables.ll_cap_across
    return by_cpu.get(system.cpu, by_cpu["other"])[column(shape)]


def _ring(
    bus: float,
    channels: int,
    protocol: int,
    shape: Shape,
    system: System,
    tables: Tables,
    caps: float,
) -> float:
    most = channels * caps
    if protocol == LL:
        return min(caps * ll_most(shape, system, tables), bus / 2)
    if protocol == LL128:
        return min(_LL128_SHARE * bus, most * tables.caps["ring-ll128"][column(shape)])
    return bus


def _tree(
    bus: float,
    channels: int,
    protocol: int,
    shape: Shape,
    system: System,
    tables: Tables,
    caps: float,
) -> float:
    most = channels * caps
    bus = min(_TREE_SHARE * bus, most * tables.caps["tree"][column(shape)])
    if protocol == LL:
        return min(bus / 3.8, caps * ll_most(shape, system, tables))
    if protocol == LL128:
        share = 7 / 9 if shape.nodes == 1 else 120 / 128
        return min(bus * share, most * tables.caps["tree-ll128"][column(shape)])
    return bus


def _multicast(operation: Operation, shape: Shape, graph: Graph, tables: Tables) -> float:
    """NVLS: the switch reduces what it reads from all, and multicasts what it writes."""
    heads = graph.channels
    share = tables.multicast * (heads - 1) / heads
    if operation is Operation.ALL_REDUCE:
        inside = graph.inside * share * 2
    else:
        inside = graph.inside * tables.multicast * (shape.mean - 1) / shape.mean
    return heads * (inside if shape.nodes == 1 else min(inside, graph.across))


def _multicast_tree(shape: Shape, graph: Graph, tables: Tables, caps: float) -> float:
    heads = graph.channels
    inside = 2 * graph.inside * tables.multicast * (heads - 1) / heads
    across = graph.across * (2 if shape.nodes <= 2 else 1)
    return heads * min(inside, across, caps * tables.caps["nvls-tree"][column(shape)])
