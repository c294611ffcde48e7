"""Measured steps as a fit sees them, and what they are with other constants, to first order.

A step that took T with the constants x0 takes along its critical path

    T(x) = T + sum over k of L_k (exp(x_k - x0_k) - 1) + (overhead - overhead0)

where L_k is the length of the path that rests on multiplier k and x its logarithm: that of the kind
of GPU or the platform, plus that of the framework on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...prediction.step_constants import (
    MODEL_CLASSES,
    MULTIPLIERS,
    OVERHEAD,
    StepConstants,
    constant_name,
    framework_key,
    parse_constant_name,
)
from .compare import Compared
from .families import Family, Way, family, way
from .settings import OTHER

__all__ = ["Linear", "covered", "doubt", "foretold", "kind_in", "linear", "names_in", "value_of"]


class Linear(NamedTuple):
    """A measured step as the fit sees it: seconds, and the constants it was predicted with.

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
        How it ran: rows of one family with one way are off alike.
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
    """Return a predicted row as the fit sees it."""
    outcome, experiment = each.outcome, each.mapped.experiment
    lengths = dict(outcome.lengths)
    if each.row.without_optimizer:
        # The optimizer's kernels stream memory, and its part of the step is not counted.
        left = outcome.seconds - outcome.before_optimizer
        for name in lengths:
            if kind_in(name) == "memory":
                lengths[name] = max(0.0, lengths[name] - left)
    # Also a framework whose launches are hidden has been seen.
    framework = experiment.calibration.framework or OTHER
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


def foretold(step: Linear, start: StepConstants, constants: StepConstants) -> float:
    """Return the seconds of a step with other constants than it was predicted with."""
    seconds = step.predicted
    for name, length in step.lengths.items():
        names = names_in(name, step.framework)
        change = sum(value_of(constants, each) - value_of(start, each) for each in names)
        seconds += change if kind_in(name) == OVERHEAD else length * float(np.expm1(change))
    return seconds


def doubt(step: Linear, start: StepConstants, constants: StepConstants) -> float:
    """Return the relative error of a step from the error bars of the constants it is foretold with.

    As predictions state it (`mpisim.prediction.uncertainty.combine`): what rests on one name is off
    together.
    """
    seconds = foretold(step, start, constants)
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
    """Whether all parts of a step rest on fitted constants, that were fitted with all that these
    parts rest on (`mpisim.prediction.step_constants.AppliedConstants.covers`)."""
    parts = [
        parse_constant_name(name) or ("", "") for name, length in step.lengths.items() if length
    ]
    return all(key in getattr(constants, kind) for kind, key in parts if kind in MULTIPLIERS)


def kind_in(name: str) -> str:
    """Return the kind of a constant, by its name."""
    found = parse_constant_name(name)
    assert found is not None
    return found[0]


def names_in(name: str, framework: str) -> tuple[str, ...]:
    """Return the constants that multiply what rests on a name: its own, and the framework's."""
    kind = kind_in(name)
    stack = framework_key(kind, framework)
    return (name,) if stack is None else (name, constant_name(kind, stack))


def value_of(constants: StepConstants, name: str) -> float:
    """Logarithm of a multiplier, or seconds of an overhead."""
    kind, key = parse_constant_name(name) or ("", "")
    if kind == OVERHEAD:
        found = constants.overhead.get(key)
        return 0.0 if found is None else found.si
    return float(np.log(constants.multiplier(kind, key).value))
