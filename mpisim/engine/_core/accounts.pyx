# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Where the time of a rank went: sums over its rows, and the time that kinds of work cover.

Intervals of each stream are in order of their begins, so a merge of the streams by a heap visits
all intervals in that order. For a set of kinds, `reach` is the latest end so far of an interval in
the set; an interval adds what lies beyond it. The common case, an interval that begins when all
before it are over, is counted by kind and distributed to the sets at the end.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from .rows cimport RowTimes, replay
from .common cimport Instruction

cdef enum:
    KERNEL = 1
    COPY = 2
    WAITING = 4
    WIRE = 8
    N_SETS = 5

# What `covered` counts, in this order: time in which any of these was under way.
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


cdef void cover(
    int32_t* heap, int64_t left, int64_t* head, const int64_t* tail, Intervals of, int64_t* covered
) noexcept nogil:
    """Add up the time that intervals cover, by the sets they are in: streams are merged."""
    cdef int64_t[N_SETS] reach
    cdef int64_t[2 * WIRE] alone  # of each `what`, time of intervals that begin when all is over
    cdef int64_t at, other, first, last, lower, over = 0
    cdef int32_t s, i
    cdef uint8_t what, latest = 0
    for i in range(N_SETS):
        reach[i] = 0
    for i in range(2 * WIRE):
        alone[i] = 0
    while left > 0:
        s = heap[0]
        # The stream goes on as long as its intervals begin before those of all others.
        other = INT64_MAX
        for i in range(1, 3 if left > 2 else <int32_t>left):
            other = min(other, of.begin[head[heap[i]]])
        at = head[s]
        while True:
            first, last, what = of.begin[at], of.end[at], of.what[at]
            if first >= over:  # most
                alone[what] += last - first
                over, latest = last, what
            else:
                for i in range(N_SETS):
                    if latest & SETS[i]:  # no earlier one reaches as far
                        reach[i] = over
                latest = 0
                for i in range(N_SETS):
                    lower = max(first, reach[i])
                    if what & SETS[i] and last > lower:
                        covered[i] += last - lower
                        reach[i] = last
                over = max(over, last)
            at += 1
            if at == tail[s] or of.begin[at] > other:
                break
        head[s] = at
        if at == tail[s]:
            left -= 1
            heap[0] = heap[left]
        sift(heap, 0, left, head, of.begin)
    for i in range(N_SETS):
        for at in range(2 * WIRE):
            if at & SETS[i]:
                covered[i] += alone[at]


cdef class Ledger:
    """Adds up the rows of ranks of one table. Scratch is kept from rank to rank.

    Parameters
    ----------
    order : int32
        Rows to add up, stream by stream.
    stream_index : int64, shape (n_streams + 1,)
        Stream s has the rows ``order[stream_index[s]:stream_index[s + 1]]``.
    layer : uint8, shape (n,)
        KERNEL, COPY or WIRE of each row.
    key : int32, shape (n,)
        What each row is added up under, 0 to n_keys - 1.
    n_keys : int
    """

    cdef const int32_t[::1] order, key
    cdef const int64_t[::1] stream_index
    cdef const uint8_t[::1] layer
    cdef int64_t n_keys
    cdef int64_t[::1] begins, ends, head, tail, registers
    cdef int64_t[:, ::1] times
    cdef uint8_t[::1] whats, binding
    cdef int32_t[::1] heap

    def __init__(
        self,
        const int32_t[::1] order,
        const int64_t[::1] stream_index,
        const uint8_t[::1] layer,
        const int32_t[::1] key,
        int64_t n_keys,
    ):
        self.order, self.stream_index, self.layer, self.key = order, stream_index, layer, key
        self.n_keys = n_keys
        room = 2 * order.shape[0] + 1  # communications wait, and then move data
        self.begins, self.ends = np.empty((2, room), np.int64)
        self.whats = np.empty(room, np.uint8)
        self.head, self.tail = np.empty((2, stream_index.shape[0]), np.int64)
        self.heap = np.empty(stream_index.shape[0], np.int32)
        self.times = np.empty((3, layer.shape[0] + 1), np.int64)
        self.binding = np.empty(layer.shape[0] + 1, np.uint8)
        self.registers = np.empty(0, np.int64)

    def of_rows(
        self,
        const int64_t[::1] begin,
        const int64_t[::1] end,
        const int64_t[::1] wire,
        int64_t until,
    ):
        """Add up the rows of a rank.

        Parameters
        ----------
        begin, end, wire : int64, shape (n,)
            As in `mpisim.engine.rows.Rows`, in ps.
        until : int
            End of the run: what lies after it, or before 0, covers nothing.

        Returns
        -------
        covered : int64, shape (5,)
            Time covered by kernels; kernels and copies; communications, waiting included; work on
            the device, waiting excluded; anything.
        sums : int64, shape (3, n_keys)
            Time, waiting time and longest time of the rows of each key.
        """
        covered = np.zeros(N_SETS, np.int64)
        sums = np.zeros((3, self.n_keys), np.int64)
        self.add(&begin[0], &end[0], &wire[0], until, covered, sums)
        return covered, sums

    def of_rank(
        self,
        lowered,
        const int64_t[::1] durations,
        int64_t start,
        const int64_t[::1] communication_start,
        const int64_t[::1] communication_end,
        int64_t until,
    ):
        """Replay a rank (see `rows_of`) and add up its rows: also its last clock is returned."""
        cdef const Instruction[::1] instructions = lowered.instructions
        cdef const int32_t[::1] operands = lowered.operands
        cdef RowTimes rows
        if self.registers.shape[0] < lowered.n_registers:
            self.registers = np.empty(lowered.n_registers, np.int64)
        covered = np.zeros(N_SETS, np.int64)
        sums = np.zeros((3, self.n_keys), np.int64)
        rows.begin, rows.end, rows.wire = &self.times[0, 0], &self.times[1, 0], &self.times[2, 0]
        rows.binding = &self.binding[0]
        with nogil:
            start = replay(
                &instructions[0], &operands[0], &self.registers[0], instructions.shape[0],
                &durations[0], start, &communication_start[0], &communication_end[0], rows,
            )
        self.add(rows.begin, rows.end, rows.wire, until, covered, sums)
        return covered, sums, start

    cdef void add(
        self, const int64_t* begin, const int64_t* end, const int64_t* wire, int64_t until,
        int64_t[::1] covered, int64_t[:, ::1] sums,
    ):
        # Local pointers: what is stored by one could change a member, for all the compiler knows.
        cdef const int32_t* order = &self.order[0]
        cdef const int32_t* key = &self.key[0]
        cdef const uint8_t* layer = &self.layer[0]
        cdef const int64_t* index = &self.stream_index[0]
        cdef int64_t* spent = &sums[0, 0]
        cdef int64_t* waited = spent + self.n_keys
        cdef int64_t* longest = waited + self.n_keys
        cdef int64_t* head = &self.head[0]
        cdef int64_t* tail = &self.tail[0]
        cdef int32_t* heap = &self.heap[0]
        cdef Py_ssize_t n_streams = self.stream_index.shape[0] - 1, s, i
        cdef int64_t n = 0, left = 0, at, row, length
        cdef int32_t k
        cdef Intervals of
        of.begin, of.end, of.what = &self.begins[0], &self.ends[0], &self.whats[0]
        with nogil:
            for s in range(n_streams):
                head[s] = n
                for i in range(index[s], index[s + 1]):
                    row = order[i]
                    k = key[row]
                    length = end[row] - wire[row]
                    spent[k] += length
                    longest[k] = max(longest[k], length)
                    if layer[row] == WIRE:
                        waited[k] += wire[row] - begin[row]
                        n = added(&of, head[s], n, begin[row], wire[row], WAITING, until)
                    n = added(&of, head[s], n, wire[row], end[row], layer[row], until)
                tail[s] = n
                if n > head[s]:
                    heap[left] = <int32_t>s
                    left += 1
            for at in range(left - 1, -1, -1):
                sift(heap, at, left, head, of.begin)
            cover(heap, left, head, tail, of, &covered[0])
