"""Simulated runs of jobs: against closed forms and a simulation from event to event."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import CLUSTER, STEP

from mpisim.experiment.job_choice import JobChoice
from mpisim.job import job_outcome
from mpisim.job.closed_form import daly, expected_time, young
from mpisim.job.interval import best_interval
from mpisim.job.model import JobModel
from mpisim.job.monte_carlo import COUNTS, EXACT, PARTS, mean_waiting, simulate_runs
from mpisim.job.text import as_json

from .reference.job import numbers, time_of_run

pytestmark = pytest.mark.mpi_calls

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
