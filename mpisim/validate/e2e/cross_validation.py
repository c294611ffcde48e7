"""Steps predicted with constants fitted to other rows, their errors, and the constants as TOML."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...base.quantity import Quantity
from ...mpi.parallel import collective_errors, progress
from ...prediction.step_constants import (
    MODEL_CLASSES,
    MULTIPLIERS,
    OVERHEAD,
    ModelError,
    StepConstants,
    parse_constant_name,
)
from .compare import Compared, Comparison
from .families import Family, family
from .fit import Linear, covered, fit, linear, relative_error, seconds_with
from .interval_errors import counted_by, not_narrower, publisher, sufficient_error
from .predict import NO_CONSTANTS, predict

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["calibrate", "cross_validate", "written"]

TRAINING_TRUST = "A"
"""Trust of rows that constants are fitted to."""

JUDGED_TRUST = "AB"
"""Trust of the rows that the error of the model is found from."""

MIN_ROWS = 20
"""Least number of rows of one model type to estimate its error from; with fewer, all are pooled."""

Key = Callable[[Family], Family]
"""Family of a row → what is held out together with it."""


def _same(family: Family) -> Family:
    return family


def _source(family: Family) -> Family:
    return family[0], "", ""


def calibrate(
    found: Comparison | None,
    comm: Intracomm,
    passes: int = 1,
    before: ModelError | None = None,
) -> StepConstants | None:
    """Fit constants to steps. **Collective.**

    Parameters
    ----------
    found : Comparison or None
        Predicted without constants, on process 0.
    comm : mpi4py.MPI.Intracomm
    passes : int
        How often steps are simulated again with what was found, and constants fitted from there.
    before : ModelError, optional
        Errors of the model that are not made smaller (`not_narrower`).

    Returns
    -------
    StepConstants or None
        On process 0; None on the others.
    """
    plain = [] if found is None else found.compared
    rows = [each for each in plain if _is_training_row(each)]
    start, constants = NO_CONSTANTS, _fitted(rows, NO_CONSTANTS)
    for _ in range(passes):
        start = comm.bcast(constants)
        rows = _predict_again(rows, [start] * comm.bcast(len(rows)), comm)
        constants = _fitted(rows, start)
    if found is None:
        return None
    judged = [each for each in plain if _is_judged(each)]
    others = [each for each in judged if not _is_training_row(each)]
    folds = _folds(rows, start, constants)
    trials = _held_out(rows, start, folds) + _held_out(others, NO_CONSTANTS, folds)
    errors = _model_error(judged, trials)
    return replace(constants, model_error=errors if before is None else _kept(errors, before))


def _kept(found: ModelError, before: ModelError) -> ModelError:
    """Errors found, those of before → the larger ones, each with its source."""

    def larger(name: str) -> dict[str, Quantity]:
        numbers: dict[str, Quantity] = getattr(found, name)
        old: dict[str, Quantity] = getattr(before, name)
        kept = {}
        for sort, number in numbers.items():
            error, source = not_narrower(
                number.error, number.source, vars(old[sort]) if sort in old else None
            )
            kept[sort] = replace(number, error=error, source=source)
        return kept

    return ModelError(larger("plain"), larger("known"), larger("unknown"))


def cross_validate(found: Comparison) -> None:
    """Predict every row with constants fitted to rows of other families, and of other sources.

    To first order along each row's own critical path: nothing is simulated again. The predictions
    become `Comparison.cross_validated` and `Comparison.other_sources`; rows of trust F, which
    follow a formula, are left out.

    Parameters
    ----------
    found : Comparison
        Predicted without constants.
    """
    rows = [each for each in found.compared if each.trust != "F"]
    trained = [each for each in rows if _is_training_row(each)]
    judged = [each for each in rows if _is_judged(each)]
    whole = _fitted(trained, NO_CONSTANTS)
    trials = _held_out(rows, NO_CONSTANTS, _folds(trained, NO_CONSTANTS, whole))
    of_judged = [trial for each, trial in zip(rows, trials, strict=True) if _is_judged(each)]
    errors = _model_error(judged, of_judged)
    found.cross_validated = _compared(rows, trials, errors)
    held_out = _held_out(rows, NO_CONSTANTS, _folds(trained, NO_CONSTANTS, whole, _source))
    found.other_sources = _compared(rows, held_out, errors)


def _compared(
    rows: Sequence[Compared], trials: Sequence[_HeldOut], errors: ModelError
) -> list[Compared]:
    result = []
    for each, trial in zip(rows, trials, strict=True):
        seconds = each.measured * math.exp(trial.residual)
        outcome = replace(
            each.outcome,
            seconds=seconds,
            before_optimizer=seconds,
            inputs=trial.inputs,
            known=trial.known,
        )
        error = (errors.known if trial.known else errors.unknown)[trial.sort]
        result.append(Compared(each.mapped, outcome, error.error))
    return result


class _HeldOut(NamedTuple):
    """A row predicted with constants that were fitted to other rows.

    Its fields: logarithm of predicted over measured; the error bar of the inputs and of the
    constants; whether the fit had the framework and the kind of GPU; sort of model; publisher.
    """

    residual: float
    inputs: float
    known: bool
    sort: str
    publisher: str


def _is_training_row(each: Compared) -> bool:
    """Whether constants are fitted to a row: rows marked suspect are not used."""
    return each.trust == TRAINING_TRUST and not each.row.texts["suspect"]


def _is_judged(each: Compared) -> bool:
    """Whether a row says how far off the model is."""
    return each.trust in JUDGED_TRUST and not each.row.texts["suspect"]


def _fitted(rows: Sequence[Compared], start: StepConstants) -> StepConstants:
    return fit([linear(each) for each in rows], start) if rows else NO_CONSTANTS


def _predict_again(
    rows: Sequence[Compared], tables: Sequence[StepConstants], comm: Intracomm
) -> list[Compared]:
    """Predict rows with constants; rows that process 0 has. **Collective.**"""
    mapped = comm.bcast([each.mapped for each in rows])
    outcomes = predict(mapped, comm, constants=tables)
    with collective_errors(comm):
        return [
            Compared(each, outcome)
            for each, outcome in zip(mapped, outcomes or (), strict=outcomes is not None)
            if not outcome.failed
        ]


class _Folds(NamedTuple):
    """Constants fitted to all rows but those of each family, or source; and to all rows.

    Attributes
    ----------
    key : callable
        What of a family tells what is left out.
    without : dict
        Constants by what was left out.
    whole : StepConstants
        Of rows that nothing was left out for: none of theirs was in the fit.
    """

    key: Key
    without: dict[Family, StepConstants]
    whole: StepConstants


def _folds(
    trained: Sequence[Compared], start: StepConstants, whole: StepConstants, key: Key = _same
) -> _Folds:
    steps = [linear(each) for each in trained]
    without = {}
    families = sorted({key(step.family) for step in steps})
    with progress(None, "fitting constants to other rows", len(families)) as update:
        for done, left_out in enumerate(families, 1):
            kept = [step for step in steps if key(step.family) != left_out]
            without[left_out] = fit(kept, start) if kept else NO_CONSTANTS
            update(done)
    return _Folds(key, without, whole)


def _held_out(rows: Sequence[Compared], at: StepConstants, folds: _Folds) -> list[_HeldOut]:
    """Predict rows to first order, each with constants fitted to the others.

    Parameters
    ----------
    rows : sequence of Compared
    at : StepConstants
        Those that `rows` were predicted with.
    folds : _Folds
    """
    found = []
    for each in rows:
        fitted = folds.without.get(folds.key(family(each.mapped)), folds.whole)
        constants = fitted.for_model(each.mapped.experiment.model)
        step = linear(each)
        seconds = max(seconds_with(step, at, constants), 1e-3 * each.measured)
        known = constants.fitted_to(each.mapped.experiment.software, _gpu(step))
        residual = math.log(seconds / each.measured)
        inputs = relative_error(step, at, constants)
        if not covered(step, constants):
            inputs = math.hypot(inputs, each.outcome.inputs)
        found.append(_HeldOut(residual, inputs, known, each.sort, _publisher(each)))
    return found


def _publisher(each: Compared) -> str:
    return publisher(each.row.texts["source"])


def _gpu(step: Linear) -> str:
    """Return the kind of GPU of a step."""
    found = (parse_constant_name(name) for name in step.lengths)
    return next((each[1] for each in found if each is not None and each[0] == "memory"), "")


def _model_error(plain: Sequence[Compared], trials: Sequence[_HeldOut]) -> ModelError:
    """Residuals, error bars of inputs → error of the model that these do not explain.

    Where nothing was fitted to steps, intervals hold nine tenths also when each publisher counts
    the same, if there are enough of them.
    """

    def numbers(
        group: Sequence[_HeldOut], what: str, *, by_publisher: bool = False
    ) -> dict[str, Quantity]:
        found = {}
        for sort in MODEL_CLASSES:
            own = [each for each in group if each.sort == sort]
            used, which = (own, sort) if len(own) >= MIN_ROWS else (group, "all sorts of models")
            publishers = [each.publisher for each in used]
            error = sufficient_error(
                [each.residual for each in used],
                [each.inputs for each in used],
                publishers if by_publisher else None,
            )
            steps = f"{len(used)} steps of trust A and B, {which}"
            if by_publisher:
                steps += counted_by(publishers)
            source = f"with it intervals hold 90 % of {steps}; {what}"
            found[sort] = Quantity(1, "1", round(error, 3), source)
        return found

    unfitted = [
        _HeldOut(
            math.log(each.predicted / each.measured),
            each.outcome.inputs,
            False,
            each.sort,
            _publisher(each),
        )
        for each in plain
    ]
    known = [each for each in trials if each.known]
    new = [each for each in trials if not each.known]
    families = "their families left out of the fit"
    return ModelError(
        numbers(unfitted, "nothing fitted to steps", by_publisher=True),
        numbers(known or new, f"{families}, framework and GPU in it"),
        numbers(new or known, f"{families}, framework or GPU not in it"),
    )


HEAD = """\
# Constants fitted to measured training steps, written by: mpisim calibrate e2e
# Multipliers of times (overhead: a time); error: one standard deviation, relative. Constants that
# few families of steps speak for stay near 1. An experiment takes the file by [calibration] file.
"""


def written(constants: StepConstants) -> str:
    """Fitted constants → text of a file that `StepConstants.read` reads.

    Parameters
    ----------
    constants : StepConstants

    Returns
    -------
    str
        TOML.
    """
    parts = [HEAD]
    if constants.model_error is not None:
        for name, table in vars(constants.model_error).items():
            lines = [_line(sort, number) for sort, number in table.items()]
            parts.append(f"[model_error.{name}]\n" + "".join(lines))
    for kind in (*MULTIPLIERS, OVERHEAD):
        table = getattr(constants, kind)
        if table:
            lines = [_line(json.dumps(key), table[key]) for key in sorted(table)]
            parts.append(f"[{kind}]\n" + "".join(lines))
    return "\n".join(parts)


def _line(key: str, number: Quantity) -> str:
    return (
        f"{key} = {{ value = {number.value}, unit = {json.dumps(number.unit)}, "
        f"error = {number.error}, source = {json.dumps(number.source)} }}\n"
    )
