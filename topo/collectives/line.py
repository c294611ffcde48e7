"""Latency plus bytes over bandwidth, with one pair inside nodes and one across, fitted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mpisim.base.kinds import Operation

from ..bus import bus_factor
from ..nccl import Shape, System
from .form import Settings

__all__ = ["Line"]


class Line:
    """The cost of `AlphaBeta`, its four numbers fitted to a platform."""

    name = "alpha-beta"
    start: Mapping[str, float] = {
        "latency_inside": 20e-6,
        "bandwidth_inside": 200e9,
        "latency_across": 60e-6,
        "bandwidth_across": 100e9,
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
        where = "inside" if shape.nodes == 1 else "across"
        factor = bus_factor(operation, shape.ranks)
        return numbers[f"latency_{where}"] + factor * bytes / numbers[f"bandwidth_{where}"]
