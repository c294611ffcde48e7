"""Rows of ``run_scripts/collect_gpu.py``: kernels with their descriptions as columns.

A row names a description of :mod:`mpisim.kernels.operations` by its ``family`` and holds its
numbers in columns of their names; those that the family does not have are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mpisim.base.errors import InputError, nearest

from . import operations
from .operations import Kernel

__all__ = ["COLUMNS", "description"]

COLUMNS = ("gpu", "family", "operation", "median_us", "repeats")
"""By which such a table is known."""

KINDS: dict[str, type[Kernel]] = {
    each.family: each
    for each in vars(operations).values()
    if isinstance(each, type)
    and issubclass(each, Kernel)
    and each not in (Kernel, operations.Counted)  # no kernel in particular
}


def description(row: Mapping[str, str]) -> Kernel:
    """Return the kernel that a row describes.

    Raises
    ------
    InputError
        If the family is none, or a number is missing or not as it must be.
    """
    family = row["family"]
    if family not in KINDS:
        raise InputError(
            f"unknown family {family!r}{nearest(family, KINDS)}; allowed: {', '.join(KINDS)}"
        )
    kind = KINDS[family]
    hints = get_type_hints(kind)
    given = {
        each.name: _value(row[each.name], hints[each.name], each.name)
        for each in fields(kind)
        if row.get(each.name)
    }
    missing = [
        each.name for each in fields(kind) if each.default is MISSING and each.name not in given
    ]
    if missing:
        raise InputError(f"{', '.join(missing)} of a {family} kernel: empty")
    return kind(**given)


def _value(text: str, hint: Any, name: str) -> Any:
    """Return a cell as its description has it: a truth value, a word of some, a whole number."""
    if hint is bool:
        if text not in ("0", "1"):
            raise InputError(f"{name} is {text!r}; it must be 0 or 1")
        return text == "1"
    if get_origin(hint) is Literal:
        words = get_args(hint)
        if text not in words:
            raise InputError(
                f"{name} is {text!r}{nearest(text, words)}; allowed: {', '.join(words)}"
            )
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} is {text!r}; it must be a whole number") from None
