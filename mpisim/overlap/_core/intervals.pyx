# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Intervals of time with equal load of communications on a GPU.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int64_t

cdef extern from "../../engine/_core/sort.h":
    ctypedef struct SortEntry:
        int64_t key
        int64_t item

    void sort_entries(SortEntry* entries, SortEntry* scratch, int64_t n) noexcept nogil


def interval_loads(
    const int64_t[::1] begin,
    const int64_t[::1] wire,
    const int64_t[::1] end,
    const int64_t[::1] taken,
    const int64_t[::1] bandwidth,
    const int64_t[::1] which,
    const int64_t[::1] order,
):
    """Cut time where a communication begins, moves data or ends, and add up the load of each part.

    Parameters
    ----------
    begin, wire, end : int64, shape (m,)
        Of each communication, in ps. Those that take no time do not count.
    taken, bandwidth : int64, shape (m,)
        What each occupies from its begin, and what it uses from then on when it moves data.
    which : int64, shape (m,)
        What each is, 0 or more.
    order : int64, shape (m,)
        Of several that move data at a time, the last in this order counts.

    Returns
    -------
    time : int64, shape (n,)
        Where each part begins, ascending; the last one has no load.
    taken : int64, shape (n,)
    bandwidth : float64, shape (n,)
    which : int64, shape (n,)
        Of the communication that counts; -1: none moves data.
    """
    cdef Py_ssize_t m = begin.shape[0], n = 0, count = 0, i, k, at
    cdef int64_t[:, ::1] room = np.empty((2, 6 * m), np.int64)
    cdef SortEntry* entries = <SortEntry*>&room[0, 0] if m else NULL
    cdef int64_t[:, ::1] place = np.empty((3, m), np.int64)
    times = np.empty(3 * m, np.int64)
    cdef int64_t[::1] time = times
    with nogil:
        for k in range(3):  # in this order streams are in order
            for i in range(m):
                if end[i] > begin[i]:
                    entries[count].key = begin[i] if k == 0 else wire[i] if k == 1 else end[i]
                    entries[count].item = k * m + i
                    count += 1
        if count:
            sort_entries(entries, <SortEntry*>&room[1, 0], count)
        for at in range(count):
            if at == 0 or entries[at].key != entries[at - 1].key:
                time[n] = entries[at].key
                n += 1
            place[entries[at].item // m, entries[at].item % m] = n - 1
    takens, useds = np.zeros(n, np.int64), np.zeros(n, np.int64)
    whiches = np.full(n, -1, np.int64)
    cdef int64_t[::1] of_taken = takens, of_used = useds, of_which = whiches
    with nogil:
        for k in range(m):
            i = order[k]
            if end[i] <= begin[i]:
                continue
            of_taken[place[0, i]] += taken[i]
            of_taken[place[2, i]] -= taken[i]
            of_used[place[1, i]] += bandwidth[i]
            of_used[place[2, i]] -= bandwidth[i]
            for at in range(place[1, i], place[2, i]):
                of_which[at] = which[i]
        for at in range(1, n):
            of_taken[at] += of_taken[at - 1]
            of_used[at] += of_used[at - 1]
    return times[:n], takens, useds.astype(float), whiches
