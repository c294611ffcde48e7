"""``mpisim search``: what it prints, keeps and refuses, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_searches import SEARCH


def test_the_command_searches_keeps_and_goes_on(tmp_path, run_mpisim):
    file = tmp_path / "mine.toml"
    file.write_text(SEARCH)
    store, figures = tmp_path / "s.h5", tmp_path / "s.json"
    first = run_mpisim(["search", file, "-o", store, "--json", figures])
    assert first.rc == 0, first.stderr
    assert "9 candidates\n" in first.stdout
    found = json.loads(figures.read_text())
    assert len(found["best"]) == 3
    assert [each["step_ps"] for each in found["best"]] == sorted(
        each["step_ps"] for each in found["best"]
    )
    said, written = first.stdout.removesuffix("\n").rsplit("\n", 1)
    assert written == f"{figures} is written"
    again = run_mpisim(["search", "-o", store, "--resume"])
    assert (again.rc, again.stdout) == (0, f"{said}\n")
    told = run_mpisim(["report", store])
    assert (told.rc, told.stdout) == (0, f"{said}\n")
    spread = run_mpisim(["search", file], nprocs=2)
    assert (spread.rc, spread.stdout) == (0, f"{said}\n")
    assert run_mpisim(["search", file, "-o", store]).rc == 2
    assert run_mpisim(["run", file]).rc == 0  # the table says nothing of the experiment
    objectives = ["--objective", "memory", "--objective", "step_time"]
    varied = run_mpisim(["search", file, "--vary", "plan.zero=0..3..1", *objectives])
    assert varied.rc == 0, varied.stderr
    assert "36 candidates" in varied.stdout
    assert "The front" in varied.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["search"], "what to search is missing"),
        (["search", "--resume"], "--resume needs the search"),
        (["search", "FILE", "--vary", "plan.tp"], "--vary plan.tp: not of the form"),
        (["search", "FILE", "--vary", "plan.tp=x"], "key 'search.vary.plan.tp' is 'x'"),
        (["search", "FILE", "--objective", "speed"], "search.objectives[0]"),
        (["search", "FILE", "--top", "0"], "search.top"),
    ],
)
def test_bad_options_are_one_line(tmp_path, arguments, said, call_mpisim):
    file = tmp_path / "mine.toml"
    file.write_text(SEARCH)
    found = call_mpisim([str(file) if each == "FILE" else each for each in arguments])
    assert found.rc == 2, found.stderr
    assert said in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_stores_that_are_none_are_refused(tmp_path: Path, call_mpisim):
    bad = tmp_path / "s.h5"
    bad.write_bytes(b"no")
    found = call_mpisim(["search", "-o", str(bad), "--resume"])
    assert found.rc == 2
    assert str(bad) in found.stderr
