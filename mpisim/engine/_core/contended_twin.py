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

import heapq
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sharing_twin import Sharing
from .twin import BY_HOST, BY_QUEUE, BY_STREAM, MEMBER, NEVER, PEER, _latest

__all__ = ["Core"]

KERNEL, MEET, JOIN, HOST, HOST_WAIT = 2, 3, 5, 6, 7
RESOLVED, FLOWING = -1, -2  # of Group.missing
CPU = -1  # of Stream.need
INFINITY = int(np.iinfo(np.int64).max)
NOBODY = int(np.iinfo(np.int32).max)


class Group:
    """State of one group: see `mpisim.engine.actors.FLOW_GROUP`."""

    __slots__ = (
        "away", "bound", "end", "flow", "follow", "follower", "last", "missing", "owned", "price",
        "route", "time", "waiters",
    )  # fmt: skip

    def __init__(
        self, time: int, end: int, last: int, missing: int, away: int, owned: int
    ) -> None:
        self.time, self.end, self.last, self.missing, self.away = time, end, last, missing, away
        self.route = self.price = self.flow = -1
        self.bound = self.follow = NEVER
        self.follower = NOBODY
        self.owned = owned
        self.waiters: list[Rank] = []


class Stream:
    """One stream of a rank: it runs its kernels in order.

    It is `pending` while its kernel has begun and not ended. It waits for a group, or else until
    stream `need` has ended `count` kernels, or the CPU (-1) has come to row `count`.
    """

    def __init__(self, kernels: list[int]) -> None:
        self.kernels = kernels
        self.done = 0
        self.pending = False
        self.end = self.cause = NEVER
        self.group, self.need, self.count = -1, CPU, 0
        self.promised = 0  # how many kernels after the one that is pending
        self.front = 0  # the first kernel from here on that may flow
        self.bound: int | None = None


class Rank:
    """State of one rank. `value` holds when a row is launched, later when it has ended."""

    def __init__(self, layout: Any, local: int, steps: list[dict[str, int]]) -> None:
        number, traffic = layout.code[local], layout.traffic
        script = traffic.scripts[number]
        slots = slice(layout.slot_index[local], layout.slot_index[local + 1])
        kernels, index = script.kernels.tolist(), script.kernel_index.tolist()
        self.steps = steps
        self.waits: list[int] = script.waits.tolist()
        self.streams = [Stream(kernels[a:b]) for a, b in pairwise(index)]
        self.kernel_index = index
        self.clock: list[int] = script.clock.tolist()
        if traffic.spans:
            self.span, self.spent = traffic.spans[layout.duration[local]].tolist()
        self.duration: list[int] = layout.durations[layout.duration[local]].tolist()
        self.price: list[int] = traffic.prices[layout.duration[local]].tolist()
        self.group: list[int] = layout.slot_group[slots].tolist()
        self.role: list[int] = layout.slot_role[slots].tolist()
        self.route: list[int] = traffic.slot_route[slots].tolist()
        self.n_routes: list[int] = traffic.slot_n_routes[slots].tolist()
        self.number, self.local = int(layout.numbers[local]), local
        self.row, self.need, self.count = 0, CPU, 0
        self.host = self.device = int(layout.start[local])
        self.cause = NEVER
        self.bound: int | None = None
        self.value = [0] * len(steps)
        self.causes = [NEVER] * len(steps)
        self.eager_ready = [0] * layout.codes[number].n_eager
        self.left = 1 + len(self.streams)
        self.queued = True


class Core:
    """See the package. `record` keeps begin, end and binding of every row."""

    message = ("time", "last", "end", "route", "price", "follow", "follower")

    def __init__(self, layout: Any, record: bool = False) -> None:
        self._layout, self._record, traffic = layout, record, layout.traffic
        names = ("time", "end", "last", "missing", "away", "owned")
        self._groups = [Group(*g) for g in layout.groups[list(names)].tolist()]
        self._groups.append(Group(0, 0, 0, 0, 0, 0))  # none follows the last
        scripts = []
        for script in traffic.scripts:
            rows = script.steps.tolist()
            scripts.append([dict(zip(script.steps.dtype.names, row)) for row in rows])
        self._ranks = [Rank(layout, i, scripts[c]) for i, c in enumerate(layout.code)]
        lengths = [len(rank.steps) for rank in self._ranks]
        self.row_index = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        n = int(self.row_index[-1]) if record else 0
        self.begin, self.end, self.wire = (np.zeros(n, np.int64) for _ in range(3))
        self.binding = np.zeros(n, np.uint8)
        self._ready = self._ranks[::-1]  # a stack: the lowest rank first
        self._outbox: list[int] = []
        self.unfinished = len(self._ranks)
        self.rows_done = self.n_events = 0

        routes = traffic.routes
        self._sharing = Sharing(routes.capacity, routes.index, routes.link, routes.weight)
        self._arrivals: list[tuple[int, int]] = []  # (time, group), a heap
        self._flow: list[int] = []  # the group of each slot
        self._free: list[int] = []
        self._time = NEVER

    # --- running --------------------------------------------------------------------------------

    def advance(self, budget: int) -> bool:
        """Run ranks, and events where all are here; return whether anything still can move."""
        stop = self.rows_done + budget
        alone = self._layout.traffic.alone
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
            if rank.row < len(rank.steps) and self._came(rank, rank.need, rank.count):
                moved |= self._run_cpu(rank)
            for stream in rank.streams:
                if stream.done < len(stream.kernels) and self._may_go(rank, stream):
                    moved |= self._run_stream(rank, stream)
        if not self._layout.traffic.alone:
            for stream in rank.streams:
                if stream.pending:
                    self._promise(rank, stream)
        ended = sum(stream.done == len(stream.kernels) for stream in rank.streams)
        rank.left = len(rank.streams) - ended + (rank.row < len(rank.steps))
        self.unfinished -= rank.left == 0

    def _may_go(self, rank: Rank, stream: Stream) -> bool:
        if stream.group >= 0:
            return self._groups[stream.group].missing == RESOLVED
        return self._came(rank, stream.need, stream.count)

    @staticmethod
    def _came(rank: Rank, need: int, count: int) -> bool:
        return (rank.row if need == CPU else rank.streams[need].done) >= count

    @staticmethod
    def _awaited(rank: Rank, kernels: list[int]) -> tuple[int, int] | None:
        """The first of some kernels that has not ended, as (stream, number of kernels)."""
        for kernel in kernels:
            need, count = rank.steps[kernel]["stream"], rank.steps[kernel]["index"] + 1
            if rank.streams[need].done < count:
                return need, count
        return None

    def _run_cpu(self, rank: Rank) -> bool:
        """Let the CPU go on until it needs an end; return whether it came further."""
        first = rank.row
        for row in range(first, len(rank.steps)):
            rank.row = row
            step = rank.steps[row]
            opcode, begin, binding = step["opcode"], rank.host, BY_HOST
            host = begin + step["host"]
            if opcode <= MEET:
                if step["queue"] >= 0:
                    queue = step["queue"]
                    if awaited := self._awaited(rank, [queue]):
                        rank.need, rank.count = awaited
                        return row > first
                    if rank.value[queue] > host:
                        host, binding = rank.value[queue], BY_QUEUE
                    rank.cause = max(rank.cause, rank.causes[queue])
                rank.value[row], rank.causes[row] = host + step["launch"], rank.cause
                rank.host = host + step["launch_cost"]
                if self._record:
                    self.binding[self.row_index[rank.local] + row] = binding
                continue
            if opcode == JOIN:
                continue
            if opcode == HOST:
                end = host
            else:
                waits = rank.waits[step["first_wait"] : step["first_wait"] + step["n_waits"]]
                if awaited := self._awaited(rank, waits):
                    rank.need, rank.count = awaited
                    return row > first
                end, binding = _latest([rank.value[kernel] for kernel in waits], NEVER, binding)
                if host > end:  # device before host where both are last
                    end, binding = host, BY_HOST
                end += step["launch_cost"]
                rank.cause = max([rank.cause, *(rank.causes[kernel] for kernel in waits)])
            rank.host = end
            self._note(rank, row, begin, end, binding)
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
        waits = rank.waits[step["first_wait"] : step["first_wait"] + step["n_waits"]]
        if awaited := self._awaited(rank, waits):
            stream.need, stream.count = awaited
            return False
        begin, binding = stream.end, BY_STREAM if stream.done else BY_HOST
        begin, binding = _latest([rank.value[kernel] for kernel in waits], begin, binding)
        if begin > NEVER:  # there is something on the device that it follows
            begin += step["gap"]
        if rank.value[row] > begin:
            begin, binding = rank.value[row], BY_HOST
        causes = [stream.cause, rank.causes[row], *(rank.causes[kernel] for kernel in waits)]
        stream.cause = max(causes)
        rank.value[row] = begin
        if step["opcode"] == KERNEL:
            stream.end = begin + rank.duration[row]
            self._note(rank, row, begin, stream.end, binding)
        else:
            stream.pending = True
            for one in range(row, row + step["n_rows"]):
                self._note(rank, one, begin, begin, binding)
                if not stream.promised:
                    self._post(rank, one, begin, stream.cause)
            stream.promised = max(stream.promised - 1, 0)
        return True

    def _settle(self, rank: Rank, stream: Stream, row: int) -> bool:
        """End a kernel of communications; False if one of them has no end yet."""
        end, cause = NEVER, stream.cause
        for one in range(row, row + rank.steps[row]["n_rows"]):
            step = rank.steps[one]
            if step["eager"] >= 0:
                end = max(end, rank.value[row] + rank.duration[one])
                continue
            number = rank.group[step["slot"]] + step["ordinal"]
            group = self._groups[number]
            if group.missing != RESOLVED:
                stream.group = number
                group.waiters.append(rank)
                return False
            end = max(end, self._end(rank, one, group))
            cause = max(cause, group.end)
        stream.end, stream.cause = end, cause
        return True

    @staticmethod
    def _end(rank: Rank, row: int, group: Group) -> int:
        """When a communication ends for a rank that does not go ahead."""
        if group.route >= 0 and rank.price[row] >= 0:
            return group.end
        return group.time + rank.duration[row]

    def _note(self, rank: Rank, row: int, begin: int, end: int, binding: int) -> None:
        if self._record:
            at = self.row_index[rank.local] + row
            self.begin[at], self.end[at] = begin, end
            self.binding[at] |= binding

    # --- groups ---------------------------------------------------------------------------------

    def _post(self, rank: Rank, row: int, ready: int, cause: int) -> None:
        """Tell the group of a communication that this rank is ready."""
        step, price = rank.steps[row], rank.price[row]
        if step["eager"] >= 0:
            rank.eager_ready[step["eager"]] = ready
        slot = step["slot"]
        number = rank.group[slot] + step["ordinal"]
        group = self._groups[number]
        if (route := self._route(rank, row)) >= 0:
            group.route, group.price = route, price
        self._merge(group, ready, rank.number, cause)
        group.missing -= 1
        if group.missing == 0:
            if rank.role[slot] in (PEER, MEMBER):
                self._outbox.append(number)
            self._start_if_complete(number, rank.role[slot] != MEMBER)

    def _promise(self, rank: Rank, stream: Stream) -> None:
        """Promise what follows the communication that a stream is in."""
        first = stream.kernels[stream.done + stream.promised]
        before = rank.steps[first]
        if self._route(rank, first) < 0 or before["n_rows"] > 1 or before["eager"] >= 0:
            return
        for row in stream.kernels[stream.done + stream.promised + 1 :]:
            step = rank.steps[row]
            same = step["slot"] == before["slot"] and step["ordinal"] == before["ordinal"] + 1
            if not same or step["n_rows"] > 1 or step["eager"] >= 0:
                return
            if self._route(rank, row) < 0 or rank.row <= row:
                return
            waits = rank.waits[step["first_wait"] : step["first_wait"] + step["n_waits"]]
            if self._awaited(rank, waits):
                return
            ready = max([rank.value[row], *(rank.value[one] + step["gap"] for one in waits)])
            cause = max([rank.causes[row], *(rank.causes[one] for one in waits)])
            number = rank.group[step["slot"]] + step["ordinal"]
            self._merge_promise(self._groups[number], step["gap"], rank.number)
            stream.promised += 1
            self._post(rank, row, ready, cause)
            before = step

    @staticmethod
    def _merge_promise(group: Group, gap: int, last: int) -> None:
        if gap > group.follow or (gap == group.follow and last < group.follower):
            group.follow, group.follower = gap, last

    def _route(self, rank: Rank, row: int) -> int:
        """By which route a communication flows, or -1."""
        price, slot = rank.price[row], rank.steps[row]["slot"]
        if price >= 0:
            traffic = self._layout.traffic
            for route in range(rank.route[slot], rank.route[slot] + rank.n_routes[slot]):
                if traffic.routes.pattern[route] == traffic.pattern[price]:
                    return route
        return -1

    @staticmethod
    def _merge(group: Group, ready: int, last: int, cause: int) -> None:
        if ready > group.time or (ready == group.time and last < group.last):
            group.time, group.last = ready, last
        group.end = max(group.end, cause)

    def _start_if_complete(self, number: int, begins: bool) -> None:
        """Resolve a group to which all have come, or let it flow if that is this core's task."""
        group = self._groups[number]
        if group.missing or group.away:
            return
        if begins and group.follow > NEVER:
            before = self._groups[number - 1]
            if before.missing != RESOLVED:
                return
            self._merge(group, before.end + group.follow, group.follower, before.end)
            group.follow = NEVER
        if group.route >= 0 and begins:
            group.missing = FLOWING
            time = group.time + int(self._layout.traffic.latency[group.price])
            heapq.heappush(self._arrivals, (max(time, group.end), number))
        else:
            self._resolve(number)

    def _resolve(self, number: int) -> None:
        """Wake those who wait for a group."""
        group = self._groups[number]
        group.missing = RESOLVED
        for rank in group.waiters:
            if not rank.queued:
                rank.queued = True
                self._ready.append(rank)
        group.waiters = []
        if group.owned:
            self._outbox.append(number)

    # --- events ---------------------------------------------------------------------------------

    def next_event(self) -> int:
        """Return when the next arrival or end of a flow here is, the largest int64 if none is."""
        arrival = self._arrivals[0][0] if self._arrivals else INFINITY
        return min(arrival, self._sharing.next_end())

    def commit(self, until: int) -> None:
        """Let all events happen that are not later than `until`."""
        traffic, sharing = self._layout.traffic, self._sharing
        while (time := self.next_event()) <= until and time < INFINITY:
            assert time >= self._time, "an event before one that has happened"
            self._time = time
            while (slot := sharing.pop_ended(time)) >= 0:
                self._free.append(slot)
                self._groups[self._flow[slot]].end = time
                self._groups[self._flow[slot]].flow = -1
                self._resolve(self._flow[slot])
                if self._groups[self._flow[slot] + 1].follow > NEVER:
                    self._start_if_complete(self._flow[slot] + 1, True)
                self.n_events += 1
            while self._arrivals and self._arrivals[0][0] == time:
                _, number = heapq.heappop(self._arrivals)
                group = self._groups[number]
                if not self._free:
                    self._free.append(len(self._flow))
                    self._flow.append(-1)
                slot = group.flow = self._free.pop()
                self._flow[slot] = number
                volume, rate = traffic.volume[group.price], traffic.rate[group.price]
                sharing.begin(slot, group.route, time, int(volume), int(rate), group.route)
                self.n_events += 1
            sharing.solve(time)

    # --- bounds ---------------------------------------------------------------------------------

    def horizon(self, earliest: int) -> int:
        """Return a time before which no flow can arrive that ranks here have still to post.

        Nothing here may be able to move. The next post of each stream counts: what it posts later
        comes after the end of that. A group has to wait for the last of its members.

        Parameters
        ----------
        earliest : int
            When the next event of all processes is.
        """
        horizon, touched = INFINITY, []
        for rank in self._ranks:
            rank.bound = None
            for stream in rank.streams:
                stream.bound = None
            for stream in rank.streams:
                front = self._front(rank, stream)
                if front == len(stream.kernels):
                    continue
                ready = self._begin_bound(rank, stream, front, earliest)
                first = stream.kernels[front]
                for row in range(first, first + rank.steps[first]["n_rows"]):
                    step = rank.steps[row]
                    if self._route(rank, row) < 0:
                        continue
                    if step["eager"] >= 0:  # what follows does not wait for the end of this
                        horizon = min(horizon, ready)
                        continue
                    group = self._groups[rank.group[step["slot"]] + step["ordinal"]]
                    latency = int(self._layout.traffic.latency[rank.price[row]])
                    group.bound = max(group.bound, ready + latency)
                    touched.append(group)
        for group in touched:
            horizon = min(horizon, group.bound)
        for group in touched:
            group.bound = NEVER
        return horizon

    def _front(self, rank: Rank, stream: Stream) -> int:
        """The first kernel of a stream that has not begun and may flow."""
        front = max(stream.front, stream.done + stream.pending + stream.promised)
        while front < len(stream.kernels):
            first = stream.kernels[front]
            rows = range(first, first + rank.steps[first]["n_rows"])
            if any(self._route(rank, row) >= 0 for row in rows):
                break
            front += 1
        stream.front = front
        return front

    def _begin_bound(self, rank: Rank, stream: Stream, kernel: int, earliest: int) -> int:
        """When a kernel of a stream, which has not begun, can begin at the earliest."""
        row = stream.kernels[kernel]
        step = rank.steps[row]
        begin = rank.value[row]
        if rank.row <= row:
            begin = self._cpu_bound(rank, earliest) + rank.clock[row] - rank.clock[rank.row]
            begin += step["launch"] - step["launch_cost"]
        if kernel > stream.done:  # what comes before it
            first = rank.kernel_index[rank.streams.index(stream)]
            spent = rank.spent[first + kernel] - rank.spent[first + stream.done]
            spent -= rank.span[first + kernel]
            begin = max(begin, self._end_bound(rank, stream, earliest) + spent)
        elif kernel:
            begin = max(begin, stream.end + step["gap"])
        for one in rank.waits[step["first_wait"] : step["first_wait"] + step["n_waits"]]:
            begin = max(begin, self._kernel_bound(rank, one, earliest) + step["gap"])
        return begin if self._layout.traffic.backwards else max(begin, earliest)

    def _end_bound(self, rank: Rank, stream: Stream, earliest: int) -> int:
        """When the next kernel of a stream can end at the earliest."""
        if stream.bound is None:
            if stream.pending:
                row = stream.kernels[stream.done]
                rows = range(row, row + rank.steps[row]["n_rows"])
                stream.bound = max(self._group_bound(rank, one, row, earliest) for one in rows)
            else:
                at = rank.kernel_index[rank.streams.index(stream)] + stream.done
                begin = self._begin_bound(rank, stream, stream.done, earliest)
                stream.bound = begin + rank.span[at]
        return stream.bound

    def _group_bound(self, rank: Rank, row: int, kernel: int, earliest: int) -> int:
        """When a communication that this rank has posted can end at the earliest."""
        step, duration = rank.steps[row], rank.duration[row]
        if step["eager"] >= 0:
            return rank.value[kernel] + duration
        group = self._groups[rank.group[step["slot"]] + step["ordinal"]]
        if group.missing == RESOLVED:
            return self._end(rank, row, group)
        end = group.time + duration
        if group.missing > 0 and not self._layout.traffic.backwards:
            return max(end, earliest + duration)
        if self._route(rank, row) < 0:
            return end
        if group.flow >= 0:
            end = max(end, self._sharing.bound(group.flow, earliest))
        return max(end, earliest)

    def _cpu_bound(self, rank: Rank, earliest: int) -> int:
        """When the CPU can have done the row that it has come to at the earliest."""
        if rank.bound is None:
            step = rank.steps[rank.row]
            waits = rank.waits[step["first_wait"] : step["first_wait"] + step["n_waits"]]
            if step["opcode"] <= MEET:
                waits = [step["queue"]]
            ends = [self._kernel_bound(rank, kernel, earliest) for kernel in waits]
            rank.bound = max(rank.host + step["host"], *ends) + step["launch_cost"]
        return rank.bound

    def _kernel_bound(self, rank: Rank, kernel: int, earliest: int) -> int:
        """When a kernel, told by its first row, ends, or can end at the earliest."""
        step = rank.steps[kernel]
        stream, index = rank.streams[step["stream"]], step["index"]
        if stream.done > index:
            return rank.value[kernel]
        first = rank.kernel_index[step["stream"]]
        spent = rank.spent[first + index] - rank.spent[first + stream.done]
        return self._end_bound(rank, stream, earliest) + spent

    # --- other processes ------------------------------------------------------------------------

    @property
    def n_posted(self) -> int:
        """How many groups the outbox holds."""
        return len(self._outbox)

    def outbox(self) -> NDArray[np.int64]:
        """Return the groups to tell other processes about, and forget them."""
        groups = np.array(self._outbox, np.int64)
        self._outbox = []
        return groups

    def deliver(
        self, groups: NDArray[np.int64], *columns: NDArray[np.int64], owned: NDArray[np.uint8]
    ) -> None:
        """Take in what other processes said about groups, and whether this one owns them."""
        for number, own, time, last, end, route, price, follow, follower in zip(
            groups.tolist(), owned.tolist(), *(column.tolist() for column in columns)
        ):
            group = self._groups[number]
            self._merge(group, time, last, end)
            self._merge_promise(group, follow, follower)
            group.route, group.price = max(group.route, route), max(group.price, price)
            group.away -= 1
            self._start_if_complete(number, bool(own))

    # --- what came out --------------------------------------------------------------------------

    @property
    def groups(self) -> NDArray[Any]:
        """State of the groups, as `mpisim.engine.actors.FLOW_GROUP`."""
        found = self._layout.groups.copy()
        for name in (*self.message, "missing", "away"):
            found[name] = [getattr(group, name) for group in self._groups[:-1]]
        return found

    def _stopped(self) -> list[tuple[int, int]]:
        from ..actors import stopped

        missing = self.groups["missing"]
        return [
            stopped(self._layout, i, rank.row, [s.done for s in rank.streams], missing)
            for i, rank in enumerate(self._ranks)
        ]

    def rows(self) -> NDArray[np.int32]:
        """Return the row each hosted rank has come to, shape (h,)."""
        return np.array([row for row, _ in self._stopped()], np.int32)

    def blocked(self) -> NDArray[np.int64]:
        """Return the group each hosted rank is blocked on, -1 if none, shape (h,)."""
        return np.array([group for _, group in self._stopped()], np.int64)

    def met(self, local: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When communications of a hosted rank began and ended, shape (m,) each.

        In the order of its code's communications: from when the wire time ran (EAGER: the own ready
        time), and when this member ended.
        """
        rank = self._ranks[local]
        rows = self._layout.codes[self._layout.code[local]].communications["row"]
        start, end = np.zeros((2, len(rows)), np.int64)
        for i, row in enumerate(rows.tolist()):
            step = rank.steps[row]
            if step["eager"] >= 0:
                start[i] = rank.eager_ready[step["eager"]]
                end[i] = start[i] + rank.duration[row]
            else:
                group = self._groups[rank.group[step["slot"]] + step["ordinal"]]
                start[i], end[i] = group.time, self._end(rank, row, group)
        return start, end

    def last(self, local: int) -> NDArray[np.int32]:
        """Which simulated rank was ready last, the lowest if several; shape (m,)."""
        rank = self._ranks[local]
        steps = [
            rank.steps[row]
            for row in self._layout.codes[self._layout.code[local]].communications["row"].tolist()
        ]
        return np.array(
            [
                rank.number
                if step["eager"] >= 0
                else self._groups[rank.group[step["slot"]] + step["ordinal"]].last
                for step in steps
            ],
            np.int32,
        )

    def finish(self) -> tuple[NDArray[np.int64], int]:
        """Complete what was recorded of communications; return ends of ranks and the hash sum."""
        from ..digest import hash_communications, hash_ends, summed

        layout, total = self._layout, 0
        ends = np.array([max(rank.host, rank.device) for rank in self._ranks], np.int64)
        self.wire[:] = self.begin
        for local, rank in enumerate(self._ranks):
            found = layout.codes[layout.code[local]].communications
            rows, slot = found["row"], found["slot"]
            start, end = self.met(local)
            sizes = layout.slot_hash[layout.slot_index[local] + slot]
            hashes = np.stack([found["low"], found["high"]], axis=1)
            hashes = hash_communications(hashes, sizes, start, end)
            hashes = np.concatenate([hashes, hash_ends(ends[local : local + 1])])
            total += int(layout.count[local]) * summed(hashes)
            if self._record:
                at = self.row_index[local] + rows
                self.wire[at], self.end[at] = start, end
        return ends, total % (1 << 128)
