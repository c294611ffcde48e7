# The rows of a rank after a run: see rows.pyx.

from libc.stdint cimport int32_t, int64_t, uint8_t

from .common cimport Instruction


cdef struct RowTimes:  # of all rows
    int64_t* begin
    int64_t* end
    int64_t* wire
    uint8_t* binding


cdef int64_t replay(
    const Instruction* code, const int32_t* operands, int64_t* registers, Py_ssize_t n,
    const int64_t* durations, int64_t start, const int64_t* communication_start,
    const int64_t* communication_end,
    RowTimes of,
) noexcept nogil
