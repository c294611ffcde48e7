"""A cluster and ``[network]`` of an experiment → the network that prices communications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..base.quantity import Quantity, picoseconds
from ..engine import SetupCache
from ..experiment import NetworkChoice, ScaleChoice
from ..topo import Cluster, Network
from ..topo.scaled import switches_follow
from ..topo.speeds import with_speeds
from .hardware import with_scale

if TYPE_CHECKING:
    from ..topo import Topology
    from ..topo.changes import WithoutChange
    from ..topo.nccl import Nccl
    from ..topo.nccl.shape import Regime


__all__ = ["GivenKey", "NetworkCache", "NetworkRequest", "nccl_model", "network_of"]

MESHES = ("mesh", "hypercube")
"""NCCL's kinds of nodes in which each pair of GPUs has links of its own."""

GRAPH_NOTE = (
    "[node] and [fabric] beside a graph: cpu, gpudirect and nic_efficiency count, what they say of "
    "links does not"
)
"""Assumption of a prediction where a cluster's file describes its links twice."""


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
    if choice.model == "echo":
        return _echo_network(cluster)
    return _nccl_network(cluster, nodes, choice, folder)


class NetworkCache:
    """Cache of the network built last, returned again for an equal request.

    Plans that are compared run on one network, which is then built once and keeps its prices.
    A caller that prepares several experiments makes one cache and passes it down. A network with a
    graph or a calibration is always built again, since its files may have changed.

    Attributes
    ----------
    setups : SetupCache
        Parts of run setups that runs on one network share.
    """

    def __init__(self) -> None:
        self.setups = SetupCache()
        self._built: tuple[tuple[Cluster, int, NetworkChoice], Network] | None = None

    def network_of(
        self, cluster: Cluster, nodes: int, choice: NetworkChoice, folder: Path | None = None
    ) -> Network:
        """Return the network of some nodes of a cluster; parameters as of `network_of`. Local.

        Parameters
        ----------
        cluster : Cluster
        nodes : int
        choice : NetworkChoice
        folder : Path, optional
            Where relative paths of `choice` start.
        """
        if choice.model != "nccl" or cluster.graph or choice.calibration:
            return network_of(cluster, nodes, choice, folder)
        key = cluster, nodes, choice
        if self._built is None or self._built[0] != key:
            self._built = key, network_of(cluster, nodes, choice, folder)
        return self._built[1]


PER_ENTRY = ("changes", "nccl")
"""Keys of ``[network]`` that are tables; each of their entries is looked at by itself."""


class GivenKey(NamedTuple):
    """A key of ``[network]`` or a speed of ``[cluster]`` that was given.

    Attributes
    ----------
    name : str
        Name of the key in messages.
    part : str
        ``"speeds"`` or a field of `NetworkChoice`.
    entry : str
        Of a part that is a table.
    """

    name: str
    part: str
    entry: str = ""


@frozen
class NetworkRequest:
    """Network settings of an experiment or a command line: cluster, speeds, ``[network]``.

    Attributes
    ----------
    cluster : Cluster
        As its file says.
    nodes : int
    choice : NetworkChoice
    speeds : mapping of str to str or float
        Keys of `mpisim.topo.speeds.SPEEDS` that were given.
    folder : Path, optional
        Where relative paths of `choice` start.
    scale : ScaleChoice
    """

    cluster: Cluster
    nodes: int
    choice: NetworkChoice = field(default_factory=NetworkChoice)
    speeds: Mapping[str, str | float] = field(default_factory=dict)
    folder: Path | None = None
    scale: ScaleChoice = field(default_factory=ScaleChoice)

    @property
    def placed(self) -> Cluster:
        """The cluster with the speeds that were given, and scaled."""
        cluster = with_speeds(self.cluster, self.speeds)
        return with_scale(cluster, self.scale, self.choice.model)

    def network(self, networks: NetworkCache | None = None) -> Network:
        """Return the network, from the cache `networks` if it is there."""
        cluster = self.placed
        build = network_of if networks is None else networks.network_of
        return build(cluster, self.nodes, self.choice, self.folder)

    @property
    def given(self) -> list[GivenKey]:
        """The keys that the user gave."""
        # With other nodes there are other GPUs: their networks cannot be compared.
        links = [key for key in self.speeds if key != "gpus_per_node"]
        found = [GivenKey(f"cluster.{key}", "speeds", key) for key in links]
        for table in PER_ENTRY:
            for entry in getattr(self.choice, table):
                name = f"network.{table}.{entry if entry.isidentifier() else repr(entry)}"
                found.append(GivenKey(name, table, entry))
        plain = NetworkChoice()
        for key in ("algorithm", "ring_order", "calibration"):
            if getattr(self.choice, key) != getattr(plain, key):
                found.append(GivenKey(f"network.{key}", key))
        return found

    def without(self, key: GivenKey) -> NetworkRequest:
        """Return the request without one of its `given` keys."""
        if key.part == "speeds":
            return replace(self, speeds=_without(self.speeds, key.entry))
        changed: Any = (
            _without(getattr(self.choice, key.part), key.entry)
            if key.part in PER_ENTRY
            else getattr(NetworkChoice(), key.part)
        )
        return replace(self, choice=replace(self.choice, **{key.part: changed}))

    def without_each_change(self) -> dict[GivenKey, WithoutChange | None]:
        """Return the links of the network without each one of several changes of links.

        None for a change whose removal leaves fewer links cut. If there is only one change, the
        result is empty: a network without changes differs in more than its links.
        """
        from ..topo.changes import without_each_change

        keys = [key for key in self.given if key.part == "changes"]
        if len(keys) < 2:
            return {}
        topology = self.placed.topology(self.nodes)
        found = without_each_change(topology, self.choice.changes)
        return {key: found[key.entry] for key in keys}


def _without(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}


def _echo_network(cluster: Cluster) -> Network:
    """Return the network of Echo's formulas, fitted to measured collectives."""
    from ..topo.collectives.calibration import ANY
    from ..topo.collectives.echo_network import EchoNetwork
    from ..topo.nccl_system import cluster_system

    if cluster.graph is not None:
        raise InputError(
            f"network.model is 'echo', but {cluster.title} lists its links in {cluster.graph}, "
            "which this model does not look at; use model = 'nccl'"
        )
    system = cluster_system(cluster)
    names = (cluster.nccl.platform, cluster.nccl.kindred, system.arch, ANY)
    return EchoNetwork(system, [each for each in names if each is not None])


def _nccl_network(
    cluster: Cluster, nodes: int, choice: NetworkChoice, folder: Path | None
) -> Network:
    from ..topo.changes import apply_changes
    from ..topo.link_library import check_fabric
    from ..topo.nccl_network import NcclNetwork

    if choice.first_step and (cluster.fabric is None or cluster.fabric.ports is None):
        raise InputError(
            f"network.first_step is true, but {cluster.title} has no circuits that a first step "
            "would set up; it needs fabric.kind = 'circuit'"
        )
    topology = _without_relays(cluster, choice).topology(nodes)
    if choice.changes:
        topology = apply_changes(topology, choice.changes)
    if cluster.has_direct_gpus(topology):
        return _direct(cluster, choice, topology)
    check_fabric(topology, choice.algorithm, choice.ring_order)
    nccl, factor = nccl_model(cluster, choice, folder, topology)
    # A graph's nodes are as their links say, unless its file says where such were measured.
    measured = cluster.graph is None or cluster.nccl.platform is not None
    found = NcclNetwork(
        nccl,
        topology,
        factor,
        measured=measured,
        meshed=nccl.system.intra in MESHES,
        dimensions=choice.algorithm == "dimensions",
        by_fabric=choice.ring_order == "fabric",
        latency=cluster.latency,
        switches_follow=cluster.fabric is not None and switches_follow(cluster.fabric),
    )
    if cluster.graph is not None and cluster.node is not None:
        found.notes = (*found.notes, GRAPH_NOTE)
    return found


def _without_relays(cluster: Cluster, choice: NetworkChoice) -> Cluster:
    """Return the cluster without ways over other GPUs where a variable switches PXN off."""
    from ..topo.nccl import Settings

    if cluster.node is None or Settings.of(choice.nccl).pxn_level:
        return cluster
    return replace(cluster, node=replace(cluster.node, pxn=False))


def _direct(cluster: Cluster, choice: NetworkChoice, topology: Topology) -> Network:
    """Return the network of GPUs that are connected to a fabric without NICs."""
    from ..topo.circuits import Circuits
    from ..topo.link_library import LinkLibrary
    from ..topo.nccl_network import NcclNetwork

    for key in ("nccl", "calibration"):
        if getattr(choice, key):
            raise InputError(
                f"network.{key} is given, but the GPUs of {cluster.title} have no NICs: NCCL's "
                "model does not apply to them"
            )
    algorithm = None if choice.algorithm == "library" else choice.algorithm
    fabric = cluster.fabric
    circuits = None
    if fabric is not None and fabric.ports is not None and fabric.setup_latency is not None:
        setup = cluster.latency * fabric.setup_latency.si
        circuits = Circuits(
            fabric.ports, picoseconds(setup), fabric.setup_latency, choice.first_step
        )
        # Trees and PAT need circuits besides those of rings, which then evict one another.
        algorithm = algorithm or "ring"
    buffer = None if fabric is None or fabric.buffer is None else fabric.buffer.si
    library = LinkLibrary(topology, cluster.gpus_per_node, algorithm, choice.ring_order, buffer)
    return NcclNetwork(
        library, topology, library.factor, latency=cluster.latency, circuits=circuits
    )


class ErrorFactor(Protocol):
    """The factor that times of NCCL's model depend on, 1 with its error bar, by message size."""

    def __call__(self, bytes: float, regime: Regime | None = None) -> Quantity:
        """Return the factor for messages of a size."""
        ...


def nccl_model(
    cluster: Cluster,
    choice: NetworkChoice,
    folder: Path | None = None,
    topology: Topology | None = None,
) -> tuple[Nccl, ErrorFactor]:
    """Cluster → NCCL's model with the calibration of machines like it. Local.

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
        From a number of bytes, and whether groups stand ``"inside"`` a node or ``"across"`` nodes
        (None: the less certain), to the factor that such times depend on: 1 with its error bar.
    """
    from ..topo.collectives.calibration import (
        ANY,
        CollectiveCalibration,
        calibration_of,
        packaged_calibration,
    )
    from ..topo.nccl import Factors, Nccl, Settings
    from ..topo.nccl.shape import REGIMES
    from ..topo.nccl_system import changed_system, cluster_system, listed_system

    if cluster.graph is not None:
        system = listed_system(cluster, topology or cluster.topology())
    else:
        system = cluster_system(cluster)
        if topology is not None:
            system = changed_system(system, topology)
    calibration = (
        CollectiveCalibration.read((folder or Path()) / choice.calibration)
        if choice.calibration
        else packaged_calibration()
    )
    kindred = cluster.nccl.kindred
    known = calibration.tables.keys() | packaged_calibration().tables.keys()
    if kindred is not None and kindred not in known:
        raise InputError(
            f"{cluster.title}: nccl.kindred is {kindred!r}{nearest(kindred, sorted(known))}; it "
            "must be a table of the calibration"
        )
    names = [each for each in (cluster.nccl.platform, kindred) if each is not None]
    found = calibration_of(calibration, (*names, system.arch, ANY))

    def factor(bytes: float, regime: Regime | None = None) -> Quantity:
        regimes = REGIMES if regime is None else (regime,)
        errors = {each: float(found.error(np.array([bytes]), each)[0]) for each in regimes}
        worst = max(regimes, key=errors.__getitem__)
        source = f"{found.sources[worst]}: curves that the fit did not see"
        return Quantity(1, "1", errors[worst], source)

    variables = choice.nccl | ({} if choice.algorithm == "library" else {"NCCL_ALGO": "ring"})
    factors = Factors(**found.numbers, latency=cluster.latency)
    return Nccl(system, Settings.of(variables), factors), factor
