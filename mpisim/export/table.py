"""Rows of ranks → lines of a CSV file.

One line a row, ranks one after the other, each in the order in which its CPU issued them. Times are
whole ps from the begin of the run; what does not apply is empty. docs/export.md has the columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..engine.rows import Binding, Rows
from ..program import Kind, Operation, Phase, Program
from .row_arguments import RowArguments

__all__ = ["COLUMNS", "head_line", "rank_lines"]

COLUMNS = (
    "rank",
    "row",
    "kind",
    "stream",
    "name",
    "begin_ps",
    "wire_ps",
    "end_ps",
    "bound_by",
    "phase",
    "layer",
    "micro_batch",
    "step",
    "operation",
    "bytes",
    "group",
    "group_size",
    "algorithm",
    "protocol",
    "channels",
    "bandwidth_gb_s",
    "bus_bandwidth_gb_s",
    "limited_by",
    "links",
    "critical",
)
LINES_PER_PIECE = 5_000
"""Of one piece of a file."""

_ARGUMENTS = (
    "Algorithm",
    "Protocol",
    "Channels",
    "Bandwidth (GB/s)",
    "Bus bandwidth (GB/s)",
    "Limited by",
    "Links",
)
"""Notes of a communication, in the order of their columns."""


def head_line() -> bytes:
    """Return the names of the columns."""
    return _encoded([COLUMNS])


def rank_lines(
    program: Program,
    rank: int,
    number: int,
    rows: Rows,
    row_arguments: RowArguments,
    critical: set[int],
) -> Iterator[bytes]:
    """Yield the lines of one rank.

    Parameters
    ----------
    program : Program
    rank : int
        Of the program.
    number : int
        Of the job.
    rows : Rows
    row_arguments : RowArguments
        All of this rank.
    critical : set of int
        Rows on the critical path.
    """
    table, names = program.table_of(rank), program.names
    groups = program.communicators
    slots = program.slots_of(rank).tolist()
    kinds, phases, operations = ({e: e.name.lower() for e in of} for of in (Kind, Phase, Operation))
    bound = (rows.binding & ~np.uint8(Binding.QUEUE)).tolist()
    queued = (rows.binding & np.uint8(Binding.QUEUE)).tolist()
    lines: list[tuple[Any, ...]] = []
    for row in range(len(table)):
        kind = Kind(int(table.kind[row]))
        communication: tuple[Any, ...] = ("",) * (4 + len(_ARGUMENTS))
        size: Any = int(table.bytes[row]) if table.bytes[row] >= 0 else ""
        if kind.is_communication:
            arguments, group = row_arguments.communication(row), slots[int(table.slot[row])]
            communication = (
                operations[Operation(int(table.operation[row]))],
                size,
                groups.names[group],
                int(groups.sizes[group]),
                *(arguments.get(name, "") for name in _ARGUMENTS),
            )
        elif size != "":
            communication = ("", size, *communication[2:])
        lines.append(
            (
                number,
                row,
                kinds[kind],
                _known(table.stream[row]),
                names[table.name[row]],
                int(rows.begin[row]),
                int(rows.wire[row]) if kind.is_communication else "",
                int(rows.end[row]),
                _binding(bound[row]) + ("+queue" if queued[row] else ""),
                phases[Phase(int(table.phase[row]))] if table.phase[row] else "",
                _known(table.layer[row]),
                _known(table.micro_batch[row]),
                _known(table.step[row]),
                *communication,
                int(row in critical),
            )
        )
        if len(lines) == LINES_PER_PIECE:
            yield _encoded(lines)
            lines.clear()
    if lines:
        yield _encoded(lines)


def _known(value: Any) -> Any:
    return int(value) if value >= 0 else ""


def _binding(number: int) -> str:
    if number >= Binding.WAIT:
        return f"wait {number - Binding.WAIT}"
    return "host" if number == Binding.HOST else "stream"


def _encoded(lines: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode("utf-8", "replace")
