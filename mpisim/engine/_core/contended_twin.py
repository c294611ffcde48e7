"""The contended core in plain Python: what `contended` compiles, to be read and tested against.

Communications that share links are *flows*: when the last member of a group is ready, its latency
passes, then its bytes flow at a rate that depends on all other flows, until they are through. All
that goes on between two *events*, arrivals and ends of flows, is worked out as in dataflow mode;
but a rank is split into actors, its CPU and its streams, and each runs until it needs something
unknown. Then all that is unknown follows from the end of some flow that is under way, and so lies
at or after the earliest event: that event may happen.

A trace may tell of a kernel that begins before what it waited for has ended (negative gaps and
launch latencies). Bytes never flow before the events that led to them: where such times occur,
each carries along the latest end of a flow that it follows from, its *cause*.

Where several processes take part, a stream *promises* communications that wait for nothing but the
end of the one before on the same communicator. Whoever runs the flows can then let them follow each
other at once, without another exchange.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocked import blocked_row
from .bounds_twin import Bounds, ended_at
from .crew_twin import CPU, NEVER, Rank, Stream
from .meetings_twin import INFINITY, RESOLVED, Meetings
from .twin import MEMBER, PEER

__all__ = ["Core"]

KERNEL, MEET, JOIN, HOST = 2, 3, 5, 6
OPCODE = {0: KERNEL, 1: MEET, 4: MEET}


class Core:
    """See the package."""

    message = ("time", "last", "end", "route", "price", "follow", "follower")

    def __init__(self, layout: Any) -> None:
        self._layout, traffic = layout, layout.flows
        scripts = []
        for lowered, view in zip(layout.lowered, traffic.views):
            steps = []
            for row, entry in zip(lowered.instructions.tolist(), view.entries.tolist()):
                step = dict(zip(lowered.instructions.dtype.names, row))
                step |= dict(zip(view.entries.dtype.names, entry))
                step["opcode"] = OPCODE.get(step["opcode"], step["opcode"])
                steps.append(step)
            scripts.append(steps)
        self._ranks = [Rank(layout, i, scripts[c]) for i, c in enumerate(layout.table)]
        self._ready = self._ranks[::-1]  # a stack: the lowest rank first
        self._meetings = Meetings(layout, self._ready)
        self._groups = self._meetings.groups
        self._bounds = Bounds(layout, self._ranks, self._meetings)
        self.unfinished = len(self._ranks)
        self.rows_done = 0

    # --- running --------------------------------------------------------------------------------

    def advance(self, budget: int) -> bool:
        """Run ranks, and events where all are here; return whether anything still can move."""
        stop = self.rows_done + budget
        alone = self._layout.flows.single_process
        while self.rows_done < stop:
            if self._ready:
                rank = self._ready.pop()
                rank.queued = False
                before = rank.row
                self._run(rank)
                self.rows_done += rank.row - before
            elif alone and self.next_event() < INFINITY:
                self.commit(self.next_event())
            else:
                return False
        return bool(self._ready) or (alone and self.next_event() < INFINITY)

    def _run(self, rank: Rank) -> None:
        """Run the actors of a rank until none can move."""
        if rank.left == 0:
            return
        moved = True
        while moved:
            moved = False
            if rank.row < len(rank.steps) and rank.came(rank.need, rank.count):
                moved |= self._run_cpu(rank)
            for stream in rank.streams:
                if stream.done < len(stream.kernels) and self._may_go(rank, stream):
                    moved |= self._run_stream(rank, stream)
        if not self._layout.flows.single_process:
            for stream in rank.streams:
                if stream.pending:
                    self._promise(rank, stream)
        ended = sum(stream.done == len(stream.kernels) for stream in rank.streams)
        rank.left = len(rank.streams) - ended + (rank.row < len(rank.steps))
        self.unfinished -= rank.left == 0

    def _may_go(self, rank: Rank, stream: Stream) -> bool:
        if stream.group >= 0:
            return self._groups[stream.group].missing == RESOLVED
        return rank.came(stream.need, stream.count)

    @staticmethod
    def _run_cpu(rank: Rank) -> bool:
        """Let the CPU go on until it needs an end; return whether it came further."""
        first = rank.row
        for row in range(first, len(rank.steps)):
            rank.row = row
            step = rank.steps[row]
            opcode = step["opcode"]
            if opcode == JOIN:
                continue
            host = rank.host + step["host"]
            waits = rank.waits_of(row)
            if opcode <= MEET:
                waits = [step["queue"]] if step["queue"] >= 0 else []
            if opcode != HOST:
                if awaited := rank.awaited(waits):
                    rank.need, rank.count = awaited
                    return row > first
                host = max([host, *(rank.value[kernel] for kernel in waits)])
                rank.cause = max([rank.cause, *(rank.causes[kernel] for kernel in waits)])
            if opcode <= MEET:
                rank.value[row], rank.causes[row] = host + step["launch"], rank.cause
            rank.host = host if opcode == HOST else host + step["launch_cost"]
        rank.row = len(rank.steps)
        return True

    def _run_stream(self, rank: Rank, stream: Stream) -> bool:
        """Let a stream go on until it needs something unknown; return whether it came further."""
        moved, stream.group = False, -1
        while stream.done < len(stream.kernels):
            row = stream.kernels[stream.done]
            if not stream.pending:
                if not self._begin(rank, stream, row):
                    break
                moved = True
            if stream.pending and not self._settle(rank, stream, row):
                break
            moved = True
            stream.pending = False
            stream.done += 1
            rank.value[row], rank.causes[row] = stream.end, stream.cause
            rank.device = max(rank.device, stream.end)
        return moved

    def _begin(self, rank: Rank, stream: Stream, row: int) -> bool:
        """Begin a kernel, and end it unless it is a communication; False if it cannot begin."""
        step = rank.steps[row]
        if rank.row <= row:
            stream.need, stream.count = CPU, row + 1
            return False
        waits = rank.waits_of(row)
        if awaited := rank.awaited(waits):
            stream.need, stream.count = awaited
            return False
        begin = max([stream.end, *(rank.value[kernel] for kernel in waits)])
        if begin > NEVER:  # there is something on the device that it follows
            begin += step["gap"]
        begin = max(begin, rank.value[row])
        causes = [stream.cause, rank.causes[row], *(rank.causes[kernel] for kernel in waits)]
        stream.cause = max(causes)
        rank.value[row] = begin
        if step["opcode"] == KERNEL:
            stream.end = begin + rank.duration[row]
        else:
            stream.pending = True
            for one in rank.rows_of(row):
                if not stream.promised:
                    self._post(rank, one, begin, stream.cause)
            stream.promised = max(stream.promised - 1, 0)
        return True

    def _settle(self, rank: Rank, stream: Stream, row: int) -> bool:
        """End a kernel of communications; False if one of them has no end yet."""
        end, cause = NEVER, stream.cause
        for one in rank.rows_of(row):
            if rank.steps[one]["eager"] >= 0:
                end = max(end, rank.value[row] + rank.duration[one])
                continue
            group = self._groups[rank.group_at(one)]
            if group.missing != RESOLVED:
                stream.group = rank.group_at(one)
                group.waiters.append(rank)
                return False
            end = max(end, ended_at(rank, one, group))
            cause = max(cause, group.end)
        stream.end, stream.cause = end, cause
        return True

    def _post(self, rank: Rank, row: int, ready: int, cause: int) -> None:
        """Tell the group of a communication that this rank is ready."""
        step, number = rank.steps[row], rank.group_at(row)
        if step["eager"] >= 0:
            rank.eager_ready[step["eager"]] = ready
        group = self._groups[number]
        if (route := rank.route_of(row)) >= 0:
            group.route, group.price = route, rank.price[row]
        group.merge(ready, rank.number, cause)
        group.missing -= 1
        if group.missing == 0:
            role = rank.role[step["slot"]]
            if role in (PEER, MEMBER):
                self._meetings.posted.append(number)
            self._meetings.start_if_complete(number, role != MEMBER)

    def _promise(self, rank: Rank, stream: Stream) -> None:
        """Promise what follows the communication that a stream is in."""
        first = stream.kernels[stream.done + stream.promised]
        before = rank.steps[first]
        if rank.route_of(first) < 0 or before["n_rows"] > 1 or before["eager"] >= 0:
            return
        for row in stream.kernels[stream.done + stream.promised + 1 :]:
            step = rank.steps[row]
            same = step["slot"] == before["slot"] and step["ordinal"] == before["ordinal"] + 1
            if not same or step["n_rows"] > 1 or step["eager"] >= 0:
                return
            if rank.route_of(row) < 0 or rank.row <= row:
                return
            waits = rank.waits_of(row)
            if rank.awaited(waits):
                return
            ready = max([rank.value[row], *(rank.value[one] + step["gap"] for one in waits)])
            cause = max([rank.causes[row], *(rank.causes[one] for one in waits)])
            self._groups[rank.group_at(row)].merge_promise(step["gap"], rank.number)
            stream.promised += 1
            self._post(rank, row, ready, cause)
            before = step

    # --- events, and other processes ------------------------------------------------------------

    def next_event(self) -> int:
        """Return when the next arrival or end of a flow here is, the largest int64 if none is."""
        return self._meetings.next_event()

    def commit(self, until: int) -> None:
        """Let all events happen that are not later than `until`."""
        self._meetings.commit(until)

    def safe_time(self, earliest: int) -> int:
        """Return a time before which no flow can arrive that ranks here have still to post."""
        return self._bounds.safe_time(earliest)

    def outbox(self) -> NDArray[np.int64]:
        """Return the groups to tell other processes about, and forget them."""
        return self._meetings.outbox()

    def deliver(
        self, groups: NDArray[np.int64], *columns: NDArray[np.int64], owned: NDArray[np.uint8]
    ) -> None:
        """Take in what other processes said about groups, and whether this one owns them."""
        self._meetings.deliver(groups, *columns, owned=owned)

    @property
    def n_outgoing(self) -> int:
        """How many groups the outbox holds."""
        return len(self._meetings.posted)

    @property
    def n_events(self) -> int:
        """Arrivals and ends so far."""
        return self._meetings.n_events

    @property
    def communications(self) -> NDArray[Any]:
        """State of the groups, as `mpisim.engine.core_input.COMMUNICATION_STATE`."""
        found = self._layout.flows.communications.copy()
        for name in (*self.message, "missing"):
            found[name] = [getattr(group, name) for group in self._groups]
        return found

    # --- what came out --------------------------------------------------------------------------

    def stopped(self) -> list[tuple[int, int]]:
        """Return (row, group) where each hosted rank stands: see `standstill`."""
        missing, layout = self.communications["missing"], self._layout
        return [
            blocked_row(
                layout.lowered_of(i),
                layout.flows.views[layout.table[i]],
                layout.slot_first[layout.slot_index[i] : layout.slot_index[i + 1]],
                rank.row,
                [stream.done for stream in rank.streams],
                missing,
            )
            for i, rank in enumerate(self._ranks)
        ]

    def rows(self) -> NDArray[np.int32]:
        """Return the row each hosted rank has come to, shape (h,)."""
        return np.array([row for row, _ in self.stopped()], np.int32)

    def blocked(self) -> NDArray[np.int64]:
        """Return the group each hosted rank is blocked on, -1 if none, shape (h,)."""
        return np.array([group for _, group in self.stopped()], np.int64)

    def communication_times(self, local: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When communications of a hosted rank began and ended, shape (m,) each.

        In the order of its code's communications: from when the wire time ran (EAGER: the own ready
        time), and when this member ended.
        """
        rank = self._ranks[local]
        rows = self._layout.lowered[self._layout.table[local]].communications["row"]
        start, end = np.zeros((2, len(rows)), np.int64)
        for i, row in enumerate(rows.tolist()):
            eager = rank.steps[row]["eager"]
            if eager >= 0:
                start[i] = rank.eager_ready[eager]
                end[i] = start[i] + rank.duration[row]
            else:
                group = self._groups[rank.group_at(row)]
                start[i], end[i] = group.time, ended_at(rank, row, group)
        return start, end

    def last_ready(self, local: int) -> NDArray[np.int32]:
        """Which simulated rank was ready last, the lowest if several; shape (m,)."""
        rank = self._ranks[local]
        rows = self._layout.lowered[self._layout.table[local]].communications["row"].tolist()
        eager = [rank.steps[row]["eager"] >= 0 for row in rows]
        last = [self._groups[rank.group_at(row)].last for row in rows]
        return np.where(eager, rank.number, last).astype(np.int32)

    def finish(self) -> tuple[NDArray[np.int64], int]:
        """Return ends of ranks and the hash sum."""
        from ..digest import hash_communications, hash_ends, summed

        layout, total = self._layout, 0
        ends = np.array([max(rank.host, rank.device) for rank in self._ranks], np.int64)
        for local in range(len(self._ranks)):
            found = layout.lowered[layout.table[local]].communications
            start, end = self.communication_times(local)
            sizes = layout.slot_hash[layout.slot_index[local] + found["slot"]]
            hashes = np.stack([found["low"], found["high"]], axis=1)
            hashes = hash_communications(hashes, sizes, start, end)
            hashes = np.concatenate([hashes, hash_ends(ends[local : local + 1])])
            total += int(layout.count[local]) * summed(hashes)
        return ends, total % (1 << 128)
