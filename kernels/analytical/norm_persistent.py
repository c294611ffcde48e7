"""Norms that keep rows in registers: a streaming kernel's time, and how many times as long.

Each thread waits for its share of a row, then for the sums of the others, before it writes: the
memory is not kept busy as by kernels that only stream. How much longer that takes was measured for
Transformer Engine's kernels (``data/calibration/norm_persistent.toml``).
"""

from __future__ import annotations

from ..operations import Elementwise
from ..persistent_norm import PersistentNorm
from . import memory_bound
from .memory_bound import CONSTANTS
from .times import TimesAsLong

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "norm_persistent"


def columns(kernel: PersistentNorm) -> dict[str, float | int | str]:
    """Return the columns of a kernel that streams as many bytes, and whether it is the backward."""
    streaming = memory_bound.columns(Elementwise(kernel.traffic))
    return {**streaming, "backward": int(kernel.backward)}


_FORMULA = TimesAsLong(memory_bound, "calibration/norm_persistent.toml")
seconds, shares = _FORMULA.seconds, _FORMULA.shares
