# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Rows of numbers: distinct ones, differing ones, a hash of them, and sums of slowdowns by class.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int64_t, uint64_t

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


def fingerprint(const int64_t[:] one, const int64_t[:] other):
    """Return a 128-bit hash of two arrays of one length, uint64 of shape (2,)."""
    found = np.zeros(2, np.uint64)
    cdef uint64_t[::1] words = found
    cdef uint64_t low = 0, high = 0, place, x, y
    cdef Py_ssize_t i
    with nogil:
        for i in range(one.shape[0]):
            place = (<uint64_t>i + 1) * GOLDEN
            x, y = <uint64_t>one[i] + place, <uint64_t>other[i] ^ place
            low += mix(mix(x) + y)
            high += mix(mix(y ^ <uint64_t>0xD6E8FEB86659FD93) + x)
        words[0], words[1] = low, high
    return found


def n_differing(
    const int64_t[:] one, const int64_t[:] other, const int64_t[:] former, const int64_t[:] latter
):
    """Return in how many places two pairs of arrays, (one, other) and (former, latter), differ."""
    cdef Py_ssize_t i, found = 0
    with nogil:
        for i in range(one.shape[0]):
            found += one[i] != former[i] or other[i] != latter[i]
    return found


def add_slowdowns(
    const int64_t[::1] kind,
    const int64_t[::1] alone,
    const int64_t[::1] lasting,
    const int64_t[::1] rows,
    const double[:, ::1] terms,
    int64_t[:, ::1] spent,
    int64_t[:, ::1] of_terms,
):
    """Add up the times of kernels that take longer than alone, by class.

    Parameters
    ----------
    kind, alone, lasting : int64, shape (k,)
        The class of each, and its time alone and beside communications.
    rows : int64, shape (g,)
        Kernels that have terms.
    terms : float64, shape (g, c)
    spent : int64, shape (classes, 2)
        The two times are added.
    of_terms : int64, shape (classes, c)
        `terms`, rounded, are added.
    """
    cdef Py_ssize_t g, i, j, c = terms.shape[1]
    with nogil:
        for i in range(kind.shape[0]):
            if lasting[i] > alone[i]:
                spent[kind[i], 0] += alone[i]
                spent[kind[i], 1] += lasting[i]
        for g in range(rows.shape[0]):
            i = rows[g]
            if lasting[i] > alone[i]:
                for j in range(c):
                    of_terms[kind[i], j] += <int64_t>rint(terms[g, j])


cdef extern from "math.h":
    double rint(double) noexcept nogil
