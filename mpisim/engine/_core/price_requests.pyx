# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Prices that the communications of a table request from the network.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from .common cimport EAGER_FLAG, JOINED_FLAG, mix

cdef uint64_t GOLDEN = <uint64_t>0x9E3779B97F4A7C15


ctypedef fused number:
    int32_t
    int64_t


def filled(const number[::1] base, const int32_t[:] rows, const int32_t[:] which, const number[:] values):
    """Return a copy of `base` with ``values[which[i]]`` in row ``rows[i]``."""
    found_array = np.array(base)
    cdef number[::1] found = found_array
    cdef Py_ssize_t i
    with nogil:
        for i in range(rows.shape[0]):
            found[rows[i]] = values[which[i]]
    return found_array


def requested_prices(table, delay=None):
    """Table → rows without a duration, and the distinct prices that they request.

    Rows request the same price if they agree in operation, bytes, slot and `delay`.

    Parameters
    ----------
    table : Table
    delay : int64, shape (n,), optional
        ps that each row takes beside its price.

    Returns
    -------
    rows : int32, shape (m,)
        Communications without a duration, ascending.
    which : int32, shape (m,)
        The request of each.
    first : int32, shape (n_requests,)
        The first row of each request.
    """
    cdef const uint8_t[::1] operation = table.operation
    cdef const int32_t[::1] slot = table.slot
    cdef const int64_t[::1] size = table.bytes, duration = table.duration
    cdef const int64_t[::1] longer = (
        np.zeros(1, np.int64) if delay is None else delay
    )
    cdef bint given = delay is not None
    cdef Py_ssize_t n = slot.shape[0], row, m = 0, i, at
    for row in range(n):
        m += slot[row] >= 0 and duration[row] < 0
    rows_array, which_array = np.empty(m, np.int32), np.empty(m, np.int32)
    first_array = np.empty(m, np.int32)
    cdef int32_t[::1] rows = rows_array, which = which_array, first = first_array
    # A hash table of the distinct ones: their numbers, at most half full.
    cdef uint64_t places = 16
    while places < <uint64_t>(2 * m):
        places *= 2
    cdef int32_t[::1] number = np.full(places, -1, np.int32)
    cdef int32_t n_distinct = 0, other
    cdef int64_t by
    cdef uint64_t word
    with nogil:
        i = 0
        for row in range(n):
            if slot[row] < 0 or duration[row] >= 0:
                continue
            by = longer[row] if given else 0
            word = mix(<uint64_t>size[row] * GOLDEN + <uint64_t>by)
            at = (mix(word ^ <uint64_t>slot[row] ^ (<uint64_t>operation[row] << 32))) & (places - 1)
            while True:
                if number[at] < 0:
                    number[at] = n_distinct
                    first[n_distinct] = <int32_t>row
                    n_distinct += 1
                    break
                other = first[number[at]]
                if (
                    slot[other] == slot[row] and operation[other] == operation[row]
                    and size[other] == size[row] and (not given or longer[other] == by)
                ):
                    break
                at = (at + 1) & (places - 1)
            rows[i] = <int32_t>row
            which[i] = number[at]
            i += 1
    return rows_array, which_array, first_array[:n_distinct].copy()


def overlapping_slots(table):
    """Return on which slots more than one operation may be under way; bool, shape (n_slots,).

    As far as one rank goes: where an operation does not follow the one before on its stream, or is
    part of the same kernel; and where the rank goes ahead, since the row is EAGER or has a duration
    of its own.
    """
    cdef const uint8_t[::1] flags = table.flags
    cdef const int32_t[::1] slot = table.slot
    cdef const int16_t[::1] stream = table.stream
    cdef const int64_t[::1] duration = table.duration
    cdef Py_ssize_t n = slot.shape[0], row
    cdef int32_t kernel = 0, s
    several_array = np.zeros(table.n_slots, bool)
    cdef uint8_t[::1] several = several_array.view(np.uint8)
    cdef int32_t[::1] last = np.full(table.n_slots, -1, np.int32)
    cdef int32_t[::1] last_kernel = np.empty(table.n_slots, np.int32)
    with nogil:
        for row in range(n):
            kernel += not flags[row] & JOINED_FLAG
            s = slot[row]
            if s < 0:
                continue
            if flags[row] & EAGER_FLAG or duration[row] >= 0:
                several[s] = True
            if last[s] >= 0 and (stream[last[s]] != stream[row] or last_kernel[s] == kernel):
                several[s] = True
            last[s] = <int32_t>row
            last_kernel[s] = kernel
    return several_array
