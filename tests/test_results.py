"""Results: exact accounts, whole files or none, and files that cannot be trusted."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import partial, programs
from straggler import BREAKDOWN, LAST, OTHERS, STEP, US, straggler

import mpisim
from mpisim.base.errors import InputError, OutputError, UsageError
from mpisim.base.files import check_output
from mpisim.engine import Run, simulate
from mpisim.engine.critical_path import PieceKind
from mpisim.engine.rows import Binding
from mpisim.program import Flag, Kind, Operation, Phase, Program, ProgramBuilder
from mpisim.results import Results, collect, rank_steps, write_results
from mpisim.results.accounting import account


@pytest.fixture
def folder(comm: Any, tmp_path: Path) -> Path:
    """One folder for all processes."""
    return Path(comm.bcast(os.fspath(tmp_path), root=0))


def assert_same(a: Results, b: Results) -> None:
    """Two results say the same; not who made them."""
    for name in (
        "step_time_ps",
        "digest",
        "n_processes",
        "rounds",
        "experiment",
        "seed",
        "creator",
        "attributes",
        "program",
        "rank_steps",
    ):
        assert getattr(a, name) == getattr(b, name), name
    for name in ("ranks", "classes", "steps", "kernels", "communications"):
        one, other = getattr(a, name), getattr(b, name)
        assert list(one) == list(other)
        for column in one:
            np.testing.assert_array_equal(one[column], other[column], f"{name}/{column}")
    np.testing.assert_array_equal(a.communicators.members, b.communicators.members)
    assert a.communicators.names == b.communicators.names
    assert (a.critical_path is None) == (b.critical_path is None)
    if a.critical_path is not None and b.critical_path is not None:
        for column in ("kind", "rank", "row", "begin", "end", "name"):
            one, other = getattr(a.critical_path, column), getattr(b.critical_path, column)
            np.testing.assert_array_equal(one, other)
        assert a.critical_path.names == b.critical_path.names


# --- accounts -----------------------------------------------------------------------------------


def broken_down(run: Run) -> dict[str, list[int]]:
    """Of each class of time, how much each hosted rank had of it, in ps."""
    names = np.arange(len(run.program.names))
    pieces = account(run, names, len(names)).breakdown
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


# --- round trip ---------------------------------------------------------------------------------

SAID = {
    "assumptions": ["no contention", "no overlap slowdown"],
    "nothing": [],
    "uncertainty": 0.08,
    "gpu": "H100\0 SXM",
    "layers": 12,
    "checked": True,
}


@pytest.mark.mpi
@pytest.mark.parametrize("n_ranks", [1, 2, 7])
@pytest.mark.parametrize("timeline", [False, True])
def test_what_is_written_is_read(comm: Any, folder: Path, n_ranks: int, timeline: bool) -> None:
    path = folder / f"run {n_ranks} 100%b é.h5"
    run = simulate(straggler(n_ranks, steps=2), comm, critical_path=True)
    said = {**SAID, "text": "x" * 100_000}
    written = write_results(
        run,
        path,
        comm=comm,
        timeline=timeline,
        experiment="[model]\nlayers = 12\n",
        seed=2**63,
        attributes=said,
    )
    with mpisim.open_results(path) as results:  # on every process
        if written is not None:
            as_given = {**results.attributes, "gpu": "H100\0 SXM"}
            assert_same(written, replace(results, attributes=as_given))
        assert results.attributes["gpu"] == "H100\ufffd SXM"
        assert results.attributes["assumptions"] == SAID["assumptions"]
        assert results.attributes["nothing"] == []
        assert results.seed == 2**63
        assert results.path == path
        assert set(results.versions) >= {"mpisim", "numpy", "h5py", "HDF5", "MPI"}
        assert (results.timeline is not None) == timeline
        if results.timeline is not None:
            assert len(results.timeline) == 10 * results.n_classes
            assert len(results.timeline["begin"]) == 10 * results.n_classes
            for i, rank in enumerate(run.hosted.tolist()):
                rows = results.timeline.rank(rank)
                for column in ("begin", "end", "wire", "binding"):
                    np.testing.assert_array_equal(rows[column], getattr(run.rows(i), column))
                names = [results.timeline.names[name] for name in rows["name"]]
                assert names == ["gemm", "HtoD", "all_reduce", "adam", "wait"] * 2
                assert rows["communicator"].tolist() == [-1, -1, 0, -1, -1] * 2
                assert rows["step"].tolist() == [0] * 5 + [1] * 5
    comm.Barrier()
    assert os.listdir(folder) == [path.name]


@pytest.mark.mpi
def test_any_placement_gives_the_same_tables(comm: Any, folder: Path) -> None:
    program = straggler(6, steps=2)
    placement = np.random.default_rng(1).integers(0, comm.size, 6).astype(np.int32)
    found = []
    for name, where in (("blocks", None), ("shuffled", placement)):
        run = simulate(program, comm, critical_path=True, placement=where)
        write_results(run, folder / name, comm=comm, timeline=True)
        with mpisim.open_results(folder / name) as results:
            assert results.timeline is not None
            rows = [results.timeline.rank(rank) for rank in range(6)]
        process = results.ranks["process"]
        np.testing.assert_array_equal(process, run.placement)
        found.append((results, rows))
    (one, rows), (other, others) = found
    for table in ("kernels", "communications", "steps", "ranks"):
        for column, values in getattr(one, table).items():
            if column not in ("process", "class"):
                np.testing.assert_array_equal(values, getattr(other, table)[column])
    for a, b in zip(rows, others, strict=True):
        for column, values in a.items():
            np.testing.assert_array_equal(values, b[column])


@pytest.mark.mpi
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs(), seed=st.integers(0, 99), whole=st.booleans())
def test_any_number_of_processes_finds_the_same(
    comm: Any, program: Program, seed: int, whole: bool
) -> None:
    rng = np.random.default_rng(seed)
    placement = rng.integers(0, comm.size, program.n_ranks).astype(np.int32)
    hosted = set(np.flatnonzero(placement == comm.rank).tolist())
    given = program if whole else partial(program, hosted)
    run = simulate(given, comm, critical_path=True, placement=placement)
    results = collect(run, comm=comm)
    assert (results is None) == (comm.rank > 0)
    if results is None:
        return
    from mpi4py import MPI

    run = simulate(program, fold=False, critical_path=True)
    alone = collect(run, comm=MPI.COMM_SELF)
    assert alone is not None
    np.testing.assert_array_equal(results.ranks["process"], placement)
    here = {"n_processes": comm.size, "rounds": results.rounds}
    assert_same(results, replace(alone, **here, ranks={**alone.ranks, "process": placement}))


@pytest.mark.mpi
def test_processes_may_know_other_names(comm: Any, folder: Path) -> None:
    """A partial program: every process holds one rank, its table and its names."""
    builder = ProgramBuilder()
    everyone = builder.communicator(range(comm.size))
    if comm.rank % 2:
        builder.names["only here"]
    tables = []
    for rank in range(comm.size):
        table = builder.table()
        if rank == comm.rank:
            table.kernel(f"kernel {rank % 3}", 0, 10 * US)
            table.collective(Operation.BARRIER, 0, 0, 0, duration=US)
        tables.append(builder.add_table(table.build()))
        builder.add_rank(tables[-1], [everyone])
    program = builder.build()
    held = tuple(t if r == comm.rank else None for r, t in enumerate(program.tables))
    run = simulate(program.replace(tables=held), comm)
    write_results(run, folder / "run.h5", comm=comm, timeline=True)
    with mpisim.open_results(folder / "run.h5") as results:
        assert results.timeline is not None
        names = [results.timeline.names[i] for i in results.timeline["name"]]
    expected = [text for r in range(comm.size) for text in (f"kernel {r % 3}", "barrier")]
    assert names == expected
    assert sorted(results.kernels["name"]) == sorted(set(expected) - {"barrier"})
    assert results.kernels["count"].sum() == comm.size


def test_the_file_explains_itself(comm: Any, tmp_path: Path) -> None:
    run = simulate(straggler(), critical_path=True)
    write_results(run, tmp_path / "run.h5", comm=comm, timeline=True, attributes=SAID)
    with h5py.File(tmp_path / "run.h5") as file:
        assert file.attrs["format"] == "mpisim-results"
        assert file.attrs["step_time"] == run.step_time * 1e-12
        assert file.attrs["assumptions"].tolist() == SAID["assumptions"]
        assert {
            "summary",
            "ranks",
            "classes",
            "communications",
            "links",
            "critical_path",
            "timeline",
        } <= set(file)
        assert file["links/utilisation"].shape == (0, 100)
        assert file["summary/step_time_seconds"].attrs["units"] == "s"
        assert not file["timeline/begin"].is_virtual
        times: list[str] = []
        file.visititems(
            lambda name, item: times.append(name) if item.attrs.get("units") == "ps" else None
        )
        assert len(times) >= 20
        assert all(file[name].dtype == np.int64 for name in times)


def test_reading_needs_no_mpi(comm: Any, tmp_path: Path) -> None:
    write_results(simulate(straggler()), tmp_path / "run.h5", comm=comm)
    code = (
        "import sys, mpisim; print(mpisim.open_results(sys.argv[1]).digest);"
        "assert 'mpi4py' not in sys.modules, 'MPI was loaded'"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run.h5")], check=True)


def test_a_timeline_is_asked_correctly(comm: Any, tmp_path: Path) -> None:
    run = simulate(straggler())
    write_results(run, tmp_path / "run.h5", comm=comm, timeline=True)
    results = mpisim.open_results(tmp_path / "run.h5")
    assert results.timeline is not None
    with pytest.raises(UsageError, match="there is no rank 2; there are ranks 0 to 1"):
        results.timeline.rank(2)
    with pytest.raises(KeyError, match="did you mean 'begin'"):
        results.timeline["begn"]
    results.close()
    with pytest.raises(UsageError, match="is closed"):
        results.timeline["begin"]
    assert results.ranks["end"].tolist() == [STEP, STEP]  # tables stay


# --- all or nothing -----------------------------------------------------------------------------


@contextmanager
def files_limited(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.mpi
@pytest.mark.parametrize("size", [0, 5_000])
@pytest.mark.parametrize("timeline", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_full_disk_on_one_process_fails_all(
    comm: Any, folder: Path, size: int, timeline: bool, before: bool
) -> None:
    path = folder / "run.h5"
    run = simulate(straggler(2 * comm.size, steps=9), comm, fold=False)
    if before:
        write_results(run, path, comm=comm, timeline=True, seed=1)
    with (
        files_limited(size) if comm.rank == 0 else nullcontext(),  # which alone writes
        pytest.raises(OutputError, match=r"run\.h5: File too large") as caught,
    ):
        write_results(run, path, comm=comm, timeline=timeline, overwrite=True, seed=2)
    assert caught.value.exit_code == 1
    assert ".part" not in str(caught.value)
    comm.Barrier()
    assert sorted(os.listdir(folder)) == (["run.h5"] if before else [])
    if before:
        with mpisim.open_results(path) as results:
            assert results.seed == 1


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing/run.h5", "there is no folder"),
        ("x" * 300, "name too long"),
        ("/dev/full", "is not a regular file"),
    ],
)
def test_a_place_that_cannot_be_written(comm: Any, folder: Path, name: str, said: str) -> None:
    run = simulate(straggler(), comm)
    with pytest.raises(OutputError, match=f"(?i){said}"):
        write_results(run, folder / name, comm=comm, timeline=True)
    with pytest.raises(OutputError, match=f"(?i){said}"):
        check_output(folder / name)
    comm.Barrier()
    assert os.listdir(folder) == []


@pytest.mark.mpi
def test_an_earlier_result_is_replaced_only_when_asked(comm: Any, folder: Path) -> None:
    path = folder / "run.h5"
    small, large = (simulate(straggler(n), comm) for n in (2, 5))
    write_results(large, path, comm=comm, timeline=True)
    with pytest.raises(OutputError, match=r"run\.h5: exists already"):
        write_results(small, path, comm=comm)
    for timeline in (True, False):
        write_results(small, path, comm=comm, timeline=timeline, overwrite=True)
        with mpisim.open_results(path) as results:
            assert results.n_ranks == 2
            assert (results.timeline is not None) == timeline
        comm.Barrier()
        assert os.listdir(folder) == ["run.h5"]
        comm.Barrier()


@pytest.mark.parametrize("links", [True, False])
def test_a_file_made_in_the_meantime_stays(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Two runs write one file: the second to end fails, and has overwritten nothing."""
    path = tmp_path / "run.h5"
    run = simulate(straggler())
    fsync, link = os.fsync, os.link

    def other_ends(number: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        write_results(run, path, comm=comm, seed=1)

    def refuses(source: Any, target: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fsync", other_ends)
    monkeypatch.setattr(os, "link", link if links else refuses)  # FAT has no links
    with pytest.raises(OutputError, match=r"run\.h5: another program made it in the meantime"):
        write_results(run, path, comm=comm, seed=2)
    assert os.listdir(tmp_path) == ["run.h5"]
    with mpisim.open_results(path) as results:
        assert results.seed == 1


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_file_is_read_while_others_have_it_open(comm: Any, tmp_path: Path, first: str) -> None:
    path = tmp_path / "run.h5"
    write_results(simulate(straggler()), path, comm=comm, timeline=True)
    ours = mpisim.open_results(path) if first == "ours" else None
    with h5py.File(path, "r+") as theirs, ours or mpisim.open_results(path) as results:
        assert results.timeline is not None
        np.testing.assert_array_equal(results.timeline["begin"], theirs["timeline/begin"][:])


@pytest.mark.mpi
def test_plain_h5py_reads_the_rows_of_all_processes(
    comm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small chunks: most of every column is copied chunk by chunk."""
    for module in ("base.hdf5", "results.write"):
        monkeypatch.setattr(f"mpisim.{module}.CHUNK", 4)
    monkeypatch.setattr("mpisim.base.hdf5.MAX_PLAIN_COLUMN", 1)
    run = simulate(straggler(3 * comm.size, steps=3), comm, fold=False)
    write_results(run, folder / "run.h5", comm=comm, timeline=True)
    rows = [run.rows(i) for i in range(len(run.hosted))]
    everyone = [each for part in comm.allgather(rows) for each in part]
    comm.Barrier()
    with h5py.File(folder / "run.h5") as file:
        for column in ("begin", "end", "wire", "binding"):
            expected = np.concatenate([getattr(each, column) for each in everyone])
            np.testing.assert_array_equal(file["timeline"][column][:], expected)
            assert file["timeline"][column].chunks == (4,)


def test_numbers_have_names_in_the_file(comm: Any, tmp_path: Path) -> None:
    write_results(
        simulate(straggler(), critical_path=True), tmp_path / "run.h5", comm=comm, timeline=True
    )
    enumerations: dict[str, type[IntEnum]] = {
        "kernels/kind": {each.name: each.value for each in Kind},
        "timeline/kind": {each.name: each.value for each in Kind},
        "timeline/phase": {each.name: each.value for each in Phase},
        "communications/operation": {each.name: each.value for each in Operation},
        "critical_path/kind": {each.name: each.value for each in PieceKind},
        "classes/apart": {"NOT": 0, "SPEED": 1, "START": 2, "GROUPS": 3, "NEIGHBOURS": 4},
    }
    with h5py.File(tmp_path / "run.h5") as file:
        for name, names in enumerations.items():
            found = h5py.check_enum_dtype(file[name].dtype)
            assert found == names
        found = h5py.check_enum_dtype(file["timeline/binding"].dtype)
        assert len(found) == len(set(found.values())) == 256
        for name, number in (
            ("HOST", Binding.HOST),
            ("STREAM", Binding.STREAM),
            ("WAIT_3", Binding.WAIT + 3),
            ("STREAM_QUEUE", Binding.STREAM | Binding.QUEUE),
            ("WAIT_125_QUEUE", 255),
        ):
            assert found[name] == number
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        kinds = file["kernels/kind"][:]
        del file["kernels/kind"]
        file.create_dataset("kernels/kind", data=kinds.view(np.uint8))
    with pytest.raises(InputError, match="kernels/kind: its numbers do not have the names"):
        mpisim.open_results(tmp_path / "run.h5")


def test_a_failed_renaming_is_undone(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.h5"
    run = simulate(straggler())
    write_results(run, path, comm=comm, timeline=True, seed=1)
    replace = os.replace

    def fails(source: Any, target: Any) -> None:
        if Path(target) == path:
            raise PermissionError(1, "Operation not permitted")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OutputError, match=r"run\.h5: Operation not permitted"):
        write_results(run, path, comm=comm, timeline=True, seed=2, overwrite=True)
    assert os.listdir(tmp_path) == ["run.h5"]
    with mpisim.open_results(path) as results:
        assert results.seed == 1


def test_attributes_cannot_shadow_the_files_own(comm: Any, tmp_path: Path) -> None:
    run = simulate(straggler())
    with pytest.raises(InputError, match="attribute 'digest' belongs to the results file"):
        write_results(run, tmp_path / "run.h5", comm=comm, attributes={"digest": "mine"})


# --- files that cannot be trusted ---------------------------------------------------------------


@pytest.fixture
def written(comm: Any, tmp_path: Path) -> Path:
    """A results file with a timeline."""
    if comm.size > 1:
        pytest.skip("in one process")
    run = simulate(straggler(4), critical_path=True)
    write_results(run, tmp_path / "run.h5", comm=comm, timeline=True)
    return tmp_path / "run.h5"


def changed(path: Path, change: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "r+") as file:
        change(file)


def shortened(file: h5py.File) -> None:
    begin = file["timeline/begin"][:-1]
    del file["timeline/begin"]
    file["timeline/begin"] = begin


DAMAGES = [
    (lambda p: p.unlink(), "run.h5: there is no such file"),
    (lambda p: p.write_text("x"), "run.h5: is not an HDF5 file"),
    (lambda p: p.write_bytes(p.read_bytes()[:-9000]), "run.h5: is truncated"),
    (lambda p: changed(p, lambda f: f.attrs.update(format="x")), "its format is 'x'"),
    (lambda p: changed(p, lambda f: f.attrs.update(format_version=9)), "reads up to 5"),
    (
        lambda p: changed(p, lambda f: f.attrs.update(format_version=4)),
        r"older mpisim \(format version 4; .*\); simulate again",
    ),
    (
        lambda p: changed(p, lambda f: f["ranks/class"].write_direct(np.full(4, 3, np.int32))),
        "ranks/class is 3 in entry 0; it must be from 0 to",
    ),
    (
        lambda p: changed(p, lambda f: f.attrs.__delitem__("digest")),
        "the file is damaged .*digest",
    ),
    (lambda p: changed(p, lambda f: f.__delitem__("ranks/idle")), "ranks/idle: there is no such"),
    (lambda p: changed(p, lambda f: f.__delitem__("steps")), "there is no group 'steps'"),
    (
        lambda p: changed(p, lambda f: f["ranks/idle"].attrs.update(units="us")),
        "ranks/idle: has units 'us'; expected 'ps'",
    ),
    (
        lambda p: changed(p, lambda f: f.__delitem__("timeline/end")),
        "the file is damaged .*'timeline/end'|the file is damaged .*'end'",
    ),
    (
        lambda p: changed(p, shortened),
        r"timeline/begin has shape \(\d+,\); it must have \d+ rows",
    ),
    (lambda p: p.write_bytes(b""), "run.h5: is empty; mpisim-results files are HDF5"),
    (lambda p: p.chmod(0) or os.geteuid() or p.unlink(), "Permission denied|no such file"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_a_bad_file_is_named(written: Path, damage: Callable[[Path], None], said: str) -> None:
    mpisim.open_results(written).close()
    damage(written)
    with pytest.raises(InputError, match=said) as caught:
        mpisim.open_results(written)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_file_may_be_moved_and_linked(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "elsewhere"
    away.mkdir()
    written.rename(away / "renamed.h5")
    (tmp_path / "link.h5").symlink_to(away / "renamed.h5")
    monkeypatch.chdir(away)
    for path in (away / "renamed.h5", Path("renamed.h5"), tmp_path / "link.h5"):
        with mpisim.open_results(path) as results:
            assert results.timeline is not None
            assert results.timeline["begin"].any()


def test_damage_anywhere_is_one_line(written: Path) -> None:
    """Bytes overwritten somewhere: read as they were, or refused in one line that says so."""
    image = written.read_bytes()
    rng = np.random.default_rng(0)
    said = [""]
    for at in rng.integers(0, len(image), 60).tolist():
        written.write_bytes(image[:at] + rng.bytes(40) + image[at + 40 :])
        try:
            with mpisim.open_results(written) as results:
                assert results.timeline is not None
                for rank in range(results.n_ranks):
                    results.timeline.rank(rank)
        except InputError as error:
            said.append(str(error).removeprefix(f"{written}: "))
    assert len(said) > 10
    for line in said:
        assert str(written) not in line
        assert "\n" not in line
        assert "HDF5: " not in line or line.startswith(("the file is damaged", "timeline/"))
