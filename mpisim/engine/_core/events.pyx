# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Communications of the contended core, and the events of the flows that they become.

Life of a communication, told by `missing`: n > 0 hosted members have still to post; 0, all have,
but messages or a predecessor are still due; FLOWING, its flow will arrive or is active; RESOLVED,
its end is known. It only moves on in this order. `start_if_complete` is called whenever one of its
conditions may have become true (the last post, the last message, the end of the predecessor), so no
start is missed; it does nothing while another condition is open.

Ready times merge by MAX, the rank that was last by MIN: in whichever order posts and messages
come, the same start results.

Events are arrivals (a heap) and ends of flows (`sharing`). All events of one instant are processed
together, ends before arrivals, and rates are solved once after them. Max-min rates are unique, so
the order within an instant does not show. Time never goes back: an event before one that has
happened would break causality, and the process ends with a message.

Where several processes take part, a stream may *promise* a communication: its post says how long
after the end of the one before on the same communicator (`follow`) the rank is ready. The start is
then the larger of the merged ready time and that end plus the largest gap. Only the owner sees
that end, so only it acts on promises.

Callers are trusted: no index is checked.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from .common cimport NO_TIME
from .contended_state cimport FLOWING, RESOLVED, Communication, merge, merge_promise
from .heap cimport Entry, take
from .memory cimport Py_FatalError, allocated, resized
from .rank_states cimport RankStates
from .sharing cimport Sharing

from .sharing import Sharing as new_sharing


@cython.final
cdef class Events:
    """Communications of a core, changed in place, and the flows among them.

    Parameters
    ----------
    core_input : mpisim.engine.core_input.CoreInput
        With flows.
    ranks : RankStates
        Their streams are woken when a communication is resolved.
    """

    def __cinit__(self, core_input, RankStates ranks):
        cdef Communication[::1] state = core_input.flows.communications
        cdef const int64_t[::1] latency, volume, rate
        flows, routes = core_input.flows, core_input.flows.routes
        self.ranks = ranks
        self.communications = flows.communications
        self.n = len(flows.communications)
        if self.n:
            self.state = &state[0]
        self.time = NO_TIME
        self.outgoing = <int64_t*>allocated(core_input.n_messages, sizeof(int64_t))
        self.sharing = new_sharing(routes.capacity, routes.index, routes.link, routes.weight)
        # One more element each, so that the first has an address.
        self.references = [np.append(one, 0) for one in (flows.latency, flows.volume, flows.rate)]
        latency, volume, rate = self.references
        self.latency, self.volume, self.rate = &latency[0], &volume[0], &rate[0]

    def __dealloc__(self):
        free(self.outgoing)
        free(self.arrivals)
        free(self.flows)
        free(self.spare)

    # --- communications -------------------------------------------------------------------------

    cdef void start_if_complete(self, int64_t number, bint owned) noexcept nogil:
        """Resolve a communication to which all have posted, or let it flow if it is `owned`."""
        cdef Communication* communication = &self.state[number]
        cdef Communication* before
        if communication.missing != 0 or communication.remote != 0:
            return
        if owned and communication.follow > NO_TIME:
            before = &self.state[number - 1]
            if before.missing != RESOLVED:
                return
            merge(
                communication, before.end + communication.follow, communication.follower,
                before.end)
            communication.follow = NO_TIME
        if communication.route >= 0 and owned:
            communication.missing = FLOWING
            self.push_arrival(
                max(communication.time + self.latency[communication.price], communication.end),
                number)
        else:
            self.resolve(number)

    cdef void resolve(self, int64_t number) noexcept nogil:
        """Wake the streams that wait for a communication."""
        cdef Communication* communication = &self.state[number]
        cdef int32_t waiter = communication.waiter
        communication.missing = RESOLVED
        communication.waiter = -1
        while waiter >= 0:
            self.ranks.wake(waiter)
            waiter = self.ranks.streams[waiter].next_waiter
        if communication.owned:
            self.notify(number)

    cdef void notify(self, int64_t number) noexcept nogil:
        """Put a communication into the outbox."""
        self.outgoing[self.n_outgoing] = number
        self.n_outgoing += 1

    def outbox(self):
        """Return the communications to tell other processes about, and empty the outbox."""
        cdef int64_t i
        numbers_array = np.empty(self.n_outgoing, np.int64)
        cdef int64_t[::1] numbers = numbers_array
        for i in range(self.n_outgoing):
            numbers[i] = self.outgoing[i]
        self.n_outgoing = 0
        return numbers_array

    def deliver(
        self,
        const int64_t[::1] numbers,
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
        """Merge messages from other processes: see `Core.deliver`."""
        cdef Py_ssize_t i
        cdef Communication* communication
        with nogil:
            for i in range(numbers.shape[0]):
                communication = &self.state[numbers[i]]
                merge(communication, times[i], <int32_t>lasts[i], ends[i])
                merge_promise(communication, follows[i], <int32_t>followers[i])
                communication.route = max(communication.route, <int32_t>routes[i])
                communication.price = max(communication.price, <int32_t>prices[i])
                communication.remote -= 1
                self.start_if_complete(numbers[i], owned[i])

    # --- events ---------------------------------------------------------------------------------

    cdef int64_t next_time(self) noexcept nogil:
        """When the next arrival or end of a flow here is, the largest int64 if none is."""
        cdef int64_t time = self.sharing.next_end()
        if self.n_arrivals and self.arrivals[0].key < time:
            return self.arrivals[0].key
        return time

    cdef void process(self, int64_t time) noexcept nogil:
        """Process the events of one instant: first ends, then arrivals."""
        cdef int64_t flow, number
        cdef Communication* communication
        if time < self.time:
            Py_FatalError("mpisim: an event before one that has happened")
        self.time = time
        flow = self.sharing.pop_ended(time)
        while flow >= 0:
            number = self.flows[flow]
            self.spare[self.n_spare] = flow
            self.n_spare += 1
            self.state[number].end = time
            self.state[number].flow = -1
            self.resolve(number)
            if number + 1 < self.n and self.state[number + 1].follow > NO_TIME:
                self.start_if_complete(number + 1, True)
            self.n_events += 1
            flow = self.sharing.pop_ended(time)
        while self.n_arrivals and self.arrivals[0].key == time:
            number = self.arrivals[0].item
            take(self.arrivals, &self.n_arrivals)
            communication = &self.state[number]
            if self.n_spare == 0:
                self.grow_flows()
            self.n_spare -= 1
            flow = self.spare[self.n_spare]
            self.flows[flow] = number
            communication.flow = <int32_t>flow
            self.sharing.begin(
                flow, communication.route, time, self.volume[communication.price],
                self.rate[communication.price], communication.route)
            self.n_events += 1
        self.sharing.solve(time)

    cdef void grow_flows(self) noexcept nogil:
        """Make room for one more active flow or several."""
        cdef int64_t old = self.flows_room, room = max(2 * old, 64), flow
        self.flows = <int64_t*>resized(self.flows, room * sizeof(int64_t))
        self.spare = <int64_t*>resized(self.spare, room * sizeof(int64_t))
        for flow in range(room - 1, old - 1, -1):
            self.spare[self.n_spare] = flow
            self.n_spare += 1
        self.flows_room = room

    cdef void push_arrival(self, int64_t time, int64_t number) noexcept nogil:
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
