"""Which GPUs an experiment has, and how its ranks differ: as numbers, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .experiment import ClusterChoice, Experiment
from .kernels import Gpu, find_gpu
from .spans import span
from .topo import Cluster, find_cluster

if TYPE_CHECKING:
    from .prediction import Case

__all__ = ["Hardware", "differences", "gpus_of", "hardware_of", "kinds_of", "left_out"]


class Hardware(NamedTuple):
    """What an experiment runs on.

    Attributes
    ----------
    cluster : Cluster
    named : dict of str to Gpu
        As `gpus_of`.
    gpus : int
        That are used.
    """

    cluster: Cluster
    named: dict[str, Gpu]
    gpus: int


def hardware_of(experiment: Experiment) -> Hardware:
    """Look up what an experiment runs on.

    Raises
    ------
    InputError
        If some is unknown, or the cluster has fewer GPUs than it is to use.
    """
    choice = experiment.cluster
    cluster = find_cluster(choice.preset)
    available = choice.nodes * cluster.gpus_per_node
    if choice.gpus is not None and choice.gpus > available:
        raise InputError(
            f"cluster.gpus is {choice.gpus}, but {choice.nodes} nodes of {choice.preset!r} "
            f"have {available}"
        )
    return Hardware(cluster, gpus_of(experiment, cluster), choice.gpus or available)


def gpus_of(experiment: Experiment, cluster: Cluster) -> dict[str, Gpu]:
    """Return the cluster's GPU by its name, then the other ones that some nodes have.

    Raises
    ------
    InputError
        If one is unknown, or cannot compute in the plan's format.
    """
    names = [experiment.kernels.gpu or cluster.gpu, *experiment.cluster.other_gpus.values()]
    found = {name: find_gpu(name) for name in names}
    for gpu in found.values():
        gpu.peak(experiment.plan.precision)
    return found


def kinds_of(
    choice: ClusterChoice, cluster: Cluster, gpus: dict[str, Gpu]
) -> NDArray[np.int64] | None:
    """Return which of `gpus` each GPU of the cluster is; None where all are the first."""
    if len(gpus) == 1:
        return None
    kinds = np.zeros(choice.nodes, np.int64)
    for nodes, name in choice.other_gpus.items():
        kinds[span(nodes, "cluster.other_gpus", "node", choice.nodes)] = list(gpus).index(name)
    return np.repeat(kinds, cluster.gpus_per_node)


def differences(case: Case) -> list[str]:
    """Say how ranks differ, or that they are taken to be alike."""
    choice, layout = case.experiment.variation, case.workload.layout
    said = ["neighbouring ranks share a node"]
    if layout.gpu_of is not None:
        pricings = case.workload.pricings
        count = np.bincount(layout.gpu_of, minlength=len(pricings)).tolist()
        names = [each.model.gpu.title for each in pricings]
        gpus = ", ".join(f"{n:,} × {name}" for n, name in zip(count, names, strict=True))
        said.append(f"GPUs: {gpus}; links as if all were the first")
    if layout.shorter:
        said.append("replicas have batches of their own; gradients are averaged over sequences")
    if choice.random:
        said.append(
            f"random factors on kernels: standard deviation {choice.kernels:.3g} each, "
            f"{choice.gpus:.3g} a GPU (lognormal, mean 1, seed {choice.seed})"
        )
    else:
        same = "" if choice.speeds else " at the same speed"
        if choice.waits_for_slowest:
            same = " at the speed of the slowest GPU to be expected"
        said.append(f"ranks of a stage with the same GPU do the same work{same}")
    return said


def left_out(case: Case) -> list[str]:
    """Say what is not modelled of how GPUs differ."""
    choice = case.experiment.variation
    if choice.random or choice.speeds:
        return []
    slow = "" if choice.waits_for_slowest else " and slow GPUs"
    return [f"jitter{slow} ([variation])"]
