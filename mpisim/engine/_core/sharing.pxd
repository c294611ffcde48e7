# What other compiled modules see of the sharing of links by flows: see sharing.pyx.

cimport cython
from libc.stdint cimport int64_t

from .fluid cimport Flow, Link, int128_t
from .heap cimport Entry


@cython.final
cdef class Sharing:
    cdef Link* links
    cdef Flow* flows
    cdef Entry* ends
    cdef Entry* caps
    cdef Entry* levels
    cdef int64_t* changed
    cdef int64_t* begun
    cdef int64_t* component
    cdef int64_t* log
    cdef const int64_t* route_index
    cdef const int64_t* route_link
    cdef const int64_t* route_weight
    cdef int64_t n_links, n_slots, n_ends, n_changed, n_begun, n_component, n_levels, n_rising
    cdef int64_t n_log, log_room
    cdef bint record
    cdef object references
    cdef readonly int64_t n_solves, n_solved

    cpdef void begin(
        self, int64_t flow, int64_t route, int64_t time, int64_t volume, int64_t cap,
        int64_t tag=*) noexcept nogil
    cpdef void solve(self, int64_t time) noexcept nogil
    cpdef int64_t next_end(self) noexcept nogil
    cpdef int64_t pop_ended(self, int64_t time) noexcept nogil
    cpdef int64_t bound(self, int64_t flow, int64_t time) noexcept nogil
    cpdef int64_t rate(self, int64_t flow) noexcept nogil
    cpdef int64_t end(self, int64_t flow) noexcept nogil

    cdef void enter(
        self, int64_t flow, int64_t route, int64_t time, int128_t remaining, int64_t cap
    ) noexcept nogil
    cdef int64_t links_in_use(self) noexcept nogil
    cdef void clear(self) noexcept nogil
    cdef void reserve(self, int64_t flow) noexcept nogil
    cdef void attach(self, int64_t number) noexcept nogil
    cdef void detach(self, int64_t number) noexcept nogil
    cdef inline void mark_changed(self, int64_t link) noexcept nogil
    cdef inline void visit(self, int64_t number) noexcept nogil
    cdef inline void visit_all(self, Link* link) noexcept nogil
    cdef void find_component(self) noexcept nogil
    cdef void fill(self) noexcept nogil
    cdef void fill_links(self, int64_t level) noexcept nogil
    cdef inline void fix_rate(self, Flow* flow, int64_t rate) noexcept nogil
    cdef inline void apply_rate(self, Flow* flow, int64_t number, int64_t time) noexcept nogil
    cdef void log_change(self, int64_t time, int64_t tag, int64_t rate) noexcept nogil
