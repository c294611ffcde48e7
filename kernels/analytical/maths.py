"""Functions of one number or of an array of them: one formula serves both.

An operation of numpy takes half a microsecond however short the array is, one of Python's floats
a tenth of that. A single kernel is priced with floats, a table of them with arrays; the functions
here go by what they are given, operators do so by themselves. Powers are products and square roots
in the formulas, so that both come to the same last digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "Numbers",
    "ceil",
    "expm1",
    "floats",
    "like",
    "log1p",
    "maximum",
    "minimum",
    "some",
    "sqrt",
    "where",
]

Numbers: TypeAlias = float | np.ndarray
"""A number, or an array of shape (kernels,)."""


def floats(columns: Mapping[str, Any], *names: str) -> list[Any]:
    """Return some of a family's columns as float64: numbers, or arrays where columns are."""
    found = [columns[name] for name in names]
    if isinstance(found[0], np.ndarray):
        return [np.asarray(each, dtype=float) for each in found]
    return [float(each) for each in found]


def like(x: Numbers, value: float) -> Numbers:
    """Return a number for each of the kernels of `x`."""
    return np.full(x.shape, value) if isinstance(x, np.ndarray) else value


def ceil(x: Numbers) -> Numbers:
    """Return the least integer not below."""
    return np.ceil(x) if isinstance(x, np.ndarray) else float(math.ceil(x))


def sqrt(x: Numbers) -> Numbers:
    """Return the square root."""
    return np.sqrt(x) if isinstance(x, np.ndarray) else math.sqrt(x)


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
