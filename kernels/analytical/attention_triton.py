"""FlashAttention in Triton: FlashAttention-2's time, and how many times as long it takes.

Its authors publish ratios of the two for an A100 (``data/calibration/attention_triton.toml``). Both
were written for the matrix instructions of Ampere and use these on later GPUs, so that one ratio
serves all.
"""

from __future__ import annotations

from . import attention_flash_2
from .attention_flash_2 import CONSTANTS, columns
from .times import TimesAsLong

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "attention_triton"

_FORMULA = TimesAsLong(attention_flash_2, "calibration/attention_triton.toml")
seconds, shares = _FORMULA.seconds, _FORMULA.shares
