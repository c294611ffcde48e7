"""Pages of programs, recordings, replays, and of two runs: they add up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from exported import PIPELINE
from hypothesis import given, settings
from page_checks import ALONE, CASES, check_adds_up, check_timeline, equal, page_of_program
from programs import programs
from recorded import exported, recordable_program, recordable_programs

from mpisim.engine import simulate as simulate_program
from mpisim.experiment import load
from mpisim.page.payload import comparison_payload, run_payload
from mpisim.page.shown import ShownRun
from mpisim.program import Kind, Program, ProgramBuilder
from mpisim.replay import read_job, replay
from mpisim.report.comparison import compare
from mpisim.results import collect
from mpisim.simulate import simulate

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes


# --- programs and recordings ----------------------------------------------------------------------


@settings(max_examples=40)
@given(program=programs(max_events=20))
def test_pages_of_programs_add_up(program: Program) -> None:
    page, results = page_of_program(program)
    check_adds_up(page, results)
    check_timeline(page)
    each = simulate_program(program, critical_path=True, fold=False)
    assert equal(page, run_payload(collect(each, comm=ALONE), ShownRun(each), ALONE))
    assert page["memory"] is None
    assert "experiments alone" in page["why"]["memory"]


HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"'&<>\\ \u2028\u202e\0",
    "a\nb",
    "\ud800",
    "π" * 300,
)


def test_hostile_names_are_data() -> None:
    builder = ProgramBuilder()
    table = builder.table("hostile")
    for name in HOSTILE:
        table.kernel(name, 0, 1_000)
    builder.add_rank(builder.add_table(table.build()))
    said = {"assumptions": list(HOSTILE), HOSTILE[0]: HOSTILE[1]}
    page, _ = page_of_program(
        builder.build({"title": HOSTILE[0]}), experiment=HOSTILE[1], attributes=said
    )
    assert set(page["timeline"]["names"]) == set(HOSTILE)
    assert set(page["path"]["names"]) >= set(HOSTILE)
    assert page["experiment"] == HOSTILE[1]
    assert page["title"] == HOSTILE[0]
    statements = {each["title"]: each["items"] for each in page["statements"]}
    assert statements["Assumptions"] == list(HOSTILE)
    assert f"{HOSTILE[0]}: {HOSTILE[1]}" in statements["Also said"]


@pytest.mark.mpi
def test_a_replay(comm: Intracomm) -> None:
    program = recordable_program(7, n_ranks=4)
    run = simulate_program(program, comm)
    with exported(run, comm) as folder:
        job = read_job([folder], comm)
        asked = replay(job, comm, critical_path=True)
    results = collect(asked.run, comm=comm)
    page = run_payload(results, ShownRun(asked.run), comm)
    if results is None:
        assert page is None
        return
    assert page is not None
    check_adds_up(page, results)
    check_timeline(page)
    assert [group["rank"] for group in page["timeline"]["groups"]] == [0, 1, 2, 3]
    assert [group["title"] for group in page["timeline"]["groups"]] == [
        f"rank {rank}" for rank in range(4)
    ]
    names = {program.names[i] for table in program.tables if table for i in table.name.tolist()}
    kernels = {
        page["timeline"]["names"][i]
        for i in page["timeline"]["rows"]["name"][
            page["timeline"]["rows"]["kind"] == Kind.KERNEL
        ].tolist()
    }
    assert kernels <= names


@settings(max_examples=10)
@given(program=recordable_programs(max_ranks=3, max_events=20))
def test_pages_of_recordings_add_up(program: Program) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_SELF
    run = simulate_program(program, comm)
    with exported(run, comm) as folder:
        asked = replay(read_job([folder], comm), comm, critical_path=True)
    results = collect(asked.run, comm=comm)
    page = run_payload(results, ShownRun(asked.run), comm)
    assert results is not None
    assert page is not None
    check_adds_up(page, results)
    check_timeline(page)


# --- two runs -------------------------------------------------------------------------------------


def test_two_runs_are_as_compared(comm: Intracomm) -> None:
    pair = []
    for changes in (PIPELINE, CASES["slow-gpu"]):
        text, experiment = load(changes=changes)
        results = simulate(experiment, comm, text=text)
        assert results is not None
        pair.append(results)
    found = compare(pair[0], pair[1], keys=({"plan.pp": "4"}, {"plan.tp": "2"}))
    page = comparison_payload(found, (pair[0], pair[1]), ("a.h5: one", "b.h5: <other>"))
    two = page["compare"]
    assert (two["a_ps"], two["b_ps"]) == (pair[0].shown_ps, pair[1].shown_ps)
    assert (two["a"], two["b"]) == ("a.h5: one", "b.h5: <other>")
    assert re.match(r"B is [\d.]+ m?s (longer|shorter), [-+]", two["verdict"])
    assert len(two["lists"]) >= 3
    for each in two["lists"]:
        for side, whole in ((1, two["a_ps"]), (2, two["b_ps"]), (3, two["b_ps"] - two["a_ps"])):
            assert sum(row[side] for row in each["rows"]) == whole
    assert two["keys"] == [["plan.pp", "4", "not given"], ["plan.tp", "not given", "2"]]
    titles = [each["title"] for each in page["statements"]]
    assert "A: Assumptions" in titles
    assert "B: Assumptions" in titles
