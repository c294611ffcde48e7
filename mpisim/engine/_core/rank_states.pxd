# What other compiled modules see of the ranks of a contended core: see rank_states.pyx.

cimport cython
from libc.stdint cimport int32_t, int64_t

from .contended_state cimport RankState, StreamState


@cython.final
cdef class RankStates:
    cdef RankState* state
    cdef StreamState* streams
    cdef int32_t* ready  # a stack of ranks that may be able to move
    cdef int64_t n, n_ready
    cdef const int64_t* pattern  # of prices, and of routes
    cdef const int64_t* route_pattern
    cdef bint backwards
    cdef object references

    cdef void wake(self, int32_t stream) noexcept nogil
    cdef int32_t route_of(self, const RankState* rank, int32_t row) noexcept nogil
    cdef void make_room(self, RankState* rank) noexcept nogil
