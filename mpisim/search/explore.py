"""A search space → what is known of its candidates: screened, judged by memory, simulated.

1. **Screen** every candidate: do model, plan and cluster go together, and how fast could its step
   be at best (`bound`)? Candidates are shared out to the processes, some thousand at a time.
2. **Rounds**, best first. Of the candidates that can still matter, those that could be best are
   taken and shared out. Each is judged by the memory model and, where it fits, all passes of its
   pipeline are gone through, which is a closer bound (`pipeline_bound`). Those that could be best
   with it, too, are simulated as if nothing slowed anything else: that takes little time, and is a
   bound that is close (`mpisim.prediction.extrapolation`). Those that could be best with close
   bounds are simulated in full. All processes learn what was found.
3. A candidate can no longer matter if `top` simulated ones are better in the first objective than
   it can be, and some simulated one is as good in every objective as it can be, and better in one;
   and with `Choice.each` one of those that it is compared with. The search ends when none is left
   that can.

What is left out therefore cannot be among the first `top`, nor on the front: both are those of an
exhaustive search, on any number of processes. Times of steps are to
`MAX_EXTRAPOLATION_ERROR`, so a candidate is left out only if it is worse by more than that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.lru_cache import LruCache
from ..base.text import one_line
from ..experiment import Experiment, Plan
from ..experiment.load import experiment_of, plan_of
from ..experiment.profile_filling import Filler, ProfileKey
from ..mpi.parallel import progress
from ..prediction.extrapolation import (
    MAX_EXTRAPOLATION_ERROR,
    StepCache,
    least_step_time,
    step_time,
)
from ..prediction.hardware import Hardware, hardware_of
from ..prediction.memory_fit import verdict
from ..prediction.network import NetworkCache
from .bound import StepBounds
from .budget import Budget, budget_of, over_budget, simulated_cost
from .job import job_of, over_job, steps_of
from .pareto import dominated
from .records import Found, Records, Status, enter_judged, least_values, tell
from .space import SearchSpace
from .traced import explore_traces

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Candidates", "explore", "undecided"]

ROUND, SIMULATED_IN_ROUND = 32, 8
"""Candidates of a round, and of one that simulates in full. Few, since what they find spares
others. On any number of processes, so that all of them simulate the same candidates."""

SCREENED_IN_ROUND = 4096
"""Candidates screened before all processes learn what was found, half a second's work."""

MOST_PLANS = 4096
"""Plans that are kept, for others that differ in sizes alone."""

SLACK = 1 + 2 * MAX_EXTRAPOLATION_ERROR
"""By how much a candidate must be worse to be left out."""


class Candidates:
    """Experiments of a search space, with what many of them have in common.

    Parameters
    ----------
    space : SearchSpace
    allow_oom : bool, optional
        Whether whoever prepares one is told of too little memory by its verdict alone; else that is
        an error unless the experiment's own ``run.allow_oom`` is set.
    """

    def __init__(self, space: SearchSpace, *, allow_oom: bool = True) -> None:
        self._space, self._allow_oom = space, allow_oom
        self._shared: dict[str, _Shared] = {}
        self._hardware: dict[str, Hardware] = {}
        self._others = [at for at, key in enumerate(space.keys) if not key.startswith("plan.")]
        self._peaks: set[tuple[str, str]] = set()  # formats that the GPUs are known to have

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
        values = [assignment[at] for at in self._others]
        others = json.dumps(values, default=str) if values else ""
        shared = self._shared.get(others)
        if shared is None:
            experiment = experiment_of(tables, space.source)
            if self._allow_oom:
                experiment = replace(experiment, run=replace(experiment.run, allow_oom=True))
            if experiment.profile is None:  # others set more than the plan
                self._shared[others] = _Shared(experiment, space, tables)
        else:
            experiment = shared.with_plan(tables)
        plan = experiment.plan
        hardware = self._hardware.get(others)
        if hardware is None:
            hardware = self._hardware[others] = hardware_of(experiment)
        elif (others, plan.precision.products) not in self._peaks:
            for gpu in hardware.named.values():
                gpu.peak(plan.precision.products)
            self._peaks.add((others, plan.precision.products))
        return experiment, hardware


class _Shared:
    """An experiment, from which others follow that differ in ``[plan]`` alone.

    *Sizes* are numbers of a plan by which nothing is filled in (`Filler`), as micro-batches: plans
    that differ in these alone are made of one that was read.

    Parameters
    ----------
    experiment : Experiment
        Of a space whose framework is not named.
    space : SearchSpace
    tables : mapping
        Of the experiment.
    """

    def __init__(
        self, experiment: Experiment, space: SearchSpace, tables: Mapping[str, Any]
    ) -> None:
        self._experiment, self._source = experiment, space.source
        self._filler = Filler(tables, experiment.model, space.source)
        varied = {key.removeprefix("plan.") for key in space.keys if key.startswith("plan.")}
        self._sizes = varied - self._filler.looks_at
        # By all that tables say of a plan but sizes.
        self._plans: LruCache[tuple[Plan, dict[str, ProfileKey]]] = LruCache(MOST_PLANS)
        self._read: set[tuple[str, int]] = set()  # sizes that plans were read with

    def with_plan(self, tables: Mapping[str, Any]) -> Experiment:
        """Tables of another experiment → that experiment.

        Raises
        ------
        InputError
            If values of its plan contradict each other.
        """
        given = tables["plan"]
        sizes = {key: given[key] for key in self._sizes if type(given.get(key)) is int}
        others = repr({key: value for key, value in given.items() if key not in sizes})
        plan: Plan | None = None
        if others in self._plans and self._read.issuperset(sizes.items()):
            known, set_by = self._plans.get(others, lambda: self._made(tables))
            with suppress(InputError):  # `_made` says of which file it is
                plan = replace(known, **sizes)
        if plan is None:
            plan, set_by = made = self._made(tables)
            self._plans.get(others, lambda: made)
            self._read.update(sizes.items())
        return replace(self._experiment, plan=plan, given=tables, set_by_profile=set_by)

    def _made(self, tables: Mapping[str, Any]) -> tuple[Plan, dict[str, ProfileKey]]:
        """Tables → the plan, and what was filled in."""
        full, set_by = self._filler.filled(tables)
        return plan_of(full, self._source), set_by


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
        Called on process 0 with all that is known, after every round, those of the screening too.

    Returns
    -------
    Records
        Equal on all processes.

    Raises
    ------
    InputError
        If no candidate is valid: what is wrong with most of them.
    MpisimError
        On all processes, what one of them or `each_round` raised.
    """
    if space.of_trace:
        return explore_traces(space, comm, known=known, show=show, each_round=each_round)
    candidates, bounds = Candidates(space), StepBounds()
    records = Records.none(len(space)) if known is None else known
    screened = partial(_screened, space, candidates, bounds)
    with progress(comm, "screening candidates" if show else "", len(space)) as update:
        while len(unknown := records.numbers(Status.UNKNOWN)):
            update(len(space) - len(unknown))
            enter_judged(space, records, unknown[:SCREENED_IN_ROUND].tolist(), screened, comm)
            tell(records, comm, each_round)
    reason = records.frequent
    if reason is not None and not np.any(records.status != Status.INVALID):
        text = one_line(reason.text)
        example = space.described(reason.first)
        raise InputError(
            f"{space.source}: none of the {len(space):,} combinations is valid; {reason.number:,} "
            f"of them as this one: {text} ({example})"
            if len(space) > 1
            else f"{space.source}: {text} ({example})"
        )
    rounds = _Rounds(space, candidates, bounds, records)
    steps = (rounds.judged, ROUND), (rounds.bounded, ROUND)
    # How far candidates have come: those that fit, and those whose bound is of a simulation.
    come = {judge: set[int]() for judge, _ in steps}
    in_full = rounds.simulated, min(space.choice.top, SIMULATED_IN_ROUND)
    looked_at = 0
    with progress(comm, "searching" if show else "", 1.0) as update:
        while True:
            open_ones = undecided(space, records)
            # Most of those that are open will be left out unseen: more time than is needed.
            update(looked_at / max(looked_at + len(open_ones), 1), _best_so_far(space, records))
            if not len(open_ones):
                return records
            first = open_ones[:ROUND].tolist()
            for judge, most in (*steps, in_full):
                some = [each for each in first if each not in come.get(judge, ())][:most]
                if some:
                    break
            enter_judged(space, records, some, judge, comm)
            if judge in come:
                come[judge].update(some)
            looked_at += len(some)
            tell(records, comm, each_round)


def _best_so_far(space: SearchSpace, records: Records) -> str:
    """Return the first objective of the best candidate that is simulated, in words."""
    done = records.numbers(Status.SIMULATED)
    if not len(done):
        return ""
    best = done[np.argmin(least_values(space, records, done)[:, 0])]
    return f"best step so far {records.step[best] * 1e-12:.4g} s"


def undecided(space: SearchSpace, records: Records) -> NDArray[np.int64]:
    """Candidates, records → numbers of those that could still be best, the best bound first.

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
        if space.choice.each is not None:
            groups, known = space.groups(open_ones), space.groups(done)
            for group in np.unique(groups):
                best = worse[known == group, 0].min(initial=np.inf)
                matters |= (groups == group) & (could_be[:, 0] <= best)
    kept = open_ones[matters]
    order = np.lexsort((kept, could_be[matters, 0]))
    return kept[order]


# --- screening ------------------------------------------------------------------------------------


def _screened(space: SearchSpace, candidates: Candidates, bounds: StepBounds, number: int) -> Found:
    """Return the bound of a candidate; `InputError` if it is invalid. Local."""
    choice, budget = space.choice, Budget()
    experiment, hardware = candidates.experiment(number)
    bound = bounds.of(experiment, hardware)
    tokens = bounds.tokens(experiment, hardware)
    values: dict[str, int | float] = {"bound": bound, "gpus": hardware.gpus, "tokens": tokens}
    if choice.asks_cost:
        budget = budget_of(choice, experiment, hardware)
        values |= vars(budget)
    over = choice.max_gpus is not None and hardware.gpus > choice.max_gpus
    over |= choice.max_step_time is not None and bound * 1e-12 > choice.max_step_time
    over |= over_budget(choice, budget, budget.least_watts)
    if choice.asks_job:
        steps = values["job_steps"] = steps_of(experiment, tokens)
        over |= over_job(choice, *_least_job(steps, bound, budget))
    return Found(number, Status.OVER_LIMIT if over else Status.BOUNDED, values)


def _least_job(steps: int, step: int, budget: Budget) -> tuple[float, float]:
    """Steps of a job, least ps of one, what the candidate costs → least s and $ of the job."""
    seconds = steps * step * 1e-12
    return seconds, seconds * (budget.usd_hour / 3600 + budget.usd_joule * budget.least_watts)


# --- rounds ---------------------------------------------------------------------------------------


class _Rounds:
    """Candidates of a round → their bounds, memory verdicts or simulated steps; not collective.

    Parameters
    ----------
    space : SearchSpace
    candidates : Candidates
    bounds : StepBounds
    records : Records
        What is known at the beginning of the round, on all processes.
    """

    def __init__(
        self, space: SearchSpace, candidates: Candidates, bounds: StepBounds, records: Records
    ) -> None:
        self._space, self._candidates, self._bounds = space, candidates, bounds
        self._records = records
        self._networks, self._steps = NetworkCache(), StepCache()

    def judged(self, number: int) -> Found:
        """Judge the memory of a candidate, and bound its step by all passes of its pipeline."""
        experiment, hardware = self._candidates.experiment(number)
        memory = verdict(experiment, hardware)
        if memory.peak > self._space.choice.room(memory.capacity) or not memory.host_fits:
            return Found(number, Status.TOO_LARGE, {"peak": memory.peak})
        least = self._bounds.closer(experiment, hardware)
        return self._bounded(number, least, {"peak": memory.peak})

    def bounded(self, number: int) -> Found:
        """Bound the step of a candidate that fits by a simulation."""
        from mpi4py import MPI

        experiment, hardware = self._candidates.experiment(number)
        memory = verdict(experiment, hardware)
        least = least_step_time(experiment, MPI.COMM_SELF, self._networks, memory, self._steps)
        return self._bounded(number, least, {})

    def _bounded(self, number: int, least: int, values: dict[str, int | float]) -> Found:
        choice, records = self._space.choice, self._records
        over = choice.max_step_time is not None and least * 1e-12 > choice.max_step_time
        bound = max(least, int(records.bound[number]))
        if choice.asks_job:
            steps = int(records.job_steps[number])
            over |= over_job(choice, *_least_job(steps, bound, records.budget(number)))
        status = Status.OVER_LIMIT if over else Status.BOUNDED
        return Found(number, status, values | {"bound": bound})

    def simulated(self, number: int) -> Found:
        """Simulate a candidate that fits."""
        from mpi4py import MPI

        choice = self._space.choice
        experiment, hardware = self._candidates.experiment(number)
        memory = verdict(experiment, hardware)
        budget, energy, watts = self._records.budget(number), 0.0, 0.0
        if choice.asks_energy or budget.usd_joule:
            picoseconds, tokens, cost = simulated_cost(experiment, self._networks)
            energy, watts = cost.joules_of_building, cost.watts.value
        else:
            step = step_time(
                experiment,
                MPI.COMM_SELF,
                networks=self._networks,
                memory=memory,
                steps=self._steps,
            )
            picoseconds, tokens = step.picoseconds, step.tokens
        status = Status.SIMULATED
        if choice.max_step_time is not None and picoseconds * 1e-12 > choice.max_step_time:
            status = Status.TOO_SLOW
        elif over_budget(choice, budget, watts):
            status = Status.OVER_BUDGET
        values = {"step": picoseconds, "peak": memory.peak, "tokens": tokens, "energy": energy}
        if choice.asks_job:
            job = job_of(experiment, picoseconds * 1e-12, tokens, budget, watts)
            values |= {"job_time": job.seconds, "job_usd": job.usd}
            if status == Status.SIMULATED and over_job(choice, job.seconds, job.usd):
                late = not over_job(choice, 0.0, job.usd)
                status = Status.TOO_SLOW if late else Status.OVER_BUDGET
        return Found(number, status, values)
