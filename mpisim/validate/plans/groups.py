"""Table of measured steps → groups of plans that were measured under the same conditions.

A group has one model, one cluster and so many of its GPUs, one number format, one framework, one
source and one release of its software (or day of the measurement, where that is what the source
says). What its rows differ in is the plan: degrees of parallelism, batches, recomputation, ZeRO,
overlap. Where batches differ, what counts is the time of a sequence.

Some plans were measured more than once. How far these measurements lie apart is the noise of one,
pooled over the whole table, since few sources repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import InputError
from ...base.frozen import frozen
from ...base.text import in_words
from ...experiment import keys_of
from ...experiment.plan_keys import short_key
from ...prediction.uncertainty import difference_error
from ..e2e.compare import Compared, compare
from ..e2e.experiments import Mapped

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..e2e.predict import PredictedStep

__all__ = ["ComparablePlans", "MeasuredPlan", "Noise", "Sweeps", "compare_plans"]

TRUST = "AB"
"""Trust of the rows that count: F follows a formula, C is weak."""

MODEL_ERROR = "model error"


class MeasuredPlan:
    """One plan of a group, measured once or several times.

    Parameters
    ----------
    rows : sequence of Compared
        Measurements of equal experiments, one at least.
    """

    def __init__(self, rows: Sequence[Compared]) -> None:
        self.rows = rows

    @cached_property
    def measured(self) -> float:
        """Measured seconds of a sequence (image, sample), in the mean of the measurements."""
        return sum(each.measured for each in self.rows) / len(self.rows) / self._batch

    @cached_property
    def predicted(self) -> float:
        """Predicted seconds of a sequence (image, sample)."""
        return self.rows[0].predicted / self._batch

    @property
    def _batch(self) -> int:
        return self.rows[0].mapped.experiment.plan.global_batch

    @property
    def effects(self) -> Mapping[str, float]:
        """Relative error of the step from each number alone, and from what the model leaves out."""
        first = self.rows[0]
        return {**first.outcome.effects, MODEL_ERROR: first.model_error}

    @property
    def suspect(self) -> bool:
        """Whether the source itself marks a measurement as suspect."""
        return any(each.row.texts["suspect"] for each in self.rows)

    @property
    def keys(self) -> dict[str, object]:
        """What its plan says, and no profile."""
        experiment, gpus = self.rows[0].mapped.experiment, self.rows[0].row.integers["num_gpus"]
        plan = experiment.plan
        derived = {key.removeprefix("plan.") for key in experiment.set_by_profile}
        keys = {key: value for key, value in keys_of(plan).items() if key not in derived}
        return {**keys, "dp": plan.dp or gpus // (plan.tp * plan.pp * plan.cp)}

    def ahead(self, other: MeasuredPlan) -> float:
        """Return by how many standard deviations of the difference it is predicted to be faster."""
        return (other.predicted - self.predicted) / self.difference_error(other)

    def difference_error(self, other: MeasuredPlan, unshared: float | None = None) -> float:
        """Return one standard deviation of the predicted difference, in seconds of a sequence.

        Parameters
        ----------
        other : MeasuredPlan
        unshared : float, optional
            As for `mpisim.prediction.uncertainty.difference_error`.
        """
        return difference_error(
            self.effects, self.predicted, other.effects, other.predicted, unshared
        )


@frozen
class Noise:
    """Spread of repeated measurements of one plan.

    Attributes
    ----------
    source : str
        That repeated them; empty for all together.
    plans : int
        That were measured more than once, with different outcomes.
    error : float
        One standard deviation of one measurement, relative.
    """

    source: str
    plans: int
    error: float

    @classmethod
    def of(cls, repeated: Iterable[Sequence[float]], source: str = "") -> Noise:
        """Measured times, plan by plan → their noise; 0 if no plan has two that differ.

        A time that is printed twice to the last digit is taken to be one measurement.
        """
        square, freedom, plans = 0.0, 0, 0
        for times in repeated:
            logs = [math.log(each) for each in set(times)]
            if len(logs) > 1:
                mean = sum(logs) / len(logs)
                square += sum((each - mean) ** 2 for each in logs)
                freedom, plans = freedom + len(logs) - 1, plans + 1
        return cls(source, plans, math.sqrt(square / freedom) if freedom else 0.0)


class ComparablePlans:
    """Plans that were measured under the same conditions.

    Parameters
    ----------
    name : str
    plans : sequence of MeasuredPlan
    noise : float
        One standard deviation of a measured time, relative.
    """

    def __init__(self, name: str, plans: Sequence[MeasuredPlan], noise: float = 0.0) -> None:
        self.name, self.plans, self.noise = name, plans, noise

    def described(self, plan: MeasuredPlan) -> str:
        """Return the keys of a plan in which the group's plans differ."""
        keys = [each.keys for each in self.plans]
        return ", ".join(
            f"{short_key(key)} {in_words(value)}"
            for key, value in plan.keys.items()
            if value is not None and any(each.get(key, value) != value for each in keys)
        )

    def sound(self) -> ComparablePlans:
        """Return the group without plans whose measurements are suspect."""
        return ComparablePlans(
            self.name, [each for each in self.plans if not each.suspect], self.noise
        )


@frozen
class Sweeps:
    """The groups of a table.

    Attributes
    ----------
    groups : list of ComparablePlans
        Those with the most plans first.
    noise : list of Noise
        Of all sources together, then of each that repeated measurements.
    """

    groups: list[ComparablePlans]
    noise: list[Noise]


def compare_plans(
    path: str | Path,
    comm: Intracomm,
    *,
    where: Mapping[str, str] | None = None,
    changes: Sequence[str] = (),
    least: int = 4,
    known: Mapping[str, PredictedStep] | None = None,
) -> Sweeps | None:
    """Table of measured steps → its groups of plans, each predicted. **Collective.**

    Parameters
    ----------
    path : str or Path
        As for `mpisim.validate.e2e.read`.
    comm : mpi4py.MPI.Intracomm
        The processes that share the rows.
    where, changes, known
        As for `mpisim.validate.e2e.compare`.
    least : int
        Plans that a group must have.

    Returns
    -------
    Sweeps or None
        On process 0; None on the others.

    Raises
    ------
    InputError
        If the table is not as it must be, or has no such group.
    """

    noise = []

    def keep(rows: Sequence[Mapped]) -> list[Mapped]:
        trusted = [each for each in rows if each.row.texts["trust"] in TRUST]
        noise.extend(_noise(trusted))
        groups = _grouped(trusted, least)
        if not groups:
            raise InputError(
                f"{path}: has no {least} plans of one model that one source measured on the same "
                f"GPUs, in rows of trust {' and '.join(TRUST)}"
            )
        return [row for group in groups.values() for plan in group.values() for row in plan]

    found = compare(path, comm, where=where, changes=changes, known=known, keep=keep)
    if found is None:
        return None
    by_row = {each.row.id: each for each in found.compared}
    groups = []
    for plans in _grouped([each.mapped for each in found.compared], least).values():
        (first, *_), *_ = plans.values()
        rows = [[by_row[each.row.id] for each in plan] for plan in plans.values()]
        plan_rows = [MeasuredPlan(each) for each in rows]
        groups.append(ComparablePlans(_name(first), plan_rows, noise[0].error))
    return Sweeps(sorted(groups, key=lambda group: (-len(group.plans), group.name)), noise)


def _noise(rows: Sequence[Mapped]) -> list[Noise]:
    """Return the noise of all sources together, then of each that repeated measurements."""
    by_source: dict[str, list[list[float]]] = {}
    for plans in _grouped(rows, 1).values():
        for plan in plans.values():
            times = [each.row.seconds for each in plan if each.row.seconds is not None]
            if not any(each.row.texts["suspect"] for each in plan):
                by_source.setdefault(plan[0].source, []).append(times)
    found = [Noise.of(repeated, source) for source, repeated in sorted(by_source.items())]
    everything = [times for repeated in by_source.values() for times in repeated]
    return [Noise.of(everything), *(each for each in found if each.plans)]


def _grouped(rows: Sequence[Mapped], least: int) -> dict[str, dict[str, list[Mapped]]]:
    """Rows → by group, by plan, its rows; groups of fewer than `least` plans are left out."""
    groups: dict[str, dict[str, list[Mapped]]] = {}
    for each in rows:
        experiment = each.experiment
        group = repr(
            (
                each.source,
                each.row.texts.get("source_version", ""),
                each.row.texts["framework"],
                experiment.framework.version,
                each.row.texts["precision"],
                experiment.model,
                experiment.cluster,
                experiment.kernels,  # may name another GPU than the cluster's
            )
        )
        groups.setdefault(group, {}).setdefault(repr(experiment.plan), []).append(each)
    return {name: plans for name, plans in groups.items() if len(plans) >= least}


def _name(row: Mapped) -> str:
    """Return the name of a row's group: model, GPUs, source."""
    texts = row.row.texts
    shape = ""
    if texts["model"].startswith("GPT"):
        shape = f" {texts['layers'] or '?'} × {texts['hidden']}"
    gpus = row.row.integers["num_gpus"]
    return f"{texts['model']}{shape}, {gpus} {texts['gpu']}, {row.source}"
