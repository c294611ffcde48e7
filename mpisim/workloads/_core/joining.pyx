# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Blocks → table: copies of their rows end to end, and the sorted waits of each row.

A table uses each block many times. A *part* is one use: `length` rows from row `first` of all
blocks laid end to end. Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy


def joined(column, const int64_t[::1] first, const int64_t[::1] length, int64_t n):
    """Copy parts of a column end to end.

    Parameters
    ----------
    column : ndarray, contiguous
    first, length : int64, shape (u,)
        First row and number of rows of each part.
    n : int
        Rows of all parts together.
    """
    found = np.empty(n, column.dtype)
    cdef const uint8_t[::1] source = column.view(np.uint8)
    cdef uint8_t[::1] target = found.view(np.uint8)
    cdef int64_t size = column.itemsize, at = 0, u
    if n:
        with nogil:
            for u in range(first.shape[0]):
                if length[u]:
                    memcpy(&target[at], &source[first[u] * size], length[u] * size)
                    at += length[u] * size
    return found


def with_micro_batches(
    const int16_t[::1] which, const int64_t[::1] first, const int64_t[::1] length, int64_t n,
    const int16_t[:, ::1] micro_batch,
):
    """Copy numbers of passes as `joined` does, each replaced by the micro-batch of that pass.

    Parameters
    ----------
    which : int16
        The pass that each row of all blocks belongs to.
    first, length, n
        As for `joined`.
    micro_batch : int16, shape (u, passes)
        Of each pass in each part.
    """
    found = np.empty(n, np.int16)
    cdef int16_t[::1] target = found
    cdef int64_t at = 0, u, i
    with nogil:
        for u in range(first.shape[0]):
            for i in range(first[u], first[u] + length[u]):
                target[at] = micro_batch[u, which[i]]
                at += 1
    return found


def waits(
    const int64_t[::1] waiter, const int64_t[::1] awaited, const int64_t[::1] first,
    const int64_t[::1] length, const int64_t[::1] move, const int64_t[:, ::1] outside, int64_t n,
):
    """Return the waits of each row of a table, in ascending order.

    Parameters
    ----------
    waiter, awaited : int64
        Pairs of rows of all blocks, each counted from the block's first.
    first, length : int64, shape (u,)
        First pair and number of pairs of each part.
    move : int64, shape (u,)
        First row of the table that it fills.
    outside : int64, shape (o, 2)
        Further pairs, already of rows of the table: those that ports stood for.
    n : int
        Rows of the table.

    Returns
    -------
    index : int64, shape (n + 1,)
    row : int32
    """
    indices = np.zeros(n + 1, np.int64)
    cdef int64_t[::1] index = indices
    cdef int64_t u, i, j, total = 0, count
    cdef int32_t row
    for u in range(first.shape[0]):
        total += length[u]
    rows = np.empty(total + outside.shape[0], np.int32)
    cdef int32_t[::1] found = rows
    with nogil:
        # How many waits each row has, moved on by one; then where its next one goes.
        for u in range(first.shape[0]):
            for i in range(first[u], first[u] + length[u]):
                index[waiter[i] + move[u] + 1] += 1
        for i in range(outside.shape[0]):
            index[outside[i, 0] + 1] += 1
        for i in range(n):
            index[i + 1] += index[i]
        for u in range(first.shape[0]):
            for i in range(first[u], first[u] + length[u]):
                j = waiter[i] + move[u]
                found[index[j]] = <int32_t>(awaited[i] + move[u])
                index[j] += 1
        for i in range(outside.shape[0]):
            j = outside[i, 0]
            found[index[j]] = <int32_t>outside[i, 1]
            index[j] += 1
        for i in range(n, 0, -1):  # each has got to where the next begins
            index[i] = index[i - 1]
        index[0] = 0
        for i in range(n):  # few waits a row: sorted by insertion
            for u in range(index[i] + 1, index[i + 1]):
                row = found[u]
                j = u
                while j > index[i] and found[j - 1] > row:
                    found[j] = found[j - 1]
                    j -= 1
                found[j] = row
    return indices, rows
