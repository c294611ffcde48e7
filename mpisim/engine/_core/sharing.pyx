# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Max-min fair rates of flows that share links.

A *flow* moves a volume of payload over a *route*: links, each with the bytes that pass over it for
every byte of payload (its weight). Rates are weighted max-min fair (Bertsekas, Gallager, *Data
Networks*, 2nd ed., section 6.5.2): no flow's rate can rise without lowering one that is no higher.
They come from progressive filling: all flows rise together; a flow that reaches its cap stops
there, and all flows over a link that is full stop with it.

**Integers throughout**, so that no order of flows, links or events can show in a result:

- times in ps, rates and capacities in 2**-40 bytes per ps, weights scaled by 2**20;
- what remains of a flow in 2**-40 bytes, lowered by rate times elapsed time: the same whether in
  one step or in many;
- a link is full at the level floor(what is left of it / sum of weights). All links full at one
  level stop their flows together, after the flows whose cap is that level.

Times, rates and weights are int64; capacity, demand and what is left of a link, and what remains of
a flow, are int128. 1 TB/s is a rate of 2**40 and one byte per byte a weight of 2**20, so a link's
demand stays below 2**127 for any number of flows that fits into memory; a volume of 2**63 bytes is
2**103. An end that int64 cannot hold is the largest int64.

**What is solved again.** Max-min rates are unique, and those of a flow depend only on the flows and
links of its component: flows joined by links that *bind*. A link binds if its flows, each at its
cap, would overload it; no other link can ever be full, so it is left out. Only components with a
link or flow that has changed since the last solve are filled again; all others would get the rates
that they have. A link that has ceased to bind may have held back flows, so these join in once more.

**Filling** takes the lowest level from two heaps, caps of flows and levels of links. The level of a
link only rises while flows stop elsewhere (they stop at or below it, so they leave it at least
their share). Its key in the heap is thus a lower bound that is brought up to date when it comes to
the top. In the heap of ends, likewise, a flow that has slowed down keeps its earlier key until
then; one that has sped up is moved at once.

Callers are trusted: no index is checked. All but `changes` runs without the interpreter.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from .fluid cimport Flow, Link, Passage, end_of, int128_t, level_of, rise, transfer, sink
from .heap cimport Entry, heapify, sift, take
from .memory cimport allocated, resized

cdef enum:
    RATE_BITS = 40
    WEIGHT_BITS = 20
    FIRST_ROOM = 4


@cython.final
cdef class Sharing:
    """Flows over links with capacities.

    Parameters
    ----------
    capacity : int64, shape (m,)
        Of each link, in 2**-40 bytes per ps; 1 or more.
    route_index : int64, shape (r + 1,)
        Route i has the links ``route_link[route_index[i]:route_index[i + 1]]``.
    route_link, route_weight : int64
        Each link of a route once; weights scaled by 2**20, 1 or more.
    record : bool
        Whether to log changes of rates: see `changes`.
    """

    def __cinit__(
        self,
        const int64_t[::1] capacity not None,
        const int64_t[::1] route_index not None,
        const int64_t[::1] route_link not None,
        const int64_t[::1] route_weight not None,
        bint record=False,
    ):
        cdef int64_t n = capacity.shape[0], link
        cdef const int64_t[::1] view
        if np.min(capacity, initial=1) < 1 or np.min(route_weight, initial=1) < 1:
            raise ValueError("a capacity or a weight is below 1")
        # One more element each, so that the first has an address.
        self.references = [
            np.append(route_index, 0), np.append(route_link, 0), np.append(route_weight, 0),
        ]
        view = self.references[0]
        self.route_index = &view[0]
        view = self.references[1]
        self.route_link = &view[0]
        view = self.references[2]
        self.route_weight = &view[0]
        self.record = record
        self.n_links = n
        self.links = <Link*>allocated(n, sizeof(Link))
        self.changed = <int64_t*>allocated(n, sizeof(int64_t))
        self.levels = <Entry*>allocated(n, sizeof(Entry))
        for link in range(n):
            self.links[link].capacity = <int128_t>capacity[link] << WEIGHT_BITS

    def __dealloc__(self):
        cdef int64_t i
        if self.links is not NULL:
            for i in range(self.n_links):
                free(self.links[i].passages)
        for i in range(self.n_slots):
            free(self.flows[i].place)
        free(self.links)
        free(self.flows)
        free(self.ends)
        free(self.caps)
        free(self.levels)
        free(self.changed)
        free(self.begun)
        free(self.component)
        free(self.log)

    # --- flows come and go ----------------------------------------------------------------------

    cpdef void begin(
        self, int64_t flow, int64_t route, int64_t time, int64_t volume, int64_t cap,
        int64_t tag=0,
    ) noexcept nogil:
        """Let a flow begin. Its rate follows from the next `solve`.

        Parameters
        ----------
        flow : int
            A number that no active flow has.
        route : int
        time : int
            ps.
        volume : int
            Bytes of payload; a flow of none ends at once.
        cap : int
            Its highest rate, in 2**-40 bytes per ps.
        tag : int
            What `changes` calls it.
        """
        self.enter(flow, route, time, <int128_t>volume << RATE_BITS, cap)
        self.flows[flow].tag = tag

    cdef void enter(
        self, int64_t flow, int64_t route, int64_t time, int128_t remaining, int64_t cap
    ) noexcept nogil:
        """Let a flow go on, or begin, of which so much remains. Its rate follows from `solve`.

        Parameters
        ----------
        remaining : int128
            Unit 2**-40 byte.
        """
        cdef Flow* one
        cdef int64_t n_legs = self.route_index[route + 1] - self.route_index[route]
        self.reserve(flow)
        one = &self.flows[flow]
        if n_legs > one.room:
            one.place = <int32_t*>resized(one.place, n_legs * sizeof(int32_t))
            one.room = <int32_t>n_legs
        one.first_leg = self.route_index[route]
        one.n_legs = <int32_t>n_legs if remaining else 0
        one.remaining = remaining
        one.updated = time
        one.rate = 0
        one.cap = max(cap, 1)
        one.tag = 0
        one.end = INT64_MAX if remaining else time
        one.at = self.n_ends
        self.ends[self.n_ends].key = one.end
        self.ends[self.n_ends].item = flow
        self.n_ends += 1
        rise(self.ends, self.flows, one.at)
        if remaining:
            self.begun[self.n_begun] = flow
            self.n_begun += 1
            self.attach(flow)

    cpdef int64_t pop_ended(self, int64_t time) noexcept nogil:
        """Remove a flow that has ended by `time`, the earliest, the lowest of several; or -1."""
        cdef int64_t number
        cdef Flow* flow
        if self.n_ends == 0 or self.next_end() > time:
            return -1
        number = self.ends[0].item
        flow = &self.flows[number]
        self.n_ends -= 1
        if self.n_ends:
            self.ends[0] = self.ends[self.n_ends]
            self.flows[self.ends[0].item].at = 0
            sink(self.ends, self.n_ends, self.flows, 0)
        self.detach(number)
        if self.record and flow.rate:
            self.log_change(time, flow.tag, 0)
        return number

    cdef void clear(self) noexcept nogil:
        """Remove all flows."""
        cdef int64_t i
        for i in range(self.n_ends):
            self.detach(self.ends[i].item)
        self.n_ends = self.n_begun = 0

    cpdef int64_t next_end(self) noexcept nogil:
        """Return the earliest end of an active flow as things stand, INT64_MAX if none."""
        if self.n_ends == 0:
            return INT64_MAX
        while self.ends[0].key < self.flows[self.ends[0].item].end:
            self.ends[0].key = self.flows[self.ends[0].item].end
            sink(self.ends, self.n_ends, self.flows, 0)
        return self.ends[0].key

    cpdef int64_t bound(self, int64_t flow, int64_t time) noexcept nogil:
        """Return when an active flow would end if it had its highest rate from `time` on."""
        transfer(&self.flows[flow], time)
        return end_of(time, self.flows[flow].remaining, self.flows[flow].cap)

    cpdef int64_t rate(self, int64_t flow) noexcept nogil:
        """Return the rate of an active flow."""
        return self.flows[flow].rate

    cpdef int64_t end(self, int64_t flow) noexcept nogil:
        """Return the end of an active flow as things stand."""
        return self.flows[flow].end

    cdef void attach(self, int64_t number) noexcept nogil:
        """Enter a flow at its links."""
        cdef Flow* flow = &self.flows[number]
        cdef Link* link
        cdef Passage* passage
        cdef int64_t leg, weight
        for leg in range(flow.n_legs):
            link = &self.links[self.route_link[flow.first_leg + leg]]
            weight = self.route_weight[flow.first_leg + leg]
            if link.n_passages == link.room:
                link.room = max(2 * link.room, FIRST_ROOM)
                link.passages = <Passage*>resized(link.passages, link.room * sizeof(Passage))
            flow.place[leg] = link.n_passages
            passage = &link.passages[link.n_passages]
            passage.weight = weight
            passage.flow = <int32_t>number
            passage.leg = <int32_t>leg
            link.n_passages += 1
            link.weight += weight
            link.demand += <int128_t>flow.cap * weight
            self.mark_changed(self.route_link[flow.first_leg + leg])

    cdef void detach(self, int64_t number) noexcept nogil:
        """Strike a flow off its links."""
        cdef Flow* flow = &self.flows[number]
        cdef Link* link
        cdef Passage* passage
        cdef int64_t leg, weight
        for leg in range(flow.n_legs):
            link = &self.links[self.route_link[flow.first_leg + leg]]
            weight = self.route_weight[flow.first_leg + leg]
            link.n_passages -= 1
            passage = &link.passages[flow.place[leg]]
            passage[0] = link.passages[link.n_passages]
            self.flows[passage.flow].place[passage.leg] = flow.place[leg]
            link.weight -= weight
            link.demand -= <int128_t>flow.cap * weight
            self.mark_changed(self.route_link[flow.first_leg + leg])

    cdef inline void mark_changed(self, int64_t link) noexcept nogil:
        if not self.links[link].changed:
            self.links[link].changed = True
            self.changed[self.n_changed] = link
            self.n_changed += 1

    # --- solving --------------------------------------------------------------------------------

    cpdef void solve(self, int64_t time) noexcept nogil:
        """Give every flow its rate from `time` on."""
        cdef int64_t i
        if self.n_changed == 0 and self.n_begun == 0:
            return
        self.n_solves += 1
        self.find_component()
        self.fill()
        for i in range(self.n_component):
            self.apply_rate(&self.flows[self.component[i]], self.component[i], time)
        self.n_solved += self.n_component

    cdef void find_component(self) noexcept nogil:
        """Find the flows whose rate may change, and the links that can limit them."""
        cdef int64_t i, leg
        cdef Link* link
        cdef Flow* flow
        cdef bint bound
        self.n_component = self.n_levels = 0
        for i in range(self.n_changed):
            link = &self.links[self.changed[i]]
            link.changed = False
            bound = link.binds
            link.binds = link.demand > link.capacity
            if bound or link.binds:
                self.visit_all(link)
        self.n_changed = 0
        for i in range(self.n_begun):
            self.visit(self.begun[i])
        self.n_begun = 0
        i = 0
        while i < self.n_component:
            flow = &self.flows[self.component[i]]
            i += 1
            for leg in range(flow.first_leg, flow.first_leg + flow.n_legs):
                link = &self.links[self.route_link[leg]]
                if link.binds and link.reached != self.n_solves:
                    link.reached = self.n_solves
                    link.left = link.capacity
                    link.filling = link.weight
                    self.levels[self.n_levels].key = level_of(link)
                    self.levels[self.n_levels].item = self.route_link[leg]
                    self.n_levels += 1
                    self.visit_all(link)

    cdef inline void visit_all(self, Link* link) noexcept nogil:
        cdef int32_t i
        for i in range(link.n_passages):
            self.visit(link.passages[i].flow)

    cdef inline void visit(self, int64_t number) noexcept nogil:
        cdef Flow* flow = &self.flows[number]
        if flow.reached != self.n_solves:
            flow.reached = self.n_solves
            flow.level = 0
            self.caps[self.n_component].key = flow.cap
            self.caps[self.n_component].item = number
            self.component[self.n_component] = number
            self.n_component += 1

    cdef void fill(self) noexcept nogil:
        """Fix the level of every flow that was reached."""
        cdef int64_t n_caps = self.n_component, level
        cdef Link* link
        cdef Flow* flow
        heapify(self.levels, self.n_levels)
        heapify(self.caps, n_caps)
        self.n_rising = n_caps
        while self.n_rising:
            flow = &self.flows[self.caps[0].item]
            if flow.level:  # a link has stopped it
                take(self.caps, &n_caps)
            elif self.n_levels == 0 or flow.cap <= self.levels[0].key:
                self.fix_rate(flow, flow.cap)
                take(self.caps, &n_caps)
            else:
                link = &self.links[self.levels[0].item]
                level = level_of(link) if link.filling else INT64_MAX
                if level > self.levels[0].key:
                    self.levels[0].key = level
                    sift(self.levels, self.n_levels, 0)
                else:
                    self.fill_links(level)

    cdef void fill_links(self, int64_t level) noexcept nogil:
        """Stop the flows of all links that are full at a level."""
        cdef int64_t old = self.n_levels, now, at
        cdef int32_t i
        cdef Link* link
        cdef Flow* flow
        # All these links are found before the first flow is stopped: stopping it rounds what is
        # left for the others, which could lift their level.
        while self.n_levels and self.levels[0].key == level:
            link = &self.links[self.levels[0].item]
            now = level_of(link) if link.filling else INT64_MAX
            if now > level:
                self.levels[0].key = now
                sift(self.levels, self.n_levels, 0)
            else:
                take(self.levels, &self.n_levels)
        for at in range(self.n_levels, old):
            link = &self.links[self.levels[at].item]
            for i in range(link.n_passages):
                flow = &self.flows[link.passages[i].flow]
                if flow.level == 0:
                    self.fix_rate(flow, level)

    cdef inline void fix_rate(self, Flow* flow, int64_t rate) noexcept nogil:
        cdef int64_t leg, weight
        cdef Link* link
        flow.level = rate
        self.n_rising -= 1
        for leg in range(flow.first_leg, flow.first_leg + flow.n_legs):
            link = &self.links[self.route_link[leg]]
            if link.binds:
                weight = self.route_weight[leg]
                link.left -= <int128_t>rate * weight
                link.filling -= weight

    cdef inline void apply_rate(self, Flow* flow, int64_t number, int64_t time) noexcept nogil:
        """Let a flow go on at the rate that was found for it."""
        if flow.level == flow.rate:
            return
        transfer(flow, time)
        flow.rate = flow.level
        flow.end = end_of(time, flow.remaining, flow.rate)
        if flow.end < self.ends[flow.at].key:
            self.ends[flow.at].key = flow.end
            rise(self.ends, self.flows, flow.at)
        if self.record:
            self.log_change(time, flow.tag, flow.rate)

    # --- memory, and what came out --------------------------------------------------------------

    cdef void reserve(self, int64_t flow) noexcept nogil:
        """Make room for a flow of this number."""
        cdef int64_t old = self.n_slots, n
        if flow < old:
            return
        n = max(2 * old, flow + 1)
        self.flows = <Flow*>resized(self.flows, n * sizeof(Flow))
        memset(&self.flows[old], 0, (n - old) * sizeof(Flow))
        self.ends = <Entry*>resized(self.ends, n * sizeof(Entry))
        self.caps = <Entry*>resized(self.caps, n * sizeof(Entry))
        self.begun = <int64_t*>resized(self.begun, n * sizeof(int64_t))
        self.component = <int64_t*>resized(self.component, n * sizeof(int64_t))
        self.n_slots = n

    cdef void log_change(self, int64_t time, int64_t tag, int64_t rate) noexcept nogil:
        if self.n_log == self.log_room:
            self.log_room = max(2 * self.log_room, 1024)
            self.log = <int64_t*>resized(self.log, 3 * self.log_room * sizeof(int64_t))
        self.log[3 * self.n_log] = time
        self.log[3 * self.n_log + 1] = tag
        self.log[3 * self.n_log + 2] = rate
        self.n_log += 1

    cdef int64_t links_in_use(self) noexcept nogil:
        """Count the links that a flow passes over now."""
        cdef int64_t i, found = 0
        for i in range(self.n_links):
            found += self.links[i].weight > 0
        return found

    def changes(self):
        """Return all changes of rates so far, int64, shape (n, 3): time, tag, new rate."""
        cdef int64_t[:, ::1] view
        found = np.empty((self.n_log, 3), np.int64)
        if self.n_log:
            view = found
            memcpy(&view[0, 0], self.log, 3 * self.n_log * sizeof(int64_t))
        return found
