"""Closed forms for jobs: checkpoint intervals, and the expectation of the time.

Young (1974): √(2 δ M), where a checkpoint takes δ and failures are M apart. Daly (2006), equation
37: the same to a higher order, of the time of work between two checkpoints.

With exponential failures each segment of work τ and checkpoint δ is a renewal. A failure within it
costs 1/λ − … of running, D during which nothing further can fail, and a restart R that can fail
itself; the expectation of a segment is

    E = (1/λ + D) · e^{λR} · (e^{λ(τ+δ)} − 1)

With D = 0 it is Daly's equation 13; with R = 0, where no restart can fail, it is
(1/λ + D)(e^{λ(τ+δ)} − 1).
"""

from __future__ import annotations

import math

from .model import JobModel

__all__ = ["daly", "expected_time", "young"]


def young(stall: float, mtbf: float) -> float:
    """Time a checkpoint stalls training and time between failures → Young's interval.

    Parameters
    ----------
    stall, mtbf : float
        Seconds.

    Returns
    -------
    float
        Seconds between checkpoints at which least time is lost, for rare failures.

    Examples
    --------
    >>> young(50.0, 10_000.0)
    1000.0
    """
    return math.sqrt(2 * stall * mtbf)


def daly(stall: float, mtbf: float) -> float:
    """Time a checkpoint stalls training and time between failures → Daly's interval.

    Parameters
    ----------
    stall, mtbf : float
        Seconds.

    Returns
    -------
    float
        Seconds between checkpoints at which least time is lost, also where failures are frequent.

    Examples
    --------
    >>> round(daly(50.0, 10_000.0), 1)
    966.9
    """
    if stall >= 2 * mtbf:
        return mtbf
    ratio = stall / (2 * mtbf)
    return math.sqrt(2 * stall * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


def expected_time(model: JobModel) -> float:
    """Job → the expectation of its time in seconds; infinite where it exceeds all floats.

    Exact for exponential failures, synchronous checkpoints and nodes that are always there, without
    planned interruptions; otherwise about: a checkpoint that is not yet whole is taken to be lost
    work, planned interruptions to add their time.
    """
    rate = model.rate
    down = model.detection + model.node_share * model.swap
    again = model.restart + model.rewarmup
    full, rest = divmod(model.steps, model.interval)
    segments = [(full, model.interval), (1, rest)] if rest else [(full, model.interval)]
    total = 0.0
    try:
        for number, steps in segments:
            each = steps * model.step + model.stall
            if rate:
                each = (1 / rate + down) * math.exp(rate * again) * math.expm1(rate * each)
            total += number * each
    except OverflowError:
        return math.inf
    # Work done while a checkpoint was being written is lost with a failure.
    total *= 1 + rate * model.persist
    pause = model.maintenance + again + model.stall + model.persist
    return total * (1 + model.planned_rate * pause) + model.persist
