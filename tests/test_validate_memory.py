"""``mpisim validate memory``: tables, files of one's own, verdicts on measured steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_steps import VTRAIN, table

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.memory import StageMemory, Verdict
from mpisim.validate.e2e import fitting
from mpisim.validate.e2e.experiments import VERDICTS, Mapped, experiment_of
from mpisim.validate.e2e.rows import read
from mpisim.validate.e2e.settings import settings
from mpisim.validate.memory import Figure, figures, judged, memory_rows, render

GIB = 2**30

ONE = """
[mine]
group = "mine"
source = "a log"
{keys}
[mine.model]
preset = "gpt3-1.3b"
[mine.plan]
pp = 2
global_batch = 8
[mine.cluster]
preset = "dgx-a100"
gpus_per_node = 2
"""


def own(folder: Path, keys: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(ONE.format(keys=keys))
    return path


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (row,) = memory_rows(own(tmp_path, "states = 10.0\ntensors = 20.0\nstage = 'last'"))
    last = row.verdict.stages[-1]
    assert [each.quantity for each in row.figures] == ["states", "tensors"]
    assert [each.predicted for each in row.figures] == [last.states / GIB, last.tensors / GIB]
    assert row.published.ran
    assert judged(row.verdict) == "fits"


@pytest.mark.parametrize("stage", ["0", "1", "mean", "fullest"])
def test_stages(tmp_path: Path, stage: str) -> None:
    (row,) = memory_rows(own(tmp_path, f"total = 10.0\nstage = '{stage}'"))
    totals = [each.total / GIB for each in row.verdict.stages]
    expected = {"0": totals[0], "1": totals[1], "mean": sum(totals) / 2, "fullest": max(totals)}
    assert row.figures[0].predicted == pytest.approx(expected[stage])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("stage = '2'\ntotal = 1.0", "mine.stage is '2'; allowed: 'fullest', 'last', 'mean' and"),
        ("totals = 1.0", "totals"),
        ("total = -1.0", "0 or more"),
        ("ran = 1", "true or false"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, keys: str, message: str) -> None:
    with pytest.raises(InputError, match=r"mine\.toml") as caught:
        memory_rows(own(tmp_path, keys))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_failed_and_one_that_went(tmp_path: Path) -> None:
    text = own(tmp_path, "ran = false").read_text()
    (tmp_path / "two.toml").write_text(
        text + text.replace("mine", "other").replace("ran = false", "")
    )
    said = render(memory_rows(tmp_path / "two.toml"), details=True).splitlines()
    assert [line.split()[-2:] for line in said[1:3]] == [["failed", "fits"], ["ran", "fits"]]
    assert said[-2].split() == ["went", "1", "1", "0", "0"]
    assert said[-1].split() == ["ran", "out", "of", "memory", "1", "1", "0", "0"]


@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), min_size=1))
def test_figures_of_errors(pairs: list[tuple[float, float]]) -> None:
    found = figures([Figure("row", "group", "total", False, *pair) for pair in pairs])
    errors = [predicted / published - 1 for published, predicted in pairs]
    assert found["figures"] == len(pairs)
    assert found["mean"] == pytest.approx(sum(map(abs, errors)) / len(errors))
    assert found["bias"] == pytest.approx(sum(errors) / len(errors))
    assert abs(found["bias"]) <= found["mean"] * (1 + 1e-12)
    assert abs(found["worst"]) == max(map(abs, errors))


@given(st.integers(0, 200 * GIB), st.integers(0, 20 * GIB))
def test_verdicts_have_three_answers(total: int, error: int) -> None:
    stage = StageMemory(0, total, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, error=error, moment="")
    found = judged(Verdict((stage,), 80 * GIB, "a GPU"))
    missing = total - 80 * GIB
    expected = "refused" if missing > 2 * error else "fits" if -missing > 2 * error else "close"
    assert found == expected


# --- measured steps -------------------------------------------------------------------------------


def mapped(path: Path, **changes: object) -> Mapped:
    (row,) = read(table(path / "t.csv", VTRAIN | changes))
    found = experiment_of(row, settings())
    assert isinstance(found, Mapped)
    return found


def test_what_is_not_modelled_is_not_refused(tmp_path: Path) -> None:
    plain = mapped(tmp_path)
    answers = [plain.judged(fits, sure) for fits in (True, False) for sure in (True, False)]
    assert answers == ["fits", "close", "refused", "close"]
    source = {"source": "dgxc-benchmarking maxtext", "framework": "MaxText", "vocab": 51200}
    unsure = mapped(tmp_path, **source, pp=1, tp=1, dp=8, zero_stage=3)
    assert "XLA" in unsure.unjudged
    answers = [unsure.judged(fits, sure) for fits in (True, False) for sure in (True, False)]
    assert answers == ["fits", "unjudged", "unjudged", "unjudged"]
    assert set(answers) < set(VERDICTS)


def test_rows_are_judged_by_source(tmp_path: Path) -> None:
    rows = [VTRAIN, VTRAIN | {"id": "large", "micro_batch": 2048, "global_batch": 16384}]
    formula = VTRAIN | {"id": "formula", "trust": "F"}
    path = table(tmp_path / "t.csv", *rows, formula)
    found = fitting.judged_rows(str(path))
    assert [row.judged for row in found] == ["fits", "refused"]
    said = fitting.render(found)
    assert "refused of what ran: 50.0 %" in said
    assert "large: does not fit" in said
    assert fitting.as_json(found)["verdicts"]["all"] == {
        "fits": 1,
        "close": 0,
        "refused": 1,
        "unjudged": 0,
    }


# --- the command ----------------------------------------------------------------------------------


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = own(tmp_path, "total = 10.0"), tmp_path / "out.json"
    assert main(["validate", "memory", str(path), "--details", "--json", str(out)]) == 0
    assert "mine: peaks" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["groups"]["all measured peaks"]["figures"] == 1
    assert found["rows"][0]["figures"][0]["published"] == 10.0


@pytest.mark.parametrize(
    ("name", "message"),
    [("t.txt", "its name must end in .toml or .csv"), ("no.toml", "cannot be read")],
)
def test_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    assert main(["validate", "memory", str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
