"""Tests of steps whose time follows from one short one: engine level, with programs by hand."""

from __future__ import annotations

import pytest

from mpisim import engine
from mpisim.engine.steady_rounds import steady_period
from mpisim.program import Phase, Program, ProgramBuilder


def loop(
    rounds: int,
    *,
    kernel: int = 10,
    host: int = 1,
    lead: int = 0,
    beside: int = 0,
    joined: bool = False,
    synchronous: bool = False,
    last_waits_for_first: bool = False,
) -> Program:
    """A kernel a round and what a test varies: lead of the CPU, a stream beside, waits."""
    builder = ProgramBuilder()
    rows = builder.table()
    first = other = rows.kernel("first", 0, duration=lead)
    for number in range(rounds):
        rows.tags(phase=Phase.FORWARD, micro_batch=number)
        kernel_row = rows.kernel("kernel", 0, duration=kernel, host=host)
        if beside:
            other = rows.kernel("beside", 1, duration=beside)
        if synchronous:
            rows.host_wait([kernel_row], host=host)
    rows.tags(phase=Phase.OPTIMIZER, micro_batch=-1)
    waits = ([other] if joined else []) + ([first] if last_waits_for_first else [])
    rows.kernel("end", 0, duration=10, waits=waits)
    builder.add_table(rows.build())
    builder.add_rank(0)
    return builder.build()


def period(program: Program) -> int | None:
    return steady_period([engine.simulate(program)], None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"host": 10},
        {"beside": 10, "joined": True},
        {"last_waits_for_first": True},
        {"lead": 1000, "host": 9},
        {"synchronous": True},
        {"synchronous": True, "host": 7},
        {"host": 11},  # the device waits for the CPU in every round
    ],
    ids=str,
)
def test_further_rounds_take_the_period_each(options: dict[str, int]) -> None:
    few, many = (engine.simulate(loop(rounds, **options)) for rounds in (5, 200))
    found = steady_period([few], None)
    assert found is not None
    assert many.step_time == few.step_time + 195 * found


@pytest.mark.parametrize(
    "options",
    [
        {"host": 11, "lead": 1000},  # the CPU falls behind, but began early
        {"beside": 11, "lead": 1000, "joined": True},
        {"beside": 11, "joined": True},
        {"beside": 9, "joined": True},  # a stream that runs ahead
    ],
    ids=str,
)
def test_what_falls_behind_is_not_periodic(options: dict[str, int]) -> None:
    assert period(loop(5, **options)) is None


def test_too_few_rounds_tell_nothing() -> None:
    assert period(loop(0)) is None
    assert period(loop(1)) is None
    assert period(loop(2)) == 10


def test_passes_must_all_be_periodic() -> None:
    steady, other = engine.simulate(loop(5)), engine.simulate(loop(5, host=11, lead=1000))
    assert steady_period([steady, steady], None) == 10
    assert steady_period([other, steady], None) is None
    assert steady_period([], None) is None
