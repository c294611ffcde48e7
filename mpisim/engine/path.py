"""The critical path: from the last end, or any other, back to time 0, across ranks.

Every row knows which input was last to arrive. Walking back from the latest end, from a kernel to
what it waited for, from a communication to the member that came last, from a call to what the CPU
did before, gives a chain of pieces without a hole. A process walks while the path stays on its
ranks and then hands over.

Latencies and gaps may be negative in traces (two clocks, recorded imprecisely). Such a piece ends
before what led to it; the time that both cover is counted once, for the later one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..program import Flag, Kind, Table
from .arrivals import Arrivals
from .distribution import Distribution
from .rows import Solution
from .run import Binding, CriticalPath, PieceKind

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["PathEnd", "walk_back"]

# Plain numbers: names of an enumeration cost more than a step.
_BY_HOST, _BY_STREAM, _BY_WAIT = int(Binding.HOST), int(Binding.STREAM), int(Binding.WAIT)
_QUEUE = int(Binding.QUEUE)
_LAST_WAIT = _QUEUE - 1
_COMMUNICATION, _HOST = int(PieceKind.COMMUNICATION), int(PieceKind.HOST)
_LAUNCH, _GAP, _START = int(PieceKind.LAUNCH), int(PieceKind.GAP), int(PieceKind.START)
_OF_KIND = [int(PieceKind.COMPUTE), int(PieceKind.COPY)] + 3 * [_COMMUNICATION]
"""By `Kind`, of those on the device."""
_LAST_OF_DEVICE, _WORK = int(Kind.RECV), int(Kind.HOST)
_EAGER = int(Flag.EAGER)

_KEPT = 64
"""Ranks whose rows a walk keeps: a path goes to and fro between few, and later leaves them."""


class _Meeting(NamedTuple):
    """Where a path enters a rank: at the ready time of its k-th operation on a communicator.

    With no communicator (-1) it is the end of row `k`, or, with -1 again, of the rank.
    """

    rank: int
    communicator: int
    k: int


class PathEnd(NamedTuple):
    """The end of a row, at which a path ends: one on the device, or a HOST row."""

    rank: int
    row: int
    time: int
    """ps."""


def walk_back(
    plan: Distribution,
    solution: Solution,
    rank_end: NDArray[np.int64],
    comm: Intracomm | None,
    until: PathEnd | None = None,
) -> CriticalPath:
    """Return the critical path of a run. **Collective** on `comm` (None: one process).

    The path of a folded run is that of the whole one: it goes over the ranks of the program, each
    with the rows of the one that was simulated for it.

    Parameters
    ----------
    plan : Distribution
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
    at = _Meeting(until.rank, -1, until.row)  # no meeting yet
    arrivals = Arrivals.of(plan, solution, comm) if plan.cast.folded else None
    walk = _Walk(plan, solution, arrivals)
    parts: list[NDArray[np.int64]] = []
    names: dict[str, int] = {}
    while time > 0:
        owner = int(plan.placement[plan.cast.classes.of_rank[at.rank]])
        part = np.empty((0, 6), np.int64)
        used: list[str] = []
        if owner == plan.process:
            part = walk.go(at, time)
            at, time = walk.at, walk.time
            used = _renumber(part, plan.program.names)
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


class _Rows:
    """What a walk reads of one simulated rank.

    Walks read numbers one by one: views of arrays give plain ones, at a third of numpy's price.
    """

    def __init__(self, plan: Distribution, solution: Solution, simulated: int) -> None:
        local = int(np.searchsorted(plan.hosted, simulated))
        code = plan.core_input.lowered_of(local)
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
    """The walk on the ranks of one process. `time` is how far back it has come.

    There are four places to be on a rank: at the end of a kernel, at its ready time, on the CPU
    just before it calls a kernel, and on the CPU after a row. Each place goes back as far as it
    can and returns the next, or None where the path leaves the rank for `at`. Kernels are named by
    their first row.
    """

    def __init__(self, plan: Distribution, solution: Solution, arrivals: Arrivals | None) -> None:
        self.plan, self.solution, self.arrivals = plan, solution, arrivals
        self.known: dict[int, _Rows] = {}
        self.time, self.row, self.clock = 0, 0, 0

    def go(self, at: _Meeting, time: int) -> NDArray[np.int64]:
        """Walk until the path leaves this process, for `at`, or comes to time 0.

        Returns the pieces, latest first, shape (n, 6): kind, rank, row, begin, end, and name, the
        columns of a `CriticalPath`.
        """
        self.at, self.time = at, time
        self.kind, self.piece_row, self.begin = bytearray(), array("q"), array("q")
        visits: list[tuple[int, int]] = []  # a rank, and how many pieces there were before
        of_rank, placement = self.plan.cast.classes.of_rank, self.plan.placement
        while self.time > 0:
            simulated = int(of_rank[self.at.rank])
            if placement[simulated] != self.plan.process:
                break
            self.rank, self.rows = self.at.rank, self._rows_of(simulated)
            self.bound = self.plan.program.slots_of(self.rank).tolist()
            visits.append((self.rank, len(self.kind)))
            step: _Step | None = self._entered()
            while step is not None and self.time > 0:
                step = step()
        return self._written(time, visits)

    def _rows_of(self, simulated: int) -> _Rows:
        """The rows of a rank; those of the ranks that the path came by last are kept."""
        rows = self.known.pop(simulated, None) or _Rows(self.plan, self.solution, simulated)
        self.known[simulated] = rows
        if len(self.known) > _KEPT:
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
        program = self.plan.program
        number = program.table[rank]
        name[:] = -1
        for which in np.unique(number).tolist():
            table = program.tables[which]
            assert table is not None  # or it were not hosted here
            at = np.flatnonzero((number == which) & (row >= 0))
            name[at] = table.name[row[at]]
        return part

    def _entered(self) -> _Step:
        """Begin on a rank: at a meeting, at a kernel that ends last, or on the CPU."""
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

    # --- places ---------------------------------------------------------------------------------

    def _at_end(self) -> _Step | None:
        """At the end of a kernel."""
        rows, row = self.rows, self.row
        if rows.last[row] > row:  # the first of those of its rows that end last
            row += int(np.argmax(rows.ends[row : rows.last[row] + 1]))
        piece = _OF_KIND[rows.kind[row]]
        self._add(piece, row, rows.wire[row], rows.end[row])
        if piece == _COMMUNICATION and not rows.flags[row] & _EAGER:
            slot, k = rows.slot[row], rows.ordinal[row]
            if self.arrivals is None:
                last = rows.arrived_last[bisect_left(rows.meeting, row)]
            else:
                last = self.arrivals.last(self.bound[slot], k, rows.wire[row])
            if last != self.rank:
                self.at = _Meeting(last, self.bound[slot], k)
                return None
        return self._at_ready

    def _at_ready(self) -> _Step:
        """At the ready time of a kernel."""
        rows, row = self.rows, self.row
        ready, binding = rows.begin[row], rows.binding[row] & ~_QUEUE
        if binding != _BY_HOST:
            ended = ready - rows.gap[row]
            if ended < ready:
                self._add(_GAP, row, ended, ready)
            if binding == _BY_STREAM:
                self.row = rows.stream_row[row]
            else:
                self.row = self._awaited(row, binding, ended)
            return self._at_end
        self.clock = ready - rows.launch[row]
        self._add(_LAUNCH, row, self.clock, ready)
        return self._at_call

    def _at_call(self) -> _Step:
        """On the CPU, at `clock`, just before it calls a kernel; back over the calls before it."""
        rows, row, clock, time = self.rows, self.row, self.clock, self.time
        binding, kind, first = rows.binding, rows.kind, rows.first
        host, launch_cost = rows.host, rows.launch_cost
        assert clock >= time, "the critical path has a hole"
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
        """Add what the CPU did for rows, latest first."""
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
        """Add a piece, cut to what is not covered yet."""
        time = self.time
        assert end >= time, "the critical path has a hole"
        if begin < time:
            self.time = begin = max(begin, 0)
            self.kind.append(kind)
            self.piece_row.append(row)
            self.begin.append(begin)


# --- between processes ------------------------------------------------------------------------


def _renumber(part: NDArray[np.int64], names: tuple[str, ...]) -> list[str]:
    """Renumber a part's names by first use, in place; return them."""
    old = part[:, 5] + 1  # 0: the start of a rank
    found, first = np.unique(old, return_index=True)
    found = found[np.argsort(first)]
    new = np.empty(len(names) + 1, np.int64)
    new[found] = np.arange(len(found))
    part[:, 5] = new[old]
    return ["start" if not number else names[number - 1] for number in found.tolist()]


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
