"""What tables of one structure have in common, and what they do not."""

import gc
import pickle

import numpy as np
import pytest

from mpisim.base.errors import ProgramError
from mpisim.engine.lowering import lower, stream_view
from mpisim.program import Names, Operation, Table, TableBuilder


def a_table() -> Table:
    """A kernel, a communication that waits for it, and a kernel that waits for that."""
    rows = TableBuilder(Names())
    first = rows.kernel("gemm", stream=0, duration=7)
    second = rows.collective(Operation.ALL_REDUCE, slot=0, stream=1, bytes=8, waits=[first])
    rows.kernel("gemm", stream=0, duration=9, waits=[second])
    return rows.build()


def test_tables_that_differ_in_times_share_what_was_made_of_them() -> None:
    table = a_table()
    code = lower(table)
    view, ordinal = stream_view(code), table.ordinal
    other = table.replace(duration=table.duration * 2 + (table.duration < 0))
    again = lower(other)
    assert again.table is other
    assert again.instructions is code.instructions
    assert stream_view(again) is view
    assert other.ordinal is ordinal


def test_what_was_made_is_what_a_new_table_gives() -> None:
    table = a_table()
    kept = lower(table)
    other = table.replace(longer=np.array([0, 5, 0]))
    shared, fresh = lower(other), lower(a_table().replace(longer=other.longer))
    assert shared.instructions is kept.instructions
    for name, value in vars(fresh).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(shared, name), value)


def test_tables_that_differ_in_more_share_nothing() -> None:
    table = a_table()
    code = lower(table)
    other = table.replace(host=table.host + 3)
    assert lower(other).instructions["host"].tolist() == [3, 3, 3]
    assert code.instructions["host"].tolist() == [0, 0, 0]


def test_it_is_let_go_with_its_last_user() -> None:
    table = a_table()
    code = lower(table)
    assert len(table.structure) == 1
    del code
    gc.collect()
    assert not table.structure


def test_a_table_is_sent_without_it() -> None:
    table = a_table()
    code = lower(table)
    sent = pickle.loads(pickle.dumps(table))
    assert not sent.structure
    assert lower(sent).instructions.tolist() == code.instructions.tolist()


def test_times_are_checked_where_nothing_else_is() -> None:
    table = a_table()
    kernels = np.flatnonzero(~table.is_communication)
    bad = table.duration.copy()
    bad[kernels[0]] = -1
    with pytest.raises(ProgramError, match=rf"row {kernels[0]}: the duration is negative"):
        table.replace(duration=bad)
    with pytest.raises(ProgramError, match=r"'duration' has shape"):
        table.replace(duration=bad[:-1])
    longer = np.zeros(len(table), np.int64)
    longer[kernels[0]] = 1
    with pytest.raises(ProgramError, match=r"'longer' of a row with a duration"):
        table.replace(longer=longer)
