"""Formulas of NCCL's tuner (src/graph/tuning.cc): algorithm, protocol → latency, bandwidth.

The same formulas serve twice: with the speeds of NCCL's search they say what NCCL expects, and
choose; with those of the links they say what to expect of it (:mod:`.candidates`).
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from mpisim.base.kinds import Operation

from .channels import ChannelGraph
from .constants import LL, LL128, SIMPLE, LatencyConstants, NcclConstants
from .link_bandwidths import LinkBandwidths
from .settings import Settings
from .shape import Shape
from .system import System

__all__ = ["TunerLatency", "ring_steps", "step_latency", "tuner_bandwidth", "tuner_latency"]

_GATHER_SCATTER = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)

_CHAIN_OPERATIONS = (Operation.BROADCAST, Operation.REDUCE)


class TunerLatency(NamedTuple):
    """Seconds, by where they are spent.

    Attributes
    ----------
    inside : float
        Starting, and steps inside nodes.
    across : float
        Steps between nodes.
    crossings : int
        Steps between nodes that a tree takes one after the other; 1 for all that is no tree.
    """

    inside: float
    across: float
    crossings: int = 1


def ring_steps(operation: Operation, ranks: int) -> int:
    """Operation, ranks → steps in which a ring passes a part on.

    Parameters
    ----------
    operation : Operation
    ranks : int
        Of the group, at least 1.
    """
    if operation is Operation.ALL_REDUCE:
        return 2 * (ranks - 1)
    return ranks - 1 if operation in _GATHER_SCATTER else ranks


class StepLatency(NamedTuple):
    """Latency of one step of an algorithm, in seconds."""

    inside: float
    across: float
    post: float


def step_latency(
    algorithm: str,
    protocol: int,
    system: System,
    settings: Settings,
    shape: Shape,
    found: LinkBandwidths,
    constants: LatencyConstants,
) -> StepLatency:
    """Algorithm, protocol → latencies of its steps.

    A Simple message waits for the NIC twice, the second time until its data is flushed to the GPU,
    and costs the CPU three posts. A node with one rank receives and sends at the same GPU, as
    inner nodes of trees do.

    Parameters
    ----------
    algorithm : str
        One of `ALGORITHMS`.
    protocol : int
        Index in `PROTOCOLS`.
    system : System
        With the latency of its NICs and the vendor of its CPUs.
    settings : Settings
        May set the time of a post.
    shape : Shape
        Of the group.
    found : LinkBandwidths
        Of which only counts whether links are fast.
    constants : LatencyConstants

    Returns
    -------
    StepLatency
        In seconds; the post is 0 on one node.
    """
    inside = constants.hop["nvlink" if found.fast else "pcie"][algorithm][protocol]
    network = constants.hop["network"]
    alone = algorithm == "ring" and shape.mean == 1
    across = network["tree" if alone else algorithm][protocol]
    across += system.nic_latency * (2 if protocol == SIMPLE else 1)
    post = 0.0
    if shape.nodes > 1:
        post = constants.post.get(system.cpu, constants.post["other"])
        if settings.net_overhead is not None:
            post = settings.net_overhead * 1e-9
        if protocol == SIMPLE:
            post *= 3
    return StepLatency(inside, across, post)


def tuner_latency(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    step: StepLatency,
    same_channels: bool,
    constants: LatencyConstants,
) -> TunerLatency:
    """Operation, algorithm, protocol → the latency that NCCL's tuner takes for it.

    Parameters
    ----------
    operation : Operation
    algorithm : str
    protocol : int
    shape : Shape
    step : StepLatency
    same_channels : bool
        Whether all channels visit the GPUs in one order.
    constants : LatencyConstants
    """
    ranks, nodes = shape.ranks, shape.nodes
    base = constants.base[algorithm][protocol]
    per_node = ranks // nodes
    depth = int(log2(nodes))
    several = nodes > 1
    if algorithm == "ring":
        count = ring_steps(operation, ranks)
        if operation in _CHAIN_OPERATIONS:
            times = 1 if same_channels else count
            return (
                TunerLatency(base, times * step.across)
                if several
                else TunerLatency(base + times * step.inside, 0.0)
            )
        crossings = (2 if operation is Operation.ALL_REDUCE else 1) * (nodes - 1)
        inside = max(step.inside, step.post)
        return TunerLatency(base + (count - crossings) * inside, crossings * step.across)
    if algorithm == "tree":
        crossings = 2 * depth
        inside = base + 2 * (per_node - 1) * step.inside
        return TunerLatency(inside, crossings * step.across, max(1, crossings))
    if algorithm == "collnet-direct":
        arity = constants.growing["collnet-direct"] * (per_node - 1)
        return TunerLatency(base + 2 * (min(1, per_node - 1) * step.inside + arity), step.across)
    if algorithm == "collnet-chain":
        return TunerLatency(base + 2 * (per_node - 1) * step.inside, step.across)
    if algorithm == "nvls":
        return TunerLatency(step.inside, step.across if several else 0.0)
    if algorithm == "nvls-tree":
        return TunerLatency(base + step.inside, 2 * depth * step.across)
    assert algorithm == "pat"
    growing = constants.growing
    across = depth * step.across / growing["pat-overlap"]
    return TunerLatency(base + growing["pat"] * ranks, across)


def nodes_column(shape: Shape) -> int:
    """Shape of a group → its column in tables by nodes: one, two, more."""
    return min(shape.nodes, 3) - 1


def tuner_bandwidth(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    graphs: dict[str, ChannelGraph],
    system: System,
    constants: NcclConstants,
    caps: float = 1.0,
) -> float:
    """Operation, algorithm, protocol → bytes/s of the full buffer; 0: it cannot run.

    Parameters
    ----------
    graphs : dict of str to ChannelGraph
        Speeds of the search, or of the wires.
    caps : float
        Factor of the highest bandwidths of the constants.
    """
    ranks = shape.ranks
    ring_share = ranks / ring_steps(operation, ranks)
    if algorithm == "ring":
        graph = graphs["ring"]
        bus = graph.channels * (graph.inside if shape.nodes <= 2 else graph.across)
        return (
            _ring_bandwidth(bus, graph.channels, protocol, shape, system, constants, caps)
            * ring_share
        )
    if algorithm == "tree":
        graph = graphs["tree"]
        bus = graph.channels * (graph.inside if shape.nodes <= 2 else graph.across)
        return _tree_bandwidth(bus, graph.channels, protocol, shape, system, constants, caps) / 2
    if protocol != SIMPLE:
        return 0.0
    if algorithm == "nvls":
        return _nvls_bandwidth(operation, shape, graphs["nvls"], constants) * ring_share
    if algorithm == "nvls-tree":
        return _nvls_tree_bandwidth(shape, graphs["nvls"], constants, caps) * ring_share
    graph = graphs["ring"]
    bus = graph.channels * graph.inside
    if algorithm == "pat":
        bus = graph.channels * (graph.inside if shape.nodes <= 2 else graph.across)
        return bus * constants.shares["pat"]
    if algorithm == "collnet-direct":
        if operation in _GATHER_SCATTER:
            across = constants.shares["collnet-direct-across"] * graph.across
            return shape.mean * min(graph.inside, across)
        # Fewer NICs than GPUs: half of what that costs is hidden.
        share = shape.mean / graph.channels
        bus /= share - (share - 1) / 2
        if constants.generation >= 90:
            bus *= constants.shares["collnet-direct"]
    return bus / 2


def max_ll_bandwidth(shape: Shape, system: System, constants: NcclConstants) -> float:
    """Shape, system → highest bandwidth of LL, which spends half of what it moves on flags.

    Parameters
    ----------
    shape : Shape
        Of the group.
    system : System
        With the vendor of its CPUs, which decides on several nodes.
    constants : NcclConstants

    Returns
    -------
    float
        Bytes per second.
    """
    if shape.nodes == 1:
        return constants.caps["ll"][0]
    by_cpu = constants.ll_cap_across
    return by_cpu.get(system.cpu, by_cpu["other"])[nodes_column(shape)]


def _ring_bandwidth(
    bus: float,
    channels: int,
    protocol: int,
    shape: Shape,
    system: System,
    constants: NcclConstants,
    caps: float,
) -> float:
    most = channels * caps
    if protocol == LL:
        return min(caps * max_ll_bandwidth(shape, system, constants), bus / 2)
    if protocol == LL128:
        cap = most * constants.caps["ring-ll128"][nodes_column(shape)]
        return min(constants.shares["ring-ll128"] * bus, cap)
    return bus


def _tree_bandwidth(
    bus: float,
    channels: int,
    protocol: int,
    shape: Shape,
    system: System,
    constants: NcclConstants,
    caps: float,
) -> float:
    most, shares = channels * caps, constants.shares
    bus = min(shares["tree"] * bus, most * constants.caps["tree"][nodes_column(shape)])
    if protocol == LL:
        return min(
            bus / shares["tree-ll-divisor"], caps * max_ll_bandwidth(shape, system, constants)
        )
    if protocol == LL128:
        share = shares["tree-ll128"][nodes_column(shape)]
        return min(bus * share, most * constants.caps["tree-ll128"][nodes_column(shape)])
    return bus


def _nvls_bandwidth(
    operation: Operation, shape: Shape, graph: ChannelGraph, constants: NcclConstants
) -> float:
    """NVLS: the switch reduces what it reads from all, and multicasts what it writes."""
    heads = graph.channels
    share = constants.multicast * (heads - 1) / heads
    if operation is Operation.ALL_REDUCE:
        inside = graph.inside * share * 2
    else:
        inside = graph.inside * constants.multicast * (shape.mean - 1) / shape.mean
    return heads * (inside if shape.nodes == 1 else min(inside, graph.across))


def _nvls_tree_bandwidth(
    shape: Shape, graph: ChannelGraph, constants: NcclConstants, caps: float
) -> float:
    heads = graph.channels
    inside = 2 * graph.inside * constants.multicast * (heads - 1) / heads
    across = graph.across * (2 if shape.nodes <= 2 else 1)
    return heads * min(inside, across, caps * constants.caps["nvls-tree"][nodes_column(shape)])
