"""Products of several experts with split accumulators: as :mod:`.gemm_split` has single ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import grouped_gemm
from .family import Columns
from .gemm_split import ratio
from .grouped_gemm import CONSTANTS, columns
from .machine import Machine

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "grouped_gemm_split"


def seconds(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
    """Return the duration of each kernel, in seconds."""
    return ratio(gpu.family) * grouped_gemm.seconds(columns, gpu, constants)


def shares(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> dict[str, Any]:
    """Return the durations divided as those of other products, in seconds."""
    found = grouped_gemm.shares(columns, gpu, constants)
    return {name: ratio(gpu.family) * share for name, share in found.items()}
