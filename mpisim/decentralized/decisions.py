"""A program of iterations, and what workers decide as it runs → the program with these decisions.

Workers decide which updates an iteration goes on with (the first that come), and how many
iterations they skip (as far as tokens say that all of their receivers are ahead). The program has
rows for every iteration of all. Rows of a skipped one take no time and its messages are none, but
for two:

- the row with which the first of them would begin, which waits for tokens: there it decides;
- the average of the last of them, by which it renews its parameters.

Receivers of its tokens wait for those of the iteration that it skips to, of its updates for none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..program import Kind, Operation, Table
from .program import IterationProgram, WorkerRows

__all__ = ["Decisions", "with_decisions"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_VOID = {
    "kind": Kind.KERNEL,
    "flags": 0,
    "operation": Operation.NONE,
    "slot": -1,
    "host": 0,
    "launch_cost": 0,
    "gap": 0,
    "duration": 0,
    "bytes": -1,
}
"""Columns of a row on the device that takes no time."""


@frozen(eq=False)
class Decisions:
    """Decisions of the workers: whose updates were averaged, which iterations skipped.

    Attributes
    ----------
    awaited : tuple of int64, shape (iterations - staleness, senders - backup)
        Of each worker for each iteration from the `staleness`-th on: the senders, by their
        position, whose updates of `staleness` iterations before are averaged.
    executed : bool, shape (workers, iterations)
        Which iterations are not skipped.
    """

    awaited: tuple[Ints, ...]
    executed: Mask

    def equals(self, other: Decisions) -> bool:
        """Whether the others are the same."""
        same = zip(self.awaited, other.awaited, strict=True)
        return np.array_equal(self.executed, other.executed) and all(
            np.array_equal(one, another) for one, another in same
        )


def with_decisions(iterations: IterationProgram, decided: Decisions) -> IterationProgram:
    """Program as it is first, and decisions → the program with them.

    Parameters
    ----------
    iterations : IterationProgram
        As `decentralized_program` returns it.
    decided : Decisions
    """
    tables = [
        _decided(iterations, decided, worker, rows) for worker, rows in enumerate(iterations.rows)
    ]
    return replace(iterations, program=replace(iterations.program, tables=tuple(tables)))


def _decided(
    iterations: IterationProgram, decided: Decisions, worker: int, rows: WorkerRows
) -> Table:
    """Return the table of a worker with the decisions of all."""
    graph, stale = iterations.graph, iterations.protocol.staleness
    table, executed = iterations.program.table_of(worker), decided.executed
    waits = table.wait_row.copy()
    changed: dict[str, NDArray[Any]] = {"wait_row": waits}
    chosen = decided.awaited[worker]
    sent = executed[list(graph.senders[worker])].T  # iterations, senders
    sources = np.take_along_axis(rows.updates[: len(chosen)], chosen, axis=1)
    # Of too few that are sent, which no final decision has, those are waited for twice.
    missing = ~np.take_along_axis(sent[: len(chosen)], chosen, axis=1)
    sources = np.where(missing, sources[:, :1], sources)
    sources = np.where(missing[:, :1], rows.enters[stale:, None], sources)
    first = table.wait_index[rows.averages[stale:]]
    waits[first[:, None] + np.arange(chosen.shape[1])] = np.sort(sources, axis=1)
    if not executed.all():
        void = _skipped_rows(table, rows, executed[worker])
        void[rows.updates[~sent]] = True
        came = executed[list(graph.receivers[worker])].T
        void[rows.tokens[~came & (rows.tokens >= 0)]] = True
        _wait_for_next_tokens(table, waits, rows, came)
        _wait_for_decision(table, waits, rows, executed[worker])
        changed |= _without(table, void)
    return table.replace(**changed)


def _skipped_rows(table: Table, rows: WorkerRows, executed: Mask) -> Mask:
    """Return the rows of skipped iterations that a worker does not do."""
    void = np.zeros(len(table), np.bool_)
    ends = [*rows.enters[1:].tolist(), len(table)]
    for iteration in np.flatnonzero(~executed).tolist():
        begin, end = int(rows.enters[iteration]), ends[iteration]
        # Receives are queues: whether they take something is for the senders to say.
        void[begin:end] = table.kind[begin:end] != Kind.RECV
        if executed[iteration + 1]:
            void[rows.averages[iteration]] = False
    return void


def _wait_for_next_tokens(
    table: Table, waits: NDArray[np.int32], rows: WorkerRows, came: Mask
) -> None:
    """Have rows that wait for tokens of skipped iterations wait for those of the next one."""
    following = {}
    for receiver in range(came.shape[1]):
        at = -1
        for iteration in reversed(range(len(came))):
            if rows.tokens[iteration, receiver] < 0:
                continue
            at = int(rows.tokens[iteration, receiver]) if came[iteration, receiver] else at
            following[int(rows.tokens[iteration, receiver])] = at
    for enter in rows.enters.tolist():
        for place in range(int(table.wait_index[enter]), int(table.wait_index[enter + 1])):
            waits[place] = following[int(waits[place])]


def _wait_for_decision(
    table: Table, waits: NDArray[np.int32], rows: WorkerRows, executed: Mask
) -> None:
    """Have rows of skipped iterations wait for nothing of others, but where it is decided."""
    decides = -1

    def idle(row: int) -> None:
        waits[table.wait_index[row] : table.wait_index[row + 1]] = decides

    for iteration, done in enumerate(executed.tolist()):
        if decides >= 0:  # tokens of an iteration that was skipped to were there
            idle(int(rows.enters[iteration]))
        if done:
            decides = -1
            continue
        if decides < 0:
            decides = int(rows.enters[iteration])
        if not executed[iteration + 1]:
            idle(int(rows.averages[iteration]))


def _without(table: Table, void: Mask) -> dict[str, NDArray[Any]]:
    """Return columns in which these rows are kernels of no duration, and those of the CPU idle."""
    device = void & table.is_device
    changed: dict[str, NDArray[Any]] = {}
    for name, value in _VOID.items():
        changed[name] = getattr(table, name).copy()
        changed[name][device] = value
    for name in ("host", "launch_cost"):
        changed[name][void] = 0
    changed["launch"] = table.launch.copy()
    changed["launch"][device & (table.kind != Kind.RECV)] = 0  # queues are there early
    return changed
