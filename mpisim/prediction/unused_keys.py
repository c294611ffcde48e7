"""Experiment → its given keys of ``[model]`` and ``[plan]`` that have no effect on the step.

A key has no effect if the step without it, and with any other value of it, is the same: the rows of
all ranks, their durations, and the memory. A value has no effect if the default gives the same
step. To find out, the experiment is prepared again, without the key and with its other values, and
compared (`equivalent`). That takes time, so keys that certainly have an effect are not tried
(:mod:`.effective_keys`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..base.errors import InputError
from ..base.rank_ranges import parse_ranges
from ..experiment import Experiment, Plan
from ..experiment.load import experiment_of
from ..experiment.plan_keys import flattened, short_key
from ..kernels import gpu_name
from ..program import COLUMNS, Program, Table
from ..topo import find_cluster
from ..workloads.input_pipeline import image_side
from .effective_keys import EFFECTIVE_KEYS
from .hardware import hardware_of
from .prepared import PreparedExperiment, prepare

__all__ = ["equivalent", "other_values", "unused_keys"]


def unused_keys(prepared: PreparedExperiment) -> list[str]:
    """Experiment → a line for each given key without effect. Local.

    Those of ``[network]`` and speeds of ``[cluster]`` are left to
    `mpisim.prediction.unused_network_keys`.

    Parameters
    ----------
    prepared : PreparedExperiment

    Returns
    -------
    list of str
    """
    experiment = prepared.experiment
    tried = [each for each in _given(experiment) if not _is_effective(each, experiment)]
    lines = [line for name in tried for line in _lines_of_key(name, prepared)]
    return [*lines, *_lines_of_other_tables(prepared)]


def _given(experiment: Experiment) -> Iterator[str]:
    """Yield the keys of model, plan and framework that were given, by full name."""
    for table in ("plan", "framework", "model"):
        for name, _ in flattened(experiment.given.get(table, {}), table):
            yield name


def _is_effective(name: str, experiment: Experiment) -> bool:
    """Whether a key is known to have an effect, or has the value it has by default."""
    sure = EFFECTIVE_KEYS.get(short_key(name))
    if sure is not None and sure(experiment):
        return True
    part, key = _home(experiment, name)
    default = next((each.default for each in fields(part) if each.name == key), None)
    return bool(default == getattr(part, key))


def _home(experiment: Experiment, name: str) -> tuple[Any, str]:
    """Return the table, or sub-table, that has a key, and the key's name in it."""
    *path, key = name.split(".")
    part: Any = experiment
    for each in path:
        part = getattr(part, each)
    return part, key


def _lines_of_key(name: str, prepared: PreparedExperiment) -> list[str]:
    """Return a line for a key, or for entries of its list, without effect."""
    experiment = prepared.experiment
    part, key = _home(experiment, name)
    value = getattr(part, key)
    if isinstance(value, tuple) and len(value) > 1 and _is_choice(type(part), key):
        return [
            f"{name}: {entry!r} has no effect, without it the step is the same"
            for entry in value
            if _is_equivalent_with(name, tuple(each for each in value if each != entry), prepared)
        ]
    if all(
        _is_equivalent_with(name, each, prepared)
        for each in (None, *other_values(experiment, name))
    ):
        return [f"{short_key(name)}: no effect, without it the step is the same"]
    default = next(each.default for each in fields(part) if each.name == key)
    if type(default) is int and _is_equivalent_with(name, default, prepared):
        return [f"{short_key(name)}: {value} has no effect, with {default} the step is the same"]
    return []


def _is_equivalent_with(name: str, value: object, prepared: PreparedExperiment) -> bool:
    """Whether the step is the same with another value of a key, or without it (None)."""
    *path, key = name.split(".")
    experiment = prepared.experiment
    tables = dict(experiment.given)
    within: dict[str, Any] = tables
    for each in path:
        within[each] = dict(within[each])
        within = within[each]
    del within[key]
    if value is not None:
        within[key] = list(value) if isinstance(value, tuple) else value
    run = replace(experiment.run, allow_oom=True)
    try:
        other = experiment_of(tables, experiment.source)
        found = prepare(
            replace(experiment, model=other.model, plan=other.plan, run=run),
            networks=prepared.networks,
        )
    except InputError:  # there is no such experiment without the key
        return False
    return equivalent(prepared, found)


def _is_choice(cls: type, key: str) -> bool:
    """Whether a key is a list of words to choose from."""
    kind = _kind(cls, key)
    return get_origin(kind) is tuple and get_origin(get_args(kind)[0]) is Literal


def other_values(experiment: Experiment, name: str) -> list[Any]:
    """Key → the other values that its type allows, as far as it lists them. Local.

    Parameters
    ----------
    experiment : Experiment
    name : str
        As ``"framework.bucket"``.
    """
    part, key = _home(experiment, name)
    value, kind = getattr(part, key), _kind(type(part), key)
    if get_origin(kind) is Annotated and not isinstance(value, tuple):
        kind, limits = get_args(kind)
        if kind is str:
            return []
        if value is None:
            found = {limits.least, 2, 3, 4}
        else:
            found = {value * 2, value // 2 if kind is int else value / 2, value + 1}
        return sorted(each for each in found if limits.hold(each) and each != value)
    if get_origin(kind) is Literal:
        return [each for each in get_args(kind) if each != value]
    if get_origin(kind) is tuple and get_origin(get_args(kind)[0]) is Literal:
        return [(each,) for each in get_args(get_args(kind)[0]) if (each,) != value]
    if kind is bool:
        return [not value] if value is not None else [False, True]
    if name == "plan.order":
        orders = (Plan.order, "-".join(reversed(Plan.order.split("-"))))
        return [each for each in orders if each != value]
    return []


def _kind(cls: type, key: str) -> Any:
    """Return the type of a key without ``| None``."""
    kind = get_type_hints(cls, include_extras=True)[key]
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    return kind


def _lines_of_other_tables(prepared: PreparedExperiment) -> list[str]:
    """Return lines for keys of other tables than model and plan, found without other steps."""
    experiment = prepared.experiment
    variation, overlap = experiment.variation, experiment.overlap
    lines = []
    if "passes" in experiment.given.get("overlap", {}) and overlap.model != "coupled":
        lines.append(
            f"overlap.passes: no effect, overlap.model is {overlap.model!r}, not 'coupled'"
        )
    if variation.seed and not variation.random:
        lines.append("variation.seed: no effect, nothing is drawn (variation.kernels, .gpus)")
    if experiment.run.allow_oom and prepared.memory.fits:
        lines.append("run.allow_oom: no effect, the plan fits into memory")
    if experiment.cluster.other_gpus:
        lines += _unused_gpus(prepared)
    lines += _unused_data(experiment)
    own = experiment.cluster.gpus_per_node
    if own is not None and own == find_cluster(experiment.cluster.preset).gpus_per_node:
        lines.append(f"cluster.gpus_per_node: no effect, the cluster's nodes have {own}")
    return [*lines, *_unused_prices(experiment)]


def _unused_data(experiment: Experiment) -> list[str]:
    """Return lines for keys of ``[data]`` that no step depends on."""
    given = experiment.given.get("data", {})
    if image_side(experiment.model) is None:
        return [f"data.{key}: no effect, the model takes no images" for key in given]
    if experiment.data.images == "jpeg":
        return []
    why = "no effect, data.images is 'synthetic', which nobody prepares"
    return [f"data.{key}: {why}" for key in given if key != "images"]


def _unused_prices(experiment: Experiment) -> list[str]:
    """Return lines for prices that no dollar depends on."""
    choice = experiment.prices
    owned = choice.contract == "owned"
    keys = ("gpu_hour", "gpu_hours") if owned else ("kwh", "years")
    why = f"no effect, prices.contract is {choice.contract!r}"
    lines = [f"prices.{key}: {why}" for key in keys if getattr(choice, key)]
    if owned:
        return lines
    used = {gpu_name(name) for name in hardware_of(experiment).named}
    return [
        *lines,
        *(
            f"prices.gpu_hours.{name}: no effect, the cluster has {', '.join(sorted(used))}"
            for name in choice.gpu_hours
            if gpu_name(name) not in used
        ),
    ]


def _unused_gpus(prepared: PreparedExperiment) -> list[str]:
    """Return lines for nodes with other GPUs of which none is used."""
    choice = prepared.experiment.cluster
    used = -(-prepared.program.n_ranks // prepared.cluster.gpus_per_node)
    return [
        f"cluster.other_gpus.{nodes!r}: no effect, nodes 0 to {used - 1} are used"
        for nodes in choice.other_gpus
        if np.min(parse_ranges(nodes, "other_gpus", "node", choice.nodes)) >= used
    ]


# --- whether two prepared experiments are the same to a run ---------------------------------------


PARTS = ("table", "slot_index", "slots", "speed", "start")
GROUPS = ("index", "members")


def equivalent(one: PreparedExperiment, other: PreparedExperiment) -> bool:
    """Two prepared experiments → whether their programs and memory are equal. Local.

    Titles do not count.

    Parameters
    ----------
    one, other : PreparedExperiment
    """
    work, others = one.workload, other.workload
    return (
        one.memory.peak == other.memory.peak
        and (work.flops, work.tokens) == (others.flops, others.tokens)
        and _same_programs(one.program, other.program)
    )


def _same_programs(one: Program, other: Program) -> bool:
    if one.names != other.names or one.jitter != other.jitter:
        return False
    if len(one.tables) != len(other.tables):
        return False
    return (
        all(np.array_equal(getattr(one, part), getattr(other, part)) for part in PARTS)
        and all(
            np.array_equal(getattr(one.communicators, part), getattr(other.communicators, part))
            for part in GROUPS
        )
        and all(map(_same_tables, one.tables, other.tables))
    )


def _same_tables(one: Table | None, other: Table | None) -> bool:
    if one is None or other is None:
        return one is other
    columns = (*COLUMNS, "wait_index", "wait_row")
    return one.queue_depth == other.queue_depth and all(
        np.array_equal(getattr(one, column), getattr(other, column)) for column in columns
    )
