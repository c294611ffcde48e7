"""Candidates over a trace: the program of each, and the records of all of them.

    one GPU         trace ─► traced step ─► plan of the candidate laid over it ─► program
    several ranks   traces ─► job ─► its replicas, optimizer, GPU or network changed ─► program

A candidate takes about as long to write as to simulate, so that no bound is worked out: every
candidate that is valid is simulated in full, and the best are those of an exhaustive search as a
matter of course. Of memory a trace of one GPU tells what parameters and gradients need, which is a
lower limit: optimizers' states and what autograd keeps are not in it. Plans that are beyond a GPU
even so are left out. A trace of several ranks tells nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import Z_90
from ..engine import Run
from ..experiment.program_experiment import ProgramExperiment, WorkloadChoice, program_experiment
from ..extrapolate import TracedStep
from ..extrapolate.parallel import extrapolate_parallel
from ..extrapolate.prepare import (
    cluster_gpus,
    of_several_ranks,
    prepare_traced,
    read_other_traces,
    read_traced,
    trace_path,
)
from ..kernels import Gpu
from ..memory import capacity
from ..memory.verdict import assess
from ..mpi.parallel import collective_errors, progress
from ..prediction.execution import execute
from ..prediction.prepared_program import PreparedProgram
from ..prediction.program_statements import program_error_bar
from ..program import Program
from ..replay import TraceJob, read_job
from ..topo import Network, find_cluster
from ..workloads import Layout
from .records import Found, Records, Status, enter_judged, tell
from .space import SearchSpace

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["TracedCandidate", "TracedCandidates", "explore_traces", "extrapolate_command"]

ROUND = 16
"""Candidates simulated between two saves of the records."""

OF_STATES = ("parameters", "gradients", "context")
"""Parts of memory that a trace of one GPU tells."""

KEPT = "model error of a grown job"
"""Name of the error that an extrapolated job of several ranks states, in uncertainty lines."""


@frozen
class TracedCandidate:
    """A candidate, ready to be run.

    Attributes
    ----------
    what : PreparedProgram or Program
    network : Network or None
        That prices communications without a duration; None where `what` brings its own.
    gpus, dp : int
    tokens : int
        Of a step, or samples where sequences are not known; 0 where that is not known either.
    memory : int
        Bytes that the fullest GPU needs at least; 0 where nothing is known.
    capacity : int
        Bytes that a program can have on the smallest GPU; 0 likewise.
    step_ps : int
        Of a job of several recorded steps their mean; 0: what the run says.
    error : float
        Relative error bar of such a step.
    counted : {"tokens", "samples"}
        What `tokens` counts.
    """

    what: PreparedProgram | Program
    network: Network | None
    gpus: int
    dp: int
    tokens: int
    memory: int = 0
    capacity: int = 0
    step_ps: int = 0
    error: float = 0.0
    counted: str = "samples"

    def run(self, comm: Intracomm, *, critical_path: bool = False) -> tuple[Run, int]:
        """Return its run, and how long its step takes, in ps. **Collective.**

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
        critical_path : bool
            Whether the run is to have one.
        """
        run, _ = execute(self.what, comm, network=self.network, critical_path=critical_path)
        return run, self.step_ps or run.step_time

    def effects(self, run: Run) -> Mapping[str, float]:
        """Return the relative error of its step from each number alone.

        Parameters
        ----------
        run : Run
            With its critical path.
        """
        if not isinstance(self.what, PreparedProgram):
            return {KEPT: self.error}
        bar = program_error_bar(self.what, run)
        return {} if bar is None else {each.name: each.effect for each in bar.effects}


class TracedCandidates:
    """Candidates of a search space over a trace, which is read once.

    Parameters
    ----------
    space : SearchSpace
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._steps: dict[tuple[object, ...], TracedStep] = {}
        self._others: dict[str, TracedStep] | None = None
        self._several: bool | None = None
        self._job: TraceJob | None = None

    def of(self, number: int) -> TracedCandidate:
        """Return a candidate. Local.

        Raises
        ------
        InputError
            If its values contradict each other, or the trace.
        """
        space = self._space
        experiment = program_experiment(space.candidate_tables(number), space.source)
        assert experiment.trace is not None
        if self._several is None:
            self._several = of_several_ranks([trace_path(experiment)])
        if self._several:
            return self._grown(experiment, experiment.trace)
        choice = experiment.trace
        key = (
            *(choice.traced_gpu, choice.traced_step, choice.traced_batch),
            choice.execution_trace,
        )
        if key not in self._steps:
            self._steps[key] = read_traced(experiment)
        if self._others is None:
            self._others = read_other_traces(experiment)
        prepared, found = prepare_traced(experiment, self._steps[key], self._others)
        layout = found.workload.layout
        gpus = [each.model.gpu for each in found.workload.pricings]
        least, room = _least_memory(layout, found.target.cluster, gpus)
        return TracedCandidate(
            prepared,
            None,
            layout.grid.world,
            layout.grid.dp,
            found.workload.tokens,
            least,
            room,
            counted="tokens" if self._steps[key].sequence else "samples",
        )

    def _grown(self, experiment: ProgramExperiment, choice: WorkloadChoice) -> TracedCandidate:
        """Return a candidate over a trace of several ranks."""
        from mpi4py import MPI

        source = experiment.source
        if self._job is None:
            self._job = read_job(
                [trace_path(experiment)], MPI.COMM_SELF, allow_missing=True, keep_calls=True
            )
        job, table = self._job, dict(experiment.tables.get("cluster", {}))
        preset = table.get("preset")
        if not isinstance(preset, str):
            raise InputError(f"{source}: key 'cluster.preset' is missing: the cluster to run on")
        cluster = find_cluster(preset)
        traced = choice.traced_cluster
        stages = _whole_number(experiment, "pp")
        dp = experiment.plan.get("dp")
        gpus = cluster_gpus(experiment)
        if dp is None and gpus is not None:
            plain = extrapolate_parallel(job, MPI.COMM_SELF, dp=1, cluster=cluster, stages=stages)
            replica = plain.program.n_ranks
            if gpus % replica:
                raise InputError(
                    f"{source}: a replica of the job has {replica} ranks, which do not divide the "
                    f"{gpus} GPUs of the cluster"
                )
            dp = gpus // replica
        found = extrapolate_parallel(
            job,
            MPI.COMM_SELF,
            dp=dp,
            cluster=cluster,
            traced_cluster=None if traced is None else find_cluster(traced),
            layout=choice.layout or "",
            gpu=choice.gpu,
            distributed_optimizer=choice.distributed_optimizer,
            micro_batches=choice.micro_batches,
            stages=stages,
            calibration=_calibration(experiment),
        )
        ranks = found.program.n_ranks
        axes = found.structure.axes if found.grown is None else found.grown.axes
        replicas = next((axis.size for axis in axes if axis.name == "dp"), 1)
        return TracedCandidate(
            found.program,
            found.network,
            ranks,
            replicas,
            round((choice.traced_batch or 0) * (found.grown.samples if found.grown else 1.0)),
            step_ps=round(found.step * 1e12),
            error=found.uncertainty / Z_90,
        )


def _whole_number(experiment: ProgramExperiment, key: str) -> int | None:
    """Key of ``[plan]`` of a job → its value, which the schema of a plan has not seen."""
    value = experiment.plan.get(key)
    if value is not None and type(value) is not int:
        raise InputError(f"{experiment.source}: key 'plan.{key}' is {value!r}, no whole number")
    return value


def _calibration(experiment: ProgramExperiment) -> str | None:
    """Return the file of ``[network] calibration``, whose path is relative to the experiment."""
    file = experiment.tables.get("network", {}).get("calibration")
    if file is None:
        return None
    if not isinstance(file, str):
        raise InputError(
            f"{experiment.source}: key 'network.calibration' is {file!r}; it must be a text in "
            "quotes"
        )
    return str(Path(experiment.source).parent / file)


def _least_memory(layout: Layout, cluster: str, gpus: list[Gpu]) -> tuple[int, int]:
    """Return the bytes that the fullest GPU needs at least, and that the smallest has."""
    smallest = min(gpus, key=capacity)
    found = assess(layout, smallest, node=find_cluster(cluster).gpus_per_node)
    return (
        max(sum(stage.parts[part] for part in OF_STATES) for stage in found.stages),
        found.capacity,
    )


def extrapolate_command(space: SearchSpace, number: int) -> list[str]:
    """Candidate over a trace of several ranks → the command that runs it, in words.

    Parameters
    ----------
    space : SearchSpace
    number : int
        Of the candidate.
    """
    experiment = program_experiment(space.candidate_tables(number), space.source)
    choice, table = experiment.trace, experiment.tables.get("cluster", {})
    assert choice is not None
    words = ["mpisim", "extrapolate", str(trace_path(experiment)), "--cluster", table["preset"]]
    dp = experiment.plan.get("dp")
    if dp is None and cluster_gpus(experiment) is not None:
        dp = TracedCandidates(space).of(number).dp
    shard = {True: "on", False: "off", None: None}[choice.distributed_optimizer]
    for option, value in (
        ("--dp", dp),
        ("--pp", experiment.plan.get("pp")),
        ("--micro-batches", choice.micro_batches),
        ("--gpu", choice.gpu),
        ("--traced-cluster", choice.traced_cluster),
        ("--distributed-optimizer", shard),
        ("--layout", choice.layout),
        ("--calibration", _calibration(experiment)),
    ):
        words += [] if value is None else [option, str(value)]
    return words


# --- what is known of all -------------------------------------------------------------------------


def explore_traces(
    space: SearchSpace,
    comm: Intracomm,
    *,
    known: Records | None = None,
    show: bool = False,
    each_round: Callable[[Records], None] = lambda records: None,
) -> Records:
    """Search space over a trace → what is known of its candidates: all of them. **Collective.**

    Parameters
    ----------
    space, comm, known, show, each_round
        As of `mpisim.search.explore.explore`.

    Raises
    ------
    InputError
        If no candidate is valid: what is wrong with the first.
    MpisimError
        On all processes, what one of them or `each_round` raised.
    """
    from mpi4py import MPI

    candidates = TracedCandidates(space)
    records = Records.none(len(space)) if known is None else known
    simulated = partial(_simulated, space, candidates)
    with progress(comm, "searching" if show else "", len(space)) as update:
        while True:
            some = records.numbers(Status.UNKNOWN)[:ROUND].tolist()
            if not some:
                break
            update(len(space) - records.count(Status.UNKNOWN))
            enter_judged(space, records, some, simulated, comm)
            tell(records, comm, each_round)
    if not np.any(records.status != Status.INVALID):
        with collective_errors(comm):
            candidates.of(0).run(MPI.COMM_SELF)
    return records


def _simulated(space: SearchSpace, candidates: TracedCandidates, number: int) -> Found:
    """Candidate → its simulated results; `InputError` if it is invalid. Local."""
    from mpi4py import MPI

    choice = space.choice
    candidate = candidates.of(number)
    values: dict[str, int | float] = {"gpus": candidate.gpus, "tokens": candidate.tokens}
    if choice.max_gpus is not None and candidate.gpus > choice.max_gpus:
        return Found(number, Status.OVER_LIMIT, values)
    values["peak"] = candidate.memory
    if candidate.memory > choice.room(candidate.capacity or inf):
        return Found(number, Status.TOO_LARGE, values)
    _, step = candidate.run(MPI.COMM_SELF)
    slow = choice.max_step_time is not None and step * 1e-12 > choice.max_step_time
    status = Status.TOO_SLOW if slow else Status.SIMULATED
    return Found(number, status, values | {"step": step})
