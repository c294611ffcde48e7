# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Contended flows of one domain, simulated; and again, where some begin at other times.

Flows begin in the order of their begins, and end as `sharing` has them end. What becomes of them
after some instant follows from which are active then, what remains of each, and which begin later:
rates are a function of the active flows, and what remains of a flow is the same whether it is
brought up to date in one step or in many. So

- a *snapshot* of the active flows, and what remains of each after all events up to an instant, is a
  place to go on from where nothing up to that instant has changed;
- where the same flows are active as at a snapshot of before, with the same remainders, everything
  after it goes as it did, up to the next change: the simulation goes on from the last snapshot
  before that, and what lies between is left as it is.

Between two snapshots at least as many flows begin as are active: they take about as much memory as
the flows themselves.

*Interval* i lies after snapshot i - 1, up to and with snapshot i; it is *dirty* where a flow began
there, or begins there, whose begin has changed. While flows are simulated again, `later` are the
snapshots of before, those from `next_later` on not passed yet, and `snapshots` those that hold.

Invariants between calls: `entries` are the flows that were simulated, by begin; snapshots are of
that simulation, in the order of time; ``flows.simulated`` of a flow is its key in `entries`, or
ABSENT where it is not there.
"""

cimport cython
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from .fluid cimport Flow, int128_t
from .memory cimport resized
from .sharing cimport Sharing

@cython.final
cdef class Timeline:
    """Flows of one contention domain, before any is simulated.

    Parameters
    ----------
    between : int
        At least so many flows begin between two snapshots.
    """

    def __cinit__(self, int64_t between=2_048):
        self.between = between

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.n_snapshots):
            free(self.snapshots[i].held)
        free(self.entries)
        free(self.changed)
        free(self.scratch)
        free(self.snapshots)
        free(self.later)
        free(self.dirty)
        free(self.holder)
        free(self.spare)

    cdef bint simulate(
        self, FlowTimes* flows, Sharing sharing, const int64_t* first, const int64_t* groups,
        int64_t n_groups,
    ) noexcept nogil:
        """Find when flows end; return whether all end at times that int64 can hold.

        Parameters
        ----------
        flows : FlowTimes
            Of all domains: `end`, `simulated`, and what has changed are written.
        sharing : Sharing
            Of all links, with no flow.
        first : int64, shape (g + 1,)
            Flows of each group.
        groups : int64
            All of the domain.
        """
        if not self.take_changes(flows, first, groups, n_groups):
            return True
        self.merge_changes(flows)
        return self.play(flows, sharing)

    # --- what has changed -----------------------------------------------------------------------

    cdef bint take_changes(
        self, FlowTimes* flows, const int64_t* first, const int64_t* groups, int64_t n_groups
    ) noexcept nogil:
        """List flows that begin at another time than when simulated last; return if there are any."""
        cdef int64_t j, i, n = 0
        self.n_changed = 0
        if self.snapshots_room:
            memset(self.dirty, 0, self.n_snapshots + 1)
        for j in range(n_groups):
            for i in range(first[groups[j]], first[groups[j] + 1]):
                if not flows.contended[i] or flows.begin[i] == flows.simulated[i]:
                    continue
                n += 1
                self.mark_dirty(flows.simulated[i])
                self.mark_dirty(flows.begin[i])
                flows.simulated[i] = flows.begin[i]
                if flows.begin[i] == ABSENT:
                    continue
                if self.n_changed == self.changed_room:
                    self.changed_room = max(2 * self.changed_room, 64)
                    self.changed = <SortEntry*>resized(
                        self.changed, self.changed_room * sizeof(SortEntry))
                self.changed[self.n_changed].key = flows.begin[i]
                self.changed[self.n_changed].item = i
                self.n_changed += 1
        return n > 0

    cdef void mark_dirty(self, int64_t time) noexcept nogil:
        """Note that a flow began, or begins, at a time."""
        cdef int64_t at = min(self.last_dirty, self.n_snapshots)
        if time == ABSENT or self.snapshots_room == 0:
            return
        while at and time <= self.snapshots[at - 1].time:
            at -= 1
        while at < self.n_snapshots and time > self.snapshots[at].time:
            at += 1
        self.dirty[at] = True
        self.last_dirty = at

    cdef void merge_changes(self, FlowTimes* flows) noexcept nogil:
        """Bring the entries up to date."""
        cdef int64_t i, kept = 0, n, a, b
        if self.n_changed > self.scratch_room:
            self.scratch_room = self.changed_room
            self.scratch = <SortEntry*>resized(
                self.scratch, self.scratch_room * sizeof(SortEntry))
        sort_entries(self.changed, self.scratch, self.n_changed)
        for i in range(self.n_entries):
            if flows.begin[self.entries[i].item] == self.entries[i].key:
                self.entries[kept] = self.entries[i]
                kept += 1
        n = kept + self.n_changed
        if n > self.room:
            self.room = n + n // 4
            self.entries = <SortEntry*>resized(self.entries, self.room * sizeof(SortEntry))
        self.n_entries = n
        a, b = kept - 1, self.n_changed - 1
        while b >= 0:
            n -= 1
            if a >= 0 and self.entries[a].key > self.changed[b].key:
                self.entries[n] = self.entries[a]
                a -= 1
            else:
                self.entries[n] = self.changed[b]
                b -= 1

    # --- simulating -----------------------------------------------------------------------------

    cdef bint play(self, FlowTimes* flows, Sharing sharing) noexcept nogil:
        """Simulate wherever something has changed; return if all flows end."""
        cdef int64_t then, now, slot, flow, at, begun
        cdef int32_t p
        cdef bint finite = True, matches
        self.next_later, self.n_later = 0, self.n_snapshots
        if self.n_snapshots:
            memcpy(self.later, self.snapshots, self.n_snapshots * sizeof(Snapshot))
            self.n_snapshots = 0
            self.keep(0)
        then = self.resume(flows, sharing)
        at = begun = self.first_from(then + 1)
        while at < self.n_entries or self.n_active:
            now = sharing.next_end()
            if at < self.n_entries and self.entries[at].key < now:
                now = self.entries[at].key
            if now == INT64_MAX:
                finite = False
                break
            if now > then:  # else: flows of no bytes end when they begin, one event later
                matches = False
                while not matches and (
                        self.next_later < self.n_later
                        and self.later[self.next_later].time < now):
                    matches = self.is_as_before(flows, sharing, &self.later[self.next_later])
                    if not matches:
                        free(self.later[self.next_later].held)
                        self.next_later += 1
                if matches:
                    self.leave(flows, sharing)
                    if not self.keep(self.next_later + 1):
                        break
                    then = self.resume(flows, sharing)
                    at = begun = self.first_from(then + 1)
                    continue
                if at - begun >= max(self.n_active, self.between):
                    self.take_snapshot(sharing, then)
                    begun = at
            slot = sharing.pop_ended(now)
            while slot >= 0:
                self.n_active -= 1
                flow = self.holder[slot]
                self.spare[self.n_active] = slot
                flows.slot[flow] = -1
                if flows.end[flow] != now:
                    note(flows, flow, flows.begin[flow], flows.end[flow])
                    note(flows, flow, flows.begin[flow], now)
                    flows.end[flow] = now
                slot = sharing.pop_ended(now)
            while at < self.n_entries and self.entries[at].key == now:
                flow = self.entries[at].item
                if self.n_active == self.n_slots:
                    self.add_slots()
                slot = self.spare[self.n_active]
                self.n_active += 1
                self.holder[slot] = flow
                flows.slot[flow] = <int32_t>slot
                p = flows.price[flow]
                sharing.begin(slot, flows.route[flow], now, flows.volume[p], flows.rate[p])
                self.n_begun += 1
                at += 1
            sharing.solve(now)
            then = now
        self.leave(flows, sharing)
        while self.next_later < self.n_later:
            free(self.later[self.next_later].held)
            self.next_later += 1
        return finite
    cdef int64_t resume(self, FlowTimes* flows, Sharing sharing) noexcept nogil:
        """Let flows be active as at the last snapshot; return its time, the least int64 if none."""
        cdef int64_t i
        cdef const Snapshot* last
        cdef const Held* held
        for i in range(self.n_slots):
            self.spare[i] = i
        if self.n_snapshots == 0:
            return INT64_MIN
        last = &self.snapshots[self.n_snapshots - 1]
        for i in range(last.n):
            held = &last.held[i]
            self.holder[i] = held.flow
            flows.slot[held.flow] = <int32_t>i
            sharing.enter(
                i, flows.route[held.flow], last.time, held.remaining,
                flows.rate[flows.price[held.flow]])
        self.n_active = last.n
        sharing.solve(last.time)
        return last.time

    cdef void leave(self, FlowTimes* flows, Sharing sharing) noexcept nogil:
        """Let no flow be active."""
        cdef int64_t i
        for i in range(sharing.n_ends):
            flows.slot[self.holder[sharing.ends[i].item]] = -1
        sharing.clear()
        self.n_active = 0

    # --- snapshots ------------------------------------------------------------------------------

    cdef bint keep(self, int64_t interval) noexcept nogil:
        """Keep snapshots of before up to the next change, from an interval on; return if any."""
        cdef int64_t end = interval
        while end <= self.n_later and not self.dirty[end]:
            end += 1
        while self.next_later < min(end, self.n_later):
            self.snapshots[self.n_snapshots] = self.later[self.next_later]
            self.n_snapshots += 1
            self.next_later += 1
        return end <= self.n_later

    cdef void take_snapshot(self, Sharing sharing, int64_t time) noexcept nogil:
        """Keep what remains of the active flows after all events up to a time."""
        cdef int64_t i
        cdef const Flow* flow
        cdef Snapshot* taken
        # As many more may come back from `later`.
        if self.n_snapshots + self.n_later + 1 > self.snapshots_room:
            self.snapshots_room = 2 * (self.n_snapshots + self.n_later + 1)
            self.snapshots = <Snapshot*>resized(
                self.snapshots, self.snapshots_room * sizeof(Snapshot))
            self.later = <Snapshot*>resized(self.later, self.snapshots_room * sizeof(Snapshot))
            self.dirty = <uint8_t*>resized(self.dirty, self.snapshots_room + 1)
        taken = &self.snapshots[self.n_snapshots]
        self.n_snapshots += 1
        taken.time, taken.n = time, sharing.n_ends
        taken.held = <Held*>resized(NULL, max(taken.n, 1) * sizeof(Held))
        for i in range(taken.n):
            flow = &sharing.flows[sharing.ends[i].item]
            taken.held[i].flow = self.holder[sharing.ends[i].item]
            taken.held[i].remaining = flow.remaining - <int128_t>flow.rate * (time - flow.updated)

    cdef bint is_as_before(
        self, FlowTimes* flows, Sharing sharing, const Snapshot* before
    ) noexcept nogil:
        """Return whether the same flows are active as at a snapshot, and as much remains of each."""
        cdef int64_t i
        cdef const Flow* flow
        if sharing.n_ends != before.n:
            return False
        for i in range(before.n):
            if flows.slot[before.held[i].flow] < 0:
                return False
            flow = &sharing.flows[flows.slot[before.held[i].flow]]
            if before.held[i].remaining != (
                    flow.remaining - <int128_t>flow.rate * (before.time - flow.updated)):
                return False
        return True

    cdef int64_t first_from(self, int64_t time) noexcept nogil:
        """Return the first of the entries that begins at a time or later."""
        cdef int64_t low = 0, high = self.n_entries, middle
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].key < time:
                low = middle + 1
            else:
                high = middle
        return low

    cdef void add_slots(self) noexcept nogil:
        """Make room for one more active flow or several: none is spare."""
        cdef int64_t slot, room = max(2 * self.n_slots, 64)
        self.holder = <int64_t*>resized(self.holder, room * sizeof(int64_t))
        self.spare = <int64_t*>resized(self.spare, room * sizeof(int64_t))
        for slot in range(self.n_slots, room):
            self.spare[slot] = slot
        self.n_slots = room
