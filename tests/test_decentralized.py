"""Decentralized training: graphs by hand, closed forms, and an event loop that shares nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py.MPI import Intracomm
from reference import decentralized as reference

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.decentralized import (
    Comparison,
    Graph,
    Protocol,
    WorkerStep,
    WorkerTimeline,
    compare_protocols,
    decentralized_program,
    find_graph,
    simulate_decentralized,
)
from mpisim.decentralized.comparison import Slowdown
from mpisim.program import Phase, ProgramBuilder
from mpisim.topo import AlphaBeta

US = 1_000_000  # ps
FORWARD, BACKWARD, UPDATE = 300 * US, 600 * US, 60 * US
UPDATE_BYTES = 1 << 20
LATENCY, BANDWIDTH = 10e-6, 20e9

EXPERIMENT = """\
title = "VGG-11"
model = { preset = "vgg-11" }
plan = { dp = 8, micro_batch = 128, global_batch = 1024, precision = "fp32" }
framework = { name = "none" }
cluster = { preset = "dgx-a100", nodes = 1 }
"""


def averaging(updates: int) -> int:
    """So that one update more or less shows."""
    return (10 + updates) * US


def step() -> WorkerStep:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.tags(phase=Phase.FORWARD).kernel("forward", 0, FORWARD)
    rows.tags(phase=Phase.BACKWARD).kernel("backward", 0, BACKWARD)
    rows.tags(phase=Phase.OPTIMIZER).kernel("adam", 0, UPDATE)
    return WorkerStep(rows.build(), tuple(builder.names), UPDATE_BYTES, averaging)


def simulated(
    comm: Intracomm,
    graph: Graph,
    protocol: Protocol,
    iterations: int,
    speeds: list[float] | None = None,
) -> WorkerTimeline:
    found = decentralized_program(step(), graph, protocol, iterations)
    if speeds is not None:
        found = replace(found, program=found.program.replace(speed=np.array(speeds)))
    return simulate_decentralized(found, AlphaBeta(LATENCY, BANDWIDTH), comm)


def message(size: int) -> int:
    """Time of one message in ps."""
    return round((LATENCY + size / BANDWIDTH) * 1e12)


# --- graphs ---------------------------------------------------------------------------------------


def test_ring_based_graph_of_eight() -> None:
    graph = find_graph("ring-based", 8)
    assert graph.senders[0] == (1, 4, 7)  # the ring's neighbours, and the most distant worker
    assert graph.receivers == graph.senders
    assert len(graph.edges) == 24


def test_double_ring_of_eight() -> None:
    graph = find_graph("double-ring", 8)
    assert graph.senders[0] == (1, 2, 3, 4)  # 4 workers are ring-based, worker 4 is the partner
    assert graph.senders[5] == (1, 4, 6, 7)


def test_graph_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "edges.txt"
    file.write_text("# a circle, one way\n0 1\n1 2\n\n2 0\n0 1 # again\n")
    assert find_graph(str(file), 3).edges == ((0, 1), (1, 2), (2, 0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 1\n1 x\n", "line 2 is '1 x'"),
        ("0 1\n1 0 2\n", "line 2 is '1 0 2'"),
        ("0 1\n1 3\n", "there are 0 to 2"),
        ("0 0\n0 1\n", "from a worker to itself"),
        ("0 1\n1 0\n", "worker 2 receives no update"),
    ],
)
def test_bad_files_of_edges(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "edges.txt"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        find_graph(str(file), 3)


# --- closed forms ---------------------------------------------------------------------------------


@pytest.mark.mpi
def test_equal_workers_take_equal_iterations(comm: Intracomm) -> None:
    found = simulated(comm, find_graph("ring-based", 8), Protocol(), 5)
    iteration = FORWARD + BACKWARD + message(UPDATE_BYTES) + averaging(3) + UPDATE
    assert (found.ended == iteration * np.arange(1, 6)).all()
    assert found.largest_gap == 0
    assert found.passes == 1


@pytest.mark.mpi
def test_backup_worker_hides_one_slow_worker(comm: Intracomm) -> None:
    """Each neighbour of the slow worker goes on without it: two of three updates are in time."""
    speeds = [0.1, *[1.0] * 7]
    found = simulated(comm, find_graph("ring-based", 8), Protocol(backup=1), 6, speeds)
    iteration = FORWARD + BACKWARD + message(UPDATE_BYTES) + averaging(2) + UPDATE
    assert (found.ended[1:] == iteration * np.arange(1, 7)).all()
    waiting = simulated(comm, find_graph("ring-based", 8), Protocol(), 6, speeds)
    assert waiting.iteration_times[[1, 4, 7]].min() > 9 * iteration  # its neighbours' own


@pytest.mark.mpi
@pytest.mark.parametrize("max_gap", [1, 2, 3])
def test_tokens_bound_the_gap(comm: Intracomm, max_gap: int) -> None:
    speeds = [0.1, *[1.0] * 7]
    protocol = Protocol(backup=1, max_gap=max_gap)
    found = simulated(comm, find_graph("ring-based", 8), protocol, 8, speeds)
    assert found.largest_gap == max_gap
    for neighbour in (1, 4, 7):  # they enter an iteration once the slow worker is that near
        late = found.entered[neighbour, max_gap + 1 :]
        assert (late >= found.entered[0, 1 : 8 - max_gap] + message(8)).all()


@pytest.mark.mpi
@pytest.mark.parametrize(("skip", "done"), [(1, 2), (2, 3), (8, 4)])
def test_a_slow_worker_skips_as_far_as_tokens_allow(comm: Intracomm, skip: int, done: int) -> None:
    """Its neighbours are a gap of 4 ahead when it has finished: every second to fourth is done."""
    speeds = [1 / 16, *[1.0] * 7]
    protocol = Protocol(backup=1, max_gap=4, skip=skip)
    found = simulated(comm, find_graph("ring-based", 8), protocol, 4 * done + 1, speeds)
    executed = np.flatnonzero(found.entered[0] >= 0)
    last = executed[executed + done < 4 * done]  # the end may cut the last jump
    assert last.tolist() == list(range(0, 4 * done - done, done))
    assert (np.diff(executed) <= done).all()
    assert found.skipped.tolist() == [4 * done + 1 - len(executed), *[0] * 7]
    # Between two of its own: averaging what has long come, and an iteration.
    renewed = round(averaging(2) * 16)
    own = round((FORWARD + BACKWARD + averaging(2) + UPDATE) * 16)
    assert found.entered[0, done] == own + renewed
    waiting = simulated(comm, find_graph("ring-based", 8), Protocol(1, 0, 4), 4 * done + 1, speeds)
    assert found.iteration_times[0] < waiting.iteration_times[0]
    assert found.largest_gap <= 4


def test_nobody_skips_who_is_not_behind(comm: Intracomm) -> None:
    protocol = Protocol(backup=1, max_gap=4, skip=3)
    found = simulated(comm, find_graph("ring-based", 8), protocol, 6)
    same = simulated(comm, find_graph("ring-based", 8), replace(protocol, skip=0), 6)
    assert not found.skipped.any()
    assert np.array_equal(found.ended, same.ended)


@pytest.mark.mpi
def test_stale_updates_hide_the_transfer(comm: Intracomm) -> None:
    found = simulated(comm, find_graph("ring", 4), Protocol(staleness=1), 4)
    computed = FORWARD + BACKWARD + UPDATE
    expected = computed * np.arange(1, 5) + averaging(2) * np.arange(4)
    assert message(UPDATE_BYTES) < computed
    assert (found.ended == expected).all()


# --- the event loop -------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, Protocol, list[float], int]:
    workers = draw(st.integers(2, 6))
    pairs = [(a, b) for a in range(workers) for b in range(workers) if a != b]
    ring = [(i, (i + 1) % workers) for i in range(workers)]
    graph = Graph.of(workers, [*ring, *draw(st.lists(st.sampled_from(pairs), max_size=12))])
    backup = draw(st.integers(0, min(map(len, graph.senders)) - 1))
    skip = draw(st.integers(0, 4)) if backup else 0
    protocol = Protocol(
        backup,
        0 if skip else draw(st.integers(0, 2)),
        draw(st.integers(2, 5) if skip else st.none() | st.integers(1, 3)),
        skip,
    )
    # Powers of two divide the durations without a rest.
    speeds = draw(
        st.lists(st.sampled_from([0.125, 0.5, 1.0, 2.0]), min_size=workers, max_size=workers)
    )
    return graph, protocol, speeds, draw(st.integers(8, 12) if skip else st.integers(3, 6))


@pytest.mark.mpi
@given(case=cases())
@settings(max_examples=60)
def test_times_are_those_of_the_event_loop(
    world: Intracomm,
    case: tuple[Graph, Protocol, list[float], int],
) -> None:
    graph, protocol, speeds, iterations = case
    found = simulated(world, graph, protocol, iterations, speeds)
    parts = [
        (
            round((FORWARD + BACKWARD) / speed),
            round(averaging(len(senders) - protocol.backup) / speed),
            round(UPDATE / speed),
        )
        for speed, senders in zip(speeds, graph.senders, strict=True)
    ]
    entered, ended = reference.run(
        list(graph.edges),
        parts,
        message(UPDATE_BYTES),
        message(8),
        iterations,
        backup=protocol.backup,
        staleness=protocol.staleness,
        max_gap=protocol.max_gap,
        skip=protocol.skip,
    )
    assert found.entered.tolist() == entered
    assert found.ended.tolist() == ended


@pytest.mark.mpi
def test_each_iteration_goes_on_with_the_first_updates(comm: Intracomm) -> None:
    rng = np.random.default_rng(1)
    graph, protocol = find_graph("double-ring", 8), Protocol(backup=2)
    found = simulated(comm, graph, protocol, 6, rng.uniform(0.3, 1, 8).tolist())
    for worker, arrivals in enumerate(found.arrivals):
        rows = found.iterations.rows[worker]
        table = found.iterations.program.table_of(worker)
        for iteration, came in enumerate(arrivals):
            row = rows.averages[iteration]
            waits = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]]
            waited = came[np.isin(rows.updates[iteration], waits)]
            assert len(waited) == 2
            assert waited.max() <= np.sort(came)[2:].min()


# --- experiments ----------------------------------------------------------------------------------


def compared(
    comm: Intracomm,
    folder: Path,
    graph: str,
    protocol: Protocol,
    iterations: int,
    slowdown: Slowdown | None = None,
    changes: Sequence[str] = (),
) -> Comparison:
    file = folder / "hop.toml"
    if comm.rank == 0:
        file.write_text(EXPERIMENT)
    comm.barrier()
    slowdown = slowdown or Slowdown()
    return compare_protocols(str(file), changes, graph, protocol, slowdown, iterations, comm)


@pytest.mark.mpi
def test_study_of_hop(comm: Intracomm, shared_folder: Path) -> None:
    """8 A100, VGG-11, factors of 1 to 10: one backup worker gains, and by how much varies."""
    slowdown = Slowdown(1, 10, draws=4)
    found = compared(comm, shared_folder, "ring-based", Protocol(backup=1), 6, slowdown)
    gains = [draw.speed_up for draw in found.draws]
    assert found.update_bytes == 4 * 132_863_336  # torchvision's vgg11 in fp32
    assert min(gains) >= 1
    assert max(gains) - min(gains) > 0.05


@pytest.mark.mpi
def test_equal_gpus_gain_little_from_a_backup_worker(comm: Intracomm, shared_folder: Path) -> None:
    found = compared(comm, shared_folder, "double-ring", Protocol(backup=1), 4)
    (draw,) = found.draws
    assert 1 <= draw.speed_up < 1.01
    assert draw.protocol.largest_gap <= 1


@pytest.mark.mpi
def test_slow_gpus_of_the_experiment_are_slow_workers(comm: Intracomm, shared_folder: Path) -> None:
    changes = ["variation.speeds.2=0.5"]
    found = compared(comm, shared_folder, "ring", Protocol(), 3, changes=changes)
    (draw,) = found.draws
    assert draw.baseline.ended[2, -1] > 2 * found.compute * 3


def test_same_on_any_number_of_processes(run_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "hop.toml").write_text(EXPERIMENT)
    words = "decentralized hop.toml --graph ring-based --backup 1 --slow 1-10 --iterations 4"
    words += " --max-gap 3 --skip 2 --set variation.speeds.3=0.3"
    printed = [run_mpisim(words.split(), processes).stdout for processes in (1, 3)]
    assert printed[0] == printed[1]
    assert "skipped" in printed[0].splitlines()[5]
    assert "speed-up" in printed[0]


def test_factors_are_the_same_everywhere() -> None:
    draws = Slowdown(1, 10, draws=2, seed=3)
    assert draws.factors(0, 8) == draws.factors(0, 8) != draws.factors(1, 8)
    assert all(1 <= each <= 10 for each in draws.factors(1, 64))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lin-dlrm-mlperf-4-gv100", "recommendation model"),
        ("triosim-wafer-vgg19-circuit", "optical circuits"),
        ("triosim-p2-vgg16-tp", "plan.tp is 4"),
        ("llama3-8b-8-h100", "--allow-oom"),
    ],
)
def test_experiments_that_are_none_of_it(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decentralized", name, "--graph", "ring"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--graph", "rings"], "did you mean 'ring'"),
        (["--graph", "ring", "--backup", "2"], "allowed is 0 to 1"),
        (["--graph", "ring", "--backup", "-1"], "--backup is -1"),
        (["--graph", "ring", "--max-gap", "0"], "--max-gap is 0"),
        (["--graph", "ring", "--skip", "1"], "--skip is 1; workers skip iterations with --backup"),
        (["--graph", "ring", "--skip", "-1"], "--skip is -1; allowed is 0 and more"),
        (["--graph", "ring", "--iterations", "0"], "--iterations is 0"),
        (["--graph", "ring", "--iterations", "1000000000"], "allowed is 1 to 10,000"),
        (["--graph", "ring", "--slow", "1-2", "--draws", "9999"], "allowed is 1 to 1000"),
        (["--graph", "ring", "--staleness", "3", "--iterations", "3"], "more than the 3"),
        (["--graph", "ring", "--slow", "fast"], "--slow is 'fast'"),
        (["--graph", "ring", "--slow", "0.5-2"], "two numbers of 1 and more"),
        (["--graph", "ring", "--draws", "2"], "all draws are alike"),
        (["--graph", "ring", "--set", "plan.tp=2", "--set", "plan.dp=4"], "plan.tp is 2"),
        (
            [
                "--graph",
                "double-ring",
                "--set",
                "plan.dp=7",
                "--set",
                "plan.global_batch=896",
                "--set",
                "cluster.gpus=7",
            ],
            "even number of workers",
        ),
    ],
)
def test_bad_input_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    file = tmp_path / "hop.toml"
    file.write_text(EXPERIMENT)
    assert main(["decentralized", str(file), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_the_file_of_a_result_is_reported_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hop.toml").write_text(EXPERIMENT)
    written = str(tmp_path / "hop.h5")
    words = ["decentralized", str(tmp_path / "hop.toml"), "--graph", "ring", "--iterations", "2"]
    assert main([*words, "-o", written]) == 0
    printed = capsys.readouterr().out
    assert main(["report", written]) == 0
    assert capsys.readouterr().out == printed
    with h5py.File(written) as file:  # as any other tool reads it
        ended, entered = (file[f"draw0/protocol/{name}"][:] for name in ("ended", "entered"))
        assert file["draw0/protocol/ended"].attrs["units"] == "ps"
    assert ended.shape == (8, 2)
    assert (ended > entered).all()
    assert main(["run", written]) == 2
    assert "which 'mpisim report" in capsys.readouterr().err
