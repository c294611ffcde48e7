"""What a page shows of a run, for tests: it adds up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exported import PIPELINE

from mpisim.engine import simulate as simulate_program
from mpisim.page.payload import run_payload
from mpisim.page.shown import ShownRun
from mpisim.program import Program
from mpisim.results import Results, collect

SLOW_GPU = ("plan.tp=2", "plan.dp=4", "plan.zero=1", "variation.speeds.5=0.9")

LONG = ("model.layers=4", "plan.pp=2", "plan.dp=4", "plan.zero=1", "plan.global_batch=1024")
"""A step of 256 micro-batches, which follows from two short ones."""

CASES = {
    "one-stage": ("model.layers=4",),
    "pipeline": PIPELINE,
    "interleaved": (*PIPELINE, "plan.pipeline.schedule=interleaved", "plan.vpp=2"),
    "slow-gpu": ("model.layers=4", *SLOW_GPU),
    "long": LONG,
}


class Alone:
    """As much of a communicator as one process needs."""

    size, rank = 1, 0

    def bcast(self, what: Any, root: int = 0) -> Any:
        return what

    def gather(self, what: Any, root: int = 0) -> list[Any]:
        return [what]

    allgather = gather


ALONE: Any = Alone()


def page_of_program(program: Program, **said: Any) -> tuple[dict[str, Any], Results]:
    """Simulate a program → its page, and its results."""
    run = simulate_program(program, critical_path=True)
    results = collect(run, comm=ALONE, **said)
    page = run_payload(results, ShownRun(run), ALONE)
    assert results is not None
    assert page is not None
    return page, results


def equal(one: Any, other: Any) -> bool:
    """Whether two pages show the same."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def check_adds_up(page: dict[str, Any], results: Results) -> None:
    """All parts of a page add up to the step, or to what the results say."""
    whole = page["whole_ps"]
    assert whole == results.shown_ps
    parts = page["parts"]
    assert len(parts["names"]) == len(parts["kinds"])
    for row in parts["rows"]:
        assert sum(row["ps"]) == pytest.approx(whole, abs=1)
    assert parts["rows"][0]["gpus"] == results.n_ranks
    tables = {table["id"]: table for table in page["tables"]}
    for table in tables.values():
        keys = [column["key"] for column in table["columns"]]
        assert keys == list(table["data"])
        assert len({len(column) for column in table["data"].values()}) == 1
    ranks = tables["ranks"]["data"]
    assert ranks["count"].sum() == results.n_ranks
    assert (
        ranks["compute"] + ranks["exposed_waiting"] + ranks["exposed_wire"] + ranks["idle"] == whole
    ).all()
    for column in ("compute", "idle", "end"):
        assert (ranks["count"] * ranks[column]).sum() == results.ranks[column].sum()
    if "kernels" in tables:
        assert tables["kernels"]["data"]["total"].sum() == results.kernels["total"].sum()
    if "communications" in tables:
        lines = tables["communications"]["data"]
        for column, total in (("wire_total", "wire"), ("waiting_total", "waiting")):
            assert lines[column].sum() == results.communications[total].sum()
        assert lines["count"].sum() == results.communications["count"].sum()
    path = page["path"]
    if path is not None:
        pieces = path["pieces"]
        assert pieces["begin"][0] == 0
        holes = np.flatnonzero(pieces["begin"][1:] != pieces["end"][:-1])
        assert len(holes) == (1 if path["cut"] else 0)
        assert pieces["end"][-1] == whole
        for key in ("by_kind", "by_name", "by_rank"):
            assert sum(ps for _, ps, _ in path[key]) == whole
            count = sum(count for _, _, count in path[key])
            assert count == len(pieces["kind"]) or path["cut"]
        assert tables["path_by_name"]["data"]["total"].sum() == whole


def check_timeline(page: dict[str, Any]) -> None:
    """Rows lie in the step and in their lanes; pieces of the path lie on their rows."""
    timeline = page["timeline"]
    rows = timeline["rows"]
    at = 0
    for group in timeline["groups"]:
        for stream in group["streams"]:
            assert stream["first"] == at
            at += stream["count"]
            begin, duration = (rows[name][stream["first"] : at] for name in ("begin", "duration"))
            assert (np.diff(begin) >= 0).all()
            assert (begin >= 0).all()
            assert (duration >= 0).all()
            assert (begin + duration <= page["whole_ps"]).all()
    assert {len(column) for column in rows.values()} == {at}
    assert (rows["wait"] >= 0).all()
    assert (rows["wait"] <= rows["duration"]).all()
    assert rows["name"].max(initial=-1) < len(timeline["names"])
    assert rows["communicator"].max(initial=-1) < len(timeline["communicators"])
    assert rows["communicator"].min(initial=-1) >= -1
    if page["path"] is None:
        return
    pieces = page["path"]["pieces"]
    assert pieces["row"].max() < at
    shown = np.flatnonzero(pieces["row"] >= 0)
    # On the device a piece of a row is a part of it; those of launches and gaps come before it.
    here = shown[np.isin(pieces["kind"][shown], (0, 1, 2))]
    on = pieces["row"][here]
    end = rows["begin"][on] + rows["duration"][on]
    assert (pieces["begin"][here] >= rows["begin"][on]).all()
    assert (pieces["end"][here] <= end).all()
    named = [timeline["names"][i] for i in rows["name"][on].tolist()]
    assert named == [page["path"]["names"][i] for i in pieces["name"][here].tolist()]
