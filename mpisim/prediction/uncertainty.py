"""Error bars: how far a predicted step time may be off, given how well its inputs are known.

First order, along the critical path: its pieces sum exactly to the step time, and each rests on a
few numbers that have error bars. If a number is off by a relative error e, all pieces that are
proportional to it change together, so the step time changes by e × their length. Different numbers
are taken as independent: their effects add in squares. A larger error would let another path become
critical; the first order does not see that, nor what the model leaves out. For both there is the
model's own error, as predictions of measured steps have shown it
(:mod:`mpisim.prediction.step_constants`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base.quantity import Quantity

if TYPE_CHECKING:
    from ..engine.critical_path import CriticalPath

__all__ = ["Effect", "Uncertainty", "combine", "propagate"]


@dataclass(frozen=True)
class Effect:
    """What the error of one number does to the step time.

    Attributes
    ----------
    name : str
    share : float
        Share of the step time that is proportional to the number.
    error : float
        Relative error bar of the number.
    source : str
        Where the number comes from.
    """

    name: str
    share: float
    error: float
    source: str

    @property
    def effect(self) -> float:
        """Relative error of the step time from this number alone."""
        return self.share * self.error


@dataclass(frozen=True)
class Uncertainty:
    """The error bar of a step time.

    Attributes
    ----------
    relative : float
        One standard deviation, as a fraction of the step time.
    effects : tuple of Effect
        The numbers that matter, the largest effect first.
    """

    relative: float
    effects: tuple[Effect, ...]


def propagate(
    path: CriticalPath,
    shares: Callable[[int], Mapping[str, float]],
    numbers: Mapping[str, Quantity],
) -> Uncertainty:
    """Combine the error bars of the numbers that a critical path rests on.

    Parameters
    ----------
    path : CriticalPath
    shares : callable
        For the i-th piece of the path, the share of its length that is proportional (directly or
        inversely) to each number, by name.
    numbers : mapping of str to Quantity
        The numbers.

    Returns
    -------
    Uncertainty
    """
    total = int(path.end[-1]) if len(path.end) else 0
    lengths: dict[str, float] = {}
    for piece, length in enumerate((path.end - path.begin).tolist()):
        for name, share in shares(piece).items():
            lengths[name] = lengths.get(name, 0.0) + share * length
    return combine(lengths, total, numbers)


def combine(
    lengths: Mapping[str, float],
    total: int,
    numbers: Mapping[str, Quantity],
    model_error: tuple[str, Quantity] | None = None,
) -> Uncertainty:
    """Combine the error bars of numbers, given how much of a step rests on each.

    Parameters
    ----------
    lengths : mapping of str to float
        In ps, by name of the number.
    total : int
        The step, in ps.
    numbers : mapping of str to Quantity
    model_error : tuple of str and Quantity, optional
        What the model leaves out, as a factor of the whole step: its name, and 1 with the error
        bar that steps which it was not fitted to have shown.
    """
    effects = [
        Effect(name, length / total, numbers[name].error, numbers[name].source)
        for name, length in lengths.items()
        if total and name in numbers and numbers[name].error > 0
    ]
    if total and model_error is not None:
        name, number = model_error
        effects.append(Effect(name, 1.0, number.error, number.source))
    effects.sort(key=lambda each: (-each.effect, each.name))
    relative = math.sqrt(math.fsum(each.effect**2 for each in effects))
    return Uncertainty(relative, tuple(effects))
