# cython: cdivision=True
# Heaps of (key, item), the least key at the top.

from libc.stdint cimport int64_t

cdef struct Entry:
    int64_t key
    int64_t item


cdef inline bint before(const Entry* a, const Entry* b) noexcept nogil:
    return a.key < b.key or (a.key == b.key and a.item < b.item)


cdef inline void sift(Entry* heap, int64_t n, int64_t at) noexcept nogil:
    """Move an entry down to where it belongs."""
    cdef Entry entry = heap[at]
    cdef int64_t child = 2 * at + 1
    while child < n:
        if child + 1 < n and heap[child + 1].key < heap[child].key:
            child += 1
        if entry.key <= heap[child].key:
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = entry


cdef inline void take(Entry* heap, int64_t* n) noexcept nogil:
    """Take the top off, and leave it behind the last entry."""
    cdef Entry top = heap[0]
    n[0] -= 1
    heap[0] = heap[n[0]]
    heap[n[0]] = top
    sift(heap, n[0], 0)


cdef inline void heapify(Entry* heap, int64_t n) noexcept nogil:
    cdef int64_t at
    for at in range(n // 2 - 1, -1, -1):
        sift(heap, n, at)
