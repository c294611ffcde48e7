"""The short report: what it says, how long it is, and what it looks like where it is printed."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from programs import programs
from straggler import straggler
from test_recorded_steps import folder  # noqa: F401  (a fixture)
from test_report import result

import mpisim
from mpisim.experiment import load
from mpisim.program import Program
from mpisim.report import summarise
from mpisim.report.drawing import BLOCKS, LETTERS, Drawing, drawing_for
from mpisim.report.part_labels import part_label
from mpisim.results import PartKind, Results, Sensitivities


@cache
def predicted(name: str, *changes: str) -> Results:
    _, experiment = load(name, ["run.allow_oom=true", *changes])
    found = mpisim.simulate(experiment)
    assert found is not None
    return found


def lines_of(results: Results, drawing: Drawing | None = None) -> list[str]:
    text = summarise(results) if drawing is None else summarise(results, drawing)
    lines = text.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    return lines


def percents(lines: list[str]) -> dict[str, float]:
    """The legend of the bar: % of each part by its label."""
    rows = (re.fullmatch(r"  \S (.*?) +[\d.,]+ (s|ms|µs|ns) +([\d.]+) %", line) for line in lines)
    return {row[1]: float(row[3]) for row in rows if row}


def test_llama() -> None:
    lines = lines_of(predicted("llama3-8b-8-h100"))
    row = re.fullmatch(r"step time   ([\d.]+) ms  ± 19 %  \(([\d.]+) to ([\d.,]+) ms\)", lines[0])
    assert row
    step, low, high = (float(each.replace(",", "")) for each in row.groups())
    assert low * high == pytest.approx(step**2, rel=1e-5)  # as far above as below in factors
    assert any(re.match(r"throughput  [\d,]+ tokens/s .*% of its dense", line) for line in lines)
    assert "memory      fits: the fullest GPU needs 66.0 of 79.0 GiB, 13.0 GiB free" in lines
    shares = percents(lines)
    assert list(shares)[:4] == ["forward", "backward", "optimizer", "dp communication"]
    assert sum(shares.values()) == pytest.approx(100, abs=0.3)
    costs = lines[lines.index("What costs most") + 1 :][:3]
    assert costs[0] == "  attention backward: 10.2 % of the critical path, 32 pieces"
    assert costs[2].startswith("  dp communication: 1.2 % exposed, most of it ")
    assert costs[2].endswith(", limited by GPU port (NVLink)")
    helps = lines[lines.index("What would help most") + 1 :][:3]
    assert helps[0].startswith("  10 % more matrix rate would make the step about ")
    assert any("--details prints 2" in line and "4 things not modelled" in line for line in lines)


def test_a_framework_without_a_name_is_said_where_it_is_most_of_the_error() -> None:
    said = "Most of ±: framework not named, ± "
    unnamed = lines_of(predicted("korthikanti-22b-8-a100", "framework={}"))
    assert sum(line.startswith(said) for line in unnamed) == 1
    assert not any(line.startswith(said) for line in lines_of(predicted("llama3-8b-8-h100")))


def test_a_pipeline_has_a_bubble() -> None:
    results = predicted("echo-gpt3-175b-1024-h800")
    lines = lines_of(results)
    parts = results.parts
    assert parts is not None
    waits = [
        kind == 2 and name in ("activation", "gradient")
        for name, kind in zip(parts.names, parts.kinds.tolist(), strict=True)
    ]
    share = parts.mean(results.classes["count"])[np.array(waits)].sum() / results.shown_ps
    assert percents(lines)["pipeline bubble"] == pytest.approx(100 * share, abs=0.1)
    assert any(
        re.match(r"  pipeline bubble: [\d.]+ % of the mean GPU; [\d,]+ of 1,024 GPUs wait", line)
        for line in lines
    )


def test_thousands_of_equal_ranks() -> None:
    results = predicted("echo-gpt3-175b-8192-h800")
    assert results.n_classes < 100
    lines = lines_of(results)
    assert any(line.startswith("ranks       8,192 on 1 process (") for line in lines)
    assert any("in the mean of 8,192 GPUs" in line for line in lines)
    assert not any(line.startswith("Published ") for line in lines)


def test_published_figures() -> None:
    results = predicted("llama3-8b-8-h100")
    said = {**results.attributes, "published": ["step time: 0.9 s, here 0.84 (-6.5 %); a paper"]}
    lines = lines_of(replace(results, attributes=said))
    assert "Published step time: 0.9 s, here 0.84 (-6.5 %); a paper" in lines


def test_what_would_help() -> None:
    known = Sensitivities(
        ("matrix rate", "NIC bandwidth", "launch latency", "nothing"),
        ("", "cluster.nic_bandwidth", "scale.launch_time", ""),
        ("989 TFLOP/s", "50 GB/s", "", ""),
        np.array([-0.53, -0.05, 0.2, -0.001]),
    )
    lines = lines_of(replace(predicted("llama3-8b-8-h100"), sensitivities=known))
    at = lines.index("What would help most") + 1
    assert lines[at : at + 4] == [
        "  10 % more matrix rate would make the step about 4.8 % shorter (now 989 TFLOP/s)",
        "  10 % less launch latency would make the step about 2.0 % shorter (scale.launch_time)",
        "  10 % more NIC bandwidth would make the step about 0.5 % shorter (now 50 GB/s)",
        "",
    ]


def test_a_plan_that_does_not_fit() -> None:
    lines = lines_of(predicted("llama3-8b-8-h100", "plan.zero=0"))
    assert any(
        re.match(r"memory +does not fit: .* GiB missing; see --details", line) for line in lines
    )


def test_files_without_parts_have_the_columns() -> None:
    shares = percents(lines_of(replace(predicted("llama3-8b-8-h100"), parts=None)))
    assert list(shares)[:2] == ["compute", "exposed communication"]


@given(program=programs())
@settings(max_examples=60)
def test_any_program(program: Program) -> None:
    results = result(program)
    for drawing in (Drawing(), Drawing(blocks=False)):
        lines_of(results, drawing)
    coloured = summarise(results, Drawing(colour=True))
    plain = re.sub(r"\x1b\[\d+m", "", coloured)
    assert "\x1b" not in plain
    assert len(plain.splitlines()) == len(lines_of(results))


def test_long_names_of_kernels_are_cut_not_their_shares() -> None:
    known = predicted("llama3-8b-8-h100")
    path = known.critical_path
    assert path is not None
    names = [f"void at::native::{name.replace(' ', '_')}<{90 * 'x'}>(int)" for name in path.names]
    lines = lines_of(replace(known, critical_path=replace(path, names=names)))
    costs = lines[lines.index("What costs most") + 1 :][:2]
    assert costs[0].endswith(": 10.2 % of the critical path, 32 pieces")
    assert costs[0].startswith("  attention_backward<")
    assert len(costs[0]) <= 100


def test_all_there_can_be_still_fits() -> None:
    results = predicted("deepseek-v3-2048-h800")
    known = Sensitivities(("a", "b", "c"), ("",) * 3, ("",) * 3, np.array([-0.5, -0.4, -0.3]))
    said = {
        **results.attributes,
        "memory_peak": 2 * results.attributes["memory_capacity"],
        "launch_bound": "GPUs wait " * 40,
        "published": ["one", "two", "three"],
        "sampled_mean": 1e12,
        "sampled_steps": [10**12, 2 * 10**12],
    }
    lines = lines_of(replace(results, attributes=said, sensitivities=known))
    for title in ("What costs most", "What would help most", "Published one", "2 seeds"):
        assert any(line.startswith(title) for line in lines)
    assert any(re.search(r"\d+ more parts", line) for line in lines)


# --- drawing --------------------------------------------------------------------------------------


def test_bars_are_as_long_as_their_shares() -> None:
    assert Drawing().bar([50, 25, 25], 8, blank=2) == BLOCKS[0] * 4 + BLOCKS[1] * 2 + "··"
    assert Drawing(blocks=False).bar([1, 2], 9) == LETTERS[0] * 3 + LETTERS[1] * 6
    assert Drawing(colour=True).bar([1, 0], 2) == f"\x1b[34m{BLOCKS[0] * 2}\x1b[0m"
    assert Drawing().bar([0, 0], 8) == ""


class Stream(io.TextIOWrapper):
    """A stream of some encoding, a terminal or not."""

    def __init__(self, encoding: str, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "launched", "settings", "colour"),
    [
        (True, False, {}, True),
        (False, False, {}, False),
        (False, False, {"MPISIM_COLOR": "1"}, False),
        (True, False, {"NO_COLOR": "1"}, False),
        (True, False, {"NO_COLOR": ""}, True),
        (True, False, {"TERM": "dumb"}, False),
        (True, False, {"MPISIM_COLOR": "0"}, False),
        (True, True, {}, False),
        (True, True, {"MPISIM_COLOR": "1"}, True),
        (True, True, {"MPISIM_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals(
    terminal: bool,
    launched: bool,
    settings: dict[str, str],
    colour: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "MPISIM_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for encoding, blocks in (("utf-8", True), ("ascii", False), ("latin-1", False)):
        found = drawing_for(Stream(encoding, terminal), launched=launched)
        assert found == Drawing(colour, blocks)


@pytest.mark.parametrize(("columns", "length"), [(60, 57), (200, 92), (0, 92), (5, 20)])
def test_bars_fit_into_the_terminal(columns: int, length: int) -> None:
    assert len(Drawing(columns=columns).bar([3, 2, 1], 92)) == length


# --- commands -------------------------------------------------------------------------------------


def test_a_pipe_gets_no_escape_codes(run_mpisim: Callable[..., Any], tmp_path: Path) -> None:
    for nprocs in (1, 2):
        words = ["run", "-o", "run.h5", "--overwrite"]
        done = run_mpisim(words, nprocs)
        assert (done.rc, "\x1b" in done.stdout) == (0, False), done.stderr
        assert len(done.stdout.splitlines()) <= 30
    again = run_mpisim(["report", "run.h5"])
    assert again.stdout == done.stdout
    with mpisim.open_results(tmp_path / "run.h5") as results:
        assert again.stdout == summarise(results) + "\n"


def on_a_terminal(*words: str, **settings: str) -> str:
    """What a command prints on a terminal, without a launcher."""
    outer, inner = pty.openpty()
    launched = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "NO_COLOR", "MPISIM_COLOR")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(launched)}
    command = [sys.executable, "-m", "mpisim", *words]
    with subprocess.Popen(
        command, stdout=inner, env={**environment, "TERM": "xterm", **settings}
    ) as process:
        os.close(inner)
        found = b""
        while True:
            try:
                part = os.read(outer, 1 << 16)
            except OSError:
                break
            if not part:
                break
            found += part
    os.close(outer)
    assert process.returncode == 0
    return found.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours(comm: Any) -> None:
    if comm.size > 1:
        pytest.skip("starts processes of its own")
    coloured = on_a_terminal("run")
    assert "\x1b[34m█" in coloured
    assert "\x1b" not in on_a_terminal("run", NO_COLOR="1")
    assert "\x1b" not in on_a_terminal("run", "--details")


def test_a_replay(folder: Path, call_mpisim: Callable[..., Any]) -> None:  # noqa: F811
    done = call_mpisim(["replay", folder, "--allow-missing-ranks"])
    assert done.rc == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 36  # with the measured times of some steps
    assert "Where step 6 goes, 500.000 µs in the mean of 2 GPUs" in lines
    assert "How the traces were read" not in lines
    assert any("mean of 3 recorded steps: 4 400.000 µs" in line for line in lines)
    headline = next(line for line in lines if line.startswith("step time"))
    assert "±" not in headline
    details = call_mpisim(["replay", folder, "--allow-missing-ranks", "--details"])
    assert "How the traces were read" in details.stdout
    assert "Slowest ranks" in details.stdout


def test_figures_that_are_long_go_on_in_a_second_line() -> None:
    text = "12,662,943 tokens/s (1,546 sequences/s), " + 3 * "320 TFLOP/s a GPU, " + "32.3 %"
    known = result(straggler(2))
    lines = lines_of(replace(known, attributes={**known.attributes, "throughput": text}))
    at = next(n for n, line in enumerate(lines) if line.startswith("throughput"))
    assert " ".join(" ".join(lines[at : at + 2]).split()) == f"throughput {text}"


def test_the_optimizers_ranks_are_called_by_megatrons_word() -> None:
    assert part_label("instance", PartKind.WAITING, pairs=False) == "waiting in optimizer instance"


def test_one_slow_rank() -> None:
    lines = lines_of(result(straggler(30)))
    assert any(line.startswith("  gemm: ") for line in lines)
    assert "waiting in data parallel" in percents(lines)
