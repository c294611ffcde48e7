"""The tables of an experiment besides ``[model]`` and ``[plan]``: one dataclass a table.

`ClusterChoice`, `ScaleChoice`, `DataChoice`, `KernelChoice`, `NetworkChoice`, `OverlapChoice`,
`VariationChoice`, `CalibrationChoice`, `PriceChoice` and `RunChoice` are ``[cluster]`` to
``[run]``, in the order in which a prediction uses them. Their fields are the keys; `__post_init__`
refuses keys of one table that contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.rank_ranges import parse_ranges
from ..base.schema import Example, Limits, build
from ..kernels import gpu_name
from ..topo import find_cluster
from ..topo.speeds import SPEEDS
from .models import Count

__all__ = [
    "CalibrationChoice",
    "ClusterChoice",
    "DataChoice",
    "KernelChoice",
    "Loader",
    "NetworkChoice",
    "OverlapChoice",
    "PriceChoice",
    "RunChoice",
    "ScaleChoice",
    "VariationChoice",
    "data_choice",
]

MAX_GPUS = 10_000_000
"""Of a cluster."""

Spread = Annotated[float, Limits(least=0, most=1)]
Speed = Annotated[float, Limits(least=0.001, most=1000)]
Seed = Annotated[int, Limits(least=0, most=2**63 - 1)]
Factor = Annotated[float, Limits(least=0.01, most=100)]
Bandwidth = Annotated[str, Example("400 Gb/s")]
LinkChange = Annotated[str, Example("50 %")]
Loader = Literal[
    "pillow", "pillow-simd", "opencv", "mxnet", "tf-data", "dali-cpu", "dali-gpu", "ffcv"
]
"""Libraries that decode and crop images; `DataChoice.loader`."""

Dollars = Annotated[float, Limits(least=0, most=1e9)]


@frozen
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
        What one GPU sends over all its NVLink or xGMI, one direction, usable: ``"371 GB/s"``,
        not the 900 of an H100's data sheet, which are both directions and what the wire carries.
    pcie_bandwidth : str, optional
        Of one PCIe connection, one direction, usable: ``"63 GB/s"``. A NIC is no faster than its.
    nics : int, optional
        NICs of a node.
    gpus_per_node : int, optional
        GPUs that the fast links join.
    oversubscription : float, optional
        What the NICs of a full leaf switch can send over what the leaf can send on.
    """

    preset: str
    nodes: Count = 1
    gpus: Annotated[int, Limits(least=1, most=MAX_GPUS)] | None = None
    other_gpus: dict[str, str] = field(default_factory=dict)
    nic_bandwidth: Bandwidth | None = None
    link_bandwidth: Bandwidth | None = None
    pcie_bandwidth: Bandwidth | None = None
    nics: Count | None = None
    gpus_per_node: Count | None = None
    oversubscription: Annotated[float, Limits(least=1, most=1000)] | None = None

    def __post_init__(self) -> None:
        known: set[int] = set()
        for nodes in self.other_gpus:
            for node in parse_ranges(nodes, "other_gpus", "node", self.nodes):
                if node in known:
                    raise InputError(f"other_gpus: node {node} is given GPUs twice")
                known.add(node)

    @property
    def speeds(self) -> dict[str, str | float]:
        """The keys given that replace numbers of the cluster."""
        return {key: getattr(self, key) for key in SPEEDS if getattr(self, key) is not None}

    @property
    def node_gpus(self) -> int:
        """GPUs of a node: `gpus_per_node`, or else those of the cluster's file."""
        return self.gpus_per_node or find_cluster(self.preset).gpus_per_node


@frozen
class ScaleChoice:
    """What if parts of the hardware were faster or slower: factors on what is known of them.

    The share of a peak that kernels and collectives were measured to reach stays; the peak changes.

    Attributes
    ----------
    hbm_bandwidth : float
        Of the GPUs' memory.
    matrix_rate : float
        Of matrix products in every format; the clock stays, and what limits the power.
    link_bandwidth : float
        Of NVLink or xGMI.
    nic_bandwidth : float
        Of the NICs; a fabric that does not block follows, the links of others stay.
    pcie_bandwidth : float
        Of PCIe: to the host's memory, to the NICs, between GPUs without other links.
    switch_bandwidth : float
        Of the links between switches, or of those of a torus, a mesh or a wafer.
    latency : float
        Of communications: starts, steps, links and switches, circuits that are set up. Above 1:
        longer.
    communications : float
        Speed of communications whose durations a program file has, as recordings do.
    host_memory_bandwidth : float
        Of the memory of the host's CPUs, which update what is offloaded.
    data_loading : float
        How fast the host prepares images (``[data]``).
    launch_time : float
        Of the CPU: launching calls, what the framework does between them, and the time until a
        kernel starts. Above 1: longer.
    memory : float
        Capacity of the GPUs' memory.
    """

    hbm_bandwidth: Factor = 1.0
    matrix_rate: Factor = 1.0
    link_bandwidth: Factor = 1.0
    nic_bandwidth: Factor = 1.0
    pcie_bandwidth: Factor = 1.0
    switch_bandwidth: Factor = 1.0
    latency: Factor = 1.0
    communications: Factor = 1.0
    host_memory_bandwidth: Factor = 1.0
    data_loading: Factor = 1.0
    launch_time: Factor = 1.0
    memory: Factor = 1.0

    @property
    def changes(self) -> dict[str, float]:
        """The factors that are not 1, by key."""
        return {key: factor for key, factor in vars(self).items() if factor != 1}


@frozen
class DataChoice:
    """Where the images of a step come from. Tokens that were made before cost nothing.

    Attributes
    ----------
    images : {"synthetic", "jpeg"}
        Made once and kept on the GPU, or prepared for each step by the CPUs of the node: decoded,
        cropped, resized, flipped and copied to the GPU, while the step before runs. They are
        taken to lie in the node's memory.
    loader : str
        The library that prepares them: "pillow" and "pillow-simd" by workers of PyTorch's
        DataLoader, "opencv" by workers in Python, "mxnet" (ImageRecordIter), "tf-data", "dali-cpu",
        "dali-gpu" (nvJPEG: the CPU decodes Huffman codes alone), "ffcv".
    workers : int, optional
        Threads or processes of the loader for each GPU; as many as there are cores if not given.
    augmentation : {"crop", "colour"}
        Crops and flips alone, or changes of colours as well.
    megapixels : float, optional
        Of a stored image, in the mean; that of ImageNet if not given. Decoding takes as long as
        there are pixels.
    cores : int, optional
        Cores of the CPUs of a node (of a tray of a rack) that the loader may use, in place of the
        cluster's.
    clock : float, optional
        Their base clock in GHz, in place of the cluster's.
    """

    images: Literal["synthetic", "jpeg"] = "synthetic"
    loader: Loader = "pillow"
    workers: Count | None = None
    augmentation: Literal["crop", "colour"] = "crop"
    megapixels: Annotated[float, Limits(least=0.001, most=1000)] | None = None
    cores: Count | None = None
    clock: Annotated[float, Limits(least=0.5, most=10)] | None = None


def data_choice(table: Mapping[str, Any], source: str) -> DataChoice:
    """``[data]`` of a traced step → its choice, which must say where images come from.

    Parameters
    ----------
    table : mapping
        As read from TOML.
    source : str
        For error messages.

    Raises
    ------
    InputError
        For a key that has no effect, since nothing prepares images.
    """
    choice = build(DataChoice, table, source, "data")
    if "images" not in table and table:
        raise InputError(
            f"{source}: data.{next(iter(table))} has no effect: data.images is "
            f"{choice.images!r}, its default; data.images = 'jpeg' lets CPUs prepare images"
        )
    return choice


@frozen
class KernelChoice:
    """How long kernels take.

    Attributes
    ----------
    model : {"analytical", "roofline", "li", "simai", "database"}
        Formulas of each family of operators with constants fitted to measured kernels; the slower
        of arithmetic and memory traffic at a typical share of each peak; or, from `measurements`:
        Li's regression lines, SimAI's scaling of another GPU's times, the times themselves.
    calibration : str, optional
        Constants of the analytical model: a file that ``mpisim calibrate kernels`` has written, its
        path relative to the experiment's. Those that come with mpisim if not given.
    gpu : str, optional
        A GPU of ``mpisim list gpus``, or the path of a TOML file with one, in place of the
        cluster's own.
    measurements : tuple of str
        Tables of measured kernels (docs/kernels.md) that the models ``li``, ``simai`` and
        ``database`` learn from; paths relative to the experiment's.
    """

    model: Literal["analytical", "roofline", "li", "simai", "database"] = "analytical"
    calibration: str | None = None
    gpu: str | None = None
    measurements: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        learns = self.model not in ("analytical", "roofline")
        if learns and not self.measurements:
            raise InputError(
                f"model = {self.model!r} learns from measured kernels: give measurements, "
                "a list of CSV files (docs/kernels.md)"
            )
        if self.measurements and not learns:
            raise InputError(f"measurements is given; model = {self.model!r} has no use for it")


@frozen
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
    first_step : bool
        Of a fabric of optical circuits: whether the step is the first, before which no circuit
        stands; otherwise one of many equal ones.
    """

    model: Literal["nccl", "alpha-beta", "echo"] = "nccl"
    algorithm: Literal["library", "ring", "dimensions"] = "library"
    ring_order: Literal["ranks", "fabric"] | None = None
    contention: bool = True
    changes: dict[str, LinkChange] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)
    calibration: str | None = None
    first_step: bool = False

    def __post_init__(self) -> None:
        if self.model == "nccl":
            if self.algorithm != "library" and "NCCL_ALGO" in self.nccl:
                raise InputError(
                    f"algorithm is {self.algorithm!r} and nccl.NCCL_ALGO is given; give one of them"
                )
            return
        if self.algorithm != "library":
            raise InputError(f"algorithm is given; model = {self.model!r} has no use for it")
        for key in ("ring_order", "changes", "nccl", "calibration", "first_step"):
            if getattr(self, key):
                raise InputError(f"{key} is given; model = {self.model!r} has no use for it")


@frozen
class OverlapChoice:
    """How kernels and communications that run at the same time slow each other.

    Attributes
    ----------
    model : {"static", "coupled", "off"}
        Slowed by what ran beside them in a step without slowdown; repeated until durations and
        what overlaps agree; or not slowed.
    calibration : str, optional
        Constants of the slowdown: a file that ``mpisim calibrate overlap`` has written, its path
        relative to the experiment's. Those that come with mpisim if not given.
    pairs : str, optional
        A table of measured pairs (CSV, docs/overlap.md), from which to learn how much kernels and
        communications slow each other, in place of the constants; needs mpisim[learn].
    passes : int
        Of a coupled run, at most.
    """

    model: Literal["static", "coupled", "off"] = "static"
    calibration: str | None = None
    pairs: str | None = None
    passes: Annotated[int, Limits(least=1, most=1000)] = 50

    def __post_init__(self) -> None:
        if self.model == "off":
            for key in ("calibration", "pairs"):
                if getattr(self, key):
                    raise InputError(f"{key} is given; model = 'off' has no use for it")


@frozen
class VariationChoice:
    """How GPUs and kernels differ from what they should be.

    Attributes
    ----------
    kernels : float
        Jitter: standard deviation of the logarithm of a random factor on each kernel of each GPU.
        Factors are lognormal with mean 1.
    gpus : float
        The same for a factor that all kernels of a GPU share.
    slowest : bool, optional
        Whether matrix products, convolutions and attention take as long as on the slowest GPU to be
        expected among all of the run, which the others wait for (`mpisim.prediction.variation`).
        Nothing is drawn: by default it takes the place of `gpus` where that is 0.
    seed : int
        Of both. The same seed gives the same factors, on any number of processes.
    speeds : mapping of str to float
        Speeds of single GPUs, by rank: ``"3" = 0.9``, ``"8-15,20" = 0.5``; those not named have
        speed 1.
    """

    kernels: Spread = 0.0
    gpus: Spread = 0.0
    slowest: bool | None = None
    seed: Seed = 0
    speeds: dict[str, Speed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for ranks in self.speeds:
            parse_ranges(ranks, "speeds", "rank")
        if self.slowest and self.gpus:
            raise InputError("slowest is true and gpus is above 0; allowed: one of the two")

    @property
    def waits_for_slowest(self) -> bool:
        """Whether products take as long as on the slowest GPU to be expected."""
        return not self.gpus if self.slowest is None else self.slowest

    @property
    def random(self) -> bool:
        """Whether another seed gives another answer."""
        return self.kernels > 0 or self.gpus > 0


@frozen
class CalibrationChoice:
    """Constants fitted to measured steps; launches are those of ``framework.name``.

    Attributes
    ----------
    file : str, optional
        A file that ``mpisim calibrate e2e`` has written, its path relative to the experiment's, or
        ``"ours"``: the one that comes with mpisim. Nothing is fitted to steps if not given.
    """

    file: str | None = None


@frozen
class PriceChoice:
    """What the cluster costs, in place of what ``data/prices.toml`` says. It changes no step time.

    Attributes
    ----------
    contract : {"on-demand", "reserved", "owned"}
        GPUs rented by the hour, for a year or more, or bought.
    gpu_hour : float, optional
        US dollars of an hour of a GPU, its part of the node and the network included.
    gpu_hours : mapping of str to float
        The same for single kinds of GPUs: ``h100-sxm = 2.5``.
    kwh : float, optional
        US dollars of a kWh; of GPUs that are bought.
    pue : float, optional
        What the building draws for each watt of the machines.
    node : float, optional
        US dollars to buy a node with its GPUs and NICs.
    years : float, optional
        After which what was bought is worth nothing.
    """

    contract: Literal["on-demand", "reserved", "owned"] = "on-demand"
    gpu_hour: Dollars | None = None
    gpu_hours: dict[str, Dollars] = field(default_factory=dict)
    kwh: Dollars | None = None
    pue: Annotated[float, Limits(least=1, most=10)] | None = None
    node: Dollars | None = None
    years: Annotated[float, Limits(least=0.01, most=100)] | None = None

    def __post_init__(self) -> None:
        for name in self.gpu_hours:
            gpu_name(name)


@frozen
class RunChoice:
    """How to run it.

    Attributes
    ----------
    allow_oom : bool
        Whether to simulate a plan that does not fit into the GPUs' memory.
    """

    allow_oom: bool = False
