"""Measurement → platform: the machine it was taken on, as NCCL sees it.

A platform is a GPU, a kind of node and a fabric. ``data/platforms.toml`` says by which words of a
table it is known. Rows of machines that are not there fall back on their GPU's architecture, with
the NICs that the row itself names ("8x400G NDR IB"); their factors are their family's, which is the
architecture and the kind of fabric. All measurements of a user may also be of one platform, which
the user names (`single_platform`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Literal

from mpisim.base.errors import InputError, UsageError, nearest
from mpisim.base.frozen import frozen
from mpisim.base.presets import match_name, normalized_name, packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

from ..cluster import Cluster, find_cluster
from ..nccl import Shape, System, version_of
from ..nccl.rccl import rccl_arch
from ..nccl_system import cluster_system
from .calibration import (
    ANY,
    DEEPEP,
)
from .measurement import Measurement

__all__ = [
    "FILE",
    "Definition",
    "Platform",
    "definitions",
    "fabric_of",
    "platform_name",
    "platform_of",
    "shape_of",
    "single_platform",
]

FILE = "platforms.toml"

GPUS = "gpus.toml"

FABRIC_WORDS = (
    ("tcpx", r"TCPX"),
    ("tcp", r"\bTCP\b"),
    ("efa", r"\bEFA"),
    ("slingshot", r"Slingshot"),
    ("roce", r"RoCE|AINIC|Pollara"),
    ("infiniband", r"\bIB\b|InfiniBand|HDR|NDR|XDR|CX7"),
)
"""Kinds of fabrics, and words that tell them; the first that fits is taken."""


@frozen
class Definition:
    """One table of ``data/platforms.toml``.

    Attributes
    ----------
    cluster : str
        The preset that NCCL's model starts from.
    gpus, across, notes, libraries : tuple of str
        Starts of the GPU's name, parts of what a row says of the network, regular expressions found
        in its notes, and names of what ran. All that are given must fit.
    archs : tuple of str
        Architectures of GPUs that no other table has.
    teaches : str
        Whose numbers are fitted to its rows beside its own: ``"all"``; ``"family"`` alone, where it
        is a network of last resort; ``"none"``, where its network is a guess or its times hold more
        than the communication.
    own_nics : bool
        Whether the NICs that a row names replace the preset's.
    nccl : str
        Version where a row states none.
    fabric : str
        Kind of fabric, where a row's words do not tell.
    group : int
        GPUs that NVLink joins, where a table's "node" is a part of that; 0: nodes are nodes.
    arch, gpus_per_node, intra, link_bandwidth, nics, nic_bandwidth, nic_path, cpu
        Replace the preset's (`System`).
    """

    cluster: str
    gpus: tuple[str, ...] = ()
    across: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("nccl", "rccl")
    archs: tuple[str, ...] = ()
    teaches: Literal["all", "family", "none"] = "all"
    own_nics: bool = False
    nccl: str = "2.27"
    fabric: str = ""
    group: int = 0
    arch: str | None = None
    gpus_per_node: int | None = None
    intra: str | None = None
    link_bandwidth: Quantity | None = None
    nics: int | None = None
    nic_bandwidth: Quantity | None = None
    nic_path: str | None = None
    cpu: str | None = None

    def fits(self, gpu: str, across: str, notes: str, library: str) -> bool:
        """Whether a row with these words was taken on this platform.

        Parameters
        ----------
        gpu : str
            Name of the GPU; it must begin like one of `gpus`, in upper or lower case.
        across : str
            What joins the nodes; it must contain one of `across`, if there are any.
        notes : str
            In which one of the patterns `notes` must be found, if there are any.
        library : str
            One of `libraries`.
        """
        return (
            library in self.libraries
            and any(
                gpu.casefold().startswith((each.casefold(), normalized_name(each)))
                for each in self.gpus
            )
            and (not self.across or any(each in across for each in self.across))
            and (not self.notes or any(re.search(each, notes) for each in self.notes))
        )

    def system(self) -> System:
        """Return the platform as NCCL sees it."""
        found = cluster_system(find_cluster(self.cluster), version_of(self.nccl))
        changes: dict[str, Any] = {
            key: getattr(self, key)
            for key in ("arch", "gpus_per_node", "intra", "nics", "nic_path", "cpu")
            if getattr(self, key) is not None
        }
        for key in ("link_bandwidth", "nic_bandwidth"):
            number = getattr(self, key)
            if number is not None:
                changes[key] = number.si
        return bundled(replace(found, **changes))


@frozen
class Platform:
    """The machine a measurement was taken on.

    Attributes
    ----------
    name : str
        Of the table; of the family where no table fits.
    family : str
        Architecture, a dash, and the kind of fabric.
    arch : str
    system : System
    group : int
    teaches : str
        See `Definition`.
    behind : tuple of str
        Owners of the numbers that serve where its own do not, the narrowest first; by default its
        family, its architecture and all machines.
    """

    name: str
    family: str
    arch: str
    system: System
    group: int = 0
    teaches: str = "all"
    behind: tuple[str, ...] = ()

    def trains(self, owner: str) -> bool:
        """Whether an owner of this platform's chain may be fitted to its rows."""
        if owner == self.name or self.teaches == "all":
            return True
        return self.teaches == "family" and owner == self.family


@cache
def definitions() -> dict[str, Definition]:
    """Return the tables of ``data/platforms.toml``, in their order."""
    return {name: build(Definition, table, FILE, name) for name, table in packaged(FILE).items()}


def fabric_of(words: str) -> str:
    """Words of a row → kind of its fabric.

    Examples
    --------
    >>> fabric_of("8x400G NDR IB (400 GB/s)"), fabric_of("32x100G EFAv2 (400 GB/s)"), fabric_of("?")
    ('infiniband', 'efa', 'unknown')
    """
    if not words or words.casefold().startswith("none"):
        return "none"
    for kind, pattern in FABRIC_WORDS:
        if re.search(pattern, words):
            return kind
    return "unknown"


def platform_of(row: Measurement) -> Platform:
    """Measurement → the platform it was taken on.

    Raises
    ------
    InputError
        If its GPU is unknown.
    """
    name = _definition(row.gpu, row.across, row.notes, row.library)
    return _platform(name, row.gpu, row.across, row.version, row.gpus // row.nodes)


@lru_cache(maxsize=4096)
def _definition(gpu: str, across: str, notes: str, library: str) -> str:
    for written in (gpu, _preset_name(gpu)):
        for name, definition in definitions().items():
            if definition.fits(written, across, notes, library):
                return name
    arch = _arch(gpu)
    for name, definition in definitions().items():
        if arch in definition.archs and library in definition.libraries:
            return name
    raise InputError(f"no platform is known for {library} on GPUs of the architecture {arch!r}")


@lru_cache(maxsize=4096)
def _platform(name: str, gpu: str, across: str, version: str, per_node: int) -> Platform:
    definition = definitions()[name]
    system = definition.system()
    if system.rccl:
        system = replace(system, rccl=rccl_arch(_arch(gpu)))
    if definition.own_nics:
        system = _with_nics(system, across)
    if not definition.group and per_node > system.gpus_per_node:
        system = bundled(replace(system, gpus_per_node=per_node))
    printed = re.match(r"2\.\d+(\.\d+)?", version)
    if printed:
        system = replace(system, version=version_of(printed.group()))
    family = f"{system.arch}-{definition.fabric or fabric_of(across)}"
    return Platform(
        name=family if definition.own_nics else name,
        family=family,
        arch=system.arch,
        system=system,
        group=definition.group,
        teaches=definition.teaches,
    )


def _preset_name(gpu: str) -> str:
    """Printed name of a GPU → preset name: ``"NVIDIA H100 80GB HBM3"`` → ``"h100-sxm"``."""
    try:
        return match_name(gpu, packaged(GPUS), "GPU", "")
    except InputError:
        return normalized_name(gpu)


def _arch(gpu: str) -> str:
    """Return the family of a GPU as tables write it: ``"H100-SXM(inferred)"`` is an H100."""
    tables = packaged(GPUS)
    text = normalized_name(re.split(r"[(,]", gpu)[0])
    parts = text.split("-")
    for length in range(len(parts), 0, -1):
        try:
            found = match_name("-".join(parts[:length]), tables, "GPU", "")
        except InputError:
            continue
        return str(tables[found]["family"])
    near = nearest(text, tables)
    raise InputError(f"GPU {gpu!r} is unknown{near}")


def _with_nics(system: System, words: str) -> System:
    """Return the same with the NICs that a row names, if it names any."""
    named = re.search(r"(\d{1,9})x(\d{1,9})G\b(.*)", words)
    if named is not None:
        count, rate = int(named.group(1)), int(named.group(2)) * 1e9 / 8
        if "per GPU" in named.group(3):
            count *= system.gpus_per_node
        if count and rate:
            return bundled(replace(system, nics=count, nic_bandwidth=rate))
    return system


def bundled(system: System) -> System:
    """System → the same with no more NICs than GPUs: several small ones are one to NCCL."""
    if system.nics <= system.gpus_per_node:
        return system
    rate = system.nic_bandwidth * system.nics / system.gpus_per_node
    return replace(system, nics=system.gpus_per_node, nic_bandwidth=rate)


def shape_of(row: Measurement, platform: Platform) -> Shape:
    """Row, platform → geometry of the measurement's group.

    Parameters
    ----------
    row : Measurement
    platform : Platform
        That it was taken on. Where it has a `group`, nodes are counted by that many GPUs.

    Raises
    ------
    InputError
        If its GPUs do not spread evenly over the nodes, or several nodes have no network.
    """
    nodes = row.nodes
    if platform.group:
        nodes = -(-row.gpus // platform.group)
    if row.gpus % nodes:
        raise InputError("GPUs do not spread evenly over the nodes")
    if nodes > 1 and not platform.system.nics:
        raise InputError("several nodes without a network")
    return Shape.regular(nodes, row.gpus // nodes, platform.system)


def single_platform(name: str, cluster: Cluster | None) -> Callable[[Measurement], Platform]:
    """Return a function measurement → platform, for measurements all taken on one.

    Parameters
    ----------
    name : str
        Of the platform.
    cluster : Cluster, optional
        What it is; without it, what the measurements say of their GPUs and networks.

    Raises
    ------
    UsageError
        If it cannot be the name of a platform.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in (ANY, DEEPEP):
        raise UsageError(
            f"--platform is {name!r}; it must be letters, digits, - and _, and neither {ANY!r} nor "
            f"{DEEPEP!r}"
        )

    def where(row: Measurement) -> Platform:
        found = platform_of(row) if cluster is None else _platform_on(row, cluster)
        return replace(found, name=name, behind=owners_behind(found))

    return where


def _platform_on(row: Measurement, cluster: Cluster) -> Platform:
    """Return the platform of a measurement taken on a cluster."""
    printed = re.match(r"2\.\d+(\.\d+)?", row.version)
    system = cluster_system(cluster, version_of(printed.group()) if printed else None)
    per_node = -(-row.gpus // row.nodes)
    racks = cluster.node is not None and cluster.node.tray is not None
    if per_node > system.gpus_per_node:
        raise InputError(
            f"{row.file}: {row.gpus} GPUs on {row.nodes} nodes; the cluster has "
            f"{system.gpus_per_node} a node"
        )
    try:
        theirs = platform_of(row).arch
    except InputError:  # an unknown GPU; the user says which machine it is
        theirs = system.arch
    if theirs != system.arch:
        raise InputError(
            f"{row.file}: the GPUs are {row.gpu!r}, of the architecture {theirs}; "
            f"those of the cluster are {cluster.gpu!r}, of {system.arch}"
        )
    named = cluster.nccl.platform
    family = definitions()[named].fabric if named in definitions() else ""
    return Platform(
        name=named or f"{system.arch}-{fabric_of(row.across)}",
        family=f"{system.arch}-{family or fabric_of(row.across)}",
        arch=system.arch,
        system=system,
        group=cluster.gpus_per_node if racks else 0,
    )


def owners_behind(platform: Platform) -> tuple[str, ...]:
    """Platform → owners of constants: its own, its family, its architecture, all machines."""
    vague = (f"{platform.arch}-none", f"{platform.arch}-unknown")
    alone = not platform.system.nics
    wide = [each for each in (platform.name, platform.family) if alone or each not in vague]
    return tuple(dict.fromkeys((*wide, platform.arch, ANY)))


def platform_name(cluster: str) -> str:
    """Return the name of the platform of a cluster: its file's, without folder and ending."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", cluster.rsplit("/", 1)[-1].removesuffix(".toml"))
