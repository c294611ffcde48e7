"""How long each training step took on each rank, for programs of one step or several."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..engine.refine import ranges
from ..engine.run import Run
from ..program import Program
from ..program.step_times import step_times

__all__ = ["rank_steps"]


def rank_steps(program: Program, run: Run) -> NDArray[np.int64]:
    """Measure every step on every rank hosted here.

    Recorded programs follow `program.step_times`. Otherwise a step lasts from the end of the last
    device row of the step before to that of its own; the first one from the rank's start. A rank
    with one step, or none said, takes from its start to its end.

    Parameters
    ----------
    program : Program
    run : Run
        Of that program.

    Returns
    -------
    int64, shape (n, 3)
        Rows (rank, step, ps), by rank and step. A step that is not said is -1.
    """
    first, number = np.unique(run.identical, return_inverse=True)
    parts = [_steps_of(program, run, i) for i in run.simulated[first].tolist()]
    index = np.cumsum([0, *map(len, parts)])
    at, owner = ranges(index, number[run.simulated_by])
    steps = np.concatenate([np.empty((0, 2), np.int64), *parts])[at]
    return np.concatenate([run.hosted[owner].astype(np.int64)[:, None], steps], axis=1)


def _steps_of(program: Program, run: Run, i: int) -> NDArray[np.int64]:
    """Return rows (step, ps) of the i-th rank hosted here."""
    rank = int(run.hosted[i])
    table = program.table_of(rank)
    if program.attributes.get("source") == "traces":
        rows = run.rows(i)
        times = step_times(table, program.names, rows.begin, rows.end)
        return np.array(list(times.items()), np.int64).reshape(-1, 2)
    start = int(program.start[rank])
    device = np.flatnonzero(table.is_device & (table.step >= 0))
    steps, number = np.unique(table.step[device], return_inverse=True)
    if len(steps) <= 1:
        step = int(steps[0]) if len(steps) else -1
        return np.array([[step, int(run.rank_end[rank]) - start]], np.int64)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(last, number, run.rows(i).end[device])
    return np.stack([steps.astype(np.int64), np.diff(last, prepend=start)], axis=1)
