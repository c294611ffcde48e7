"""Runs that know what overlaps: a run without slowdown says what ran beside what, and so on.

*Static*: every row is slowed by what ran beside it when nothing was slowed. *Coupled*: again and
again, until no duration changes: what runs beside what is then what the durations were made of.
What happens later changes nothing earlier, so that the times settle from the front; a whole ps
that is rounded up and down in turn is met halfway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..engine.run import Run
from ..kernels.slowdown import CLASSES
from ..mpi.reductions import allreduce_sum, allreduce_sum_words
from ..program import Program, Table
from .members import slowest
from .rank import Ranks
from .retimed import Times, is_spread, retimed, times_of

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Outcome", "with_slowdown"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Outcome:
    """A run in which what overlaps is slower, and what that did; equal on all processes.

    Attributes
    ----------
    run : Run
    before : int
        Step time in ps without slowdown.
    passes : int
        Times that durations were worked out.
    left : int
        Rows, of one rank a class, whose durations had not settled after the last pass (coupled).
    spent : int64, shape (len(CLASSES), 2)
        Over all ranks, of kernels that overlap: their time alone, and beside communications, in ps.
    wire : int64, shape (2,)
        The same of communications.
    terms : int64, shape (len(CLASSES), c)
        Of kernels' time, ps in proportion to each number of the model.
    """

    run: Run
    before: int
    passes: int
    left: int
    spent: Ints
    wire: Ints
    terms: Ints


Runner = Callable[[Program, bool, NDArray[np.int32] | None], Run]
"""Runs a program: whether for the last time, with all that is asked of it; and on which processes,
if that is given."""


@dataclass(frozen=True)
class _Pass:
    """What one look at a run says; the rows of each class simulated here."""

    times: dict[int, Times]
    spent: Ints
    wire: Ints
    terms: Ints
    changed: int
    state: bytes  # a hash of the times of all ranks, where there are several passes


def with_slowdown(
    ranks: Ranks,
    runner: Runner,
    mode: Literal["static", "coupled"],
    comm: Intracomm,
    most: int,
) -> Outcome:
    """Run a program in which what overlaps is slower. **Collective.**

    Parameters
    ----------
    ranks : Ranks
        With the program, whole.
    runner : callable
        A `Runner`.
    mode : {"static", "coupled"}
    comm : mpi4py.MPI.Intracomm
    most : int
        Passes of a coupled run.
    """
    run = runner(ranks.program, False, None)
    before = run.step_time
    seen: set[bytes] = set()
    damped = False
    passes, left = 0, 0
    placement: NDArray[np.int32] | None = None
    while True:
        found = _look(ranks, run, comm, mode)
        passes += 1
        times = found.times
        damped = damped or found.state in seen
        seen.add(found.state)
        if damped:  # the same durations again: they turn in a circle
            times = {
                number: each.halfway(Times.of(_table(run, number)))
                for number, each in times.items()
            }
        if not found.changed or (damped and _settled(run, times, comm)):
            left = found.changed
            run = runner(run.program, True, placement)  # once more, for its critical path
            break
        last = mode == "static" or passes >= most
        # Where each process has the tables of its own ranks alone, these stay where they are.
        placement = run.placement if is_spread(run, comm) else None
        run = runner(retimed(ranks.program, run, times, comm), last, placement)
        if last:
            if mode == "coupled":
                left = _look(ranks, run, comm, mode).changed
            break
    return Outcome(run, before, passes, left, found.spent, found.wire, found.terms)


def _settled(run: Run, times: Mapping[int, Times], comm: Intracomm) -> bool:
    """Say whether times are those of a run already. **Collective.**"""
    moved = np.array(
        [sum(each.differing(Times.of(_table(run, number))) for number, each in times.items())],
        np.int64,
    )
    return not allreduce_sum(moved, comm)[0]


def _table(run: Run, number: int) -> Table:
    """Return the table that a class was simulated with."""
    return run.program.table_of(int(run.classes.representative[number]))


def _look(ranks: Ranks, run: Run, comm: Intracomm, mode: Literal["static", "coupled"]) -> _Pass:
    """Work out from a run how long rows last. **Collective.**"""
    own = ranks.lengths(run)
    longest = slowest(
        ranks.program, run.classes, {number: each.wire for number, each in own.items()}, comm
    )
    times: dict[int, Times] = {}
    n_terms = len(ranks.terms)
    # Everything that is added up over processes, side by side.
    sums = np.zeros((len(CLASSES), 2 + n_terms + 1), np.int64)
    state = np.zeros(2, np.uint64)
    for number, each in own.items():
        rank = int(run.classes.representative[number])
        table, current = ranks.program.table_of(rank), _table(run, number)
        alone = ranks.residents.of(rank).alone
        times[number] = times_of(table, each.duration, longest[number], alone)
        count = int(run.classes.count[number])
        sums[:, :2] += count * each.spent
        sums[:, 2:-1] += count * each.terms
        met = longest[number] > alone
        sums[0, -1] += count * int(alone[met].sum())
        sums[1, -1] += count * int(longest[number][met].sum())
        sums[2, -1] += times[number].differing(Times.of(current))
        if mode == "coupled":
            state += np.uint64(count) * times[number].hash()
    sums, state = allreduce_sum(sums, comm), allreduce_sum_words(state, comm)
    spent, terms, beside = sums[:, :2], sums[:, 2:-1], sums[:, -1]
    return _Pass(times, spent, beside[:2], terms, int(beside[2]), bytes(state))
