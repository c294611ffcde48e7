# What other compiled modules see of the bounds of a contended core: see bounds.pyx.

cimport cython
from libc.stdint cimport int32_t, int64_t

from .contended cimport Actors, Stream
from .crew cimport Crew
from .meetings cimport Meetings


@cython.final
cdef class Bounds:
    cdef Crew crew
    cdef Meetings meetings
    cdef int64_t* touched
    cdef int64_t n_touched, touched_room, n_horizons, earliest

    cdef int64_t horizon_of(self, Actors* rank) noexcept nogil
    cdef void touch(self, int64_t number, int64_t bound) noexcept nogil
    cdef void find_front(self, Actors* rank, Stream* stream) noexcept nogil
    cdef int64_t begin_bound(self, Actors* rank, Stream* stream, int64_t kernel) noexcept nogil
    cdef int64_t end_bound(self, Actors* rank, Stream* stream) noexcept nogil
    cdef int64_t group_bound(self, Actors* rank, int32_t row, int32_t kernel) noexcept nogil
    cdef int64_t cpu_bound(self, Actors* rank) noexcept nogil
    cdef int64_t kernel_bound(self, Actors* rank, int32_t kernel) noexcept nogil
