"""The critical path: from the last end back to time 0, across ranks.

Every row knows which input was last to arrive. Walking back from the latest end, from a kernel to
what it waited for, from a communication to the member that came last, from a call to what the CPU
did before, gives a chain of pieces without a hole. A process walks while the path stays on its
ranks and then hands over.

Latencies and gaps may be negative in traces (two clocks, recorded imprecisely). Such a piece ends
before what led to it; the time that both cover is counted once, for the later one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..program import Flag, Kind, Table
from .arrivals import Arrivals
from .plan import Plan
from .run import Binding, CriticalPath, PieceKind

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Records", "walk_back"]

_LAST_WAIT = Binding.QUEUE - 1
_OF_KIND = {Kind.KERNEL: PieceKind.COMPUTE, Kind.COPY: PieceKind.COPY}


class Records(NamedTuple):
    """What the core recorded of each rank of the cast hosted here: see `Run`. `last` holds, of
    each group here, the member that was ready last."""

    begin: list[NDArray[np.int64]]
    end: list[NDArray[np.int64]]
    wire: list[NDArray[np.int64]]
    binding: list[NDArray[np.uint8]]
    last: NDArray[np.int32]


class _Meeting(NamedTuple):
    """Where a path enters a rank: at the ready time of its k-th operation on a communicator."""

    rank: int
    communicator: int
    k: int


_Piece = tuple[int, int, int, int, int, int]
"""Kind, rank, row, begin, end, name: the columns of a `CriticalPath`."""


def walk_back(
    plan: Plan, records: Records, rank_end: NDArray[np.int64], comm: Intracomm | None
) -> CriticalPath:
    """Return the critical path of a run. **Collective** on `comm` (None: one process).

    The path of a folded run is that of the whole one: it goes over the ranks of the program, each
    with the records of the one that was simulated for it.

    Parameters
    ----------
    plan : Plan
    records : Records
        Of the ranks hosted here.
    rank_end : int64, shape (n_ranks,)
        Complete, in ps.
    comm : mpi4py.MPI.Intracomm or None
    """
    time = int(rank_end.max())
    rank = int(np.argmax(rank_end))  # the lowest of those that end last
    at = _Meeting(rank, -1, -1)  # no meeting yet: the rank's end
    arrivals = Arrivals.of(plan, records.begin, comm) if plan.cast.folded else None
    parts: list[NDArray[np.int64]] = []
    names: dict[str, int] = {}
    while time > 0:
        owner = int(plan.placement[plan.cast.classes.of_rank[at.rank]])
        found: list[_Piece] = []
        used: list[str] = []
        if owner == plan.process:
            walk = _Walk(plan, records, arrivals, time)
            at = walk.go(at)
            time, found = walk.time, walk.pieces
        if comm is not None:
            at, time = _handed_over(at, time, comm, owner)
        # All processes learn the pieces at once, with names renumbered by first use.
        part = np.array(found, np.int64).reshape(-1, 6)
        if owner == plan.process:
            used = _renumber(part, plan.program.names)
        if comm is not None:
            used, part = _shared(used, part, comm, owner)
        numbers = np.array([names.setdefault(name, len(names)) for name in used], np.int64)
        part[:, 5] = numbers[part[:, 5]]
        parts.append(part)
    return _joined(parts, tuple(names), int(rank_end.max()))


def _joined(parts: list[NDArray[np.int64]], names: tuple[str, ...], step_time: int) -> CriticalPath:
    pieces = np.concatenate([np.empty((0, 6), np.int64), *parts])[::-1]
    kind, rank, row, begin, end, name = pieces.T
    edges = np.concatenate([begin, [max(step_time, 0)]])
    whole = np.concatenate([[0], end])
    assert (edges == whole).all(), "the critical path has a hole"
    return CriticalPath(
        kind=kind.astype(np.uint8),
        rank=rank.astype(np.int32),
        row=row.astype(np.int32),
        begin=begin.copy(),
        end=end.copy(),
        name=name.astype(np.int32),
        names=names,
    )


class _Walk:
    """The walk on the ranks of one process. `time` is how far back it has come."""

    def __init__(self, plan: Plan, records: Records, arrivals: Arrivals | None, time: int) -> None:
        self.plan, self.records, self.arrivals, self.time = plan, records, arrivals, time
        self.pieces: list[_Piece] = []

    def go(self, at: _Meeting) -> _Meeting:
        """Walk until the path leaves this process or comes to time 0; return where it goes on."""
        while self.time > 0:
            simulated = self.plan.cast.classes.of_rank[at.rank]
            if self.plan.placement[simulated] != self.plan.process:
                break
            at = _RankWalk(self, at.rank).go(at)
        return at

    def add(self, kind: PieceKind, rank: int, row: int, name: int, begin: int, end: int) -> None:
        """Add a piece, cut to what is not covered yet."""
        assert end >= self.time, "the critical path has a hole"
        begin = max(begin, 0)
        if begin < self.time:
            self.pieces.append((kind, rank, row, begin, self.time, name))
            self.time = begin


_Step = Callable[[], "_Step | _Meeting"]


class _RankWalk:
    """The walk on one rank: each step returns the next, or the meeting where the rank is left.

    There are three places to be: at the end of a kernel, at its ready time, and on the CPU after a
    row.
    """

    def __init__(self, walk: _Walk, rank: int) -> None:
        plan, records = walk.plan, walk.records
        self.simulated = int(plan.cast.classes.of_rank[rank])
        local = int(np.searchsorted(plan.hosted, self.simulated))
        self.walk, self.rank = walk, rank
        self.code = plan.layout.codes[plan.layout.code[local]]
        self.table: Table = self.code.table
        self.begin, self.end = records.begin[local], records.end[local]
        self.wire, self.binding = records.wire[local], records.binding[local]
        self.here = _Meeting(rank, -1, -1)

    def go(self, at: _Meeting) -> _Meeting:
        step = self._from_end() if at.communicator < 0 else self._from_meeting(at)
        while self.walk.time > 0:
            following = step()
            if isinstance(following, tuple):
                return following
            step = following
        return self.here

    # --- where a walk begins --------------------------------------------------------------------

    def _from_end(self) -> _Step:
        """Begin at the rank's end: at a kernel that ends then, otherwise on the CPU."""
        time = self.walk.time
        last = np.flatnonzero(self.table.is_device & (self.end == time))
        if len(last):
            return lambda: self._at_end(int(self.code.first[last[0]]))
        return lambda: self._on_host(len(self.table) - 1, time)

    def _from_meeting(self, at: _Meeting) -> _Step:
        slot = int(np.flatnonzero(self.walk.plan.program.slots_of(self.rank) == at.communicator)[0])
        row = int(self.table.rows_on(slot)[at.k])
        return lambda: self._at_ready(int(self.code.first[row]))

    # --- places ---------------------------------------------------------------------------------

    def _at_end(self, kernel: int) -> _Step | _Meeting:
        """At the end of a kernel, named by its first row."""
        row = kernel
        if self.code.last[kernel] > kernel:
            row += int(np.argmax(self.end[kernel : self.code.last[kernel] + 1]))
        kind = Kind(int(self.table.kind[row]))
        piece = _OF_KIND.get(kind, PieceKind.COMMUNICATION)
        self._add(piece, row, int(self.wire[row]), int(self.end[row]))
        if kind.is_communication and not self.table.flags[row] & Flag.EAGER:
            plan, k = self.walk.plan, int(self.table.ordinal[row])
            communicator = int(plan.program.slots_of(self.rank)[self.table.slot[row]])
            if self.walk.arrivals is None:
                last = int(self.walk.records.last[plan.group_of(self.simulated, row)])
            else:
                last = self.walk.arrivals.last(communicator, k, int(self.wire[row]))
            if last != self.rank:
                return _Meeting(last, communicator, k)
        return lambda: self._at_ready(kernel)

    def _at_ready(self, kernel: int) -> _Step:
        """At the ready time of a kernel, named by its first row."""
        ready = int(self.begin[kernel])
        binding = int(self.binding[kernel]) & ~Binding.QUEUE
        if binding != Binding.HOST:
            ended = ready - int(self.table.gap[kernel])
            self._add(PieceKind.GAP, kernel, ended, ready)
            if binding == Binding.STREAM:
                previous = int(self.code.stream_row[kernel])
            else:
                previous = self._awaited(kernel, binding, ended)
            return lambda: self._at_end(previous)
        launch = int(self.table.launch[kernel])
        self._add(PieceKind.LAUNCH, kernel, ready - launch, ready)
        return self._at_call(kernel, ready - launch)

    def _at_call(self, kernel: int, clock: int) -> _Step:
        """On the CPU, just before it calls a kernel."""
        if self.binding[kernel] & Binding.QUEUE:
            leaving = int(self.code.queue_row[kernel])
            return lambda: self._at_end(leaving)
        before = clock - int(self.table.host[kernel])
        self._add(PieceKind.HOST, kernel, before, clock)
        return lambda: self._on_host(kernel - 1, before)

    def _on_host(self, row: int, clock: int) -> _Step:
        """On the CPU, after what it did for a row; `clock` is its time then."""
        row = int(self.code.first[row]) if row >= 0 else row
        if row < 0:
            self._add(PieceKind.START, -1, 0, clock)
            return lambda: self._on_host(-1, 0)
        if self.table.kind[row] == Kind.HOST:
            before = int(self.begin[row])
            self._add(PieceKind.HOST, row, before, clock)
            return lambda: self._on_host(row - 1, before)
        called = clock - int(self.table.launch_cost[row])
        self._add(PieceKind.HOST, row, called, clock)
        if self.table.kind[row] != Kind.HOST_WAIT:
            return self._at_call(row, called)
        binding = int(self.binding[row])
        if binding >= Binding.WAIT:
            awaited = self._awaited(row, binding, called)
            return lambda: self._at_end(awaited)
        before = int(self.begin[row])
        self._add(PieceKind.HOST, row, before, called)
        return lambda: self._on_host(row - 1, before)

    def _awaited(self, row: int, binding: int, time: int) -> int:
        """Return the kernel (its first row) that a row waited for until `time`."""
        waits = self.table.wait_row[self.table.wait_index[row] : self.table.wait_index[row + 1]]
        kernels = self.code.first[waits[binding - Binding.WAIT :]].tolist()
        if binding == _LAST_WAIT:  # this one or a later one
            for kernel in kernels:
                if self.end[kernel : self.code.last[kernel] + 1].max() == time:
                    return int(kernel)
        return int(kernels[0])

    def _add(self, kind: PieceKind, row: int, begin: int, end: int) -> None:
        name = int(self.table.name[row]) if row >= 0 else -1
        self.walk.add(kind, self.rank, row, name, begin, end)


# --- between processes ------------------------------------------------------------------------


def _renumber(part: NDArray[np.int64], names: tuple[str, ...]) -> list[str]:
    """Renumber a part's names by first use, in place; return them."""
    numbers = list(dict.fromkeys(part[:, 5].tolist()))
    new = {old: i for i, old in enumerate(numbers)}
    part[:, 5] = [new[old] for old in part[:, 5].tolist()]
    return ["start" if old < 0 else names[old] for old in numbers]


def _handed_over(at: _Meeting, time: int, comm: Intracomm, owner: int) -> tuple[_Meeting, int]:
    state = np.array([*at, time], np.int64)
    comm.Bcast(state, root=owner)
    rank, communicator, k, time = state.tolist()
    return _Meeting(rank, communicator, k), time


def _shared(
    used: list[str], part: NDArray[np.int64], comm: Intracomm, owner: int
) -> tuple[list[str], NDArray[np.int64]]:
    """Give all processes a part of the path and its names."""
    text = "\0".join(used).encode()
    sizes = np.array([len(part), len(text), len(used)], np.int64)
    comm.Bcast(sizes, root=owner)
    n_pieces, n_bytes, n_names = sizes.tolist()
    if comm.rank != owner:
        part = np.empty((n_pieces, 6), np.int64)
    letters = (
        np.frombuffer(text, np.uint8).copy() if comm.rank == owner else np.empty(n_bytes, np.uint8)
    )
    comm.Bcast(part, root=owner)
    comm.Bcast(letters, root=owner)
    return letters.tobytes().decode().split("\0") if n_names else [], part
