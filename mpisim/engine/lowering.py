"""Lowering: a table becomes the instructions that the core executes.

The core keeps no end of a row for longer than it is needed. The end of each launched kernel goes
to a *register* of the rank, which is reused after its last reader: a rank of a long program needs a
few dozen registers, which stay in the cache. Streams, waits and the launch queue are all reads of
registers, so the core knows none of them by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..program import Flag, Kind, Table
from ._core import allocate
from .digest import hash_rows

__all__ = ["INSTRUCTION", "Code", "Opcode", "lower"]


class Opcode(IntEnum):
    """What the core does with a row."""

    PLAIN = 0
    """As KERNEL, with a stream before it, one wait at most and no queue: most rows are."""
    PLAIN_MEET = 1
    """As MEET, likewise."""
    KERNEL = 2
    """KERNEL, COPY: start, end, call."""
    MEET = 3
    """A communication: become ready, post, call."""
    BATCH = 4
    """As MEET, but eager, or the first of several communications in one kernel."""
    JOIN = 5
    """A further communication of the same kernel: post with the same ready time."""
    HOST = 6
    HOST_WAIT = 7


INSTRUCTION = np.dtype(
    [
        ("host", np.int64),
        ("launch", np.int64),
        ("launch_cost", np.int64),
        ("gap", np.int64),
        ("target", np.int32),  # register of the kernel's end
        ("stream", np.int32),  # register of the previous kernel of the stream, or -1
        ("other", np.int32),  # PLAIN…: the register waited for; `stream` again if there is none
        ("first_wait", np.int32),  # into Code.operands
        ("n_waits", np.int32),
        ("slot", np.int32),
        ("ordinal", np.int32),
        ("opcode", np.uint8),
        ("eager", np.uint8),
        ("n_before", np.uint8),  # operands before the first wait: queue, stream, as far as present
        ("tops", np.uint8),  # no later kernel of the stream is sure to end later
    ]
)
"""One row for the core: 64 bytes, a cache line."""

COMMUNICATION = np.dtype(
    [
        ("low", np.uint64),  # what the digest takes from the table
        ("high", np.uint64),
        ("row", np.int32),
        ("slot", np.int32),
        ("ordinal", np.int32),
        ("eager", np.int32),
    ]
)
"""What the core needs of a communication after the run."""


@dataclass(frozen=True, eq=False)
class Code:
    """A table as the core executes it, shared by all ranks of the table.

    A *kernel* here is one launch: a device row and the JOINED rows after it. `n` is the number of
    rows, `m` of communications.

    Attributes
    ----------
    table : Table
    instructions : INSTRUCTION, shape (n,)
    operands : int32
        Registers that rows read: each row's queue and stream, if any, then its waits.
    final : int32
        Registers of the last kernel of each stream.
    n_registers : int
    communications : COMMUNICATION, shape (m,)
    n_eager : int
        Number of EAGER rows.
    kernels : int64, shape (k,)
        KERNEL and COPY rows: those whose durations depend on the GPU.
    first, last : int32, shape (n,)
        First and last row of the kernel a row belongs to.
    stream_row, queue_row : int32, shape (n,)
        First row of the previous kernel of the stream, and of the one that must have left the
        stream's launch queue before this one may be launched; -1 if none.
    """

    table: Table
    instructions: NDArray[np.void]
    operands: NDArray[np.int32]
    final: NDArray[np.int32]
    n_registers: int
    communications: NDArray[np.void]
    n_eager: int
    kernels: NDArray[np.int64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    stream_row: NDArray[np.int32]
    queue_row: NDArray[np.int32]


def lower(table: Table) -> Code:
    """Translate a table. Every wait names a kernel, whichever of its rows it named in the table.

    Nothing of it depends on durations: tables that differ in these alone share all arrays.
    """
    known: Code | None = table.structure.get(_CODE)
    code = _translate(table) if known is None else replace(known, table=table)
    table.structure[_CODE] = code  # the latest, which lives longest
    return code


_CODE = "code"


def _translate(table: Table) -> Code:
    n = len(table)
    rows = np.arange(n, dtype=np.int32)
    joined = (table.flags & Flag.JOINED) != 0
    first = np.maximum.accumulate(np.where(joined, 0, rows)).astype(np.int32)
    last = _last_rows(joined)
    kernels = np.flatnonzero(table.is_device & ~joined).astype(np.int32)

    stream_row = _earlier_on_stream(table, kernels, 1)
    queue_row = _earlier_on_stream(table, kernels, table.queue_depth)
    wait_count = np.diff(table.wait_index)
    waiter = np.repeat(rows, wait_count)
    awaited = first[table.wait_row]

    # The last row that reads each kernel's end; n for the last kernel of each stream, which is
    # read when the rank ends.
    last_use = np.full(n, -1, np.int32)
    followed = stream_row[kernels] >= 0
    last_use[stream_row[kernels[followed]]] = kernels[followed]
    final = kernels[last_use[kernels] < 0]
    last_use[final] = n
    np.maximum.at(last_use, awaited, waiter)
    queued = queue_row >= 0
    np.maximum.at(last_use, queue_row[queued], rows[queued])

    register = np.full(n, -1, np.int32)
    register[kernels], n_registers = allocate(kernels, last_use[kernels])
    register = register[first]  # JOINED rows share the register of their kernel
    code = np.zeros(n, INSTRUCTION)
    for column in ("host", "launch", "launch_cost", "gap", "slot", "ordinal"):
        code[column] = getattr(table, column)
    follows = stream_row >= 0
    code["target"] = register
    code["stream"] = np.where(follows, register[stream_row], -1) if n else -1
    code["n_waits"] = wait_count
    code["n_before"] = queued.astype(np.uint8) + follows
    count = code["n_before"] + wait_count
    code["first_wait"] = np.cumsum(count) - wait_count
    code["eager"] = (table.flags & Flag.EAGER) != 0
    code["opcode"] = _opcodes(table, joined, follows & ~queued & (wait_count <= 1))

    operands = np.empty(int(count.sum()), np.int32)
    operands[(code["first_wait"] - code["n_before"])[queued]] = register[queue_row[queued]]
    operands[code["first_wait"][follows] - 1] = code["stream"][follows]
    shift = code["first_wait"] - table.wait_index[:-1]
    operands[np.arange(len(awaited)) + np.repeat(shift, wait_count)] = register[awaited]
    one = wait_count == 1
    code["other"] = code["stream"]
    code["other"][one] = operands[code["first_wait"][one]]

    covered = np.zeros(n, bool)
    covered[stream_row[follows & (table.gap >= 0)]] = True
    code["tops"] = ~covered[first] if n else 0
    return Code(
        table=table,
        instructions=code,
        operands=operands,
        final=register[final],
        n_registers=n_registers,
        communications=_communications(table),
        n_eager=int(code["eager"].sum()),
        kernels=np.flatnonzero(table.kind <= Kind.COPY),
        first=first,
        last=last,
        stream_row=stream_row,
        queue_row=queue_row,
    )


def _communications(table: Table) -> NDArray[np.void]:
    rows = np.flatnonzero(table.is_communication).astype(np.int32)
    found = np.zeros(len(rows), COMMUNICATION)
    found["low"], found["high"] = hash_rows(table, rows).T
    found["row"], found["slot"] = rows, table.slot[rows]
    found["ordinal"] = table.ordinal[rows]
    found["eager"] = (table.flags[rows] & Flag.EAGER) != 0
    return found


def _last_rows(joined: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the last row of the kernel each row belongs to."""
    n = len(joined)
    starts = np.append(~joined, True)  # a kernel ends before the next start
    after = np.where(starts, np.arange(n + 1), n)
    after = np.minimum.accumulate(after[::-1])[::-1]
    return (after[1:] - 1).astype(np.int32)


def _earlier_on_stream(
    table: Table, kernels: NDArray[np.int32], distance: int
) -> NDArray[np.int32]:
    """Return the kernel `distance` launches before each on its stream; -1 if none, or for 0."""
    earlier = np.full(len(table), -1, np.int32)
    if distance:
        order = kernels[np.argsort(table.stream[kernels], kind="stable")]
        here, there = order[distance:], order[:-distance]
        same = table.stream[here] == table.stream[there]
        earlier[here[same]] = there[same]
    return earlier


def _opcodes(
    table: Table, joined: NDArray[np.bool_], plain: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    of_kind = np.full(len(Kind), Opcode.KERNEL, np.uint8)
    of_kind[[Kind.COLLECTIVE, Kind.SEND, Kind.RECV]] = Opcode.MEET
    of_kind[Kind.HOST] = Opcode.HOST
    of_kind[Kind.HOST_WAIT] = Opcode.HOST_WAIT
    opcodes = np.where(joined, np.uint8(Opcode.JOIN), of_kind[table.kind])
    batch = (table.flags & Flag.EAGER) != 0
    batch[:-1] |= joined[1:]
    opcodes[batch & (opcodes == Opcode.MEET)] = Opcode.BATCH
    opcodes[plain & (opcodes == Opcode.MEET)] = Opcode.PLAIN_MEET
    opcodes[plain & (opcodes == Opcode.KERNEL)] = Opcode.PLAIN
    return opcodes
