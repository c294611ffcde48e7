# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The digest of a run of tiles: see `mpisim.engine.digest`. The loops stand in digest.h.

The digest is a sum modulo 2**128 over communications and ends of ranks, so it may be added up in
any order: here slot by slot of each table, since what the table contributes is then read in order.
A rank counts as often as it represents others.
"""

import numpy as np

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free

from .common cimport CommunicationRow
from .memory cimport allocated
from .tile_state cimport OUTSIDE, Communication, EngineState, Slot, Tile, add_end, add_hashes

from ..digest import END_LANES
from .memory import padded


@cython.final
cdef class TileDigest:
    """The part of the digest that follows from the tables alone, to be completed after a run.

    Parameters
    ----------
    core_input : mpisim.engine.core_input.CoreInput
    """

    def __cinit__(self, core_input):
        cdef const uint64_t[::1] low, high, counted
        cdef const int64_t[::1] duration, first
        cdef const CommunicationRow[::1] eager
        cdef const uint8_t[::1] looked_up
        cdef Part* part
        self.parts = <Part*>allocated(len(core_input.kinds), sizeof(Part))
        self.references = []
        self.sizes, self.seeds = padded(core_input.slot_hash), END_LANES
        self.slot_index, self.count = core_input.slot_index, core_input.count
        self.kind = core_input.kind
        most = 0
        known = {}  # tables that differ in durations alone share all else
        for number, table in set(zip(core_input.kind.tolist(), core_input.table.tolist())):
            found = core_input.lowered[table].communications
            if id(found) not in known:
                order = np.lexsort((found["ordinal"], found["slot"]))
                by_slot = found[order]
                known[id(found)] = (
                    padded(by_slot["low"]),
                    padded(by_slot["high"]),
                    padded((by_slot["eager"] == 0).astype(np.uint64)),
                    np.concatenate([[0], np.cumsum(core_input.lowered[table].table.operations)]),
                    padded(found[found["eager"] != 0]),
                    by_slot["row"].copy(),
                )
                self.references.append(known[id(found)])
            low, high, counted, first, eager, rows = known[id(found)]
            duration = padded(core_input.kinds[number][rows])
            self.references.append(duration)
            part = &self.parts[number]
            part.low, part.high, part.counted = &low[0], &high[0], &counted[0]
            part.duration, part.first, part.eager = &duration[0], &first[0], &eager[0]
            if core_input.sharing is not None:
                looked_up = padded(core_input.sharing.looked_up[number][rows])
                self.references.append(looked_up)
                part.looked_up = &looked_up[0]
                most = max(most, len(rows))
        self.taken = np.zeros(most + 1, np.int64)

    def __dealloc__(self):
        free(self.parts)

    cdef void add(
        self, const EngineState* engine, const Tile* tile, uint64_t* total
    ) noexcept nogil:
        """Add the hashes of the lanes of a tile to a 128-bit sum of two words."""
        cdef int64_t l
        cdef int32_t s
        for s in range(tile.n_slots):
            self.add_slot(engine, tile, s, total)
        self.add_eager(tile, total)
        for l in range(tile.n_lanes):
            add_end(
                max(tile.clock[l], tile.device[l]), &self.seeds[0], self.count[tile.local[l]], total
            )

    cdef void add_slot(
        self, const EngineState* engine, const Tile* tile, int32_t s, uint64_t* total
    ) noexcept nogil:
        """Add the communications on one slot, but for EAGER ones."""
        cdef const Part* part = &self.parts[self.kind[tile.local[0]]]
        cdef const Slot* slot = &tile.slot[s]
        cdef int64_t first = part.first[s], n = part.first[s + 1] - first, l, g
        cdef int64_t* times = engine.start
        cdef const int64_t* duration = &part.duration[first]
        cdef int64_t k
        cdef int64_t* member = engine.last_lane
        # Members that are lanes of one tile end together: one hash, times their number.
        cdef bint together = slot.kind != OUTSIDE
        for l in range(tile.n_lanes):
            times[l] = 0
        for l in range(tile.n_lanes):
            g = slot.column[l] if together else l
            times[g] += self.count[tile.local[l]]
            member[g] = l
        for g in range(slot.n_columns if together else tile.n_lanes):
            l = member[g]
            if part.looked_up is not NULL:
                for k in range(n):
                    self.taken[k] = part.duration[first + k]
                    if part.looked_up[first + k]:
                        self.taken[k] += engine.taken[slot.binding[l].first + k]
                duration = &self.taken[0]
            add_hashes(
                n, &part.low[first], &part.high[first], &part.counted[first],
                duration, &engine.communications[slot.binding[l].first].time,
                sizeof(Communication) // sizeof(int64_t),
                &self.sizes[self.slot_index[tile.local[l]] + s, 0], times[g], total,
            )

    cdef void add_eager(self, const Tile* tile, uint64_t* total) noexcept nogil:
        """Add the communications that do not wait for others."""
        cdef const Part* part = &self.parts[self.kind[tile.local[0]]]
        cdef const CommunicationRow* x
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
