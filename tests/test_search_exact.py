"""Random search spaces: searches answer exactly as brute force, given the same times of steps.

Models, clusters, keys, objectives and limits are drawn at random. Both sides take the time of a
step from one function, which remembers it by experiment: what is tested is which candidates are
left out. `test_search_spaces.py` compares fewer spaces of more kinds with whole runs, within the
error of the times that searches use.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.experiment import Experiment
from mpisim.experiment.load import experiment_of
from mpisim.prediction.extrapolation import MAX_EXTRAPOLATION_ERROR, step_time
from mpisim.prediction.hardware import hardware_of
from mpisim.search import SearchSpace, explore, read_search
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


@pytest.mark.mpi
@pytest.mark.parametrize("seed", [2, 5, 11, 23])
def test_processes_find_what_one_finds(comm: Any, seed: int) -> None:
    """Every column, so also what was left out."""
    space = space_of(seed)
    shared, alone = explore(space, comm), explore(space, MPI.COMM_SELF)
    for name, column in alone.columns.items():
        assert column.tolist() == shared.columns[name].tolist(), name
