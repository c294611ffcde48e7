"""Experiment of many micro-batches → its exact run, derived from the runs of two short steps.

A step with thousands of micro-batches repeats one round of them. Two steps that fill the pipeline
are simulated in its place, the second with a round more than the first. Where their times show that
rounds repeat to the picosecond, the long step is the second with that round inserted:
`mpisim.engine.periodic_window` says when that is so, and why the rest follows. Time and memory are
then those of the two short steps, however long the step is.

Where two steps show no such repetition, longer ones are tried, and at last the whole step is
simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..engine import Run
from ..engine.periodic_window import PeriodicWindow, may_repeat, periodic_window
from ..engine.repetition import Repetition, path_cycle, repeated
from ..experiment import Experiment
from ..memory import Verdict
from ..mpi.parallel import collective_errors
from .circuits import circuits_of
from .execution import execute
from .network import NetworkCache
from .prepared import PreparedExperiment, prepare
from .short_steps import ShortenedRun, shortest_runs

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..overlap import OverlapSummary

__all__ = ["LongStep", "long_step"]

MAX_SIMULATED_SHARE = 0.5
"""Short steps tried together have at most this share of the step's micro-batches: where none shows
that rounds repeat, the whole step is simulated, too."""

LONGER_BY_ROUNDS = (4, 12, 36)
"""Rounds by which the two steps are longer than what fills the pipeline: a CPU may be ahead of its
GPU by a thousand launches before it waits, and stages take a few rounds to fall into step."""


class LongStep(NamedTuple):
    """A long step, derived from the runs of two short ones.

    Attributes
    ----------
    prepared : PreparedExperiment
        The experiment; its program is that of the longer of the two.
    run : Run
        See `mpisim.engine.repetition.repeated`.
    overlap : OverlapSummary or None
    repetition : Repetition
    """

    prepared: PreparedExperiment
    run: Run
    overlap: OverlapSummary | None
    repetition: Repetition


class _LongerBy(NamedTuple):
    """Request for longer short steps: the critical path repeats only every several rounds."""

    rounds: int


class _Short(NamedTuple):
    """A short step that was simulated."""

    prepared: PreparedExperiment
    run: Run
    overlap: OverlapSummary | None
    passes: list[Run]


def long_step(
    experiment: Experiment,
    comm: Intracomm,
    *,
    fold: bool | None = None,
    progress: bool = False,
    memory: Verdict | None = None,
    networks: NetworkCache | None = None,
) -> LongStep | None:
    """Experiment → its run, derived from two short steps; None if their rounds do not repeat.

    **Collective.**

    Parameters
    ----------
    experiment : Experiment
    comm : mpi4py.MPI.Intracomm
    fold : bool, optional
        As for `mpisim.engine.simulate`.
    progress : bool
        Show progress, if a person is watching.
    memory, networks
        As for `mpisim.prediction.prepared.prepare`.

    Raises
    ------
    InputError
        As `mpisim.prediction.prepared.prepare`.
    """
    if experiment.overlap.model == "coupled":
        return None  # the number of passes grows with the step
    prepared: PreparedExperiment | None = None
    for steps in _pairs_to_try(experiment):
        with collective_errors(comm):
            if prepared is None:
                prepared = prepare(
                    experiment, memory=memory, networks=networks, micro_batches=steps.first
                )
        if circuits_of(prepared.network) is not None:
            return None  # which circuits stand may depend on how long the step is
        found = _from_two_steps(prepared, steps, comm, fold, progress)
        if isinstance(found, _LongerBy):
            more = found.rounds * (steps.second - steps.first)
            steps = ShortenedRun(steps.first + more, steps.second + more, steps.whole)
            found = _from_two_steps(prepared, steps, comm, fold, progress)
        if isinstance(found, LongStep):
            return found
    return None


def _pairs_to_try(experiment: Experiment) -> Iterator[ShortenedRun]:
    """Yield pairs of short steps, cheapest first, while all together cost less than the step."""
    shortest = shortest_runs(experiment)
    if shortest is None:
        return
    a_round = shortest.second - shortest.first
    left = MAX_SIMULATED_SHARE * shortest.whole
    for longer in LONGER_BY_ROUNDS:
        more = longer * a_round
        steps = ShortenedRun(shortest.first + more, shortest.second + more, shortest.whole)
        left -= steps.first + steps.second
        if left < 0:
            return
        yield steps


def _from_two_steps(
    prepared: PreparedExperiment,
    steps: ShortenedRun,
    comm: Intracomm,
    fold: bool | None,
    progress: bool,
) -> LongStep | _LongerBy | None:
    """Two short steps → the long step; None if rounds do not repeat. **Collective.**"""
    with collective_errors(comm):
        pair = [prepared.with_micro_batches(number) for number in steps[:2]]
    if not may_repeat(*(each.program for each in pair)):
        return None
    shorter = _simulated(pair[0], comm, fold, progress, critical_path=False)
    longer = _simulated(pair[1], comm, fold, progress, critical_path=True)
    window: PeriodicWindow | None = None
    for one, other in zip(shorter.passes, longer.passes, strict=True):
        window = periodic_window(one, other, comm, window)
        if window is None:
            return None
    assert window is not None
    cycle = path_cycle(longer.run, window)
    if cycle is None:
        return None
    times = (steps.whole - steps.second) // (steps.second - steps.first)
    if times % cycle.periods:
        return _LongerBy(times % cycle.periods)
    cycle = cycle._replace(times=times // cycle.periods)
    repetition = Repetition(shorter.run, longer.run, window, times, cycle)
    run = repeated(repetition, comm)
    return LongStep(
        _whole(prepared, shorter.prepared, longer.prepared, steps, repetition),
        run,
        _overlap(shorter.overlap, longer.overlap, run, repetition),
        repetition,
    )


def _simulated(
    short: PreparedExperiment,
    comm: Intracomm,
    fold: bool | None,
    progress: bool,
    *,
    critical_path: bool,
) -> _Short:
    """Simulate a short step. The path of the whole step is that of the longer. **Collective.**"""
    passes: list[Run] = []
    run, overlap = execute(
        short, comm, fold=fold, critical_path=critical_path, progress=progress, passes=passes
    )
    return _Short(short, run, overlap, passes)


def _whole(
    prepared: PreparedExperiment,
    shorter: PreparedExperiment,
    longer: PreparedExperiment,
    steps: ShortenedRun,
    repetition: Repetition,
) -> PreparedExperiment:
    """Return the experiment with the longer short step's program and the whole step's work."""
    one, other = shorter.workload, longer.workload
    times = repetition.times
    return replace(
        prepared,
        notes=(
            *prepared.notes,
            f"{steps.whole:,} micro-batches from steps of {steps.first} and {steps.second} that "
            "were simulated: the rounds between repeat to the picosecond",
        ),
        workload=replace(
            other,
            layout=replace(other.layout, experiment=prepared.experiment),
            flops=other.flops + times * (other.flops - one.flops),
            executed_flops=other.executed_flops
            + times * (other.executed_flops - one.executed_flops),
            tokens=other.tokens + times * (other.tokens - one.tokens),
        ),
    )


def _overlap(
    shorter: OverlapSummary | None,
    longer: OverlapSummary | None,
    run: Run,
    repetition: Repetition,
) -> OverlapSummary | None:
    """Return the overlap slowdowns of the whole step."""
    if shorter is None or longer is None:
        return None
    one, other = shorter.outcome, longer.outcome
    alone = other.step_time_alone - one.step_time_alone
    return replace(
        longer,
        repetition=repetition,
        outcome=replace(
            other,
            run=run,
            step_time_alone=other.step_time_alone + repetition.times * alone,
            kernel_time=repetition.sums(one.kernel_time, other.kernel_time),
            wire_time=repetition.sums(one.wire_time, other.wire_time),
            terms=repetition.sums(one.terms, other.terms),
        ),
    )
