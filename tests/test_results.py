"""Results: exact accounts, whole files or none, and files that cannot be trusted."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
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
from mpisim.engine import Run, simulate
from mpisim.errors import InputError, OutputError, UsageError
from mpisim.program import Flag, Kind, Operation, Program, ProgramBuilder
from mpisim.results import Results, check_results_output, collect, rank_steps, write_results
from mpisim.results.accounting import account


@pytest.fixture
def folder(comm: Any, tmp_path: Path) -> Path:
    """One folder for all processes."""
    return Path(comm.bcast(os.fspath(tmp_path), root=0))


def assert_same(a: Results, b: Results) -> None:
    """Two results say the same; not who made them."""
    for name in ("step_time_ps", "digest", "n_processes", "rounds", "experiment",
                 "seed", "creator", "attributes", "program", "rank_steps"):  # fmt: skip
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
        "communicator": [0], "operation": [Operation.ALL_REDUCE], "size": [n], "count": [1],
        "bytes": [4096], "wire": [50 * n * US], "waiting": [50 * (n - 1) * US], "limit": [""],
    }  # fmt: skip
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
                        Operation.BARRIER, 0, 2, 0, duration=draw(time), host=draw(time),
                        launch_cost=draw(time), flags=Flag.JOINED if i else Flag.NONE,
                    )
                )  # fmt: skip
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
        run, path, comm=comm, timeline=timeline, experiment="[model]\nlayers = 12\n", seed=2**63,
        attributes=said,
    )  # fmt: skip
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
    shards = [f"{path.name}.shards"] if timeline else []
    assert sorted(os.listdir(folder)) == sorted([path.name, *shards])


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
        assert {"summary", "ranks", "classes", "communications", "links", "critical_path",
                "timeline"} <= set(file)  # fmt: skip
        assert file["links/utilisation"].shape == (0, 100)
        assert file["summary/step_time_seconds"].attrs["units"] == "s"
        assert file["timeline/begin"].is_virtual
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
    full = comm.size - 1 if timeline else 0  # without a timeline only process 0 writes
    with (
        files_limited(size) if comm.rank == full else nullcontext(),
        pytest.raises(OutputError, match=r"run\.h5: File too large") as caught,
    ):
        write_results(run, path, comm=comm, timeline=timeline, overwrite=True, seed=2)
    assert caught.value.exit_code == 1
    assert ".part" not in str(caught.value)
    comm.Barrier()
    assert sorted(os.listdir(folder)) == (["run.h5", "run.h5.shards"] if before else [])
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
        check_results_output(folder / name)
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
        assert sorted(os.listdir(folder)) == ["run.h5", "run.h5.shards"][: 1 + timeline]
        comm.Barrier()


def test_a_folder_of_others_is_not_touched(comm: Any, tmp_path: Path) -> None:
    run = simulate(straggler())
    (tmp_path / "run.h5.shards").mkdir()
    (tmp_path / "run.h5.shards" / "thesis.tex").write_text("precious")
    with pytest.raises(OutputError, match=r"run\.h5\.shards: exists already"):
        write_results(run, tmp_path / "run.h5", comm=comm)
    with pytest.raises(OutputError, match=r"run\.h5\.shards: is not a folder of shards"):
        write_results(run, tmp_path / "run.h5", comm=comm, overwrite=True, timeline=True)
    assert os.listdir(tmp_path) == ["run.h5.shards"]
    assert os.listdir(tmp_path / "run.h5.shards") == ["thesis.tex"]


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
    assert sorted(os.listdir(tmp_path)) == ["run.h5", "run.h5.shards"]
    with mpisim.open_results(path) as results:
        assert results.seed == 1


def test_attributes_cannot_shadow_the_files_own(comm: Any, tmp_path: Path) -> None:
    run = simulate(straggler())
    with pytest.raises(InputError, match="attribute 'digest' belongs to the results file"):
        write_results(run, tmp_path / "run.h5", comm=comm, attributes={"digest": "mine"})


# --- files that cannot be trusted ---------------------------------------------------------------


@pytest.fixture
def written(comm: Any, tmp_path: Path) -> Path:
    """A results file with a timeline in two shards, as two processes would write it."""
    if comm.size > 1:
        pytest.skip("in one process")
    run = simulate(straggler(4), critical_path=True)
    write_results(run, tmp_path / "run.h5", comm=comm, timeline=True)
    return tmp_path / "run.h5"


def shard(path: Path) -> Path:
    return path.with_name("run.h5.shards") / "0000.h5"


def changed(path: Path, change: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "r+") as file:
        change(file)


def shortened(file: h5py.File) -> None:
    begin = file["begin"][:-1]
    del file["begin"]
    file["begin"] = begin


DAMAGES = [
    (lambda p: p.unlink(), "run.h5: there is no such file"),
    (lambda p: p.write_text("x"), "run.h5: is not an HDF5 file"),
    (lambda p: p.write_bytes(p.read_bytes()[:-9000]), "run.h5: is truncated"),
    (lambda p: changed(p, lambda f: f.attrs.update(format="x")), "its format is 'x'"),
    (lambda p: changed(p, lambda f: f.attrs.update(format_version=9)), "reads up to 4"),
    (
        lambda p: changed(p, lambda f: f.attrs.update(format_version=2)),
        r"older mpisim \(format version 2; .*\); simulate again",
    ),
    (
        lambda p: changed(p, lambda f: f["ranks/class"].write_direct(np.full(4, 3, np.int32))),
        "ranks/class is 3 in entry 0; it must be from 0 to",
    ),
    (
        lambda p: changed(p, lambda f: f.attrs.__delitem__("digest")),
        "the file is damaged: .*digest",
    ),
    (lambda p: changed(p, lambda f: f.__delitem__("ranks/idle")), "ranks/idle: there is no such"),
    (lambda p: changed(p, lambda f: f.__delitem__("steps")), "there is no group 'steps'"),
    (
        lambda p: changed(p, lambda f: f["ranks/idle"].attrs.update(units="us")),
        "ranks/idle: has units 'us'; expected 'ps'",
    ),
    (lambda p: shard(p).unlink(), "0000.h5, a part of its timeline, is missing; move the file"),
    (lambda p: shutil.rmtree(shard(p).parent), "its folder run.h5.shards together"),
    (lambda p: shard(p).write_bytes(shard(p).read_bytes()[:-900]), "0000.h5: is truncated"),
    (lambda p: shard(p).write_text("x"), "0000.h5: is not an HDF5 file"),
    (lambda p: changed(shard(p), shortened), r"begin has shape \(9,\); .* expects \(10,\)"),
    (lambda p: changed(shard(p), lambda f: f.__delitem__("end")), "0000.h5: the file is damaged"),
    (
        lambda p: changed(shard(p), lambda f: f.attrs.update(digest="0" * 32)),
        "0000.h5: belongs to another run",
    ),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_a_bad_file_is_named(written: Path, damage: Callable[[Path], None], said: str) -> None:
    mpisim.open_results(written).close()
    damage(written)
    with pytest.raises(InputError, match=said) as caught:
        mpisim.open_results(written)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_file_and_shards_move_together(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mpisim.open_results(written) as results:
        assert results.timeline is not None
        begin = results.timeline["begin"]
    assert begin.any()
    away = tmp_path / "elsewhere"
    away.mkdir()
    written.rename(away / "renamed.h5")
    shard(written).parent.rename(away / "run.h5.shards")
    (tmp_path / "link.h5").symlink_to(away / "renamed.h5")
    monkeypatch.chdir(away)
    for path in (away / "renamed.h5", Path("renamed.h5"), tmp_path / "link.h5"):
        with mpisim.open_results(path) as results:
            assert results.timeline is not None
            np.testing.assert_array_equal(results.timeline["begin"], begin)
