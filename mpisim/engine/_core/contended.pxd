# What the contended core works on. `Step` and `FlowGroup` are laid out as in
# mpisim/engine/actors.py; numpy checks their fields.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    RESOLVED = -1  # of FlowGroup.missing
    FLOWING = -2

cdef enum:
    CPU = -1  # of Stream.need and Actors.need

cdef struct Step:
    int64_t host
    int64_t launch
    int64_t launch_cost
    int64_t gap
    int32_t stream
    int32_t index
    int32_t slot
    int32_t ordinal
    int32_t first_wait
    int32_t n_waits
    int32_t queue
    int32_t n_rows
    int32_t eager
    int32_t opcode

cdef struct FlowGroup:
    int64_t time
    int64_t end
    int64_t follow
    int64_t bound
    int32_t last
    int32_t follower
    int32_t missing
    int32_t away
    int32_t waiter
    int32_t route
    int32_t price
    int32_t owned
    int32_t flow
    int32_t reserved

cdef struct Stream:
    int64_t end  # of its last kernel that has ended
    int64_t cause
    int64_t group  # that it waits for; or -1, and then
    int32_t need  # the stream of its rank that it waits for, or the CPU,
    int32_t count  # until that has ended so many kernels, or come to that row
    const int32_t* kernels
    int32_t n_kernels
    int32_t done
    int32_t rank
    int32_t next_waiter
    const int64_t* span  # of its kernels: each, and each with all before it
    const int64_t* spent
    int64_t bound  # when its next kernel can end at the earliest, as of the horizon
    int64_t horizon
    int64_t promised  # how many kernels after the one that is pending
    int32_t front  # the first kernel from here on that may flow
    int32_t pending  # its next kernel has begun

cdef struct Actors:  # of one rank: its CPU, and its streams
    int64_t host
    int64_t device
    int64_t cause
    const Step* steps
    const int64_t* duration
    const int32_t* price
    const int32_t* waits
    const int64_t* group
    const uint8_t* role
    const int32_t* route
    const int32_t* n_routes
    int64_t* value  # of a row: when it is launched; once it has ended, its end
    int64_t* causes
    int64_t* eager_ready
    Stream* streams
    const int64_t* clock
    int64_t bound  # when the CPU can have done its row at the earliest, as of the horizon
    int64_t horizon
    int64_t first_row
    int32_t n_streams
    int32_t n_rows
    int32_t row
    int32_t need
    int32_t count
    int32_t number
    int32_t ended
    int32_t queued
