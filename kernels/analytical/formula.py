"""Formula of a kernel family: constants, columns, seconds; and the arithmetic that formulas share.

A formula computes the time of one kernel or of many at once from a few constants, which are
dimensionless or seconds, relative to what the datasheet of a GPU says: those fitted on some GPUs
serve others.

**Numbers or arrays.** One formula serves both. An operation of numpy takes half a microsecond
however short the array is, one of Python's floats a tenth of that, so a single kernel is priced
with floats and a table of them with arrays. The functions here go by what they are given, operators
do so by themselves. Powers are products and square roots, so that both come to the same last digit.

**Overlap.** The time of two kinds of work that overlap but for their beginnings and ends is

    time = (first^p + second^p)^(1/p)

The larger p, the more of the shorter is hidden: 4 for arithmetic and memory traffic, which tiles
pipeline (:data:`PIPELINED`); 2 where a thread's work waits for its own loads (:data:`WAITING`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from mpisim.base.frozen import frozen

from ..gpu_parameters import GpuParameters

__all__ = [
    "ANY",
    "PIPELINED",
    "WAITING",
    "Columns",
    "Constant",
    "Constants",
    "Formula",
    "Functions",
    "Numbers",
    "any_of",
    "ceil",
    "columns_as_floats",
    "divided_overlap",
    "expm1",
    "filled_like",
    "functions",
    "log1p",
    "maximum",
    "minimum",
    "overlapped",
    "overlapped_with_each",
    "where",
]

Numbers: TypeAlias = float | np.ndarray
"""A number, or an array of shape (kernels,)."""

Columns = Mapping[str, Any]
"""The numbers of kernels' descriptions: arrays of one length, one row a kernel, or plain numbers of
one kernel; and ``"dtype"``, one text for all of them, where the family has formats."""

Constants = Mapping[str, float]
"""Values of a formula's constants by name."""

ANY = "any"
"""The format of families that have none, and the owner of constants that serve all GPUs."""


# --- formulas -------------------------------------------------------------------------------------


@frozen
class Constant:
    """A number of a formula that is fitted to measurements.

    Attributes
    ----------
    name : str
    start : float
        Where a fit starts, and the value without a calibration: a textbook figure.
    least, most : float
        What is physically possible.
    meaning : str
        In one line, with the unit if it has one.
    """

    name: str
    start: float
    least: float
    most: float
    meaning: str

    def __post_init__(self) -> None:
        if not self.least <= self.start <= self.most or self.least == self.most:
            raise ValueError(f"constant {self.name!r}: {self.least} ≤ {self.start} ≤ {self.most}")


@frozen
class Formula:
    """The formula of a kernel family, or of a variant of one.

    Attributes
    ----------
    name : str
        As the tables of a calibration name it: ``"gemm"``, ``"attention_cudnn"``.
    constants : tuple of Constant
        At most nine.
    columns : callable
        From a kernel to the numbers of its description, as `Columns` of one kernel.
    seconds : callable
        From columns, GPU and constants to the duration of each kernel, in seconds, without a loop
        over rows: float64 of shape (kernels,) where the columns are arrays, a float where they are
        plain numbers; both to the same picosecond.
    shares : callable
        From the same to the durations divided into terms, in seconds: they add up to `seconds`.
        Terms named ``"memory"`` and ``"floor"`` exist in all families.
    stretch : callable, optional
        From columns, GPU, constants and a number of occupied multiprocessors to how many times as
        long the arithmetic takes with these occupied; None where work divides freely.
    power_limited : bool
        Whether its kernels draw so much power that a board with less of it lowers its clock.
    fitted : callable, optional
        As `seconds`, but without parts that have no constant of the fit: constants are fitted to
        this. `seconds` if not given, as by variants that stretch another formula.
    """

    name: str
    constants: tuple[Constant, ...]
    columns: Callable[[Any], dict[str, float | int | str]]
    seconds: Callable[[Columns, GpuParameters, Constants], Any]
    shares: Callable[[Columns, GpuParameters, Constants], dict[str, Any]]
    stretch: Callable[[Columns, GpuParameters, Constants, int], Any] | None = None
    power_limited: bool = False
    fitted: Callable[[Columns, GpuParameters, Constants], Any] | None = None

    @classmethod
    def of_two_terms(
        cls,
        name: str,
        constants: tuple[Constant, ...],
        columns: Callable[[Any], dict[str, float | int | str]],
        terms: Callable[[Columns, GpuParameters, Constants], tuple[Any, Any]],
        names: tuple[str, str],
        power: Literal[2, 4],
        fitted_terms: Callable[[Columns, GpuParameters, Constants], tuple[Any, Any]] | None = None,
        **keys: Any,
    ) -> Formula:
        """Return the formula of two terms that overlap, and the constant ``floor``.

        Parameters
        ----------
        name, constants, columns
            As above.
        terms : callable
            From columns, GPU and constants to the two terms, in seconds.
        names : tuple of str
            Of the two.
        power : int
            `PIPELINED` or `WAITING`.
        fitted_terms : callable, optional
            As `terms`, of `Formula.fitted`.
        **keys
            `stretch` and `power_limited`.
        """

        def seconds_of(
            terms: Callable[[Columns, GpuParameters, Constants], tuple[Any, Any]],
        ) -> Any:
            def seconds(columns: Columns, gpu: GpuParameters, constants: Constants) -> Any:
                return overlapped(*terms(columns, gpu, constants), power) + constants["floor"]

            return seconds

        def shares(columns: Columns, gpu: GpuParameters, constants: Constants) -> dict[str, Any]:
            first, second = divided_overlap(*terms(columns, gpu, constants), power)
            floor = filled_like(first, constants["floor"])
            return {names[0]: first, names[1]: second, "floor": floor}

        fitted = None if fitted_terms is None else seconds_of(fitted_terms)
        return cls(name, constants, columns, seconds_of(terms), shares, fitted=fitted, **keys)


# --- numbers or arrays ----------------------------------------------------------------------------


class Functions(NamedTuple):
    """Functions for numbers or for arrays: loops over many terms choose once which they need."""

    ceil: Callable[[Any], Any]
    exp: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    maximum: Callable[[Any, Any], Any]
    least: Callable[[Sequence[Any]], Any]


SCALAR_FUNCTIONS = Functions(math.ceil, math.exp, math.sqrt, max, min)
ARRAY_FUNCTIONS = Functions(np.ceil, np.exp, np.sqrt, np.maximum, np.minimum.reduce)


def functions(x: Numbers) -> Functions:
    """Return the functions for numbers or arrays, whichever `x` is."""
    return ARRAY_FUNCTIONS if isinstance(x, np.ndarray) else SCALAR_FUNCTIONS


def columns_as_floats(columns: Columns, *names: str) -> list[Any]:
    """Return some columns as float64: plain numbers, or arrays where columns are arrays."""
    if isinstance(columns[names[0]], np.ndarray):
        return [np.asarray(columns[name], dtype=float) for name in names]
    return [float(columns[name]) for name in names]


def filled_like(x: Numbers, value: float) -> Numbers:
    """Return `value` for each of the kernels of `x`.

    Parameters
    ----------
    x : float, or ndarray of shape (kernels,)
        Only its type and shape matter.
    value : float

    Returns
    -------
    float64, shape of `x`; a float if `x` is one
    """
    return np.full(x.shape, value) if isinstance(x, np.ndarray) else value


def ceil(x: Numbers) -> Numbers:
    """Return the smallest integer that is not below `x`, as float."""
    return np.ceil(x) if isinstance(x, np.ndarray) else float(math.ceil(x))


def expm1(x: Numbers) -> Numbers:
    """Return exp(x) - 1, precise where x is small."""
    return np.expm1(x) if isinstance(x, np.ndarray) else math.expm1(x)


def log1p(x: Numbers) -> Numbers:
    """Return log(1 + x), precise where x is small."""
    return np.log1p(x) if isinstance(x, np.ndarray) else math.log1p(x)


def maximum(x: Numbers, y: Numbers) -> Numbers:
    """Return the larger of two.

    Parameters
    ----------
    x, y : float, or ndarray of shape (kernels,)
        Of one unit, which the result has, too; an array goes with a number.
    """
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.maximum(x, y)
    return x if x > y else y


def minimum(x: Numbers, y: Numbers) -> Numbers:
    """Return the smaller of two.

    Parameters
    ----------
    x, y : float, or ndarray of shape (kernels,)
        Of one unit, which the result has, too; an array goes with a number.
    """
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.minimum(x, y)
    return x if x < y else y


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return `x` where the condition holds, `y` elsewhere.

    Parameters
    ----------
    condition : bool, or ndarray of bool of shape (kernels,)
        An array chooses for each kernel, a bool for all.
    x, y : float, or ndarray of shape (kernels,)
        Both are computed before the choice.
    """
    if isinstance(condition, np.ndarray):
        return np.where(condition, x, y)
    return x if condition else y


def any_of(condition: Any) -> bool:
    """Whether the condition holds for any of the kernels."""
    return bool(condition.any() if isinstance(condition, np.ndarray) else condition)


# --- overlap --------------------------------------------------------------------------------------

WAITING: Literal[2] = 2
PIPELINED: Literal[4] = 4


def overlapped(first: Any, second: Any, power: Literal[2, 4]) -> Any:
    """Return the time of two overlapping terms, in their unit.

    Parameters
    ----------
    first, second : float, or ndarray of float64 of shape (kernels,)
    power : int
        `PIPELINED` or `WAITING`.
    """
    a, b = first * first, second * second
    sqrt = functions(a).sqrt
    return sqrt(a + b) if power == WAITING else sqrt(sqrt(a * a + b * b))


def overlapped_with_each(several: Sequence[Any], second: Any) -> list[Any]:
    """Return the times of several alternatives, each pipelined with the same second term.

    Parameters
    ----------
    several : sequence of float, or of ndarrays of float64 of shape (kernels,)
        First terms of the alternatives.
    second : float, or ndarray of float64 of shape (kernels,)
        In their unit.

    Returns
    -------
    list
        A time for each alternative, in that unit, as `overlapped` with `PIPELINED`.
    """
    sqrt = functions(second).sqrt
    square = second * second
    b = square * square
    return [sqrt(sqrt((a := first * first) * a + b)) for first in several]


def divided_overlap(first: Any, second: Any, power: Literal[2, 4]) -> tuple[Any, Any]:
    """Return the time of two overlapping terms divided between them, by the shares of the powers.

    Parameters
    ----------
    first, second, power
        As for `overlapped`.
    """
    a, b = first * first, second * second
    if power == PIPELINED:
        a, b = a * a, b * b
    rate = overlapped(first, second, power) / (a + b)
    return a * rate, b * rate
