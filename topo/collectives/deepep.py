"""All-to-all by DeepEP's kernels (github:deepseek-ai/DeepEP).

Each GPU writes what others need into their memory, in the node over NVLink and across through its
own NIC, at the same time; the slower of the two decides. The low-latency kernels of the first
release used the NIC for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation

from ..nccl import Shape, System
from .form import Settings

__all__ = ["NIC_ALONE", "DeepEp"]

NIC_ALONE = ("nic_alone", "1")
"""The setting of kernels that use the NIC in the node, too."""


class DeepEp:
    """Dispatch and combine; `bytes` is all that one GPU sends, itself included.

    The numbers: shares of the links' bandwidth that are reached, and seconds, of any exchange and
    for each doubling of the nodes.
    """

    name = "deepep"
    start: Mapping[str, float] = {
        "bandwidth_inside": 0.8,
        "bandwidth_across": 0.85,
        "latency_inside": 20e-6,
        "latency_across": 5e-6,
    }
    firm: Mapping[str, float] = {}
    kindred: Mapping[str, float] = {}

    def seconds(
        self,
        numbers: Mapping[str, float],
        system: System,
        operation: Operation,
        bytes: NDArray[np.float64],
        shape: Shape,
        settings: Settings,
    ) -> NDArray[np.float64]:
        """Return durations; see `Form`."""
        if operation is not Operation.ALL_TO_ALL:
            raise InputError(f"DeepEP does all-to-all, not {operation.name.lower()}")
        n, per_node = shape.ranks, shape.most
        stay, leave = (per_node - 1) / n, (n - per_node) / n
        if NIC_ALONE in settings:
            stay, leave = 0.0, stay + leave
        nic = system.nic_bandwidth * system.nics / system.gpus_per_node
        slowest = max(
            stay / (system.link_bandwidth * numbers["bandwidth_inside"]),
            leave / (nic * numbers["bandwidth_across"]) if leave else 0.0,
        )
        latency = numbers["latency_inside"] + log2(shape.nodes) * numbers["latency_across"]
        return latency + bytes * slowest
