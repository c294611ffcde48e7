"""The engine against an independent computation, and the compiled core against its twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from oracle import Times, longest_paths
from programs import programs

from mpisim.engine import Binding, Run, simulate
from mpisim.program import Flag, Kind, Program
from mpisim.topo.alpha_beta import AlphaBeta

COST = AlphaBeta(
    latency=3e-12, bandwidth=5e14, ranks_per_node=2, node_latency=1e-12, node_bandwidth=2e15
)
"""A few ps for some kB, so that costs and the small durations of random programs compete."""


@given(program=programs(unpriced=True))
@settings(max_examples=300)
def test_times_are_longest_paths(program: Program) -> None:
    expected = longest_paths(program, COST)
    run = simulate(program, network=COST)
    for rank in range(program.n_ranks):
        rows = run.rows(rank)
        np.testing.assert_array_equal(rows.begin, expected.begin[rank])
        np.testing.assert_array_equal(rows.end, expected.end[rank])
        np.testing.assert_array_equal(rows.wire, expected.wire[rank])
        check_bindings(program, rank, run, expected)
    np.testing.assert_array_equal(run.rank_end, expected.rank_end)
    assert run.step_time == expected.rank_end.max()


@given(program=programs(unpriced=True))
@settings(max_examples=200)
def test_compiled_core_does_what_its_twin_does(program: Program) -> None:
    compiled, python = (
        simulate(program, network=COST, critical_path=True, core=core)
        for core in ("compiled", "python")
    )
    for rank in range(program.n_ranks):
        for a, b in zip(compiled.rows(rank), python.rows(rank), strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(compiled.rank_end, python.rank_end)
    assert compiled.digest == python.digest
    assert compiled.critical_path is not None
    assert python.critical_path is not None
    for name in ("kind", "rank", "row", "begin", "end", "name"):
        np.testing.assert_array_equal(
            getattr(compiled.critical_path, name), getattr(python.critical_path, name)
        )


def check_bindings(program: Program, rank: int, run: Run, expected: Times) -> None:
    """Check that the input which each row names was the last to arrive."""
    table = program.table_of(rank)
    end, first = expected.end[rank], list(range(len(table)))
    for row in range(len(table)):
        if table.flags[row] & Flag.JOINED:
            first[row] = first[row - 1]
    launched: dict[int, list[int]] = {}

    def kernel_end(row: int) -> int:
        return max(int(end[i]) for i in range(len(table)) if first[i] == first[row])

    for row in range(len(table)):
        binding = int(run.rows(rank).binding[row])
        kind = Kind(int(table.kind[row]))
        waits = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()
        ended = [kernel_end(wait) for wait in waits]
        if kind is Kind.HOST:
            assert binding == Binding.HOST
        elif kind is Kind.HOST_WAIT:
            inputs = {Binding.WAIT + i: t for i, t in enumerate(ended)}
            inputs[Binding.HOST] = int(expected.begin[rank][row] + table.host[row])
            assert inputs[binding] == max(inputs.values())
            assert binding != Binding.HOST or inputs[binding] > max(ended, default=-99)
        elif first[row] < row:
            assert binding == int(run.rows(rank).binding[first[row]]) & ~Binding.QUEUE
        else:
            on_stream = launched.setdefault(int(table.stream[row]), [])
            gap = int(table.gap[row])
            inputs = {Binding.WAIT + i: t + gap for i, t in enumerate(ended)}
            if on_stream:
                inputs[Binding.STREAM] = kernel_end(on_stream[-1]) + gap
            inputs[Binding.HOST] = int(expected.call[rank][row] + table.launch[row])
            assert inputs[binding & ~Binding.QUEUE] == max(inputs.values())
            depth = table.queue_depth
            full = depth > 0 and len(on_stream) >= depth
            assert bool(binding & Binding.QUEUE) == (
                full
                and kernel_end(on_stream[-depth]) == expected.call[rank][row]
                and kernel_end(on_stream[-depth]) > host_before(program, expected, rank, row)
            )
            on_stream.append(row)


def host_before(program: Program, expected: Times, rank: int, row: int) -> int:
    """Return the CPU's clock when it would have called a device row, were there no queue."""
    table = program.table_of(rank)
    clock = int(program.start[rank])
    for i in range(row):
        if table.kind[i] == Kind.HOST:
            clock = int(expected.end[rank][i])
        elif not table.flags[i] & Flag.JOINED:
            clock = int(expected.call[rank][i] + table.launch_cost[i])
    return clock + int(table.host[row])
