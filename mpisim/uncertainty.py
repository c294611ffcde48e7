"""Error bars: how far a predicted step time may be off, given how well its inputs are known.

First order, along the critical path: its pieces sum exactly to the step time, and each rests on a
few numbers that have error bars. If a number is off by a relative error e, all pieces that are
proportional to it change together, so the step time changes by e × their length. Different numbers
are taken as independent: their effects add in squares. A larger error would let another path become
critical; the first order does not see that, nor what the model leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .quantity import Quantity

if TYPE_CHECKING:
    from .engine.run import CriticalPath

__all__ = ["Effect", "Uncertainty", "propagate"]


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
    lengths = (path.end - path.begin).tolist()
    total = int(path.end[-1]) if len(path.end) else 0
    resting: dict[str, float] = {}
    # Many pieces of a step are alike; adding integers first keeps the sums exact.
    alike: dict[tuple[tuple[str, float], ...], int] = {}
    for piece, length in enumerate(lengths):
        key = tuple(sorted(shares(piece).items()))
        alike[key] = alike.get(key, 0) + length
    for key, length in alike.items():
        for name, share in key:
            resting[name] = resting.get(name, 0.0) + share * length
    effects = [
        Effect(name, length / total, numbers[name].error, numbers[name].source)
        for name, length in resting.items()
        if total and numbers[name].error > 0
    ]
    effects.sort(key=lambda each: (-each.effect, each.name))
    relative = math.sqrt(math.fsum(each.effect**2 for each in effects))
    return Uncertainty(relative, tuple(effects))
