"""Where the step went: every picosecond of every rank, put into one class and only one.

At any moment of the step a rank's device is in one of four states, the first that applies:

- **compute**: a kernel or a copy runs. (Copies are work of the device's own, and a simulator that
  called them idle would blame the host for them; ``copy`` says how much of the compute time had
  nothing but copies.)
- **exposed wire**: a communication moves data and nothing computes.
- **exposed waiting**: a communication occupies a stream and waits for other members; nothing
  computes and nothing moves.
- **idle**: nothing runs, also before the rank's start and after its end.

Exposed communication is the sum of the second and the third, so that compute + exposed
communication + idle is the step time, exactly, in integers. ``communication`` is the whole time
in which some communication ran, hidden or not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..engine.refine import ranges
from ..engine.run import Binding, Run
from ..program import Flag, Kind, Table

__all__ = [
    "BREAKDOWN",
    "break_down",
    "host_times",
    "sweep",
    "total_communications",
    "total_kernels",
]

BREAKDOWN = (
    "compute",
    "copy",
    "communication",
    "exposed",
    "exposed_wire",
    "exposed_waiting",
    "idle",
    "host_busy",
    "host_waiting",
)
"""Columns of `break_down`; compute + exposed + idle = step time, exposed = wire + waiting."""

KERNEL, COPY, WIRE, OCCUPIED = 1, 2, 4, 8
"""Bits of the states of `sweep`."""


def break_down(run: Run) -> NDArray[np.int64]:
    """Break down the step of every rank hosted here.

    Local.

    Parameters
    ----------
    run : Run
        Recorded.

    Returns
    -------
    int64, shape (h, len(BREAKDOWN))
        ps, one row a hosted rank, in the columns `BREAKDOWN`.
    """
    pieces = np.zeros((len(run.simulated), len(BREAKDOWN)), np.int64)
    for number, i in enumerate(run.simulated.tolist()):
        rank = int(run.hosted[i])
        table = run.program.table_of(rank)
        begin, end = run.begin[i], run.end[i]
        wire = wire_begins(table, begin, run.wire[i])
        kernel, copy, comm = (
            table.kind == Kind.KERNEL,
            table.kind == Kind.COPY,
            table.is_communication,
        )
        layers = ((begin, kernel), (begin, copy), (wire, comm), (begin, comm))
        spent = sweep([(first[rows], end[rows]) for first, rows in layers], run.step_time)
        state = np.arange(len(spent))
        computing = (state & (KERNEL | COPY)) != 0
        exposed_wire = ~computing & ((state & WIRE) != 0)
        exposed = ~computing & ((state & (WIRE | OCCUPIED)) != 0)
        compute, exposed_time, idle = (
            int(spent[s].sum()) for s in (computing, exposed, state == 0)
        )
        if compute + exposed_time + idle != run.step_time:
            raise AssertionError(
                f"rank {rank}: {compute} + {exposed_time} + {idle} ps is not {run.step_time} ps"
            )
        on_wire = int(spent[exposed_wire].sum())
        pieces[number] = (
            compute,
            spent[computing & ((state & KERNEL) == 0)].sum(),
            spent[(state & (WIRE | OCCUPIED)) != 0].sum(),
            exposed_time,
            on_wire,
            exposed_time - on_wire,
            idle,
            *host_times(table, int(run.program.start[rank]), end, run.binding[i]),
        )
    return pieces[run.stand_in]


def sweep(
    layers: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], until: int
) -> NDArray[np.int64]:
    """Measure how long each combination of layers of intervals was active.

    Parameters
    ----------
    layers : sequence of (begin, end)
        int64 arrays; the intervals of a layer may overlap. What lies outside [0, `until`] is cut.
    until : int
        The end of time.

    Returns
    -------
    int64, shape (2 ** len(layers),)
        Time in each state; bit i of a state is set while an interval of layer i is active. The sum
        is `until`.

    Examples
    --------
    >>> sweep([(np.array([0, 2]), np.array([4, 6])), (np.array([5]), np.array([8]))], 10).tolist()
    [2, 5, 2, 1]
    """
    times = np.concatenate([np.concatenate(layer) for layer in layers]).clip(0, until)
    order = np.argsort(times, kind="stable")
    times = times[order]
    lengths = np.diff(times, append=until)
    state = np.zeros(len(times), np.int64)
    first = 0
    for bit, (begin, end) in enumerate(layers):
        change = np.zeros(len(times), np.int64)
        change[first : first + len(begin)] = 1
        change[first + len(begin) : first + len(begin) + len(end)] = -1
        first += len(begin) + len(end)
        # Where times are equal the depth may dip below 0, for a length of 0.
        state |= (np.cumsum(change[order]) > 0).astype(np.int64) << bit
    spent = np.zeros(2 ** len(layers), np.int64)
    np.add.at(spent, state, lengths)
    spent[0] += times[0] if len(times) else until
    return spent


def wire_begins(
    table: Table, begin: NDArray[np.int64], wire: NDArray[np.int64]
) -> NDArray[np.int64]:
    """From when the rows move data: an EAGER row does not wait for the others."""
    return np.where((table.flags & Flag.EAGER) != 0, begin, wire)


def host_times(
    table: Table,
    start: int,
    end: NDArray[np.int64],
    binding: NDArray[np.uint8],
) -> tuple[int, int]:
    """Return how long the CPU of a rank worked, and how long it waited for the device, in ps.

    It waits in HOST_WAIT rows and when the launch queue is full. The clock after the last row is
    not recorded; it follows from the last row after which it is known.
    """
    joined = (table.flags & Flag.JOINED) != 0
    launches = table.is_device & ~joined
    cost = np.where(joined, 0, table.host + np.where(table.kind == Kind.HOST, 0, table.launch_cost))
    busy = int(cost.sum())
    queued = launches & ((binding & Binding.QUEUE) != 0)
    known = np.flatnonzero(~table.is_device | queued)
    if not len(known):
        return busy, 0
    row = int(known[-1])
    if queued[row]:  # it went on when an earlier kernel of the stream had left the launch queue
        kernels = np.flatnonzero(launches & (table.stream == table.stream[row]))
        first = int(kernels[np.searchsorted(kernels, row) - table.queue_depth])
        batch = [first]
        while joined[batch[-1] + 1]:  # `row` comes later, so there is a next one
            batch.append(batch[-1] + 1)
        clock = int(end[batch].max() + table.launch_cost[row])
    else:
        clock = int(end[row])
    waiting = clock + int(cost[row + 1 :].sum()) - start - busy
    if waiting < 0:
        raise AssertionError(f"table {table.label!r}: the CPU waited {waiting} ps")
    return busy, waiting


def total_kernels(run: Run, names: NDArray[np.int64], n_names: int) -> NDArray[np.int64]:
    """Add up the KERNEL and COPY rows of the hosted ranks by kind and name.

    Local.

    Parameters
    ----------
    run : Run
        Recorded.
    names : int64, shape (len(run.program.names),)
        The number of each name that all processes use.
    n_names : int
        How many there are.

    Returns
    -------
    int64, shape (k, 5)
        Rows (kind, name, count, total ps, longest ps), by kind and name.
    """
    count, total, longest = np.zeros((3, 2 * n_names), np.int64)
    for i, alike in zip(run.simulated.tolist(), np.bincount(run.stand_in).tolist(), strict=True):
        table = run.program.table_of(int(run.hosted[i]))
        rows = np.flatnonzero(table.kind <= Kind.COPY)
        key = table.kind[rows] * np.int64(n_names) + names[table.name[rows]]
        length = run.end[i][rows] - run.begin[i][rows]
        np.add.at(count, key, alike)
        np.add.at(total, key, length * alike)
        np.maximum.at(longest, key, length)
    seen = np.flatnonzero(count)
    return np.stack([seen // max(n_names, 1), seen % max(n_names, 1), count[seen], total[seen],
                     longest[seen]], axis=1)  # fmt: skip


def total_communications(run: Run) -> NDArray[np.int64]:
    """Add up the communications of the hosted ranks by communicator and operation.

    Local.

    Parameters
    ----------
    run : Run
        Recorded.

    Returns
    -------
    int64, shape (k, 8)
        Rows (communicator, operation, rows, wire ps, waiting ps, rows of known size, their bytes,
        their wire ps); a communication of n members is n rows.
    """
    parts = []
    for i in run.simulated.tolist():
        table = run.program.table_of(int(run.hosted[i]))
        rows = np.flatnonzero(table.is_communication)
        ready = run.begin[i][rows]
        wire = wire_begins(table, run.begin[i], run.wire[i])[rows]
        size = table.bytes[rows]
        known = size >= 0
        moving = run.end[i][rows] - wire
        columns = (
            table.slot[rows], table.operation[rows], np.ones(len(rows)), moving, wire - ready,
            known, np.where(known, size, 0), np.where(known, moving, 0),
        )  # fmt: skip
        parts.append(added_up(np.stack([c.astype(np.int64) for c in columns], axis=1)))
    # Every rank has these rows on communicators of its own.
    at, owner = ranges(np.cumsum([0, *map(len, parts)]), run.stand_in)
    met = np.concatenate([np.zeros((0, 8), np.int64), *parts])[at]
    program = run.program
    met[:, 0] = program.slots[program.slot_index[run.hosted[owner]] + met[:, 0]]
    return added_up(met)


def added_up(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up rows that agree in the first two columns (at least 0); the result is in their order.

    Examples
    --------
    >>> added_up(np.array([[1, 0, 5], [0, 9, 1], [1, 0, 7]])).tolist()
    [[0, 9, 1], [1, 0, 12]]
    """
    if not len(rows):
        return rows
    key = rows[:, 0] * (rows[:, 1].max() + 1) + rows[:, 1]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    return np.concatenate([rows[first, :2], np.add.reduceat(rows[:, 2:], first, axis=0)], axis=1)
