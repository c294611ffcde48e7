"""Programs of which a Kineto trace can tell everything, and their way through files and back.

A trace shows when calls were made and operations ran, not why. It tells a program's latency and
gap only if these are the same throughout, and each was once what an operation waited for; what a
clock shows too much, only if ranks ended some communications together. So every rank here begins
with a few rows that show all this (`_Writer.first_rows`). All times are whole ns, even ones, so
that half as much again is a whole ns, too: nothing is rounded on the way.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hypothesis import strategies as st

from mpisim.engine import Run, block_placement, simulate
from mpisim.program import Kind, Operation, Program, ProgramBuilder
from mpisim.replay import Replay, TraceJob, read_job, replay
from mpisim.replay.what_if import WhatIf
from mpisim.traces.export import export_kineto

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["US", "exported", "recordable_program", "recordable_programs", "replayed"]

US = 1_000_000
"""A µs in ps."""
STEP = 2_000
"""All times are multiples of this many ps."""
SYNCHRONISING = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
OTHERS = (Operation.BROADCAST, Operation.REDUCE, Operation.ALL_TO_ALL)


def recordable_programs(max_ranks: int = 4, max_events: int = 40) -> st.SearchStrategy[Program]:
    """Return a strategy of programs that a trace tells completely."""
    return st.builds(
        recordable_program,
        seed=st.integers(0, 2**32 - 1),
        n_ranks=st.integers(2, max_ranks),
        n_events=st.integers(0, max_events),
    )


def recordable_program(seed: int, n_ranks: int = 3, n_events: int = 30) -> Program:
    """Return one such program, always the same for one seed."""
    return _Writer(random.Random(seed), n_ranks).write(n_events)


@contextmanager
def exported(
    run: Run,
    comm: Intracomm,
    *,
    clock_offset: Mapping[int, int] | None = None,
    style: Literal["new", "old"] = "new",
) -> Iterator[Path]:
    """Write a recorded run as traces into a new folder, which is gone after the block."""
    parent = tempfile.mkdtemp() if comm.rank == 0 else ""
    parent = comm.bcast(parent, root=0)
    try:
        folder = Path(parent) / "traces"
        export_kineto(run.program, run, folder, clock_offset=clock_offset, style=style, comm=comm)
        comm.barrier()
        yield folder
    finally:
        comm.barrier()
        if comm.rank == 0:
            shutil.rmtree(parent)


def replayed(
    program: Program,
    comm: Intracomm,
    *changes: WhatIf,
    clock_offset: Mapping[int, int] | None = None,
    style: Literal["new", "old"] = "new",
) -> tuple[TraceJob, list[Replay]]:
    """Simulate, export, read back, and replay once for every change."""
    placement = block_placement(program.n_ranks, comm.size)
    run = simulate(program, comm, placement=placement)
    with exported(run, comm, clock_offset=clock_offset, style=style) as folder:
        job = read_job([folder], comm)
    return job, [replay(job, comm, what) for what in changes]


class _Writer:
    """Writes the tables of all ranks in one global order of events, so that none can block."""

    def __init__(self, rng: random.Random, n_ranks: int) -> None:
        self.rng, self.n = rng, n_ranks
        self.builder = ProgramBuilder()
        self.tables = [self.builder.table(f"rank {r}") for r in range(n_ranks)]
        self.slots: list[list[int]] = [[] for _ in range(n_ranks)]
        self.latency, self.gap = self.time(3, 15), self.time(0.5, 3)
        # Of each rank: the last row of every stream, and all rows on streams.
        self.last: list[dict[int, int]] = [{} for _ in range(n_ranks)]
        self.device: list[list[int]] = [[] for _ in range(n_ranks)]

    def time(self, least: float, most: float) -> int:
        """A time in ps, bounds in µs."""
        return round(self.rng.uniform(least, most) * US) // STEP * STEP

    def write(self, n_events: int) -> Program:
        everyone = list(range(self.n))
        for rank in everyone:
            self.first_rows(rank)
        for _ in range(5):
            self.collective(everyone, Operation.ALL_REDUCE, "clocks")
        events = [
            self.kernel,
            self.kernel,
            self.kernel,
            self.copy,
            self.host,
            self.host_wait,
            self.some_collective,
            self.some_collective,
            self.some_collective,
            self.pair,
        ]
        steps = sorted(self.rng.choices(range(n_events + 1), k=2))
        for event in range(n_events):
            for rows in self.tables:
                rows.tags(step=sum(event >= at for at in steps))
            self.rng.choice(events)()
        for rank, rows in enumerate(self.tables):
            # A trace ends with the last call: CPU time behind it would be lost.
            rows.host_wait(sorted(self.last[rank].values()), host=self.time(5, 9), tail=5 * US)
            self.builder.add_rank(
                self.builder.add_table(rows.build()),
                self.slots[rank],
                start=self.time(0, 100) if rank else 0,
            )
        return self.builder.build()

    def first_rows(self, rank: int) -> None:
        """Show the latency and the gap, the latter behind a stream and behind a wait."""
        rows = self.tables[rank]
        rows.tags(step=0)
        long = self._device(rank, 0, duration=self.time(200, 300))
        self._device(rank, 0, duration=self.time(5, 9))
        self._device(rank, 1, duration=self.time(5, 9), waits=[long])
        # Long enough for windows of clocks that differ by ms to overlap.
        rows.host(8_000 * US)

    # --- columns --------------------------------------------------------------------------------

    def call(self) -> dict[str, Any]:
        return {
            "host": self.time(5, 80),
            "launch": self.latency,
            "gap": self.gap,
            "launch_cost": self.time(2, 8),
        }

    def waits(self, rank: int) -> list[int]:
        """Some earlier rows: the last ones of streams, or any."""
        device = self.device[rank]
        last = self.rng.sample(
            sorted(self.last[rank].values()), self.rng.randint(0, min(2, len(self.last[rank])))
        )
        return sorted({*last, *self.rng.sample(device, self.rng.randint(0, min(1, len(device))))})

    def _device(
        self,
        rank: int,
        stream: int,
        duration: int,
        waits: list[int] | None = None,
        kind: Kind = Kind.KERNEL,
        name: str = "kernel 0",
    ) -> int:
        row = self.tables[rank].kernel(
            name, stream, duration, waits=waits or [], kind=kind, **self.call()
        )
        return self.launched(rank, stream, row)

    def launched(self, rank: int, stream: int, row: int) -> int:
        """Remember a row that runs on a stream."""
        self.last[rank][stream] = row
        self.device[rank].append(row)
        return row

    def slot(self, rank: int, communicator: int) -> int:
        if communicator not in self.slots[rank]:
            self.slots[rank].append(communicator)
        return self.slots[rank].index(communicator)

    # --- events ---------------------------------------------------------------------------------

    def kernel(self) -> None:
        rank = self.rng.randrange(self.n)
        stream, name = self.rng.randrange(2), f"kernel {self.rng.randrange(3)}"
        self._device(rank, stream, self.time(3, 300), self.waits(rank), name=name)

    def copy(self) -> None:
        """A copy that ends after its call: one that ends before would look as if waited for."""
        rank = self.rng.randrange(self.n)
        stream = self.rng.randrange(2)
        self._device(rank, stream, self.time(20, 60), self.waits(rank), Kind.COPY, "Memcpy HtoD")

    def host(self) -> None:
        self.tables[self.rng.randrange(self.n)].host(self.time(1, 500))

    def host_wait(self) -> None:
        """For one row, or for all streams: one call cannot wait for some of them."""
        rank = self.rng.randrange(self.n)
        rows = self.tables[rank]
        one = self.rng.random() < 0.7
        waits = self.waits(rank)[:1] if one else sorted(self.last[rank].values())
        if waits:
            rows.host_wait(waits, host=self.time(5, 20), tail=self.time(1, 20))

    def some_collective(self) -> None:
        members = self.rng.sample(range(self.n), self.rng.randint(2, self.n))
        operation = self.rng.choice([*SYNCHRONISING, *SYNCHRONISING, *OTHERS])
        self.collective(members, operation, self.rng.choice(["a", "b"]))

    def collective(self, members: list[int], operation: Operation, name: str) -> None:
        communicator = self.builder.communicator(members, name)
        duration, size = self.time(4, 200), 840 * self.rng.randint(1, 50)
        for rank in members:
            own = duration
            if operation in OTHERS:
                own += self.rng.choice([0, 0, self.time(0, 30)])
            slot = self.slot(rank, communicator)
            rows = self.tables[rank]
            stream = self._stream(rank, slot)
            row = rows.collective(
                operation, slot, stream, size, duration=own, waits=self.waits(rank), **self.call()
            )
            self.launched(rank, stream, row)

    def pair(self) -> None:
        ends = self.rng.sample(range(self.n), 2)
        communicator = self.builder.communicator(ends, "pair")
        duration, size = self.time(4, 200), 4 * self.rng.randint(1, 5000)
        for rank, kind in zip(ends, (Kind.SEND, Kind.RECV), strict=True):
            slot = self.slot(rank, communicator)
            stream = self._stream(rank, slot)
            row = self.tables[rank].point_to_point(
                kind, slot, stream, size, duration=duration, waits=self.waits(rank), **self.call()
            )
            self.launched(rank, stream, row)

    def _stream(self, rank: int, slot: int) -> int:
        """Each communicator has its own stream, as in PyTorch."""
        return 2 + slot
