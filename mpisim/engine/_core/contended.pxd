# What the contended core works on. `Step` and `FlowGroup` are laid out as in
# mpisim/engine/actors.py; numpy checks their fields.

from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t

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
    int32_t keep
    int32_t reserved

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
    uint64_t wakes  # the actors of its rank that wait for it,
    int32_t wanted  # and the lowest count that one of them waits for
    int32_t done
    const int32_t* kernels
    int32_t n_kernels
    int32_t rank
    int32_t next_waiter
    int32_t pending  # its next kernel has begun
    const int64_t* span  # of its kernels: each, and each with all before it
    const int64_t* spent
    int64_t bound  # when its next kernel can end at the earliest, as of the horizon
    int64_t horizon
    int64_t promised  # how many kernels after the one that is pending
    int64_t front  # the first kernel from here on that may flow

cdef struct Times:  # of rows: when one is launched; once its kernel has ended, when
    int64_t* recent  # a ring: of row r at r & mask
    int64_t* kept  # of kernels that are read from afar, once they have ended
    int64_t mask

cdef struct Actors:  # of one rank: its CPU, and its streams
    int64_t host
    int64_t device
    int64_t cause
    uint64_t ready  # the actors that may be able to move: bit 0 the CPU, others by `bit_of`
    uint64_t wakes  # the actors that wait for the CPU,
    int32_t wanted  # and the lowest row that one of them waits for
    int32_t limit  # the row from which on the rings have to be looked after
    const Step* steps
    const int64_t* duration
    const int32_t* price
    const int32_t* waits
    const int64_t* group
    const uint8_t* role
    const int32_t* route
    const int32_t* n_routes
    Times value
    Times causes
    int64_t* eager_ready
    Stream* streams
    const int64_t* clock
    int64_t bound  # when the CPU can have done its row at the earliest, as of the horizon
    int64_t horizon
    int32_t n_streams
    int32_t n_rows
    int32_t row
    int32_t need
    int32_t count
    int32_t number
    int32_t left  # actors that have not come to their ends
    int32_t queued
    int32_t near  # how many rows back a row may read from the rings
    int32_t reserved


cdef inline uint64_t bit_of(int32_t stream) noexcept nogil:
    """The bit of a stream among the actors of its rank; streams 63 apart share one."""
    return <uint64_t>2 << (stream % 63)


cdef inline bint came(const Actors* rank, int32_t need, int32_t count) noexcept nogil:
    return (rank.row if need == CPU else rank.streams[need].done) >= count


cdef inline bint ended(const Actors* rank, int32_t kernel) noexcept nogil:
    return rank.streams[rank.steps[kernel].stream].done > rank.steps[kernel].index


cdef inline int64_t* at_row(const Times* times, int32_t row) noexcept nogil:
    """The time of a row that has been launched and not been forgotten."""
    return &times.recent[row & times.mask]


cdef inline int64_t end_in(const Times* times, const Step* steps, int32_t kernel) noexcept nogil:
    """When a kernel has ended, told by its first row."""
    if steps[kernel].keep >= 0:
        return times.kept[steps[kernel].keep]
    return times.recent[kernel & times.mask]


cdef inline int64_t ended_at(
    const Actors* rank, int32_t row, const FlowGroup* group
) noexcept nogil:
    """When a communication ends for a rank that does not go ahead."""
    if group.route >= 0 and rank.price[row] >= 0:
        return group.end
    return group.time + rank.duration[row]


cdef inline void merge(
    FlowGroup* group, int64_t ready, int32_t last, int64_t cause
) noexcept nogil:
    if ready > group.time or (ready == group.time and last < group.last):
        group.time = ready
        group.last = last
    if cause > group.end:
        group.end = cause


cdef inline void merge_promise(FlowGroup* group, int64_t gap, int32_t last) noexcept nogil:
    if gap > group.follow or (gap == group.follow and last < group.follower):
        group.follow = gap
        group.follower = last
