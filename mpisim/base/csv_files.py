"""Tables of comma-separated values, read and written: a line of headings, then rows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from .errors import InputError, nearest
from .files import read_text, write_whole

__all__ = ["CsvRow", "CsvTable", "parse_table", "read_table", "write_table"]

T = TypeVar("T")
Check: TypeAlias = Callable[[list[str]], object]

OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class CsvRow(Mapping[str, str]):
    """A row: texts by heading. A cell that is not of the type asked for raises `ValueError`.

    Its message names the column, what it holds, and what it may hold; whoever reads the table puts
    the file and the line in front.
    """

    def __init__(self, cells: dict[str, str]) -> None:
        self._cells = cells

    def __getitem__(self, column: str) -> str:
        return self._cells[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def error(self, column: str, expected: str) -> ValueError:
        """Return the error that a cell is not what it must be.

        Parameters
        ----------
        column : str
            A heading of the table.
        expected : str
            What the cell must be, to follow "it must be".
        """
        return ValueError(f"column {column!r} is {self[column][:60]!r}; it must be {expected}")

    def whole(self, column: str) -> int:
        """Return a whole number."""
        try:
            return int(self[column])
        except ValueError:
            raise self.error(column, "a whole number") from None

    def number(self, column: str) -> float:
        """Return a finite number."""
        try:
            value = float(self[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(column, "a number")
        return value

    def choice(self, column: str, values: Mapping[str, T]) -> T:
        """Return the value of `values` for the name in a cell.

        Parameters
        ----------
        column : str
            A heading of the table.
        values : mapping of str
            The allowed names; any other is a `ValueError`, which lists them.
        """
        text = self[column]
        if text not in values:
            names = ", ".join(values)
            raise self.error(column, f"one of {names}{nearest(text, values)}")
        return values[text]


class CsvTable(NamedTuple):
    """Headings, and rows with the numbers of their lines; the headings are in line 1."""

    headings: list[str]
    rows: list[tuple[int, CsvRow]]


def read_table(path: str | Path, check: Check | None = None) -> CsvTable:
    """Read a file of comma-separated values in UTF-8; see `parse_table`.

    Parameters
    ----------
    path : str or Path
    check : callable, optional
        Refuses headings, before a row is looked at.

    Raises
    ------
    InputError
        If it cannot be read or is no such table, naming the line.
    """
    return parse_table(read_text(path), path, check)


def parse_table(contents: str, path: str | Path, check: Check | None = None) -> CsvTable:
    """Read the text of a file of comma-separated values; blank lines are left out.

    Parameters
    ----------
    contents : str
    path : str or Path
        Of the file, for messages.
    check : callable, optional
        Refuses headings, before a row is looked at.

    Raises
    ------
    InputError
        If it is empty, has no rows, has a heading twice, or a row has too many or too few cells.
    """
    reader = csv.reader(io.StringIO(contents, newline=""), skipinitialspace=True, strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: not comma-separated values: {error}"
        ) from error
    if not lines:
        raise InputError(f"{path}: the file is empty; it must have a line of headings and rows")
    headings = [heading.strip() for heading in lines[0][1]]
    if len(headings) == 1:
        for separator, name in OTHER_SEPARATORS.items():
            if separator in headings[0]:
                raise InputError(f"{path}: cells are separated by {name}; they must be by commas")
    for heading in headings:
        if heading and headings.count(heading) > 1:
            raise InputError(f"{path}, line {lines[0][0]}: there are two columns {heading!r}")
    if check is not None:
        check(headings)
    if len(lines) == 1:
        raise InputError(f"{path}: has headings, but no rows")
    rows = []
    for line, cells in lines[1:]:
        if len(cells) != len(headings):
            raise InputError(
                f"{path}, line {line}: has {len(cells)} cells; there are {len(headings)} headings"
            )
        texts = {name: cell.strip() for name, cell in zip(headings, cells, strict=True)}
        rows.append((line, CsvRow(texts)))
    return CsvTable(headings, rows)


def write_table(
    path: str | Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    overwrite: bool = False,
) -> None:
    """Headings and rows → a CSV file, which appears whole or not at all.

    Parameters
    ----------
    path : str or Path
    columns : sequence of str
        Headings.
    rows : iterable of sequence
        A value for each column.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left behind.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    with write_whole(path, overwrite=overwrite) as file:
        file.write(text.getvalue().encode())
