"""Few constants fitted to many measured steps.

Fitted is log(T(x) / measured), with T to first order (:mod:`mpisim.validate.e2e.linear`): rows of a
family are off by something they have in common, those that ran alike by more, each row by something
of its own with long tails, and constants are around 1 by what
the rows themselves say (:mod:`mpisim.validate.e2e.mixed`; first guesses are declared in
``data/validation/e2e_fit.toml``). So it is families which pull a constant from 1, not rows; and
what one framework alone shows is that framework's. Where a constant moves far another path may
become critical: then everything is simulated again with what was found, and fitted from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ...base.presets import packaged
from ...base.quantity import Quantity
from ...base.schema import Limits, build
from ...prediction.step_constants import (
    MODEL_CLASSES,
    MULTIPLIERS,
    OVERHEAD,
    StepConstants,
    is_framework_key,
    parse_constant_name,
)
from .families import Family, Way
from .linear import Linear, kind_in, names_in, value_of
from .mixed import Guesses, Layout, Posterior, Variances, expected, maximised

__all__ = ["fit"]

FILE = "validation/e2e_fit.toml"

ITERATIONS = 60

CLOSE = 1e-3
"""Change of a logarithm, and relative change of a variance, below which it is found."""

LONGEST = 0.3
"""Largest change of a logarithm in one iteration: steps along exponentials may overshoot."""

Floats = NDArray[np.float64]
Above = Annotated[float, Limits(least=1e-6)]


@dataclass(frozen=True)
class _Declared:
    """What is assumed before any row is looked at: see the file."""

    strength: Above
    freedom: Above
    family: Above
    alike: Above
    rest: Above
    spread: dict[str, Above]
    stack: dict[str, Above]


@cache
def _declared() -> _Declared:
    return build(_Declared, packaged(FILE), FILE)


class _Terms:
    """Parts of steps, and the constants that each rests on."""

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
        Those of models with experts are left out: `StepConstants.serving`.
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
    layout = _layout(steps, kinds)
    guesses = _guesses(sorted(set(kinds)))
    known = Variances.guessed(guesses, layout)
    x = begin.copy()
    for _ in range(ITERATIONS):
        off, slope = terms.off(x - begin), terms.slope(x - begin)
        found = expected(slope, slope @ x - off, layout, known)
        target = np.where(late, np.maximum(found.x, 0.0), found.x)  # no overhead is negative
        step = np.clip(target - x, -LONGEST, LONGEST)
        x = x + step
        rest = -terms.off(x - begin) - found.effects(layout)
        before, known = known, maximised(rest, x, layout, found, guesses, known)
        if np.abs(step).max() < CLOSE and _alike(before, known):
            break
    return _constants(terms.names, x, found, steps)


def _place(step: Linear) -> tuple[Family, str, Way]:
    return step.family, step.sort, step.way


def _layout(steps: Sequence[Linear], kinds: Sequence[tuple[str, bool]]) -> Layout:
    """Return what belongs together of steps in the order of `_place`."""
    groups = list(dict.fromkeys(_place(step) for step in steps))
    families = list(dict.fromkeys(group[:2] for group in groups))
    numbers = {group: i for i, group in enumerate(groups)}
    order = sorted(set(kinds))
    return Layout(
        np.array([order.index(kind) for kind in kinds]),
        np.array([numbers[_place(step)] for step in steps]),
        np.array([families.index(group[:2]) for group in groups]),
        np.array([MODEL_CLASSES.index(sort) for _, sort in families]),
    )


def _guesses(groups: Sequence[tuple[str, bool]]) -> Guesses:
    declared = _declared()
    spread = [(declared.stack if stack else declared.spread)[kind] for kind, stack in groups]
    return Guesses(
        np.array(spread) ** 2,
        declared.family**2,
        declared.alike**2,
        declared.rest**2,
        declared.strength,
        declared.freedom,
    )


def _alike(one: Variances, other: Variances) -> bool:
    a, b = (
        np.concatenate([each.kinds, each.family, each.group, each.rest]) for each in (one, other)
    )
    return bool((np.abs(a - b) <= 10 * CLOSE * a).all())


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
