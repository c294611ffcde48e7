# What all compiled engine modules share: common.h, and the records of
# mpisim/engine/lowering.py that only Cython reads; numpy checks their fields.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef extern from "common.h":
    const int SIMPLE_KERNEL, SIMPLE_POST, KERNEL, POST, BATCH, JOIN, HOST, HOST_WAIT
    const int LOCAL, PEER, MEMBER, OWNER
    const int64_t NO_TIME

    ctypedef struct Instruction:
        int64_t host
        int64_t launch
        int64_t launch_cost
        int64_t gap
        int32_t target
        int32_t stream
        int32_t wait
        int32_t first_wait
        int32_t n_waits
        int32_t slot
        int32_t ordinal
        uint8_t opcode
        uint8_t eager
        uint8_t n_leading
        uint8_t may_end_last

    uint64_t mix(uint64_t x) noexcept nogil
    uint64_t scaled(uint64_t value, uint64_t factor) noexcept nogil

cdef enum:  # a Kind, and bits of a Flag: see mpisim/base/kinds.py
    IS_COPY = 1
    IS_RECV = 4
    IS_HOST = 5
    JOINED_FLAG = 1
    EAGER_FLAG = 2

cdef enum:  # as Binding in mpisim/engine/run.py
    BY_HOST = 0
    BY_STREAM = 1
    BY_WAIT = 2
    BY_QUEUE = 128
    LAST_WAIT = 125

cdef struct StreamEntry:
    int32_t stream
    int32_t index
    int32_t first_wait
    int32_t queue
    int32_t n_rows
    int32_t eager
    int32_t keep
    int32_t reserved

cdef struct CommunicationRow:
    uint64_t low
    uint64_t high
    int32_t row
    int32_t slot
    int32_t ordinal
    int32_t eager
