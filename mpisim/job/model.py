"""`JobModel`: a job in seconds, as closed forms and Monte Carlo runs take it.

A job alternates between running and being down.

- **Running**: `interval` steps, then training stands still for `stall`; the checkpoint is whole
  `persist` later, while the next steps run. The next one cannot begin before: `interval` steps take
  at least `persist`. The last checkpoint ends the job.
- **Failure**: what was done since the checkpoint that was last whole is lost. Failures come from a
  Weibull distribution, exponential by default, whose clock starts anew after each.
- **Down**: `detection`, during which nothing further can happen; where the node leaves the job, a
  spare is swapped in, or waited for; then `restart` with the loading of the checkpoint and the
  slower first steps, in which the job can be interrupted again.
- **Planned interruption**: a checkpoint is written first, so that at most a step is lost.
"""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen

__all__ = ["JobModel", "stacked"]


@frozen
class JobModel:
    """A job; times in seconds.

    Attributes
    ----------
    steps : int
    step : float
        Seconds of one.
    interval : int
        Steps between checkpoints.
    stall : float
        Standstill of a checkpoint.
    persist : float
        From the end of the standstill until the checkpoint is whole.
    rate : float
        Failures a second, of the whole job.
    shape : float
        Of the Weibull distribution of the time to a failure.
    planned_rate : float
        Planned interruptions a second.
    detection : float
    restart : float
        Until the first step, loading included.
    rewarmup : float
        That the first steps take longer, all together.
    node_share : float
        Share of the failures after which a node leaves the job.
    spares : int
        Nodes that stand ready; -1: always one.
    swap : float
    repair : float
    maintenance : float
        Of a planned interruption.
    """

    steps: int
    step: float
    interval: int
    stall: float
    persist: float = 0.0
    rate: float = 0.0
    shape: float = 1.0
    planned_rate: float = 0.0
    detection: float = 0.0
    restart: float = 0.0
    rewarmup: float = 0.0
    node_share: float = 0.0
    spares: int = -1
    swap: float = 0.0
    repair: float = 0.0
    maintenance: float = 0.0

    @property
    def ideal(self) -> float:
        """Seconds of the steps alone: no checkpoint, no failure."""
        return self.steps * self.step

    @property
    def checkpoints(self) -> int:
        """Checkpoints of a job without interruptions, the last one included."""
        return -(-self.steps // self.interval)

    @property
    def undisturbed(self) -> float:
        """Seconds without interruptions: steps, standstills, and the last checkpoint whole."""
        return self.ideal + self.checkpoints * self.stall + self.persist

    @property
    def least_interval(self) -> int:
        """Steps that a checkpoint takes to become whole, 1 or more."""
        return max(1, math.ceil(self.persist / self.step))


def stacked(models: list[JobModel]) -> dict[str, NDArray[np.float64]]:
    """Jobs → their numbers as arrays, one element a job."""
    return {
        each.name: np.array([getattr(model, each.name) for model in models], np.float64)
        for each in fields(JobModel)
    }
