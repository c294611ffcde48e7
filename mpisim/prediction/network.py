"""From a cluster and an experiment's ``[network]`` to the network that prices communications."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..experiment import NetworkChoice
from ..quantity import Quantity
from ..topo import Cluster, Network

if TYPE_CHECKING:
    from ..topo import Topology
    from ..topo.nccl import Nccl

__all__ = ["calibrated", "network_of"]

MESHES = ("nvlink-mesh", "xgmi-mesh", "hypercube-mesh")
"""Kinds of nodes whose GPUs are joined pair by pair."""


def network_of(
    cluster: Cluster, nodes: int, choice: NetworkChoice | None = None, folder: Path | None = None
) -> Network:
    """Return the network of some nodes of a cluster. Local.

    Parameters
    ----------
    cluster : Cluster
    nodes : int
    choice : NetworkChoice, optional
        What the experiment says of it; defaults if not given.
    folder : Path, optional
        Where relative paths of `choice` start.

    Raises
    ------
    InputError
        If there is nothing between the nodes, a file cannot be read, or a link or a variable of
        NCCL is unknown.
    """
    choice = choice or NetworkChoice()
    if choice.model == "alpha-beta":
        return cluster.cost(nodes)
    if cluster.graph or choice.calibration:  # files, which may have changed
        return _nccl_network(cluster, nodes, choice, folder)
    asked = cluster, nodes, choice
    if _latest is None or _latest[0] != asked:
        _remember(asked, _nccl_network(cluster, nodes, choice, folder))
    assert _latest is not None
    return _latest[1]


Asked = tuple[Cluster, int, NetworkChoice]

_latest: tuple[Asked, Network] | None = None
"""The network asked for last. Plans that are compared run on one and the same, which then need not
be built again, and has worked out much of what they ask of it."""


def _remember(asked: Asked, network: Network) -> None:
    global _latest
    _latest = asked, network


def _nccl_network(
    cluster: Cluster, nodes: int, choice: NetworkChoice, folder: Path | None
) -> Network:
    from ..topo.changes import changed
    from ..topo.direct import check_fabric
    from ..topo.nccl_network import NcclNetwork

    topology = cluster.topology(nodes)
    if choice.changes:
        topology = changed(topology, choice.changes)
    if cluster.direct(topology):
        return _direct(cluster, choice, topology)
    check_fabric(topology, choice.algorithm, choice.ring_order)
    nccl, factor = calibrated(cluster, choice, folder, topology)
    assert cluster.node is not None
    return NcclNetwork(
        nccl, topology, factor, meshed=cluster.node.kind in MESHES,
        dimensions=choice.algorithm == "dimensions", by_fabric=choice.ring_order == "fabric",
    )  # fmt: skip


def _direct(cluster: Cluster, choice: NetworkChoice, topology: Topology) -> Network:
    """Return the network of GPUs that are joined to a fabric themselves."""
    from ..topo.direct import LinkLibrary
    from ..topo.nccl_network import NcclNetwork

    for key in ("nccl", "calibration"):
        if getattr(choice, key):
            raise InputError(
                f"network.{key} is given, but the GPUs of {cluster.title} have no NICs: NCCL's "
                "model does not serve them"
            )
    algorithm = None if choice.algorithm == "library" else choice.algorithm
    library = LinkLibrary(topology, cluster.gpus_per_node, algorithm, choice.ring_order)
    return NcclNetwork(library, topology, library.factor)


def calibrated(
    cluster: Cluster,
    choice: NetworkChoice,
    folder: Path | None = None,
    topology: Topology | None = None,
) -> tuple[Nccl, Callable[[float], Quantity]]:
    """Return NCCL's model of a cluster, with what was measured on machines like it. Local.

    Parameters
    ----------
    cluster : Cluster
    choice : NetworkChoice
    folder : Path, optional
        Where relative paths of `choice` start.
    topology : Topology, optional
        Whose links, where they were changed, NCCL sees in place of the cluster's.

    Returns
    -------
    Nccl
    callable
        From a number of bytes to the factor that times of such sizes rest on: 1 with its error bar.
    """
    from ..topo.collectives.calibration import ANY, Calibration, ours
    from ..topo.nccl import Factors, Nccl, Settings, System
    from ..topo.nccl_network import system_seen

    system = System.of(cluster)
    if topology is not None:
        system = system_seen(system, topology)
    calibration = (
        Calibration.read((folder or Path()) / choice.calibration) if choice.calibration else ours()
    )
    platform = () if cluster.nccl.platform is None else (cluster.nccl.platform,)
    owner, table = calibration.served((*platform, system.arch, ANY))
    source = f"{calibration.source} [{owner}]: curves that the fit did not see"

    def factor(bytes: float) -> Quantity:
        return Quantity(1, "1", float(table.error(np.array([bytes]))[0]), source)

    variables = choice.nccl | ({} if choice.algorithm == "library" else {"NCCL_ALGO": "ring"})
    return Nccl(system, Settings.of(variables), Factors(**table.numbers)), factor
