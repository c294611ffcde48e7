"""Functions of one number or of an array of them: one formula serves both.

An operation of numpy takes half a microsecond however short the array is, one of Python's floats
a tenth of that. A single kernel is priced with floats, a table of them with arrays; the functions
here go by what they are given, operators do so by themselves. Powers are products and square roots
in the formulas, so that both come to the same last digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = [
    "Functions",
    "Numbers",
    "ceil",
    "expm1",
    "floats",
    "functions",
    "like",
    "log1p",
    "maximum",
    "minimum",
    "some",
    "where",
]

Numbers: TypeAlias = float | np.ndarray
"""A number, or an array of shape (kernels,)."""


def floats(columns: Mapping[str, Any], *names: str) -> list[Any]:
    """Return some of a family's columns as float64: numbers, or arrays where columns are."""
    if isinstance(columns[names[0]], np.ndarray):
        return [np.asarray(columns[name], dtype=float) for name in names]
    return [float(columns[name]) for name in names]


class Functions(NamedTuple):
    """Functions for numbers or for arrays: loops over many terms choose once which they need."""

    ceil: Callable[[Any], Any]
    exp: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    maximum: Callable[[Any, Any], Any]
    least: Callable[[Sequence[Any]], Any]


OF_NUMBERS = Functions(math.ceil, math.exp, math.sqrt, max, min)
OF_ARRAYS = Functions(np.ceil, np.exp, np.sqrt, np.maximum, np.minimum.reduce)


def functions(x: Numbers) -> Functions:
    """Return the functions for what is like `x`."""
    return OF_ARRAYS if isinstance(x, np.ndarray) else OF_NUMBERS


def like(x: Numbers, value: float) -> Numbers:
    """Return a number for each of the kernels of `x`."""
    return np.full(x.shape, value) if isinstance(x, np.ndarray) else value


def ceil(x: Numbers) -> Numbers:
    """Return the least integer not below."""
    return np.ceil(x) if isinstance(x, np.ndarray) else float(math.ceil(x))


def expm1(x: Numbers) -> Numbers:
    """Return exp(x) - 1, all digits of it where x is small."""
    return np.expm1(x) if isinstance(x, np.ndarray) else math.expm1(x)


def log1p(x: Numbers) -> Numbers:
    """Return log(1 + x), all digits of it where x is small."""
    return np.log1p(x) if isinstance(x, np.ndarray) else math.log1p(x)


def maximum(x: Numbers, y: Numbers) -> Numbers:
    """Return the larger."""
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.maximum(x, y)
    return x if x > y else y


def minimum(x: Numbers, y: Numbers) -> Numbers:
    """Return the smaller."""
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.minimum(x, y)
    return x if x < y else y


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return the one where the condition holds and the other elsewhere."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, x, y)
    return x if condition else y


def some(condition: Any) -> bool:
    """Whether the condition holds for any of the kernels."""
    return bool(condition.any() if isinstance(condition, np.ndarray) else condition)
