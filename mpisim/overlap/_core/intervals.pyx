# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What is held of a GPU in intervals of time, and how far kernels get in them.

Callers are trusted: no index is checked. Rows do not touch each other, so that every number is
worked out from the same numbers in the same order whatever is asked for beside it.
"""

import numpy as np

from libc.stdint cimport INT64_MAX, int64_t, uint8_t


def held(
    const int64_t[::1] first,
    const int64_t[::1] moving,
    const int64_t[::1] last,
    const int64_t[::1] taken,
    const int64_t[::1] bandwidth,
    const int64_t[::1] order,
    Py_ssize_t n,
):
    """Add up what communications hold in each of n intervals.

    Parameters
    ----------
    first, moving, last : int64, shape (m,)
        Interval from which each holds multiprocessors, from which bandwidth too, and until which.
    taken, bandwidth : int64, shape (m,)
    order : int64, shape (m,)
        In which they are looked at: of those that move data in an interval the last counts.

    Returns
    -------
    int64, float64, int64, shape (n,)
        Multiprocessors, bandwidth, and which communication counts; -1: none.
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


cdef inline Py_ssize_t over_free(
    Py_ssize_t at,
    int64_t begin,
    double* spent,
    double* left,
    const int64_t[::1] time,
    const uint8_t[::1] busy,
    const int64_t[::1] following,
) noexcept nogil:
    """Take a kernel over what holds nothing; return the interval it meets, or -2 where it ends.

    `following` is of each interval the next in which something is held, from -1 on; their number
    if there is none.
    """
    cdef Py_ssize_t n = busy.shape[0], to
    cdef double room, needed
    if at >= 0 and busy[at]:
        return at
    to = following[at + 1]
    room = <double>((time[to] if to < n else INT64_MAX) - begin) - spent[0]
    needed = left[0]
    if needed <= room:
        spent[0] += needed
        return -2
    spent[0] += room
    left[0] -= room
    return to


def begun(
    const int64_t[::1] begin,
    const double[::1] lasting,
    int64_t[::1] interval,
    const int64_t[::1] time,
    const uint8_t[::1] busy,
    const int64_t[::1] following,
):
    """Begin kernels, up to where each meets what is held.

    Parameters
    ----------
    begin : int64, shape (k,)
    lasting : float64, shape (k,)
    interval : int64, shape (k,)
        In which each begins, -1 before the first; overwritten by the one it has got to.
    time : int64, shape (n,)
        Of the beginning of each interval.
    busy : uint8, shape (n,)
        Whether something is held in it.
    following : int64, shape (n + 1,)
        Of each, from -1 on, the next after or at it in which something is held; n: none.

    Returns
    -------
    spent, left : float64, shape (k,)
        Time that has passed, and how much is still to be done, in time alone.
    rows : int64
        Those that are not done.
    """
    cdef Py_ssize_t i, at, count = 0, k = begin.shape[0]
    spents, lefts = np.zeros(k), np.array(lasting)
    rows = np.empty(k, np.int64)
    cdef double[::1] spent = spents, left = lefts
    cdef int64_t[::1] going = rows
    with nogil:
        for i in range(k):
            at = over_free(interval[i], begin[i], &spent[i], &left[i], time, busy, following)
            if at >= 0:
                interval[i] = at
                going[count] = i
                count += 1
    return spents, lefts, rows[:count]


def advanced(
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
    """Take kernels over the interval in which each is, and what holds nothing after it.

    Parameters
    ----------
    rows : int64, shape (p,)
        Which kernels; overwritten by those that are not done.
    slower : float64, shape (p,)
        The factor of each.
    rests_on : float64, shape (p, c)
    begin, spent, left, interval, time, busy, following
        As `begun`.
    terms : float64, shape (k, c)
        `rests_on` times the time spent with it is added.

    Returns
    -------
    int
        How many are not done.
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
            at = over_free(at + 1, begin[row], &spent[row], &left[row], time, busy, following)
            if at >= 0:
                interval[row] = at
                rows[count] = row
                count += 1
    return count
