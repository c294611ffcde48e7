"""Calibrations of collectives: numbers by platform, family and architecture, with their errors.

The file (``data/calibration/collectives.toml`` is ours) has one table an owner: a platform, a
family (architecture and kind of fabric), an architecture, or ``any``. A platform that has no table
takes its family's, failing that its architecture's, failing that the one of all machines.

A table with `behind` is of a user's own platform: it has the numbers of what was measured there,
inside nodes or across them, and leaves all others to the owners that it names (`overlay.served`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError, nearest
from mpisim.base.files import read_text
from mpisim.base.schema import Limits, build, parse
from mpisim.base.toml import toml_value
from mpisim.data import text

__all__ = [
    "ANY",
    "FILE",
    "NORMAL",
    "NUMBERS",
    "REGIMES",
    "Bin",
    "Calibration",
    "Regime",
    "Table",
    "ours",
]

FILE = "calibration/collectives.toml"

Regime = Literal["inside", "across"]

REGIMES: tuple[Regime, ...] = ("inside", "across")
"""Where the ranks of a group stand: all on one node, or on several."""

NUMBERS: dict[Regime, tuple[str, ...]] = {
    "inside": ("bandwidth_inside", "latency_inside"),
    "across": ("bandwidth_across", "latency_across", "latency_bulk"),
}
"""Which numbers of NCCL's form groups of a regime decide."""

ANY = "any"
"""The owner of the numbers of all machines."""

NORMAL = 1.645
"""Standard deviations from the middle of a normal distribution to the ends of its 90 % interval."""

_LEAST_ERROR = 0.02
"""Relative error that is stated at least: repeated runs differ by as much."""


@dataclass(frozen=True)
class Bin:
    """Errors of rows that a fit did not see, log(predicted / measured), in one decade of sizes.

    Attributes
    ----------
    decade : int
        Sizes from 10**decade bytes on.
    rows : int
    bias : float
        Median.
    median : float
        Of the absolute errors.
    p90 : float
        Nine tenths of unseen rows of about this size are expected to be off by less; see
        `mpisim.topo.collectives.calibrate.bins`.
    regime : str
        Whether these are errors of groups ``"inside"`` a node or ``"across"`` nodes; empty: both.
    """

    decade: int
    rows: Annotated[int, Limits(least=1)]
    bias: float
    median: Annotated[float, Limits(least=0)]
    p90: Annotated[float, Limits(least=0)]
    regime: Literal["", "inside", "across"] = ""


@dataclass(frozen=True)
class Table:
    """What was fitted for one owner.

    Attributes
    ----------
    form : str
        ``"nccl"``, or ``"deepep"``.
    numbers : dict of str to float
        Of what was measured: without groups inside nodes, or across, those of the other alone.
    source : str
    files : tuple of str
    split : str
        Which half of the curves was fitted: ``"train"``, or ``"all"``.
    curves, rows : int
        That the numbers were fitted to.
    held_out : str
        Whose errors these are: of ``"platforms"`` or of ``"set-ups"`` left out in turn, or those
        of a ``"wider"`` owner.
    errors : tuple of Bin
        Decades of which the owner has no rows are the wider owner's. Where they are told by
        regime, a regime without any was not measured.
    behind : tuple of str
        Of a user's own platform: the owners of what was not measured, the narrowest first.
    """

    form: str
    numbers: dict[str, Annotated[float, Limits(least=0)]]
    source: str
    files: tuple[str, ...]
    split: str
    curves: Annotated[int, Limits(least=1)]
    rows: Annotated[int, Limits(least=1)]
    held_out: str
    errors: tuple[Bin, ...]
    behind: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.errors:
            raise InputError("'errors' is empty; it must have at least one decade")
        known = [name for names in NUMBERS.values() for name in names]
        for name, value in self.numbers.items():
            if name not in known:
                raise InputError(
                    f"unknown key 'numbers.{name}'{nearest(name, known)}; allowed: "
                    f"{', '.join(known)}"
                )
            if not value > 0:
                raise InputError(f"'numbers.{name}' is {value}; it must be above 0")

    def covers(self, regime: Regime) -> bool:
        """Whether it has errors of a regime."""
        return any(each.regime in ("", regime) for each in self.errors)

    def error(
        self, bytes: NDArray[np.float64], regime: Regime | None = None
    ) -> NDArray[np.float64]:
        """Return the relative standard error to state for messages of some sizes.

        The 90 % interval is the one that nine tenths of unseen rows of like size were in. Without a
        regime it is the wider one of the two where they differ.
        """
        found = np.zeros(len(bytes))
        wanted = np.floor(np.log10(np.maximum(bytes, 1.0)))
        for each in REGIMES if regime is None else (regime,):
            own = [bin for bin in self.errors if bin.regime in ("", each)]
            if own:
                decades = np.array([bin.decade for bin in own])
                p90 = np.array([bin.p90 for bin in own])
                nearest = np.abs(wanted[:, None] - decades[None, :]).argmin(axis=1)
                found = np.maximum(found, p90[nearest] / NORMAL)
        return np.maximum(found, _LEAST_ERROR)


@dataclass(frozen=True)
class Calibration:
    """Tables by owner.

    Attributes
    ----------
    tables : dict of str to Table
    source : str
        The file.
    """

    tables: dict[str, Table]
    source: str

    @classmethod
    def read(cls, path: str | Path) -> Calibration:
        """Read a file of ``mpisim calibrate collectives``.

        Raises
        ------
        InputError
            If it cannot be read or is not as it must be.
        """
        return cls.parse(read_text(path), str(path))

    @classmethod
    def parse(cls, contents: str, source: str) -> Calibration:
        """Read the text of such a file; see `read`."""
        tables: dict[str, Table] = {}
        for owner, table in parse(contents, source).items():
            if not isinstance(table, dict):
                raise InputError(f"{source}: key {owner!r} is {table!r}; it must be a table")
            tables[owner] = build(Table, table, source, owner)
        if not tables:
            raise InputError(f"{source}: holds no table of 'mpisim calibrate collectives'")
        return cls(tables, source)

    def served(self, owners: Iterable[str]) -> tuple[str, Table]:
        """Return the owner and the table of the first that has one.

        Parameters
        ----------
        owners : iterable of str
            The narrowest first: platform, family, architecture, ``"any"``.

        Raises
        ------
        InputError
            If none has.
        """
        names = list(owners)
        for owner in names:
            if owner in self.tables:
                return owner, self.tables[owner]
        raise InputError(f"{self.source}: has no table for {', '.join(names)}")

    def text(self) -> str:
        """Return what the file says."""
        own = any(table.behind for table in self.tables.values())
        tables = [_written(name, each) for name, each in self.tables.items()]
        return "\n".join([HEADER_OWN if own else HEADER, *tables])


@cache
def ours() -> Calibration:
    """Return the calibration that comes along."""
    return Calibration.parse(text(FILE), FILE)


HEADER = """\
# What platforms reach beside NCCL's constants, fitted to published measurements. Written by
#     mpisim calibrate collectives
# and read by topo/collectives/calibration.py, which says what each key means. Errors are those of
# platforms or set-ups that a fit did not see, log(predicted / measured), by decade of the size in
# bytes.
"""

HEADER_OWN = """\
# What collectives measured on a platform reach beside NCCL's constants. Written by
#     mpisim calibrate collectives
# What was not measured, inside nodes or across them, is that of the calibration that comes with
# mpisim, of the first of the owners in `behind` that it has. Errors are those of set-ups that a fit
# did not see, log(predicted / measured), by decade of the size in bytes; those of decades and
# set-ups of which there is too little are of that calibration as well.
"""


def _written(owner: str, table: Table) -> str:
    numbers = ", ".join(f"{name} = {value!r}" for name, value in table.numbers.items())
    lines = [
        f"[{owner}]",
        f"form = {toml_value(table.form)}",
        f"numbers = {{ {numbers} }}",
        f"source = {toml_value(table.source)}",
        f"files = {toml_value(table.files)}",
        f"split = {toml_value(table.split)}",
        f"curves = {table.curves}",
        f"rows = {table.rows}",
        f"held_out = {toml_value(table.held_out)}",
        *([f"behind = {toml_value(table.behind)}"] if table.behind else []),
        "errors = [",
        *(
            f"    {{ decade = {each.decade}, rows = {each.rows}, bias = {each.bias!r}, "
            f"median = {each.median!r}, p90 = {each.p90!r}"
            + (f", regime = {toml_value(each.regime)}" if each.regime else "")
            + " },"
            for each in table.errors
        ),
        "]",
        "",
    ]
    return "\n".join(lines)
