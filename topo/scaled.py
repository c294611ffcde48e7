"""Cluster, factors of bandwidths and latencies → the cluster with these, for what-if questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity

from .cluster import Cluster
from .fabrics import Fabric

__all__ = ["LINK_SCALES", "scaled_cluster", "switches_follow"]

LINK_SCALES = (
    "link_bandwidth",
    "nic_bandwidth",
    "pcie_bandwidth",
    "switch_bandwidth",
    "latency",
)
"""Factors that are of a cluster's links."""

OWN_LINKS = ("torus", "mesh", "wafer", "circuit")
"""Kinds of fabrics whose links are their own, not as wide as NICs."""


def scaled_cluster(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """Cluster, factors → the cluster with its bandwidths and latencies multiplied.

    A fabric that does not block follows its NICs. The links of one that is oversubscribed stay as
    they are, whatever the NICs.

    Parameters
    ----------
    cluster : Cluster
    factors : mapping of str to float
        By names of `LINK_SCALES`; others are of no account.

    Raises
    ------
    InputError
        For a cluster that lists its links in a file.

    Examples
    --------
    >>> from mpisim.topo import find_cluster
    >>> scaled_cluster(find_cluster("dgx-h100"), {"nic_bandwidth": 2}).node.nic_bandwidth.value
    800.0
    """
    wanted = {key: factors[key] for key in LINK_SCALES if factors.get(key, 1.0) != 1}
    if not wanted:
        return cluster
    if cluster.graph is not None and wanted.keys() != {"latency"}:
        key = next(key for key in wanted if key != "latency")
        raise InputError(
            f"scale.{key} is given, but {cluster.title} lists its links in {cluster.graph}; scale "
            "them by network.changes"
        )
    changes: dict[str, Any] = {}
    if cluster.node is not None:
        changes["node"] = _with_factors(
            cluster.node, {key: wanted.get(key, 1.0) for key in LINK_SCALES[:3]}
        )
    if cluster.fabric is not None:
        changes["fabric"] = _scaled_fabric(cluster, cluster.fabric, wanted)
    if cluster.alpha_beta is not None:
        of = {
            "node_bandwidth": wanted.get(_node_links(cluster), 1.0),
            "network_bandwidth": wanted.get("nic_bandwidth", 1.0),
        }
        changes["alpha_beta"] = _with_factors(cluster.alpha_beta, of)
    latency = cluster.latency * wanted.get("latency", 1.0)
    return replace(cluster, **changes, latency=latency)


def switches_follow(fabric: Fabric) -> bool:
    """Whether the links between switches are as wide as NICs need them, and follow these."""
    return fabric.kind not in OWN_LINKS and fabric.link_bandwidth is None and _free(fabric)


def _free(fabric: Fabric) -> bool:
    return fabric.oversubscription <= 1


def _node_links(cluster: Cluster) -> str:
    """Return the factor of the links between the GPUs of a node."""
    fast = cluster.node is not None and cluster.node.link_bandwidth is not None
    return "link_bandwidth" if fast else "pcie_bandwidth"


def _scaled_fabric(cluster: Cluster, fabric: Fabric, factors: Mapping[str, float]) -> Fabric:
    switch, nic = factors.get("switch_bandwidth", 1.0), factors.get("nic_bandwidth", 1.0)
    found = _with_factors(fabric, {"link_bandwidth": switch, "edge_bandwidth": switch})
    bundled = fabric.kind in ("dragonfly", "dragonfly+") and fabric.link_bandwidth is None
    if bundled and switch * nic != nic:
        assert cluster.node is not None
        assert cluster.node.nic_bandwidth is not None
        port = cluster.node.nic_bandwidth
        share = 1.0 if fabric.nic_efficiency is None else fabric.nic_efficiency.value
        wide = replace(port, value=port.value * nic * share * switch)
        found = replace(found, link_bandwidth=wide)
    if fabric.leaf is None:
        return found
    # Up from a leaf leads what its NICs bring, divided by the oversubscription.
    leaf, core = fabric.oversubscription, fabric.core_oversubscription
    if not _free(fabric):
        leaf *= nic
    elif core > 1:
        core *= nic
    return replace(found, oversubscription=leaf / switch, core_oversubscription=core)


def _with_factors(part: Any, factors: Mapping[str, float]) -> Any:
    """Return a table of a cluster with some of its numbers multiplied, where it has them."""
    changes = {}
    for key, factor in factors.items():
        number: Quantity | None = getattr(part, key)
        if factor != 1 and number is not None:
            changes[key] = replace(number, value=number.value * factor)
    return replace(part, **changes) if changes else part
