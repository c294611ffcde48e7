"""What a replay says of the steps of a recording, and how far it may be off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI
from traces import NCCL, HandMade

from mpisim.base.errors import InputError
from mpisim.engine import simulate
from mpisim.replay import read_job, replay
from mpisim.replay.error import replay_error
from mpisim.replay.what_if import WhatIf
from mpisim.results import collect, open_results, write_results
from mpisim.results.step_times import Spans, job_spans

LENGTHS = (900, 400, 600, 500)
"""Of the steps on the rank that is slower in each, in µs."""


def steps_of(rank: int) -> HandMade:
    """Four steps of a kernel and an all-reduce; before and behind them a long stretch (µs).

    Rank 0 computes longest in even steps, rank 1 in odd ones; numbers as in a job of eight.
    """
    made = HandMade(distributedInfo={"backend": "nccl", "rank": rank + 6, "world_size": 8})
    made.call("cudaStreamIsCapturing", 0, 1)
    made.launch(1, 5, 10, 20, name="warm-up")
    at = 5000
    for step, length in enumerate(LENGTHS):
        made.note(f"ProfilerStep#{step + 3}", at, at + length)
        work = length - 100 if step % 2 == rank else length - 250
        made.launch(at + 1, at + 5, at + 10, at + 10 + work, name=f"gemm {step}")
        made.operator("c10d::allreduce_", at + 20, at + 60)
        made.call("cudaStreamWaitEvent", at + 25, at + 26)
        made.note("nccl:all_reduce", at + 30, at + 50)
        made.launch(at + 35, at + 40, at + 11 + work, at + length - 10, stream=20, name=NCCL)
        made.call("cudaDeviceSynchronize", at + 70, at + length - 5)
        at += length
    made.call("cudaDeviceSynchronize", at + 9000, at + 9001)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (0, 1):
        steps_of(rank).write(tmp_path, f"rank{rank + 6}.json")
    return tmp_path


def figures_of(folder: Path, run_mpisim: Callable[..., Any], *words: str, n: int = 1) -> Any:
    to = ["--json", folder / "x.out", "--overwrite"]
    done = run_mpisim(["replay", folder, "--allow-missing-ranks", *to, *words], n)
    assert (done.rc, done.errors) == (0, [])
    return json.loads((folder / "x.out").read_text()), done.stdout


def test_the_headline_is_the_mean_of_the_steps(
    folder: Path, run_mpisim: Callable[..., Any]
) -> None:
    found, text = figures_of(folder, run_mpisim, "-o", str(folder / "run.h5"))
    each = {"4": 400e-6, "5": 600e-6, "6": 500e-6}
    assert found["job_steps"] == pytest.approx(each)
    assert found["step_time"] == pytest.approx(500e-6)
    assert (found["shown_step"], found["shown_ps"]) == (6, 500_000_000)
    assert found["recording_ps"] > 16_000_000_000
    assert "step time" in text.partition("\n\n")[2]
    headline = next(line for line in text.splitlines() if line.startswith("step time"))
    assert headline.split()[2:4] == ["500.000", "µs"]
    assert "recording" in text
    # The results file and what is read from it say the same.
    done = run_mpisim(["report", folder / "run.h5", "--json", folder / "again.out"])
    again = json.loads((folder / "again.out").read_text())
    assert {k: found[k] for k in again if k != "versions"} == {
        k: v for k, v in again.items() if k != "versions"
    }
    assert done.stdout.strip() in text
    with open_results(folder / "run.h5") as results:
        assert results.recorded is not None
        assert results.recorded.step.tolist() == [4, 5, 6]
        assert results.step_time_ps == found["step_time_ps"]
        assert results.rank_numbers == [6, 7]


@pytest.mark.parametrize(("step", "slower"), [(4, 7), (5, 6), (6, 7)])
def test_tables_and_path_are_of_one_step(
    folder: Path, run_mpisim: Callable[..., Any], step: int, slower: int
) -> None:
    found, text = figures_of(folder, run_mpisim, "--step", str(step), "--details")
    length = LENGTHS[step - 3] * 1_000_000
    assert found["shown_ps"] == length
    for rank in found["ranks"]:
        assert rank["compute_ps"] + rank["exposed_ps"] + rank["idle_ps"] == length
        assert rank["exposed_ps"] == rank["exposed_waiting_ps"] + rank["exposed_wire_ps"]
    assert [rank["rank"] for rank in found["ranks"]] == [6, 7]
    assert [kernel["name"] for kernel in found["kernels"]] == [f"gemm {step - 3}"]
    assert found["kernels"][0]["total_ps"] == (2 * LENGTHS[step - 3] - 350) * 1_000_000
    (comm,) = found["communications"]
    assert comm["count"] == 1
    for what in ("kind", "name", "rank"):
        path = found["critical_path"][f"by_{what}"]
        assert sum(piece["total_ps"] for piece in path) == length
    # The kernel of the rank that computes longest, and its communication.
    longest = {piece["rank"]: piece["total_ps"] for piece in found["critical_path"]["by_rank"]}
    assert longest[slower] > 0.8 * length
    names = {piece["name"] for piece in found["critical_path"]["by_name"]}
    assert f"gemm {step - 3}" in names
    assert not names & {"warm-up"}
    assert f"sets step {step}" in text


def test_the_same_on_two_processes(folder: Path, run_mpisim: Callable[..., Any]) -> None:
    one, _ = figures_of(folder, run_mpisim, "--step", "5")
    two, _ = figures_of(folder, run_mpisim, "--step", "5", n=2)
    for both in (one, two):
        for key in ("n_processes", "rounds", "versions"):
            del both[key]
        for rank in both["ranks"]:
            del rank["process"]
    assert one == two


@pytest.mark.parametrize("n", [1, 2])
def test_an_unknown_step(folder: Path, run_mpisim: Callable[..., Any], n: int) -> None:
    done = run_mpisim(["replay", folder, "--allow-missing-ranks", "--step", "3"], n)
    assert done.rc == 2
    assert len(done.errors) == 1
    assert "no whole step 3" in done.errors[0]
    assert "4, 5, 6" in done.errors[0]


def test_a_saved_program_says_the_same(folder: Path, run_mpisim: Callable[..., Any]) -> None:
    found, _ = figures_of(folder, run_mpisim, "--save-program", str(folder / "p.h5"))
    done = run_mpisim(["program", "run", folder / "p.h5", "--details", "--json", folder / "p.out"])
    assert done.rc == 0
    again = json.loads((folder / "p.out").read_text())
    for key in ("step_time_ps", "job_steps", "shown_ps", "recording_ps", "ranks", "kernels"):
        assert again[key] == found[key]
    assert "changed" not in again["program"]


def test_a_saved_program_names_its_changes(folder: Path, run_mpisim: Callable[..., Any]) -> None:
    what = ["--scale-comm", "0.5", "--delay", "6:0.001"]
    found, _ = figures_of(folder, run_mpisim, *what, "--save-program", str(folder / "p.h5"))
    done = run_mpisim(["program", "run", folder / "p.h5", "--details", "--json", folder / "p.out"])
    again = json.loads((folder / "p.out").read_text())
    assert again["digest"] == found["digest"]
    assert again["program"]["changed"] == "; ".join(found["changes"])
    assert "communication wire times × 0.5; rank 6 starts 0.001 s late" in done.stdout


def test_a_file_without_steps(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 100)
    made.launch(200, 205, 210, 300)
    run = replay(read_job([made.write(tmp_path)], MPI.COMM_SELF), MPI.COMM_SELF).run
    results = collect(run, comm=MPI.COMM_SELF)
    assert results is not None
    assert results.recorded is not None
    assert results.recorded.shown_step == -1
    assert results.step_time_ps == 290_000_000
    with pytest.raises(InputError, match="marks no steps"):
        collect(run, comm=MPI.COMM_SELF, step=1)


@given(st.lists(st.lists(st.integers(1, 1000), min_size=4, max_size=4), min_size=1, max_size=5))
def test_periods_of_a_job_add_up(lengths: list[list[int]]) -> None:
    """From the end of the first step of the last rank to that of the last, without a hole."""
    ranks = []
    for own in lengths:
        ends = [sum(own[: i + 1]) + 10_000 * i for i in range(4)]
        ranks.append(Spans({i: (ends[i - 1], ends[i]) for i in (1, 2, 3)}, True))
    found = job_spans(ranks)
    assert list(found) == [1, 2, 3]
    assert found[2] == (found[1][1], found[3][0])
    assert found[3][1] == max(rank.of[3][1] for rank in ranks)


def test_ranks_with_other_steps_have_those_in_common() -> None:
    first = Spans({4: (10, 20), 5: (20, 30)}, True)
    second = Spans({5: (21, 33), 6: (33, 50)}, True)
    assert job_spans([first, second]) == {5: (21, 33)}
    assert job_spans([Spans({1: (0, 9)}, False), Spans({1: (3, 12)}, False)]) == {1: (0, 12)}


# --- how far a replay may be off ----------------------------------------------------------------


def test_a_prediction_has_an_error_of_its_own(folder: Path) -> None:
    job = read_job([folder], MPI.COMM_SELF, allow_missing=True)
    plain = replay(job, MPI.COMM_SELF)
    own = replay_error(plain, plain)
    assert own.value == max(abs(step.error) for step in plain.steps)
    nothing = replay_error(replay(job, MPI.COMM_SELF, WhatIf(delay={6: 0.0})), plain)
    half = replay_error(replay(job, MPI.COMM_SELF, WhatIf(compute=0.5)), plain)
    assert own.value < 0.001 < nothing.value <= half.value
    assert "prediction" in half.method
    assert "prediction" not in own.method


def test_what_is_kept_as_recorded_makes_a_prediction_less_certain(tmp_path: Path) -> None:
    """A rank alone, whose communications hold its waiting; a stall in a call."""
    errors = []
    for stall in (0, 400):
        made = HandMade()
        made.note("ProfilerStep#1", 0, 1500)
        made.launch(5, 10, 15, 900)
        made.call("cudaDeviceSynchronize", 20, 905 + stall)
        job = read_job([made.write(tmp_path, f"rank{stall}.json")], MPI.COMM_SELF)
        plain = replay(job, MPI.COMM_SELF)
        errors.append(replay_error(replay(job, MPI.COMM_SELF, WhatIf(compute=0.5)), plain).value)
    assert errors[0] < errors[1]


def test_other_programs_have_one_step(tmp_path: Path) -> None:
    from straggler import straggler

    run = simulate(straggler(), critical_path=True)
    results = write_results(run, tmp_path / "run.h5", comm=MPI.COMM_SELF)
    assert results is not None
    assert results.recorded is None
    assert results.shown_ps == results.step_time_ps == run.step_time


def test_a_change_without_effect_is_named(tmp_path: Path, call_mpisim: Callable[..., Any]) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 100)
    done = call_mpisim(["replay", made.write(tmp_path), "--scale-comm", "0.5"])
    assert done.rc == 0
    assert "--scale-comm changes nothing: this recording has no communications" in done.stdout
