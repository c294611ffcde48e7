# What other compiled modules see of the lookahead of a contended core: see lookahead.pyx.

cimport cython
from libc.stdint cimport int32_t, int64_t

from .contended_state cimport RankState, StreamState
from .events cimport Events
from .rank_states cimport RankStates


@cython.final
cdef class Lookahead:
    cdef RankStates ranks
    cdef Events events
    cdef int64_t* touched
    cdef int64_t n_touched, touched_room, round, earliest

    cdef int64_t next_posts(self, RankState* rank) noexcept nogil
    cdef void note_member(self, int64_t number, int64_t bound) noexcept nogil
    cdef void find_front(self, RankState* rank, StreamState* stream) noexcept nogil
    cdef int64_t begin_bound(
        self, RankState* rank, StreamState* stream, int64_t kernel) noexcept nogil
    cdef int64_t end_bound(self, RankState* rank, StreamState* stream) noexcept nogil
    cdef int64_t post_bound(self, RankState* rank, int32_t row, int32_t kernel) noexcept nogil
    cdef int64_t cpu_bound(self, RankState* rank) noexcept nogil
    cdef int64_t kernel_bound(self, RankState* rank, int32_t kernel) noexcept nogil
