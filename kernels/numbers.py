"""Empirical numbers of the kernel models that no calibration fits: ``kernel_numbers.toml``.

The data file holds each number with its unit, error bar and source, and says where it was read off
one GPU or quotes rows that errors are published for. Modules bind the numbers they use when they
are imported: ``NAME = number("name")``.
"""

from __future__ import annotations

from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

__all__ = ["number", "quantity"]

FILE = "calibration/kernel_numbers.toml"


def quantity(name: str) -> Quantity:
    """Name of a number → the number with its error bar and source."""
    return build(Quantity, packaged(FILE)[name], FILE, name)


def number(name: str) -> float:
    """Name of a number → its value in SI units.

    Examples
    --------
    >>> number("power_exponent")
    2.8
    """
    return quantity(name).si
