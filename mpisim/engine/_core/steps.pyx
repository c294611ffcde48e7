# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""A table for the contended core, compiled. `steps_twin` is the same in plain Python: read it first.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from .contended cimport Step
from .state cimport BATCH, HOST, JOIN, KERNEL, MEET, PLAIN, PLAIN_MEET, Instruction


def write_steps(code, int64_t near, steps, clocks):
    """Fill in steps and clocks, and return waits, kernels, their index and what is kept: see the
    twin."""
    table = code.table
    cdef const Instruction[::1] instructions = code.instructions
    cdef const int32_t[::1] first = code.first, last = code.last, queue = code.queue_row
    cdef const int64_t[::1] wait_index = table.wait_index
    cdef const int32_t[::1] wait_row = table.wait_row
    cdef const int16_t[::1] of_stream = table.stream
    cdef Step[::1] found = steps
    cdef int64_t[::1] clock = clocks
    cdef Py_ssize_t n = instructions.shape[0], row, w
    waits_array = np.empty(wait_row.shape[0], np.int32)
    cdef int32_t[::1] waits = waits_array
    cdef uint8_t[::1] kept = np.zeros(n, np.uint8)
    cdef int64_t[::1] begin = np.zeros(table.n_streams + 1, np.int64)
    cdef int32_t[::1] number = np.empty(table.n_streams, np.int32)  # of streams that have kernels
    cdef int64_t furthest = 0, now = 0
    cdef int32_t n_eager = 0, n_kept = 0, n_streams = 0, m = 0, s
    cdef const Instruction* x
    cdef Step* y
    with nogil:
        for row in range(n):
            x = &instructions[row]
            y = &found[row]
            y.host = x.host
            y.launch = x.launch
            y.launch_cost = x.launch_cost
            y.gap = x.gap
            y.slot = x.slot
            y.ordinal = x.ordinal
            y.queue = queue[row]
            y.first_wait = <int32_t>wait_index[row]
            y.n_waits = x.n_waits
            y.n_rows = last[row] - <int32_t>row + 1
            y.opcode = x.opcode
            if x.opcode == PLAIN:
                y.opcode = KERNEL
            elif x.opcode == PLAIN_MEET or x.opcode == BATCH:
                y.opcode = MEET
            y.eager = y.stream = y.index = y.keep = -1
            y.reserved = 0
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
                if row - waits[w] > near:
                    kept[waits[w]] = True
                elif row - waits[w] > furthest:
                    furthest = row - waits[w]
            if queue[row] >= 0:
                if row - queue[row] > near:
                    kept[queue[row]] = True
                elif row - queue[row] > furthest:
                    furthest = row - queue[row]
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
            if y.opcode == JOIN:
                y.stream = found[row - 1].stream
                y.index = found[row - 1].index
            elif y.opcode < JOIN:
                s = of_stream[row]
                y.stream = number[s]
                y.index = <int32_t>(begin[s] - index[number[s]])
                kernels[begin[s]] = <int32_t>row
                begin[s] += 1
    return waits_array, kernels_array, index_array, furthest, n_kept
