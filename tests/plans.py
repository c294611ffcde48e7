"""Plans by keys, ``plan_of(tp=2, recompute_layers=1, kernels="eager")``, and small experiments."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from typing import Any

from mpisim.base.toml import toml_table
from mpisim.experiment import Plan, keys_of, with_keys
from mpisim.experiment.plan_keys import nested
from mpisim.experiment.plan_options import MAIN_KEYS

ALONE = dict.fromkeys(("tp", "cp", "dp", "ep", "pp", "shard", "eshard", "model", "embedding"), 1)
"""Sizes of all groups of ranks of one GPU: 1."""

GPT_STEP = """
[model]
family = "gpt"
layers = 8
hidden = 64
heads = 4
seq_len = 32
vocab = 128
{model}

{plan}

[cluster]
preset = "dgx-h100"
nodes = 1
"""
"""A GPT of 8 small layers on one node; ``{model}`` and ``{plan}`` are to be filled in."""

TWO_NODES = """
[model]
family = "gpt"
layers = 2
hidden = 1024
heads = 8
vocab = 32000
seq_len = 512
[plan]
tp = 4
dp = 4
micro_batch = 1
global_batch = 8
[cluster]
preset = "dgx-h100"
nodes = 2
"""
"""An experiment on two nodes, whose links data parallelism shares."""

NAMES: dict[str, str] = {}
"""Words of calls → keys of a plan: ``recompute`` and ``precision`` are main keys, ``overlap_dp``
and ``recompute_layers`` have the name of their sub-table, those of ``[framework]`` have none."""

for key in keys_of(Plan(1)):
    group, _, name = key.rpartition(".")
    own = group in ("", "framework", "tables", "pipeline") or name.startswith("fp8_")
    word = name if own else f"{group}_{name}"
    assert word not in NAMES, word
    NAMES[word] = key
NAMES |= {group: f"{group}.{main}" for group, main in MAIN_KEYS.items() if main}


def plan_of(global_batch: int = 64, **words: Any) -> Plan:
    """Make a plan."""
    return changed(Plan(global_batch), **words)


def plan_tables(**words: Any) -> dict[str, Any]:
    """Make the tables ``[plan]`` and ``[framework]`` of a file."""
    named = {NAMES[word]: value for word, value in words.items()}
    return {"plan": {}} | nested(
        {key if key.startswith("framework.") else f"plan.{key}": named[key] for key in named}
    )


def plan_text(text: str = "", **words: Any) -> str:
    """Write these tables: words as keys of a text, or as they are."""
    return toml_table(plan_tables(**tomllib.loads(text), **words))


def changed(plan: Plan, **words: Any) -> Plan:
    """Change keys of a plan."""
    return with_keys(plan, {NAMES[word]: value for word, value in words.items()})


assert {each.name for each in fields(Plan)} >= {*MAIN_KEYS}
