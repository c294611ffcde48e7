# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Rows of a table as tuples → arrays.

A plan has dozens of blocks of some hundred rows each, and one pass takes less time than a dozen
calls of numpy. Callers are trusted: no index is checked.
"""

import numpy as np

from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t


def rows_as_arrays(
    list rows, list tagged, list counts, list awaited,
    Py_ssize_t columns, Py_ssize_t flags, int64_t joined,
):
    """Rows with their tags and waits → arrays.

    Parameters
    ----------
    rows : list of tuple of int
        Without tags.
    tagged : list of (int, tuple of int)
        From which row on tags hold, ascending from 0, and these tags.
    counts : list of int
        How many rows each row waits for.
    awaited : list of int
        These, one after another; negative numbers stay as they are.
    columns, flags : int
        How many columns there are, tags included, and which of them has flags.
    joined : int
        The flag of rows that are in one batch with the row before. Waiting for one row of a batch
        means waiting for its kernel: the batch's last row.

    Returns
    -------
    values : int64, shape (n, columns)
    wait_index : int64, shape (n + 1,)
    wait_row : int64
    """
    cdef Py_ssize_t n = len(rows), m = len(awaited), i, j, at = 0, n_tagged = len(tagged)
    cdef Py_ssize_t n_own = columns - <Py_ssize_t>len(tagged[0][1])
    values_array, index_array = np.empty((n, columns), np.int64), np.zeros(n + 1, np.int64)
    wait_array = np.empty(m, np.int64)
    cdef int64_t[:, ::1] values = values_array
    cdef int64_t[::1] index = index_array, wait = wait_array
    cdef int64_t[::1] tags = np.empty(columns - n_own, np.int64)
    cdef int64_t begins = 0  # the row from which on the next tags hold
    cdef bint batches = False
    cdef tuple row
    for i in range(n):
        while at < n_tagged and begins <= i:
            row = <tuple>(<tuple>tagged[at])[1]
            for j in range(columns - n_own):
                tags[j] = <object>PyTuple_GET_ITEM(row, j)
            at += 1
            if at < n_tagged:
                begins = (<tuple>tagged[at])[0]
        row = <tuple>rows[i]
        for j in range(n_own):
            values[i, j] = <object>PyTuple_GET_ITEM(row, j)
        for j in range(columns - n_own):
            values[i, n_own + j] = tags[j]
        batches |= (values[i, flags] & joined) != 0
        index[i + 1] = index[i] + <int64_t>counts[i]
    for i in range(m):
        wait[i] = awaited[i]
    if not batches:
        return values_array, index_array, wait_array
    cdef int64_t[::1] last = np.arange(n)
    for i in range(n - 2, -1, -1):
        if values[i + 1, flags] & joined:
            last[i] = last[i + 1]
    for i in range(m):
        if 0 <= wait[i] < n:  # the others are the table's to refuse
            wait[i] = last[wait[i]]
    return values_array, index_array, wait_array
