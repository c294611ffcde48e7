"""The columns of the report's tables: the one place to change to add a column.

Each table has a row type, with the function that makes its rows from results, and columns:

- ``..._COLUMNS`` for people: a heading, and the function from a row to the text of its cell;
- ``..._KEYS`` for programs (`figures`): a key of the JSON, and the function from a row to its
  value.

A new column is one entry in either or both; a line has `WIDTH` characters, and what a column takes
is cut from the last one, if that is text. ``tests/test_report.py`` compares whole lines, and
docs/results.md has the keys of communications and kernels. Ranks have no ``KEYS``: the JSON holds
every column of `Results.ranks`, so a column added there appears by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..base.rank_ranges import ranges_text
from ..base.text import (
    WIDTH,
    TimeUnit,
    aligned,
    apportioned,
    duration,
    one_line,
    percent,
    quantity,
    rounded,
    shortened,
)
from ..program import Kind, Operation
from ..results import Results
from .kernel_names import short_names

__all__ = [
    "COMMUNICATION_COLUMNS",
    "COMMUNICATION_KEYS",
    "KERNEL_COLUMNS",
    "KERNEL_KEYS",
    "LINK_COLUMNS",
    "RANK_COLUMNS",
    "SLOWEST_COLUMNS",
    "Column",
    "communication_rows",
    "equal_ranks",
    "kernel_rows",
    "link_rows",
    "mean_row",
    "names_cut",
    "rank_row",
    "slowest_first",
    "slowest_rows",
    "table_lines",
]

Row = TypeVar("Row")


@frozen
class Column(Generic[Row]):
    """A column for people.

    Attributes
    ----------
    heading : str
    cell : callable
        Row → text.
    left : bool
        Whether cells are aligned to the left.
    """

    heading: str
    cell: Callable[[Row], str]
    left: bool = False


def table_lines(
    columns: Sequence[Column[Row]], rows: Sequence[Row], *, kernel_names: bool = False
) -> list[str]:
    """Return the lines of a table, headings first, aligned and indented.

    Parameters
    ----------
    columns : sequence of Column
    rows : sequence
        Of what the columns take.
    kernel_names : bool
        Whether the last column has names of kernels, to be shortened so that they still differ. Of
        any other text in the last column the middle is cut out.
    """
    cells = [tuple(column.heading for column in columns)]
    cells += [tuple(column.cell(row) for column in columns) for row in rows]
    if kernel_names:
        cells = names_cut(cells)
    elif columns[-1].left:
        room = _room(cells)
        cells = [(*row[:-1], shortened(row[-1], room, tail=min(16, room // 2))) for row in cells]
    left = [i for i, column in enumerate(columns) if column.left]
    return [f"  {line}" for line in aligned(cells, left=left)]


def names_cut(cells: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Shorten the last column of a table, names of kernels, to what is left of a line."""
    names = short_names([row[-1] for row in cells], _room(cells))
    return [(*row[:-1], name) for row, name in zip(cells, names, strict=True)]


def _room(cells: Sequence[tuple[str, ...]]) -> int:
    """Return the characters that all columns but the last leave of a line: 12 or more."""
    columns = list(zip(*cells, strict=True))[:-1]
    return max(WIDTH - 2 - sum(max(map(len, column)) + 2 for column in columns), 12)


# --- ranks ---------------------------------------------------------------------------------------

BREAKDOWN = ("compute", "exposed_waiting", "exposed_wire", "idle")
"""Columns of `Results.ranks` that add up to the step."""
BESIDE = ("communication", "host_busy", "host_waiting")
"""Columns shown beside the breakdown."""

LONGEST_LABEL = 12
"""Characters of the numbers of equal ranks; of more their number is shown."""


@frozen
class RankRow:
    """The breakdown of one rank, or the mean of all, in last digits of the unit shown."""

    label: str
    unit: TimeUnit
    compute: int
    waiting: int
    wire: int
    idle: int
    communication: int
    host_busy: int
    host_waiting: int


RANK_COLUMNS: tuple[Column[RankRow], ...] = (
    Column("ranks", lambda row: row.label),
    Column("compute", lambda row: row.unit.show(row.compute)),
    Column("exposed =", lambda row: row.unit.show(row.waiting + row.wire)),
    Column("waiting", lambda row: row.unit.show(row.waiting)),
    Column("+ wire", lambda row: row.unit.show(row.wire)),
    Column("idle", lambda row: row.unit.show(row.idle)),
    Column("step", lambda row: row.unit.show(row.compute + row.waiting + row.wire + row.idle)),
    Column("comm. all", lambda row: row.unit.show(row.communication)),
    Column("CPU busy", lambda row: row.unit.show(row.host_busy)),
    Column("CPU waits", lambda row: row.unit.show(row.host_waiting)),
)


def equal_ranks(results: Results) -> list[NDArray[np.int64]]:
    """Return the places of ranks in the results, those of which all times are equal together.

    Groups are in the order of their first ranks.
    """
    columns = [results.ranks[name] for name in (*BREAKDOWN, *BESIDE, "end")]
    order = np.lexsort(columns)  # of equal ones the first comes first
    new = np.ones(len(order), bool)
    new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    groups = np.split(order, np.flatnonzero(new)[1:])
    return sorted(groups, key=lambda group: int(group[0]))


def ranks_label(results: Results, group: NDArray[np.int64]) -> str:
    """Return what equal ranks are called in a table: their numbers, or how many they are.

    Parameters
    ----------
    results : Results
    group : int64
        Places in the results.
    """
    numbers = results.rank_numbers
    text = ranges_text(sorted(numbers[at] for at in group.tolist()))
    return text if len(text) <= LONGEST_LABEL else f"{len(group):,} equal"


def rank_row(results: Results, group: NDArray[np.int64], unit: TimeUnit) -> RankRow:
    """Return the row of equal ranks.

    Parameters
    ----------
    results : Results
    group : int64
        Their places in the results, not their numbers.
    unit : TimeUnit
        What times are shown in.
    """
    values = [int(results.ranks[name][group[0]]) for name in (*BREAKDOWN, *BESIDE)]
    return _rank_row(ranks_label(results, group), values, unit, unit.step)


def mean_row(results: Results, unit: TimeUnit) -> RankRow:
    """Return the row of the mean over all ranks.

    Parameters
    ----------
    results : Results
    unit : TimeUnit
        What times are shown in.
    """
    totals = [_total(results.ranks[name]) for name in (*BREAKDOWN, *BESIDE)]
    return _rank_row("mean", totals, unit, unit.step * results.n_ranks)


def _rank_row(label: str, values: Sequence[int], unit: TimeUnit, step: int) -> RankRow:
    """Round times to `step` ps, those of the breakdown so that they still add up."""
    parts = apportioned(values[: len(BREAKDOWN)], step)
    return RankRow(label, unit, *parts, *(rounded(each, step) for each in values[len(BREAKDOWN) :]))


def _total(values: NDArray[np.int64]) -> int:
    """Return the sum of values, which may be too large for 64 bits."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


@frozen
class SlowRankRow:
    """How long equal ranks would have taken had they never waited for others; times in ps."""

    label: str
    unit: TimeUnit
    own: int
    mean_own: float
    compute: int
    waiting: int
    end: int


SLOWEST_COLUMNS: tuple[Column[SlowRankRow], ...] = (
    Column("ranks", lambda row: row.label),
    Column("own time", lambda row: row.unit.of(row.own)),
    Column(
        "vs mean",
        lambda row: f"{100 * (row.own / row.mean_own - 1):+.1f} %" if row.mean_own else "-",
    ),
    Column("compute", lambda row: row.unit.of(row.compute)),
    Column("exposed waiting", lambda row: row.unit.of(row.waiting)),
    Column("end", lambda row: row.unit.of(row.end)),
)


def slowest_rows(results: Results, unit: TimeUnit, top: int) -> list[SlowRankRow]:
    """Return the rows of the slowest ranks, equal ones once, the slowest first.

    Parameters
    ----------
    results : Results
    unit : TimeUnit
        What times are shown in; the rows have ps.
    top : int
        The most rows to return.
    """
    own, ranks = _own_time(results), results.ranks
    mean = float(own.mean())
    groups = equal_ranks(results)
    return [
        SlowRankRow(
            ranks_label(results, groups[at]),
            unit,
            int(own[groups[at][0]]),
            mean,
            int(ranks["compute"][groups[at][0]]),
            int(ranks["exposed_waiting"][groups[at][0]]),
            int(ranks["end"][groups[at][0]]),
        )
        for at in slowest_first(results, groups)[:top]
    ]


def slowest_first(results: Results, groups: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the places of groups by their own time, then by their compute time, longest first.

    Parameters
    ----------
    results : Results
    groups : sequence of int64 arrays
        Of equal ranks.
    """
    first = np.array([int(group[0]) for group in groups])
    keys = -results.ranks["compute"][first], -_own_time(results)[first]
    order: list[int] = np.lexsort(keys).tolist()
    return order


def _own_time(results: Results) -> NDArray[np.int64]:
    """Return how long each rank would have taken had it never waited for others, in ps."""
    own: NDArray[np.int64] = results.ranks["end"] - results.ranks["exposed_waiting"]
    return own


# --- kernels and copies --------------------------------------------------------------------------


@frozen
class KernelRow:
    """All kernels of one name, over all ranks; times in ps."""

    name: str
    kind: Kind
    count: int
    total: int
    longest: int
    total_of_all: int


KERNEL_COLUMNS: tuple[Column[KernelRow], ...] = (
    Column("total", lambda row: duration(row.total)),
    Column("%", lambda row: percent(row.total, row.total_of_all)),
    Column("count", lambda row: f"{row.count:,}"),
    Column("mean", lambda row: duration(round(row.total / row.count))),
    Column("longest", lambda row: duration(row.longest)),
    Column("name", lambda row: ("copy: " if row.kind == Kind.COPY else "") + row.name, left=True),
)
KERNEL_KEYS: Mapping[str, Callable[[KernelRow], Any]] = {
    "name": lambda row: row.name,
    "kind": lambda row: row.kind.name.lower(),
    "count": lambda row: row.count,
    "total_ps": lambda row: row.total,
    "mean_ps": lambda row: row.total / row.count,
    "longest_ps": lambda row: row.longest,
}


def kernel_rows(results: Results) -> list[KernelRow]:
    """Return the rows of kernels and copies, the longest total first."""
    names = ("name", "kind", "count", "total", "longest")
    columns = [results.kernels[name].tolist() for name in names]
    whole = sum(columns[3])
    return [
        KernelRow(name, Kind(kind), count, total, longest, whole)
        for name, kind, count, total, longest in zip(*columns, strict=True)
    ]


# --- communications ------------------------------------------------------------------------------


@frozen
class CommunicationRow:
    """All operations of one kind on one communicator; times in ps, summed over its ranks."""

    communicator: int
    name: str
    members: tuple[int, ...]
    operation: Operation
    size: int
    """Ranks of the communicator."""
    count: int
    bytes: int
    """Of all operations together; -1 if unknown."""
    wire: int
    waiting: int
    bandwidth: float
    bus_bandwidth: float
    limit: str

    @property
    def posts(self) -> int:
        """Posts of the communications: operations times ranks of the group, 1 at least."""
        return max(self.count * self.size, 1)


COMMUNICATION_COLUMNS: tuple[Column[CommunicationRow], ...] = (
    Column("count", lambda row: f"{row.count:,}"),
    Column(
        "size each",
        lambda row: (
            quantity(row.bytes / max(row.count, 1), "B", 1024) if row.bytes >= 0 else "unknown"
        ),
    ),
    Column("wire each", lambda row: duration(round(row.wire / row.posts))),
    Column("waiting each", lambda row: duration(round(row.waiting / row.posts))),
    Column("bytes/wire", lambda row: _rate(row.bandwidth)),
    Column("busbw", lambda row: _rate(row.bus_bandwidth)),
    Column("ranks", lambda row: str(row.size)),
    Column(
        "operation, communicator",
        lambda row: f"{row.operation.name.lower()}, {one_line(row.name)}",
        left=True,
    ),
)
COMMUNICATION_KEYS: Mapping[str, Callable[[CommunicationRow], Any]] = {
    "communicator": lambda row: row.communicator,
    "name": lambda row: row.name,
    "members": lambda row: list(row.members),
    "operation": lambda row: row.operation.name.lower(),
    "size": lambda row: row.size,
    "count": lambda row: row.count,
    "bytes": lambda row: row.bytes if row.bytes >= 0 else None,
    "wire_ps": lambda row: row.wire,
    "waiting_ps": lambda row: row.waiting,
    "bandwidth": lambda row: row.bandwidth,
    "bus_bandwidth": lambda row: row.bus_bandwidth,
    "limit": lambda row: row.limit or None,
}


def communication_rows(results: Results, top: int | None = None) -> list[CommunicationRow]:
    """Return the rows of communications, the longest first; of the first `top` if given.

    Parameters
    ----------
    results : Results
    top : int, optional
        The most rows to return; all if not given.
    """
    table = {name: column[:top].tolist() for name, column in results.communications.items()}
    groups = results.communicators
    return [
        CommunicationRow(
            communicator=row["communicator"],
            name=groups.names[row["communicator"]],
            members=tuple(groups.group(row["communicator"])),
            operation=Operation(row["operation"]),
            **{name: row[name] for name in _AS_STORED},
        )
        for row in (
            dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)
        )
    ]


_AS_STORED = ("size", "count", "bytes", "wire", "waiting", "bandwidth", "bus_bandwidth", "limit")


def _rate(rate: float) -> str:
    return "-" if math.isnan(rate) else quantity(rate, "B/s")


# --- links ---------------------------------------------------------------------------------------


@frozen
class LinkRow:
    """Links of one kind that communications can fill; times in ps."""

    name: str
    count: int
    capacity: float
    bytes: float
    peak: float
    """Largest utilisation in 1 % of the step."""
    busy: int
    shared: int
    step: int


LINK_COLUMNS: tuple[Column[LinkRow], ...] = (
    Column("count", lambda row: f"{row.count:,}"),
    Column("capacity", lambda row: quantity(row.capacity, "B/s")),
    Column("bytes", lambda row: quantity(row.bytes, "B", 1024)),
    Column(
        "used",
        lambda row: f"{100 * (row.bytes / (row.capacity * max(row.step, 1) * 1e-12)):.1f} %",
    ),
    Column("peak", lambda row: f"{100 * row.peak:.0f} %"),
    Column("busy", lambda row: f"{percent(row.busy, row.step)} %"),
    Column("shared", lambda row: f"{percent(row.shared, row.step)} %"),
    Column("link", lambda row: one_line(row.name), left=True),
)


def link_rows(results: Results, top: int) -> Iterator[LinkRow]:
    """Yield the rows of the first `top` kinds of links.

    Parameters
    ----------
    results : Results
        With its use of links.
    top : int
        The most rows to yield, in the order of the results.
    """
    use = results.links
    columns = {name: use.links[name][:top].tolist() for name in LINK_FIELDS}
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        yield LinkRow(
            **dict(zip(columns, values, strict=True)),
            peak=float(use.utilisation[i].max()),
            step=results.shown_ps,
        )


LINK_FIELDS = ("name", "count", "capacity", "bytes", "busy", "shared")
