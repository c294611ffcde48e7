"""FlashAttention in Triton: FlashAttention-2's time, and how many times as long it takes.

Its authors publish ratios of the two for an A100 (``data/calibration/attention_triton.toml``). Both
were written for the matrix instructions of Ampere and use these on later GPUs, so that one ratio
serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mpisim.presets import packaged
from mpisim.quantity import Quantity
from mpisim.schema import build

from . import attention
from .attention import CONSTANTS, columns
from .family import Columns
from .machine import Machine
from .maths import where

__all__ = ["CONSTANTS", "FAMILY", "columns", "ratios", "seconds", "shares"]

FAMILY = "attention_triton"

RATIOS = "calibration/attention_triton.toml"


@cache
def ratios() -> tuple[Quantity, Quantity]:
    """Return how many times as long as FlashAttention-2 it takes, forward and backward."""
    tables = packaged(RATIOS)
    forward, backward = (
        build(Quantity, tables[name], RATIOS, name) for name in ("forward", "backward")
    )
    return forward, backward


def seconds(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
    """Return the duration of each kernel, in seconds; constants are FlashAttention-2's."""
    return _ratio(columns) * attention.seconds(columns, gpu, constants)


def shares(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> dict[str, Any]:
    """Return the durations divided as those of `attention`, in seconds."""
    found = attention.shares(columns, gpu, constants)
    return {name: _ratio(columns) * share for name, share in found.items()}


def _ratio(columns: Columns) -> Any:
    forward, backward = ratios()
    return where(columns["backward"] != 0, backward.si, forward.si)
