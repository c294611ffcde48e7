"""Searches over whole jobs: the cheapest cluster that meets a deadline, and the best of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.base.hdf5_data import read_json_text, write_json_text
from mpisim.cli import main
from mpisim.cli.search import _begun
from mpisim.experiment.load import experiment_of
from mpisim.job.experiment_outcome import experiment_outcome
from mpisim.prediction.extrapolation import step_time
from mpisim.prediction.hardware import hardware_of
from mpisim.prediction.memory_fit import verdict
from mpisim.search import SearchSpace, answer, explore, read_search, read_store, write_store
from mpisim.search.answer import Answer, answer_lines
from mpisim.search.budget import budget_of
from mpisim.search.job import job_of, steps_of
from mpisim.search.records import Status


def tables(search: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An experiment with a job of 1 million steps, and what to search."""
    vary = {
        "cluster.preset": ["dgx-h100", "dgx-a100", "dgx-h200"],
        "plan.tp": [1, 2],
        "plan.micro_batch": [1, 2],
    }
    return {
        "model": {"preset": "llama-3-8b", "layers": 8, "seq_len": 2048},
        "plan": {"global_batch": 32, "zero": 1},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        # Failures often enough for a few hundred runs to tell their mean.
        "job": {"tokens": 65536 * 10**6, "failure_rate": 300, "runs": 400},
        "search": {"top": 2, "vary": vary, **search},
        **more,
    }


OWNED = {"prices": {"contract": "owned", "kwh": 0.2}}
SPARES = {
    "job": {"tokens": "50B", "spares": 1, "repair": "1 min", "failure_rate": 300, "runs": 400}
}
# A node that leaves while another is in repair is waited for.
TOO_FEW = {"job": {"tokens": "50B", "spares": 1, "repair": "2 h", "failure_rate": 300, "runs": 400}}

CASES = [
    ({"objectives": ["job_usd"]}, {}),
    ({"objectives": ["job_usd"]}, OWNED),
    ({"objectives": ["job_time", "job_usd"]}, SPARES),
    ({"objectives": ["job_time", "job_usd"]}, TOO_FEW),
    ({"objectives": ["job_usd"], "max_job_time": "2.8 days"}, {}),
    ({"objectives": ["step_time"], "max_job_usd": 2100, "each": "cluster.preset"}, {}),
    ({"objectives": ["job_usd"], "each": "cluster.preset"}, {}),
]


def brute_force(space: SearchSpace) -> dict[int, tuple[float, float, float]]:
    """Candidates that are valid, fit and keep the limits → s of the step, s and $ of the job."""
    found = {}
    for number in range(len(space)):
        try:
            experiment = experiment_of(space.candidate_tables(number), space.source)
            hardware = hardware_of(experiment)
            memory = verdict(experiment, hardware)
        except InputError:
            continue
        if memory.headroom < 0:
            continue
        outcome = experiment_outcome(experiment, MPI.COMM_SELF, changes=False)
        assert outcome.usd is not None
        limits = space.choice.job_limits
        if outcome.time.mean > limits.get("job_time", np.inf):
            continue
        if outcome.usd.mean <= limits.get("job_usd", np.inf):
            found[number] = outcome.step.seconds, outcome.time.mean, outcome.usd.mean
    return found


@pytest.mark.parametrize(("search", "more"), CASES)
def test_the_best_are_those_of_simulated_jobs(search: dict[str, Any], more: dict[str, Any]) -> None:
    """What a search says of jobs is what Monte Carlo says of all of them, within 0.5 %."""
    space = read_search(tables(search, **more), "x")
    all_of_them = brute_force(space)
    records = explore(space, MPI.COMM_SELF)
    found = answer(space, records, MPI.COMM_SELF)
    at = {"step_time": 0, "job_time": 1, "job_usd": 2}[space.choice.objectives[0]]
    ranked = sorted(all_of_them.values(), key=lambda each: each[at])
    assert len(found.best) == min(2, len(ranked))
    for each, by_force in zip(found.best, ranked, strict=False):
        own = each.step_time, each.job["seconds"], each.job["usd"]
        assert own[at] == pytest.approx(by_force[at], rel=5e-3)
        if "job_usd" in space.choice.objectives or "job_usd" in space.choice.job_limits:
            assert own == pytest.approx(all_of_them[each.number], rel=5e-3)
    if space.choice.each is None:
        assert not found.of_each
        return
    groups = space.groups(np.array(list(all_of_them)))
    least = {
        group: min(all_of_them[n][at] for n in np.array(list(all_of_them))[groups == group])
        for group in set(groups.tolist())
    }
    assert len(found.of_each) == len(least)
    for each in found.of_each:
        (group,) = space.groups(np.array([each.number])).tolist()
        own = each.step_time, each.job["seconds"], each.job["usd"]
        assert own[at] == pytest.approx(least[group], rel=5e-3)


def test_no_job_is_shorter_than_its_bound() -> None:
    """A job takes no less, and costs no less, than the least time of its steps says."""
    space = read_search(tables({"objectives": ["job_usd"]}, **OWNED), "x")
    records = explore(space, MPI.COMM_SELF)
    done = records.numbers(Status.SIMULATED)
    assert len(done)
    for number in done.tolist():
        experiment = experiment_of(space.candidate_tables(number), "x")
        step = step_time(experiment, MPI.COMM_SELF)
        budget = budget_of(space.choice, experiment, hardware_of(experiment))
        steps = steps_of(experiment, step.tokens)
        assert steps == 10**6 == records.job_steps[number]
        least = steps * records.bound[number] * 1e-12
        job = job_of(experiment, step.picoseconds * 1e-12, step.tokens, budget, budget.least_watts)
        assert least <= job.seconds
        an_hour = budget.usd_hour + budget.usd_joule * budget.least_watts * 3600
        assert 0 < least / 3600 * an_hour <= job.usd


def test_what_the_answer_says() -> None:
    search = {"objectives": ["job_usd"], "max_job_time": "4 days", "each": "cluster.preset"}
    space = read_search(tables(search), "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    text = "\n".join(answer_lines(space, found))
    assert "The best by dollars of the whole job" in text
    assert "done in" in text
    assert "Of dgx-a100 none is valid, fits and keeps the limits." in text
    assert "mpisim job x" in text
    # 2.9 days of 4, with an error of the step of 16 %: none is near the limit.
    assert "one standard deviation longer" not in text
    near = 1.02 * max(each.job["seconds"] for each in found.best) / 86400
    space = read_search(tables(search | {"max_job_time": f"{near} days"}), "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    text = " ".join(" ".join(answer_lines(space, found)).split())
    assert "Beyond max_job_time if the step is one standard deviation longer: 1, 2." in text


def test_a_deadline_that_none_meets_is_said_with_the_nearest() -> None:
    space = read_search(tables({"objectives": ["job_usd"], "max_job_time": "2 h"}), "x")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    text = " ".join(" ".join(answer_lines(space, found)).split())
    assert not found.best
    assert "beyond max_job_time = 2 h" in text or "beyond max_job_time = 120 min" in text
    assert "the nearest has at least" in text


@pytest.mark.parametrize(
    ("search", "more", "said"),
    [
        ({"objectives": ["job_usd"]}, {"job": None}, "there is no table [job]"),
        ({"max_job_time": "2 days"}, {"job": None}, "--set job.tokens=1T"),
        ({"max_job_time": "30"}, {}, "max_job_time is '30'; it must be a number"),
        ({"max_job_time": 30}, {}, "max_job_time is '30'; it must be a number"),
        ({"max_job_time": "0 days"}, {}, "max_job_time is '0 days'; it must be above 0"),
        ({"max_job_usd": "5X"}, {}, "key 'search.max_job_usd' is '5X'"),
        ({"each": "plan.pp"}, {}, "key 'search.each' is 'plan.pp', which is not varied"),
        ({"objectives": ["cost"]}, {}, "did you mean 'usd_per_token' or 'job_usd' or 'price'"),
        ({"objectives": ["Throughput"]}, {}, "did you mean 'tokens_per_second'"),
        ({"objectives": ["prize"]}, {}, "did you mean 'price'"),
        ({"vary": {"tp": [1]}}, {}, "did you mean 'plan.tp' or 'plan.overlap.tp'"),
    ],
)
def test_what_is_refused(search: dict[str, Any], more: dict[str, Any], said: str) -> None:
    given = {key: value for key, value in tables(search, **more).items() if value is not None}
    with pytest.raises(InputError) as error:
        read_search(given, "x")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def begun(*words: str) -> SearchSpace:
    """The space that options of ``mpisim search llama3-8b-8-h100`` ask for."""
    import argparse

    from mpisim.cli.search import add_parser

    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    space, _ = _begun(parser.parse_args(["search", "llama3-8b-8-h100", *words]))
    return space


def test_options_say_what_the_table_says() -> None:
    space = begun(
        *("--vary", "cluster.nodes=1,2", "--each", "cluster.nodes", "--objective", "job_usd"),
        *("--limit", "job_time=30 days", "--limit", "max_power=2 MW", "--limit", "job_usd=5M"),
        *("--set", "job.tokens=1T", "--set", "search.top=3"),
    )
    choice = space.choice
    assert choice.job_limits == {"job_time": 30 * 86400, "job_usd": 5e6}
    assert choice.limits == {"power": 2e6}
    assert (choice.each, choice.top) == ("cluster.nodes", 3)
    # What the tables have from the command line goes into the command that runs a candidate.
    assert space.changes == ("job.tokens=1T",)


def test_auto_goes_with_other_keys() -> None:
    alone = begun("--vary", "auto")
    both = begun("--vary", "auto", "--vary", "cluster.nodes=1,2", "--vary", "plan.tp=2")
    assert set(both.keys) == {*alone.keys, "cluster.nodes"}
    assert both.values[both.keys.index("plan.tp")] == (2,)
    assert begun("--vary", "plan.tp=2", "--vary", "auto").keys == alone.keys


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("deadline=30 days", "did you mean 'job_time'?); allowed: memory, step_time, gpus"),
        ("powr=2 MW", "did you mean 'power'?"),
        ("power", "not of the form NAME=MOST"),
        ("power=2 apples", "it must be a power above 0"),
    ],
)
def test_limits_that_are_none(limit: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "llama3-8b-8-h100", "--vary", "plan.tp=1,2", "--limit", limit]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_stores_keep_jobs_and_those_of_before_are_read(tmp_path: Path) -> None:
    space = read_search(tables({"objectives": ["job_usd"], "each": "plan.tp"}), "")
    records = explore(space, MPI.COMM_SELF)
    found = answer(space, records, MPI.COMM_SELF)
    write_store(tmp_path / "a.h5", space, records, found.as_json())
    kept, again, said = read_store(tmp_path / "a.h5")
    assert kept.choice == space.choice
    assert said is not None
    assert [each["job"] for each in said["of_each"]] == [each.job for each in found.of_each]
    for name, column in records.columns.items():
        assert np.array_equal(column, getattr(again, name)), name
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.attrs["format_version"] = 2
        for name in ("job_steps", "job_time", "job_usd"):
            del file["candidates"][name]
        for name, key in (
            ("space", "absolute_source"),
            ("space", "changes"),
            ("answer", "front_size"),
        ):
            with_all = read_json_text(file, name)
            del with_all[key]
            del file[name]
            write_json_text(file, name, with_all)
    _, again, said = read_store(tmp_path / "a.h5")
    assert np.array_equal(again.step, records.step)
    assert not again.job_time.any()
    assert said is not None
    assert Answer.of_json(said).front_size == len(said["front"])
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.attrs["format_version"] = 4
    with pytest.raises(InputError, match="the search kept in it is damaged: 'absolute_source'"):
        read_store(tmp_path / "a.h5")
