# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Where the rows of one rank repeat, and whether its inputs and its CPU allow more repeats.

`mpisim.engine.steady_rounds` has the argument, and says what the numbers mean: `low`, `high`, `l`,
conditions 1 and 3. Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from .common cimport BY_HOST, IS_HOST, IS_RECV, JOINED_FLAG

cdef int64_t UNBOUND = np.iinfo(np.int64).max // 4

cdef int IS_HOST_WAIT = IS_HOST + 1


def last_forwards(table, int64_t forward, int64_t micro_batches):
    """Table → the first GPU rows of its last forward pass and of that one round earlier.

    Parameters
    ----------
    table : Table
    forward : int
        The phase.
    micro_batches : int
        Of a round.

    Returns
    -------
    (int, int)
        That of the earlier one first; -1: there is none.
    """
    cdef const uint8_t[::1] kind = table.kind, phase = table.phase
    cdef const int16_t[::1] micro_batch = table.micro_batch
    cdef Py_ssize_t n = kind.shape[0], row, first = -1, second = -1
    cdef int64_t last = 0
    with nogil:
        for row in range(n):
            if kind[row] <= IS_RECV and phase[row] == forward:
                last = max(last, micro_batch[row])
        for row in range(n - 1, -1, -1):
            if kind[row] <= IS_RECV and phase[row] == forward and micro_batch[row] >= 0:
                if micro_batch[row] == last - micro_batches:
                    first = row
                if micro_batch[row] == last:
                    second = row
    return first, second


cdef class Columns:
    """Columns of a table, and the times of its rows in a run.

    Parameters
    ----------
    table : Table
    rows : Rows
    """

    cdef const uint8_t[::1] kind, flags, operation, phase, binding
    cdef const int16_t[::1] stream, layer
    cdef const int32_t[::1] slot, name, step, wait_row
    cdef const int64_t[::1] host, launch, launch_cost, gap, duration, size, wait_index
    cdef const int64_t[::1] begin, end, wire

    def __init__(self, table, rows):
        self.kind, self.flags, self.operation = table.kind, table.flags, table.operation
        self.phase, self.stream, self.layer = table.phase, table.stream, table.layer
        self.slot, self.name, self.step = table.slot, table.name, table.step
        self.host, self.launch, self.launch_cost = table.host, table.launch, table.launch_cost
        self.gap, self.duration, self.size = table.gap, table.duration, table.bytes
        self.wait_index, self.wait_row = table.wait_index, table.wait_row
        self.begin, self.end, self.wire = rows.begin, rows.end, rows.wire
        self.binding = rows.binding

    cdef bint repeats(self, Py_ssize_t i, Py_ssize_t l, int64_t period) noexcept nogil:
        """Whether row i + l is a copy of row i, and begins and ends later by a period.

        Rows on the CPU have no times here: these follow from clocks.
        """
        cdef Py_ssize_t j = i + l
        cdef int64_t w, of_i = self.wait_index[i], of_j = self.wait_index[j]
        cdef int64_t n = self.wait_index[i + 1] - of_i
        if (
            self.kind[i] != self.kind[j] or self.flags[i] != self.flags[j]
            or self.operation[i] != self.operation[j] or self.phase[i] != self.phase[j]
            or self.stream[i] != self.stream[j] or self.layer[i] != self.layer[j]
            or self.slot[i] != self.slot[j] or self.name[i] != self.name[j]
            or self.step[i] != self.step[j] or self.host[i] != self.host[j]
            or self.launch[i] != self.launch[j] or self.launch_cost[i] != self.launch_cost[j]
            or self.gap[i] != self.gap[j] or self.duration[i] != self.duration[j]
            or self.size[i] != self.size[j] or n != self.wait_index[j + 1] - of_j
        ):
            return False
        for w in range(n):
            if self.wait_row[of_j + w] != self.wait_row[of_i + w] + l:
                return False
        return self.kind[j] > IS_RECV or (
            self.begin[j] - self.begin[i] == period
            and self.end[j] - self.end[i] == period
            and self.wire[j] - self.wire[i] == period
        )


def steady_rows(
    table, rows, int64_t start, const int32_t[::1] last, const int32_t[::1] stream_row,
    Py_ssize_t first, Py_ssize_t l, int64_t period, Py_ssize_t low, Py_ssize_t high,
):
    """Find the window of a rank whose table has no launch queue.

    Parameters
    ----------
    table : Table
    rows : Rows
        Of the rank.
    start : int
        When it starts, in ps.
    last, stream_row : int32, shape (n,)
        Of its `LoweredTable`.
    first, l : int
        Where the last but one round begins, and how many rows it has.
    period : int
        ps.
    low, high : int
        Rows that bound the window: `first` is between them.

    Returns
    -------
    tuple of int or None
        `low`, `high`, when the last row ended below ``low + l``, and when the first row begins, or
        would a period later, that is not below ``high + l``. None if there is no window, or
        conditions 1 and 3 do not hold.
    """
    cdef Columns of = Columns(table, rows)
    cdef Py_ssize_t n = of.kind.shape[0], i, at
    cdef int64_t w
    ended_array = np.empty(n, np.int64)
    cdef int64_t[::1] ended = ended_array  # the last of all rows on the device so far
    cdef int64_t now = 0, work = 0, late = start, clock = start, before = 0, after = 0
    cdef int64_t above = UNBOUND, later = UNBOUND
    cdef bint moves = True, by_cpu = False, waits = False
    with nogil:
        at = first
        if not of.repeats(at, l, period):
            at = -1
        else:
            while at > low and of.repeats(at - 1, l, period):
                at -= 1
            low = max(at, low)
            at = first + 1
            while at < high and at + l < n and of.repeats(at, l, period):
                at += 1
            high = min(at, high)
        if at >= 0 and high - low >= l:
            for i in range(n):
                if of.kind[i] <= IS_RECV:
                    now = max(now, of.end[i])
                ended[i] = now
            for i in range(n):
                if not of.flags[i] & JOINED_FLAG:
                    work += of.host[i] + (0 if of.kind[i] == IS_HOST else of.launch_cost[i])
                if of.kind[i] == IS_HOST_WAIT:
                    late = max(late, of.end[i] - work)
                clock = work + late
                if i == high - 1:
                    before = clock
                if i == high + l - 1:
                    after = clock
                if i < high:
                    continue
                # Condition 1: inputs that stay must have ended before others made the row begin.
                for w in range(of.wait_index[i], of.wait_index[i + 1]):
                    at = of.wait_row[w]
                    if at < low and (
                        of.kind[i] > IS_RECV or ended[last[at] + l] + of.gap[i] >= of.begin[i]
                    ):
                        moves = False
                if of.kind[i] > IS_RECV:
                    if of.kind[i] == IS_HOST_WAIT and of.binding[i] != BY_HOST:
                        waits = True  # from here on the CPU is later by a period
                    continue
                at = stream_row[i]
                if 0 <= at < low and ended[last[at] + l] + of.gap[i] >= of.begin[i]:
                    moves = False
                if of.binding[i] == BY_HOST and not waits:
                    by_cpu = True
                above = min(above, of.begin[i])
                if i >= high + l:
                    later = min(later, of.begin[i])
        else:
            moves = False
    if not moves or after - before > period:
        return None
    if after - before < period and (by_cpu or not (waits or clock <= now)):
        return None
    return low, high, ended_array[low + l - 1], min(above + period, later)


def ended_of_running(table, rows, int64_t time):
    """Return when the last row on the device ended that had begun by a time, in ps; 0: none had."""
    cdef const uint8_t[::1] kind = table.kind
    cdef const int64_t[::1] begin = rows.begin, end = rows.end
    cdef int64_t found = 0
    cdef Py_ssize_t i
    with nogil:
        for i in range(kind.shape[0]):
            if kind[i] <= IS_RECV and begin[i] <= time:
                found = max(found, end[i])
    return found
