"""NCCL's own model with a platform's factors, as a form to be fitted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mpisim.base.kinds import Operation

from ..nccl import Factors, Nccl, Shape, System
from ..nccl import Settings as Variables
from .form import Settings

__all__ = ["NcclForm"]


class NcclForm:
    """`Nccl`; the numbers are its `Factors`."""

    name = "nccl"
    start: Mapping[str, float] = {
        "bandwidth_inside": 1.0,
        "bandwidth_across": 1.0,
        "latency_inside": 1.0,
        "latency_across": 1.0,
        "latency_bulk": 1.0,
    }
    firm: Mapping[str, float] = {"latency_inside": 0.75}
    """Across nodes the latencies inside and across can stand in for each other; those inside are
    the same GPUs' and links'."""
    kindred: Mapping[str, float] = {"bandwidth_inside": 25.0}
    """Links of a kind differ by some hundredths from machine to machine, and single curves are off
    by as much."""

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
        model = _model(system, settings, tuple(numbers.items()))
        return model.seconds_of(operation, bytes, shape)


@lru_cache(maxsize=256)
def _model(system: System, settings: Settings, numbers: tuple[tuple[str, float], ...]) -> Nccl:
    return Nccl(system, Variables.of(dict(settings)), Factors(**dict(numbers)))
