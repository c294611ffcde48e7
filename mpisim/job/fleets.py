"""Fleets: how often the jobs of published clusters were interrupted (``data/failures.toml``)."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import find_table, table_names
from ..base.schema import Limits, build

__all__ = ["DEFAULT", "NONE", "Cause", "Fleet", "find_fleet", "fleet_names", "rate_spread"]

FILE = "failures.toml"

DEFAULT = "llama3"
"""The fleet of jobs that name none: that with the largest count."""

NONE = "none"
"""The name of a fleet without failures."""

UNKNOWN_NODE_SHARE = 1.0
"""Of the interruptions of a fleet without causes: each costs a node, which is the dearer case."""


@frozen
class Cause:
    """A cause of interruptions.

    Attributes
    ----------
    count : int
        Interruptions by it.
    node : bool
        Whether the node leaves the job.
    """

    count: Annotated[int, Limits(least=1)]
    node: bool


@frozen
class Fleet:
    """A fleet whose interruptions were published: a count with what it is of, or a rate.

    Attributes
    ----------
    title, source : str
    error : float
        Relative error bar of the rate beside that of the count.
    gpus : int, optional
        Of the job, or of all jobs together.
    days : float, optional
    interruptions : int, optional
        Unexpected ones in that time.
    planned : int
        Planned ones in that time.
    rate : float, optional
        Interruptions of 1,000 GPU-days, where there is no count.
    causes : mapping of str to Cause
    aliases : tuple of str
    """

    title: str
    source: str
    error: Annotated[float, Limits(least=0, most=10)] = 0.0
    gpus: Annotated[int, Limits(least=1)] | None = None
    days: Annotated[float, Limits(least=1e-6)] | None = None
    interruptions: Annotated[int, Limits(least=1)] | None = None
    planned: Annotated[int, Limits(least=0)] = 0
    rate: Annotated[float, Limits(least=0)] | None = None
    causes: dict[str, Cause] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        counted = None not in (self.gpus, self.days, self.interruptions)
        if counted == (self.rate is not None):
            raise InputError("needs either rate, or all of gpus, days and interruptions")
        if self.planned and not counted:
            raise InputError("planned is given, but not in how many days")
        if self.causes and counted:
            total = sum(each.count for each in self.causes.values())
            if total != self.interruptions:
                raise InputError(
                    f"causes add up to {total}, but interruptions is {self.interruptions}"
                )

    @property
    def per_gpu_day(self) -> float:
        """Unexpected interruptions a GPU and day."""
        if self.rate is not None:
            return self.rate / 1000
        assert self.gpus is not None
        assert self.days is not None
        assert self.interruptions is not None
        return self.interruptions / (self.gpus * self.days)

    @property
    def planned_per_gpu_day(self) -> float:
        """Planned interruptions of a GPU-day: most are maintenance, which grows with the job."""
        if not self.planned:
            return 0.0
        assert self.gpus is not None
        assert self.days is not None
        return self.planned / (self.gpus * self.days)

    @property
    def rate_error(self) -> float:
        """Relative error of the rate, one standard deviation: of the count, and beside it."""
        counted = 1 / self.interruptions if self.interruptions else 0.0
        return math.sqrt(counted + self.error**2)

    @property
    def node_share(self) -> float:
        """Share of the interruptions after which a node leaves the job."""
        total = sum(each.count for each in self.causes.values())
        if not total:
            return UNKNOWN_NODE_SHARE
        return sum(each.count for each in self.causes.values() if each.node) / total

    @property
    def shares(self) -> dict[str, float]:
        """Share of each cause, the most frequent first."""
        total = sum(each.count for each in self.causes.values())
        ordered = sorted(self.causes.items(), key=lambda each: (-each[1].count, each[0]))
        return {name: cause.count / total for name, cause in ordered}


def find_fleet(wanted: str) -> tuple[str, Fleet]:
    """Name or path → name and fleet; "none" has no interruptions.

    Raises
    ------
    InputError
    """
    if wanted == NONE:
        return NONE, Fleet("no failures", "none", rate=0.0)
    found = find_table(wanted, FILE, "fleet")
    return found.name, build(Fleet, found.table, found.source, found.name)


def rate_spread() -> float:
    """Published fleets → standard deviation of the logarithms of their failure rates."""
    rates = [math.log(find_fleet(name)[1].per_gpu_day) for name in fleet_names()]
    mean = sum(rates) / len(rates)
    return math.sqrt(sum((each - mean) ** 2 for each in rates) / (len(rates) - 1))


def fleet_names() -> list[str]:
    """Return the names of the fleets that come with mpisim."""
    return table_names(FILE)
