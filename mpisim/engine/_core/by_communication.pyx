# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Communications of hosted ranks → arrays by communication: see `mpisim.engine.relaxation`.

Rows of ranks say what their communications cost; where these may flow it is needed by number, once
for all members. What depends on the table alone is worked out once for each kind of times.

Callers are trusted: no index is checked.
"""

from libc.stdint cimport int32_t, int64_t

from .memory import padded


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
    cdef const int32_t[::1] table = core_input.table, duration = core_input.duration
    cdef const int32_t[::1] slots, ordinals, price
    cdef int64_t i, j, at, n
    known = {}
    for i in range(table.shape[0]):
        number = int(duration[i])
        if number not in known:
            rows = core_input.lowered_of(i).communications
            priced = prices[number][rows["row"]]
            flows = priced >= 0
            known[number] = (
                padded(rows["slot"][flows]), padded(rows["ordinal"][flows]),
                padded(priced[flows]), int(flows.sum()),
            )
        slots, ordinals, price, n = known[number]
        with nogil:
            for j in range(n):
                at = slot_flow[slot_index[i] + slots[j]]
                if at >= 0:
                    found[at + ordinals[j]] = price[j]




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
    cdef const int32_t[::1] slots, ordinals
    cdef const int64_t[::1] values
    cdef int64_t[::1] taken = sharing.taken
    cdef int64_t i, j, n
    rows_of, values_of = {}, {}
    for i in range(kind.shape[0]):
        of_kind, of_duration = int(kind[i]), int(duration[i])
        if of_kind not in rows_of:
            found = core_input.lowered_of(i).communications
            found = found[sharing.looked_up[of_kind][found["row"]] != 0]
            rows_of[of_kind] = (
                padded(found["slot"]), padded(found["ordinal"]), found["row"], len(found),
            )
        slots, ordinals, rows, n = rows_of[of_kind]
        if of_duration not in values_of:
            values_of[of_duration] = padded(core_input.durations[of_duration][rows])
        values = values_of[of_duration]
        with nogil:
            for j in range(n):
                taken[first[slot_index[i] + slots[j]] + ordinals[j]] = values[j]
