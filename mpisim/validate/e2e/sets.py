"""Sets of rows whose errors are stated by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .compare import Compared

__all__ = ["SETS", "chosen"]

Choice = Callable[[Compared], bool]


def _trust(each: Compared, levels: str) -> bool:
    return each.row.texts["trust"] in levels


def _source(name: str, precision: str = "") -> Choice:
    def holds(each: Compared) -> bool:
        right = not precision or each.row.texts["precision"] == precision
        return each.mapped.source == name and right and _trust(each, "AB")

    return holds


SETS: dict[str, Choice] = {
    "dense transformers, trust A": lambda each: each.mapped.is_dense and _trust(each, "A"),
    "vTrain, several nodes": lambda each: each.mapped.source == "vtrain" and _trust(each, "A"),
    "dgxc, bf16": _source("dgxc", "bf16"),
    "dgxc, fp8": _source("dgxc", "fp8"),
    "llm-foundry": _source("llm-foundry"),
    "bigscience": _source("bigscience"),
    "torchtitan": _source("torchtitan"),
    "Korthikanti": _source("korthikanti"),
    "MLPerf, GPT-3": lambda each: (
        _source("mlperf")(each) and each.row.texts["model"].startswith("GPT-3")
    ),
    "Megatron-Bridge, dense": lambda each: each.mapped.is_dense and _source("bridge")(each),
    "mixtures of experts": lambda each: (
        each.mapped.is_transformer and not each.mapped.is_dense and _trust(each, "AB")
    ),
    "trust A": lambda each: _trust(each, "A"),
    "trust A and B": lambda each: _trust(each, "AB"),
    "trust A, B and C": lambda each: _trust(each, "ABC"),
    "trust F (a formula)": lambda each: _trust(each, "F"),
}
"""By name. Sets of one source hold rows of trust A and B."""


def chosen(rows: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Return the rows of each set, and of each that has some without its suspect rows; empty sets
    left out."""
    found: dict[str, list[Compared]] = {}
    for name, holds in SETS.items():
        group = [each for each in rows if holds(each)]
        sound = [each for each in group if not each.row.texts["suspect"]]
        if group:
            found[name] = group
        if sound and len(sound) < len(group):
            found[f"{name}, without suspect rows"] = sound
    return found
