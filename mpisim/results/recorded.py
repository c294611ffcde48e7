"""The steps of a recorded job: when each began and ended, and where the time of one went.

A recording holds several steps, and work before and after them. What a report says is of one step;
the time of a step is that of the job, from the last rank's end of the step before to the last
rank's end of this one (`mpisim.program.step_times.job_spans`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..engine.path import PathEnd
from ..engine.run import CriticalPath, Run
from ..program import Kind, Program, Table
from ..program.step_times import Spans, job_spans, step_spans
from .accounting import Accounts, RowAccounts

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Recorded", "StepOfJob", "account_step", "path_of_step", "step_of_job"]


@dataclass(frozen=True, eq=False)
class Recorded:
    """The steps of a recording and which of them the tables of a result are about.

    Attributes
    ----------
    step : int32, shape (n,)
        Numbers, in order of time; -1: the file marks no steps, and all its device operations count
        as one.
    begin, end : int64, shape (n,)
        When the job began and ended each, in ps from the begin of the run.
    shown : int
        Which of the n.
    whole_ps : int
        From the begin of the run to its end.
    """

    step: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    shown: int
    whole_ps: int

    @property
    def times(self) -> NDArray[np.int64]:
        """Time of each step in ps."""
        return self.end - self.begin

    @property
    def mean_ps(self) -> int:
        """Mean time of the steps, in whole ps."""
        return int((2 * self.times.sum() + len(self.step)) // (2 * len(self.step)))

    @property
    def shown_step(self) -> int:
        """Number of the step shown."""
        return int(self.step[self.shown])

    @property
    def shown_ps(self) -> int:
        """Time of the step shown, in ps."""
        return int(self.times[self.shown])


@dataclass(frozen=True, eq=False)
class StepOfJob:
    """One step of a recorded job: the same on every process.

    Attributes
    ----------
    recorded : Recorded
    ends : int64, shape (n_ranks,)
        When each rank ended the step, in ps from the job's begin of it.
    path_end : PathEnd
        What ended last.
    """

    recorded: Recorded
    ends: NDArray[np.int64]
    path_end: PathEnd

    @property
    def window(self) -> tuple[int, int]:
        """Begin and end in ps."""
        at = self.recorded.shown
        return int(self.recorded.begin[at]), int(self.recorded.end[at])


def step_of_job(
    program: Program, run: Run, comm: Intracomm, step: int | None = None
) -> StepOfJob | None:
    """Find the steps of a recorded program that was run. **Collective.**

    Parameters
    ----------
    program : Program
    run : Run
    comm : mpi4py.MPI.Intracomm
    step : int, optional
        Which to show; by default the last.

    Returns
    -------
    StepOfJob or None
        None for a program that was not read from traces.

    Raises
    ------
    InputError
        If there is no such step, on every process.
    """
    if program.attributes.get("source") != "traces":
        return None
    mine: list[tuple[int, Spans]] = []
    for i, rank in enumerate(run.hosted.tolist()):
        rows = run.rows(i)
        spans = step_spans(program.table_of(rank), program.names, rows.begin, rows.end)
        mine.append((rank, spans))
    spans_of = dict(each for part in comm.allgather(mine) for each in part)
    jobs = job_spans([spans_of[rank] for rank in sorted(spans_of)])
    if step is not None and step not in jobs:
        known = ", ".join(str(number) for number in jobs if number >= 0)
        raise InputError(
            f"there is no whole step {step} of all ranks in this recording"
            + (f"; its steps are {known}" if known else ", which marks no steps")
        )
    if not jobs:
        return None
    numbers = list(jobs)
    shown = numbers[-1] if step is None else step
    begin, end = jobs[shown]
    ends = np.array([spans_of[rank].of[shown][1] for rank in sorted(spans_of)], np.int64)
    last = int(np.argmax(ends))
    found = -1
    for i, rank in enumerate(run.hosted.tolist()):
        if rank == last:
            found = _row_that_ends(program.table_of(rank), run.rows(i).end, shown, end)
    recorded = Recorded(
        step=np.array(numbers, np.int32),
        begin=np.array([jobs[n][0] for n in numbers], np.int64),
        end=np.array([jobs[n][1] for n in numbers], np.int64),
        shown=numbers.index(shown),
        whole_ps=int(run.step_time),
    )
    row = max(comm.allgather(found))
    return StepOfJob(recorded, np.maximum(ends - begin, 0), PathEnd(last, row, end))


def _row_that_ends(table: Table, end: NDArray[np.int64], step: int, at: int) -> int:
    """Return the row of a step that ended at a time: on the device, else a mark of the step."""
    here = (end == at) & ((table.step == step) if step >= 0 else True)
    device = np.flatnonzero(here & table.is_device)
    return int(device[0] if len(device) else np.flatnonzero(here & (table.kind == Kind.HOST))[-1])


def account_step(run: Run, names: NDArray[np.int64], n_names: int, of: StepOfJob) -> Accounts:
    """Account for one step on every rank hosted here. Local.

    The breakdown is of all that ran between the job's begin of the step and its end; kernels and
    communications are those launched in the step.

    Parameters
    ----------
    run : Run
    names : int64, shape (len(run.program.names),)
        The number of each name that all processes use.
    n_names : int
        How many there are.
    of : StepOfJob
    """
    begin, end = of.window
    step, found = of.recorded.shown_step, RowAccounts(names, n_names)
    for i, rank in enumerate(run.hosted.tolist()):
        table, rows = run.program.table_of(rank), run.rows(i)
        shifted = (rows.begin - begin, rows.end - begin, rows.wire - begin)
        own = table.step == step if step >= 0 else np.ones(len(table), bool)
        host = _host_time(table, rows.end, int(run.program.start[rank]), own, run.program.names)
        found.add(table, shifted, end - begin, own, *host)
    return found.joined(run)


def _host_time(
    table: Table,
    end: NDArray[np.int64],
    start: int,
    own: NDArray[np.bool_],
    names: Sequence[str],
) -> tuple[int, int]:
    """Return how long the CPU worked and waited in a step, from its first mark to its last, in ps.

    Without marks, from the start of the rank to the last row at which the CPU's time is known.
    """
    known = np.flatnonzero((table.kind == Kind.HOST) | (table.kind == Kind.HOST_WAIT))
    marks = [r for r in known[own[known]].tolist() if names[table.name[r]].startswith("Profiler")]
    if len(marks) > 1:
        first, last, begun = marks[0] + 1, marks[-1] + 1, int(end[marks[0]])
    elif len(known):
        first, last, begun = 0, int(known[-1]) + 1, start
    else:
        return RowAccounts.busy(table, slice(None)), 0
    busy = RowAccounts.busy(table, slice(first, last))
    return busy, int(end[last - 1]) - begun - busy


def path_of_step(run: Run, of: StepOfJob) -> CriticalPath:
    """Return the critical path of one step. **Collective.**

    It ends with what ended last in the step, and is cut where the step begins.
    """
    path, (begin, _) = run.find_path(of.path_end), of.window
    kept = path.end > begin
    return replace(
        path,
        kind=path.kind[kept],
        rank=path.rank[kept],
        row=path.row[kept],
        begin=np.maximum(path.begin[kept], begin),
        end=path.end[kept],
        name=path.name[kept],
    )
