# What other compiled modules see of groups and the flows that they become: see meetings.pyx.

cimport cython
from libc.stdint cimport int32_t, int64_t

from .contended cimport FlowGroup
from .crew cimport Crew
from .heap cimport Entry
from .sharing cimport Sharing


@cython.final
cdef class Meetings:
    cdef FlowGroup* group_of
    cdef Crew crew
    cdef Sharing sharing
    cdef int64_t* posted
    cdef Entry* arrivals
    cdef int64_t* flows  # of each slot, the group
    cdef int64_t* spare  # slots
    cdef const int64_t* latency
    cdef const int64_t* volume
    cdef const int64_t* rate
    cdef int64_t n_groups, n_arrivals, arrivals_room, flows_room, n_spare, time
    cdef object kept
    cdef readonly int64_t n_posted, n_events
    cdef readonly object groups

    cdef void start_if_complete(self, int64_t number, bint begins) noexcept nogil
    cdef void resolve(self, int64_t number) noexcept nogil
    cdef void tell(self, int64_t number) noexcept nogil
    cdef int64_t next_time(self) noexcept nogil
    cdef void happen(self, int64_t time) noexcept nogil
    cdef void more_flows(self) noexcept nogil
    cdef void expect(self, int64_t time, int64_t number) noexcept nogil
