"""Bandwidths and latencies as text with a unit: ``"25 GB/s"``, ``"400Gb/s"``, ``"1.5us"``."""

from __future__ import annotations

import math
import re

from mpisim.base.errors import InputError, nearest
from mpisim.base.quantity import UNITS

__all__ = ["parse_bandwidth", "parse_latency"]

_AMOUNT = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(\S*)\s*")

MAX_BANDWIDTH = 1e17
"""B/s of a link at most: 64-bit rates hold the sum of dozens of these."""

_BANDWIDTHS = ("B/s", "MB/s", "GB/s", "TB/s", "Gb/s")

_LATENCIES = ("s", "ms", "us", "ns")

_SCALE = UNITS | {"MB/s": 1e6, "ns": 1e-9}


def parse_bandwidth(text: object, where: str) -> float:
    """Text → a bandwidth in bytes per second.

    Parameters
    ----------
    text : object
        A text with a unit, or a number of bytes per second.
    where : str
        Name of the value in messages: ``"net.toml: link 'a->b': 'bandwidth'"``.

    Raises
    ------
    InputError
        If it is none, not above 0, or above `MAX_BANDWIDTH`.
    """
    found = _amount(text, _BANDWIDTHS, "400 Gb/s", where)
    if found > MAX_BANDWIDTH:
        raise InputError(f"{where} is {text!r}; it must be at most {MAX_BANDWIDTH / 1e12:g} TB/s")
    if not found > 0:
        raise InputError(f"{where} is {text!r}; it must be above 0")
    return found


def parse_latency(text: object, where: str) -> float:
    """Text → a latency in seconds; like `parse_bandwidth`, but 0 is allowed.

    Parameters
    ----------
    text : object
        A text with a unit (s, ms, us or ns), or a number of seconds.
    where : str
        Name of the value in messages: ``"net.toml: link 'a->b': 'latency'"``.

    Raises
    ------
    InputError
        If it is none, or below 0.
    """
    found = _amount(text, _LATENCIES, "1.5 us", where)
    if not found >= 0:
        raise InputError(f"{where} is {text!r}; it must be 0 or more")
    return found


def _amount(text: object, units: tuple[str, ...], example: str, where: str) -> float:
    if isinstance(text, int | float) and not isinstance(text, bool) and math.isfinite(text):
        return float(text)
    match = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not math.isfinite(number):
        raise InputError(f'{where} is {text!r}; it must be like "{example}"')
    unit = match[2]
    if not unit:
        raise InputError(f"{where} is {text!r}; it must have a unit: {', '.join(units)}")
    if unit not in units:
        raise InputError(
            f"{where} is {text!r}: unknown unit {unit!r}{nearest(unit, units)}; "
            f"allowed: {', '.join(units)}"
        )
    return number * _SCALE[unit]
