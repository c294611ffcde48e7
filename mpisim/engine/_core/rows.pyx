# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The rows of a rank after a run: one pass over its instructions, with known communications.

The same recurrence as in the cores (see lanes.h) for one rank, in program order. When each
communication began and ended is given, so nothing is waited for. `binding` says which of the inputs
was the largest; of equal ones the stream counts before waits, and waits before the host.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .common cimport (
    BATCH, BY_HOST, BY_QUEUE, BY_STREAM, BY_WAIT, HOST, JOIN, KERNEL, LAST_WAIT, NO_TIME,
    SIMPLE_KERNEL, SIMPLE_POST, Instruction, mix,
)

cdef extern from "vary.h":
    void vary_rows(
        int64_t* duration, const int64_t* row, int64_t n, uint64_t factor, uint64_t key,
        const uint64_t* jitter) nogil

cdef extern from *:
    """
    typedef unsigned __int128 uint128_t;
    """
    ctypedef int uint128_t

cdef uint64_t GOLDEN = <uint64_t>0x9E3779B97F4A7C15


cdef int64_t replay(
    const Instruction* code, const int32_t* operands, int64_t* registers, Py_ssize_t n,
    const int64_t* durations, int64_t start, const int64_t* communication_start,
    const int64_t* communication_end,
    RowTimes of,
) noexcept nogil:
    """Write times and bindings of the rows of a rank; return its last clock."""
    cdef Py_ssize_t row, k = 0
    cdef const Instruction* x
    cdef int64_t host, begin, end, wire, other, clock = start, ready = NO_TIME
    cdef int32_t i, first
    cdef uint8_t binding, queued, of_kernel = BY_HOST
    for row in range(n):
        x = code + row
        queued = 0
        if x.opcode == JOIN:
            begin = wire = ready
            binding = of_kernel
        else:
            host = clock + x.host
            first = x.first_wait
            begin = NO_TIME
            binding = BY_HOST
            if x.opcode <= SIMPLE_POST:
                begin = registers[x.stream]
                binding = BY_STREAM
                other = registers[x.wait]
                if other > begin:
                    begin = other
                    binding = BY_WAIT
            else:
                if x.opcode <= BATCH:
                    if x.n_leading > (x.stream >= 0):
                        other = registers[operands[first - x.n_leading]]
                        if other > host:
                            host = other
                            queued = BY_QUEUE
                    if x.stream >= 0:
                        begin = registers[x.stream]
                        binding = BY_STREAM
                for i in range(x.n_waits):
                    other = registers[operands[first + i]]
                    if other > begin:
                        begin = other
                        binding = <uint8_t>(BY_WAIT + (i if i < LAST_WAIT else LAST_WAIT))
            if x.opcode <= BATCH:
                if begin > NO_TIME:  # it follows something on the device
                    begin += x.gap
                if host + x.launch > begin:
                    begin = host + x.launch
                    binding = BY_HOST
                clock = host + x.launch_cost
                ready = begin
                of_kernel = binding
            elif x.opcode == HOST:
                begin = clock
                clock = host
            else:
                if host > begin:  # device before host where both are last
                    begin = host
                    binding = BY_HOST
                end = begin + x.launch_cost
                begin = clock
                clock = end
            wire = begin
        if x.opcode == SIMPLE_KERNEL or x.opcode == KERNEL:
            end = begin + durations[row]
            registers[x.target] = end
        elif x.opcode <= JOIN:
            wire = communication_start[k]
            end = communication_end[k]
            k += 1
            if x.opcode < JOIN or end > registers[x.target]:
                registers[x.target] = end
        else:
            end = clock
        of.begin[row] = begin
        of.end[row] = end
        of.wire[row] = wire
        of.binding[row] = binding | queued
    return clock


def rows_of(
    lowered,
    const int64_t[::1] durations,
    int64_t start,
    const int64_t[::1] communication_start,
    const int64_t[::1] communication_end,
):
    """Replay a rank.

    Parameters
    ----------
    lowered : mpisim.engine.lowering.LoweredTable
    durations : int64, shape (n,)
        Of each row, in ps.
    start : int
        Of the rank, in ps.
    communication_start, communication_end : int64, shape (m,)
        When each communication of the rank began and ended.

    Returns
    -------
    begin, end, wire : int64, shape (n,)
    binding : uint8, shape (n,)
    host_end : int
        As in `mpisim.engine.rows.Rows`, in ps.
    """
    cdef const Instruction[::1] instructions = lowered.instructions
    cdef const int32_t[::1] operands = lowered.operands
    cdef int64_t[::1] registers = np.empty(lowered.n_registers, np.int64)
    cdef Py_ssize_t n = instructions.shape[0]
    begins, ends, wires = (np.empty(n, np.int64) for _ in range(3))
    bindings = np.empty(n, np.uint8)
    cdef int64_t[::1] begin = begins, end = ends, wire = wires
    cdef uint8_t[::1] binding = bindings
    cdef RowTimes of
    of.begin, of.end, of.wire, of.binding = &begin[0], &end[0], &wire[0], &binding[0]
    with nogil:
        start = replay(
            &instructions[0], &operands[0], &registers[0], n, &durations[0], start,
            &communication_start[0], &communication_end[0], of,
        )
    return begins, ends, wires, bindings, start


def vary(
    const int64_t[::1] durations,
    const int64_t[::1] rows,
    uint64_t factor,
    uint64_t key,
    const uint64_t[::1] jitter,
):
    """Vary the durations of some rows, which are all different: see vary.h."""
    found = np.array(durations)
    cdef int64_t[::1] values = found
    if rows.shape[0]:
        with nogil:
            vary_rows(
                &values[0], &rows[0], rows.shape[0], factor, key,
                NULL if jitter is None else &jitter[0],
            )
    return found


def fingerprint(const int64_t[::1] start, const int64_t[::1] end):
    """Return 128 bits that differ where two ranks have other communication times.

    A sum of products of times, each shifted by a key of its position (the NH hash of Black et al.,
    *UMAC*, CRYPTO 1999): ranks that differ agree in it once in 2**64 cases.
    """
    cdef uint128_t total = 0
    cdef uint64_t position = 0, key
    cdef Py_ssize_t i
    with nogil:
        for i in range(start.shape[0]):
            position += GOLDEN
            key = mix(position)
            total += <uint128_t>(<uint64_t>start[i] + key) * (<uint64_t>end[i] + key * GOLDEN)
    return <uint64_t>total, <uint64_t>(total >> 64)
