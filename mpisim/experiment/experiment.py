"""One experiment: a model, a plan, a cluster, and how to predict them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ..base.errors import InputError
from ..base.rank_ranges import span
from ..base.schema import Limits
from .models import Count, Model
from .overlap import OverlapChoice
from .plan import Plan
from .published import Published
from .variation import VariationChoice

__all__ = [
    "CalibrationChoice",
    "ClusterChoice",
    "Experiment",
    "KernelChoice",
    "NetworkChoice",
    "RunChoice",
    "with_defaults_kept",
]


MOST_GPUS = 10_000_000
"""Of a cluster."""


@dataclass(frozen=True)
class ClusterChoice:
    """Where it runs.

    Attributes
    ----------
    preset : str
        A cluster of ``mpisim list clusters``, or the path of a TOML file with one.
    nodes : int
    gpus : int, optional
        GPUs to use, from the first node on; all of them if not given.
    other_gpus : mapping of str to str
        Nodes with other GPUs than the cluster's: ``"4-7" = "a100-sxm"``, a GPU of ``mpisim list
        gpus`` or the path of a TOML file with one. Their links are those of the cluster.
    nic_bandwidth : str, optional
        Line rate of one NIC, one direction, in place of the cluster's: ``"800 Gb/s"``.
    link_bandwidth : str, optional
        What one GPU sends over all its NVLink or xGMI, one direction, usable: ``"900 GB/s"``.
    pcie_bandwidth : str, optional
        Of one PCIe connection, one direction, usable: ``"63 GB/s"``. A NIC is no faster than its.
    nics : int, optional
        NICs of a node.
    """

    preset: str
    nodes: Count = 1
    gpus: Annotated[int, Limits(least=1, most=MOST_GPUS)] | None = None
    other_gpus: dict[str, str] = field(default_factory=dict)
    nic_bandwidth: str | None = None
    link_bandwidth: str | None = None
    pcie_bandwidth: str | None = None
    nics: Count | None = None

    def __post_init__(self) -> None:
        known: set[int] = set()
        for nodes in self.other_gpus:
            for node in span(nodes, "other_gpus", "node", self.nodes):
                if node in known:
                    raise InputError(f"other_gpus: node {node} is given GPUs twice")
                known.add(node)

    @property
    def speeds(self) -> dict[str, str | int]:
        """The keys given that replace numbers of the cluster's nodes."""
        keys = ("nic_bandwidth", "link_bandwidth", "pcie_bandwidth", "nics")
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}


@dataclass(frozen=True)
class KernelChoice:
    """How long kernels take.

    Attributes
    ----------
    model : {"analytical", "roofline"}
        Formulas of each family of operators with constants fitted to measured kernels, or the
        slower of arithmetic and memory traffic at a typical share of each peak.
    calibration : str, optional
        Constants of the analytical model: a file that ``mpisim calibrate kernels`` has written, its
        path relative to the experiment's. Those that come with mpisim if not given.
    gpu : str, optional
        A GPU of ``mpisim list gpus``, or the path of a TOML file with one, in place of the
        cluster's own.
    """

    model: Literal["analytical", "roofline"] = "analytical"
    calibration: str | None = None
    gpu: str | None = None


@dataclass(frozen=True)
class NetworkChoice:
    """How long communications take.

    Attributes
    ----------
    model : {"nccl", "alpha-beta", "echo"}
        NCCL's own choices of algorithm and protocol on the links of the cluster, with factors
        calibrated on measured collectives (where GPUs are joined to a fabric without NICs, what the
        links allow); two latencies and two bandwidths; or, for comparison, Echo's formulas.
    algorithm : {"library", "ring", "dimensions"}
        Of all-reduces, all-gathers and reduce-scatters: the library's choice; rings; or dimension
        by dimension, on a torus, a mesh or a wafer, where a group fills a block of it.
    ring_order : {"ranks", "fabric"}, optional
        How GPUs follow each other in rings: as ranks do, or along the fabric. By default as ranks
        do, as with NCCL; where there are no NICs whichever is faster.
    contention : bool
        Whether communications that use one link at the same time share it; otherwise each is as
        fast as alone.
    changes : mapping of str to str
        Links to slow, ``"links.node0.nic3->*.bandwidth" = "50 %"``, or to cut,
        ``"links.node0.nic3->*" = "cut"``; names are those of ``mpisim topo show``.
    nccl : mapping of str to str
        NCCL's variables: ``NCCL_ALGO = "ring"``.
    calibration : str, optional
        Factors of NCCL's model: a file that ``mpisim calibrate collectives`` has written, its path
        relative to the experiment's. Those that come with mpisim if not given.
    """

    model: Literal["nccl", "alpha-beta", "echo"] = "nccl"
    algorithm: Literal["library", "ring", "dimensions"] = "library"
    ring_order: Literal["ranks", "fabric"] | None = None
    contention: bool = True
    changes: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)
    calibration: str | None = None

    def __post_init__(self) -> None:
        if self.model == "nccl":
            if self.algorithm != "library" and "NCCL_ALGO" in self.nccl:
                raise InputError(
                    f"algorithm is {self.algorithm!r} and nccl.NCCL_ALGO is given; give one of them"
                )
            return
        if self.algorithm != "library":
            raise InputError(f"algorithm is given; model = {self.model!r} has no use for it")
        for key in ("ring_order", "changes", "nccl", "calibration"):
            if getattr(self, key):
                raise InputError(f"{key} is given; model = {self.model!r} has no use for it")


@dataclass(frozen=True)
class CalibrationChoice:
    """Constants fitted to measured steps.

    Attributes
    ----------
    file : str, optional
        A file that ``mpisim calibrate e2e`` has written, its path relative to the experiment's, or
        ``"ours"``: the one that comes with mpisim. Nothing is fitted to steps if not given.
    framework : str, optional
        The framework whose launches and overhead of a step to take: a name under ``host`` in the
        file.
    """

    file: str | None = None
    framework: str | None = None


@dataclass(frozen=True)
class RunChoice:
    """How to run it.

    Attributes
    ----------
    allow_oom : bool
        Whether to simulate a plan that does not fit into the GPUs' memory.
    """

    allow_oom: bool = False


@dataclass(frozen=True)
class Experiment:
    """All of one experiment.

    Attributes
    ----------
    model : Transformer, Cnn or Dlrm
    plan : Plan
    cluster : ClusterChoice
    kernels : KernelChoice
    network : NetworkChoice
    overlap : OverlapChoice
    variation : VariationChoice
    calibration : CalibrationChoice
    run : RunChoice
    published : Published
        What the source of the experiment reports.
    title : str
    source : str
        The file it was read from, for messages.
    defaulted : mapping of str to object
        Keys that neither the file nor the command line gave, by full name (``"plan.bucket"``), with
        their defaults; those of the model are left out.
    given : mapping of str to object
        The tables as the file and the command line gave them.
    config_length : str
        The config.json that `seq_len` of the model was read from; empty where it was given, or
        comes with a preset.
    """

    model: Model
    plan: Plan
    cluster: ClusterChoice
    kernels: KernelChoice = field(default_factory=KernelChoice)
    network: NetworkChoice = field(default_factory=NetworkChoice)
    overlap: OverlapChoice = field(default_factory=OverlapChoice)
    variation: VariationChoice = field(default_factory=VariationChoice)
    calibration: CalibrationChoice = field(default_factory=CalibrationChoice)
    run: RunChoice = field(default_factory=RunChoice)
    published: Published = field(default_factory=Published)
    title: str = "experiment"
    source: str = "experiment"
    defaulted: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    given: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    config_length: str = field(default="", compare=False, repr=False)

    def left_to_defaults(self) -> dict[str, object]:
        """Return the keys that were not given and have kept their defaults, with these."""
        return with_defaults_kept(self, self.defaulted)


def with_defaults_kept(tables: object, defaulted: Mapping[str, object]) -> dict[str, object]:
    """Return those of some keys, by full name, that have their defaults in an experiment."""
    found = {}
    for key, value in defaulted.items():
        used: object = tables
        for name in key.split("."):
            used = getattr(used, name)
        if used == value:
            found[key] = value
    return found
