"""The user's own times of operators: exact where one was measured, else interpolated.

A table of comma-separated values, one call a row (docs/operators.md has an example):

    operator,shapes,types,time_us
    aten::mm,8192x4096 4096x16384,bfloat16 bfloat16,1712.4

Tensors among the inputs, those in lists included, are told by sizes and types in their order; what
is no tensor does not count. `time_us` is the time of all kernels of the call. Of repeated rows the
median counts.

A call between two rows is on a straight line in logarithms. The rows may differ from it in one
dimension, wherever that occurs among its sizes (the tokens of an input and of a gradient, say), and
by a factor of `MAX_SIZE_RATIO` from each other, as in :mod:`mpisim.kernels.alternatives.database`,
whose error bars are those of these times, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from ..base.csv_files import CsvRow, read_table
from ..base.errors import InputError, nearest
from ..kernels.alternatives.database import EXACT, INTERPOLATED, MAX_SIZE_RATIO, interpolated
from .call import OperatorCall, TensorSpec
from .collectives import is_collective
from .table import TABLE, rule_of
from .tensors import DTYPES, all_tensors, torch_dtype

__all__ = ["COLUMNS", "MeasuredOperators", "MeasuredTime"]

COLUMNS = ("operator", "shapes", "types", "time_us")

SCALAR = "()"
"""Sizes of a tensor without dimensions."""

_LONGEST = 1e12
"""Microseconds: 11 days."""

Kind = tuple[str, tuple[str, ...], tuple[int, ...]]
"""Operator, types, and numbers of dimensions."""


class MeasuredTime(NamedTuple):
    """The time of a call.

    Attributes
    ----------
    seconds : float
    how : {"exact", "interpolated"}
    error : float
        Relative error bar.
    """

    seconds: float
    how: Literal["exact", "interpolated"]
    error: float


class MeasuredOperators:
    """Times measured on one GPU.

    Parameters
    ----------
    rows : iterable of (OperatorCall, float)
        Calls and their seconds.
    """

    def __init__(self, rows: Iterable[tuple[OperatorCall, float]]) -> None:
        times: dict[Kind, dict[tuple[int, ...], list[float]]] = {}
        for call, seconds in rows:
            kind, sizes = _key(call)
            times.setdefault(kind, {}).setdefault(sizes, []).append(seconds)
        self._times = {
            kind: {sizes: median(found) for sizes, found in of.items()}
            for kind, of in times.items()
        }
        self._found: dict[tuple[Kind, tuple[int, ...]], MeasuredTime | None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._times.values()))

    @classmethod
    def read(cls, path: str | Path) -> MeasuredOperators:
        """Read a table.

        Parameters
        ----------
        path : str or Path

        Raises
        ------
        InputError
            If it cannot be read, a column is missing, or a cell is not as it must be: an operator
            that the table of operators has not, with the nearest that it has.
        """

        def check(headings: list[str]) -> None:
            missing = [name for name in COLUMNS if name not in headings]
            if missing:
                raise InputError(
                    f"{path}, line 1: there is no column {missing[0]!r}"
                    f"{nearest(missing[0], headings)}; there must be {', '.join(COLUMNS)}"
                )

        rows = []
        for line, row in read_table(path, check).rows:
            try:
                rows.append(_read(row))
            except ValueError as error:
                raise InputError(f"{path}, line {line}: {error}") from None
        return cls(rows)

    def find(self, call: OperatorCall) -> MeasuredTime | None:
        """Return the time of a call; None if it was not measured and lies between no two rows."""
        kind, sizes = _key(call)
        of = self._times.get(kind)
        if of is None:
            return None
        if (kind, sizes) not in self._found:
            exact = of.get(sizes)
            self._found[kind, sizes] = (
                _between(of, sizes) if exact is None else MeasuredTime(exact, "exact", EXACT.error)
            )
        return self._found[kind, sizes]


def _key(call: OperatorCall) -> tuple[Kind, tuple[int, ...]]:
    tensors = tuple(all_tensors(call.inputs))
    kind = (
        call.name,
        tuple(each.dtype for each in tensors),
        tuple(len(each.shape) for each in tensors),
    )
    return kind, tuple(n for each in tensors for n in each.shape)


def _between(times: dict[tuple[int, ...], float], sizes: tuple[int, ...]) -> MeasuredTime | None:
    """Interpolate along the dimension whose measured neighbours are nearest.

    Rows are on a line with the call if they differ from it in the same places, and there by one
    factor, so that a dimension may be multiplied with another in one of them.
    """
    lines: dict[tuple[int, ...], dict[float, float]] = {}
    for measured, seconds in times.items():
        places = tuple(i for i, (a, b) in enumerate(zip(measured, sizes)) if a != b)
        if any(measured[i] < 1 or sizes[i] < 1 for i in places):
            continue
        ratio = measured[places[0]] / sizes[places[0]]
        if all(measured[i] * sizes[places[0]] == measured[places[0]] * sizes[i] for i in places):
            lines.setdefault(places, {})[ratio] = seconds
    best: tuple[float, float] | None = None
    for points in lines.values():
        low = max((ratio for ratio in points if ratio < 1), default=None)
        high = min((ratio for ratio in points if ratio > 1), default=None)
        if low is None or high is None or high > MAX_SIZE_RATIO * low:
            continue
        if best is None or high / low < best[0]:
            best = high / low, interpolated(low, points[low], high, points[high], 1.0)
    return None if best is None else MeasuredTime(best[1], "interpolated", INTERPOLATED.error)


def _read(row: CsvRow) -> tuple[OperatorCall, float]:
    """Row → call and seconds."""
    name = row["operator"]
    namespace = name.partition("::")[0]
    known = rule_of(name) is not None and not is_collective(name)
    if not known and ("::" not in name or namespace == "aten"):
        raise row.error(
            "operator", f"an operator as PyTorch's dispatcher names it{nearest(name, TABLE)}"
        )
    shapes, types = row["shapes"].split(), row["types"].split()
    if len(shapes) != len(types):
        raise ValueError(
            f"there are {len(shapes)} shapes and {len(types)} types; there must be one of each for "
            "every tensor"
        )
    tensors = []
    for shape, kind in zip(shapes, types):
        try:
            sizes = () if shape == SCALAR else tuple(int(n) for n in shape.lower().split("x"))
        except ValueError:
            sizes = (-1,)
        if min(sizes, default=0) < 0:
            raise row.error("shapes", f"sizes as 8x16 4 {SCALAR}, a word for each tensor")
        dtype = torch_dtype(kind)
        if dtype is None:
            raise row.error("types", f"types of PyTorch's: no {kind!r}{nearest(kind, DTYPES)}")
        tensors.append(TensorSpec(dtype, sizes))
    time = row.number("time_us")
    if not 0 < time < _LONGEST:
        raise row.error("time_us", "more than 0")
    return OperatorCall(name, tuple(tensors)), time * 1e-6
