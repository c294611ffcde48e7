"""Products with split accumulators: a product's time, and how many times as long.

Only units that add up in fewer bits have two ways: those of Hopper and Ada, not Blackwell's
(``data/calibration/gemm_split.toml``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

from . import gemm
from .family import Columns
from .gemm import CONSTANTS, columns
from .machine import Machine

__all__ = ["CONSTANTS", "FAMILY", "columns", "ratio", "seconds", "shares"]

FAMILY = "gemm_split"

PATH = "calibration/gemm_split.toml"


def seconds(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
    """Return the duration of each kernel, in seconds."""
    return ratio(gpu.family) * gemm.seconds(columns, gpu, constants)


def shares(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> dict[str, Any]:
    """Return the durations divided as those of other products, in seconds."""
    found = gemm.shares(columns, gpu, constants)
    return {name: ratio(gpu.family) * share for name, share in found.items()}


@cache
def ratio(architecture: str) -> float:
    """Return how many times as long as with fast accumulation they take."""
    table = packaged(PATH)
    if architecture not in table:
        return 1.0
    return build(Quantity, table[architecture], PATH, architecture).si
