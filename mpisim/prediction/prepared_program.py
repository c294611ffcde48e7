"""Program file and choices → `PreparedExperiment` or `PreparedProgram`, ready to be run.

A program that ``mpisim run`` has saved holds the experiment it was written from. It is simulated as
that: its rows, with the network, overlap and variation of the experiment, changed by the choices.
Any other program has the choices alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, UsageError
from ..base.frozen import frozen
from ..experiment import (
    Experiment,
    ProgramChoices,
    ProgramExperiment,
    ScaleChoice,
    deserialize,
    serialize,
)
from ..experiment.serialization import with_absolute_paths
from ..kernels import find_gpu
from ..kernels.analytical import analytical_model
from ..kernels.counted import COUNTED, PricedShares
from ..kernels.scaled import rated_gpu
from ..program import UNPRICED, Kind, Program, Table, load
from ..topo import Cluster, Network, find_cluster
from ..topo.scaled import LINK_SCALES
from ..topo.speeds import with_speeds
from ..workloads.input_pipeline import PREPARE, preparation_times, prepares
from ..workloads.pricing import Pricing
from .hardware import check_speeds, with_scale
from .network import NetworkCache, NetworkRequest
from .prepared import PreparedExperiment, prepare, with_step_constants
from .variation import with_changed_variation, with_variation

__all__ = ["PreparedProgram", "prepare_captured", "prepare_program", "saved_program"]

EXPERIMENT_ATTRIBUTE = "experiment"
"""Attribute of a program: the experiment it was written from (`serialize`)."""

FIXED_BY_PROGRAM = ("gpus", "other_gpus")
"""Keys of ``[cluster]`` that a program file fixes."""


CPU_COLUMNS = ("host", "launch", "launch_cost")

OF_ROWS = ("launch_time", "communications", "data_loading")
"""Keys of ``[scale]`` that change times of a program's rows."""


@frozen
class PreparedProgram:
    """A program without a known experiment (recorded or captured), ready to be run.

    Attributes
    ----------
    experiment : ProgramChoices
    program : Program
        With the speeds and the jitter chosen.
    request : NetworkRequest, optional
        None where no network is chosen.
    counted : PricedShares
        Of kernels that were priced by what they count.
    pricing : Pricing, optional
        Descriptions of its kernels, where known, for their slowdown by overlapping communications.
    networks : NetworkCache
    """

    experiment: ProgramChoices
    program: Program
    request: NetworkRequest | None
    counted: PricedShares = field(default_factory=PricedShares)
    pricing: Pricing | None = field(default=None, compare=False, repr=False)
    networks: NetworkCache = field(default_factory=NetworkCache, compare=False, repr=False)

    @cached_property
    def cluster(self) -> Cluster | None:
        """The cluster, with the speeds chosen."""
        return None if self.request is None else self.request.placed

    @cached_property
    def network(self) -> Network | None:
        """The network that prices communications without a duration."""
        return None if self.request is None else self.request.network(self.networks)

    def sample(self, number: int) -> PreparedProgram:
        """Return the same with other random factors: those of the seed plus `number`."""
        choice = self.experiment.variation
        return replace(self, program=with_changed_variation(self.program, choice, choice, number))


def saved_program(prepared: PreparedExperiment | PreparedProgram) -> Program:
    """Return the program as files hold it: with the experiment that generated it. Local."""
    program = prepared.program
    if isinstance(prepared, PreparedProgram):
        attributes = {COUNTED: prepared.counted.text} if prepared.counted.text else {}
        return program.replace(attributes={**program.attributes, **attributes})
    return program.replace(
        attributes={**program.attributes, EXPERIMENT_ATTRIBUTE: serialize(prepared.experiment)}
    )


def prepare_program(experiment: ProgramExperiment) -> PreparedExperiment | PreparedProgram:
    """Program file and choices → prepared program: rows read, cluster looked up. Local.

    Returns
    -------
    PreparedExperiment
        Of a program that holds the experiment it was written from.
    PreparedProgram
        Of any other.

    Raises
    ------
    InputError
        If a file cannot be read, or the choices contradict each other.
    UsageError
        For keys that do not apply to such a program.
    """
    path = Path(experiment.source).parent / experiment.program
    program = load(path)
    attributes = dict(program.attributes)
    text = attributes.pop(EXPERIMENT_ATTRIBUTE, None)
    if text is None:
        return _prepare_with_choices(experiment, program)
    program = program.replace(attributes=attributes)
    before = deserialize(text, str(path))
    mine = {key: dict(table) for key, table in before.given.items() if isinstance(table, dict)}
    tables = _merged(mine, _absolute_tables(experiment))
    if "cluster" in experiment.tables:
        tables["cluster"] = _cluster_table(experiment, before, program.n_ranks)
    title = {"title": experiment.title or before.title}
    after = replace(
        deserialize(text, experiment.source, {**tables, **title}), source=experiment.source
    )
    try:
        return _prepare_saved(program, before, after, str(path))
    except InputError as error:
        message = str(error)
        if message.startswith(experiment.source):
            raise
        raise type(error)(f"{experiment.source}: {message}") from error


def prepare_captured(experiment: ProgramExperiment, program: Program) -> PreparedProgram:
    """Program in memory and choices → `PreparedProgram` with its cluster looked up. Local.

    Parameters
    ----------
    experiment : ProgramExperiment
        Its tables; the file it names is not read.
    program : Program
        Of no known experiment.

    Raises
    ------
    InputError
        If the choices contradict each other.
    """
    return _prepare_with_choices(experiment, program)


# --- of an experiment ---------------------------------------------------------------------------


def _prepare_saved(
    program: Program, before: Experiment, after: Experiment, path: str
) -> PreparedExperiment:
    """Prepare a program that was saved with experiment `before` and is to run as `after`."""
    networks = NetworkCache()
    saved_on = replace(after, cluster=before.cluster, network=before.network)
    base = prepare(saved_on, networks=networks)
    ranks = base.program.n_ranks
    if program.n_ranks != ranks:
        raise InputError(
            f"{path}: holds {program.n_ranks} ranks, but the experiment kept in it has {ranks}: "
            "the file is damaged"
        )
    paces = [(each.variation.waits_for_slowest, _of_gpus(each.scale)) for each in (before, after)]
    if paces[0] != paces[1]:
        program = _with_other_pace(program, prepare(before, networks=networks), base)
    program = _with_scaled_rows(program, before.scale, after.scale)
    program = with_changed_variation(program, before.variation, after.variation)
    notes = _notes(program, base, before, after)
    prepared = replace(base, experiment=after, workload=replace(base.workload, program=program))
    if (after.cluster, after.network) == (before.cluster, before.network):
        return replace(prepared, notes=notes)
    check_speeds(after.cluster.speeds, after.network.model)
    cluster = with_speeds(find_cluster(after.cluster.preset), after.cluster.speeds)
    cluster = with_scale(cluster, after.scale, after.network.model)
    constants = base.constants
    if constants is not None:
        platform = cluster.nccl.platform or Path(after.cluster.preset).stem
        constants = replace(constants, platform=platform)
    folder = Path(after.source).parent
    network = networks.network_of(cluster, after.cluster.nodes, after.network, folder)
    network = with_step_constants(network, constants)
    return replace(prepared, cluster=cluster, network=network, constants=constants, notes=notes)


def _of_gpus(scale: ScaleChoice) -> dict[str, float]:
    """Return the factors of ``[scale]`` that change kernels."""
    names = ("hbm_bandwidth", "matrix_rate", "pcie_bandwidth")
    return {name: getattr(scale, name) for name in names}


def _scaled(times: NDArray[np.int64], factor: float) -> NDArray[np.int64]:
    """Times, factor → times multiplied by it, in whole ps."""
    return np.rint(times * factor).astype(np.int64)


def _with_scaled_rows(program: Program, before: ScaleChoice, after: ScaleChoice) -> Program:
    """Program written with one scale → the same as written with another.

    The CPU's times, the durations of communications and the host's work for the next step change.
    """
    longer = after.launch_time / before.launch_time
    faster = after.communications / before.communications
    loading = after.data_loading / before.data_loading
    if longer == faster == loading == 1:
        return program

    def changed(table: Table) -> Table:
        given = table.is_communication & (table.duration != UNPRICED)
        cpu: dict[str, Any] = {each: _scaled(getattr(table, each), longer) for each in CPU_COLUMNS}
        duration = np.where(given, _scaled(table.duration, 1 / faster), table.duration)
        loads = prepares(program, table)
        duration = np.where(loads, _scaled(table.duration, 1 / loading), duration)
        return replace(table, **cpu, duration=duration, original=None)

    tables = (None if table is None else changed(table) for table in program.tables)
    return program.replace(tables=tuple(tables))


def _with_other_pace(program: Program, old: PreparedExperiment, new: PreparedExperiment) -> Program:
    """Return a program whose products are at the pace that another choice of GPUs sets."""
    number = {name: i for i, name in enumerate(program.names)}
    tables = list(program.tables)
    kinds = new.workload.layout.gpu_of
    for i, table in enumerate(tables):
        users = np.flatnonzero(program.table == i)
        if table is None or not len(users):
            continue
        kind = 0 if kinds is None else int(kinds[users[0]])
        duration = table.duration.copy()
        kernels = table.kind == Kind.KERNEL
        pricing = new.workload.pricings[kind]
        for (name, length), kernel in old.workload.pricings[kind].kernels.items():
            if name in number:
                rows = kernels & (table.name == number[name]) & (table.duration == length)
                duration[rows] = pricing.estimate(name, kernel).duration
        tables[i] = table.replace(duration=duration)
    return program.replace(tables=tuple(tables))


def _notes(
    program: Program, base: PreparedExperiment, before: Experiment, after: Experiment
) -> tuple[str, ...]:
    """Return notes on properties that a saved program keeps from another cluster."""
    lines = []
    if after.cluster.preset != before.cluster.preset:
        lines.append(f"kernels' times are those of the program: {base.gpu.title}")
    unknown = total = 0
    kinds = base.workload.layout.gpu_of
    for i, table in enumerate(program.tables):
        users = np.flatnonzero(program.table == i)
        if table is None or not len(users):
            continue
        known = base.workload.pricings[0 if kinds is None else int(kinds[users[0]])].kernels
        rows = np.flatnonzero((table.kind == Kind.KERNEL) & (table.duration > 0))
        pairs, count = np.unique(
            np.stack([table.name[rows].astype(np.int64), table.duration[rows]], axis=1),
            axis=0,
            return_counts=True,
        )
        for (name, length), times in zip(pairs.tolist(), count.tolist(), strict=True):
            total += times * len(users)
            unknown += times * len(users) * ((program.names[name], length) not in known)
    if unknown:
        lines.append(
            f"{unknown:,} of {total:,} kernels are not as the experiment kept in the program has "
            "them: their times have no error bar, and overlap does not slow them"
        )
    return tuple(lines)


def _absolute_tables(experiment: ProgramExperiment) -> dict[str, dict[str, Any]]:
    """Return the tables given but that of the cluster; files by absolute paths."""
    others = {key: table for key, table in experiment.tables.items() if key != "cluster"}
    return with_absolute_paths(others, experiment.source)


def _merged(mine: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(mine)
    for key, value in over.items():
        within = found.get(key)
        both = isinstance(within, dict) and isinstance(value, dict)
        found[key] = _merged(within, value) if both and isinstance(within, dict) else value
    return found


def _cluster_table(experiment: ProgramExperiment, before: Experiment, ranks: int) -> dict[str, Any]:
    """Return the table ``[cluster]``: that of the saved experiment, changed by the one given."""
    own = with_absolute_paths({"cluster": experiment.tables["cluster"]}, experiment.source)[
        "cluster"
    ]
    mine = dict(before.given["cluster"])
    _check_cluster(experiment.source, own, ranks)
    if own.get("preset", mine["preset"]) != mine["preset"]:
        mine = {}  # speeds and numbers of nodes are of the other cluster
    table = {**mine, **own}
    table.setdefault("gpus", ranks)
    return _with_nodes(experiment.source, table, ranks)


# --- of no experiment ---------------------------------------------------------------------------


def _prepare_with_choices(experiment: ProgramExperiment, program: Program) -> PreparedProgram:
    tables, source = dict(experiment.tables), experiment.source
    cluster = dict(tables.get("cluster", {}))
    if cluster:
        _check_cluster(source, cluster, program.n_ranks)
    if "preset" not in cluster:
        for table in ("cluster", "network", "scale"):
            given = [key for key in tables.get(table, {}) if key not in OF_ROWS]
            if given:
                key = given[0]
                raise UsageError(f"{source}: {table}.{key} needs a network: --cluster NAME")
    else:
        tables["cluster"] = _with_nodes(source, cluster, program.n_ranks)
    run = tables.pop("run", {})
    if run:
        raise UsageError(
            f"{source}: key 'run.{next(iter(run))}' has no effect: the program does not say what "
            "memory it needs"
        )
    attributes = dict(program.attributes)
    counted = PricedShares.read(attributes.pop(COUNTED, None), source)
    overlap = tables.get("overlap", {})
    if overlap and overlap != {"model": "off"}:
        key = next(iter(overlap))
        if not counted.kernels:
            raise UsageError(
                f"{source}: key 'overlap.{key}' has no effect: the program does not say what its "
                "kernels do; allowed: overlap.model = 'off'"
            )
        if "preset" not in cluster:
            raise UsageError(f"{source}: overlap.{key} needs a network: --cluster NAME")
    choices = ProgramChoices.of(tables, source)
    for key in choices.scale.changes:
        if key not in (*LINK_SCALES, *OF_ROWS):
            raise UsageError(
                f"{source}: key 'scale.{key}' has no effect: the program does not say what its "
                "kernels do; their speed is variation.speeds"
            )
    if choices.scale.data_loading != 1 and not preparation_times(program):
        raise UsageError(
            f"{source}: key 'scale.data_loading' has no effect: the program prepares no images"
        )
    program = program.replace(attributes=attributes)
    try:
        program = with_variation(program, choices.variation)
        program = _with_scaled_rows(program, ScaleChoice(), choices.scale)
        counted = _with_scaled_loading(counted, choices.scale.data_loading)
        if choices.variation.slowest:
            raise InputError(
                "variation.slowest is true; the program does not say which kernels are products"
            )
        if choices.cluster is None:
            return PreparedProgram(choices, program, None, counted)
        check_speeds(choices.cluster.speeds, choices.network.model)
        preset = find_cluster(choices.cluster.preset)
        folder = Path(source).parent
        placed = choices.cluster
        request = NetworkRequest(
            preset, placed.nodes, choices.network, placed.speeds, folder, choices.scale
        )
        prepared = PreparedProgram(choices, program, request, counted, _pricing(counted))
        prepared.network  # noqa: B018 - errors in the choices come before the run
    except InputError as error:
        raise type(error)(f"{source}: {error}") from error
    return prepared


def _with_scaled_loading(counted: PricedShares, faster: float) -> PricedShares:
    """Shares of prices → the same for images that are prepared `faster` times as fast."""
    if faster == 1:
        return counted
    times = np.array([time for _, time in counted.shares], np.int64)
    shares = {
        (name, shorter if name == PREPARE else time): rest
        for ((name, time), rest), shorter in zip(
            counted.shares.items(), _scaled(times, 1 / faster).tolist(), strict=True
        )
    }
    return replace(counted, shares=shares)


def _pricing(counted: PricedShares) -> Pricing | None:
    """Return the prices of a program's kernels; None if its file does not describe them."""
    if not counted.kernels:
        return None
    pricing = Pricing(analytical_model(rated_gpu(find_gpu(counted.gpu))))
    pricing.kernels.update(counted.kernels)
    return pricing


def _check_cluster(source: str, table: Mapping[str, Any], ranks: int) -> None:
    """Refuse keys of ``[cluster]`` that contradict what the program file fixes."""
    for key in FIXED_BY_PROGRAM:
        if key in table and (key, table[key]) != ("gpus", ranks):
            raise UsageError(
                f"{source}: key 'cluster.{key}' is {table[key]!r}, but the program file fixes it: "
                f"{ranks} ranks, one a GPU, and how long their kernels take"
            )


def _with_nodes(source: str, table: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Return ``[cluster]`` with as many nodes as ranks need, if it does not say how many."""
    preset = table.get("preset")
    if not isinstance(preset, str):
        return table  # refused with the rest of the table
    own = table.get("gpus_per_node")
    try:
        each = own if type(own) is int and own > 0 else find_cluster(preset).gpus_per_node
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    least = -(-ranks // each)
    nodes = table.setdefault("nodes", least)
    if type(nodes) is int and 1 <= nodes < least:
        raise InputError(
            f"{source}: cluster.nodes is {nodes}; the program's {ranks} ranks need {least} nodes "
            f"of {each} GPUs"
        )
    return table
