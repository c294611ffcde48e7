# The digest of a run of tiles: see tile_digest.pyx.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .common cimport CommunicationRow
from .tile_state cimport EngineState, Tile


cdef struct Part:  # what the digest takes from a table with some durations, slot by slot
    const uint64_t* low
    const uint64_t* high
    const uint64_t* counted
    const int64_t* duration
    const uint8_t* looked_up  # which of these times are; NULL where no links are shared
    const int64_t* first  # of each slot
    const CommunicationRow* eager


cdef class TileDigest:
    cdef Part* parts
    cdef object references
    cdef const uint64_t[:, ::1] sizes
    cdef const uint64_t[::1] seeds
    cdef const int64_t[::1] slot_index, count
    cdef const int32_t[::1] kind
    cdef int64_t[::1] taken  # scratch: how long the communications of a slot take

    cdef void add(self, const EngineState* engine, const Tile* tile, uint64_t* total) noexcept nogil
    cdef void add_slot(
        self, const EngineState* engine, const Tile* tile, int32_t s, uint64_t* total
    ) noexcept nogil
    cdef void add_eager(self, const Tile* tile, uint64_t* total) noexcept nogil
