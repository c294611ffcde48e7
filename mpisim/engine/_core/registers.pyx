# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Which register holds the end of which kernel."""

import numpy as np

from libc.stdint cimport int32_t, int64_t


def allocate(const int32_t[::1] kernels, const int32_t[::1] last_use):
    """Give every kernel a register: see `mpisim.engine._core.twin.allocate`."""
    cdef Py_ssize_t n = kernels.shape[0], i, expired = 0, n_free = 0
    cdef int32_t n_registers = 0
    registers_array = np.empty(n, np.int32)
    cdef int32_t[::1] registers = registers_array
    cdef const int64_t[::1] expiring = np.argsort(last_use, kind="stable").astype(np.int64)
    cdef int32_t[::1] spare = np.empty(n, np.int32)
    for i in range(n):
        while last_use[expiring[expired]] <= kernels[i]:
            spare[n_free] = registers[expiring[expired]]
            n_free += 1
            expired += 1
        if n_free == 0:
            spare[0] = n_registers
            n_free = 1
            n_registers += 1
        n_free -= 1
        registers[i] = spare[n_free]
    return registers_array, n_registers
