"""Reports: everything shown adds up, fits the screen, and says the same as the figures."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import programs
from straggler import LAST, OTHERS, STEP, US, straggler

from mpisim.base.files import write_json
from mpisim.base.text import apportioned, duration, quantity, rounded, unit_for
from mpisim.engine import simulate
from mpisim.program import Program, ProgramBuilder
from mpisim.report import figures, render
from mpisim.report.tables import (
    COMMUNICATION_KEYS,
    KERNEL_KEYS,
    WIDTH,
    Column,
    table_lines,
)
from mpisim.results import Results, collect, write_results


class Alone:
    """As much of a communicator as one process needs."""

    size, rank = 1, 0


def result(program: Program, **said: Any) -> Results:
    run = simulate(program, critical_path=True)
    found = collect(run, comm=Alone(), **said)  # type: ignore[arg-type]
    assert found is not None
    return found


def section(text: str, title: str) -> list[str]:
    """The lines below a title, up to an empty line before something that is not indented."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(title)) + 1
    rest = lines[first:]
    ends = [i for i, line in enumerate(rest) if line and not line.startswith(" ")]
    return rest[: ends[0]] if ends else rest


# --- numbers for people -------------------------------------------------------------------------


@given(parts=st.lists(st.integers(0, 10**15), max_size=12), step=st.integers(1, 10**10))
def test_parts_add_up_to_the_whole(parts: list[int], step: int) -> None:
    shown = apportioned(parts, step)
    assert sum(shown) == rounded(sum(parts), step)
    assert all(part // step <= n <= part // step + 1 for part, n in zip(parts, shown, strict=True))


@pytest.mark.parametrize(
    ("ps", "text"),
    [
        (0, "0.000 ns"),
        (1, "0.001 ns"),
        (999, "0.999 ns"),
        (1_000, "1.000 ns"),
        (999_999_999, "1,000.000 µs"),
        (12_345_678_901, "12.346 ms"),
        (3_600 * 10**12, "3,600.000 s"),
        (-1_500_000, "-1.500 µs"),
    ],
)
def test_durations(ps: int, text: str) -> None:
    assert duration(ps) == text


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [
        (0, 1000, "0 B"),
        (999, 1000, "999 B"),
        (4.5e11, 1000, "450 GB"),
        (1.25e9, 1000, "1.25 GB"),
        (4096, 1024, "4 KiB"),
        (1 << 24, 1024, "16 MiB"),
        (1500, 1024, "1.46 KiB"),
        (999_999, 1000, "1.00 MB"),
        (12.3e18, 1000, "12300 PB"),
    ],
)
def test_quantities(value: float, base: int, text: str) -> None:
    assert quantity(value, "B", base) == text


# --- the text -----------------------------------------------------------------------------------


def test_the_straggler_is_explained() -> None:
    text = render(result(straggler(3), attributes={"uncertainty": 0.081, "assumptions": ["none"]}))
    assert re.search(r"^step time +241\.000 µs  ± 8\.1 %$", text, re.M)
    assert "ranks      3 on 1 process, 0 rounds of exchange, 15 rows" in text
    assert "assumptions:\n  - none\n" in text

    rows = [line.split() for line in section(text, "Where the step went, all ranks, in µs")]
    for at, (ranks, us) in enumerate((("0-1", OTHERS), ("2", LAST))):
        compute, _, comm, exposed, wire, waiting, idle, busy, waits = (f"{n}.000" for n in us)
        assert rows[1 + at] == [
            ranks,
            compute,
            exposed,
            waiting,
            wire,
            idle,
            "241.000",
            comm,
            busy,
            waits,
        ]
    assert rows[3][:2] == ["mean", "166.667"]

    slowest = [line.split() for line in section(text, "Slowest ranks")]
    assert [row[0] for row in slowest[1:3]] == ["2", "0-1"]
    # The others wait 30 of 241: the slow one takes 241 of its own, the mean is 221.
    assert slowest[1][1:5] == ["241.000", "+9.0", "%", "200.000"]

    kernels = [line.split() for line in section(text, "Kernels and copies, 500.000 µs")]
    assert kernels[1] == ["350.000", "µs", "70.0", "3", "116.667", "µs", "150.000", "µs", "gemm"]
    met = section(text, "Communications, 250.000 µs over all ranks (60.0 % wire")
    assert met[1].split() == [
        "1",
        "4",
        "KiB",
        "50.000",
        "µs",
        "33.333",
        "µs",
        "81.9",
        "MB/s",
        "109",
        "MB/s",
        "3",
        "all_reduce,",
        "data",
        "parallel",
    ]
    path = [line.split() for line in section(text, "Critical path, in µs: the chain of 5 pieces")]
    assert ["180.000", "74.7", "2", "compute"] in path
    assert ["50.000", "20.7", "1", "communication"] in path
    assert ["160.000", "66.4", "2", "gemm"] in path  # with its launch
    assert path.count(["241.000", "=", "step", "time"]) == 3


@given(program=programs(), top=st.integers(1, 5))
def test_any_report_adds_up_and_fits(program: Program, top: int) -> None:
    results = result(program)
    text = render(results, top)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    unit = unit_for(results.step_time_ps)
    whole = unit.of(results.step_time_ps)
    title = next(line for line in lines if line.startswith("Where the step went"))
    for line in section(text, title)[1:]:
        cells = [cell.replace(",", "").replace(".", "") for cell in line.split()]
        if len(cells) == 10:
            compute, exposed, waiting, wire, idle, step = map(int, cells[1:7])
            assert compute + exposed + idle == step
            assert waiting + wire == exposed
            assert line.split()[6] == whole
    if results.step_time_ps:
        parts: list[int] = []
        for line in section(text, "Critical path")[1:]:
            cells = line.split()
            if line.endswith("= step time"):
                assert sum(parts) == int(cells[0].replace(",", "").replace(".", ""))
                assert cells[0] == whole
            elif cells and cells[0] != "time":
                parts.append(int(cells[0].replace(",", "").replace(".", "")))
            else:
                parts = []


def many_speeds(n_ranks: int) -> Program:
    """Ranks that all take times of their own."""
    program = straggler(n_ranks)
    return program.replace(speed=1 + np.arange(n_ranks) / 100)


def test_many_ranks_are_shown_at_both_ends() -> None:
    text = render(result(many_speeds(30)), top=3)
    rows = section(text, "Where the step went, the slowest and the fastest ranks")
    shown = [line.split()[0] for line in rows if line]
    assert shown[0] == "ranks"
    assert shown[5] == "..."
    assert shown[-1] == "mean"
    assert len(shown) == 11
    assert len([line for line in section(text, "Slowest ranks") if line]) == 4


def test_equal_ranks_are_shown_once() -> None:
    text = render(result(straggler(30)), top=3)
    rows = section(text, "Where the step went, all ranks")
    assert [line.split()[0] for line in rows if line] == ["ranks", "0-28", "29", "mean"]
    slowest = [line.split()[0] for line in section(text, "Slowest ranks") if line]
    assert slowest == ["ranks", "29", "0-28"]
    # Numbers that are no few ranges: how many there are.
    program = straggler(30)
    speed = np.where(np.arange(30) % 2 == 1, 1.0, 2.0)
    rows = section(render(result(program.replace(speed=speed))), "Where the step went, all ranks")
    assert [line.split()[:2] for line in rows if "equal" in line] == [
        ["15", "equal"],
        ["14", "equal"],
    ]


def test_names_of_others_do_no_harm(tmp_path: Path) -> None:
    builder = ProgramBuilder()
    table = builder.table()
    table.kernel("void k<\x1b[31m>\n" + "x" * 300, 0, 10)
    table.kernel("ünïcödé \ud800", 0, 20)
    builder.add_rank(builder.add_table(table.build()))
    said = {
        "digest": "of the trace",
        "k" * 300: 1,
        "note\n": "a\tb\x07",
        "long": "word " * 60,
        "list": ["x" * 250, ""],
        "nan": float("nan"),
    }
    results = result(builder.build({"path": "/data/" + "deep/" * 40}), attributes=said)
    text = render(results)
    assert all(line.isprintable() and len(line) <= 100 for line in text.splitlines())
    text.encode()
    assert results.digest in text
    write_json(tmp_path / "figures.json", figures(results))
    names = [
        each["name"] for each in json.loads((tmp_path / "figures.json").read_text())["kernels"]
    ]
    assert names[0] == "ünïcödé ?"


def test_an_empty_program_has_a_report() -> None:
    builder = ProgramBuilder()
    builder.add_rank(builder.add_table(builder.table().build()))
    results = result(builder.build())
    assert "No kernels." in render(results)
    assert figures(results)["step_time"] == 0


# --- the figures --------------------------------------------------------------------------------


@given(program=programs())
def test_figures_add_up_exactly(program: Program) -> None:
    numbers = figures(result(program))
    step = numbers["step_time_ps"]
    assert numbers["step_time"] == step * 1e-12
    for rank in numbers["ranks"]:
        assert rank["compute_ps"] + rank["exposed_ps"] + rank["idle_ps"] == step
        assert rank["exposed_waiting_ps"] + rank["exposed_wire_ps"] == rank["exposed_ps"]
    for what in ("kind", "name", "rank"):
        assert sum(p["total_ps"] for p in numbers["critical_path"][f"by_{what}"]) == step


def test_figures_say_what_the_report_says() -> None:
    numbers = figures(result(straggler(2), attributes={"assumptions": ["none"]}, seed=3))
    assert numbers["step_time_ps"] == STEP
    assert numbers["ranks"][1]["compute_ps"] == 200 * US
    assert numbers["rank_steps"] == {
        "0": {0: pytest.approx(241e-6)},
        "1": {0: pytest.approx(241e-6)},
    }
    assert numbers["kernels"][0]["name"] == "gemm"
    assert numbers["communications"][0]["members"] == [0, 1]
    assert numbers["critical_path"]["by_kind"][0] == {
        "kind": "compute",
        "total_ps": 180 * US,
        "pieces": 2,
    }
    assert numbers["attributes"] == {"assumptions": ["none"]}
    assert (numbers["seed"], numbers["program"]) == (3, {"source": "by hand"})


def test_wide_columns_leave_the_others_whole() -> None:
    columns = [
        Column[str]("wide", lambda row: "9" * 40),
        Column[str]("wider", lambda row: "8" * 40),
        Column[str]("text", lambda row: row, left=True),
    ]
    lines = table_lines(columns, ["reduce_scatter, data parallel", "short"])
    assert max(map(len, lines)) <= WIDTH
    assert lines[1].split()[:2] == lines[2].split()[:2] == ["9" * 40, "8" * 40]
    assert lines[1].endswith("  reduce…arallel")
    assert lines[2].endswith("  short")


def test_the_page_has_the_keys_of_the_json() -> None:
    page = Path(__file__).parents[1].joinpath("docs/results.md").read_text(encoding="utf-8")
    parts = page.partition("## As JSON")[2].partition("##")[0].split("\n- ")
    for part, keys in zip(parts[1:], (KERNEL_KEYS, COMMUNICATION_KEYS), strict=True):
        assert part.partition(":")[2].split("`")[1::2] == list(keys)
    listed = {key for line in parts[0].splitlines() for key in line.split("|")[1:2]}
    listed = {key for cell in listed for key in cell.split("`")[1::2]}
    numbers = figures(result(straggler()))
    assert numbers.keys() <= listed | {"kernels", "communications"}
    assert {f"`{key}`" for key in numbers["ranks"][0]} <= set(re.findall("`[a-z_]+`", parts[0]))


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize("nprocs", [1, 2])
def test_report_command(comm: Any, tmp_path: Path, run_mpisim: Callable, nprocs: int) -> None:
    run = simulate(straggler(3), critical_path=True)
    written = write_results(run, tmp_path / "run.h5", comm=comm, timeline=True)
    assert written is not None
    done = run_mpisim(["report", "run.h5", "--json", "run.json", "--top", "2"], nprocs)
    assert done.rc == 0, done.stderr
    assert done.stdout == render(written, 2) + "\n"
    numbers = json.loads((tmp_path / "run.json").read_text())
    assert numbers["digest"] == run.digest
    assert numbers["step_time"] == pytest.approx(241e-6)
    assert sorted(os.listdir(tmp_path)) == ["run.h5", "run.json"]

    done = run_mpisim(["report", "run.h5", "--json", "/dev/stdout"])  # a pipe
    assert done.stdout.endswith("sensitivity.\n")
    assert json.loads(done.stdout[: done.stdout.index("\n}\n") + 2])["digest"] == run.digest


@pytest.mark.parametrize("nprocs", [1, 2])
@pytest.mark.parametrize(
    ("words", "rc", "said"),
    [
        (["missing.h5"], 2, "missing.h5: there is no such file"),
        (["text.h5"], 2, "text.h5: is not an HDF5 file"),
        (["run.h5", "--top", "0"], 2, "--top is 0; it must be 1 or more"),
        (["run.h5", "--jsn", "x"], 2, "did you mean '--json'"),
        (["run.h5", "--json", "no/x.json"], 2, "no/x.json: there is no folder"),
        (["run.h5", "--json", "/dev/full"], 1, "/dev/full: No space left on device"),
    ],
)
def test_report_command_refuses(
    comm: Any,
    tmp_path: Path,
    run_mpisim: Callable,
    nprocs: int,
    words: list[str],
    rc: int,
    said: str,
) -> None:
    write_results(simulate(straggler()), tmp_path / "run.h5", comm=comm)
    (tmp_path / "text.h5").write_text("text")
    done = run_mpisim(["report", *words], nprocs)
    assert (done.rc, len(done.errors)) == (rc, 1), done.stderr
    assert said in done.errors[0]
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["run.h5", "text.h5"]
