"""The cluster of a row: the preset that fits best, perhaps with keys that change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...base.errors import InputError
from ...base.presets import find_file, packaged_folder
from ...kernels import gpu_name
from .rows import Row
from .settings import ClusterFor, Settings, assigned

__all__ = ["Chosen", "OtherCluster", "choose"]

ANY = "dgx-h100"
"""Where one GPU runs that no cluster has: nothing of it matters but the host."""

ANY_NUMBER = ("nvswitch", "pcie")
"""Kinds of nodes that may have any number of GPUs."""

NIC_RATE = "cluster.nic_bandwidth"
"""Key of an experiment: the rate of a NIC. Where a cluster's changes set it, rows do not."""

IN_PART = "xgmi-mesh"
"""Nodes of which a part may be used: a GPU then sends over the links to the others of that part."""


class OtherCluster(NamedTuple):
    """Another cluster of the same GPUs and nodes, with a network of its own.

    Attributes
    ----------
    preset : str
    share : float
        Probability that a row was run on it: all known clusters have the same.
    """

    preset: str
    share: float


class Chosen(NamedTuple):
    """A cluster for a row.

    Attributes
    ----------
    keys : mapping
        Keys of an experiment (``cluster.preset``, ``cluster.nodes``, ``kernels.gpu``, …).
    assumed : tuple of str
        What the row does not say, and where the cluster differs from what it says; for counting.
    others : tuple of OtherCluster
        What it may be on as well, if it needs a network and neither the row nor its source says
        which.
    """

    keys: Mapping[str, Any]
    assumed: tuple[str, ...]
    others: tuple[OtherCluster, ...] = ()


def choose(row: Row, source: str, settings: Settings) -> Chosen:
    """Row → the cluster that it ran on, with what is assumed of it.

    Parameters
    ----------
    row : Row
    source : str
        Its short name.
    settings : Settings

    Raises
    ------
    InputError
        If there is none with its GPU, or none whose nodes have as many as the row's.
    """
    gpu, gpus = row.texts["gpu"], row.integers["num_gpus"]
    named = row.keys.get("cluster.preset")
    fitting = _fitting(row, source, named, settings)
    if not fitting:
        return _alone(gpu, gpus)
    stated = row.integers.get("gpus_per_node")
    if stated is None and named is None and not any(each.network for each in fitting):
        stated = _box_of_all(gpu, gpus, fitting)
    if stated is not None:
        fitting = _with_nodes_of(stated, gpu, gpus, fitting, named=named is not None)
    network = row.numbers.get("node_network_gbps")
    best = fitting[0]
    if network is not None:
        best = min(fitting, key=lambda each: abs(each.network - network))
    changes, per_node = _nodes(best)
    nodes = -(-gpus // per_node)
    alike: list[ClusterFor] = []
    is_open = nodes > 1 and network is None and named is None and not best.changes
    if is_open and not settings.knows_network(row, source):
        known = [each for each in _all_of(gpu) if each.gpus_per_node == per_node]
        alike = sorted((each for each in known if each.network), key=lambda each: each.network)
    if alike:
        best = _middle(best, fitting, alike)
    if nodes > 1:
        changes |= _line_rate(best, network, changes)
    assumed = _assumptions(best, network, per_node if stated is None else None) if nodes > 1 else []
    if best.changes:
        assumed.append(f"cluster.preset = {best.preset} with {', '.join(best.changes)}")
    keys: dict[str, Any] = {"cluster.preset": best.preset, "cluster.nodes": nodes, **changes}
    if gpus != nodes * per_node:
        keys["cluster.gpus"] = gpus
    return Chosen(keys, tuple(assumed), _other_clusters(best, alike))


def _fitting(row: Row, source: str, named: str | None, settings: Settings) -> list[ClusterFor]:
    """Row, the preset that it names → clusters with its GPU, of its source where it has any."""
    gpu = row.texts["gpu"]
    if named is not None:
        found = [_packaged(gpu, named, find_file(named, "clusters", "cluster").table)]
    else:
        found = [each for each in settings.clusters if each.gpu == gpu]
        found = found or _of_gpu(gpu, row.integers["num_gpus"], settings)
    own = [each for each in found if source in each.sources]
    return own or [each for each in found if not each.sources]


def _box_of_all(gpu: str, gpus: int, fitting: Sequence[ClusterFor]) -> int | None:
    """GPUs on nodes without NICs → the GPUs of a node that has them all; None: one that fits has.

    Such nodes reach no other, so all GPUs are in one box, if there are such boxes.
    """
    if not gpus > max(each.gpus_per_node for each in fitting) > 0:
        return None
    largest = _largest_box()
    if gpus > largest:
        raise InputError(
            f"no cluster of {gpu} with {gpus} GPUs: its nodes have no NICs, and at most "
            f"{largest} GPUs are in one; column gpus_per_node or cluster.preset can say more"
        )
    return gpus


def _with_nodes_of(
    size: int, gpu: str, gpus: int, fitting: Sequence[ClusterFor], *, named: bool
) -> list[ClusterFor]:
    """Clusters, the GPUs of a node → those with such nodes, or changed so that they have."""
    exact = [each for each in fitting if each.gpus_per_node in (0, size)]
    larger = [each for each in fitting if each.gpus_per_node not in range(1, gpus)]
    resized = [new for each in fitting if (new := _resized(each, size)) is not None]
    # In one node it does not matter how large it is.
    found = exact or (larger if gpus <= size else []) or resized
    if gpus > size and not named:
        # A node without NICs reaches no other.
        found = [each for each in found if each.network] or _joined(gpu, size) or found
    if not found:
        raise InputError(f"no cluster of {gpu} with {size} GPUs a node")
    return found


def _assumptions(best: ClusterFor, network: float | None, per_node: int | None) -> list[str]:
    """Cluster of several nodes, what a row says of it → what is assumed of it, in words.

    Parameters
    ----------
    best : ClusterFor
    network : float or None
        Gb/s of a node, if the row says it.
    per_node : int or None
        GPUs of a node, if the row does not say it.
    """
    assumed = []
    if network is None:
        assumed.append(f"cluster.preset = {best.preset} (network not stated)")
    elif network != best.network and any(assigned(each)[0] == NIC_RATE for each in best.changes):
        assumed.append(
            f"cluster.preset = {best.preset}, its NICs in place of {network:g} Gb/s a node"
        )
    elif network != best.network:
        assumed.append(
            f"cluster.preset = {best.preset}, {network:g} Gb/s a node in place of {best.network}"
        )
    if per_node is not None:
        assumed.append(f"{per_node} GPUs a node (not stated)")
    return assumed


def _line_rate(
    best: ClusterFor, network: float | None, changes: Mapping[str, Any]
) -> dict[str, str]:
    """Cluster, what a row says of its network, keys that change it → its NICs at the row's rate.

    As many NICs as the cluster has: rows give the bandwidth of a node. A rate among the changes
    stays, which was chosen for this cluster.
    """
    node = find_file(best.preset, "clusters", "cluster").table.get("node", {})
    if not network or network == best.network or "nics" not in node:
        return {}
    if NIC_RATE in changes:
        return {}
    rate = network / changes.get("cluster.nics", node["nics"])
    return {NIC_RATE: f"{rate:.12g} Gb/s"}


def _middle(
    best: ClusterFor, fitting: Sequence[ClusterFor], alike: Sequence[ClusterFor]
) -> ClusterFor:
    """Cluster that comes first, those that fit, known ones by network → one in their middle.

    It is the first where it has the network of the middle, then one that fits.
    """
    network = alike[len(alike) // 2].network
    return next(each for each in (best, *fitting, *alike) if each.network == network)


def _other_clusters(best: ClusterFor, alike: Sequence[ClusterFor]) -> tuple[OtherCluster, ...]:
    """Cluster that was chosen, known ones with such nodes → those it may have been as well."""
    others = [each.preset for each in alike if each.preset != best.preset]
    return tuple(OtherCluster(preset, 1 / (1 + len(others))) for preset in others)


def _of_gpu(gpu: str, gpus: int, settings: Settings) -> list[ClusterFor]:
    """GPU by any of its names → the settings' clusters with it; for several, packaged ones."""
    name = gpu_name(gpu)
    found = [each for each in settings.clusters if gpu_name(each.gpu) == name]
    if found or gpus == 1:
        return found
    return _all_of(gpu)


def _all_of(gpu: str) -> list[ClusterFor]:
    """GPU by any of its names → the packaged clusters with it."""
    name, presets = gpu_name(gpu), packaged_folder("clusters").items()
    return [_packaged(gpu, preset, table) for preset, table in presets if table["gpu"] == name]


def _largest_box() -> int:
    """Return the GPUs of the largest packaged node whose GPUs are joined by PCIe alone."""
    tables = packaged_folder("clusters").values()
    return max(each["gpus_per_node"] for each in tables if _kind(each) == "pcie")


def _kind(table: Mapping[str, Any]) -> str | None:
    """Contents of a cluster's file → the kind of its nodes; None if it has none."""
    kind: str | None = table.get("node", {}).get("kind")
    return kind


def _joined(gpu: str, size: int) -> list[ClusterFor]:
    """GPU, GPUs of a node → the packaged clusters of such nodes with NICs."""
    return [each for each in _all_of(gpu) if each.network and each.gpus_per_node == size]


def _packaged(gpu: str, preset: str, table: Mapping[str, Any]) -> ClusterFor:
    """Name of a cluster and contents of its file → what a row may be compared with."""
    node = table.get("node", {})
    network = node["nics"] * node["nic_bandwidth"]["value"] if "nics" in node else 0
    return ClusterFor(gpu, preset, table["gpus_per_node"], int(network))


def _alone(gpu: str, gpus: int) -> Chosen:
    """One GPU that no cluster has, in a node of another."""
    if gpus > 1:
        raise InputError(f"no cluster of {gpu}; column cluster.preset can name one")
    keys = {"cluster.preset": ANY, "cluster.nodes": 1, "cluster.gpus": 1, "kernels.gpu": gpu}
    return Chosen(keys, (f"host of {ANY} (one {gpu})",))


def _resized(cluster: ClusterFor, size: int) -> ClusterFor | None:
    """Cluster, GPUs of a node → the same with nodes of that size, as many NICs a GPU as before.

    None where GPUs are joined by links that depend on how many there are, unless those of a part of
    a mesh are used.
    """
    node = find_file(cluster.preset, "clusters", "cluster").table["node"]
    full = cluster.gpus_per_node
    part = node["kind"] == IN_PART and 1 < size < full
    if not full or not (part or node["kind"] in ANY_NUMBER):
        return None
    changes = [*cluster.changes, f"cluster.gpus_per_node={size}"]
    if part:
        links = node["link_bandwidth"]
        bandwidth = links["value"] * (size - 1) / (full - 1)
        changes.append(f"cluster.link_bandwidth={bandwidth:.4g} {links['unit']}")
    network = cluster.network
    if "nics" in node:
        before = dict(map(assigned, cluster.changes)).get("cluster.nics", node["nics"])
        nics = max(1, round(before * size / full))
        changes.append(f"cluster.nics={nics}")
        network = network * nics // before
    return replace(cluster, gpus_per_node=size, network=network, changes=tuple(changes))


def _nodes(best: ClusterFor) -> tuple[dict[str, Any], int]:
    """Return keys that change a preset, and the GPUs of a node with them."""
    changes = dict(assigned(each) for each in best.changes)
    per_node = find_file(best.preset, "clusters", "cluster").table["gpus_per_node"]
    return changes, int(changes.get("cluster.gpus_per_node", per_node))
