"""Published training runs beside jobs that are predicted of them (``data/validation/jobs.toml``).

Two questions, each answered without what was counted on the run itself: how often would other
fleets' rates have it interrupted, and how long would it take with them?
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import J_OF_A_KWH, SECONDS_OF_A_DAY, SECONDS_OF_AN_HOUR, Z_90
from ..base.schema import build
from ..base.text import aligned
from ..experiment import load
from ..job.experiment_outcome import cluster_of, costs_of, step_of
from ..job.fleets import DEFAULT, find_fleet, fleet_names
from ..job.outcome import JobOutcome, Spread, job_outcome
from ..mpi.parallel import collective_errors
from ..simulate import simulate

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["PublishedJob", "as_json", "published_jobs", "render"]

FILE = "validation/jobs.toml"

TITLES = {
    "goodput": "goodput",
    "steps": "steps alone",
    "days": "length",
    "gpu_hours": "GPU-hours",
    "energy": "energy",
    "power": "power of a GPU",
}
"""Figures that are compared."""


@frozen
class Figure:
    """A figure that a source reports of a job.

    Attributes
    ----------
    value : float
    unit : str
    source : str
    least : bool
        Whether the source says "at least".
    note : str
        What else the figure is of.
    """

    value: float
    unit: str
    source: str
    least: bool = False
    note: str = ""


@frozen
class PublishedJob:
    """A published run.

    Attributes
    ----------
    title : str
    experiment : str, optional
        That describes it.
    fleet : str, optional
        The fleet that was counted on it.
    gpus : int, optional
    days : float, optional
    interruptions : int, optional
        Unexpected ones in so many days.
    note : str
        Of the interruptions.
    figures : mapping of str to Figure
    """

    title: str
    experiment: str | None = None
    fleet: str | None = None
    gpus: int | None = None
    days: float | None = None
    interruptions: int | None = None
    note: str = ""
    figures: dict[str, Figure] = field(default_factory=dict)


@frozen
class _Predicted:
    """A figure of a job by one fleet: median, and 5 to 95 of 100 with errors."""

    value: float
    low: float
    high: float


@frozen
class Compared:
    """A published run beside its predictions.

    Attributes
    ----------
    name : str
    job : PublishedJob
    expected : mapping of str to float
        Interruptions by each fleet's rate.
    errors : mapping of str to float
        One standard deviation of these: of the rate, and of a count.
    predicted : mapping of str to (mapping of str to _Predicted)
        By fleet, the figures that were published.
    """

    name: str
    job: PublishedJob
    expected: dict[str, float]
    errors: dict[str, float]
    predicted: dict[str, dict[str, _Predicted]]


def published_jobs(words: Sequence[str], comm: Intracomm, runs: int = 1000) -> list[Compared]:
    """Simulate the published runs whose names have all of some words. **Collective.**

    Parameters
    ----------
    words : sequence of str
    comm : mpi4py.MPI.Intracomm
    runs : int
        Of each job.
    """
    found = []
    for name, table in packaged(FILE).items():
        if not all(word.lower() in name for word in words):
            continue
        job = build(PublishedJob, table, FILE, name)
        expected, errors = {}, {}
        if job.gpus is not None and job.days is not None:
            for fleet_name in fleet_names():
                _, fleet = find_fleet(fleet_name)
                mean = fleet.per_gpu_day * job.gpus * job.days
                expected[fleet_name] = mean
                errors[fleet_name] = math.hypot(mean * fleet.rate_error, math.sqrt(mean))
        predicted = {} if job.experiment is None else _predict(job, comm, runs)
        found.append(Compared(name, job, expected, errors, predicted))
    return found


def _predict(job: PublishedJob, comm: Intracomm, runs: int) -> dict[str, dict[str, _Predicted]]:
    """Return the published figures of a run by each fleet. **Collective.**"""
    assert job.experiment is not None
    _, experiment = load(job.experiment)
    choice = experiment.job
    assert choice is not None
    results = simulate(experiment, comm)
    of_step = None
    with collective_errors(comm):
        cluster = cluster_of(experiment)
        if results is not None:
            of_step = step_of(experiment, results), costs_of(experiment, results)
    step, costs = comm.bcast(of_step, root=0)
    return {
        fleet: {
            name: _figure(name, outcome)
            for outcome in [
                job_outcome(
                    step,
                    cluster,
                    replace(choice, failures=fleet, runs=runs),
                    costs,
                    comm,
                    changes=False,
                )
            ]
            for name in job.figures
        }
        for fleet in fleet_names()
    }


def _normal(middle: float, error: float) -> _Predicted:
    """Median and relative error, one standard deviation → a figure with its 90 % interval."""
    factor = math.exp(Z_90 * error)
    return _Predicted(middle, middle / factor, middle * factor)


def _figure(name: str, outcome: JobOutcome) -> _Predicted:
    """Return a figure of an outcome, in the units of the table."""

    def of(spread: Spread, errors: Spread, factor: float) -> _Predicted:
        return _Predicted(spread.p50 * factor, errors.p5 * factor, errors.p95 * factor)

    if name == "goodput":
        return of(outcome.goodput, outcome.goodput_with_errors, 100.0)
    if name == "steps":
        return _normal(outcome.model.ideal / SECONDS_OF_A_DAY, outcome.step.error)
    if name in ("energy", "power"):
        # Without the building: what the published figures count.
        assert outcome.energy is not None
        assert outcome.costs is not None
        joules, error = outcome.energy.p50 / outcome.costs.pue, outcome.energy_error
        if name == "power":
            return _normal(joules / (outcome.time.p50 * outcome.cluster.gpus), error)
        return _normal(joules / J_OF_A_KWH, math.hypot(error, outcome.step.error))
    factor = 1 / SECONDS_OF_A_DAY if name == "days" else outcome.cluster.gpus / SECONDS_OF_AN_HOUR
    return of(outcome.time, outcome.time_with_errors, factor)


def render(found: Sequence[Compared]) -> str:
    """Compared jobs → report: interruptions by fleet, lengths of the jobs, and sources.

    Parameters
    ----------
    found : sequence of Compared

    Returns
    -------
    str
    """
    fleets = fleet_names()
    head = ("run", "GPUs", "days", "counted", *(f"as {name}" for name in fleets))
    cells: list[tuple[str, ...]] = [head]
    for each in found:
        job = each.job
        if job.gpus is None or job.days is None or not each.expected:
            continue
        cells.append(
            (
                each.name,
                f"{job.gpus:,}",
                f"{job.days:g}",
                f"{job.interruptions:,}",
                *(
                    f"{'(' if name == job.fleet else ''}{each.expected[name]:,.0f} ± "
                    f"{each.errors[name]:,.0f}{')' if name == job.fleet else ''}"
                    for name in fleets
                ),
            )
        )
    lines = ["Interruptions by the rates of fleets; in brackets, the one counted on the run itself"]
    lines += [f"  {line}" for line in aligned(cells)]
    lines += ["", "Length of the job by its own [job], and by the rates of all other fleets"]
    rows: list[tuple[str, ...]] = [
        ("run", "figure", "published", "here", "5 to 95 of 100", "error", "other fleets")
    ]
    for each in found:
        for name, figure in each.job.figures.items():
            own = _own(each)
            mine = each.predicted[own][name]
            others = [each.predicted[fleet][name].value for fleet in fleets if fleet != own]
            error = f"{100 * (mine.value / figure.value - 1):+.1f} %"
            if figure.least:
                error = "holds" if mine.value >= figure.value else error
            rows.append(
                (
                    each.name,
                    TITLES[name],
                    f"{'≥ ' if figure.least else ''}{_number(figure.value)} {figure.unit}",
                    _number(mine.value),
                    f"{_number(mine.low)} to {_number(mine.high)}",
                    error,
                    f"{_number(min(others))} to {_number(max(others))}",
                )
            )
    lines += [f"  {line}" for line in aligned(rows, left=(0, 1))]
    lines.append("")
    for each in found:
        notes = [(each.name, each.job.note)] if each.job.note else []
        notes += [
            (
                f"{each.name}, {TITLES[name]}",
                f"{figure.source}{'; ' + figure.note if figure.note else ''}",
            )
            for name, figure in each.job.figures.items()
        ]
        for name, note in notes:
            lines += wrap(f"{name}: {note}", 100, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines).rstrip()


def _own(found: Compared) -> str:
    """Return the fleet of the run's own ``[job]``."""
    _, experiment = load(found.job.experiment)
    assert experiment.job is not None
    return experiment.job.failures or DEFAULT


def _number(value: float) -> str:
    """Show four digits, thousands and millions apart."""
    if value >= 1e6:
        return f"{value / 1e6:.4g} M"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def as_json(found: Sequence[Compared]) -> dict[str, Any]:
    """Compared jobs → all figures, ready for JSON.

    Parameters
    ----------
    found : sequence of Compared

    Returns
    -------
    dict of str to dict
        By name of the job; units are those of the published figures.
    """
    return {
        each.name: {
            "interruptions": each.job.interruptions,
            "expected": each.expected,
            "errors": each.errors,
            "figures": {
                name: {
                    "published": figure.value,
                    "unit": figure.unit,
                    "least": figure.least,
                    "source": figure.source,
                    "predicted": {
                        fleet: vars(each.predicted[fleet][name]) for fleet in each.predicted
                    },
                }
                for name, figure in each.job.figures.items()
            },
        }
        for each in found
    }
