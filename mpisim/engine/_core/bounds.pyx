# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""When the flows that ranks have still to post can arrive at the earliest."""

cimport cython
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t
from libc.stdlib cimport free, realloc

from .contended cimport (
    RESOLVED, Actors, FlowGroup, Step, Stream, at_row, end_in, ended_at,
)
from .crew cimport Crew
from .meetings cimport Meetings
from .state cimport MEET

cdef extern from "Python.h":
    void Py_FatalError(const char* message) noexcept nogil

cdef int64_t NEVER = INT64_MIN


@cython.final
cdef class Bounds:
    """Bounds on what ranks and groups do next: see `bounds_twin`."""

    def __cinit__(self, Crew crew, Meetings meetings):
        self.crew = crew
        self.meetings = meetings

    def __dealloc__(self):
        free(self.touched)

    def horizon(self, int64_t earliest):
        """Return a time before which no flow can arrive that ranks here have still to post."""
        cdef int64_t horizon = INT64_MAX, i
        cdef Crew crew = self.crew
        cdef FlowGroup* groups = self.meetings.group_of
        with nogil:
            self.earliest = earliest
            self.n_horizons += 1
            self.n_touched = 0
            for i in range(crew.n):
                if crew.ranks[i].left:
                    horizon = min(horizon, self.horizon_of(&crew.ranks[i]))
            for i in range(self.n_touched):
                horizon = min(horizon, groups[self.touched[i]].bound)
            for i in range(self.n_touched):
                groups[self.touched[i]].bound = NEVER
        return horizon

    cdef int64_t horizon_of(self, Actors* rank) noexcept nogil:
        """Look at the next post of each stream; return what eager ones say."""
        cdef int64_t horizon = INT64_MAX, ready, number
        cdef int32_t s, row, first
        cdef const Step* x
        cdef Stream* stream
        for s in range(rank.n_streams):
            stream = &rank.streams[s]
            self.find_front(rank, stream)
            if stream.front == stream.n_kernels:
                continue
            ready = self.begin_bound(rank, stream, stream.front)
            first = stream.kernels[stream.front]
            for row in range(first, first + rank.steps[first].n_rows):
                if self.crew.route_of(rank, row) < 0:
                    continue
                x = &rank.steps[row]
                if x.eager >= 0:  # what follows does not wait for the end of this
                    horizon = min(horizon, ready)
                    continue
                number = rank.group[x.slot] + x.ordinal
                self.touch(number, ready + self.meetings.latency[rank.price[row]])
        return horizon

    cdef void touch(self, int64_t number, int64_t bound) noexcept nogil:
        """Note when a member can be ready for a group: that waits for the last of them."""
        cdef FlowGroup* group = &self.meetings.group_of[number]
        if self.n_touched == self.touched_room:
            self.touched_room = max(2 * self.touched_room, 256)
            self.touched = <int64_t*>realloc(
                self.touched, self.touched_room * sizeof(int64_t))
            if self.touched is NULL:
                Py_FatalError("mpisim: no memory for more groups that share links")
        self.touched[self.n_touched] = number
        self.n_touched += 1
        group.bound = max(group.bound, bound)

    cdef void find_front(self, Actors* rank, Stream* stream) noexcept nogil:
        """Find the first kernel of a stream that has not begun and may flow."""
        cdef int32_t row, first
        stream.front = max(stream.front, stream.done + stream.pending + stream.promised)
        while stream.front < stream.n_kernels:
            first = stream.kernels[stream.front]
            if rank.steps[first].opcode == MEET:
                for row in range(first, first + rank.steps[first].n_rows):
                    if self.crew.route_of(rank, row) >= 0:
                        return
            stream.front += 1

    cdef int64_t begin_bound(self, Actors* rank, Stream* stream, int64_t kernel) noexcept nogil:
        """When a kernel of a stream, which has not begun, can begin at the earliest."""
        cdef int32_t row = stream.kernels[kernel], i
        cdef const Step* x = &rank.steps[row]
        cdef int64_t begin = at_row(&rank.value, row)[0], spent
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
        return begin if self.crew.backwards else max(begin, self.earliest)

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
            return at_row(&rank.value, kernel)[0] + duration
        group = &self.meetings.group_of[rank.group[x.slot] + x.ordinal]
        if group.missing == RESOLVED:
            return ended_at(rank, row, group)
        end = group.time + duration
        if group.missing > 0 and not self.crew.backwards:
            return max(end, self.earliest + duration)
        if self.crew.route_of(rank, row) < 0:
            return end
        if group.flow >= 0:
            end = max(end, self.meetings.sharing.bound(group.flow, self.earliest))
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
            return end_in(&rank.value, rank.steps, kernel)
        return self.end_bound(rank, stream) + stream.spent[x.index] - stream.spent[stream.done]
