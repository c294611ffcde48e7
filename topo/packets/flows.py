"""Flows for packets: rows of a table, or the flows of a communication, with their links."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mpisim.base.errors import InputError, nearest
from mpisim.base.files import read_text
from mpisim.base.quantity import PICOSECONDS

from ..flows import FlowList
from ..topology import Topology

__all__ = ["COLUMNS", "PacketFlow", "flows_of_list", "read_flows"]

COLUMNS = ("sender", "receiver", "bytes", "channel", "step", "repeats", "start", "links")
"""Of a table; the first three are needed. `mpisim comm --flows --csv` writes all but ``start``."""

_IGNORED = ("origin", "destination")


class PacketFlow(NamedTuple):
    """Bytes from one to another, once or in several steps.

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
    """Flows of a communication → the same for packets; what is not whole is rounded up."""
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
        A line of columns, then a line a flow: see `COLUMNS`. Without ``channel`` every line is a
        queue pair of its own.
    topology : Topology

    Raises
    ------
    InputError
        If it cannot be read; naming line and column.
    """
    table = csv.DictReader(io.StringIO(read_text(path)), skipinitialspace=True)
    columns = list(table.fieldnames or [])
    for name in columns:
        if name not in (*COLUMNS, *_IGNORED):
            raise InputError(
                f"{path}: unknown column {name!r}{nearest(str(name), COLUMNS)}; "
                f"allowed: {', '.join(COLUMNS)}"
            )
    missing = [name for name in COLUMNS[:3] if name not in columns]
    if missing:
        raise InputError(f"{path}: the column {missing[0]!r} is missing")
    numbers: dict[str, int] = {}
    found = []
    for number, row in enumerate(table, 2):
        if None in row or None in row.values():
            raise InputError(f"{path}: line {number}: it must have {len(columns)} fields")
        found.append(_flow(f"{path}: line {number}", number, row, topology, numbers))
    if not found:
        raise InputError(f"{path}: it has no flows")
    return found


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
    else:
        ranks = [
            int(_number(f"{where}: {name}", end, 0, topology.n_gpus - 1))
            for name, end in (("sender", sender), ("receiver", receiver))
        ]
        if ranks[0] == ranks[1]:
            raise InputError(f"{where}: GPU {ranks[0]} sends to itself")
        links = tuple(topology.route(*ranks).tolist())
    return PacketFlow(
        sender,
        receiver,
        -int(-_number(f"{where}: bytes", row["bytes"], 1, 2**50) // 1),
        row.get("channel", "").strip() or f"line {line}",
        int(_number(f"{where}: step", row.get("step") or "0", 0, 2**30)),
        int(_number(f"{where}: repeats", row.get("repeats") or "1", 1, 2**30)),
        round(_number(f"{where}: start", row.get("start") or "0", 0, 1e3) * PICOSECONDS),
        links,
    )


def _number(where: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InputError(f"{where} is {text!r}; it must be a number from {least:g} to {most:g}")
    return value
