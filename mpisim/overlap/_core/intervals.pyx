# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Intervals of time with equal load of communications on a GPU.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int64_t


def interval_loads(
    const int64_t[::1] first,
    const int64_t[::1] moving,
    const int64_t[::1] last,
    const int64_t[::1] taken,
    const int64_t[::1] bandwidth,
    const int64_t[::1] order,
    Py_ssize_t n,
):
    """Add up the load of communications in each of n intervals.

    Parameters
    ----------
    first, moving, last : int64, shape (m,)
        Interval from which each occupies multiprocessors, from which it uses bandwidth too, and
        until which.
    taken, bandwidth : int64, shape (m,)
    order : int64, shape (m,)
        Of several that move data in an interval, the last in this order counts.

    Returns
    -------
    int64, float64, int64, shape (n,)
        Multiprocessors, bandwidth, and the communication that counts; -1: none.
    """
    takens, useds = np.zeros(n, np.int64), np.zeros(n, np.int64)
    whiches = np.full(n, -1, np.int64)
    cdef int64_t[::1] of_taken = takens, of_used = useds, of_which = whiches
    cdef Py_ssize_t k, i, m = first.shape[0]
    cdef int64_t at
    with nogil:
        for k in range(m):
            i = order[k]
            of_taken[first[i]] += taken[i]
            of_taken[last[i]] -= taken[i]
            of_used[moving[i]] += bandwidth[i]
            of_used[last[i]] -= bandwidth[i]
            for at in range(moving[i], last[i]):
                of_which[at] = i
        for at in range(1, n):
            of_taken[at] += of_taken[at - 1]
            of_used[at] += of_used[at - 1]
    return takens, useds.astype(float), whiches
