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
    const int64_t[::1] by_stream,
    const int64_t[::1] streams,
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
    by_stream : int64, shape (m,)
        Communications stream by stream. Moments of one stream are nearly always in order.
    streams : int64, shape (n_streams + 1,)
        Where each stream begins there.

    Returns
    -------
    time : int64, shape (n,)
        Where each part begins, ascending; the last one has no load.
    taken : int64, shape (n,)
    bandwidth : float64, shape (n,)
    which : int64, shape (n,)
        Of the communication that counts; -1: none moves data.
    """
    cdef Py_ssize_t m = begin.shape[0], n = 0, count = 0, last = 0, i, k, at, s
    cdef bint in_order
    cdef int64_t[:, ::1] room = np.empty((2, 6 * m + 2), np.int64)
    cdef SortEntry* entries = <SortEntry*>&room[0, 0]
    cdef SortEntry* other = <SortEntry*>&room[1, 0]
    cdef int64_t[::1] place = np.empty(3 * m + 1, np.int64)
    times = np.empty(3 * m, np.int64)
    cdef int64_t[::1] time = times
    with nogil:
        for s in range(streams.shape[0] - 1):
            last, in_order = count, True
            for k in range(streams[s], streams[s + 1]):
                i = by_stream[k]
                if end[i] <= begin[i]:
                    continue
                in_order = in_order and (count == last or entries[count - 1].key <= begin[i])
                entries[count].key, entries[count].item = begin[i], 3 * i
                entries[count + 1].key, entries[count + 1].item = wire[i], 3 * i + 1
                entries[count + 2].key, entries[count + 2].item = end[i], 3 * i + 2
                count += 3
            if not in_order:
                sort_entries(entries + last, other, count - last)
            if last > 0 and last < count and entries[last].key < entries[last - 1].key:
                merge(entries, last, count, other)
                entries, other = other, entries
        for at in range(count):
            if at == 0 or entries[at].key != entries[at - 1].key:
                time[n] = entries[at].key
                n += 1
            place[entries[at].item] = n - 1
    takens, useds = np.zeros(n, np.int64), np.zeros(n, np.int64)
    whiches = np.full(n, -1, np.int64)
    cdef int64_t[::1] of_taken = takens, of_used = useds, of_which = whiches
    with nogil:
        for k in range(m):
            i = order[k]
            if end[i] <= begin[i]:
                continue
            of_taken[place[3 * i]] += taken[i]
            of_taken[place[3 * i + 2]] -= taken[i]
            of_used[place[3 * i + 1]] += bandwidth[i]
            of_used[place[3 * i + 2]] -= bandwidth[i]
            for at in range(place[3 * i + 1], place[3 * i + 2]):
                of_which[at] = which[i]
        for at in range(1, n):
            of_taken[at] += of_taken[at - 1]
            of_used[at] += of_used[at - 1]
    return times[:n], takens, useds.astype(float), whiches


cdef void merge(
    const SortEntry* entries, Py_ssize_t middle, Py_ssize_t end, SortEntry* out
) noexcept nogil:
    """Merge the entries up to `middle` with those after it."""
    cdef Py_ssize_t a = 0, b = middle, at
    for at in range(end):
        if b == end or (a < middle and entries[a].key <= entries[b].key):
            out[at] = entries[a]
            a += 1
        else:
            out[at] = entries[b]
            b += 1
