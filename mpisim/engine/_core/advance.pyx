# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The core, compiled. `twin` is the same in plain Python, with the words that are missing here.

Callers are trusted: no index is checked. Everything between two calls of `advance` runs without
the interpreter.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from .state cimport (
    BATCH, HOST, JOIN, KERNEL, MEET, MEMBER, OWNER, PEER, PLAIN, PLAIN_MEET, STARTED,
    Communication, Group, Instruction, Rank, Register, mix,
)

cdef int64_t NEVER = INT64_MIN


cdef inline void merge(Group* group, int64_t ready, int32_t last) noexcept nogil:
    if ready > group.time or (ready == group.time and last < group.last):
        group.time = ready
        group.last = last


@cython.final  # its methods call each other directly
cdef class Core:
    """See the package."""

    cdef Rank* ranks
    cdef Register* registers
    cdef Group* group_of
    cdef int32_t* ready
    cdef int64_t* posted
    cdef int64_t n_ranks, n_ready
    cdef object layout, kept
    cdef readonly int64_t unfinished, rows_done, n_posted
    cdef readonly object groups

    message = ("time", "last")

    def __cinit__(self, layout):
        cdef int64_t n = len(layout.numbers)
        cdef Group[::1] groups
        self.layout = layout
        self.n_ranks = self.unfinished = self.n_ready = n
        n_registers = np.array([code.n_registers for code in layout.codes], np.int64)
        n_eager = np.array([code.n_eager for code in layout.codes], np.int64)
        self.ranks = <Rank*>allocated(n, sizeof(Rank))
        self.ready = <int32_t*>allocated(n, sizeof(int32_t))
        self.posted = <int64_t*>allocated(layout.n_messages, sizeof(int64_t))
        self.registers = <Register*>allocated(
            n_registers[layout.code].sum(), sizeof(Register))

        # A last element that nobody uses: the first of an empty array has no address.
        self.groups = np.append(layout.groups, np.zeros(1, layout.groups.dtype))
        groups = self.groups
        self.group_of = &groups[0]
        self.kept = []
        self._bind(offsets(n_registers[layout.code]), offsets(n_eager[layout.code]))

    cdef _bind(self, const int64_t[::1] register_index, const int64_t[::1] eager_index):
        """Point every rank to its part of each array."""
        cdef const Instruction[::1] instructions
        cdef const int64_t[::1] duration
        cdef const int32_t[::1] operands, final
        cdef int64_t[::1] eager
        cdef const int64_t[::1] group = padded(self.layout.slot_group)
        cdef const uint8_t[::1] role = padded(self.layout.slot_role)
        cdef const int64_t[::1] slot_index = self.layout.slot_index
        cdef const int64_t[::1] start = self.layout.start
        cdef const int32_t[::1] numbers = self.layout.numbers
        cdef const int32_t[::1] code = self.layout.code
        cdef const int32_t[::1] number = self.layout.duration
        cdef int64_t i
        cdef Rank* rank
        codes = [
            (padded(c.instructions), padded(c.operands), padded(c.final), len(c.table), len(c.final))
            for c in self.layout.codes
        ]
        durations = [padded(d) for d in self.layout.durations]
        eager_array = np.zeros(eager_index[self.n_ranks] + 1, np.int64)
        eager = eager_array
        self.kept.extend([codes, durations, group, role, eager_array])
        for i in range(self.n_ranks):
            rank = &self.ranks[i]
            instructions, operands, final, rank.n_rows, rank.n_final = codes[code[i]]
            duration = durations[number[i]]
            rank.code = &instructions[0]
            rank.operands = &operands[0]
            rank.final = &final[0]
            rank.duration = &duration[0]
            rank.group = &group[slot_index[i]]
            rank.role = &role[slot_index[i]]
            rank.registers = &self.registers[register_index[i]]
            rank.eager_ready = &eager[eager_index[i]]
            rank.number = numbers[i]
            rank.host = rank.device = start[i]
            rank.blocked_on = rank.next_waiter = -1
            self.ready[self.n_ranks - 1 - i] = <int32_t>i  # a stack: the lowest rank first

    def __dealloc__(self):
        free(self.ranks)
        free(self.ready)
        free(self.posted)
        free(self.registers)

    # --- running --------------------------------------------------------------------------------

    def advance(self, int64_t budget):
        """Run ranks until none can move or `budget` rows are done; return whether some can."""
        cdef int64_t stop = self.rows_done + budget
        cdef int32_t local, before
        cdef Rank* rank
        with nogil:
            while self.n_ready > 0 and self.rows_done < stop:
                self.n_ready -= 1
                local = self.ready[self.n_ready]
                rank = &self.ranks[local]
                before = rank.row
                rank.blocked_on = -1
                if self.run(rank, local):
                    self.unfinished -= 1
                self.rows_done += rank.row - before
        return self.n_ready > 0

    cdef inline bint run(self, Rank* rank, int32_t local) noexcept nogil:
        """Execute rows until the rank blocks (False) or has ended (True)."""
        cdef const Instruction* code = rank.code
        cdef const Instruction* x
        cdef const int64_t* durations = rank.duration
        cdef const int32_t* operand
        cdef Register* registers = rank.registers
        cdef Register* a
        cdef Register* b
        cdef int64_t host, begin, at, clock = rank.host, device = NEVER, ready = NEVER
        cdef int32_t row, i, n = rank.n_rows
        cdef bint blocked = False
        for row in range(rank.row, n):
            x = &code[row]
            if x.opcode <= PLAIN_MEET:
                a = &registers[x.stream]
                b = &registers[x.other]
                if a.pending and not self.settle(rank, local, a):
                    blocked = True
                    break
                if b.pending and not self.settle(rank, local, b):
                    blocked = True
                    break
                host = clock + x.host
                begin = max(a.value, b.value) + x.gap
            else:
                # All that the row reads, before it changes anything: it may have to run again.
                operand = &rank.operands[x.first_wait - x.n_before]
                for i in range(x.n_before + x.n_waits):
                    a = &registers[operand[i]]
                    if a.pending and not self.settle(rank, local, a):
                        blocked = True
                        break
                if blocked:
                    break
                host = clock + x.host
                begin = NEVER
                if x.opcode <= BATCH:
                    if x.n_before > (x.stream >= 0):
                        host = max(host, registers[operand[0]].value)
                    if x.stream >= 0:
                        begin = registers[x.stream].value
                operand = &rank.operands[x.first_wait]
                for i in range(x.n_waits):
                    begin = max(begin, registers[operand[i]].value)
                if x.opcode <= BATCH and begin > NEVER:  # it follows something on the device
                    begin += x.gap

            if x.opcode <= BATCH:
                begin = max(begin, host + x.launch)
                clock = host + x.launch_cost
                a = &registers[x.target]
                if x.opcode == PLAIN or x.opcode == KERNEL:
                    a.value = begin + durations[row]
                    a.pending = 0
                    device = max(device, a.value)
                elif x.opcode <= MEET:
                    at = rank.group[x.slot] + x.ordinal
                    a.value = durations[row]
                    a.pending = at + 1
                    self.post(rank, x, at, begin)
                    if x.stops and self.group_of[at].missing != STARTED:
                        self.wait_for(at, rank, local)
                        blocked = True
                else:
                    ready = begin
                    a.value = NEVER
                    self.post_of_batch(rank, row, ready)
            elif x.opcode == JOIN:
                self.post_of_batch(rank, row, ready)
            elif x.opcode == HOST:
                clock = host
            else:
                clock = max(begin, host) + x.launch_cost
            if blocked:
                row += 1
                break
        else:
            row = n
            for i in range(rank.n_final):
                a = &registers[rank.final[i]]
                if a.pending and not self.settle(rank, local, a):
                    blocked = True
                    break
        rank.row = row
        rank.host = clock
        if device > rank.device:
            rank.device = device
        return not blocked

    cdef inline bint settle(self, Rank* rank, int32_t local, Register* register) noexcept nogil:
        """Make a pending register known; False, and the rank is blocked, if it cannot be."""
        cdef Group* group
        if register.pending < 0:
            return self.settle_batch(rank, local, register)
        group = &self.group_of[register.pending - 1]
        if group.missing != STARTED:
            self.wait_for(register.pending - 1, rank, local)
            return False
        register.value += group.time
        register.pending = 0
        if register.value > rank.device:
            rank.device = register.value
        return True

    cdef bint settle_batch(self, Rank* rank, int32_t local, Register* register) noexcept nogil:
        """As `settle`, for kernels of several communications and for eager ones."""
        cdef int64_t row = -register.pending - 1, value = register.value, number
        cdef const Instruction* x
        while True:
            x = &rank.code[row]
            if not x.eager:
                number = rank.group[x.slot] + x.ordinal
                if self.group_of[number].missing != STARTED:
                    self.wait_for(number, rank, local)
                    return False
                if self.group_of[number].time + rank.duration[row] > value:
                    value = self.group_of[number].time + rank.duration[row]
            if x.opcode != JOIN:
                break
            row -= 1
        register.value = value
        register.pending = 0
        if value > rank.device:
            rank.device = value
        return True

    cdef inline void wait_for(self, int64_t number, Rank* rank, int32_t local) noexcept nogil:
        rank.next_waiter = self.group_of[number].waiter
        self.group_of[number].waiter = local
        rank.blocked_on = number

    # --- groups ---------------------------------------------------------------------------------

    cdef inline void post_of_batch(self, Rank* rank, int32_t row, int64_t ready) noexcept nogil:
        """Post a communication that is not alone in its kernel, or eager."""
        cdef const Instruction* x = &rank.code[row]
        cdef Register* register = &rank.registers[x.target]
        register.pending = -row - 1
        if x.eager:
            if ready + rank.duration[row] > register.value:
                register.value = ready + rank.duration[row]
            rank.eager_ready[rank.n_eager] = ready
            rank.n_eager += 1
        self.post(rank, x, rank.group[x.slot] + x.ordinal, ready)

    cdef inline void post(
        self, Rank* rank, const Instruction* x, int64_t number, int64_t ready
    ) noexcept nogil:
        """Tell the group of a communication that this rank is ready."""
        cdef Group* group = &self.group_of[number]
        merge(group, ready, rank.number)
        group.missing -= 1
        if group.missing == 0:
            if rank.role[x.slot] == PEER or rank.role[x.slot] == MEMBER:
                self.tell(number)
            self.start_if_complete(number, rank.role[x.slot] == OWNER)

    cdef inline void start_if_complete(self, int64_t number, bint owner) noexcept nogil:
        cdef Group* group = &self.group_of[number]
        cdef int32_t waiter = group.waiter
        if group.missing != 0 or group.away != 0:
            return
        group.missing = STARTED
        group.waiter = -1
        while waiter >= 0:
            self.ready[self.n_ready] = waiter
            self.n_ready += 1
            waiter = self.ranks[waiter].next_waiter
        if owner:
            self.tell(number)

    cdef inline void tell(self, int64_t number) noexcept nogil:
        self.posted[self.n_posted] = number
        self.n_posted += 1

    def outbox(self):
        """Return the groups to tell other processes about, and forget them."""
        cdef int64_t i
        groups = np.empty(self.n_posted, np.int64)
        cdef int64_t[::1] numbers = groups
        for i in range(self.n_posted):
            numbers[i] = self.posted[i]
        self.n_posted = 0
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
        cdef Group* group
        with nogil:
            for i in range(groups.shape[0]):
                group = &self.group_of[groups[i]]
                merge(group, times[i], <int32_t>lasts[i])
                group.away -= 1
                self.start_if_complete(groups[i], owned[i])

    # --- what came out --------------------------------------------------------------------------

    def rows(self):
        """Return the row each hosted rank has come to, shape (h,)."""
        cdef int64_t i
        return np.array([self.ranks[i].row for i in range(self.n_ranks)], np.int32)

    def blocked(self):
        """Return the group each hosted rank is blocked on, -1 if none, shape (h,)."""
        cdef int64_t i
        return np.array([self.ranks[i].blocked_on for i in range(self.n_ranks)], np.int64)

    def met(self, int64_t local):
        """Return when each communication of a rank began and ended: see the package."""
        cdef const Communication[::1] found
        cdef const Communication* x
        cdef Rank* rank = &self.ranks[local]
        cdef int64_t j, eager = 0
        found = self.layout.codes[self.layout.code[local]].communications
        starts, ends = np.empty(found.shape[0], np.int64), np.empty(found.shape[0], np.int64)
        cdef int64_t[::1] start = starts, end = ends
        with nogil:
            for j in range(found.shape[0]):
                x = &found[j]
                start[j] = self.start_of(rank, x, &eager)
                end[j] = start[j] + rank.duration[x.row]
        return starts, ends

    def last(self, int64_t local):
        """Return who was ready last for each communication of a rank: see the package."""
        cdef const Communication[::1] found
        cdef const Communication* x
        cdef Rank* rank = &self.ranks[local]
        cdef int64_t j
        found = self.layout.codes[self.layout.code[local]].communications
        lasts = np.empty(found.shape[0], np.int32)
        cdef int32_t[::1] last = lasts
        with nogil:
            for j in range(found.shape[0]):
                x = &found[j]
                last[j] = rank.number
                if not x.eager:
                    last[j] = self.group_of[rank.group[x.slot] + x.ordinal].last
        return lasts

    cdef inline int64_t start_of(
        self, Rank* rank, const Communication* x, int64_t* eager
    ) noexcept nogil:
        """When a communication began; `eager` counts the EAGER ones so far."""
        if not x.eager:
            return self.group_of[rank.group[x.slot] + x.ordinal].time
        eager[0] += 1
        return rank.eager_ready[eager[0] - 1]

    def finish(self):
        """Return ends of ranks and the hash sum."""
        from ..digest import END_LANES

        cdef int64_t[::1] ends
        cdef const uint64_t[:, ::1] slot_hash = padded(self.layout.slot_hash)
        cdef const Communication[::1] found
        cdef const Communication* x
        cdef const int64_t[::1] slot_index = self.layout.slot_index
        cdef const int32_t[::1] code = self.layout.code
        cdef Rank* rank
        cdef int64_t i, j, at, start, end, eager
        cdef const int64_t[::1] count = padded(self.layout.count)
        cdef uint64_t low, high, word
        cdef uint64_t low_seed = END_LANES[0], high_seed = END_LANES[1]
        ends_array = np.zeros(self.n_ranks, np.int64)
        ends = ends_array
        total = 0
        tables = [padded(c.communications) for c in self.layout.codes]
        for i in range(self.n_ranks):
            rank = &self.ranks[i]
            found = tables[code[i]]
            low = high = 0
            with nogil:
                eager = 0
                for j in range(found.shape[0] - 1):
                    x = &found[j]
                    start = self.start_of(rank, x, &eager)
                    end = start + rank.duration[x.row]
                    at = slot_index[i] + x.slot
                    word = mix(mix((x.low + slot_hash[at, 0]) ^ <uint64_t>start) ^ <uint64_t>end)
                    low += word
                    high += low < word
                    high += mix(mix((x.high + slot_hash[at, 1]) ^ <uint64_t>start) ^ <uint64_t>end)
                ends[i] = max(rank.host, rank.device)
                word = mix(<uint64_t>ends[i] ^ low_seed)
                low += word
                high += low < word
                high += mix(<uint64_t>ends[i] ^ high_seed)
            total += count[i] * (int(low) + (int(high) << 64))
        return ends_array, total % (1 << 128)


cdef void* allocated(size_t n, size_t size) except NULL:
    cdef void* memory = calloc(n + 1, size)
    if memory is NULL:
        raise MemoryError(f"no memory for {n} times {size} bytes")
    return memory


cdef offsets(counts):
    """Return where each of several consecutive parts begins, and the total."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


cdef padded(array):
    """Return a copy with one more element, so that the first has an address."""
    return np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])
