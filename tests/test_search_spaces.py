"""Hundreds of random search spaces: what a search answers is what brute force answers.

Models, clusters, keys, objectives and limits are drawn at random. Both sides take the time of a
step from one function, which remembers it by experiment: what is tested is which candidates are
left out, and `test_search_exhaustive.py` compares times with those of whole runs.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.base.toml import toml_value
from mpisim.experiment import Experiment
from mpisim.experiment.load import experiment_of, load_tables
from mpisim.prediction.extrapolation import MAX_EXTRAPOLATION_ERROR, step_time
from mpisim.prediction.hardware import hardware_of
from mpisim.search import SearchSpace, explore, read_search, read_store, write_store
from mpisim.search.bound import StepBounds
from mpisim.search.explore import undecided
from mpisim.search.records import Records, Status, least_values

SPACES = 300
MOST = 12
"""Candidates of a space."""

MODELS: tuple[dict[str, Any], ...] = (
    {"preset": "llama-3-8b", "layers": 4, "seq_len": 1024},
    {"preset": "gpt3-13b", "layers": 4, "seq_len": 1024},
    {"preset": "bert-large", "layers": 4},
    {"preset": "qwen3-30b-a3b", "layers": 4, "seq_len": 1024},
    {"preset": "resnet50"},
)
WEIGHTS = (6, 6, 4, 4, 1)  # many operators a step make it dear
CLUSTERS = ("dgx-h100", "dgx-a100", "a10-cluster")
VARIED: dict[str, tuple[list[Any], ...]] = {
    "plan.tp": ([1, 2], [1, 2, 4], [2, 8], [1, 3]),
    "plan.pp": ([1, 2], [1, 2, 4], [4]),
    "plan.vpp": ([1, 2],),
    "plan.ep": ([1, 2], [1, 4]),
    "plan.micro_batch": ([1, 2], [1, 2, 4], [4, 3]),
    "plan.recompute": (["none", "full"], ["none", "selective", "full"]),
    "plan.zero": ([0, 1], [0, 1, 3]),
    "plan.pipeline.schedule": (["1f1b", "gpipe"], ["1f1b", "zb-h1"], ["gpipe", "dualpipe"]),
    "plan.precision": (["bf16", "fp8"], ["fp32", "tf32", "bf16"]),
    "plan.global_batch": ([16, 32], [8, 32]),
    "plan.sp": ([False, True],),
    "plan.overlap.dp": ([False, True],),
    "framework.kernels": (["eager", "flash"],),
    "cluster.nodes": ([1, 2],),
    "cluster.preset": (["dgx-h100", "dgx-a100"], ["a10-cluster", "dgx-a100"]),
    "model.seq_len": ([512, 1024],),
}
OF_TRANSFORMERS = ("tp", "pp", "vpp", "ep", "recompute", "schedule", "sp", "kernels", "seq_len")
TIMED = ("step_time", "tokens_per_second", "tokens_per_second_per_gpu")
OBJECTIVES = (*TIMED, "gpus", "memory")


def space_of(seed: int) -> SearchSpace:
    """A random small space; not all of its candidates are valid, and some do not fit."""
    rng = random.Random(seed)
    (model,) = rng.choices(MODELS, WEIGHTS)
    image = model["preset"] == "resnet50"
    keys = [key for key in VARIED if not (image and key.rpartition(".")[2] in OF_TRANSFORMERS)]
    vary: dict[str, list[Any]] = {}
    for key in rng.sample(keys, len(keys)):
        values = rng.choice(VARIED[key])
        if np.prod([len(each) for each in vary.values()]) * len(values) <= MOST:
            vary[key] = values
        if len(vary) == 4:
            break
    tables: dict[str, Any] = {
        "model": dict(model),
        "plan": {"global_batch": 64 if image else 16, "micro_batch": 2},
        "cluster": {"preset": rng.choice(CLUSTERS), "nodes": rng.choice([1, 2])},
    }
    if rng.random() < 0.15:
        tables["variation"] = {"speeds": {"0": 1.1, "3": 0.7}}
    if rng.random() < 0.1:
        tables["variation"] = {"kernels": 0.05}
    if rng.random() < 0.2:
        tables["network"] = {"contention": False}
    search: dict[str, Any] = {
        "vary": vary,
        "objectives": rng.sample(OBJECTIVES, rng.choice([1, 1, 1, 2, 3])),
        "top": rng.choice([1, 1, 2, 3]),
    }
    if rng.random() < 0.3:
        search["memory_headroom"] = rng.choice([2.0, 10.0, 40.0])
    if rng.random() < 0.3:
        search["max_gpus"] = rng.choice([4, 8])
    if rng.random() < 0.3:
        search["max_step_time"] = rng.choice([0.05, 0.1, 0.2, 0.5])
    return read_search({**tables, "search": search}, "x.toml")


class Steps:
    """Times of steps, each simulated once."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def __call__(self, experiment: Experiment, comm: Any, **hints: Any) -> Any:
        """As `step_time`."""
        parts = (experiment.model, experiment.plan, experiment.cluster, experiment.network)
        name = repr((*parts, experiment.variation, experiment.run))
        if name not in self.known:
            try:
                self.known[name] = step_time(experiment, MPI.COMM_SELF, **hints)
            except InputError as error:
                self.known[name] = error
        found = self.known[name]
        if isinstance(found, InputError):
            raise found
        return found


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps()


def searched(space: SearchSpace, steps: Steps, first: int) -> Records:
    """A search that judges so few candidates at once that those of small spaces are left out."""
    module = sys.modules[explore.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "step_time", steps)
        patch.setattr(module, "ROUND", 2 * first)
        patch.setattr(module, "SIMULATED_IN_ROUND", first)
        return explore(space, MPI.COMM_SELF)


def brute_force(space: SearchSpace, steps: Steps) -> Records:
    """Everything simulated, and limits applied to what came out."""
    records, choice = Records.none(len(space)), space.choice
    for number in range(len(space)):
        tables = space.candidate_tables(number)
        tables["run"] = {**tables.get("run", {}), "allow_oom": True}
        try:
            experiment = experiment_of(tables, "x.toml")
            gpus = hardware_of(experiment).gpus
            step = steps(experiment, MPI.COMM_SELF)
        except InputError:
            continue
        if step.memory.headroom < choice.memory_headroom * 2**30:
            continue
        if choice.max_gpus is not None and gpus > choice.max_gpus:
            continue
        if choice.max_step_time is not None and step.picoseconds * 1e-12 > choice.max_step_time:
            continue
        records.status[number] = Status.SIMULATED
        records.step[number], records.peak[number] = step.picoseconds, step.memory.peak
        records.gpus[number], records.tokens[number] = gpus, step.tokens
    return records


@pytest.mark.parametrize("seed", range(SPACES))
def test_searches_answer_as_brute_force(seed: int, steps: Steps) -> None:
    space = space_of(seed)
    whole = brute_force(space, steps)
    every = whole.numbers(Status.SIMULATED)
    try:
        found = searched(space, steps, 1 + seed % 3)
    except InputError:
        assert not len(every)
        return
    assert not len(undecided(space, found))
    done = found.numbers(Status.SIMULATED)
    for name in ("step", "peak", "gpus", "tokens"):
        assert found.columns[name][done].tolist() == whole.columns[name][done].tolist(), name
    assert set(done.tolist()) <= set(every.tolist())
    mine, theirs = (least_values(space, each, n) for each, n in ((found, done), (whole, every)))
    top = space.choice.top
    assert np.sort(mine[:, 0])[:top].tolist() == np.sort(theirs[:, 0])[:top].tolist()
    if mine.shape[1] > 1:
        for number, one in zip(every.tolist(), theirs, strict=True):
            better = (theirs <= one).all(axis=1) & (theirs < one).any(axis=1)
            assert better.any() or number in done, number
    # What is left out is worse than its bound says it must be, and no bound is above its step.
    for number in every.tolist():
        assert found.bound[number] <= whole.step[number] * (1 + MAX_EXTRAPOLATION_ERROR)


def test_candidates_of_the_spaces_end_in_all_ways(steps: Steps) -> None:
    counts: dict[str, int] = {}
    for seed in range(0, SPACES, 10):
        try:
            found = searched(space_of(seed), steps, 1)
        except InputError:
            continue
        for status in Status:
            counts[status.name] = counts.get(status.name, 0) + found.count(status)
    # Too slow only by contention is rare here, and no space limits costs: test_search.py has both.
    others = (Status.UNKNOWN, Status.TOO_SLOW, Status.OVER_BUDGET)
    assert min(counts[each.name] for each in Status if each not in others) > 0, counts


def plans_of(seed: int) -> tuple[Any, ...]:
    """Tables of many random plans, from the spaces above with more keys at once."""
    rng = random.Random(10_000 + seed)
    space = space_of(seed)
    found = []
    for number in range(len(space)):
        tables = space.candidate_tables(number)
        plan = tables["plan"]
        if tables["model"]["preset"] != "resnet50":
            for key in ("tp", "pp", "recompute", "zero", "sp"):
                if rng.random() < 0.4:
                    plan[key] = rng.choice(rng.choice(VARIED[f"plan.{key}"]))
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


def test_no_bound_is_above_its_step(steps: Steps) -> None:
    """On the plans of the spaces, changed at random."""
    bounds, checked = StepBounds(), 0
    for seed in range(0, SPACES, 6):
        for tables in plans_of(seed):
            try:
                experiment = experiment_of(tables, "x.toml")
                bound = bounds.of(experiment, hardware_of(experiment))
                step = steps(experiment, MPI.COMM_SELF)
            except InputError:
                continue
            assert bound <= step.picoseconds * (1 + MAX_EXTRAPOLATION_ERROR), tables
            checked += 1
    assert checked > 100


@pytest.mark.mpi
@pytest.mark.parametrize("seed", [2, 5, 11, 23])
def test_processes_find_what_one_finds(comm: Any, seed: int) -> None:
    """Every column, so also what was left out."""
    space = space_of(seed)
    shared, alone = explore(space, comm), explore(space, MPI.COMM_SELF)
    for name, column in alone.columns.items():
        assert column.tolist() == shared.columns[name].tolist(), name


@pytest.mark.mpi
def test_processes_go_on_where_others_were_stopped(comm: Any, tmp_path: Path) -> None:
    """A store of one process, resumed by several, after each of its rounds."""
    space = space_of(5)
    kept: list[Records] = []
    whole = explore(space, MPI.COMM_SELF, each_round=kept.append)
    file = tmp_path / f"{comm.rank}.h5"
    for records in kept:
        write_store(file, space, records, overwrite=True)
        again, known, _ = read_store(file)
        resumed = explore(again, comm, known=known)
        for name, column in whole.columns.items():
            assert column.tolist() == resumed.columns[name].tolist(), name


KILLED = {
    "model": {"preset": "llama-3-8b", "layers": 4},
    "plan": {"global_batch": 32},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "search": {"top": 12},
    "search.vary": {"plan.tp": [1, 2, 4], "plan.pp": [1, 2, 4], "plan.micro_batch": [1, 2]},
}


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_searches_give_the_same_answer(
    processes: int, tmp_path: Path, run_mpisim: Any, launch_environment: dict[str, str]
) -> None:
    file, store = tmp_path / "mine.toml", tmp_path / "s.h5"
    lines = []
    for name, table in KILLED.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    file.write_text("\n".join(lines))
    started = subprocess.Popen(
        [sys.executable, "-m", "mpisim", "search", str(file), "-o", str(store)],
        env=launch_environment,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not store.exists() and started.poll() is None:
        time.sleep(0.005)
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    _, _, ended = read_store(store)
    assert ended is None or started.returncode == 0
    resumed = run_mpisim(["search", "-o", store, "--resume"], nprocs=processes)
    whole = run_mpisim(["search", file])
    assert resumed.rc == whole.rc == 0, resumed.stderr
    assert resumed.stdout == whole.stdout


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
