# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The tiled core: runs ranks whose communications share no links, many side by side.

Each rank executes its instructions in order. A communication posts its ready time and the rank
goes on; its end is *pending* in a register until somebody reads it. Only then does the rank block,
on the first communication without a start. The last post of its hosted members starts it and wakes
those who are blocked there; one with members on other processes goes to the outbox instead, and
starts when they have been heard.

Ranks of one table run side by side as *lanes* of a tile: a row is decoded once for all, registers
are short vectors, and a communication all of whose members are lanes of the tile starts in place.
State, invariants, an example and the argument why this is right stand in tile_state.h;
communications.h, registers.h and lanes.h execute rows; here tiles are laid out and results read.

Callers are trusted: no index is checked.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t

from .tile_digest cimport TileDigest
from .common cimport LOCAL, CommunicationRow, Instruction
from .tile_state cimport (
    COLUMNS, OUTSIDE, SCATTERED, WIDTH, Communication, EngineState, Slot, SlotBinding, Tile,
    Waiting, blocked_on, deliver, run_tiles,
)

from .tile_digest import TileDigest as new_tile_digest
from .memory import padded

# Bytes that are reserved at once, and set to 0: no more than tiles of most plans need, since each
# pass of relaxation has a core of its own.
cdef size_t BLOCK = 1 << 16

COMMUNICATION = np.dtype([("time", np.int64), ("last", np.int32), ("posted", np.int32)])
"""State of one communication: as `Communication` in tile_state.h."""


cdef struct TablePointers:  # into a LoweredTable
    const Instruction* code
    const int32_t* operands
    const int32_t* final
    const int64_t* operations  # on each slot
    int32_t n_rows
    int32_t n_final
    int32_t n_registers
    int32_t n_slots
    int32_t n_eager


@cython.final
cdef class Core:
    """See the package."""

    cdef EngineState engine
    cdef TablePointers* tables
    cdef char* room
    cdef size_t n_room
    cdef int32_t[::1] tile_of, lane_of
    cdef const int32_t[::1] number, table, kind
    cdef const int64_t[::1] start, count, slot_index, slot_first
    cdef const int32_t[::1] slot_members
    cdef const uint8_t[::1] slot_role
    cdef const uint64_t[::1] factor, key, jitter
    cdef int64_t n_ranks, n_tiles
    cdef const int64_t** durations  # of each kind
    cdef const uint8_t** looked_up  # likewise; NULL where no links are shared
    cdef object core_input, references
    cdef readonly int64_t unfinished
    cdef readonly object communications

    message = ("time", "last")

    def __cinit__(self, core_input):
        cdef Communication[::1] communications
        cdef int64_t i, n = len(core_input.numbers), widest
        self.n_room = self.n_tiles = 0
        self.looked_up = NULL
        self.engine.horizon = INT64_MAX
        self.core_input = core_input
        self.n_ranks = self.unfinished = n
        self.references = []
        self.number, self.table = core_input.numbers, core_input.table
        self.kind = core_input.kind
        self.start, self.count = core_input.start, core_input.count
        self.slot_index = core_input.slot_index
        self.slot_first, self.slot_role = core_input.slot_first, core_input.slot_role
        self.slot_members = core_input.slot_members
        self.tile_of, self.lane_of = np.empty(n, np.int32), np.empty(n, np.int32)
        # Pages of these that nobody touches take no memory: few communications are waited for.
        self.communications = np.zeros(core_input.n_communications + 1, COMMUNICATION)
        communications = self.communications
        self.engine.communications = &communications[0]
        self.engine.waiting = <Waiting*>self.reserve(core_input.n_communications, sizeof(Waiting))
        self.engine.tiles = <Tile*>self.reserve(n, sizeof(Tile))
        self.engine.ready = <int32_t*>self.reserve(n, sizeof(int32_t))
        self.engine.outgoing = <int64_t*>self.reserve(core_input.n_messages, sizeof(int64_t))
        widest = int(np.diff(core_input.tiles.index).max(initial=0)) + WIDTH
        self.engine.begin = <int64_t*>self.reserve(widest, sizeof(int64_t))
        self.engine.start = <int64_t*>self.reserve(widest, sizeof(int64_t))
        self.engine.last_lane = <int64_t*>self.reserve(widest, sizeof(int64_t))
        self._read_tables()
        self._expect_messages()
        lanes, index = core_input.tiles.lanes, core_input.tiles.index
        for i in range(len(index) - 1):
            self._lay(&self.engine.tiles[i], lanes[index[i] : index[i + 1]])
        self.n_tiles = len(index) - 1
        for i in range(self.n_tiles):  # a stack: the first tile first
            self.engine.ready[self.n_tiles - 1 - i] = <int32_t>i
        self.engine.n_ready = self.n_tiles

    cdef char* reserve(self, size_t n, size_t size):
        """Return memory, all 0, that is freed with the core."""
        cdef size_t more = ((n * size) // 64 + 1) * 64  # whole cache lines
        cdef uint8_t[::1] block
        cdef char* found
        if more > self.n_room:
            array = np.zeros(max(more, BLOCK) + 64, np.uint8)
            self.references.append(array)
            block = array
            self.n_room = max(more, BLOCK)
            self.room = <char*>((<size_t>&block[63]) & ~<size_t>63)
        found = self.room
        self.room += more
        self.n_room -= more
        return found

    cdef _read_tables(self):
        """Point to instructions and durations."""
        cdef const Instruction[::1] instructions
        cdef const int32_t[::1] operands, final
        cdef const int64_t[::1] numbers, taken
        cdef const uint8_t[::1] looked_up
        cdef TablePointers* table
        given = self.core_input
        self.tables = <TablePointers*>self.reserve(len(given.lowered), sizeof(TablePointers))
        for i, lowered in enumerate(given.lowered):
            table = &self.tables[i]
            instructions, operands = padded(lowered.instructions), padded(lowered.operands)
            final, numbers = padded(lowered.final), padded(lowered.table.operations)
            self.references.extend([instructions, operands, final, numbers])
            table.code, table.operands, table.final = &instructions[0], &operands[0], &final[0]
            table.operations = &numbers[0]
            table.n_rows, table.n_final = len(lowered.table), len(lowered.final)
            table.n_registers, table.n_slots = lowered.n_registers, len(lowered.table.operations)
            table.n_eager = lowered.n_eager
        self.durations = <const int64_t**>self.reserve(len(given.kinds), sizeof(int64_t*))
        for i, durations in enumerate(given.kinds):
            numbers = padded(durations)
            self.references.append(numbers)
            self.durations[i] = &numbers[0]
        if given.sharing is not None:
            taken = given.sharing.taken
            self.engine.taken = &taken[0]
            self.looked_up = <const uint8_t**>self.reserve(len(given.kinds), sizeof(uint8_t*))
            for i, rows in enumerate(given.sharing.looked_up):
                looked_up = padded(rows)
                self.references.append(looked_up)
                self.looked_up[i] = &looked_up[0]
        if given.variation is not None:
            self.factor = given.variation.factor
            if given.variation.table is not None:
                self.key, self.jitter = given.variation.key, given.variation.table
                self.engine.jitter = &self.jitter[0]

    cdef _expect_messages(self):
        """Count the messages due to communications with members on other processes."""
        cdef const int32_t[::1] remote = self.core_input.slot_remote
        cdef const TablePointers* table
        cdef int64_t i, k, at
        cdef int32_t s
        for i in range(self.n_ranks):
            table = &self.tables[self.table[i]]
            for s in range(table.n_slots):
                at = self.slot_index[i] + s
                if self.slot_role[at] != LOCAL:
                    for k in range(table.operations[s]):
                        self.engine.waiting[self.slot_first[at] + k].remote = -remote[at]

    # --- tiles ----------------------------------------------------------------------------------

    cdef _lay(self, Tile* tile, const int32_t[::1] lanes):
        """Lay out ranks of one table, by their local numbers, as the lanes of a tile."""
        cdef TablePointers* table = &self.tables[self.table[lanes[0]]]
        cdef int64_t n = lanes.shape[0], l, at
        cdef int32_t s, i
        given = self.core_input.sharing
        slots = frozenset() if given is None else given.slots[self.kind[lanes[0]]]
        cdef int64_t width = 1 if n == 1 else (n + WIDTH - 1) // WIDTH * WIDTH
        tile.code, tile.operands, tile.final = table.code, table.operands, table.final
        tile.duration = self.durations[self.kind[lanes[0]]]
        tile.looked_up = NULL if given is None else self.looked_up[self.kind[lanes[0]]]
        tile.n_lanes, tile.width = <int32_t>n, <int32_t>width
        tile.n_rows, tile.n_final = table.n_rows, table.n_final
        tile.n_slots, tile.n_registers = table.n_slots, table.n_registers
        tile.row = tile.n_eager = tile.next_waiter = tile.ended = tile.parked = 0
        tile.value = <int64_t*>self.reserve(width * table.n_registers, sizeof(int64_t))
        tile.pending = <int32_t*>self.reserve(table.n_registers, sizeof(int32_t))
        tile.clock = <int64_t*>self.reserve(width, sizeof(int64_t))
        tile.device = <int64_t*>self.reserve(width, sizeof(int64_t))
        tile.eager = <int64_t*>self.reserve(n * table.n_eager, sizeof(int64_t))
        tile.local = <int32_t*>self.reserve(n, sizeof(int32_t))
        tile.number = <int32_t*>self.reserve(n, sizeof(int32_t))
        tile.slot = <Slot*>self.reserve(table.n_slots, sizeof(Slot))
        for l in range(n):
            i = tile.local[l] = lanes[l]
            tile.number[l] = self.number[i]
            tile.clock[l] = tile.device[l] = self.start[i]
            self.tile_of[i] = <int32_t>(tile - self.engine.tiles)
            self.lane_of[i] = <int32_t>l
        for s in range(table.n_slots):
            tile.slot[s].binding = <SlotBinding*>self.reserve(n, sizeof(SlotBinding))
            tile.slot[s].column = <int32_t*>self.reserve(n, sizeof(int32_t))
            for l in range(n):
                at = self.slot_index[lanes[l]] + s
                tile.slot[s].binding[l].first = self.slot_first[at]
                tile.slot[s].binding[l].members = self.slot_members[at]
                tile.slot[s].binding[l].role = self.slot_role[at]
            if table.operations[s]:
                look_inside(tile, &tile.slot[s])
            if s in slots:
                tile.slot[s].kind = <uint8_t>OUTSIDE
        self._vary(tile)

    cdef _vary(self, Tile* tile):
        """Give the lanes of a tile their factors, where kernels do not take their priced time."""
        cdef int64_t l
        cdef bint varied = self.engine.jitter is not NULL
        tile.factor = tile.key = NULL
        if self.core_input.variation is None:
            return
        for l in range(tile.n_lanes):
            varied = varied or self.factor[tile.local[l]] != <uint64_t>1 << 32
        if not varied:
            return
        tile.factor = <uint64_t*>self.reserve(tile.width, sizeof(uint64_t))
        tile.key = <uint64_t*>self.reserve(tile.width, sizeof(uint64_t))
        for l in range(tile.n_lanes):
            tile.factor[l] = self.factor[tile.local[l]]
            if self.engine.jitter is not NULL:
                tile.key[l] = self.key[tile.local[l]]

    def split(self):
        """Split tiles into lanes that can move and lanes that cannot; return whether any could.

        For when no tile can move: lanes of a tile may wait for each other.
        """
        cdef int64_t i, l, n = self.n_tiles
        cdef Tile old
        for i in range(n):
            old = self.engine.tiles[i]
            if old.ended or old.parked:
                continue
            waits = np.array(
                [blocked_on(&self.engine, &old, l) >= 0 for l in range(old.n_lanes)], bool
            )
            if waits.all():
                continue
            # The communication in whose list of waiters the tile stands is one of a lane that
            # waits: those lanes keep the tile's number, and with it the place in the list.
            self._cut(&self.engine.tiles[i], &old, np.flatnonzero(waits))
            self._cut(&self.engine.tiles[self.n_tiles], &old, np.flatnonzero(~waits))
            self.engine.ready[self.engine.n_ready] = <int32_t>self.n_tiles
            self.engine.n_ready += 1
            self.n_tiles += 1
        return self.n_tiles > n

    cdef _cut(self, Tile* tile, Tile* old, const int64_t[::1] lanes):
        """Make a tile of some lanes of another, with their state."""
        cdef int64_t n = lanes.shape[0], i, j
        cdef int32_t next_waiter = old.next_waiter
        self._lay(tile, np.array([old.local[lanes[j]] for j in range(n)], np.int32))
        tile.row, tile.n_eager, tile.next_waiter = old.row, old.n_eager, next_waiter
        for i in range(tile.n_registers):
            tile.pending[i] = old.pending[i]
        for j in range(n):
            tile.clock[j], tile.device[j] = old.clock[lanes[j]], old.device[lanes[j]]
            for i in range(tile.n_registers):
                tile.value[i * tile.width + j] = old.value[i * old.width + lanes[j]]
            for i in range(old.n_eager):
                tile.eager[i * n + j] = old.eager[i * old.n_lanes + lanes[j]]

    # --- running --------------------------------------------------------------------------------

    def park_at(self, int64_t horizon):
        """Have ranks stop that need to know of a communication that it ends at a time or later."""
        self.engine.horizon = horizon

    def advance(self, int64_t budget):
        """Run tiles until none can move or `budget` rows are done; return whether some can."""
        with nogil:
            self.unfinished -= run_tiles(&self.engine, budget)
        return self.engine.n_ready > 0

    @property
    def rows_done(self):
        """Rows of all ranks so far."""
        return self.engine.rows_done

    def reached(self):
        """Return the times of the rank that is furthest behind and of the one furthest ahead."""
        cdef int64_t i, l, time, least = INT64_MAX, most = INT64_MIN
        cdef const Tile* tile
        with nogil:
            for i in range(self.n_tiles):
                tile = &self.engine.tiles[i]
                for l in range(tile.n_lanes):
                    time = max(tile.clock[l], tile.device[l])
                    least, most = min(least, time), max(most, time)
        return least, most

    @property
    def n_outgoing(self):
        """Number of communications in the outbox."""
        return self.engine.n_outgoing

    def outbox(self):
        """Return the communications to tell other processes about, and empty the outbox."""
        cdef int64_t i
        numbers_array = np.empty(self.engine.n_outgoing, np.int64)
        cdef int64_t[::1] numbers = numbers_array
        for i in range(self.engine.n_outgoing):
            numbers[i] = self.engine.outgoing[i]
        self.engine.n_outgoing = 0
        return numbers_array

    def deliver(
        self,
        const int64_t[::1] numbers,
        const int64_t[::1] times,
        const int64_t[::1] lasts,
        const uint8_t[::1] owned,
    ):
        """Merge messages from other processes: see the package."""
        cdef Py_ssize_t i
        with nogil:
            for i in range(numbers.shape[0]):
                deliver(&self.engine, numbers[i], times[i], <int32_t>lasts[i], owned[i])

    # --- results --------------------------------------------------------------------------------

    def rows(self):
        """Return the row each hosted rank has come to, shape (h,)."""
        cdef int64_t i
        return np.array(
            [self.engine.tiles[self.tile_of[i]].row for i in range(self.n_ranks)], np.int32
        )

    def blocked(self):
        """Return the communication each hosted rank is blocked on, -1 if none, shape (h,)."""
        cdef int64_t i
        return np.array(
            [
                blocked_on(&self.engine, &self.engine.tiles[self.tile_of[i]], self.lane_of[i])
                for i in range(self.n_ranks)
            ],
            np.int64,
        )

    def communication_times(self, int64_t local):
        """Return when each communication of a rank began and ended: see the package."""
        cdef const CommunicationRow[::1] found
        cdef const CommunicationRow* x
        cdef const Tile* tile = &self.engine.tiles[self.tile_of[local]]
        cdef int64_t j, number, eager = 0, lane = self.lane_of[local]
        found = self.core_input.lowered_of(local).communications
        starts, ends = np.empty(found.shape[0], np.int64), np.empty(found.shape[0], np.int64)
        cdef int64_t[::1] start = starts, end = ends
        with nogil:
            for j in range(found.shape[0]):
                x = &found[j]
                if x.eager:
                    start[j] = tile.eager[eager * tile.n_lanes + lane]
                    eager += 1
                else:
                    number = tile.slot[x.slot].binding[lane].first + x.ordinal
                    start[j] = self.engine.communications[number].time
                end[j] = start[j] + tile.duration[x.row]
                if not x.eager and tile.looked_up is not NULL and tile.looked_up[x.row]:
                    end[j] += self.engine.taken[number]
        return starts, ends

    def last_ready(self, int64_t local):
        """Return who was ready last for each communication of a rank: see the package."""
        cdef const CommunicationRow[::1] found
        cdef const CommunicationRow* x
        cdef const Tile* tile = &self.engine.tiles[self.tile_of[local]]
        cdef int64_t j, number, lane = self.lane_of[local]
        found = self.core_input.lowered_of(local).communications
        lasts = np.full(found.shape[0], self.number[local], np.int32)
        cdef int32_t[::1] last = lasts
        with nogil:
            for j in range(found.shape[0]):
                x = &found[j]
                if not x.eager:
                    number = tile.slot[x.slot].binding[lane].first + x.ordinal
                    last[j] = self.engine.communications[number].last - 1
        return lasts

    def ends(self):
        """Return ends of ranks."""
        cdef int64_t i, l
        cdef Tile* tile
        found = np.zeros(self.n_ranks, np.int64)
        cdef int64_t[::1] end = found
        for i in range(self.n_tiles):
            tile = &self.engine.tiles[i]
            for l in range(tile.n_lanes):
                end[tile.local[l]] = max(tile.clock[l], tile.device[l])
        return found

    def hash_sum(self):
        """Return the hash sum: see `mpisim.engine.digest`."""
        cdef TileDigest hashes = new_tile_digest(self.core_input)
        cdef uint64_t[2] total
        cdef int64_t i
        total[0] = total[1] = 0
        with nogil:
            for i in range(self.n_tiles):
                hashes.add(&self.engine, &self.engine.tiles[i], total)
        return int(total[0]) + (int(total[1]) << 64)


cdef void look_inside(Tile* tile, Slot* slot) noexcept nogil:
    """Find which lanes share a communicator on a slot, and whether any member is no lane here."""
    cdef int64_t n = tile.n_lanes, l, j, members
    cdef bint inside = True, columns = True
    slot.n_columns = 0
    for l in range(n):
        slot.column[l] = -1
        for j in range(l - 1, -1, -1):
            if slot.binding[j].first == slot.binding[l].first:
                slot.column[l] = slot.column[j]
                columns = columns and tile.number[j] < tile.number[l]
                break
        if slot.column[l] < 0:
            slot.column[l] = <int32_t>slot.n_columns
            slot.n_columns += 1
    for l in range(n):
        members = 0
        for j in range(n):
            members += slot.column[j] == slot.column[l]
        inside = inside and slot.binding[l].role == LOCAL and members == slot.binding[l].members
        columns = columns and slot.column[l] == l % slot.n_columns
    slot.kind = <uint8_t>((COLUMNS if columns else SCATTERED) if inside else OUTSIDE)
