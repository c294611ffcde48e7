"""Predictions of measured steps, spread over processes: each row is simulated by one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.errors import MpisimError
from ...base.quantity import PICOSECONDS
from ...engine import CriticalPath
from ...experiment import Experiment
from ...mpi.parallel import progress
from ...prediction.execution import execute
from ...prediction.extrapolation import (
    ShortenedRun,
    busy_times,
    extrapolate,
    is_periodic,
    shortened_runs,
    with_micro_batches,
)
from ...prediction.network import NetworkCache
from ...prediction.prepared import PreparedExperiment, prepare
from ...prediction.step_constants import MULTIPLIERS, OVERHEAD, StepConstants, parse_constant_name
from ...prediction.uncertainty import PathShares, error_bar
from ...program import Phase
from .dealing import dealt
from .experiments import Mapped

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Outcome", "predict"]

NOTHING = StepConstants()
"""No constants are fitted; what would rest on them is known all the same."""


def _nothing() -> NDArray[np.int64]:
    return np.zeros((0, 1), np.int64)


@dataclass(frozen=True)
class Outcome:
    """What the simulation of one experiment gave.

    Attributes
    ----------
    seconds : float
        Of the step.
    before_optimizer : float
        Seconds until the last row that is not the optimizer's has ended.
    inputs : float
        Relative error bar from the numbers that the step rests on, one standard deviation.
    known : bool
        Whether the constants were fitted to steps of the same framework and kind of GPU.
    fits : bool
        Whether the memory model says that it fits.
    lengths : dict of str to float
        Seconds of the step that rest on each constant, fitted or not
        (:mod:`mpisim.prediction.step_constants`).
    busy : int64, shape (tables, 1 + streams)
        What CPUs and streams had to do, in ps (`mpisim.prediction.extrapolation.busy_times`).
    failed : str
        Why there is no prediction; empty if there is one.
    """

    seconds: float = 0.0
    before_optimizer: float = 0.0
    inputs: float = 0.0
    known: bool = False
    fits: bool = True
    lengths: Mapping[str, float] = field(default_factory=dict)
    busy: NDArray[np.int64] = field(default_factory=_nothing, compare=False)
    failed: str = ""

    @property
    def breakdown(self) -> dict[str, float]:
        """Shares of the critical path by kind of constant; ``rest``: latencies and gaps."""
        shares = dict.fromkeys((*MULTIPLIERS, OVERHEAD), 0.0)
        for name, length in self.lengths.items():
            kind = parse_constant_name(name)
            assert kind is not None
            shares[kind[0]] += length / self.seconds
        return shares | {"rest": 1 - math.fsum(shares.values())}


class _Job(NamedTuple):
    """One simulation."""

    experiment: Experiment
    constants: StepConstants

    @property
    def name(self) -> str:
        """What tells it from others."""
        # Paths of changed clusters are absolute: source and title say nothing about the step.
        return f"{id(self.constants)} {replace(self.experiment, source='', title='')!r}"


def predict(
    rows: Sequence[Mapped],
    comm: Intracomm,
    *,
    every: bool = False,
    constants: Sequence[StepConstants] | None = None,
) -> list[Outcome] | None:
    """Simulate rows. **Collective**: every process gives the same rows.

    Equal experiments are simulated once, also where only the number of micro-batches tells long
    steps apart. A row that cannot be simulated has an outcome that says why; it never stops the
    others. The outcomes do not depend on the number of processes.

    Parameters
    ----------
    rows : sequence of Mapped
    comm : mpi4py.MPI.Intracomm
    every : bool
        Whether to simulate every micro-batch of long steps (`mpisim.prediction.extrapolation`).
    constants : sequence of StepConstants, optional
        For each row those fitted to steps; none by default.

    Returns
    -------
    list of Outcome or None
        In the order of `rows`, on process 0; None on the others.
    """
    tables = constants or [NOTHING] * len(rows)
    jobs = [_Job(row.experiment, table) for row, table in zip(rows, tables, strict=True)]
    ways: list[list[ShortenedRun | None]] = [
        [*([] if every else shortened_runs(row.experiment)), None] for row in rows
    ]
    outcomes: list[Outcome | None] = [None] * len(rows)
    left = list(range(len(rows)))
    # What two shorter steps do not tell is tried with two longer ones, and simulated in full then.
    while left:
        tried = [ways[i].pop(0) for i in left]
        wanted = [_parts(jobs[i], rounds) for i, rounds in zip(left, tried, strict=True)]
        found = _all(wanted, comm)
        if found is not None:
            for i, rounds, parts in zip(left, tried, found, strict=True):
                outcomes[i] = _joined(parts, rounds)
        left = comm.bcast([i for i in left if outcomes[i] is None])
    return [each for each in outcomes if each is not None] if comm.rank == 0 else None


def _parts(job: _Job, rounds: ShortenedRun | None) -> list[_Job]:
    """Return what to simulate for a step: two shorter ones, or itself."""
    if rounds is None:
        return [job]
    return [
        job._replace(experiment=with_micro_batches(job.experiment, number)) for number in rounds[:2]
    ]


def _all(wanted: Sequence[Sequence[_Job]], comm: Intracomm) -> list[list[Outcome]] | None:
    """Simulate all that is wanted, what is equal once. **Collective.**

    Returns
    -------
    list of list of Outcome or None
        As `wanted`, on process 0; None on the others.
    """
    jobs = {job.name: job for parts in wanted for job in parts}
    order = list(jobs)
    mine = dealt([jobs[name].experiment for name in order], comm.size)[comm.rank]
    found: dict[int, Outcome] = {}
    networks = NetworkCache()
    with progress(comm, "rows simulated", len(mine)) as update:
        for done, i in enumerate(mine):
            update(done)
            found[i] = _simulated(jobs[order[i]], networks)
    gathered = comm.gather(found, root=0)
    if gathered is None:
        return None
    known = {order[i]: outcome for part in gathered for i, outcome in part.items()}
    return [[known[job.name] for job in parts] for parts in wanted]


def _simulated(job: _Job, networks: NetworkCache) -> Outcome:
    """Simulate one experiment on this process alone."""
    from mpi4py import MPI

    try:
        case = prepare(job.experiment, job.constants, networks=networks)
        run, overlap = execute(case, MPI.COMM_SELF, critical_path=True)
        assert run.critical_path is not None
        assert case.constants is not None
        lengths = PathShares(case, run).lengths()
        error = error_bar(case, run, lengths, model_error=False, overlap=overlap)
        return Outcome(
            seconds=run.step_time / PICOSECONDS,
            before_optimizer=_before_optimizer(case, run.critical_path) / PICOSECONDS,
            inputs=error.relative,
            known=case.constants.fitted,
            fits=case.memory.fits,
            lengths={
                name: length / PICOSECONDS
                for name, length in lengths.items()
                if parse_constant_name(name) is not None
            },
            busy=busy_times(case, run),
        )
    except MpisimError as error:
        prefix = f"{job.experiment.source}: "
        return Outcome(failed=str(error).removeprefix(prefix))
    except Exception as error:  # a bug met by one row must not cost the other rows
        return Outcome(failed=f"internal error: {type(error).__name__}: {error}")


def _joined(parts: Sequence[Outcome], numbers: ShortenedRun | None) -> Outcome | None:
    """Return the outcome of a row: that of its one simulation, or of two shorter ones; None if the
    latter do not tell it."""
    for each in parts:
        if each.failed:
            return each
    if numbers is None:
        return parts[0]
    first, second = parts
    times = first.seconds * PICOSECONDS, second.seconds * PICOSECONDS
    if not is_periodic(first.busy, second.busy, times, numbers):
        return None
    seconds = extrapolate(first.seconds, second.seconds, numbers)
    lengths = {
        name: max(0.0, extrapolate(first.lengths.get(name, 0.0), length, numbers))
        for name, length in second.lengths.items()
    }
    # Of ways that are equally long the two paths may go different ones; shares stay shares.
    most = max(1.0, math.fsum(lengths.values()) / seconds)
    return replace(
        second,
        seconds=seconds,
        before_optimizer=extrapolate(first.before_optimizer, second.before_optimizer, numbers),
        lengths={name: length / most for name, length in lengths.items()},
    )


def _before_optimizer(case: PreparedExperiment, path: CriticalPath) -> int:
    """Return when the critical path leaves the last row that is not the optimizer's."""
    for piece in range(len(path.end) - 1, -1, -1):
        row = int(path.row[piece])
        table = case.program.table_of(int(path.rank[piece]))
        if row < 0 or table.phase[row] != Phase.OPTIMIZER:
            return int(path.end[piece])
    return 0
