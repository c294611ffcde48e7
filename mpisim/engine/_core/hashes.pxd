# Hashes of what a run found: see hashes.pyx.

from libc.stdint cimport int32_t, int64_t, uint64_t

from .state cimport Communication
from .tiles cimport Machine, Tile


cdef struct Part:  # what the digest takes from a table with some durations, slot by slot
    const uint64_t* low
    const uint64_t* high
    const uint64_t* counted
    const int64_t* duration
    const int64_t* first  # of each slot
    const Communication* eager


cdef class Hashes:
    cdef Part* parts
    cdef object kept
    cdef const uint64_t[:, ::1] sizes
    cdef const uint64_t[::1] seeds
    cdef const int64_t[::1] slot_index, count
    cdef const int32_t[::1] duration

    cdef void add(self, const Machine* machine, const Tile* tile, uint64_t* total) noexcept nogil
    cdef void add_slot(
        self, const Machine* machine, const Tile* tile, int32_t s, uint64_t* total
    ) noexcept nogil
    cdef void add_eager(self, const Tile* tile, uint64_t* total) noexcept nogil
