"""Figures that a source reports of a run, beside those of the prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.data import names, path
from mpisim.experiment import load
from mpisim.experiment.experiment import PUBLISHED_UNITS
from mpisim.experiment.load import read
from mpisim.prediction.published import compare_published
from mpisim.validate.published import BEGIN, END

RUN = """
[model]
family = "gpt"
layers = 2
hidden = 64
heads = 4
seq_len = 32
vocab = 128
[plan]
global_batch = 8
[cluster]
preset = "dgx-h100"
"""
STEP = """
[published.step_time]
value = 2
unit = "ms"
source = "a log"
"""
SAID = {
    "gpus": 4,
    "model_flops": 8e12,
    "executed_flops": 12e12,
    "utilisation": 0.4,
    "memory_peak": 2**34,
}


@pytest.mark.parametrize(
    ("figure", "unit", "published", "own"),
    [
        ("step_time", "s", 1.0, 2.0),
        ("step_time", "ms", 1000, 2000),
        ("model_flops", "TFLOP/s", 2, 1),
        ("hardware_flops", "TFLOP/s", 1, 1.5),
        ("utilisation", "%", 50, 40),
        ("throughput", "steps/s", 1, 0.5),
        ("memory", "GiB", 20, 16),
        ("memory", "GB", 20, 2**34 / 1e9),
    ],
)
def test_figures_are_compared_in_their_unit(
    figure: str, unit: str, published: float, own: float
) -> None:
    table = f'[published.{figure}]\nvalue = {published}\nunit = "{unit}"\nsource = "a log"\n'
    (found,) = compare_published(read(RUN + table, "x.toml"), 2.0, SAID)
    assert (found.figure, found.published, found.unit) == (figure, published, unit)
    assert found.predicted == pytest.approx(own)
    assert found.error == pytest.approx(own / published - 1)
    assert set(PUBLISHED_UNITS) >= {figure}


def test_a_changed_run_is_another_run() -> None:
    text = RUN + STEP
    assert compare_published(read(text, "x.toml", ["network.contention=false"]), 2.0, SAID)
    for change in ("plan.tp=2", "model.layers=4", "cluster.nodes=2"):
        assert not compare_published(read(text, "x.toml", [change]), 2.0, SAID)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (STEP.replace("step_time", "step_tim"), r"unknown key 'step_tim' .*step_time"),
        (STEP.replace('"ms"', '"min"'), r"step_time.unit is 'min'.*allowed: s, ms"),
        (STEP.replace("value = 2", "value = 0"), r"'published.step_time.value' is 0"),
        (STEP.replace('source = "a log"', ""), r"'published.step_time.source' is missing"),
        ("published = 3\n", r"'published' is 3; it must be a table"),
    ],
)
def test_bad_figures(table: str, message: str) -> None:
    text = table + RUN if table.startswith("published") else RUN + table
    with pytest.raises(InputError, match=rf"x\.toml: .*{message}"):
        read(text, "x.toml")


def test_a_run_prints_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, figures = tmp_path / "x.toml", tmp_path / "x.json"
    file.write_text(RUN + STEP + 'assumed = "batch"\n', encoding="utf-8")
    assert main(["run", str(file), "--details", "--json", str(figures)]) == 0
    out = capsys.readouterr().out
    found = json.loads(figures.read_text())
    (figure,) = found["published"]
    assert figure["predicted"] == pytest.approx(1e3 * found["step_time"])
    said = f"step time: 2 ms, here {figure['predicted']:.4g} ({100 * figure['error']:+.1f} %)"
    assert f"published:\n  - {said}; a log; assumed: batch" in out
    again = ["run", str(file), "--json", str(figures), "--overwrite"]
    for text, changes in ((RUN + STEP, ["--set", "plan.global_batch=16"]), (RUN, [])):
        file.write_text(text, encoding="utf-8")
        assert main([*again, *changes]) == 0
        assert "ublished" not in capsys.readouterr().out
        assert json.loads(figures.read_text())["published"] == []


def test_experiments_whose_heads_say_what_was_measured_have_figures() -> None:
    for name in names("experiments"):
        head = path(f"experiments/{name}.toml").read_text(encoding="utf-8").partition("\ntitle")[0]
        says = "Measured: " in head or "reaches" in head or "a step of 1,536" in head
        if says:
            assert list(load(name)[1].published.figures()), name


def test_the_table_of_all_is_written_into_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    words = ["validate", "published", "korthikanti-22b", "--markdown", str(page)]
    assert main(words) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n\n| experiment | figure |")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| korthikanti-22b-8-a100 | step time | 1.1 s |" in text
    assert "2 runs: mean error" in capsys.readouterr().out
    assert main(["validate", "published", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_the_page_has_every_figure() -> None:
    page = Path(__file__).parent.parent / "docs" / "published.md"
    text = page.read_text(encoding="utf-8")
    for name in names("experiments"):
        for _, figure in load(name)[1].published.figures():
            assert f"| {name} | " in text
            assert f"| {figure.value:.4g} {figure.unit} | " in text
