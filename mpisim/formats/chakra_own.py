"""Chakra traces that `write_chakra` wrote → the same program, to the picosecond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import InputError, ProgramError
from ..program import COLUMNS as TABLE_COLUMNS
from ..program import Communicators, Program, Table
from .chakra_likeness import TraceNodes
from .chakra_schema import COLUMNS, PREFIX, VERSION, attributes

__all__ = ["is_own", "read_own"]

Trace = tuple[Path, TraceNodes]
"""A file: its path and what is in it."""

_LIMITS = {column: np.iinfo(dtype) for column, dtype in TABLE_COLUMNS.items()}
_RANGES = {column: (int(each.min), int(each.max)) for column, each in _LIMITS.items()}
"""The lowest and the highest number that a column holds."""


def is_own(metadata: Any) -> bool:
    """Whether `write_chakra` wrote a file with this metadata."""
    return any(attribute.name == f"{PREFIX}version" for attribute in metadata.attr)


def read_own(traces: Sequence[Trace]) -> Program:
    """Return the program of a whole set of files.

    Parameters
    ----------
    traces : sequence of (path, nodes)

    Raises
    ------
    InputError
        If files are missing, of different programs, of a newer version, or changed in a way that
        makes no program.
    """
    facts = [_Facts(path, attributes(trace.metadata)) for path, trace in traces]
    order = _in_order(facts)
    first = facts[order[0]]
    names = first.texts("names")
    number: dict[str, int] = {}
    for i, text in enumerate(names):
        number.setdefault(text, i)
    tables: list[Table | None] = []
    index: list[int] = []
    seen: set[tuple[int, bytes, int, int, str]] = set()
    for at in order:
        key = _table_key(facts[at], traces[at][1])
        if key is not None and key in seen:
            index.append(key[0])
            continue
        table = _table(facts[at], traces[at][1].nodes, number)
        position = facts[at].whole("table")
        if not 0 <= position < len(traces):
            raise InputError(
                f"{facts[at].path}: {PREFIX}table is {position}; there are fewer ranks"
            )
        tables += [None] * (position + 1 - len(tables))
        held = tables[position]
        if held is None:
            tables[position] = table
        elif not _equal(held, table):
            raise InputError(
                f"{facts[at].path}: this rank should do the same as the others of its table "
                f"({table.label!r}), but its nodes differ"
            )
        index.append(position)
        if key is not None:
            seen.add(key)
    missing = next((i for i, table in enumerate(tables) if table is None), -1)
    if missing >= 0:
        raise InputError(f"{first.path}: no file holds table {missing}")
    slots = [facts[at].wholes("slots") for at in order]
    keys, values = first.texts("attribute_keys"), first.texts("attribute_values")
    with _about(first.path):
        return Program(
            names=tuple(names),
            tables=tuple(tables),
            communicators=Communicators(
                np.array(first.wholes("communicator_index"), np.int64),
                np.array(first.wholes("communicator_members"), np.int32),
                tuple(first.texts("communicators")),
            ),
            table=np.array(index, np.int32),
            slot_index=np.concatenate([[0], np.cumsum([len(own) for own in slots])]),
            slots=np.array([c for own in slots for c in own], np.int32),
            speed=np.array([facts[at].number("speed") for at in order]),
            start=np.array([facts[at].whole("start") for at in order], np.int64),
            attributes=dict(zip(keys, values)),
        )


class _Facts:
    """The attributes of one file's metadata."""

    def __init__(self, path: Path, found: Mapping[str, Any]) -> None:
        self.path, self._found = path, found

    def _get(self, name: str, kind: type) -> Any:
        value = self._found.get(PREFIX + name)
        if not isinstance(value, kind):
            raise InputError(
                f"{self.path}: the metadata's {PREFIX}{name} is missing or of a wrong type"
            )
        return value

    def whole(self, name: str) -> int:
        """Return a whole number that fits 64 bits."""
        return int(self._get(name, int))

    def number(self, name: str) -> float:
        """Return a number."""
        return float(self._get(name, float))

    def text(self, name: str) -> str:
        """Return a text."""
        return str(self._get(name, str))

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        return self._list(name, str)

    def wholes(self, name: str) -> list[int]:
        """Return a list of whole numbers of at most 32 bits."""
        found = self._list(name, int)
        if any(not -(2**31) <= value < 2**31 for value in found):
            raise InputError(f"{self.path}: {PREFIX}{name} holds a number beyond 32 bits")
        return found

    def _list(self, name: str, kind: type) -> list[Any]:
        found = self._get(name, list)
        if any(not isinstance(value, kind) for value in found):
            raise InputError(f"{self.path}: {PREFIX}{name} holds values of a wrong type")
        return list(found)


def _in_order(files: Sequence[_Facts]) -> list[int]:
    """Return the files in order of rank, after refusing a set that is not whole."""
    of_rank: dict[int, int] = {}
    n_ranks = files[0].whole("n_ranks")
    for at, facts in enumerate(files):
        version = facts.whole("version")
        if not 1 <= version <= VERSION:
            raise InputError(
                f"{facts.path}: {PREFIX}version is {version}; this mpisim reads up to {VERSION}"
            )
        if facts.whole("n_ranks") != n_ranks:
            raise InputError(
                f"{facts.path}: from a program of {facts.whole('n_ranks')} ranks, but "
                f"{files[0].path} is from one of {n_ranks}"
            )
        rank = facts.whole("rank")
        if rank in of_rank:
            raise InputError(
                f"{facts.path}: rank {rank} is already given by {files[of_rank[rank]].path}"
            )
        of_rank[rank] = at
    if len(of_rank) != n_ranks or set(of_rank) != set(range(n_ranks)):
        absent = next((r for r in range(len(of_rank) + 1) if r not in of_rank), 0)
        raise InputError(
            f"{files[0].path.parent}: {len(of_rank)} of {n_ranks} ranks are here; "
            f"rank {absent} is missing"
        )
    return [of_rank[rank] for rank in range(n_ranks)]


def _table_key(facts: _Facts, trace: TraceNodes) -> tuple[int, bytes, int, int, str] | None:
    """Return what is equal in files that hold the same table; None where only reading tells."""
    content = trace.content
    if content is None:
        return None
    whole = (facts.whole("rows"), facts.whole("queue_depth"))
    return facts.whole("table"), content, *whole, facts.text("label")


def _table(facts: _Facts, nodes: Sequence[Any], number: Mapping[str, int]) -> Table:
    """Return the table of one file: nodes with a kind are its rows."""
    columns: dict[str, list[int]] = {column: [] for column in TABLE_COLUMNS}
    awaited: list[int] = []
    index = [0]
    for place, node in enumerate(nodes):
        found = attributes(node)
        if f"{PREFIX}kind" not in found:
            continue
        where = f"{facts.path}: node {place}"
        if node.name not in number:
            raise InputError(f"{where}: the name {node.name!r} is not one of the program's")
        row = {c: found.get(PREFIX + c, default) for c, default in COLUMNS.items()}
        row["name"] = found.get(f"{PREFIX}name", number[node.name])
        row["stream"] = found.get("stream", -1)
        for column, value in row.items():
            least, most = _RANGES[column]
            if not isinstance(value, int) or not least <= value <= most:
                raise InputError(
                    f"{where}: {column} is {value!r}; it must be a whole number from {least} "
                    f"to {most}"
                )
            columns[column].append(value)
        waits = found.get(f"{PREFIX}waits", [])
        if not isinstance(waits, list) or any(
            not isinstance(w, int) or not 0 <= w < len(columns["kind"]) for w in waits
        ):
            raise InputError(f"{where}: {PREFIX}waits must name earlier rows")
        awaited += waits
        index.append(len(awaited))
    rows = facts.whole("rows")
    if len(columns["kind"]) != rows:
        raise InputError(
            f"{facts.path}: {len(columns['kind'])} rows are here, {rows} were written; "
            "the file is truncated"
        )
    with _about(facts.path):
        arrays: dict[str, Any] = {
            column: np.array(values, TABLE_COLUMNS[column]) for column, values in columns.items()
        }
        return Table(
            **arrays,
            wait_index=np.array(index, np.int64),
            wait_row=np.array(awaited, np.int32),
            queue_depth=facts.whole("queue_depth"),
            label=facts.text("label"),
        )


def _equal(a: Table, b: Table) -> bool:
    """Whether two tables say the same."""
    columns = (*TABLE_COLUMNS, "wait_index", "wait_row")
    return (
        a.queue_depth == b.queue_depth
        and a.label == b.label
        and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)
    )


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Name the file in the errors of its program."""
    try:
        yield
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from error
