# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Where the time of a rank went, compiled. `accounts_twin` is the same in plain Python.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    KERNEL = 1
    COPY = 2
    WAITING = 4
    WIRE = 8
    N_SETS = 5

# What `covered` tells, in the order of the twin's: time in which any of these was under way.
cdef uint8_t[N_SETS] SETS = [
    KERNEL, KERNEL | COPY, WAITING | WIRE, KERNEL | COPY | WIRE, KERNEL | COPY | WAITING | WIRE,
]


cdef struct Intervals:
    int64_t* begin
    int64_t* end
    uint8_t* what


cdef inline int64_t added(
    Intervals* of, int64_t first, int64_t n, int64_t begin, int64_t end, uint8_t what, int64_t until
) noexcept nogil:
    """Put what lies in [0, until] into its place among entries first to n; return the next n."""
    begin, end = max(begin, 0), min(end, until)
    if begin >= end:
        return n
    if n > first and of.end[n - 1] == begin and of.what[n - 1] == what:  # most kernels
        of.end[n - 1] = end
        return n
    cdef int64_t at = n
    while at > first and of.begin[at - 1] > begin:  # rare: rows of a stream begin in their order
        of.begin[at], of.end[at], of.what[at] = of.begin[at - 1], of.end[at - 1], of.what[at - 1]
        at -= 1
    of.begin[at], of.end[at], of.what[at] = begin, end, what
    return n + 1


cdef inline void sift(
    int32_t* heap, int64_t at, int64_t n, const int64_t* head, const int64_t* begin
) noexcept nogil:
    """Let a stream sink to its place in a heap of streams by the begin of their next interval."""
    cdef int32_t stream = heap[at]
    cdef int64_t time = begin[head[stream]], child
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and begin[head[heap[child + 1]]] < begin[head[heap[child]]]:
            child += 1
        if begin[head[heap[child]]] >= time:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = stream


def account(
    const int64_t[::1] begin,
    const int64_t[::1] end,
    const int64_t[::1] wire,
    const int32_t[::1] order,
    const int64_t[::1] stream_index,
    const uint8_t[::1] layer,
    const int32_t[::1] key,
    int64_t n_keys,
    int64_t until,
):
    """Add up the rows of a rank: see the twin."""
    cdef Py_ssize_t n_streams = stream_index.shape[0] - 1, s, i
    cdef int64_t room = 2 * order.shape[0] + 1, n = 0, left = 0, at, row, length, first, last
    cdef int64_t[::1] begins = np.empty(room, np.int64), ends = np.empty(room, np.int64)
    cdef uint8_t[::1] whats = np.empty(room, np.uint8)
    cdef int64_t[::1] head = np.empty(n_streams + 1, np.int64)
    cdef int64_t[::1] tail = np.empty(n_streams + 1, np.int64)
    cdef int32_t[::1] heap = np.empty(n_streams + 1, np.int32)
    cdef Intervals of
    of.begin, of.end, of.what = &begins[0], &ends[0], &whats[0]
    covered_array = np.zeros(N_SETS, np.int64)
    sums = np.zeros((3, n_keys), np.int64)
    cdef int64_t[::1] covered = covered_array
    cdef int64_t[::1] spent = sums[0], waited = sums[1], longest = sums[2]
    cdef int64_t[N_SETS] reach
    cdef uint8_t what
    with nogil:
        for s in range(n_streams):
            head[s] = n
            for i in range(stream_index[s], stream_index[s + 1]):
                row = order[i]
                length = end[row] - wire[row]
                spent[key[row]] += length
                longest[key[row]] = max(longest[key[row]], length)
                if layer[row] == WIRE:
                    waited[key[row]] += wire[row] - begin[row]
                    n = added(&of, head[s], n, begin[row], wire[row], WAITING, until)
                n = added(&of, head[s], n, wire[row], end[row], layer[row], until)
            tail[s] = n
            if n > head[s]:
                heap[left] = <int32_t>s
                left += 1
        for at in range(left - 1, -1, -1):
            sift(&heap[0], at, left, &head[0], of.begin)
        for i in range(N_SETS):
            reach[i] = 0
        while left > 0:  # all intervals by their begins: streams are merged
            s = heap[0]
            at = head[s]
            head[s] += 1
            if head[s] == tail[s]:
                left -= 1
                heap[0] = heap[left]
            sift(&heap[0], 0, left, &head[0], of.begin)
            first, last, what = of.begin[at], of.end[at], of.what[at]
            for i in range(N_SETS):
                if what & SETS[i] and last > reach[i]:
                    covered[i] += last - max(first, reach[i])
                    reach[i] = last
    return covered_array, sums[0], sums[1], sums[2]
