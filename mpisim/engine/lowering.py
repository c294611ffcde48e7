"""Lowering: a table becomes the instructions that the core executes.

The core keeps no end of a row for longer than it is needed. The end of each launched kernel goes
to a *register* of the rank, which is reused after its last reader: a rank of a long program needs a
few dozen registers, which stay in the cache. Streams, waits and the launch queue are all reads of
registers, so the core knows none of them by name.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """As KERNEL, with a stream before it, no waits and no queue: most rows are."""
    KERNEL = 1
    """KERNEL, COPY: start, end, call."""
    MEET = 2
    """A communication: become ready, post, call."""
    JOIN = 3
    """A further communication of the same launched kernel: post with the same ready time."""
    HOST = 4
    HOST_WAIT = 5


INSTRUCTION = np.dtype(
    [
        ("host", np.int64),
        ("launch", np.int64),
        ("launch_cost", np.int64),
        ("gap", np.int64),
        ("target", np.int32),  # register of the kernel's end
        ("stream", np.int32),  # register of the previous kernel of the stream, or -1
        ("queue", np.int32),  # register of the kernel that must have left the queue, or -1
        ("first_wait", np.int32),  # into Code.waits
        ("n_waits", np.int32),
        ("slot", np.int32),
        ("ordinal", np.int32),
        ("opcode", np.uint8),
        ("eager", np.uint8),
        ("padding", np.uint16),
    ]
)
"""One row for the core: 64 bytes, a cache line."""


@dataclass(frozen=True, eq=False)
class Code:
    """A table as the core executes it, shared by all ranks of the table.

    A *kernel* here is one launch: a device row and the JOINED rows after it. `n` is the number of
    rows, `m` of communications.

    Attributes
    ----------
    table : Table
    instructions : INSTRUCTION, shape (n,)
    waits : int32
        Registers that rows wait for; see ``first_wait`` and ``n_waits``.
    final : int32
        Registers of the last kernel of each stream.
    n_registers : int
    communications : int32, shape (m,)
        Rows that communicate.
    hashes : uint64, shape (m, 2)
        What the digest takes from the table.
    n_eager : int
        Number of EAGER rows.
    first, last : int32, shape (n,)
        First and last row of the kernel a row belongs to.
    stream_row, queue_row : int32, shape (n,)
        First row of the previous kernel of the stream, and of the one that must have left the
        stream's launch queue before this one may be launched; -1 if none.
    """

    table: Table
    instructions: NDArray[np.void]
    waits: NDArray[np.int32]
    final: NDArray[np.int32]
    n_registers: int
    communications: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    n_eager: int
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    stream_row: NDArray[np.int32]
    queue_row: NDArray[np.int32]


def lower(table: Table) -> Code:
    """Translate a table. Every wait names a kernel, whichever of its rows it named in the table."""
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
    code["target"] = register
    code["stream"] = np.where(stream_row >= 0, register[stream_row], -1) if n else -1
    code["queue"] = np.where(queued, register[queue_row], -1) if n else -1
    code["first_wait"] = table.wait_index[:-1]
    code["n_waits"] = wait_count
    plain = (stream_row >= 0) & ~queued & (wait_count == 0)
    code["opcode"] = _opcodes(table, joined, plain)
    code["eager"] = (table.flags & Flag.EAGER) != 0
    communications = np.flatnonzero(table.is_communication).astype(np.int32)
    return Code(
        table=table,
        instructions=code,
        waits=register[awaited],
        final=register[final],
        n_registers=n_registers,
        communications=communications,
        hashes=hash_rows(table, communications),
        n_eager=int(code["eager"].sum()),
        first=first,
        last=last,
        stream_row=stream_row,
        queue_row=queue_row,
    )


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
    opcodes[plain & (opcodes == Opcode.KERNEL)] = Opcode.PLAIN
    return opcodes
