# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Which register holds the end of which kernel."""

import numpy as np

from libc.stdint cimport int32_t, int64_t


def allocate(const int32_t[::1] kernels, const int32_t[::1] last_use):
    """Give every kernel a register: see `mpisim.engine._core.twin.allocate`."""
    cdef Py_ssize_t n = kernels.shape[0], i, n_free = 0
    cdef int32_t n_registers = 0, row = 0, k
    registers_array = np.empty(n, np.int32)
    cdef int32_t[::1] registers = registers_array, spare = np.empty(n + 1, np.int32)
    # The kernels that expire with each row: the first, and which comes after which.
    cdef int32_t[::1] expiring = np.full(np.max(last_use, initial=0) + 1, -1, np.int32)
    cdef int32_t[::1] after = np.empty(n, np.int32)
    with nogil:
        for i in range(n - 1, -1, -1):
            after[i] = expiring[last_use[i]]
            expiring[last_use[i]] = <int32_t>i
        for i in range(n):
            while row <= kernels[i]:
                k = expiring[row]
                while k >= 0:
                    spare[n_free] = registers[k]
                    n_free += 1
                    k = after[k]
                row += 1
            if n_free == 0:
                spare[0] = n_registers
                n_free = 1
                n_registers += 1
            n_free -= 1
            registers[i] = spare[n_free]
    return registers_array, n_registers
