"""Experiment of many micro-batches → shorter steps to simulate in place of its step.

A short step must fill the pipeline, and end at the same point of a *round* as the whole step: a
round is the micro-batches after which a schedule repeats. All micro-batches of the
whole step must be equal. Where no short step qualifies, or none saves time, the answer is None.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..experiment import Experiment, Plan
from ..experiment.traced import Traced
from ..schedules import SCHEDULES
from ..workloads.input_pipeline import loads_images

__all__ = [
    "ShortenedRun",
    "SteadyRun",
    "shortened_run",
    "shortened_runs",
    "shortest_runs",
    "steady_run",
    "with_micro_batches",
]

MAX_SIMULATED_SHARE = 0.6
"""Share of the micro-batches below which the detour pays."""

MAX_STEADY_SHARE = 0.9
"""Likewise of one shorter step: nearly all show that rounds repeat, and to find that out takes a
tenth of a run."""

STEADY_MICRO_BATCHES = 2
"""Micro-batches beyond the stages: the first stage repeats a forward and a backward, too."""

MIN_MICRO_BATCHES = 4
"""Micro-batches that fill a pipeline, however few stages it has."""

LONGER_BY_ROUNDS = 4
"""Rounds by which two other steps are longer where the first two do not tell: a stage that has more
to do than others may take a few rounds to hold them up."""


class ShortenedRun(NamedTuple):
    """Micro-batches of a replica in the two steps to simulate, and in the whole step."""

    first: int
    second: int
    whole: int

    @property
    def further(self) -> float:
        """Number of times that the second step is extended by the difference of the two."""
        return (self.whole - self.second) / (self.second - self.first)


class SteadyRun(NamedTuple):
    """Micro-batches of a replica in the one step to simulate, and in the whole step."""

    simulated: int
    whole: int


def steady_run(experiment: Experiment) -> SteadyRun | None:
    """Experiment → one shorter step to simulate in place of its step; None if there is none.

    The run of the short step may still show that its rounds do not repeat. The result is None if

    - the step is not long enough, or its micro-batches are not all equal;
    - the order of a longer step is not known to be that of the shorter one with rounds inserted;
    - the time of a round may depend on the number of rounds;
    - stages are coupled so loosely that they take many rounds to fall into step: GPUs of different
      speeds, messages beside kernels, gradients reduced in every micro-batch.
    """
    plan = experiment.plan
    if experiment.overlap.model == "coupled" or isinstance(experiment.model, Traced):
        return None  # passes until all agree: their number grows with the step
    loose = plan.zero >= 2 or plan.overlaps_p2p
    if experiment.variation.gpus or (plan.pp > 1 and loose):
        return None
    found = shortest_runs(experiment)
    if found is None or not SCHEDULES[plan.pipeline.schedule].alternates:
        return None
    simulated = max(plan.pp + STEADY_MICRO_BATCHES, MIN_MICRO_BATCHES)
    pays = simulated <= MAX_STEADY_SHARE * found.whole
    return SteadyRun(simulated, found.whole) if pays else None


def shortened_run(experiment: Experiment) -> ShortenedRun | None:
    """Experiment → two shorter steps to simulate in place of its step; None if there are none.

    There are none if the step is not long enough, if its micro-batches are not all equal (kernels
    with jitter, replicas with batches of their own), and if its rounds are not periodic.
    """
    plan = experiment.plan
    if plan.zero >= 2 and plan.pp > 1:
        return None
    found = shortest_runs(experiment)
    if found is None:
        return None
    return found if found.first + found.second <= MAX_SIMULATED_SHARE * found.whole else None


def shortest_runs(experiment: Experiment) -> ShortenedRun | None:
    """Return the two shortest steps that fill the pipeline and end at the same point of a round.

    None if micro-batches are not all equal, the schedule is not known to repeat, or the pipeline
    drains within the step.
    """
    plan = experiment.plan
    replicas = _replicas(experiment)
    if plan.replica_batch or experiment.variation.kernels or not replicas:
        return None
    if loads_images(experiment):
        return None  # whether the GPU or the host takes longer may depend on how long the step is
    to_fill = SCHEDULES[plan.pipeline.schedule].rounds_to_fill
    if to_fill is None or (plan.pipeline.run is not None and plan.pp > 1):
        return None
    whole, rest = divmod(plan.global_batch, replicas * plan.micro_batch)
    if rest:
        return None  # a plan that will be refused
    a_round = _round(plan)
    filled = plan.pp * to_fill
    filled = max(filled, -(-MIN_MICRO_BATCHES // a_round) * a_round)
    first = filled + (whole - filled) % a_round
    return ShortenedRun(first, first + a_round, whole)


def shortened_runs(experiment: Experiment) -> list[ShortenedRun]:
    """Return shortened runs to try, cheapest first; empty if none saves time."""
    found = shortened_run(experiment)
    if found is None:
        return []
    more = LONGER_BY_ROUNDS * (found.second - found.first)
    later = ShortenedRun(found.first + more, found.second + more, found.whole)
    pays = later.first + later.second <= MAX_SIMULATED_SHARE * later.whole
    return [found, later] if pays else [found]


def _round(plan: Plan) -> int:
    """Return the number of micro-batches of a round.

    Interleaved schedules take groups of as many as there are stages; of others a step has a
    micro-batch more or less, DualPipe one in either direction.
    """
    if SCHEDULES[plan.pipeline.schedule].interleaved:
        return plan.pp
    several = max(2, plan.pp // 4)
    return several + several % 2


def _replicas(experiment: Experiment) -> int:
    """Return the data parallel size; 0 if the GPUs are not shared evenly."""
    plan, cluster = experiment.plan, experiment.cluster
    if plan.dp is not None:
        return plan.dp
    gpus = cluster.gpus or cluster.nodes * cluster.node_gpus
    replicas, rest = divmod(gpus, plan.tp * plan.cp * plan.pp)
    return 0 if rest else replicas


def with_micro_batches(experiment: Experiment, number: int) -> Experiment:
    """Return an experiment with another number of micro-batches a replica.

    Parameters
    ----------
    experiment : Experiment
    number : int
        Micro-batches of a replica in a step, 1 or more; the size of each stays.
    """
    plan = experiment.plan
    batch = number * _replicas(experiment) * plan.micro_batch
    return replace(experiment, plan=replace(plan, global_batch=batch))
