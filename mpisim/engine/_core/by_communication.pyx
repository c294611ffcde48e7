# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Communications of hosted ranks → arrays by communication: see `mpisim.engine.relaxation`.

Rows of ranks say what their communications cost; where these may flow it is needed by number, once
for all members. What depends on the table alone is worked out once for each kind of times.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t

from .common cimport CommunicationRow


def mark_flows(
    core_input, prices, const int64_t[::1] slot_flow, int32_t[::1] found
):
    """Enter the prices of the communications of hosted ranks into an array of all flows.

    Parameters
    ----------
    core_input : mpisim.engine.core_input.CoreInput
    prices : list of int32 arrays
        For each of the durations, the price of each row, or -1.
    slot_flow : int64, shape (s,)
        The first flow of the communicator bound to a slot of a hosted rank, or -1.
    found : int32, shape (n,)
        Prices of flows, changed in place.
    """
    cdef const int64_t[::1] slot_index = core_input.slot_index
    cdef const int32_t[::1] duration = core_input.duration, price
    cdef const int32_t[:, ::1] flow
    cdef int64_t i, j, at
    known = {}
    for i in range(duration.shape[0]):
        number = int(duration[i])
        if number not in known:
            priced = prices[number]  # made anew whenever asked for, where there are many
            flows = communications_of(
                core_input.lowered_of(i).communications, (priced >= 0).view(np.uint8)
            )
            known[number] = flows, priced[flows[2]]
        flow, price = known[number]
        with nogil:
            for j in range(flow.shape[1]):
                at = slot_flow[slot_index[i] + flow[0, j]]
                if at >= 0:
                    found[at + flow[1, j]] = price[j]


def take_as_alone(core_input):
    """Have communications whose times are looked up take as long as alone, on hosted ranks.

    Parameters
    ----------
    core_input : mpisim.engine.core_input.CoreInput
        With `sharing`, of which `taken` is changed in place.
    """
    sharing = core_input.sharing
    cdef const int64_t[::1] slot_index = core_input.slot_index, first = core_input.slot_first
    cdef const int32_t[::1] kind = sharing.kind, duration = core_input.duration
    cdef const int32_t[:, ::1] looked_up
    cdef const int64_t[::1] values
    cdef int64_t[::1] taken = sharing.taken
    cdef int64_t i, j
    known, values_of = {}, {}
    for i in range(kind.shape[0]):
        of_kind, of_duration = int(kind[i]), int(duration[i])
        if of_kind not in known:
            known[of_kind] = communications_of(
                core_input.lowered_of(i).communications, sharing.looked_up[of_kind]
            )
        if of_duration not in values_of:
            values_of[of_duration] = core_input.durations[of_duration][known[of_kind][2]]
        looked_up, values = known[of_kind], values_of[of_duration]
        with nogil:
            for j in range(looked_up.shape[1]):
                taken[first[slot_index[i] + looked_up[0, j]] + looked_up[1, j]] = values[j]


cdef communications_of(const CommunicationRow[::1] every, const uint8_t[::1] chosen):
    """Communications of a table, which of all rows → slot, ordinal and row of those chosen.

    Returns int32 of shape (3, n).
    """
    cdef Py_ssize_t i, n = 0
    for i in range(every.shape[0]):
        n += chosen[every[i].row] != 0
    found_array = np.empty((3, n), np.int32)
    cdef int32_t[:, ::1] found = found_array
    n = 0
    for i in range(every.shape[0]):
        if chosen[every[i].row]:
            found[0, n], found[1, n] = every[i].slot, every[i].ordinal
            found[2, n] = every[i].row
            n += 1
    return found_array
