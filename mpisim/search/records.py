"""Records of a search: columns of status, bound, memory and step, an entry for each candidate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..mpi.parallel import collective_errors
from .budget import Budget
from .space import SearchSpace

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "Found",
    "Reason",
    "Records",
    "Status",
    "enter_judged",
    "least_values",
    "tell",
]


class Status(IntEnum):
    """How far a candidate has come."""

    UNKNOWN = 0
    INVALID = 1  # model, plan and cluster do not go together
    OVER_LIMIT = 2  # more GPUs, power or dollars than allowed, or a bound above the longest time
    BOUNDED = 3  # how fast it could be at best is known
    TOO_LARGE = 4  # does not fit into memory, or leaves too little
    SIMULATED = 5
    TOO_SLOW = 6  # simulated, and above the longest step or job allowed
    OVER_BUDGET = 7  # simulated, and draws or costs more than allowed


class Reason(NamedTuple):
    """Why candidates are invalid.

    Attributes
    ----------
    number : int
        How many, by this message but for its numbers.
    first : int
        The first of them.
    text : str
        Its message.
    """

    number: int
    first: int
    text: str


class Found(NamedTuple):
    """Results of a candidate, to be entered on all processes (`Records.enter`).

    Attributes
    ----------
    number : int
    status : Status
    values : mapping of str to int or float
        By the column; others stay as they are.
    why : str
        Why it is invalid.
    """

    number: int
    status: Status
    values: Mapping[str, int | float]
    why: str = ""


_NUMBERS = re.compile(r"\d[\d,.]*")

MOST_INT64 = 2**63 - 1

BUDGET_COLUMNS = tuple(each.name for each in fields(Budget))
"""Columns of what is known of the cost before a candidate is simulated."""


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
    usd_hour, usd_joule, least_watts, purchase : float64, shape (n,)
        `mpisim.search.budget.Budget`; 0 where the search does not ask for it.
    energy : float64, shape (n,)
        J that the building draws in a step; 0 where it was not simulated, or is not asked for.
    job_steps : int64, shape (n,)
        Steps of the whole job; 0 where the search does not ask for it.
    job_time, job_usd : float64, shape (n,)
        s and $ of the whole job; 0 where the step was not simulated, or it is not asked for.
    why : dict of str to Reason
        Why candidates are invalid: by the message without its numbers.
    """

    status: NDArray[np.uint8]
    bound: NDArray[np.int64]
    step: NDArray[np.int64]
    peak: NDArray[np.int64]
    gpus: NDArray[np.int32]
    tokens: NDArray[np.int64]
    usd_hour: NDArray[np.float64]
    usd_joule: NDArray[np.float64]
    least_watts: NDArray[np.float64]
    purchase: NDArray[np.float64]
    energy: NDArray[np.float64]
    job_steps: NDArray[np.int64]
    job_time: NDArray[np.float64]
    job_usd: NDArray[np.float64]
    why: dict[str, Reason] = field(default_factory=dict)

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
            usd_hour=np.zeros(n),
            usd_joule=np.zeros(n),
            least_watts=np.zeros(n),
            purchase=np.zeros(n),
            energy=np.zeros(n),
            job_steps=np.zeros(n, np.int64),
            job_time=np.zeros(n),
            job_usd=np.zeros(n),
        )

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "why"}

    @property
    def frequent(self) -> Reason | None:
        """Why most of the invalid candidates are; None if none is invalid."""
        reasons = self.why.values()
        return min(reasons, key=lambda each: (-each.number, each.first), default=None)

    def enter(self, parts: Iterable[Iterable[Found]]) -> None:
        """Enter what processes have found; the same on all, by the number of the candidate.

        Parameters
        ----------
        parts : iterable of iterable of Found
            Of each process; together at most one of a candidate.
        """
        for found in sorted(
            (each for part in parts for each in part), key=lambda each: each.number
        ):
            self.status[found.number] = found.status
            for name, value in found.values.items():
                # A bound or a peak beyond int64 says no more than the largest there is.
                most = MOST_INT64 if isinstance(value, int) else value
                self.columns[name][found.number] = min(value, most)
            if found.why:
                self.enter_reason(found.number, found.why)

    def budget(self, number: int) -> Budget:
        """Return what was entered of a candidate."""
        return Budget(*(float(getattr(self, name)[number]) for name in BUDGET_COLUMNS))

    def enter_reason(self, number: int, text: str, count: int = 1) -> None:
        """Count why candidates are invalid.

        Parameters
        ----------
        number : int
            The first of them.
        text : str
            The message.
        count : int
        """
        key = _NUMBERS.sub("#", text)
        known = self.why.get(key, Reason(0, number, text))
        first = min((known.first, known.text), (number, text))
        self.why[key] = Reason(known.number + count, *first)

    def __len__(self) -> int:
        return len(self.status)

    def numbers(self, *status: Status) -> NDArray[np.int64]:
        """Return the candidates of some status, ascending."""
        return np.flatnonzero(np.isin(self.status, status))

    def count(self, status: Status) -> int:
        """Return how many candidates have a status."""
        return int(np.count_nonzero(self.status == status))


def enter_judged(
    space: SearchSpace,
    records: Records,
    numbers: Sequence[int],
    judge: Callable[[int], Found],
    comm: Intracomm,
) -> None:
    """Candidates, shared out to the processes → what is found of them, on all. **Collective.**

    Parameters
    ----------
    space : SearchSpace
        The name of its file is left out of why candidates are invalid.
    records : Records
        Changed in place, the same on all processes.
    numbers : sequence of int
    judge : callable
        Candidate → what is found of it; local. One that raises `InputError` is invalid.
    comm : mpi4py.MPI.Intracomm

    Raises
    ------
    MpisimError
        On all processes, what one of them raised besides.
    """
    found: list[Found] = []
    with collective_errors(comm):
        for number in numbers[comm.rank :: comm.size]:
            try:
                found.append(judge(number))
            except InputError as error:
                why = str(error).removeprefix(f"{space.source}: ")
                found.append(Found(number, Status.INVALID, {}, why))
    records.enter(comm.allgather(found))


def tell(records: Records, comm: Intracomm, each_round: Callable[[Records], None]) -> None:
    """Call process 0's `each_round` with what is known. **Collective.**

    Parameters
    ----------
    records : Records
    comm : mpi4py.MPI.Intracomm
    each_round : callable

    Raises
    ------
    MpisimError
        On all processes, what it raised.
    """
    with collective_errors(comm):
        if comm.rank == 0:
            each_round(records)


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
    energy = np.maximum(records.energy[numbers], records.least_watts[numbers] * time)
    with np.errstate(divide="ignore", invalid="ignore"):
        watts = np.where(records.energy[numbers] > 0, energy / time, records.least_watts[numbers])
    joule, hour = records.usd_joule[numbers], records.usd_hour[numbers]
    per_token = 1 / np.maximum(tokens, 1)
    usd, of_job = hour * time / 3600 + joule * energy, records.job_steps[numbers]
    job_time, job_usd = records.job_time[numbers], records.job_usd[numbers]
    of = {
        "step_time": time,
        "tokens_per_second": -rate,
        "tokens_per_second_per_gpu": -rate / np.maximum(gpus, 1),
        "gpus": gpus,
        "memory": records.peak[numbers].astype(float),
        "usd_per_token": usd * per_token,
        "energy_per_token": energy * per_token,
        "usd_per_hour": hour + joule * watts * 3600,
        "power": watts,
        "price": records.purchase[numbers],
        # No job takes less than its steps one after another.
        "job_time": np.where(job_time > 0, job_time, of_job * time),
        "job_usd": np.where(job_usd > 0, job_usd, of_job * usd),
    }
    return np.stack([of[name] for name in space.choice.objectives], axis=1)
