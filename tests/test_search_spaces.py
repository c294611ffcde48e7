"""Random search spaces: what a search answers is what brute force answers, on any processes.

`random_spaces.py` draws the spaces; ``run_scripts/bench/search_spaces.py`` looks at hundreds, and
`test_search_exact.py` compares 300 simpler ones exactly.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from random_spaces import (
    OF_ALL,
    OF_TRANSFORMERS,
    brute_force,
    losses,
    random_space,
    searched,
)

from mpisim.base.errors import InputError
from mpisim.experiment.load import experiment_of, load_tables
from mpisim.prediction.extrapolation import MAX_EXTRAPOLATION_ERROR, step_time
from mpisim.prediction.hardware import hardware_of
from mpisim.search import explore, read_search, read_store, write_store
from mpisim.search.bound import StepBounds
from mpisim.search.records import Records, Status

SPACES = 300
"""Random spaces that the tests below take some of."""


@pytest.mark.timeout(600)
@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([2, 4, 8]))
def test_searches_lose_nothing_that_brute_force_finds(rng: Random, at_once: int) -> None:
    """The best, the front and the best of each value, whatever is drawn."""
    space = random_space(rng)
    assert not losses(space, brute_force(space), searched(space, at_once))


@pytest.mark.timeout(600)
def test_candidates_of_the_spaces_end_in_all_ways() -> None:
    counts: dict[Status, int] = dict.fromkeys(Status, 0)
    for seed in range(0, SPACES, 10):
        found = searched(random_space(Random(seed)), 2)
        for status in Status if found is not None else ():
            counts[status] += found[0].count(status)
    # Beyond limits by contention alone is rare here: test_search.py has both.
    others = (Status.UNKNOWN, Status.TOO_SLOW, Status.OVER_BUDGET)
    assert min(counts[each] for each in Status if each not in others) > 0, counts


def plans_of(seed: int) -> tuple[Any, ...]:
    """Tables of many random plans, from the spaces above with more keys at once."""
    rng = Random(10_000 + seed)
    space = random_space(Random(seed))
    found = []
    for number in range(len(space)):
        try:
            tables = space.candidate_tables(number)
        except InputError:  # shares that are even, or that there are none of
            continue
        plan = tables["plan"]
        if "seq_len" in tables["model"]:  # a transformer
            for key in ("tp", "pp", "recompute", "zero", "sp"):
                if rng.random() < 0.4:
                    values = {**OF_ALL, **OF_TRANSFORMERS}[f"plan.{key}"]
                    plan[key] = rng.choice(rng.choice(values))
        tables["run"] = {"allow_oom": True}
        found.append(tables)
    return tuple(found)


def bound_of(bounds: StepBounds, tables: dict[str, Any]) -> int | str:
    """Return a bound, or why there is none."""
    try:
        experiment = experiment_of(tables, "x.toml")
        return bounds.of(experiment, hardware_of(experiment))
    except InputError as error:
        return str(error)


def test_what_was_seen_before_changes_no_bound() -> None:
    """What bounds keep of other candidates, which processes see differently."""
    kept = StepBounds()
    for seed in range(0, SPACES, 6):
        for tables in plans_of(seed):
            assert bound_of(kept, tables) == bound_of(StepBounds(), tables), tables
    # Gradients of one micro-batch are not added up, whichever was first.
    tables = {
        "model": {"preset": "bert-large", "layers": 2},
        "plan": {"dp": 4, "dp_style": "ddp", "micro_batch": 1, "global_batch": 16},
        "cluster": {"preset": "dgx-a100", "nodes": 1},
    }
    one = {**tables, "plan": {**tables["plan"], "global_batch": 4}}
    assert bound_of(kept, tables) == bound_of(StepBounds(), tables)
    assert bound_of(kept, one) == bound_of(StepBounds(), one)
    # The framework follows from the sharding: FSDP adds gradients up in units, not by layers.
    kept = StepBounds()
    for zero in (0, 1, 2, 3, 0):
        plan = {"zero": zero, "micro_batch": 1, "global_batch": 64}
        tables = {**tables, "plan": plan}
        assert bound_of(kept, tables) == bound_of(StepBounds(), tables)


def test_what_makes_room_changes_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_NETWORKS", "MOST_PRICES", "MOST_PLACES"):
        monkeypatch.setattr(f"mpisim.search.bound.{name}", 1)
    for name in ("MOST_CLASSES", "MOST_TIMES"):
        monkeypatch.setattr(f"mpisim.search.layer_bounds.{name}", 1)
    kept = StepBounds()
    for tables in plans_of(0):
        assert bound_of(kept, tables) == bound_of(StepBounds(), tables), tables
    for cache in (kept._networks, kept._prices, kept._places):
        assert len(cache) <= 1


@pytest.mark.timeout(600)
def test_no_bound_is_above_its_step() -> None:
    """On the plans of the spaces, changed at random."""
    bounds, checked = StepBounds(), 0
    for seed in range(0, SPACES, 6):
        for tables in plans_of(seed):
            try:
                experiment = experiment_of(tables, "x.toml")
                bound = bounds.of(experiment, hardware_of(experiment))
                step = step_time(experiment, MPI.COMM_SELF)
            except InputError:
                continue
            assert bound <= step.picoseconds * (1 + MAX_EXTRAPOLATION_ERROR), tables
            checked += 1
    assert checked > 100


@pytest.mark.mpi
@pytest.mark.parametrize("seed", [2, 5, 8, 23])
def test_processes_find_what_one_finds(comm: Any, seed: int) -> None:
    """Every column, so also what was left out."""
    space = random_space(Random(seed))
    shared, alone = explore(space, comm), explore(space, MPI.COMM_SELF)
    for name, column in alone.columns.items():
        assert column.tolist() == shared.columns[name].tolist(), name


@pytest.mark.mpi
def test_processes_go_on_where_others_were_stopped(comm: Any, tmp_path: Path) -> None:
    """A store of one process, resumed by several, after each of its rounds."""
    space = random_space(Random(5))
    kept: list[Records] = []
    whole = explore(space, MPI.COMM_SELF, each_round=kept.append)
    file = tmp_path / f"{comm.rank}.h5"
    for records in kept:
        write_store(file, space, records, overwrite=True)
        again, known, _ = read_store(file)
        resumed = explore(again, comm, known=known)
        for name, column in whole.columns.items():
            assert column.tolist() == resumed.columns[name].tolist(), name


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("triosim-p2-vgg16-ddp", ("plan.micro_batch", "plan.zero")),
        ("lin-dlrm-mlperf-4-gv100", ("plan.tables",)),
    ],
)
def test_auto_takes_the_keys_that_a_model_has(name: str, keys: tuple[str, ...]) -> None:
    source, tables = load_tables(name)
    space = read_search({**tables, "search": {"vary": "auto"}}, source)
    assert space.keys == keys
    if "plan.micro_batch" in keys:  # all 128 images of a GPU at once, among others
        assert max(space.values[0]) == 128
    together = {"vary": {"plan": "auto", "cluster": {"nodes": [1, 2]}}}
    assert read_search({**tables, "search": together}, source).keys == (*keys, "cluster.nodes")
