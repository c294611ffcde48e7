"""Lowering: registers are free when they are taken, and few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import programs

from mpisim.base.errors import ProgramError
from mpisim.engine._core import allocate, overlapping_slots, requested_prices
from mpisim.engine.lowering import COMMUNICATION_ROW, INSTRUCTION, STREAM_ENTRY, Opcode, lower
from mpisim.program import Flag, Kind, Names, Operation, Program, Table, TableBuilder


@st.composite
def lifetimes(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n = draw(st.integers(0, 30))
    gaps = draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    spans = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    kernels = np.cumsum(gaps, dtype=np.int32)
    return kernels, (kernels + np.array(spans, np.int32)).astype(np.int32)


@given(lifetimes())
def test_no_register_is_written_while_somebody_will_read_it(
    lives: tuple[np.ndarray, np.ndarray],
) -> None:
    kernels, last_use = lives
    registers, n_registers = allocate(kernels, last_use)
    most = 0
    for row in range(int(last_use.max(initial=0)) + 1):
        # A row that reads a kernel's end for the last time may write to its register.
        alive = (kernels <= row) & (row < last_use)
        assert len(set(registers[alive].tolist())) == alive.sum()
        most = max(most, int(alive.sum()))
    assert n_registers == most


def test_sizes_of_structs() -> None:
    assert INSTRUCTION.itemsize == 64
    assert COMMUNICATION_ROW.itemsize == 32
    assert STREAM_ENTRY.itemsize == 32


def a_table() -> Table:
    rows = TableBuilder(Names())
    rows.kernel("a", 0, 1)
    rows.point_to_point(Kind.SEND, 0, 1, 8, duration=1)
    rows.point_to_point(Kind.RECV, 1, 1, 8, duration=1, flags=Flag.JOINED | Flag.EAGER)
    rows.kernel("b", 0, 1)
    rows.kernel("c", 1, 1, waits=[1])
    rows.host_wait([0])
    rows.kernel("d", 1, 1)
    return rows.build(queue_depth=2)


def test_kernels_of_a_table() -> None:
    code = lower(a_table())
    assert code.first.tolist() == [0, 1, 1, 3, 4, 5, 6]
    assert code.last.tolist() == [0, 2, 2, 3, 4, 5, 6]
    assert code.stream_row.tolist() == [-1, -1, -1, 0, 1, -1, 4]
    assert code.queue_row.tolist() == [-1, -1, -1, -1, -1, -1, 1]
    assert code.communications["row"].tolist() == [1, 2]
    assert code.n_eager == 1
    assert [Opcode(o).name for o in code.instructions["opcode"]] == [
        "KERNEL",
        "BATCH",
        "JOIN",
        "SIMPLE_KERNEL",
        "SIMPLE_KERNEL",
        "HOST_WAIT",
        "KERNEL",
    ]


def test_a_long_chain_needs_one_register() -> None:
    rows = TableBuilder(Names())
    for _ in range(1000):
        rows.kernel("a", 0, 1)
    assert lower(rows.build()).n_registers == 1


def test_empty_table() -> None:
    code = lower(TableBuilder(Names()).build())
    assert code.n_registers == 0
    assert len(code.instructions) == len(code.final) == 0


@given(program=programs())
def test_registers_are_no_more_than_kernels(program: Program) -> None:
    for table in program.tables:
        assert table is not None
        kernels = int((table.is_device & ((table.flags & Flag.JOINED) == 0)).sum())
        assert lower(table).n_registers <= kernels


@given(program=programs(unpriced=True), delayed=st.booleans())
def test_each_price_is_requested_once(program: Program, delayed: bool) -> None:
    for table in program.tables:
        assert table is not None
        unpriced = np.flatnonzero(table.is_communication & (table.duration < 0))
        columns = [table.operation, table.bytes, table.slot]
        delay = None
        if delayed:
            delay = np.zeros(len(table), np.int64)
            delay[unpriced] = unpriced % 3
            columns.append(delay)
        keys = list(zip(*(column[unpriced].tolist() for column in columns), strict=True))
        rows, which, first = requested_prices(table, delay)
        assert rows.tolist() == unpriced.tolist()
        assert [keys[unpriced.tolist().index(row)] for row in first[which].tolist()] == keys
        assert first.tolist() == [rows[keys.index(key)] for key in dict.fromkeys(keys)]


def test_slots_on_which_operations_may_overlap() -> None:
    """Those of several streams, of several rows in one kernel, EAGER rows and given durations."""
    rows = TableBuilder(Names())
    cases = (
        ((0, Flag.NONE, -1), (0, Flag.NONE, -1)),
        ((0, Flag.NONE, -1), (1, Flag.NONE, -1)),
        ((0, Flag.NONE, -1), (0, Flag.JOINED, -1)),
        ((0, Flag.EAGER, -1),),
        ((0, Flag.NONE, 5),),
    )
    for slot, operations in enumerate(cases):
        for stream, flags, duration in operations:
            rows.collective(Operation.ALL_REDUCE, slot, stream, 8, flags=flags, duration=duration)
    assert overlapping_slots(rows.build()).tolist() == [False, True, True, True, True]


def test_joined_rows_have_no_waits_of_their_own() -> None:
    rows = TableBuilder(Names())
    first = rows.kernel("a", 1, 1)
    rows.collective(Operation.BARRIER, 0, 0, 0, duration=1)
    rows.point_to_point(Kind.SEND, 1, 0, 8, duration=1, flags=Flag.JOINED, waits=[first])
    with pytest.raises(ProgramError, match="row 2: a JOINED row waits for nothing of its own"):
        rows.build()
