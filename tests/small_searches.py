"""Small search spaces for tests, and their candidates all simulated."""

from __future__ import annotations

import random
from typing import Any

from mpisim.base.toml import toml_value
from mpisim.search import read_search

SMALL: dict[str, Any] = {
    "model": {"preset": "llama-3-8b", "layers": 8},
    "plan": {"global_batch": 32},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
}


def space_of(seed: int) -> Any:
    """A random small search space."""
    rng = random.Random(seed)
    vary = {
        "plan.tp": rng.choice([[1, 2, 4, 8], [2, 4]]),
        "plan.pp": rng.choice([[1, 2, 4, 3], [1, 2]]),
        "plan.micro_batch": rng.choice([[1], [1, 2], [4, 1]]),
        "plan.recompute": rng.choice([["none"], ["none", "full"]]),
        "cluster.nodes": rng.choice([[1], [1, 2]]),
        "plan.zero": rng.choice([[0], [0, 1, 3]]),
    }
    objectives = rng.choice(
        [["step_time"], ["tokens_per_second_per_gpu"], ["step_time", "memory"], ["memory", "gpus"]]
    )
    return search_space(rng, vary, objectives, {})


def costly_space_of(seed: int) -> Any:
    """A random small search space with objectives and limits of power and dollars."""
    rng = random.Random(seed)
    vary = {
        "plan.tp": rng.choice([[1, 2, 4], [2, 4]]),
        "plan.zero": rng.choice([[0], [0, 1]]),
        "plan.recompute": rng.choice([["none"], ["none", "full"]]),
        "cluster.preset": ["dgx-h100", "dgx-a100"],
        "cluster.nodes": [1, 2],
    }
    costs = ["usd_per_token", "energy_per_token", "usd_per_hour", "power", "price"]
    objectives = rng.sample(costs, rng.choice([1, 2]))
    if rng.random() < 0.5:
        objectives.append("step_time")
    limits: dict[str, Any] = rng.choice(
        [{}, {"max_power": "12 kW"}, {"max_usd_per_hour": 25.0}, {"max_price": 5e5}]
    )
    contract = rng.choice(["on-demand", "owned"])
    return search_space(rng, vary, objectives, limits, prices={"contract": contract})


def search_space(
    rng: random.Random, vary: Any, objectives: list[str], limits: dict[str, Any], **tables: Any
) -> Any:
    search = {"vary": vary, "objectives": objectives, "top": rng.choice([1, 3]), **limits}
    if rng.random() < 0.3:
        search["memory_headroom"] = 40.0
    if rng.random() < 0.3:
        search["max_gpus"] = 8
    return read_search({**SMALL, **tables, "search": search}, "x.toml")


def toml_lines(tables: dict[str, Any]) -> str:
    """Tables → TOML."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines)


SEARCH = """
[model]
preset = "llama-3-8b"
layers = 8
[plan]
global_batch = 32
[cluster]
preset = "dgx-h100"
nodes = 1
[search]
top = 3
[search.vary]
plan.tp = [1, 2, 4]
plan.pp = { powers_of_two = [1, 4] }
"""
"""A file with a search of nine candidates."""
