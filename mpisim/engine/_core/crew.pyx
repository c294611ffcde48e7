# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The ranks of a contended core, and what they remember.

A rank remembers when each of its last rows was launched, and when it ended, in a ring: the CPU is
seldom far ahead of the streams. What is read from further back has a place of its own. Where a
stream is held up for long, the ring of its rank grows.
"""

import numpy as np

cimport cython
from cpython.exc cimport PyErr_NoMemory
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from .contended cimport CPU, Actors, Step, Stream, Times, bit_of

cdef extern from "Python.h":
    void Py_FatalError(const char* message) noexcept nogil

cdef enum:
    AHEAD = 512  # rows that a CPU may at first be ahead of its streams


@cython.final
cdef class Crew:
    """The hosted ranks of a layout."""

    def __cinit__(self, layout):
        cdef int64_t n = len(layout.numbers), i
        traffic = layout.traffic
        self.n = self.n_ready = n
        self.backwards = traffic.backwards
        n_eager = np.array([code.n_eager for code in layout.codes], np.int64)[layout.code]
        n_streams = np.array([script.n_streams for script in traffic.scripts], np.int64)
        stream_index = offsets(n_streams[layout.code])
        self.ranks = <Actors*>allocated(n, sizeof(Actors))
        self.streams = <Stream*>allocated(stream_index[n], sizeof(Stream))
        self.ready = <int32_t*>allocated(n, sizeof(int32_t))
        cdef const int64_t[::1] pattern = padded(traffic.pattern)
        cdef const int64_t[::1] route_pattern = padded(traffic.routes.pattern)
        self.pattern, self.route_pattern = &pattern[0], &route_pattern[0]
        self.kept = [pattern, route_pattern]
        self._bind(layout, stream_index, offsets(n_eager))
        self._equip(layout)
        for i in range(n):
            self.ready[n - 1 - i] = <int32_t>i  # a stack: the lowest rank first

    def __dealloc__(self):
        cdef int64_t i
        if self.ranks is not NULL:
            for i in range(self.n):
                free(self.ranks[i].value.recent)
                free(self.ranks[i].value.kept)
                free(self.ranks[i].causes.recent)
                free(self.ranks[i].causes.kept)
        free(self.ranks)
        free(self.streams)
        free(self.ready)

    def _bind(self, layout, const int64_t[::1] stream_index, const int64_t[::1] eager_index):
        """Point every rank to its part of each array."""
        cdef const Step[::1] steps
        cdef const int64_t[::1] duration, clock
        cdef const int32_t[::1] price, waits
        cdef int64_t[::1] eager
        traffic = layout.traffic
        cdef const int64_t[::1] group = padded(layout.slot_group)
        cdef const uint8_t[::1] role = padded(layout.slot_role)
        cdef const int32_t[::1] route = padded(traffic.slot_route)
        cdef const int32_t[::1] n_routes = padded(traffic.slot_n_routes)
        cdef const int64_t[::1] slot_index = layout.slot_index
        cdef const int64_t[::1] start = layout.start
        cdef const int32_t[::1] numbers = layout.numbers
        cdef const int32_t[::1] code = layout.code
        cdef const int32_t[::1] number = layout.duration
        cdef int64_t i
        cdef Actors* rank
        scripts = [
            (padded(x.steps), padded(x.waits), padded(x.clock), len(x.steps), x.near)
            for x in traffic.scripts
        ]
        durations = [padded(d) for d in layout.durations]
        prices = [padded(p) for p in traffic.prices]
        eager_array = np.zeros(eager_index[self.n] + 1, np.int64)
        eager = eager_array
        self.kept.extend([scripts, durations, prices, group, role, route, n_routes, eager_array])
        for i in range(self.n):
            rank = &self.ranks[i]
            steps, waits, clock, rank.n_rows, rank.near = scripts[code[i]]
            duration = durations[number[i]]
            price = prices[number[i]]
            rank.steps, rank.waits, rank.clock = &steps[0], &waits[0], &clock[0]
            rank.duration, rank.price = &duration[0], &price[0]
            rank.group, rank.role = &group[slot_index[i]], &role[slot_index[i]]
            rank.route, rank.n_routes = &route[slot_index[i]], &n_routes[slot_index[i]]
            rank.eager_ready = &eager[eager_index[i]]
            rank.number = numbers[i]
            rank.host = rank.device = start[i]
            rank.cause = INT64_MIN
            rank.need, rank.wanted = CPU, INT32_MAX
            rank.queued = True
            rank.ready = ~<unsigned long long>0
            rank.streams = &self.streams[stream_index[i]]
            rank.n_streams = <int32_t>(stream_index[i + 1] - stream_index[i])
            rank.left = 1 + rank.n_streams

    def _equip(self, layout):
        """Give every rank its streams, and room for times."""
        cdef const int64_t[::1] kernel_index
        cdef const int64_t[:, ::1] span
        cdef const int32_t[::1] kernels
        cdef const int32_t[::1] code = layout.code, number = layout.duration
        cdef int64_t i, s, n_kept, room
        cdef Actors* rank
        cdef Stream* stream
        traffic = layout.traffic
        scripts = [(padded(x.kernels), x.kernel_index, x.n_kept) for x in traffic.scripts]
        spans = [np.pad(one, ((0, 0), (0, 1))) for one in traffic.spans]
        self.kept.extend([scripts, spans])
        for i in range(self.n):
            rank = &self.ranks[i]
            kernels, kernel_index, n_kept = scripts[code[i]]
            if spans:
                span = spans[number[i]]
            for s in range(rank.n_streams):
                stream = &rank.streams[s]
                stream.kernels = &kernels[kernel_index[s]]
                stream.n_kernels = <int32_t>(kernel_index[s + 1] - kernel_index[s])
                stream.end = stream.cause = INT64_MIN
                stream.group = -1
                stream.need, stream.wanted = CPU, INT32_MAX
                stream.rank = <int32_t>i
                if spans:
                    stream.span = &span[0, kernel_index[s]]
                    stream.spent = &span[1, kernel_index[s]]
            room = 1
            while room < min(rank.n_rows, rank.near + AHEAD):
                room *= 2
            rank.limit = <int32_t>min(room, rank.n_rows)
            equip(&rank.value, room, n_kept)
            if self.backwards:
                equip(&rank.causes, room, n_kept)

    cdef void wake(self, int32_t stream) noexcept nogil:
        """Let a stream, and its rank, look whether they can go on."""
        cdef int32_t local = self.streams[stream].rank
        cdef Actors* rank = &self.ranks[local]
        rank.ready |= bit_of(<int32_t>(&self.streams[stream] - rank.streams))
        if not rank.queued:
            rank.queued = True
            self.ready[self.n_ready] = local
            self.n_ready += 1

    cdef int32_t route_of(self, const Actors* rank, int32_t row) noexcept nogil:
        """By which route a communication flows, or -1."""
        cdef int32_t price = rank.price[row], slot = rank.steps[row].slot, route
        if price >= 0:
            for route in range(rank.route[slot], rank.route[slot] + rank.n_routes[slot]):
                if self.route_pattern[route] == self.pattern[price]:
                    return route
        return -1

    cdef void remember(self, Actors* rank) noexcept nogil:
        """Make room for the row that a CPU has come to: rows that nobody reads are forgotten."""
        cdef int64_t room = rank.value.mask + 1, first = rank.row
        cdef int32_t s
        cdef Stream* stream
        for s in range(rank.n_streams):
            stream = &rank.streams[s]
            if stream.done < stream.n_kernels and stream.kernels[stream.done] < first:
                first = stream.kernels[stream.done]
        first = max(first - rank.near, 0)
        while rank.row - first >= room:
            room *= 2
        if room > rank.value.mask + 1:
            grow(&rank.value, room, first, rank.row)
            if self.backwards:
                grow(&rank.causes, room, first, rank.row)
        rank.limit = <int32_t>min(first + room, rank.n_rows)


cdef int equip(Times* times, int64_t room, int64_t n_kept) except -1:
    """Give a rank, which has none, room for times."""
    times.recent = <int64_t*>allocated(room, sizeof(int64_t))
    times.kept = <int64_t*>allocated(n_kept, sizeof(int64_t))
    times.mask = room - 1
    return 0


cdef void grow(Times* times, int64_t room, int64_t first, int64_t end) noexcept nogil:
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


cdef void* allocated(int64_t n, size_t size) except NULL:
    cdef void* memory = calloc(n + 1, size)
    if memory is NULL:
        PyErr_NoMemory()
    return memory


cdef offsets(counts):
    """Return where each of several consecutive parts begins, and the total."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


cdef padded(array):
    """Return the array, or one element if it has none, so that the first has an address."""
    if not len(array):
        array = np.zeros((1, *array.shape[1:]), array.dtype)
    return np.ascontiguousarray(array)
