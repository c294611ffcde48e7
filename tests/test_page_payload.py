"""What a page shows of a run: it adds up, and it is what the run and its export say."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exported import PIPELINE, exported_run, saved_run
from page_checks import ALONE, CASES, LONG, check_adds_up, check_timeline, equal, page_of_program

from mpisim.base.rank_ranges import parse_ranges
from mpisim.experiment import Experiment, load
from mpisim.export import read_kept, resimulate
from mpisim.page import path as path_module
from mpisim.page.payload import run_payload
from mpisim.page.shown import MOST_GROUPS, ShownRun
from mpisim.page.usage import level_of
from mpisim.page.words import UNTITLED
from mpisim.program import Operation, ProgramBuilder
from mpisim.results import Results, open_results
from mpisim.results.step_parts import StepParts
from mpisim.simulate import Simulated, simulate

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.mpi_calls


def page_of_run(
    comm: Intracomm, *changes: str, most_rows: int = 600_000, **settings: Any
) -> tuple[dict[str, Any] | None, Results | None]:
    """Simulate the default experiment with some changes → its page, and its results."""
    text, experiment = load(changes=changes)
    simulated: list[Simulated] = []
    results = simulate(experiment, comm, text=text, simulated=simulated, **settings)
    shown = ShownRun.of(simulated[0])
    return run_payload(results, shown, comm, most_rows=most_rows), results


def not_overlapping(page: dict[str, Any]) -> bool:
    """Whether the rows of every lane follow each other."""
    rows = page["timeline"]["rows"]
    return all(
        (
            rows["begin"][stream["first"] + 1 : stream["first"] + stream["count"]]
            >= (rows["begin"] + rows["duration"])[
                stream["first"] : stream["first"] + stream["count"] - 1
            ]
        ).all()
        for group in page["timeline"]["groups"]
        for stream in group["streams"]
    )


# --- experiments ----------------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.parametrize("changes", CASES.values(), ids=list(CASES))
def test_a_page_adds_up_on_any_number_of_processes(
    comm: Intracomm, changes: tuple[str, ...]
) -> None:
    page, results = page_of_run(comm, *changes)
    if results is None:
        assert page is None
        return
    assert page is not None
    check_adds_up(page, results)
    check_timeline(page)
    assert not_overlapping(page)
    assert page["timeline"]["cut"] == ""
    alone, _ = page_of_run(ALONE, *changes)
    assert equal(page, alone)


@pytest.mark.parametrize("changes", CASES.values(), ids=list(CASES))
def test_a_page_is_the_same_folded_or_not(changes: tuple[str, ...]) -> None:
    folded, _ = page_of_run(ALONE, *changes, fold=True)
    each, _ = page_of_run(ALONE, *changes, fold=False)
    assert equal(folded, each)


def test_rounds_that_repeat_are_shown_each(comm: Intracomm) -> None:
    repeated, one = page_of_run(comm, *LONG)
    whole, other = page_of_run(comm, *LONG, repeat=False)
    assert repeated is not None
    assert whole is not None
    assert one is not None
    assert other is not None
    assert one.digest == other.digest
    for section in ("timeline", "path", "memory", "parts"):
        assert equal(repeated[section], whole[section]), section
    assert repeated["timeline"]["rows"]["micro_batch"].max() == 255


@pytest.mark.parametrize("name", ["pipeline", "slow-gpu", "long"])
def test_rows_are_those_of_the_export(comm: Intracomm, tmp_path: Path, name: str) -> None:
    saved = saved_run(comm, tmp_path / "run.h5", *CASES[name])
    kept = read_kept(saved, comm)
    with open_results(saved) as results:
        shown = ShownRun.of(resimulate(kept, comm, repeat=True))
        page = run_payload(results, shown, comm)
    assert page is not None
    timeline = page["timeline"]
    ranks = [group["rank"] for group in timeline["groups"]]
    exported_run(comm, saved, "csv", tmp_path / "rows.csv", ",".join(map(str, ranks)))
    text = (tmp_path / "rows.csv").read_text()
    lines = list(csv.DictReader(io.StringIO(text)))
    rows = timeline["rows"]
    assert len(lines) == len(rows["begin"])
    for group in timeline["groups"]:
        first = group["streams"][0]["first"]
        last = first + sum(stream["count"] for stream in group["streams"])
        own = sorted(
            (
                timeline["names"][rows["name"][i]],
                timeline["kinds"][rows["kind"][i]],
                int(rows["begin"][i]),
                int(rows["begin"][i] + rows["wait"][i]),
                int(rows["begin"][i] + rows["duration"][i]),
                timeline["phases"][rows["phase"][i]],
                int(rows["layer"][i]),
                int(rows["micro_batch"][i]),
                int(rows["bytes"][i]),
                timeline["communicators"][rows["communicator"][i]]
                if rows["communicator"][i] >= 0
                else "",
            )
            for i in range(first, last)
        )
        theirs = sorted(
            (
                line["name"],
                line["kind"].replace("_", " "),
                int(line["begin_ps"]),
                int(line["wire_ps"] or line["begin_ps"]),
                int(line["end_ps"]),
                line["phase"] or "none",
                *(int(line[key] or -1) for key in ("layer", "micro_batch", "bytes")),
                line["group"],
            )
            for line in lines
            if int(line["rank"]) == group["rank"]
        )
        assert own == theirs


def test_stages_and_their_ranks(comm: Intracomm) -> None:
    page, results = page_of_run(comm, *PIPELINE)
    assert page is not None
    assert results is not None
    groups = page["timeline"]["groups"]
    assert [group["title"] for group in groups] == [f"stage {i}" for i in range(4)]
    assert [group["stage"] for group in groups] == [0, 1, 2, 3]
    assert [group["rank"] // 2 for group in groups] == [0, 1, 2, 3]
    assert groups[0]["subtitle"].endswith(" of 2")
    assert [row["name"] for row in page["parts"]["rows"]] == [
        "mean of 8 GPUs",
        *(f"stage {i}" for i in range(4)),
    ]
    # Of a stage the rank that has most of the critical path is shown.
    path = results.critical_path
    assert path is not None
    for group in groups:
        stage = [2 * group["stage"], 2 * group["stage"] + 1]
        on_path = [int((path.end - path.begin)[path.rank == rank].sum()) for rank in stage]
        assert group["rank"] == stage[int(np.argmax(on_path))]
    table = next(each for each in page["tables"] if each["id"] == "stages")
    for i, mean in enumerate(table["data"]["compute"].tolist()):
        assert mean == results.ranks["compute"][2 * i : 2 * i + 2].sum() // 2


def test_ranks_that_take_the_same_are_one_line(comm: Intracomm) -> None:
    page, results = page_of_run(comm, *CASES["slow-gpu"])
    assert page is not None
    assert results is not None
    table = next(each for each in page["tables"] if each["id"] == "ranks")["data"]
    named: list[int] = []
    for text, count, compute in zip(
        table["ranks"], table["count"].tolist(), table["compute"].tolist(), strict=True
    ):
        members = parse_ranges(text, "ranks", "rank")
        assert len(members) == count
        assert {int(results.ranks["compute"][rank]) for rank in members} == {compute}
        named += members
    assert sorted(named) == list(range(8))
    assert len(table["count"]) < 8
    titles = [group["title"] for group in page["timeline"]["groups"]]
    assert titles == ["ranks 0-4,6-7", "rank 5"]


def test_memory_is_that_of_the_verdict(comm: Intracomm) -> None:
    text, experiment = load(changes=PIPELINE)
    simulated: list[Simulated] = []
    results = simulate(experiment, comm, text=text, simulated=simulated)
    page = run_payload(results, ShownRun.of(simulated[0]), comm)
    assert page is not None
    assert results is not None
    memory = page["memory"]
    assert memory["capacity"] == results.attributes["memory_capacity"]
    prepared: Any = simulated[0].prepared
    for group, stage in zip(memory["groups"], prepared.memory.stages, strict=True):
        total = np.sum([part["bytes"] for part in group["parts"]], axis=0)
        assert total.max() == stage.total
        worst = {part["name"]: int(part["bytes"][total.argmax()]) for part in group["parts"]}
        assert worst["parameters"] == stage.parameters
        assert worst["activations and temporaries"] == stage.activations + stage.working
        assert group["times"][0] == 0
        assert (np.diff(group["times"]) >= 0).all()
    assert (
        max(
            int(np.sum([part["bytes"] for part in group["parts"]], axis=0).max())
            for group in memory["groups"]
        )
        == (results.attributes["memory_peak"])
    )


def test_links_are_those_of_the_results(comm: Intracomm) -> None:
    page, results = page_of_run(
        comm,
        *("model.layers=4", "cluster.nodes=2", "plan.tp=8", "plan.dp=2"),
        *("plan.zero=1", "plan.global_batch=16", "framework.name=megatron-lm"),
    )
    assert page is not None
    assert results is not None
    links = page["links"]
    n = len(links["names"])
    assert n == len(results.links.links["name"]) > 0
    assert links["utilisation"].reshape(n, links["bins"]) == pytest.approx(
        results.links.utilisation, abs=1e-5
    )
    assert [level_of(name) for name in results.links.links["name"]] == links["levels"]
    assert level_of("node12.nic3->leaf0.rail3") == "node.nic->leaf.rail"


def test_words_are_those_of_the_results(comm: Intracomm) -> None:
    page, results = page_of_run(comm, *PIPELINE)
    assert page is not None
    assert results is not None
    assert page["experiment"] == results.experiment
    assert page["headline"]["error"].startswith("± ")
    facts = dict(page["headline"]["facts"])
    assert facts["Digest"] == results.digest
    assert facts["Memory"].startswith("The plan fits into")
    assert facts["Memory"].endswith(".")
    said = {each["title"]: each["items"] for each in page["statements"]}
    assert said["Assumptions"] == list(results.attributes["assumptions"])
    assert said["Not modelled"] == list(results.attributes["not_modelled"])
    assert said["Where the error bar comes from"] == results.attributes["uncertainty_sources"]
    # Every text of the results is somewhere.
    text = str(page)
    for value in results.attributes.values():
        for each in value if isinstance(value, list) else [value]:
            assert not isinstance(each, str) or repr(each)[1:-1] in text


def test_what_experiments_without_a_title_are_called() -> None:
    assert {field.name: field.default for field in fields(Experiment)}["title"] == UNTITLED


def test_parts_of_the_step_are_shown_where_there_are_some(comm: Intracomm) -> None:
    text, experiment = load(changes=PIPELINE)
    results = simulate(experiment, comm, text=text)
    assert results is not None
    times = np.stack(
        [
            results.ranks[column][results.classes["representative"]]
            for column in ("compute", "exposed_wire", "exposed_waiting", "idle")
        ],
        axis=1,
    )
    half = times[:, :1] // 3
    times = np.concatenate([half, times[:, :1] - half, times[:, 1:]], axis=1)
    kinds = np.array([0, 0, 1, 2, 3], np.uint8)
    parts = StepParts(("forward", "backward", "dp", "dp", "idle"), kinds, times)
    page = run_payload(replace(results, parts=parts), None, comm, why="no run")
    assert page is not None
    moving, waiting, idle = "dp communication", "waiting in dp", "idle: nothing runs"
    assert page["parts"]["names"] == ["forward", "backward", moving, waiting, idle]
    assert page["parts"]["kinds"] == ["compute", "compute", "wire", "waiting", "idle"]
    for row in page["parts"]["rows"]:
        assert sum(row["ps"]) == pytest.approx(page["whole_ps"], abs=1)
    mean = parts.mean(results.classes["count"])
    assert page["parts"]["rows"][0]["ps"] == pytest.approx(mean.tolist())


# --- what does not fit, or is not there -----------------------------------------------------------


def test_groups_with_least_of_the_path_are_left_out_first(comm: Intracomm) -> None:
    page, results = page_of_run(comm, *PIPELINE)
    assert page is not None
    assert results is not None
    groups = page["timeline"]["groups"]
    sizes = [sum(stream["count"] for stream in group["streams"]) for group in groups]
    path = results.critical_path
    assert path is not None
    on_path = [int((path.end - path.begin)[path.rank == group["rank"]].sum()) for group in groups]
    by_path = sorted(range(4), key=lambda i: -on_path[i])
    most = sizes[by_path[0]] + sizes[by_path[1]]
    cut, _ = page_of_run(comm, *PIPELINE, most_rows=most)
    assert cut is not None
    check_timeline(cut)
    assert [group["title"] for group in cut["timeline"]["groups"]] == [
        groups[i]["title"] for i in sorted(by_path[:2])
    ]
    for i in by_path[2:]:
        assert f"{groups[i]['title']} (rank {groups[i]['rank']})" in cut["timeline"]["cut"]
    # The others are as before, and everything else of the page is whole.
    assert equal(cut["path"]["by_name"], page["path"]["by_name"])
    assert equal(cut["parts"], page["parts"])


@pytest.mark.mpi
@pytest.mark.parametrize("changes", [PIPELINE, LONG], ids=["pipeline", "long"])
@pytest.mark.parametrize("most", [300, 1_500])
def test_where_few_groups_fit_the_middle_of_the_step_is_left_out(
    comm: Intracomm, changes: tuple[str, ...], most: int
) -> None:
    page, results = page_of_run(comm, *changes)
    cut, _ = page_of_run(comm, *changes, most_rows=most)
    if results is None:
        assert cut is None
        return
    assert page is not None
    assert cut is not None
    check_timeline(cut)
    check_adds_up(cut, results)
    found = re.search(
        r"What begins from (\S+ \S+) to (\S+ \S+) of the step", cut["timeline"]["cut"]
    )
    assert found is not None
    assert len(cut["timeline"]["groups"]) == len(page["timeline"]["groups"])
    rows, whole = cut["timeline"]["rows"], page["timeline"]["rows"]
    assert most / 2 < len(rows["begin"]) <= most
    # What is left has no hole but one, and is what it was.
    shown, every = (list_of_rows(each) for each in (cut, page))
    assert not set(shown) - set(every)
    missing = np.array(sorted(row[1] for row in set(every) - set(shown)))
    early, late = (
        np.array([row[1] for row in shown if side(row[1], missing)])
        for side in (lambda t, m: t < m[0], lambda t, m: t >= m[0])
    )
    assert len(early) > len(late) > 0
    assert late.min() > missing[-1]
    assert whole["begin"].max() == rows["begin"].max()


def list_of_rows(page: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Rank, begin, name, duration and micro-batch of all rows of a timeline."""
    timeline, found = page["timeline"], []
    rows = timeline["rows"]
    for group in timeline["groups"]:
        for stream in group["streams"]:
            for i in range(stream["first"], stream["first"] + stream["count"]):
                name = timeline["names"][rows["name"][i]]
                times = (int(rows[key][i]) for key in ("begin", "duration", "micro_batch"))
                begin, duration, micro_batch = times
                found.append((group["rank"], begin, stream["name"], name, duration, micro_batch))
    return found


def test_of_a_long_path_the_first_and_the_last_pieces_are_shown(
    comm: Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, results = page_of_run(comm, *PIPELINE)
    monkeypatch.setattr(path_module, "MOST_PIECES", 100)
    cut, _ = page_of_run(comm, *PIPELINE)
    assert page is not None
    assert cut is not None
    assert results is not None
    for key in ("by_kind", "by_name", "by_rank"):
        assert cut["path"][key] == page["path"][key]
    pieces, every = cut["path"]["pieces"], page["path"]["pieces"]
    assert pieces["begin"].tolist() == [*every["begin"][:75], *every["begin"][-25:]]
    assert (pieces["row"][:75] == every["row"][:75]).all()
    assert cut["path"]["cut"].startswith(f"100 of {len(every['begin']):,} pieces are shown")


def test_of_many_groups_some_are_shown() -> None:
    """Ranks with tables of their own, the last of which sets the step."""
    builder = ProgramBuilder()
    n = 3 * MOST_GROUPS
    everyone = builder.communicator(list(range(n)))
    for rank in range(n):
        table = builder.table(f"rank {rank}")
        table.kernel("k", 0, 1_000 + 10 * rank)
        table.collective(Operation.ALL_REDUCE, 0, 0, 8, duration=500)
        builder.add_rank(builder.add_table(table.build()), [everyone])
    page, results = page_of_program(builder.build())
    check_adds_up(page, results)
    check_timeline(page)
    groups = page["timeline"]["groups"]
    assert len(groups) == MOST_GROUPS
    assert f"rank {n - 1}" in [group["title"] for group in groups]
    assert f"{n - MOST_GROUPS} more groups of ranks are not shown." in page["timeline"]["cut"]


def test_without_the_run_a_page_says_why(comm: Intracomm, tmp_path: Path) -> None:
    saved = saved_run(comm, tmp_path / "run.h5", *PIPELINE)
    with open_results(saved) as results:
        page = run_payload(results, None, comm, why="run.h5: does not say what it was made of")
        assert page is not None
        check_adds_up(page, results)
    assert page["timeline"] is None
    assert page["memory"] is None
    assert page["why"]["timeline"] == "run.h5: does not say what it was made of"
    assert page["why"]["memory"] == page["why"]["timeline"]
    assert (page["path"]["pieces"]["row"] == -1).all()
