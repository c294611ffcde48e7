# What other compiled modules see of communications and the events of flows: see events.pyx.

cimport cython
from libc.stdint cimport int32_t, int64_t

from .contended_state cimport Communication
from .heap cimport Entry
from .rank_states cimport RankStates
from .sharing cimport Sharing


@cython.final
cdef class Events:
    cdef Communication* state
    cdef RankStates ranks
    cdef Sharing sharing
    cdef int64_t* outgoing
    cdef Entry* arrivals
    cdef int64_t* flows  # of each number of a flow, the communication
    cdef int64_t* spare  # numbers of flows that are not in use
    cdef const int64_t* latency
    cdef const int64_t* volume
    cdef const int64_t* rate
    cdef int64_t n, n_arrivals, arrivals_room, flows_room, n_spare, time
    cdef object references
    cdef readonly int64_t n_outgoing, n_events
    cdef readonly object communications

    cdef void start_if_complete(self, int64_t number, bint owned) noexcept nogil
    cdef void resolve(self, int64_t number) noexcept nogil
    cdef void notify(self, int64_t number) noexcept nogil
    cdef int64_t next_time(self) noexcept nogil
    cdef void process(self, int64_t time) noexcept nogil
    cdef void grow_flows(self) noexcept nogil
    cdef void push_arrival(self, int64_t time, int64_t number) noexcept nogil
