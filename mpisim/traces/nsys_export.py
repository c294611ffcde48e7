"""An Nsight Systems export (SQLite): opening, queries, and checks of the values read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import TraceError
from ..base.quantity import PS_PER_NS
from .kineto import KERNEL, MEMCPY, MEMSET, Arguments, Spans
from .raw import open_text, read_head

__all__ = ["CALLS", "DEVICE_TABLES", "GRAPHS", "Export", "Range", "is_nsys", "opened", "spans"]

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
DEVICE_TABLES = {
    KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
    MEMCPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
    MEMSET: "CUPTI_ACTIVITY_KIND_MEMSET",
}
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
"""Launches of CUDA graphs, each recorded whole: what nsys writes by default, in place of their
kernels, copies and sets (``--cuda-graph-trace=graph``)."""
_MAGIC = b"SQLite format 3\x00"
_MOST_NS = 10**15

Range = tuple[int, int, int, str, Arguments | None]
"""Begin and end in ns, thread, name, arguments."""


def is_nsys(path: Path) -> bool:
    """Whether the head of a file is that of an SQLite database."""
    return read_head(path).startswith(_MAGIC)


class Export:
    """An open export, and what is asked of it in more than one place."""

    def __init__(self, path: Path, connection: sqlite3.Connection, size: int) -> None:
        self.path, self._connection, self.size = path, connection, size
        self.texts: dict[int, str] = {}
        self._columns: dict[str, list[str]] = {}

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query.

        Parameters
        ----------
        query : str
            SQL, with a ``?`` for each value.
        values : sequence

        Returns
        -------
        list of tuple
            All rows, in the query's order.
        """
        return self._connection.execute(query, tuple(values)).fetchall()

    def columns(self, table: str) -> list[str]:
        """Return the columns of a table; none if there is no such table."""
        if table not in self._columns:
            self._columns[table] = [row[1] for row in self.rows(f"PRAGMA table_info({table})")]
        return self._columns[table]

    def has(self, table: str, columns: Sequence[str] = ()) -> bool:
        """Whether a table is there: exports leave out what has no rows.

        Parameters
        ----------
        table : str
        columns : sequence of str
            What it must have if it is there.

        Raises
        ------
        TraceError
            If it has no such columns.
        """
        found = self.columns(table)
        missing = [column for column in columns if column not in found]
        if found and missing:
            raise TraceError(
                f"{self.path}: table {table} has no column {missing[0]!r}; this is export schema "
                f"{self.schema()}, 3.x is read"
            )
        return bool(found)

    def schema(self) -> str:
        """Return the version of the export's schema."""
        if not self.columns("META_DATA_EXPORT"):
            return ""
        query = "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_SCHEMA_VERSION'"
        found = self.rows(query)
        return str(found[0][0]) if found else ""

    def first_time(self, process: int) -> int:
        """Return the earliest time of a process, ns from the begin of the capture."""
        times = []
        device = dict.fromkeys([*DEVICE_TABLES.values(), GRAPHS], "globalPid")
        owners = device | {CALLS: "globalTid"}
        for table, owner in owners.items():
            if self.has(table, ("start", "end", owner)):
                query = f"SELECT min(start) FROM {table} WHERE {owner} >> 24 = ?"
                times += [row[0] for row in self.rows(query, (process,)) if row[0] is not None]
        if not times:
            raise TraceError(f"{self.path}: no GPU kernels of process {process & 0xFFFFFF}")
        return int(min(times))

    def epoch(self) -> int:
        """Return when the capture began, ns since 1970; 0 if the export does not say."""
        table = "TARGET_INFO_SESSION_START_TIME"
        if "utcEpochNs" not in self.columns(table):
            return 0
        found = self.rows(f"SELECT utcEpochNs FROM {table}")
        return int(found[0][0] or 0) if found else 0

    def gpu_name(self) -> str:
        """Return the name of the first GPU; empty if the export does not say."""
        if "name" not in self.columns("TARGET_INFO_GPU"):
            return ""
        found = self.rows("SELECT name FROM TARGET_INFO_GPU ORDER BY 1 LIMIT 1")
        return str(found[0][0]) if found else ""

    def multiprocessors(self) -> dict[int, int]:
        """Return the number of multiprocessors by GPU, where the export says."""
        if not {"id", "smCount"} <= set(self.columns("TARGET_INFO_GPU")):
            return {}
        return dict(self.rows("SELECT id, smCount FROM TARGET_INFO_GPU"))

    def checked(self, table: str, rows: list[Any], first: int) -> list[Any]:
        """Return rows of (start, end, …), after refusing times that cannot be.

        Parameters
        ----------
        table : str
            Where the rows are from, for messages.
        rows : list of tuple
            Start and end in ns from the begin of the capture, then anything.
        first : int
            Earliest time of the process, in ns (`first_time`).

        Returns
        -------
        list of tuple
            `rows` itself.

        Raises
        ------
        TraceError
            Naming the table and the row by its time.
        """
        for row in rows:
            start, end = row[0], row[1]
            if type(start) is not int or type(end) is not int:
                raise TraceError(f"{self.path}: {table}: a time is {start!r} to {end!r}, not ns")
            if end < start or not start - first + _MOST_NS >= 0 or end - first > _MOST_NS:
                raise TraceError(
                    f"{self.path}: {table}: the row from {start} to {end} ns has an impossible time"
                )
        return rows


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Export]:
    """Open an export.

    Raises
    ------
    TraceError
        If it cannot be read, is damaged, or is no Nsight Systems export.
    """
    compressed = read_head(path)[:16] == _MAGIC and path.read_bytes()[:2] == b"\x1f\x8b"
    connection: sqlite3.Connection | None = None
    try:
        if compressed:
            raw = open_text(path)
            connection, size = sqlite3.connect(":memory:"), len(raw)
            connection.deserialize(raw)
        else:
            size = path.stat().st_size
            # Immutable: nothing is written beside the file, which may lie in a read-only folder.
            uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            connection = sqlite3.connect(uri, uri=True)
        connection.text_factory = _text
        export = Export(path, connection, size)
        if not export.schema() or not export.has("StringIds", ("id", "value")):
            raise TraceError(
                f"{path}: an SQLite database, but no export of Nsight Systems "
                "(make one with 'nsys export --type sqlite')"
            )
        for number, text in export.rows("SELECT id, value FROM StringIds"):
            if type(number) is not int or type(text) is not str:
                raise TraceError(f"{path}: table StringIds: {number!r} is {text!r}, not a text")
            export.texts[number] = text
        yield export
    except (sqlite3.Error, OSError, OverflowError) as error:
        raise TraceError(f"{path}: damaged or truncated SQLite file ({error})") from None
    except (TypeError, ValueError) as error:  # a column of SQLite holds values of any type
        raise TraceError(f"{path}: a value is not of its column's type ({error})") from None
    finally:
        if connection is not None:
            connection.close()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def spans(ranges: list[Range], first: int) -> Spans:
    """Return host intervals in order of begin, outer before inner.

    Parameters
    ----------
    ranges : list of Range
        In any order; sorted in place.
    first : int
        What becomes time 0, in ns.

    Returns
    -------
    Spans
        Times in ps since `first`.
    """
    ranges.sort(key=lambda each: (each[0], -each[1]))
    begin = np.array([each[0] for each in ranges], np.int64)
    end = np.array([each[1] for each in ranges], np.int64)
    return Spans(
        name=[each[3] for each in ranges],
        begin=(begin - first) * PS_PER_NS,
        end=(end - first) * PS_PER_NS,
        thread=np.array([each[2] & 0xFFFFFF for each in ranges], np.int32),
        args=[each[4] for each in ranges],
    )
