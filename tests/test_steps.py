"""One rule for step times, recorded and replayed. Times in small whole ps."""

from __future__ import annotations

import numpy as np

from mpisim.engine import simulate
from mpisim.program import Names, ProgramBuilder, TableBuilder
from mpisim.results.step_times import step_times


def times(rows: TableBuilder) -> dict[int, int]:
    builder = ProgramBuilder()
    builder.names = rows.names
    builder.add_rank(builder.add_table(rows.build()))
    program = builder.build()
    run = simulate(program)
    return step_times(program.table_of(0), program.names, run.rows(0).begin, run.rows(0).end)


def mark(rows: TableBuilder, number: int, which: str, host: int = 0) -> None:
    rows.tags(step=number)
    rows.host(host, name=f"ProfilerStep#{number} {which}")


def test_no_step_is_the_span_of_the_device() -> None:
    rows = TableBuilder(Names())
    rows.host(100)
    rows.kernel("a", 0, 30, launch=5)
    rows.kernel("b", 0, 20)
    rows.host(1000)
    # The first operation begins at 105; the second ends at 105 + 30 + 20.
    assert times(rows) == {-1: 50}


def test_one_step_ends_with_the_later_of_host_and_device() -> None:
    for work, expected in ((500, 7 + 500), (5, 40)):
        rows = TableBuilder(Names())
        rows.host(1000)
        mark(rows, 3, "begin")
        rows.kernel("a", 0, work, launch=7)
        mark(rows, 3, "end", host=40)
        assert times(rows) == {3: expected}


def test_several_steps_are_device_periods() -> None:
    rows = TableBuilder(Names())
    for number, work in ((4, 10), (5, 200), (6, 30)):
        mark(rows, number, "begin")
        rows.kernel("a", 0, work)
        mark(rows, number, "end", host=50)
    # Ends: 10; 50 + 200 = 250; the third is launched at 100 and queues: 280. The first is left out.
    assert times(rows) == {5: 240, 6: 30}


def test_a_step_without_device_work_is_none() -> None:
    rows = TableBuilder(Names())
    for number in (1, 2, 3):
        mark(rows, number, "begin")
        if number != 2:
            rows.kernel("a", 0, 10)
        mark(rows, number, "end", host=100)
    assert times(rows) == {3: 200}


def test_nothing_on_the_device() -> None:
    rows = TableBuilder(Names())
    mark(rows, 1, "begin")
    table = rows.build()
    assert step_times(table, tuple(rows.names), np.zeros(1, np.int64), np.zeros(1, np.int64)) == {}
