"""One worker's step, graph and protocol → the program of some iterations of all workers.

A worker is a rank. Its CPU launches everything ahead; on the GPU there are a stream of kernels and
one for each neighbour and direction, so that updates of different neighbours do not wait for each
other. Updates of one neighbour come one after another. Receives stand for the queues of a worker,
which take an update whenever it comes: they are ready from the start, and no sender waits for them.

Which updates an iteration waits for is open where there are backup workers, and which iterations
workers skip: `mpisim.decentralized.decisions` changes the program to what is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..program import Kind, Phase, Program, ProgramBuilder, Table, TableBuilder
from ..workloads.pricing import NO_LAUNCH, Launching
from .graphs import Graph
from .protocol import Protocol

__all__ = ["IterationProgram", "WorkerStep", "decentralized_program"]

Ints = NDArray[np.int64]

TOKEN_BYTES = 8
LONG_BEFORE = -(10**16)
"""Launch time of receives in ps, where the CPU waits for the GPU: earlier than any row."""

MAX_ITERATIONS = 10_000

GRADIENT_PHASES = (Phase.BACKWARD, Phase.WEIGHT)
TAGS = ("phase", "layer", "micro_batch")


@frozen(eq=False)
class WorkerStep:
    """One iteration of a worker: kernels, and the size and averaging of updates.

    Attributes
    ----------
    table : Table
        A step of one GPU without communications.
    names : sequence of str
        Of the program that the table is of.
    update_bytes : int
        Of the update that goes to every receiver.
    averaging : callable
        Number of updates that are averaged with the worker's own → ps.

    Raises
    ------
    InputError
        If the step communicates or makes no gradients.
    """

    table: Table
    names: Sequence[str]
    update_bytes: int
    averaging: Callable[[int], int]

    def __post_init__(self) -> None:
        if self.table.is_communication.any():
            raise InputError("the step of a worker is to have no communications of its own")
        if not self.gradients:
            raise InputError("the step of a worker has no backward pass")

    @property
    def gradients(self) -> int:
        """Number of rows until all gradients are there."""
        made = self.table.is_device & np.isin(self.table.phase, GRADIENT_PHASES)
        return int(np.flatnonzero(made)[-1]) + 1 if made.any() else 0


@frozen(eq=False)
class WorkerRows:
    """Numbers of the rows of one worker's table; its senders are in the order of the graph.

    Attributes
    ----------
    updates : int64, shape (iterations, senders)
        Rows that receive updates.
    tokens : int64, shape (iterations, receivers)
        Rows that receive tokens of iterations that receivers enter; -1 where none is needed.
    enters, averages, ends : int64, shape (iterations,)
        Rows with which an iteration begins, those that average, the last of each iteration.
    """

    updates: Ints
    tokens: Ints
    enters: Ints
    averages: Ints
    ends: Ints


@frozen(eq=False)
class IterationProgram:
    """A program of some iterations, with what its rows mean.

    Attributes
    ----------
    program : Program
    rows : tuple of WorkerRows
        Of each worker.
    graph : Graph
    protocol : Protocol
    """

    program: Program
    rows: tuple[WorkerRows, ...]
    graph: Graph
    protocol: Protocol


def decentralized_program(
    step: WorkerStep, graph: Graph, protocol: Protocol, iterations: int
) -> IterationProgram:
    """One worker's step, graph and protocol → program of all workers; local.

    The updates that are waited for are those of each worker's first senders.

    Parameters
    ----------
    step : WorkerStep
    graph : Graph
    protocol : Protocol
    iterations : int

    Raises
    ------
    InputError
        For more backup workers than there are senders, or no iteration that waits for updates.
    """
    protocol.check(graph)
    if iterations <= protocol.staleness or iterations > MAX_ITERATIONS:
        raise InputError(
            f"--iterations is {iterations}; more than the {protocol.staleness} of --staleness are "
            "needed"
            if iterations <= protocol.staleness and protocol.staleness
            else f"--iterations is {iterations}; allowed is 1 to {MAX_ITERATIONS:,}"
        )
    builder = ProgramBuilder()
    written = []
    for worker in range(graph.workers):
        writer = _Writer(builder, step, graph, protocol, worker)
        for iteration in range(iterations):
            writer.iterate(iteration, iterations)
        builder.add_rank(builder.add_table(writer.table.build()), slots=writer.slots)
        written.append(writer.rows())
    program = builder.build({"source": "decentralized training"})
    return IterationProgram(program, tuple(written), graph, protocol)


class _Writer:
    """Writes the table of one worker."""

    def __init__(
        self,
        builder: ProgramBuilder,
        step: WorkerStep,
        graph: Graph,
        protocol: Protocol,
        worker: int,
    ) -> None:
        self.table: TableBuilder = builder.table(f"worker {worker}")
        self.slots: list[int] = []
        self._step, self._protocol = step, protocol
        self._streams = step.table.n_streams
        self._cpu_waits = bool((step.table.kind == Kind.HOST_WAIT).any())
        self._cpu_time = 0  # of all rows so far, in ps
        senders, receivers = graph.senders[worker], graph.receivers[worker]
        # Tokens go against the updates: from a receiver to those whose updates it takes.
        self._from = [self._slot(builder, "updates", each, worker) for each in senders]
        self._to = [self._slot(builder, "updates", worker, each) for each in receivers]
        tokens = protocol.max_gap is not None
        self._tokens_from = [
            self._slot(builder, "tokens", each, worker) for each in receivers if tokens
        ]
        self._tokens_to = [
            self._slot(builder, "tokens", worker, each) for each in senders if tokens
        ]
        self._updates: list[list[int]] = []
        self._tokens: list[list[int]] = []  # by the iteration at whose begin they are sent
        self._receivers = len(receivers)
        self._enters: list[int] = []
        self._averages: list[int] = []
        self._ends: list[int] = []

    def rows(self) -> WorkerRows:
        """Return what the rows of the table are."""
        return WorkerRows(
            np.array(self._updates, np.int64),
            np.array(self._tokens, np.int64).reshape(len(self._enters), -1),
            np.array(self._enters, np.int64),
            np.array(self._averages, np.int64),
            np.array(self._ends, np.int64),
        )

    def _slot(self, builder: ProgramBuilder, what: str, sender: int, receiver: int) -> int:
        name = f"{what} {sender} to {receiver}"
        self.slots.append(builder.communicator((sender, receiver), name))
        return len(self.slots) - 1

    def _with_tokens(self, iterations: int) -> range:
        """Return the iterations at whose begin tokens are sent: that far ahead of their use.

        Where iterations are skipped, all: they tell how far receivers are.
        """
        gap = self._protocol.max_gap
        if gap is None:
            return range(0)
        return range(1, iterations if self._protocol.skip else iterations - gap)

    def _send(self, what: str, slot: int, size: int, made: int, launching: Launching) -> None:
        """Append a send of what a row has made, on the stream of its slot."""
        self._cpu_time += launching["host"] + launching["launch_cost"]
        self.table.point_to_point(
            Kind.SEND,
            slot,
            self._streams + slot,
            size,
            name=f"send {what}",
            waits=[made],
            **launching,
        )

    def _receive(self, what: str, slots: Sequence[int], size: int) -> list[int]:
        """Append receives of all senders, ready from the start, each on the stream of its slot."""
        posted = LONG_BEFORE if self._cpu_waits else -self._cpu_time
        return [
            self.table.point_to_point(
                Kind.RECV, slot, self._streams + slot, size, name=f"receive {what}", launch=posted
            )
            for slot in slots
        ]

    def iterate(self, iteration: int, iterations: int) -> None:
        """Append one iteration."""
        table, step, protocol = self.table, self._step, self._protocol
        table.tags(step=iteration, phase=Phase.NONE, layer=-1, micro_batch=-1)
        gap = protocol.max_gap
        awaited = self._tokens[iteration - gap] if gap is not None and iteration > gap else ()
        entered = table.kernel("enter iteration", 0, 0, waits=awaited)
        self._enters.append(entered)
        if iteration in self._with_tokens(iterations):
            for slot in self._tokens_to:
                self._send("token", slot, TOKEN_BYTES, entered, NO_LAUNCH)
            self._tokens.append(self._receive("token", self._tokens_from, TOKEN_BYTES))
        else:
            self._tokens.append([-1] * self._receivers)
        split = step.gradients
        number_of = self._copy(0, split, {})
        launch = self._launch(split - 1)
        table.tags(phase=Phase.NONE, layer=-1, micro_batch=-1)
        for slot in self._to:
            self._send("update", slot, step.update_bytes, number_of[split - 1], launch)
        self._updates.append(self._receive("update", self._from, step.update_bytes))
        kept = len(self._from) - protocol.backup
        stale = iteration < protocol.staleness
        updates = [] if stale else self._updates[iteration - protocol.staleness][:kept]
        self._cpu_time += launch["host"] + launch["launch_cost"]
        averaged = table.kernel(
            "average updates",
            int(step.table.stream[split - 1]),
            0 if stale else step.averaging(kept),
            waits=updates,
            gap=int(step.table.gap[split - 1]),
            **launch,
        )
        self._averages.append(averaged)
        self._copy(split, len(step.table), number_of)
        self._ends.append(table.device_rows[-1])

    def _launch(self, row: int) -> Launching:
        """Return what launching costs the CPU, as for a row of the step."""
        table = self._step.table
        return Launching(
            host=int(table.host[row]),
            launch=int(table.launch[row]),
            launch_cost=int(table.launch_cost[row]),
        )

    def _copy(self, first: int, last: int, number_of: dict[int, int]) -> dict[int, int]:
        """Append rows of the step; step's row → the table's for these and those before."""
        source, names = self._step.table, self._step.names
        for row in range(first, last):
            self.table.tags(**{tag: int(getattr(source, tag)[row]) for tag in TAGS})
            awaited = source.wait_row[source.wait_index[row] : source.wait_index[row + 1]]
            waits = [number_of[int(each)] for each in awaited]
            name, kind, launch = names[source.name[row]], Kind(source.kind[row]), self._launch(row)
            self._cpu_time += launch["host"] + launch["launch_cost"]
            if kind == Kind.HOST:
                number = self.table.host(launch["host"], name)
            elif kind == Kind.HOST_WAIT:
                number = self.table.host_wait(
                    waits, host=launch["host"], tail=launch["launch_cost"], name=name
                )
            else:
                number = self.table.kernel(
                    name,
                    int(source.stream[row]),
                    int(source.duration[row]),
                    waits=waits,
                    gap=int(source.gap[row]),
                    bytes=int(source.bytes[row]),
                    kind=kind,
                    **launch,
                )
            number_of[row] = number
        return number_of
