# What other compiled modules see of the sharing of links by flows: see sharing.pyx.

cimport cython
from libc.stdint cimport int32_t, int64_t

cdef extern from *:
    # Cython has no name for it, and takes it for the widest integer that it knows: fit for sums,
    # products and comparisons whose terms are cast, not for anything that becomes a Python object.
    ctypedef long long int128_t "__int128"

cdef struct Entry:  # of a heap
    int64_t key
    int64_t item

cdef struct Passage:  # of a flow over a link
    int64_t weight
    int32_t flow
    int32_t leg  # which of the flow's links it is

cdef struct Link:
    int128_t capacity  # scaled 2**20, as are demand and left
    int128_t demand  # of active flows, each at its cap
    int128_t left  # by flows that have their rate; while filling
    int64_t weight  # sum over active flows
    int64_t filling  # sum over flows without a rate; while filling
    int64_t reached  # number of the last solve that came here
    Passage* passages
    int32_t n_passages
    int32_t room
    bint binds
    bint changed

cdef struct Flow:
    int128_t remaining  # payload at the time `settled`, unit 2**-40 byte
    int64_t settled
    int64_t rate
    int64_t cap
    int64_t level  # the rate to come; 0 while filling has not fixed it
    int64_t end
    int64_t tag
    int64_t reached
    int64_t first_leg
    int32_t n_legs
    int32_t room
    int32_t* place  # of each leg among the passages of its link
    int64_t at  # its place in the heap of ends


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
    cdef int64_t* alone
    cdef int64_t n_links, n_slots, n_ends, n_changed, n_begun, n_component, n_levels, n_rising
    cdef int64_t n_log, log_room
    cdef bint record
    cdef object kept
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

    cdef void reserve(self, int64_t flow) noexcept nogil
    cdef void attach(self, int64_t number) noexcept nogil
    cdef void detach(self, int64_t number) noexcept nogil
    cdef inline void mark(self, int64_t link) noexcept nogil
    cdef inline void visit(self, int64_t number) noexcept nogil
    cdef inline void visit_all(self, Link* link) noexcept nogil
    cdef void reach(self) noexcept nogil
    cdef void fill(self) noexcept nogil
    cdef void fill_links(self, int64_t level) noexcept nogil
    cdef inline void fix(self, Flow* flow, int64_t rate) noexcept nogil
    cdef inline void change(self, Flow* flow, int64_t number, int64_t time) noexcept nogil
    cdef void rise(self, int64_t at) noexcept nogil
    cdef void sink(self, int64_t at) noexcept nogil
    cdef void write(self, int64_t time, int64_t tag, int64_t rate) noexcept nogil
