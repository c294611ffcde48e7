"""The candidates that an answer shows, each simulated in full: experiment → `Finalist`.

A search needs of a step no more than its time. Of the few that are shown the time is exact, and
told is what it consists of and how sure it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from math import hypot
from typing import TYPE_CHECKING, Any, Protocol

from ..base.errors import InputError
from ..base.frozen import frozen
from ..cost.step import step_cost
from ..experiment import Experiment
from ..mpi.parallel import collective_errors, progress
from ..prediction import uncertainty
from ..prediction.execution import execute
from ..prediction.hardware import hardware_of
from ..prediction.long_steps import long_step
from ..prediction.network import NetworkCache
from ..prediction.prepared import prepare
from ..results import collect
from .budget import Budget, budget_of
from .explore import Candidates
from .job import job_of
from .space import SearchSpace
from .traced import TracedCandidate, TracedCandidates

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Finalist", "difference_error", "simulate_finalists"]

MODEL_ERROR = "model error"
"""How names of what the model leaves out begin (`mpisim.prediction.uncertainty`)."""

PARTS = {
    "compute": "compute",
    "exposed_wire": "communication",
    "exposed_waiting": "waiting",
    "idle": "idle",
}
"""What the mean GPU's step consists of: columns of results, and their names."""


@frozen
class Finalist:
    """A candidate simulated in full.

    Attributes
    ----------
    number : int
        Of the candidate.
    described : str
        What it sets.
    settings : mapping
        The same by key.
    step_ps : int
    error : float
        One standard deviation of the step time, as a share of it.
    effects : mapping of str to float
        What it consists of: relative error of the step from each number alone.
    parts_ps : mapping of str to float
        Mean over all GPUs of compute, exposed wire, exposed waiting and idle.
    peak : int
        Bytes on the fullest GPU.
    gpus, tokens : int
    utilisation : float
        Model FLOPs over the peak of all GPUs; 0 where they are not known.
    digest : str
    cost : mapping of str to float
        Numbers of `mpisim.cost.StepCost.attributes`; empty where nothing says what it draws.
    counted : {"tokens", "images", "samples"}
        What `tokens` counts.
    job : mapping of str to float
        ``seconds``, ``usd`` and ``goodput`` of its whole job; empty where it is not asked for.
    """

    number: int
    described: str
    settings: Mapping[str, Any]
    step_ps: int
    error: float
    effects: Mapping[str, float]
    parts_ps: Mapping[str, float]
    peak: int
    gpus: int
    tokens: int
    utilisation: float
    digest: str
    cost: Mapping[str, float] = field(default_factory=dict)
    counted: str = "tokens"
    job: Mapping[str, float] = field(default_factory=dict)

    @property
    def step_time(self) -> float:
        """Seconds."""
        return self.step_ps * 1e-12

    def as_json(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def simulate_finalists(
    space: SearchSpace, numbers: Sequence[int], comm: Intracomm, *, show: bool = False
) -> list[Finalist]:
    """Candidates → each simulated in full, in the same order. **Collective.**

    Parameters
    ----------
    space : SearchSpace
    numbers : sequence of int
        Candidates that fit into memory.
    comm : mpi4py.MPI.Intracomm
        Its processes share them.
    show : bool
        Show progress, if a person is watching.
    """
    simulated = _of_traces(space) if space.of_trace else _of_experiments(space)
    found: dict[int, Finalist] = {}
    own = numbers[comm.rank :: comm.size]
    label = "simulating the best in full" if show else ""
    with collective_errors(comm), progress(comm, label, len(own)) as update:
        for done, number in enumerate(own):
            found[number] = simulated(number)
            update(done + 1)
    for part in comm.allgather(found):
        found |= part
    return [found[number] for number in numbers]


def _of_experiments(space: SearchSpace) -> Callable[[int], Finalist]:
    """Search space of experiments → function that simulates a candidate."""
    candidates, networks = Candidates(space), NetworkCache()
    return lambda number: _simulated(space, number, candidates.experiment(number)[0], networks)


def _of_traces(space: SearchSpace) -> Callable[[int], Finalist]:
    """Search space of a trace → function that simulates a candidate."""
    candidates = TracedCandidates(space)
    return lambda number: _simulated_trace(space, number, candidates.of(number))


def _simulated_trace(space: SearchSpace, number: int, candidate: TracedCandidate) -> Finalist:
    from mpi4py import MPI

    run, step = candidate.run(MPI.COMM_SELF, critical_path=True)
    results = collect(run, comm=MPI.COMM_SELF, network=candidate.network)
    assert results is not None
    effects = candidate.effects(run)
    settings = space.settings(number)
    if any(f"plan.{axis}" in settings for axis in ("tp", "pp")) or "cluster.nodes" in settings:
        settings.setdefault("plan.dp", candidate.dp)
    share = step / results.step_time_ps  # of a recording of several steps
    return Finalist(
        number=number,
        described=space.described(number),
        settings=settings,
        step_ps=step,
        error=hypot(*effects.values()),
        effects=effects,
        parts_ps={
            name: float(results.ranks[column].mean()) * share for column, name in PARTS.items()
        },
        peak=candidate.memory,
        gpus=candidate.gpus,
        tokens=candidate.tokens,
        utilisation=0.0,  # formats of a trace's products are not known
        digest=results.digest,
        counted=candidate.counted,
    )


def _simulated(
    space: SearchSpace, number: int, experiment: Experiment, networks: NetworkCache
) -> Finalist:
    from mpi4py import MPI

    comm, repetition = MPI.COMM_SELF, None
    found = long_step(experiment, comm, networks=networks)
    if found is not None:
        prepared, run, overlap, repetition = found
    else:
        prepared = prepare(experiment, networks=networks)
        run, overlap = execute(prepared, comm, critical_path=True)
    results = collect(run, comm=comm, network=prepared.network, repetition=repetition)
    assert results is not None
    bar = uncertainty.error_bar(prepared, run, overlap=overlap)
    workload = prepared.workload
    settings = space.settings(number)
    if any(f"plan.{axis}" in settings for axis in ("tp", "pp", "cp")):
        settings.setdefault("plan.dp", workload.layout.grid.dp)  # the file may have another
    micro_batches = experiment.plan.global_batch / prepared.experiment.plan.global_batch
    tokens = round(workload.tokens * micro_batches)
    try:
        cost = step_cost(prepared, results, tokens).numbers()
    except InputError:
        cost = {}
    job: dict[str, float] = {}
    if space.choice.asks_job:
        budget = Budget()
        if space.choice.asks_cost:
            budget = budget_of(space.choice, experiment, hardware_of(experiment))
        watts = cost.get("power", 0.0)
        job = asdict(job_of(experiment, results.step_time, tokens, budget, watts))
    return Finalist(
        number=number,
        described=space.described(number),
        settings=settings,
        step_ps=results.step_time_ps,
        error=bar.relative,
        effects={each.name: each.effect for each in bar.effects},
        parts_ps={name: float(results.ranks[column].mean()) for column, name in PARTS.items()},
        peak=prepared.memory.peak,
        gpus=results.n_ranks,
        tokens=tokens,
        utilisation=workload.flops * micro_batches / (results.step_time * prepared.peak),
        digest=results.digest,
        cost=cost,
        counted="tokens" if experiment.model.samples == "sequences" else experiment.model.samples,
        job=job,
    )


class Compared(Protocol):
    """Quantities by which two simulated steps are compared.

    Attributes
    ----------
    step_time : float
        Seconds.
    effects : mapping of str to float
        Relative error of it from each number alone.
    """

    @property
    def step_time(self) -> float: ...

    @property
    def effects(self) -> Mapping[str, float]: ...


def difference_error(
    one: Compared, other: Compared, weights: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Two candidates → standard error of the difference of their step times, in s.

    Parameters
    ----------
    one, other : Compared
        Errors of both from one number of the hardware are the same error, and cancel.
    weights : tuple of (float, float)
        Factors on the step times: 1 for times, dollars per second for costs.

    Returns
    -------
    float
        One standard deviation, in s, or in the unit of weight × s.
    """
    return uncertainty.difference_error(
        one.effects, one.step_time * weights[0], other.effects, other.step_time * weights[1]
    )
