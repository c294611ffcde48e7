"""Program → picture (SVG, PNG, PDF): rows of each table by stream, members of communicators.

Ranks that share a table are shown once. From left to right are the rows of a table in their order,
not in time: one lane for each stream, and one for the CPU where it has rows of its own. Tables of
few rows, and some rows of one rank, are shown row by row, with names and with what each row waits
for; in others each point shows what most rows there are. Below are the communicators: of few ranks
as a matrix, of many by families of names that differ in numbers, with the members of the first of
each.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.kinds import Kind, Phase
from ..base.picture import MOST_INCHES, check_picture, name_text, new_figure, save_picture
from ..base.rank_ranges import ranges_text
from .program import Program
from .table import Table

__all__ = ["draw"]

MAX_TABLES = 16
"""Tables that are shown; the rest is counted."""

MAX_BOXES = 48
"""Rows of a table up to which each gets a box with its name."""

MAX_MATRIX = (64, 48)
"""Ranks and communicators up to which they are shown as a matrix."""

MAX_ROWS = MAX_MATRIX[1]
"""Families of communicators that are shown; the rest is counted."""

MAX_RANKS_SAMPLED = 64
"""Ranks whose membership in families of communicators is shown, at most."""

MAX_LANE_POINTS = 1200
"""Points of a lane, at most."""

LEFT, WIDE, LANE, GAP = 2.9, 10.5, 0.17, 0.16
"""Inches: of the names at the left, of lanes, of a lane, between tables."""

BOX, STEP = 1.08, 1.2
"""Inches: of a row that has a box, and to the next one."""


class _Category(NamedTuple):
    """A category of rows, drawn in one colour."""

    name: str
    colour: str


_CATEGORIES = (
    _Category("kernel", "#8a8f98"),
    _Category("kernel, forward", "#4c8f2f"),
    _Category("kernel, backward", "#2f66b5"),
    _Category("kernel, gradients of weights", "#5aa9d6"),
    _Category("kernel, recomputation", "#a9c95b"),
    _Category("kernel, optimizer", "#7a4fa3"),
    _Category("input of the next step", "#b59f3b"),
    _Category("copy", "#b8b0a0"),
    _Category("collective", "#d9822b"),
    _Category("send", "#c0392b"),
    _Category("receive", "#e58b7b"),
    _Category("CPU work", "#555b66"),
    _Category("CPU waits", "#c9ccd2"),
)
_PALETTE = ("#2f66b5", "#d9822b", "#4c8f2f", "#c0392b", "#7a4fa3", "#5aa9d6", "#a9c95b")
"""Of communicators of a family, one after another."""

_FIRST_OTHER = len(Phase)  # categories of kernels are their phases


def draw(
    program: Program,
    path: str | Path,
    *,
    rank: int | None = None,
    first: int = 0,
    count: int = MAX_BOXES,
    overwrite: bool = False,
) -> None:
    """Program, or a range of rows of one rank → picture file.

    Parameters
    ----------
    program : Program
        With all its tables.
    path : str or Path
        Ends in ``.svg``, ``.png`` or ``.pdf``.
    rank : int, optional
        Draw only rows of this rank.
    first, count : int
        Which: from the first on, so many, but no more than `MAX_BOXES`.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    UsageError
        If the ending is another, or matplotlib is missing.
    OutputError
        If the file cannot be written.
    """
    check_picture("--draw", path, overwrite=overwrite)
    picture = _Picture(program, rank, first, count)
    save_picture(picture.figure, path, picture.title, overwrite=overwrite)


def categories(table: Table) -> NDArray[np.int64]:
    """Return the number of the category of each row of a table, shape (n,)."""
    kind = table.kind.astype(np.int64)
    return np.where(kind == Kind.KERNEL, table.phase, _FIRST_OTHER - 1 + kind)


def lanes(table: Table) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of the lanes of a table, and the lane of each row, shape (n,)."""
    has_host = bool((~table.is_device).any())
    names = ["CPU"] * has_host + [f"stream {s}" for s in range(table.n_streams)]
    return names, np.where(table.is_device, table.stream.astype(np.int64) + has_host, 0)


def families(names: list[str]) -> dict[str, list[int]]:
    """Group names of communicators that differ in numbers alone, in order of appearance."""
    found: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        found.setdefault(re.sub(r"\d+", "#", name), []).append(number)
    return found


class _Picture:
    """The figure of a program: y runs downwards from 0, and the height follows at the end.

    Parameters
    ----------
    program : Program
    rank : int, optional
        Show rows of this rank alone.
    first, count : int
        Which: from the first on, so many.
    """

    def __init__(
        self, program: Program, rank: int | None = None, first: int = 0, count: int = MAX_BOXES
    ) -> None:
        self.program = program
        self.title = program.attributes.get("title", "") or "a program"
        self.rank = rank
        self.shown: list[tuple[int, Table, range]] = []
        if rank is None:
            numbers = [n for n, table in enumerate(program.tables) if table is not None]
            for number in numbers[:MAX_TABLES]:
                table = program.tables[number]
                assert table is not None
                self.shown.append((number, table, range(len(table))))
        else:
            table = program.table_of(rank)
            last = min(len(table), first + min(count, MAX_BOXES))
            self.shown.append((int(program.table[rank]), table, range(min(first, last), last)))
        self.with_boxes = all(len(rows) <= MAX_BOXES for _, _, rows in self.shown)
        longest = max((len(rows) for _, _, rows in self.shown), default=0)
        self.wide = max(WIDE, longest * STEP) if self.with_boxes else WIDE
        self.lane = 0.44 if self.with_boxes else LANE if len(self.shown) <= 8 else LANE * 0.7
        self.families = families([*program.communicators.names])
        most_ranks, most = MAX_MATRIX
        self.by_family = program.n_ranks > most_ranks or len(program.communicators) > most
        self.figure, self.axes = new_figure(LEFT + self.wide + 0.5, 1.0)
        self.patches = import_module("matplotlib.patches")
        self.seen: set[int] = set()
        y = self._head(-0.4)
        for number, table, rows in self.shown:
            y = self._table(number, table, rows, y)
        hidden = len(program.tables) - len(self.shown)
        if hidden and rank is None:
            self._text(0.3, y, f"… {hidden:,} more tables")
            y -= 0.2
        if len(program.communicators) and rank is None:
            y = self._communicators(y - 0.15)
        self._legend(y - 0.3)
        height = min(0.65 - y, MOST_INCHES)
        self.figure.set_size_inches(min(LEFT + self.wide + 0.5, MOST_INCHES), height)
        self.axes.set_xlim(0, LEFT + self.wide + 0.5)
        self.axes.set_ylim(y - 0.65, 0)
        self.axes.set_aspect("auto")

    # --- text -----------------------------------------------------------------------------------

    def _text(self, x: float, y: float, text: str, size: float = 7.5, **more: Any) -> None:
        settings: dict[str, Any] = {"va": "center_baseline", "color": "#333", "parse_math": False}
        self.axes.text(x, y, text, fontsize=size, **(settings | more))

    def _head(self, y: float) -> float:
        program = self.program
        self._text(0.3, y, name_text(self.title, 120), 12, fontweight="bold", color="black")
        counts = (
            f"{_count(program.n_ranks, 'rank')}, {_count(program.n_rows, 'operation')} in all; "
            f"{_count(len(program.tables), 'table')}, each for ranks that do the same; "
            f"{_count(len(program.communicators), 'communicator')}"
        )
        self._text(0.3, y - 0.27, counts)
        how = (
            "a line leads to a row from one that it waits for"
            if self.with_boxes
            else "each point shows what most rows there are"
        )
        legend = f"from left to right: rows in order, not in time; {how}"
        self._text(0.3, y - 0.47, legend, color="#666")
        return y - 0.9

    # --- tables ---------------------------------------------------------------------------------

    def _table(self, number: int, table: Table, rows: range, top: float) -> float:
        ranks = np.flatnonzero(self.program.table == number).tolist()
        title, lines = f"table {number}: {_count(len(ranks), 'rank')}", []
        if self.rank is not None:
            title = f"rank {self.rank}, table {number}"
            last = rows[-1] if rows else rows.start
            lines.append(f"rows {rows.start:,} to {last:,} of {len(table):,}")
        else:
            plural = "s" if len(ranks) != 1 else ""
            lines += [f"rank{plural} {name_text(ranges_text(ranks), 34)}"]
            lines.append(_count(len(table), "row"))
        self._text(0.3, top, title, fontweight="bold")
        lines.append(name_text(table.label, 36))
        names, lane = lanes(table)
        lines = [line for line in lines if line]
        for i, line in enumerate(lines):
            self._text(0.3, top - 0.15 * (i + 1), line, 6.5, color="#555")
        y = top + 0.08
        for i, name in enumerate(names):
            at = y - self.lane * (i + 0.5)
            self._text(LEFT - 0.1, at, name, 6 if self.lane > 0.15 else 5, ha="right", color="#777")
        category = categories(table)
        inside = slice(rows.start, rows.stop)
        self.seen |= set(np.unique(category[inside]).tolist())
        if self.with_boxes:
            self._boxes(table, rows, lane, category, y)
        else:
            self._raster(len(names), lane, category, y)
        return top - max(len(names) * self.lane, 0.15 * (len(lines) + 1)) - GAP

    def _raster(
        self, n_lanes: int, lane: NDArray[np.int64], category: NDArray[np.int64], top: float
    ) -> None:
        """Draw each point of each lane in the colour of the most frequent category there."""
        n = len(lane)
        columns = min(MAX_LANE_POINTS, max(n, 1))
        counts = np.zeros((n_lanes, columns, len(_CATEGORIES)), np.int64)
        np.add.at(counts, (lane, np.arange(n) * columns // max(n, 1), category), 1)
        colours = np.array([_rgb(each.colour) for each in _CATEGORIES])
        image = np.where((counts.sum(axis=2) > 0)[:, :, None], colours[counts.argmax(axis=2)], 242)
        self.axes.imshow(
            image.astype(np.uint8),
            extent=(LEFT, LEFT + self.wide, top - n_lanes * self.lane, top),
            aspect="auto",
            interpolation="nearest",
            origin="upper",
        )
        for i in range(n_lanes + 1):
            at = top - i * self.lane
            self.axes.plot([LEFT, LEFT + self.wide], [at, at], color="white", linewidth=1.2)

    def _boxes(
        self,
        table: Table,
        rows: range,
        lane: NDArray[np.int64],
        category: NDArray[np.int64],
        top: float,
    ) -> None:
        """Draw rows one by one, and what each waits for."""
        xs = LEFT + (np.arange(len(table)) - rows.start) * STEP
        ys = top - (lane + 0.5) * self.lane
        for i in range(int(lane.max(initial=-1)) + 1):
            y = top - (i + 0.5) * self.lane
            end = LEFT + len(rows) * STEP
            self.axes.plot([LEFT, end], [y, y], color="#e4e6ea", linewidth=1, zorder=0)
        for row in rows:
            waits = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()
            for before in waits:
                if before >= rows.start:
                    self._arrow((xs[before] + BOX, ys[before]), (xs[row], ys[row]))
                else:  # of a row that is not shown
                    self._arrow((LEFT - 0.08, ys[before]), (xs[row], ys[row]))
            self._rounded(xs[row], ys[row] - 0.12, BOX, 0.24, _CATEGORIES[category[row]].colour)
            name = name_text(self.program.names[table.name[row]], 24)
            colour = _CATEGORIES[category[row]].colour
            ink = "white" if sum(_rgb(colour)) < 500 else "#333"
            self._text(xs[row] + BOX / 2, ys[row], name, 5.5, ha="center", color=ink, zorder=4)
            if table.slot[row] >= 0:
                self._text(
                    xs[row] + BOX / 2, ys[row] - 0.18, self._partners(table, row), 4.8,
                    ha="center", color="#555", zorder=4,
                )  # fmt: skip

    def _partners(self, table: Table, row: int) -> str:
        """Communicator of a communication, as the first rank of the table has it."""
        ranks = np.flatnonzero(self.program.table == self._number(table))
        if not len(ranks):
            return ""
        rank = int(ranks[0]) if self.rank is None else self.rank
        communicator = int(self.program.slots_of(rank)[table.slot[row]])
        return name_text(str(self.program.communicators.names[communicator]), 26)

    def _number(self, table: Table) -> int:
        return next(number for number, each, _ in self.shown if each is table)

    def _rounded(self, x: float, y: float, wide: float, high: float, colour: str) -> None:
        self.axes.add_patch(
            self.patches.FancyBboxPatch(
                (x, y),
                wide,
                high,
                boxstyle="round,pad=0,rounding_size=0.04",
                facecolor=colour,
                edgecolor="white",
                linewidth=0.5,
                zorder=3,
            )
        )

    def _arrow(self, a: tuple[float, float], b: tuple[float, float]) -> None:
        bend = -0.25 if a[1] == b[1] else 0.0
        self.axes.add_patch(
            self.patches.FancyArrowPatch(
                a,
                b,
                arrowstyle="-|>",
                mutation_scale=6,
                connectionstyle=f"arc3,rad={bend}",
                color="#444",
                linewidth=0.8,
                shrinkA=0,
                shrinkB=0,
                zorder=2,
            )
        )

    # --- communicators --------------------------------------------------------------------------

    def _communicators(self, y: float) -> float:
        program = self.program
        shown = min(program.n_ranks, MAX_RANKS_SAMPLED if self.by_family else MAX_MATRIX[0])
        title = "Communicators"
        if self.by_family:
            more = f" of the first {shown} ranks" if shown < program.n_ranks else ""
            legend = f"of each family, by colour, the one that each{more} is in; grey: none"
        else:
            legend = "filled: the rank is a member"
        self._text(0.3, y, title, 9, fontweight="bold", color="black")
        self._text(LEFT, y, legend, color="#666")
        y -= 0.32
        cell = min(0.16, (self.wide - 3.2) / shown)
        step = max(1, int(np.ceil(0.32 / cell / 4)) * 4) if shown > 8 else 1
        for rank in range(0, shown, step):
            self._text(
                LEFT + (rank + 0.5) * cell, y + 0.02, str(rank), 5.5, ha="center", color="#777"
            )
        y -= 0.2
        rows = self._rows()
        for name, members_of, text in rows[:MAX_ROWS]:
            self._text(LEFT - 0.1, y, name_text(name, 40), 6.5, ha="right")
            self._cells(y, cell, shown, members_of)
            self._text(LEFT + shown * cell + 0.15, y, name_text(text, 64), 6.5, color="#555")
            y -= 0.24
        if len(rows) > MAX_ROWS:
            self._text(LEFT, y, f"… {len(rows) - MAX_ROWS:,} more families", 6.5)
            y -= 0.24
        return y

    def _rows(self) -> list[tuple[str, list[int], str]]:
        """Rows of the matrix: name, communicators, and members in words."""
        groups = self.program.communicators
        if not self.by_family:
            return [
                (str(name), [c], _members(groups.group(c))) for c, name in enumerate(groups.names)
            ]
        found = []
        for family, numbers in self.families.items():
            sizes = groups.sizes[numbers]
            size = f"{sizes.min():,}" if sizes.min() == sizes.max() else "several sizes"
            text = f"{len(numbers):,} of {size}; first: {_members(groups.group(numbers[0]))}"
            found.append((family.replace("#", "…"), numbers, text))
        return found

    def _cells(self, y: float, cell: float, shown: int, numbers: list[int]) -> None:
        groups = self.program.communicators
        which = np.full(shown, -1)
        for i, number in enumerate(numbers):
            members = groups.members[groups.index[number] : groups.index[number + 1]]
            which[members[members < shown]] = i
        for rank, i in enumerate(which.tolist()):
            self.axes.add_patch(
                self.patches.Rectangle(
                    (LEFT + rank * cell, y - 0.08),
                    cell * 0.92,
                    0.17,
                    facecolor="#f0f1f3" if i < 0 else _PALETTE[i % len(_PALETTE)],
                    linewidth=0,
                )
            )

    def _legend(self, y: float) -> None:
        x = 0.3
        for number in sorted(self.seen):
            category = _CATEGORIES[number]
            self._rounded(x, y - 0.07, 0.22, 0.16, category.colour)
            self._text(x + 0.3, y, category.name, 7)
            x += 0.55 + 0.072 * len(category.name)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _members(members: tuple[int, ...]) -> str:
    """Members of a communicator → text, in their order where that says more than ranges."""
    if list(members) == list(range(members[0], members[0] + len(members))):
        return ranges_text(list(members))
    first = ", ".join(map(str, members[:6]))
    return first + (", …" if len(members) > 6 else "")


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
