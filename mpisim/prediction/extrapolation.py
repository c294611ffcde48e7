"""Times of one or two short steps → time of a step with many more micro-batches.

Where forwards and backwards alternate (1F1B, and plans without a pipeline), one step of two
micro-batches more than there are stages tells how long any number takes, to the picosecond: its
run shows whether rounds repeat, and by how much each makes the step longer
(`mpisim.engine.steady_rounds` says when that is so, and why the rest follows). Where it does not
show that, and for other schedules, two shorter steps tell, to `MAX_EXTRAPOLATION_ERROR`.

*Two shorter steps.* Once a pipeline is full, every further round of micro-batches takes as long as
the one before, until the end. So the step of m micro-batches follows from those of two smaller
numbers, which both have the beginning, the end and what is hidden behind them:

    T(m) = T(b) + (m - b) (T(b) - T(a)) / (b - a)

with a, b and m congruent modulo a round, so that all end at the same point of it. A sweep over
plans needs no more of a step than its time, and a pipeline of 32 stages that 768 micro-batches pass
is known from 32 and 40 of them.

This fails where a stream or a CPU needs longer for a round than the step grows by: it falls behind,
but began early, and delays the step only when that lead is used up. So the busy time of every
stream and CPU in a round is added up (`busy_times`). Where any of it could make the step longer by
more than `MAX_EXTRAPOLATION_ERROR` (`is_periodic`), two longer steps are simulated, and if those do
not do either, all micro-batches. All are simulated at once in a pipeline whose gradients are
reduced in every micro-batch, which couples its stages so loosely that a lead may last for dozens of
rounds, and in ZB-H1, where the set of communications that share links, and of kernels beside them,
goes on changing from round to round.

Who looks for the best of many steps need not know how long most of them are, only that they are
longer. A step in which no communication waits for a link and no kernel is slowed takes no longer
than with both: the order of rows is that of the program, so all times are maxima of sums of
durations, and no duration is less. It is simulated in one pass of dataflow, a fraction of the work:
`least_step_time`.

Plans that differ only in how many micro-batches a step has are known from the same shorter steps.
A `StepCache` keeps what these were, so that a sweep over batches simulates each once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..base.lru_cache import LruCache
from ..base.text import percentage
from ..engine import Run, simulate
from ..engine.steady_rounds import steady_period
from ..experiment import Experiment
from ..experiment.traced import Traced
from ..memory import Verdict
from ..mpi.reductions import allreduce_max
from ..program import Flag
from .circuits import circuits_of
from .execution import execute
from .memory_fit import verdict
from .network import NetworkCache
from .prepared import PreparedExperiment, prepare
from .short_steps import (
    ShortenedRun,
    SteadyRun,
    shortened_run,
    shortened_runs,
    shortest_runs,
    steady_run,
    with_micro_batches,
)
from .step_constants import StepConstants

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "MAX_EXTRAPOLATION_ERROR",
    "ShortenedRun",
    "SteadyRun",
    "StepCache",
    "StepTime",
    "busy_times",
    "extrapolate",
    "is_periodic",
    "least_step_time",
    "shortened_run",
    "shortened_runs",
    "shortest_runs",
    "steady_run",
    "step_time",
    "with_micro_batches",
]

MAX_EXTRAPOLATION_ERROR = 1e-3
"""Share of a step by which its time may differ from that of the step in full. None of the random
plans of docs/experiments.md differs by more."""

MOST_STEPS_KEPT = 1024
"""Shorter steps, and pairs of them, that a `StepCache` keeps of either kind, of about 5 KB each."""

Ints = NDArray[np.int64]


class _SteadyStep(NamedTuple):
    """Time of one shorter step, and of each further micro-batch.

    Attributes
    ----------
    time, period : int
        In ps, `period` of each further micro-batch; 0: not known.
    tokens : int
    """

    time: int
    period: int
    tokens: int


class _ShorterSteps(NamedTuple):
    """Times and loads of two shorter steps.

    Attributes
    ----------
    times : (int, int)
        Of either, in ps.
    loads : two of int64, shape (tables, 1 + streams)
        `busy_times` of either.
    tokens : int
        Of the first.
    """

    times: tuple[int, int]
    loads: tuple[Ints, Ints]
    tokens: int


class StepCache:
    """Cache of shorter steps: their times and lower bounds, keyed by all inputs they depend on.

    A caller that compares steps with the same constants makes one and passes it down. Files named
    by experiments must not change meanwhile. The number of entries is bounded.
    """

    def __init__(self) -> None:
        self.in_full, self.least = _Known(), _Known()


class _Known:
    """Cached shorter steps that were all simulated in one way."""

    def __init__(self) -> None:
        self.pairs: LruCache[_ShorterSteps] = LruCache(MOST_STEPS_KEPT)
        self.steady: LruCache[_SteadyStep] = LruCache(MOST_STEPS_KEPT)


@frozen
class StepTime:
    """A step time with the memory verdict and tokens that comparisons of plans need.

    Attributes
    ----------
    picoseconds : int
    memory : Verdict
        Whether it fits.
    tokens : int
        Tokens (images, samples) of the step.
    rounds : ShortenedRun, SteadyRun or None
        Shorter steps it was extrapolated from; None if all micro-batches were simulated.
    """

    picoseconds: int
    memory: Verdict
    tokens: int
    rounds: ShortenedRun | SteadyRun | None

    @property
    def assumption(self) -> str:
        """The assumption behind an extrapolated time; empty if all was simulated."""
        if self.rounds is None:
            return ""
        if isinstance(self.rounds, SteadyRun):
            return (
                f"{self.rounds.whole} micro-batches from a step of {self.rounds.simulated} that "
                "was simulated: its rounds repeat to the picosecond"
            )
        first, second, whole = self.rounds
        return (
            f"{whole} micro-batches from {first} and {second} that were simulated: each further "
            f"one takes as long as those between (to {percentage(MAX_EXTRAPOLATION_ERROR, 1)})"
        )


def extrapolate(first: float, second: float, rounds: ShortenedRun) -> float:
    """Return T(m) from T(a) and T(b), of the step or of any part of it.

    Parameters
    ----------
    first, second : float
        T(a) and T(b) of the two shorter steps, in one unit of time, which the result has too.
    rounds : ShortenedRun
        The micro-batches a, b and m.
    """
    return second + rounds.further * (second - first)


def busy_times(prepared: PreparedExperiment, run: Run) -> Ints:
    """Run → busy time of the CPU and of each stream, on a rank of each table. Local.

    Parameters
    ----------
    prepared : PreparedExperiment
    run : Run
        Of its program, or of some of its ranks.

    Returns
    -------
    int64, shape (tables, 1 + streams)
        ps of the CPU, then of each stream: kernels, and communications once all are there. The
        most of all ranks simulated here.
    """
    streams = max((table.n_streams for table in prepared.program.tables if table), default=0)
    found = np.zeros((len(prepared.program.tables), 1 + streams), np.int64)
    for i in run.simulated.tolist():
        rank = int(run.hosted[i])
        table = run.program.table_of(rank)
        # Of communications that are one launch only the first counts: they run side by side.
        some = np.flatnonzero(table.is_device & ((table.flags & Flag.JOINED) == 0))
        lasting = run.lasting(i)[some].astype(float)  # whole ps below 2^53: exact
        host = int(table.host.sum() + table.launch_cost.sum())
        on_device = np.bincount(table.stream[some], lasting, streams).astype(np.int64)
        own = found[prepared.program.table[rank]]
        np.maximum(own, [host, *on_device], out=own)
    return found


def is_periodic(
    first: Ints, second: Ints, times: tuple[float, float], rounds: ShortenedRun
) -> bool:
    """Return whether each further round takes as long as those between two short steps.

    Parameters
    ----------
    first, second : int64, shape (tables, 1 + streams)
        `busy_times` of the two steps.
    times : tuple of float
        Of the two steps, in ps.
    rounds : Rounds
    """
    behind = int((second - first).max(initial=0)) - (times[1] - times[0])
    return rounds.further * behind <= MAX_EXTRAPOLATION_ERROR * extrapolate(*times, rounds)


def step_time(
    experiment: Experiment,
    comm: Intracomm,
    *,
    constants: StepConstants | None = None,
    every: bool = False,
    networks: NetworkCache | None = None,
    memory: Verdict | None = None,
    steps: StepCache | None = None,
) -> StepTime:
    """Experiment → its step time, simulated or extrapolated. **Collective.**

    Parameters
    ----------
    experiment : Experiment
    comm : mpi4py.MPI.Intracomm
    constants : StepConstants, optional
        As for `mpisim.prediction.prepared.prepare`.
    every : bool
        Whether to simulate all micro-batches.
    networks : NetworkCache, optional
        Shared by the steps that one caller compares; they are faster then.
    memory : Verdict, optional
        Whether it fits, where that is known; nothing is refused then.
    steps : StepCache, optional
        Shared likewise; used without `constants` alone.

    Raises
    ------
    InputError
        As `mpisim.prediction.prepared.prepare`.
    """

    def run(prepared: PreparedExperiment) -> list[Run]:
        passes: list[Run] = []
        execute(prepared, comm, digest=False, passes=passes)
        return passes

    networks = networks or NetworkCache()
    tries = [] if every else _runs_to_try(experiment)
    known = None if steps is None or constants is not None else steps.in_full
    return _step_time(experiment, comm, run, tries, constants, networks, memory, known)


def least_step_time(
    experiment: Experiment,
    comm: Intracomm,
    networks: NetworkCache,
    memory: Verdict,
    steps: StepCache | None = None,
) -> int:
    """Experiment → lower bound of its step time, in ps. **Collective.**

    It is that of a step in which nothing slows anything else, mostly a few percent less. Where it
    is extrapolated it is less by `MAX_EXTRAPOLATION_ERROR`.

    Parameters
    ----------
    experiment : Experiment
    comm : mpi4py.MPI.Intracomm
    networks, memory, steps
        As for `step_time`.

    Raises
    ------
    InputError
        As `mpisim.prediction.prepared.prepare`.
    """

    def run(prepared: PreparedExperiment) -> list[Run]:
        found = simulate(
            prepared.program,
            comm,
            network=prepared.network,
            contention=False,
            setups=networks.setups,
            digest=False,
        )
        return [found]

    tries, known = _runs_to_try(experiment), None if steps is None else steps.least
    found = _step_time(experiment, comm, run, tries, None, networks, memory, known)
    exact = not isinstance(found.rounds, ShortenedRun)
    return int(found.picoseconds * (1 if exact else 1 - MAX_EXTRAPOLATION_ERROR))


def _runs_to_try(experiment: Experiment) -> list[SteadyRun | ShortenedRun]:
    """Return the shorter steps to try in place of a step, cheapest first."""
    steady = steady_run(experiment)
    return [*([] if steady is None else [steady]), *shortened_runs(experiment)]


def _step_time(
    experiment: Experiment,
    comm: Intracomm,
    run: Callable[[PreparedExperiment], list[Run]],
    tries: Sequence[SteadyRun | ShortenedRun],
    constants: StepConstants | None,
    networks: NetworkCache,
    memory: Verdict | None,
    known: _Known | None,
) -> StepTime:
    """Return the step time, from a run of the step or of shorter ones. **Collective.**

    `run` returns the run of every pass, the last being that of the step.
    """
    # Of a traced network not all is among the values of an experiment. Of others the
    # representation has each that two experiments are compared by.
    if known is None or isinstance(experiment.model, Traced):
        known = _Known()
    for rounds in tries:
        memory = verdict(experiment) if memory is None else memory
        shorter = with_micro_batches(experiment, rounds[0])
        given = comm, run, constants, networks, memory
        if isinstance(rounds, SteadyRun):
            step = known.steady.get(repr(shorter), partial(_steady_step, shorter, *given))
            if step.period:
                time = step.time + (rounds.whole - rounds.simulated) * step.period
                tokens = step.tokens // rounds.simulated * rounds.whole
                return StepTime(time, memory, tokens, rounds)
            continue
        key = repr(shorter), rounds.second
        steps = known.pairs.get(key, partial(_shorter_steps, shorter, rounds.second, *given))
        if is_periodic(*steps.loads, steps.times, rounds):
            tokens = steps.tokens // rounds.first * rounds.whole
            return StepTime(round(extrapolate(*steps.times, rounds)), memory, tokens, rounds)
    prepared = prepare(experiment, constants, memory, networks)
    time = run(prepared)[-1].step_time
    return StepTime(time, prepared.memory, prepared.workload.tokens, None)


def _steady_step(
    experiment: Experiment,
    comm: Intracomm,
    run: Callable[[PreparedExperiment], list[Run]],
    constants: StepConstants | None,
    networks: NetworkCache,
    memory: Verdict,
) -> _SteadyStep:
    """Simulate a step → its time, and that of each further micro-batch. **Collective.**"""
    prepared = prepare(experiment, constants, memory, networks)
    tokens = prepared.workload.tokens
    if circuits_of(prepared.network) is not None:
        return _SteadyStep(0, 0, tokens)  # which circuits stand may depend on the step's length
    passes = run(prepared)
    period = steady_period(passes, comm if comm.size > 1 else None)
    return _SteadyStep(passes[-1].step_time, period or 0, tokens)


def _shorter_steps(
    experiment: Experiment,
    second: int,
    comm: Intracomm,
    run: Callable[[PreparedExperiment], list[Run]],
    constants: StepConstants | None,
    networks: NetworkCache,
    memory: Verdict,
) -> _ShorterSteps:
    """Simulate a step, and one with `second` micro-batches a replica. **Collective.**"""
    first = prepare(experiment, constants, memory, networks)
    times: list[int] = []
    loads: list[Ints] = []
    for prepared in (first, first.with_micro_batches(second)):
        done = run(prepared)[-1]
        times.append(done.step_time)
        loads.append(allreduce_max(busy_times(prepared, done), comm))
    return _ShorterSteps((times[0], times[1]), (loads[0], loads[1]), first.workload.tokens)
