"""Calibration file of collectives: numbers by platform, family, architecture, with errors.

The file (``data/calibration/collectives.toml`` comes with the package) has one table an *owner*: a
platform, a family (architecture and kind of fabric), an architecture, or ``any``. A platform that
has no table takes its family's, failing that its architecture's, failing that the one of all
machines.

A table with `behind` is of a user's own platform: it has the numbers of what was measured there,
inside nodes or across them, and leaves all others to the owners that it names (`calibration_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError, nearest
from mpisim.base.files import read_text
from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged
from mpisim.base.quantity import Z_90
from mpisim.base.schema import Limits, build, parse

from ..nccl.shape import REGIMES, Regime

__all__ = [
    "ANY",
    "DEEPEP",
    "FILE",
    "NUMBERS_OF_REGIME",
    "CollectiveCalibration",
    "ErrorBin",
    "MachineCalibration",
    "OwnerCalibration",
    "calibration_of",
    "packaged_calibration",
]

FILE = "calibration/collectives.toml"

NUMBERS_OF_REGIME: dict[Regime, tuple[str, ...]] = {
    "inside": ("bandwidth_inside", "latency_inside"),
    "across": ("bandwidth_across", "latency_across", "latency_bulk"),
}
"""Which numbers of NCCL's form groups of a regime decide."""

ANY = "any"
"""The owner of the numbers of all machines."""

DEEPEP = "deepep"
"""The owner of the numbers of DeepEP's kernels on all machines."""

MIN_STATED_ERROR = 0.02
"""Relative error that is stated at least: repeated runs differ by as much."""


@frozen
class ErrorBin:
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
        `mpisim.topo.collectives.calibrate.error_bins`.
    regime : str
        Whether these are errors of groups ``"inside"`` a node or ``"across"`` nodes; empty: both.
    """

    decade: int
    rows: Annotated[int, Limits(least=1)]
    bias: float
    median: Annotated[float, Limits(least=0)]
    p90: Annotated[float, Limits(least=0)]
    regime: Literal["", "inside", "across"] = ""


@frozen
class OwnerCalibration:
    """Fitted numbers of one owner, with their errors.

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
        Number of curves, and of their rows, that the numbers were fitted to.
    held_out : str
        Whose errors these are: of ``"platforms"`` or of ``"set-ups"`` left out in turn, or those
        of a ``"wider"`` owner.
    errors : tuple of ErrorBin
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
    errors: tuple[ErrorBin, ...]
    behind: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.errors:
            raise InputError("'errors' is empty; it must have at least one decade")
        known = [name for names in NUMBERS_OF_REGIME.values() for name in names]
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

        Parameters
        ----------
        bytes : float64, shape (n,)
            Sizes of the full buffers; less than 1 counts as 1.
        regime : str, optional
            ``"inside"`` a node or ``"across"`` nodes; by default either.

        Returns
        -------
        float64, shape (n,)
            1: as much as the time itself. At least `MIN_STATED_ERROR`.
        """
        found = np.zeros(len(bytes))
        wanted = np.floor(np.log10(np.maximum(bytes, 1.0)))
        for each in REGIMES if regime is None else (regime,):
            own = [bin for bin in self.errors if bin.regime in ("", each)]
            if own:
                decades = np.array([bin.decade for bin in own])
                p90 = np.array([bin.p90 for bin in own])
                nearest = np.abs(wanted[:, None] - decades[None, :]).argmin(axis=1)
                found = np.maximum(found, p90[nearest] / Z_90)
        return np.maximum(found, MIN_STATED_ERROR)


@frozen
class CollectiveCalibration:
    """Fitted numbers by owner: a calibration file.

    Attributes
    ----------
    tables : dict of str to OwnerCalibration
    source : str
        The file.
    """

    tables: dict[str, OwnerCalibration]
    source: str

    @classmethod
    def read(cls, path: str | Path) -> CollectiveCalibration:
        """Read a file of ``mpisim calibrate collectives``.

        Raises
        ------
        InputError
            If it cannot be read or is not as it must be.
        """
        return cls.parse(read_text(path), str(path))

    @classmethod
    def parse(cls, contents: str, source: str) -> CollectiveCalibration:
        """Read the text of such a file; see `read`.

        Parameters
        ----------
        contents : str
            TOML, one table for each owner.
        source : str
            Name of the file, for messages.
        """
        return cls.of_tables(parse(contents, source), source)

    @classmethod
    def of_tables(cls, found: Mapping[str, Any], source: str) -> CollectiveCalibration:
        """Parsed tables of a file → calibration; the tables are not changed.

        Parameters
        ----------
        found : mapping of str to object
            As TOML is parsed; see `parse` for the keys.
        source : str
            Name of the file, for messages.
        """
        tables: dict[str, OwnerCalibration] = {}
        for owner, table in found.items():
            if not isinstance(table, dict):
                raise InputError(f"{source}: key {owner!r} is {table!r}; it must be a table")
            tables[owner] = build(OwnerCalibration, table, source, owner)
        if not tables:
            raise InputError(f"{source}: holds no table of 'mpisim calibrate collectives'")
        return cls(tables, source)

    def text(self) -> str:
        """Return the contents of the file."""
        own = any(table.behind for table in self.tables.values())
        tables = [_table_text(name, each) for name, each in self.tables.items()]
        return "\n".join([HEADER_OF_USERS if own else HEADER, *tables])


@cache
def packaged_calibration() -> CollectiveCalibration:
    """Return the calibration that comes with mpisim."""
    return CollectiveCalibration.of_tables(packaged(FILE), FILE)


HEADER = """\
# What platforms reach beside NCCL's constants, fitted to published measurements. Written by
#     mpisim calibrate collectives
# and read by topo/collectives/calibration.py, which says what each key means. Errors are those of
# platforms or set-ups that a fit did not see, log(predicted / measured), by decade of the size in
# bytes.
"""

HEADER_OF_USERS = """\
# What collectives measured on a platform reach beside NCCL's constants. Written by
#     mpisim calibrate collectives
# What was not measured, inside nodes or across them, is that of the calibration that comes with
# mpisim, of the first of the owners in `behind` that it has. Errors are those of set-ups that a fit
# did not see, log(predicted / measured), by decade of the size in bytes; those of decades and
# set-ups of which there is too little are of that calibration as well.
"""


def _table_text(owner: str, table: OwnerCalibration) -> str:
    numbers = ", ".join(f"{name} = {value!r}" for name, value in table.numbers.items())
    lines = [
        f"[{owner}]",
        f"form = {_quoted(table.form)}",
        f"numbers = {{ {numbers} }}",
        f"source = {_quoted(table.source)}",
        f"files = {_quoted_list(table.files)}",
        f"split = {_quoted(table.split)}",
        f"curves = {table.curves}",
        f"rows = {table.rows}",
        f"held_out = {_quoted(table.held_out)}",
        *([f"behind = {_quoted_list(table.behind)}"] if table.behind else []),
        "errors = [",
        *(
            f"    {{ decade = {each.decade}, rows = {each.rows}, bias = {each.bias!r}, "
            f"median = {each.median!r}, p90 = {each.p90!r}"
            + (f", regime = {_quoted(each.regime)}" if each.regime else "")
            + " },"
            for each in table.errors
        ),
        "]",
        "",
    ]
    return "\n".join(lines)


def _quoted(value: Any) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _quoted_list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, values))}]"


@frozen
class MachineCalibration:
    """The fitted numbers of a machine, with their errors.

    Attributes
    ----------
    numbers : dict of str to float
    tables : dict of str to OwnerCalibration
        By regime.
    sources : dict of str to str
        By regime: the file, and in brackets the owner.
    """

    numbers: dict[str, float]
    tables: Mapping[Regime, OwnerCalibration]
    sources: Mapping[Regime, str]

    def error(
        self, bytes: NDArray[np.float64], regime: Regime | None = None
    ) -> NDArray[np.float64]:
        """Return the relative standard error of times of messages of some sizes.

        Parameters
        ----------
        bytes : float64, shape (n,)
        regime : str, optional
            Whether groups are inside a node or across nodes; the larger error if not given.

        Returns
        -------
        float64, shape (n,)
        """
        regimes = REGIMES if regime is None else (regime,)
        return np.max([self.tables[each].error(bytes, each) for each in regimes], axis=0)


def calibration_of(calibration: CollectiveCalibration, owners: Iterable[str]) -> MachineCalibration:
    """Calibration and owners → the numbers for a machine.

    A user's own platform is taken where the machine names it, and where it is the only one of the
    calibration. What was not measured, inside nodes or across them, is that of the owners behind
    it, or of the machine's own, in the same file where it has them, else in the calibration that
    comes along.

    Parameters
    ----------
    calibration : CollectiveCalibration
    owners : iterable of str
        Of the machine's numbers, the narrowest first: platform, family, architecture, ``"any"``.

    Raises
    ------
    InputError
        If none has a table; if there are several platforms of users and the machine names none; if
        the only one is of another architecture.
    """
    names = list(owners)
    own = user_platform_of(calibration, names)
    wide = {name: table for name, table in calibration.tables.items() if not table.behind}
    chain = [(calibration, own)] if own is not None else []
    behind = calibration.tables[own].behind if own is not None else names
    chain += [(calibration, name) for name in behind if name in wide]
    lacking = [each for each in REGIMES if not any(_covers(*one, each) for one in chain)]
    if lacking and (chain or not wide):
        chain += [
            (packaged_calibration(), name)
            for name in behind
            if name in packaged_calibration().tables
        ]
    tables, sources, numbers = {}, {}, dict[str, float]()
    for regime in REGIMES:
        found = next((one for one in chain if _covers(*one, regime)), None)
        if found is None:
            raise InputError(f"{calibration.source}: has no table for {', '.join(names)}")
        table = tables[regime] = found[0].tables[found[1]]
        sources[regime] = f"{found[0].source} [{found[1]}]"
        others = NUMBERS_OF_REGIME[REGIMES[regime == "inside"]]
        numbers |= {name: value for name, value in table.numbers.items() if name not in others}
    return MachineCalibration(numbers, tables, sources)


def _covers(calibration: CollectiveCalibration, owner: str, regime: Regime) -> bool:
    return calibration.tables[owner].covers(regime)


def user_platform_of(calibration: CollectiveCalibration, owners: Iterable[str]) -> str | None:
    """Calibration, owners → the user's own platform that serves a machine, if one does.

    Parameters
    ----------
    calibration : CollectiveCalibration
    owners : iterable of str
        Of numbers that may serve the machine, the narrowest first.

    Returns
    -------
    str or None
        Its name, a key of ``calibration.tables``.

    Raises
    ------
    InputError
        See `calibration_of`.
    """
    names = list(owners)
    own = {name: table for name, table in calibration.tables.items() if table.behind}
    named = next((name for name in names if name in own), None)
    if named is not None or not own or ANY not in names:  # kernels of another library
        return named
    if len(own) > 1:
        raise InputError(
            f"{calibration.source}: has the platforms {', '.join(own)}, and the cluster is "
            f"{names[0]!r}; name one of them in the cluster's file, [nccl] platform = ..."
        )
    ((name, table),) = own.items()
    arch = names[names.index(ANY) - 1] if ANY in names[1:] else ANY
    if arch not in table.behind:
        raise InputError(
            f"{calibration.source}: the platform {name!r} was measured on "
            f"{_arch(table.behind)!r} GPUs, and the cluster's are {arch!r}; it cannot serve them"
        )
    return name


def _arch(behind: tuple[str, ...]) -> str:
    return behind[-2] if len(behind) > 1 else ANY
