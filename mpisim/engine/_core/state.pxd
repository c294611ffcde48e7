# What the compiled core works on. `Instruction` and `Communication` are laid out as in
# mpisim/engine/lowering.py, `Group` as in mpisim/engine/plan.py; numpy checks their fields.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef enum:
    PLAIN = 0
    PLAIN_MEET = 1
    KERNEL = 2
    MEET = 3
    BATCH = 4
    JOIN = 5
    HOST = 6
    HOST_WAIT = 7

cdef enum:
    LOCAL = 0
    PEER = 1
    MEMBER = 2
    OWNER = 3

cdef enum:
    BY_HOST = 0
    BY_STREAM = 1
    BY_WAIT = 2
    BY_QUEUE = 128
    LAST_WAIT = 125

cdef enum:
    STARTED = -1

cdef struct Instruction:
    int64_t host
    int64_t launch
    int64_t launch_cost
    int64_t gap
    int32_t target
    int32_t stream
    int32_t other
    int32_t first_wait
    int32_t n_waits
    int32_t slot
    int32_t ordinal
    uint8_t opcode
    uint8_t eager
    uint8_t n_before
    uint8_t stops

cdef struct Communication:
    uint64_t low
    uint64_t high
    int32_t row
    int32_t slot
    int32_t ordinal
    int32_t eager

cdef struct Group:
    int64_t time
    int32_t last
    int32_t missing
    int32_t away
    int32_t waiter

cdef struct Register:
    int64_t value  # the end; of a pending MEET its duration
    int64_t pending  # 0: nothing; n > 0: group n - 1; n < 0: kernel whose last row so far is -n - 1

cdef struct Rank:
    int64_t host
    int64_t device
    const Instruction* code
    const int64_t* duration
    const int32_t* operands
    const int64_t* group
    const uint8_t* role
    Register* registers
    int64_t* eager_ready
    const int32_t* final
    int64_t blocked_on
    int32_t n_final
    int32_t n_rows
    int32_t row
    int32_t number
    int32_t n_eager
    int32_t next_waiter


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    """Scramble a word: see mpisim/engine/digest.py."""
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)
