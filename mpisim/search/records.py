"""What is known of every candidate of a search: columns, one entry each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from .space import SearchSpace

__all__ = ["Records", "Status", "least_values"]


class Status(IntEnum):
    """How far a candidate has come."""

    UNKNOWN = 0
    INVALID = 1  # model, plan and cluster do not go together
    OVER_LIMIT = 2  # more GPUs than allowed, or a bound above the longest step allowed
    BOUNDED = 3  # how fast it could be at best is known
    TOO_LARGE = 4  # does not fit into memory, or leaves too little
    SIMULATED = 5
    TOO_SLOW = 6  # simulated, and above the longest step allowed


@dataclass
class Records:
    """Columns over the candidates of a search, changed in place.

    Attributes
    ----------
    status : uint8, shape (n,)
        `Status`.
    bound : int64, shape (n,)
        ps below which the step cannot be.
    step : int64, shape (n,)
        ps; 0 where it was not simulated.
    peak : int64, shape (n,)
        Bytes on the fullest GPU; 0 where it was not judged.
    gpus : int32, shape (n,)
    tokens : int64, shape (n,)
        Of a step (images, samples); 0 where it was not simulated.
    """

    status: NDArray[np.uint8]
    bound: NDArray[np.int64]
    step: NDArray[np.int64]
    peak: NDArray[np.int64]
    gpus: NDArray[np.int32]
    tokens: NDArray[np.int64]

    @classmethod
    def none(cls, n: int) -> Records:
        """Return columns of n candidates of which nothing is known."""
        return cls(
            status=np.zeros(n, np.uint8),
            bound=np.zeros(n, np.int64),
            step=np.zeros(n, np.int64),
            peak=np.zeros(n, np.int64),
            gpus=np.zeros(n, np.int32),
            tokens=np.zeros(n, np.int64),
        )

    @property
    def columns(self) -> dict[str, NDArray[np.integer]]:
        """The columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __len__(self) -> int:
        return len(self.status)

    def numbers(self, *status: Status) -> NDArray[np.int64]:
        """Return the candidates of some status, ascending."""
        return np.flatnonzero(np.isin(self.status, status))

    def count(self, status: Status) -> int:
        """Return how many candidates have a status."""
        return int(np.count_nonzero(self.status == status))


def least_values(
    space: SearchSpace, records: Records, numbers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Candidates → the best that each objective can be, as it is minimised.

    Of simulated ones what it is. Objectives of which more is better have their sign changed.

    Parameters
    ----------
    space : SearchSpace
    records : Records
    numbers : int64, shape (k,)

    Returns
    -------
    float64, shape (k, number of objectives)
    """
    step = records.step[numbers].astype(float)
    time = np.where(step > 0, step, records.bound[numbers]) * 1e-12
    tokens = records.tokens[numbers].astype(float)
    gpus = records.gpus[numbers].astype(float)
    with np.errstate(divide="ignore"):
        rate = np.where(time > 0, tokens / time, np.inf)
    of = {
        "step_time": time,
        "tokens_per_second": -rate,
        "tokens_per_second_per_gpu": -rate / np.maximum(gpus, 1),
        "gpus": gpus,
        "memory": records.peak[numbers].astype(float),
    }
    return np.stack([of[name] for name in space.choice.objectives], axis=1)
