"""Steps predicted with constants that were fitted to the others, and how far they are then off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...parallel import agreed
from ...quantity import Quantity
from ...step_constants import ModelError, StepConstants, kind_of
from .compare import NORMAL, Compared, Comparison
from .families import Family, family
from .fit import Linear, fit, foretold, linear
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
    rows = [each for each in plain if each.row.texts["trust"] == TRAINED]
    start, constants = NOTHING, _fitted(rows, NOTHING)
    for _ in range(passes):
        start = comm.bcast(constants)
        rows = _again(rows, [start] * comm.bcast(len(rows)), comm)
        constants = _fitted(rows, start)
    if found is None:
        return None
    others = [each for each in plain if each.row.texts["trust"] in JUDGED.replace(TRAINED, "")]
    trials = _trials(rows, start, rows) + _trials(rows, start, others, at=NOTHING)
    judged = [each for each in plain if each.row.texts["trust"] in JUDGED]
    return replace(constants, model_error=_model_error(judged, trials))


def cross_validate(found: Comparison) -> None:
    """Foretell every row with constants fitted to rows of other families.

    To first order along each row's own critical path: nothing is simulated again. The predictions
    become `Comparison.crossed`; rows of trust F, which follow a formula, are left out.

    Parameters
    ----------
    found : Comparison
        Predicted without constants.
    """
    rows = [each for each in found.compared if each.row.texts["trust"] != "F"]
    trained = [each for each in rows if each.row.texts["trust"] == TRAINED]
    trials = _trials(trained, NOTHING, rows)
    judged = [
        (each, trial)
        for each, trial in zip(rows, trials, strict=True)
        if each.row.texts["trust"] in JUDGED
    ]
    errors = _model_error([each for each, _ in judged], [trial for _, trial in judged])
    for each, trial in zip(rows, trials, strict=True):
        seconds = each.measured * math.exp(trial.residual)
        outcome = replace(
            each.outcome, seconds=seconds, before_optimizer=seconds, known=trial.known
        )
        error = errors.known if trial.known else errors.unknown
        found.crossed.append(Compared(each.mapped, outcome, error.error))


class _Trial(NamedTuple):
    """Logarithm of predicted over measured with constants that were fitted to other families, the
    error bar of the inputs, and whether the fit had the framework and the kind of GPU."""

    residual: float
    inputs: float
    known: bool


def _fitted(rows: Sequence[Compared], start: StepConstants) -> StepConstants:
    return fit([linear(each) for each in rows], start) if rows else NOTHING


def _folds(
    rows: Sequence[Compared], start: StepConstants
) -> dict[Family | None, StepConstants]:
    """Return constants fitted to all rows (None), and to all but those of each family."""
    steps = [linear(each) for each in rows]
    folds: dict[Family | None, StepConstants] = {None: _fitted(rows, start)}
    for left_out in sorted({step.family for step in steps}):
        kept = [step for step in steps if step.family != left_out]
        folds[left_out] = fit(kept, start) if kept else NOTHING
    return folds


def _again(
    rows: Sequence[Compared], tables: Sequence[StepConstants], comm: Intracomm
) -> list[Compared]:
    """Predict rows with constants; rows that process 0 has. **Collective.**"""
    mapped = comm.bcast([each.mapped for each in rows])
    outcomes = predict(mapped, comm, constants=tables)
    with agreed(comm):
        return [
            Compared(each, outcome)
            for each, outcome in zip(mapped, outcomes or (), strict=outcomes is not None)
            if not outcome.failed
        ]


def _trials(
    trained: Sequence[Compared], start: StepConstants, rows: Sequence[Compared],
    at: StepConstants | None = None,
) -> list[_Trial]:  # fmt: skip
    """Foretell rows to first order, each with constants fitted to other families."""
    folds = _folds(trained, start)
    found = []
    for each in rows:
        constants = folds.get(family(each.mapped), folds[None])
        step = linear(each)
        seconds = max(foretold(step, start if at is None else at, constants), 1e-3 * each.measured)
        gpu = _gpu(step)
        known = constants.knows(each.mapped.experiment.calibration.framework, gpu)
        found.append(_Trial(math.log(seconds / each.measured), each.outcome.inputs, known))
    return found


def _gpu(step: Linear) -> str:
    """Return the kind of GPU of a step."""
    found = (kind_of(name) for name in step.lengths)
    return next((each[1] for each in found if each is not None and each[0] == "memory"), "")


def _model_error(plain: Sequence[Compared], trials: Sequence[_Trial]) -> ModelError:
    """Return how far steps are off beyond their inputs' error bars."""

    def number(group: Sequence[_Trial], what: str) -> Quantity:
        found = sufficient([each.residual for each in group], [each.inputs for each in group])
        said = f"with it intervals hold 90 % of {len(group)} steps of trust A and B, {what}"
        return Quantity(1, "1", round(found, 3), said)

    unfitted = [
        _Trial(math.log(each.predicted / each.measured), each.outcome.inputs, False)
        for each in plain
    ]
    known = [each for each in trials if each.known]
    new = [each for each in trials if not each.known]
    families = "their families left out of the fit"
    return ModelError(
        number(unfitted, "nothing fitted to steps"),
        number(known or new, f"{families}, framework and GPU in it"),
        number(new or known, f"{families}, framework or GPU not in it"),
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
