# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Different values of an array, by a hash table.

A plan has hundreds of arrays of a dozen numbers. What takes time there is not sorting, but the
dozen calls of numpy that `numpy.unique` is made of.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int64_t, uint64_t

cdef uint64_t GOLDEN = <uint64_t>0x9E3779B97F4A7C15

cdef enum:
    # Values that are sorted by insertion in less time than a call of numpy takes.
    MAX_INSERTION_SORT = 24


def numbered(const int64_t[:] values):
    """Find the different values of an array.

    Parameters
    ----------
    values : int64, shape (n,)

    Returns
    -------
    different : int64, shape (k,)
        Ascending.
    first : int64, shape (k,)
        Where each stands first in `values`.
    which : int64, shape (n,)
        The entry of `different` that equals each value.
    """
    cdef Py_ssize_t n = values.shape[0], i, j, k = 0
    cdef uint64_t places = 16, at
    while places < <uint64_t>(2 * n):
        places *= 2
    room_array, which_array = np.empty((3, n), np.int64), np.empty(n, np.int64)
    cdef int64_t[:, ::1] room = room_array  # different values as they come, where, their places
    cdef int64_t[::1] which = which_array
    cdef int64_t[::1] number = np.full(places, -1, np.int64)
    cdef int64_t value
    with nogil:
        for i in range(n):
            value = values[i]
            at = (<uint64_t>value * GOLDEN) >> 32 & (places - 1)
            while number[at] >= 0 and room[0, number[at]] != value:
                at = (at + 1) & (places - 1)
            if number[at] < 0:
                number[at] = k
                room[0, k], room[1, k] = value, i
                k += 1
            which[i] = number[at]
    cdef int64_t[::1] order
    if k <= MAX_INSERTION_SORT:
        order_array = np.empty(k, np.int64)
        order = order_array
        for i in range(k):
            j = i
            while j > 0 and room[0, order[j - 1]] > room[0, i]:
                order[j] = order[j - 1]
                j -= 1
            order[j] = i
    else:
        order_array = np.argsort(room_array[0, :k])
        order = order_array
    different_array, first_array = np.empty(k, np.int64), np.empty(k, np.int64)
    cdef int64_t[::1] different = different_array, first = first_array
    with nogil:
        for i in range(k):
            different[i], first[i] = room[0, order[i]], room[1, order[i]]
            room[2, order[i]] = i
        for i in range(n):
            which[i] = room[2, which[i]]
    return different_array, first_array, which_array
