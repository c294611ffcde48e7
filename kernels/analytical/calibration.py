"""Fitted constants: which serve a GPU and a format, and how far off they were found to be.

The file holds a table for each family, GPU and format, ``[gemm.a100-sxm.fp16]``, for each family,
architecture and format, ``[gemm.ampere.fp16]``, and for all GPUs together, ``[gemm.any.fp16]``.
``mpisim calibrate kernels`` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from mpisim.base.errors import InputError, nearest
from mpisim.base.files import read_text
from mpisim.base.presets import packaged
from mpisim.base.schema import Limits, build, parse
from mpisim.data import text

from ..gpu import FILE as PRESETS
from ..gpu import find_gpu
from .family import ANY, MODULES, Constant, load
from .machine import Machine
from .stand_ins import (
    COMPUTE,
    ELSEWHERE,
    INSTEAD,
    KIN,
    OTHER_FORMAT,
    OTHER_GPU,
    SAME_UNITS,
    STRANGER,
    SUBSTITUTES,
    TEXTBOOK,
    same_units,
)

__all__ = ["Bin", "Calibration", "Served", "Table", "decade", "packaged_calibration"]

FILE = "calibration/kernels.toml"

NORMAL = 1.645
"""Standard deviations within which nine tenths of a normal distribution lie."""

HeldOut = Literal["shapes", "runs", "GPUs"]
SHAPES: HeldOut = "shapes"
RUNS: HeldOut = "runs"
GPUS: HeldOut = "GPUs"
"""What was held out to find errors."""

FEWEST = 20
"""Rows that a bin of errors needs to be believed by itself."""

Positive = Annotated[float, Limits(least=0)]


@dataclass(frozen=True)
class Bin:
    """Errors of rows that were not fitted to, log(predicted / measured).

    Attributes
    ----------
    decade : int
        Rows predicted to take 10^decade s to ten times that.
    rows : int
    bias : float
        Median.
    sd : float
        Standard deviation.
    median, p90 : float
        Of the absolute values.
    """

    decade: int
    rows: Annotated[int, Limits(least=1)]
    bias: float
    sd: Positive
    median: Positive
    p90: Positive


@dataclass(frozen=True)
class Table:
    """One table of the file.

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
    errors : tuple of Bin
        By size.
    """

    source: str
    files: tuple[str, ...]
    gpus: tuple[str, ...]
    splits: tuple[str, ...]
    rows: int
    held_out: HeldOut
    constants: dict[str, float]
    errors: tuple[Bin, ...]
    launch: Positive = 0.0
    growth: Positive = 0.0

    def error(self, seconds: float) -> float:
        """Return the relative standard error of a prediction.

        A normal distribution of this width has nine tenths of its values where nine tenths of the
        held-out rows were; outliers beyond do not widen it.
        """
        at = decade(seconds)
        believed = [each for each in self.errors if each.rows >= FEWEST]
        if not believed:
            return self.largest_error
        near = min(believed, key=lambda each: (abs(each.decade - at), -each.rows))
        return near.p90 / NORMAL

    @property
    def largest_error(self) -> float:
        """The relative standard error of the decade that is foretold worst."""
        believed = [each for each in self.errors if each.rows >= FEWEST] or self.errors
        return max(each.p90 for each in believed) / NORMAL


def decade(seconds: float) -> int:
    """Return the power of ten at or below a duration."""
    return math.floor(math.log10(seconds))


@dataclass(frozen=True)
class Served:
    """What serves a family on a GPU in a format.

    Attributes
    ----------
    constants : mapping of str to float
    table : Table, optional
        None: textbook values.
    name : str
        Of the table, ``"gemm.ampere.fp16"``, or ``"textbook"``.
    borrowed : bool
        Whether the GPU itself, or the format, was not measured.
    added : float
        Relative error to add, in squares, to the table's.
    """

    constants: Mapping[str, float]
    table: Table | None
    name: str
    borrowed: bool
    added: float = 0.0

    @property
    def launch(self) -> float:
        """CPU time in the measured times, in seconds."""
        return self.table.launch if self.table else 0.0

    @property
    def growth(self) -> float:
        """By how much it grew in the course of the author's run, in seconds."""
        return self.table.growth if self.table else 0.0

    def error(self, seconds: float) -> float:
        """Return the relative standard error of a prediction."""
        return math.hypot(self.table.error(seconds) if self.table else 0.0, self.added)

    @property
    def largest_error(self) -> float:
        """The relative standard error of the decade that is foretold worst."""
        return math.hypot(self.table.largest_error if self.table else 0.0, self.added)

    @property
    def source(self) -> str:
        """Where the constants come from, in a line."""
        if self.table is None:
            return "textbook values: no kernel of the family was measured"
        borrowed = ", borrowed" if self.borrowed else ""
        return f"[{self.name}]{borrowed}: fit to {self.table.rows:,} kernels, {self.table.source}"


@dataclass(frozen=True)
class Calibration:
    """All tables of a file, by (family, GPU or architecture or ``"any"``, format)."""

    tables: Mapping[tuple[str, str, str], Table] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Calibration:
        """Read a file.

        Raises
        ------
        InputError
            If it cannot be read or is not a calibration, naming the key.
        """
        return cls.parse(read_text(path), str(path))

    @classmethod
    def parse(cls, contents: str, source: str) -> Calibration:
        """Read the text of a file; `source` is its name, for messages."""
        families = sorted(set(MODULES.values()))
        tables = {}
        for family, by_gpu in parse(contents, source).items():
            if family not in families:
                raise InputError(
                    f"{source}: unknown family {family!r}{nearest(family, families)}; "
                    f"allowed: {', '.join(families)}"
                )
            for gpu, by_dtype in _tables(by_gpu, source, family).items():
                for dtype, values in _tables(by_dtype, source, f"{family}.{gpu}").items():
                    where = f"{family}.{gpu}.{dtype}"
                    table = build(Table, values, source, where)
                    _check(table, load(family).CONSTANTS, f"{source}: [{where}]")
                    tables[family, gpu, dtype] = table
        if not tables:
            raise InputError(f"{source}: holds no table of 'mpisim calibrate kernels'")
        return cls(tables)

    def serve(self, family: str, gpu: Machine, dtype: str) -> Served:
        """Return the constants for a family on a GPU.

        The GPU's own come first, then those of another board with its chip, then its
        architecture's and those of its kin, then those of all GPUs; and the same again for the
        formats that may stand in. A family of `SUBSTITUTES` that has no table down to its
        architecture's has those of another family, and so has one of `ELSEWHERE` in a format in
        which it has no table at all.
        """
        substitute = SUBSTITUTES.get(family)
        if substitute is not None and not self._measured(family, gpu, dtype):
            return self._borrowed(*substitute, gpu, dtype)
        elsewhere = ELSEWHERE.get(family)
        if elsewhere is not None and not self._known(family, dtype):
            return self._borrowed(*elsewhere, gpu, dtype)
        throttling = _throttling(gpu) if family in COMPUTE else 0.0
        related = {gpu.family, *KIN.get(gpu.family, ())}
        for other in INSTEAD[dtype]:
            boards = self._boards(family, gpu, other)
            for owner in (gpu.name, *boards, gpu.family, *KIN.get(gpu.family, ()), ANY):
                table = self.tables.get((family, owner, other))
                if table is not None:
                    alike = other == dtype or {other, dtype} <= SAME_UNITS
                    alone = owner != gpu.name and table.held_out != GPUS
                    return Served(
                        table.constants,
                        table,
                        f"{family}.{owner}.{other}",
                        borrowed=owner != gpu.name or not alike,
                        added=math.hypot(
                            OTHER_FORMAT * (not alike),
                            OTHER_GPU * alone,
                            STRANGER * (not related & _families(table)),
                            throttling,
                        ),
                    )
        constants = {each.name: each.start for each in load(family).CONSTANTS}
        added = math.hypot(TEXTBOOK, throttling)
        return Served(constants, None, "textbook", borrowed=True, added=added)

    def _borrowed(self, family: str, error: float, gpu: Machine, dtype: str) -> Served:
        """Return what serves a family, for another that it stands in for."""
        found = self.serve(family, gpu, dtype)
        return replace(found, borrowed=True, added=math.hypot(found.added, error))

    def _known(self, family: str, dtype: str) -> bool:
        """Whether a family has constants in a format for any GPU."""
        formats = same_units(dtype)
        return any(kind == family and other in formats for kind, _, other in self.tables)

    def _measured(self, family: str, gpu: Machine, dtype: str) -> bool:
        """Whether a family has constants for a GPU, its chip or its architecture."""
        return any(
            (family, owner, each) in self.tables
            for each in same_units(dtype)
            for owner in (gpu.name, gpu.family, *self._boards(family, gpu, each))
        )

    def _boards(self, family: str, gpu: Machine, dtype: str) -> list[str]:
        """Return measured GPUs with the chip of this one, nearest memory bandwidth first."""
        presets = packaged(PRESETS)
        machines = [
            _machine(owner)
            for kind, owner, other in self.tables
            if (kind, other) == (family, dtype)
            and presets.get(owner, {}).get("family") == gpu.family
        ]
        same = [each for each in machines if each.chip == gpu.chip]
        same.sort(key=lambda each: (abs(math.log(each.bandwidth / gpu.bandwidth)), each.name))
        return [each.name for each in same]


@cache
def _machine(gpu: str) -> Machine:
    return Machine.of(find_gpu(gpu))


def _throttling(gpu: Machine) -> float:
    """Return the relative standard error of a board whose power holds its clock down.

    Where between the clock that its power sustains and the boost clock it runs is a matter of its
    temperature, its cooling and its chip (arXiv:2208.11035 finds equal boards up to 22 % apart;
    NeuSight's large products ran at 0.37 of a T4's peak in one run and at 0.49 in another): the
    standard deviation of a logarithm that may be anywhere between the two.
    """
    return math.log(1 / gpu.sustained) / math.sqrt(12)


def _families(table: Table) -> set[str]:
    """Return the architectures of the GPUs that a table was fitted to."""
    presets = packaged(PRESETS)
    return {presets[name]["family"] for name in table.gpus if name in presets}


def _tables(found: Any, source: str, key: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InputError(f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]")
    return found


def _check(table: Table, constants: tuple[Constant, ...], where: str) -> None:
    """Refuse constants that the family's formula does not have, lacks, or cannot take."""
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
def packaged_calibration() -> Calibration:
    """Return our own calibration."""
    return Calibration.parse(text(FILE), FILE)
