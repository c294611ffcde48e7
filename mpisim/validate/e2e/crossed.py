"""Steps predicted with constants that were fitted to the others, and how far they are then off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...base.quantity import Quantity
from ...mpi.parallel import collective_errors
from ...prediction.step_constants import (
    MODEL_CLASSES,
    ModelError,
    StepConstants,
    parse_constant_name,
)
from .compare import NORMAL, Compared, Comparison
from .families import Family, family
from .fit import fit
from .linear import Linear, covered, doubt, foretold, linear
from .predict import NOTHING, predict

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["calibrate", "cross_validate", "sufficient"]

TRAINED = "A"
"""Trust of the rows that constants are fitted to."""

JUDGED = "AB"
"""Trust of the rows that the error of the model is found from."""

SHARE = 0.9
"""Of rows that the interval is to hold."""

ENOUGH = 20
"""Rows of one sort of model that an error is found from; of fewer, all sorts together."""

Key = Callable[[Family], Family]
"""What is left out together with a row, by its family."""


def _same(family: Family) -> Family:
    return family


def _source(family: Family) -> Family:
    return family[0], "", ""


def calibrate(found: Comparison | None, comm: Intracomm, passes: int = 1) -> StepConstants | None:
    """Fit constants to steps. **Collective.**

    Parameters
    ----------
    found : Comparison or None
        Predicted without constants, on process 0.
    comm : mpi4py.MPI.Intracomm
    passes : int
        How often steps are simulated again with what was found, and constants fitted from there.

    Returns
    -------
    StepConstants or None
        On process 0; None on the others.
    """
    plain = [] if found is None else found.compared
    rows = [each for each in plain if _trains(each)]
    start, constants = NOTHING, _fitted(rows, NOTHING)
    for _ in range(passes):
        start = comm.bcast(constants)
        rows = _again(rows, [start] * comm.bcast(len(rows)), comm)
        constants = _fitted(rows, start)
    if found is None:
        return None
    others = [each for each in plain if each.row.texts["trust"] in JUDGED and not _trains(each)]
    folds = _folds(rows, start, constants)
    trials = _trials(rows, start, folds) + _trials(others, NOTHING, folds)
    judged = [each for each in plain if each.row.texts["trust"] in JUDGED]
    return replace(constants, model_error=_model_error(judged, trials))


def cross_validate(found: Comparison) -> None:
    """Foretell every row with constants fitted to rows of other families, and of other sources.

    To first order along each row's own critical path: nothing is simulated again. The predictions
    become `Comparison.crossed` and `Comparison.apart`; rows of trust F, which follow a formula, are
    left out.

    Parameters
    ----------
    found : Comparison
        Predicted without constants.
    """
    rows = [each for each in found.compared if each.row.texts["trust"] != "F"]
    trained = [each for each in rows if _trains(each)]
    judged = [each for each in rows if each.row.texts["trust"] in JUDGED]
    whole = _fitted(trained, NOTHING)
    trials = _trials(rows, NOTHING, _folds(trained, NOTHING, whole))
    errors = _model_error(judged, [each for each in trials if each.trust in JUDGED])
    found.crossed = _compared(rows, trials, errors)
    apart = _trials(rows, NOTHING, _folds(trained, NOTHING, whole, _source))
    found.apart = _compared(rows, apart, errors)


def _compared(
    rows: Sequence[Compared], trials: Sequence[_Trial], errors: ModelError
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


class _Trial(NamedTuple):
    """Logarithm of predicted over measured with constants that were fitted to other rows, the error
    bar of the inputs and of the constants, whether the fit had the framework and the kind of GPU;
    trust, sort of model."""

    residual: float
    inputs: float
    known: bool
    trust: str
    sort: str


def _trains(each: Compared) -> bool:
    """Whether constants are fitted to a row: rows that stand apart are not what the model is of."""
    return each.row.texts["trust"] == TRAINED and not each.row.texts["suspect"]


def _fitted(rows: Sequence[Compared], start: StepConstants) -> StepConstants:
    return fit([linear(each) for each in rows], start) if rows else NOTHING


def _again(
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
    for left_out in sorted({key(step.family) for step in steps}):
        kept = [step for step in steps if key(step.family) != left_out]
        without[left_out] = fit(kept, start) if kept else NOTHING
    return _Folds(key, without, whole)


def _trials(rows: Sequence[Compared], at: StepConstants, folds: _Folds) -> list[_Trial]:
    """Foretell rows to first order, each with constants fitted to others.

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
        seconds = max(foretold(step, at, constants), 1e-3 * each.measured)
        known = constants.fitted_to(each.mapped.experiment.calibration.framework, _gpu(step))
        residual = math.log(seconds / each.measured)
        inputs = doubt(step, at, constants)
        if not covered(step, constants):
            inputs = math.hypot(inputs, each.outcome.inputs)
        found.append(_Trial(residual, inputs, known, each.row.texts["trust"], each.sort))
    return found


def _gpu(step: Linear) -> str:
    """Return the kind of GPU of a step."""
    found = (parse_constant_name(name) for name in step.lengths)
    return next((each[1] for each in found if each is not None and each[0] == "memory"), "")


def _model_error(plain: Sequence[Compared], trials: Sequence[_Trial]) -> ModelError:
    """Return how far steps are off beyond what their inputs' error bars explain."""

    def numbers(group: Sequence[_Trial], what: str) -> dict[str, Quantity]:
        found = {}
        for sort in MODEL_CLASSES:
            own = [each for each in group if each.sort == sort]
            used, which = (own, sort) if len(own) >= ENOUGH else (group, "all sorts of models")
            error = sufficient([each.residual for each in used], [each.inputs for each in used])
            said = (
                f"with it intervals hold 90 % of {len(used)} steps of trust A and B, {which}; "
                f"{what}"
            )
            found[sort] = Quantity(1, "1", round(error, 3), said)
        return found

    unfitted = [
        _Trial(
            math.log(each.predicted / each.measured),
            each.outcome.inputs,
            False,
            each.row.texts["trust"],
            each.sort,
        )
        for each in plain
    ]
    known = [each for each in trials if each.known]
    new = [each for each in trials if not each.known]
    families = "their families left out of the fit"
    return ModelError(
        numbers(unfitted, "nothing fitted to steps"),
        numbers(known or new, f"{families}, framework and GPU in it"),
        numbers(new or known, f"{families}, framework or GPU not in it"),
    )


def sufficient(residuals: Sequence[float], inputs: Sequence[float]) -> float:
    """Return the least error of the model with which intervals hold 90 % of rows.

    Parameters
    ----------
    residuals : sequence of float
        Logarithms of predicted over measured steps.
    inputs : sequence of float
        Relative error bars from what the steps rest on.
    """
    if not len(residuals):
        return 0.0
    # Row i is inside where error² >= (residual / 1.645)² - inputs².
    needed = (np.array(residuals) / NORMAL) ** 2 - np.array(inputs) ** 2
    ordered = np.sort(np.maximum(needed, 0.0))
    return math.sqrt(ordered[math.ceil(SHARE * len(ordered)) - 1])
