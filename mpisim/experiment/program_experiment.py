"""Experiments of a program file: ``[workload]`` in place of ``[model]`` and ``[plan]``.

The program file holds the rows of all ranks and how long kernels take. Everything else is a choice
as in any experiment: ``[cluster]``, ``[scale]``, ``[network]``, ``[overlap]``, ``[variation]`` and
``[run]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from ..base.errors import InputError, UsageError, nearest
from ..base.frozen import frozen
from ..base.schema import Limits, build, defaults
from .choices import (
    ClusterChoice,
    DataChoice,
    NetworkChoice,
    OverlapChoice,
    RunChoice,
    ScaleChoice,
    VariationChoice,
    data_choice,
)
from .experiment import keys_at_defaults
from .models import Count

__all__ = [
    "OF_ONE_GPU",
    "OF_SEVERAL_RANKS",
    "ProgramChoices",
    "ProgramExperiment",
    "WorkloadChoice",
    "program_experiment",
]

TABLES: dict[str, Any] = {
    "cluster": ClusterChoice,
    "scale": ScaleChoice,
    "network": NetworkChoice,
    "overlap": OverlapChoice,
    "variation": VariationChoice,
    "run": RunChoice,
}
"""Tables that an experiment of a program file may have besides ``[workload]``."""

PLAN_TABLES = ("plan", "framework", "data")
"""Tables besides, of an experiment of a trace."""

FIXED_TABLES = ("model", "plan", "data", "kernels", "calibration")
"""Tables of other experiments that a program file fixes: it holds their outcome."""


OF_ONE_GPU = (
    *("traced_gpu", "traced_step", "execution_trace", "trace_of", "seq_len", "threads", "upload"),
)
"""Keys of ``[workload]`` for a trace of one GPU alone."""

OF_SEVERAL_RANKS = ("traced_cluster", "layout", "distributed_optimizer", "micro_batches")
"""Keys of ``[workload]`` for a trace of several ranks alone."""


@frozen
class WorkloadChoice:
    """The table ``[workload]``: which program file is simulated.

    Attributes
    ----------
    program : str, optional
        A program file, its path relative to the experiment's: what ``mpisim run --save-program``,
        ``mpisim replay --save-program`` and ``mpisim program import`` have written.
    trace : str, optional
        In its place a trace of one training step on one GPU, its path relative likewise, which the
        plan is laid over (``mpisim extrapolate``); ``mpisim search`` takes the folder of a job of
        several ranks, too.
    traced_gpu : str, optional
        The GPU it is of, where the file does not name it.
    traced_batch, traced_step : int, optional
        Samples of the traced step, where they are not clear; number of the profiled step.
    execution_trace : str, optional
        PyTorch's execution trace of the same step, for shapes that the trace lacks, its path
        relative likewise; one in the trace's folder needs no naming.
    trace_of : mapping of str to str
        Traces of the same step on other GPUs of the job, by the GPU's name, their paths relative
        likewise: ranks that have such a GPU do as its trace says. Others do as `trace` says.
    gpu : str, optional
        GPU to run on, in place of the cluster's.
    seq_len : int, optional
        Tokens of a sample; as traced if not given.
    threads : bool
        Whether replicas, or the stages of a pipeline, are threads of one process
        (``torch.nn.DataParallel``, ``torch.distributed.pipeline.sync.Pipe``).
    scaling : {"kernel-model", "li"}
        What scales measured times to other sizes and GPUs: the ratio of the kernel model, or of
        Li's regression lines over the trace's own kernels.
    upload : bool
        Whether each micro-batch begins with the copy of its input from the host, which the trace
        does not show.
    traced_cluster : str, optional
        Where a job of several ranks was recorded; by default on the cluster.
    layout : str, optional
        Its axes, the innermost first, where its groups do not say.
    distributed_optimizer : bool, optional
        Whether its optimizer is sharded over the replicas; as recorded if not given.
    micro_batches : int, optional
        Of a step of each of its pipelines; as recorded if not given.
    """

    program: str | None = None
    trace: str | None = None
    traced_gpu: str | None = None
    traced_batch: Count | None = None
    traced_step: Annotated[int, Limits(least=0, most=10**9)] | None = None
    execution_trace: str | None = None
    trace_of: dict[str, str] = field(default_factory=dict)
    gpu: str | None = None
    seq_len: Count | None = None
    threads: bool = False
    scaling: Literal["kernel-model", "li"] = "kernel-model"
    upload: bool = False
    traced_cluster: str | None = None
    layout: str | None = None
    distributed_optimizer: bool | None = None
    micro_batches: Count | None = None

    def __post_init__(self) -> None:
        if (self.program is None) == (self.trace is None):
            raise InputError("has to have one of 'program' and 'trace'")
        if self.program is not None:
            for key in (*OF_ONE_GPU, *OF_SEVERAL_RANKS, "traced_batch", "gpu"):
                if getattr(self, key) not in (None, False, {}):
                    raise InputError(f"{key} is given; it is for a 'trace', not for a 'program'")


@frozen
class ProgramExperiment:
    """An experiment of a program file, which is not read yet.

    Attributes
    ----------
    program : str
        Path of the file; empty where `trace` says what is simulated.
    tables : dict of str to dict
        Of `TABLES`, those that were given.
    title : str, optional
    source : str
        The file it was read from, for messages; paths in it are relative to its folder.
    trace : WorkloadChoice, optional
        The trace that is extrapolated.
    plan : mapping of str to object
        By which plan: keys of ``[plan]``, and those of ``[framework]`` with their table's name.
    data : DataChoice, optional
        Where samples of a trace come from; None: what it shows of its loader stays as it is.
    """

    program: str
    tables: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    title: str | None = None
    source: str = "experiment"
    trace: WorkloadChoice | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    data: DataChoice | None = None


@frozen
class ProgramChoices:
    """Choices for a program file that does not say which experiment it was written from.

    Attributes
    ----------
    cluster : ClusterChoice, optional
        None where it needs none: all of its communications have durations.
    scale : ScaleChoice
    network : NetworkChoice
    overlap : OverlapChoice
    variation : VariationChoice
    source : str
    defaulted : mapping of str to object
        As of an `Experiment`.
    """

    cluster: ClusterChoice | None
    scale: ScaleChoice
    network: NetworkChoice
    overlap: OverlapChoice
    variation: VariationChoice
    source: str
    defaulted: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, tables: Mapping[str, dict[str, Any]], source: str) -> ProgramChoices:
        """Build from the tables of the file.

        Parameters
        ----------
        tables : mapping of str to dict
            Those given, by name; what is missing has defaults.
        source : str
            The file they were read from, for messages.

        Raises
        ------
        InputError
        """
        keys = ("cluster", "scale", "network", "overlap", "variation")
        given = {key: tables.get(key, {}) for key in keys}
        parts: dict[str, Any] = {
            key: None if key == "cluster" and not table else build(TABLES[key], table, source, key)
            for key, table in given.items()
        }
        left: dict[str, object] = {}
        for key, table in given.items():
            if parts[key] is not None:
                left |= defaults(TABLES[key], table, key)
        return cls(**parts, source=source, defaulted=left)

    def left_to_defaults(self) -> dict[str, object]:
        """Return the keys that were not given and have kept their defaults, with these."""
        return keys_at_defaults(self, self.defaulted)


def program_experiment(table: Mapping[str, Any], source: str) -> ProgramExperiment:
    """Build an experiment of a program file from the parsed tables of its TOML file.

    Parameters
    ----------
    table : mapping
        The whole file; must have the key ``workload``.
    source : str
        The file it was read from, for messages; paths in it are relative to its folder.

    Raises
    ------
    InputError
        Naming the file and the key.
    """
    workload = table["workload"]
    if not isinstance(workload, dict):
        raise InputError(
            f"{source}: key 'workload' is {workload!r}; it must be a table, [workload]"
        )
    of_trace = PLAN_TABLES if "trace" in workload else ()
    of_search = ("search",) if of_trace else ()  # what mpisim search varies says nothing of a run
    allowed = ("title", "workload", *of_trace, *TABLES, *of_search)
    for key, found in table.items():
        if key in FIXED_TABLES and key not in of_trace:
            first = next(iter(found), "") if isinstance(found, dict) else ""
            name = f"{key}.{first}" if first else key
            raise UsageError(
                f"{source}: key {name!r} is given, but the program file fixes it: what ranks do "
                f"and how long kernels take; allowed: {', '.join(TABLES)}"
            )
        if key not in allowed:
            raise InputError(
                f"{source}: unknown key {key!r} at the top level{nearest(key, allowed)}; "
                f"allowed: {', '.join(allowed)}"
            )
        if key in (*TABLES, *of_trace) and not isinstance(found, dict):
            raise InputError(f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]")
    title = table.get("title")
    if title is not None and not isinstance(title, str):
        raise InputError(f"{source}: key 'title' is {title!r}; it must be a text in quotes")
    choice = build(WorkloadChoice, workload, source, "workload")
    tables = {key: dict(table[key]) for key in TABLES if key in table}
    if choice.trace is None:
        return ProgramExperiment(choice.program or "", tables, title, source)
    plan = dict(_flat(table.get("plan", {})))
    plan |= {f"framework.{key}": value for key, value in table.get("framework", {}).items()}
    data = data_choice(table["data"], source) if "data" in table else None
    return ProgramExperiment("", tables, title, source, choice, plan, data)


def _flat(plan: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Table ``[plan]`` → its keys by full name."""
    for key, value in plan.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
