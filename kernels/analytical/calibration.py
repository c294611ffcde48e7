"""Calibration file: fitted constants by formula, owner and format, with the errors of unseen rows.

The file holds a table for each formula, GPU and format, ``[gemm.h100-sxm.fp16]``, for each formula,
architecture and format, ``[gemm.ampere.fp16]``, and for all GPUs together, ``[gemm.any.fp16]``.
``mpisim calibrate kernels`` writes it. :mod:`.lookup` chooses the table for a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from mpisim.base.errors import InputError, nearest
from mpisim.base.files import read_text
from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged
from mpisim.base.quantity import Z_90
from mpisim.base.schema import Limits, build, parse

from ..numbers import number
from .families import FORMULAS
from .formula import Constant

__all__ = [
    "ErrorBin",
    "FittedConstants",
    "KernelCalibration",
    "decade_of",
    "packaged_calibration",
]

FILE = "calibration/kernels.toml"

HeldOut = Literal["shapes", "runs", "GPUs"]
HELD_OUT_SHAPES: HeldOut = "shapes"
HELD_OUT_RUNS: HeldOut = "runs"
HELD_OUT_GPUS: HeldOut = "GPUs"
"""What cross-validation leaves out at a time: rows of some shapes, whole runs, or whole GPUs."""

MIN_BIN_ROWS = 20
"""Rows that a bin of errors needs to be used by itself."""

SHARED_BY_RUN = number("shared_kernel_error")

NonNegative = Annotated[float, Limits(least=0)]


@frozen
class ErrorBin:
    """Errors of rows that were not fitted to, log(predicted / measured), of one decade of duration.

    Attributes
    ----------
    decade : int
        Rows predicted to take 10^decade s to ten times that.
    rows : int
    bias : float
        Median.
    sd : float
        Of the normal distribution about the bias that has as wide an interval of nine tenths.
    median, p90 : float
        Of the absolute values.
    """

    decade: int
    rows: Annotated[int, Limits(least=1)]
    bias: float
    sd: NonNegative
    median: NonNegative
    p90: NonNegative


@frozen
class FittedConstants:
    """One table of the file: constants fitted to measured kernels, and their errors.

    Attributes
    ----------
    source : str
        Who measured.
    files, gpus, splits : tuple of str
        The rows that were fitted to.
    rows : int
        How many there were.
    held_out : str
        What was left out at a time to find the errors: ``"shapes"``; ``"runs"``, an author's
        measurements of one go; or ``"GPUs"``, which says how far off a GPU may be that was not
        measured.
    launch : float
        Seconds of CPU time in the measured times, for comparing with them.
    growth : float
        Seconds by which it grew in the course of the author's run.
    constants : dict of str to float
    errors : tuple of ErrorBin
        By decade.
    """

    source: str
    files: tuple[str, ...]
    gpus: tuple[str, ...]
    splits: tuple[str, ...]
    rows: int
    held_out: HeldOut
    constants: dict[str, float]
    errors: tuple[ErrorBin, ...]
    launch: NonNegative = 0.0
    growth: NonNegative = 0.0

    def error(self, seconds: float) -> float:
        """Return the relative standard error of a prediction.

        A normal distribution of this width has nine tenths of its values where nine tenths of the
        held-out rows were; outliers beyond do not widen it.
        """
        return self._bin(seconds).p90 / Z_90

    def own_share(self, seconds: float) -> float:
        """Return the share of the error's variance that a kernel does not share with others.

        The bias of a bin is what a whole board is off by: all kernels share it. Of the spread about
        it kernels of one run share a part (`shared_kernel_error`).
        """
        found = self._bin(seconds)
        variance = found.sd**2 + found.bias**2
        return (1 - SHARED_BY_RUN) * found.sd**2 / variance if variance else 0.0

    @property
    def largest_error(self) -> float:
        """The relative standard error of the decade that is predicted worst."""
        return max(each.p90 for each in self._usable) / Z_90

    def _bin(self, seconds: float) -> ErrorBin:
        """Return the bin of a duration, or the nearest that has rows enough."""
        at = decade_of(seconds)
        return min(self._usable, key=lambda each: (abs(each.decade - at), -each.rows))

    @property
    def _usable(self) -> Sequence[ErrorBin]:
        """The bins of enough rows; if none has, all of them as one: few rows tell no decades."""
        usable = [each for each in self.errors if each.rows >= MIN_BIN_ROWS]
        return usable or (_together(self.errors),)


def _together(bins: Sequence[ErrorBin]) -> ErrorBin:
    """Return bins as one, in the decade of most rows: each number in the root mean square.

    Of the bias this is the size: a board that is off by turns is off.
    """
    rows = sum(each.rows for each in bins)

    def squares(name: str) -> float:
        return math.sqrt(math.fsum(each.rows * getattr(each, name) ** 2 for each in bins) / rows)

    most = max(bins, key=lambda each: each.rows)
    numbers = (squares(name) for name in ("bias", "sd", "median", "p90"))
    return ErrorBin(most.decade, rows, *numbers)


def decade_of(seconds: float) -> int:
    """Return the power of ten at or below a duration."""
    return math.floor(math.log10(seconds))


@frozen
class KernelCalibration:
    """All tables of a file, by (formula, GPU or architecture or ``"any"``, format)."""

    tables: Mapping[tuple[str, str, str], FittedConstants] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> KernelCalibration:
        """Read a file.

        Raises
        ------
        InputError
            If it cannot be read or is not a calibration, naming the key.
        """
        return cls.parse(read_text(path), str(path))

    @classmethod
    def parse(cls, contents: str, source: str) -> KernelCalibration:
        """Read the text of a file; `source` is its name, for messages.

        Parameters
        ----------
        contents : str
            TOML, a table for each ``family.gpu.dtype``; at least one.
        source : str
        """
        return cls.of_tables(parse(contents, source), source)

    @classmethod
    def of_tables(cls, found: Mapping[str, Any], source: str) -> KernelCalibration:
        """Parsed tables of a file → calibration; the tables are not changed.

        Parameters
        ----------
        found : mapping of str to object
            As TOML is parsed; see `parse` for the keys.
        source : str
            Name of the file, for messages.
        """
        return cls(dict(_Tables(found, source)))


class _Tables(Mapping[tuple[str, str, str], FittedConstants]):
    """The tables of a file, each read when it is asked for.

    Of those that come with mpisim a run needs one in twenty; to read them all takes 4 ms.
    """

    def __init__(self, found: Mapping[str, Any], source: str) -> None:
        families = sorted(FORMULAS)
        self._source = source
        self._values: dict[tuple[str, str, str], Any] = {}
        self._read: dict[tuple[str, str, str], FittedConstants] = {}
        for family, by_gpu in found.items():
            if family not in families:
                raise InputError(
                    f"{source}: unknown family {family!r}{nearest(family, families)}; "
                    f"allowed: {', '.join(families)}"
                )
            for gpu, by_dtype in _tables(by_gpu, source, family).items():
                for dtype, values in _tables(by_dtype, source, f"{family}.{gpu}").items():
                    self._values[family, gpu, dtype] = values
        if not self._values:
            raise InputError(f"{source}: holds no table of 'mpisim calibrate kernels'")

    def __getitem__(self, key: tuple[str, str, str]) -> FittedConstants:
        if key not in self._read:
            where = ".".join(key)
            table = build(FittedConstants, self._values[key], self._source, where)
            _check(table, FORMULAS[key[0]].constants, f"{self._source}: [{where}]")
            self._read[key] = table
        return self._read[key]

    def __contains__(self, key: object) -> bool:  # Mapping's own would read the table
        return key in self._values

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _tables(found: Any, source: str, key: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InputError(f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]")
    return found


def _check(table: FittedConstants, constants: tuple[Constant, ...], where: str) -> None:
    """Refuse unknown, missing and impossible constants, and a table without errors."""
    known = {each.name: each for each in constants}
    for name, value in table.constants.items():
        if name not in known:
            raise InputError(
                f"{where} unknown constant {name!r}{nearest(name, known)}; "
                f"allowed: {', '.join(known)}"
            )
        least, most = known[name].least, known[name].most
        if not least <= value <= most:
            raise InputError(f"{where} {name} is {value}; it must be from {least} to {most}")
    for name in known:
        if name not in table.constants:
            raise InputError(f"{where} constant {name!r} is missing")
    if not table.errors:
        raise InputError(f"{where} 'errors' is empty; at least one bin is needed")


@cache
def packaged_calibration() -> KernelCalibration:
    """Return the calibration that comes with mpisim."""
    return KernelCalibration(_Tables(packaged(FILE), FILE))
