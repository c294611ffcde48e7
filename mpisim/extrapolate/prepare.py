"""Experiments of a program or of a trace → what is to be run.

[workload] program ─► the program of a file           (mpisim.prediction.prepared_program)
[workload] trace   ─► the trace, extrapolated by [plan] ─► the program of all ranks
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..base.errors import InputError
from ..experiment import ProgramExperiment
from ..experiment.program_experiment import WorkloadChoice
from ..prediction.prepared import PreparedExperiment
from ..prediction.prepared_program import PreparedProgram, prepare_captured, prepare_program
from ..topo import find_cluster
from .grow import Target, extrapolate
from .read import read_step

__all__ = ["prepare_workload"]


def prepare_workload(experiment: ProgramExperiment) -> PreparedExperiment | PreparedProgram:
    """Read the program or the trace of an experiment, and look up where it is to run. Local.

    Parameters
    ----------
    experiment : ProgramExperiment

    Raises
    ------
    InputError
        If a file cannot be read, or the choices contradict each other.
    UsageError
        For keys that do not apply.
    """
    choice = experiment.trace
    if choice is None:
        return prepare_program(experiment)
    source = experiment.source
    step = read_step(
        Path(source).parent / str(choice.trace),
        gpu=choice.traced_gpu,
        step=choice.traced_step,
        batch=choice.traced_batch,
    )
    try:
        found = extrapolate(step, _target(experiment, choice))
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    own = dict(experiment.tables.get("cluster", {}))
    own.pop("gpus", None)
    own.pop("other_gpus", None)
    own["nodes"] = max(found.nodes, int(own.get("nodes", 1)))
    title = experiment.title or found.workload.layout.experiment.title
    program = found.program.replace(attributes={**found.program.attributes, "title": title})
    return prepare_captured(
        ProgramExperiment("", {**experiment.tables, "cluster": own}, title, source), program
    )


def _target(experiment: ProgramExperiment, choice: WorkloadChoice) -> Target:
    """Return where and how the trace of an experiment is to run."""
    table: dict[str, Any] = dict(experiment.tables.get("cluster", {}))
    preset = table.get("preset")
    if not isinstance(preset, str):
        raise InputError("key 'cluster.preset' is missing: the cluster to run on")
    keys = dict(experiment.plan)
    batch = keys.pop("global_batch", None)
    if batch is not None and not (isinstance(batch, int) and batch >= 1):
        raise InputError(f"key 'plan.global_batch' is {batch!r}; it must be a whole number from 1")
    if "dp" not in keys and ("nodes" in table or "gpus" in table):
        each = table.get("gpus_per_node") or find_cluster(preset).gpus_per_node
        gpus = table.get("gpus") or table["nodes"] * each
        model = keys.get("tp", 1) * keys.get("pp", 1)
        if gpus % model:
            raise InputError(f"tp × pp = {model} does not divide the {gpus} GPUs of the cluster")
        keys["dp"] = gpus // model
    return Target(
        preset,
        keys,
        batch,
        choice.seq_len,
        choice.gpu,
        choice.threads,
        dict(table.get("other_gpus", {})),
        "[plan]",
    )
