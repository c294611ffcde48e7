# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Lowering: table → instructions with registers → the same rows as entries of their streams.

The passes over a table, in the order in which `mpisim.engine.lowering` calls them:

1. `kernels_of`: which rows make up a *kernel* (one launch: a device row and the JOINED rows after
   it), which kernel comes before it on its stream and in its launch queue, and who reads it last.
2. `allocate`: kernels → registers.
3. `write_instructions`: rows → instructions, whose operands are registers.
4. `view_streams`, for the contended core alone: rows → positions in the queues of their streams.

Invariants. A wait names an earlier row, and a kernel is told by its first row, so a pass in program
order has seen all that a row reads. A JOINED row directly follows a row of the same kernel.
Row numbers, registers and positions are int32, as waits name rows by int32 (`Table.wait_row`), and
nothing here numbers more things than there are rows.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from .common cimport (
    BATCH, EAGER_FLAG, HOST, HOST_WAIT, IS_COPY, IS_HOST, IS_RECV, JOIN, JOINED_FLAG, KERNEL, POST,
    SIMPLE_KERNEL, SIMPLE_POST, CommunicationRow, Instruction, StreamEntry, mix,
)

cdef uint64_t LOW = <uint64_t>0x9E3779B97F4A7C15, HIGH = <uint64_t>0xD1B54A32D192ED03


def kernels_of(table):
    """Find the kernels of a table, and which follows which.

    Returns
    -------
    first, last : int32, shape (n,)
        First and last row of the kernel a row belongs to.
    before, queue : int32, shape (n,)
        First row of the previous kernel of the stream, and of the one that must have left the
        stream's launch queue before this one may be launched; -1 if none.
    kernels, last_use : int32, shape (m,)
        First rows of kernels, ascending, and the last row that reads each kernel's end; n for the
        last kernel of each stream, which is read when the rank ends.
    """
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


def allocate(const int32_t[::1] kernels, const int32_t[::1] last_use):
    """Give every kernel a register that is free until the kernel's last reader has run.

    A row reads before it writes, so it may write to the register that it is the last to read. A
    register is taken anew only if none is free: there are as many as kernels are alive at once,
    and there cannot be fewer.

    Parameters
    ----------
    kernels : int32, shape (m,)
        First rows of kernels, ascending.
    last_use : int32, shape (m,)
        The last row that reads each kernel's end; later than the kernel's own row.

    Returns
    -------
    registers : int32, shape (m,)
    n_registers : int
    """
    cdef Py_ssize_t n = kernels.shape[0], i, n_free = 0
    cdef int32_t n_registers = 0, row = 0, k
    registers_array = np.empty(n, np.int32)
    cdef int32_t[::1] registers = registers_array, spare = np.empty(n + 1, np.int32)
    # The kernels that expire with each row: the first, and which comes after which.
    cdef int32_t[::1] expiring = np.full(np.max(last_use, initial=0) + 1, -1, np.int32)
    cdef int32_t[::1] after = np.empty(n, np.int32)
    with nogil:
        for i in range(n - 1, -1, -1):
            after[i] = expiring[last_use[i]]
            expiring[last_use[i]] = <int32_t>i
        for i in range(n):
            while row <= kernels[i]:
                k = expiring[row]
                while k >= 0:
                    spare[n_free] = registers[k]
                    n_free += 1
                    k = after[k]
                row += 1
            if n_free == 0:
                spare[0] = n_registers
                n_free = 1
                n_registers += 1
            n_free -= 1
            registers[i] = spare[n_free]
    return registers_array, n_registers


def write_instructions(
    table, register, first_of, before_of, queue_of, instructions, communications
):
    """Fill in instructions and communication rows.

    Parameters
    ----------
    table : Table
    register : int32, shape (m,)
        Of each kernel, in order.
    first_of, before_of, queue_of : int32, shape (n,)
        As `kernels_of` returns them.
    instructions : INSTRUCTION, shape (n,)
        Written.
    communications : COMMUNICATION_ROW
        Written: one for each communication of the table.

    Returns
    -------
    int32
        Operands, the registers that rows read: each row's queue and stream, if any, then its waits.
    """
    cdef const uint8_t[::1] kind = table.kind, flags = table.flags, operation = table.operation
    cdef const int32_t[::1] slot = table.slot, wait_row = table.wait_row
    cdef const int64_t[::1] host = table.host, launch = table.launch, gap = table.gap
    cdef const int64_t[::1] launch_cost = table.launch_cost, size = table.bytes
    cdef const int64_t[::1] wait_index = table.wait_index
    cdef const int32_t[::1] of_kernel = register
    cdef const int32_t[::1] first = first_of, before = before_of, queue = queue_of
    cdef Instruction[::1] found = instructions
    cdef CommunicationRow[::1] found_rows = communications
    cdef Py_ssize_t n = kind.shape[0], row, k = 0, c = 0
    cdef int64_t at = 0, w
    cdef int32_t[::1] operands = np.empty(
        wait_row.shape[0] + int((before_of >= 0).sum()) + int((queue_of >= 0).sum()), np.int32
    )
    cdef int32_t[::1] ordinal = np.zeros(table.n_slots, np.int32)
    cdef Instruction* x
    cdef CommunicationRow* y
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
            x.may_end_last = 1
            if flags[row] & JOINED_FLAG:
                x.target = found[row - 1].target
            elif kind[row] <= IS_RECV:
                x.target = of_kernel[k]
                k += 1
            else:
                x.target = -1
            x.n_leading = 0
            if queue[row] >= 0:
                operands[at] = found[queue[row]].target
                x.n_leading = 1
                at += 1
            x.stream = -1
            if before[row] >= 0:
                x.stream = found[before[row]].target
                operands[at] = x.stream
                x.n_leading += 1
                at += 1
                if gap[row] >= 0:
                    found[before[row]].may_end_last = 0
            x.first_wait = <int32_t>at
            x.n_waits = <int32_t>(wait_index[row + 1] - wait_index[row])
            for w in range(wait_index[row], wait_index[row + 1]):
                operands[at] = found[wait_row[w]].target
                at += 1
            x.wait = operands[x.first_wait] if x.n_waits == 1 else x.stream
            x.opcode = opcode_of(kind[row], x.eager, flags[row] & JOINED_FLAG)
            if x.opcode == POST and row + 1 < n and flags[row + 1] & JOINED_FLAG:
                x.opcode = BATCH
            if before[row] >= 0 and queue[row] < 0 and x.n_waits <= 1:
                if x.opcode == KERNEL:
                    x.opcode = SIMPLE_KERNEL
                elif x.opcode == POST:
                    x.opcode = SIMPLE_POST
            x.ordinal = -1
            if slot[row] >= 0:
                x.ordinal = ordinal[slot[row]]
                ordinal[slot[row]] += 1
                y = &found_rows[c]
                c += 1
                what = kind[row] | <uint64_t>operation[row] << 8
                y.low = hashed(what, size[row], x.ordinal, LOW)
                y.high = hashed(what, size[row], x.ordinal, HIGH)
                y.row = <int32_t>row
                y.slot = slot[row]
                y.ordinal = x.ordinal
                y.eager = x.eager
        for row in range(n):
            found[row].may_end_last = found[first[row]].may_end_last
    return np.asarray(operands)


cdef inline uint8_t opcode_of(uint8_t kind, bint eager, bint joined) noexcept nogil:
    if joined:
        return JOIN
    if kind <= IS_COPY:
        return KERNEL
    if kind <= IS_RECV:
        return BATCH if eager else POST
    return HOST if kind == IS_HOST else HOST_WAIT


cdef inline uint64_t hashed(
    uint64_t what, int64_t size, int64_t ordinal, uint64_t lane
) noexcept nogil:
    """One lane of `mpisim.engine.digest.hash_rows`."""
    cdef uint64_t state = mix((lane ^ what) + lane)
    state = mix((state ^ <uint64_t>size) + lane)
    return mix((state ^ <uint64_t>ordinal) + lane)


def view_streams(lowered, int64_t near, entries, clocks):
    """Fill in where rows stand on their streams, and what the CPU has spent.

    Parameters
    ----------
    lowered : mpisim.engine.lowering.LoweredTable
    near : int
        Rows: kernels that are read from further back are kept apart from the recent ones.
    entries : STREAM_ENTRY, shape (n,)
        Written.
    clocks : int64, shape (n,)
        Written: what the CPU spends on a row and all before it, waiting aside; in ps.

    Returns
    -------
    waits, kernels : int32
    kernel_index : int64
    near, n_kept : int
        As in `mpisim.engine.lowering.StreamView`.
    """
    table = lowered.table
    cdef const Instruction[::1] instructions = lowered.instructions
    cdef const int32_t[::1] first = lowered.first, last = lowered.last, queue = lowered.queue_row
    cdef const int64_t[::1] wait_index = table.wait_index
    cdef const int32_t[::1] wait_row = table.wait_row
    cdef const int16_t[::1] of_stream = table.stream
    cdef StreamEntry[::1] found = entries
    cdef int64_t[::1] clock = clocks
    cdef Py_ssize_t n = instructions.shape[0], row, w
    waits_array = np.empty(wait_row.shape[0], np.int32)
    cdef int32_t[::1] waits = waits_array
    cdef uint8_t[::1] kept = np.zeros(n + 1, np.uint8)
    cdef int64_t[::1] begin = np.zeros(table.n_streams + 1, np.int64)
    cdef int32_t[::1] number = np.empty(table.n_streams, np.int32)  # of streams that have kernels
    cdef int64_t furthest = 0, now = 0
    cdef int32_t n_eager = 0, n_kept = 0, n_streams = 0, m = 0, s
    cdef const Instruction* x
    cdef StreamEntry* y
    with nogil:
        for row in range(n):
            x = &instructions[row]
            y = &found[row]
            y.queue = queue[row]
            y.first_wait = <int32_t>wait_index[row]
            y.n_rows = last[row] - <int32_t>row + 1
            y.eager = y.stream = y.index = y.keep = -1
            if x.eager:
                y.eager = n_eager
                n_eager += 1
            if x.opcode != JOIN:
                now += x.host
            if x.opcode != JOIN and x.opcode != HOST:
                now += x.launch_cost
            clock[row] = now
            for w in range(wait_index[row], wait_index[row + 1]):
                waits[w] = first[wait_row[w]]
                note_read(row, waits[w], near, &furthest, &kept[0])
            if queue[row] >= 0:
                note_read(row, queue[row], near, &furthest, &kept[0])
            if x.opcode < JOIN:
                begin[of_stream[row] + 1] += 1
                m += 1
        for s in range(number.shape[0]):
            number[s] = n_streams
            n_streams += begin[s + 1] > 0
            begin[s + 1] += begin[s]
    kernels_array, index_array = np.empty(m, np.int32), np.empty(n_streams + 1, np.int64)
    cdef int32_t[::1] kernels = kernels_array
    cdef int64_t[::1] index = index_array
    with nogil:
        for s in range(number.shape[0]):
            index[number[s]] = begin[s]
        index[n_streams] = m
        for row in range(n):
            y = &found[row]
            if kept[row]:
                y.keep = n_kept
                n_kept += 1
            if instructions[row].opcode == JOIN:
                y.stream = found[row - 1].stream
                y.index = found[row - 1].index
            elif instructions[row].opcode < JOIN:
                s = of_stream[row]
                y.stream = number[s]
                y.index = <int32_t>(begin[s] - index[number[s]])
                kernels[begin[s]] = <int32_t>row
                begin[s] += 1
    return waits_array, kernels_array, index_array, furthest, n_kept


cdef inline void note_read(
    Py_ssize_t row, int32_t kernel, int64_t near, int64_t* furthest, uint8_t* kept
) noexcept nogil:
    """Keep a kernel that a row reads from afar; else note how far back the row reads."""
    if row - kernel > near:
        kept[kernel] = True
    elif row - kernel > furthest[0]:
        furthest[0] = row - kernel
