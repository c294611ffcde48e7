# State of the tiled core: what lanes.h and the headers it includes offer.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .common cimport Instruction

cdef extern from "lanes.h":
    const int OUTSIDE, COLUMNS, SCATTERED, WIDTH

    ctypedef struct Communication:
        int64_t time
        int32_t last
        int32_t posted

    ctypedef struct Waiting:
        int32_t remote
        int32_t waiter

    ctypedef struct SlotBinding:
        int64_t first
        int32_t members
        uint8_t role

    ctypedef struct Slot:
        SlotBinding* binding
        int32_t* column
        int64_t n_columns
        uint8_t kind

    ctypedef struct Tile:
        const Instruction* code
        const int64_t* duration
        const uint8_t* looked_up
        const int32_t* operands
        const int32_t* final
        int64_t* value
        int32_t* pending
        int64_t* clock
        int64_t* device
        int64_t* eager
        uint64_t* factor
        uint64_t* key
        int32_t* local
        int32_t* number
        Slot* slot
        int32_t n_lanes
        int32_t width
        int32_t n_slots
        int32_t n_registers
        int32_t n_final
        int32_t n_rows
        int32_t row
        int32_t n_eager
        int32_t next_waiter
        int32_t ended
        int32_t parked

    ctypedef struct EngineState:
        Tile* tiles
        int32_t* ready
        Communication* communications
        Waiting* waiting
        int64_t* outgoing
        int64_t* begin
        int64_t* start
        int64_t* last_lane
        const uint64_t* jitter
        const int64_t* taken
        int64_t horizon
        int64_t n_ready
        int64_t n_outgoing
        int64_t rows_done

    int64_t run_tiles(EngineState* engine, int64_t budget) nogil
    void deliver(EngineState* engine, int64_t number, int64_t time, int32_t last, int owner) nogil
    int64_t blocked_on(const EngineState* engine, const Tile* tile, int64_t lane) nogil
    void add_hashes(
        int64_t n, const uint64_t* low, const uint64_t* high, const uint64_t* counted,
        const int64_t* duration, const int64_t* start, int64_t stride, const uint64_t* size,
        int64_t times, uint64_t* sum) nogil
    void add_end(int64_t end, const uint64_t* seed, int64_t times, uint64_t* sum) nogil
