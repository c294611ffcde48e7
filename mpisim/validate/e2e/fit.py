"""Few constants fitted to many measured steps.

A step that took T with the constants x0 takes, to first order along its critical path,

    T(x) = T + sum over k of L_k (exp(x_k - x0_k) - 1) + (overhead - overhead0)

where L_k is the length of the path that rests on multiplier k and x its logarithm. Fitted is
log(T(x) / measured), by least squares with Huber's weights and a normal prior around 1, whose
spread is declared (``data/validation/e2e_fit.toml``). Rows of one family are correlated, so that it
is families which pull a constant from 1, not rows. Where a constant moves far another path may
become critical: then everything is simulated again with what was found, and fitted from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...presets import packaged
from ...quantity import Quantity
from ...schema import Limits, build
from ...step_constants import MULTIPLIERS, OVERHEAD, StepConstants, kind_of, name_of
from .compare import Compared
from .families import Family, family
from .settings import OTHER

__all__ = ["Linear", "fit", "foretold", "linear"]

FILE = "validation/e2e_fit.toml"

ITERATIONS = 60

FLOOR = 0.02
"""Least robust standard deviation: below it rows are as good as measurements are."""

MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

LONGEST = 0.3
"""Largest change of a logarithm in one iteration: steps along exponentials may overshoot."""

Floats = NDArray[np.float64]
Above = Annotated[float, Limits(least=1e-6)]


@dataclass(frozen=True)
class _Declared:
    """What is assumed before any row is looked at: see the file."""

    correlation: Annotated[float, Limits(least=0, most=1)]
    outliers: Above
    spread: dict[str, Above]


@cache
def _declared() -> _Declared:
    return build(_Declared, packaged(FILE), FILE)


class Linear(NamedTuple):
    """A measured step as the fit sees it: seconds, and the constants it was predicted with.

    Attributes
    ----------
    row : str
    family : tuple of str
    measured, predicted : float
    lengths : mapping of str to float
        By name of the constant.
    """

    row: str
    family: Family
    measured: float
    predicted: float
    lengths: Mapping[str, float]


def foretold(step: Linear, start: StepConstants, constants: StepConstants) -> float:
    """Return the seconds of a step with other constants than it was predicted with."""
    seconds = step.predicted
    for name, length in step.lengths.items():
        change = _value(constants, name) - _value(start, name)
        seconds += change if _kind(name) == OVERHEAD else length * float(np.expm1(change))
    return seconds


def linear(each: Compared) -> Linear:
    """Return a predicted row as the fit sees it."""
    outcome, experiment = each.outcome, each.mapped.experiment
    lengths = dict(outcome.lengths)
    if each.row.without_optimizer:
        # The optimizer's kernels stream memory, and its part of the step is not counted.
        left = outcome.seconds - outcome.before_optimizer
        for name in lengths:
            if _kind(name) == "memory":
                lengths[name] = max(0.0, lengths[name] - left)
    # Also a framework whose launches are hidden has been seen.
    framework = experiment.calibration.framework
    for kind in ("host", OVERHEAD):
        lengths.setdefault(name_of(kind, framework or OTHER), 0.0)
    return Linear(each.row.id, family(each.mapped), each.measured, each.predicted, lengths)


def fit(steps: Sequence[Linear], start: StepConstants) -> StepConstants:
    """Fit constants.

    Parameters
    ----------
    steps : sequence of Linear
    start : StepConstants
        Those that the steps were predicted with.
    """
    declared = _declared()
    names = sorted({name for step in steps for name in step.lengths})
    late = np.array([_kind(name) == OVERHEAD for name in names])
    begin = np.array([_value(start, name) for name in names])
    spread = np.array([declared.spread[_kind(name)] for name in names])
    lengths = np.array([[step.lengths.get(name, 0.0) for name in names] for step in steps])
    present = np.array([[name in step.lengths for name in names] for step in steps])
    predicted = np.array([step.predicted for step in steps])
    measured = np.array([step.measured for step in steps])
    base = _weights([step.family for step in steps], declared.correlation)

    def model(x: Floats) -> tuple[Floats, Floats]:
        """Seconds, and the derivative of their logarithms."""
        change = x - begin
        grown = lengths * np.exp(np.where(late, 0.0, change))
        # An overhead adds itself to each step of its framework; a multiplier stretches its length.
        moved = np.where(late, present * change, grown - lengths)
        total = np.maximum(predicted + moved.sum(axis=1), 1e-3 * measured)
        return total, np.where(late, present, grown) / total[:, None]

    x = begin.copy()
    inverse = np.diag(spread**2)
    for _ in range(ITERATIONS):
        total, slope = model(x)
        rest = np.log(total / measured)
        scale = max(FLOOR, MAD * _median(np.abs(rest), base))
        far = np.maximum(np.abs(rest) / (declared.outliers * scale), 1.0)
        weight = base / far / scale**2
        # Minimised: sum of weight × rest² + (x / spread)².
        curve = (slope.T * weight) @ slope + np.diag(spread**-2.0)
        downhill = -(slope.T @ (weight * rest) + x * spread**-2.0)
        free = ~(late & (x <= 0) & (downhill < 0))  # no overhead is negative
        step = np.zeros_like(x)
        step[free] = np.linalg.solve(curve[np.ix_(free, free)], downhill[free])
        step = np.clip(step, -LONGEST, LONGEST)
        x = np.where(late, np.maximum(x + step, 0.0), x + step)
        inverse = np.linalg.inv(curve)
        if np.abs(step).max(initial=0.0) < 1e-7:
            break
    return _constants(names, x, np.sqrt(np.diag(inverse)), steps)


def _kind(name: str) -> str:
    found = kind_of(name)
    assert found is not None
    return found[0]


def _value(constants: StepConstants, name: str) -> float:
    """Logarithm of a multiplier, or seconds of an overhead."""
    kind, key = kind_of(name) or ("", "")
    if kind == OVERHEAD:
        found = constants.overhead.get(key)
        return 0.0 if found is None else found.si
    return float(np.log(constants.multiplier(kind, key).value))


def _weights(families: Sequence[Family], correlation: float) -> Floats:
    """Return what a row counts: n correlated ones count as n / (1 + (n - 1) correlation)."""
    count = Counter(families)
    return np.array([1 / (1 + (count[each] - 1) * correlation) for each in families])


def _median(values: Floats, weights: Floats) -> float:
    """Return the value with half of the weight below it: a large family does not set the scale."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _constants(
    names: Sequence[str], x: Floats, errors: Floats, steps: Sequence[Linear]
) -> StepConstants:
    """Return values with error bars, each with what it was fitted to."""
    tables: dict[str, Any] = {kind: {} for kind in (*MULTIPLIERS, OVERHEAD)}
    for i, name in enumerate(names):
        kind, key = kind_of(name) or ("", "")
        rows = [step for step in steps if name in step.lengths]
        families = {step.family for step in rows}
        sources = sorted({each[0] for each in families})
        share = float(np.mean([step.lengths[name] / step.predicted for step in rows]))
        said = (
            f"{len(rows)} steps of {len(families)} families ({', '.join(sources)}), mean share of "
            f"the step {share:.1%}"
        )
        if kind != OVERHEAD:
            error = round(float(errors[i]), 3)
            tables[kind][key] = Quantity(round(float(np.exp(x[i])), 4), "1", error, said)
        elif x[i] > 0:
            error = min(10.0, round(float(errors[i] / x[i]), 3))
            tables[kind][key] = Quantity(round(float(x[i]) * 1e3, 3), "ms", error, said)
    return StepConstants(**tables)
