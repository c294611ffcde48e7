"""Table ``[search]`` of a file → objectives, limits, how many candidates to show."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import inf
from typing import Annotated, Any, Literal

from ..base.errors import InputError, one_of
from ..base.frozen import frozen
from ..base.quantity import GIB
from ..base.schema import Limits, build
from ..cost.power import watts_of
from ..experiment.job_choice import seconds

__all__ = ["COSTS", "LIMITS", "MEANT", "OBJECTIVES", "Choice", "read_choice"]

Objective = Literal[
    "step_time",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "gpus",
    "memory",
    "usd_per_token",
    "energy_per_token",
    "usd_per_hour",
    "power",
    "price",
    "job_time",
    "job_usd",
]

OBJECTIVES: Mapping[str, bool] = {
    "step_time": False,
    "tokens_per_second": True,
    "tokens_per_second_per_gpu": True,
    "gpus": False,
    "memory": False,
    "usd_per_token": False,
    "energy_per_token": False,
    "usd_per_hour": False,
    "power": False,
    "price": False,
    "job_time": False,
    "job_usd": False,
}
"""Each objective, and whether more of it is better."""

COSTS = ("usd_per_token", "energy_per_token", "usd_per_hour", "power", "price", "job_usd")
"""Objectives that need power and prices."""

OF_JOBS = ("job_time", "job_usd")
"""Objectives that need ``[job]``."""

_MONEY = ("usd_per_token", "job_usd", "price")
MEANT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("cost", "costs", "money", "dollars", "usd", "budget", "cheapest"), _MONEY),
    **dict.fromkeys(("time", "speed", "latency", "fastest"), ("step_time", "job_time")),
    **dict.fromkeys(("days", "deadline", "time_to_train"), ("job_time",)),
    **dict.fromkeys(("throughput", "tokens"), ("tokens_per_second",)),
    **dict.fromkeys(("mfu", "efficiency", "utilisation"), ("tokens_per_second_per_gpu",)),
    **dict.fromkeys(("tokens_per_dollar", "tokens_per_usd"), ("usd_per_token",)),
    **dict.fromkeys(("energy", "kwh"), ("energy_per_token",)),
}
"""What people call objectives, and which they may mean."""


@frozen
class Choice:
    """Keys of ``[search]`` besides ``vary``.

    Attributes
    ----------
    objectives : tuple of str
        The first ranks the candidates; with several the front is shown, too.
    top : int
        Candidates to show, and to be sure of: none that is left out would be among them.
    each : str, optional
        A key that is varied, as ``"cluster.preset"``: the best of each of its values is shown, too.
    memory_headroom : float
        GiB that every GPU must have left.
    max_memory : float, optional
        GiB that a GPU may need.
    max_step_time : float, optional
        Seconds.
    max_gpus : int, optional
    max_power : str or float, optional
        Mean power of the building in a step: W, ``"500 kW"``, ``"2 MW"``.
    max_usd_per_hour : float, optional
    max_price : float, optional
        US dollars to buy the cluster.
    max_job_time : str, optional
        Until the job of ``[job]`` is done, in the mean: ``"30 days"``.
    max_job_usd : float, optional
        US dollars of that job.
    """

    objectives: tuple[Objective, ...] = ("step_time",)
    top: Annotated[int, Limits(least=1, most=1000)] = 10
    each: str | None = None
    memory_headroom: Annotated[float, Limits(least=0, most=10**6)] = 0.0
    max_memory: Annotated[float, Limits(least=0.001, most=10**6)] | None = None
    max_step_time: Annotated[float, Limits(least=1e-9)] | None = None
    max_gpus: Annotated[int, Limits(least=1, most=10**6)] | None = None
    max_power: str | None = None
    max_usd_per_hour: Annotated[float, Limits(least=0.001, counted=True)] | None = None
    max_price: Annotated[float, Limits(least=1, counted=True)] | None = None
    max_job_time: str | None = None
    max_job_usd: Annotated[float, Limits(least=0.01, counted=True)] | None = None

    def __post_init__(self) -> None:
        if not self.objectives:
            raise InputError(f"objectives is empty; it may have {', '.join(OBJECTIVES)}")
        twice = [name for name in self.objectives if self.objectives.count(name) > 1]
        if twice:
            raise InputError(f"objectives has {twice[0]!r} twice")
        if self.max_power is not None:
            watts_of(self.max_power, "max_power")
        if self.max_job_time is not None and not seconds(self.max_job_time, "max_job_time"):
            raise InputError(f"max_job_time is {self.max_job_time!r}; it must be above 0")

    def room(self, capacity: float) -> float:
        """Bytes of a GPU → the most that a candidate may need of them."""
        most = inf if self.max_memory is None else self.max_memory * GIB
        return min(capacity - self.memory_headroom * GIB, most)

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """Limits on what candidates cost, by objective: W, $ an hour, $."""
        found = {"usd_per_hour": self.max_usd_per_hour, "price": self.max_price}
        if self.max_power is not None:
            found["power"] = watts_of(self.max_power, "max_power")
        return {name: limit for name, limit in found.items() if limit is not None}

    @cached_property
    def job_limits(self) -> Mapping[str, float]:
        """Limits on the job of a candidate, by objective: s, $."""
        found: dict[str, float | None] = {"job_usd": self.max_job_usd}
        if self.max_job_time is not None:
            found["job_time"] = seconds(self.max_job_time, "max_job_time")
        return {name: limit for name, limit in found.items() if limit is not None}

    @property
    def asks_energy(self) -> bool:
        """Whether the power of a step decides on anything."""
        return "power" in self.limits or bool({"energy_per_token", "power"} & {*self.objectives})

    @property
    def asks_cost(self) -> bool:
        """Whether power or prices decide on anything."""
        asked = (*self.objectives, *self.limits, *self.job_limits)
        return any(each in COSTS for each in asked)

    @property
    def asks_job(self) -> bool:
        """Whether the whole job decides on anything."""
        return any(each in OF_JOBS for each in (*self.objectives, *self.job_limits))


LIMITS = tuple(
    name.removeprefix("max_") for name in Choice.__dataclass_fields__ if name.startswith("max_")
)
"""What can have a limit, as ``--limit`` calls it: ``max_power`` is ``power``."""


def read_choice(given: Mapping[str, Any], source: str) -> Choice:
    """Parsed keys of ``[search]`` besides ``vary`` → what is asked for.

    Parameters
    ----------
    given : mapping
    source : str
        The file, for messages.

    Raises
    ------
    InputError
        Naming the file and the key, what was found and what is allowed.
    """
    objectives = given.get("objectives")
    for at, name in enumerate(objectives if isinstance(objectives, list) else ()):
        if isinstance(name, str) and name not in OBJECTIVES:
            meant = MEANT.get(name.casefold().replace("-", "_"), ())
            near = one_of(name, OBJECTIVES)
            if meant:
                near = f" (did you mean {' or '.join(map(repr, meant))}?)" + near[near.index(";") :]
            raise InputError(f"{source}: key 'search.objectives[{at}]' is {name!r}{near}")
    keys = dict(given)
    numbers = {"memory_headroom": "GiB", "max_memory": "GiB", "max_step_time": "seconds"}
    for key, unit in numbers.items():
        if isinstance(keys.get(key), str):
            example = "2.5" if unit == "seconds" else "60"
            raise InputError(
                f"{source}: key 'search.{key}' is {keys[key]!r}; it must be a number of {unit}, as "
                f"{example}"
            )
    for key, unit in (("max_power", " W"), ("max_job_time", "")):
        if type(keys.get(key)) in (int, float):
            keys[key] = f"{keys[key]}{unit}"
    return build(Choice, keys, source, "search")
