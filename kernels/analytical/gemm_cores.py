"""Products of 16-bit numbers on CUDA cores: an fp32 product's time, and how many times as long.

Every operand is converted after it was read, beside the multiplications. How much longer that takes
was measured for the same shapes in both formats (``data/calibration/gemm_cores.toml``).
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

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "gemm_cores"

FILE = "calibration/gemm_cores.toml"


@cache
def _ratio() -> Quantity:
    return build(Quantity, packaged(FILE)["converted"], FILE, "converted")


def seconds(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
    """Return the duration of each kernel, in seconds."""
    return _ratio().si * gemm.seconds(columns, gpu, constants)


def shares(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> dict[str, Any]:
    """Return the durations divided as those of fp32 products, in seconds."""
    found = gemm.shares(columns, gpu, constants)
    return {name: _ratio().si * share for name, share in found.items()}
