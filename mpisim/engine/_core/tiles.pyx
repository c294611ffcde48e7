# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The core, compiled. `twin` is the same in plain Python, one rank at a time: read it first.

Ranks of one table run side by side as *lanes* of a tile: a row is decoded once for all, registers
are short vectors, and a communication all of whose members are lanes of the tile starts in place. A
tile waits until all its lanes can go on. Where no tile can move, though some ranks could, `split`
cuts them out of their tiles: there is no deadlock that ranks by themselves would not come to.

What happens between two calls from Python stands in lanes.h and tiles.h; here tiles are laid out
and what came of them is read. Callers are trusted: no index is checked.
"""

import numpy as np

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .hashes cimport Hashes
from .state cimport LOCAL, Communication, Instruction
from .tiles cimport (
    COLUMNS, OUTER, SCATTERED, WIDTH, Bond, Group, Machine, Slot, Tile, Waiting, blocked_on,
    deliver, run_tiles,
)

from .hashes import Hashes as new_hashes
from .hashes import padded

cdef size_t BLOCK = 1 << 20

GROUP = np.dtype([("time", np.int64), ("last", np.int32), ("came", np.int32)])
"""State of a group: as `Group` in tiles.h."""


cdef struct Script:  # a table, as instructions
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

    cdef Machine machine
    cdef Script* scripts
    cdef char* room
    cdef size_t n_room
    cdef int32_t[::1] tile_of, lane_of
    cdef const int32_t[::1] number, code, duration
    cdef const int64_t[::1] start, count, slot_index, slot_group
    cdef const int32_t[::1] slot_members
    cdef const uint8_t[::1] slot_role
    cdef const uint64_t[::1] factor, key, jitter
    cdef int64_t n_ranks, n_tiles
    cdef const int64_t** durations
    cdef object layout, kept
    cdef readonly int64_t unfinished
    cdef readonly object groups

    message = ("time", "last")

    def __cinit__(self, layout):
        cdef Group[::1] groups
        cdef int64_t i, n = len(layout.numbers), widest
        self.n_room = self.n_tiles = 0
        self.layout = layout
        self.n_ranks = self.unfinished = n
        self.kept = []
        self.number, self.code, self.duration = layout.numbers, layout.code, layout.duration
        self.start, self.count, self.slot_index = layout.start, layout.count, layout.slot_index
        self.slot_group, self.slot_role = layout.slot_group, layout.slot_role
        self.slot_members = layout.slot_members
        self.tile_of, self.lane_of = np.empty(n, np.int32), np.empty(n, np.int32)
        # Pages of these that nobody touches take no memory: few groups are waited for.
        self.groups = np.zeros(layout.n_groups + 1, GROUP)
        groups = self.groups
        self.machine.groups = &groups[0]
        self.machine.waiting = <Waiting*>self.taken(layout.n_groups, sizeof(Waiting))
        self.machine.tiles = <Tile*>self.taken(n, sizeof(Tile))
        self.machine.ready = <int32_t*>self.taken(n, sizeof(int32_t))
        self.machine.posted = <int64_t*>self.taken(layout.n_messages, sizeof(int64_t))
        widest = int(np.diff(layout.tiles.index).max(initial=0)) + WIDTH
        self.machine.begin = <int64_t*>self.taken(widest, sizeof(int64_t))
        self.machine.best = <int64_t*>self.taken(widest, sizeof(int64_t))
        self.machine.who = <int64_t*>self.taken(widest, sizeof(int64_t))
        self._read_tables()
        self._expect_messages()
        lanes, index = layout.tiles.lanes, layout.tiles.index
        for i in range(len(index) - 1):
            self._lay(&self.machine.tiles[i], lanes[index[i] : index[i + 1]])
        self.n_tiles = len(index) - 1
        for i in range(self.n_tiles):  # a stack: the first tile first
            self.machine.ready[self.n_tiles - 1 - i] = <int32_t>i
        self.machine.n_ready = self.n_tiles

    cdef char* taken(self, size_t n, size_t size):
        """Return memory, all 0, that is given back with the core."""
        cdef size_t more = ((n * size) // 64 + 1) * 64  # whole cache lines
        cdef uint8_t[::1] block
        cdef char* found
        if more > self.n_room:
            array = np.zeros(max(more, BLOCK) + 64, np.uint8)
            self.kept.append(array)
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
        cdef const int64_t[::1] numbers
        cdef Script* script
        self.scripts = <Script*>self.taken(len(self.layout.codes), sizeof(Script))
        for i, code in enumerate(self.layout.codes):
            script = &self.scripts[i]
            instructions, operands = padded(code.instructions), padded(code.operands)
            final, numbers = padded(code.final), padded(code.table.operations)
            self.kept.extend([instructions, operands, final, numbers])
            script.code, script.operands, script.final = &instructions[0], &operands[0], &final[0]
            script.operations = &numbers[0]
            script.n_rows, script.n_final = len(code.table), len(code.final)
            script.n_registers, script.n_slots = code.n_registers, len(code.table.operations)
            script.n_eager = code.n_eager
        self.durations = <const int64_t**>self.taken(len(self.layout.durations), sizeof(int64_t*))
        for i, durations in enumerate(self.layout.durations):
            numbers = padded(durations)
            self.kept.append(numbers)
            self.durations[i] = &numbers[0]
        if self.layout.variation is not None:
            self.factor = self.layout.variation.factor
            if self.layout.variation.table is not None:
                self.key, self.jitter = self.layout.variation.key, self.layout.variation.table
                self.machine.jitter = &self.jitter[0]

    cdef _expect_messages(self):
        """Tell groups with members elsewhere how many messages will come."""
        cdef const int32_t[::1] away = self.layout.slot_away
        cdef const Script* script
        cdef int64_t i, k, at
        cdef int32_t s
        for i in range(self.n_ranks):
            script = &self.scripts[self.code[i]]
            for s in range(script.n_slots):
                at = self.slot_index[i] + s
                if self.slot_role[at] != LOCAL:
                    for k in range(script.operations[s]):
                        self.machine.waiting[self.slot_group[at] + k].away = -away[at]

    # --- tiles ----------------------------------------------------------------------------------

    cdef _lay(self, Tile* tile, const int32_t[::1] lanes):
        """Lay out ranks of one table, by their local numbers, as the lanes of a tile."""
        cdef Script* script = &self.scripts[self.code[lanes[0]]]
        cdef int64_t n = lanes.shape[0], l, at
        cdef int32_t s, i
        cdef int64_t width = 1 if n == 1 else (n + WIDTH - 1) // WIDTH * WIDTH
        tile.code, tile.operands, tile.final = script.code, script.operands, script.final
        tile.duration = self.durations[self.duration[lanes[0]]]
        tile.n_lanes, tile.width = <int32_t>n, <int32_t>width
        tile.n_rows, tile.n_final = script.n_rows, script.n_final
        tile.n_slots, tile.n_registers = script.n_slots, script.n_registers
        tile.row = tile.n_eager = tile.next_waiter = tile.ended = 0
        tile.value = <int64_t*>self.taken(width * script.n_registers, sizeof(int64_t))
        tile.pending = <int32_t*>self.taken(script.n_registers, sizeof(int32_t))
        tile.clock = <int64_t*>self.taken(width, sizeof(int64_t))
        tile.device = <int64_t*>self.taken(width, sizeof(int64_t))
        tile.eager = <int64_t*>self.taken(n * script.n_eager, sizeof(int64_t))
        tile.local = <int32_t*>self.taken(n, sizeof(int32_t))
        tile.number = <int32_t*>self.taken(n, sizeof(int32_t))
        tile.slot = <Slot*>self.taken(script.n_slots, sizeof(Slot))
        for l in range(n):
            i = tile.local[l] = lanes[l]
            tile.number[l] = self.number[i]
            tile.clock[l] = tile.device[l] = self.start[i]
            self.tile_of[i] = <int32_t>(tile - self.machine.tiles)
            self.lane_of[i] = <int32_t>l
        for s in range(script.n_slots):
            tile.slot[s].bond = <Bond*>self.taken(n, sizeof(Bond))
            tile.slot[s].column = <int32_t*>self.taken(n, sizeof(int32_t))
            for l in range(n):
                at = self.slot_index[lanes[l]] + s
                tile.slot[s].bond[l].group = self.slot_group[at]
                tile.slot[s].bond[l].members = self.slot_members[at]
                tile.slot[s].bond[l].role = self.slot_role[at]
            if script.operations[s]:
                look_inside(tile, &tile.slot[s])
        self._vary(tile)

    cdef _vary(self, Tile* tile):
        """Give the lanes of a tile their factors, where kernels do not take what they say."""
        cdef int64_t l
        cdef bint varied = self.machine.jitter is not NULL
        tile.factor = tile.key = NULL
        if self.layout.variation is None:
            return
        for l in range(tile.n_lanes):
            varied = varied or self.factor[tile.local[l]] != <uint64_t>1 << 32
        if not varied:
            return
        tile.factor = <uint64_t*>self.taken(tile.width, sizeof(uint64_t))
        tile.key = <uint64_t*>self.taken(tile.width, sizeof(uint64_t))
        for l in range(tile.n_lanes):
            tile.factor[l] = self.factor[tile.local[l]]
            if self.machine.jitter is not NULL:
                tile.key[l] = self.key[tile.local[l]]

    def split(self):
        """Cut ranks that can move out of tiles that cannot; return whether there were any.

        For when no tile can move: ranks of a tile may wait for each other.
        """
        cdef int64_t i, l, n = self.n_tiles
        cdef Tile old
        for i in range(n):
            old = self.machine.tiles[i]
            if old.ended:
                continue
            waits = np.array(
                [blocked_on(&self.machine, &old, l) >= 0 for l in range(old.n_lanes)], bool
            )
            if waits.all():
                continue
            # The group that the tile is known to wait for is one of a lane that waits: what waits
            # keeps the tile's number.
            self._cut(&self.machine.tiles[i], &old, np.flatnonzero(waits))
            self._cut(&self.machine.tiles[self.n_tiles], &old, np.flatnonzero(~waits))
            self.machine.ready[self.machine.n_ready] = <int32_t>self.n_tiles
            self.machine.n_ready += 1
            self.n_tiles += 1
        return self.n_tiles > n

    cdef _cut(self, Tile* tile, Tile* old, const int64_t[::1] lanes):
        """Make a tile of some lanes of another, as far as these have come."""
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

    def advance(self, int64_t budget):
        """Run tiles until none can move or `budget` rows are done; return whether some can."""
        with nogil:
            self.unfinished -= run_tiles(&self.machine, budget)
        return self.machine.n_ready > 0

    @property
    def rows_done(self):
        """Rows of all ranks so far."""
        return self.machine.rows_done

    @property
    def n_posted(self):
        """How many groups the outbox holds."""
        return self.machine.n_posted

    def outbox(self):
        """Return the groups to tell other processes about, and forget them."""
        cdef int64_t i
        groups = np.empty(self.machine.n_posted, np.int64)
        cdef int64_t[::1] numbers = groups
        for i in range(self.machine.n_posted):
            numbers[i] = self.machine.posted[i]
        self.machine.n_posted = 0
        return groups

    def deliver(
        self,
        const int64_t[::1] groups,
        const int64_t[::1] times,
        const int64_t[::1] lasts,
        const uint8_t[::1] owned,
    ):
        """Take in what other processes said about groups, and whether this one owns them."""
        cdef Py_ssize_t i
        with nogil:
            for i in range(groups.shape[0]):
                deliver(&self.machine, groups[i], times[i], <int32_t>lasts[i], owned[i])

    # --- what came out --------------------------------------------------------------------------

    def rows(self):
        """Return the row each hosted rank has come to, shape (h,)."""
        cdef int64_t i
        return np.array(
            [self.machine.tiles[self.tile_of[i]].row for i in range(self.n_ranks)], np.int32
        )

    def blocked(self):
        """Return the group each hosted rank is blocked on, -1 if none, shape (h,)."""
        cdef int64_t i
        return np.array(
            [
                blocked_on(&self.machine, &self.machine.tiles[self.tile_of[i]], self.lane_of[i])
                for i in range(self.n_ranks)
            ],
            np.int64,
        )

    def met(self, int64_t local):
        """Return when each communication of a rank began and ended: see the package."""
        cdef const Communication[::1] found
        cdef const Communication* x
        cdef const Tile* tile = &self.machine.tiles[self.tile_of[local]]
        cdef int64_t j, eager = 0, lane = self.lane_of[local]
        found = self.layout.codes[self.code[local]].communications
        starts, ends = np.empty(found.shape[0], np.int64), np.empty(found.shape[0], np.int64)
        cdef int64_t[::1] start = starts, end = ends
        with nogil:
            for j in range(found.shape[0]):
                x = &found[j]
                if x.eager:
                    start[j] = tile.eager[eager * tile.n_lanes + lane]
                    eager += 1
                else:
                    start[j] = self.machine.groups[tile.slot[x.slot].bond[lane].group + x.ordinal].time
                end[j] = start[j] + tile.duration[x.row]
        return starts, ends

    def last(self, int64_t local):
        """Return who was ready last for each communication of a rank: see the package."""
        cdef const Communication[::1] found
        cdef const Communication* x
        cdef const Tile* tile = &self.machine.tiles[self.tile_of[local]]
        cdef int64_t j, group, lane = self.lane_of[local]
        found = self.layout.codes[self.code[local]].communications
        lasts = np.full(found.shape[0], self.number[local], np.int32)
        cdef int32_t[::1] last = lasts
        with nogil:
            for j in range(found.shape[0]):
                x = &found[j]
                if not x.eager:
                    group = tile.slot[x.slot].bond[lane].group + x.ordinal
                    last[j] = self.machine.groups[group].last - 1
        return lasts

    def finish(self):
        """Return ends of ranks and the hash sum."""
        cdef Hashes hashes = new_hashes(self.layout)
        cdef uint64_t[2] total
        cdef int64_t i, l
        cdef Tile* tile
        ends_array = np.zeros(self.n_ranks, np.int64)
        cdef int64_t[::1] ends = ends_array
        total[0] = total[1] = 0
        with nogil:
            for i in range(self.n_tiles):
                tile = &self.machine.tiles[i]
                for l in range(tile.n_lanes):
                    ends[tile.local[l]] = max(tile.clock[l], tile.device[l])
                hashes.add(&self.machine, tile, total)
        return ends_array, int(total[0]) + (int(total[1]) << 64)


cdef void look_inside(Tile* tile, Slot* slot) noexcept nogil:
    """Find out which lanes share groups on a slot, and whether any member is elsewhere."""
    cdef int64_t n = tile.n_lanes, l, j, members
    cdef bint inside = True, columns = True
    slot.n_groups = 0
    for l in range(n):
        slot.column[l] = -1
        for j in range(l - 1, -1, -1):
            if slot.bond[j].group == slot.bond[l].group:
                slot.column[l] = slot.column[j]
                columns = columns and tile.number[j] < tile.number[l]
                break
        if slot.column[l] < 0:
            slot.column[l] = <int32_t>slot.n_groups
            slot.n_groups += 1
    for l in range(n):
        members = 0
        for j in range(n):
            members += slot.column[j] == slot.column[l]
        inside = inside and slot.bond[l].role == LOCAL and members == slot.bond[l].members
        columns = columns and slot.column[l] == l % slot.n_groups
    slot.kind = <uint8_t>((COLUMNS if columns else SCATTERED) if inside else OUTER)
