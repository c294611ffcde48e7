"""Cluster, given bandwidths or sizes → changed cluster, and the bottleneck of its NICs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity

from .units import parse_bandwidth

if TYPE_CHECKING:
    from .cluster import Cluster
    from .fabrics.fabric import Fabric

__all__ = ["SPEEDS", "nic_bottleneck", "with_speeds"]

SPEEDS = (
    "nic_bandwidth",
    "link_bandwidth",
    "pcie_bandwidth",
    "nics",
    "gpus_per_node",
    "oversubscription",
)
"""Keys of a cluster, its ``[node]`` and ``[fabric]`` that may be given besides its file."""

SOURCE_OF_OVERRIDES = "set in the experiment"

WITHOUT_NODES = "has no use for it: its GPUs are joined to the fabric themselves"
WITHOUT_LEAVES = "has no use for it: its fabric is no tree of switches"

WHY_WITHOUT = {
    "nic_bandwidth": "its nodes have no NICs",
    "nics": "its nodes have no NICs",
    "link_bandwidth": "its GPUs have no NVLink or xGMI",
    "pcie_bandwidth": "its GPUs are joined to the fabric themselves, without PCIe",
}
"""Why a key that a cluster's file leaves out cannot be set."""


def with_speeds(
    cluster: Cluster,
    given: Mapping[str, str | float | None],
    label: Callable[[str], str] = "cluster.{}".format,
) -> Cluster:
    """Cluster and keys of its nodes → the cluster with these, as if its file had them.

    A bandwidth keeps the relative error bar of the one that it replaces: that of a NIC's line rate
    is 0, that of NVLink and PCIe says how well the usable part is known.

    Parameters
    ----------
    cluster : Cluster
    given : mapping
        By names of `SPEEDS`: bandwidths as texts with a unit (``"800 Gb/s"``), others as numbers;
        None: as the cluster has it.
    label : callable
        From a key to what messages call it.

    Returns
    -------
    Cluster
        Its title names what was set.

    Raises
    ------
    InputError
        For a text that is no bandwidth, a key that the cluster has no use for, or a number of NICs
        that its nodes cannot have.

    Examples
    --------
    >>> from mpisim.topo import find_cluster
    >>> fast = with_speeds(find_cluster("dgx-h100"), {"nic_bandwidth": "800 Gb/s"})
    >>> fast.node.nic_bandwidth.si
    100000000000.0
    """
    chosen = {key: value for key in SPEEDS if (value := given.get(key)) is not None}
    if not chosen:
        return cluster
    if cluster.graph is not None:
        raise InputError(
            f"{label(next(iter(chosen)))} is given, but {cluster.title} lists its links in "
            f"{cluster.graph}; set them there, or by network.changes"
        )
    node = cluster.node
    assert node is not None  # only a graph does without
    changes: dict[str, Any] = {}
    others: dict[str, Any] = {}
    stated = []
    for key, value in chosen.items():
        where = label(key)
        if key == "gpus_per_node":
            if node.kind == "direct":
                raise InputError(f"{where}: {cluster.title} {WITHOUT_NODES}")
            others[key] = value
            stated.append(f"{value} GPUs a node")
            if node.tray and "nics" not in chosen and int(value) % node.tray == 0:
                changes["nics"] = node.nics * int(value) // cluster.gpus_per_node
        elif key == "oversubscription":
            others["fabric"] = _oversubscribed(cluster, float(value), where)
            stated.append(f"oversubscription {value:g}")
        else:
            old = getattr(node, key)
            if not old:  # None, or no NICs
                raise InputError(f"{where}: {cluster.title} has no use for it: {WHY_WITHOUT[key]}")
            changes[key] = _changed(old, value, where)
            stated.append(f"{value} NICs a node" if key == "nics" else f"{key} {value}")
    try:
        title = f"{cluster.title}; set: {', '.join(stated)}"
        return replace(cluster, node=replace(node, **changes), title=title, **others)
    except InputError as error:
        keys = ", ".join(label(key) for key in (*changes, *others))
        keys = keys.replace(label("fabric"), label("oversubscription"))
        raise InputError(f"{keys}: {error}") from error


def _oversubscribed(cluster: Cluster, factor: float, where: str) -> Fabric:
    """Cluster → its fabric with leaf switches that have so many times less bandwidth upwards."""
    if cluster.fabric is None or cluster.fabric.leaf is None:
        raise InputError(f"{where}: {cluster.title} {WITHOUT_LEAVES}")
    return replace(cluster.fabric, oversubscription=factor)


def _changed(old: Quantity | int, value: object, where: str) -> Quantity | int:
    """A node's bandwidth or number of NICs → the one given in its place."""
    if isinstance(old, Quantity):
        return Quantity(_bandwidth(value, where), "B/s", old.error, SOURCE_OF_OVERRIDES)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{where} is {value!r}; it must be a number, 1 or more")
    return value


def _bandwidth(text: object, where: str) -> float:
    """Return bytes per second; without a unit it could be bits or bytes."""
    if not isinstance(text, str) or text.strip()[-1:] in "0123456789.":
        raise InputError(f'{where} is {text!r}; it must have a unit, as "800 Gb/s" or "63 GB/s"')
    return parse_bandwidth(text, where)


def nic_bottleneck(cluster: Cluster) -> str | None:
    """Cluster → bottleneck that keeps its NICs below line rate, in a line; None if there is none.

    NCCL's model says: `mpisim.topo.nccl.link_bandwidths`.
    """
    from .nccl.constants import nccl_constants
    from .nccl.link_bandwidths import link_bandwidths
    from .nccl.settings import Settings
    from .nccl.shape import Shape
    from .nccl_system import cluster_system

    try:
        system = cluster_system(cluster)
    except InputError:  # GPUs without NICs
        return None
    if not system.nics:
        return None
    shape = Shape.regular(2, system.gpus_per_node, system)
    constants = nccl_constants(system.arch, system.version)

    def across(pcie: float, socket: float) -> float:
        found = replace(system, pcie_bandwidth=pcie, socket_bandwidth=socket)
        return link_bandwidths(found, Settings(), shape, constants).across

    endless = float("inf")
    whole = across(endless, endless)
    if across(system.pcie_bandwidth, system.socket_bandwidth) == whole:
        return None
    rate = f"NICs of {system.nic_bandwidth / 1e9:.4g} GB/s"
    if across(system.pcie_bandwidth, endless) == whole:
        return (
            f"{rate} are reached over CPUs joined by {system.socket_bandwidth / 1e9:.4g} GB/s: "
            "that is the limit (node.socket_bandwidth of the cluster's file)"
        )
    return (
        f"{rate} hang on PCIe connections of {system.pcie_bandwidth / 1e9:.4g} GB/s: PCIe is the "
        "limit; set pcie_bandwidth if it is not"
    )
