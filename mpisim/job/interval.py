"""The best time between checkpoints: by formula, and by simulation on the same random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..base.frozen import frozen
from .closed_form import daly, expected_time, young
from .model import JobModel
from .monte_carlo import runs_needed, simulate_runs

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Intervals", "best_interval", "daly_steps"]

MIN_RUNS = 128
"""Of each interval at least: they share their random numbers."""

FACTORS = tuple(2.0 ** (exponent / 2) for exponent in range(-6, 7))
"""Intervals that are tried, times Daly's."""

MAX_EQUAL_LOSS = 1e-3
"""By how much longer a job may take that counts as the same."""

MIN_STANDARD_ERRORS = 2.0
"""Standard errors by which an interval has to be better than Daly's to be preferred."""

MAX_SIMULATED_STRETCH = 20.0
"""Times the undisturbed job: intervals with more to be expected are not simulated."""


@frozen
class Intervals:
    """Times between checkpoints, in seconds of training.

    Attributes
    ----------
    young, daly : float
        By formula; infinite without failures.
    best : int
        Steps of the best by simulation.
    low, high : int
        Steps of the shortest and of the longest tried that take at most 0.1 % longer.
    tried : tuple of tuple
        Steps of each interval, and the mean time of the job in seconds.
    """

    young: float
    daly: float
    best: int
    low: int
    high: int
    tried: tuple[tuple[int, float], ...]


def daly_steps(model: JobModel) -> int:
    """Job → Daly's checkpoint interval in steps, within what checkpoints allow."""
    if not model.rate:
        return model.steps
    wanted = round(daly(model.stall, 1 / model.rate) / model.step)
    return min(max(wanted, model.least_interval), model.steps)


def best_interval(model: JobModel, seed: int = 0, comm: Intracomm | None = None) -> Intervals:
    """Job → its best interval, whatever its model has. **Collective.**

    Parameters
    ----------
    model : JobModel
    seed : int
    comm : mpi4py.MPI.Intracomm, optional
    """
    centre = daly_steps(model)
    if not model.rate:
        only = model.steps
        time = replace(model, interval=only).undisturbed
        return Intervals(np.inf, np.inf, only, only, only, ((only, time),))
    mtbf = 1 / model.rate
    wanted = sorted(
        {min(max(round(f * centre), model.least_interval), model.steps) for f in FACTORS}
    )
    jobs = [replace(model, interval=steps) for steps in wanted]
    likely = [
        each for each in jobs if expected_time(each) < MAX_SIMULATED_STRETCH * each.undisturbed
    ]
    if not likely:
        formulas = young(model.stall, mtbf), daly(model.stall, mtbf)
        return Intervals(*formulas, best=centre, low=centre, high=centre, tried=())
    times = simulate_runs(likely, runs_needed(model, MIN_RUNS), seed, comm).time
    means = times.mean(axis=1)
    steps = np.array([each.interval for each in likely])
    at = int(np.argmin(means))
    # What may be luck does not speak against the formula.
    sure = True
    for formula in np.flatnonzero(steps == centre).tolist():
        gain = times[formula] - times[at]
        sure = bool(gain.mean() > MIN_STANDARD_ERRORS * gain.std() / np.sqrt(len(gain)))
        at = at if sure else formula
    best = int(steps[at])
    if sure and 0 < at < len(steps) - 1:
        # The minimum of the parabola through the best and its neighbours, over the logarithm.
        x, y = np.log(steps[at - 1 : at + 2]), means[at - 1 : at + 2]
        second, first, _ = np.polyfit(x - x[1], y, 2)
        if second > 0:
            best = round(float(np.exp(x[1] - first / (2 * second))))
            best = int(np.clip(best, steps[at - 1], steps[at + 1]))
    flat = steps[means <= (1 + MAX_EQUAL_LOSS) * means[at]]
    return Intervals(
        young(model.stall, mtbf),
        daly(model.stall, mtbf),
        best,
        int(min(flat.min(), best)),
        int(max(flat.max(), best)),
        tuple((int(each), float(mean)) for each, mean in zip(steps, means, strict=True)),
    )
