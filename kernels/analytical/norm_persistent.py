"""Norms that keep rows in registers: a streaming kernel's time, and how many times as long.

Each thread waits for its share of a row, then for the sums of the others, before it writes: the
memory is not kept busy as by kernels that only stream. How much longer that takes was measured for
Transformer Engine's kernels (``data/calibration/norm_persistent.toml``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mpisim.presets import packaged
from mpisim.quantity import Quantity
from mpisim.schema import build

from ..operations import Elementwise
from ..persistent_norm import PersistentNorm
from . import memory_bound
from .family import Columns
from .machine import Machine
from .maths import where
from .memory_bound import CONSTANTS

__all__ = ["CONSTANTS", "FAMILY", "columns", "ratios", "seconds", "shares"]

FAMILY = "norm_persistent"

RATIOS = "calibration/norm_persistent.toml"


@cache
def ratios() -> tuple[Quantity, Quantity]:
    """Return how many times as long as a streaming kernel it takes, forward and backward."""
    tables = packaged(RATIOS)
    forward, backward = (
        build(Quantity, tables[name], RATIOS, name) for name in ("forward", "backward")
    )
    return forward, backward


def columns(kernel: PersistentNorm) -> dict[str, float | int | str]:
    """Return the columns of a kernel that streams as many bytes, and whether it is the backward."""
    streaming = memory_bound.columns(Elementwise(kernel.traffic))
    return {**streaming, "backward": int(kernel.backward)}


def seconds(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
    """Return the duration of each kernel, in seconds; constants are those of streaming kernels."""
    return _ratio(columns) * memory_bound.seconds(columns, gpu, constants)


def shares(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> dict[str, Any]:
    """Return the durations divided as those of `memory_bound`, in seconds."""
    found = memory_bound.shares(columns, gpu, constants)
    return {name: _ratio(columns) * share for name, share in found.items()}


def _ratio(columns: Columns) -> Any:
    forward, backward = ratios()
    return where(columns["backward"] != 0, backward.si, forward.si)
