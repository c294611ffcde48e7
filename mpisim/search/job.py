"""A candidate's step → its whole job: when it is done, and what it costs.

By the closed form of `mpisim.job.closed_form`, with Daly's interval between checkpoints unless
``[job]`` gives one: the mean of many runs, without simulating them. Only how long a job waits for
nodes, where ``[job]`` says how many stand ready, has no closed form that would do: it is the mean
of some runs. ``mpisim job`` simulates the one that is chosen, and tells how far runs lie apart.

No job takes less than its steps one after another: with the least time of a step that is a bound,
for every candidate that is not simulated.
"""

from __future__ import annotations

import math

from ..base.errors import InputError
from ..base.frozen import frozen
from ..cost.prices import SECONDS_OF_AN_HOUR
from ..experiment import Experiment
from ..job.closed_form import expected_time
from ..job.experiment_outcome import cluster_of
from ..job.inputs import Step, job_model
from ..job.monte_carlo import mean_waiting
from ..job.outcome import MAX_EXPECTED_STRETCH
from .budget import Budget
from .choice import Choice

__all__ = ["CandidateJob", "job_of", "over_job", "steps_of"]


@frozen
class CandidateJob:
    """The job of a candidate.

    Attributes
    ----------
    seconds : float
        Until it is done, in the mean.
    usd : float
        0 where the search does not ask for dollars.
    goodput : float
        Share of the time that makes steps which count.
    """

    seconds: float
    usd: float
    goodput: float


def steps_of(experiment: Experiment, tokens: int) -> int:
    """Experiment with ``[job]``, tokens of a step → steps of the job.

    Parameters
    ----------
    experiment : Experiment
    tokens : int
        Tokens, or samples of a model without.
    """
    job = experiment.job
    assert job is not None, "`read_search` refuses others"
    if job.steps is not None:
        return job.steps
    assert job.tokens is not None, "one of the two is given"
    return math.ceil(job.tokens / tokens)


def job_of(
    experiment: Experiment, seconds: float, tokens: int, budget: Budget, watts: float
) -> CandidateJob:
    """Candidate with ``[job]``, its step → its job.

    Parameters
    ----------
    experiment : Experiment
    seconds : float
        Of a step.
    tokens : int
        Of a step.
    budget : Budget
        Of the candidate.
    watts : float
        That the building draws in a step; counts where electricity is paid for by itself, and is
        taken for the whole time of the job.

    Raises
    ------
    InputError
        If the job would not come to an end.
    """
    job = experiment.job
    assert job is not None, "`read_search` refuses others"
    cluster = cluster_of(experiment)
    model, _ = job_model(Step(seconds, tokens=tokens), cluster, job)
    expected = expected_time(model)
    if expected <= MAX_EXPECTED_STRETCH * model.undisturbed:
        expected += mean_waiting(model, job.runs, job.seed)
    if expected > MAX_EXPECTED_STRETCH * model.undisturbed:
        raise InputError(
            f"job: with a failure every {1 / model.rate / 60:,.1f} min the job would not come to "
            "an end"
        )
    nodes = cluster.gpus / cluster.gpus_per_node
    paid = 1 + (job.spares or 0) / nodes
    an_hour = paid * budget.usd_hour + budget.usd_joule * watts * SECONDS_OF_AN_HOUR
    return CandidateJob(expected, an_hour * expected / SECONDS_OF_AN_HOUR, model.ideal / expected)


def over_job(choice: Choice, seconds: float, usd: float) -> bool:
    """Whether a job is beyond a limit.

    Parameters
    ----------
    choice : Choice
    seconds, usd : float
        Of the job, or the least that they can be.
    """
    limits = choice.job_limits
    return seconds > limits.get("job_time", seconds) or usd > limits.get("job_usd", usd)
