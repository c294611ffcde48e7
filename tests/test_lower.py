"""From calls and operations to rows: what the CPU does, and what it waits for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from traces import US, HandMade

from mpisim.engine import Run, simulate
from mpisim.program import Kind, Names, ProgramBuilder
from mpisim.traces.host import is_communication_kernel
from mpisim.traces.lower import QUEUE_DEPTH, Lowered, lower
from mpisim.traces.timing import explain_late_starts
from mpisim.traces.waits import infer_waits


def lowered(made: HandMade, folder: Path) -> tuple[Lowered, Names]:
    trace, calls = made.read(folder)
    inferred = infer_waits(trace, calls)
    timing = explain_late_starts(trace, calls, inferred)
    names = Names()
    is_comm = [is_communication_kernel(name) for name in trace.device.name]
    return lower(trace, calls, inferred, timing, names, is_comm), names


def run(found: Lowered, names: Names) -> Run:
    builder = ProgramBuilder()
    builder.names = names
    builder.add_rank(builder.add_table(found.table))
    return simulate(builder.build())


def assert_replays(found: Lowered, names: Names) -> None:
    """Every row of the replay ends when it did in the recording."""
    run_of = run(found, names)
    np.testing.assert_array_equal(run_of.rows(0).end + found.start, found.end)


def test_rows_and_cpu_time(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 9, 20, name="a")
    made.call("cudaEventQuery", 7, 8)  # CPU time like any other
    made.launch(25, 31, 34, 50, name="b")
    made.call("cudaDeviceSynchronize", 40, 62)
    made.launch(70, 75, 79, 90, name="c")
    found, names = lowered(made, tmp_path)
    table = found.table
    assert table.kind.tolist() == [Kind.KERNEL, Kind.KERNEL, Kind.HOST_WAIT, Kind.KERNEL]
    assert table.duration.tolist() == [11 * US, 16 * US, 0, 11 * US]
    # From the end of one call to the begin of the next: 25 - 5, 40 - 31, 70 - 62.
    assert table.host.tolist() == [0, 20 * US, 9 * US, 8 * US]
    # The calls; of the wait, what it took after the device was done at 50.
    assert table.launch_cost.tolist() == [5 * US, 6 * US, 12 * US, 5 * US]
    assert table.wait_row.tolist() == [1]
    assert found.op.tolist() == [0, 1, -1, 2]
    assert_replays(found, names)


def test_blocking_copies_are_waits(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 9, 500)
    made.launch(
        10, 525, 502, 510, name="Memcpy DtoH (Device -> Pageable)", call="cudaMemcpyAsync", bytes=4
    )
    made.launch(530, 535, 539, 550)
    found, names = lowered(made, tmp_path)
    assert found.table.kind.tolist() == [Kind.KERNEL, Kind.COPY, Kind.HOST_WAIT, Kind.KERNEL]
    # The copy's call costs nothing but the tail after it: 525 - 510.
    assert found.table.launch_cost.tolist() == [5 * US, 0, 15 * US, 5 * US]
    assert found.table.bytes.tolist() == [-1, 4, -1, -1]
    assert_replays(found, names)


def test_waiting_is_no_cpu_time(tmp_path: Path) -> None:
    """With a device twenty times as fast, what the CPU waited for it goes."""
    made = HandMade()
    made.launch(0, 5, 9, 2009)
    made.call("cudaStreamSynchronize", 10, 2019)
    made.launch(2020, 2025, 2029, 2039)
    found, names = lowered(made, tmp_path)
    table = found.table
    fast = Lowered(
        table.replace(duration=table.duration // 20), found.op, found.begin, found.end, found.start
    )
    # 9 + 2000/20 = 109; + 10 tail + 1 CPU + 9 latency = 129; + 10/20.
    assert run(fast, names).step_time == 129_500_000


def test_steps_are_marks(tmp_path: Path) -> None:
    made = HandMade()
    made.note("ProfilerStep#3", 0, 100)
    made.launch(20, 25, 29, 40)
    made.note("ProfilerStep#4", 100, 200)
    made.launch(120, 125, 129, 140)
    found, names = lowered(made, tmp_path)
    texts = list(names)
    assert [texts[i] for i in found.table.name.tolist()] == [
        "ProfilerStep#3 begin",
        "gemm",
        "ProfilerStep#3 end",
        "ProfilerStep#4 begin",
        "gemm",
        "ProfilerStep#4 end",
    ]
    assert found.table.step.tolist() == [3, 3, 3, 4, 4, 4]
    assert_replays(found, names)


def test_unlaunched_operations_follow_their_stream(tmp_path: Path) -> None:
    made = HandMade()
    made.device(0, 100, name="in flight")
    made.launch(10, 15, 102, 150, name="launched")
    made.device(152, 160, name="no call of its own")
    made.launch(20, 25, 162, 170, name="last")
    found, names = lowered(made, tmp_path)
    texts = list(names)
    assert [texts[i] for i in found.table.name.tolist()] == [
        "in flight",
        "launched",
        "no call of its own",
        "last",
    ]
    assert found.table.launch_cost.tolist() == [0, 5 * US, 0, 5 * US]
    assert_replays(found, names)


def test_a_graph_costs_one_call(tmp_path: Path) -> None:
    made = HandMade()
    graph = made.call("cudaGraphLaunch", 0, 40)
    made.device(45, 50, correlation=graph, name="a")
    made.device(51, 60, correlation=graph, name="b")
    found, names = lowered(made, tmp_path)
    assert found.table.launch_cost.tolist() == [40 * US, 0]
    assert_replays(found, names)


def test_a_full_queue_is_a_wait(tmp_path: Path) -> None:
    """A launch that found the queue full blocked; its long call is no CPU time."""
    made = HandMade()
    ends = [100_009.0]
    made.launch(0, 1, 9, ends[0])
    host = 1.0
    for n in range(1, 1100):
        # One µs of CPU time, one of a call; which waits for the operation 1,022 before it.
        begin = host + 1
        host = begin + 1 if n < QUEUE_DEPTH else max(begin, ends[n - QUEUE_DEPTH]) + 1
        ends.append(ends[-1] + 11)
        made.launch(begin, host, ends[-1] - 10, ends[-1])
    found, names = lowered(made, tmp_path)
    assert found.table.queue_depth == QUEUE_DEPTH
    # 98 ms of waiting in the first call that found the queue full; its cost is the usual one.
    assert found.table.launch_cost.tolist()[1:1023] == [US] * 1022
    np.testing.assert_array_equal(run(found, names).rows(0).end + found.start, found.end)


def test_no_queue_limit_is_known_of_hip(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 9, 20, call="hipLaunchKernel")
    found, _ = lowered(made, tmp_path)
    assert found.table.queue_depth == 0


def test_stalls_are_listed(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 9, 20)
    made.call("cudaDeviceSynchronize", 30, 1030)
    found, _ = lowered(made, tmp_path)
    assert [stall[:3] for stall in found.stalls] == [(0.001, "cudaDeviceSynchronize", -1)]


def test_two_threads_are_one_clock(tmp_path: Path) -> None:
    """A thread that blocks ends after what the other launches meanwhile."""
    made = HandMade()
    made.launch(0, 5, 9, 400, name="a", thread=1)
    made.call("cudaStreamSynchronize", 10, 410, thread=1)
    made.launch(50, 55, 402, 430, name="b", thread=2)
    made.launch(420, 425, 432, 440, name="c", thread=1)
    found, names = lowered(made, tmp_path)
    texts = list(names)
    assert [texts[i] for i in found.table.name.tolist()] == ["a", "b", "cudaStreamSynchronize", "c"]
    assert_replays(found, names)
