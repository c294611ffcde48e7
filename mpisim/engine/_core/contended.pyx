# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The contended core: runs ranks whose communications share links.

Communications that share links are *flows*: when the last member is ready, the latency passes, then
the bytes flow at a rate that depends on all other flows, until they are through. Read
`contended_state` for the state, `events` for communications and their flows, `sharing` for rates,
`lookahead` for what several processes may let happen; here ranks are run and results are read.

**Workers.** All that goes on between two *events*, arrivals and ends of flows, is a max-plus
recurrence. A rank is split into *workers*, its CPU and its streams, and each runs until it needs
something unknown: the end of another worker's kernel, or of a communication. Between two calls of
`run`:

1. A worker that may be able to move has its bit in `RankState.ready`, and a rank with such a bit
   stands once on the stack of ready ranks (`queued`).
2. Any other worker stands with what it waits for: in `wakes` of another worker, whose `wanted` is
   no more than the count it needs, or in the list of waiters of a communication. So no wake-up is
   lost. A wake-up too many does no harm: the worker looks again and goes back to wait.
3. `row` and `done` only grow, and an end once known does not change.

By 3, what a worker works out does not depend on when it runs, so neither the stack's order nor the
number of processes shows in a result.

**Progress.** When no worker can move, all that is unknown follows from the end of some flow that is
under way, and so lies at or after the earliest event of all processes. That event may happen: no
post that is still to come could have preceded it. On one process that is the whole event loop;
several first agree how much further they may go (`lookahead`).

**Backwards.** A trace may tell of a kernel that begins before what it waited for has ended
(negative gaps and launch latencies); then posts still to come may be ready before the earliest
event. Bytes never flow before the events that led to them, though: each time carries along its
*cause*, the latest end of a flow that it follows from, and no flow arrives before its cause. Causes
are kept only where some gap or latency is negative.

**Promises.** Where several processes take part, a stream promises those of its next communications
that wait for nothing but the end of the one before on the same communicator: it posts them ahead.
Whoever runs the flows lets them follow each other at once, without another exchange.

**Integers.** Times are int64 ps. Start offsets and the sum of all durations of a rank are below
2**60 each (`mpisim.engine.cost`). NO_TIME, the least int64, is compared, and nothing is added to
it.

Callers are trusted: no index is checked. Between two calls from Python the interpreter is not used.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t

from .common cimport (
    BATCH, HOST, JOIN, MEMBER, NO_TIME, PEER, CommunicationRow, Instruction, StreamEntry,
)
from .contended_state cimport (
    CPU, RESOLVED, Communication, RankState, StreamState, at_row, bit_of, end_for_rank, end_in,
    ended, has_reached, is_kernel, merge, merge_promise, number_of,
)
from .events cimport Events
from .lookahead cimport Lookahead
from .rank_states cimport RankStates

from ..digest import END_LANES
from .blocked import blocked_row
from .events import Events as new_events
from .lookahead import Lookahead as new_lookahead
from .rank_states import RankStates as new_rank_states

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(uint64_t) noexcept nogil

cdef extern from "digest.h":
    void add_hashes(
        int64_t n, const uint64_t* low, const uint64_t* high, const uint64_t* counted,
        const int64_t* duration, const int64_t* start, int64_t stride, const uint64_t* size,
        int64_t times, uint64_t* sum) noexcept nogil
    void add_end(int64_t end, const uint64_t* seed, int64_t times, uint64_t* sum) noexcept nogil


@cython.final
cdef class Core:
    """See the package."""

    cdef RankStates ranks
    cdef Events events
    cdef Lookahead lookahead
    cdef Communication* state
    cdef bint single_process, backwards
    cdef object core_input
    cdef readonly int64_t unfinished, rows_done

    message = ("time", "last", "end", "route", "price", "follow", "follower")

    def __cinit__(self, core_input):
        self.core_input = core_input
        self.single_process = core_input.flows.single_process
        self.backwards = core_input.flows.backwards
        self.ranks = new_rank_states(core_input)
        self.events = new_events(core_input, self.ranks)
        self.lookahead = new_lookahead(self.ranks, self.events)
        self.state = self.events.state
        self.unfinished = self.ranks.n

    # --- running --------------------------------------------------------------------------------

    def advance(self, int64_t budget):
        """Run ranks, and events where all are here; return whether anything still can move."""
        cdef int64_t stop = self.rows_done + budget
        cdef int32_t before
        cdef RankStates ranks = self.ranks
        cdef Events events = self.events
        cdef RankState* rank
        with nogil:
            while self.rows_done < stop:
                if ranks.n_ready:
                    ranks.n_ready -= 1
                    rank = &ranks.state[ranks.ready[ranks.n_ready]]
                    rank.queued = False
                    before = rank.row
                    self.run(rank)
                    self.rows_done += rank.row - before
                elif self.single_process and events.next_time() < INT64_MAX:
                    events.process(events.next_time())
                else:
                    break
        if ranks.n_ready:
            return True
        return self.single_process and events.next_time() < INT64_MAX

    cdef void run(self, RankState* rank) noexcept nogil:
        """Run the workers of a rank until none can move."""
        cdef int32_t s
        cdef StreamState* stream
        if rank.left == 0:
            return
        while rank.ready:
            s = lowest_bit(rank.ready) - 1
            rank.ready &= rank.ready - 1
            if s == CPU:
                if not has_reached(rank, rank.need, rank.count):
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
        if not self.single_process:
            for s in range(rank.n_streams):
                if rank.streams[s].pending:
                    self.promise(rank, &rank.streams[s])
        if rank.left == 0:
            self.unfinished -= 1

    cdef inline bint may_go(self, RankState* rank, StreamState* stream) noexcept nogil:
        if stream.communication >= 0:
            return self.state[stream.communication].missing == RESOLVED
        if has_reached(rank, stream.need, stream.count):
            return True
        self.await_kernel(rank, stream.need, stream.count, bit_of(<int32_t>(stream - rank.streams)))
        return False

    cdef inline void await_kernel(
        self, RankState* rank, int32_t need, int32_t count, uint64_t worker
    ) noexcept nogil:
        """Have a worker woken once another has come as far as it needs."""
        cdef StreamState* stream
        if need == CPU:
            rank.wakes |= worker
            rank.wanted = min(rank.wanted, count)
        else:
            stream = &rank.streams[need]
            stream.wakes |= worker
            stream.wanted = min(stream.wanted, count)

    cdef void run_cpu(self, RankState* rank) noexcept nogil:
        """Let the CPU go on until it needs an end."""
        cdef int32_t row = rank.row, i
        cdef const Instruction* x
        cdef const StreamEntry* entry
        cdef const StreamEntry* awaited = NULL
        cdef const int32_t* waits
        cdef int64_t host, end, clock = rank.host
        while row < rank.n_rows:
            if row == rank.limit:
                rank.row = row
                self.ranks.make_room(rank)
            x = &rank.instructions[row]
            entry = &rank.entries[row]
            host = clock + x.host
            if x.opcode <= BATCH:
                if entry.queue >= 0:
                    if not ended(rank, entry.queue):
                        awaited = &rank.entries[entry.queue]
                        break
                    host = max(host, end_in(&rank.times, rank.entries, entry.queue))
                    if self.backwards:
                        rank.cause = max(
                            rank.cause, end_in(&rank.causes, rank.entries, entry.queue))
                at_row(&rank.times, row)[0] = host + x.launch
                if self.backwards:
                    at_row(&rank.causes, row)[0] = rank.cause
                clock = host + x.launch_cost
            elif x.opcode == HOST:
                clock = host
            elif x.opcode != JOIN:
                waits = &rank.waits[entry.first_wait]
                for i in range(x.n_waits):
                    if not ended(rank, waits[i]):
                        awaited = &rank.entries[waits[i]]
                        break
                if awaited is not NULL:
                    break
                end = host
                for i in range(x.n_waits):
                    end = max(end, end_in(&rank.times, rank.entries, waits[i]))
                    if self.backwards:
                        rank.cause = max(
                            rank.cause, end_in(&rank.causes, rank.entries, waits[i]))
                clock = end + x.launch_cost
            row += 1
        rank.row = row
        rank.host = clock
        if awaited is not NULL:
            rank.need, rank.count = awaited.stream, awaited.index + 1
            self.await_kernel(rank, rank.need, rank.count, 1)
        else:
            rank.need, rank.count = CPU, INT32_MAX  # it has come to its end
            rank.left -= 1

    cdef void run_stream(self, RankState* rank, StreamState* stream) noexcept nogil:
        """Let a stream go on until it needs something unknown."""
        cdef int32_t row
        stream.communication = -1
        while stream.done < stream.n_kernels:
            row = stream.kernels[stream.done]
            if not stream.pending and not self.begin_kernel(rank, stream, row):
                self.await_kernel(
                    rank, stream.need, stream.count, bit_of(<int32_t>(stream - rank.streams)))
                return
            if stream.pending and not self.finish_kernel(rank, stream, row):
                return
            stream.pending = False
            stream.done += 1
            at_row(&rank.times, row)[0] = stream.end
            if rank.entries[row].keep >= 0:
                rank.times.kept[rank.entries[row].keep] = stream.end
            if self.backwards:
                at_row(&rank.causes, row)[0] = stream.cause
                if rank.entries[row].keep >= 0:
                    rank.causes.kept[rank.entries[row].keep] = stream.cause
            rank.device = max(rank.device, stream.end)
        rank.left -= 1

    cdef inline bint begin_kernel(
        self, RankState* rank, StreamState* stream, int32_t row
    ) noexcept nogil:
        """Begin a kernel, and end it unless it is a communication; False if it cannot begin."""
        cdef const Instruction* x = &rank.instructions[row]
        cdef const StreamEntry* awaited
        cdef const int32_t* waits = &rank.waits[rank.entries[row].first_wait]
        cdef int64_t begin = stream.end, cause
        cdef int64_t* launched = at_row(&rank.times, row)
        cdef int32_t i
        if rank.row <= row:
            stream.need, stream.count = CPU, row + 1
            return False
        for i in range(x.n_waits):
            awaited = &rank.entries[waits[i]]
            if rank.streams[awaited.stream].done <= awaited.index:
                stream.need, stream.count = awaited.stream, awaited.index + 1
                return False
            begin = max(begin, end_in(&rank.times, rank.entries, waits[i]))
        if begin > NO_TIME:  # there is something on the device that it follows
            begin += x.gap
        begin = max(begin, launched[0])
        if self.backwards:
            cause = max(stream.cause, at_row(&rank.causes, row)[0])
            for i in range(x.n_waits):
                cause = max(cause, end_in(&rank.causes, rank.entries, waits[i]))
            stream.cause = cause
        launched[0] = begin
        if is_kernel(x):
            stream.end = begin + rank.duration[row]
        else:
            stream.pending = True
            if stream.promised:
                stream.promised -= 1
            else:
                for i in range(row, row + rank.entries[row].n_rows):
                    self.post(rank, i, begin, stream.cause)
        return True

    cdef inline bint finish_kernel(
        self, RankState* rank, StreamState* stream, int32_t row
    ) noexcept nogil:
        """End a kernel of communications; False if one of them has no end yet."""
        cdef int64_t end = NO_TIME, cause = stream.cause, number
        cdef int32_t i
        cdef Communication* communication
        for i in range(row, row + rank.entries[row].n_rows):
            if rank.instructions[i].eager:
                end = max(end, at_row(&rank.times, row)[0] + rank.duration[i])
                continue
            number = number_of(rank, i)
            communication = &self.state[number]
            if communication.missing != RESOLVED:
                stream.communication = number
                stream.next_waiter = communication.waiter
                communication.waiter = <int32_t>(stream - self.ranks.streams)
                return False
            end = max(end, end_for_rank(rank, i, communication))
            cause = max(cause, communication.end)
        stream.end = end
        stream.cause = cause
        return True

    cdef void post(self, RankState* rank, int32_t row, int64_t ready, int64_t cause) noexcept nogil:
        """Post to a communication: this rank is ready."""
        cdef int64_t number = number_of(rank, row)
        cdef Communication* communication = &self.state[number]
        cdef int32_t route = self.ranks.route_of(rank, row)
        cdef int32_t role = rank.role[rank.instructions[row].slot]
        if rank.instructions[row].eager:
            rank.eager_ready[rank.entries[row].eager] = ready
        if route >= 0:
            communication.route = route
            communication.price = rank.price[row]
        merge(communication, ready, rank.number, cause)
        communication.missing -= 1
        if communication.missing == 0:
            if role == PEER or role == MEMBER:
                self.events.notify(number)
            self.events.start_if_complete(number, role != MEMBER)

    cdef inline bint can_be_promised(self, RankState* rank, int32_t row) noexcept nogil:
        """Whether a kernel is one communication that flows and is not EAGER."""
        if rank.entries[row].n_rows > 1 or rank.instructions[row].eager:
            return False
        return self.ranks.route_of(rank, row) >= 0

    cdef void promise(self, RankState* rank, StreamState* stream) noexcept nogil:
        """Post ahead what waits only for the communication that a stream is in."""
        cdef int64_t at = stream.done + stream.promised, ready, cause
        cdef int32_t row = stream.kernels[at], i, first, kernel
        cdef const Instruction* before = &rank.instructions[row]
        cdef const Instruction* x
        if not self.can_be_promised(rank, row):
            return
        for at in range(at + 1, stream.n_kernels):
            row = stream.kernels[at]
            x = &rank.instructions[row]
            first = rank.entries[row].first_wait
            if x.slot != before.slot or x.ordinal != before.ordinal + 1 or rank.row <= row:
                return
            if not self.can_be_promised(rank, row):
                return
            ready = at_row(&rank.times, row)[0]
            cause = at_row(&rank.causes, row)[0] if self.backwards else NO_TIME
            for i in range(first, first + x.n_waits):
                kernel = rank.waits[i]
                if not ended(rank, kernel):
                    return
                ready = max(ready, end_in(&rank.times, rank.entries, kernel) + x.gap)
                if self.backwards:
                    cause = max(cause, end_in(&rank.causes, rank.entries, kernel))
            merge_promise(&self.state[number_of(rank, row)], x.gap, rank.number)
            stream.promised += 1
            self.post(rank, row, ready, cause)
            before = x

    # --- events, and other processes ------------------------------------------------------------

    def next_event(self):
        """Return when the next arrival or end of a flow here is, the largest int64 if none is."""
        return self.events.next_time()

    def commit(self, int64_t until):
        """Let all events happen that are not later than `until`, in ps."""
        cdef Events events = self.events
        cdef int64_t time
        with nogil:
            time = events.next_time()
            while time <= until and time < INT64_MAX:
                events.process(time)
                time = events.next_time()

    def safe_time(self, int64_t earliest):
        """Return a time before which no flow can arrive that ranks here have still to post."""
        return self.lookahead.safe_time(earliest)

    def outbox(self):
        """Return the communications to tell other processes about, and empty the outbox."""
        return self.events.outbox()

    def deliver(self, numbers, *columns, owned):
        """Merge messages from other processes: see the package."""
        self.events.deliver(numbers, *columns, owned=owned)

    def reached(self):
        """Return the times of the rank that is furthest behind and of the one furthest ahead."""
        cdef int64_t i, time, least = INT64_MAX, most = INT64_MIN
        cdef const RankState* rank
        with nogil:
            for i in range(self.ranks.n):
                rank = &self.ranks.state[i]
                time = max(rank.host, rank.device)
                least, most = min(least, time), max(most, time)
        return least, most

    @property
    def n_links_in_use(self):
        """Number of links with a flow now."""
        return self.events.sharing.links_in_use()

    @property
    def n_outgoing(self):
        """Number of communications in the outbox."""
        return self.events.n_outgoing

    @property
    def n_events(self):
        """Arrivals and ends so far."""
        return self.events.n_events

    @property
    def communications(self):
        """State of the communications, as `mpisim.engine.core_input.COMMUNICATION_STATE`."""
        return self.events.communications

    # --- results --------------------------------------------------------------------------------

    cdef _blocked(self):
        """Return (row, communication) that each hosted rank is blocked on: see `blocked`."""
        cdef RankState* rank
        cdef int64_t i, s
        found, given = [], self.core_input
        for i in range(self.ranks.n):
            rank = &self.ranks.state[i]
            done = [rank.streams[s].done for s in range(rank.n_streams)]
            slots = given.slot_first[given.slot_index[i] : given.slot_index[i + 1]]
            view = given.flows.views[given.table[i]]
            missing = self.communications["missing"]
            found.append(blocked_row(given.lowered_of(i), view, slots, rank.row, done, missing))
        return found

    def rows(self):
        """Return the row each hosted rank has come to, shape (h,)."""
        return np.array([row for row, _ in self._blocked()], np.int32)

    def blocked(self):
        """Return the communication each hosted rank is blocked on, -1 if none, shape (h,)."""
        return np.array([number for _, number in self._blocked()], np.int64)

    def communication_times(self, int64_t local):
        """Return when each communication of a rank began and ended: see the package."""
        cdef const CommunicationRow[::1] found = self.core_input.lowered_of(local).communications
        cdef const RankState* rank = &self.ranks.state[local]
        cdef const CommunicationRow* x
        cdef const Communication* communication
        cdef int64_t[::1] start, end
        cdef Py_ssize_t i
        starts, ends = np.empty((2, found.shape[0]), np.int64)
        start, end = starts, ends
        for i in range(found.shape[0]):
            x = &found[i]
            if x.eager:
                start[i] = rank.eager_ready[rank.entries[x.row].eager]
                end[i] = start[i] + rank.duration[x.row]
            else:
                communication = &self.state[rank.first[x.slot] + x.ordinal]
                start[i] = communication.time
                end[i] = end_for_rank(rank, x.row, communication)
        return starts, ends

    def last_ready(self, int64_t local):
        """Return who was ready last for each communication of a rank: see the package."""
        found = self.core_input.lowered_of(local).communications
        first = self.core_input.slot_first[self.core_input.slot_index[local]:]
        last = self.communications["last"][first[found["slot"]] + found["ordinal"]]
        own = self.ranks.state[local].number
        return np.where(found["eager"] != 0, own, last).astype(np.int32)

    def ends(self):
        """Return ends of ranks."""
        cdef RankStates ranks = self.ranks
        cdef int64_t i
        found = np.zeros(ranks.n, np.int64)
        cdef int64_t[::1] end = found
        for i in range(ranks.n):
            end[i] = max(ranks.state[i].host, ranks.state[i].device)
        return found

    def hash_sum(self):
        """Return the hash sum: see `mpisim.engine.digest`."""
        cdef const int64_t[::1] first, start, duration
        cdef const uint64_t[::1] low, high, counted
        cdef const uint64_t[:, ::1] sizes = self.core_input.slot_hash
        cdef const uint64_t[::1] seed = END_LANES
        cdef const int64_t[::1] slot_index = self.core_input.slot_index
        cdef const int64_t[::1] count = self.core_input.count
        cdef const int32_t[::1] table = self.core_input.table
        cdef RankStates ranks = self.ranks
        cdef const int64_t[::1] end = self.ends()
        cdef uint64_t total[2]
        cdef int64_t i, slot
        total[0] = total[1] = 0
        tables = [by_slot(one.communications) for one in self.core_input.lowered]
        for i in range(ranks.n):
            order, first, low, high, counted = tables[table[i]]
            starts, until = self.communication_times(i)
            start, duration = starts[order], (until - starts)[order]
            for slot in range(first.shape[0] - 1):
                if first[slot] < first[slot + 1]:
                    add_hashes(
                        first[slot + 1] - first[slot], &low[first[slot]], &high[first[slot]],
                        &counted[first[slot]], &duration[first[slot]], &start[first[slot]], 1,
                        &sizes[slot_index[i] + slot, 0], count[i], total)
            add_end(end[i], &seed[0], count[i], total)
        return total[0] + (int(total[1]) << 64)


cdef by_slot(found):
    """Return an order of communications, where each slot begins, and what the digest takes."""
    order = np.argsort(found["slot"], kind="stable")
    slots = found["slot"][order]
    first = np.searchsorted(slots, np.arange(int(slots.max(initial=-1)) + 2)).astype(np.int64)
    counted = np.ones(len(order), np.uint64)
    return order, first, found["low"][order], found["high"][order], counted
