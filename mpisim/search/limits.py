"""Candidates left out → for each limit how many broke it, and how near the nearest came.

Of a candidate that was left out unseen only the best that it could be is known: the least time of
its step, the least power. It breaks the limit for certain, and by that much at least.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import GIB
from ..base.text import quantity
from ..cost.prices import SECONDS_OF_AN_HOUR
from ..job.text import duration_text
from ..prediction.memory_fit import verdict
from .explore import Candidates
from .records import Records, Status
from .space import SearchSpace
from .traced import TracedCandidates

__all__ = ["BrokenLimit", "broken_limits", "limit_line"]

LEFT_OUT = (Status.OVER_LIMIT, Status.TOO_SLOW, Status.OVER_BUDGET)
"""Candidates that break a limit of ``[search]``; memory has a status of its own."""


class BrokenLimit(NamedTuple):
    """A limit that candidates broke.

    Attributes
    ----------
    limit : str
        ``"memory"``, or the key of ``[search]``.
    allowed : float
        The most that is allowed: bytes, s, W, $ or GPUs.
    candidates : int
        How many break it.
    nearest : int
        The one that comes nearest.
    value : float
        What it has, in the unit of `allowed`.
    at_least : bool
        Whether that is only the best that it could have.
    """

    limit: str
    allowed: float
    candidates: int
    nearest: int
    value: float
    at_least: bool

    def as_json(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return self._asdict()


def broken_limits(space: SearchSpace, records: Records) -> list[BrokenLimit]:
    """Search space, what is known of its candidates → the limits that any broke. Local.

    Parameters
    ----------
    space : SearchSpace
    records : Records
        As `explore` returns them.
    """
    choice, found = space.choice, []
    numbers = records.numbers(*LEFT_OUT)
    simulated = records.step[numbers] > 0
    time = np.where(simulated, records.step[numbers], records.bound[numbers]) * 1e-12
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = records.energy[numbers] / time
    watts = np.where(records.energy[numbers] > 0, drawn, records.least_watts[numbers])
    hour = records.usd_hour[numbers] + records.usd_joule[numbers] * watts * SECONDS_OF_AN_HOUR
    limits: dict[str, tuple[float | None, NDArray[Any], NDArray[np.bool_]]] = {
        "max_gpus": (choice.max_gpus, records.gpus[numbers], np.ones(len(numbers), bool)),
        "max_step_time": (choice.max_step_time, time, simulated),
        "max_power": (choice.limits.get("power"), watts, simulated),
        "max_usd_per_hour": (choice.limits.get("usd_per_hour"), hour, simulated),
        "max_price": (
            choice.limits.get("price"),
            records.purchase[numbers],
            np.ones(len(numbers), bool),
        ),
    }
    steps = records.job_steps[numbers]
    for name, of, at_least in (
        ("job_time", records.job_time[numbers], steps * time),
        ("job_usd", records.job_usd[numbers], steps * time * hour / SECONDS_OF_AN_HOUR),
    ):
        known = of > 0
        limits[f"max_{name}"] = choice.job_limits.get(name), np.where(known, of, at_least), known
    for name, (allowed, values, exact) in limits.items():
        broken = np.flatnonzero(values > allowed) if allowed is not None else ()
        if allowed is not None and len(broken):
            at = broken[np.argmin(values[broken])]
            nearest, value = int(numbers[at]), float(values[at])
            found.append(
                BrokenLimit(name, allowed, len(broken), nearest, value, not bool(exact[at]))
            )
    large = records.numbers(Status.TOO_LARGE)
    if len(large):
        nearest = int(large[np.argmin(records.peak[large])])
        if space.of_trace:
            least = TracedCandidates(space).of(nearest)
            capacity, peak = least.capacity, least.memory
        else:
            memory = verdict(*Candidates(space).experiment(nearest))
            capacity, peak = memory.capacity, memory.peak
        allowed = choice.room(capacity)
        found.append(BrokenLimit("memory", allowed, len(large), nearest, peak, space.of_trace))
    return found


def limit_line(space: SearchSpace, broken: BrokenLimit) -> str:
    """Search space, a limit that candidates broke → a sentence.

    Parameters
    ----------
    space : SearchSpace
    broken : BrokenLimit
    """
    value, allowed = (_in_words(broken.limit, each) for each in (broken.value, broken.allowed))
    if broken.limit == "memory" and broken.value <= broken.allowed:
        name = "memory of a GPU, or of its host, which the nearest lacks"
    elif broken.limit == "memory":
        kept, most = space.choice.memory_headroom, space.choice.max_memory
        left = f", of which memory_headroom leaves {allowed}" if kept else ""
        name = f"memory of {_in_words('memory', broken.allowed + kept * GIB)} a GPU{left}"
        if most is not None and broken.allowed == most * GIB:  # the tighter one (`Choice.room`)
            name = f"max_memory = {allowed}"
    else:
        name = f"{broken.limit} = {allowed}"
    least = "at least " if broken.at_least else ""
    candidates = (
        "1 candidate is" if broken.candidates == 1 else f"{broken.candidates:,} candidates are"
    )
    return (
        f"{candidates} beyond {name}; the nearest has {least}{value} "
        f"({space.described(broken.nearest)})"
    )


def _in_words(limit: str, value: float) -> str:
    """Return a value of a limit with its unit."""
    if limit == "memory":
        return f"{value / GIB:,.1f} GiB"
    if limit == "max_gpus":
        return f"{value:,.0f}"
    if limit == "max_usd_per_hour":
        return f"${value:,.2f}"
    if limit in ("max_price", "max_job_usd"):
        return f"${value:,.0f}"
    if limit == "max_job_time":
        return duration_text(value)
    return f"{value:.4g} s" if limit == "max_step_time" else quantity(value, "W")
