"""A valid file and a few numbers → the same file, damaged: bytes, numbers, keys, rows, types."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import error as zlib_error

import h5py
import numpy as np
from hypothesis import strategies as st

__all__ = ["Mutation", "mutate", "mutations"]

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63 - 1,
    2**63,
    2**70,
    -(2**63),
    1e308,
    -1e308,
    1e-320,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "nan",
    "-1",
    "1e999",
    "\x00",
    "é",
    "a" * 300,
    [],
    [1],
    [[]],
    {},
    {"a": 1},
)
"""What stands in the place of a value."""

WORDS = tuple(
    word.encode()
    for word in (
        "NaN",
        "nan",
        "-1",
        "0",
        "1e308",
        "-1e308",
        "inf",
        "99999999999999999999999",
        "1e-400",
        "",
        "x",
        '"',
        "'",
        "[",
        "{",
        "}",
        "\n",
        ",",
        ",,",
        "=",
        "\x00",
        "\ufeff",
        "é",
        "two",
        "0x10",
        "1_000",
        "true",
        "null",
        "[" * 3000,
        '{"a":' * 3000,
        "9" * 5000,
    )
)
"""What stands in the place of bytes or of a number in a text."""

UNCHANGED = (
    sqlite3.Error,
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
)
"""What says that a file was damaged before, or that a value cannot stand there."""

NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")
WORD = re.compile(rb"[A-Za-z_][\w.-]*")


class Mutation(NamedTuple):
    """One damage: its kind, where (0 to 1 of the file), how far, and which value comes in."""

    kind: str
    at: float
    length: int
    value: int


def mutations(path: Path) -> st.SearchStrategy[list[Mutation]]:
    """Draw up to three damages of the kinds that a file can have."""
    kinds = ["bytes", "cut", "delete", "double", "flip"]
    content = _plain(path)
    if content.startswith(b"SQLite"):
        kinds += ["cell"] * 8 + ["table"]
    elif content.startswith(b"\x89HDF"):
        kinds += ["dataset"] * 6 + ["attribute"] * 3
    elif not content.startswith(b"\x89") and b"\x00" not in content[:1000]:
        kinds += ["number"] * 4 + ["word"] * 2 + ["row"] * 3
        if content.lstrip()[:1] in (b"{", b"["):
            kinds += ["json"] * 8
    places = st.floats(0, 1, exclude_max=True, width=32)
    kind = st.sampled_from(kinds)
    one = st.builds(Mutation, kind, places, st.integers(0, 40), st.integers(0, 999))
    return st.lists(one, min_size=1, max_size=3)


def mutate(path: Path, damages: list[Mutation]) -> None:
    """Damage a file in place."""
    for damage in damages:
        if damage.kind in ("cell", "table", "dataset", "attribute"):
            change = {"cell": _cell, "table": _table}.get(damage.kind, _hdf5)
            with contextlib.suppress(*UNCHANGED):
                change(path, damage)
            continue
        packed = path.suffix == ".gz" and damage.kind != "flip"
        content = _plain(path) if packed else path.read_bytes()
        content = BY_KIND[damage.kind](content, damage)
        path.write_bytes(gzip.compress(content, 1, mtime=0) if packed else content)


def _plain(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, ValueError, zlib_error):
        return content


# --- bytes and texts ------------------------------------------------------------------------------


def _span(content: bytes, damage: Mutation) -> tuple[int, int]:
    begin = int(damage.at * len(content))
    return begin, min(begin + damage.length, len(content))


def _replaced(content: bytes, damage: Mutation) -> bytes:
    begin, end = _span(content, damage)
    return content[:begin] + WORDS[damage.value % len(WORDS)] + content[end:]


def _doubled(content: bytes, damage: Mutation) -> bytes:
    begin, end = _span(content, damage)
    return content[:end] + content[begin:end] + content[end:]


def _deleted(content: bytes, damage: Mutation) -> bytes:
    begin, end = _span(content, damage)
    return content[:begin] + content[end:]


def _flipped(content: bytes, damage: Mutation) -> bytes:
    if not content:
        return content
    at = int(damage.at * len(content))
    return content[:at] + bytes([content[at] ^ (1 + damage.value % 255)]) + content[at + 1 :]


def _matched(pattern: re.Pattern[bytes]) -> Callable[[bytes, Mutation], bytes]:
    def change(content: bytes, damage: Mutation) -> bytes:
        found = list(pattern.finditer(content))
        if not found:
            return content
        match = found[int(damage.at * len(found))]
        word = WORDS[damage.value % len(WORDS)]
        return content[: match.start()] + word + content[match.end() :]

    return change


def _row(content: bytes, damage: Mutation) -> bytes:
    """Take a line away, or repeat one elsewhere, or end one early."""
    lines = content.split(b"\n")
    at = int(damage.at * len(lines))
    if damage.value % 3 == 0:
        del lines[at]
    elif damage.value % 3 == 1:
        lines.insert(damage.length % (len(lines) + 1), lines[at])
    else:
        lines[at] = lines[at][: len(lines[at]) // 2]
    return b"\n".join(lines)


def _json(content: bytes, damage: Mutation) -> bytes:
    """Put another value in the place of one, take it away, or wrap it."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return content
    places = list(_places(data))
    if not places:
        return content
    within, key = places[int(damage.at * len(places))]
    how = damage.length % 4
    if how == 0:
        del within[key]
    elif how == 1:
        within[key] = [within[key]]
    else:
        within[key] = VALUES[damage.value % len(VALUES)]
    return json.dumps(data).encode()


def _places(data: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth < 50 and isinstance(data, dict | list):
        for key in list(data) if isinstance(data, dict) else range(len(data)):
            yield data, key
            yield from _places(data[key], depth + 1)


BY_KIND = {
    "bytes": _replaced,
    "double": _doubled,
    "delete": _deleted,
    "cut": lambda content, damage: content[: int(damage.at * len(content))],
    "flip": _flipped,
    "number": _matched(NUMBER),
    "word": _matched(WORD),
    "row": _row,
    "json": _json,
}


# --- databases and HDF5 ---------------------------------------------------------------------------


def _tables(file: sqlite3.Connection) -> list[str]:
    rows = file.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in rows]


def _cell(path: Path, damage: Mutation) -> None:
    value = VALUES[damage.value % len(VALUES)]
    if isinstance(value, list | dict):
        value = b"\xff\x00"
    file = sqlite3.connect(path)
    try:
        tables = _tables(file)
        table = tables[int(damage.at * len(tables))]
        columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
        column = columns[damage.length % len(columns)]
        which = f"WHERE rowid % 2 = {damage.value % 2}" if damage.value % 3 else ""
        file.execute(f"UPDATE {table} SET {column} = ? {which}", (value,))
        file.commit()
    finally:
        file.close()


def _table(path: Path, damage: Mutation) -> None:
    file = sqlite3.connect(path)
    try:
        tables = _tables(file)
        file.execute(f"DROP TABLE {tables[int(damage.at * len(tables))]}")
        file.commit()
    finally:
        file.close()


MAX_SIZE = 10**7
"""Elements of a dataset that is damaged as a whole: these fit into memory."""


def _hdf5(path: Path, damage: Mutation) -> None:
    """Change a number, a shape or a type, or take a dataset or an attribute away."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        if damage.kind == "attribute":
            owners = [file[name] for name in [".", *names] if len(file[name].attrs)]
            owner = owners[int(damage.at * len(owners))]
            key = sorted(owner.attrs)[damage.length % len(owner.attrs)]
            value = VALUES[damage.value % len(VALUES)]
            if value is None:
                del owner.attrs[key]
            else:
                owner.attrs[key] = str(value) if isinstance(value, dict) else value
            return
        datasets = [name for name in names if isinstance(file[name], h5py.Dataset)]
        name = datasets[int(damage.at * len(datasets))]
        dataset = file[name]
        if dataset.size > MAX_SIZE:  # made by an earlier damage
            return
        how = damage.length % 6
        if how == 0:
            del file[name]
        elif how == 1:
            dtype = np.float64 if dataset.dtype.kind in "iu" else np.int8
            attributes = dict(dataset.attrs)
            del file[name]
            new = file.create_dataset(name, data=np.zeros(dataset.shape or (1,), dtype))
            new.attrs.update(attributes)
        elif how == 2:
            attributes, dtype = dict(dataset.attrs), dataset.dtype
            del file[name]
            shape = [(0,), (2, 2), (10**12,), ()][damage.value % 4]
            chunks = (1 << 16,) if shape == (10**12,) else None
            new = file.create_dataset(name, shape, dtype, chunks=chunks)
            new.attrs.update(attributes)
        elif dataset.size:
            value = VALUES[damage.value % len(VALUES)]
            index = int(damage.length / 41 * dataset.size)
            if dataset.ndim == 0:
                dataset[()] = value
            elif how == 3:
                dataset[...] = value
            else:
                dataset[np.unravel_index(index, dataset.shape)] = value
