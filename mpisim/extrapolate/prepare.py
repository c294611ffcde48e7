"""Experiments of a program or of a trace → what is to be run.

[workload] program ─► the program of a file           (mpisim.prediction.prepared_program)
[workload] trace   ─► the trace, extrapolated by [plan] ─► the program of all ranks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.errors import InputError, TraceError, UsageError
from ..base.schema import build
from ..experiment import ClusterChoice, ProgramExperiment
from ..experiment.program_experiment import OF_SEVERAL_RANKS, WorkloadChoice
from ..prediction.prepared import PreparedExperiment
from ..prediction.prepared_program import PreparedProgram, prepare_captured, prepare_program
from ..traces import find_sources
from .captured_step import check_captured
from .grow import Extrapolated, extrapolate
from .read import is_of_mpisim, read_step
from .step import TracedStep
from .target import Target
from .triosim_step import is_triosim

__all__ = [
    "cluster_gpus",
    "of_several_ranks",
    "prepare_traced",
    "prepare_workload",
    "read_other_traces",
    "read_traced",
    "read_traces_of",
    "trace_path",
]


def of_several_ranks(paths: Sequence[str | Path]) -> bool:
    """Whether traces are of a job of several ranks, be it that only one of them is at hand. Local.

    Parameters
    ----------
    paths : sequence of paths
        Files and folders.

    Raises
    ------
    TraceError
        If there is no trace, a rank twice, or files of different jobs.
    InputError
        For a file of mpisim that is of no captured job of one rank, or one among other files.
    """
    for path in filter(is_of_mpisim, paths):
        check_captured(path)
        if len(paths) > 1:
            raise TraceError(f"{path}: a captured program, given together with other files")
        return False
    if len(paths) == 1 and is_triosim(paths[0]):
        return False
    sources = find_sources(paths, allow_missing=True)
    return len(sources) > 1 or max(source.world_size for source in sources) > 1


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
    if experiment.trace is None:
        return prepare_program(experiment)
    traces = read_other_traces(experiment)
    return prepare_traced(experiment, read_traced(experiment), traces)[0]


def trace_path(experiment: ProgramExperiment) -> Path:
    """Experiment of a trace → path of its trace, relative to the experiment's file.

    Parameters
    ----------
    experiment : ProgramExperiment
        With ``workload.trace``.

    Returns
    -------
    Path
    """
    assert experiment.trace is not None
    return Path(experiment.source).parent / str(experiment.trace.trace)


def read_traced(experiment: ProgramExperiment) -> TracedStep:
    """Experiment of a trace → the step of one GPU that it names. Local.

    Parameters
    ----------
    experiment : ProgramExperiment
        With ``workload.trace``.

    Returns
    -------
    TracedStep

    Raises
    ------
    InputError
        If the trace cannot be read, or is of several ranks.
    UsageError
        If a key is given that only traces of several ranks have.
    """
    choice, path = experiment.trace, trace_path(experiment)
    assert choice is not None
    if of_several_ranks([path]):
        raise InputError(
            f"{experiment.source}: key 'workload.trace' is {str(choice.trace)!r}, of several ranks;"
            " mpisim extrapolate grows it, and mpisim search compares ways to"
        )
    for key in OF_SEVERAL_RANKS:
        if getattr(choice, key) is not None:
            raise UsageError(
                f"{experiment.source}: key 'workload.{key}' is given; it is for traces of several "
                f"ranks, and {choice.trace} is of one GPU"
            )
    shapes = choice.execution_trace
    return read_step(
        path,
        gpu=choice.traced_gpu,
        step=choice.traced_step,
        batch=choice.traced_batch,
        execution_trace=None if shapes is None else Path(experiment.source).parent / shapes,
    )


def read_other_traces(experiment: ProgramExperiment) -> dict[str, TracedStep]:
    """Experiment of a trace → steps recorded on other GPUs (``workload.trace_of``). Local.

    Parameters
    ----------
    experiment : ProgramExperiment
        With ``workload.trace``.

    Returns
    -------
    dict of str to TracedStep
        By name of the GPU; empty if none is given.

    Raises
    ------
    InputError
        If one cannot be read, or is of several ranks.
    """
    choice = experiment.trace
    assert choice is not None
    folder = Path(experiment.source).parent
    given = {gpu: folder / path for gpu, path in choice.trace_of.items()}
    return read_traces_of(given, experiment.source)


def read_traces_of(given: Mapping[str, Path], source: str) -> dict[str, TracedStep]:
    """Read a trace of one step for each of some GPUs. Local.

    Parameters
    ----------
    given : mapping of str to Path
        By the name of the GPU.
    source : str
        What names them, for messages.

    Raises
    ------
    InputError
        If one cannot be read, or is of several ranks.
    """
    found = {}
    for gpu, path in given.items():
        if of_several_ranks([path]):
            raise InputError(f"{source}: trace_of {gpu!r} is {str(path)!r}, of several ranks")
        found[gpu] = read_step(path, gpu=gpu)
    return found


def prepare_traced(
    experiment: ProgramExperiment,
    step: TracedStep,
    traces: Mapping[str, TracedStep] | None = None,
) -> tuple[PreparedProgram, Extrapolated]:
    """Lay the plan of an experiment over a traced step, and look up where it is to run. Local.

    Parameters
    ----------
    experiment : ProgramExperiment
        Of a trace.
    step : TracedStep
        What `read_traced` has read.
    traces : mapping of str to TracedStep, optional
        What `read_other_traces` has read; none if not given.

    Returns
    -------
    PreparedProgram
    Extrapolated
        What it was made of: layout, GPUs, samples.

    Raises
    ------
    InputError
        If trace, plan and cluster do not go together.
    """
    choice, source = experiment.trace, experiment.source
    assert choice is not None
    gpus = cluster_gpus(experiment)
    try:
        found = extrapolate(step, _target(experiment, choice, gpus, traces or {}))
    except InputError as error:
        # Some messages begin with the table already.
        text = str(error).replace("[plan]: [plan]", "[plan]", 1)
        raise InputError(f"{source}: {text}") from error
    grid = found.workload.layout.grid
    if gpus is not None and grid.world > gpus:
        raise InputError(
            f"{source}: the plan needs {grid.world} GPUs (dp = {grid.dp}, tp × cp × pp = "
            f"{grid.tp} × {grid.cp} × {grid.pp}), but the cluster has {gpus}: "
            "raise 'nodes' in [cluster]"
        )
    own = dict(experiment.tables.get("cluster", {}))
    own.pop("gpus", None)
    own.pop("other_gpus", None)
    own["nodes"] = max(found.nodes, int(own.get("nodes", 1)))
    title = experiment.title or found.workload.layout.experiment.title
    program = found.program.replace(attributes={**found.program.attributes, "title": title})
    tables = {**experiment.tables, "cluster": own}
    return prepare_captured(ProgramExperiment("", tables, title, source), program), found


def cluster_gpus(experiment: ProgramExperiment) -> int | None:
    """``[cluster]`` of an experiment of a trace → GPUs to use; None where it does not say.

    Parameters
    ----------
    experiment : ProgramExperiment

    Raises
    ------
    InputError
        If a key of the table is not as it must be.
    """
    table = experiment.tables.get("cluster", {})
    if "nodes" not in table and "gpus" not in table:
        return None
    choice = build(ClusterChoice, table, experiment.source, "cluster")
    return choice.gpus or choice.nodes * choice.node_gpus


def _target(
    experiment: ProgramExperiment,
    choice: WorkloadChoice,
    gpus: int | None,
    traces: Mapping[str, TracedStep],
) -> Target:
    """Return where and how the trace of an experiment is to run; on `gpus`, if that is given."""
    table: dict[str, Any] = dict(experiment.tables.get("cluster", {}))
    preset = table.get("preset")
    if not isinstance(preset, str):
        raise InputError("key 'cluster.preset' is missing: the cluster to run on")
    keys = dict(experiment.plan)
    batch = keys.pop("global_batch", None)
    if batch is not None and not (isinstance(batch, int) and batch >= 1):
        raise InputError(f"key 'plan.global_batch' is {batch!r}; it must be a whole number from 1")
    if "dp" not in keys and gpus is not None:
        model = keys.get("tp", 1) * keys.get("cp", 1) * keys.get("pp", 1)
        if gpus % model:
            raise InputError(
                f"tp × cp × pp = {model} does not divide the {gpus} GPUs of the cluster"
            )
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
        choice.scaling,
        choice.upload,
        traces,
        experiment.data,
    )
