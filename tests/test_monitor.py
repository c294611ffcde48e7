"""The status of runs as files, on the terminal and as a page: they go on, end, fail, are killed."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import REPOSITORY
from contended import random_links
from programs import random_program

from mpisim.base import status_file
from mpisim.base.errors import DestinationError, InputError
from mpisim.cli import COMMANDS, _parser, main
from mpisim.engine import dataflow, simulate
from mpisim.mpi import monitor as monitors
from mpisim.mpi.monitor import Monitor
from mpisim.mpi.phases import phases
from mpisim.report.status import render_status, status_line

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.mpi_calls

SLOW = REPOSITORY / "tests" / "slow_command.py"
HOST = status_file.this_host()
LIMIT = 60
"""Seconds until something counts as not happening."""


def until(true: Callable[[], Any]) -> Any:
    """Wait for something, and return it."""
    end = time.monotonic() + LIMIT
    while not (found := true()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)
    return found


@contextmanager
def started(
    environment: dict[str, str], how: str, folder: Path, nprocs: int = 1
) -> Iterator[tuple[subprocess.Popen[str], Path, Path]]:
    """A run that goes on until a file appears → the process, its status and that file."""
    status, go = folder / "status.json", folder / "go"
    launcher = ["mpirun", "-n", str(nprocs)] if nprocs > 1 else []
    command = [*launcher, sys.executable, str(SLOW), how]
    process = subprocess.Popen(
        [*command, "--until", str(go), "--monitor", str(status)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "begun"
        yield process, status, go
    finally:
        process.kill()
        process.communicate()


def working(path: Path) -> dict[str, Any] | None:
    found = status_file.read_status(path)
    return found if found["phase"]["name"] else None


@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_run_says_how_it_stands(
    launch_environment: dict[str, str], tmp_path: Path, nprocs: int
) -> None:
    with started(launch_environment, "well", tmp_path, nprocs) as (process, path, go):
        status = until(lambda: working(path))
        assert status["state"] == "running"
        assert status["exit_code"] is None
        assert status["processes"] == nprocs
        if nprocs == 1:
            assert status["pid"] == process.pid
        assert status["phase"] | {"done": 2} == {
            "name": "working", "inner": "", "done": 2, "total": 8, "share": 0.25, "left": None
        }  # fmt: skip
        assert status["memory"]["resident"] > 10**7 * nprocs
        assert status["command"].startswith("mpisim slow_command well --until ")
        assert main(["watch", str(path), "--once"]) == 0
        first = status["updated"]
        until(lambda: status_file.read_status(path)["updated"] != first)
        go.touch()
        assert process.wait(LIMIT) == 0
    status = status_file.read_status(path)
    assert (status["state"], status["exit_code"], status["error"]) == ("ended", 0, "")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("how", "nprocs", "code", "error"),
    [
        ("input", 1, 2, "mpisim: error: mine.toml: plan.tp is 3; it must divide 8"),
        ("input", 2, 2, "mpisim: error: mine.toml: plan.tp is 3; it must divide 8"),
        ("bug", 1, 1, "ZeroDivisionError: of all things"),
        ("last", 2, 1, "ZeroDivisionError: of all things"),
    ],
)
def test_a_run_that_fails_says_so(
    launch_environment: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    how: str,
    nprocs: int,
    code: int,
    error: str,
) -> None:
    with started(launch_environment, how, tmp_path, nprocs) as (process, path, go):
        go.touch()
        assert process.wait(LIMIT) == code
    status = status_file.read_status(path)
    assert (status["state"], status["exit_code"], status["error"]) == ("failed", code, error)
    assert main(["watch", str(path), "--once"]) == 1
    shown = capsys.readouterr().out
    assert f"exit code {code}" in shown
    assert f"error      {error}" in shown
    assert main(["watch", str(path)]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_end(
    launch_environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    with started(launch_environment, "well", tmp_path) as (process, path, _):
        process.send_signal(number)
        assert process.wait(LIMIT) == 128 + number
    status = status_file.read_status(path)
    assert (status["state"], status["exit_code"]) == ("failed", 128 + number)
    assert status["error"] in ("mpisim: terminated", "mpisim: interrupted")


def test_a_run_that_is_killed_is_recognised(
    launch_environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(launch_environment, "well", tmp_path) as (process, path, _):
        until(lambda: working(path))
        process.kill()
        until(lambda: status_file.condition(status_file.read_status(path), 0, HOST) == "killed")
        assert main(["watch", str(path), "--once"]) == 1
        assert "ended without a word" in capsys.readouterr().out
        process.wait()
    assert main(["watch", str(path)]) == 1
    status = status_file.read_status(path)
    now = status_file.seconds_of(status["updated"]) + status_file.SILENCE
    assert status_file.condition(status, now, "elsewhere") == "running"
    assert status_file.condition(status, now + 1, "elsewhere") == "silent"
    assert "no word for 61 s" in render_status(status, now + 1, "elsewhere")


def test_watch_follows_until_the_end(launch_environment: dict[str, str], tmp_path: Path) -> None:
    """On a terminal what is shown is drawn over, in a log lines are added."""
    import pty

    with started(launch_environment, "well", tmp_path) as (_, path, go):
        until(lambda: working(path))
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "mpisim", "watch", str(path)]
        log = subprocess.Popen(command, env=launch_environment, stdout=subprocess.PIPE, text=True)
        drawn = subprocess.Popen(command, env=launch_environment, stdout=theirs)
        os.close(theirs)
        assert log.stdout is not None
        first = log.stdout.readline()
        assert re.search(r"^mpisim: [-0-9]+ [:0-9]+ running, \d+ s; working: 25 %$", first)
        seen = b""
        while seen.count(b"\x1b[J") < 2:
            seen += os.read(ours, 10_000)
        go.touch()
        rest = log.stdout.read()
        assert rest.count("ended, ") == 1
        assert (log.wait(LIMIT), drawn.wait(LIMIT)) == (0, 0)
        seen += os.read(ours, 10_000)
        os.close(ours)
        assert b"\x1b[4A" in seen or b"\x1b[5A" in seen
        assert b"state      ended" in seen


def test_who_can_be_followed() -> None:
    """Every command that simulates, or predicts many rows."""
    found = set()

    def look(parser: argparse.ArgumentParser, words: str) -> None:
        for action in parser._actions:
            if action.dest == "monitor":
                found.add(words)
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    look(inner, f"{words} {name}".strip())

    look(_parser("", COMMANDS), "")
    many = (
        "traces",
        "kernels",
        "collectives",
        "e2e",
        "published",
        "plans",
        "power",
        "job",
        "memory",
        "operators",
    )
    assert found == {
        *("run", "program run", "replay", "export", "search", "sensitivity", "job", "extrapolate"),
        "decentralized",
        *(f"validate {kind}" for kind in many),
        *(f"calibrate {kind}" for kind in ("kernels", "collectives", "e2e", "overlap")),
    }


def test_a_real_run_on_two_processes(run_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    done = run_mpisim(["run", "--no-fold", "--monitor", "s.json", "-o", "run.h5"], 2)
    assert done.rc == 0, done
    status = status_file.read_status(tmp_path / "s.json")
    assert (status["state"], status["processes"], status["ranks"]) == ("ended", 2, 8)
    assert status["rounds"] > 0
    from mpisim.results import open_results

    with open_results(tmp_path / "run.h5") as results:
        assert status["time"]["fastest"] == int(results.ranks["end"].max())
    documented(status)


# --- what a status may be written over ----------------------------------------------------------


def test_nothing_else_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "mine.toml"
    other.write_text("[plan]\ntp = 2\n")
    assert main(["run", "--monitor", str(other)]) == 2
    assert other.read_text() == "[plan]\ntp = 2\n"
    assert "is no status file; name another file" in capsys.readouterr().err
    assert main(["run", "--monitor", str(tmp_path / "no" / "s.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_one_of_two_processes_cannot_write(run_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    done = run_mpisim(["run", "--monitor", "no/s.json"], 2)
    assert done.rc == 2
    assert len(done.errors) == 1
    assert "there is no folder" in done.errors[0]


def test_a_run_that_goes_on_keeps_its_file(
    launch_environment: dict[str, str], tmp_path: Path
) -> None:
    with started(launch_environment, "well", tmp_path) as (process, path, _):
        with pytest.raises(DestinationError, match=f"goes on, process {process.pid} on"):
            status_file.check_status_file(path, HOST, 1)
        process.kill()
        process.wait()
        assert status_file.check_status_file(path, HOST, 1) == path


def test_a_folder_gets_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--monitor", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    assert path.name == f"mpisim-{HOST}-{os.getpid()}.status.json"
    assert phases.monitor is None
    capsys.readouterr()
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "state      ended" in capsys.readouterr().out
    path.unlink()
    assert main(["watch", str(tmp_path)]) == 2
    assert "a folder without a status file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no status file of mpisim"),
        ("[1]", "is no status file of mpisim"),
        ('{"format": "other"}', "is no status file of mpisim"),
        ('{"format": "mpisim-status", "version": 2}', "of version 2; this mpisim reads version 1"),
        ('{"format": "mpisim-status", "version": 1}', "damaged status file: command is not valid"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(says)):
        status_file.read_status(path)


def test_a_full_disk_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.json"
    monitor = Monitor(path, "mpisim run", phases.status, first=True, processes=1)
    before = path.read_text()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    monitor.finish(0, "")
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


# --- figures of the engine ----------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.parametrize("relax", [True, False])
def test_figures_of_a_run(
    comm: Intracomm, shared_folder: Path, monkeypatch: pytest.MonkeyPatch, relax: bool
) -> None:
    """They are those of the run, on any number of processes, and change nothing."""
    monkeypatch.setattr(dataflow, "_ROWS_PER_EXCHANGE", 5)
    monkeypatch.setattr(dataflow, "_ROWS_PER_UPDATE", 5)
    monkeypatch.setattr(monitors, "INTERVAL", 0.0)
    program = random_program(3, n_events=60, unpriced=True, backwards=False)
    network = random_links(3, program.n_ranks)
    plain = simulate(program, comm, network=network, relax=relax)
    first = comm.rank == 0
    monitor = Monitor(
        shared_folder / "s.json", "test", phases.status, first=first, processes=comm.size
    )
    monitor.join(comm)
    seen: list[dict[str, Any]] = []
    original = Monitor.look

    def looked(self: Monitor, *args: Any) -> None:
        original(self, *args)
        seen.append(self.status())

    monkeypatch.setattr(Monitor, "look", looked)
    monkeypatch.setattr(phases, "monitor", monitor)
    watched = simulate(program, comm, network=network, relax=relax)
    monkeypatch.setattr(phases, "monitor", None)
    monitor.finish(0, "")
    assert watched.digest == plain.digest
    last = monitor.status()
    ends = watched.rank_end
    assert last["time"] == {"slowest": ends.min(), "fastest": ends.max()}
    assert last["rounds"] == watched.rounds
    assert last["ranks"] == program.n_ranks
    assert last["links"]["total"] == watched.links
    times = [each["time"] for each in seen if each["time"] is not None]
    assert times
    assert all(0 <= each["slowest"] <= each["fastest"] for each in times)
    if not relax:  # the first passes of relaxation may end later
        assert all(each["fastest"] <= ends.max() for each in times)
    used = [each["links"]["in_use"] for each in seen if each["links"]["in_use"] is not None]
    if relax:
        assert used == []
        assert last["passes"] >= 1
        assert 0 <= last["links"]["full"] <= watched.links
    else:
        assert max(used) > 0
        assert max(used) <= watched.links
    if first:
        status = status_file.read_status(shared_folder / "s.json")
        assert status["time"] == last["time"]
        documented(status)


def test_no_monitor_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Monitor, "look", never)
    assert phases.monitor is None
    simulate(random_program(2))


def documented(status: dict[str, Any]) -> None:
    """Every key of a status has a row in docs/monitoring.md, and every row is a key."""
    page = (REPOSITORY / "docs" / "monitoring.md").read_text()
    rows = set(re.findall(r"^\| `([\w.]+)` \|", page, re.M))
    keys = set()
    for key, value in status.items():
        inner = value if isinstance(value, dict) else {}
        keys |= {f"{key}.{each}" for each in inner} or {key}
    assert keys - {"time", "links"} | {"time.slowest", "time.fastest"} <= rows
    assert {row.split(".")[0] for row in rows} == set(status)


def test_names_are_text(tmp_path: Path) -> None:
    """Control characters of names do not reach the terminal."""
    path = tmp_path / "s.json"
    hostile = "mpisim run '\x1b[2J\x07\ud800'"
    monitor = Monitor(path, hostile, phases.status, first=True, processes=1)
    monitor.finish(2, "error \x1b]0;x\x07: \n no")
    status = status_file.read_status(path)
    for text in (render_status(status, 0, HOST), status_line(status, 0, HOST)):
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.parametrize("words", [["--once", "--serve"], ["--serve", "70000"], ["--serve", "x"]])
def test_usage(tmp_path: Path, words: list[str]) -> None:
    assert main(["watch", str(tmp_path / "s.json"), *words]) == 2
