# What `flow_schedule` sees of a simulation of contended flows: see flow_timeline.pyx.

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from .fluid cimport int128_t
from .sharing cimport Sharing

cdef extern from "sort.h":
    ctypedef struct SortEntry:
        int64_t key
        int64_t item

    void sort_entries(SortEntry* entries, SortEntry* scratch, int64_t n) noexcept nogil

cdef extern from *:
    """
    static const int64_t ABSENT = ((int64_t)1 << 62) - 1;
    """
    # Begin and end of a flow that is not known to begin; twice that, and one, is still an int64.
    const int64_t ABSENT


cdef struct FlowTimes:  # flows, and what of them has changed
    int64_t* begin
    int64_t* end
    int64_t* simulated  # when each began when it was simulated last
    int32_t* slot  # its number among active flows while simulated, or -1
    const uint8_t* contended
    const int32_t* price
    const int32_t* route
    const int64_t* volume  # of each price
    const int64_t* rate
    const int64_t* group  # of each route
    int64_t* since  # of each group, from when on its flows may be under way at other times
    int64_t* until  # of each group, until when


cdef inline void note(FlowTimes* flows, int64_t flow, int64_t begin, int64_t end) noexcept nogil:
    """Note that a flow was, or is, under way from `begin` to `end`, and has changed."""
    cdef int64_t group = flows.group[flows.route[flow]]
    if begin < ABSENT:
        flows.since[group] = min(flows.since[group], begin)
        flows.until[group] = max(flows.until[group], begin)
        if end < ABSENT:
            flows.until[group] = max(flows.until[group], end)


cdef struct Held:  # an active flow, and what remains of it
    int64_t flow
    int128_t remaining


cdef struct Snapshot:
    int64_t time
    int64_t n
    Held* held


@cython.final
cdef class Timeline:
    cdef SortEntry* entries
    cdef SortEntry* changed
    cdef SortEntry* scratch
    cdef Snapshot* snapshots
    cdef Snapshot* later
    cdef int64_t* holder
    cdef int64_t* spare
    cdef int64_t n_entries, room, n_changed, changed_room, scratch_room
    cdef uint8_t* dirty  # of each interval
    cdef int64_t between, n_snapshots, n_later, next_later, snapshots_room, n_slots
    cdef int64_t n_active, last_dirty
    cdef readonly int64_t n_begun

    cdef bint simulate(
        self, FlowTimes* flows, Sharing sharing, const int64_t* first, const int64_t* groups,
        int64_t n_groups) noexcept nogil
    cdef bint take_changes(
        self, FlowTimes* flows, const int64_t* first, const int64_t* groups, int64_t n_groups
    ) noexcept nogil
    cdef void merge_changes(self, FlowTimes* flows) noexcept nogil
    cdef bint play(self, FlowTimes* flows, Sharing sharing) noexcept nogil
    cdef int64_t resume(self, FlowTimes* flows, Sharing sharing) noexcept nogil
    cdef void mark_dirty(self, int64_t time) noexcept nogil
    cdef bint keep(self, int64_t interval) noexcept nogil
    cdef void leave(self, FlowTimes* flows, Sharing sharing) noexcept nogil
    cdef void take_snapshot(self, Sharing sharing, int64_t time) noexcept nogil
    cdef bint is_as_before(
        self, FlowTimes* flows, Sharing sharing, const Snapshot* before) noexcept nogil
    cdef int64_t first_from(self, int64_t time) noexcept nogil
    cdef void add_slots(self) noexcept nogil
