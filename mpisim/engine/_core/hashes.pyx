# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The digest of a run of tiles: see `mpisim.engine.digest`. The loops stand in hashes.h."""

import numpy as np

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from .state cimport Communication
from .tiles cimport OUTER, Group, Machine, Slot, Tile, add_end, add_hashes

from ..digest import END_LANES


@cython.final
cdef class Hashes:
    """What the digest takes from the tables, ready to be completed by what a run found.

    Parameters
    ----------
    layout : mpisim.engine.plan.Layout
    """

    def __cinit__(self, layout):
        cdef const uint64_t[::1] low, high, counted
        cdef const int64_t[::1] duration, first
        cdef const Communication[::1] eager
        cdef Part* part
        self.parts = <Part*>calloc(len(layout.durations) + 1, sizeof(Part))
        if self.parts is NULL:
            raise MemoryError("no memory for hashes of tables")
        self.kept = []
        self.sizes, self.seeds = padded(layout.slot_hash), END_LANES
        self.slot_index, self.count = layout.slot_index, layout.count
        self.duration = layout.duration
        for number, code in set(zip(layout.duration.tolist(), layout.code.tolist())):
            found = layout.codes[code].communications
            by_slot = found[np.lexsort((found["ordinal"], found["slot"]))]
            low, high = padded(by_slot["low"]), padded(by_slot["high"])
            counted = padded((by_slot["eager"] == 0).astype(np.uint64))
            duration = padded(layout.durations[number][by_slot["row"]])
            first = np.concatenate([[0], np.cumsum(layout.codes[code].table.operations)])
            eager = padded(found[found["eager"] != 0])
            self.kept.extend([low, high, counted, duration, first, eager])
            part = &self.parts[number]
            part.low, part.high, part.counted = &low[0], &high[0], &counted[0]
            part.duration, part.first, part.eager = &duration[0], &first[0], &eager[0]

    def __dealloc__(self):
        free(self.parts)

    cdef void add(self, const Machine* machine, const Tile* tile, uint64_t* total) noexcept nogil:
        """Add what the lanes of a tile did to a 128-bit sum of two words."""
        cdef int64_t l
        cdef int32_t s
        for s in range(tile.n_slots):
            self.add_slot(machine, tile, s, total)
        self.add_eager(tile, total)
        for l in range(tile.n_lanes):
            add_end(
                max(tile.clock[l], tile.device[l]), &self.seeds[0], self.count[tile.local[l]], total
            )

    cdef void add_slot(
        self, const Machine* machine, const Tile* tile, int32_t s, uint64_t* total
    ) noexcept nogil:
        """Add the communications on one slot, but for EAGER ones."""
        cdef const Part* part = &self.parts[self.duration[tile.local[0]]]
        cdef const Slot* slot = &tile.slot[s]
        cdef int64_t first = part.first[s], n = part.first[s + 1] - first, l, g
        cdef int64_t* times = machine.best
        cdef int64_t* member = machine.who
        # Members that are lanes of one tile end together: one hash, times their number.
        cdef bint together = slot.kind != OUTER
        for l in range(tile.n_lanes):
            times[l] = 0
        for l in range(tile.n_lanes):
            g = slot.column[l] if together else l
            times[g] += self.count[tile.local[l]]
            member[g] = l
        for g in range(slot.n_groups if together else tile.n_lanes):
            l = member[g]
            add_hashes(
                n, &part.low[first], &part.high[first], &part.counted[first],
                &part.duration[first], &machine.groups[slot.bond[l].group].time,
                sizeof(Group) // sizeof(int64_t),
                &self.sizes[self.slot_index[tile.local[l]] + s, 0], times[g], total,
            )

    cdef void add_eager(self, const Tile* tile, uint64_t* total) noexcept nogil:
        """Add the communications that do not wait for others."""
        cdef const Part* part = &self.parts[self.duration[tile.local[0]]]
        cdef const Communication* x
        cdef int64_t e, l
        cdef int32_t rank
        cdef uint64_t counted = 1
        for e in range(tile.n_eager):
            x = &part.eager[e]
            for l in range(tile.n_lanes):
                rank = tile.local[l]
                add_hashes(
                    1, &x.low, &x.high, &counted, &tile.duration[x.row],
                    &tile.eager[e * tile.n_lanes + l], 1,
                    &self.sizes[self.slot_index[rank] + x.slot, 0], self.count[rank], total,
                )


def padded(array):
    """Return the array, or one element if it has none, so that the first has an address."""
    if not len(array):
        array = np.zeros((1, *array.shape[1:]), array.dtype)
    return np.ascontiguousarray(array)
