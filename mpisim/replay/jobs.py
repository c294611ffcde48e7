"""Replay of recorded traces: read, change, simulate, and compare with the recorded step times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..engine import Run, block_placement, simulate
from ..kernels import Gpu
from ..kernels.operations import Kernel
from ..mpi.parallel import collective_errors
from ..program import Program
from ..results.step_times import step_times
from ..topo import Network
from ..traces import Lowered, Source, TraceProgram, find_sources, read_program
from .what_if import WhatIf, apply_what_if

__all__ = ["Replay", "ReplayedStep", "TraceJob", "read_job", "replay", "reread_job"]


@frozen
class ReplayedStep:
    """One step of one rank, in seconds.

    `baseline` is the estimate of Lin et al.'s comparison: the largest sum of kernel time over
    streams, as recorded.
    """

    rank: int
    step: int
    measured: float
    replayed: float
    baseline: float

    @property
    def error(self) -> float:
        """Relative error of the replayed time."""
        return self.replayed / self.measured - 1


@frozen
class TraceJob:
    """The traces of one job, read; equal on all processes but for the tables of hosted ranks.

    Attributes
    ----------
    traces : TraceProgram
    sources : list of Source
    placement : int32, shape (n_ranks,)
    counts : Counter
        Inference rules used, summed over ranks.
    late : tuple of (int, float)
        Device operations that started later than all their known inputs, and the sum in seconds.
    stalls : list of (rank, seconds, call)
        Blocking calls that returned long after the device was done, longest first.
    kernels, bytes_read : int
        Over all ranks.
    overheads : dict of str to (count, seconds)
        Lin et al.'s T1 to T5, summed over ranks.
    unexplained : dict of int to float
        Seconds over all ranks that are replayed as recorded without a known cause, by step (-1:
        in none): late starts, stalls, communications without a partner.
    described : dict of (int, Gpu) to list of (name, Kernel, ps)
        What shapes say of the kernels of a rank on the GPU of the recording, kept for further
        changes of the job once a change has needed it; one rank of each stage of a pipeline.
    """

    traces: TraceProgram
    sources: list[Source]
    placement: NDArray[np.int32]
    counts: Counter[str]
    late: tuple[int, float]
    stalls: list[tuple[int, float, str]]
    kernels: int
    bytes_read: int
    device_name: str
    overheads: dict[str, tuple[int, float]]
    unexplained: dict[int, float]
    described: dict[tuple[int, Gpu], list[tuple[str, Kernel, int]]] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program of all ranks; partial where several processes read."""
        return self.traces.program


@frozen
class Replay:
    """A replayed job: `steps` is complete and equal on every process."""

    job: TraceJob
    program: Program
    run: Run
    steps: list[ReplayedStep]
    changes: list[str]

    @property
    def rank_steps(self) -> dict[str, dict[str, float]]:
        """Replayed seconds by global rank and step; step "-1" is a file without steps."""
        found: dict[str, dict[str, float]] = {}
        for each in self.steps:
            found.setdefault(str(each.rank), {})[str(each.step)] = each.replayed
        return found


def read_job(
    paths: Iterable[Path | str],
    comm: Any,
    *,
    allow_missing: bool = False,
    late_edges: bool = True,
    keep_calls: bool = False,
) -> TraceJob:
    """Find and read the traces of one job. **Collective.**

    Parameters
    ----------
    paths : iterable of paths
        Trace files or directories of them.
    comm : mpi4py.MPI.Comm
    allow_missing : bool
        Accept a job of which some ranks have no trace.
    late_edges : bool
        Whether starts later than their known inputs may be explained by a second look at recorded
        times (event waits, a kernel that filled the device).
    keep_calls : bool
        As for `mpisim.traces.read_program`; worth it for a job that is to be changed.

    Raises
    ------
    TraceError
        If files are missing, damaged, or not of one job.
    """
    sources: list[Source] = []
    with collective_errors(comm):
        if comm.rank == 0:
            sources = find_sources(paths, allow_missing)
    sources = comm.bcast(sources, root=0)
    placement = block_placement(len(sources), comm.size)
    traces = read_program(sources, comm, placement, late_edges, keep_calls=keep_calls)
    return _trace_job(traces, sources, placement, comm)


def reread_job(
    job: TraceJob,
    comm: Any,
    *,
    late_edges: bool = True,
    shift: tuple[int, float] | None = None,
) -> TraceJob:
    """Read the same files in another way. **Collective.**

    Parameters
    ----------
    job : TraceJob
    comm : mpi4py.MPI.Comm
        The processes that read the job.
    late_edges : bool
        As for `read_job`.
    shift : (int, float), optional
        For tests: what the n-th rank recorded in the second half of its file is taken as recorded
        so many seconds later.
    """
    traces = read_program(job.sources, comm, job.placement, late_edges, shift)
    return _trace_job(traces, job.sources, job.placement, comm)


def _trace_job(
    traces: TraceProgram, sources: list[Source], placement: NDArray[np.int32], comm: Any
) -> TraceJob:
    """Gather counts and sums over the ranks of all processes. **Collective.**"""
    mine = [
        (
            fact.counts + _without_time(fact.lowered, traces.program.names),
            fact.late,
            [(fact.rank, stall.seconds, stall.name) for stall in fact.lowered.stalls],
            fact.kernels,
            fact.bytes_read,
            fact.device_name,
            {k: (fact.overheads.count[k], fact.overheads.total[k]) for k in fact.overheads.count},
            fact.kept,
        )
        for fact in traces.facts.values()
    ]
    facts = [fact for part in comm.allgather(mine) for fact in part]
    unexplained: dict[int, float] = {}
    for fact in facts:
        for step, seconds in fact[7].items():
            unexplained[step] = unexplained.get(step, 0.0) + seconds
    counts: Counter[str] = Counter(traces.matching.counts)
    overheads: dict[str, tuple[int, float]] = {}
    for fact in facts:
        counts.update(fact[0])
        for key, (count, total) in fact[6].items():
            before = overheads.get(key, (0, 0.0))
            overheads[key] = (before[0] + count, before[1] + total)
    return TraceJob(
        traces=traces,
        sources=sources,
        placement=placement,
        counts=counts,
        late=(sum(fact[1][0] for fact in facts), sum(fact[1][1] for fact in facts)),
        stalls=sorted((stall for fact in facts for stall in fact[2]), key=lambda s: -s[1]),
        kernels=sum(fact[3] for fact in facts),
        bytes_read=sum(fact[4] for fact in facts),
        device_name=facts[0][5],
        overheads=overheads,
        unexplained=unexplained,
    )


def _without_time(lowered: Lowered, names: tuple[str, ...]) -> Counter[str]:
    """Count the steps that end no later than they begin: their time cannot be compared."""
    measured = step_times(lowered.table, names, lowered.begin, lowered.end)
    return Counter({"steps without time, left out": sum(t <= 0 for t in measured.values())})


def replay(
    job: TraceJob,
    comm: Any,
    what: WhatIf | None = None,
    *,
    critical_path: bool = False,
    progress: bool = False,
    network: Network | None = None,
    changes: Sequence[str] = (),
) -> Replay:
    """Simulate a job, changed or not, and compare with its recorded step times. **Collective.**

    Parameters
    ----------
    job : TraceJob
    comm : mpi4py.MPI.Comm
        The processes that read the job.
    what : WhatIf, optional
        Changes to its times.
    critical_path, progress : bool
        As for `mpisim.engine.simulate`.
    network : Network, optional
        Prices communications without a duration, which a recording has not; see `reprice`.
    changes : sequence of str
        What was changed in the job itself, a line each.

    Raises
    ------
    InputError
        If a change names a rank or a kernel that is not there.
    """
    what = WhatIf() if what is None else what
    program = apply_what_if(job.program, what, job.traces.ranks, comm)
    run = simulate(
        program,
        comm,
        placement=job.placement,
        network=network,
        critical_path=critical_path,
        progress="simulating" if progress else "",
    )
    mine = []
    for i, index in enumerate(run.hosted.tolist()):
        lowered = job.traces.facts[index].lowered
        table, names = lowered.table, job.program.names
        measured = step_times(table, names, lowered.begin, lowered.end)
        rows = run.rows(i)
        replayed = step_times(table, names, rows.begin, rows.end)
        baseline = _busiest_stream(lowered)
        mine += [
            ReplayedStep(
                job.traces.ranks[index],
                step,
                measured[step] / 1e12,
                replayed[step] / 1e12,
                baseline.get(step, 0) / 1e12,
            )
            for step in measured
            if measured[step] > 0  # the others are counted where the traces are read
        ]
    steps = [step for part in comm.allgather(mine) for step in part]
    return Replay(job, program, run, steps, [*changes, *what.describe()])


def _busiest_stream(lowered: Lowered) -> dict[int, int]:
    """Largest sum of recorded kernel time over streams, in ps, by step and for the whole file."""
    table = lowered.table
    first = np.append(True, np.diff(lowered.op) != 0)
    rows = np.flatnonzero(table.is_device & first)
    time = (lowered.end - lowered.begin)[rows]
    found: dict[int, int] = {}
    for step in [*np.unique(table.step[rows]).tolist(), -1]:
        chosen = np.ones(len(rows), bool) if step < 0 else table.step[rows] == step
        sums = np.bincount(table.stream[rows][chosen], weights=time[chosen])
        found[step] = int(sums.max(initial=0))
    return found
