# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Intervals of time with equal load of communications on a GPU, and how far kernels get in them.

Callers are trusted: no index is checked. Each kernel is worked out by itself, in one order, so its
result does not depend on the others passed beside it.
"""

import numpy as np

from libc.stdint cimport int64_t, uint8_t


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


cdef inline Py_ssize_t cross_unloaded(
    Py_ssize_t at,
    int64_t begin,
    double* spent,
    double* left,
    const int64_t[::1] time,
    const uint8_t[::1] busy,
    const int64_t[::1] following,
) noexcept nogil:
    """Take a kernel over intervals without load; return the next interval with load, -2 if it ends.

    `following` is the next interval with load from each on, beginning with -1; n if there is none.
    """
    cdef Py_ssize_t n = busy.shape[0], to
    cdef double room, needed
    if at >= 0 and busy[at]:
        return at
    to = following[at + 1]
    needed = left[0]
    if to == n:
        spent[0] += needed
        return -2
    room = <double>(time[to] - begin) - spent[0]
    if needed <= room:
        spent[0] += needed
        return -2
    spent[0] += room
    left[0] -= room
    return to


def start_kernels(
    const int64_t[::1] begin,
    const double[::1] lasting,
    int64_t[::1] interval,
    const int64_t[::1] time,
    const uint8_t[::1] busy,
    const int64_t[::1] following,
):
    """Start kernels, each up to its first interval with load.

    Parameters
    ----------
    begin : int64, shape (k,)
    lasting : float64, shape (k,)
    interval : int64, shape (k,)
        In which each begins, -1 before the first; overwritten by the one that it has reached.
    time : int64, shape (n,)
        Of the beginning of each interval.
    busy : uint8, shape (n,)
        Whether each has load.
    following : int64, shape (n + 1,)
        The next interval with load at or after each, beginning with -1; n: none.

    Returns
    -------
    spent, left : float64, shape (k,)
        Time that has passed, and what is left to do, in time alone.
    rows : int64
        Kernels that are not done.
    """
    cdef Py_ssize_t i, at, count = 0, k = begin.shape[0]
    spents, lefts = np.zeros(k), np.array(lasting)
    rows = np.empty(k, np.int64)
    cdef double[::1] spent = spents, left = lefts
    cdef int64_t[::1] going = rows
    with nogil:
        for i in range(k):
            at = cross_unloaded(interval[i], begin[i], &spent[i], &left[i], time, busy, following)
            if at >= 0:
                interval[i] = at
                going[count] = i
                count += 1
    return spents, lefts, rows[:count]


def advance_kernels(
    int64_t[::1] rows,
    const double[::1] slower,
    const double[:, ::1] rests_on,
    const int64_t[::1] begin,
    double[::1] spent,
    double[::1] left,
    double[:, ::1] terms,
    int64_t[::1] interval,
    const int64_t[::1] time,
    const uint8_t[::1] busy,
    const int64_t[::1] following,
):
    """Take kernels over their interval and those without load after it.

    Parameters
    ----------
    rows : int64, shape (p,)
        Numbers of kernels; overwritten by those that are not done.
    slower : float64, shape (p,)
        The slowdown factor of each.
    rests_on : float64, shape (p, c)
    begin, spent, left, interval, time, busy, following
        As for `start_kernels`.
    terms : float64, shape (k, c)
        `rests_on` times the time spent with it is added.

    Returns
    -------
    int
        Number of kernels that are not done.
    """
    cdef Py_ssize_t i, j, row, at, count = 0, p = rows.shape[0], c = rests_on.shape[1]
    cdef double room, needed, step
    with nogil:
        for i in range(p):
            row = rows[i]
            at = interval[row]
            room = <double>(time[at + 1] - begin[row]) - spent[row]
            needed = left[row] * slower[i]
            step = needed if needed <= room else room
            spent[row] += step
            for j in range(c):
                terms[row, j] += rests_on[i, j] * step
            if needed <= room:
                continue
            left[row] -= step / slower[i]
            at = cross_unloaded(at + 1, begin[row], &spent[row], &left[row], time, busy, following)
            if at >= 0:
                interval[row] = at
                rows[count] = row
                count += 1
    return count
