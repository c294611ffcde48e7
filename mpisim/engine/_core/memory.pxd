# C memory of the compiled engine modules.

from cpython.exc cimport PyErr_NoMemory
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, realloc

cdef extern from "Python.h":
    void Py_FatalError(const char* message) noexcept nogil


cdef inline void* allocated(int64_t n, size_t size) except NULL:
    """Memory for n elements, all 0, and one more, so that the first has an address."""
    cdef void* memory = calloc(n + 1, size)
    if memory is NULL:
        PyErr_NoMemory()
    return memory


cdef inline void* resized(void* memory, size_t size) noexcept nogil:
    """Memory of another size; where there is none the process ends: nobody could be told."""
    memory = realloc(memory, size)
    if memory is NULL:
        Py_FatalError("mpisim: no memory for the state of a run")
    return memory
