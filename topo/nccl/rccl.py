"""RCCL's tuner: what it believes of AMD's GPUs, and the protocol that it takes by the size.

RCCL is NCCL with tables of its own (``data/rccl.toml``). Three things differ:

- Latencies, and the share of the links that a protocol reaches, are fits for each kind of GPU. A
  factor by size corrects trees, and rings on several nodes.
- Pairs that may run: no multicast, no LL128 before its versions, no trees with Simple in one node
  of newer GPUs, PAT only if asked for.
- On several nodes the fastest pair says the algorithm alone; the protocol follows from the size.

Besides, RCCL has a kernel of its own for all-reduce in a node, from each GPU to each, which runs at
some sizes whatever the tuner says.

Times to expect are made as NCCL's are (:mod:`.candidate`), with RCCL's latencies.

What RCCL takes for an all-reduce on two nodes of 8 MI300X with LL, LL128 and Simple, up to bytes:

>>> from .constants import PROTOCOLS
>>> two = Shape(ranks=16, nodes=2, max_per_node=8, min_per_node=8)
>>> for each in size_ranges(Operation.ALL_REDUCE, two, rccl_constants("gfx942", (2, 28))):
...     print(PROTOCOLS[each.protocol], each.above, each.most)
simple 0 inf
ll 0 524288
ll128 524288 4415057
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation
from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

from .constants import AMD, LL, LL128, SIMPLE, TWO_SHOT, in_version, nccl_constants, since
from .link_bandwidths import LinkBandwidths
from .shape import Shape
from .system import System
from .tuning import ring_steps

__all__ = [
    "RcclConstants",
    "SizeRange",
    "TwoShot",
    "rccl_arch",
    "rccl_bandwidth",
    "rccl_constants",
    "runs_two_shot",
    "size_ranges",
    "two_shot_bandwidth",
]

FILE = "rccl.toml"

_US = 1e-6

_GB = 1e9

_CHAIN_OPERATIONS = (Operation.BROADCAST, Operation.REDUCE)


class Latencies(NamedTuple):
    """Latencies as `NcclConstants` has them, in seconds."""

    base: Mapping[str, tuple[float, ...]]
    hop: Mapping[str, Mapping[str, tuple[float, ...]]]
    post: Mapping[str, float]
    growing: Mapping[str, float]


class TwoShot(NamedTuple):
    """RCCL's kernel for all-reduce in a node, from each GPU to each.

    Attributes
    ----------
    ranks : int
        Of the node.
    ranges : mapping of int to (int, int)
        By protocol: bytes from which and up to which it runs.
    share : float
        Of what the links move, with Simple.
    channels : int
    """

    ranks: int
    ranges: Mapping[int, tuple[int, int]]
    share: float
    channels: int


@frozen(eq=False)
class RcclConstants:
    """The constants that hold for one kind of GPU in one version, in seconds and bytes per second.

    Attributes
    ----------
    believed, times : Latencies
        By which RCCL chooses, and of which times are made.
    shares : tuple of mapping
        On up to two nodes, and on more: by algorithm, then protocol.
    correction : mapping of str to float64, shape (3, 27)
        Of the bandwidth of trees and rings, by protocol and size.
    links : float
        Of all links of a GPU of a whole node; 0: what they carry.
    ll128 : bool
        Whether LL128 may be chosen.
    tree_simple_inside : bool
        Whether trees of one node may run Simple.
    chain_ll : float
        Factor of the bandwidth of broadcast and reduce with LL on one node.
    ranges : mapping
        By operation: bytes above which, and up to which, LL and LL128 run on several nodes.
    more_nodes : float
        Factor of the highest of these of an all-reduce with LL128 on more than two nodes.
    inside : mapping
        By operation: bytes of a rank's part up to which LL runs on one node.
    two_shot : TwoShot, optional
    pipeline : mapping
        What pipelines lose: ``spread`` by algorithm, ``growth``, ``eager``, as ``[pipeline]`` of
        ``data/nccl.toml`` has them.
    """

    believed: Latencies
    times: Latencies
    shares: tuple[Mapping[str, tuple[float, ...]], ...]
    correction: Mapping[str, NDArray[np.float64]]
    links: float
    ll128: bool
    tree_simple_inside: bool
    chain_ll: float
    ranges: Mapping[Operation, tuple[tuple[int, int], tuple[int, int]]]
    more_nodes: float
    inside: Mapping[Operation, int]
    two_shot: TwoShot | None
    pipeline: Mapping[str, Any]


class SizeRange(NamedTuple):
    """A protocol, and the bytes of the full buffer above which and up to which it runs.

    `algorithm` is the one that runs; empty: that of the fastest pair.
    """

    protocol: int
    above: float
    most: float
    algorithm: str = ""


def rccl_arch(family: str) -> str:
    """Family of a GPU in ``data/gpus.toml`` → kind of GPU to RCCL; empty where NCCL runs."""
    return str(packaged(FILE)["families"].get(family, ""))


@cache
def rccl_constants(arch: str, version: tuple[int, ...]) -> RcclConstants:
    """Kind of GPU, version → RCCL's constants.

    Parameters
    ----------
    arch : str
        One of ``[arch]`` in ``data/rccl.toml``: ``"gfx942"``.
    version : tuple of int
        Of RCCL: ``(2, 27)``.
    """
    raw = packaged(FILE)
    gpu = raw["arch"][arch]
    tuning = raw["tuning"][gpu["tuning"]]
    nccl = nccl_constants(AMD, version)
    hop = {link: _seconds(each) for link, each in tuning["hop"].items()}
    believed = Latencies(_seconds(raw["base"]), hop, nccl.post, nccl.growing)
    crossing = hop["network"]
    ring = list(crossing["ring"])
    if "times" in tuning:
        ring[SIMPLE] = _quantity("tuning", gpu["tuning"], "times", "ring-simple-across").si
    return RcclConstants(
        believed=believed,
        times=believed._replace(hop={**hop, "network": {**crossing, "ring": tuple(ring)}}),
        shares=(tuning["share"]["few"], tuning["share"]["many"]),
        correction={name: np.array(each) for name, each in tuning["correction"].items()},
        links=gpu["links"] * _GB,
        ll128=any(since(each) <= version for each in gpu["ll128"]),
        tree_simple_inside=gpu["tree-simple-inside"],
        chain_ll=gpu["chain-ll"],
        ranges=_ranges(raw["ranges"].get(gpu["tuning"], {}), version),
        more_nodes=raw["ranges"]["more-nodes"],
        inside={
            _operation(name): most for name, most in raw["ranges-inside"].get(arch, {}).items()
        },
        two_shot=_two_shot(raw["two-shot"], arch, version),
        pipeline={
            "spread": {"tree": (_quantity("pipeline", "tree-spread").si,) * 3},
            "growth": (_quantity("pipeline", "growth").si,) * 3,
            "eager": raw["pipeline"]["eager"],
        },
    )


def rccl_bandwidth(
    operation: Operation,
    algorithm: str,
    protocol: int,
    shape: Shape,
    system: System,
    seen: LinkBandwidths,
    constants: RcclConstants,
) -> float:
    """Operation, algorithm, protocol → bytes/s of the full buffer that RCCL believes in.

    The paths of whole nodes are not searched: they stand in lists that count the links inside the
    node, whatever the NICs are.

    Parameters
    ----------
    operation : Operation
    algorithm : str
        ``ring``, ``tree`` or ``pat``.
    protocol : int
        Index in `PROTOCOLS`.
    shape : Shape
        Of the group.
    system : System
    seen : LinkBandwidths
        What RCCL sees of the links.
    constants : RcclConstants

    Returns
    -------
    float
        0 where the pair cannot run.
    """
    inside = seen.inside
    if constants.links and seen.fast and system.link_bandwidth:
        inside *= constants.links / system.link_bandwidth
    whole = shape.min_per_node == system.gpus_per_node > 1
    bus = inside if shape.nodes == 1 or whole else min(inside, seen.across)
    if shape.max_per_node == 1:
        bus = seen.across
    bus *= constants.shares[shape.nodes > 2][algorithm][protocol]
    if protocol == LL and shape.nodes == 1 and operation in _CHAIN_OPERATIONS:
        bus *= constants.chain_ll
    if algorithm == "ring":
        return bus * shape.ranks / ring_steps(operation, shape.ranks)
    return bus / 2 if algorithm == "tree" else bus


def two_shot_bandwidth(protocol: int, ranks: int, inside: float, kernel: TwoShot) -> float:
    """Protocol, ranks → bytes/s of an all-reduce from each GPU to each.

    Parameters
    ----------
    protocol : int
        Index in `PROTOCOLS`: half of what LL moves is flags.
    ranks : int
    inside : float
        What the links of a GPU carry, bytes per second.
    kernel : TwoShot
    """
    reached = 0.5 if protocol == LL else kernel.share
    return reached * inside * ranks / (2 * (ranks - 1))


def runs_two_shot(operation: Operation, shape: Shape, constants: RcclConstants) -> bool:
    """Operation of a group → whether a kernel runs it from each GPU to each.

    Parameters
    ----------
    operation : Operation
    shape : Shape
    constants : RcclConstants

    Returns
    -------
    bool
    """
    kernel = constants.two_shot
    if kernel is None or operation is not Operation.ALL_REDUCE:
        return False
    return shape.nodes == 1 and shape.ranks == kernel.ranks


def size_ranges(operation: Operation, shape: Shape, constants: RcclConstants) -> list[SizeRange]:
    """Operation of a group → what runs by size; of those that hold a size the last wins.

    Parameters
    ----------
    operation : Operation
    shape : Shape
    constants : RcclConstants

    Returns
    -------
    list of SizeRange
        Empty where the fastest pair decides.
    """
    kernel = constants.two_shot
    if kernel is not None and runs_two_shot(operation, shape, constants):
        return [
            SizeRange(protocol, least - 1, most, TWO_SHOT)
            for protocol, (least, most) in kernel.ranges.items()
        ]
    parts = 1 if operation is Operation.ALL_REDUCE else shape.ranks
    if shape.nodes == 1:
        most = constants.inside.get(operation, 0)
        return [SizeRange(LL, -1, most * parts)] if most else []
    if operation not in constants.ranges:
        return []
    ll, ll128 = constants.ranges[operation]
    found = [
        SizeRange(SIMPLE, 0, float("inf")),
        SizeRange(LL, ll[0] * parts, ll[1] * parts),
    ]
    if constants.ll128:
        more = constants.more_nodes if parts == 1 and shape.nodes > 2 else 1
        found.append(SizeRange(LL128, ll128[0] * parts, ll128[1] * more * parts))
    return found


def _two_shot(table: Mapping[str, Any], arch: str, version: tuple[int, ...]) -> TwoShot | None:
    """Table, architecture, version → the two-shot kernel; None where there is none."""
    if arch not in table["arch"] or not since(table["since"]) <= version < since(table["until"]):
        return None
    ranges = {LL: tuple(table["ll"]), SIMPLE: tuple(table["simple"])}
    share = _quantity("two-shot", "share").si
    return TwoShot(table["ranks"], ranges, share, table["channels"])


def _ranges(
    tables: Mapping[str, Any], version: tuple[int, ...]
) -> dict[Operation, tuple[tuple[int, int], tuple[int, int]]]:
    """Tables by operation, version → sizes that LL and LL128 run for."""
    found = {}
    for name, history in tables.items():
        if since(history[0]["since"]) <= version:
            entry = in_version(history, version)
            found[_operation(name)] = (tuple(entry["ll"]), tuple(entry["ll128"]))
    return found


def _quantity(*keys: str) -> Quantity:
    """Keys in ``data/rccl.toml``, one inside the other → the number that stands there."""
    found: Any = packaged(FILE)
    for key in keys:
        found = found[key]
    return build(Quantity, found, FILE, ".".join(keys))


def _operation(name: str) -> Operation:
    """Name in the file → operation."""
    return Operation[name.upper()]


def _seconds(table: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Times in us by name → in seconds."""
    return {name: tuple(us * _US for us in times) for name, times in table.items()}
