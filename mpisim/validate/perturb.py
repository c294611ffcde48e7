"""Perturbed traces → how their replays move, beside how they must.

A replay that keeps what it should predict looks exact and predicts nothing. Each test here changes
one thing and states how the answer moved:

========================  ======================================================================
test                      what a leak would do
========================  ======================================================================
gpu and wire × 0.05       stay, if waiting for the GPU was kept as CPU time
kernels × 0.5             move too little, if send/receive pairs or waits are wrong
CPU × 0.5                 move too much, if waiting for the device was kept as CPU time
wire × 20                 move too little, if waits for communications were lost
data order                break, if a wait between streams was lost (needs execution traces)
one rank 50 ms late       leave the others, if recorded NCCL time counts as work
file shifted by 1 s       change more than one gap, if anything is pinned at recorded times
without late-start edges  differ much, if edges chosen by recorded times hide lost waits
… and changed             (each change again, without those edges) tells how much of a predicted
                          change depends on them
one rank alone            (waiting removed) tells how much of the time is other ranks' lateness
========================  ======================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..base.frozen import frozen
from ..base.text import percentage
from ..engine import simulate
from ..mpi.parallel import collective_errors
from ..program import Communicators, Program, Table
from ..replay import Replay, TraceJob, replay, reread_job
from ..replay.what_if import WhatIf
from ..results.step_times import step_times
from ..traces.kernel_order import check_dependencies, known_dependencies
from .traces import TraceResult

__all__ = ["Perturbation", "perturb_traces"]

START_DELAY = 0.05
"""Seconds by which one rank starts late."""

CLOCK_SHIFT = 1.0
"""Seconds by which half of one rank's file is moved."""

CHANGES = (
    ("gpu and wire × 0.05", WhatIf(compute=0.05, comm=0.05)),
    ("kernels × 0.5", WhatIf(compute=0.5)),
    ("CPU × 0.5", WhatIf(host=0.5)),
    ("wire × 20", WhatIf(comm=20.0)),
)
MIN_CHANGE = 0.01
"""Least relative change of a step whose error is reported."""


@frozen
class Perturbation:
    """How one test moved the step times of a trace.

    Attributes
    ----------
    test : str
    change : float
        Relative change of the mean step time over ranks and steps.
    seconds : float
        What the test is about, in seconds: by how much ranks' total time moved.
    note : str
    passed : bool or None
        None where there is no bound that holds for every trace.
    spread : float or None
        By how much a predicted change differs from the one predicted without the edges that were
        chosen by recorded times, as a share of the larger.
    """

    test: str
    change: float
    seconds: float
    note: str
    passed: bool | None
    spread: float | None = None


def perturb_traces(result: TraceResult, comm: Any) -> Iterator[Perturbation]:
    """Run every test that applies to one trace. **Collective.**

    Parameters
    ----------
    result : TraceResult
        Of a trace that was not skipped.
    comm : mpi4py.MPI.Intracomm

    Yields
    ------
    Perturbation
        One a test.
    """
    assert result.job is not None
    assert result.replay is not None
    job, base = result.job, result.replay
    seconds: dict[str, float] = {}
    for test, what in CHANGES:
        moved = replay(job, comm, what)
        change, seconds[test] = _moved(base, moved)
        yield Perturbation(test, change, seconds[test], _device_bound(base), None)
        kept = _data_order(job, moved, test, comm)
        if kept is not None:
            yield kept
    if len(job.sources) > 1:
        yield _delayed(job, base, comm)
    yield _shifted(job, base, comm)
    yield from _without_edges(job, base, seconds, comm)
    if len(job.sources) > 1:
        yield _alone(job, base, comm)


def _moved(base: Replay, moved: Replay) -> tuple[float, float]:
    """Relative and absolute change of the mean step time."""
    before = np.array([each.replayed for each in base.steps])
    after = np.array([each.replayed for each in moved.steps])
    return float(after.mean() / before.mean() - 1), float((after - before).mean())


def _device_bound(base: Replay) -> str:
    """How much of the step time was a baseline of device work, for comparison."""
    share = np.mean([each.baseline / each.measured for each in base.steps])
    return f"busiest stream {percentage(float(share))} of the step"


def _data_order(job: TraceJob, moved: Replay, test: str, comm: Any) -> Perturbation | None:
    """Where execution traces lie beside the Kineto traces: data is still written before read.

    A wait that the reader lost lets a changed replay start a kernel before its input is there.
    """
    mine = [0, 0, 0]
    with collective_errors(comm):
        for i, index in enumerate(moved.run.hosted.tolist()):
            known = known_dependencies(job.sources[index])
            if known is None:
                continue
            lowered = job.traces.facts[index].lowered
            rows, found = np.flatnonzero(lowered.op >= 0), moved.run.rows(i)
            begin, end = (np.zeros(lowered.op.max() + 1, np.int64) for _ in range(2))
            begin[lowered.op[rows]] = found.begin[rows]
            end[lowered.op[rows]] = found.end[rows]
            check = check_dependencies(known, begin, end)
            mine = [mine[0] + check.total, mine[1] + check.crossing, mine[2] + check.violated]
    total, crossing, violated = (sum(part) for part in zip(*comm.allgather(mine), strict=True))
    if not total:
        return None
    note = f"{violated} of {total} data dependencies broken ({crossing} between streams)"
    return Perturbation(f"data order, {test}", 0.0, 0.0, note, violated == 0)


def _delayed(job: TraceJob, base: Replay, comm: Any) -> Perturbation:
    """One rank starts late: the others must wait for it, but for the slack they have."""
    late = job.traces.ranks[1]
    moved = replay(job, comm, WhatIf(delay={late: START_DELAY}))
    before, after = base.run.rank_end, moved.run.rank_end
    others = np.array([i for i, rank in enumerate(job.traces.ranks) if rank != late])
    wait = float((after - before)[others].min()) / 1e12
    change, _ = _moved(base, moved)
    note = f"other ranks end {wait * 1e3:.1f} ms later or more, of {START_DELAY * 1e3:.0f} ms"
    passed: bool | None = wait > 0
    if not _joined(job.program.communicators, 1).issuperset(others.tolist()):
        passed, note = None, "no communication joins all ranks in this recording"
    return Perturbation(f"rank {late} {START_DELAY * 1e3:.0f} ms late", change, wait, note, passed)


def _joined(communicators: Communicators, rank: int) -> set[int]:
    """Return the ranks that a rank communicates with, themselves or through others."""
    groups = [set(communicators.group(c)) for c in range(len(communicators))]
    found = {rank}
    while True:
        more = found.union(*(group for group in groups if group & found))
        if more == found:
            return found
        found = more


def _shifted(job: TraceJob, base: Replay, comm: Any) -> Perturbation:
    """Half of one file is recorded a second later: only that gap changes.

    Work that the device still had queued when the gap opened hides a part of it, so the whole
    moves by the shift at most; and it moves in one step, or in two where the gap lies between.
    """
    which = 1 if len(job.sources) > 1 else 0
    moved = replay(reread_job(job, comm, shift=(which, CLOCK_SHIFT)), comm)
    rank = job.traces.ranks[which]
    before = {each.step: each.replayed for each in base.steps if each.rank == rank}
    after = {each.step: each.replayed for each in moved.steps if each.rank == rank}
    touched = [step for step in before if abs(after[step] / before[step] - 1) > 0.01]
    whole = float(moved.run.rank_end[which] - base.run.rank_end[which]) / 1e12
    change, _ = _moved(base, moved)
    note = (
        f"rank {rank} ends {whole:+.4f} s later for a shift of {CLOCK_SHIFT:g} s, "
        f"{len(touched)} of {len(before)} steps moved"
    )
    passed = -0.01 * CLOCK_SHIFT <= whole <= 1.01 * CLOCK_SHIFT and len(touched) <= 2
    return Perturbation("half of a file shifted", change, whole, note, passed)


def _without_edges(
    job: TraceJob, base: Replay, seconds: Mapping[str, float], comm: Any
) -> Iterator[Perturbation]:
    """Leave out the edges that were chosen by recorded times; and change the times again."""
    edges = sum(n for name, n in job.counts.items() if name.startswith("late start"))
    plain = reread_job(job, comm, late_edges=False)
    without = replay(plain, comm)
    yield Perturbation("without late-start edges", *_moved(base, without), f"{edges} edges", None)
    step = float(np.mean([each.replayed for each in base.steps]))
    for test, what in CHANGES if edges else ():
        change, moved = _moved(without, replay(plain, comm, what))
        most = max(abs(moved), abs(seconds[test]))
        if most > MIN_CHANGE * step:
            spread = abs(moved - seconds[test]) / most
            note = f"differs by {percentage(spread, 1)} of the change"
            yield Perturbation(f"  {test}", change, moved - seconds[test], note, None, spread)


def _alone(job: TraceJob, base: Replay, comm: Any) -> Perturbation:
    """Every rank by itself, with the same wire times: what remains is not others' lateness."""
    program = _separated(job.program)
    run = simulate(program, comm, placement=job.placement)
    mine = []
    for i, index in enumerate(run.hosted.tolist()):
        lowered = job.traces.facts[index].lowered
        rows = run.rows(i)
        times = step_times(program.table_of(index), program.names, rows.begin, rows.end)
        measured = step_times(lowered.table, program.names, lowered.begin, lowered.end)
        mine += [times[step] / 1e12 for step in measured if measured[step] > 0]
    after = np.array([t for part in comm.allgather(mine) for t in part])
    before = np.array([each.replayed for each in base.steps])
    change = float(after.mean() / before.mean() - 1)
    note = "share of the time that is other ranks' lateness"
    return Perturbation(
        "each rank alone", change, float((after - before).mean()), note, change <= 1e-9
    )


def _separated(program: Program) -> Program:
    """The program with every communication turned into work of the rank alone."""
    tables: list[Table | None] = []
    for table in program.tables:
        if table is None:
            tables.append(None)
            continue
        comm = table.is_communication
        tables.append(
            table.replace(
                kind=np.where(comm, 0, table.kind),
                operation=np.where(comm, 0, table.operation),
                slot=np.where(comm, -1, table.slot),
                flags=np.where(comm, 0, table.flags),
            )
        )
    return program.replace(
        tables=tuple(tables),
        communicators=Communicators.of([(0,)]),
        slots=np.zeros(0, np.int32),
        slot_index=np.zeros(program.n_ranks + 1, np.int64),
    )
