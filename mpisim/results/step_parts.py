"""The step of each class of ranks, taken apart: what a GPU did at every moment, by name."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["PartKind", "StepParts"]


class PartKind(IntEnum):
    """What a part of a step is."""

    COMPUTE = 0
    WIRE = 1  # exposed communication: bytes move and nothing computes
    WAITING = 2  # exposed communication: waits for another member and nothing computes
    IDLE = 3  # nothing runs


class StepParts(NamedTuple):
    """How long each class of ranks spent on each part of the step.

    The parts of a class add up to the time of the step shown, exactly.

    Attributes
    ----------
    names : tuple of str
        Of each part: of compute the phase ("forward", "optimizer"), of communication what the
        communicators are called ("dp", "tp"), without their numbers.
    kinds : uint8, shape (p,)
        `PartKind`.
    times : int64, shape (n_classes, p)
        In ps.
    """

    names: tuple[str, ...]
    kinds: NDArray[np.uint8]
    times: NDArray[np.int64]

    def mean(self, count: NDArray[np.int64]) -> NDArray[np.float64]:
        """Ranks of each class, shape (n_classes,) → ps of each part in the mean of all ranks."""
        mean: NDArray[np.float64] = count @ self.times / max(int(count.sum()), 1)
        return mean
