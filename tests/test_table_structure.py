"""What tables that differ in durations alone have in common, and what they do not."""

import pickle

import numpy as np
import pytest

from mpisim.base.errors import ProgramError
from mpisim.engine import simulate
from mpisim.engine.lowering import LoweredTables, lower, stream_view
from mpisim.program import Names, Operation, ProgramBuilder, Table, TableBuilder


def a_table() -> Table:
    """A kernel, a communication that waits for it, and a kernel that waits for that."""
    rows = TableBuilder(Names())
    first = rows.kernel("gemm", stream=0, duration=7)
    second = rows.collective(Operation.ALL_REDUCE, slot=0, stream=1, bytes=8, waits=[first])
    rows.kernel("gemm", stream=0, duration=9, waits=[second])
    return rows.build()


def test_tables_that_differ_in_durations_share_instructions() -> None:
    table, lowered = a_table(), LoweredTables()
    code = lower(table, lowered.tables)
    view, ordinal = stream_view(code, lowered.views), table.ordinal
    other = table.replace(duration=table.duration * 2 + (table.duration < 0))
    again = lower(other, lowered.tables)
    assert again.table is other
    assert again.instructions is code.instructions
    assert stream_view(again, lowered.views) is view
    assert other.ordinal is ordinal
    assert other.replace(duration=table.duration).structure is other.structure is table


def test_shared_instructions_are_those_of_a_new_table() -> None:
    table, codes = a_table(), {}
    kept = lower(table, codes)
    other = table.replace(duration=table.duration.copy())
    shared, fresh = lower(other, codes), lower(a_table())
    assert shared.instructions is kept.instructions
    for name, value in vars(fresh).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(shared, name), value)


def test_tables_that_differ_in_more_share_nothing() -> None:
    table, codes = a_table(), {}
    code = lower(table, codes)
    other = table.replace(host=table.host + 3)
    assert other.structure is other
    assert lower(other, codes).instructions["host"].tolist() == [3, 3, 3]
    assert code.instructions["host"].tolist() == [0, 0, 0]


def test_a_run_that_is_given_the_setup_of_another_shares_its_instructions() -> None:
    builder = ProgramBuilder()
    builder.add_rank(builder.add_table(a_kernel(builder)))
    program = builder.build()
    first = simulate(program)
    (table,) = program.tables
    assert table is not None
    longer = program.replace(tables=(table.replace(duration=table.duration + 1),), start=[5])
    codes = first.setup.lowered.tables
    assert list(codes) == [table]
    again = simulate(longer, setup=first.setup)
    assert again.setup.lowered.tables is codes
    assert list(codes) == [table]
    assert again.step_time == first.step_time + 6


def a_kernel(builder: ProgramBuilder) -> Table:
    """A table of one kernel."""
    rows = builder.table()
    rows.kernel("gemm", stream=0, duration=7)
    return rows.build()


def test_a_table_is_sent_without_its_original() -> None:
    table = a_table()
    other = table.replace(duration=table.duration.copy())
    sent = pickle.loads(pickle.dumps(other))
    assert sent.structure is sent
    assert lower(sent).instructions.tolist() == lower(table).instructions.tolist()


def test_durations_are_checked_where_nothing_else_is() -> None:
    table = a_table()
    kernels = np.flatnonzero(~table.is_communication)
    bad = table.duration.copy()
    bad[kernels[0]] = -1
    with pytest.raises(ProgramError, match=rf"row {kernels[0]}: the duration is negative"):
        table.replace(duration=bad)
    with pytest.raises(ProgramError, match=r"'duration' has shape"):
        table.replace(duration=bad[:-1])
