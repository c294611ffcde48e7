# cython: cdivision=True
# State of links and flows of `sharing`, arithmetic of rates and times, and the heap of ends.

from libc.stdint cimport INT64_MAX, int32_t, int64_t

from .heap cimport Entry, before

cdef extern from *:
    # Cython has no name for it, and takes it for the widest integer that it knows: fit for sums,
    # products and comparisons whose terms are cast, not for anything that becomes a Python object.
    ctypedef long long int128_t "__int128"

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
    int128_t remaining  # payload at the time `updated`, unit 2**-40 byte
    int64_t updated
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
    int64_t at  # in the heap of ends


cdef inline int64_t level_of(const Link* link) noexcept nogil:
    """The rate of all flows without one at which a link is full; 1 or more, so that all move."""
    if link.left < link.filling:
        return 1
    return quotient(link.left, link.filling)


cdef inline int64_t quotient(int128_t a, int64_t b) noexcept nogil:
    """a / b of positive integers; INT64_MAX where it is more."""
    if a <= INT64_MAX:  # a division of 64 bits is several times faster
        return <int64_t>a / b
    a /= b
    return <int64_t>a if a <= INT64_MAX else INT64_MAX


cdef inline int64_t end_of(int64_t time, int128_t remaining, int64_t rate) noexcept nogil:
    """When a flow ends that goes on at a rate; INT64_MAX where int64 cannot hold it."""
    if remaining <= 0:
        return time
    return time + min(quotient(remaining + rate - 1, rate), INT64_MAX - max(time, 0))


cdef inline void transfer(Flow* flow, int64_t time) noexcept nogil:
    """Bring what remains of a flow up to date."""
    flow.remaining -= <int128_t>flow.rate * (time - flow.updated)
    flow.updated = time


cdef inline void rise(Entry* ends, Flow* flows, int64_t at) noexcept nogil:
    """Move an entry of the heap of ends up to where it belongs."""
    cdef Entry entry = ends[at]
    cdef int64_t parent
    while at:
        parent = (at - 1) // 2
        if not before(&entry, &ends[parent]):
            break
        ends[at] = ends[parent]
        flows[ends[at].item].at = at
        at = parent
    ends[at] = entry
    flows[entry.item].at = at


cdef inline void sink(Entry* ends, int64_t n, Flow* flows, int64_t at) noexcept nogil:
    """Move an entry of the heap of ends down to where it belongs."""
    cdef Entry entry = ends[at]
    cdef int64_t child = 2 * at + 1
    while child < n:
        if child + 1 < n and before(&ends[child + 1], &ends[child]):
            child += 1
        if before(&entry, &ends[child]):
            break
        ends[at] = ends[child]
        flows[ends[at].item].at = at
        at = child
        child = 2 * at + 1
    ends[at] = entry
    flows[entry.item].at = at
