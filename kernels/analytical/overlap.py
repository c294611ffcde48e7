"""The time of two kinds of work that overlap but for their beginnings and ends.

    time = (first^p + second^p)^(1/p)

The larger p, the more of the shorter is hidden: 4 for arithmetic and memory traffic, which tiles
pipeline (:data:`PIPELINED`); 2 where a thread's work waits for its own loads (:data:`WAITING`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .maths import functions, like

__all__ = ["PIPELINED", "WAITING", "Overlapped", "divided", "each_with", "together"]

WAITING: Literal[2] = 2
PIPELINED: Literal[4] = 4


def together(first: Any, second: Any, power: Literal[2, 4]) -> Any:
    """Return the time of both, in the unit of each; numbers or arrays."""
    a, b = first * first, second * second
    sqrt = functions(a).sqrt
    return sqrt(a + b) if power == WAITING else sqrt(sqrt(a * a + b * b))


def each_with(several: Sequence[Any], second: Any) -> list[Any]:
    """Return the time of each of several together with one and the same, pipelined."""
    sqrt = functions(second).sqrt
    square = second * second
    b = square * square
    return [sqrt(sqrt((a := first * first) * a + b)) for first in several]


def divided(first: Any, second: Any, power: Literal[2, 4]) -> tuple[Any, Any]:
    """Return the time of both as the share of each: those of the powers."""
    a, b = first * first, second * second
    if power == PIPELINED:
        a, b = a * a, b * b
    rate = together(first, second, power) / (a + b)
    return a * rate, b * rate


@dataclass(frozen=True)
class Overlapped:
    """The formula of a family whose time is that of two terms that overlap, and a floor.

    Attributes
    ----------
    parts : callable
        From columns, machine and constants (`FamilyModule.seconds`), the two terms in seconds.
    names : tuple of str
        Of the two.
    power : int
        `PIPELINED` or `WAITING`.
    """

    parts: Callable[..., tuple[Any, Any]]
    names: tuple[str, str]
    power: Literal[2, 4]

    def seconds(self, columns: Any, gpu: Any, constants: Mapping[str, float]) -> Any:
        """Return the duration of each kernel, in seconds."""
        return together(*self.parts(columns, gpu, constants), self.power) + constants["floor"]

    def shares(self, columns: Any, gpu: Any, constants: Mapping[str, float]) -> dict[str, Any]:
        """Return the durations divided into the two terms and ``floor``, in seconds."""
        first, second = divided(*self.parts(columns, gpu, constants), self.power)
        return {
            **dict(zip(self.names, (first, second))),
            "floor": like(first, constants["floor"]),
        }
