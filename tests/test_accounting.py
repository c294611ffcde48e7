"""Sums over rows of a run: breakdown of every rank, kernels, communications, steps."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from straggler import BREAKDOWN, LAST, OTHERS, STEP, US, straggler
from toys import Free

from mpisim.base.errors import InputError
from mpisim.engine import Run, simulate
from mpisim.program import Flag, Kind, Operation, Program, ProgramBuilder
from mpisim.results import collect, rank_steps
from mpisim.results.accounting import account, added_up
from mpisim.results.collect import limits
from mpisim.results.step_parts import PartLayout
from mpisim.topo.network import ExplainedNetwork

pytestmark = pytest.mark.two_processes


def broken_down(run: Run) -> dict[str, list[int]]:
    """Of each class of time, how much each hosted rank had of it, in ps."""
    names = np.arange(len(run.program.names))
    pieces = account(run, names, len(names), PartLayout.of(run.program)).breakdown
    return {column: pieces[:, i].tolist() for i, column in enumerate(BREAKDOWN)}


@pytest.mark.mpi
@pytest.mark.parametrize("n_ranks", [2, 5])
def test_the_straggler_to_the_picosecond(comm: Any, n_ranks: int) -> None:
    run = simulate(straggler(n_ranks), comm, critical_path=True)
    results = collect(run, comm=comm)
    assert (results is None) == (comm.rank > 0)
    if results is None:
        return
    assert results.step_time_ps == STEP
    assert results.step_time == pytest.approx(241e-6, rel=1e-12)
    found = np.stack([results.ranks[c] for c in BREAKDOWN], axis=1)
    np.testing.assert_array_equal(found, np.array([OTHERS] * (n_ranks - 1) + [LAST]) * US)
    assert results.ranks["rows"].tolist() == [5] * n_ranks

    n = n_ranks
    kernels = {k: v.tolist() for k, v in results.kernels.items()}
    assert kernels["name"] == ["gemm", "adam", "HtoD"]
    assert kernels["kind"] == [Kind.KERNEL, Kind.KERNEL, Kind.COPY]
    assert kernels["count"] == [n, n, n]
    assert kernels["total"] == [(100 * (n - 1) + 150) * US, 30 * n * US, 20 * n * US]
    assert kernels["longest"] == [150 * US, 30 * US, 20 * US]

    met = {k: v.tolist() for k, v in results.communications.items()}
    assert met.pop("bandwidth") == pytest.approx([4096 / 50e-6])
    assert met.pop("bus_bandwidth") == pytest.approx([4096 / 50e-6 * 2 * (n - 1) / n])
    assert met == {
        "communicator": [0],
        "operation": [Operation.ALL_REDUCE],
        "size": [n],
        "count": [1],
        "bytes": [4096],
        "wire": [50 * n * US],
        "waiting": [50 * (n - 1) * US],
        "limit": [""],
    }
    path = results.critical_path
    assert path is not None
    assert (path.end - path.begin).tolist() == [10 * US, 150 * US, 50 * US, 30 * US, 1 * US]


@pytest.mark.mpi
@pytest.mark.parametrize(("n_ranks", "fits"), [(9, True), (10, False)])
def test_totals_that_no_picoseconds_hold_are_refused(comm: Any, n_ranks: int, fits: bool) -> None:
    """Ten ranks of 10^18 ps are beyond 2^63 ps together."""
    builder = ProgramBuilder()
    table = builder.table("long")
    table.host_wait([table.kernel("gemm", 0, 10**18)])
    long = builder.add_table(table.build())
    for _ in range(n_ranks):
        builder.add_rank(long, [])
    run = simulate(builder.build({"source": "by hand"}), comm)
    with nullcontext() if fits else pytest.raises(InputError, match="10 ranks 1,000,000"):
        results = collect(run, comm=comm)
        if results is not None:
            assert results.kernels["total"].tolist() == [n_ranks * 10**18]


def test_an_eager_member_moves_data_at_once() -> None:
    # Rank 0 broadcasts at 10, needs 5; rank 1 comes at 30 and needs 5 from then on.
    builder = ProgramBuilder()
    pair = builder.communicator((0, 1))
    for work, flag in ((10, Flag.EAGER), (30, Flag.NONE)):
        table = builder.table()
        first = table.kernel("k", 0, work)
        table.collective(Operation.BROADCAST, 0, 1, 8, duration=5, waits=[first], flags=flag)
        builder.add_rank(builder.add_table(table.build()), [pair])
    run = simulate(builder.build())
    assert run.step_time == 35
    of = broken_down(run)
    assert of["compute"] == [10, 30]
    assert of["exposed_wire"] == [5, 5]
    assert of["exposed_waiting"] == [0, 0]
    assert of["idle"] == [20, 0]


def test_members_of_a_batch_count_one_by_one() -> None:
    # Two ranks exchange in one batch: ready at 10 and 30, the wire takes 5 and 7 from 30 on.
    builder = ProgramBuilder()
    there, back = builder.communicator((0, 1)), builder.communicator((1, 0))
    for rank, work in enumerate((10, 30)):
        table = builder.table()
        first = table.kernel("k", 0, work, launch_cost=2)
        kinds = (Kind.SEND, Kind.RECV) if rank == 0 else (Kind.RECV, Kind.SEND)
        table.point_to_point(kinds[0], 0, 1, 8, duration=5, waits=[first], launch_cost=2)
        table.point_to_point(kinds[1], 1, 1, -1, duration=7, flags=Flag.JOINED)
        builder.add_rank(builder.add_table(table.build()), [there, back])
    program = builder.build()
    run = simulate(program)

    class Alone:
        size, rank = 1, 0

    results = collect(run, comm=Alone())  # type: ignore[arg-type]
    assert results is not None
    assert results.step_time_ps == 37
    assert results.ranks["exposed_waiting"].tolist() == [20, 0]
    assert results.ranks["exposed_wire"].tolist() == [7, 7]
    assert results.ranks["host_busy"].tolist() == [4, 4]
    assert results.communications["count"].tolist() == [1, 1]
    assert results.communications["bytes"].tolist() == [-1, 8]
    assert results.communications["wire"].tolist() == [14, 10]
    assert np.isnan(results.communications["bandwidth"][0])


@st.composite
def launching(draw: st.DrawFn) -> Program:
    """One rank whose CPU waits in every way it can."""
    builder = ProgramBuilder()
    alone = builder.communicator((0,))
    table = builder.table()
    device: list[int] = []
    for _ in range(draw(st.integers(0, 15))):
        time = st.integers(0, 20)
        what = draw(st.sampled_from(("kernel", "kernel", "batch", "host", "wait")))
        if what == "kernel":
            device.append(
                table.kernel(
                    "k",
                    draw(st.integers(0, 1)),
                    draw(time),
                    host=draw(time),
                    launch_cost=draw(time),
                )
            )
        elif what == "batch":
            for i in range(draw(st.integers(1, 3))):
                device.append(
                    table.collective(
                        Operation.BARRIER,
                        0,
                        2,
                        0,
                        duration=draw(time),
                        host=draw(time),
                        launch_cost=draw(time),
                        flags=Flag.JOINED if i else Flag.NONE,
                    )
                )
        elif what == "host":
            table.host(draw(time))
        elif device:
            table.host_wait([draw(st.sampled_from(device))], host=draw(time), tail=draw(time))
    number = builder.add_table(table.build(queue_depth=draw(st.integers(0, 3))))
    builder.add_rank(number, [alone], start=draw(st.integers(0, 50)))
    return builder.build()


@given(program=launching())
def test_the_cpu_is_busy_or_waits(program: Program) -> None:
    run = simulate(program)
    table, end = program.table_of(0), run.rows(0).end
    clock = int(program.start[0])
    waited = busy = 0
    streams: dict[int, list[int]] = {}  # when each launched kernel has ended, all of its batch
    for row in range(len(table)):
        kernels = streams.setdefault(int(table.stream[row]), [])
        if table.flags[row] & Flag.JOINED:
            kernels[-1] = max(kernels[-1], int(end[row]))
            continue
        clock += int(table.host[row])
        busy += int(table.host[row])
        goal = clock
        if table.kind[row] == Kind.HOST_WAIT:
            goal = max(clock, int(end[row] - table.launch_cost[row]))
        elif table.is_device[row]:
            if 0 < table.queue_depth <= len(kernels):
                goal = max(clock, kernels[-table.queue_depth])
            kernels.append(int(end[row]))
        waited += goal - clock
        clock = goal
        if table.kind[row] != Kind.HOST:
            clock += int(table.launch_cost[row])
            busy += int(table.launch_cost[row])
    found = {column: spent[0] for column, spent in broken_down(run).items()}
    assert (found["host_busy"], found["host_waiting"]) == (busy, waited)
    assert found["compute"] + found["exposed"] + found["idle"] == run.step_time


# --- steps --------------------------------------------------------------------------------------


def test_steps_last_from_end_to_end() -> None:
    program = straggler(steps=3)
    run = simulate(program)
    # The first ends with adam at 240, on the device; every other takes the CPU's 1 longer.
    lengths = [240 * US, 241 * US, 241 * US]
    assert rank_steps(program, run).tolist() == [
        [rank, step, lengths[step]] for rank in (0, 1) for step in (0, 1, 2)
    ]


def test_a_single_step_or_none_is_the_whole_run() -> None:
    for labels, step in ((True, 0), (False, -1)):
        program = straggler(labels=labels).replace(start=[7, 5])
        run = simulate(program)
        ends = run.rank_end.tolist()
        assert rank_steps(program, run).tolist() == [
            [0, step, ends[0] - 7],
            [1, step, ends[1] - 5],
        ]


@given(
    st.lists(
        st.tuples(*(st.integers(0, 4) for _ in range(2)), st.integers(-(2**50), 2**50)), max_size=40
    ),
    st.sampled_from([1, 10**9]),
)
def test_rows_of_one_pair_are_added_up(rows: list[tuple[int, int, int]], far: int) -> None:
    sums: dict[tuple[int, int], int] = {}
    for first, second, value in rows:
        sums[first * far, second] = sums.get((first * far, second), 0) + value
    given_rows = np.array([(a * far, b, c) for a, b, c in rows], np.int64).reshape(-1, 3)
    expected = [[*pair, total] for pair, total in sorted(sums.items())]
    assert added_up(given_rows).tolist() == expected
    assert added_up(added_up(given_rows)).tolist() == expected


class Explained(Free):
    """A network that says of a communication all that it is told of it."""

    def group_classes(self, index: Any, members: Any, operations: Any = None) -> Any:
        return np.diff(index) % 2, ["even", "odd"]

    def limit_of(self, operation: Operation, bytes: int, group: Any) -> str:
        return f"{operation.name} {bytes} {group}"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(list(Operation)), st.sampled_from([-1, 0, 5, 2**40])
        ),
        max_size=40,
    )
)
def test_limits_are_told_of_every_communication(rows: list[tuple[int, Operation, int]]) -> None:
    builder = ProgramBuilder()
    for n in range(1, 5):
        builder.communicator(list(range(n)))
    builder.add_table(builder.table("nothing").build())
    for _ in range(4):
        builder.add_rank(0)
    network = Explained()
    assert isinstance(network, ExplainedNetwork)
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    found = limits(builder.build(), network, *columns)
    assert found.tolist() == [
        ""
        if size < 0 or operation in (Operation.NONE, Operation.UNKNOWN)
        else f"{operation.name} {size} {'odd' if communicator % 2 == 0 else 'even'}"
        for communicator, operation, size in rows
    ]
    assert limits(builder.build(), None, *columns).tolist() == [""] * len(rows)
