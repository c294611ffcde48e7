# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Per-edge work of colour refinement: see `mpisim.engine.refine`.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport qsort

from .common cimport mix

cdef enum:
    MAX_INSERTION = 24  # so many numbers or fewer are sorted by insertion


def ranges(const int64_t[:] index, const int64_t[:] items):
    """Concatenate the ranges ``index[i]`` to ``index[i + 1]`` of some i; return the owners, too."""
    cdef Py_ssize_t n = items.shape[0], i, k = 0
    cdef int64_t total = 0, j
    for i in range(n):
        total += index[items[i] + 1] - index[items[i]]
    at_array, owner_array = np.empty(total, np.int64), np.empty(total, np.int64)
    cdef int64_t[::1] at = at_array, owner = owner_array
    with nogil:
        for i in range(n):
            for j in range(index[items[i]], index[items[i] + 1]):
                at[k] = j
                owner[k] = i
                k += 1
    return at_array, owner_array


def by_end(const int64_t[:] side, Py_ssize_t n):
    """Sort edges by the number, 0 to n - 1, of one of their ends: (CSR index, order)."""
    cdef Py_ssize_t m = side.shape[0], i
    index_array, order_array = np.zeros(n + 1, np.int64), np.empty(m, np.int64)
    cdef int64_t[::1] index = index_array, order = order_array, next_ = np.empty(n, np.int64)
    with nogil:
        for i in range(m):
            index[side[i] + 1] += 1
        for i in range(n):
            next_[i] = index[i]
            index[i + 1] += index[i]
        for i in range(m):
            order[next_[side[i]]] = i
            next_[side[i]] += 1
    return index_array, order_array


def multisets(const int64_t[:] owner, const int64_t[:] entries):
    """Count the entries of each owner: (owners ascending, entry, count, CSR index)."""
    cdef Py_ssize_t m = owner.shape[0], i, k = 0, n = 0, o, end
    cdef int64_t[::1] index, order
    index, order = by_end(owner, np.max(owner, initial=-1) + 1)
    cdef int64_t[::1] sorted_ = np.empty(m, np.int64)
    owners_array = np.empty(index.shape[0], np.int64)
    begin_array = np.empty(index.shape[0], np.int64)
    entry_array, count_array = np.empty(m, np.int64), np.empty(m, np.int64)
    cdef int64_t[::1] owners = owners_array, begin = begin_array
    cdef int64_t[::1] entry = entry_array, count = count_array
    with nogil:
        for i in range(m):
            sorted_[i] = entries[order[i]]
        for o in range(index.shape[0] - 1):
            i, end = index[o], index[o + 1]
            if i == end:
                continue
            sort(&sorted_[i], end - i)
            owners[n] = o
            begin[n] = k
            n += 1
            while i < end:
                entry[k] = sorted_[i]
                count[k] = 0
                while i < end and sorted_[i] == entry[k]:
                    count[k] += 1
                    i += 1
                k += 1
    begin[n] = k
    return (
        owners_array[:n].copy(), entry_array[:k].copy(), count_array[:k].copy(),
        begin_array[: n + 1].copy(),
    )


def signatures(
    const int64_t[:] items, const int64_t[:] index, const int32_t[:] there,
    const int32_t[:] kind, Py_ssize_t n_kinds, const int64_t[:] label, bint counted,
):
    """Sort what each of some items meets, (label there, kind): (values, CSR index of items).

    A value stands for a pair, each once, and if they are counted for how often it is there.
    """
    cdef Py_ssize_t n = items.shape[0], i, j, k = 0, size, m = 0, longest = 0, begin
    cdef int64_t entry, factor, last
    cdef Py_ssize_t places = (np.max(label, initial=-1) + 1) * n_kinds
    for i in range(n):
        size = index[items[i] + 1] - index[items[i]]
        m += size
        longest = max(longest, size)
    factor = longest + 1 if counted else 1
    values_array, index_array = np.empty(m, np.int64), np.zeros(n + 1, np.int64)
    cdef int64_t[::1] values = values_array, ends = index_array
    cdef int64_t[::1] met = np.empty(longest, np.int64)
    # Many entries of few pairs are counted rather than sorted.
    cdef bint few = longest > MAX_INSERTION and places <= 8 * m + 4096
    cdef int32_t[::1] times = np.zeros(places if few else 1, np.int32)
    with nogil:
        for i in range(n):
            begin = index[items[i]]
            size = index[items[i] + 1] - begin
            if few and size > MAX_INSERTION:
                m = 0
                for j in range(begin, begin + size):
                    entry = label[there[j]] * n_kinds + kind[j]
                    if times[entry] == 0:
                        met[m] = entry
                        m += 1
                    times[entry] += 1
                sort(&met[0], m)
                for j in range(m):
                    entry = met[j]
                    values[k] = entry * factor + (times[entry] if counted else 0)
                    times[entry] = 0
                    k += 1
            elif size > 0:
                for j in range(size):
                    met[j] = label[there[begin + j]] * n_kinds + kind[begin + j]
                sort(&met[0], size)
                last = -1
                for j in range(size):
                    if met[j] != last:
                        last = met[j]
                        values[k] = last * factor
                        k += 1
                    if counted:
                        values[k - 1] += 1
            ends[i + 1] = k
    return values_array[:k].copy(), index_array


def partition(const int64_t[:] label, const int64_t[:] values, const int64_t[:] index):
    """Number items by label and sequence of values, in the order of the first of each number.

    Exact: a hash table finds candidates, and values are compared.
    """
    cdef Py_ssize_t n = label.shape[0], i, j, at
    part_array = np.empty(n, np.int64)
    cdef int64_t[::1] part = part_array
    cdef uint64_t places = 16, word
    while places < <uint64_t>(2 * n):
        places *= 2
    # A hash table of the numbers given, at most half full, and the first item of each.
    cdef int32_t[::1] number = np.full(places, -1, np.int32), first = np.empty(n, np.int32)
    cdef int32_t n_parts = 0
    with nogil:
        for i in range(n):
            word = mix(<uint64_t>label[i])
            for j in range(index[i], index[i + 1]):
                word = mix(word + <uint64_t>values[j])
            at = word & (places - 1)
            while number[at] >= 0 and not same(label, values, index, first[number[at]], i):
                at = (at + 1) & (places - 1)
            if number[at] < 0:
                number[at] = n_parts
                first[n_parts] = <int32_t>i
                n_parts += 1
            part[i] = number[at]
    return part_array, n_parts


cdef inline bint same(
    const int64_t[:] label, const int64_t[:] values, const int64_t[:] index, Py_ssize_t a,
    Py_ssize_t b,
) noexcept nogil:
    cdef int64_t i, n = index[a + 1] - index[a]
    if label[a] != label[b] or index[b + 1] - index[b] != n:
        return False
    for i in range(n):
        if values[index[a] + i] != values[index[b] + i]:
            return False
    return True


cdef void sort(int64_t* values, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef int64_t value
    if n > MAX_INSERTION:
        qsort(values, n, sizeof(int64_t), compare)
        return
    for i in range(1, n):
        value = values[i]
        j = i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value


cdef int compare(const void* a, const void* b) noexcept nogil:
    cdef int64_t x = (<const int64_t*>a)[0], y = (<const int64_t*>b)[0]
    return (x > y) - (x < y)
