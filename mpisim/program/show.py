"""Programs as text: an overview of ranks, tables and communicators, and the rows of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..base.errors import UsageError
from ..base.kinds import Flag, Kind, Operation, Phase
from ..base.text import aligned, one_line, shortened
from .program import Program
from .table import UNPRICED, Table

__all__ = ["overview", "rows"]

MAX_LINES = 16
"""Lines of a list that are shown before the rest is only counted."""


def overview(program: Program) -> str:
    """Program → text: its attributes, ranks, tables and communicators.

    Returns
    -------
    str
        Lines of at most 100 characters, without a newline at the end.
    """
    n = program.n_ranks
    lines = [
        f"ranks          {n:,}",
        f"rows           {program.n_rows:,} over all ranks",
        f"tables         {len(program.tables):,}",
        f"communicators  {len(program.communicators):,}",
        f"row names      {len(program.names):,}",
    ]
    lines += [
        shortened(f"{one_line(key):<14} {one_line(value)}", 100)
        for key, value in program.attributes.items()
        if not value.startswith("{")  # for programs to read; other attributes say it in words
    ]
    lines += ["", "Tables", *_limited(_table_lines(program), len(program.tables), "tables")]
    if len(program.communicators):
        total = len(program.communicators)
        lines += [
            "",
            "Communicators",
            *_limited(_communicator_lines(program), total, "communicators"),
        ]
    if (program.speed != 1).any() or program.start.any():
        lines += ["", "Ranks", *_limited(_rank_lines(program), n, "ranks")]
    return "\n".join(lines)


def rows(program: Program, rank: int, first: int = 0, count: int | None = None) -> str:
    """Rows of one rank → text, a line each, with times in µs.

    Parameters
    ----------
    program : Program
    rank : int
    first : int
        The first row shown.
    count : int, optional
        How many; all by default.

    Raises
    ------
    UsageError
        If there is no such rank.
    """
    if not 0 <= rank < program.n_ranks:
        raise UsageError(
            f"there is no rank {rank}; this program has ranks 0 to {program.n_ranks - 1}"
        )
    table = program.table_of(rank)
    last = len(table) if count is None else min(len(table), first + count)
    header = (
        "row",
        "kind",
        "strm",
        "host",
        "launch",
        "call",
        "gap",
        "duration",
        "bytes",
        "group",
        "waits",
        "tags",
        "name",
    )
    cells = [_cells(program, rank, table, row) for row in range(first, last)]
    lines = [
        f"rank {rank}: table {program.table[rank]} {table.label!r}, {len(table):,} rows, "
        f"{table.n_streams} streams, speed {program.speed[rank]:g}; times in µs"
    ]
    lines += [shortened(line, 140) for line in aligned([header, *cells], left=(1, 10, 11, 12))]
    if last < len(table):
        lines.append(f"... {len(table) - last:,} more rows")
    return "\n".join(lines)


def _limited(lines: Iterator[Sequence[str]], total: int, what: str) -> list[str]:
    """Header and lines of a list → aligned text of the first ones, and how many more there are."""
    shown = [cells for _, cells in zip(range(MAX_LINES + 1), lines, strict=False)]
    texts = [shortened("  " + line, 100) for line in aligned(shown, left=(len(shown[0]) - 1,))]
    return texts + ([f"  ... {total - MAX_LINES:,} more {what}"] if total > MAX_LINES else [])


def _table_lines(program: Program) -> Iterator[Sequence[str]]:
    yield (
        "table",
        "ranks",
        "rows",
        "streams",
        "slots",
        "waits",
        *(k.name.lower() for k in Kind),
        "label",
    )
    uses = np.bincount(program.table, minlength=len(program.tables))
    for i, table in enumerate(program.tables):
        if table is None:
            yield str(i), str(uses[i]), *["-"] * (4 + len(Kind)), "(held by another process)"
            continue
        sizes = (len(table), table.n_streams, table.n_slots, len(table.wait_row))
        kinds = np.bincount(table.kind, minlength=len(Kind))
        yield (
            str(i),
            str(uses[i]),
            *map(str, sizes),
            *map(str, kinds.tolist()),
            one_line(table.label),
        )


def _communicator_lines(program: Program) -> Iterator[Sequence[str]]:
    yield "communicator", "size", "name: members"
    groups = program.communicators
    for c, (name, size) in enumerate(zip(groups.names, groups.sizes.tolist(), strict=True)):
        members = groups.members[groups.index[c] : groups.index[c] + min(size, 24)].tolist()
        yield (
            str(c),
            str(size),
            f"{one_line(name)}: {', '.join(map(str, members))}"
            + (", ..." if size > len(members) else ""),
        )


def _rank_lines(program: Program) -> Iterator[Sequence[str]]:
    yield "rank", "table", "speed", "start (µs)", ""
    for rank in range(program.n_ranks):
        speed, start = f"{program.speed[rank]:g}", _us(int(program.start[rank]))
        yield str(rank), str(program.table[rank]), speed, start, ""


def _cells(program: Program, rank: int, table: Table, row: int) -> tuple[str, ...]:
    kind = Kind(int(table.kind[row]))
    what = kind.name.lower()
    group = ""
    if kind.is_communication:
        communicator = program.slots_of(rank)[table.slot[row]]
        group = f"{communicator}#{table.ordinal[row]}"
        if kind == Kind.COLLECTIVE:
            what = Operation(int(table.operation[row])).name.lower()
    flags = Flag(int(table.flags[row]))
    what += "".join(f"+{flag.name.lower()}" for flag in flags if flag.name)
    waits = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()
    duration = int(table.duration[row])
    return (
        str(row),
        what,
        str(table.stream[row]) if kind.is_device else "",
        _us(int(table.host[row])),
        _us(int(table.launch[row])),
        _us(int(table.launch_cost[row])),
        _us(int(table.gap[row])),
        "unpriced" if kind.is_communication and duration == UNPRICED else _us(duration),
        str(table.bytes[row]) if table.bytes[row] >= 0 else "",
        group,
        ",".join(map(str, waits[:6])) + (",..." if len(waits) > 6 else ""),
        _tags(table, row),
        one_line(program.names[table.name[row]]),
    )


def _tags(table: Table, row: int) -> str:
    """Row → the tags that are set, of phase, layer, micro-batch, step: ``forward l3 m0 s1``."""
    tags = [Phase(int(table.phase[row])).name.lower()] if table.phase[row] else []
    for letter, column in (("l", table.layer), ("m", table.micro_batch), ("s", table.step)):
        if column[row] >= 0:
            tags.append(f"{letter}{column[row]}")
    return " ".join(tags)


def _us(picoseconds: int) -> str:
    return f"{picoseconds / 1e6:.3f}" if picoseconds else "0"
