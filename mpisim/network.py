"""From a cluster and an experiment's ``[network]`` to the network that prices communications."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from .experiment import NetworkChoice
from .quantity import Quantity
from .topo import Cluster, Network

__all__ = ["network_of"]

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
    folder = folder or Path()
    if choice.model == "alpha-beta":
        return cluster.cost(nodes)

    from .topo.changes import changed
    from .topo.collectives.calibration import Calibration, ours
    from .topo.collectives.fit import ANY
    from .topo.nccl import Factors, Nccl, Settings, System
    from .topo.nccl_network import NcclNetwork

    system = System.of(cluster)
    calibration = Calibration.read(folder / choice.calibration) if choice.calibration else ours()
    platform = () if cluster.nccl.platform is None else (cluster.nccl.platform,)
    owner, table = calibration.served((*platform, system.arch, ANY))
    source = f"{calibration.source} [{owner}]: curves that the fit did not see"

    def factor(bytes: float) -> Quantity:
        return Quantity(1, "1", float(table.error(np.array([bytes]))[0]), source)

    nominal = replace(cluster, changes={}).topology(nodes)
    changes = cluster.changes | choice.changes
    return NcclNetwork(
        Nccl(system, Settings.of(choice.nccl), Factors(**table.numbers)),
        changed(nominal, changes) if changes else nominal,
        nominal,
        factor,
        meshed=cluster.node.kind in MESHES,
    )
