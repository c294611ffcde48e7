# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What a contended core has found out, once all have come to their ends: see `contended_twin`."""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint64_t

from .contended cimport Actors, FlowGroup, ended_at
from .crew cimport Crew
from .meetings cimport Meetings
from .state cimport Communication

cdef extern from "hashes.h":
    void add_hashes(
        int64_t n, const uint64_t* low, const uint64_t* high, const uint64_t* counted,
        const int64_t* duration, const int64_t* start, int64_t stride, const uint64_t* size,
        int64_t times, uint64_t* sum) noexcept nogil
    void add_end(int64_t end, const uint64_t* seed, int64_t times, uint64_t* sum) noexcept nogil


def met(layout, Crew crew, Meetings meetings, int64_t local):
    """When communications of a hosted rank began and ended: see the twin."""
    cdef const Communication[::1] found = layout.codes[layout.code[local]].communications
    cdef const Actors* rank = &crew.ranks[local]
    cdef const Communication* x
    cdef const FlowGroup* group
    cdef int64_t[::1] start, end
    cdef Py_ssize_t i
    starts, ends = np.empty((2, found.shape[0]), np.int64)
    start, end = starts, ends
    for i in range(found.shape[0]):
        x = &found[i]
        if x.eager:
            start[i] = rank.eager_ready[rank.steps[x.row].eager]
            end[i] = start[i] + rank.duration[x.row]
        else:
            group = &meetings.group_of[rank.group[x.slot] + x.ordinal]
            start[i] = group.time
            end[i] = ended_at(rank, x.row, group)
    return starts, ends


def last(layout, Crew crew, Meetings meetings, int64_t local):
    """Which simulated rank was ready last: see the twin."""
    found = layout.codes[layout.code[local]].communications
    slots = layout.slot_group[layout.slot_index[local]:]
    last = meetings.groups["last"][slots[found["slot"]] + found["ordinal"]]
    return np.where(found["eager"] != 0, crew.ranks[local].number, last).astype(np.int32)


def finish(layout, Crew crew, Meetings meetings):
    """Return ends of ranks and the hash sum."""
    from ..digest import END_LANES

    cdef const int64_t[::1] first, start, duration
    cdef const uint64_t[::1] low, high, counted
    cdef const uint64_t[:, ::1] sizes = layout.slot_hash
    cdef const uint64_t[::1] seed = END_LANES
    cdef const int64_t[::1] slot_index = layout.slot_index
    cdef const int64_t[::1] count = layout.count
    cdef const int32_t[::1] code = layout.code
    cdef int64_t[::1] end
    cdef uint64_t total[2]
    cdef int64_t i, slot
    total[0] = total[1] = 0
    ends = np.zeros(crew.n, np.int64)
    end = ends
    tables = [by_slot(c.communications) for c in layout.codes]
    for i in range(crew.n):
        order, first, low, high, counted = tables[code[i]]
        starts, until = met(layout, crew, meetings, i)
        start, duration = starts[order], (until - starts)[order]
        for slot in range(first.shape[0] - 1):
            if first[slot] < first[slot + 1]:
                add_hashes(
                    first[slot + 1] - first[slot], &low[first[slot]], &high[first[slot]],
                    &counted[first[slot]], &duration[first[slot]], &start[first[slot]], 1,
                    &sizes[slot_index[i] + slot, 0], count[i], total)
        end[i] = max(crew.ranks[i].host, crew.ranks[i].device)
        add_end(end[i], &seed[0], count[i], total)
    return ends, total[0] + (int(total[1]) << 64)


cdef by_slot(found):
    """Return an order of communications, where each slot begins, and what the digest takes."""
    order = np.argsort(found["slot"], kind="stable")
    slots = found["slot"][order]
    first = np.searchsorted(slots, np.arange(int(slots.max(initial=-1)) + 2)).astype(np.int64)
    counted = np.ones(len(order), np.uint64)
    return order, first, found["low"][order], found["high"][order], counted
