"""Jobs: against closed forms, a plain simulation, and published figures."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.experiment import load
from mpisim.experiment.job_choice import JobChoice, seconds
from mpisim.experiment.load import read
from mpisim.experiment.model_counts import parameters
from mpisim.experiment.serialization import deserialize, serialize
from mpisim.job import Costs, JobCluster, JobOutcome, Step, job_outcome
from mpisim.job.checkpoint import Checkpoint, checkpoint_of, checkpoint_times
from mpisim.job.closed_form import daly, expected_time, young
from mpisim.job.fleets import find_fleet, fleet_names
from mpisim.job.inputs import job_model
from mpisim.job.interval import best_interval
from mpisim.job.model import JobModel
from mpisim.job.monte_carlo import COUNTS, EXACT, PARTS, mean_waiting, simulate_runs
from mpisim.job.outcome import Spread
from mpisim.job.storage import find_storage, storage_names
from mpisim.job.store import read_job, write_job
from mpisim.job.text import JobReport, as_json
from mpisim.prediction.hardware import hardware_of
from mpisim.validate.jobs import published_jobs, render
from mpisim.workloads import lay_out

from .reference.job import numbers, time_of_run

DAY = 86400.0

models = st.builds(
    JobModel,
    steps=st.integers(1, 400),
    step=st.floats(0.5, 20),
    interval=st.integers(5, 60),
    stall=st.floats(0, 20),
    persist=st.just(0.0),
    rate=st.floats(0, 1e-3),
    shape=st.sampled_from((0.7, 1.0, 1.5)),
    planned_rate=st.sampled_from((0.0, 1e-4)),
    detection=st.floats(0, 300),
    restart=st.floats(0, 300),
    rewarmup=st.floats(0, 50),
    node_share=st.sampled_from((0.0, 0.5, 1.0)),
    spares=st.integers(-1, 3),
    swap=st.floats(0, 60),
    repair=st.floats(0, 20_000),
    maintenance=st.floats(0, 600),
)

with_persist = st.builds(
    lambda model, share: replace(
        model,
        interval=min(model.interval, model.steps),
        persist=share * min(model.interval, model.steps) * model.step,
    ),
    models,
    st.floats(0, 1),
)


# --- closed forms ---------------------------------------------------------------------------------

PLAIN = JobModel(steps=3000, step=10.0, interval=50, stall=40.0, rate=1 / 6000)


@pytest.mark.parametrize(
    "model",
    [
        PLAIN,
        replace(PLAIN, detection=900.0),
        replace(PLAIN, restart=900.0),
        replace(PLAIN, detection=300.0, restart=600.0, rewarmup=100.0),
        replace(PLAIN, steps=3030, detection=300.0),
        replace(PLAIN, interval=400, rate=1 / 3000, restart=500.0),
        replace(PLAIN, detection=200.0, node_share=1.0, swap=150.0),
    ],
)
def test_the_mean_is_that_of_renewal_theory(model: JobModel) -> None:
    time = simulate_runs([model], 3000, seed=7).time[0]
    error = time.std() / math.sqrt(len(time))
    assert time.mean() == pytest.approx(expected_time(model), abs=4 * error)


def test_the_formula_of_a_fixed_cost() -> None:
    # E = n (1/λ + R) (e^{λ(τ+δ)} − 1), where nothing fails while the job is down.
    model = replace(PLAIN, detection=700.0)
    rate, cycle = model.rate, 50 * 10.0 + 40.0
    assert expected_time(model) == pytest.approx(
        60 * (1 / rate + 700.0) * (math.exp(rate * cycle) - 1), rel=1e-12
    )


def test_intervals_by_formula() -> None:
    # Daly (2006): for δ much less than M both are √(2δM); his is then less by δ.
    assert young(5.0, 1e6) == pytest.approx(3162.28, rel=1e-5)
    assert daly(5.0, 1e6) == pytest.approx(young(5.0, 1e6) - 5, rel=1e-3)
    assert daly(300.0, 100.0) == 100.0
    best = min(
        (expected_time(replace(PLAIN, interval=each, restart=600.0)), each)
        for each in range(1, 300)
    )
    at = round(daly(PLAIN.stall, 1 / PLAIN.rate) / PLAIN.step)
    assert expected_time(replace(PLAIN, interval=at, restart=600.0)) < 1.001 * best[0]


@pytest.mark.parametrize("rate", [1 / 2000, 1 / 20_000])
def test_the_best_interval_by_simulation_is_that_of_the_expectation(rate: float) -> None:
    model = replace(PLAIN, rate=rate, detection=300.0, restart=300.0)
    found = best_interval(model)
    times = {each: expected_time(replace(model, interval=each)) for each in range(1, 2000)}
    least = min(times.values())
    assert times[found.best] < 1.003 * least
    assert found.low <= found.best <= found.high
    assert found.young == young(model.stall, 1 / rate)


def test_without_failures_only_the_last_checkpoint_is_needed() -> None:
    found = best_interval(replace(PLAIN, rate=0.0))
    assert found.best == found.low == found.high == 3000


# --- runs -----------------------------------------------------------------------------------------


@given(model=with_persist, seed=st.integers(0, 2**62))
@settings(max_examples=80, deadline=None)
def test_runs_are_those_of_a_clock_that_goes_from_event_to_event(
    model: JobModel, seed: int
) -> None:
    if expected_time(model) > 20 * model.undisturbed:
        return
    runs = simulate_runs([model], 4, seed)
    for run in range(4):
        time, interrupted = time_of_run(model, numbers(seed, run, 2000))
        # A run that ends on the edge of an interruption may round to either side.
        if interrupted == runs.counts[0, run, :2].sum():
            assert runs.time[0, run] == pytest.approx(time, rel=1e-9, abs=1e-6)
        else:
            assert abs(interrupted - runs.counts[0, run, :2].sum()) <= 1


@given(model=with_persist)
@settings(max_examples=60, deadline=None)
def test_parts_add_up_and_all_steps_are_made(model: JobModel) -> None:
    if expected_time(model) > 20 * model.undisturbed:
        return
    runs = simulate_runs([model], 20)
    assert (runs.parts >= -1e-6).all()
    assert runs.parts[0, :, 0] == pytest.approx(model.ideal)
    assert (runs.time[0] >= model.ideal - 1e-6).all()
    if not model.rate and not model.planned_rate:
        assert runs.time[0] == pytest.approx(model.undisturbed)
        assert runs.counts[0, :, :3].sum() == 0
        assert (runs.counts[0, :, 3] == model.checkpoints).all()


@given(model=with_persist, longer=st.floats(0, 1000))
@settings(max_examples=40, deadline=None)
def test_what_lasts_longer_makes_no_run_shorter(model: JobModel, longer: float) -> None:
    if expected_time(model) > 20 * model.undisturbed:
        return
    worse = replace(model, detection=model.detection + longer)
    found = simulate_runs([model, worse], 20).time
    assert (found[1] >= found[0] - 1e-6).all()


@pytest.mark.parametrize("factor", [1.2, 2.0, 4.0])
@pytest.mark.parametrize("shape", [0.7, 1.0, 1.5])
def test_more_failures_take_longer(factor: float, shape: float) -> None:
    model = replace(PLAIN, rate=1 / 20_000, shape=shape, detection=300.0, restart=600.0)
    found = simulate_runs([model, replace(model, rate=factor * model.rate)], 400)
    base, worse = found.time
    assert worse.mean() > base.mean()
    assert found.counts[1, :, 0].sum() > found.counts[0, :, 0].sum()


@pytest.mark.parametrize("shape", [0.6, 1.0, 2.0])
def test_failures_come_as_often_as_they_should(shape: float) -> None:
    model = JobModel(40_000, 1.0, 20, 0.0, rate=1 / 1000, shape=shape)
    runs = simulate_runs([model], 200)
    rate = runs.counts[0, :, 0].sum() / runs.time.sum()
    assert rate == pytest.approx(1 / 1000, rel=0.03)


def test_spares_are_waited_for_where_there_are_too_few() -> None:
    model = replace(PLAIN, detection=10.0, node_share=1.0, repair=5000.0, swap=5.0, spares=0)
    waiting = PARTS.index("waiting for nodes")
    none, many, always = (
        simulate_runs([replace(model, spares=spares)], 200) for spares in (0, 1000, -1)
    )
    nodes = none.counts[0, :, COUNTS.index("nodes")]
    assert none.parts[0, :, waiting] == pytest.approx(nodes * 5005.0)
    assert (many.time == always.time).all()
    few = simulate_runs([replace(model, spares=each) for each in (1, 2, 4)], 200).time.mean(axis=1)
    assert none.time.mean() > few[0] > few[1] > few[2] > always.time.mean()


def test_planned_interruptions_lose_less_than_a_step_each() -> None:
    model = replace(PLAIN, rate=0.0, planned_rate=1 / 5000, restart=100.0, maintenance=50.0)
    runs = simulate_runs([model], 50)
    lost = runs.parts[0, :, PARTS.index("lost work")]
    assert (lost <= runs.counts[0, :, 1] * model.step).all()
    assert lost.sum() > 0
    assert (runs.parts[0, :, PARTS.index("detection")] == 0).all()


def test_a_run_is_the_same_wherever_it_is_simulated() -> None:
    model = replace(PLAIN, detection=300.0, restart=600.0, planned_rate=1e-5)
    whole = simulate_runs([model], 1100, seed=3)
    begin, end = simulate_runs([model], 1000, seed=3), simulate_runs([model], 100, 3, first=1000)
    assert (np.concatenate([begin.parts, end.parts], axis=1) == whole.parts).all()
    # Another job beside it changes nothing.
    beside = simulate_runs([replace(model, rate=4e-4), model], 1100, seed=3)
    assert (beside.parts[1] == whole.parts[0]).all()
    assert (simulate_runs([model], 10, seed=4).time != whole.time[:, :10]).all()


@pytest.mark.mpi
def test_equal_on_any_number_of_processes(comm: Any) -> None:
    model = replace(PLAIN, detection=300.0, restart=600.0)
    alone = simulate_runs([model], 101)
    shared = simulate_runs([model], 101, comm=comm)
    assert (shared.parts == alone.parts).all()
    assert (shared.counts == alone.counts).all()
    found = job_outcome(STEP, CLUSTER, JobChoice(steps=1000, runs=50), comm=comm)
    assert as_json(found) == as_json(job_outcome(STEP, CLUSTER, JobChoice(steps=1000, runs=50)))


def test_errors_widen_what_runs_show() -> None:
    model = replace(PLAIN, detection=300.0, restart=600.0)
    plain, same = simulate_runs([model], 300), simulate_runs([model], 300, errors=EXACT)
    assert (plain.parts == same.parts).all()
    wide = simulate_runs([model], 300, errors=(0.1, 0.5, 0.5, 0.3))
    assert wide.time.std() > 2 * plain.time.std()
    assert np.median(wide.time) == pytest.approx(np.median(plain.time), rel=0.03)


# --- tables ---------------------------------------------------------------------------------------


def test_fleets_have_the_rates_that_were_published() -> None:
    _, llama = find_fleet("llama3")
    assert sum(each.count for each in llama.causes.values()) == 419
    assert 419 + llama.planned == 466
    gpu = ("faulty GPU", "HBM3", "SRAM", "system processor", "silent", "thermal")
    of_gpus = [n for name, n in llama.shares.items() if any(each in name for each in gpu)]
    # "GPU issues are the largest category, accounting for 58.7 %": without silent corruption or
    # with, by the paper's own table, 62.5 to 64.0.
    assert 0.58 < sum(of_gpus) < 0.65
    # arXiv:2410.21680 projects 1.8 h for 16,384 GPUs and 0.23 h for 131,072 from RSC-1's rate.
    _, rsc = find_fleet("meta-rsc-1")
    assert 24 / (rsc.per_gpu_day * 16_384) == pytest.approx(1.8, rel=0.03)
    assert 24 / (rsc.per_gpu_day * 131_072) == pytest.approx(0.23, rel=0.05)
    _, second = find_fleet("meta-rsc-2")
    assert rsc.per_gpu_day / second.per_gpu_day == pytest.approx(6.50 / 2.34, rel=1e-3)
    for name in fleet_names():
        _, each = find_fleet(name)
        assert each.rate_error > 0
        assert each.source
    assert find_fleet("none")[1].per_gpu_day == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('title = "x"\nsource = "y"', "needs either rate, or all of gpus, days and interruptions"),
        ('title = "x"\nsource = "y"\nrate = 1\nplanned = 3', "planned is given"),
        (
            'title = "x"\nsource = "y"\ngpus = 8\ndays = 1\ninterruptions = 3\n'
            "[own.causes.a]\ncount = 2\nnode = true",
            "causes add up to 2, but interruptions is 3",
        ),
    ],
)
def test_fleets_that_contradict_themselves_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"[own]\n{text}\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        find_fleet(str(file))


def test_storage_takes_the_slower_of_a_node_and_all() -> None:
    for name in storage_names():
        _, storage = find_storage(name)
        assert storage.seconds("write", 1e9, 1e12) > 0
        assert storage.error("read") > 0
    _, tectonic = find_storage("tectonic")
    assert tectonic.seconds("write", 1e9, 4e12) == 2.0
    size = Checkpoint(total=10**12, gpu=10**9, load=2 * 10**9, load_total=2 * 10**12)
    keys = {"gpus_per_node": 8, "host_bandwidth": 50e9, "overhead": 0.5}
    sync = checkpoint_times(size, tectonic, asynchronous=False, **keys)  # type: ignore[arg-type]
    after = checkpoint_times(size, tectonic, asynchronous=True, **keys)  # type: ignore[arg-type]
    assert (sync.stall, sync.persist, sync.load) == (0.5, 0.0, 1.0)
    assert (after.stall, after.persist, after.load) == (0.52, 0.5, 1.0)


def size_of(name: str) -> tuple[Checkpoint, int]:
    _, experiment = load(name)
    return checkpoint_of(lay_out(experiment, hardware_of(experiment).gpus)), parameters(
        experiment.model  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("bloom-176b-384-a100", 14),  # bf16 weights, fp32 weights and two moments
        ("llama3-405b-16384-h100", 12),  # FSDP: the fp32 weight is the master copy
        ("megatron-gpt3-175b-1024-a100", 14),
        ("deepseek-v3-2048-h800", 10),  # two moments in bf16; both directions hold all of it
        ("qwen3-30b-a3b-16-h100", 14),
    ],
)
def test_a_checkpoint_has_every_number_once(name: str, each: int) -> None:
    found, count = size_of(name)
    assert found.total == pytest.approx(each * count, rel=0.03)
    assert found.gpu * 8 <= found.total


def test_checkpoints_are_as_large_as_was_published() -> None:
    # "each checkpoint with fp32 optim states and bf16+fp32 weights is 2.3TB": 2^40 bytes.
    found, _ = size_of("bloom-176b-384-a100")
    assert found.total / 2**40 == pytest.approx(2.3, rel=0.02)
    # "ranging from 1 MB to 4 GB per GPU" (arXiv:2407.21783, section 3.3.1)
    found, _ = size_of("llama3-405b-16384-h100")
    assert 1e6 < found.gpu < 4e9


# --- outcomes -------------------------------------------------------------------------------------

STEP = Step(10.0, 0.05, 1_000_000)
CLUSTER = JobCluster(1024, 8, Checkpoint(10**12, 10**9, 2 * 10**9, 2 * 10**12), 50e9)


def outcome(**keys: Any) -> JobOutcome:
    keys.setdefault("runs", 200)
    return job_outcome(STEP, CLUSTER, JobChoice(**{"tokens": 5e10, **keys}), Costs(1e6, 2e5))


def test_an_outcome_is_made_of_its_runs() -> None:
    found = outcome()
    assert found.model.steps == 50_000
    assert found.model.rate == pytest.approx(find_fleet("llama3")[1].per_gpu_day * 1024 / DAY)
    assert sum(found.parts.values()) == pytest.approx(found.time.mean)
    assert found.time.p5 < found.time.p50 < found.time.p95
    assert found.time_with_errors.p95 > found.time.p95
    assert found.goodput.mean == pytest.approx(found.model.ideal / found.time.mean, rel=1e-3)
    assert found.gpu_hours.mean == pytest.approx(found.time.mean * 1024 / 3600)
    assert found.energy is not None
    assert 2e5 < found.energy.mean / found.time.mean < 1e6
    assert found.usd is None
    assert sum(found.energy_parts.values()) == pytest.approx(found.energy.mean)
    rates = {each.name: each.relative for each in found.changes}
    assert rates["failures half as often"] < 0 < rates["failures twice as often"]
    assert rates["restart in half the time"] < 0


def test_without_failures_a_job_takes_its_steps_and_a_checkpoint() -> None:
    found = outcome(failures="none")
    assert found.time.p5 == found.time.p95 == pytest.approx(found.model.undisturbed)
    assert found.interruptions.mean == 0
    assert found.changes == ()


def test_a_fleet_that_is_not_named_has_a_wider_error() -> None:
    rates = [find_fleet(name)[1].per_gpu_day for name in fleet_names()]
    spread = float(np.std(np.log(rates), ddof=1))
    assert outcome(failures="llama3").errors["rate"] == pytest.approx(419**-0.5)
    assert outcome().errors["rate"] == pytest.approx(math.hypot(spread, 419**-0.5))
    assert outcome(failure_rate=0.5).errors["rate"] == 0


def test_nothing_more_is_written_than_the_last_checkpoint() -> None:
    found = outcome(failures="none")
    assert found.model.interval == found.model.steps


def test_runs_are_as_many_as_make_the_p95_certain() -> None:
    found = job_outcome(STEP, CLUSTER, JobChoice(tokens=5e10))
    assert found.time.error <= 1e-3 * found.time.p95
    again = Spread.of(simulate_runs([found.model], 4000, seed=99).time[0])
    assert again.p95 == pytest.approx(
        found.time.p95, abs=5 * math.hypot(found.time.error, again.error)
    )


def test_keys_act_where_they_should() -> None:
    model, _ = job_model(
        STEP,
        CLUSTER,
        JobChoice(
            steps=777,
            failure_rate=2.0,
            planned=60,
            detection="2 min",
            restart="1 h",
            rewarmup_steps=5,
            rewarmup_slowdown=3.0,
            spares=4,
            swap="30 s",
            repair="2 days",
            maintenance="0 s",
            checkpoint="sync",
            checkpoint_interval="10 min",
            storage="tectonic",
        ),
    )
    assert model.steps == 777
    assert model.rate == pytest.approx(2.0 / 1000 * 1024 / DAY)
    assert model.planned_rate == pytest.approx(2 / DAY)
    assert (model.detection, model.maintenance, model.swap) == (120.0, 0.0, 30.0)
    assert model.restart == pytest.approx(3601.0)  # loading included
    assert model.rewarmup == 100.0
    assert (model.spares, model.repair) == (4, 2 * DAY)
    assert (model.interval, model.persist) == (60, 0.0)
    assert model.stall == pytest.approx(0.5)


def test_checkpoints_wait_for_each_other() -> None:
    slow = replace(CLUSTER, checkpoint=Checkpoint(10**15, 10**12, 10**12, 10**15))
    found = job_outcome(
        STEP,
        slow,
        JobChoice(steps=20_000, checkpoint_interval="1 min", storage="tectonic", runs=20),
        changes=False,
    )
    assert found.model.interval * STEP.seconds >= found.model.persist == 500.0
    assert any("one after the other" in line for line in found.assumptions)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "neither of tokens and steps given"),
        ({"tokens": 1e9, "steps": 3}, "both of tokens and steps given"),
        ({"steps": 3, "detection": "5"}, r"detection is '5'; it must be a number from 0 to below"),
        ({"steps": 3, "restart": "5 mins"}, r"restart is '5 mins' \(did you mean 'min'\?\)"),
        ({"steps": 3, "repair": "1e30 days", "spares": 1}, "'1e30 days'; .* below 1e\\+12"),
        ({"steps": 3, "checkpoint_interval": "0 s"}, "checkpoint_interval is '0 s'"),
        ({"steps": 3, "swap": "-5 min"}, "swap is '-5 min'"),
        ({"steps": 3, "failures": "none", "failure_rate": 1.0}, "failure_rate is given"),
        ({"steps": 3, "repair": "1 h"}, "repair is given, but spares is not"),
    ],
)
def test_choices_that_cannot_be_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        JobChoice(**keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"failures": "lama3"}, r"unknown fleet 'lama3' \(did you mean 'llama3'\?\)"),
        ({"storage": "tektonic"}, r"unknown storage 'tektonic' \(did you mean 'tectonic'\?\)"),
        (
            {"failure_rate": 1e4, "checkpoint_interval": "10 h"},
            "the job would not come to an end",
        ),
    ],
)
def test_jobs_that_cannot_be_done_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        outcome(**keys)


def test_times_have_units() -> None:
    assert seconds("5min", "x") == seconds(" 5  min ", "x") == 300
    assert [seconds(each, "x") for each in ("5 s", "2 min", "1.5 h", "2 days")] == [
        5.0,
        120.0,
        5400.0,
        172800.0,
    ]


# --- experiments, files, the command --------------------------------------------------------------


def test_the_table_is_kept_and_says_nothing_of_the_step() -> None:
    text = (
        '[model]\npreset = "llama-3-8b"\n[plan]\nglobal_batch = 8\n[cluster]\npreset = "dgx-h100"\n'
    )
    plain = read(text, "x.toml")
    with_job = read(text + '[job]\nsteps = 10\nfailures = "none"\n', "x.toml")
    assert plain.job is None
    assert with_job.job == JobChoice(steps=10, failures="none")
    assert with_job.left_to_defaults() == plain.left_to_defaults()
    assert deserialize(serialize(with_job), "x").job == with_job.job
    with pytest.raises(InputError, match=r"unknown key 'stps' in \[job\] \(did you mean 'steps'"):
        read(text + "[job]\nstps = 10\n", "x.toml")


def test_energy_of_what_waits_by_hand() -> None:
    """Each part draws what the cluster does in it, spares as idle nodes all the time."""
    costs = Costs(
        1000.0, 100.0, watts_error=0.1, idle_error=0.3,
        standing_watts=300.0, standing_error=0.2, hung_watts=600.0, hung_error=0.4,
    )  # fmt: skip
    choice = JobChoice(tokens=5e10, runs=50, spares=4, repair="1 h")
    found = job_outcome(STEP, CLUSTER, choice, costs, changes=False)
    watts = {"checkpoints": 300.0, "detection": 600.0}
    watts |= dict.fromkeys(("waiting for nodes", "restart", "maintenance"), 100.0)
    joules = {name: watts.get(name, 1000.0) * mean for name, mean in found.parts.items()}
    joules["spares"] = 4 * 8 / 1024 * 100.0 * found.time.mean
    assert found.energy_parts == pytest.approx(joules)
    off = {"checkpoints": 0.2, "detection": 0.4}
    off |= dict.fromkeys(("waiting for nodes", "restart", "maintenance", "spares"), 0.3)
    errors = sum(off.get(name, 0.1) * each for name, each in joules.items())
    assert found.energy_error == pytest.approx(errors / sum(joules.values()))
    lines = JobReport("A job", as_json(found)).text(details=True)
    assert "Where the energy goes" in lines
    assert re.search(r"\n  spares +\S+ .*kWh", lines)


def test_reports_are_short_and_files_say_the_same(tmp_path: Path) -> None:
    found = outcome(spares=2)
    report = JobReport("A job", as_json(found))
    short, long = report.text(), report.text(details=True)
    assert len(short.splitlines()) <= 30
    assert max(map(len, short.splitlines())) <= 110
    assert "What this rests on" in long
    assert "faulty GPU" in long
    file = tmp_path / "job.h5"
    write_job(file, found, "A job", "text")
    kept = read_job(file)
    assert kept.text(details=True) == long
    import h5py

    with h5py.File(file) as stored:
        total = sum(stored["runs"][name.replace(" ", "_")][:] for name in PARTS)
    assert total == pytest.approx(found.runs.time[0])
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match=r"job\.h5"):
        read_job(file)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, figures = tmp_path / "job.h5", tmp_path / "job.json"
    words = ["job", "llama3-8b-8-h100", "--set", "job.tokens=1e12", "--runs", "50"]
    assert main([*words, "-o", str(file), "--json", str(figures)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("done in ")
    assert len(out.splitlines()) <= 30
    said = json.loads(figures.read_text())
    assert said["runs"] == 50
    assert said["title"] == "Llama 3 8B on 8 H100"
    assert said["energy"]["p95"] >= said["energy"]["p50"] > 0
    assert main(["report", str(file)]) == 0
    assert capsys.readouterr().out == out
    assert main(["report", str(file), "--details"]) == 0
    assert "What this rests on" in capsys.readouterr().out
    assert main([*words, "-o", str(file)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 2
    assert main(["job", "llama3-8b-8-h100"]) == 2
    assert "has no table [job]; give tokens or steps" in capsys.readouterr().err
    assert main(["run", "llama3-8b-8-h100", "--set", "job.steps=5"]) == 0


def test_llama_3_is_as_published() -> None:
    from mpi4py import MPI

    out = render(published_jobs(["llama3"], MPI.COMM_SELF, runs=100))
    assert "(419 ± 29)" in out
    (goodput,) = (line for line in out.splitlines() if "goodput" in line and "≥ 90 %" in line)
    assert "holds" in goodput
    assert main(["validate", "job", "nothing"]) == 2


@pytest.mark.parametrize(("spares", "repair"), [(0, 3600.0), (1, 40_000.0), (4, 200_000.0)])
def test_the_mean_wait_for_nodes_is_what_other_runs_wait(spares: int, repair: float) -> None:
    """By other random numbers, and of a part of a long job as of all of it."""
    model = replace(PLAIN, rate=1 / 20_000, node_share=0.5, swap=60.0, spares=spares, repair=repair)
    model = replace(model, steps=round(60_000_000 / model.step))  # 3,000 failures
    runs = simulate_runs([model], 64, seed=3)
    waited = runs.parts[0, :, PARTS.index("waiting for nodes")]
    waited = waited - runs.counts[0, :, COUNTS.index("nodes")] * model.swap
    error = waited.std() / 8
    assert mean_waiting(model, 64, seed=4) == pytest.approx(waited.mean(), abs=6 * error)
    assert mean_waiting(replace(model, spares=-1)) == 0
