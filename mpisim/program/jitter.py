"""Jitter: kernels that take a little more or less time, each by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base.errors import ProgramError

__all__ = ["Jitter"]

WIDEST = 1.0
"""Largest spread: a kernel that takes 2.7 times as long is one standard deviation away."""


@dataclass(frozen=True)
class Jitter:
    """Random factors on the durations of KERNEL and COPY rows, independent of each other.

    Attributes
    ----------
    spread : float
        Standard deviation of the logarithm of the factor, which is lognormal with mean 1.
    seed : int
        The same seed gives the same factors, for any number of processes.

    Raises
    ------
    ProgramError
        For a spread outside 0 to 1 or a seed outside 64 bits.
    """

    spread: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.spread) and 0 <= self.spread <= WIDEST):
            raise ProgramError(f"jitter: spread is {self.spread}; allowed is 0 to {WIDEST:g}")
        if not 0 <= self.seed < 1 << 64:
            raise ProgramError(f"jitter: seed is {self.seed}; allowed is 0 to 2^64 - 1")
