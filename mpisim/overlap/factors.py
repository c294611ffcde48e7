"""The models of slowdown behind one face: for kernels beside communications, and the reverse."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.slowdown import CLASSES, Load, Parametric
from .residents import Held, Resident

__all__ = ["ParametricFactors"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MULTIPROCESSORS, BANDWIDTH = "overlap: multiprocessors", "overlap: bandwidth of memory"


class ParametricFactors:
    """Factors of the parametric model.

    Parameters
    ----------
    model : Parametric
    """

    terms = (*(f"overlap: {name} kernels" for name in CLASSES), BANDWIDTH, MULTIPROCESSORS)

    def __init__(self, model: Parametric) -> None:
        self.model = model
        self.numbers = model.numbers()

    def kernels(self, kernel: Ints, load: Load, beside: list[Resident]) -> tuple[Floats, Floats]:
        """Return the factors of kernels, and how they depend on each of `terms`."""
        factor, found = self.model.kernels(kernel, load)
        kind = self.model.work.kind[kernel]
        own = found.own[:, None] * (kind[:, None] == np.arange(len(CLASSES)))
        return factor, np.column_stack([own, found.bandwidth, found.taken])

    def communications(self, held: Held, known: list[Resident], use: Floats) -> Floats:
        """Return the factors of communications beside kernels that use the memory so much."""
        return self.model.communications(use)
