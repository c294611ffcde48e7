"""A search space → what is known of its candidates: screened, judged by memory, simulated.

1. **Screen** every candidate: do model, plan and cluster go together, and how fast could its step
   be at best (`bound`)? Candidates are shared out to the processes.
2. **Rounds**, best first. Of the candidates that can still matter, those that could be best are
   taken and shared out. Each is judged by the memory model and, where it fits, simulated.
   All processes then learn what was found.
3. A candidate can no longer matter if `top` simulated ones are better in the first objective than
   it can be, and some simulated one is as good in every objective as it can be, and better in one.
   The search ends when none is left that can.

What is left out therefore cannot be among the first `top`, nor on the front: both are those of an
exhaustive search, on any number of processes. Times of steps are to
`MAX_EXTRAPOLATION_ERROR`, so a candidate is left out only if it is worse by more than that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.schema import build
from ..experiment import Experiment, Plan
from ..mpi.parallel import collective_errors, progress
from ..prediction.extrapolation import MAX_EXTRAPOLATION_ERROR, step_time
from ..prediction.hardware import Hardware, hardware_of
from ..prediction.memory_fit import verdict
from ..prediction.network import NetworkCache
from .bound import StepBounds
from .pareto import dominated
from .records import Records, Status, least_values
from .space import SearchSpace

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Candidates", "explore", "undecided"]

FIRST_ROUND, LARGEST_ROUND = 8, 64
"""Candidates of the first round and of the largest; each has twice as many as the one before. Few
at first, since what they find spares others. On any number of processes, so that all of them
simulate the same candidates."""

SLACK = 1 + 2 * MAX_EXTRAPOLATION_ERROR
"""By how much a candidate must be worse to be left out."""

GIB = 2**30


class Candidates:
    """Experiments of a search space, with what many of them have in common.

    Parameters
    ----------
    space : SearchSpace
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._shared: dict[Hashable, Experiment] = {}
        self._hardware: dict[Hashable, Hardware] = {}
        self._of_plan = [key.startswith("plan.") for key in space.keys]

    def experiment(self, number: int) -> tuple[Experiment, Hardware]:
        """Return the experiment of a candidate, and its hardware.

        Raises
        ------
        InputError
            If its values contradict each other.
        """
        space = self._space
        assignment = space.assignment(number)
        tables = space.with_values(assignment)
        others = json.dumps(
            [
                value
                for value, of_plan in zip(assignment, self._of_plan, strict=True)
                if not of_plan
            ],
            default=str,
        )
        plan = build(Plan, tables["plan"], space.source, "plan")
        shared = self._shared.get(others)
        if shared is None:
            shared = self._shared[others] = space.experiment(number)
        experiment = replace(
            shared, plan=plan, given=tables, run=replace(shared.run, allow_oom=True)
        )
        hardware = self._hardware.get(others)
        if hardware is None:
            hardware = self._hardware[others] = hardware_of(experiment)
        else:
            for gpu in hardware.named.values():
                gpu.peak(plan.precision)
        return experiment, hardware


def explore(
    space: SearchSpace,
    comm: Intracomm,
    *,
    known: Records | None = None,
    show: bool = False,
    each_round: Callable[[Records], None] = lambda records: None,
) -> Records:
    """Search space → what is known of its candidates when no other can matter. **Collective.**

    Parameters
    ----------
    space : SearchSpace
    comm : mpi4py.MPI.Intracomm
        The processes that share the candidates.
    known : Records, optional
        Of an earlier search of the same space, to go on from.
    show : bool
        Show progress, if a person is watching.
    each_round : callable
        Called on process 0 with all that is known, after the screening and every round.

    Returns
    -------
    Records
        Equal on all processes.

    Raises
    ------
    InputError
        If no candidate is valid: what is wrong with the first.
    MpisimError
        On all processes, what one of them or `each_round` raised.
    """
    candidates = Candidates(space)
    records = known
    if records is None:
        records = _screened(space, candidates, comm, show)
        _told(records, comm, each_round)
    if not np.any(records.status != Status.INVALID):
        with collective_errors(comm):
            experiment, hardware = candidates.experiment(0)
            StepBounds().of(experiment, hardware)
            verdict(experiment)
    networks = NetworkCache()
    size = FIRST_ROUND
    with progress(comm, "searching" if show else "", len(records), steady=False) as update:
        while True:
            open_ones = undecided(space, records)
            update(len(records) - len(open_ones))
            if not len(open_ones):
                return records
            some = open_ones[:size]
            mine = some[comm.rank :: comm.size]
            found: list[Found] = []
            with collective_errors(comm):
                found = _judged(space, candidates, mine, networks)
            _merge(records, some, comm.allgather(found))
            size = min(2 * size, LARGEST_ROUND)
            _told(records, comm, each_round)


def _told(records: Records, comm: Intracomm, each_round: Callable[[Records], None]) -> None:
    """Tell process 0's caller what is known; an error of his is raised on all. **Collective.**"""
    with collective_errors(comm):
        if comm.rank == 0:
            each_round(records)


def undecided(space: SearchSpace, records: Records) -> NDArray[np.int64]:
    """Return the candidates that can still matter, those that could be best first.

    Parameters
    ----------
    space : SearchSpace
    records : Records
    """
    open_ones = records.numbers(Status.BOUNDED)
    done = records.numbers(Status.SIMULATED)
    could_be = least_values(space, records, open_ones)
    matters = np.ones(len(open_ones), bool)
    if len(done) >= space.choice.top:
        values = least_values(space, records, done)
        # As if what is known were worse by the slack: negative values shrink, others grow.
        worse = np.where(values < 0, values / SLACK, values * SLACK)
        last = np.partition(worse[:, 0], space.choice.top - 1)[space.choice.top - 1]
        matters = could_be[:, 0] <= last
        if values.shape[1] > 1:
            matters |= ~dominated(could_be, worse)
    kept = open_ones[matters]
    order = np.lexsort((kept, could_be[matters, 0]))
    return kept[order]


# --- screening ------------------------------------------------------------------------------------


def _screened(space: SearchSpace, candidates: Candidates, comm: Intracomm, show: bool) -> Records:
    """Return the bound of every candidate. **Collective.**"""
    choice, bounds = space.choice, StepBounds()
    records = Records.none(len(space))
    own = range(comm.rank, len(space), comm.size)
    label = "screening candidates" if show else ""
    with collective_errors(comm), progress(comm, label, len(own)) as update:
        for done, number in enumerate(own):
            try:
                experiment, hardware = candidates.experiment(number)
                bound = bounds.of(experiment, hardware)
                tokens = bounds.tokens(experiment, hardware)
            except InputError:
                records.status[number] = Status.INVALID
                continue
            records.bound[number] = bound
            records.gpus[number] = hardware.gpus
            records.tokens[number] = tokens
            over = choice.max_gpus is not None and hardware.gpus > choice.max_gpus
            over |= choice.max_step_time is not None and bound * 1e-12 > choice.max_step_time
            records.status[number] = Status.OVER_LIMIT if over else Status.BOUNDED
            if done % 256 == 0:
                update(done)
    for column in records.columns.values():  # of each candidate all but one process have zeros
        column[:] = sum(comm.allgather(column)) if comm.size > 1 else column
    return records


# --- rounds ---------------------------------------------------------------------------------------

Found = tuple[int, int, int, int, int]
"""Candidate, status, step in ps, peak in bytes, tokens."""


def _judged(
    space: SearchSpace, candidates: Candidates, numbers: NDArray[np.int64], networks: NetworkCache
) -> list[Found]:
    """Judge and simulate candidates. Local."""
    from mpi4py import MPI

    choice = space.choice
    found: list[Found] = []
    for number in numbers.tolist():
        try:
            experiment, _ = candidates.experiment(number)
            memory = verdict(experiment)
            if memory.headroom < choice.memory_headroom * GIB:
                found.append((number, Status.TOO_LARGE, 0, memory.peak, 0))
                continue
            step = step_time(experiment, MPI.COMM_SELF, networks=networks, memory=memory)
        except InputError:
            found.append((number, Status.INVALID, 0, 0, 0))
            continue
        slow = choice.max_step_time is not None and (
            step.picoseconds * 1e-12 > choice.max_step_time
        )
        status = Status.TOO_SLOW if slow else Status.SIMULATED
        found.append((number, status, step.picoseconds, memory.peak, step.tokens))
    return found


def _merge(records: Records, some: NDArray[np.int64], parts: list[list[Found]]) -> None:
    """Enter what the processes have found into the records."""
    found = [each for part in parts for each in part]
    assert sorted(each[0] for each in found) == sorted(some.tolist())
    for number, status, step, peak, tokens in found:
        records.status[number] = status
        records.step[number], records.peak[number] = step, peak
        if status in (Status.SIMULATED, Status.TOO_SLOW):
            records.tokens[number] = tokens
