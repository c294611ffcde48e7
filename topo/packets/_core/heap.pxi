# Included by simulator.pyx.
# A binary heap of events: the earliest at the top; of equally early ones, what was pushed first.

cdef struct Event:
    int64_t time
    int64_t order
    int32_t kind
    int32_t item


cdef inline bint earlier(const Event* a, const Event* b) noexcept nogil:
    return a.time < b.time or (a.time == b.time and a.order < b.order)


cdef inline void rise(Event* heap, int64_t at) noexcept nogil:
    """Move an entry up to where it belongs."""
    cdef Event event = heap[at]
    cdef int64_t parent
    while at:
        parent = (at - 1) >> 1
        if not earlier(&event, &heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = event


cdef inline void sink(Event* heap, int64_t n) noexcept nogil:
    """Move the top down to where it belongs."""
    cdef Event event = heap[0]
    cdef int64_t at = 0, child = 1
    while child < n:
        if child + 1 < n and earlier(&heap[child + 1], &heap[child]):
            child += 1
        if not earlier(&heap[child], &event):
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = event
