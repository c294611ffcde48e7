"""Random small search spaces, and all their candidates simulated: what a search must not lose.

`random_space` draws model, cluster, framework, plan, keys to vary, objectives, limits, jobs, prices
and slow GPUs. `brute_force` runs every candidate as ``mpisim run`` does, and knows nothing of
bounds, of what candidates share, and of steps that are shorter than the candidate's. `losses` says
what a search left out that it should have found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpisim import simulate
from mpisim.base.errors import InputError
from mpisim.cost.step import cost_of_cluster
from mpisim.experiment.load import experiment_of
from mpisim.prediction.extrapolation import MAX_EXTRAPOLATION_ERROR
from mpisim.prediction.hardware import hardware_of
from mpisim.prediction.memory_fit import verdict
from mpisim.search import Answer, SearchSpace, answer, explore, read_search
from mpisim.search.budget import Budget, budget_of
from mpisim.search.choice import OBJECTIVES
from mpisim.search.job import job_of
from mpisim.search.records import Records, Status

__all__ = ["Losses", "Truth", "brute_force", "losses", "random_space", "searched"]

MOST = 16
"""Candidates of a space."""

SLACK = 1 + 2 * MAX_EXTRAPOLATION_ERROR
"""By how much a candidate must be worse than the others to be left out: as `explore` has it."""

DENSE: tuple[dict[str, Any], ...] = (
    {"preset": "llama-3-8b", "layers": 4, "seq_len": 1024},
    {"preset": "gpt3-13b", "layers": 4, "seq_len": 1024},
    {"preset": "gemma-2-9b", "layers": 4, "seq_len": 1024},
    {"preset": "bert-large", "layers": 4},
    {"preset": "t5-large", "layers": 4},
    {"preset": "nemotron-h-8b", "layers": 8, "seq_len": 1024},
)
EXPERTS: tuple[dict[str, Any], ...] = (
    {"preset": "qwen3-30b-a3b", "layers": 4, "seq_len": 1024},
    {"preset": "mixtral-8x7b", "layers": 4, "seq_len": 1024},
    {"preset": "deepseek-v2-lite", "layers": 4, "seq_len": 1024},
)
OTHERS: tuple[dict[str, Any], ...] = (
    {"preset": "resnet-50"},
    {"preset": "vgg-11"},
    {"preset": "dlrm-test"},
)
CLUSTERS = ("dgx-h100", "dgx-a100", "a10-cluster", "dgx-v100", "dgx-b200", "h100-pcie-8gpu")
FRAMEWORKS = {
    "dense": (
        ["megatron-core", "fsdp"],
        ["megatron-lm", "deepspeed"],
        ["megatron-deepspeed", "nemo"],
        ["torchtitan", "hf-transformers"],
        ["nanotron", "none"],
    ),
    "experts": (["megatron-core", "none"], ["megatron-bridge", "torchtitan"]),
    "others": (["ddp", "none"],),
}
OF_ALL: dict[str, tuple[list[Any], ...]] = {
    "plan.micro_batch": ([1, 2], [1, 2, 4], [4, 3]),
    "plan.zero": ([0, 1], [0, 1, 3], [2, 3]),
    "plan.global_batch": ([32, 64], [16, 48]),
    "plan.overlap.dp": ([False, True],),
    "cluster.nodes": ([1, 2],),
    "cluster.preset": (
        ["dgx-h100", "dgx-a100"],
        ["a10-cluster", "dgx-a100"],
        ["dgx-b200", "dgx-h100", "dgx-a100"],
    ),
}
OF_TRANSFORMERS: dict[str, tuple[list[Any], ...]] = {
    "plan.tp": ([1, 2], [1, 2, 4], [2, 8], [1, 3]),
    "plan.pp": ([1, 2], [1, 2, 4], [4]),
    "plan.vpp": ([1, 2],),
    "plan.cp": ([1, 2], [2, 4]),
    "plan.recompute": (["none", "full"], ["none", "selective", "full"]),
    "plan.pipeline.schedule": (
        ["1f1b", "gpipe"],
        ["1f1b", "zb-h1", "zb-v"],
        ["gpipe", "dualpipe"],
        ["chimera", "1f1b"],
    ),
    "plan.pipeline.stages": (["even", "balanced"],),
    "plan.replica_batch": (["even", "balanced"],),
    "plan.precision": (["bf16", "fp8"], ["fp32", "tf32", "bf16"]),
    "plan.sp": ([False, True],),
    "plan.overlap.tp": ([False, True],),
    "framework.kernels": (["eager", "flash"],),
    "framework.cp_style": (["ring", "all-gather"],),
    "model.seq_len": ([512, 1024],),
}
OF_EXPERTS: dict[str, tuple[list[Any], ...]] = {
    "plan.ep": ([1, 2], [1, 4]),
    "plan.etp": ([1, 2],),
    "plan.overlap.ep": ([False, True],),
    "plan.moe_imbalance": ([1.0, 1.5],),
}
OF_DLRMS: dict[str, tuple[list[Any], ...]] = {
    "plan.tables.sharder": (["size-greedy", "dim-greedy", "random"],),
    "plan.precision": (["fp32", "tf32"],),
}
OF_STEPS = ("step_time", "tokens_per_second", "tokens_per_second_per_gpu", "gpus", "memory")


def random_space(rng: Random) -> SearchSpace:
    """Source of random numbers → a small space; some candidates are invalid or do not fit."""
    kind, models = rng.choices(
        (("dense", DENSE), ("experts", EXPERTS), ("others", OTHERS)), (6, 3, 1)
    )[0]
    model = dict(rng.choice(models))
    recommends = model["preset"].startswith("dlrm")
    tables: dict[str, Any] = {
        "model": model,
        "plan": {"global_batch": 64 if kind == "others" else 32},
        "cluster": {"preset": rng.choice(CLUSTERS), "nodes": rng.choice([1, 1, 2])},
    }
    if tables["cluster"]["preset"] == "h100-pcie-8gpu":
        tables["cluster"]["nodes"] = 1
    if tables["cluster"]["preset"] == "dgx-v100" and kind != "others":
        tables["plan"]["precision"] = "fp16"
    if recommends:
        tables["plan"] |= {"precision": "fp32", "optimizer": "sgd"}
        tables["plan"]["tables"] = {"sharder": "size-greedy"}
        choices = OF_DLRMS | {key: OF_ALL[key] for key in ("cluster.nodes", "cluster.preset")}
    else:
        choices = dict(OF_ALL)
    if kind != "others":
        choices |= OF_TRANSFORMERS
    if kind == "experts":
        choices |= OF_EXPERTS
    _draw_more(rng, tables, choices, kind)
    vary: dict[str, list[Any]] = {}
    for key in rng.sample(list(choices), len(choices)):
        values = rng.choice(choices[key])
        if np.prod([len(each) for each in vary.values()]) * len(values) <= MOST:
            vary[key] = values
        if len(vary) == 4:
            break
    search = _search(rng, tables, vary)
    return read_search({**tables, "search": search}, "x.toml")


def _draw_more(
    rng: Random, tables: dict[str, Any], choices: dict[str, tuple[list[Any], ...]], kind: str
) -> None:
    """Draw tables besides model, plan and cluster, and what may be varied with them."""
    if rng.random() < 0.35:
        names = FRAMEWORKS[kind]
        if rng.random() < 0.5:
            tables["framework"] = {"name": rng.choice(rng.choice(names))}
        else:
            choices["framework.name"] = names
    if rng.random() < 0.1:
        tables["framework"] = {**tables.get("framework", {}), "cuda_graphs": True}
    if kind != "others" and rng.random() < 0.15:  # two generations of GPUs
        tables["cluster"] |= {"preset": "dgx-h100", "nodes": 2, "other_gpus": {"1": "a100-sxm"}}
        for key in ("cluster.nodes", "cluster.preset"):
            choices.pop(key)
    if rng.random() < 0.2:
        tables["variation"] = rng.choice(
            [
                {"speeds": {"0": 1.1, "3": 0.7}},
                {"speeds": {"1-2": 0.9}},
                {"kernels": 0.05},
                {"gpus": 0.03},
                {"slowest": False},
            ]
        )
    if rng.random() < 0.2:
        tables["network"] = {"contention": False}
    if rng.random() < 0.1:
        tables["overlap"] = {"model": "off"}


def _search(rng: Random, tables: dict[str, Any], vary: dict[str, list[Any]]) -> dict[str, Any]:
    """Draw ``[search]``, and the tables of prices and jobs where it asks for them."""
    search: dict[str, Any] = {"vary": vary, "top": rng.choice([1, 1, 2, 3])}
    several = rng.choice([1, 1, 1, 2, 3])
    names = [name for name in OBJECTIVES if name not in OF_STEPS]
    priced = rng.random() < 0.3
    of_both = rng.sample(OF_STEPS, several)
    if priced:
        of_both[0] = rng.choice(names)
        tables["prices"] = {
            "contract": rng.choice(["on-demand", "owned"]),
            "gpu_hour": 2.5,
            "node": 200_000.0,
        }
        if rng.random() < 0.5:  # those of data/prices.toml, which does not know all GPUs
            tables["prices"] = {"contract": tables["prices"]["contract"]}
        search |= rng.choice(
            [
                {},
                {"max_power": rng.choice(["8 kW", "12 kW"])},
                {"max_usd_per_hour": 25.0},
                {"max_price": 4e5},
            ]
        )
    search["objectives"] = rng.sample(of_both, several)
    if any(each in ("job_time", "job_usd") for each in of_both):
        job = {"tokens": "20B"} if rng.random() < 0.7 else {"steps": 500_000}
        tables["job"] = {**job, "failure_rate": 300, "runs": 256}
        if rng.random() < 0.3:
            tables["job"] |= {"spares": 1, "repair": "2 h"}
        if rng.random() < 0.4:
            search |= rng.choice([{"max_job_time": "1 day"}, {"max_job_usd": 500.0}])
    if rng.random() < 0.3:
        search["each"] = rng.choice(list(vary))
    for chance, key, values in (
        (0.2, "memory_headroom", (2.0, 10.0, 40.0)),
        (0.2, "max_memory", (3.0, 10.0, 30.0)),
        (0.2, "max_gpus", (4, 8)),
        (0.2, "max_step_time", (0.05, 0.1, 0.2, 0.5)),
    ):
        if rng.random() < chance:
            search[key] = rng.choice(values)
    return search


# --- all candidates simulated ---------------------------------------------------------------------


class Truth(NamedTuple):
    """What brute force says of a space.

    Attributes
    ----------
    step : int64, shape (n,)
        ps; 0 where the candidate is invalid.
    fits : bool, shape (n,)
        Whether it fits into memory, with all that limits of memory leave.
    values : float64, shape (n, number of objectives)
        As they are minimised; infinite where it does not fit or is beyond a limit.
    near : bool, shape (n,)
        Whether it comes so near to a limit that the error of a step time decides.
    """

    step: NDArray[np.int64]
    fits: NDArray[np.bool_]
    values: NDArray[np.float64]
    near: NDArray[np.bool_]

    @property
    def allowed(self) -> NDArray[np.int64]:
        """Candidates that are valid, fit and keep the limits."""
        return np.flatnonzero(np.isfinite(self.values).all(axis=1))


def brute_force(space: SearchSpace) -> Truth:
    """Search space → all candidates simulated, and limits applied to what came out. Local."""
    n, objectives = len(space), space.choice.objectives
    found = Truth(
        np.zeros(n, np.int64), np.zeros(n, bool), np.full((n, len(objectives)), np.inf),
        np.zeros(n, bool),
    )  # fmt: skip
    for number in range(n):
        try:
            _run(space, number, found)
        except InputError:
            continue
    return found


def _run(space: SearchSpace, number: int, found: Truth) -> None:
    """Simulate a candidate and enter what it has; `InputError` if it is invalid."""
    choice = space.choice
    tables = space.candidate_tables(number)
    tables["run"] = {**tables.get("run", {}), "allow_oom": True}
    experiment = experiment_of(tables, "x.toml")
    memory = verdict(experiment)
    results = simulate(experiment, MPI.COMM_SELF, repeat=False)
    assert results is not None
    counted = (results.attributes.get(each) for each in ("tokens", "images", "samples"))
    tokens = int(next(each for each in counted if each is not None))
    gpus, seconds = results.n_ranks, results.step_time
    has: dict[str, float] = {
        "step_time": seconds,
        "tokens_per_second": -tokens / seconds,
        "tokens_per_second_per_gpu": -tokens / seconds / gpus,
        "gpus": gpus,
        "memory": memory.peak,
    }
    if choice.asks_cost:
        has |= _costs(experiment, results.attributes, seconds, tokens)
    if choice.asks_job:
        budget, watts = Budget(), float(results.attributes.get("power", 0.0))
        if choice.asks_cost:
            budget = budget_of(choice, experiment, hardware_of(experiment))
        job = job_of(experiment, seconds, tokens, budget, watts)
        has |= {"job_time": job.seconds, "job_usd": job.usd}
    limits: dict[str, float] = {**choice.limits, **choice.job_limits}
    limits["gpus"] = choice.max_gpus or np.inf
    limits["step_time"] = choice.max_step_time or np.inf
    unknown = {*choice.objectives, *limits} - set(has)
    if unknown:
        raise InputError(f"nothing says the {', '.join(unknown)} of these GPUs")
    found.step[number] = results.step_time_ps
    left = (memory.capacity - memory.peak) / 2**30
    found.fits[number] = (
        memory.host_fits
        and left >= choice.memory_headroom
        and memory.peak / 2**30 <= (choice.max_memory or np.inf)
    )
    found.near[number] = any(
        limit / SLACK < has[name] < limit * SLACK for name, limit in limits.items()
    )
    if found.fits[number] and all(has[name] <= limit for name, limit in limits.items()):
        found.values[number] = [has[name] for name in choice.objectives]


def _costs(
    experiment: Any, attributes: dict[str, Any], seconds: float, tokens: int
) -> dict[str, float]:
    """Return objectives of cost, by sums."""
    _, prices = cost_of_cluster(experiment)
    if "power" not in attributes:
        return {}
    watts = float(attributes["power"])
    has = {"energy_per_token": watts * seconds / tokens, "power": watts}
    if prices.hour is not None:
        kwh = prices.kwh.value if prices.pays_electricity else 0.0
        hour = prices.hour.value + kwh * watts / 1000
        has |= {"usd_per_hour": hour, "usd_per_token": hour * seconds / 3600 / tokens}
    if prices.purchase is not None:
        has["price"] = prices.purchase.value
    return has


# --- the search, and what it lost -----------------------------------------------------------------


def searched(space: SearchSpace, at_once: int) -> tuple[Records, Answer] | None:
    """Search space → what a search finds; None if no candidate is valid. Local.

    Parameters
    ----------
    space : SearchSpace
    at_once : int
        Candidates of a round: of small spaces few, so that some are left out by each bound.
    """
    with _rounds_of(at_once):
        try:
            records = explore(space, MPI.COMM_SELF)
        except InputError:
            return None
    return records, answer(space, records, MPI.COMM_SELF)


@contextmanager
def _rounds_of(at_once: int) -> Iterator[None]:
    """Judge so many candidates in a round, and simulate half as many in full."""
    module = sys.modules[explore.__module__]
    sizes = {"ROUND": at_once, "SIMULATED_IN_ROUND": max(at_once // 2, 1)}
    before = {name: getattr(module, name) for name in sizes}
    try:
        vars(module).update(sizes)
        yield
    finally:
        vars(module).update(before)


Losses = list[str]


def losses(space: SearchSpace, truth: Truth, found: tuple[Records, Answer] | None) -> Losses:
    """Search space, brute force, search → what the search lost or said wrongly, a line each."""
    allowed = truth.allowed
    sure = allowed[~truth.near[allowed]]
    if found is None:
        return [f"{len(sure)} candidates are valid, the search says none is"] if len(sure) else []
    records, said = found
    lines = [
        f"candidate {number} ({space.described(number)}): {text}"
        for number, text in _wrong_records(truth, records)
    ]
    if len(sure) and not said.best:
        return [*lines, f"{len(sure)} candidates keep the limits, the search says none does"]
    values = truth.values
    for each in said.best:
        if not np.isfinite(values[each.number]).all() and not truth.near[each.number]:
            lines.append(f"{each.described} is among the best, and breaks a limit or does not fit")
        elif each.step_ps != truth.step[each.number]:
            lines.append(f"{each.described} takes {truth.step[each.number]} ps, not {each.step_ps}")
    best = np.sort(values[sure, 0])[: space.choice.top]
    own = np.sort([values[each.number, 0] for each in said.best])
    for place, value in enumerate(best.tolist()):
        if place >= len(own) or _worse(own[place], value):
            lines.append(f"place {place + 1} has {space.choice.objectives[0]} {value}: lost")
    if values.shape[1] > 1:
        on_front = values[[each.number for each in said.front]]
        for number in sure.tolist():
            one = values[number]
            if not any(_no_worse(other, one) for other in on_front):
                lines.append(f"{space.described(number)} is on the front, or before it: lost")
    if space.choice.each is not None:
        shown = {
            int(space.groups(np.array([each.number]))[0]): values[each.number, 0]
            for each in said.of_each
        }
        for group in set(space.groups(sure).tolist()):
            least = values[sure[space.groups(sure) == group], 0].min()
            if group not in shown or _worse(shown[group], least):
                lines.append(f"the best of value {group} of {space.choice.each}: lost")
    return lines


def _wrong_records(truth: Truth, records: Records) -> Iterator[tuple[int, str]]:
    """Yield candidates of which a search knows what is not so."""
    for number, step in enumerate(truth.step.tolist()):
        status = Status(int(records.status[number]))
        if step and status is Status.INVALID:
            yield number, "said to be invalid, and runs"
        if step and records.bound[number] > step * (1 + MAX_EXTRAPOLATION_ERROR):
            yield number, f"takes {step} ps, less than its bound {records.bound[number]}"
        if not step and status is Status.SIMULATED:
            yield number, "simulated, and is invalid"
        if truth.fits[number] and status is Status.TOO_LARGE:
            yield number, "said to be too large, and fits"
        known = records.step[number]
        if step and known and not step / SLACK < known < step * SLACK:
            yield number, f"takes {step} ps, and the search found {known}"


def _worse(value: float, other: float) -> bool:
    """Whether an objective is worse than another by more than the error of a step time."""
    return value - other > (SLACK - 1) * abs(other)


def _no_worse(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether one candidate is as good as another in all objectives, but for that error."""
    return not any(_worse(*pair) for pair in zip(one.tolist(), other.tolist(), strict=True))
