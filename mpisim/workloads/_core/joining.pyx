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


def port_waits(
    const int64_t[::1] used, const int64_t[::1] at, const int64_t[::1] last,
    const uint8_t[::1] keeps, const int64_t[::1] pending_index, const int64_t[::1] pending,
    const int64_t[::1] export_index, const int64_t[:, ::1] export,
    const int64_t[::1] outside_index, const int64_t[:, ::1] outside, int64_t n_names,
):
    """Return which rows wait for ports, and the rows that these stand for.

    One pass over the uses of blocks, which keeps what each port stands for. Port 0 is the latest
    kernel, 1 the one before the block of that, 2 what is pending, 3 and up are names.

    Parameters
    ----------
    used, at : int64, shape (u,)
        The block of each use, and the row of the table with which it begins.
    last : int64, shape (b,)
        Of each block its last kernel, or -1.
    keeps : uint8, shape (b,)
        Whether what was pending before a block still is after it.
    pending_index : int64, shape (b + 1,)
    pending : int64
        Block i leaves the rows ``pending[pending_index[i]:pending_index[i + 1]]`` pending.
    export_index : int64, shape (b + 1,)
    export : int64, shape (e, 2)
        Likewise a row of the block and the port by which it can be meant.
    outside_index : int64, shape (b + 1,)
    outside : int64, shape (o, 2)
        Likewise a row of the block and the port that it waits for.
    n_names : int
        Ports with names.

    Returns
    -------
    int64, shape (n, 2)
    """
    cdef int64_t u, b, i, j, port, n = 0, most = 0, n_pending = 0, begin = 0, end = 0
    cdef int64_t newest = -1, before = -1, turn
    firsts = np.zeros(n_names + 1, np.int64)
    cdef int64_t[::1] first = firsts
    for u in range(used.shape[0]):
        b = used[u]
        n_pending += pending_index[b + 1] - pending_index[b]
        for i in range(export_index[b], export_index[b + 1]):
            first[export[i, 1] - 2] += 1
    for i in range(n_names):
        first[i + 1] += first[i]
    cdef int64_t[::1] waiting = np.empty(n_pending, np.int64)
    cdef int64_t[::1] named = np.empty(first[n_names], np.int64)
    cdef int64_t[::1] known = np.zeros(n_names, np.int64)
    found = np.empty((0, 2), np.int64)
    cdef int64_t[:, ::1] pairs = found
    with nogil:
        for turn in range(2):  # counted, then written
            if turn:
                with gil:
                    found = np.empty((n, 2), np.int64)
                    pairs = found
                    known = np.zeros(n_names, np.int64)
                begin = end = n = 0
                newest = before = -1
            for u in range(used.shape[0]):
                b = used[u]
                for i in range(outside_index[b], outside_index[b + 1]):
                    port = outside[i, 1]
                    if port == 2:
                        for j in range(begin, end):
                            if turn:
                                pairs[n, 0], pairs[n, 1] = at[u] + outside[i, 0], waiting[j]
                            n += 1
                    elif port > 2:
                        for j in range(first[port - 3], first[port - 3] + known[port - 3]):
                            if turn:
                                pairs[n, 0], pairs[n, 1] = at[u] + outside[i, 0], named[j]
                            n += 1
                    elif newest >= 0 and (port == 0 or before >= 0):
                        if turn:
                            pairs[n, 0] = at[u] + outside[i, 0]
                            pairs[n, 1] = newest if port == 0 else before
                        n += 1
                if last[b] >= 0:
                    before, newest = newest, at[u] + last[b]
                if not keeps[b]:  # no one waits any longer for what was pending before
                    begin = end
                for i in range(pending_index[b], pending_index[b + 1]):
                    waiting[end] = at[u] + pending[i]
                    end += 1
                for i in range(export_index[b], export_index[b + 1]):
                    port = export[i, 1] - 3
                    named[first[port] + known[port]] = at[u] + export[i, 0]
                    known[port] += 1
    return found


def waits_inside(const int64_t[::1] index, const int64_t[::1] awaited):
    """Waits of rows → those for rows, and those for ports, which are negative.

    Parameters
    ----------
    index : int64, shape (n + 1,)
    awaited : int64
        Row ``i`` waits for ``awaited[index[i]:index[i + 1]]``.

    Returns
    -------
    waiter, awaited : int64, shape (m,)
        Pairs of rows.
    outside : list of (int, int)
        Pairs of a row and a port.
    """
    cdef Py_ssize_t n = index.shape[0] - 1, row, i, m = 0
    cdef int64_t[:, ::1] found = np.empty((2, awaited.shape[0]), np.int64)
    cdef list outside = []
    for row in range(n):
        for i in range(index[row], index[row + 1]):
            if awaited[i] < 0:
                outside.append((row, awaited[i]))
                continue
            found[0, m], found[1, m] = row, awaited[i]
            m += 1
    return np.array(found[0, :m]), np.array(found[1, :m]), outside
