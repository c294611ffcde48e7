"""Run → critical path: the chain of rows and waits, across ranks, that sets the step time.

Every row knows its binding: the input that was the last to arrive. Walking back from the latest end
(or any other) gives a chain of pieces without a hole: from a kernel to what it waited for, from a
communication to the member that was ready last, from a call to what the CPU did before. A process
walks while the path stays on its ranks and then hands over.

Invariants: pieces are added latest first, and each ends where the one added before begins, so they
add up to the time of the end exactly. Latencies and gaps may be negative in traces (two clocks,
recorded imprecisely): such a piece ends before its cause does, and the time that both cover counts
once, for the later one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct
from ..base.frozen import frozen
from ..program import Flag, Kind, Table
from .distribution import Distribution
from .last_arrivals import LastArrivals
from .rows import Binding, Solution

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["CriticalPath", "PathCycle", "PathEnd", "PieceKind", "walk_back"]


class PieceKind(IntEnum):
    """Kind of a piece of the critical path: kinds of work and of waits."""

    COMPUTE = 0
    COPY = 1
    COMMUNICATION = 2
    """Wire time, after the last member was ready."""
    HOST = 3
    """CPU work, launching calls and the tails of waits."""
    LAUNCH = 4
    """Launch latency from the CPU to the device."""
    GAP = 5
    """Between two kernels of a stream, or from the end of what was waited for to the start."""
    START = 6
    """Before the rank's start offset. Its row is -1, its name "start"."""


class PathCycle(NamedTuple):
    """Pieces of a path that represent all their repeats: see `mpisim.engine.repetition`."""

    first: int
    last: int
    """Pieces ``first`` to ``last - 1``."""
    periods: int
    """How many periods of the step they take."""
    times: int
    """How often they occur again."""


@frozen(eq=False)
class CriticalPath:
    """The chain of pieces that ends last; complete and equal on every process.

    Pieces are in time order and contiguous: each begins where the one before ended, the first at
    0, the last ends at the step time.

    Attributes
    ----------
    kind : uint8, shape (n,)
        A `PieceKind`.
    rank, row : int32, shape (n,)
    begin, end : int64, shape (n,)
        ps.
    name : int32, shape (n,)
        Index into `names`.
    names : tuple of str
    cycle : PathCycle, optional
        Of a run that follows from a shorter one: pieces that repeat. Rows and times are then those
        of the shorter run; `mpisim.engine.repetition` has all pieces.
    """

    kind: NDArray[np.uint8]
    rank: NDArray[np.int32]
    row: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    names: tuple[str, ...]
    cycle: PathCycle | None = None

    @property
    def times(self) -> NDArray[np.int64]:
        """How often each piece occurs, shape (n,)."""
        found = np.ones(len(self.kind), np.int64)
        if self.cycle is not None:
            found[self.cycle.first : self.cycle.last] += self.cycle.times
        return found

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Time of each piece, with its repeats, in ps; shape (n,). They sum to the step time."""
        return (self.end - self.begin) * self.times


# Plain integers: looking up a member of an enumeration costs more than a step of the walk.
_BY_HOST, _BY_STREAM, _BY_WAIT = int(Binding.HOST), int(Binding.STREAM), int(Binding.WAIT)
_QUEUE = int(Binding.QUEUE)
_LAST_WAIT, _NOT_QUEUE = _QUEUE - 1, ~_QUEUE
_COMMUNICATION, _HOST = int(PieceKind.COMMUNICATION), int(PieceKind.HOST)
_LAUNCH, _GAP, _START = int(PieceKind.LAUNCH), int(PieceKind.GAP), int(PieceKind.START)
_OF_KIND = [int(PieceKind.COMPUTE), int(PieceKind.COPY)] + 3 * [_COMMUNICATION]
"""Piece of each `Kind` on the device."""
_LAST_OF_DEVICE, _WORK = int(Kind.RECV), int(Kind.HOST)
_EAGER = int(Flag.EAGER)
_HOLE = "the critical path has a hole"

_MAX_KEPT = 64
"""Number of ranks whose rows a walk keeps: a path alternates between few at a time."""


class _Arrival(NamedTuple):
    """Where a path enters a rank: at its arrival at the k-th operation on a communicator.

    With no communicator (-1) it is the end of row `k`, or, with -1 again, of the rank.
    """

    rank: int
    communicator: int
    k: int


class PathEnd(NamedTuple):
    """The end of a path: that of a device row, or of a HOST row."""

    rank: int
    row: int
    time: int
    """ps."""


def walk_back(
    distribution: Distribution,
    solution: Solution,
    rank_end: NDArray[np.int64],
    comm: Intracomm | None,
    until: PathEnd | None = None,
) -> CriticalPath:
    """Run → its critical path. **Collective** on `comm` (None: one process).

    In a folded run, too, the path goes over the ranks of the program, each with the rows of its
    representative.

    Parameters
    ----------
    distribution : Distribution
    solution : Solution
        Of the ranks hosted here.
    rank_end : int64, shape (n_ranks,)
        Complete, in ps.
    comm : mpi4py.MPI.Intracomm or None
    until : PathEnd, optional
        Where it ends, the same on every process; by default at the end of the rank that ends last.
    """
    if until is None:  # the lowest rank of those that end last
        until = PathEnd(int(np.argmax(rank_end)), -1, int(rank_end.max()))
    time = until.time
    at = _Arrival(until.rank, -1, until.row)  # at the end of a rank or row
    arrivals = (
        LastArrivals.of(distribution, solution, comm) if distribution.simulated.folded else None
    )
    walk = _Walk(distribution, solution, arrivals)
    parts: list[NDArray[np.int64]] = []
    names: dict[str, int] = {}
    while time > 0:
        owner = int(distribution.placement[distribution.simulated.classes.of_rank[at.rank]])
        part = np.empty((0, 6), np.int64)
        used: list[str] = []
        if owner == distribution.process:
            part = walk.go(at, time)
            at, time = walk.at, walk.time
            used = _renumber(part, distribution.program.names)
        # All processes learn the pieces at once, with names renumbered by first use.
        if comm is not None:
            at, time = _handed_over(at, time, comm, owner)
            used, part = _shared(used, part, comm, owner)
        numbers = np.array([names.setdefault(name, len(names)) for name in used], np.int64)
        part[:, 5] = numbers[part[:, 5]]
        parts.append(part)
    return _joined(parts, tuple(names), until.time)


def _joined(parts: list[NDArray[np.int64]], names: tuple[str, ...], step_time: int) -> CriticalPath:
    pieces = np.concatenate([np.empty((0, 6), np.int64), *parts])[::-1]
    kind, rank, row, begin, end, name = pieces.T
    edges = np.concatenate([begin, [max(step_time, 0)]])
    previous_end = np.concatenate([[0], end])
    assert (edges == previous_end).all(), _HOLE
    return CriticalPath(
        kind=kind.astype(np.uint8),
        rank=rank.astype(np.int32),
        row=row.astype(np.int32),
        begin=begin.copy(),
        end=end.copy(),
        name=name.astype(np.int32),
        names=names,
    )


class _Rows:
    """Columns that a walk reads of one simulated rank.

    They are memory views, which give plain integers one by one at a third of numpy's cost.
    """

    def __init__(self, distribution: Distribution, solution: Solution, simulated: int) -> None:
        local = int(np.searchsorted(distribution.hosted, simulated))
        code = distribution.core_input.lowered_of(local)
        table: Table = code.table
        self.table = table
        rows = solution.rows(local)
        self.ends = rows.end
        self.end, self.begin = rows.end.data, rows.begin.data
        self.wire, self.binding = rows.wire.data, rows.binding.data
        self.first, self.last = code.first.data, code.last.data
        self.stream_row, self.queue_row = code.stream_row.data, code.queue_row.data
        self.kind, self.flags = table.kind.data, table.flags.data
        self.slot, self.ordinal = table.slot.data, table.ordinal.data
        self.host, self.launch = table.host.data, table.launch.data
        self.launch_cost, self.gap = table.launch_cost.data, table.gap.data
        self.wait_index, self.wait_row = table.wait_index.data, table.wait_row.data
        self.arrived_last = solution.last_ready(local).data
        self.meeting = np.ascontiguousarray(code.communications["row"]).data


_Step = Callable[[], "_Step | None"]


class _Walk:
    """The walk on the ranks of one process, a state machine; `time` is how far back it has come.

    It has four states on a rank: at the end of a kernel, at its ready time, on the CPU just before
    it calls a kernel, and on the CPU after a row. Each goes back as far as it can and returns the
    next, or None where the path leaves the rank for `at`. A kernel is named by its first row.
    """

    def __init__(
        self, distribution: Distribution, solution: Solution, arrivals: LastArrivals | None
    ) -> None:
        self.distribution, self.solution, self.arrivals = distribution, solution, arrivals
        self.known: dict[int, _Rows] = {}
        self.time, self.row, self.clock = 0, 0, 0

    def go(self, at: _Arrival, time: int) -> NDArray[np.int64]:
        """Walk until the path leaves this process, for `at`, or comes to time 0.

        Returns the pieces, latest first, shape (n, 6): kind, rank, row, begin, end, and name, the
        columns of a `CriticalPath`.
        """
        self.at, self.time = at, time
        self.kind, self.piece_row, self.begin = bytearray(), array("q"), array("q")
        visits: list[tuple[int, int]] = []  # a rank, and how many pieces there were before
        of_rank, placement = (
            self.distribution.simulated.classes.of_rank,
            self.distribution.placement,
        )
        while self.time > 0:
            simulated = int(of_rank[self.at.rank])
            if placement[simulated] != self.distribution.process:
                break
            self.rank, self.rows = self.at.rank, self._rows_of(simulated)
            self.bound = self.distribution.program.slots_of(self.rank).tolist()
            visits.append((self.rank, len(self.kind)))
            step: _Step | None = self._entered()
            while step is not None and self.time > 0:
                step = step()
        return self._written(time, visits)

    def _rows_of(self, simulated: int) -> _Rows:
        """Return the rows of a simulated rank; those used last are kept."""
        rows = self.known.pop(simulated, None) or _Rows(self.distribution, self.solution, simulated)
        self.known[simulated] = rows
        if len(self.known) > _MAX_KEPT:
            del self.known[next(iter(self.known))]
        return rows

    def _written(self, time: int, visits: list[tuple[int, int]]) -> NDArray[np.int64]:
        part = np.empty((len(self.kind), 6), np.int64)
        kind, rank, row, begin, end, name = part.T
        kind[:] = np.frombuffer(self.kind, np.uint8)
        row[:], begin[:] = self.piece_row, self.begin
        end[:1], end[1:] = time, begin[:-1]  # the path has no hole
        ranks, first = np.array(visits, np.int64).reshape(-1, 2).T
        rank[:] = np.repeat(ranks, np.diff(first, append=len(part)))
        program = self.distribution.program
        number = program.table[rank]
        name[:] = -1
        for which in distinct(number).tolist():
            table = program.tables[which]
            assert table is not None  # or it were not hosted here
            at = np.flatnonzero((number == which) & (row >= 0))
            name[at] = table.name[row[at]]
        return part

    def _entered(self) -> _Step:
        """Enter a rank: at an arrival, at the kernel that ends last, or on the CPU."""
        rows, (_, communicator, k) = self.rows, self.at
        if communicator >= 0:
            self.row = rows.first[rows.table.rows_on(self.bound.index(communicator))[k]]
            return self._at_ready
        if k >= 0:
            self.clock, self.row = self.time, rows.first[k]
            return self._on_host if rows.kind[k] > _LAST_OF_DEVICE else self._at_end
        last = np.flatnonzero(rows.table.is_device & (rows.ends == self.time))
        self.clock, self.row = self.time, rows.first[last[0]] if len(last) else len(rows.kind) - 1
        return self._at_end if len(last) else self._on_host

    # --- states ---------------------------------------------------------------------------------

    def _at_end(self) -> _Step | None:
        """At the end of a kernel."""
        return self._over_kernels(at_end=True)

    def _at_ready(self) -> _Step | None:
        """At the ready time of a kernel."""
        return self._over_kernels(at_end=False)

    def _over_kernels(self, at_end: bool) -> _Step | None:
        """A kernel's end or ready time → the step back to the CPU call or rank it waited for."""
        rows, row, time = self.rows, self.row, self.time
        kind, flags, last, stream_row = rows.kind, rows.flags, rows.last, rows.stream_row
        wire, end, begin, binding, gap = rows.wire, rows.end, rows.begin, rows.binding, rows.gap
        # As `_add`, which would be called twice a kernel.
        add_kind, add_row, add_begin = self.kind.append, self.piece_row.append, self.begin.append
        while True:
            if at_end:
                ends_last = row
                if last[row] > row:  # the first of those of its rows that end last
                    ends_last += int(np.argmax(rows.ends[row : last[row] + 1]))
                piece, started = _OF_KIND[kind[ends_last]], wire[ends_last]
                assert end[ends_last] >= time, _HOLE
                if started < time:
                    time = started if started > 0 else 0
                    add_kind(piece)
                    add_row(ends_last)
                    add_begin(time)
                if piece == _COMMUNICATION and not flags[ends_last] & _EAGER:
                    slot, k = rows.slot[ends_last], rows.ordinal[ends_last]
                    if self.arrivals is None:
                        arrived = rows.arrived_last[bisect_left(rows.meeting, ends_last)]
                    else:
                        arrived = self.arrivals.last(self.bound[slot], k, started)
                    if arrived != self.rank:
                        self.at, self.time = _Arrival(arrived, self.bound[slot], k), time
                        return None
                if not time:
                    break
            at_end = True
            ready, cause = begin[row], binding[row] & _NOT_QUEUE
            if cause == _BY_HOST:
                self.row, self.time, self.clock = row, time, ready - rows.launch[row]
                self._add(_LAUNCH, row, self.clock, ready)
                return self._at_call
            ended = ready - gap[row]
            if ended < ready:
                assert ready >= time, _HOLE
                if ended < time:
                    time = ended if ended > 0 else 0
                    add_kind(_GAP)
                    add_row(row)
                    add_begin(time)
            if not time:
                break
            row = stream_row[row] if cause == _BY_STREAM else self._awaited(row, cause, ended)
        self.time = 0
        return None

    def _at_call(self) -> _Step:
        """On the CPU, at `clock`, just before it calls a kernel; back over the calls before it."""
        rows, row, clock, time = self.rows, self.row, self.clock, self.time
        binding, kind, first = rows.binding, rows.kind, rows.first
        host, launch_cost = rows.host, rows.launch_cost
        assert clock >= time, _HOLE
        # As `_add`, which would be called twice a row.
        found: list[int] = []
        begins: list[int] = []
        while not binding[row] & _QUEUE:
            before = clock - host[row]
            if before < time:
                time = before if before > 0 else 0
                found.append(row)
                begins.append(time)
            row = first[row - 1] if row else -1
            if row < 0 or kind[row] > _LAST_OF_DEVICE or time <= 0:
                self._called(found, begins)
                self.row, self.clock = row, before
                return self._on_host
            clock = before - launch_cost[row]
            if clock < time:
                time = clock if clock > 0 else 0
                found.append(row)
                begins.append(time)
        self._called(found, begins)
        self.row = rows.queue_row[row]
        return self._at_end

    def _called(self, rows: list[int], begins: list[int]) -> None:
        """Add the CPU's work on rows, latest first."""
        self.kind.extend(bytes([_HOST]) * len(rows))
        self.piece_row.extend(rows)
        self.begin.extend(begins)
        if begins:
            self.time = begins[-1]

    def _on_host(self) -> _Step:
        """On the CPU, at `clock`, after what it did for a row."""
        rows, row, clock = self.rows, self.row, self.clock
        if row < 0:
            self._add(_START, -1, 0, clock)
            return self._on_host
        row = rows.first[row]
        if rows.kind[row] != _WORK:
            called = clock - rows.launch_cost[row]
            self._add(_HOST, row, called, clock)
            clock = called
        if rows.kind[row] <= _LAST_OF_DEVICE:
            self.row, self.clock = row, clock
            return self._at_call
        binding = rows.binding[row]
        if binding >= _BY_WAIT:
            self.row = self._awaited(row, binding, clock)
            return self._at_end
        self.row, self.clock = row - 1, rows.begin[row]
        self._add(_HOST, row, self.clock, clock)
        return self._on_host

    def _awaited(self, row: int, binding: int, time: int) -> int:
        """Return the kernel that a row waited for until `time`."""
        rows = self.rows
        wait = rows.wait_index[row] + binding - _BY_WAIT
        if binding == _LAST_WAIT:  # this one or a later one
            for later in rows.wait_row[wait : rows.wait_index[row + 1]]:
                kernel = rows.first[later]
                if rows.ends[kernel : rows.last[kernel] + 1].max() == time:
                    return kernel
        return rows.first[rows.wait_row[wait]]

    def _add(self, kind: int, row: int, begin: int, end: int) -> None:
        """Add a piece, cut to the time that is not covered yet."""
        time = self.time
        assert end >= time, _HOLE
        if begin < time:
            self.time = begin = max(begin, 0)
            self.kind.append(kind)
            self.piece_row.append(row)
            self.begin.append(begin)


# --- between processes ------------------------------------------------------------------------


def _renumber(part: NDArray[np.int64], names: tuple[str, ...]) -> list[str]:
    """Renumber the names of a part by first use, in place; return them."""
    old = part[:, 5] + 1  # 0: the start of a rank
    found, first = np.unique(old, return_index=True)
    found = found[np.argsort(first)]
    new = np.empty(len(names) + 1, np.int64)
    new[found] = np.arange(len(found))
    part[:, 5] = new[old]
    return ["start" if not number else names[number - 1] for number in found.tolist()]


def _handed_over(at: _Arrival, time: int, comm: Intracomm, owner: int) -> tuple[_Arrival, int]:
    state = np.array([*at, time], np.int64)
    comm.Bcast(state, root=owner)
    rank, communicator, k, time = state.tolist()
    return _Arrival(rank, communicator, k), time


def _shared(
    used: list[str], part: NDArray[np.int64], comm: Intracomm, owner: int
) -> tuple[list[str], NDArray[np.int64]]:
    """Broadcast a part of the path and its names. **Collective.**"""
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
