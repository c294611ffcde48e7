"""Searches that are killed, interrupted or run out of disk go on and answer as whole ones do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import h5py
import pytest
from bad_files import files_limited
from mpi4py import MPI
from small_searches import SEARCH

from mpisim.base.toml import toml_value
from mpisim.search import explore, read_search, read_store, write_store
from mpisim.search.records import Records, Status

TABLES: dict[str, Any] = {
    "model": {"preset": "llama-3-8b", "layers": 4},
    "plan": {"global_batch": 32, "sp": True},  # which is invalid where tp is 1
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "search": {"top": 12},
    "search.vary": {"plan.tp": [1, 2, 4], "plan.pp": [1, 2, 4], "plan.micro_batch": [1, 2]},
}


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """An experiment with a search, named from the working folder as people do."""
    lines = []
    for name, table in TABLES.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    return "mine.toml"


def stopped(
    words: list[str],
    processes: int,
    by: signal.Signals,
    rounds: int,
    folder: Path,
    environment: Any,
) -> None:
    """Start a search, and end it when it has replaced its store so many times, if it still runs."""
    command = [sys.executable, "-m", "mpisim", "search", *words]
    if processes > 1:
        mpirun = shutil.which("mpirun", path=environment["PATH"])
        assert mpirun
        command = [mpirun, "-n", str(processes), *command]
    with subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as started:
        seen: set[tuple[int, int]] = set()
        while len(seen) < rounds and started.poll() is None:
            if (store := folder / "s.h5").exists():
                now = store.stat()
                seen.add((now.st_ino, now.st_mtime_ns))
            time.sleep(0.002)
        if started.poll() is None:
            # What mpirun has started it ends, if it may: only a process alone is killed outright.
            os.killpg(started.pid, by) if processes == 1 else started.send_signal(by)


@pytest.mark.parametrize(
    ("stops", "last"),
    [
        ([(1, signal.SIGKILL, 1)], 2),
        ([(1, signal.SIGKILL, 3), (2, signal.SIGINT, 3)], 1),
        ([(2, signal.SIGTERM, 1), (1, signal.SIGTERM, 2), (1, signal.SIGKILL, 2)], 4),
    ],
    ids=["killed", "killed and interrupted", "three times"],
)
def test_searches_that_were_stopped_give_the_same_answer(
    stops: list[tuple[int, signal.Signals, int]],
    last: int,
    mine: str,
    tmp_path: Path,
    run_mpisim: Any,
    launch_environment: dict[str, str],
) -> None:
    words = [mine, "-o", "s.h5"]
    for processes, by, rounds in stops:
        stopped(words, processes, by, rounds, tmp_path, launch_environment)
        read_store(tmp_path / "s.h5")
        words = ["-o", "s.h5", "--resume"]
    resumed = run_mpisim(["search", *words], nprocs=last)
    whole = run_mpisim(["search", mine])
    assert resumed.rc == whole.rc == 0, resumed.stderr
    assert "Of those that do not go together" in whole.stdout
    assert resumed.stdout == whole.stdout
    assert run_mpisim(["report", "s.h5"]).stdout == whole.stdout


def test_a_search_resumed_elsewhere_names_its_file(
    mine: str, tmp_path: Path, call_mpisim: Any
) -> None:
    found = call_mpisim(["search", mine, "-o", "s.h5"])
    assert "mpisim run mine.toml" in found.stdout
    (elsewhere := tmp_path / "elsewhere").mkdir()
    told = call_mpisim(["search", "-o", "../s.h5", "--resume"], cwd=elsewhere)
    assert told.stdout == found.stdout.replace("run mine.toml", f"run {tmp_path / mine}")


def test_a_full_disk_is_one_line_and_keeps_what_was_found(
    mine: str, tmp_path: Path, call_mpisim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with files_limited(2000):
        found = call_mpisim(["search", mine, "-o", "s.h5"])
    assert found.rc == 1
    assert found.stderr.startswith("mpisim: error: s.h5: ")
    assert len(found.stderr.strip().splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == [mine]
    space = read_search(tomllib.loads((tmp_path / mine).read_text()), mine)
    kept: list[Records] = []

    def keep_first(records: Records) -> None:
        if not kept:
            write_store(tmp_path / "s.h5", space, records)
        kept.append(records)

    explore(space, MPI.COMM_SELF, each_round=keep_first)
    before = (tmp_path / "s.h5").read_bytes()
    with files_limited(2000):
        found = call_mpisim(["search", "-o", "s.h5", "--resume"])
    assert found.rc == 1
    assert found.stderr.splitlines() == [
        "mpisim: what was found is in s.h5; go on with: mpisim search -o s.h5 --resume",
        "mpisim: error: s.h5: File too large",
    ]
    assert (tmp_path / "s.h5").read_bytes() == before
    whole = call_mpisim(["search", mine])
    assert call_mpisim(["search", "-o", "s.h5", "--resume"]).stdout == whole.stdout


def test_a_store_may_be_read_while_the_search_goes_on(mine: str, tmp_path: Path) -> None:
    space = read_search(tomllib.loads((tmp_path / mine).read_text()), mine)
    store, opened = tmp_path / "s.h5", []

    def keep(records: Records) -> None:
        write_store(store, space, records, overwrite=True)
        opened.append((h5py.File(store, "r"), records.status.tolist()))

    explore(space, MPI.COMM_SELF, each_round=keep)
    assert len(opened) > 2
    for file, status in opened:  # each is still the file of its round
        with file:
            assert file["candidates/status"][:].tolist() == status


def test_a_search_that_is_interrupted_while_it_screens_goes_on(
    tmp_path: Path, call_mpisim: Any, launch_environment: dict[str, str]
) -> None:
    """Ctrl-C in a process of its own: what was screened is kept, and the answer is the same."""
    file, store = tmp_path / "mine.toml", tmp_path / "s.h5"
    # 14,000 candidates, four rounds of screening; the smallest batches are the fastest.
    file.write_text(SEARCH.partition("[search]")[0])
    vary = ["--vary", "plan.global_batch=1..14000..1", "--top", "1"]
    words = [sys.executable, "-m", "mpisim", "search", str(file), *vary, "-o", str(store)]
    with subprocess.Popen(
        words, env=launch_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not store.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert out == ""
    assert f"go on with: mpisim search -o {store} --resume" in error
    space, records, said = read_store(store)
    assert said is None
    assert 0 < records.count(Status.UNKNOWN) < len(space)
    told = call_mpisim(["report", store])
    assert (told.rc, f"{records.count(Status.UNKNOWN):,}" in told.stdout) == (0, True), told.stdout
    resumed = call_mpisim(["search", "-o", store, "--resume"])
    whole = call_mpisim(["search", file, *vary])
    assert (resumed.rc, whole.rc) == (0, 0), resumed.stderr
    assert resumed.stdout == whole.stdout
