"""Searches beside all candidates simulated: the same fronts, and bounds that no step undercuts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI
from plans import plan_tables
from small_searches import SMALL, costly_space_of, space_of, toml_lines

from mpisim import simulate
from mpisim.base.errors import InputError
from mpisim.base.toml import toml_value
from mpisim.cost.step import cost_of_cluster
from mpisim.experiment import read
from mpisim.experiment.load import experiment_of
from mpisim.prediction.extrapolation import (
    MAX_EXTRAPOLATION_ERROR,
    least_step_time,
    step_time,
)
from mpisim.prediction.hardware import hardware_of
from mpisim.prediction.memory_fit import verdict
from mpisim.prediction.network import NetworkCache
from mpisim.schedules import SCHEDULES
from mpisim.search import answer, explore, read_search
from mpisim.search.answer import answer_lines
from mpisim.search.bound import StepBounds
from mpisim.search.explore import undecided
from mpisim.search.pareto import dominated, front
from mpisim.search.records import Records, Status, least_values

pytestmark = pytest.mark.two_processes

MODELS = (
    {"preset": "llama-3-8b", "layers": 8, "seq_len": 2048},
    {"preset": "gpt3-175b", "layers": 8},
    {"preset": "qwen3-30b-a3b", "layers": 8, "seq_len": 1024},
    {"preset": "resnet50"},
)


def tables(rng: random.Random) -> dict[str, Any]:
    """Tables of a random experiment; not all go together."""
    model = rng.choice(MODELS)
    plan: dict[str, Any] = {"global_batch": rng.choice([8, 16, 32])}
    if model["preset"] == "resnet50":
        plan |= {"global_batch": 512, "micro_batch": 8}
    else:
        plan |= {
            "tp": rng.choice([1, 2, 4]),
            "pp": rng.choice([1, 2, 4, 8]),
            "ep": rng.choice([1, 1, 2]),
            "cp": rng.choice([1, 1, 2, 4]),
            "cp_style": rng.choice(["ring", "all-gather", "pytorch", "all-to-all"]),
            "micro_batch": rng.choice([1, 2]),
            "recompute": rng.choice(["none", "selective", "full"]),
            "zero": rng.choice([0, 1, 2, 3]),
            "schedule": rng.choice(sorted(SCHEDULES)),
            "precision": rng.choice(["bf16", "fp8"]),
            "overlap_tp": rng.random() < 0.2,
            "cuda_graphs": rng.random() < 0.2,
            "flat_shards": rng.random() < 0.2,
            "reshard_after_forward": rng.random() < 0.8,
            "overlap_dp": rng.random() < 0.8,
        }
        plan["fully_shard"] = not plan["flat_shards"]
        plan["vpp"] = 2 if plan["schedule"] == "interleaved" else 1
    found: dict[str, Any] = {
        "model": model,
        **plan_tables(**plan),
        "cluster": {"preset": rng.choice(["dgx-h100", "dgx-a100"]), "nodes": rng.choice([1, 2])},
        "run": {"allow_oom": True},
    }
    if rng.random() < 0.3:
        found["variation"] = {"speeds": {"0": 1.2, "1": 0.8}}
    return found


def test_no_step_is_faster_than_its_bound():
    rng, bounds, checked = random.Random(1), StepBounds(), 0
    tightest, loosest, gained = 0.0, 1.0, 0.0
    while checked < 60:
        found = tables(rng)
        try:
            experiment = experiment_of(found, "x.toml")
            bound = bounds.of(experiment, hardware_of(experiment))
            of_pipeline = bounds.closer(experiment, hardware_of(experiment))
            step = step_time(experiment, MPI.COMM_SELF).picoseconds
        except InputError:
            continue
        assert 0 < bound <= of_pipeline <= step, found
        memory = verdict(experiment)
        closer = least_step_time(experiment, MPI.COMM_SELF, NetworkCache(), memory)
        assert of_pipeline <= closer * (1 + 2 * MAX_EXTRAPOLATION_ERROR), found
        assert closer <= step, found
        gained = max(gained, of_pipeline / bound)
        tightest = max(tightest, bound / step)
        loosest = min(loosest, closer / step)
        checked += 1
    assert tightest > 0.5  # it is of use
    assert loosest > 0.8
    assert gained > 1.02


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
@pytest.mark.parametrize("stages", [[2, 2, 2, 2], [1, 3, 3, 1]])
def test_no_step_in_a_v_is_faster_than_its_bound(schedule: str, stages: list[int]) -> None:
    plan = {"pp": 2, "vpp": 2, "global_batch": 8}
    pipeline = {"schedule": schedule, "stages": stages}
    found = {**SMALL, "plan": {**plan, "pipeline": pipeline}, "cluster": {"preset": "dgx-h100"}}
    found["cluster"]["gpus"] = 2
    experiment = experiment_of(found, "x.toml")
    bound = StepBounds().closer(experiment, hardware_of(experiment))
    step = step_time(experiment, MPI.COMM_SELF).picoseconds
    assert 0.5 * step < bound <= step


def test_random_factors_leave_no_bound():
    found = {**SMALL, "variation": {"kernels": 0.1}}
    experiment = experiment_of(found, "x.toml")
    assert StepBounds().of(experiment, hardware_of(experiment)) == 0


def exhaustive(space: Any) -> Records:
    """What is known of a space when everything is simulated."""
    records = Records.none(len(space))
    choice = space.choice
    for number in range(len(space)):
        try:
            experiment = space.experiment(number)
            gpus = hardware_of(experiment).gpus
            step = step_time(experiment, MPI.COMM_SELF)
        except InputError:
            continue
        headroom = step.memory.headroom / 2**30
        if headroom < choice.memory_headroom or gpus > (choice.max_gpus or 10**9):
            continue
        records.status[number] = Status.SIMULATED
        records.step[number], records.peak[number] = step.picoseconds, step.memory.peak
        records.gpus[number], records.tokens[number] = gpus, step.tokens
    return records


@pytest.mark.parametrize("seed", range(8))
def test_nothing_that_matters_is_left_out(seed):
    space = space_of(seed)
    whole = exhaustive(space)
    found = explore(space, MPI.COMM_SELF)
    assert not len(undecided(space, found))
    done, all_of_them = found.numbers(Status.SIMULATED), whole.numbers(Status.SIMULATED)
    assert set(done.tolist()) <= set(all_of_them.tolist())
    assert found.step[done].tolist() == whole.step[done].tolist()
    top = space.choice.top

    def first(records: Records, numbers: Any) -> list[float]:
        return np.sort(least_values(space, records, numbers)[:, 0])[:top].tolist()

    assert first(found, done) == first(whole, all_of_them)
    if len(space.choice.objectives) > 1:
        on_front = all_of_them[front(least_values(space, whole, all_of_them))]
        assert set(on_front.tolist()) <= set(done.tolist())


def values_by_runs(space: Any) -> dict[int, tuple[float, ...]]:
    """Objectives of every candidate that keeps the limits: from `simulate` and sums by hand."""
    found = {}
    for number in range(len(space)):
        try:
            experiment = space.experiment(number)
            results = simulate(experiment)
        except InputError:
            continue
        assert results is not None
        said, choice = results.attributes, space.choice
        if said["memory_capacity"] - said["memory_peak"] < choice.memory_headroom * 2**30:
            continue
        gpus = hardware_of(experiment).gpus
        if gpus > (choice.max_gpus or 10**9):
            continue
        power, prices = cost_of_cluster(experiment)
        assert prices.purchase is not None
        assert prices.hour is not None
        kwh = said["power"] / 1000 if prices.pays_electricity else 0.0
        hour = prices.hour.value + kwh * prices.kwh.value
        seconds, tokens = results.step_time, said["tokens"]
        of = {
            "step_time": seconds,
            "usd_per_token": hour * seconds / 3600 / tokens,
            "energy_per_token": said["power"] * seconds / tokens,
            "usd_per_hour": hour,
            "power": said["power"],
            "price": prices.purchase.value,
        }
        limits = {"power": 1e99, "usd_per_hour": 1e99, "price": 1e99, **choice.limits}
        if all(of[name] <= limit for name, limit in limits.items()):
            found[number] = tuple(of[name] for name in choice.objectives)
        assert power.least <= said["power"]
    return found


@pytest.mark.parametrize("seed", range(10))
def test_the_cheapest_are_those_of_all_runs(seed):
    space = costly_space_of(seed)
    whole = values_by_runs(space)
    records = explore(space, MPI.COMM_SELF)
    found = answer(space, records, MPI.COMM_SELF)
    best = sorted(whole.values())[: space.choice.top]
    shown = [whole[each.number] for each in found.best]
    assert [each[0] for each in shown] == pytest.approx([each[0] for each in best], rel=2e-3)
    if len(space.choice.objectives) > 1 and whole:
        numbers = list(whole)
        on_front = front(np.round(np.array([whole[each] for each in numbers]), 15))
        exact = {whole[numbers[each]] for each in on_front.tolist()}
        kept = {whole[each.number] for each in found.front}
        assert np.array(sorted(kept)) == pytest.approx(np.array(sorted(exact)), rel=2e-3)


@pytest.mark.parametrize("seed", range(4))
def test_no_candidate_costs_less_than_its_bound(seed):
    space = costly_space_of(seed)
    records = explore(space, MPI.COMM_SELF)
    done = records.numbers(Status.SIMULATED)
    values = least_values(space, records, done)
    records.step[:], records.energy[:] = 0, 0.0
    bounds = least_values(space, records, done)
    assert (bounds <= values * (1 + 1e-12)).all()
    if space.choice.objectives[0] != "price":
        assert (bounds[:, 0] > 0).all()


def test_columns_of_costs_are_there_when_asked_for():
    search: dict[str, Any] = {"vary": {"plan.tp": [1, 2]}, "max_power": 20_000}
    space = read_search({**SMALL, "search": search}, "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    head = answer_lines(space, found)[4]
    assert "power" in head
    assert "$" not in head
    search = {"vary": {"plan.tp": [1, 2]}, "objectives": ["usd_per_token"]}
    space = read_search({**SMALL, "search": search}, "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    assert "$/M" in answer_lines(space, found)[4]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_fronts_are_those_by_definition(points):
    values = np.array(points, float).reshape(-1, 3)

    def better(one: Any, other: Any) -> bool:
        return bool((one <= other).all() and (one < other).any())

    expected = [i for i, x in enumerate(values) if not any(better(y, x) for y in values)]
    assert sorted(front(values).tolist()) == expected
    lost = dominated(values, values)
    assert [i for i in range(len(values)) if not lost[i]] == expected


@pytest.mark.mpi
def test_dollars_on_any_number_of_processes(comm: Any) -> None:
    space = costly_space_of(2)
    found, alone = (explore(space, each) for each in (comm, MPI.COMM_SELF))
    for name, column in alone.columns.items():
        assert column.tolist() == found.columns[name].tolist(), name
    assert found.why == alone.why


def test_finalists_are_what_a_run_says():
    from mpisim import simulate

    space = space_of(1)
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    for each in found.best:
        results = simulate(space.experiment(each.number))
        assert results is not None
        changes = [f"{key}={toml_value(value)}" for key, value in each.settings.items()]
        set_by_hand = simulate(read(toml_lines({**SMALL, "search": {}}), "x.toml", changes))
        assert set_by_hand is not None
        assert set_by_hand.digest == results.digest
        assert (each.step_ps, each.digest) == (results.step_time_ps, results.digest)
        assert each.error == pytest.approx(results.attributes["uncertainty"])
        assert each.tokens == results.attributes["tokens"]
        assert each.utilisation == pytest.approx(results.attributes["utilisation"])
        assert sum(each.parts_ps.values()) == pytest.approx(each.step_ps)
