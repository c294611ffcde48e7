# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Rows of numbers: distinct ones, their order, a hash of them, the longest of several; kernels'
entries, and slowdowns by class.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef uint64_t GOLDEN = <uint64_t>0x9E3779B97F4A7C15


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    """Scramble a word: the finalizer of SplitMix64."""
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


def distinct_rows(const int64_t[:, ::1] rows):
    """Find the distinct rows, by a hash table.

    Parameters
    ----------
    rows : int64, shape (n, c)

    Returns
    -------
    first : int64, shape (k,)
        The first of each distinct row, ascending.
    kind : int64, shape (n,)
        The entry of `first` that equals each row.
    """
    cdef Py_ssize_t n = rows.shape[0], c = rows.shape[1], i, j, other
    cdef uint64_t places = 16, word, at
    while places < <uint64_t>(2 * n):
        places *= 2
    firsts, kinds = np.empty(n, np.int64), np.empty(n, np.int64)
    cdef int64_t[::1] first = firsts, kind = kinds
    cdef int64_t[::1] number = np.full(places, -1, np.int64)
    cdef int64_t n_kinds = 0
    with nogil:
        for i in range(n):
            word = 0
            for j in range(c):
                word = mix(word + <uint64_t>rows[i, j] * GOLDEN)
            at = word & (places - 1)
            while number[at] >= 0:
                other = first[number[at]]
                j = 0
                while j < c and rows[i, j] == rows[other, j]:
                    j += 1
                if j == c:
                    break
                at = (at + 1) & (places - 1)
            if number[at] < 0:
                number[at] = n_kinds
                first[n_kinds] = i
                n_kinds += 1
            kind[i] = number[at]
    return firsts[:n_kinds].copy(), kinds


def distinct_communications(
    const int64_t[::1] rows,
    const uint8_t[::1] operation,
    const int64_t[::1] size,
    const int32_t[::1] slot,
    const uint8_t[::1] flags,
    uint8_t mask,
):
    """Find the communications of a table that differ in operation, bytes, slot or some flags.

    Parameters
    ----------
    rows : int64, shape (m,)
        Communications.
    operation, size, slot, flags : shape (n,)
        Of all rows.
    mask : int
        Flags that count.

    Returns
    -------
    first : int64, shape (k,)
        The row of the first of each kind, in the order of `rows`.
    kind : int64, shape (m,)
        The entry of `first` that each is as.
    """
    cdef Py_ssize_t m = rows.shape[0], i
    cdef int64_t row, other, n_kinds = 0
    cdef uint64_t places = 16, at
    while places < <uint64_t>(2 * m):
        places *= 2
    firsts, kinds = np.empty(m, np.int64), np.empty(m, np.int64)
    cdef int64_t[::1] first = firsts, kind = kinds
    cdef int64_t[::1] number = np.full(places, -1, np.int64)
    with nogil:
        for i in range(m):
            row = rows[i]
            at = mix(mix(<uint64_t>size[row]) + <uint64_t>slot[row] * GOLDEN + operation[row])
            at &= places - 1
            while number[at] >= 0:
                other = first[number[at]]
                if (
                    operation[row] == operation[other] and size[row] == size[other]
                    and slot[row] == slot[other]
                    and (flags[row] ^ flags[other]) & mask == 0
                ):
                    break
                at = (at + 1) & (places - 1)
            if number[at] < 0:
                number[at] = n_kinds
                first[n_kinds] = row
                n_kinds += 1
            kind[i] = number[at]
    return firsts[:n_kinds].copy(), kinds


def stable_order(const int64_t[::1] keys, Py_ssize_t end):
    """Keys, 0 to `end` - 1 → the order that sorts them, equal ones as they stand; int64."""
    cdef Py_ssize_t n = keys.shape[0], i
    found = np.empty(n, np.int64)
    cdef int64_t[::1] order = found, place = np.zeros(end + 1, np.int64)
    with nogil:
        for i in range(n):
            place[keys[i] + 1] += 1
        for i in range(end):
            place[i + 1] += place[i]
        for i in range(n):
            order[place[keys[i]]] = i
            place[keys[i]] += 1
    return found


def entries_of(
    const int32_t[::1] name,
    const int64_t[::1] duration,
    const int64_t[::1] rows,
    const int64_t[::1] lengths,
    const int64_t[:, ::1] entry,
):
    """Look up rows of a table by their duration and name.

    Parameters
    ----------
    name, duration : shape (n,)
        Of all rows.
    rows : int64, shape (k,)
    lengths : int64, shape (l,)
        Durations that have entries, ascending.
    entry : int64, shape (l, names)
        Of a duration and a name; -1: none.

    Returns
    -------
    int64, shape (k,)
        -1: none.
    """
    cdef Py_ssize_t k = rows.shape[0], n = lengths.shape[0], i, low, high, middle
    found_array = np.empty(k, np.int64)
    cdef int64_t[::1] found = found_array
    # Rows of one name mostly have one duration: where it was found last is looked at first.
    cdef int64_t[::1] last = np.zeros(entry.shape[1], np.int64)
    cdef int64_t length
    cdef int32_t of
    with nogil:
        for i in range(k):
            of, length = name[rows[i]], duration[rows[i]]
            found[i] = -1
            if n == 0:
                continue
            low = last[of]
            if lengths[low] != length:
                low, high = 0, n
                while low < high:
                    middle = (low + high) // 2
                    if lengths[middle] < length:
                        low = middle + 1
                    else:
                        high = middle
                if low == n or lengths[low] != length:
                    continue
                last[of] = low
            found[i] = entry[low, of]
    return found_array


cdef inline void add_words(
    int64_t row, int64_t one, int64_t other, uint64_t* low, uint64_t* high
) noexcept nogil:
    """Add what a row says to a fingerprint."""
    cdef uint64_t place = (<uint64_t>row + 1) * GOLDEN
    cdef uint64_t x = <uint64_t>one + place, y = <uint64_t>other ^ place
    low[0] += mix(mix(x) + y)
    high[0] += mix(mix(y ^ <uint64_t>0xD6E8FEB86659FD93) + x)


def fingerprint(const int64_t[:] one, const int64_t[:] other):
    """Return a 128-bit hash of two arrays of one length, uint64 of shape (2,): a sum over rows."""
    found = np.zeros(2, np.uint64)
    cdef uint64_t[::1] words = found
    cdef uint64_t low = 0, high = 0
    cdef Py_ssize_t i
    with nogil:
        for i in range(one.shape[0]):
            add_words(i, one[i], other[i], &low, &high)
        words[0], words[1] = low, high
    return found


def fingerprint_at(const int64_t[::1] rows, const int64_t[::1] values):
    """Return a 128-bit hash of values in some rows, whatever their order: uint64 of shape (2,)."""
    found = np.zeros(2, np.uint64)
    cdef uint64_t[::1] words = found
    cdef uint64_t low = 0, high = 0
    cdef Py_ssize_t i
    with nogil:
        for i in range(rows.shape[0]):
            add_words(rows[i], values[i], 0, &low, &high)
        words[0], words[1] = low, high
    return found


def take_longest(
    const int64_t[::1] values, const int64_t[::1] low, const int64_t[::1] begin,
    const int64_t[::1] count, int64_t[::1] found,
):
    """Raise parts of an array, where it is lower, to parts of another.

    Part i is ``found[low[i]:low[i] + count[i]]``, and ``values[begin[i]:begin[i] + count[i]]``.
    """
    cdef Py_ssize_t i, j
    with nogil:
        for i in range(low.shape[0]):
            for j in range(count[i]):
                found[low[i] + j] = max(found[low[i] + j], values[begin[i] + j])


def slowdowns(
    const int64_t[::1] kind,
    const int64_t[::1] alone,
    const double[:] scale,
    const int64_t[::1] met,
    const double[::1] spent,
    const double[:, ::1] terms,
    int64_t[:, ::1] by_kind,
    int64_t[:, ::1] of_terms,
):
    """Find the kernels that take longer than alone, and add up their times by class.

    Parameters
    ----------
    kind, alone : int64, shape (k,)
        The class of each, and its time alone at speed 1.
    scale : float64, shape (k,)
        How many times as long it takes on its rank.
    met : int64, shape (g,)
        Kernels that may take longer, ascending.
    spent : float64, shape (g,)
        Their times on the rank, beside communications.
    terms : float64, shape (g, c)
    by_kind : int64, shape (classes, 2)
        The times of those that do, alone and beside communications at speed 1, are added.
    of_terms : int64, shape (classes, c)
        Their `terms`, rounded, are added.

    Returns
    -------
    which, lasting : int64, shape (s,)
        Those that take longer, ascending, and their times at speed 1.
    """
    cdef Py_ssize_t g, i, j, c = terms.shape[1], count = 0
    cdef int64_t now
    room_array = np.empty((2, met.shape[0]), np.int64)
    cdef int64_t[:, ::1] room = room_array
    with nogil:
        for g in range(met.shape[0]):
            i = met[g]
            now = <int64_t>rint(spent[g] / scale[i])
            if now <= alone[i]:
                continue
            room[0, count], room[1, count] = i, now
            count += 1
            by_kind[kind[i], 0] += alone[i]
            by_kind[kind[i], 1] += now
            for j in range(c):
                of_terms[kind[i], j] += <int64_t>rint(terms[g, j])
    return room_array[0, :count], room_array[1, :count]


cdef extern from "math.h":
    double rint(double) noexcept nogil
