# What other compiled modules see of the ranks of a contended core: see crew.pyx.

cimport cython
from libc.stdint cimport int32_t, int64_t

from .contended cimport Actors, Stream


@cython.final
cdef class Crew:
    cdef Actors* ranks
    cdef Stream* streams
    cdef int32_t* ready  # a stack of ranks that may be able to move
    cdef int64_t n, n_ready
    cdef const int64_t* pattern  # of prices, and of routes
    cdef const int64_t* route_pattern
    cdef bint backwards
    cdef object kept

    cdef void wake(self, int32_t stream) noexcept nogil
    cdef int32_t route_of(self, const Actors* rank, int32_t row) noexcept nogil
    cdef void remember(self, Actors* rank) noexcept nogil
