# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""When flows end whose communications start at known times: see `mpisim.engine.relaxation`.

Flows stand communicator by communicator, a *group* of them for each. What is kept of each is when
its bytes begin and end to flow. A flow alone takes its *span*. It takes longer only where a link
binds: where its flows, each at its highest rate, overload it (`sharing` has the same condition).

**Contended flows.** A flow is contended once it has been seen on a link while that binds.
Contended flows are simulated together; all others take their span. That is exact where no other
flow is ever on a binding link, given when all flows begin and end: whenever a link binds, all that
it carries is simulated, and a link that does not bind limits nobody, with fewer flows even less.
`sweep` looks for such flows on links whose flows have changed. Flows only ever become contended, so
this ends.

**Sweep.** A link binds at some instant or not; that follows from its flows in the order of their
begins and ends. Most links have one group with most of the flows, which take turns, such as tensor
parallel collectives on a link of NVLink. One of them alone never overloads the link, so only those
count during which a flow of another group is under way; they are found by binary search. At one
instant ends come before begins: what is under way for no time loads no link.

Callers are trusted: no index is checked.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from .fluid cimport end_of, int128_t
from .heap cimport Entry
from .memory cimport resized
from .sharing cimport Sharing

from .memory import offsets, padded

cdef extern from "sort.h":
    ctypedef struct SortEntry:
        int64_t key
        int64_t item

    void sort_entries(SortEntry* entries, SortEntry* scratch, int64_t n) noexcept nogil

cdef enum:
    WEIGHT_BITS = 20  # of mpisim.topo.network.WEIGHT_ONE


cdef struct Load:  # of a link by a flow
    int64_t flow
    int64_t weight
    int64_t at  # among the loads that are under way


@cython.final
cdef class FlowSchedule:
    """Begins and ends of flows.

    Parameters
    ----------
    first : int64, shape (g + 1,)
        Group i has the flows ``first[i]`` to ``first[i + 1]``.
    price : int32, shape (n,)
        Of each flow; -1: this operation is no flow.
    route : int32, shape (n,)
        Of each flow.
    latency, volume, rate : int64, shape (p,)
        Of each price: see `mpisim.topo.Price`.
    route_group : int64, shape (r,)
        The group of each route.
    route_index : int64, shape (r + 1,)
    route_link, route_weight : int64
        See `mpisim.engine.routes.Routes`.
    capacity : int64, shape (m,)
    """

    cdef const int64_t[::1] first, latency, rate, volume, route_group, capacity
    cdef const int32_t[::1] price, route
    cdef const int64_t[::1] user_index, user_route, user_weight  # of each link
    cdef int64_t[::1] begin_of, end_of_flow, span, peak
    cdef uint8_t[::1] contended, changed_group, ordered, pure
    cdef int64_t n_groups, n_entries, room, n_events, events_room, n_slots
    cdef SortEntry* entries
    cdef SortEntry* events
    cdef SortEntry* scratch
    cdef int64_t scratch_room
    cdef Load* loads
    cdef int64_t* active  # loads that are under way
    cdef int64_t* marked  # flows that have become contended
    cdef int64_t n_marked, marked_room
    cdef int64_t* holder  # of each number of an active flow in `sharing`, the flow
    cdef int64_t* spare
    cdef readonly object begin, end, changed

    def __cinit__(
        self, first, price, route, latency, volume, rate, route_group, route_index, route_link,
        route_weight, capacity,
    ):
        cdef int64_t i, g, p
        cdef int64_t n = len(price)
        self.first, self.price, self.route = first, padded(price), padded(route)
        self.latency, self.volume, self.rate = padded(latency), padded(volume), padded(rate)
        self.route_group, self.capacity = padded(route_group), padded(capacity)
        self.n_groups = len(first) - 1
        self.begin, self.end = np.full(n + 1, INT64_MIN), np.full(n + 1, INT64_MIN)
        self.begin_of, self.end_of_flow = self.begin, self.end
        self.changed = np.zeros(self.n_groups + 1, np.uint8)
        self.changed_group = self.changed
        self.ordered = np.zeros(self.n_groups + 1, np.uint8)
        self.pure = np.zeros(self.n_groups + 1, np.uint8)
        self.contended = np.zeros(n + 1, np.uint8)
        self.span = np.zeros(len(latency) + 1, np.int64)
        self.peak = np.zeros(len(route_group) + 1, np.int64)
        for p in range(len(latency)):
            self.span[p] = end_of(0, <int128_t>self.volume[p] << 40, max(self.rate[p], 1))
        # Who uses each link.
        order = np.argsort(route_link, kind="stable")
        of_load = np.repeat(np.arange(len(route_group)), np.diff(route_index))
        self.user_index = offsets(np.bincount(route_link, minlength=len(capacity)))
        self.user_route = padded(of_load[order].astype(np.int64))
        self.user_weight = padded(route_weight[order].astype(np.int64))
        with nogil:
            for g in range(self.n_groups):
                self.pure[g] = True
                for i in range(self.first[g], self.first[g + 1]):
                    p = self.price[i]
                    if p < 0 or self.route[i] != self.route[self.first[g]]:
                        self.pure[g] = False
                    if p >= 0 and self.rate[p] > self.peak[self.route[i]]:
                        self.peak[self.route[i]] = self.rate[p]

    def __dealloc__(self):
        free(self.entries)
        free(self.events)
        free(self.scratch)
        free(self.loads)
        free(self.active)
        free(self.marked)
        free(self.holder)
        free(self.spare)

    def gather(self, const int64_t[::1] here, const int64_t[:] times, int64_t[::1] found):
        """Starts of communications of this process → of flows.

        Parameters
        ----------
        here : int64, shape (g,)
            The first communication of each group, or -1.
        times : int64
            Of communications.
        found : int64, shape (n,)
            Changed in place where flows are those of this process.
        """
        cdef int64_t g, k
        with nogil:
            for g in range(self.n_groups):
                if here[g] >= 0:
                    for k in range(self.first[g + 1] - self.first[g]):
                        found[self.first[g] + k] = times[here[g] + k]

    def scatter(self, const int64_t[::1] here, int64_t[::1] taken):
        """Ends of contended flows → how long communications of this process take.

        Parameters
        ----------
        here : int64, shape (g,)
            As for `gather`.
        taken : int64
            Of communications, in ps; changed in place.

        Returns
        -------
        bool
            Whether any has changed.
        """
        cdef int64_t g, k, i, value
        cdef bint differs = False
        with nogil:
            for g in range(self.n_groups):
                if here[g] < 0:
                    continue
                for k in range(self.first[g + 1] - self.first[g]):
                    i = self.first[g] + k
                    if self.contended[i]:
                        value = self.end_of_flow[i] - self.begin_of[i]
                        value += self.latency[self.price[i]]
                        differs = differs or taken[here[g] + k] != value
                        taken[here[g] + k] = value
        return differs

    def update(self, const int64_t[::1] start):
        """Take over when communications start; return how many flows begin at another time.

        Flows that are not contended end a span later; the others are for `simulate`.

        Parameters
        ----------
        start : int64, shape (n,)
            ps.
        """
        cdef int64_t g, i, begin, found = 0
        cdef int32_t p
        with nogil:
            for g in range(self.n_groups):
                for i in range(self.first[g], self.first[g + 1]):
                    p = self.price[i]
                    if p < 0:
                        continue
                    begin = start[i] + self.latency[p]
                    if begin != self.begin_of[i]:
                        found += 1
                        self.changed_group[g] = True
                        self.begin_of[i] = begin
                        if not self.contended[i]:
                            self.end_of_flow[i] = begin + self.span[p]
        return found

    def contend(self, const int64_t[::1] flows):
        """Note that flows are contended; their groups have changed."""
        cdef int64_t j
        for j in range(flows.shape[0]):
            self.contended[flows[j]] = True
            self.changed_group[self.route_group[self.route[flows[j]]]] = True

    def simulate(self, Sharing sharing, const int64_t[::1] groups):
        """Let the contended flows of groups share links, and take over when they end.

        Parameters
        ----------
        sharing : Sharing
            Of all links, with no flow.
        groups : int64
            All of one contention domain or of several.

        Returns
        -------
        bool
            Whether all flows end at times that int64 can hold.
        """
        cdef int64_t j, g, i, at = 0, now, active = 0, flow, slot
        cdef int32_t p
        cdef bint finite = True
        self.n_entries = 0
        with nogil:
            for j in range(groups.shape[0]):
                g = groups[j]
                for i in range(self.first[g], self.first[g + 1]):
                    if self.contended[i]:
                        self.push_entry(self.begin_of[i], i)
            self.reserve_scratch(self.n_entries)
            sort_entries(self.entries, self.scratch, self.n_entries)
            while at < self.n_entries or active:
                now = sharing.next_end()
                if at < self.n_entries and self.entries[at].key < now:
                    now = self.entries[at].key
                if now == INT64_MAX:
                    finite = False
                    break
                slot = sharing.pop_ended(now)
                while slot >= 0:
                    active -= 1
                    flow = self.holder[slot]
                    self.spare[active] = slot
                    if self.end_of_flow[flow] != now:
                        self.end_of_flow[flow] = now
                        self.changed_group[self.route_group[self.route[flow]]] = True
                    slot = sharing.pop_ended(now)
                while at < self.n_entries and self.entries[at].key == now:
                    flow = self.entries[at].item
                    if active == self.n_slots:
                        self.add_slots()
                    slot = self.spare[active]
                    active += 1
                    self.holder[slot] = flow
                    p = self.price[flow]
                    sharing.begin(slot, self.route[flow], now, self.volume[p], self.rate[p])
                    at += 1
                sharing.solve(now)
        return finite

    def forget(self, const int64_t[::1] groups):
        """Leave it to another process when the contended flows of groups end."""
        cdef int64_t j, i
        for j in range(groups.shape[0]):
            for i in range(self.first[groups[j]], self.first[groups[j] + 1]):
                if self.contended[i]:
                    self.end_of_flow[i] = INT64_MIN

    def learn(self, const int64_t[::1] end):
        """Take over when flows end from the processes that have simulated them."""
        cdef int64_t g, i
        for g in range(self.n_groups):
            for i in range(self.first[g], self.first[g + 1]):
                if self.end_of_flow[i] != end[i]:
                    self.end_of_flow[i] = end[i]
                    self.changed_group[g] = True

    def sweep(self, int64_t part, int64_t n_parts):
        """Find links that bind, and their flows that are not contended yet, where any has changed.

        Parameters
        ----------
        part, n_parts : int
            Of every `n_parts` links, which one to look at.

        Returns
        -------
        flows, links : int64
            Some flows may stand there more than once.
        """
        cdef int64_t link, u, g, i, last
        cdef bint dirty, ordered
        links = []
        self.n_marked = 0
        with nogil:
            for g in range(self.n_groups):
                if self.changed_group[g] and self.pure[g]:
                    last, ordered = INT64_MIN, True
                    for i in range(self.first[g], self.first[g + 1]):
                        ordered = ordered and self.begin_of[i] >= last
                        last = self.end_of_flow[i]
                    self.ordered[g] = ordered
        for link in range(part, self.user_index.shape[0] - 1, n_parts):
            with nogil:
                dirty = False
                for u in range(self.user_index[link], self.user_index[link + 1]):
                    dirty = dirty or self.changed_group[self.route_group[self.user_route[u]]]
                dirty = dirty and self.find_contended(link)
            if dirty:
                links.append(link)
        flows = np.empty(self.n_marked, np.int64)
        for i in range(self.n_marked):
            flows[i] = self.marked[i]
        return flows, np.array(links, np.int64)

    cdef bint find_contended(self, int64_t link) noexcept nogil:
        """Mark the flows of a link that are under way while it binds; return whether it ever does."""
        cdef int128_t capacity = <int128_t>self.capacity[link] << WEIGHT_BITS, total = 0
        cdef int64_t u, g, i, route, n, main = -1, most = -1, at, end, j, n_active = 0
        cdef bint found = False
        cdef Load* load
        for u in range(self.user_index[link], self.user_index[link + 1]):
            route = self.user_route[u]
            g = self.route_group[route]
            n = self.first[g + 1] - self.first[g]
            if (n > most and self.pure[g] and self.ordered[g]
                    and <int128_t>self.peak[route] * self.user_weight[u] <= capacity
                    and n and self.route[self.first[g]] == route):
                main, most = u, n
        self.n_entries = self.n_events = 0
        for u in range(self.user_index[link], self.user_index[link + 1]):
            if u == main:
                continue
            route = self.user_route[u]
            g = self.route_group[route]
            for i in range(self.first[g], self.first[g + 1]):
                if self.price[i] >= 0 and self.route[i] == route:
                    if main >= 0:
                        self.push_entry(self.begin_of[i], i)
                    self.push_load(i, self.user_weight[u])
        if main >= 0:
            self.reserve_scratch(self.n_entries)
            sort_entries(self.entries, self.scratch, self.n_entries)
            g = self.route_group[self.user_route[main]]
            at, end = self.first[g], self.first[g + 1]
            for j in range(self.n_entries):
                i = self.entries[j].item
                at = self.first_after(at, end, self.begin_of[i])
                while at < end and self.begin_of[at] < self.end_of_flow[i]:
                    self.push_load(at, self.user_weight[main])
                    at += 1
        self.reserve_scratch(self.n_events)
        sort_entries(self.events, self.scratch, self.n_events)
        for j in range(self.n_events):
            i = self.events[j].item
            if i < 0:
                load = &self.loads[-i - 1]
                total -= <int128_t>self.rate[self.price[load.flow]] * load.weight
                n_active -= 1
                self.active[load.at] = self.active[n_active]
                self.loads[self.active[n_active]].at = load.at
                continue
            load = &self.loads[i]
            load.at = n_active
            self.active[n_active] = i
            n_active += 1
            total += <int128_t>self.rate[self.price[load.flow]] * load.weight
            if total > capacity and (
                    j + 1 == self.n_events or self.events[j + 1].key > self.events[j].key):
                found = True
                for n in range(n_active):
                    self.mark(self.loads[self.active[n]].flow)
        return found

    cdef void mark(self, int64_t flow) noexcept nogil:
        if self.contended[flow]:
            return
        if self.n_marked == self.marked_room:
            self.marked_room = max(2 * self.marked_room, 1024)
            self.marked = <int64_t*>resized(self.marked, self.marked_room * sizeof(int64_t))
        self.contended[flow] = True
        self.marked[self.n_marked] = flow
        self.n_marked += 1

    cdef int64_t first_after(self, int64_t at, int64_t end, int64_t time) noexcept nogil:
        """Of ordered flows from `at` on, the first that ends after a time."""
        cdef int64_t step = 1, middle
        while at + step < end and self.end_of_flow[at + step] <= time:
            at += step
            step *= 2
        end = min(end, at + step)
        while at < end:
            middle = (at + end) // 2
            if self.end_of_flow[middle] <= time:
                at = middle + 1
            else:
                end = middle
        return at

    cdef void push_entry(self, int64_t key, int64_t item) noexcept nogil:
        if self.n_entries == self.room:
            self.room = max(2 * self.room, 1024)
            self.entries = <SortEntry*>resized(self.entries, self.room * sizeof(SortEntry))
        self.entries[self.n_entries].key = key
        self.entries[self.n_entries].item = item
        self.n_entries += 1

    cdef void push_load(self, int64_t flow, int64_t weight) noexcept nogil:
        """Put the begin and the end of a flow on a link among the events."""
        cdef int64_t n = self.n_events
        if n + 2 > self.events_room:
            self.events_room = max(2 * self.events_room, 1024)
            self.events = <SortEntry*>resized(self.events, self.events_room * sizeof(SortEntry))
            self.loads = <Load*>resized(self.loads, self.events_room // 2 * sizeof(Load))
            self.active = <int64_t*>resized(
                self.active, self.events_room // 2 * sizeof(int64_t))
        self.loads[n // 2].flow = flow
        self.loads[n // 2].weight = weight
        self.events[n].key = 2 * self.begin_of[flow] + 1
        self.events[n].item = n // 2
        self.events[n + 1].key = 2 * self.end_of_flow[flow]
        self.events[n + 1].item = -(n // 2) - 1
        self.n_events += 2

    cdef void reserve_scratch(self, int64_t n) noexcept nogil:
        if n > self.scratch_room:
            self.scratch_room = 2 * n
            self.scratch = <SortEntry*>resized(
                self.scratch, self.scratch_room * sizeof(SortEntry))

    cdef void add_slots(self) noexcept nogil:
        """Make room for one more active flow or several: none is spare."""
        cdef int64_t slot, room = max(2 * self.n_slots, 64)
        self.holder = <int64_t*>resized(self.holder, room * sizeof(int64_t))
        self.spare = <int64_t*>resized(self.spare, room * sizeof(int64_t))
        for slot in range(self.n_slots, room):
            self.spare[slot] = slot
        self.n_slots = room
