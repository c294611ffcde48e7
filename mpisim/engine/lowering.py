"""Lowering: a table becomes the instructions that the core executes.

The core keeps no end of a row for longer than it is needed. The end of each launched kernel goes
to a *register* of the rank, which is reused after its last reader: a rank of a long program needs a
few dozen registers, which stay in the cache. Streams, waits and the launch queue are all reads of
registers, so the core knows none of them by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..program import Kind, Table
from ._core import allocate, kernels_of, write_instructions

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
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    stream_row: NDArray[np.int32]
    queue_row: NDArray[np.int32]

    @cached_property
    def kernels(self) -> NDArray[np.int64]:
        """KERNEL and COPY rows: those whose durations depend on the GPU; shape (k,)."""
        return np.flatnonzero(self.table.kind <= Kind.COPY)


def lower(table: Table, lowered: dict[Table, Code] | None = None) -> Code:
    """Translate a table. Every wait names a kernel, whichever of its rows it named in the table.

    Nothing of it depends on durations: tables that differ in these alone share all arrays, which
    `lowered` keeps by `Table.structure`.
    """
    lowered = {} if lowered is None else lowered
    known = lowered.get(table.structure)
    if known is None:
        known = lowered[table.structure] = _translate(table)
    return replace(known, table=table)


def _translate(table: Table) -> Code:
    first, last, stream_row, queue_row, kernels, last_use = kernels_of(table)
    register, n_registers = allocate(kernels, last_use)
    instructions = np.empty(len(table), INSTRUCTION)
    communications = np.empty(int(table.operations.sum()), COMMUNICATION)
    operands = write_instructions(
        table, register, first, stream_row, queue_row, instructions, communications
    )
    return Code(
        table=table,
        instructions=instructions,
        operands=operands,
        final=register[last_use == len(table)],
        n_registers=n_registers,
        communications=communications,
        n_eager=int(np.count_nonzero(communications["eager"])),
        first=first,
        last=last,
        stream_row=stream_row,
        queue_row=queue_row,
    )
