"""Random valid programs, for properties that hold of every program.

All ranks follow one global order of events, so no program can deadlock: when a rank comes to a
communication, the others can come to it as well. Ranks that share a table are *replicas*; rank
numbers are shuffled, so that nothing can rest on their order. Times are small whole numbers and
collide often.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import strategies as st

from mpisim.program import (
    UNPRICED,
    Flag,
    Kind,
    Operation,
    Program,
    ProgramBuilder,
    TableBuilder,
)

__all__ = ["ProgramWriter", "partial", "programs", "random_program", "repeating_program"]

COLLECTIVES = (
    Operation.ALL_REDUCE,
    Operation.ALL_GATHER,
    Operation.BROADCAST,
    Operation.ALL_TO_ALL,
    Operation.BARRIER,
)
SPEEDS = (1.0, 1.0, 1.0, 0.5, 1.3, 3.0)


def programs(
    *,
    max_tables: int = 3,
    max_replicas: int = 3,
    max_events: int = 25,
    unpriced: bool = False,
    backwards: bool = True,
) -> st.SearchStrategy[Program]:
    """Return a strategy of programs; for the last two see `random_program`."""
    return st.builds(
        random_program,
        seed=st.integers(0, 2**32 - 1),
        n_tables=st.integers(1, max_tables),
        n_replicas=st.integers(1, max_replicas),
        n_events=st.integers(0, max_events),
        unpriced=st.just(unpriced),
        backwards=st.just(backwards),
    )


def random_program(
    seed: int,
    n_tables: int = 2,
    n_replicas: int = 2,
    n_events: int = 20,
    unpriced: bool = False,
    backwards: bool = True,
) -> Program:
    """Return a program of ``n_tables * n_replicas`` ranks, always the same for one seed.

    Parameters
    ----------
    seed, n_tables, n_replicas : int
    n_events : int
        Rows, or communications with all their rows.
    unpriced : bool
        Some communications have no duration of their own.
    backwards : bool
        Some gaps and launch latencies are negative, as in traces.
    """
    rng = random.Random(seed)
    return ProgramWriter(rng, n_tables, n_replicas, unpriced, backwards).write(n_events)


def partial(program: Program, hosted: set[int]) -> Program:
    """Return the program as a process sees it that holds only the tables of some ranks."""
    kept = {int(program.table[rank]) for rank in hosted}
    return program.replace(
        tables=tuple(table if i in kept else None for i, table in enumerate(program.tables))
    )


class ProgramWriter:
    """Writes the tables of a random program, event by event."""

    def __init__(
        self, rng: random.Random, n_tables: int, n_replicas: int, unpriced: bool, backwards: bool
    ) -> None:
        self.rng, self.unpriced = rng, unpriced
        self.backwards = rng.choice([1, 1, 15]) if backwards else 0  # ps
        self.n_tables, self.n_replicas = n_tables, n_replicas
        self.builder = ProgramBuilder()
        self.tables = [self.builder.table(f"table {t}") for t in range(n_tables)]
        self.numbers = list(range(n_tables * n_replicas))
        rng.shuffle(self.numbers)
        # Of each table: the communicators of its slots, one list over replicas a slot.
        self.slots: list[list[tuple[int, ...]]] = [[] for _ in self.tables]
        self.streams = rng.randint(1, 3)
        # Rows that may be waited for.
        self.device: dict[TableBuilder, list[int]] = {rows: [] for rows in self.tables}

    def rank(self, table: int, replica: int) -> int:
        return self.numbers[table * self.n_replicas + replica]

    def write(self, n_events: int) -> Program:
        self.events(n_events)
        return self.built()

    def events(self, n_events: int) -> None:
        events: list[Callable[[], None]] = [
            self.kernel,
            self.kernel,
            self.kernel,
            self.host,
            self.host_wait,
            self.across,
            self.across,
            self.replicas,
            self.everyone,
            self.coalesced,
            self.train,
            self.pair,
            self.swap,
            self.ring,
        ]
        for _ in range(n_events):
            self.rng.choice(events)()

    def built(self) -> Program:
        rng = self.rng
        for rows in self.tables:
            self.builder.add_table(rows.build(queue_depth=rng.choice([0, 0, 1, 2, 4])))
        of_rank = {
            self.rank(t, i): (t, i) for t in range(self.n_tables) for i in range(self.n_replicas)
        }
        for rank in range(len(of_rank)):
            t, i = of_rank[rank]
            self.builder.add_rank(
                t,
                [communicators[i] for communicators in self.slots[t]],
                speed=rng.choice(SPEEDS),
                start=rng.choice([0, 0, rng.randint(0, 60)]),
            )
        return self.builder.build()

    # --- columns --------------------------------------------------------------------------------

    def call(self) -> dict[str, int]:
        pick = self.rng.randint
        return {
            "host": pick(0, 5),
            "launch": pick(-2 * self.backwards, 6),
            "launch_cost": pick(0, 3),
            "gap": self.rng.choice([0, 0, pick(-self.backwards, 3)]),
        }

    def waits(self, rows: TableBuilder, most: int = 3) -> list[int]:
        device = rows.device_rows
        return self.rng.sample(device, min(len(device), self.rng.randint(0, most)))

    def stream(self) -> int:
        return self.rng.randrange(self.streams)

    def slot(self, t: int, communicators: list[int]) -> int:
        """Return the slot of a table that its replicas have bound to these communicators."""
        bound = tuple(communicators)
        if bound not in self.slots[t]:
            self.slots[t].append(bound)
        return self.slots[t].index(bound)

    def length(self) -> int:
        if self.unpriced and self.rng.random() < 0.5:
            return UNPRICED
        return self.rng.randint(0, 30)

    def size(self) -> int:
        return self.rng.choice([0, self.rng.randint(0, 200), *[self.rng.randint(0, 5000)] * 4])

    # --- events ---------------------------------------------------------------------------------

    def kernel(self) -> None:
        rows = self.rng.choice(self.tables)
        kind = self.rng.choice([Kind.KERNEL, Kind.KERNEL, Kind.COPY])
        row = rows.kernel(
            f"{kind.name.lower()} {self.rng.randrange(3)}",
            self.stream(),
            self.rng.randint(0, self.rng.choice([20, 20, 20, 400])),
            waits=self.waits(rows),
            kind=kind,
            **self.call(),
        )
        self.device[rows].append(row)

    def host(self) -> None:
        self.rng.choice(self.tables).host(self.rng.randint(0, 20))

    def host_wait(self) -> None:
        rows = self.rng.choice(self.tables)
        rows.host_wait(self.waits(rows), host=self.rng.randint(0, 4), tail=self.rng.randint(0, 3))

    def across(self) -> None:
        """One group for each replica, over some of the tables."""
        some = self.rng.sample(range(self.n_tables), self.rng.randint(1, self.n_tables))
        groups = [[self.rank(t, i) for t in some] for i in range(self.n_replicas)]
        self._collective("across", some, dict.fromkeys(some, groups))

    def replicas(self) -> None:
        """One group of all replicas of a table."""
        t = self.rng.randrange(self.n_tables)
        group = [self.rank(t, i) for i in range(self.n_replicas)]
        self._collective("replicas", [t], {t: [group] * self.n_replicas})

    def everyone(self) -> None:
        group = list(self.numbers)
        everybody = list(range(self.n_tables))
        groups = dict.fromkeys(everybody, [group] * self.n_replicas)
        self._collective("everyone", everybody, groups)

    def coalesced(self) -> None:
        """Two collectives of all ranks on two communicators, launched together."""
        groups = [self.builder.communicator(self.numbers, name) for name in ("left", "right")]
        sizes, lengths = [self.size(), self.size()], [self.length(), self.length()]
        flags = [Flag.NONE, Flag.JOINED]
        for i in range(2):
            flags[i] |= self.rng.choice([Flag.NONE, Flag.NONE, Flag.EAGER])
        for t, rows in enumerate(self.tables):
            stream, launch = self.stream(), self.call() | {"waits": self.waits(rows)}
            for i, group in enumerate(groups):
                row = rows.collective(
                    Operation.ALL_GATHER,
                    self.slot(t, [group] * self.n_replicas),
                    stream,
                    sizes[i],
                    duration=lengths[i],
                    flags=flags[i] if t == 0 else flags[i] & Flag.JOINED,
                    **({} if i else launch),
                )
                self.device[rows].append(row)

    def train(self) -> None:
        """Operations of one communicator that follow each other on one stream."""
        group = self.builder.communicator(self.numbers, "train")
        sizes = [self.size() for _ in range(self.rng.randint(2, 5))]
        length = self.length()
        for t, rows in enumerate(self.tables):
            stream = self.stream()
            for size in sizes:
                row = rows.collective(
                    Operation.ALL_REDUCE,
                    self.slot(t, [group] * self.n_replicas),
                    stream,
                    size,
                    duration=length,
                    waits=self.waits(rows) if self.rng.random() < 0.3 else (),
                    **self.call(),
                )
                self.device[rows].append(row)

    def _collective(self, name: str, some: list[int], groups: dict[int, list[list[int]]]) -> None:
        operation, size = self.rng.choice(COLLECTIVES), self.size()
        eager = self.rng.choice([-1, -1, -1, some[0]])
        length = self.length()
        for t in some:
            communicators = [self.builder.communicator(group, name) for group in groups[t]]
            rows = self.tables[t]
            row = rows.collective(
                operation,
                self.slot(t, communicators),
                self.stream(),
                size,
                duration=length + (self.rng.choice([0, 0, 5]) if length >= 0 else 0),
                waits=self.waits(rows),
                flags=Flag.EAGER if t == eager else Flag.NONE,
                **self.call(),
            )
            self.device[rows].append(row)

    def pair(self) -> None:
        """Each replica of one table sends to its like of another table."""
        if self.n_tables > 1:
            a, b = self.rng.sample(range(self.n_tables), 2)
            self._batch([(a, b, 0)])

    def swap(self) -> None:
        """Replicas of two tables send to each other, in one batch on each side."""
        if self.n_tables > 1:
            a, b = self.rng.sample(range(self.n_tables), 2)
            self._batch([(a, b, 0), (b, a, 0)])

    def ring(self) -> None:
        """Each replica of a table sends to the next and receives from the one before."""
        if self.n_replicas > 1:
            t = self.rng.randrange(self.n_tables)
            self._batch([(t, t, 1)])

    def _batch(self, transfers: list[tuple[int, int, int]]) -> None:
        """Write transfers (sending table, receiving table, shift of the replica) as batches."""
        n = self.n_replicas
        written: set[int] = set()
        stream, eager = self.stream(), self.rng.random() < 0.2
        for a, b, shift in transfers:
            pairs = [(self.rank(a, i), self.rank(b, (i + shift) % n)) for i in range(n)]
            sending = [self.builder.communicator(pair, f"shift {shift}") for pair in pairs]
            receiving = [sending[(i - shift) % n] for i in range(n)]
            size, length = self.size(), self.length()
            for kind, t, bound in ((Kind.SEND, a, sending), (Kind.RECV, b, receiving)):
                rows, joined = self.tables[t], t in written
                flags = Flag.JOINED if joined else Flag.NONE
                if eager and kind is Kind.SEND:
                    flags |= Flag.EAGER
                row = rows.point_to_point(
                    kind,
                    self.slot(t, bound),
                    stream,
                    size,
                    duration=length,
                    flags=flags,
                    waits=() if joined else self.waits(rows),
                    **({} if joined else self.call()),
                )
                written.add(t)
                self.device[rows].append(row)


def repeating_program(seed: int, rounds: int) -> Program:
    """Return a program with a begin, so many equal rounds, and an end.

    Programs of one seed differ in the number of rounds alone. What a row of a round waits for is in
    the same round, in those before, or now and then in the begin.

    Parameters
    ----------
    seed : int
    rounds : int
    """
    rng = random.Random(f"{seed} sizes")
    unpriced, backwards = rng.random() < 0.4, rng.random() < 0.3
    sizes = rng.randint(1, 3), rng.randint(1, 2)
    events = rng.randint(0, 6), rng.randint(2, 10), rng.randint(0, 6)
    writer = _RoundWriter(rng, *sizes, unpriced, backwards)
    for rows in writer.tables:
        for _ in range(_RoundWriter.REACH):
            rows.kernel("begin", 0, rng.randint(0, 20), host=rng.randint(0, 5))
    writer.events(events[0])
    for _ in range(rounds):
        rng.seed(f"{seed} round")
        writer.events(events[1])
    rng.seed(f"{seed} end")
    writer.events(events[2])
    return writer.built()


class _RoundWriter(ProgramWriter):
    """Writes events of which each is the same, `REACH` device rows or more after the begin."""

    REACH = 12
    """Device rows that a row may wait for: its last, or the first of all."""

    def waits(self, rows: TableBuilder, most: int = 3) -> list[int]:
        device = rows.device_rows
        near = device[-self.REACH :] if self.rng.random() < 0.9 else device[: self.REACH]
        return self.rng.sample(near, self.rng.randint(0, most))


def one_rank_a_table(
    *tables: TableBuilder, builder: ProgramBuilder, slots: list[list[int]]
) -> Program:
    """Table builders, and the communicators of each → a program with one rank for each table."""
    for number, (rows, bound) in enumerate(zip(tables, slots, strict=True)):
        builder.add_table(rows.build())
        builder.add_rank(number, bound)
    return builder.build()
