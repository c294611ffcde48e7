# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The groups of a contended core, and the flows that they become once all have come."""

import numpy as np

cimport cython
from cpython.exc cimport PyErr_NoMemory
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, realloc

from .contended cimport FLOWING, RESOLVED, FlowGroup, merge, merge_promise
from .crew cimport Crew
from .heap cimport Entry, take
from .sharing cimport Sharing

from .sharing import Sharing as new_sharing

cdef extern from "Python.h":
    void Py_FatalError(const char* message) noexcept nogil

cdef int64_t NEVER = INT64_MIN


@cython.final
cdef class Meetings:
    """The groups of a layout, which are changed in place."""

    def __cinit__(self, layout, Crew crew):
        cdef FlowGroup[::1] groups = layout.groups
        cdef const int64_t[::1] latency, volume, rate
        traffic, routes = layout.traffic, layout.traffic.routes
        self.crew = crew
        self.groups = layout.groups
        self.n_groups = len(layout.groups)
        if self.n_groups:
            self.group_of = &groups[0]
        self.time = NEVER
        self.posted = <int64_t*>calloc(layout.n_messages + 1, sizeof(int64_t))
        if self.posted is NULL:
            PyErr_NoMemory()
        self.sharing = new_sharing(routes.capacity, routes.index, routes.link, routes.weight)
        # One more element each, so that the first has an address.
        self.kept = [np.append(one, 0) for one in (traffic.latency, traffic.volume, traffic.rate)]
        latency, volume, rate = self.kept
        self.latency, self.volume, self.rate = &latency[0], &volume[0], &rate[0]

    def __dealloc__(self):
        free(self.posted)
        free(self.arrivals)
        free(self.flows)
        free(self.spare)

    # --- groups ---------------------------------------------------------------------------------

    cdef void start_if_complete(self, int64_t number, bint begins) noexcept nogil:
        """Resolve a group to which all have come, or let it flow if that is this core's task."""
        cdef FlowGroup* group = &self.group_of[number]
        cdef FlowGroup* before
        if group.missing != 0 or group.away != 0:
            return
        if begins and group.follow > NEVER:
            before = &self.group_of[number - 1]
            if before.missing != RESOLVED:
                return
            merge(group, before.end + group.follow, group.follower, before.end)
            group.follow = NEVER
        if group.route >= 0 and begins:
            group.missing = FLOWING
            self.expect(max(group.time + self.latency[group.price], group.end), number)
        else:
            self.resolve(number)

    cdef void resolve(self, int64_t number) noexcept nogil:
        """Wake those who wait for a group."""
        cdef FlowGroup* group = &self.group_of[number]
        cdef int32_t waiter = group.waiter
        group.missing = RESOLVED
        group.waiter = -1
        while waiter >= 0:
            self.crew.wake(waiter)
            waiter = self.crew.streams[waiter].next_waiter
        if group.owned:
            self.tell(number)

    cdef void tell(self, int64_t number) noexcept nogil:
        """Have other processes told of a group."""
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
        const int64_t[::1] ends,
        const int64_t[::1] routes,
        const int64_t[::1] prices,
        const int64_t[::1] follows,
        const int64_t[::1] followers,
        *,
        const uint8_t[::1] owned,
    ):
        """Take in what other processes said about groups, and whether this one owns them."""
        cdef Py_ssize_t i
        cdef FlowGroup* group
        with nogil:
            for i in range(groups.shape[0]):
                group = &self.group_of[groups[i]]
                merge(group, times[i], <int32_t>lasts[i], ends[i])
                merge_promise(group, follows[i], <int32_t>followers[i])
                group.route = max(group.route, <int32_t>routes[i])
                group.price = max(group.price, <int32_t>prices[i])
                group.away -= 1
                self.start_if_complete(groups[i], owned[i])

    # --- events ---------------------------------------------------------------------------------

    cdef int64_t next_time(self) noexcept nogil:
        """When the next arrival or end of a flow here is, the largest int64 if none is."""
        cdef int64_t time = self.sharing.next_end()
        if self.n_arrivals and self.arrivals[0].key < time:
            return self.arrivals[0].key
        return time

    cdef void happen(self, int64_t time) noexcept nogil:
        """Let the events of one instant happen: first ends, then arrivals."""
        cdef int64_t slot, number
        cdef FlowGroup* group
        if time < self.time:
            Py_FatalError("mpisim: an event before one that has happened")
        self.time = time
        slot = self.sharing.pop_ended(time)
        while slot >= 0:
            number = self.flows[slot]
            self.spare[self.n_spare] = slot
            self.n_spare += 1
            self.group_of[number].end = time
            self.group_of[number].flow = -1
            self.resolve(number)
            if number + 1 < self.n_groups and self.group_of[number + 1].follow > NEVER:
                self.start_if_complete(number + 1, True)
            self.n_events += 1
            slot = self.sharing.pop_ended(time)
        while self.n_arrivals and self.arrivals[0].key == time:
            number = self.arrivals[0].item
            take(self.arrivals, &self.n_arrivals)
            group = &self.group_of[number]
            if self.n_spare == 0:
                self.more_flows()
            self.n_spare -= 1
            slot = self.spare[self.n_spare]
            self.flows[slot] = number
            group.flow = <int32_t>slot
            self.sharing.begin(
                slot, group.route, time, self.volume[group.price], self.rate[group.price],
                group.route)
            self.n_events += 1
        self.sharing.solve(time)

    cdef void more_flows(self) noexcept nogil:
        """Make room for one more active flow or several."""
        cdef int64_t old = self.flows_room, room = max(2 * old, 64), slot
        self.flows = <int64_t*>resized(self.flows, room * sizeof(int64_t))
        self.spare = <int64_t*>resized(self.spare, room * sizeof(int64_t))
        for slot in range(room - 1, old - 1, -1):
            self.spare[self.n_spare] = slot
            self.n_spare += 1
        self.flows_room = room

    cdef void expect(self, int64_t time, int64_t number) noexcept nogil:
        """Put an arrival into the heap."""
        cdef int64_t at = self.n_arrivals, parent
        if at == self.arrivals_room:
            self.arrivals_room = max(2 * at, 64)
            self.arrivals = <Entry*>resized(self.arrivals, self.arrivals_room * sizeof(Entry))
        self.n_arrivals += 1
        while at:
            parent = (at - 1) // 2
            if self.arrivals[parent].key <= time:
                break
            self.arrivals[at] = self.arrivals[parent]
            at = parent
        self.arrivals[at].key = time
        self.arrivals[at].item = number


cdef inline void* resized(void* memory, size_t size) noexcept nogil:
    memory = realloc(memory, size)
    if memory is NULL:
        Py_FatalError("mpisim: no memory for more flows that share links")
    return memory
