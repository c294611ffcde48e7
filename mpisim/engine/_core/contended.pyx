# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The contended core, compiled. `contended_twin` is the same in plain Python: read it first.

Callers are trusted: no index is checked. Everything between two calls of `advance` runs without
the interpreter. The ranks live in `crew`, the groups and their flows in `meetings`; `bounds` says
what several processes may let happen, `outcome` what came out.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t

from .bounds cimport Bounds
from .contended cimport (
    CPU, RESOLVED, Actors, FlowGroup, Step, Stream, at_row, bit_of, came, end_in, ended, ended_at,
    merge, merge_promise,
)
from .crew cimport Crew
from .meetings cimport Meetings
from .state cimport HOST, JOIN, KERNEL, MEET, MEMBER, PEER

from . import outcome
from .bounds import Bounds as new_bounds
from .crew import Crew as new_crew
from .meetings import Meetings as new_meetings
from .standstill import stopped

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(uint64_t) noexcept nogil

cdef int64_t NEVER = INT64_MIN


@cython.final
cdef class Core:
    """See the package."""

    cdef Crew crew
    cdef Meetings meetings
    cdef Bounds bounds
    cdef FlowGroup* group_of
    cdef bint alone, backwards
    cdef object layout
    cdef readonly int64_t unfinished, rows_done

    message = ("time", "last", "end", "route", "price", "follow", "follower")

    def __cinit__(self, layout):
        self.layout = layout
        self.alone = layout.traffic.alone
        self.backwards = layout.traffic.backwards
        self.crew = new_crew(layout)
        self.meetings = new_meetings(layout, self.crew)
        self.bounds = new_bounds(self.crew, self.meetings)
        self.group_of = self.meetings.group_of
        self.unfinished = self.crew.n

    # --- running --------------------------------------------------------------------------------

    def advance(self, int64_t budget):
        """Run ranks, and events where all are here; return whether anything still can move."""
        cdef int64_t stop = self.rows_done + budget
        cdef int32_t before
        cdef Crew crew = self.crew
        cdef Meetings meetings = self.meetings
        cdef Actors* rank
        with nogil:
            while self.rows_done < stop:
                if crew.n_ready:
                    crew.n_ready -= 1
                    rank = &crew.ranks[crew.ready[crew.n_ready]]
                    rank.queued = False
                    before = rank.row
                    self.run(rank)
                    self.rows_done += rank.row - before
                elif self.alone and meetings.next_time() < INT64_MAX:
                    meetings.happen(meetings.next_time())
                else:
                    break
        return crew.n_ready > 0 or (self.alone and meetings.next_time() < INT64_MAX)

    cdef void run(self, Actors* rank) noexcept nogil:
        """Run the actors of a rank until none can move."""
        cdef int32_t s
        cdef Stream* stream
        if rank.left == 0:
            return
        while rank.ready:
            s = lowest_bit(rank.ready) - 1
            rank.ready &= rank.ready - 1
            if s == CPU:
                if not came(rank, rank.need, rank.count):
                    self.await_kernel(rank, rank.need, rank.count, 1)
                    continue
                self.run_cpu(rank)
                if rank.row >= rank.wanted:
                    rank.ready |= rank.wakes
                    rank.wakes, rank.wanted = 0, INT32_MAX
                continue
            while s < rank.n_streams:
                stream = &rank.streams[s]
                if stream.done < stream.n_kernels and self.may_go(rank, stream):
                    self.run_stream(rank, stream)
                    if stream.done >= stream.wanted:
                        rank.ready |= stream.wakes
                        stream.wakes, stream.wanted = 0, INT32_MAX
                s += 63  # streams that share a bit
        if not self.alone:
            for s in range(rank.n_streams):
                if rank.streams[s].pending:
                    self.promise(rank, &rank.streams[s])
        if rank.left == 0:
            self.unfinished -= 1

    cdef inline bint may_go(self, Actors* rank, Stream* stream) noexcept nogil:
        if stream.group >= 0:
            return self.group_of[stream.group].missing == RESOLVED
        if came(rank, stream.need, stream.count):
            return True
        self.await_kernel(rank, stream.need, stream.count, bit_of(<int32_t>(stream - rank.streams)))
        return False

    cdef inline void await_kernel(
        self, Actors* rank, int32_t need, int32_t count, uint64_t actor
    ) noexcept nogil:
        """Have an actor woken once another has come as far as it needs."""
        cdef Stream* stream
        if need == CPU:
            rank.wakes |= actor
            rank.wanted = min(rank.wanted, count)
        else:
            stream = &rank.streams[need]
            stream.wakes |= actor
            stream.wanted = min(stream.wanted, count)

    cdef void run_cpu(self, Actors* rank) noexcept nogil:
        """Let the CPU go on until it needs an end."""
        cdef int32_t row = rank.row, i
        cdef const Step* x
        cdef const Step* y = NULL
        cdef const int32_t* waits
        cdef int64_t host, end, clock = rank.host
        while row < rank.n_rows:
            if row == rank.limit:
                rank.row = row
                self.crew.remember(rank)
            x = &rank.steps[row]
            host = clock + x.host
            if x.opcode <= MEET:
                if x.queue >= 0:
                    if not ended(rank, x.queue):
                        y = &rank.steps[x.queue]
                        break
                    host = max(host, end_in(&rank.value, rank.steps, x.queue))
                    if self.backwards:
                        rank.cause = max(
                            rank.cause, end_in(&rank.causes, rank.steps, x.queue))
                at_row(&rank.value, row)[0] = host + x.launch
                if self.backwards:
                    at_row(&rank.causes, row)[0] = rank.cause
                clock = host + x.launch_cost
            elif x.opcode == HOST:
                clock = host
            elif x.opcode != JOIN:
                waits = &rank.waits[x.first_wait]
                for i in range(x.n_waits):
                    if not ended(rank, waits[i]):
                        y = &rank.steps[waits[i]]
                        break
                if y is not NULL:
                    break
                end = host
                for i in range(x.n_waits):
                    end = max(end, end_in(&rank.value, rank.steps, waits[i]))
                    if self.backwards:
                        rank.cause = max(
                            rank.cause, end_in(&rank.causes, rank.steps, waits[i]))
                clock = end + x.launch_cost
            row += 1
        rank.row = row
        rank.host = clock
        if y is not NULL:
            rank.need, rank.count = y.stream, y.index + 1
            self.await_kernel(rank, rank.need, rank.count, 1)
        else:
            rank.need, rank.count = CPU, INT32_MAX  # never again
            rank.left -= 1

    cdef void run_stream(self, Actors* rank, Stream* stream) noexcept nogil:
        """Let a stream go on until it needs something unknown."""
        cdef int32_t row
        stream.group = -1
        while stream.done < stream.n_kernels:
            row = stream.kernels[stream.done]
            if not stream.pending and not self.begin_kernel(rank, stream, row):
                self.await_kernel(
                    rank, stream.need, stream.count, bit_of(<int32_t>(stream - rank.streams)))
                return
            if stream.pending and not self.settle(rank, stream, row):
                return
            stream.pending = False
            stream.done += 1
            at_row(&rank.value, row)[0] = stream.end
            if rank.steps[row].keep >= 0:
                rank.value.kept[rank.steps[row].keep] = stream.end
            if self.backwards:
                at_row(&rank.causes, row)[0] = stream.cause
                if rank.steps[row].keep >= 0:
                    rank.causes.kept[rank.steps[row].keep] = stream.cause
            rank.device = max(rank.device, stream.end)
        rank.left -= 1

    cdef inline bint begin_kernel(self, Actors* rank, Stream* stream, int32_t row) noexcept nogil:
        """Begin a kernel, and end it unless it is a communication; False if it cannot begin."""
        cdef const Step* x = &rank.steps[row]
        cdef const Step* y
        cdef const int32_t* waits = &rank.waits[x.first_wait]
        cdef int64_t begin = stream.end, cause
        cdef int64_t* launched = at_row(&rank.value, row)
        cdef int32_t i
        if rank.row <= row:
            stream.need, stream.count = CPU, row + 1
            return False
        for i in range(x.n_waits):
            y = &rank.steps[waits[i]]
            if rank.streams[y.stream].done <= y.index:
                stream.need, stream.count = y.stream, y.index + 1
                return False
            begin = max(begin, end_in(&rank.value, rank.steps, waits[i]))
        if begin > NEVER:  # there is something on the device that it follows
            begin += x.gap
        begin = max(begin, launched[0])
        if self.backwards:
            cause = max(stream.cause, at_row(&rank.causes, row)[0])
            for i in range(x.n_waits):
                cause = max(cause, end_in(&rank.causes, rank.steps, waits[i]))
            stream.cause = cause
        launched[0] = begin
        if x.opcode == KERNEL:
            stream.end = begin + rank.duration[row]
        else:
            stream.pending = True
            if stream.promised:
                stream.promised -= 1
            else:
                for i in range(row, row + x.n_rows):
                    self.post(rank, i, begin, stream.cause)
        return True

    cdef inline bint settle(self, Actors* rank, Stream* stream, int32_t row) noexcept nogil:
        """End a kernel of communications; False if one of them has no end yet."""
        cdef int64_t end = NEVER, cause = stream.cause, number
        cdef int32_t i
        cdef const Step* x
        cdef FlowGroup* group
        for i in range(row, row + rank.steps[row].n_rows):
            x = &rank.steps[i]
            if x.eager >= 0:
                end = max(end, at_row(&rank.value, row)[0] + rank.duration[i])
                continue
            number = rank.group[x.slot] + x.ordinal
            group = &self.group_of[number]
            if group.missing != RESOLVED:
                stream.group = number
                stream.next_waiter = group.waiter
                group.waiter = <int32_t>(stream - self.crew.streams)
                return False
            end = max(end, ended_at(rank, i, group))
            cause = max(cause, group.end)
        stream.end = end
        stream.cause = cause
        return True

    cdef void post(self, Actors* rank, int32_t row, int64_t ready, int64_t cause) noexcept nogil:
        """Tell the group of a communication that this rank is ready."""
        cdef const Step* x = &rank.steps[row]
        cdef int64_t number = rank.group[x.slot] + x.ordinal
        cdef FlowGroup* group = &self.group_of[number]
        cdef int32_t route = self.crew.route_of(rank, row)
        if x.eager >= 0:
            rank.eager_ready[x.eager] = ready
        if route >= 0:
            group.route = route
            group.price = rank.price[row]
        merge(group, ready, rank.number, cause)
        group.missing -= 1
        if group.missing == 0:
            if rank.role[x.slot] == PEER or rank.role[x.slot] == MEMBER:
                self.meetings.tell(number)
            self.meetings.start_if_complete(number, rank.role[x.slot] != MEMBER)

    cdef void promise(self, Actors* rank, Stream* stream) noexcept nogil:
        """Promise what follows the communication that a stream is in."""
        cdef int64_t at = stream.done + stream.promised, ready, cause
        cdef int32_t row = stream.kernels[at], i, kernel
        cdef const Step* before = &rank.steps[row]
        cdef const Step* x
        if before.n_rows > 1 or before.eager >= 0 or self.crew.route_of(rank, row) < 0:
            return
        for at in range(at + 1, stream.n_kernels):
            row = stream.kernels[at]
            x = &rank.steps[row]
            if x.slot != before.slot or x.ordinal != before.ordinal + 1 or rank.row <= row:
                return
            if x.n_rows > 1 or x.eager >= 0 or self.crew.route_of(rank, row) < 0:
                return
            ready = at_row(&rank.value, row)[0]
            cause = at_row(&rank.causes, row)[0] if self.backwards else NEVER
            for i in range(x.first_wait, x.first_wait + x.n_waits):
                kernel = rank.waits[i]
                if not ended(rank, kernel):
                    return
                ready = max(ready, end_in(&rank.value, rank.steps, kernel) + x.gap)
                if self.backwards:
                    cause = max(cause, end_in(&rank.causes, rank.steps, kernel))
            merge_promise(&self.group_of[rank.group[x.slot] + x.ordinal], x.gap, rank.number)
            stream.promised += 1
            self.post(rank, row, ready, cause)
            before = x

    # --- events, and other processes ------------------------------------------------------------

    def next_event(self):
        """Return when the next arrival or end of a flow here is, the largest int64 if none is."""
        return self.meetings.next_time()

    def commit(self, int64_t until):
        """Let all events happen that are not later than `until`."""
        cdef Meetings meetings = self.meetings
        cdef int64_t time
        with nogil:
            time = meetings.next_time()
            while time <= until and time < INT64_MAX:
                meetings.happen(time)
                time = meetings.next_time()

    def horizon(self, int64_t earliest):
        """Return a time before which no flow can arrive that ranks here have still to post."""
        return self.bounds.horizon(earliest)

    def outbox(self):
        """Return the groups to tell other processes about, and forget them."""
        return self.meetings.outbox()

    def deliver(self, groups, *columns, owned):
        """Take in what other processes said about groups, and whether this one owns them."""
        self.meetings.deliver(groups, *columns, owned=owned)

    @property
    def n_posted(self):
        """How many groups the outbox holds."""
        return self.meetings.n_posted

    @property
    def n_events(self):
        """Arrivals and ends so far."""
        return self.meetings.n_events

    @property
    def groups(self):
        """State of the groups, as `mpisim.engine.actors.FLOW_GROUP`."""
        return self.meetings.groups

    # --- what came out --------------------------------------------------------------------------

    def stopped(self):
        """Return (row, group) where each hosted rank stands: see `standstill`."""
        cdef Actors* rank
        cdef int64_t i, s
        found = []
        for i in range(self.crew.n):
            rank = &self.crew.ranks[i]
            done = [rank.streams[s].done for s in range(rank.n_streams)]
            found.append(stopped(self.layout, i, rank.row, done, self.groups["missing"]))
        return found

    def rows(self):
        """Return the row each hosted rank has come to, shape (h,)."""
        return np.array([row for row, _ in self.stopped()], np.int32)

    def blocked(self):
        """Return the group each hosted rank is blocked on, -1 if none, shape (h,)."""
        return np.array([group for _, group in self.stopped()], np.int64)

    def met(self, int64_t local):
        """When communications of a hosted rank began and ended: see the twin."""
        return outcome.met(self.layout, self.crew, self.meetings, local)

    def last(self, int64_t local):
        """Which simulated rank was ready last: see the twin."""
        return outcome.last(self.layout, self.crew, self.meetings, local)

    def finish(self):
        """Return ends of ranks and the hash sum."""
        return outcome.finish(self.layout, self.crew, self.meetings)
