"""The search of placements of tables: its optimum, what holds of each, costs and memory."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from dlrms import experiment_of, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import changed

from mpisim.experiment import Experiment
from mpisim.experiment.models import Dlrm
from mpisim.prediction.prepared import prepare
from mpisim.search.sharding import PlacementCost, choose_placement, improved
from mpisim.search.sharding.improve import options
from mpisim.workloads.dlrm import SHARDERS, TablePlacement, model_tables
from mpisim.workloads.dlrm.tables import SHARDING


def cost_of(experiment: Experiment, room: float = math.inf) -> PlacementCost:
    model = experiment.model
    assert isinstance(model, Dlrm)
    return PlacementCost(prepare(experiment), model_tables(model), room)


@pytest.mark.parametrize("seed", range(4))
def test_local_search_finds_the_best_of_all_placements(seed: int) -> None:
    # 6 tables on 2 GPUs, each whole: 64 placements, all of them simulated.
    experiment = experiment_of(model_of(seed, 6), 2)
    cost = cost_of(experiment)
    steps, costs = {}, {}
    for code in range(2**6):
        placed = [TablePlacement("table_wise", (code >> i & 1,)) for i in range(6)]
        costs[code] = cost.of(placed)
    choices = [options(cost, i, kinds=("table_wise",), host=False) for i in range(6)]
    found, _ = improved(cost, [of[0] for of in choices], choices)
    assert cost.of(found) <= 1.002 * min(costs.values())
    for code in range(2**5):  # the ranks are alike: the last table on rank 0
        plan = changed(
            experiment.plan, placement=tuple(f"table_wise {code >> i & 1}" for i in range(6))
        )
        steps[code] = simulated(replace(experiment, plan=plan))
    chosen = choose_placement(experiment, kinds=("table_wise",))
    assert chosen.best.step_ps <= 1.005 * min(steps.values())


def simulated(experiment: Experiment) -> int:
    from mpi4py import MPI

    from mpisim.prediction.execution import execute

    run, _ = execute(prepare(experiment), MPI.COMM_SELF)
    return run.step_time


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 12), gpus=st.sampled_from((1, 2, 4)))
def test_what_holds_of_every_search(seed: int, tables: int, gpus: int) -> None:
    experiment = experiment_of(model_of(seed, tables), gpus)
    model = experiment.model
    assert isinstance(model, Dlrm)
    sizes = [each.size for each in model_tables(model)]
    room = 1.3 * max(max(sizes), sum(sizes) / gpus)
    cost = cost_of(experiment, room)
    choices = [options(cost, i, kinds=SHARDING, host=False) for i in range(tables)]
    draw = random.Random(seed)
    start = [draw.choice(of) for of in choices]
    found, compared = improved(cost, start, choices)
    assert cost.of(found) <= cost.of(start)
    assert compared >= 0
    assert all(each in of for each, of in zip(found, choices, strict=True))
    loads, summed = cost.loads(found)
    assert cost.of(found) == pytest.approx(float(cost.total(loads[None], summed[None])[0]))
    # Every table is there: its elements are spread, or copied.
    held = sum(
        s * (gpus if p.sharding == "data_parallel" else 1)
        for s, p in zip(sizes, found, strict=True)
    )
    assert loads[3].sum() == pytest.approx(held, rel=1e-3, abs=gpus * 128 * tables)


def test_the_cost_is_what_the_simulator_has_between_placements() -> None:
    # Differences of steps by cost and by simulation: the cost orders what it is to order.
    experiment = experiment_of(model_of(7, 30), 4)
    found = choose_placement(experiment, kinds=("table_wise",))
    costs = np.array([each.cost for each in found.found])
    steps = np.array([each.step_time for each in found.found])
    assert (np.diff(costs) >= -0.002 * steps[0]).all()
    assert (costs - costs[0]) == pytest.approx(steps - steps[0], abs=0.02 * steps[0])


def test_the_search_keeps_to_the_memory() -> None:
    model = replace(model_of(3, 14, (128,)), table_entries=(9_000_000,) * 12 + (40_000_000,) * 2)
    found = choose_placement(experiment_of(model, 4))
    assert found.best.fits
    by_name = {name: each for each in found.found for name in each.name.split(", ")}
    assert not by_name["norm-lookup-greedy"].fits
    # What does not fit on the GPUs together is kept in host memory in part.
    model = replace(model, table_entries=(20_000_000,) * 14)
    found = choose_placement(experiment_of(model, 4))
    assert found.best.name == "search"
    assert found.best.fits
    assert any(each.kernel == "fused_uvm_caching" for each in found.best.placed)
    assert not [each for each in found.found if each.fits and each is not found.best]


def test_every_sharder_is_simulated_once() -> None:
    found = choose_placement(experiment_of(model_of(1, 9), 4))
    names = [name for each in found.found for name in each.name.split(", ")]
    assert sorted(names) == sorted([*SHARDERS, "search"])
    assert len({each.placed for each in found.found}) == len(found.found)
    assert [each.step_ps for each in found.found] == sorted(each.step_ps for each in found.found)
    assert found.as_fast(found.best)
