"""``mpisim comm``: what each size takes → the table of nccl-tests, and notes below it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..topo.nccl import Choice

__all__ = ["TYPES", "Line", "better_object", "note", "notes", "table"]

TYPES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
}
"""Bytes of an element, by nccl-tests' names."""


class Line(NamedTuple):
    """Row of the table of ``mpisim comm``: time, error, NCCL's choice and bottleneck of one size.

    Attributes
    ----------
    seconds : float
    error : float
        Relative, one standard deviation.
    algorithm, protocol : str
        NCCL's choice; ``-`` where there is none.
    channels : int
    limit : str
        What bounds the time with NCCL's choice held.
    better : (Choice, float), optional
        A choice that is clearly faster than NCCL's, and its seconds.
    """

    seconds: float
    error: float
    algorithm: str
    protocol: str
    channels: int
    limit: str = "-"
    better: tuple[Choice, float] | None = None


def better_object(line: Line) -> dict[str, object] | None:
    """Return the faster algorithm and protocol of a size as a JSON object, or None."""
    if line.better is None:
        return None
    choice, seconds = line.better
    return {
        "algorithm": choice.algorithm,
        "protocol": choice.protocol,
        "seconds": seconds,
        "settings": choice.settings,
    }


def note(library: str) -> str:
    """Name of the library, ``"NCCL"`` or ``"RCCL"`` → what the columns of the table mean."""
    return f"""\
Size: the full buffer, as nccl-tests counts it. algbw: size over time; busbw: algbw times what each
GPU sends over its link in a ring per byte. ±: one standard deviation of the time. limit: what
bounds the time with {library}'s choice held."""


def notes(sizes: list[int], lines: list[Line], library: str) -> list[str]:
    """Sizes and what each takes → notes on ranges where the tuner misses the fastest algorithm.

    Parameters
    ----------
    sizes : list of int
        In bytes, ascending.
    lines : list of Line
        Of each size.
    library : str
        Whose tuner it is: ``"NCCL"`` or ``"RCCL"``.
    """
    notes = []
    for settings, run in groupby(zip(sizes, lines), key=lambda row: _change(row[1])):
        rows = list(run)
        gains = [
            (line.better[1] / line.seconds, size, line, *line.better)
            for size, line in rows
            if line.better
        ]
        if not gains:
            continue
        _, size, line, choice, seconds = min(gains, key=lambda gain: gain[0])
        first, last = rows[0][0], rows[-1][0]
        notes += [
            f"{first} B" + (f" to {last} B" if last > first else "") + f": {library}'s tuner takes "
            f"{line.algorithm} {line.protocol}. By this model {choice.algorithm} {choice.protocol}",
            f"({settings[1]}) takes {seconds * 1e6:.2f} us at {size} B, "
            f"in place of {line.seconds * 1e6:.2f}.",
        ]
    return ["", *notes] if notes else []


def _change(line: Line) -> tuple[str, str]:
    """Return NCCL's choice, and the variables that get a faster one; of none, nothing twice."""
    if line.better is None:
        return "", ""
    settings = " ".join(f"{name}={value}" for name, value in line.better[0].settings.items())
    return f"{line.algorithm} {line.protocol}", settings


def table(sizes: list[int], lines: list[Line], factor: float, kind: str) -> list[str]:
    """Sizes and what each takes → the lines of a table in the form of nccl-tests.

    Parameters
    ----------
    sizes : list of int
        In bytes.
    lines : list of Line
        Of each size.
    factor : float
        Bus bandwidth over algorithm bandwidth (`mpisim.topo.network.bus_factor`).
    kind : str
        One of `TYPES`.
    """
    from ..base.text import aligned

    head = ("size", "count", "type", "time", "±", "algbw", "busbw")
    units = ("(B)", "(elements)", "", "(us)", "(%)", "(GB/s)", "(GB/s)")
    chosen = ("algorithm", "protocol", "channels", "limit")
    rows = [
        (
            str(size),
            str(size // TYPES[kind]),
            kind,
            f"{line.seconds * 1e6:.2f}",
            f"{100 * line.error:.0f}",
            f"{size / line.seconds / 1e9:.2f}",
            f"{size / line.seconds / 1e9 * factor:.2f}",
            line.algorithm,
            line.protocol,
            str(line.channels or "-"),
            line.limit,
        )
        for size, line in zip(sizes, lines)
    ]
    return aligned([(*head, *chosen), (*units, "", "", "", ""), *rows], left=())
