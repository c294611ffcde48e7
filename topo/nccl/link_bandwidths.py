"""Group of ranks on a machine → bandwidth of its links, inside a node and between nodes.

Two numbers stand for all links of a group: what one GPU can send to the others of its node, and
what one node can send to the others. All that NCCL's search and formulas need follows from these.

Inside a node the number depends on what joins the GPUs (`System.intra`):

========= ========================================================================================
nvswitch  all links of a GPU, whoever they go to
mesh      those links of a GPU that go to members of the group
hypercube those of the DGX-1's links that a group of the first n GPUs has (data/nccl.toml)
pairs     the bridge, for a group that is one bridged pair; otherwise as pcie
pcie      the slot; no more than the path between sockets for a group that spans them
========= ========================================================================================

Between nodes it is the NICs that the group can use, each no faster than its PCIe slot, and no
faster than the path between sockets where its data goes over the CPU (``nic_path = "sys"``, no
GPUDirect). TCP sockets (``NCCL_IB_DISABLE``) carry what the threads can copy that send over them.

Two nodes of 8 GPUs with an NVSwitch, and 8 NICs of 50 GB/s in slots that let them:

>>> from mpisim.topo.nccl.constants import nccl_constants
>>> node = System("hopper", 8, "nvswitch", link_bandwidth=370.8e9, nics=8, nic_bandwidth=50e9,
...               pcie_bandwidth=54e9, nic_path="pxb")
>>> both = Shape.regular(2, 8, node)
>>> link_bandwidths(node, Settings(), both, nccl_constants("hopper", (2, 27)))
LinkBandwidths(inside=370800000000.0, across=400000000000.0, fast=True)
"""

from __future__ import annotations

from mpisim.base.frozen import frozen

from .constants import NcclConstants
from .settings import Settings
from .shape import Shape
from .system import System

__all__ = ["LinkBandwidths", "link_bandwidths"]


@frozen
class LinkBandwidths:
    """Bandwidths of a group's links, bytes per second.

    Attributes
    ----------
    inside : float
        Out of one GPU to others of its node.
    across : float
        Out of one node; 0 where all are on one.
    fast : bool
        Whether the GPUs of a node are joined by fast links.
    """

    inside: float
    across: float
    fast: bool


GIGA = 1e9


def link_bandwidths(
    system: System, settings: Settings, shape: Shape, constants: NcclConstants
) -> LinkBandwidths:
    """Group of GPUs → bandwidths of its links. A NIC is never faster than its PCIe slot.

    Parameters
    ----------
    system : System
    settings : Settings
        May forbid direct transfers between GPUs, and some of the NICs.
    shape : Shape
        Of the group.
    constants : NcclConstants

    Returns
    -------
    LinkBandwidths
        In bytes per second.
    """
    n, per_node = shape.max_per_node, system.gpus_per_node
    slow = system.pcie_bandwidth
    if system.intra == "pcie" and n > per_node / 2 and per_node > 2:
        slow = min(slow, system.socket_bandwidth)  # the ring crosses between the sockets
    inside, fast = slow, False
    if not settings.p2p_disable:
        if system.intra == "nvswitch":
            inside, fast = system.link_bandwidth, True
        elif system.intra == "mesh":
            inside, fast = system.link_bandwidth * max(n - 1, 1) / max(per_node - 1, 1), True
        elif system.intra == "hypercube":
            shares = constants.raw["links"]["hypercube"]
            inside, fast = system.link_bandwidth * (shares[n - 1] if n <= len(shares) else 1), True
        elif system.intra == "pairs" and (n == 1 or shape.bridged):
            inside, fast = system.link_bandwidth, True
    if shape.nodes == 1:
        return LinkBandwidths(inside, 0.0, fast)
    nics = shape.nics if settings.ib_hca is None else min(shape.nics, settings.ib_hca)
    nic = min(system.nic_bandwidth, system.pcie_bandwidth * constants.raw["links"]["pcie-reach"])
    if system.nic_path == "sys" or not system.gpudirect or settings.ib_disable:
        nic = min(nic, system.socket_bandwidth)
    across = max(nics, 1) * nic
    if settings.ib_disable:
        across = min(across, _over_sockets(settings, n, constants))
    return LinkBandwidths(inside, across, fast)


def _over_sockets(settings: Settings, gpus: int, constants: NcclConstants) -> float:
    """Return the bandwidth of TCP sockets out of a node, in bytes per second.

    Parameters
    ----------
    settings : Settings
    gpus : int
        Of the group on the node.
    constants : NcclConstants
    """
    sockets = constants.raw["sockets"]
    threads = max(settings.socket_nthreads or 0, 1) * min(gpus, sockets["senders"])
    return GIGA * min(threads * sockets["thread"], sockets["most"])
