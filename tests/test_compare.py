"""Tests of two runs beside each other: the parts add up to the difference, to the picosecond."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from contended import random_links
from programs import random_program

from mpisim import simulate
from mpisim.cli import main
from mpisim.report.comparison import Comparison, Part, compare, comparison_figures
from mpisim.report.comparison import render_comparison as rendered
from mpisim.results import Results, open_results

CHANGE = ["--set", "plan.tp=2", "--set", "plan.dp=2", "--set", "plan.pp=2"]


def result(seed: int) -> Results:
    program = random_program(seed, n_tables=1 + seed % 3, n_replicas=1 + seed % 2, unpriced=True)
    found = simulate(program, network=random_links(seed, program.n_ranks))
    assert found is not None
    return found


def adds_up(found: Comparison) -> None:
    for parts in (found.gpus, *found.path.values()):
        assert sum(part.one for part in parts) == found.step.one
        assert sum(part.other for part in parts) == found.step.other
        assert sum(part.difference for part in parts) == found.step.difference


def test_parts_of_200_random_pairs_add_up() -> None:
    for seed in range(0, 400, 2):
        one, other = result(seed), result(seed + 1)
        rng = np.random.default_rng(seed)
        stages = tuple(rng.integers(0, 3, each.n_ranks) for each in (one, other))
        found = compare(one, other, (stages[0], stages[1]))
        assert found.step == Part("step time", one.step_time_ps, other.step_time_ps)
        assert {"kind", "name"} <= found.path.keys()
        adds_up(found)
        assert comparison_figures(found)["step"]["difference_ps"] == found.step.difference


def test_a_run_beside_itself_differs_in_nothing() -> None:
    one = result(7)
    found = compare(one, one)
    assert not any(part.difference for part in (*found.gpus, *found.path["name"]))
    lines = rendered(found, ("one", "one")).splitlines()
    assert lines[-1] == "B takes as long as A."
    assert len(lines) == 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    one, other = folder / "a.h5", folder / "b.h5"
    experiment = folder / "mine.toml"
    experiment.write_text(
        "[model]\nfamily = 'gpt'\nlayers = 8\nhidden = 2048\nheads = 16\nvocab = 51200\n"
        "seq_len = 1024\n[plan]\ntp = 4\ndp = 2\nmicro_batch = 1\nglobal_batch = 16\n"
        "[cluster]\npreset = 'dgx-a100'\nnodes = 1\n"
    )
    assert main(["run", str(experiment), "-o", str(one)]) == 0
    assert main(["run", str(experiment), *CHANGE, "-o", str(other)]) == 0
    return one, other


def test_the_stages_that_differ_most_are_shown() -> None:
    stages = tuple(Part(f"stage {i}", 10**9, 10**9 + (i > 12) * i * 10**8) for i in range(16))
    total = sum(part.other for part in stages)
    step = Part("step time", 16 * 10**9, total)
    found = Comparison(step, (None, None), (step,), {"stage": stages}, {})
    text = rendered(found, ("a", "b"), top=3)
    names = re.findall(r"(stage \d+|\d+ more|= step time)$", text, re.MULTILINE)
    assert names[1:] == ["stage 13", "stage 14", "stage 15", "13 more", "= step time"]


def test_the_command(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = map(str, files)
    figures = tmp_path / "c.json"
    assert main(["compare", one, other, "--json", str(figures), "--top", "3"]) == 0
    text = capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert found["keys"] == {"plan.pp": ["not given", "2"], "plan.tp": ["4", "2"]}
    assert re.search(r"plan\.tp +4 +2\n", text)
    assert [part["name"] for part in found["path"]["stage"]] == ["stage 0", "stage 1"]
    for parts in (found["gpus"], *found["path"].values()):
        assert sum(each["difference_ps"] for each in parts) == found["step"]["difference_ps"]
    assert max(map(len, text.splitlines())) <= 100
    tables = re.findall(r"  +A +B +B - A\n((?:.*\n)*?).* = step time\n?", text + "\n")
    assert len(tables) == 4
    for table in tables:  # what is printed adds up, too
        rows = [line.split()[:3] for line in table.splitlines()]
        total = re.search(r"([\d.,]+) +([\d.,]+) +([-+\d.,]+) +=", text)
        assert total
        for column, whole in enumerate(total.groups()):
            parts = [round(float(row[column].replace(",", "")) * 1000) for row in rows]
            assert sum(parts) == round(float(whole.replace(",", "")) * 1000)


def test_keys_are_called_as_experiments_call_them(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, figures = tmp_path / "full.h5", tmp_path / "c.json"
    changes = ["--set", "plan.recompute=full", "--set", "plan.recompute.layers=1"]
    assert main(["run", str(files[0].with_name("mine.toml")), *changes, "-o", str(full)]) == 0
    assert main(["compare", str(files[0]), str(full), "--json", str(figures)]) == 0
    assert json.loads(figures.read_text())["keys"] == {
        "plan.recompute": ["not given", '"full"'],
        "plan.recompute.layers": ["not given", "1"],
    }


def test_a_prediction_beside_a_recording(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, replayed = tmp_path / "traces", tmp_path / "measured.h5"
    command = ["export", str(files[0]), "--format", "chrome", "--ranks", "all", "-o", str(traces)]
    assert main(command) == 0
    assert main(["replay", str(traces), "-o", str(replayed)]) == 0
    capsys.readouterr()
    figures = tmp_path / "c.json"
    assert main(["compare", str(replayed), str(files[1]), "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())
    with open_results(files[0]) as predicted:
        assert found["step"]["one_ps"] == pytest.approx(predicted.step_time_ps, rel=1e-3)
    for parts in (found["gpus"], *found["path"].values()):
        assert sum(each["difference_ps"] for each in parts) == found["step"]["difference_ps"]
    assert found["path"].keys() == {"kind", "name"}  # a recording tells no stages
    assert found["keys"] == {}
    assert "sured.h5" in capsys.readouterr().out


def test_what_is_no_result_is_refused(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(files[0]), str(tmp_path / "none.h5")]) == 2
    wrong = tmp_path / "wrong.h5"
    wrong.write_text("nothing")
    assert main(["compare", str(wrong), str(files[0])]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("mpisim: error: ") for line in lines] == [True, True]
