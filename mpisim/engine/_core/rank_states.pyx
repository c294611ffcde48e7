# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The hosted ranks of a contended core: their state, and the times of their recent rows.

`times` of a rank holds when each row was launched and, once its kernel has ended, when. Reading far
back is rare, so only recent rows have their times in a ring; kernels that some row reads from more
than `near` rows back have a place of their own (`keep`).

Invariant of the ring. Let `first` be the lowest row that a CPU or a stream of the rank has still to
execute. A row reads at most `near` rows back, so rows below ``first - near`` are read by nobody.
The ring has room for all rows from there to the CPU's: whenever the CPU comes to row `limit`,
`make_room` moves `limit` up, doubling the ring where a stream is held up so far behind that it has
to. Its size is a power of two, and row r lies at ``r & mask``.

Callers are trusted: no index is checked.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from .common cimport NO_TIME, Instruction, StreamEntry
from .contended_state cimport CPU, RankState, StreamState, Times, bit_of
from .memory cimport Py_FatalError, allocated

from .memory import offsets, padded

cdef enum:
    INITIAL_LEAD = 512  # rows that a CPU may at first be ahead of its streams


@cython.final
cdef class RankStates:
    """State of the hosted ranks before anything has run.

    Parameters
    ----------
    core_input : mpisim.engine.core_input.CoreInput
        With flows.
    """

    def __cinit__(self, core_input):
        cdef int64_t n = len(core_input.numbers), i
        flows = core_input.flows
        self.n = self.n_ready = n
        self.backwards = flows.backwards
        n_eager = np.array([one.n_eager for one in core_input.lowered], np.int64)
        n_streams = np.array([view.n_streams for view in flows.views], np.int64)
        stream_index = offsets(n_streams[core_input.table])
        self.state = <RankState*>allocated(n, sizeof(RankState))
        self.streams = <StreamState*>allocated(stream_index[n], sizeof(StreamState))
        self.ready = <int32_t*>allocated(n, sizeof(int32_t))
        cdef const int64_t[::1] pattern = padded(flows.pattern)
        cdef const int64_t[::1] route_pattern = padded(flows.routes.pattern)
        self.pattern, self.route_pattern = &pattern[0], &route_pattern[0]
        self.references = [pattern, route_pattern]
        self._bind(core_input, stream_index, offsets(n_eager[core_input.table]))
        self._make_streams(core_input)
        for i in range(n):
            self.ready[n - 1 - i] = <int32_t>i  # a stack: the lowest rank first

    def __dealloc__(self):
        cdef int64_t i
        if self.state is not NULL:
            for i in range(self.n):
                free(self.state[i].times.recent)
                free(self.state[i].times.kept)
                free(self.state[i].causes.recent)
                free(self.state[i].causes.kept)
        free(self.state)
        free(self.streams)
        free(self.ready)

    def _bind(self, core_input, const int64_t[::1] stream_index, const int64_t[::1] eager_index):
        """Point every rank to its part of each array."""
        cdef const Instruction[::1] instructions
        cdef const StreamEntry[::1] entries
        cdef const int64_t[::1] duration, clock
        cdef const int32_t[::1] price, waits
        cdef int64_t[::1] eager
        flows = core_input.flows
        cdef const int64_t[::1] first = padded(core_input.slot_first)
        cdef const uint8_t[::1] role = padded(core_input.slot_role)
        cdef const int32_t[::1] route = padded(flows.slot_route)
        cdef const int32_t[::1] n_routes = padded(flows.slot_n_routes)
        cdef const int64_t[::1] slot_index = core_input.slot_index
        cdef const int64_t[::1] start = core_input.start
        cdef const int32_t[::1] numbers = core_input.numbers
        cdef const int32_t[::1] table = core_input.table
        cdef const int32_t[::1] number = core_input.duration
        cdef int64_t i
        cdef RankState* rank
        tables = [
            (
                padded(lowered.instructions), padded(view.entries), padded(view.waits),
                padded(view.clock), len(view.entries), view.near,
            )
            for lowered, view in zip(core_input.lowered, flows.views)
        ]
        durations = [padded(one) for one in core_input.durations]
        prices = [padded(one) for one in flows.prices]
        eager_array = np.zeros(eager_index[self.n] + 1, np.int64)
        eager = eager_array
        self.references.extend(
            [tables, durations, prices, first, role, route, n_routes, eager_array])
        for i in range(self.n):
            rank = &self.state[i]
            instructions, entries, waits, clock, rank.n_rows, rank.near = tables[table[i]]
            duration = durations[number[i]]
            price = prices[number[i]]
            rank.instructions, rank.entries = &instructions[0], &entries[0]
            rank.waits, rank.clock = &waits[0], &clock[0]
            rank.duration, rank.price = &duration[0], &price[0]
            rank.first, rank.role = &first[slot_index[i]], &role[slot_index[i]]
            rank.route, rank.n_routes = &route[slot_index[i]], &n_routes[slot_index[i]]
            rank.eager_ready = &eager[eager_index[i]]
            rank.number = numbers[i]
            rank.host = rank.device = start[i]
            rank.cause = NO_TIME
            rank.need, rank.wanted = CPU, INT32_MAX
            rank.queued = True
            rank.ready = ~<unsigned long long>0
            rank.streams = &self.streams[stream_index[i]]
            rank.n_streams = <int32_t>(stream_index[i + 1] - stream_index[i])
            rank.left = 1 + rank.n_streams

    def _make_streams(self, core_input):
        """Give every rank its streams, and room for times."""
        cdef const int64_t[::1] kernel_index
        cdef const int64_t[:, ::1] span
        cdef const int32_t[::1] kernels
        cdef const int32_t[::1] table = core_input.table, number = core_input.duration
        cdef int64_t i, s, n_kept, room
        cdef RankState* rank
        cdef StreamState* stream
        flows = core_input.flows
        views = [(padded(x.kernels), x.kernel_index, x.n_kept) for x in flows.views]
        spans = [np.pad(one, ((0, 0), (0, 1))) for one in flows.spans]
        self.references.extend([views, spans])
        for i in range(self.n):
            rank = &self.state[i]
            kernels, kernel_index, n_kept = views[table[i]]
            if spans:
                span = spans[number[i]]
            for s in range(rank.n_streams):
                stream = &rank.streams[s]
                stream.kernels = &kernels[kernel_index[s]]
                stream.n_kernels = <int32_t>(kernel_index[s + 1] - kernel_index[s])
                stream.end = stream.cause = NO_TIME
                stream.communication = -1
                stream.need, stream.wanted = CPU, INT32_MAX
                stream.rank = <int32_t>i
                if spans:
                    stream.span = &span[0, kernel_index[s]]
                    stream.spent = &span[1, kernel_index[s]]
            room = 1
            while room < min(rank.n_rows, rank.near + INITIAL_LEAD):
                room *= 2
            rank.limit = <int32_t>min(room, rank.n_rows)
            allocate_times(&rank.times, room, n_kept)
            if self.backwards:
                allocate_times(&rank.causes, room, n_kept)

    cdef void wake(self, int32_t stream) noexcept nogil:
        """Let a stream, and its rank, look whether they can go on."""
        cdef int32_t local = self.streams[stream].rank
        cdef RankState* rank = &self.state[local]
        rank.ready |= bit_of(<int32_t>(&self.streams[stream] - rank.streams))
        if not rank.queued:
            rank.queued = True
            self.ready[self.n_ready] = local
            self.n_ready += 1

    cdef int32_t route_of(self, const RankState* rank, int32_t row) noexcept nogil:
        """By which route a communication flows, or -1."""
        cdef int32_t price = rank.price[row], slot = rank.instructions[row].slot, route
        if price >= 0:
            for route in range(rank.route[slot], rank.route[slot] + rank.n_routes[slot]):
                if self.route_pattern[route] == self.pattern[price]:
                    return route
        return -1

    cdef void make_room(self, RankState* rank) noexcept nogil:
        """Make room for the row that a CPU has come to, over rows that nobody reads any more."""
        cdef int64_t room = rank.times.mask + 1, first = rank.row
        cdef int32_t s
        cdef StreamState* stream
        for s in range(rank.n_streams):
            stream = &rank.streams[s]
            if stream.done < stream.n_kernels and stream.kernels[stream.done] < first:
                first = stream.kernels[stream.done]
        first = max(first - rank.near, 0)
        while rank.row - first >= room:
            room *= 2
        if room > rank.times.mask + 1:
            grow_ring(&rank.times, room, first, rank.row)
            if self.backwards:
                grow_ring(&rank.causes, room, first, rank.row)
        rank.limit = <int32_t>min(first + room, rank.n_rows)


cdef int allocate_times(Times* times, int64_t room, int64_t n_kept) except -1:
    """Give a rank, which has none, room for times."""
    times.recent = <int64_t*>allocated(room, sizeof(int64_t))
    times.kept = <int64_t*>allocated(n_kept, sizeof(int64_t))
    times.mask = room - 1
    return 0


cdef void grow_ring(Times* times, int64_t room, int64_t first, int64_t end) noexcept nogil:
    """Move the times of some rows to a larger ring."""
    cdef int64_t row
    cdef int64_t* recent = <int64_t*>malloc(room * sizeof(int64_t))
    if recent is NULL:
        Py_FatalError("mpisim: no memory for the times of rows")
    for row in range(first, end):
        recent[row & (room - 1)] = times.recent[row & times.mask]
    free(times.recent)
    times.recent = recent
    times.mask = room - 1
