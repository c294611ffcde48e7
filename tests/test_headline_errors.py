"""Headline errors: what the thresholds hold, when one fails, and what is said without data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import headline_errors
import pytest
from headline_errors import Measure

TEXT = """\
slack = 0.1
[groups.toy]
commands = ["true"]

[measures.toy-error]
group = "toy"
what = "of a toy"
figure = ["out.json", "groups", "a=b", "mape"]
value = 0.5
at_most = 0.5

[measures.toy-rows]
group = "toy"
what = "rows"
figure = ["out.json", "rows"]
value = 7
at_least = 7
"""
ERROR = Measure("toy", "toy", "of a toy", ("out.json",), 0.5, "at_most", 0.55)
ROWS = Measure("rows", "toy", "rows", ("out.json",), 7.0, "at_least", 7.0)


def test_thresholds_name_what_is_computed() -> None:
    commands, wanted = headline_errors.read()
    assert {each.group for each in wanted} == set(commands)
    for each in wanted:
        lines = [line for beside in commands[each.group] for line in beside]
        assert any(each.figure[0] in line for line in lines), each.name
        assert not each.worse(each.value), each.name
        assert each.value > 0 or each.name in ("traces-one-gpu", "memory-went"), each.name


@pytest.mark.parametrize(
    ("measure", "now", "verdict"),
    [
        (ERROR, 0.5, "ok"),
        (ERROR, 0.54, "ok"),
        (ERROR, 0.56, "WORSE"),
        (ERROR, 0.4, "better"),
        (ERROR, float("nan"), "WORSE"),
        (ROWS, 7.0, "ok"),
        (ROWS, 6.0, "WORSE"),
        (ROWS, 8.0, "better"),
        (ROWS, float("nan"), "WORSE"),
    ],
)
def test_what_is_worse(measure: Measure, now: float, verdict: str) -> None:
    assert headline_errors.compared(measure, now).split()[0] == verdict
    assert measure.worse(now) == (verdict == "WORSE")


def test_a_figure_is_found_by_its_keys(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text(json.dumps({"groups": {"a=b": {"mape": 0.25}}}))
    assert headline_errors.figure(("out.json", "groups", "a=b", "mape"), tmp_path) == 0.25


def test_refreshed_thresholds_hold_what_is_computed(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.toml"
    file.write_text(headline_errors.refreshed(TEXT, {"toy-error": 0.2, "toy-rows": 9.0}, 0.1))
    _, (error, rows) = headline_errors.read(file)
    assert (error.value, error.allowed) == (0.2, pytest.approx(0.2202))
    assert (rows.value, rows.allowed) == (9, 9)
    one = headline_errors.refreshed(TEXT, {"toy-rows": 9.0}, 0.1)
    assert one == TEXT.replace("= 7", "= 9")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_without_measured_data(ci: str, code: int, tmp_path: Path) -> None:
    script = headline_errors.REPOSITORY / "run_scripts" / "headline_errors.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"CI": ci, "MPISIM_SHARED": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    said = f"headline errors not compared: no ground truth at {tmp_path}; set MPISIM_SHARED"
    assert done.stdout.splitlines() == [said]


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="echo no >&2; exit 3: exit code 3\nno"):
        headline_errors.run([["true"], ["true", "echo no >&2; exit 3"]], tmp_path, tmp_path)


def test_commands_of_a_list_run_beside_one_another(tmp_path: Path) -> None:
    """Each of two waits for what the other makes, after what the one before them made."""
    waits = "for i in $(seq 300); do test -e {} && exit 0; sleep 0.1; done; exit 1"
    first, second = (f"touch {a} && test -e made && {waits.format(b)}" for a, b in ("xy", "yx"))
    headline_errors.run([["touch made"], [first, second]], tmp_path, tmp_path)
