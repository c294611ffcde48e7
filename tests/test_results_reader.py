"""Results files, read: what was written, on any number of processes and however placed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import partial, programs
from straggler import STEP, US, straggler

import mpisim
from mpisim.base.errors import UsageError
from mpisim.engine import simulate
from mpisim.program import Operation, Program, ProgramBuilder
from mpisim.results import Results, collect, write_results

pytestmark = pytest.mark.mpi_calls


def assert_equal_results(a: Results, b: Results) -> None:
    """Check that two results agree in all but who wrote them."""
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


ATTRIBUTES = {
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
def test_what_is_written_is_read(
    comm: Any, shared_folder: Path, n_ranks: int, timeline: bool
) -> None:
    path = shared_folder / f"run {n_ranks} 100%b é.h5"
    run = simulate(straggler(n_ranks, steps=2), comm, critical_path=True)
    attributes = {**ATTRIBUTES, "text": "x" * 100_000}
    written = write_results(
        run,
        path,
        comm=comm,
        timeline=timeline,
        experiment="[model]\nlayers = 12\n",
        seed=2**63,
        attributes=attributes,
    )
    with mpisim.open_results(path) as results:  # on every process
        if written is not None:
            as_given = {**results.attributes, "gpu": "H100\0 SXM"}
            assert_equal_results(written, replace(results, attributes=as_given))
        assert results.attributes["gpu"] == "H100\ufffd SXM"
        assert results.attributes["assumptions"] == ATTRIBUTES["assumptions"]
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
    assert os.listdir(shared_folder) == [path.name]


@pytest.mark.mpi
def test_any_placement_gives_the_same_tables(comm: Any, shared_folder: Path) -> None:
    program = straggler(6, steps=2)
    placement = np.random.default_rng(1).integers(0, comm.size, 6).astype(np.int32)
    found = []
    for name, where in (("blocks", None), ("shuffled", placement)):
        run = simulate(program, comm, critical_path=True, placement=where)
        write_results(run, shared_folder / name, comm=comm, timeline=True)
        with mpisim.open_results(shared_folder / name) as results:
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
    assert_equal_results(
        results, replace(alone, **here, ranks={**alone.ranks, "process": placement})
    )


@pytest.mark.mpi
def test_processes_may_know_other_names(comm: Any, shared_folder: Path) -> None:
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
    write_results(run, shared_folder / "run.h5", comm=comm, timeline=True)
    with mpisim.open_results(shared_folder / "run.h5") as results:
        assert results.timeline is not None
        names = [results.timeline.names[i] for i in results.timeline["name"]]
    expected = [text for r in range(comm.size) for text in (f"kernel {r % 3}", "barrier")]
    assert names == expected
    assert sorted(results.kernels["name"]) == sorted(set(expected) - {"barrier"})
    assert results.kernels["count"].sum() == comm.size


def test_the_file_explains_itself(comm: Any, tmp_path: Path) -> None:
    run = simulate(straggler(), critical_path=True)
    write_results(run, tmp_path / "run.h5", comm=comm, timeline=True, attributes=ATTRIBUTES)
    with h5py.File(tmp_path / "run.h5") as file:
        assert file.attrs["format"] == "mpisim-results"
        assert file.attrs["step_time"] == run.step_time * 1e-12
        assert file.attrs["assumptions"].tolist() == ATTRIBUTES["assumptions"]
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


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_file_is_read_while_others_have_it_open(comm: Any, tmp_path: Path, first: str) -> None:
    path = tmp_path / "run.h5"
    write_results(simulate(straggler()), path, comm=comm, timeline=True)
    ours = mpisim.open_results(path) if first == "ours" else None
    with h5py.File(path, "r+") as theirs, ours or mpisim.open_results(path) as results:
        assert results.timeline is not None
        np.testing.assert_array_equal(results.timeline["begin"], theirs["timeline/begin"][:])


def test_a_file_may_be_moved_and_linked(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "elsewhere"
    away.mkdir()
    run = simulate(straggler(4), critical_path=True)
    write_results(run, tmp_path / "run.h5", comm=comm, timeline=True)
    (tmp_path / "run.h5").rename(away / "renamed.h5")
    (tmp_path / "link.h5").symlink_to(away / "renamed.h5")
    monkeypatch.chdir(away)
    for path in (away / "renamed.h5", Path("renamed.h5"), tmp_path / "link.h5"):
        with mpisim.open_results(path) as results:
            assert results.timeline is not None
            assert results.timeline["begin"].any()
