"""Step times: of each rank, and of a recorded job.

One rule serves recorded and replayed times (`step_spans`). Several profiled steps: the device
period, from the end of the last device operation launched in a step to that of the next; the first
step is left out, since what ran before it is not recorded completely. One step: from its begin on
the host to the later of its end there and its last device operation. No step: from the first device
operation to the last.

A recording holds several steps, and work before and after them. A report is about one step; its
time is that of the job, from the last rank's end of the step before to the last rank's end of this
one (`job_spans`), and so are its breakdown (`account_step`) and its critical path (`path_of_step`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..engine.critical_path import CriticalPath, PathEnd
from ..engine.refine import ranges
from ..engine.run import Run
from ..program import Kind, Program, Table
from .accounting import Accounts, RowAccounts
from .step_parts import PartLayout

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "Recording",
    "Spans",
    "StepOfJob",
    "account_step",
    "job_spans",
    "path_of_step",
    "rank_steps",
    "step_of_job",
    "step_times",
]

# --- one rank -----------------------------------------------------------------------------------


class Spans(NamedTuple):
    """Begin and end of each step of one rank, in ps.

    Attributes
    ----------
    of : dict of int to (int, int)
        By number of the step; -1: the whole recording, which marks no steps.
    periods : bool
        Whether a step begins where the one before it ended.
    """

    of: dict[int, tuple[int, int]]
    periods: bool


def step_spans(
    table: Table, names: tuple[str, ...], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> Spans:
    """Return begin and end of each step of one rank.

    Parameters
    ----------
    table : Table
        Steps are marked by HOST rows named ``ProfilerStep#N begin`` and ``ProfilerStep#N end``.
    names : tuple of str
        Names of rows.
    begin, end : int64, shape (n_rows,)
        Begin and end of every row, recorded or replayed, in ps.
    """
    device = np.flatnonzero(table.is_device)
    if not len(device):
        return Spans({}, False)
    marks = _marks(table, names, end)
    if not marks:
        return Spans({-1: (int(begin[device].min()), int(end[device].max()))}, False)
    last = {
        step: int(end[device[table.step[device] == step]].max())
        for step in marks
        if (table.step[device] == step).any()
    }
    if len(marks) == 1:
        ((step, (first, until)),) = marks.items()
        return Spans({step: (first, max(until, last.get(step, until)))}, False)
    steps = list(last)  # in the order of the rows, which is that of time
    return Spans({now: (last[was], last[now]) for was, now in itertools.pairwise(steps)}, True)


def step_times(
    table: Table, names: tuple[str, ...], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> dict[int, int]:
    """Return the time of each step of one rank in ps, by its number: see `step_spans`.

    Parameters
    ----------
    table : Table
        Steps are marked as for `step_spans`.
    names : tuple of str
        Names of rows.
    begin, end : int64, shape (n_rows,)
        Begin and end of every row, recorded or replayed, in ps.
    """
    spans = step_spans(table, names, begin, end).of
    return {step: until - first for step, (first, until) in spans.items()}


def job_spans(ranks: Sequence[Spans]) -> dict[int, tuple[int, int]]:
    """Return begin and end of each step of a job, from those of its ranks, in ps.

    A step ends when the last rank ends it. If it begins where the one before it ended, it begins
    when the last rank has ended that one; otherwise when the first rank begins. Only steps that all
    ranks have count, and only those that take time.
    """
    if not ranks:
        return {}
    periods = all(rank.periods for rank in ranks)
    found = {}
    for step in ranks[0].of:
        if all(step in rank.of for rank in ranks):
            begins, ends = zip(*(rank.of[step] for rank in ranks), strict=True)
            begin, end = (max if periods else min)(begins), max(ends)
            if begin < end:
                found[step] = (begin, end)
    return found


def _marks(
    table: Table, names: tuple[str, ...], end: NDArray[np.int64]
) -> Mapping[int, tuple[int, int]]:
    """Return the earliest begin and the latest end of every step on the host."""
    found: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero(table.kind == Kind.HOST).tolist():
        name = names[table.name[row]]
        if not name.startswith("ProfilerStep#"):
            continue
        step, at = int(table.step[row]), int(end[row])
        first, until = found.get(step, (at, at))
        found[step] = (min(first, at), max(until, at))
    return found


def rank_steps(program: Program, run: Run) -> NDArray[np.int64]:
    """Return the time of every step on every rank hosted here.

    Recording programs follow `program.step_times`. Otherwise a step lasts from the end of the last
    device row of the step before to that of its own; the first one from the rank's start. A rank
    with one step, or none given, takes from its start to its end.

    Parameters
    ----------
    program : Program
    run : Run
        Of that program.

    Returns
    -------
    int64, shape (n, 3)
        Rows (rank, step, ps), by rank and step; step -1: none given.
    """
    first, number = np.unique(run.identical, return_inverse=True)
    steps_of = _steps_of_recording if program.attributes.get("source") == "traces" else _StepEnds()
    parts = [steps_of(program, run, i) for i in run.simulated[first].tolist()]
    index = np.cumsum([0, *map(len, parts)])
    at, owner = ranges(index, number[run.simulated_by])
    steps = np.concatenate([np.empty((0, 2), np.int64), *parts])[at]
    return np.concatenate([run.hosted[owner].astype(np.int64)[:, None], steps], axis=1)


def _steps_of_recording(program: Program, run: Run, i: int) -> NDArray[np.int64]:
    """Return rows (step, ps) of the i-th rank hosted here, of a program read from traces."""
    rows = run.rows(i)
    table = program.table_of(int(run.hosted[i]))
    times = step_times(table, program.names, rows.begin, rows.end)
    return np.array(list(times.items()), np.int64).reshape(-1, 2)


class _StepEnds:
    """Rows (step, ps) of ranks, from the last device row of each step.

    Tables are looked at once, and once for all that differ in durations alone.
    """

    def __init__(self) -> None:
        self._known: dict[Table, tuple[NDArray[Any], ...]] = {}

    def __call__(self, program: Program, run: Run, i: int) -> NDArray[np.int64]:
        rank = int(run.hosted[i])
        table = program.table_of(rank).structure
        if table not in self._known:
            device = np.flatnonzero(table.is_device & (table.step >= 0))
            self._known[table] = (device, *np.unique(table.step[device], return_inverse=True))
        device, steps, number = self._known[table]
        start = int(program.start[rank])
        if len(steps) <= 1:
            step = int(steps[0]) if len(steps) else -1
            return np.array([[step, int(run.rank_end[rank]) - start]], np.int64)
        last = np.full(len(steps), np.iinfo(np.int64).min)
        np.maximum.at(last, number, run.rows(i).end[device])
        return np.stack([steps.astype(np.int64), np.diff(last, prepend=start)], axis=1)


# --- the steps of a recorded job ------------------------------------------------------------------


@frozen(eq=False)
class Recording:
    """The steps of a recording, and the one that the tables of a result are about.

    Attributes
    ----------
    step : int32, shape (n,)
        Numbers, in order of time; -1: the recording marks no steps and counts as one.
    begin, end : int64, shape (n,)
        Of each step of the job, in ps from the begin of the run.
    shown : int
        Entry of the step that is shown.
    whole_ps : int
        Time of the whole run, in ps.
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
        """Number of the recorded step that tables and critical path are of."""
        return int(self.step[self.shown])

    @property
    def shown_ps(self) -> int:
        """Time of the step shown, in ps."""
        return int(self.times[self.shown])


@frozen(eq=False)
class StepOfJob:
    """The shown step of a recorded job; equal on every process.

    Attributes
    ----------
    recorded : Recording
    ends : int64, shape (n_ranks,)
        When each rank ended the step, in ps from the job's begin of it.
    path_end : PathEnd
        The row that ended last.
    """

    recorded: Recording
    ends: NDArray[np.int64]
    path_end: PathEnd

    @property
    def window(self) -> tuple[int, int]:
        """Begin and end of the step shown, in ps of the job's clock."""
        at = self.recorded.shown
        return int(self.recorded.begin[at]), int(self.recorded.end[at])


def step_of_job(
    program: Program, run: Run, comm: Intracomm, step: int | None = None
) -> StepOfJob | None:
    """Find the steps of a recorded program in its run. **Collective.**

    Parameters
    ----------
    program : Program
    run : Run
    comm : mpi4py.MPI.Intracomm
    step : int, optional
        Number of the step to show; by default the last.

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
    known_spans: dict[int, Spans] = {}
    for i, rank in enumerate(run.hosted.tolist()):
        same = int(run.simulated_by[i])
        if same not in known_spans:
            rows, table = run.rows(i), program.table_of(rank)
            known_spans[same] = step_spans(table, program.names, rows.begin, rows.end)
        mine.append((rank, known_spans[same]))
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
    recorded = Recording(
        step=np.array(numbers, np.int32),
        begin=np.array([jobs[n][0] for n in numbers], np.int64),
        end=np.array([jobs[n][1] for n in numbers], np.int64),
        shown=numbers.index(shown),
        whole_ps=int(run.step_time),
    )
    row = max(comm.allgather(found))
    return StepOfJob(recorded, np.maximum(ends - begin, 0), PathEnd(last, row, end))


def _row_that_ends(table: Table, end: NDArray[np.int64], step: int, at: int) -> int:
    """Return the row of a step that ended at some time: a device row, else a mark of the step."""
    here = (end == at) & ((table.step == step) if step >= 0 else True)
    device = np.flatnonzero(here & table.is_device)
    return int(device[0] if len(device) else np.flatnonzero(here & (table.kind == Kind.HOST))[-1])


def account_step(
    run: Run, names: NDArray[np.int64], n_names: int, layout: PartLayout, of: StepOfJob
) -> Accounts:
    """Account for one step on every rank hosted here. Local.

    The breakdown is of all that ran between the job's begin of the step and its end; kernels and
    communications are those launched in the step.

    Parameters
    ----------
    run : Run
    names : int64, shape (len(run.program.names),)
        The number of each name, equal on all processes.
    n_names : int
        How many there are.
    layout : PartLayout
        Of the program.
    of : StepOfJob
    """
    begin, end = of.window
    step, found = of.recorded.shown_step, RowAccounts(names, n_names, layout)
    first: dict[int, int] = {}
    for i, rank in enumerate(run.hosted.tolist()):
        like = first.setdefault(int(run.simulated_by[i]), i)
        if like != i:
            found.add_like(like)
            continue
        table, rows = run.program.table_of(rank), run.rows(i)
        shifted = (rows.begin - begin, rows.end - begin, rows.wire - begin)
        own = table.step == step if step >= 0 else np.ones(len(table), bool)
        host = _host_time(table, rows.end, int(run.program.start[rank]), own, run.program.names)
        kinds = layout.of_slot[run.program.table[rank]]
        found.add(table, kinds, shifted, end - begin, own, *host)
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

    It ends with the row that ended last in the step, and is cut where the step begins.

    Parameters
    ----------
    run : Run
    of : StepOfJob
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
