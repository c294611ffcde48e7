"""Experiments of measured rows → simulated outcomes, spread over processes and stored as JSON.

Each row is simulated by one process. A process keeps the network it built last, and its prices:
experiments on one cluster run on one process, one model after the other. Simulating all rows takes
minutes, fitting constants and writing tables seconds, so outcomes are stored with a digest of their
experiment: a row whose experiment has changed (rules, presets, ``--set``) is simulated again. The
digest does not cover the version of mpisim that wrote the file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.errors import InputError, MpisimError
from ...base.files import read_text
from ...base.frozen import frozen
from ...base.quantity import PICOSECONDS
from ...engine import CriticalPath
from ...experiment import Experiment, Transformer
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
from ...prediction.path_shares import PathShares
from ...prediction.prepared import PreparedExperiment, prepare
from ...prediction.step_constants import MULTIPLIERS, OVERHEAD, StepConstants, parse_constant_name
from ...prediction.uncertainty import error_bar
from ...program import Phase
from .experiments import Mapped

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "UNKNOWN_NETWORK",
    "PredictedStep",
    "assign",
    "digest",
    "outcome_as_json",
    "predict",
    "stored",
]

UNKNOWN_NETWORK = "network not stated"
"""Name of the error of a row that does not say what joins its nodes, on the whole step."""

MIN_PIECES = 8
"""Least number of pieces of work for each process, so that their sizes even out."""

EFFORT_EXPONENT = 2 / 3
"""Exponent: CPU time of a simulation over its rows (0.68 over 243 rows of docs/accuracy.md)."""


def assign(experiments: Sequence[Experiment], processes: int) -> list[list[int]]:
    """Assign experiments to processes, with equal work for each and equal clusters together.

    Parameters
    ----------
    experiments : sequence of Experiment
    processes : int
        Number of MPI processes.

    Returns
    -------
    list of list of int
        For each process the experiments it simulates, in its order.
    """
    efforts = [_effort(each) for each in experiments]
    most = sum(efforts) / (MIN_PIECES * processes)
    pieces: list[list[int]] = []
    last = None
    for i in sorted(range(len(experiments)), key=lambda i: (*_sharing_key(experiments[i]), i)):
        shared = _sharing_key(experiments[i])[0]
        if shared != last or sum(efforts[j] for j in pieces[-1]) + efforts[i] > most:
            pieces.append([])
        pieces[-1].append(i)
        last = shared
    load = [0.0] * processes
    shares: list[list[int]] = [[] for _ in load]
    # Longest processing time first: the largest piece goes to the least loaded process.
    weights = [sum(efforts[i] for i in piece) for piece in pieces]
    for number in sorted(range(len(pieces)), key=lambda number: (-weights[number], number)):
        process = load.index(min(load))
        load[process] += weights[number]
        shares[process] += pieces[number]
    return shares


def _sharing_key(experiment: Experiment) -> tuple[str, str]:
    """Experiment → keys by which it shares a network, and a model, with others."""
    return repr((experiment.cluster, experiment.network)), repr(experiment.model)


def _effort(experiment: Experiment) -> float:
    """Return the relative CPU time of a simulation, from the rows of one rank of each stage."""
    plan, model = experiment.plan, experiment.model
    layers = model.layers if isinstance(model, Transformer) else 50
    micro_batches = plan.global_batch / ((plan.dp or 1) * plan.micro_batch)
    # Tensor and expert parallel layers have communications to price, and links to share.
    dear = 1 + (plan.tp > 1) + 2 * (plan.ep > 1)
    rows: float = dear * micro_batches * (layers + 2 * plan.pp * plan.vpp) + 100.0
    return rows**EFFORT_EXPONENT


NO_CONSTANTS = StepConstants()
"""Constants of an unfitted prediction; the lengths that would depend on them are still recorded."""


def _nothing() -> NDArray[np.int64]:
    return np.zeros((0, 1), np.int64)


@frozen
class PredictedStep:
    """Simulated step of one experiment.

    Attributes
    ----------
    seconds : float
        Of the step.
    before_optimizer : float
        Seconds until the end of the last row before the optimizer on the critical path.
    inputs : float
        Relative uncertainty from the model's inputs, one standard deviation.
    known : bool
        Whether the constants were fitted to steps of the same framework and kind of GPU.
    fits : bool
        Whether the memory model says that it fits.
    certain : bool
        Whether it is sure of that.
    lengths : dict of str to float
        Seconds of the critical path that each constant multiplies, fitted or not
        (:mod:`mpisim.prediction.step_constants`).
    effects : dict of str to float
        What `inputs` consists of: relative error of the step from each number alone.
    busy : int64, shape (tables, 1 + streams)
        Busy time of CPUs and streams, in ps (`mpisim.prediction.extrapolation.busy_times`).
    failed : str
        Why there is no prediction; empty if there is one.
    """

    seconds: float = 0.0
    before_optimizer: float = 0.0
    inputs: float = 0.0
    known: bool = False
    fits: bool = True
    certain: bool = True
    lengths: Mapping[str, float] = field(default_factory=dict)
    effects: Mapping[str, float] = field(default_factory=dict)
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
        """Key of the simulation: equal for jobs with equal results."""
        # Paths of changed clusters are absolute: source and title say nothing about the step.
        return f"{self.constants!r} {replace(self.experiment, source='', title='')!r}"


def predict(
    rows: Sequence[Mapped],
    comm: Intracomm,
    *,
    every: bool = False,
    constants: Sequence[StepConstants] | None = None,
) -> list[PredictedStep] | None:
    """Simulate rows. **Collective**: every process passes the same rows.

    Equal experiments are simulated once, and long steps that differ only in their number of
    micro-batches share two shorter simulations. A row that cannot be simulated has an outcome that
    says why; it never stops the others. The outcomes do not depend on the number of processes.

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
    list of PredictedStep or None
        In the order of `rows`, on process 0; None on the others.
    """
    tables = constants or [NO_CONSTANTS] * len(rows)
    jobs = [_Job(row.experiment, table) for row, table in zip(rows, tables, strict=True)]
    # Behind the rows' own steps those on networks that they may have had as well.
    jobs += [
        _Job(other, table)
        for row, table in zip(rows, tables, strict=True)
        for other, _ in row.others
    ]
    outcomes = _steps(jobs, comm, every)
    if outcomes is None:
        return None
    elsewhere = iter(outcomes[len(rows) :])
    return [
        _with_networks(outcome, [(next(elsewhere), share) for _, share in row.others])
        for row, outcome in zip(rows, outcomes[: len(rows)], strict=True)
    ]


def _with_networks(
    outcome: PredictedStep, others: Sequence[tuple[PredictedStep, float]]
) -> PredictedStep:
    """Outcome, those on other networks with their shares → with the error of not knowing which.

    It is the standard deviation of the normal distribution whose logarithms of the step are as far
    off in the mean as those on the clusters that are known: one that is many times slower counts by
    how far off it is, not by the square of that. A network on which the step cannot be simulated is
    left out.
    """
    apart = math.fsum(
        share * abs(math.log(other.seconds / outcome.seconds))
        for other, share in others
        if not (other.failed or outcome.failed)
    )
    if not apart:
        return outcome
    error = math.sqrt(math.pi / 2) * apart
    effects = {**outcome.effects, UNKNOWN_NETWORK: error}
    return replace(outcome, inputs=math.hypot(outcome.inputs, error), effects=effects)


def _steps(jobs: Sequence[_Job], comm: Intracomm, every: bool) -> list[PredictedStep] | None:
    """Simulate steps, long ones by two shorter ones. **Collective.**

    Returns
    -------
    list of PredictedStep or None
        In the order of `jobs`, on process 0; None on the others.
    """
    ways: list[list[ShortenedRun | None]] = [
        [*([] if every else shortened_runs(job.experiment)), None] for job in jobs
    ]
    outcomes: list[PredictedStep | None] = [None] * len(jobs)
    left = list(range(len(jobs)))
    # Two shorter steps that do not determine a long one are followed by two longer, then by itself.
    while left:
        tried = [ways[i].pop(0) for i in left]
        wanted = [
            _steps_to_simulate(jobs[i], rounds) for i, rounds in zip(left, tried, strict=True)
        ]
        found = _all(wanted, comm)
        if found is not None:
            for i, rounds, parts in zip(left, tried, found, strict=True):
                outcomes[i] = _joined(parts, rounds)
        left = comm.bcast([i for i in left if outcomes[i] is None])
    return [each for each in outcomes if each is not None] if comm.rank == 0 else None


def _steps_to_simulate(job: _Job, rounds: ShortenedRun | None) -> list[_Job]:
    """Experiment → the steps to simulate for it: two shorter ones, or itself."""
    if rounds is None:
        return [job]
    return [
        job._replace(experiment=with_micro_batches(job.experiment, number)) for number in rounds[:2]
    ]


def _all(wanted: Sequence[Sequence[_Job]], comm: Intracomm) -> list[list[PredictedStep]] | None:
    """Simulate all jobs, equal ones once. **Collective.**

    Returns
    -------
    list of list of PredictedStep or None
        As `wanted`, on process 0; None on the others.
    """
    jobs = {job.name: job for parts in wanted for job in parts}
    order = list(jobs)
    mine = assign([jobs[name].experiment for name in order], comm.size)[comm.rank]
    found: dict[int, PredictedStep] = {}
    networks = NetworkCache()
    efforts = [_effort(jobs[order[i]].experiment) for i in mine]
    with progress(comm, "simulating rows", sum(efforts)) as update:
        for done, i in zip(itertools.accumulate(efforts), mine):
            found[i] = _simulated(jobs[order[i]], networks)
            update(done)
    gathered = comm.gather(found, root=0)
    if gathered is None:
        return None
    known = {order[i]: outcome for part in gathered for i, outcome in part.items()}
    return [[known[job.name] for job in parts] for parts in wanted]


def _simulated(job: _Job, networks: NetworkCache) -> PredictedStep:
    """Simulate one experiment on this process alone."""
    from mpi4py import MPI

    try:
        case = prepare(job.experiment, job.constants, networks=networks)
        run, overlap = execute(case, MPI.COMM_SELF, critical_path=True)
        assert run.critical_path is not None
        assert case.constants is not None
        shares = PathShares(case, run)
        lengths = shares.lengths()
        error = error_bar(case, run, lengths, model_error=False, overlap=overlap, shares=shares)
        return PredictedStep(
            seconds=run.step_time / PICOSECONDS,
            before_optimizer=_before_optimizer(case, run.critical_path) / PICOSECONDS,
            inputs=error.relative,
            known=case.constants.constants.fitted_to(case.constants.framework, case.constants.gpu),
            fits=case.memory.fits,
            certain=case.memory.certain,
            lengths={
                name: length / PICOSECONDS
                for name, length in lengths.items()
                if parse_constant_name(name) is not None
            },
            effects={each.name: each.effect for each in error.effects},
            busy=busy_times(case, run),
        )
    except MpisimError as error:
        prefix = f"{job.experiment.source}: "
        return PredictedStep(failed=str(error).removeprefix(prefix))
    except Exception as error:  # a bug met by one row must not cost the other rows
        return PredictedStep(failed=f"internal error: {type(error).__name__}: {error}")


def _joined(parts: Sequence[PredictedStep], numbers: ShortenedRun | None) -> PredictedStep | None:
    """Return the outcome of a row from its simulation, or extrapolated from two shorter ones.

    None if the shorter ones do not determine it.
    """
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
    # The critical paths of the two runs may differ where several are equally long: the shares are
    # scaled so that they do not exceed the step.
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


NUMBERS = ("seconds", "before_optimizer", "inputs")


def digest(mapped: Mapped, every: bool) -> str:
    """Row → digest of its experiment, the key under which its outcome is stored.

    Parameters
    ----------
    mapped : Mapped
    every : bool
        Whether every micro-batch is simulated.
    """
    text = f"{every} {replace(mapped.experiment, source='', title='')!r}"
    for other, share in mapped.others:
        text += f" {share} {replace(other, source='', title='')!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def outcome_as_json(mapped: Mapped, outcome: PredictedStep, every: bool) -> dict[str, Any]:
    """Row, outcome → table of JSON.

    Parameters
    ----------
    mapped : Mapped
    outcome : PredictedStep
        Of this row's experiment.
    every : bool
        Whether every micro-batch is simulated.
    """
    numbers = {name: getattr(outcome, name) for name in NUMBERS}
    return {
        "experiment": digest(mapped, every),
        **numbers,
        "fits": outcome.fits,
        "certain": outcome.certain,
        "lengths": dict(outcome.lengths),
        "effects": dict(outcome.effects),
    }


def stored(path: str | Path) -> dict[str, PredictedStep]:
    """File of ``mpisim validate e2e --json`` → its simulated outcomes.

    Parameters
    ----------
    path : str or Path
        Written without ``--calibration``.

    Returns
    -------
    dict of str to PredictedStep
        By digest of the experiment.

    Raises
    ------
    InputError
        If it cannot be read, or is no such file.
    """
    try:
        table = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    try:
        cases = [case["outcome"] for case in table["cases"]]
        return {str(case["experiment"]): _outcome(case) for case in cases}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: has no outcomes of simulations; it must be written by 'mpisim validate e2e "
            "--json' without --calibration"
        ) from error


def _outcome(case: Mapping[str, Any]) -> PredictedStep:
    seconds, before_optimizer, inputs = (float(case[name]) for name in NUMBERS)
    lengths, effects = (
        {str(name): float(value) for name, value in case[key].items()}
        for key in ("lengths", "effects")
    )
    return PredictedStep(
        seconds,
        before_optimizer,
        inputs,
        fits=bool(case["fits"]),
        certain=bool(case.get("certain", True)),
        lengths=lengths,
        effects=effects,
    )
