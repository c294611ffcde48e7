"""Table of measured steps → each row beside its prediction."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import InputError, UsageError, nearest
from ...base.frozen import frozen
from ...base.quantity import Z_90
from ...mpi.parallel import collective_errors
from ...prediction.step_constants import ModelError, StepConstants, model_class, packaged_constants
from .experiments import Mapped, Skipped, experiment_of, shown
from .predict import PredictedStep, digest, predict
from .rows import Row, read
from .settings import Settings, settings

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Compared", "Comparison", "compare", "select", "show"]

MAX_VALUES_NAMED = 12
"""Values of a column that an error names."""


@frozen
class Compared:
    """A measured step and its prediction, in seconds."""

    mapped: Mapped
    outcome: PredictedStep
    model_error: float = 0.0
    """Relative uncertainty from what the model leaves out."""

    @property
    def uncertainty(self) -> float:
        """Relative, one standard deviation, as predictions state it."""
        return math.hypot(self.outcome.inputs, self.model_error)

    @property
    def row(self) -> Row:
        """The measured row."""
        return self.mapped.row

    @property
    def trust(self) -> str:
        """As the table says; B for A where the framework's profile goes by similar software."""
        stated = self.row.texts["trust"]
        inferred = any(each.analogy for each in self.mapped.experiment.set_by_profile.values())
        return "B" if stated == "A" and inferred else stated

    @property
    def sort(self) -> str:
        """Sort of its model (`mpisim.prediction.step_constants.MODEL_CLASSES`)."""
        return model_class(self.mapped.experiment.model)

    @property
    def measured(self) -> float:
        """Measured seconds of the step."""
        assert self.row.seconds is not None
        return self.row.seconds

    @property
    def predicted(self) -> float:
        """Predicted seconds of the part of the step that was measured."""
        if self.row.without_optimizer:
            return self.outcome.before_optimizer
        return self.outcome.seconds

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the stated 90 % interval holds the measurement."""
        return abs(math.log(self.predicted / self.measured)) <= Z_90 * self.uncertainty


@dataclass
class Comparison:
    """The selected rows of a table.

    Attributes
    ----------
    rows : int
    timed : int
        Rows with a measured step time.
    compared : list of Compared
    skipped : list of Skipped
        Rows that are no experiment, or whose experiment could not be simulated.
    cross_validated : list of Compared
        Rows predicted with constants that were fitted to other families of rows
        (`mpisim.validate.e2e.cross_validation`), if asked for.
    other_sources : list of Compared
        And to rows of other sources.
    plain : bool
        Whether no constants fitted to steps were used.
    every : bool
        Whether every micro-batch of long steps was simulated.
    """

    rows: int
    timed: int
    compared: list[Compared] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    cross_validated: list[Compared] = field(default_factory=list)
    other_sources: list[Compared] = field(default_factory=list)
    plain: bool = True
    every: bool = False

    @property
    def reasons(self) -> Counter[str]:
        """Rows left out, by reason."""
        return Counter(each.why for each in self.skipped)

    @property
    def defaults(self) -> Counter[str]:
        """Rows by what they do not state and was filled in."""
        return Counter(text for each in self.compared for text in each.mapped.defaults)

    @property
    def approximations(self) -> Counter[str]:
        """Rows by how their experiment is not what was run."""
        return Counter(text for each in self.compared for text in each.mapped.approximations)


def select(
    rows: Sequence[Row], where: Mapping[str, str], limit: int | None, known: Settings
) -> list[Row]:
    """Rows, values by column → the rows that have them.

    Parameters
    ----------
    rows : sequence of Row
    where : mapping of str to str
        By column the value, or several between ``|``, in any case of letters, ``*`` for any text;
        ``source`` is its short name.
    limit : int, optional
        The first so many of them.
    known : Settings

    Raises
    ------
    UsageError
        If there is no such column, or no row has these values.
    """
    columns = list(rows[0].texts)
    for column in where:
        if column not in columns:
            raise UsageError(
                f"--where {column}={where[column]}: there is no such column"
                f"{nearest(column, columns)}; there are {', '.join(columns)}"
            )

    def value(row: Row, column: str) -> str:
        return (known.source(row) if column == "source" else row.texts[column]).casefold()

    wanted = {column: text.casefold().split("|") for column, text in where.items()}
    found = [
        row
        for row in rows
        if all(
            any(
                text == value(row, column) or fnmatchcase(value(row, column), text)
                for text in texts
            )
            for column, texts in wanted.items()
        )
    ]
    if not found:
        column = list(where)[-1]
        there = sorted({value(row, column) for row in rows})
        more = f", … ({len(there)} of them)" if len(there) > MAX_VALUES_NAMED else ""
        raise UsageError(
            f"--where {','.join(f'{k}={v}' for k, v in where.items())}: no row has these values"
            f"{nearest(where[column], there)}; "
            f"{column} is one of {', '.join(there[:MAX_VALUES_NAMED])}{more}"
        )
    return found[:limit]


def show(path: str | Path, name: str, *, profiles: bool = True) -> str:
    """Table, ID of a row → the experiment that a user would write for it. Local.

    Parameters
    ----------
    path : str or Path
        As for `mpisim.validate.e2e.rows.read`.
    name : str
    profiles : bool
        Whether it says which framework ran it.

    Raises
    ------
    UsageError
        If no row has this ID.
    InputError
        If the row is no experiment, with the reason.
    """
    rows = {row.id: row for row in read(path)}
    if name not in rows:
        raise UsageError(f"--show {name}: no row of {path} has this id{nearest(name, rows)}")
    found = experiment_of(rows[name], settings(), profiles=profiles)
    if isinstance(found, Skipped):
        raise InputError(f"{path}: row {name} is no experiment: {found.why}")
    return shown(found)


def compare(
    path: str | Path,
    comm: Intracomm,
    *,
    where: Mapping[str, str] | None = None,
    limit: int | None = None,
    changes: Sequence[str] = (),
    every: bool = False,
    constants: StepConstants | None = None,
    known: Mapping[str, PredictedStep] | None = None,
    profiles: bool = True,
    keep: Callable[[Sequence[Mapped]], list[Mapped]] = list,
) -> Comparison | None:
    """Predict the rows of a table. **Collective.**

    Parameters
    ----------
    path : str or Path
        As for `mpisim.validate.e2e.rows.read`.
    comm : mpi4py.MPI.Intracomm
        The processes that share the rows.
    where : mapping of str to str, optional
        Only rows with these values.
    limit : int, optional
        Only the first so many.
    changes : sequence of str
        Keys to set in every experiment, as for ``--set``.
    every : bool
        Whether to simulate every micro-batch of long steps (`mpisim.prediction.extrapolation`).
    constants : StepConstants, optional
        Fitted to steps; none by default.
    known : mapping of str to PredictedStep, optional
        What was simulated before without constants (`mpisim.validate.e2e.predict`); other rows are
        simulated.
    profiles : bool
        Whether experiments say which framework ran them.
    keep : callable
        Of the rows that are experiments, those that are wanted; all by default.

    Returns
    -------
    Comparison or None
        On process 0; None on the others.

    Raises
    ------
    InputError
        If the table is not as it must be, or no row can be predicted.
    """
    with collective_errors(comm):
        rules = settings()
        rows = select(read(path), where or {}, limit, rules)
        timed = sum(row.seconds is not None for row in rows)
        found = Comparison(len(rows), timed, plain=constants is None, every=every)
        ready: list[Mapped] = []
        for row in rows:
            result = experiment_of(row, rules, changes, profiles=profiles)
            if isinstance(result, Mapped):
                ready.append(result)
            else:
                found.skipped.append(result)
        _check_any(path, ready, found.skipped)
        ready = keep(ready)
    outcomes = _outcomes(ready, comm, every, constants, known or {})
    errors = (constants or packaged_constants()).model_error
    with collective_errors(comm):
        if outcomes is not None:
            for mapped, outcome in zip(ready, outcomes, strict=True):
                if outcome.failed:
                    found.skipped.append(Skipped(mapped.row, mapped.source, outcome.failed))
                else:
                    found.compared.append(_compared(mapped, outcome, errors, constants is None))
            _check_any(path, found.compared, found.skipped)
    return None if outcomes is None else found


def _outcomes(
    ready: Sequence[Mapped],
    comm: Intracomm,
    every: bool,
    constants: StepConstants | None,
    known: Mapping[str, PredictedStep],
) -> list[PredictedStep] | None:
    """Simulate what is not known. **Collective.**"""
    names = [digest(mapped, every) for mapped in ready] if known else [""] * len(ready)
    left = [mapped for mapped, name in zip(ready, names, strict=True) if name not in known]
    tables = None if constants is None else [constants] * len(left)
    simulated = predict(left, comm, every=every, constants=tables)
    if simulated is None:
        return None
    rest = iter(simulated)
    return [known[name] if name in known else next(rest) for name in names]


def _compared(
    mapped: Mapped, outcome: PredictedStep, errors: ModelError | None, plain: bool
) -> Compared:
    if errors is None:
        return Compared(mapped, outcome)
    fitted = errors.known if outcome.known else errors.unknown
    table = errors.plain if plain else fitted
    return Compared(mapped, outcome, table[model_class(mapped.experiment.model)].error)


def _check_any(path: str | Path, found: Sequence[object], skipped: Sequence[Skipped]) -> None:
    if not found:
        why, count = Counter(each.why for each in skipped).most_common(1)[0]
        raise InputError(f"{path}: no row could be predicted; {count} of them: {why}")
