"""Runs exported as Kineto traces: replayed, read by HolisticTraceAnalysis, and looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exported import DENSE, PIPELINE, exported_run, kineto_events, saved_run

from mpisim.program import Kind
from mpisim.replay import read_job, replay
from mpisim.report import figures
from mpisim.results import open_results

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

CASES = pytest.mark.parametrize("changes", [DENSE, PIPELINE], ids=["dense", "pipeline"])


@pytest.mark.mpi
@CASES
def test_the_export_of_a_prediction_replays_as_predicted(
    comm: Intracomm, shared_folder: Path, changes: tuple[str, ...]
) -> None:
    """Within a ns a rank, far less than the 0.1 % that is promised."""
    saved = saved_run(comm, shared_folder / "run.h5", *changes)
    again = exported_run(comm, saved, "chrome", shared_folder / "traces")
    comm.barrier()
    job = read_job([shared_folder / "traces"], comm)
    found = replay(job, comm)
    assert found.run.step_time == pytest.approx(again.run.step_time, abs=2_000)
    assert max(step.replayed for step in found.steps) == pytest.approx(
        again.run.step_time * 1e-12, abs=2e-9
    )
    assert {step.step for step in found.steps} == {0}
    assert job.counts["kernels without a partner"] == 0
    assert job.late == (0, 0.0)


@pytest.mark.mpi
def test_the_export_of_a_replay_replays_alike(comm: Intracomm, shared_folder: Path) -> None:
    """A replay with changed times, exported, has these times as recorded ones."""
    from recorded import exported, recordable_program

    from mpisim.engine import simulate
    from mpisim.replay import ReplayOrigin, WhatIf
    from mpisim.results import write_results

    run = simulate(recordable_program(7, n_ranks=4), comm)
    what = WhatIf(compute=0.5, delay={1: 0.001}, kernels=[("kernel 0", 2.0)], cap_rank_gap={2: 0.1})
    with exported(run, comm) as folder:
        before = replay(read_job([folder], comm), comm, what)
        origin = ReplayOrigin.of([folder], False, what).text
        write_results(before.run, shared_folder / "run.h5", comm=comm, origin=origin)
        exported_run(comm, shared_folder / "run.h5", "chrome", shared_folder / "traces")
    comm.barrier()
    after = replay(read_job([shared_folder / "traces"], comm), comm)
    assert after.rank_steps.keys() == before.rank_steps.keys()
    for rank, steps in before.rank_steps.items():
        assert after.rank_steps[rank] == pytest.approx(steps, rel=1e-3)


def test_what_is_said_of_rows(comm: Intracomm, tmp_path: Path) -> None:
    saved = saved_run(comm, tmp_path / "run.h5", *PIPELINE)
    again = exported_run(comm, saved, "chrome", tmp_path / "traces", "2,3")
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == ["kineto_rank2.json.gz", "kineto_rank3.json.gz"]
    events = kineto_events(tmp_path / "traces" / names[0])
    (step,) = (e for e in events if e["name"] == "ProfilerStep#0")
    assert (step["ts"], step["cat"]) == (0, "user_annotation")

    kernels = [e for e in events if e.get("cat") == "kernel"]
    entry = again.run.hosted.tolist().index(2)
    table, rows = again.run.program.table_of(2), again.run.rows(entry)
    for event in kernels:
        row, args = event["args"]["Row"], event["args"]
        assert event["ts"] == rows.begin[row] // 1000 / 1000
        assert args.get("Layer", -1) == table.layer[row]
        assert args.get("Micro-batch", -1) == table.micro_batch[row]
    said = [e["args"] for e in kernels]
    gathered = next(args for args in said if args.get("Collective name") == "_allgather_base")
    assert gathered["Process Group Ranks"] == "[2, 3]"
    assert gathered["Message bytes"] == 4 * gathered["Out msg nelems"]
    assert (gathered["Algorithm"], gathered["Protocol"]) == ("ring", "simple")
    ratio = gathered["Bus bandwidth (GB/s)"] / gathered["Bandwidth (GB/s)"]
    assert ratio == pytest.approx(0.5, rel=1e-3)  # half of what two ranks gather comes from one
    assert "node0.gpu2->node0.nvswitch" in gathered["Links"]
    assert gathered["Limited by"]
    messages = [e["args"] for e in kernels if "SendRecv" in e["name"]]
    assert messages
    assert all("Waiting (us)" in args for args in messages)

    row = next(i for i in range(len(table)) if table.kind[i] == Kind.COLLECTIVE)
    event = next(e for e in kernels if e["args"]["Row"] == row)
    assert event["args"]["Waiting (us)"] == (rows.wire[row] - rows.begin[row]) / 1e6


def test_counters_and_the_critical_path(comm: Intracomm, tmp_path: Path) -> None:
    saved = saved_run(comm, tmp_path / "run.h5", *PIPELINE)
    again = exported_run(comm, saved, "chrome", tmp_path / "traces")
    first, *others = (
        kineto_events(tmp_path / "traces" / f"kineto_rank{rank}.json.gz") for rank in range(8)
    )
    memory = [e for e in first if e["ph"] == "C" and e["name"] == "GPU memory"]
    assert again.prepared is not None
    assert max(e["args"]["bytes"] for e in memory) == again.prepared.memory.stages[0].total
    links = {e["name"] for e in first if e["ph"] == "C"} - {"GPU memory"}
    assert len(links) == len(again.kept.links.links["name"]) > 0
    assert not any(e["ph"] == "C" and e["name"] in links for file in others for e in file)

    path = again.kept.critical_path
    assert path is not None
    pieces = [e for file in (first, *others) for e in file if e.get("cat") == "critical_path"]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in pieces if e["ph"] == "X")
    assert len(spans) == len(path.kind)
    assert sum(end - begin for begin, end in spans) == pytest.approx(
        again.run.step_time * 1e-6, abs=1e-3 * len(spans)
    )
    for file in (first, *others):
        on_gpu = [e for e in file if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        inside = {e["tid"]: [] for e in on_gpu}  # type: dict[int, list[tuple[float, float]]]
        for e in on_gpu:
            inside[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        for e in file:
            if e.get("cat") == "critical_path" and e["ph"] in "sf":
                assert any(begin <= e["ts"] <= end for begin, end in inside[e["tid"]])


# --- HolisticTraceAnalysis ----------------------------------------------------------------------

ANALYSIS = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
frames = (
    analysis.get_temporal_breakdown(visualize=False),
    analysis.get_comm_comp_overlap(visualize=False),
)
rows = zip(*(json.loads(frame.sort_values("rank").to_json(orient="records")) for frame in frames))
print(json.dumps([{**a, **b} for a, b in rows]))
"""


def holistic_trace_analysis(folder: Path) -> list[dict[str, Any]]:
    """What HolisticTraceAnalysis says of each rank, in a process without MPI."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ANALYSIS, str(folder)],
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(
    find_spec("hta") is None, reason="HolisticTraceAnalysis: pip install 'mpisim[hta]'"
)
@CASES
def test_holistic_trace_analysis_agrees(
    comm: Intracomm, tmp_path: Path, changes: tuple[str, ...]
) -> None:
    """Compute, exposed communication and overlap of every rank are those of our report."""
    saved = saved_run(comm, tmp_path / "run.h5", *changes)
    exported_run(comm, saved, "chrome", tmp_path / "traces")
    with open_results(saved) as results:
        ours = figures(results)["ranks"]
    theirs = holistic_trace_analysis(tmp_path / "traces")
    assert [each["rank"] for each in theirs] == list(range(8))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["copy_ps"] == 0  # they do not count as computation there
        # It takes records of event waits, half a µs each, for computation, and of waits of the
        # host, where the GPU is idle, for other work.
        file = kineto_events(tmp_path / "traces" / f"kineto_rank{mine['rank']}.json.gz")
        waits = sum(e["dur"] for e in file if e["name"] == "Stream Wait Event")
        slack = waits + 1e-3 * len(file)
        compute, exposed = mine["compute_ps"] * 1e-6, mine["exposed_ps"] * 1e-6
        assert waits < 1e-2 * compute
        assert other["compute_time(us)"] == pytest.approx(compute, abs=slack)
        idle = mine["idle_ps"] * 1e-6
        assert other["non_compute_time(us)"] == pytest.approx(exposed, abs=slack + idle)
        overlap = 1 - mine["exposed_ps"] / mine["communication_ps"]
        assert other["comp_comm_overlap_pctg"] == pytest.approx(100 * overlap, abs=0.1)
