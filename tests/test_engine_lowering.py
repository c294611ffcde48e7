"""Lowering: registers are free when they are taken, and few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import programs

from mpisim.base.errors import ProgramError
from mpisim.engine._core import (
    allocate,
    asked_twin,
    core,
    instructions_twin,
    kernels_of,
    overlapping_slots,
    requested_prices,
    steps_twin,
    view_streams,
)
from mpisim.engine._core.twin import allocate as allocate_twin
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
    twin, n_twin = allocate_twin(kernels, last_use)
    assert registers.tolist() == twin.tolist()
    assert n_registers == n_twin
    most = 0
    for row in range(int(last_use.max(initial=0)) + 1):
        # A row that reads a kernel's end for the last time may write to its register.
        alive = (kernels <= row) & (row < last_use)
        assert len(set(registers[alive].tolist())) == alive.sum()
        most = max(most, int(alive.sum()))
    assert n_registers == most


def test_structs_have_the_sizes_that_compiled_code_expects() -> None:
    assert INSTRUCTION.itemsize == 64
    assert COMMUNICATION_ROW.itemsize == 32
    assert STREAM_ENTRY.itemsize == 32


def test_unknown_core() -> None:
    with pytest.raises(ValueError, match="neither 'compiled' nor 'python'"):
        core("fortran")


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


@given(program=programs(), depth=st.integers(0, 3), near=st.integers(0, 4))
def test_compiled_and_twin_are_equal(program: Program, depth: int, near: int) -> None:
    for table in program.tables:
        assert table is not None
        table = table.replace(queue_depth=depth)
        places = kernels_of(table)
        assert_equal(places, instructions_twin.kernels_of(table))
        code = lower(table)
        given_ = (allocate(*places[4:])[0], places[0], *places[2:4])
        twins = np.zeros_like(code.instructions), np.zeros_like(code.communications)
        operands = instructions_twin.write_instructions(table, *given_, *twins)
        assert_equal((operands, *twins), (code.operands, code.instructions, code.communications))
        views = []
        for write in (view_streams, steps_twin.view_streams):
            entries, clock = np.zeros(len(table), STREAM_ENTRY), np.zeros(len(table), np.int64)
            views.append((*write(code, near, entries, clock), entries, clock))
        assert_equal(*views)


@given(program=programs(unpriced=True), some=st.booleans())
def test_compiled_and_twin_ask_for_the_same(program: Program, some: bool) -> None:
    for table in program.tables:
        assert table is not None
        unpriced = table.is_communication & (table.duration < 0)
        delay = np.where(unpriced, np.arange(len(table)) % 3, 0) if some else None
        assert_equal(requested_prices(table, delay), asked_twin.requested_prices(table, delay))
        several = overlapping_slots(table)
        assert several.tolist() == asked_twin.overlapping_slots(table).tolist()


def assert_equal(found: tuple[object, ...], twin: tuple[object, ...]) -> None:
    for one, other in zip(found, twin, strict=True):
        np.testing.assert_array_equal(one, other)


def test_joined_rows_have_no_waits_of_their_own() -> None:
    rows = TableBuilder(Names())
    first = rows.kernel("a", 1, 1)
    rows.collective(Operation.BARRIER, 0, 0, 0, duration=1)
    rows.point_to_point(Kind.SEND, 1, 0, 8, duration=1, flags=Flag.JOINED, waits=[first])
    with pytest.raises(ProgramError, match="row 2: a JOINED row waits for nothing of its own"):
        rows.build()
