"""Measured steps and their predictions → few constants fitted to many steps.

Fitted is log(T(x) / measured). A step that took T with the constants x0 takes along its critical
path

    T(x) = T + sum over k of L_k (exp(x_k - x0_k) - 1) + (overhead - overhead0)

where L_k is the length of the path that depends on multiplier k and x its logarithm: that of the
kind of GPU or the platform, plus that of the framework on it. Rows of a family share an error,
those of one configuration a further one, each row has its own with long tails (`mixed_model`; the
prior is in
``data/validation/e2e_fit.toml``). So families pull a constant from 1, not rows, and what one
framework alone shows is that framework's. Where a constant moves far another path may become
critical: then everything is simulated again with the fitted constants, and fitted from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.frozen import frozen
from ...base.presets import packaged
from ...base.quantity import Quantity
from ...base.schema import Limits, build
from ...base.text import percentage
from ...prediction.step_constants import (
    MODEL_CLASSES,
    MULTIPLIERS,
    OVERHEAD,
    StepConstants,
    constant_name,
    framework_key,
    is_framework_key,
    parse_constant_name,
)
from .compare import Compared
from .families import Family, Way, family, way
from .mixed_model import Grouping, Posterior, Prior, Variances, e_step, m_step
from .settings import OTHER

__all__ = ["Linear", "covered", "fit", "linear", "relative_error", "seconds_with"]


class Linear(NamedTuple):
    """A measured step, its prediction, and the constants along its critical path.

    Attributes
    ----------
    row : str
    family : tuple of str
    measured, predicted : float
    lengths : mapping of str to float
        By name of the constant of a kind of GPU, platform or framework.
    framework : str
        Whose constants serve beside those of a kind of GPU or platform.
    sort : str
        Of its model (`mpisim.prediction.step_constants.MODEL_CLASSES`).
    way : tuple
        How it ran: rows of one family with one way share an error.
    """

    row: str
    family: Family
    measured: float
    predicted: float
    lengths: Mapping[str, float]
    framework: str = OTHER
    sort: str = MODEL_CLASSES[0]
    way: Way = ()


def linear(each: Compared) -> Linear:
    """Compared row → its measured time, prediction and parts that constants scale, for the fit.

    Parameters
    ----------
    each : Compared

    Returns
    -------
    Linear
        Times in s. Without the optimizer where the row was measured without.
    """
    outcome, experiment = each.outcome, each.mapped.experiment
    lengths = dict(outcome.lengths)
    if each.row.without_optimizer:
        # The optimizer's kernels stream memory, and its part of the step is not counted.
        left = outcome.seconds - outcome.before_optimizer
        for name in lengths:
            if kind_in(name) == "memory":
                lengths[name] = max(0.0, lengths[name] - left)
    # Also a framework whose launches are hidden has been seen.
    framework = experiment.software or OTHER
    for kind in ("host", OVERHEAD):
        lengths.setdefault(constant_name(kind, framework), 0.0)
    return Linear(
        each.row.id,
        family(each.mapped),
        each.measured,
        each.predicted,
        lengths,
        framework,
        each.sort,
        way(each.mapped),
    )


def seconds_with(step: Linear, start: StepConstants, constants: StepConstants) -> float:
    """Predicted step, other constants → its seconds with these.

    Parameters
    ----------
    step : Linear
    start : StepConstants
        Those that `step` was predicted with.
    constants : StepConstants
        The other ones.
    """
    seconds = step.predicted
    for name, length in step.lengths.items():
        names = names_in(name, step.framework)
        change = sum(value_of(constants, each) - value_of(start, each) for each in names)
        seconds += change if kind_in(name) == OVERHEAD else length * float(np.expm1(change))
    return seconds


def relative_error(step: Linear, start: StepConstants, constants: StepConstants) -> float:
    """Errors of constants → relative uncertainty of a step that is predicted with them.

    As predictions state it (`mpisim.prediction.uncertainty.combine`): what depends on one name is
    off together.

    Parameters
    ----------
    step : Linear
    start : StepConstants
        Those that `step` was predicted with.
    constants : StepConstants
        Those whose values and errors count.

    Returns
    -------
    float
        Share of the seconds predicted with `constants`, 0 or more.
    """
    seconds = seconds_with(step, start, constants)
    squares = 0.0
    for name, length in step.lengths.items():
        if kind_in(name) == OVERHEAD:
            continue
        names = names_in(name, step.framework)
        change = sum(value_of(constants, each) - value_of(start, each) for each in names)
        errors = [
            constants.multiplier(*key).error for key in map(parse_constant_name, names) if key
        ]
        squares += (length * math.exp(change) / seconds * math.hypot(*errors)) ** 2
    return math.sqrt(squares)


def covered(step: Linear, constants: StepConstants) -> bool:
    """Whether fitted constants cover all parts of a step.

    The constants must have been fitted with all that the parts depend on
    (`mpisim.prediction.step_constants.AppliedConstants.covers`).

    Parameters
    ----------
    step : Linear
    constants : StepConstants
        Those that were fitted.
    """
    parts = [
        parse_constant_name(name) or ("", "") for name, length in step.lengths.items() if length
    ]
    return all(key in getattr(constants, kind) for kind, key in parts if kind in MULTIPLIERS)


def kind_in(name: str) -> str:
    """Name of a constant → its kind."""
    found = parse_constant_name(name)
    assert found is not None
    return found[0]


def names_in(name: str, framework: str) -> tuple[str, ...]:
    """Name, framework → constants that multiply what depends on it: its own, the framework's.

    Parameters
    ----------
    name : str
        Of a constant of a kind of GPU, platform or framework.
    framework : str
        The one that the step ran with.
    """
    kind = kind_in(name)
    stack = framework_key(kind, framework)
    return (name,) if stack is None else (name, constant_name(kind, stack))


def value_of(constants: StepConstants, name: str) -> float:
    """Logarithm of a multiplier, or seconds of an overhead.

    Parameters
    ----------
    constants : StepConstants
    name : str
        Of a constant, with its kind.

    Returns
    -------
    float
        0 for one that was not fitted.
    """
    kind, key = parse_constant_name(name) or ("", "")
    if kind == OVERHEAD:
        found = constants.overhead.get(key)
        return 0.0 if found is None else found.si
    return float(np.log(constants.multiplier(kind, key).value))


FILE = "validation/e2e_fit.toml"

ITERATIONS = 60

TOLERANCE = 1e-3
"""Change of a logarithm, and relative change of a variance, below which the fit has converged."""

MAX_CHANGE = 0.3
"""Largest change of a logarithm in one iteration: steps along exponentials may overshoot."""

Floats = NDArray[np.float64]
Above = Annotated[float, Limits(least=1e-6)]


@frozen
class _DeclaredPrior:
    """The prior of the fit: see the file."""

    strength: Above
    freedom: Above
    family: Above
    alike: Above
    rest: Above
    spread: dict[str, Above]
    stack: dict[str, Above]


@cache
def _declared_prior() -> _DeclaredPrior:
    return build(_DeclaredPrior, packaged(FILE), FILE)


class _Terms:
    """Parts of steps, and the constants that each depends on."""

    def __init__(self, steps: Sequence[Linear]) -> None:
        index: dict[str, int] = {}
        parts: list[tuple[int, float, bool]] = []
        rests: list[tuple[int, int]] = []
        for row, step in enumerate(steps):
            for name, length in step.lengths.items():
                rests += [
                    (len(parts), index.setdefault(each, len(index)))
                    for each in names_in(name, step.framework)
                ]
                parts.append((row, length, kind_in(name) == OVERHEAD))
        self.names = list(index)
        self.row = np.array([part[0] for part in parts])
        self.length = np.array([part[1] for part in parts])
        self.late = np.array([part[2] for part in parts])
        self.part, self.number = np.array(rests).T
        self.cell = self.row[self.part] * len(index) + self.number
        self.predicted = np.array([step.predicted for step in steps])
        self.measured = np.array([step.measured for step in steps])

    def off(self, change: Floats) -> Floats:
        """Return log(seconds / measured)."""
        return np.asarray(np.log(self._grown(change)[1] / self.measured))

    def slope(self, change: Floats) -> Floats:
        """Return the derivatives of log(seconds)."""
        grown, total = self._grown(change)
        slope = np.where(self.late, 1.0, grown) / total[self.row]
        size = len(total), len(self.names)
        cells = np.bincount(self.cell, slope[self.part], size[0] * size[1])
        return cells.astype(np.float64).reshape(size)

    def _grown(self, change: Floats) -> tuple[Floats, Floats]:
        """Return how long parts, and steps, then are."""
        of_part = np.bincount(self.part, change[self.number], len(self.row))
        # An overhead adds itself to each step of its framework; a multiplier stretches its length.
        grown = self.length * np.exp(np.where(self.late, 0.0, of_part))
        moved = np.where(self.late, of_part, grown - self.length)
        total = self.predicted + np.bincount(self.row, moved, len(self.predicted))
        return grown, np.maximum(total, 1e-3 * self.measured)


def fit(steps: Sequence[Linear], start: StepConstants) -> StepConstants:
    """Fit constants.

    Parameters
    ----------
    steps : sequence of Linear
        Those of models with experts are left out: `StepConstants.for_model`.
    start : StepConstants
        Those that the steps were predicted with.
    """
    steps = sorted((step for step in steps if step.sort != "experts"), key=_place)
    if not steps:
        return StepConstants()
    terms = _Terms(steps)
    begin = np.array([value_of(start, name) for name in terms.names])
    kinds = [_group(name) for name in terms.names]
    late = np.array([kind == (OVERHEAD, False) for kind in kinds])
    grouping = _grouping(steps, kinds)
    prior = _prior(sorted(set(kinds)))
    known = Variances.guessed(prior, grouping)
    x = begin.copy()
    for _ in range(ITERATIONS):
        off, slope = terms.off(x - begin), terms.slope(x - begin)
        found = e_step(slope, slope @ x - off, grouping, known)
        target = np.where(late, np.maximum(found.x, 0.0), found.x)  # no overhead is negative
        step = np.clip(target - x, -MAX_CHANGE, MAX_CHANGE)
        x = x + step
        rest = -terms.off(x - begin) - found.effects(grouping)
        before, known = known, m_step(rest, x, grouping, found, prior, known)
        if np.abs(step).max() < TOLERANCE and _converged(before, known):
            break
    return _constants(terms.names, x, found, steps)


def _place(step: Linear) -> tuple[Family, str, Way]:
    return step.family, step.sort, step.way


def _grouping(steps: Sequence[Linear], kinds: Sequence[tuple[str, bool]]) -> Grouping:
    """Return what belongs together of steps in the order of `_place`."""
    groups = list(dict.fromkeys(_place(step) for step in steps))
    families = list(dict.fromkeys(group[:2] for group in groups))
    numbers = {group: i for i, group in enumerate(groups)}
    order = sorted(set(kinds))
    return Grouping(
        np.array([order.index(kind) for kind in kinds]),
        np.array([numbers[_place(step)] for step in steps]),
        np.array([families.index(group[:2]) for group in groups]),
        np.array([MODEL_CLASSES.index(sort) for _, sort in families]),
    )


def _prior(groups: Sequence[tuple[str, bool]]) -> Prior:
    declared = _declared_prior()
    spread = [(declared.stack if stack else declared.spread)[kind] for kind, stack in groups]
    return Prior(
        np.array(spread) ** 2,
        declared.family**2,
        declared.alike**2,
        declared.rest**2,
        declared.strength,
        declared.freedom,
    )


def _converged(one: Variances, other: Variances) -> bool:
    a, b = (
        np.concatenate([each.kinds, each.family, each.group, each.rest]) for each in (one, other)
    )
    return bool((np.abs(a - b) <= 10 * TOLERANCE * a).all())


def _group(name: str) -> tuple[str, bool]:
    """Return the kind of a constant, and whether it is of a framework beside those of a GPU."""
    kind, key = parse_constant_name(name) or ("", "")
    return kind, is_framework_key(key)


def _constants(
    names: Sequence[str], x: Floats, found: Posterior, steps: Sequence[Linear]
) -> StepConstants:
    """Return values with error bars, each with what it was fitted to."""
    errors = np.sqrt(np.diag(found.covariance))
    tables: dict[str, Any] = {kind: {} for kind in (*MULTIPLIERS, OVERHEAD)}
    resting: dict[str, list[tuple[Linear, float]]] = {name: [] for name in names}
    for step in steps:
        for name, length in step.lengths.items():
            for each in names_in(name, step.framework):
                resting[each].append((step, length))
    for i, name in enumerate(names):
        kind, key = parse_constant_name(name) or ("", "")
        families = {step.family for step, _ in resting[name]}
        sources = sorted({each[0] for each in families})
        rows = {step.row for step, _ in resting[name]}
        share = sum(length / step.predicted for step, length in resting[name]) / len(rows)
        source = (
            f"{len(rows)} steps of {len(families)} families ({', '.join(sources)}), mean share of "
            f"the step {percentage(share, 1)}"
        )
        if kind != OVERHEAD:
            error = round(float(errors[i]), 3)
            tables[kind][key] = Quantity(round(float(np.exp(x[i])), 4), "1", error, source)
        elif x[i] > 0:
            error = min(10.0, round(float(errors[i] / x[i]), 3))
            tables[kind][key] = Quantity(round(float(x[i]) * 1e3, 3), "ms", error, source)
    return StepConstants(**tables)
