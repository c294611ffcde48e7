# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""A table as instructions, compiled. `instructions_twin` is the same in plain Python: read it first.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from .state cimport (
    BATCH, EAGER_FLAG, HOST, HOST_WAIT, IS_COPY, IS_HOST, IS_RECV, JOIN, JOINED_FLAG, KERNEL, MEET,
    PLAIN, PLAIN_MEET, Communication, Instruction, mix,
)

cdef uint64_t LOW = <uint64_t>0x9E3779B97F4A7C15, HIGH = <uint64_t>0xD1B54A32D192ED03


def kernels_of(table):
    """Return the kernels of a table, and which follows which: see the twin."""
    cdef const uint8_t[::1] kind = table.kind, flags = table.flags
    cdef const int16_t[::1] stream = table.stream
    cdef const int64_t[::1] wait_index = table.wait_index
    cdef const int32_t[::1] wait_row = table.wait_row
    cdef Py_ssize_t n = kind.shape[0], row, m = 0
    cdef int32_t depth = min(table.queue_depth, n), s, k
    cdef int64_t w
    arrays = [np.empty(n, np.int32) for _ in range(6)]
    cdef int32_t[::1] first = arrays[0], last = arrays[1], before = arrays[2], queue = arrays[3]
    cdef int32_t[::1] kernels = arrays[4], last_use = arrays[5]
    # Kernels stream by stream: how many there are, and where those of the next stream begin.
    cdef int64_t[::1] end = np.zeros(table.n_streams + 1, np.int64)
    cdef int64_t[::1] begin = np.zeros(table.n_streams + 1, np.int64)
    cdef int32_t[::1] on_stream = np.empty(n, np.int32)
    with nogil:
        for row in range(n):
            if kind[row] <= IS_RECV and not flags[row] & JOINED_FLAG:
                begin[stream[row] + 1] += 1
        for s in range(end.shape[0] - 1):
            begin[s + 1] += begin[s]
            end[s] = begin[s]
        for row in range(n):
            before[row] = queue[row] = last_use[row] = -1
            if flags[row] & JOINED_FLAG:
                first[row] = first[row - 1]
                continue
            first[row] = row
            for w in range(wait_index[row], wait_index[row + 1]):
                last_use[first[wait_row[w]]] = row
            if kind[row] > IS_RECV:
                continue
            s = stream[row]
            if end[s] > begin[s]:
                before[row] = on_stream[end[s] - 1]
                last_use[before[row]] = row
            if depth and end[s] - begin[s] >= depth:
                queue[row] = on_stream[end[s] - depth]
                last_use[queue[row]] = row
            on_stream[end[s]] = row
            end[s] += 1
            kernels[m] = row
            m += 1
        for s in range(end.shape[0] - 1):
            if end[s] > begin[s]:
                last_use[on_stream[end[s] - 1]] = n
        for row in range(n - 1, -1, -1):
            last[row] = last[row + 1] if row + 1 < n and flags[row + 1] & JOINED_FLAG else row
        for k in range(m):
            last_use[k] = last_use[kernels[k]]  # kernels lie no earlier than their numbers
    return (*arrays[:4], arrays[4][:m].copy(), arrays[5][:m])


def write_instructions(
    table, register, first_of, before_of, queue_of, instructions, communications
):
    """Fill in instructions and communications, and return operands: see the twin."""
    cdef const uint8_t[::1] kind = table.kind, flags = table.flags, operation = table.operation
    cdef const int32_t[::1] slot = table.slot, wait_row = table.wait_row
    cdef const int64_t[::1] host = table.host, launch = table.launch, gap = table.gap
    cdef const int64_t[::1] launch_cost = table.launch_cost, size = table.bytes
    cdef const int64_t[::1] wait_index = table.wait_index
    cdef const int32_t[::1] of_kernel = register
    cdef const int32_t[::1] first = first_of, before = before_of, queue = queue_of
    cdef Instruction[::1] found = instructions
    cdef Communication[::1] met = communications
    cdef Py_ssize_t n = kind.shape[0], row, k = 0, c = 0
    cdef int64_t at = 0, w
    cdef int32_t[::1] operands = np.empty(
        wait_row.shape[0] + int((before_of >= 0).sum()) + int((queue_of >= 0).sum()), np.int32
    )
    cdef int32_t[::1] ordinal = np.zeros(table.n_slots, np.int32)
    cdef Instruction* x
    cdef Communication* y
    cdef uint64_t what
    with nogil:
        for row in range(n):
            x = &found[row]
            x.host = host[row]
            x.launch = launch[row]
            x.launch_cost = launch_cost[row]
            x.gap = gap[row]
            x.eager = (flags[row] & EAGER_FLAG) != 0
            x.slot = slot[row]
            x.tops = 1
            if flags[row] & JOINED_FLAG:
                x.target = found[row - 1].target
            elif kind[row] <= IS_RECV:
                x.target = of_kernel[k]
                k += 1
            else:
                x.target = -1
            x.n_before = 0
            if queue[row] >= 0:
                operands[at] = found[queue[row]].target
                x.n_before = 1
                at += 1
            x.stream = -1
            if before[row] >= 0:
                x.stream = found[before[row]].target
                operands[at] = x.stream
                x.n_before += 1
                at += 1
                if gap[row] >= 0:
                    found[before[row]].tops = 0
            x.first_wait = <int32_t>at
            x.n_waits = <int32_t>(wait_index[row + 1] - wait_index[row])
            for w in range(wait_index[row], wait_index[row + 1]):
                operands[at] = found[wait_row[w]].target
                at += 1
            x.other = operands[x.first_wait] if x.n_waits == 1 else x.stream
            x.opcode = opcode_of(kind[row], x.eager, flags[row] & JOINED_FLAG)
            if x.opcode == MEET and row + 1 < n and flags[row + 1] & JOINED_FLAG:
                x.opcode = BATCH
            if before[row] >= 0 and queue[row] < 0 and x.n_waits <= 1:
                if x.opcode == KERNEL:
                    x.opcode = PLAIN
                elif x.opcode == MEET:
                    x.opcode = PLAIN_MEET
            x.ordinal = -1
            if slot[row] >= 0:
                x.ordinal = ordinal[slot[row]]
                ordinal[slot[row]] += 1
                y = &met[c]
                c += 1
                what = kind[row] | <uint64_t>operation[row] << 8
                y.low = hashed(what, size[row], x.ordinal, LOW)
                y.high = hashed(what, size[row], x.ordinal, HIGH)
                y.row = <int32_t>row
                y.slot = slot[row]
                y.ordinal = x.ordinal
                y.eager = x.eager
        for row in range(n):
            found[row].tops = found[first[row]].tops
    return np.asarray(operands)


cdef inline uint8_t opcode_of(uint8_t kind, bint eager, bint joined) noexcept nogil:
    if joined:
        return JOIN
    if kind <= IS_COPY:
        return KERNEL
    if kind <= IS_RECV:
        return BATCH if eager else MEET
    return HOST if kind == IS_HOST else HOST_WAIT


cdef inline uint64_t hashed(
    uint64_t what, int64_t size, int64_t ordinal, uint64_t lane
) noexcept nogil:
    """One lane of `mpisim.engine.digest.hash_rows`."""
    cdef uint64_t state = mix((lane ^ what) + lane)
    state = mix((state ^ <uint64_t>size) + lane)
    return mix((state ^ <uint64_t>ordinal) + lane)
