# State of the contended core: ranks, their streams and communications. `StreamEntry` and
# `Instruction` are those of common.pxd; `Communication` is laid out as COMMUNICATION_STATE in
# mpisim/engine/core_input.py, and numpy checks its fields.

from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t

from .common cimport KERNEL, NO_TIME, SIMPLE_KERNEL, Instruction, StreamEntry

cdef enum:
    RESOLVED = -1  # of Communication.missing
    FLOWING = -2

cdef enum:
    CPU = -1  # of StreamState.need and RankState.need

cdef struct Communication:
    int64_t time
    int64_t end
    int64_t follow
    int64_t bound
    int32_t last
    int32_t follower
    int32_t missing
    int32_t remote
    int32_t waiter
    int32_t route
    int32_t price
    int32_t owned
    int32_t flow
    int32_t reserved

cdef struct StreamState:
    int64_t end  # of its last kernel that has ended
    int64_t cause
    int64_t communication  # that it waits for; or -1, and then
    int32_t need  # the stream of its rank that it waits for, or the CPU,
    int32_t count  # until that has ended so many kernels, or come to that row
    uint64_t wakes  # the workers of its rank that wait for it,
    int32_t wanted  # and the lowest count that one of them waits for
    int32_t done  # kernels that have ended
    const int32_t* kernels
    int32_t n_kernels
    int32_t rank
    int32_t next_waiter
    int32_t pending  # its next kernel has begun
    const int64_t* span  # of its kernels: each, and each with all before it
    const int64_t* spent
    int64_t bound  # when its next kernel can end at the earliest, as of `round`
    int64_t round
    int64_t promised  # how many kernels after the one that is pending
    int64_t front  # the first kernel from here on that may flow

cdef struct Times:  # of rows: when one is launched; once its kernel has ended, when
    int64_t* recent  # a ring: of row r at r & mask
    int64_t* kept  # of kernels that are read from afar, once they have ended
    int64_t mask

cdef struct RankState:  # its CPU and its streams are its *workers*
    int64_t host
    int64_t device
    int64_t cause
    uint64_t ready  # the workers that may be able to move: bit 0 the CPU, others by `bit_of`
    uint64_t wakes  # the workers that wait for the CPU,
    int32_t wanted  # and the lowest row that one of them waits for
    int32_t limit  # the row from which on the rings need room
    const Instruction* instructions
    const StreamEntry* entries
    const int64_t* duration
    const int32_t* price
    const int32_t* waits
    const int64_t* first  # of each slot, the first communication
    const uint8_t* role
    const int32_t* route
    const int32_t* n_routes
    Times times
    Times causes
    int64_t* eager_ready
    StreamState* streams
    const int64_t* clock
    int64_t bound  # when the CPU can have done its row at the earliest, as of `round`
    int64_t round
    int32_t n_streams
    int32_t n_rows
    int32_t row
    int32_t need
    int32_t count
    int32_t number
    int32_t left  # workers that have not come to their ends
    int32_t queued
    int32_t near  # how many rows back a row may read from the rings
    int32_t reserved


cdef inline bint is_kernel(const Instruction* x) noexcept nogil:
    """Whether a row of a stream is no communication."""
    return x.opcode == SIMPLE_KERNEL or x.opcode == KERNEL


cdef inline uint64_t bit_of(int32_t stream) noexcept nogil:
    """The bit of a stream among the workers of its rank; streams 63 apart share one."""
    return <uint64_t>2 << (stream % 63)


cdef inline bint has_reached(const RankState* rank, int32_t need, int32_t count) noexcept nogil:
    """Whether the CPU has come to a row, or a stream has ended so many kernels."""
    return (rank.row if need == CPU else rank.streams[need].done) >= count


cdef inline bint ended(const RankState* rank, int32_t kernel) noexcept nogil:
    return rank.streams[rank.entries[kernel].stream].done > rank.entries[kernel].index


cdef inline int64_t* at_row(const Times* times, int32_t row) noexcept nogil:
    """The time of a row that has been launched and is still in the ring."""
    return &times.recent[row & times.mask]


cdef inline int64_t end_in(
    const Times* times, const StreamEntry* entries, int32_t kernel
) noexcept nogil:
    """When a kernel has ended, told by its first row."""
    if entries[kernel].keep >= 0:
        return times.kept[entries[kernel].keep]
    return times.recent[kernel & times.mask]


cdef inline int64_t number_of(const RankState* rank, int32_t row) noexcept nogil:
    """The number of the communication that a row posts to."""
    return rank.first[rank.instructions[row].slot] + rank.instructions[row].ordinal


cdef inline int64_t end_for_rank(
    const RankState* rank, int32_t row, const Communication* communication
) noexcept nogil:
    """When a resolved communication ends for a rank: with its flow, if it flows for this rank."""
    if communication.route >= 0 and rank.price[row] >= 0:
        return communication.end
    return communication.time + rank.duration[row]


cdef inline void merge(
    Communication* communication, int64_t ready, int32_t last, int64_t cause
) noexcept nogil:
    """Take in when a member is ready. Commutative and associative, so no order matters."""
    if ready > communication.time or (ready == communication.time and last < communication.last):
        communication.time = ready
        communication.last = last
    if cause > communication.end:
        communication.end = cause


cdef inline void merge_promise(
    Communication* communication, int64_t gap, int32_t last
) noexcept nogil:
    """Take in how long after the end of the communication before a member is ready."""
    if gap > communication.follow or (
        gap == communication.follow and last < communication.follower
    ):
        communication.follow = gap
        communication.follower = last
