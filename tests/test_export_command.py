"""``mpisim export``: runs made again from their results files, formats, ranks, refused input."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from exported import DENSE, PIPELINE, exported_run, saved_run
from recorded import exported, recordable_program

from mpisim.base.rank_ranges import ranges_text
from mpisim.engine import simulate as simulate_program
from mpisim.experiment import load
from mpisim.export import read_kept
from mpisim.export.ranks import MOST_CHOSEN, some_ranks
from mpisim.export.table import COLUMNS
from mpisim.formats import import_program
from mpisim.prediction.execution import execute
from mpisim.prediction.memory_course import MemoryCourse
from mpisim.prediction.prepared import prepare
from mpisim.program import Program, ProgramBuilder
from mpisim.results import open_results

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "export.md"

# --- the run again ------------------------------------------------------------------------------


def test_a_run_of_a_file_in_another_folder(call_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    """Experiment, cluster and program are found from wherever the export is made."""
    (tmp_path / "there").mkdir()
    (tmp_path / "elsewhere").mkdir()
    experiment = (
        '[model]\npreset = "llama3-8b"\nlayers = 2\n[plan]\nglobal_batch = 8\ndp = 8\nzero = 1\n'
    )
    experiment += '[cluster]\npreset = "dgx-h100"\nnodes = 1\n'
    (tmp_path / "there" / "mine.toml").write_text(experiment)
    done = call_mpisim(["run", "mine.toml", "-o", "a.h5"], cwd=tmp_path / "there")
    assert done.rc == 0, done.stderr
    # What the experiment says is in the file: it may be changed, or be gone.
    (tmp_path / "there" / "mine.toml").write_text("")
    for changes, name in ((["--set", "plan.tp=2", "--set", "plan.dp=4"], "b"), ([], "c")):
        (tmp_path / "there" / "mine.toml").write_text(experiment)
        call_mpisim(
            ["run", "mine.toml", *changes, "--save-program", f"{name}p.h5"], cwd=tmp_path / "there"
        )
        done = call_mpisim(
            ["run", f"there/{name}p.h5", "--set", "variation.speeds.3=0.9", "-o", f"{name}.h5"]
        )
        assert done.rc == 0, done.stderr
    for path, n in (("../there/a.h5", 1), ("../b.h5", 2), ("../c.h5", 2)):
        command = ["export", path, "--format", "csv", "-o", "rows.csv", "--overwrite"]
        done = call_mpisim(command, cwd=tmp_path / "elsewhere")
        assert done.rc == 0, done.stderr
        assert f"{n} of 8 ranks" in done.stdout  # rank 3 is slower in the others


def test_a_replay_in_another_folder(call_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    from mpi4py import MPI

    run = simulate_program(recordable_program(4, n_ranks=3), MPI.COMM_SELF)
    with exported(run, MPI.COMM_SELF) as folder:
        relative = os.path.relpath(folder, tmp_path)
        done = call_mpisim(
            ["replay", relative, "--scale-comm", "0.5", "--cap-host-gap", "1:0.0001", "-o", "r.h5"]
        )
        assert done.rc == 0, done.stderr
        (tmp_path / "elsewhere").mkdir()
        command = ["export", "../r.h5", "--format", "perfetto", "-o", "r.pftrace"]
        done = call_mpisim(command, cwd=tmp_path / "elsewhere")
        assert done.rc == 0, done.stderr
        assert done.stdout == "r.pftrace: a Perfetto trace; all 3 ranks\n"
    (tmp_path / "elsewhere" / "r.pftrace").unlink()
    done = call_mpisim(command, cwd=tmp_path / "elsewhere")
    assert done.rc == 2
    assert done.stderr.startswith("mpisim: error: ../r.h5: ")
    assert "no such file" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_recording_is_not_written_over(call_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    from mpi4py import MPI

    run = simulate_program(recordable_program(4, n_ranks=3), MPI.COMM_SELF)
    with exported(run, MPI.COMM_SELF) as folder:
        relative = os.path.relpath(folder, tmp_path)
        assert call_mpisim(["replay", relative, "-o", "r.h5"]).rc == 0
        before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        for form, output in (("chrome", relative), ("csv", f"{relative}/{min(before)}")):
            command = ["export", "r.h5", "--format", form, "-o", output, "--overwrite"]
            done = call_mpisim(command)
            assert done.rc == 2
            assert "would write over what r.h5 was made of" in done.stderr
        assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == before


def test_a_step_that_was_not_simulated_whole(comm: Intracomm, tmp_path: Path) -> None:
    """Rounds that repeat are simulated once for the file, and all of them for an export."""
    changes = ("model.layers=4", "plan.pp=2", "plan.dp=4", "plan.zero=1", "plan.global_batch=1024")
    saved = saved_run(comm, tmp_path / "run.h5", *changes)
    again = exported_run(comm, saved, "csv", tmp_path / "rows.csv", "0,4")
    kept, whole = again.kept.critical_path, again.run.critical_path
    assert kept is not None
    assert whole is not None
    for column in ("kind", "rank", "row", "begin", "end"):
        assert (getattr(kept, column) == getattr(whole, column)).all()
    rows = rows_of(tmp_path / "rows.csv")
    with open_results(saved) as results:
        assert len(rows) == results.ranks["rows"][[0, 4]].sum()
    assert max(int(row["end_ps"]) for row in rows) == again.run.step_time


def test_a_changed_input_is_noticed(call_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    for layers in (2, 3):
        changes = ["--set", f"model.layers={layers}", "--save-program", "p.h5", "--overwrite"]
        call_mpisim(["run", *changes, "-o", "whole.h5"])
        if layers == 2:
            call_mpisim(["run", "p.h5", "-o", "run.h5"])
    done = call_mpisim(["export", "run.h5", "--format", "csv", "-o", "rows.csv"])
    assert done.rc == 2
    assert done.stderr.count("\n") == 1
    assert re.search(
        r"run\.h5: .*its digest is now \w{32}, not \w{32}: .*run it again", done.stderr
    )
    assert not (tmp_path / "rows.csv").exists()


def test_a_file_that_does_not_say_of_what(
    call_mpisim: Callable[..., Any], comm: Intracomm, tmp_path: Path
) -> None:
    saved_run(comm, tmp_path / "run.h5", *DENSE)
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        origin = file.attrs.pop("origin")
    done = call_mpisim(["export", "run.h5", "--format", "csv", "-o", "rows.csv"])
    assert (done.rc, done.stderr.count("\n")) == (2, 1)
    assert "run.h5: does not say what it was made of" in done.stderr
    for damage in ("{", "[]", '{"replay": 3}', '{"program": 3}', origin[:-9]):
        with h5py.File(tmp_path / "run.h5", "r+") as file:
            file.attrs["origin"] = damage
        done = call_mpisim(["export", "run.h5", "--format", "csv", "-o", "rows.csv"])
        assert (done.rc, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "run.h5" in done.stderr


# --- formats ------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[dict[str, str]]:
    """The lines of a table."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_a_table(comm: Intracomm, tmp_path: Path) -> None:
    saved = saved_run(comm, tmp_path / "run.h5", *PIPELINE)
    again = exported_run(comm, saved, "csv", tmp_path / "rows.csv.gz", "1,6")
    found = rows_of(tmp_path / "rows.csv.gz")
    assert list(found[0]) == list(COLUMNS)
    path = again.kept.critical_path
    assert path is not None
    with open_results(saved) as results:
        for rank in (1, 6):
            mine = [row for row in found if row["rank"] == str(rank)]
            assert [row["row"] for row in mine] == [str(i) for i in range(len(mine))]
            assert len(mine) == results.ranks["rows"][rank]
            assert max(int(row["end_ps"]) for row in mine) <= results.ranks["end"][rank]
            waits = [
                (int(row["wire_ps"]) - int(row["begin_ps"]), row) for row in mine if row["wire_ps"]
            ]
            assert min(wait for wait, _ in waits) >= 0
            assert {row["group_size"] for _, row in waits} == {"2", "8"}
            critical = {int(row["row"]) for row in mine if row["critical"] == "1"}
            assert critical == set(path.row[path.rank == rank].tolist()) - {-1}
    bound = {row["bound_by"].split(" ")[0] for row in found}
    assert {"host", "stream", "wait"} <= bound
    assert {row["phase"] for row in found} == {"", "forward", "backward", "optimizer"}
    assert {row["algorithm"] for row in found if row["bandwidth_gb_s"]} == {"ring", "send"}


def test_the_columns_are_on_the_page() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    named = [
        name
        for line in text.splitlines()
        if line.startswith("| `") and "_ps" not in line.split("|")[0]
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    assert [name for name in named if name in COLUMNS] == list(COLUMNS)


def test_chakra(comm: Intracomm, tmp_path: Path) -> None:
    """Of a replay the same program, to the last bit."""
    from mpi4py import MPI

    from mpisim.replay import ReplayOrigin, WhatIf, read_job, replay
    from mpisim.results import write_results

    run = simulate_program(recordable_program(5, n_ranks=3), MPI.COMM_SELF)
    with exported(run, MPI.COMM_SELF) as folder:
        what = WhatIf(host=0.5)
        made = replay(read_job([folder], MPI.COMM_SELF), MPI.COMM_SELF, what).run
        origin = ReplayOrigin.of([folder], False, what).text
        write_results(made, tmp_path / "run.h5", comm=MPI.COMM_SELF, origin=origin)
        exported_run(comm, tmp_path / "run.h5", "chakra", tmp_path / "et")
    names = sorted(path.name for path in (tmp_path / "et").iterdir())
    assert names == ["run.0.et", "run.1.et", "run.2.et", "run.json"]
    assert simulate_program(import_program([tmp_path / "et"])).digest == made.digest


# --- ranks --------------------------------------------------------------------------------------


def program_of(n_ranks: int, n_tables: int, **more: Any) -> Program:
    """Ranks that share tables in turn."""
    builder = ProgramBuilder()
    tables = []
    for table in range(n_tables):
        rows = builder.table()
        rows.kernel("kernel", 0, 1000 + table, host=0, launch=0, launch_cost=0, gap=0)
        tables.append(builder.add_table(rows.build()))
    for rank in range(n_ranks):
        builder.add_rank(tables[rank % n_tables], [])
    return builder.build().replace(**more)


def test_one_rank_of_each_kind() -> None:
    assert some_ranks(program_of(12, 3)).ranks == [0, 1, 2]
    slow = np.where(np.arange(12) == 7, 0.5, 1.0)
    assert some_ranks(program_of(12, 3, speed=slow)).ranks == [0, 1, 2, 7]
    late = np.where(np.arange(12) >= 9, 5, 0)
    assert some_ranks(program_of(12, 3, start=late)).ranks == [0, 1, 2, 9, 10, 11]
    assert some_ranks(program_of(3, 3)) == ([0, 1, 2], "")


def test_of_many_kinds_some() -> None:
    many = program_of(100, 4, speed=np.linspace(0.5, 1, 100))
    assert some_ranks(many).ranks == [0, 1, 2, 3]
    many = program_of(100, 40)
    found = some_ranks(many)
    assert (len(found.ranks), found.ranks[0], found.ranks[-1]) == (MOST_CHOSEN, 0, 39)
    assert "40" in found.why


def test_ranges_as_text() -> None:
    assert ranges_text([0, 1, 2, 8, 10, 11]) == "0-2,8,10-11"
    assert ranges_text([]) == ""
    assert ranges_text(range(0, 100, 2), most=2) == "0,2,…"


# --- memory -------------------------------------------------------------------------------------

SCHEDULES = [
    (),
    ("plan.pipeline.schedule=interleaved", "plan.vpp=2"),
    ("plan.pipeline.schedule=zb-h1",),
    ("plan.pipeline.schedule=dualpipe",),
    ("plan.pipeline.schedule=gpipe", "plan.recompute=full"),
    ("framework.dp_style=fsdp", "plan.zero=2"),
]


@pytest.mark.parametrize(
    "changes", SCHEDULES, ids=lambda changes: (changes and changes[0]) or "1f1b"
)
def test_memory_is_highest_where_the_verdict_says(
    comm: Intracomm, changes: tuple[str, ...]
) -> None:
    plan = ("plan.pp=4", "plan.dp=2", "plan.zero=1", "plan.global_batch=32", "run.allow_oom=true")
    case = prepare(load(changes=["model.layers=8", *plan, *changes])[1])
    run, _ = execute(case, comm)
    course = MemoryCourse(case)
    stages = case.workload.layout.grid.stage
    for i, rank in enumerate(run.hosted.tolist()):
        found = course.of(rank, case.program.table_of(rank), run.rows(i))
        assert found is not None
        assert found.total.max() == case.memory.stages[stages[rank]].total
        assert (np.diff(found.time) >= 0).all()
        assert found.total[0] == found.total[-1]  # all that a step takes, it gives back
        assert found.time[-1] <= run.step_time


# --- refused ------------------------------------------------------------------------------------


@pytest.fixture
def saved(comm: Intracomm, tmp_path: Path) -> Path:
    """A run, a file and a folder in the working folder."""
    (tmp_path / "there.csv").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.json").write_text("{}")
    return saved_run(comm, tmp_path / "run.h5", *DENSE)


REFUSED = [
    (["csv", "-o", "there.csv"], "there.csv: exists already"),
    (["csv", "-o", "run.h5", "--overwrite"], "-o would write over the input"),
    (["csv", "-o", "no/rows.csv"], "there is no folder"),
    (["csv", "-o", "rows.csv", "--ranks", "3-9"], "names rank 8; there are ranks 0-7, or 'all'"),
    (["csv", "-o", "rows.csv", "--ranks", "one"], "--ranks: 'one' does not name ranks"),
    (["chrome", "-o", "x.json.gz"], "x.json.gz: Kineto traces are a file a rank; name a folder"),
    (["chrome", "-o", "there.csv"], "there.csv: is not a folder"),
    (["chrome", "-o", "folder", "--overwrite"], "holds mine.json already"),
    (["chakra", "-o", "folder"], "holds mine.json already"),
    (["chakra", "-o", "et", "--ranks", "0"], "--ranks: Chakra's traces are of all ranks"),
    (["simai", "-o", "there.csv"], "there.csv: exists already"),
    (["simai", "-o", "x.txt", "--ranks", "0,1"], "--ranks names 2 ranks; a SimAI workload has the"),
    (["otf", "-o", "x"], "'otf'"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(
    call_mpisim: Callable[..., Any], saved: Path, arguments: list[str], said: str
) -> None:
    before = sorted(saved.parent.rglob("*"))
    done = call_mpisim(["export", saved.name, "--format", *arguments])
    assert (done.rc, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]
    assert sorted(saved.parent.rglob("*")) == before


def test_the_same_on_two_processes(run_mpisim: Callable[..., Any], saved: Path) -> None:
    for n in (1, 2):
        for format_, name in (("csv", "csv"), ("perfetto", "pftrace.gz")):
            done = run_mpisim(["export", "run.h5", "--format", format_, "-o", f"{n}.{name}"], n)
            assert done.rc == 0, done.stderr
            assert "1 of 8 ranks: 0 (one of each kind: others do the same work; see --ranks)" in (
                done.stdout
            )
        done = run_mpisim(["export", "run.h5", "--format", "simai", "-o", f"{n}.txt"], n)
        assert (done.rc, "all 8 ranks" in done.stdout) == (0, True), done.stderr
    for name in ("csv", "pftrace.gz", "txt"):
        one, two = ((saved.parent / f"{n}.{name}").read_bytes() for n in (1, 2))
        assert one == two
    done = run_mpisim(["export", "run.h5", "--format", "csv", "-o", "3.csv", "--ranks", "8"], 2)
    assert done.rc == 2
    assert done.stderr.count("names rank 8; there are ranks 0-7, or 'all'") == 1


def test_stages_that_processes_share(
    run_mpisim: Callable[..., Any], comm: Intracomm, tmp_path: Path
) -> None:
    """Each process holds the tables of its own ranks; an export of all has those of others."""
    saved_run(comm, tmp_path / "run.h5", *PIPELINE)
    for n in (1, 2):
        for format_ in ("simai", "chakra"):
            output = f"{format_}{n}"
            done = run_mpisim(["export", "run.h5", "--format", format_, "-o", output], n)
            assert done.rc == 0, done.stderr
    assert (tmp_path / "simai1").read_bytes() == (tmp_path / "simai2").read_bytes()
    names = sorted(each.name for each in (tmp_path / "chakra1").iterdir())
    assert len(names) == 8 + 1
    for name in names:
        one, two = ((tmp_path / f"chakra{n}" / name).read_bytes() for n in (1, 2))
        assert one == two


def test_a_full_disk(saved: Path, comm: Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of a file that cannot be written, compressed or not."""
    from mpisim.base.errors import OutputError
    from mpisim.export import perfetto

    def full(*_: Any) -> Any:
        yield b"some"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(perfetto._Part, "rest", full)
    before = sorted(saved.parent.iterdir())
    for name in ("x.pftrace", "x.pftrace.gz"):
        with pytest.raises(OutputError, match="No space left on device"):
            exported_run(comm, saved, "perfetto", saved.parent / name)
    assert sorted(saved.parent.iterdir()) == before
    assert read_kept(saved, comm).numbers == list(range(8))
