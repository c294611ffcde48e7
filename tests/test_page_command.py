"""``--html`` of run, replay, report and compare: files, refusals, exit codes, any processes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import pytest
from exported import DENSE, PIPELINE, saved_run
from recorded import exported, recordable_program

from mpisim.base.errors import OutputError
from mpisim.engine import simulate as simulate_program
from mpisim.export import read_kept, resimulate
from mpisim.page.payload import run_payload
from mpisim.page.shown import ShownRun
from mpisim.page.write import write_run_page
from mpisim.results import open_results

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

SMALL = [word for change in PIPELINE for word in ("--set", change)]
MOST_BYTES = 5_000_000


def is_whole(path: Path) -> bool:
    """Whether a file is a page, complete and not too large to be sent."""
    text = path.read_text(encoding="utf-8")
    return (
        text.lstrip().lower().startswith("<!doctype html>")
        and text.rstrip().endswith("</html>")
        and len(text) < MOST_BYTES
    )


def without_network(path: Path) -> bool:
    """Whether nothing of a page is to be fetched."""
    text = path.read_text(encoding="utf-8")
    return not re.search(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""", text)


# --- files ----------------------------------------------------------------------------------------


def test_pages_of_all_commands(call_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    done = call_mpisim(["run", *SMALL, "--html", "run.html", "-o", "a.h5"])
    assert (done.rc, done.stderr) == (0, "")
    plain = call_mpisim(["run", *SMALL])
    # But for where it is kept.
    assert done.stdout == plain.stdout.replace("-o run.h5 keeps it", "a.h5 keeps it")
    done = call_mpisim(["report", "a.h5", "--html", "report.html"])
    assert (done.rc, done.stderr) == (0, "")
    assert done.stdout == call_mpisim(["report", "a.h5"]).stdout
    # The run that is at hand and the one that is made again are the same, and so is the page.
    assert (tmp_path / "report.html").read_bytes() == (tmp_path / "run.html").read_bytes()
    done = call_mpisim(["run", *SMALL, "--set", "plan.recompute=full", "-o", "b.h5"])
    assert done.rc == 0
    done = call_mpisim(["compare", "a.h5", "b.h5", "--html", "diff.html"])
    assert (done.rc, done.stderr) == (0, "")
    for name in ("run", "diff"):
        assert is_whole(tmp_path / f"{name}.html")
        assert without_network(tmp_path / f"{name}.html")


def test_a_page_of_a_replay(call_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    from mpi4py import MPI

    run = simulate_program(recordable_program(4, n_ranks=3), MPI.COMM_SELF)
    with exported(run, MPI.COMM_SELF) as folder:
        done = call_mpisim(["replay", folder, "-o", "r.h5", "--html", "replay.html"])
        assert (done.rc, done.stderr) == (0, "")
        done = call_mpisim(["report", "r.h5", "--html", "report.html"])
        assert (done.rc, done.stderr) == (0, "")
        traces = sorted(Path(folder).iterdir())
        before = traces[0].read_bytes()
        for command in (
            ["replay", folder, "--html", traces[0], "--overwrite"],
            ["report", "r.h5", "--html", traces[0], "--overwrite"],
        ):
            done = call_mpisim(command)
            assert (done.rc, done.stderr.count("\n")) == (2, 1)
            assert "would write over" in done.stderr
        assert traces[0].read_bytes() == before
    assert is_whole(tmp_path / "replay.html")
    # The recording is not there any more: the page says so, and all else is on it.
    done = call_mpisim(["report", "r.h5", "--html", "moved.html"])
    assert done.rc == 0
    assert done.stderr.startswith("mpisim: note: moved.html: without timeline and memory: r.h5: ")
    assert done.stderr.count("\n") == 1
    assert "no such file" in done.stderr
    assert is_whole(tmp_path / "moved.html")


def test_a_page_of_a_program_file(call_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    assert call_mpisim(["run", *SMALL, "--save-program", "p.h5"]).rc == 0
    done = call_mpisim(["program", "run", "p.h5", "--html", "p.html", "-o", "r.h5"])
    assert (done.rc, done.stderr) == (0, "")
    assert is_whole(tmp_path / "p.html")
    done = call_mpisim(["run", "p.h5", "--html", "p.h5", "--overwrite"])
    assert done.rc == 2
    assert "--html would write over the input" in done.stderr
    # What the run was made of is not written over either.
    done = call_mpisim(["report", "r.h5", "--html", "p.h5", "--overwrite"])
    assert (done.rc, done.stderr.count("\n")) == (2, 1)
    assert "would write over what r.h5 was made of" in done.stderr
    # It has changed: no row is shown that the results are not about.
    longer = ["--set", "model.layers=12"]
    call_mpisim(["run", *SMALL, *longer, "--save-program", "p.h5", "--overwrite"])
    done = call_mpisim(["report", "r.h5", "--html", "changed.html"])
    assert done.rc == 0
    assert re.search(r"without timeline and memory: r\.h5: .* its digest is now", done.stderr)
    assert done.stderr.count("\n") == 1


def test_results_that_do_not_say_of_what(
    call_mpisim: Callable[..., Any], comm: Intracomm, tmp_path: Path
) -> None:
    saved_run(comm, tmp_path / "run.h5", *DENSE)
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        del file.attrs["origin"]
    done = call_mpisim(["report", "run.h5", "--html", "run.html"])
    assert done.rc == 0
    assert "without timeline and memory: run.h5: does not say what it was made of" in done.stderr
    assert done.stderr.count("\n") == 1
    assert is_whole(tmp_path / "run.html")
    with open_results(tmp_path / "run.h5") as results:
        page = run_payload(results, None, comm, why="run.h5: does not say what it was made of")
    assert page is not None
    assert page["timeline"] is None
    assert page["path"] is not None


# --- refused --------------------------------------------------------------------------------------

REFUSED = [
    (["report", "a.h5", "--html", "there.html"], "there.html: exists already"),
    (["compare", "a.h5", "b.h5", "--html", "there.html"], "there.html: exists already"),
    (["run", "--html", "there.html"], "there.html: exists already"),
    (["report", "a.h5", "--html", "no/a.html"], "there is no folder"),
    (["report", "a.h5", "--html", "."], "is a folder"),
    (["report", "a.h5", "--html", "a.h5", "--overwrite"], "--html would write over the input"),
    (
        ["compare", "a.h5", "b.h5", "--html", "b.h5", "--overwrite"],
        "--html would write over the input",
    ),
    (["report", "a.h5", "--overwrite"], "a file to write: --json FILE or --html FILE"),
    (["run", "--overwrite"], "--overwrite needs a file to write: -o FILE"),
    (["run", "--json", "x", "--html", "x"], "--json and --html name the same file"),
    (["run", "-o", "x", "--html", "x"], "-o and --html name the same file"),
    (["report", "none.h5", "--html", "x.html"], "none.h5"),
    (["report", "there.html", "--html", "x.html"], "there.html"),
    (["compare", "a.h5", "none.h5", "--html", "x.html"], "none.h5"),
    (["export", "a.h5", "--html", "x.html"], "unknown option '--html'"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two results and a file."""
    from mpi4py import MPI

    made = tmp_path_factory.mktemp("results")
    saved_run(MPI.COMM_SELF, made / "a.h5", *DENSE)
    saved_run(MPI.COMM_SELF, made / "b.h5", *PIPELINE)
    (made / "there.html").write_text("mine")
    return made


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=lambda each: " ".join(each)[:40])
def test_refused(
    call_mpisim: Callable[..., Any], folder: Path, words: list[str], message: str
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = call_mpisim(words, cwd=folder)
    assert (done.rc, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_standard_output_is_refused(run_mpisim: Callable[..., Any]) -> None:
    done = run_mpisim(["run", "--html", "/dev/stdout"])
    assert (done.rc, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "is not a regular file" in done.stderr


def test_a_page_is_replaced_if_asked(call_mpisim: Callable[..., Any], folder: Path) -> None:
    target = folder / "mine.html"
    target.write_text("mine")
    done = call_mpisim(["report", "a.h5", "--html", "mine.html", "--overwrite"], cwd=folder)
    assert (done.rc, done.stderr) == (0, "")
    assert is_whole(target)
    done = call_mpisim(
        ["compare", "a.h5", "b.h5", "--html", "mine.html", "--overwrite"], cwd=folder
    )
    assert (done.rc, done.stderr) == (0, "")
    assert is_whole(target)
    target.unlink()


def test_a_page_appears_whole_or_not_at_all(
    folder: Path, comm: Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program makes a file of that name meanwhile, or there is no room."""
    target = tmp_path / "page.html"
    link = os.link

    def after_another(source: Any, path: Any) -> None:
        target.write_text("theirs")
        link(source, path)

    with monkeypatch.context() as patched, open_results(folder / "a.h5") as results:
        patched.setattr(os, "link", after_another)
        with pytest.raises(OutputError, match="another program made it in the meantime"):
            write_run_page(results, None, target, comm, why="no run")
    assert target.read_text() == "theirs"
    target.unlink()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, open_results(folder / "a.h5") as results:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="No space left on device"):
            write_run_page(results, None, target, comm, why="no run")
    assert list(tmp_path.iterdir()) == []


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.mpi
def test_the_same_bytes_on_any_number_of_processes(comm: Intracomm, shared_folder: Path) -> None:
    from mpi4py import MPI

    saved = shared_folder / "run.h5"
    for name, among in (("all", comm), ("one", MPI.COMM_SELF)):
        if among is MPI.COMM_SELF and comm.rank:
            continue
        if not saved.exists() and among is comm:
            saved_run(comm, saved, *PIPELINE)
        again = resimulate(read_kept(saved, among), among)
        results = open_results(saved) if among.rank == 0 else None
        write_run_page(
            results, ShownRun.of(again), shared_folder / f"{name}.html", among, name="run"
        )
        if results is not None:
            results.close()
    if comm.rank == 0:
        one, other = ((shared_folder / f"{name}.html").read_bytes() for name in ("one", "all"))
        assert one == other


def test_commands_on_two_processes(run_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    for n in (1, 2):
        done = run_mpisim(["run", *SMALL, "--html", f"run{n}.html", "-o", f"{n}.h5"], n)
        assert (done.rc, done.stderr) == (0, "")
    done = run_mpisim(["report", "1.h5", "--html", "report.html"], 2)
    assert (done.rc, done.stderr) == (0, "")
    assert done.stdout.count("step time") >= 1
    expected = (tmp_path / "run1.html").read_bytes()
    assert (tmp_path / "run2.html").read_bytes() == expected
    assert (tmp_path / "report.html").read_bytes() == expected
    done = run_mpisim(["report", "1.h5", "--html", "report.html"], 2)
    assert (done.rc, done.stderr.count("mpisim: error")) == (2, 1)
    assert "report.html: exists already" in done.stderr
    done = run_mpisim(["report", "none.h5", "--html", "x.html"], 2)
    assert done.rc == 2
    assert "none.h5" in done.stderr


def test_nothing_of_the_page_is_loaded_without_it(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from mpisim.cli import main\n"
        "assert main(['run', '--set', 'model.layers=2']) == 0\n"
        "found = [name for name in sys.modules if name.startswith('mpisim.page')]\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr.decode()
