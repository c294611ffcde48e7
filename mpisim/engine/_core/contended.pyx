# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The contended core, compiled. `contended_twin` is the same in plain Python: read it first.

Callers are trusted: no index is checked. Everything between two calls of `advance` runs without
the interpreter.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from .heap cimport Entry, take
from .sharing cimport Sharing
from .state cimport (
    BY_HOST, BY_QUEUE, BY_STREAM, BY_WAIT, HOST, JOIN, KERNEL, LAST_WAIT, MEET, MEMBER, PEER,
    Communication, mix,
)

from .sharing import Sharing as new_sharing

cdef extern from "Python.h":
    void Py_FatalError(const char* message) noexcept nogil

cdef int64_t NEVER = INT64_MIN


cdef inline bint came(const Actors* rank, int32_t need, int32_t count) noexcept nogil:
    return (rank.row if need == CPU else rank.streams[need].done) >= count


cdef inline bint ended(const Actors* rank, int32_t kernel) noexcept nogil:
    return rank.streams[rank.steps[kernel].stream].done > rank.steps[kernel].index


@cython.final
cdef class Core:
    """See the package. `record` keeps begin, end and binding of every row."""

    cdef Actors* ranks
    cdef Stream* streams
    cdef FlowGroup* group_of
    cdef int32_t* ready
    cdef int64_t* posted
    cdef int64_t* values
    cdef int64_t* causes
    cdef Entry* arrivals
    cdef int64_t* flows
    cdef int64_t* spare
    cdef int64_t* touched
    cdef const int64_t* latency
    cdef const int64_t* volume
    cdef const int64_t* rate
    cdef const int64_t* pattern
    cdef const int64_t* route_pattern
    cdef int64_t* begin_of
    cdef int64_t* end_of
    cdef uint8_t* binding_of
    cdef int64_t n_ranks, n_ready, n_arrivals, arrivals_room, flows_room, n_spare, time
    cdef int64_t n_touched, touched_room, n_horizons, earliest
    cdef bint record, alone, backwards
    cdef object layout, kept
    cdef Sharing sharing
    cdef readonly int64_t unfinished, rows_done, n_posted, n_events
    cdef readonly object groups, begin, end, wire, binding, row_index

    message = ("time", "last", "end", "route", "price", "follow", "follower")

    def __cinit__(self, layout, bint record=False):
        cdef int64_t n = len(layout.numbers)
        cdef FlowGroup[::1] groups
        cdef int64_t[::1] times
        cdef uint8_t[::1] bindings
        traffic = layout.traffic
        self.layout = layout
        self.record = record
        self.alone = traffic.alone
        self.backwards = traffic.backwards
        self.time = NEVER
        self.n_ranks = self.unfinished = self.n_ready = n
        n_rows = np.array([len(code.table) for code in layout.codes], np.int64)
        n_eager = np.array([code.n_eager for code in layout.codes], np.int64)
        n_streams = np.array([script.n_streams for script in traffic.scripts], np.int64)
        self.row_index = offsets(n_rows[layout.code])
        stream_index = offsets(n_streams[layout.code])
        self.ranks = <Actors*>allocated(n, sizeof(Actors))
        self.streams = <Stream*>allocated(stream_index[n], sizeof(Stream))
        self.ready = <int32_t*>allocated(n, sizeof(int32_t))
        self.posted = <int64_t*>allocated(layout.n_messages, sizeof(int64_t))
        self.values = <int64_t*>allocated(self.row_index[n], sizeof(int64_t))
        if self.backwards:
            self.causes = <int64_t*>allocated(self.row_index[n], sizeof(int64_t))

        self.groups = np.append(layout.groups, np.zeros(1, layout.groups.dtype))
        self.groups["follow"][len(layout.groups)] = NEVER  # none follows the last
        groups = self.groups
        self.group_of = &groups[0]
        rows = int(self.row_index[n]) if record else 0
        self.kept = []
        for name in ("begin", "end", "wire"):
            self.kept.append(np.zeros(rows + 1, np.int64))
        self.begin, self.end, self.wire = (array[:rows] for array in self.kept)
        times = self.kept[0]
        self.begin_of = &times[0]
        times = self.kept[1]
        self.end_of = &times[0]
        self.kept.append(np.zeros(rows + 1, np.uint8))
        self.binding = self.kept[3][:rows]
        bindings = self.kept[3]
        self.binding_of = &bindings[0]

        routes = traffic.routes
        self.sharing = new_sharing(routes.capacity, routes.index, routes.link, routes.weight)
        self._price(traffic)
        self._bind(stream_index, offsets(n_eager[layout.code]))

    cdef _price(self, traffic):
        """Point to what flows cost."""
        cdef const int64_t[::1] latency = padded(traffic.latency)
        cdef const int64_t[::1] volume = padded(traffic.volume)
        cdef const int64_t[::1] rate = padded(traffic.rate)
        cdef const int64_t[::1] pattern = padded(traffic.pattern)
        cdef const int64_t[::1] route_pattern = padded(traffic.routes.pattern)
        self.kept.append([latency, volume, rate, pattern, route_pattern])
        self.latency, self.volume, self.rate = &latency[0], &volume[0], &rate[0]
        self.pattern, self.route_pattern = &pattern[0], &route_pattern[0]

    cdef _bind(self, const int64_t[::1] stream_index, const int64_t[::1] eager_index):
        """Point every rank to its part of each array."""
        cdef const Step[::1] steps
        cdef const int64_t[::1] duration, kernel_index, clock
        cdef const int64_t[:, ::1] span
        cdef const int32_t[::1] price, waits, kernels
        cdef int64_t[::1] eager
        traffic = self.layout.traffic
        cdef const int64_t[::1] group = padded(self.layout.slot_group)
        cdef const uint8_t[::1] role = padded(self.layout.slot_role)
        cdef const int32_t[::1] route = padded(traffic.slot_route)
        cdef const int32_t[::1] n_routes = padded(traffic.slot_n_routes)
        cdef const int64_t[::1] slot_index = self.layout.slot_index
        cdef const int64_t[::1] start = self.layout.start
        cdef const int64_t[::1] row_index = self.row_index
        cdef const int32_t[::1] numbers = self.layout.numbers
        cdef const int32_t[::1] code = self.layout.code
        cdef const int32_t[::1] number = self.layout.duration
        cdef int64_t i, s
        cdef Actors* rank
        cdef Stream* stream
        scripts = [
            (
                padded(x.steps), padded(x.waits), padded(x.kernels), x.kernel_index,
                padded(x.clock), len(x.steps),
            )
            for x in traffic.scripts
        ]
        spans = [np.pad(one, ((0, 0), (0, 1))) for one in traffic.spans]
        durations = [padded(d) for d in self.layout.durations]
        prices = [padded(p) for p in traffic.prices]
        eager_array = np.zeros(eager_index[self.n_ranks] + 1, np.int64)
        eager = eager_array
        self.kept.extend([scripts, spans, durations, prices, group, role, route, n_routes, eager_array])
        for i in range(self.n_ranks):
            rank = &self.ranks[i]
            steps, waits, kernels, kernel_index, clock, rank.n_rows = scripts[code[i]]
            duration = durations[number[i]]
            price = prices[number[i]]
            rank.steps = &steps[0]
            rank.waits = &waits[0]
            rank.clock = &clock[0]
            if spans:
                span = spans[number[i]]
            rank.duration = &duration[0]
            rank.price = &price[0]
            rank.group = &group[slot_index[i]]
            rank.role = &role[slot_index[i]]
            rank.route = &route[slot_index[i]]
            rank.n_routes = &n_routes[slot_index[i]]
            rank.eager_ready = &eager[eager_index[i]]
            rank.value = &self.values[row_index[i]]
            if self.backwards:
                rank.causes = &self.causes[row_index[i]]
            rank.first_row = row_index[i] if self.record else 0
            rank.number = numbers[i]
            rank.host = rank.device = start[i]
            rank.cause = NEVER
            rank.need = CPU
            rank.queued = True
            rank.streams = &self.streams[stream_index[i]]
            rank.n_streams = <int32_t>(stream_index[i + 1] - stream_index[i])
            for s in range(rank.n_streams):
                stream = &rank.streams[s]
                stream.kernels = &kernels[kernel_index[s]]
                stream.n_kernels = <int32_t>(kernel_index[s + 1] - kernel_index[s])
                stream.end = stream.cause = NEVER
                stream.group = -1
                stream.need = CPU
                stream.rank = <int32_t>i
                if spans:
                    stream.span = &span[0, kernel_index[s]]
                    stream.spent = &span[1, kernel_index[s]]
            self.ready[self.n_ranks - 1 - i] = <int32_t>i  # a stack: the lowest rank first

    def __dealloc__(self):
        free(self.ranks)
        free(self.streams)
        free(self.ready)
        free(self.posted)
        free(self.values)
        free(self.causes)
        free(self.arrivals)
        free(self.flows)
        free(self.spare)
        free(self.touched)

    # --- running --------------------------------------------------------------------------------

    def advance(self, int64_t budget):
        """Run ranks, and events where all are here; return whether anything still can move."""
        cdef int64_t stop = self.rows_done + budget
        cdef int32_t local, before
        cdef Actors* rank
        with nogil:
            while self.rows_done < stop:
                if self.n_ready:
                    self.n_ready -= 1
                    local = self.ready[self.n_ready]
                    rank = &self.ranks[local]
                    rank.queued = False
                    before = rank.row
                    self.run(rank)
                    self.rows_done += rank.row - before
                elif self.alone and self.next_time() < INT64_MAX:
                    self.happen(self.next_time())
                else:
                    break
        return self.n_ready > 0 or (self.alone and self.next_time() < INT64_MAX)

    cdef void run(self, Actors* rank) noexcept nogil:
        """Run the actors of a rank until none can move."""
        cdef bint moved = True
        cdef int32_t s
        cdef Stream* stream
        if rank.ended > rank.n_streams:
            return
        while moved:
            moved = False
            if rank.row < rank.n_rows and came(rank, rank.need, rank.count):
                moved = self.run_cpu(rank)
            for s in range(rank.n_streams):
                stream = &rank.streams[s]
                if stream.done == stream.n_kernels:
                    continue
                if stream.group >= 0:
                    if self.group_of[stream.group].missing != RESOLVED:
                        continue
                elif not came(rank, stream.need, stream.count):
                    continue
                if self.run_stream(rank, stream):
                    moved = True
        if not self.alone:
            for s in range(rank.n_streams):
                if rank.streams[s].pending:
                    self.promise(rank, &rank.streams[s])
        rank.ended = rank.row == rank.n_rows
        for s in range(rank.n_streams):
            rank.ended += rank.streams[s].done == rank.streams[s].n_kernels
        if rank.ended > rank.n_streams:
            self.unfinished -= 1

    cdef bint run_cpu(self, Actors* rank) noexcept nogil:
        """Let the CPU go on until it needs an end; return whether it came further."""
        cdef int32_t row, i, kernel, first = rank.row
        cdef const Step* x
        cdef const Step* y
        cdef int64_t host, end, clock = rank.host
        cdef uint8_t binding
        for row in range(first, rank.n_rows):
            x = &rank.steps[row]
            host = clock + x.host
            binding = BY_HOST
            if x.opcode <= MEET:
                if x.queue >= 0:
                    if not ended(rank, x.queue):
                        y = &rank.steps[x.queue]
                        rank.need, rank.count = y.stream, y.index + 1
                        break
                    if rank.value[x.queue] > host:
                        host = rank.value[x.queue]
                        binding = BY_QUEUE
                    if self.backwards and rank.causes[x.queue] > rank.cause:
                        rank.cause = rank.causes[x.queue]
                rank.value[row] = host + x.launch
                if self.backwards:
                    rank.causes[row] = rank.cause
                clock = host + x.launch_cost
                if self.record:
                    self.binding_of[rank.first_row + row] = binding
                continue
            if x.opcode == JOIN:
                continue
            end = host
            if x.opcode != HOST:
                for i in range(x.first_wait, x.first_wait + x.n_waits):
                    if not ended(rank, rank.waits[i]):
                        break
                else:
                    i = -1
                if x.n_waits and i >= 0:
                    y = &rank.steps[rank.waits[i]]
                    rank.need, rank.count = y.stream, y.index + 1
                    break
                end = NEVER
                for i in range(x.n_waits):
                    kernel = rank.waits[x.first_wait + i]
                    if rank.value[kernel] > end:
                        end = rank.value[kernel]
                        binding = <uint8_t>(BY_WAIT + (i if i < LAST_WAIT else LAST_WAIT))
                    if self.backwards and rank.causes[kernel] > rank.cause:
                        rank.cause = rank.causes[kernel]
                if host > end:  # device before host where both are last
                    end = host
                    binding = BY_HOST
                end += x.launch_cost
            self.note(rank, row, clock, end, binding)
            clock = end
        else:
            row = rank.n_rows
        rank.row = row
        rank.host = clock
        return row > first

    cdef bint run_stream(self, Actors* rank, Stream* stream) noexcept nogil:
        """Let a stream go on until it needs something unknown; return whether it came further."""
        cdef bint moved = False
        cdef int32_t row
        stream.group = -1
        while stream.done < stream.n_kernels:
            row = stream.kernels[stream.done]
            if not stream.pending:
                if not self.begin_kernel(rank, stream, row):
                    break
                moved = True
            if stream.pending and not self.settle(rank, stream, row):
                break
            moved = True
            stream.pending = False
            stream.done += 1
            rank.value[row] = stream.end
            if self.backwards:
                rank.causes[row] = stream.cause
            if stream.end > rank.device:
                rank.device = stream.end
        return moved

    cdef inline bint begin_kernel(self, Actors* rank, Stream* stream, int32_t row) noexcept nogil:
        """Begin a kernel, and end it unless it is a communication; False if it cannot begin."""
        cdef const Step* x = &rank.steps[row]
        cdef const Step* y
        cdef const int32_t* waits = &rank.waits[x.first_wait]
        cdef int64_t begin, cause
        cdef int32_t i
        cdef uint8_t binding
        if rank.row <= row:
            stream.need, stream.count = CPU, row + 1
            return False
        for i in range(x.n_waits):
            y = &rank.steps[waits[i]]
            if rank.streams[y.stream].done <= y.index:
                stream.need, stream.count = y.stream, y.index + 1
                return False
        begin = stream.end
        binding = BY_STREAM if stream.done else BY_HOST
        for i in range(x.n_waits):
            if rank.value[waits[i]] > begin:
                begin = rank.value[waits[i]]
                binding = <uint8_t>(BY_WAIT + (i if i < LAST_WAIT else LAST_WAIT))
        if begin > NEVER:  # there is something on the device that it follows
            begin += x.gap
        if rank.value[row] > begin:
            begin = rank.value[row]
            binding = BY_HOST
        if self.backwards:
            cause = max(stream.cause, rank.causes[row])
            for i in range(x.n_waits):
                cause = max(cause, rank.causes[waits[i]])
            stream.cause = cause
        rank.value[row] = begin
        if x.opcode == KERNEL:
            stream.end = begin + rank.duration[row]
            self.note(rank, row, begin, stream.end, binding)
        else:
            stream.pending = True
            for i in range(row, row + x.n_rows):
                self.note(rank, i, begin, begin, binding)
                if stream.promised == 0:
                    self.post(rank, i, begin, stream.cause)
            if stream.promised:
                stream.promised -= 1
        return True

    cdef inline bint settle(self, Actors* rank, Stream* stream, int32_t row) noexcept nogil:
        """End a kernel of communications; False if one of them has no end yet."""
        cdef int64_t end = NEVER, cause = stream.cause, number, time
        cdef int32_t i
        cdef const Step* x
        cdef FlowGroup* group
        for i in range(row, row + rank.steps[row].n_rows):
            x = &rank.steps[i]
            if x.eager >= 0:
                time = rank.value[row] + rank.duration[i]
            else:
                number = rank.group[x.slot] + x.ordinal
                group = &self.group_of[number]
                if group.missing != RESOLVED:
                    stream.group = number
                    stream.next_waiter = group.waiter
                    group.waiter = <int32_t>(stream - self.streams)
                    return False
                time = end_of(rank, i, group)
                if group.end > cause:
                    cause = group.end
            if time > end:
                end = time
        stream.end = end
        stream.cause = cause
        return True

    cdef inline void note(
        self, Actors* rank, int32_t row, int64_t begin, int64_t end, uint8_t binding
    ) noexcept nogil:
        cdef int64_t at = rank.first_row + row
        if self.record:
            self.begin_of[at] = begin
            self.end_of[at] = end
            self.binding_of[at] |= binding

    # --- groups ---------------------------------------------------------------------------------

    cdef inline void post(
        self, Actors* rank, int32_t row, int64_t ready, int64_t cause
    ) noexcept nogil:
        """Tell the group of a communication that this rank is ready."""
        cdef const Step* x = &rank.steps[row]
        cdef int64_t number = rank.group[x.slot] + x.ordinal
        cdef FlowGroup* group = &self.group_of[number]
        cdef int32_t route = self.route_of(rank, row)
        if x.eager >= 0:
            rank.eager_ready[x.eager] = ready
        if route >= 0:
            group.route = route
            group.price = rank.price[row]
        merge(group, ready, rank.number, cause)
        group.missing -= 1
        if group.missing == 0:
            if rank.role[x.slot] == PEER or rank.role[x.slot] == MEMBER:
                self.tell(number)
            self.start_if_complete(number, rank.role[x.slot] != MEMBER)

    cdef void promise(self, Actors* rank, Stream* stream) noexcept nogil:
        """Promise what follows the communication that a stream is in."""
        cdef int64_t at = stream.done + stream.promised, ready, cause
        cdef int32_t row = stream.kernels[at], i, kernel
        cdef const Step* before = &rank.steps[row]
        cdef const Step* x
        if before.n_rows > 1 or before.eager >= 0 or self.route_of(rank, row) < 0:
            return
        for at in range(at + 1, stream.n_kernels):
            row = stream.kernels[at]
            x = &rank.steps[row]
            if x.slot != before.slot or x.ordinal != before.ordinal + 1:
                return
            if x.n_rows > 1 or x.eager >= 0 or self.route_of(rank, row) < 0 or rank.row <= row:
                return
            ready = rank.value[row]
            cause = rank.causes[row] if self.backwards else NEVER
            for i in range(x.first_wait, x.first_wait + x.n_waits):
                kernel = rank.waits[i]
                if not ended(rank, kernel):
                    return
                ready = max(ready, rank.value[kernel] + x.gap)
                if self.backwards:
                    cause = max(cause, rank.causes[kernel])
            merge_promise(
                &self.group_of[rank.group[x.slot] + x.ordinal], x.gap, rank.number)
            stream.promised += 1
            self.post(rank, row, ready, cause)
            before = x

    cdef inline int32_t route_of(self, const Actors* rank, int32_t row) noexcept nogil:
        """By which route a communication flows, or -1."""
        cdef int32_t price = rank.price[row], slot = rank.steps[row].slot, route
        if price >= 0:
            for route in range(rank.route[slot], rank.route[slot] + rank.n_routes[slot]):
                if self.route_pattern[route] == self.pattern[price]:
                    return route
        return -1

    cdef inline void start_if_complete(self, int64_t number, bint begins) noexcept nogil:
        """Resolve a group to which all have come, or let it flow if that is this core's task."""
        cdef FlowGroup* group = &self.group_of[number]
        cdef FlowGroup* before
        if group.missing != 0 or group.away != 0:
            return
        if begins and group.follow > NEVER:
            before = &self.group_of[number - 1]
            if before.missing != RESOLVED:
                return
            merge(group, before.end + group.follow, group.follower, before.end)
            group.follow = NEVER
        if group.route >= 0 and begins:
            group.missing = FLOWING
            self.expect(max(group.time + self.latency[group.price], group.end), number)
        else:
            self.resolve(number)

    cdef inline void resolve(self, int64_t number) noexcept nogil:
        """Wake those who wait for a group."""
        cdef FlowGroup* group = &self.group_of[number]
        cdef int32_t waiter = group.waiter, local
        group.missing = RESOLVED
        group.waiter = -1
        while waiter >= 0:
            local = self.streams[waiter].rank
            if not self.ranks[local].queued:
                self.ranks[local].queued = True
                self.ready[self.n_ready] = local
                self.n_ready += 1
            waiter = self.streams[waiter].next_waiter
        if group.owned:
            self.tell(number)

    cdef inline void tell(self, int64_t number) noexcept nogil:
        self.posted[self.n_posted] = number
        self.n_posted += 1

    # --- events ---------------------------------------------------------------------------------

    def next_event(self):
        """Return when the next arrival or end of a flow here is, the largest int64 if none is."""
        return self.next_time()

    def commit(self, int64_t until):
        """Let all events happen that are not later than `until`."""
        cdef int64_t time
        with nogil:
            time = self.next_time()
            while time <= until and time < INT64_MAX:
                self.happen(time)
                time = self.next_time()

    cdef inline int64_t next_time(self) noexcept nogil:
        cdef int64_t time = self.sharing.next_end()
        if self.n_arrivals and self.arrivals[0].key < time:
            return self.arrivals[0].key
        return time

    cdef void happen(self, int64_t time) noexcept nogil:
        """Let the events of one instant happen: first ends, then arrivals."""
        cdef int64_t slot, number
        cdef FlowGroup* group
        if time < self.time:
            Py_FatalError("mpisim: an event before one that has happened")
        self.time = time
        slot = self.sharing.pop_ended(time)
        while slot >= 0:
            number = self.flows[slot]
            self.spare[self.n_spare] = slot
            self.n_spare += 1
            self.group_of[number].end = time
            self.group_of[number].flow = -1
            self.resolve(number)
            if self.group_of[number + 1].follow > NEVER:
                self.start_if_complete(number + 1, True)
            self.n_events += 1
            slot = self.sharing.pop_ended(time)
        while self.n_arrivals and self.arrivals[0].key == time:
            number = self.arrivals[0].item
            take(self.arrivals, &self.n_arrivals)
            group = &self.group_of[number]
            if self.n_spare == 0:
                self.more_flows()
            self.n_spare -= 1
            slot = self.spare[self.n_spare]
            self.flows[slot] = number
            group.flow = <int32_t>slot
            self.sharing.begin(
                slot, group.route, time, self.volume[group.price], self.rate[group.price],
                group.route)
            self.n_events += 1
        self.sharing.solve(time)

    cdef void more_flows(self) noexcept nogil:
        """Make room for one more active flow or several."""
        cdef int64_t old = self.flows_room, room = max(2 * old, 64), slot
        self.flows = <int64_t*>resized(self.flows, room * sizeof(int64_t))
        self.spare = <int64_t*>resized(self.spare, room * sizeof(int64_t))
        for slot in range(room - 1, old - 1, -1):
            self.spare[self.n_spare] = slot
            self.n_spare += 1
        self.flows_room = room

    cdef void expect(self, int64_t time, int64_t number) noexcept nogil:
        """Put an arrival into the heap."""
        cdef int64_t at = self.n_arrivals, parent
        if at == self.arrivals_room:
            self.arrivals_room = max(2 * at, 64)
            self.arrivals = <Entry*>resized(self.arrivals, self.arrivals_room * sizeof(Entry))
        self.n_arrivals += 1
        while at:
            parent = (at - 1) // 2
            if self.arrivals[parent].key <= time:
                break
            self.arrivals[at] = self.arrivals[parent]
            at = parent
        self.arrivals[at].key = time
        self.arrivals[at].item = number

    # --- bounds ---------------------------------------------------------------------------------

    def horizon(self, int64_t earliest):
        """Return a time before which no flow can arrive that ranks here have still to post."""
        cdef int64_t horizon = INT64_MAX, i
        cdef FlowGroup* group
        with nogil:
            self.earliest = earliest
            self.n_horizons += 1
            self.n_touched = 0
            for i in range(self.n_ranks):
                if self.ranks[i].ended <= self.ranks[i].n_streams:
                    horizon = min(horizon, self.horizon_of(&self.ranks[i]))
            for i in range(self.n_touched):
                horizon = min(horizon, self.group_of[self.touched[i]].bound)
            for i in range(self.n_touched):
                self.group_of[self.touched[i]].bound = NEVER
        return horizon

    cdef int64_t horizon_of(self, Actors* rank) noexcept nogil:
        """Look at the next post of each stream; return what eager ones say."""
        cdef int64_t horizon = INT64_MAX, ready, number
        cdef int32_t s, row, first
        cdef const Step* x
        cdef Stream* stream
        cdef FlowGroup* group
        for s in range(rank.n_streams):
            stream = &rank.streams[s]
            self.find_front(rank, stream)
            if stream.front == stream.n_kernels:
                continue
            ready = self.begin_bound(rank, stream, stream.front)
            first = stream.kernels[stream.front]
            for row in range(first, first + rank.steps[first].n_rows):
                if self.route_of(rank, row) < 0:
                    continue
                x = &rank.steps[row]
                if x.eager >= 0:  # what follows does not wait for the end of this
                    horizon = min(horizon, ready)
                    continue
                number = rank.group[x.slot] + x.ordinal
                group = &self.group_of[number]
                group.bound = max(group.bound, ready + self.latency[rank.price[row]])
                if self.n_touched == self.touched_room:
                    self.touched_room = max(2 * self.touched_room, 256)
                    self.touched = <int64_t*>resized(
                        self.touched, self.touched_room * sizeof(int64_t))
                self.touched[self.n_touched] = number
                self.n_touched += 1
        return horizon

    cdef inline void find_front(self, Actors* rank, Stream* stream) noexcept nogil:
        """Find the first kernel of a stream that has not begun and may flow."""
        cdef int32_t row, first
        stream.front = max(stream.front, <int32_t>(stream.done + stream.pending + stream.promised))
        while stream.front < stream.n_kernels:
            first = stream.kernels[stream.front]
            if rank.steps[first].opcode == MEET:
                for row in range(first, first + rank.steps[first].n_rows):
                    if self.route_of(rank, row) >= 0:
                        return
            stream.front += 1

    cdef int64_t begin_bound(
        self, Actors* rank, Stream* stream, int32_t kernel
    ) noexcept nogil:
        """When a kernel of a stream, which has not begun, can begin at the earliest."""
        cdef int32_t row = stream.kernels[kernel], i
        cdef const Step* x = &rank.steps[row]
        cdef int64_t begin = rank.value[row], spent
        if rank.row <= row:
            begin = self.cpu_bound(rank) + rank.clock[row] - rank.clock[rank.row]
            begin += x.launch - x.launch_cost
        if kernel > stream.done:  # what comes before it
            spent = stream.spent[kernel] - stream.spent[stream.done] - stream.span[kernel]
            begin = max(begin, self.end_bound(rank, stream) + spent)
        elif kernel:
            begin = max(begin, stream.end + x.gap)
        for i in range(x.first_wait, x.first_wait + x.n_waits):
            begin = max(begin, self.kernel_bound(rank, rank.waits[i]) + x.gap)
        return begin if self.backwards else max(begin, self.earliest)

    cdef int64_t end_bound(self, Actors* rank, Stream* stream) noexcept nogil:
        """When the next kernel of a stream can end at the earliest."""
        cdef int64_t bound = NEVER
        cdef int32_t row = stream.kernels[stream.done], i
        if stream.horizon != self.n_horizons:
            if stream.pending:
                for i in range(row, row + rank.steps[row].n_rows):
                    bound = max(bound, self.group_bound(rank, i, row))
            else:
                bound = self.begin_bound(rank, stream, stream.done)
                bound += stream.span[stream.done]
            stream.bound = bound
            stream.horizon = self.n_horizons
        return stream.bound

    cdef int64_t group_bound(self, Actors* rank, int32_t row, int32_t kernel) noexcept nogil:
        """When a communication that this rank has posted can end at the earliest."""
        cdef const Step* x = &rank.steps[row]
        cdef int64_t duration = rank.duration[row], end
        cdef FlowGroup* group
        if x.eager >= 0:
            return rank.value[kernel] + duration
        group = &self.group_of[rank.group[x.slot] + x.ordinal]
        if group.missing == RESOLVED:
            return end_of(rank, row, group)
        end = group.time + duration
        if group.missing > 0 and not self.backwards:
            return max(end, self.earliest + duration)
        if self.route_of(rank, row) < 0:
            return end
        if group.flow >= 0:
            end = max(end, self.sharing.bound(group.flow, self.earliest))
        return max(end, self.earliest)

    cdef int64_t cpu_bound(self, Actors* rank) noexcept nogil:
        """When the CPU can have done the row that it has come to at the earliest."""
        cdef const Step* x = &rank.steps[rank.row]
        cdef int64_t bound = rank.host + x.host
        cdef int32_t i
        if rank.horizon != self.n_horizons:
            if x.opcode <= MEET:
                bound = max(bound, self.kernel_bound(rank, x.queue))
            else:
                for i in range(x.first_wait, x.first_wait + x.n_waits):
                    bound = max(bound, self.kernel_bound(rank, rank.waits[i]))
            rank.bound = bound + x.launch_cost
            rank.horizon = self.n_horizons
        return rank.bound

    cdef int64_t kernel_bound(self, Actors* rank, int32_t kernel) noexcept nogil:
        """When a kernel, told by its first row, ends, or can end at the earliest."""
        cdef const Step* x = &rank.steps[kernel]
        cdef Stream* stream = &rank.streams[x.stream]
        if stream.done > x.index:
            return rank.value[kernel]
        return self.end_bound(rank, stream) + stream.spent[x.index] - stream.spent[stream.done]

    # --- other processes ------------------------------------------------------------------------

    def outbox(self):
        """Return the groups to tell other processes about, and forget them."""
        cdef int64_t i
        groups = np.empty(self.n_posted, np.int64)
        cdef int64_t[::1] numbers = groups
        for i in range(self.n_posted):
            numbers[i] = self.posted[i]
        self.n_posted = 0
        return groups

    def deliver(
        self,
        const int64_t[::1] groups,
        const int64_t[::1] times,
        const int64_t[::1] lasts,
        const int64_t[::1] ends,
        const int64_t[::1] routes,
        const int64_t[::1] prices,
        const int64_t[::1] follows,
        const int64_t[::1] followers,
        *,
        const uint8_t[::1] owned,
    ):
        """Take in what other processes said about groups, and whether this one owns them."""
        cdef Py_ssize_t i
        cdef FlowGroup* group
        with nogil:
            for i in range(groups.shape[0]):
                group = &self.group_of[groups[i]]
                merge(group, times[i], <int32_t>lasts[i], ends[i])
                merge_promise(group, follows[i], <int32_t>followers[i])
                group.route = max(group.route, <int32_t>routes[i])
                group.price = max(group.price, <int32_t>prices[i])
                group.away -= 1
                self.start_if_complete(groups[i], owned[i])

    # --- what came out --------------------------------------------------------------------------

    def _stopped(self):
        from ..actors import stopped

        cdef int64_t i, s
        found = []
        for i in range(self.n_ranks):
            done = [self.ranks[i].streams[s].done for s in range(self.ranks[i].n_streams)]
            found.append(stopped(self.layout, i, self.ranks[i].row, done, self.groups["missing"]))
        return found

    def rows(self):
        """Return the row each hosted rank has come to, shape (h,)."""
        return np.array([row for row, _ in self._stopped()], np.int32)

    def blocked(self):
        """Return the group each hosted rank is blocked on, -1 if none, shape (h,)."""
        return np.array([group for _, group in self._stopped()], np.int64)

    def met(self, int64_t local):
        """When communications of a hosted rank began and ended, int64, shape (m,) each.

        In the order of its code's communications: from when the wire time ran (EAGER: the own ready
        time), and when this member ended.
        """
        found = padded(self.layout.codes[self.layout.code[local]].communications)
        cdef const Communication[::1] view = found
        cdef int64_t n = view.shape[0] - 1, j
        cdef int64_t[:, ::1] times
        array = np.empty((2, n), np.int64)
        times = array
        for j in range(n):
            self.times_of(&self.ranks[local], &view[j], &times[0, j], &times[1, j])
        return array[0], array[1]

    def last(self, int64_t local):
        """Which simulated rank was ready last, the lowest if several; int32, shape (m,)."""
        found = self.layout.codes[self.layout.code[local]].communications
        slots = self.layout.slot_group[self.layout.slot_index[local]:]
        last = self.groups["last"][slots[found["slot"]] + found["ordinal"]]
        return np.where(found["eager"] != 0, self.ranks[local].number, last).astype(np.int32)

    cdef inline void times_of(
        self, const Actors* rank, const Communication* x, int64_t* start, int64_t* end
    ) noexcept nogil:
        """When a communication began and ended for a rank."""
        cdef const FlowGroup* group
        if x.eager:
            start[0] = rank.eager_ready[rank.steps[x.row].eager]
            end[0] = start[0] + rank.duration[x.row]
        else:
            group = &self.group_of[rank.group[x.slot] + x.ordinal]
            start[0] = group.time
            end[0] = end_of(rank, x.row, group)

    def finish(self):
        """Complete what was recorded of communications; return ends of ranks and the hash sum."""
        from ..digest import END_LANES

        cdef int64_t[::1] wire = self.kept[2]
        cdef int64_t[::1] ends
        cdef const uint64_t[:, ::1] slot_hash = padded(self.layout.slot_hash)
        cdef const Communication[::1] found
        cdef const Communication* x
        cdef const int64_t[::1] slot_index = self.layout.slot_index
        cdef const int32_t[::1] code = self.layout.code
        cdef Actors* rank
        cdef int64_t i, j, at, start = 0, end = 0
        cdef const int64_t[::1] count = padded(self.layout.count)
        cdef uint64_t low, high, word
        cdef uint64_t low_seed = END_LANES[0], high_seed = END_LANES[1]
        ends_array = np.zeros(self.n_ranks, np.int64)
        ends = ends_array
        total = 0
        tables = [padded(c.communications) for c in self.layout.codes]
        if self.record:
            self.wire[:] = self.begin
        for i in range(self.n_ranks):
            rank = &self.ranks[i]
            found = tables[code[i]]
            low = high = 0
            with nogil:
                for j in range(found.shape[0] - 1):
                    x = &found[j]
                    self.times_of(rank, x, &start, &end)
                    if self.record:
                        wire[rank.first_row + x.row] = start
                        self.end_of[rank.first_row + x.row] = end
                    at = slot_index[i] + x.slot
                    word = mix(mix((x.low + slot_hash[at, 0]) ^ <uint64_t>start) ^ <uint64_t>end)
                    low += word
                    high += low < word
                    high += mix(mix((x.high + slot_hash[at, 1]) ^ <uint64_t>start) ^ <uint64_t>end)
                ends[i] = max(rank.host, rank.device)
                word = mix(<uint64_t>ends[i] ^ low_seed)
                low += word
                high += low < word
                high += mix(<uint64_t>ends[i] ^ high_seed)
            total += count[i] * (int(low) + (int(high) << 64))
        return ends_array, total % (1 << 128)


cdef inline int64_t end_of(
    const Actors* rank, int32_t row, const FlowGroup* group
) noexcept nogil:
    """When a communication ends for a rank that does not go ahead."""
    if group.route >= 0 and rank.price[row] >= 0:
        return group.end
    return group.time + rank.duration[row]


cdef inline void merge(
    FlowGroup* group, int64_t ready, int32_t last, int64_t cause
) noexcept nogil:
    if ready > group.time or (ready == group.time and last < group.last):
        group.time = ready
        group.last = last
    if cause > group.end:
        group.end = cause


cdef inline void merge_promise(FlowGroup* group, int64_t gap, int32_t last) noexcept nogil:
    if gap > group.follow or (gap == group.follow and last < group.follower):
        group.follow = gap
        group.follower = last


cdef void* allocated(size_t n, size_t size) except NULL:
    cdef void* memory = calloc(n + 1, size)
    if memory is NULL:
        raise MemoryError(f"no memory for {n} times {size} bytes")
    return memory


cdef inline void* resized(void* memory, size_t size) noexcept nogil:
    memory = realloc(memory, size)
    if memory is NULL:
        Py_FatalError("mpisim: no memory for more flows that share links")
    return memory


cdef offsets(counts):
    """Return where each of several consecutive parts begins, and the total."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


cdef padded(array):
    """Return a copy with one more element, so that the first has an address."""
    return np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])
