"""Rows worked out after a run, ranks with identical timelines, and sums over rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import programs

from mpisim.base.array_keys import size_of
from mpisim.engine import simulate
from mpisim.engine._core import Ledger, fingerprint
from mpisim.engine.rows import Solution
from mpisim.program import Jitter, Kind, Operation, Program, ProgramBuilder
from mpisim.topo.alpha_beta import AlphaBeta

COST = AlphaBeta(latency=3e-12, bandwidth=5e14)


def solution(program: Program, **options: object) -> Solution:
    return simulate(program, network=COST, fold=False, **options).solution  # type: ignore[arg-type]


@given(program=programs(unpriced=True))
@settings(max_examples=100)
def test_ranks_with_identical_timelines_are_found(program: Program) -> None:
    found = solution(program)
    identical = found.identical().tolist()
    tables = program.table.tolist()
    rows = [found.rows(local) for local in range(program.n_ranks)]
    for one in range(program.n_ranks):
        assert identical[one] <= one
        for other in range(one):
            same = tables[one] == tables[other] and all(
                np.array_equal(a, b) for a, b in zip(rows[one], rows[other], strict=True)
            )
            # Ranks may differ in what shows in no row, such as the start of one without rows.
            assert same or identical[one] != identical[other]


def test_last_member_to_be_ready_is_the_lowest_of_several() -> None:
    builder = ProgramBuilder()
    world = builder.communicator(range(3))
    for work in (20, 50, 50):
        table = builder.table()
        before = table.kernel("k", 0, work)
        table.collective(Operation.BARRIER, 0, 1, 8, duration=5, waits=[before])
        builder.add_rank(builder.add_table(table.build()), [world])
    found = solution(builder.build())
    assert [found.last_ready(local).tolist() for local in range(3)] == [
        [1]
    ] * 3  # the lowest of two
    assert found.rows(0).wire.tolist() == [0, 50]


def test_fingerprint_depends_on_the_order_of_communications() -> None:
    """Unlike a sum over communications: times that change places are other times."""
    a, b = np.array([1, 2, 3]), np.array([-4, 5, 6])
    seen = {
        fingerprint(one, other)
        for one, other in ((a, b), (b, a), (a[::-1].copy(), b[::-1].copy()), (a, a), (a[:2], b[:2]))
    }
    assert len(seen) == 5
    assert fingerprint(a.copy(), b.copy()) in seen


def test_rows_are_kept_for_few_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = 4
    builder = ProgramBuilder()
    rows = builder.table()
    rows.kernel("a", 0, 7)
    number = builder.add_table(rows.build())
    for _ in range(2 * kept):
        builder.add_rank(number)
    program = builder.build()
    of_a_rank = size_of(solution(program).rows(0))
    monkeypatch.setattr("mpisim.engine.rows._MAX_CACHED_BYTES", kept * of_a_rank)
    found = solution(program)
    first = found.rows(0)
    assert found.rows(0) is first
    for local in range(2 * kept):
        found.rows(local)
    assert len(found._cached) == kept
    assert found.rows(0) is not first


# --- accounts -----------------------------------------------------------------------------------

N_PARTS, N_COMPUTE, N_DEVICE = 9, 4, 8

INTERVAL = st.tuples(
    st.integers(0, 3),
    st.integers(0, N_PARTS - 1),
    st.integers(0, N_DEVICE - 1),
    st.integers(-5, 30),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 4),
)
"""Stream, part, part while it waits, begin, time to wait, time on the wire or at work, and key."""


@given(intervals=st.lists(INTERVAL, max_size=12), until=st.integers(0, 40))
@settings(max_examples=500)
def test_every_moment_counts_for_one_part(
    intervals: list[tuple[int, int, int, int, int, int, int]], until: int
) -> None:
    stream, part, waiting, begin, wait, work, key = np.array(intervals, np.int64).reshape(-1, 7).T
    communicates = (part >= N_COMPUTE) & (part < N_DEVICE)
    wire = begin + np.where(communicates, wait, 0)
    waiting = np.maximum(waiting, N_COMPUTE)
    order = np.argsort(stream, kind="stable")
    index = np.concatenate([[0], np.cumsum(np.bincount(stream, minlength=4))])
    table = order.astype(np.int32), index, part.astype(np.uint8), waiting.astype(np.uint8)
    rows = begin.copy(), wire + work, wire, until
    sizes = 5, N_PARTS, N_COMPUTE, N_DEVICE
    covered, sums = Ledger(*table, key.astype(np.int32), *sizes).of_rows(*rows)
    expected = [0] * (N_PARTS + 1)
    for moment in range(until):
        here = {
            int(what)
            for what, first, last in (
                *zip(part, wire, wire + work, strict=True),
                *zip(waiting, begin, wire, strict=True),
            )
            if first <= moment < last
        }
        if here:
            expected[min(here)] += min(here) < N_DEVICE
            expected[-1] += any(N_COMPUTE <= each < N_DEVICE for each in here)
    ends = {True: 0, False: 0}  # of the host's work, of the device's
    for host, first, last in (
        *zip(part >= N_DEVICE, wire, wire + work, strict=True),
        *zip(waiting >= N_DEVICE, begin, wire, strict=True),
    ):
        if max(first, 0) < min(last, until):
            ends[bool(host)] = max(ends[bool(host)], min(int(last), until))
    expected[N_DEVICE] = max(ends[True] - ends[False], 0)
    assert covered.tolist() == expected
    assert sums[0].tolist() == np.bincount(key, work, 5).tolist()
    assert sums[1].tolist() == np.bincount(key, wire - begin, 5).tolist()
    assert sums[2].tolist() == [max(work[key == k], default=0) for k in range(5)]


@given(
    program=programs(unpriced=True),
    jitter=st.sampled_from((None, Jitter(0.1, 3))),
    slow=st.booleans(),
    until=st.one_of(st.integers(0, 200), st.just(1 << 60)),
    by_stream=st.booleans(),
)
@settings(max_examples=150)
def test_sums_of_ranks_are_those_of_their_rows(
    program: Program, jitter: Jitter | None, slow: bool, until: int, by_stream: bool
) -> None:
    """Ranks side by side, whose rows are replayed, with those of rows that were worked out.

    By one ledger, whose scratch is used again; in any order of rows, by their streams or not.
    """
    speed = 1 / (1 + np.arange(program.n_ranks) % 3) if slow else np.ones(program.n_ranks)
    found = solution(program.replace(jitter=jitter, speed=speed))
    for number in set(program.table.tolist()):
        table = program.tables[number]
        assert table is not None
        device = np.flatnonzero(table.is_device).astype(np.int32)
        row = np.arange(len(table))
        part = np.where(table.kind <= Kind.COPY, row % 3, 4 + row % 2).astype(np.uint8)
        waiting = np.full(len(table), 6, np.uint8)
        key = (np.arange(len(table)) % 3).astype(np.int32)
        streams = np.array([0, len(device)])
        if by_stream:
            device = device[np.argsort(table.stream[device], kind="stable")]
            streams = np.searchsorted(table.stream[device], np.arange(table.n_streams + 1))
        of_table = device, streams, part, waiting, key, 3, 7, 3, 7
        ranks = np.flatnonzero(program.table == number)
        ledger = Ledger(*of_table)
        for _ in range(2):
            covered, sums, host_end = found.accounts(ranks, ledger, until)
            for i, local in enumerate(ranks.tolist()):
                rows = found.rows(local)
                assert host_end[i] == rows.host_end
                expected = Ledger(*of_table).of_rows(rows.begin, rows.end, rows.wire, until)
                np.testing.assert_array_equal(covered[i], expected[0])
                np.testing.assert_array_equal(sums[i], expected[1])
