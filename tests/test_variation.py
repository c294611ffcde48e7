"""Speeds and jitter: exact products, factors that depend on nothing but seed, rank and row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim import engine
from mpisim.base.errors import ProgramError
from mpisim.engine.duration_factors import (
    ONE,
    DurationFactors,
    jitter_factors,
    jitter_key,
    jitter_table,
    scaled,
    speed_factor,
)
from mpisim.program import Jitter, Operation, Program, ProgramBuilder, load, save


@given(st.lists(st.integers(0, 1 << 60), min_size=1, max_size=20), st.integers(1, 1 << 34))
def test_products_are_exact(values: list[int], factor: int) -> None:
    values = [value for value in values if value * factor >> 32 < 1 << 62]
    found = scaled(np.array(values, np.uint64), np.uint64(factor))
    assert found.tolist() == [(value * factor + (1 << 31)) >> 32 for value in values]


def test_a_factor_is_the_inverse_of_a_speed() -> None:
    assert speed_factor([1.0, 2.0, 0.25]).tolist() == [ONE, ONE // 2, 4 * ONE]
    assert scaled(np.array([1000], np.uint64), speed_factor([0.8]))[0] == 1250


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3])
def test_factors_are_lognormal_with_mean_one(spread: float) -> None:
    table = jitter_table(spread).astype(float) / ONE
    assert table.mean() == pytest.approx(1, abs=1e-9)
    assert np.log(table).std() == pytest.approx(spread, rel=5e-3)  # its tails are cut at 3.7
    drawn = jitter_factors(Jitter(spread, 7), 3, np.arange(200_000)).astype(float) / ONE
    assert drawn.mean() == pytest.approx(1, abs=5 * spread / np.sqrt(200_000) + 1e-9)
    assert np.log(drawn).std() == pytest.approx(spread, rel=0.02)


def test_factors_of_ranks_rows_and_seeds_are_independent() -> None:
    rows = np.arange(50_000)
    first = jitter_factors(Jitter(0.1, 1), 0, rows).astype(float)
    for other in (
        jitter_factors(Jitter(0.1, 2), 0, rows),
        jitter_factors(Jitter(0.1, 1), 1, rows),
        np.roll(jitter_factors(Jitter(0.1, 1), 0, rows), 1),
    ):
        assert abs(np.corrcoef(first, other.astype(float))[0, 1]) < 5 / np.sqrt(len(rows))


def test_a_hash_by_hand() -> None:
    """SplitMix64's published finalizer in Python's integers."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    key = mix(5 + 3 * golden & mask)
    assert jitter_key(5, [2]).tolist() == [key]
    table = jitter_table(0.05)
    expected = [int(table[mix(key + (row + 1) * golden & mask) >> 52]) for row in range(10)]
    assert jitter_factors(Jitter(0.05, 5), 2, np.arange(10)).tolist() == expected


@pytest.mark.parametrize(("spread", "seed"), [(-0.1, 0), (1.5, 0), (float("nan"), 0), (0.1, -1)])
def test_bad_jitter_is_refused(spread: float, seed: int) -> None:
    with pytest.raises(ProgramError, match="jitter"):
        Jitter(spread, seed)


@given(
    st.lists(st.integers(0, 1 << 50), min_size=1, max_size=20),
    st.sampled_from((None, Jitter(0.2, 9))),
    st.floats(0.1, 4),
)
def test_kernels_and_copies_vary_and_nothing_else(
    durations: list[int], jitter: Jitter | None, speed: float
) -> None:
    """The compiled pass against numpy: scaled by what is drawn for the row and by the speed."""
    program = _program(jitter, speed)
    variation = DurationFactors.of(program, np.array([1], np.int32))
    assert variation is not None or (jitter is None and speed == 1)
    if variation is None:
        return
    rows = np.arange(0, len(durations), 2)
    factors = int(variation.factor[0])
    drawn = factors if jitter is None else jitter_factors(jitter, 1, rows, factors)
    expected = np.array(durations, np.int64)
    expected[rows] = scaled(expected[rows].astype(np.uint64), drawn)
    assert variation.applied(0, np.array(durations, np.int64), rows).tolist() == expected.tolist()


def _program(jitter: Jitter | None, speed: float = 1.0) -> Program:
    """Two ranks: ten kernels of 1 us each, then an all-reduce of 2 us."""
    builder = ProgramBuilder()
    group = builder.communicator([0, 1])
    rows = builder.table("both")
    for _ in range(10):
        rows.kernel("gemm", stream=0, duration=1_000_000)
    rows.collective(Operation.ALL_REDUCE, slot=0, stream=1, bytes=8, duration=2_000_000, waits=[9])
    table = builder.add_table(rows.build())
    for rank in range(2):
        builder.add_rank(table, [group], speed if rank else 1.0)
    return builder.build().replace(jitter=jitter)


def test_a_step_with_jitter_by_hand() -> None:
    jitter = Jitter(0.1, 3)
    run = engine.simulate(_program(jitter, speed=0.5), contention=False)
    d = np.full(10, 1_000_000, np.uint64)
    slow = scaled(d, jitter_factors(jitter, 1, np.arange(10), 2 * ONE)).sum()
    fast = scaled(d, jitter_factors(jitter, 0, np.arange(10))).sum()
    assert run.step_time == max(int(slow), int(fast)) + 2_000_000


def test_no_spread_is_no_jitter() -> None:
    plain = engine.simulate(_program(None, 0.7), contention=False)
    assert engine.simulate(_program(Jitter(0), 0.7), contention=False).digest == plain.digest


def test_jitter_is_kept_in_a_program_file(tmp_path: Path) -> None:
    save(_program(Jitter(0.03, (1 << 64) - 1)), tmp_path / "p.h5")
    assert load(tmp_path / "p.h5").jitter == Jitter(0.03, (1 << 64) - 1)
    save(_program(None), tmp_path / "q.h5")
    assert load(tmp_path / "q.h5").jitter is None
