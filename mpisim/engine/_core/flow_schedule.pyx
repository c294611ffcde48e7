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
begins and ends. It is looked at again from the first to the last instant at which a flow of one of
its groups has changed: at any other the same flows are under way as when it was looked at before.
Most links have one group with most of the flows, which take turns, such as tensor parallel
collectives on a link of NVLink. One of them alone never overloads the link, so only those count
during which a flow of another group is under way; they are found by binary search. At one instant
ends come before begins: what is under way for no time loads no link.

**Absent flows.** A flow that is not known to begin is under way at no time: its begin and its end
are `ABSENT`, later than all others.

Callers are trusted: no index is checked.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from .flow_timeline cimport ABSENT, FlowTimes, SortEntry, Timeline, note, sort_entries
from .fluid cimport end_of, int128_t
from .memory cimport resized
from .sharing cimport Sharing

from .memory import offsets, padded

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
    cdef int64_t[::1] begin_of, end_of_flow, simulated, span, peak, since, until
    cdef int32_t[::1] slot
    cdef uint8_t[::1] contended, changed_group, ordered
    cdef FlowTimes times
    cdef int64_t n_groups, n_entries, room, n_events, events_room
    cdef SortEntry* entries
    cdef SortEntry* events
    cdef SortEntry* scratch
    cdef int64_t scratch_room
    cdef Load* loads
    cdef int64_t* active  # loads that are under way
    cdef int64_t* marked  # flows that have become contended
    cdef int64_t n_marked, marked_room
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
        self.begin, self.end = np.full(n + 1, ABSENT), np.full(n + 1, ABSENT)
        self.begin_of, self.end_of_flow = self.begin, self.end
        self.simulated = np.full(n + 1, ABSENT)
        self.slot = np.full(n + 1, -1, np.int32)
        self.changed = np.zeros(self.n_groups + 1, np.uint8)
        self.changed_group = self.changed
        self.since = np.full(self.n_groups + 1, INT64_MAX)
        self.until = np.full(self.n_groups + 1, INT64_MIN)
        self.ordered = np.zeros(self.n_groups + 1, np.uint8)
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
            for i in range(n):
                p = self.price[i]
                if p >= 0 and self.rate[p] > self.peak[self.route[i]]:
                    self.peak[self.route[i]] = self.rate[p]
        self.times = FlowTimes(
            begin=&self.begin_of[0], end=&self.end_of_flow[0], simulated=&self.simulated[0],
            slot=&self.slot[0], contended=&self.contended[0], price=&self.price[0],
            route=&self.route[0], volume=&self.volume[0], rate=&self.rate[0],
            group=&self.route_group[0], since=&self.since[0], until=&self.until[0],
        )

    def __dealloc__(self):
        free(self.entries)
        free(self.events)
        free(self.scratch)
        free(self.loads)
        free(self.active)
        free(self.marked)

    def gather(
        self, const int64_t[::1] here, const int64_t[:] times, const int32_t[:] posted,
        bint ended, int64_t[::1] found,
    ):
        """Starts of communications of this process → of flows.

        Parameters
        ----------
        here : int64, shape (g,)
            The first communication of each group, or -1.
        times : int64
            Of communications.
        posted : int32
            Of communications; -1: it has started.
        ended : bool
            Whether all ranks have ended, on all processes. Then all members have posted, though the
            last messages may not have been delivered: the latest time of all processes counts.
        found : int64, shape (n,)
            Changed in place where flows are those of this process, and have started.
        """
        cdef int64_t g, k
        with nogil:
            for g in range(self.n_groups):
                if here[g] >= 0:
                    for k in range(self.first[g + 1] - self.first[g]):
                        if ended or posted[here[g] + k] == -1:
                            found[self.first[g] + k] = times[here[g] + k]

    def scatter(self, const int64_t[::1] here, int64_t[::1] taken):
        """Ends of flows → how long communications of this process take.

        Parameters
        ----------
        here : int64, shape (g,)
            As for `gather`.
        taken : int64
            Of communications, in ps; changed in place.

        Returns
        -------
        int
            When the earliest starts that takes another time now, in ps; the largest int64 if none.
        """
        cdef int64_t g, k, i, value, earliest = INT64_MAX
        with nogil:
            for g in range(self.n_groups):
                if here[g] < 0:
                    continue
                for k in range(self.first[g + 1] - self.first[g]):
                    i = self.first[g] + k
                    if self.price[i] >= 0 and self.begin_of[i] < ABSENT:
                        value = self.end_of_flow[i] - self.begin_of[i]
                        value += self.latency[self.price[i]]
                        if taken[here[g] + k] != value:
                            earliest = min(
                                earliest, self.begin_of[i] - self.latency[self.price[i]])
                        taken[here[g] + k] = value
        return earliest

    def update(self, const int64_t[::1] start, int64_t horizon=INT64_MAX):
        """Take over when communications start; return how many flows begin at another time.

        Flows that are not contended end a span later; the others are for `simulate`.

        Parameters
        ----------
        start : int64, shape (n,)
            ps; the least int64 where it is not known.
        horizon : int
            Flows that start then or later, in ps, or at an unknown time, begin when they did before.
        """
        cdef int64_t g, i, begin, found = 0
        cdef int32_t p
        with nogil:
            for g in range(self.n_groups):
                for i in range(self.first[g], self.first[g + 1]):
                    p = self.price[i]
                    if p < 0 or start[i] == INT64_MIN or start[i] >= horizon:
                        continue
                    begin = start[i] + self.latency[p]
                    if begin == self.begin_of[i]:
                        continue
                    found += 1
                    self.changed_group[g] = True
                    note(&self.times, i, self.begin_of[i], self.end_of_flow[i])
                    self.begin_of[i] = begin
                    if not self.contended[i] or self.end_of_flow[i] == ABSENT:
                        self.end_of_flow[i] = begin + self.span[p]
                    note(&self.times, i, begin, self.end_of_flow[i])
        return found

    def contend(self, const int64_t[::1] flows):
        """Note that flows are contended; their groups have changed."""
        cdef int64_t j
        for j in range(flows.shape[0]):
            self.contended[flows[j]] = True
            self.changed_group[self.route_group[self.route[flows[j]]]] = True

    def simulate(self, Timeline timeline, Sharing sharing, const int64_t[::1] groups):
        """Let the contended flows of groups share links, and take over when they end.

        Parameters
        ----------
        timeline : Timeline
            Of a contention domain. Nothing but it has simulated flows of the domain, or `restart`
            was called since.
        sharing : Sharing
            Of all links, with no flow.
        groups : int64
            All of the domain.

        Returns
        -------
        bool
            Whether all flows end at times that int64 can hold.
        """
        cdef bint finite = True
        if groups.shape[0]:
            with nogil:
                finite = timeline.simulate(
                    &self.times, sharing, &self.first[0], &groups[0], groups.shape[0])
        return finite

    def restart(self, const int64_t[::1] groups):
        """Forget that flows of groups have been simulated; when they end is kept."""
        cdef int64_t j
        for j in range(groups.shape[0]):
            self.changed_group[groups[j]] = True
            self.simulated[self.first[groups[j]] : self.first[groups[j] + 1]] = ABSENT


    def ends_without(self, const int64_t[::1] groups):
        """Return when flows end; of the contended ones of some groups, the least int64."""
        cdef int64_t j, i
        found = np.array(self.end)
        cdef int64_t[::1] end = found
        for j in range(groups.shape[0]):
            for i in range(self.first[groups[j]], self.first[groups[j] + 1]):
                if self.contended[i]:
                    end[i] = INT64_MIN
        return found

    def learn(self, const int64_t[::1] end):
        """Take over when flows end from the processes that have simulated them."""
        cdef int64_t i
        with nogil:
            for i in range(end.shape[0] - 1):
                if self.end_of_flow[i] != end[i]:
                    note(&self.times, i, self.begin_of[i], self.end_of_flow[i])
                    note(&self.times, i, self.begin_of[i], end[i])
                    self.end_of_flow[i] = end[i]

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
        cdef int64_t link, u, g, i, last, since, until
        cdef bint found, ordered
        links = []
        self.n_marked = 0
        with nogil:
            for g in range(self.n_groups):
                if self.since[g] < self.until[g]:
                    last, ordered = INT64_MIN, True
                    for i in range(self.first[g], self.first[g + 1]):
                        if self.price[i] < 0:  # no flow: under way for no time, in its turn
                            self.begin_of[i] = self.end_of_flow[i] = last
                        ordered = ordered and self.begin_of[i] >= last
                        last = self.end_of_flow[i]
                    self.ordered[g] = ordered
        for link in range(part, self.user_index.shape[0] - 1, n_parts):
            with nogil:
                since, until = INT64_MAX, INT64_MIN
                for u in range(self.user_index[link], self.user_index[link + 1]):
                    g = self.route_group[self.user_route[u]]
                    since = min(since, self.since[g])
                    until = max(until, self.until[g])
                found = since < until and self.find_contended(link, since, until)
            if found:
                links.append(link)
        flows = np.empty(self.n_marked, np.int64)
        for i in range(self.n_marked):
            flows[i] = self.marked[i]
        return flows, np.array(links, np.int64)

    def swept(self):
        """Note that all links have been looked at, by whichever process."""
        self.since[:], self.until[:] = INT64_MAX, INT64_MIN

    cdef bint find_contended(self, int64_t link, int64_t since, int64_t until) noexcept nogil:
        """Mark the flows of a link that are under way while it binds; return whether it ever does.

        It is looked at from one time to another.
        """
        cdef int128_t capacity = <int128_t>self.capacity[link] << WEIGHT_BITS, total = 0
        cdef int64_t u, g, i, n, at, end, j, weight, n_active = 0
        cdef int64_t main = -1, main_end = -1
        cdef bint found = False
        cdef Load* load
        self.find_main(link, &main, &main_end)
        self.n_entries = self.n_events = 0
        for u in range(self.user_index[link], self.user_index[link + 1]):
            if main <= u < main_end:
                continue
            g = self.route_group[self.user_route[u]]
            i, end = self.first[g], self.first[g + 1]
            if self.ordered[g]:
                i = self.first_after(i, end, since)
            for i in range(i, end):
                if self.begin_of[i] >= until:
                    if self.ordered[g]:
                        break
                elif (self.end_of_flow[i] > since and self.price[i] >= 0
                        and self.route[i] == self.user_route[u]):
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
                    for u in range(main, main_end):
                        if self.price[at] >= 0 and self.route[at] == self.user_route[u]:
                            self.push_load(at, self.user_weight[u])
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

    cdef void find_main(self, int64_t link, int64_t* first, int64_t* end) noexcept nogil:
        """Find the largest group of a link whose flows take turns and never overload it alone.

        Its routes over the link are users `first` to `end`; left as they are if there is none.
        """
        cdef int128_t capacity = <int128_t>self.capacity[link] << WEIGHT_BITS
        cdef int64_t u, g, n, most = 0, begin = self.user_index[link]
        cdef bint alone = True
        for u in range(begin, self.user_index[link + 1]):
            g = self.route_group[self.user_route[u]]
            if g != self.route_group[self.user_route[begin]]:
                begin, alone = u, True
            alone = (alone and self.ordered[g]
                and <int128_t>self.peak[self.user_route[u]] * self.user_weight[u] <= capacity)
            n = self.first[g + 1] - self.first[g]
            if (alone and n > most and (u + 1 == self.user_index[link + 1]
                    or self.route_group[self.user_route[u + 1]] != g)):
                most, first[0], end[0] = n, begin, u + 1

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
