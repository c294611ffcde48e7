"""``mpisim validate traces``: a row for every trace, whatever its format, and what the end says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from execution_traces import Writer as EtWriter
from test_nsys import two_ranks
from traces import HandMade

TESTS = ["--perturb", "--cross-step"]


def kineto(length: int) -> HandMade:
    made = HandMade()
    at = 0
    for step in range(3):
        made.note(f"ProfilerStep#{step}", at, at + length)
        made.launch(at + 5, at + 10, at + 15, at + length - 50)
        made.call("cudaDeviceSynchronize", at + 20, at + length - 45)
        at += length
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One trace a subfolder: an export of two processes, a Kineto trace."""
    for name in ("a_export", "b_kineto"):
        (tmp_path / "traces" / name).mkdir(parents=True)
    two_ranks().write(tmp_path / "traces" / "a_export" / "run.sqlite")
    kineto(1000).write(tmp_path / "traces" / "b_kineto", "rank0.json")
    return tmp_path / "traces"


@pytest.mark.parametrize("n", [1, 2])
def test_an_export_of_two_processes(folder: Path, run_mpisim: Callable[..., Any], n: int) -> None:
    done = run_mpisim(["validate", "traces", folder, *TESTS, "--json", folder / "x.out"], n)
    assert (done.rc, done.errors) == (0, []), done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(("a_", "b_"))]
    assert len(rows) == 2
    found = json.loads((folder / "x.out").read_text())
    assert {case["id"].split("/")[0] for case in found["cases"]} == {"a_export", "b_kineto"}
    tests = {name: [t["test"] for t in own] for name, own in found["perturbations"].items()}
    assert "half of a file shifted" in tests["a_export"]
    assert "rank 1 50 ms late" in tests["a_export"]
    assert found["changes"]["step_to_step"]["n"] == 1
    assert (found["not_replayed"], found["failed"]) == ({}, {})


def test_what_cannot_be_replayed_is_a_row(folder: Path, call_mpisim: Callable[..., Any]) -> None:
    (folder / "c_et").mkdir()
    EtWriter().write(folder / "c_et" / "et.json")
    (folder / "d_broken").mkdir()
    (folder / "d_broken" / "run.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 200)
    (folder / "a_empty").mkdir()
    done = call_mpisim(["validate", "traces", folder, *TESTS, "--json", folder / "x.out"])
    assert done.rc == 2
    assert "Traceback" not in done.stderr
    starts = ("a_", "b_", "c_", "d_")
    names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(starts)]
    assert names == ["a_empty", "a_export", "b_kineto", "c_et", "d_broken"]
    found = json.loads((folder / "x.out").read_text())
    assert set(found["not_replayed"]) == {"a_empty", "c_et", "d_broken"}
    assert all(found["not_replayed"].values())
    assert set(found["perturbations"]) == {"a_export", "b_kineto"}


def test_ranks_that_do_not_communicate_need_not_wait(
    tmp_path: Path, call_mpisim: Callable[..., Any]
) -> None:
    for rank in (0, 1):
        made = kineto(1000 + rank)
        made.top = {"distributedInfo": {"rank": rank, "world_size": 2}}
        made.write(tmp_path, f"rank{rank}.json")
    done = call_mpisim(["validate", "traces", tmp_path, "--perturb"])
    assert done.rc == 0, done.stdout
    assert "no communication joins all ranks" in done.stdout
    assert "FAILS" not in done.stdout


def test_an_export_is_shown(folder: Path, call_mpisim: Callable[..., Any]) -> None:
    done = call_mpisim(["trace", "show", folder / "a_export"])
    assert (done.rc, done.errors) == (0, [])
    assert done.stdout.count("one process of an Nsight Systems export") == 2
    assert "ncclDevKernel_AllReduce" in done.stdout
