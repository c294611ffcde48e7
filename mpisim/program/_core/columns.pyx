# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Columns of a table → what its communications are, slot by slot, with a hash; the CPU time of
all rows.

A plan has dozens of tables of thousands of rows, and numpy goes through them a dozen times for what
two passes give. Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t


def communications_by_slot(
    const uint8_t[::1] kind, const uint8_t[::1] operation, const int32_t[::1] slot
):
    """Find the communications of a table, and sort them by their slots.

    Parameters
    ----------
    kind, operation : uint8, shape (n,)
    slot : int32, shape (n,)
        Of communications 0 or more, of other rows below 0.

    Returns
    -------
    rows : int64, shape (m,)
        Communications, ascending.
    order : int64, shape (m,)
        The order of these that sorts them by slot; those of a slot as they stand.
    operations : int64, shape (n_slots,)
        How many there are on each slot.
    kinds, operation_bits : int64, shape (n_slots,)
        The sum of 1 << kind of the kinds that are on a slot, and likewise of operations.
    """
    cdef Py_ssize_t n = slot.shape[0], row, m = 0, i
    cdef int64_t n_slots = 0, s  # the largest slot + 1 may be no int32
    with nogil:
        for row in range(n):
            if slot[row] >= 0:
                m += 1
                n_slots = max(n_slots, <int64_t>slot[row] + 1)
    rows_array, order_array = np.empty((2, m), np.int64)
    found = np.zeros((3, n_slots), np.int64)
    cdef int64_t[::1] rows = rows_array, order = order_array
    cdef int64_t[:, ::1] of_slot = found
    cdef int64_t[::1] place = np.zeros(n_slots + 1, np.int64)
    with nogil:
        m = 0
        for row in range(n):
            s = slot[row]
            if s < 0:
                continue
            rows[m] = row
            m += 1
            of_slot[0, s] += 1
            of_slot[1, s] |= <int64_t>1 << kind[row]
            of_slot[2, s] |= <int64_t>1 << operation[row]
        for s in range(n_slots):
            place[s + 1] = place[s] + of_slot[0, s]
        for i in range(m):
            s = slot[rows[i]]
            order[place[s]] = i
            place[s] += 1
    return rows_array, order_array, found[0], found[1], found[2]


def hashes_by_slot(
    const int64_t[::1] rows,
    const int64_t[::1] operations,
    const uint8_t[::1] operation,
    const int64_t[::1] size,
    const uint8_t[::1] any_size,
):
    """Hash the sequence of operations, and of their sizes, on each slot.

    Parameters
    ----------
    rows : int64, shape (m,)
        Communications by slot, those of each in order.
    operations : int64, shape (n_slots,)
        How many there are on each slot.
    operation, size : shape (n,)
        Of all rows, the latter in bytes.
    any_size : uint8, shape (256,)
        Whether the size of an operation does not count.

    Returns
    -------
    int64, shape (n_slots,)
    """
    found = np.zeros(operations.shape[0], np.int64)
    cdef int64_t[::1] of_slot = found
    cdef Py_ssize_t s, i, at = 0
    cdef uint64_t word
    cdef int64_t row
    with nogil:
        for s in range(operations.shape[0]):
            word = 0
            for i in range(operations[s]):
                row = rows[at]
                at += 1
                word = mixed(word + operation[row])
                word = mixed(word ^ <uint64_t>(-1 if any_size[operation[row]] else size[row]))
            of_slot[s] = <int64_t>word
    return found


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    """Scramble a word: SplitMix64."""
    x += <uint64_t>0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


def counts_below(
    const int64_t[::1] rows, const int32_t[::1] slot, Py_ssize_t n_slots, int64_t end
):
    """Count the communications of each slot that stand before a row.

    Parameters
    ----------
    rows : int64, shape (m,)
        Communications, ascending.
    slot : int32, shape (n,)
        Of all rows.
    n_slots, end : int

    Returns
    -------
    int64, shape (n_slots,)
    """
    found = np.zeros(n_slots, np.int64)
    cdef int64_t[::1] count = found
    cdef Py_ssize_t i = 0
    with nogil:
        while i < rows.shape[0] and rows[i] < end:
            count[slot[rows[i]]] += 1
            i += 1
    return found


def sum_of_sizes(
    const int64_t[::1] one, const int64_t[::1] two,
    const int64_t[::1] three, const int64_t[::1] four,
):
    """Return the sum of the absolute values of four columns of one length, a float."""
    cdef Py_ssize_t i
    cdef double found = 0.0
    with nogil:
        for i in range(one.shape[0]):
            found += (
                abs(<double>one[i]) + abs(<double>two[i])
                + abs(<double>three[i]) + abs(<double>four[i])
            )
    return found
