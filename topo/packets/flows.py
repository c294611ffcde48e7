"""Rows of a table, or a communication → flows with their links, for packets."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mpisim.base.errors import InputError, nearest
from mpisim.base.files import read_text
from mpisim.base.quantity import picoseconds

from ..flows import FlowList
from ..topology import Topology

__all__ = ["COLUMNS", "PacketFlow", "flows_of_list", "read_flows"]

COLUMNS = ("sender", "receiver", "bytes", "channel", "step", "repeats", "start", "links")
"""Of a table; the first three are needed. `mpisim comm --flows --csv` writes all but ``start``."""

_IGNORED = ("origin", "destination")


class PacketFlow(NamedTuple):
    """Bytes from a sender to a receiver, once or in several steps.

    Attributes
    ----------
    sender, receiver : str
        The number of a rank, or the name of a switch.
    bytes : int
        Of each step.
    channel : str
        Flows of one channel depend on each other by their steps; those of one channel between the
        same two are one queue pair.
    step, repeats : int
        The first step in which it is sent, and steps in a row.
    start : int
        Before which nothing is sent, in ps.
    links : tuple of int
        Of the topology; of all paths where there are several.
    """

    sender: str
    receiver: str
    bytes: int
    channel: str
    step: int
    repeats: int
    start: int
    links: tuple[int, ...]


def flows_of_list(found: FlowList) -> list[PacketFlow]:
    """Flows of a communication → flows for packets; fractions of bytes are rounded up."""
    return [
        PacketFlow(
            flow.sender,
            flow.receiver,
            -int(-flow.bytes // 1),
            str(flow.channel),
            flow.step,
            flow.repeats,
            0,
            flow.links,
        )
        for flow in found.flows
        if flow.bytes > 0
    ]


def read_flows(path: str | Path, topology: Topology) -> list[PacketFlow]:
    """Table of flows (CSV) and topology → flows; without links they take the topology's routes.

    Parameters
    ----------
    path : str or Path
        A line of columns, then a line a flow: see `COLUMNS`; lines without anything are left out.
        ``start`` is in seconds. Without ``channel`` every line is a queue pair of its own.
    topology : Topology

    Raises
    ------
    InputError
        If it cannot be read; naming line and column.
    """
    text = read_text(path)
    numbers: dict[str, int] = {}
    found = []
    # A list of links can be longer than the 128 KiB that csv takes by default.
    before = csv.field_size_limit(max(1, len(text)))
    try:
        table = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
        columns = _columns(path, table.fieldnames or [])
        for row in table:
            where = f"{path}: line {table.line_num}"
            if None in row or None in row.values():
                if not any(isinstance(field, str) and field.strip() for field in row.values()):
                    continue
                raise InputError(f"{where}: it must have {len(columns)} fields")
            found.append(_flow(where, table.line_num, row, topology, numbers))
    except csv.Error as error:
        raise InputError(f"{path}: line {table.line_num}: {error}") from error
    finally:
        csv.field_size_limit(before)
    if not found:
        raise InputError(f"{path}: it has no flows")
    return found


def _columns(path: str | Path, columns: Sequence[str]) -> Sequence[str]:
    """Names of a table's columns → the same, if each is known, once, and none is missing."""
    allowed = f"; allowed: {', '.join(COLUMNS)}, separated by commas"
    for place, name in enumerate(columns):
        if name not in (*COLUMNS, *_IGNORED):
            raise InputError(f"{path}: unknown column {name!r}{nearest(name, COLUMNS)}{allowed}")
        if name in columns[:place]:
            raise InputError(f"{path}: there are two columns {name!r}")
    missing = [name for name in COLUMNS[:3] if name not in columns]
    if missing:
        raise InputError(f"{path}: the column {missing[0]!r} is missing")
    return columns


def _flow(
    where: str, line: int, row: Mapping[str, str], topology: Topology, numbers: dict[str, int]
) -> PacketFlow:
    """Row of a table → flow; `numbers` keeps links by name once a name was needed."""
    sender, receiver = (row[name].strip() for name in ("sender", "receiver"))
    if row.get("links", "").strip():
        if not numbers:
            numbers.update((name, link) for link, name in enumerate(topology.link_names))
        names = row["links"].split()
        for name in names:
            if name not in numbers:
                raise InputError(f"{where}: there is no link {name!r}{nearest(name, numbers)}")
        links = tuple(numbers[name] for name in names)
        for name, end in (("sender", sender), ("receiver", receiver)):
            if end not in topology.names:  # of a switch that adds up
                _rank(f"{where}: {name}", end, topology)
    else:
        ranks = [
            _rank(f"{where}: {name}", end, topology)
            for name, end in (("sender", sender), ("receiver", receiver))
        ]
        if ranks[0] == ranks[1]:
            raise InputError(f"{where}: GPU {ranks[0]} sends to itself")
        links = tuple(topology.route(*ranks).tolist())
    size = _number(f"{where}: bytes", row["bytes"], 1, 2**50, "of bytes, without a unit,")
    start = _number(f"{where}: start", row.get("start") or "0", 0, 1000, "of seconds")
    return PacketFlow(
        sender,
        receiver,
        -int(-size // 1),
        row.get("channel", "").strip() or f"line {line}",
        _whole(f"{where}: step", row.get("step") or "0", 0, 2**30),
        _whole(f"{where}: repeats", row.get("repeats") or "1", 1, 2**30),
        picoseconds(start),
        links,
    )


def _rank(where: str, text: str, topology: Topology) -> int:
    return _whole(where, text, 0, topology.n_gpus - 1, f"of one of {topology.n_gpus} GPUs,")


def _whole(where: str, text: str, least: int, most: int, of: str = "") -> int:
    value = _number(where, text, least, most, of)
    if not value.is_integer():
        raise InputError(f"{where} is {text!r}; it must be a whole number")
    return int(value)


def _number(where: str, text: str, least: int, most: int, of: str) -> float:
    """Text of a field → number; `of` says in errors what it counts."""
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        what = f"number {of}" if of else "number"
        raise InputError(f"{where} is {text!r}; it must be a {what} from {least} to {most:,}")
    return value
