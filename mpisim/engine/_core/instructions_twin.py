"""A table as instructions, in plain Python: what `instructions` compiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...program import Flag, Kind, Table
from ..digest import hash_rows
from .twin import BATCH, HOST, HOST_WAIT, JOIN, KERNEL, MEET, PLAIN, PLAIN_MEET

__all__ = ["kernels_of", "write_instructions"]


def kernels_of(table: Table) -> tuple[NDArray[np.int32], ...]:
    """Return the kernels of a table, and which follows which.

    Returns
    -------
    first, last : int32, shape (n,)
        First and last row of the kernel a row belongs to.
    before, queue : int32, shape (n,)
        First row of the previous kernel of the stream, and of the one that must have left the
        stream's launch queue before this one may be launched; -1 if none.
    kernels, last_use : int32, shape (m,)
        First rows of kernels, ascending, and the last row that reads each kernel's end; n for the
        last kernel of each stream, which is read when the rank ends.
    """
    n = len(table)
    joined = ((table.flags & Flag.JOINED) != 0).tolist()
    device, stream = table.is_device.tolist(), table.stream.tolist()
    first, before, queue, last_use = [0] * n, [-1] * n, [-1] * n, [-1] * n
    on_stream: dict[int, list[int]] = {}
    for row in range(n):
        first[row] = first[row - 1] if joined[row] else row
        read = [first[r] for r in table.wait_row[slice(*table.wait_index[row : row + 2])]]
        if device[row] and not joined[row]:
            earlier = on_stream.setdefault(stream[row], [])
            if earlier:
                before[row] = earlier[-1]
                read.append(before[row])
            if 0 < table.queue_depth <= len(earlier):
                queue[row] = earlier[-table.queue_depth]
                read.append(queue[row])
            earlier.append(row)
        for kernel in read:
            last_use[kernel] = row
    for earlier in on_stream.values():
        last_use[earlier[-1]] = n
    last = [row for row in range(n) if row + 1 == n or not joined[row + 1]]
    last = [last[kernel] for kernel in np.cumsum(~np.array(joined, bool)) - 1]
    kernels = [row for row in range(n) if device[row] and not joined[row]]
    found = (first, last, before, queue, kernels, [last_use[row] for row in kernels])
    return tuple(np.array(each, np.int32) for each in found)


def write_instructions(
    table: Table,
    register: NDArray[np.int32],
    first: NDArray[np.int32],
    before: NDArray[np.int32],
    queue: NDArray[np.int32],
    instructions: NDArray[Any],
    communications: NDArray[Any],
) -> NDArray[np.int32]:
    """Fill in instructions and communications, and return operands.

    Parameters
    ----------
    table : Table
    register : int32, shape (m,)
        Of each kernel, in order.
    first, before, queue : int32, shape (n,)
        As `kernels_of` returns them.
    instructions : INSTRUCTION, shape (n,)
    communications : COMMUNICATION_ROW
        One a communication.

    Returns
    -------
    int32
        Registers that rows read: each row's queue and stream, if any, then its waits.
    """
    n = len(table)
    target = np.full(n, -1)
    target[table.is_device & (first == np.arange(n))] = register
    target = target[first]
    operands: list[int] = []
    covered = set()
    for row in range(n):
        waits = target[table.wait_row[slice(*table.wait_index[row : row + 2])]].tolist()
        ahead = [int(target[each]) for each in (queue[row], before[row]) if each >= 0]
        stream = int(target[before[row]]) if before[row] >= 0 else -1
        if before[row] >= 0 and table.gap[row] >= 0:
            covered.add(int(before[row]))
        plain = queue[row] < 0 <= before[row] and len(waits) <= 1
        x = instructions[row]
        x["target"], x["stream"] = target[row], stream
        x["wait"] = waits[0] if len(waits) == 1 else stream
        x["first_wait"], x["n_waits"] = len(operands) + len(ahead), len(waits)
        x["n_leading"], x["opcode"] = len(ahead), _opcode(table, row, plain)
        operands += ahead + waits
    for column in ("host", "launch", "launch_cost", "gap", "slot", "ordinal"):
        instructions[column] = getattr(table, column)
    eager = (table.flags & Flag.EAGER) != 0
    instructions["eager"] = eager
    instructions["may_end_last"] = [row not in covered for row in first.tolist()]
    rows = np.flatnonzero(table.is_communication).astype(np.int32)
    communications["low"], communications["high"] = hash_rows(table, rows).T
    communications["row"], communications["eager"] = rows, eager[rows]
    for column in ("slot", "ordinal"):
        communications[column] = getattr(table, column)[rows]
    return np.array(operands, np.int32)


def _opcode(table: Table, row: int, plain: bool) -> int:
    if table.flags[row] & Flag.JOINED:
        return JOIN
    kind = table.kind[row]
    if kind <= Kind.COPY:
        return PLAIN if plain else KERNEL
    if kind == Kind.HOST:
        return HOST
    if kind == Kind.HOST_WAIT:
        return HOST_WAIT
    batch = table.flags[row : row + 2] & np.array([Flag.EAGER, Flag.JOINED])[: len(table) - row]
    if batch.any():
        return BATCH
    return PLAIN_MEET if plain else MEET
