"""Measured numbers: a value with its unit, its error bar and where it comes from."""

from __future__ import annotations

from typing import Annotated

from .errors import InputError, nearest
from .frozen import frozen
from .schema import Limits

__all__ = [
    "GIB",
    "J_OF_A_KWH",
    "PICOSECONDS",
    "PS_PER_NS",
    "PS_PER_US",
    "SECONDS_OF_AN_HOUR",
    "SECONDS_OF_A_DAY",
    "UNITS",
    "Z_90",
    "Quantity",
    "picoseconds",
]

GIB = 2**30
"""Bytes in a GiB."""

PICOSECONDS = 1e12
"""Picoseconds in a second."""

PS_PER_US, PS_PER_NS = 1_000_000, 1_000
"""Picoseconds per microsecond and per nanosecond, as integers: trace files count in whole units."""

SECONDS_OF_AN_HOUR, SECONDS_OF_A_DAY = 3600, 86400

J_OF_A_KWH = 3.6e6
"""Joules in a kilowatt-hour."""

Z_90 = 1.645
"""Standard deviations from the middle of a normal distribution to the ends of its 90 % interval."""

UNITS: dict[str, float] = {
    "1": 1.0,
    "FLOP/s": 1.0,
    "TFLOP/s": 1e12,
    "B": 1.0,
    "MB": 1e6,
    "GB": 1e9,
    "B/s": 1.0,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "Gb/s": 1e9 / 8,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "MHz": 1e6,
    "W": 1.0,
}
"""The units data files may use, and how much each is in FLOP, bytes, seconds, hertz and watts.

``Gb/s``, in which network links are sold, counts bits; all else that is data counts bytes.
"""


@frozen
class Quantity:
    """A number of a data file.

    Attributes
    ----------
    value : float
        In `unit`.
    unit : str
        One of `UNITS`; ``"1"`` for a pure number.
    error : float
        Relative error bar: one standard deviation as a fraction of the value.
    source : str
        Where the number comes from.

    Examples
    --------
    >>> Quantity(3.35, "TB/s", 0.0, "datasheet").si
    3350000000000.0
    """

    EXAMPLE = '{ value = 400, unit = "Gb/s", error = 0.1, source = "datasheet" }'

    value: Annotated[float, Limits(least=0)]
    unit: str
    error: Annotated[float, Limits(least=0, most=10)]
    source: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InputError(
                f"unknown unit {self.unit!r}{nearest(self.unit, UNITS)}; "
                f"allowed: {', '.join(UNITS)}"
            )
        if not self.source.strip():
            raise InputError("'source' is empty: say where the number comes from")

    @property
    def si(self) -> float:
        """The value in FLOP, bytes, seconds, hertz or watts."""
        return self.value * UNITS[self.unit]


def picoseconds(seconds: float) -> int:
    """Round seconds to integer picoseconds, the time of the simulation.

    Examples
    --------
    >>> picoseconds(5e-6)
    5000000
    """
    return round(seconds * PICOSECONDS)
