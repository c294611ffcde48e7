"""Experiment → its cluster, its kinds of GPUs, and the kind of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.rank_ranges import parse_ranges
from ..experiment import ClusterChoice, Cnn, Experiment, ScaleChoice, with_keys
from ..kernels import Gpu, find_gpu
from ..kernels.scaled import scaled_gpu
from ..topo import Cluster, find_cluster
from ..topo.scaled import LINK_SCALES, scaled_cluster
from ..topo.speeds import with_speeds

__all__ = [
    "Hardware",
    "check_speeds",
    "gpu_kinds",
    "gpus_of",
    "hardware_of",
    "link_excess",
    "with_convolutions",
    "with_scale",
]

BEYOND_LINKS = "is more than the GPU's links carry"
"""Of a bandwidth of a cluster; the report shows assumptions that say so."""


class Hardware(NamedTuple):
    """The cluster and the GPUs of an experiment.

    Attributes
    ----------
    cluster : Cluster
    named : dict of str to Gpu
        As `gpus_of`.
    gpus : int
        Number of GPUs used.
    """

    cluster: Cluster
    named: dict[str, Gpu]
    gpus: int


def hardware_of(experiment: Experiment) -> Hardware:
    """Experiment → its cluster and GPUs, looked up by name.

    Raises
    ------
    InputError
        If some is unknown, the cluster has fewer GPUs than it is to use, or cannot have the speeds
        that are given.
    """
    choice = experiment.cluster
    check_speeds(choice.speeds, experiment.network.model)
    cluster = with_speeds(find_cluster(choice.preset), choice.speeds)
    cluster = with_scale(cluster, experiment.scale, experiment.network.model)
    available = choice.nodes * cluster.gpus_per_node
    if choice.gpus is not None and choice.gpus > available:
        raise InputError(
            f"cluster.gpus is {choice.gpus}, but {choice.nodes} nodes of {choice.preset!r} "
            f"have {available}; give nodes = {-(-choice.gpus // cluster.gpus_per_node)}"
        )
    return Hardware(cluster, gpus_of(experiment, cluster), choice.gpus or available)


def check_speeds(speeds: Mapping[str, str | float], model: str) -> None:
    """Refuse speeds of links where the chosen network model does not use them.

    Parameters
    ----------
    speeds : mapping of str to str or float
        Keys of `mpisim.topo.speeds.SPEEDS` that were given; none are never refused.
    model : str
        As of ``network.model``.

    Raises
    ------
    InputError
    """
    if speeds and model == "echo":
        raise InputError(
            f"cluster.{next(iter(speeds))} is given; network.model = 'echo' has no use for it: "
            "it takes the times of measured collectives"
        )
    if speeds and model == "alpha-beta":
        raise InputError(
            f"cluster.{next(iter(speeds))} is given; network.model = 'alpha-beta' has no use for "
            "it: it takes the bandwidths of the cluster's [alpha_beta]"
        )


def with_scale(cluster: Cluster, scale: ScaleChoice, model: str) -> Cluster:
    """Cluster, factors of ``[scale]`` → the cluster with its links scaled.

    Parameters
    ----------
    cluster : Cluster
        With the speeds that were given.
    scale : ScaleChoice
    model : str
        As of ``network.model``.

    Raises
    ------
    InputError
        If the network model does not look at links, or the cluster lists them in a file.
    """
    given = [key for key in scale.changes if key in LINK_SCALES and key != "pcie_bandwidth"]
    if given and model == "echo":
        raise InputError(
            f"scale.{given[0]} is given; network.model = 'echo' has no use for it: it takes the "
            "times of measured collectives"
        )
    return scaled_cluster(cluster, scale.changes)


def link_excess(cluster: Cluster, gpu: Gpu) -> str | None:
    """Cluster, its GPU → warning that links are faster than the GPU can send; None if they are not.

    Data sheets add up both directions of NVLink: the 900 GB/s of an H100 are 450 each way.

    Parameters
    ----------
    cluster : Cluster
    gpu : Gpu
        Its `nvlink` is the highest rate at which it sends, one direction.
    """
    node = cluster.node
    given = None if node is None or node.kind == "direct" else node.link_bandwidth
    if given is None or gpu.nvlink is None or given.si <= gpu.nvlink.si:
        return None
    return (
        f"a link_bandwidth of {given.si / 1e9:.4g} GB/s {BEYOND_LINKS}: {gpu.title} sends "
        f"{gpu.nvlink.si / 1e9:.4g} GB/s over NVLink or xGMI in one direction (data sheets add up "
        "both)"
    )


def gpus_of(experiment: Experiment, cluster: Cluster) -> dict[str, Gpu]:
    """Return the cluster's GPU by its name, then the other ones that some nodes have.

    Parameters
    ----------
    experiment : Experiment
        Its ``kernels.gpu``, if given, replaces the cluster's GPU.
    cluster : Cluster

    Raises
    ------
    InputError
        If one is unknown, or cannot compute in the plan's format.
    """
    names = [experiment.kernels.gpu or cluster.gpu, *experiment.cluster.other_gpus.values()]
    factors = experiment.scale.changes
    found = {name: scaled_gpu(find_gpu(name), factors) for name in names}
    for gpu in found.values():
        gpu.peak(experiment.plan.precision.products)
    return found


def gpu_kinds(
    choice: ClusterChoice, cluster: Cluster, gpus: dict[str, Gpu]
) -> NDArray[np.int64] | None:
    """Return the kind of each GPU of the cluster, as index in `gpus`; None if all are the first.

    Parameters
    ----------
    choice : ClusterChoice
    cluster : Cluster
    gpus : dict of str to Gpu
        As `gpus_of` returns them.

    Returns
    -------
    int64, shape (nodes * GPUs of a node,), or None
    """
    if len(gpus) == 1:
        return None
    kinds = np.zeros(choice.nodes, np.int64)
    for nodes, name in choice.other_gpus.items():
        kinds[parse_ranges(nodes, "cluster.other_gpus", "node", choice.nodes)] = list(gpus).index(
            name
        )
    return np.repeat(kinds, cluster.gpus_per_node)


def with_convolutions(experiment: Experiment, gpus: Mapping[str, Gpu]) -> Experiment:
    """Experiment → the same with the number format of its convolutions (fp32 or TF32) filled in.

    PyTorch lets cuDNN compute convolutions of fp32 tensors in TF32 where the GPU can
    (``torch.backends.cudnn.allow_tf32`` is True), other products not
    (``torch.backends.cuda.matmul.allow_tf32`` is False).

    It lets it, no more: of algorithms for cores and for matrix units cuDNN takes the faster
    (CUDNN_DEFAULT_MATH, cudnnFind and cudnnGet in its API reference). Cores take images as they
    are, and with Winograd's algorithm less than half of the multiplications. They are faster where
    the channels of images are first and matrix units, for which these are turned, have no higher
    rate in TF32 than cores in fp32, as on GeForce boards.

    Parameters
    ----------
    experiment : Experiment
    gpus : mapping of str to Gpu
        As `gpus_of`. One program is written for all: if one kind of them has no TF32, none uses it.

    Raises
    ------
    InputError
        If the model has no convolutions, or a GPU not the format that is requested.
    """
    plan = experiment.plan
    chosen = plan.precision.convolutions
    if not isinstance(experiment.model, Cnn):
        if chosen is not None:
            raise InputError("plan.precision.convolutions is given; only CNNs have convolutions")
        return experiment
    if chosen is not None:
        for gpu in gpus.values():
            gpu.peak(chosen)
        return experiment
    if plan.precision.products not in ("fp32", "tf32"):
        return experiment
    turned = plan.framework.image_layout == "channels-first"
    units = all("tf32" in gpu.formats for gpu in gpus.values()) and not (
        turned and all(gpu.peak("fp32").si >= gpu.peak("tf32").si for gpu in gpus.values())
    )
    wanted = "tf32" if units else "fp32"
    if wanted == plan.precision.products:
        return experiment
    return replace(experiment, plan=with_keys(plan, {"precision.convolutions": wanted}))
