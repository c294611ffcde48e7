"""The cluster of a row: the preset that fits best, perhaps with keys that change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...base.errors import InputError
from ...base.presets import packaged_folder
from ...kernels import find_gpu
from .rows import Row
from .settings import ClusterFor, Settings, assigned

__all__ = ["Chosen", "choose"]

ANY = "dgx-h100"
"""Where one GPU runs that no cluster has: nothing of it matters but the host."""


class Chosen(NamedTuple):
    """A cluster for a row.

    Attributes
    ----------
    keys : mapping
        Keys of an experiment (``cluster.preset``, ``cluster.nodes``, ``kernels.gpu``, …).
    assumed : tuple of str
        What the row does not say, and where the cluster differs from what it says; for counting.
    """

    keys: Mapping[str, Any]
    assumed: tuple[str, ...]


def choose(row: Row, source: str, settings: Settings) -> Chosen:
    """Return the cluster for a row.

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
    fitting = [each for each in settings.clusters if each.gpu == gpu]
    fitting = [each for each in fitting if source in each.sources] or [
        each for each in fitting if not each.sources
    ]
    if not fitting:
        return _alone(gpu, gpus)
    stated = row.integers.get("gpus_per_node")
    spans = stated is not None and gpus > stated  # in one node it does not matter how large it is
    if spans:
        fitting = [each for each in fitting if each.gpus_per_node in (0, stated)]
        if not fitting:
            raise InputError(f"no cluster of {gpu} with {stated} GPUs a node")
    if stated is not None and not spans:
        exact = [each for each in fitting if each.gpus_per_node == stated]
        fitting = exact or [each for each in fitting if each.gpus_per_node not in range(1, gpus)]
    network = row.numbers.get("node_network_gbps")
    assumed = []
    best = fitting[0]
    if network is not None:
        best = min(fitting, key=lambda each: abs(each.network - network))
    changes, per_node = _nodes(best)
    nodes = -(-gpus // per_node)
    if nodes > 1:
        if network is None:
            assumed.append(f"cluster.preset = {best.preset} (network not stated)")
        elif network != best.network:
            assumed.append(
                f"cluster.preset = {best.preset}, {best.network} Gb/s a node in place of "
                f"{network:.0f}"
            )
        if stated is None:
            assumed.append(f"{per_node} GPUs a node (not stated)")
    if best.changes:
        assumed.append(f"cluster.preset = {best.preset} with {', '.join(best.changes)}")
    keys: dict[str, Any] = {"cluster.preset": best.preset, "cluster.nodes": nodes, **changes}
    if gpus != nodes * per_node:
        keys["cluster.gpus"] = gpus
    return Chosen(keys, tuple(assumed))


def _alone(gpu: str, gpus: int) -> Chosen:
    """One GPU that no cluster has, in a node of another."""
    try:
        find_gpu(gpu)
    except InputError as error:
        raise InputError(f"no GPU {gpu}") from error
    if gpus > 1:
        raise InputError(f"no cluster of {gpu}")
    keys = {"cluster.preset": ANY, "cluster.nodes": 1, "cluster.gpus": 1, "kernels.gpu": gpu}
    return Chosen(keys, (f"host of {ANY} (one {gpu})",))


def _nodes(best: ClusterFor) -> tuple[dict[str, Any], int]:
    """Return keys that change a preset, and the GPUs of a node with them."""
    changes = dict(assigned(each) for each in best.changes)
    per_node = packaged_folder("clusters")[best.preset]["gpus_per_node"]
    return changes, int(changes.get("cluster.gpus_per_node", per_node))
