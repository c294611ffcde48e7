# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Where the time of ranks went: sums over their rows, and the time that parts of the step cover.

accounts.h does the work, and says why it is right; here is its memory, kept from call to call.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .common cimport Instruction

cdef extern from "accounts.h":
    const int LANES, MAX_PARTS

    ctypedef struct List:
        int64_t* begin
        int64_t* end
        uint8_t* part
        int64_t stride
        int64_t n
        const int64_t* total

    ctypedef struct Parts:
        int64_t n
        int64_t n_compute
        int64_t n_device

    ctypedef struct Entry:
        int32_t key
        int32_t stream
        uint8_t part
        uint8_t waiting
        uint8_t chained

    ctypedef struct Lanes:
        const Instruction* code
        const int32_t* operands
        int64_t n_rows
        int64_t until
        const Entry* entry
        const int64_t** duration
        const uint64_t* factor
        const uint64_t* key
        const uint64_t* jitter
        const int64_t** start
        const int64_t** finish
        int64_t* registers
        int64_t* clock
        int64_t* spent
        int64_t* waited
        int64_t* longest
        int64_t* chain_begin
        int64_t* chain_end
        int64_t* chained
        uint8_t* chain_part
        Parts parts
        List* list
        int64_t n_lists
        int64_t n_chain
        int one_duration
        int whole

    int communicates(const Parts* parts, int64_t part) noexcept nogil
    void insert(List* list, int64_t begin, int64_t end, uint8_t part) noexcept nogil
    void cover(
        List* list, int64_t n_lists, int32_t* heap, const Parts* parts, int64_t* covered
    ) noexcept nogil
    void account_lanes(Lanes* t) noexcept nogil

N_LANES = LANES
"""Ranks that `Ledger.of_ranks` adds up at a time."""

MOST_PARTS = MAX_PARTS
"""Parts of a step that a `Ledger` tells apart."""


cdef class Ledger:
    """Adds up the rows of ranks of one table. Scratch is kept from call to call.

    Parameters
    ----------
    order : int32
        Rows to add up, stream by stream.
    stream_index : int64, shape (n_streams + 1,)
        Stream s has the rows ``order[stream_index[s]:stream_index[s + 1]]``.
    part : uint8, shape (n,)
        Of the step, that each row is; of a communication while it moves bytes. Where several are
        under way, the lowest counts.
    waiting : uint8, shape (n,)
        Part of a communication until its last member is ready; other rows: not read.
    key : int32, shape (n,)
        What each row is added up under, 0 to n_keys - 1.
    n_keys : int
    n_parts, n_compute, n_device : int
        Parts that there are, at most `MOST_PARTS`; those below `n_compute` compute, those below
        `n_device` communicate, in the others the device waits for the host.
    """

    cdef const int32_t[::1] order
    cdef const int64_t[::1] stream_index
    cdef int64_t n_keys, n_streams, n_chained
    cdef object of_entries, of_times, of_parts, of_lists  # memory that pointers below are of
    cdef Entry* entry
    cdef List* list
    cdef int64_t[:, :, ::1] chain
    cdef uint8_t[::1] chain_part
    cdef int64_t[::1] registers
    cdef int32_t[::1] heap
    cdef int64_t room
    cdef Parts parts
    cdef int64_t* times
    cdef int64_t n_laid_out

    def __init__(
        self,
        const int32_t[::1] order,
        const int64_t[::1] stream_index,
        const uint8_t[::1] part,
        const uint8_t[::1] waiting,
        const int32_t[::1] key,
        int64_t n_keys,
        int64_t n_parts,
        int64_t n_compute,
        int64_t n_device,
    ):
        cdef int64_t s, i, n = part.shape[0]
        cdef Entry* entry
        self.order, self.stream_index, self.n_keys = order, stream_index, n_keys
        self.n_streams = stream_index.shape[0] - 1
        self.parts.n, self.parts.n_compute, self.parts.n_device = n_parts, n_compute, n_device
        self.room = 2 * order.shape[0] + 1  # communications wait, and then move data
        self.of_entries = np.zeros((n + 1) * sizeof(Entry), np.uint8)
        cdef uint8_t[::1] entries = self.of_entries
        self.entry = <Entry*>&entries[0]
        for i in range(n):
            self.entry[i].key = -1
        sizes = np.diff(stream_index)
        chained = np.zeros(self.n_streams + 1, np.uint8)
        chained[np.argsort(-sizes, kind="stable")[:2]] = 1
        cdef const uint8_t[::1] is_chained = chained
        self.n_chained = 0
        for s in range(self.n_streams):
            self.n_chained += is_chained[s] * (stream_index[s + 1] - stream_index[s])
            for i in range(stream_index[s], stream_index[s + 1]):
                entry = self.entry + order[i]
                entry.key, entry.stream = key[order[i]], <int32_t>s
                entry.part, entry.waiting = part[order[i]], waiting[order[i]]
                entry.chained = is_chained[s]
        self.heap = np.empty(self.n_streams + 2, np.int32)
        self.registers = np.empty(0, np.int64)
        self.chain = np.empty((0, 0, LANES), np.int64)
        self.n_laid_out = 0

    cdef lay_out(self, int64_t lanes):
        """Provide the lists of so many lanes: each with one for the chain and one a stream."""
        cdef int64_t l, s, n_lists = self.n_streams + 1
        cdef List* one
        if self.n_laid_out < lanes:
            self.of_times = np.empty((2, lanes, self.room), np.int64)
            self.of_parts = np.empty((lanes, self.room), np.uint8)
            self.of_lists = np.zeros(lanes * n_lists * sizeof(List), np.uint8)
            self.n_laid_out = lanes
        cdef int64_t[:, :, ::1] times = self.of_times
        cdef uint8_t[:, ::1] parts = self.of_parts
        cdef uint8_t[::1] lists = self.of_lists
        self.list = <List*>&lists[0]
        for l in range(lanes):
            self.list[l * n_lists].n, self.list[l * n_lists].total = 0, NULL
            for s in range(self.n_streams):
                one = &self.list[l * n_lists + 1 + s]
                one.begin = &times[0, l, 2 * self.stream_index[s]]
                one.end = &times[1, l, 2 * self.stream_index[s]]
                one.part = &parts[l, 2 * self.stream_index[s]]
                one.stride, one.n = 1, 0

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
        covered : int64, shape (n_parts + 1,)
            Time of each part, and the time in which any communication was under way.
        sums : int64, shape (3, n_keys)
            Time, waiting time and longest time of the rows of each key.
        """
        covered, sums = np.zeros(self.parts.n + 1, np.int64), np.zeros((3, self.n_keys), np.int64)
        cdef int64_t[::1] found = covered
        cdef int64_t[:, ::1] sum_of = sums
        cdef int64_t i, row, length
        cdef const Entry* x
        cdef List* one
        self.lay_out(1)
        with nogil:
            for i in range(self.order.shape[0]):
                row = self.order[i]
                x = self.entry + row
                one = self.list + 1 + x.stream
                length = end[row] - wire[row]
                sum_of[0, x.key] += length
                sum_of[2, x.key] = max(sum_of[2, x.key], length)
                if communicates(&self.parts, x.part):
                    sum_of[1, x.key] += wire[row] - begin[row]
                    clipped(one, begin[row], wire[row], x.waiting, until)
                clipped(one, wire[row], end[row], x.part, until)
            cover(self.list, self.n_streams + 1, &self.heap[0], &self.parts, &found[0])
        return covered, sums

    def of_ranks(
        self, lowered, durations, factors, const int64_t[::1] start, communications, int64_t until
    ):
        """Replay up to `N_LANES` ranks (see `rows_of`), and add up their rows.

        Parameters
        ----------
        lowered : mpisim.engine.lowering.LoweredTable
            Of all `h` of them.
        durations : list of int64 arrays, shape (n,)
            Of the rows of each, in ps, but for `factors`.
        factors : tuple of (uint64, shape (h,), uint64, shape (h,), table), or None
            Of the ranks, as in `mpisim.engine.duration_factors.DurationFactors`.
        start : int64, shape (h,)
            Of each, in ps.
        communications : list of (int64, shape (m,), int64, shape (m,))
            When each communication of each rank began and ended.
        until : int
            End of the run: what lies after it, or before 0, covers nothing.

        Returns
        -------
        covered : int64, shape (h, n_parts + 1)
        sums : int64, shape (h, 3, n_keys)
            As `of_rows` returns them.
        host_end : int64, shape (h,)
        """
        cdef const Instruction[::1] instructions = lowered.instructions
        cdef const int32_t[::1] operands = lowered.operands
        cdef const int64_t[::1] one, other
        cdef const int64_t[:, :, ::1] known
        cdef Lanes t
        cdef int64_t h = len(durations), l
        which = list(range(h)) + [h - 1] * (LANES - h)  # the last again: nobody reads these lanes
        for l in range(LANES):
            one = durations[which[l]]
            t.duration[l] = &one[0]
            one, other = communications[which[l]]
            t.start[l], t.finish[l] = &one[0], &other[0]
        t.one_duration = all(each is durations[0] for each in durations)
        clocks = np.asarray(start)[which]
        covered = np.zeros((h, self.parts.n + 1), np.int64)
        sums = np.zeros((3, self.n_keys, LANES), np.int64)
        cdef int64_t[:, ::1] chained = np.zeros((self.parts.n, LANES), np.int64)
        cdef int64_t[::1] clock = clocks
        cdef int64_t[:, ::1] found = covered
        cdef int64_t[:, :, ::1] sum_of = sums
        cdef const uint64_t[::1] factor, key, jitter
        t.factor = t.key = t.jitter = NULL
        t.whole = False
        if factors is not None:
            factor_array, key_array, table = factors
            factor, key = np.asarray(factor_array)[which], np.asarray(key_array)[which]
            t.factor, t.key = &factor[0], &key[0]
            t.whole = bool((np.asarray(factor_array) == 1 << 32).all())
            if table is not None:
                jitter = table
                t.jitter = &jitter[0]
            elif t.whole:
                t.factor = NULL
        if self.registers.shape[0] < lowered.n_registers * LANES:
            self.registers = np.empty(lowered.n_registers * LANES, np.int64)
        if self.chain.shape[0] == 0:
            self.chain = np.empty((2, 2 * self.n_chained + 1, LANES), np.int64)
            self.chain_part = np.empty(2 * self.n_chained + 1, np.uint8)
        self.lay_out(LANES)
        t.code, t.operands, t.n_rows = &instructions[0], &operands[0], instructions.shape[0]
        t.parts = self.parts
        t.until, t.entry, t.clock = until, self.entry, &clock[0]
        t.registers = &self.registers[0]
        t.spent, t.waited, t.longest = &sum_of[0, 0, 0], &sum_of[1, 0, 0], &sum_of[2, 0, 0]
        t.chain_begin, t.chain_end = &self.chain[0, 0, 0], &self.chain[1, 0, 0]
        t.chain_part, t.chained = &self.chain_part[0], &chained[0, 0]
        t.list, t.n_lists = self.list, self.n_streams + 1
        # The first entry is empty.
        for l in range(LANES):  # one by one: Cython 3.2 takes chain[:, 0] for contiguous
            self.chain[0, 0, l] = self.chain[1, 0, l] = 0
        self.chain_part[0] = 0
        t.n_chain = 1
        with nogil:
            account_lanes(&t)
            for l in range(h):
                self.list[l * t.n_lists].begin = t.chain_begin + l
                self.list[l * t.n_lists].end = t.chain_end + l
                self.list[l * t.n_lists].part = t.chain_part
                self.list[l * t.n_lists].total = t.chained + l
                self.list[l * t.n_lists].stride, self.list[l * t.n_lists].n = LANES, t.n_chain
                cover(
                    &self.list[l * t.n_lists], t.n_lists, &self.heap[0], &self.parts, &found[l, 0]
                )
        return covered, np.moveaxis(sums, 2, 0)[:h], clocks[:h]


cdef inline void clipped(
    List* one, int64_t begin, int64_t end, uint8_t part, int64_t until
) noexcept nogil:
    """Put what lies in [0, until] of an interval into a list."""
    begin, end = max(begin, 0), min(end, until)
    if begin < end:
        insert(one, begin, end, part)
