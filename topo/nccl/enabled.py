"""Operation, group, system, settings → the algorithms and protocols that NCCL may choose between.

What is left out:

=============== ==================================================================================
by operation    an all-gather and a reduce-scatter have no tree; broadcast and reduce only the ring
NVLS, its tree  without NVSwitch, direct transfers or multicast in hardware; on too few GPUs a node
CollNet         where it is not turned on (``NCCL_COLLNET_ENABLE``), and on one node
PAT             but with one GPU a node, on several nodes; before 2.23
LL128           over slow links; on GPUs that do not keep stores of 128 bytes in order
on AMD's GPUs   CollNet; PAT where it is not turned on (``NCCL_PAT_ENABLE``); LL128 and trees with
                Simple in one node as RCCL's tables have it (:mod:`.rccl`)
settings        what ``NCCL_ALGO`` and ``NCCL_PROTO`` do not name
=============== ==================================================================================

There is always something: where no algorithm remains it is the ring, where no protocol does,
Simple.
"""

from __future__ import annotations

from mpisim.base.kinds import Operation

from .constants import ALGORITHMS, LL, LL128, PROTOCOLS, SIMPLE, NcclConstants
from .link_bandwidths import LinkBandwidths
from .rccl import RcclConstants
from .settings import Settings, allowed
from .shape import Shape
from .system import System

__all__ = ["enabled_algorithms", "enabled_protocols"]

_GATHER_SCATTER = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)

_ALL_REDUCE_ALGORITHMS = frozenset(ALGORITHMS) - {"pat"}

_GATHER_SCATTER_ALGORITHMS = frozenset(("ring", "pat", "nvls", "collnet-direct"))

_CHAIN_ALGORITHMS = frozenset(("ring",))


def enabled_algorithms(
    operation: Operation, shape: Shape, system: System, settings: Settings, constants: NcclConstants
) -> list[str]:
    """Operation of a group → algorithms that can run and are allowed, in order; else the ring.

    Parameters
    ----------
    operation : Operation
    shape : Shape
        Of the group.
    system : System
        The machine.
    settings : Settings
        ``NCCL_ALGO`` and others that allow or forbid algorithms.
    constants : NcclConstants

    Returns
    -------
    list of str
        At least one, of `ALGORITHMS`.
    """
    if operation is Operation.ALL_REDUCE:
        can = _ALL_REDUCE_ALGORITHMS
    else:
        can = _GATHER_SCATTER_ALGORITHMS if operation in _GATHER_SCATTER else _CHAIN_ALGORITHMS
    several = shape.nodes > 1
    switched = system.intra == "nvswitch" and not settings.p2p_disable
    multicast = constants.multicast and switched and settings.nvls_enable is not False
    without = set()
    if not multicast or shape.min_per_node < constants.raw["channels"]["nvls-ranks"]:
        without |= {"nvls", "nvls-tree"}
    if not several:
        without |= {"nvls-tree", "collnet-direct", "collnet-chain"}
    if not settings.collnet_enable:
        without |= {"collnet-direct", "collnet-chain"} | ({"nvls"} if several else set())
    if system.intra != "nvswitch":
        without.add("collnet-direct")
    if (
        operation in _GATHER_SCATTER
        and shape.max_per_node > constants.raw["channels"]["nvls-heads"]
    ):
        without.add("nvls")
    if operation in _GATHER_SCATTER and several and shape.nics < shape.max_per_node:
        without |= {"nvls", "collnet-direct"}
    if system.version < (2, 18):
        without |= {"nvls-tree"}
    pat = shape.max_per_node == 1 and several and system.version >= (2, 23)
    if not pat or settings.pat_enable is False or constants.generation < 60:
        without.add("pat")
    if system.rccl:
        without |= {"collnet-direct", "collnet-chain"} | (set() if settings.pat_enable else {"pat"})
    may = allowed(settings.algo, operation)
    wanted = [
        name
        for name in ALGORITHMS
        if name in can and name not in without and (may is None or name in may)
    ]
    return wanted or ["ring"]


def enabled_protocols(
    operation: Operation,
    algorithm: str,
    shape: Shape,
    system: System,
    settings: Settings,
    found: LinkBandwidths,
    constants: NcclConstants,
    rccl: RcclConstants | None = None,
) -> list[int]:
    """Algorithm of an operation → protocols that can run and are allowed; else Simple.

    Parameters
    ----------
    operation : Operation
    algorithm : str
        Of `enabled_algorithms`.
    shape : Shape
    system : System
    settings : Settings
        ``NCCL_PROTO`` names those that are allowed, whether NCCL would take them or not.
    found : LinkBandwidths
        LL128 needs links that deliver 128 bytes in order.
    constants : NcclConstants
    rccl : RcclConstants, optional
        On AMD's GPUs.

    Returns
    -------
    list of int
        At least one, indices in `PROTOCOLS`, ascending.
    """
    if algorithm not in ("ring", "tree"):
        return [SIMPLE]
    may = allowed(settings.proto, operation)
    if may is not None:
        return [i for i, name in enumerate(PROTOCOLS) if name in may] or [SIMPLE]
    # From Hopper on, a way to the NIC over Grace's own links is as good as one over PCIe switches.
    near = system.nic_path in ("pix", "pxb") or (
        constants.generation >= 90 and system.cpu == "grace"
    )
    ordered = found.fast and (shape.nodes == 1 or near)
    if rccl is not None:
        simple = rccl.tree_simple_inside or algorithm != "tree" or shape.nodes > 1
        return [LL] + [LL128] * (ordered and rccl.ll128) + [SIMPLE] * simple
    if ordered and constants.generation >= 70 and constants.generation not in (75, 89):
        return [LL, LL128, SIMPLE]
    return [LL, SIMPLE]
