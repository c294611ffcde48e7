"""Lowering: table → instructions, which both compiled cores execute.

There is one record for a row, `INSTRUCTION`, of 64 bytes: a cache line. The tiled core, the
replay of rows (`mpisim.engine.rows`) and the contended core all read it; opcodes, costs, slots and
ordinals stand nowhere else.

The tiled core executes rows in program order and keeps no end of a row for longer than it is
needed. The end of each launched kernel goes to a *register* of the rank, which is reused after its
last reader in program order: a rank of a long program needs a few dozen registers, which stay in
the cache. Streams, waits and the launch queue are all reads of registers, so the core knows none
of them by name.

The contended core cannot use registers. Where communications share links nothing may be posted
that lies before what has happened on the links already, so a rank's CPU and each of its streams
run on their own as far as they can, and program order no longer says which end is read last. There
a kernel is told by its place in the queue of its stream. A `StreamView` holds these places, 32
bytes a row beside the instruction. It is derived from the instructions, once a table, and only for
contended runs: within the instruction it would cost the tiled core a second cache line a row.

Two things make this right. A table names earlier rows only, so that what a row reads is known when
the rows before it have run: registers and places in queues are given out in one pass in program
order (`mpisim.engine._core.lowering` states what each pass relies on). And no duration enters:
tables of one `Table.structure` share their arrays, by `LoweredTables`, into which no one writes.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..program import Kind, Table
from ._core import allocate, kernels_of, view_streams, write_instructions

__all__ = [
    "INSTRUCTION",
    "LoweredTable",
    "LoweredTables",
    "Opcode",
    "StreamView",
    "lower",
    "stream_view",
]


class Opcode(IntEnum):
    """Opcode of a row: how a core executes it. The compiled cores rely on the order (common.h)."""

    SIMPLE_KERNEL = 0
    """As KERNEL, with a stream before it, one wait at most and no launch queue: most rows are."""
    SIMPLE_POST = 1
    """As POST, likewise."""
    KERNEL = 2
    """KERNEL, COPY: start, end, launching call."""
    POST = 3
    """A communication: become ready, post, launching call."""
    BATCH = 4
    """As POST, but eager, or the first of several communications in one kernel."""
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
        ("wait", np.int32),  # SIMPLE_…: the register waited for; `stream` again if there is none
        ("first_wait", np.int32),  # into LoweredTable.operands
        ("n_waits", np.int32),
        ("slot", np.int32),
        ("ordinal", np.int32),
        ("opcode", np.uint8),
        ("eager", np.uint8),
        ("n_leading", np.uint8),  # operands before the first wait: queue, stream, if present
        ("may_end_last", np.uint8),  # no later kernel of the stream is sure to end later
    ]
)
"""One row for the cores."""

STREAM_ENTRY = np.dtype(
    [
        ("stream", np.int32),  # among those that have kernels; -1: the row runs on the CPU
        ("index", np.int32),  # how many kernels of the stream come before this row's
        ("first_wait", np.int32),  # into StreamView.waits
        ("queue", np.int32),  # kernel that must have left the launch queue, or -1
        ("n_rows", np.int32),  # of the kernel that begins here: JOINED rows count
        ("eager", np.int32),  # which of the table's EAGER rows this is, or -1
        ("keep", np.int32),  # which of the kernels this is that are read from afar, or -1
        ("reserved", np.int32),
    ]
)
"""One row as an entry of its stream's queue."""

COMMUNICATION_ROW = np.dtype(
    [
        ("low", np.uint64),  # what the digest takes from the table
        ("high", np.uint64),
        ("row", np.int32),
        ("slot", np.int32),
        ("ordinal", np.int32),
        ("eager", np.int32),
    ]
)
"""What is read of a communication after the run."""

_MAX_RING_ROWS = 2048
"""Rows. Ends that are read from further back get a place of their own, not in a rank's ring."""


@frozen(eq=False)
class LoweredTable:
    """A table as the cores execute it, shared by all ranks of the table.

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
    communications : COMMUNICATION_ROW, shape (m,)
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


@frozen(eq=False)
class StreamView:
    """A lowered table as its streams execute it, for the contended core.

    Attributes
    ----------
    entries : STREAM_ENTRY, shape (n,)
    waits : int32
        Kernels (their first rows) that rows wait for.
    kernels : int32, shape (m,)
        First rows of kernels, stream by stream, in order.
    kernel_index : int64, shape (n_streams + 1,)
        Stream s has the kernels ``kernel_index[s]`` to ``kernel_index[s + 1]``.
    clock : int64, shape (n,)
        CPU time of a row and all rows before it, without waits, in ps.
    near : int
        How many rows back rows read, but for kernels that are kept.
    n_kept : int
        Number of kernels that are read from further back than a ring reaches.
    """

    entries: NDArray[np.void]
    waits: NDArray[np.int32]
    kernels: NDArray[np.int32]
    kernel_index: NDArray[np.int64]
    clock: NDArray[np.int64]
    near: int
    n_kept: int

    @property
    def n_streams(self) -> int:
        """Number of streams that have kernels."""
        return len(self.kernel_index) - 1

    def spans(self, lowered: LoweredTable, duration: NDArray[np.int64]) -> NDArray[np.int64]:
        """Durations of rows → durations of kernels, alone and summed along their streams.

        Parameters
        ----------
        lowered : LoweredTable
            The one this is the view of.
        duration : int64, shape (n,)
            Of each row, in ps.

        Returns
        -------
        int64, shape (2, m)
            In the order of `kernels`: how long each takes, and how long it and all before it take
            with their gaps. Of the sums only differences within a stream mean anything.
        """
        first = np.sort(self.kernels)
        own = np.where(self.entries["stream"] >= 0, duration, 0)
        longest = np.maximum.reduceat(own, first) if len(first) else own
        span = longest[np.searchsorted(first, self.kernels)]
        return np.stack([span, np.cumsum(span + lowered.instructions["gap"][self.kernels])])


@frozen(eq=False)
class LoweredTables:
    """Lowered tables and their streams by `Table.structure`, kept by a run's setup for later runs.

    Attributes
    ----------
    tables : dict of Table to LoweredTable
    views : dict of Table to StreamView
        Where communications share links.
    """

    tables: dict[Table, LoweredTable] = field(default_factory=dict)
    views: dict[Table, StreamView] = field(default_factory=dict)


def lower(table: Table, known: dict[Table, LoweredTable] | None = None) -> LoweredTable:
    """Table → instructions. Every wait names a kernel, whichever of its rows the table names.

    Nothing of it depends on durations: tables that differ in these alone share all arrays, which
    `known` keeps by `Table.structure`.

    Parameters
    ----------
    table : Table
    known : dict of Table to LoweredTable, optional
        The caller's; what is missing is added to it.
    """
    known = {} if known is None else known
    lowered = known.get(table.structure)
    if lowered is None:
        lowered = known[table.structure] = _translate(table)
    return lowered if lowered.table is table else replace(lowered, table=table)


def stream_view(lowered: LoweredTable, known: dict[Table, StreamView] | None = None) -> StreamView:
    """Lowered table → its streams. Tables that differ in durations alone share those in `known`.

    Parameters
    ----------
    lowered : LoweredTable
    known : dict of Table to StreamView, optional
        By `Table.structure`. The caller's; what is missing is added to it.
    """
    known = {} if known is None else known
    structure = lowered.table.structure
    if structure not in known:
        entries = np.zeros(len(lowered.table), STREAM_ENTRY)
        clock = np.empty(len(lowered.table), np.int64)
        waits, kernels, index, near, n_kept = view_streams(lowered, _MAX_RING_ROWS, entries, clock)
        known[structure] = StreamView(entries, waits, kernels, index, clock, near, n_kept)
    return known[structure]


def _translate(table: Table) -> LoweredTable:
    first, last, stream_row, queue_row, kernels, last_use = kernels_of(table)
    register, n_registers = allocate(kernels, last_use)
    instructions = np.empty(len(table), INSTRUCTION)
    communications = np.empty(int(table.operations.sum()), COMMUNICATION_ROW)
    operands = write_instructions(
        table, register, first, stream_row, queue_row, instructions, communications
    )
    return LoweredTable(
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
