"""Passes: a program is run again with slower rows until durations and overlap agree.

A *pass* looks at a run, works out from every timeline how long its rows take beside each other, and
runs the program again with these durations.

*Static*: one pass. Every row is slowed by what ran beside it when nothing was slowed.

*Coupled*: passes until no duration changes; the last run is then a fixed point: its overlap is the
one that its durations were made of. Why this ends, as a rule:

- Causality: what happens later changes nothing earlier. Once all durations up to a time are those
  of the pass before, everything up to that time is final, so a final prefix grows from the front.
- Rounding to whole ps can make the last differences alternate. Times of all ranks are hashed in
  every pass; when a hash returns, passes go in a circle, and from then on each duration is the mean
  of its last two, rounded down (*damped*).
- `max_passes` bounds the rest; `SlowdownOutcome.unconverged_rows` counts rows that still change.

All processes take the same decisions, since each depends on sums over processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..engine.run import Run
from ..kernels.slowdown import CLASSES
from ..mpi.reductions import allreduce_sum, allreduce_sum_whole, allreduce_sum_words
from ..program import Program
from ._core.rows import fingerprint
from .model import OverlapModel, SlowedRows
from .retiming import RowTimes, is_spread, longest_of_members, retimed, row_times

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["SlowdownOutcome", "run_with_slowdown", "words_of"]

Ints = NDArray[np.int64]
WholeNumbers = NDArray[np.object_]
"""Of any size: sums over all ranks."""


@frozen(eq=False)
class SlowdownOutcome:
    """The outcome of passes; equal on all processes.

    Attributes
    ----------
    run : Run
        The last run, with slowdown.
    step_time_alone : int
        Step time in ps without slowdown.
    passes : int
        Number of times that durations were worked out.
    unconverged_rows : int
        Rows, over all ranks, whose durations the last pass changed (coupled).
    kernel_time : int, shape (len(CLASSES), 2)
        Time of kernels that overlap, over all ranks: alone, and beside communications, in ps.
    wire_time : int, shape (2,)
        Likewise of communications.
    terms : int, shape (len(CLASSES), c)
        Part of the kernels' time, in ps, that is proportional to each number of the model.
    """

    run: Run
    step_time_alone: int
    passes: int
    unconverged_rows: int
    kernel_time: WholeNumbers
    wire_time: WholeNumbers
    terms: WholeNumbers


Runner = Callable[
    [Program, Sequence[Ints | None], bool, NDArray[np.int32] | None],
    Run,
]
"""(program, wire delays, whether this is the last run, placement or None) → run."""


@frozen
class _Pass:
    """The outcome of one pass; times are by class simulated on this process."""

    times: dict[int, RowTimes]
    kernel_time: WholeNumbers
    wire_time: WholeNumbers
    terms: WholeNumbers
    changed: int  # rows, over all ranks
    hash: bytes  # of the times of all ranks, where there are several passes


def run_with_slowdown(
    model: OverlapModel,
    runner: Runner,
    mode: Literal["static", "coupled"],
    comm: Intracomm,
    max_passes: int,
) -> SlowdownOutcome:
    """Run a program in which kernels and communications slow each other. **Collective.**

    Parameters
    ----------
    model : OverlapModel
        With the program, whole.
    runner : callable
        A `Runner`.
    mode : {"static", "coupled"}
    comm : mpi4py.MPI.Intracomm
    max_passes : int
        Of a coupled run.
    """
    run = runner(model.program, (), False, None)
    step_time_alone = run.step_time
    hashes: set[bytes] = set()
    damped = False
    passes, unconverged = 0, 0
    placement: NDArray[np.int32] | None = None
    while True:
        found = _work_out(model, run, comm, mode)
        passes += 1
        times = found.times
        damped = damped or found.hash in hashes
        hashes.add(found.hash)
        if damped:
            times = {
                n: each.mean(RowTimes.of_class(model.program, run, n)) for n, each in times.items()
            }
        if not found.changed or (damped and _is_fixed_point(model.program, run, times, comm)):
            unconverged = found.changed
            # Once more, with what only the last run records (the critical path).
            run = runner(run.program, run.setup.wire_delays, True, placement)
            break
        last = mode == "static" or passes >= max_passes
        # Where each process has the tables of its own ranks alone, ranks stay where they are.
        placement = run.placement if is_spread(run, comm) else None
        program, delays = retimed(model.program, run, times, comm)
        run = runner(program, delays, last, placement)
        if last:
            if mode == "coupled":
                unconverged = _work_out(model, run, comm, mode).changed
            break
    return SlowdownOutcome(
        run,
        step_time_alone,
        passes,
        unconverged,
        found.kernel_time,
        found.wire_time,
        found.terms,
    )


def _is_fixed_point(
    program: Program, run: Run, times: Mapping[int, RowTimes], comm: Intracomm
) -> bool:
    """Return whether a run of a program had these times already. **Collective.**"""
    changed = sum(each.n_differing(RowTimes.of_class(program, run, n)) for n, each in times.items())
    return not allreduce_sum(np.array([changed], np.int64), comm)[0]


def _work_out(
    model: OverlapModel, run: Run, comm: Intracomm, mode: Literal["static", "coupled"]
) -> _Pass:
    """Run → the times of its rows beside each other. **Collective.**"""
    own = model.slowed_rows(run)
    longest = longest_of_members(
        model.program, run.classes, {number: each.wire for number, each in own.items()}, comm
    )
    times: dict[int, RowTimes] = {}
    known: dict[tuple[int, ...], _ClassTimes] = {}
    n_terms = len(model.terms)
    # Everything that is added up over processes, side by side: ps of all GPUs are beyond int64
    # for 100,000 of them and a step of two minutes.
    sums = np.zeros((len(CLASSES), 2 + n_terms + 1), object)
    words = np.zeros(2, np.uint64)
    for number, each in own.items():
        # Classes that share slowed rows share what is made of them, if communications last as long.
        key = (id(each), *fingerprint(longest[number], each.wire).tolist())
        if key not in known:
            known[key] = _class_times(model, run, number, each, longest[number])
        of = known[key]
        times[number] = of.times
        count = int(run.classes.count[number])
        sums[:, :2] += count * each.kernel_time.astype(object)
        sums[:, 2:-1] += count * each.terms.astype(object)
        sums[:3, -1] += count * of.alone, count * of.slowed, count * of.changed
        if mode == "coupled":
            table = int(model.program.table[run.classes.representative[number]])
            words += np.uint64(count) * words_of(of.times, table)
    sums, words = allreduce_sum_whole(sums, comm), allreduce_sum_words(words, comm)
    beside = sums[:, -1]
    return _Pass(times, sums[:, :2], beside[:2], sums[:, 2:-1], int(beside[2]), bytes(words))


def words_of(times: RowTimes, table: int) -> NDArray[np.uint64]:
    """Times of a rank, number of its table → what it adds to the hash of a pass.

    Ranks of different tables that swap their times are in another state.

    Parameters
    ----------
    times : RowTimes
    table : int
        In the program without slowdown.

    Returns
    -------
    uint64, shape (2,)
    """
    return np.asarray(fingerprint(times.hash().view(np.int64), np.full(2, table)))


class _ClassTimes(NamedTuple):
    """Times of the rows of a class, and sums over them.

    Attributes
    ----------
    times : RowTimes
    alone, slowed : int
        Of its slowed communications, without slowdown and with it, in ps.
    changed : int
        Rows whose times are not those that it was run with.
    """

    times: RowTimes
    alone: int
    slowed: int
    changed: int


def _class_times(
    model: OverlapModel, run: Run, number: int, own: SlowedRows, wire: Ints
) -> _ClassTimes:
    rank = int(run.classes.representative[number])
    table, mine = model.program.table_of(rank), model.communications.of(rank)
    times = row_times(table, mine, own.rows, own.duration, wire)
    slowed = wire > mine.alone
    return _ClassTimes(
        times=times,
        alone=int(mine.alone[slowed].sum()),
        slowed=int(wire[slowed].sum()),
        changed=times.n_differing(RowTimes.of_class(model.program, run, number)),
    )
