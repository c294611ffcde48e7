# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Packets through links and queues, event by event.

A *message* is bytes of one *queue pair*, which sends its messages in order, packet by packet, over
one of its paths. A path begins with the link that its sender feeds: there the queue pairs that have
something to send take turns, each not before its rate allows. Every later link has a queue, first
in, first out.

1. A link carries one packet at a time. What wants to go over it and cannot stands in its queue or
   in the ring of its queue pairs; then either it is paused, or an event stands at the time when it
   is free or the first of its queue pairs may send (`wake`), so that nothing is forgotten.
2. `ingress` of a link is what came over it and has not left the node at its end, `used` of a node
   the sum over links that lead to it. A pause follows from a rise of `ingress`, a resumption from a
   fall, and at 0 always, so that every pause ends unless no packet of that link can ever leave:
   then packets wait for each other in a circle, and `run` returns with messages that have no end.
3. A queue pair with a window sends no packet while that many bytes are under way, not acknowledged.
   An acknowledgement follows every packet that arrives and looks at its first link, so that no pair
   waits for one that does not come.
4. With `ack_size` an acknowledgement is a packet: the one that it answers goes back over the links
   of its path, and takes its turn in their queues. It is neither marked nor dropped.
5. With `recovering` a switch drops what is beyond an egress queue's part of its buffer, and packets
   have a *position*: their first byte among all bytes of their queue pair (losses.pxi).
6. Events of one time happen in the order in which they were pushed, and random numbers are drawn in
   that order: one input has one result.

Here are senders and links. Around them: heap.pxi (the order of events), memory.pxi (of events and
packets), queues.pxi (switches), receiver.pxi (arrival and acknowledgements), dcqcn.pxi and
telemetry.pxi (rates of senders), losses.pxi.

Times are int64 ps; rates are bytes per ps. Callers are trusted: no index is checked.
"""

import numpy as np

cimport cython
from libc.math cimport ceil, floor, log, pow
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

include "heap.pxi"
include "dcqcn.pxi"

cdef enum:
    ARRIVE, DELIVER, ANSWER, WAKE, RELEASE, PAUSE, RESUME, NOTIFY, ACKNOWLEDGE, EXPIRE, TIMER
    # All but timers keep the simulation going.

cdef enum:
    UNCONTROLLED, DCQCN, TIMELY, HPCC, HPCC_PINT, DCTCP

cdef enum:
    LOSSLESS, GO_BACK_N, SELECTIVE_REPEAT

cdef struct Packet:
    int32_t message
    int32_t at  # of the links of all paths: the one it goes over next
    int32_t end
    int32_t size
    int32_t answered  # bytes that it acknowledges, on its way back; 0 before
    int32_t next  # behind it in the same queue, or among the unused
    int32_t ingress  # the link that it came by, -1 at its sender
    int32_t path
    int32_t stamps  # of HPCC's, so far; HPCC-PINT: the largest load on its way, encoded
    int64_t position  # of its first byte in its queue pair
    int64_t sent  # when
    int64_t answer  # of its acknowledgement: before which position all has arrived
    bint marked
    bint refused  # its acknowledgement says that something before it is missing

cdef class Losses
cdef class Telemetry

@cython.final
cdef class Simulator:
    """See the module and `mpisim.topo.packets.run.PacketInput`, whose arrays it takes."""

    cdef const double[::1] rate, cap, low, high, window
    cdef const int64_t[::1] latency, message_bytes, message_start, pair_delay, pair_return
    cdef const int64_t[::1] pair_timeout
    cdef const int64_t[::1] path_first, pair_first, gate_first, ack_first, ack_delay
    cdef const int32_t[::1] path_link, target, message_pair, message_opens, gate_next
    cdef const int32_t[::1] gate_message
    cdef const uint8_t[::1] marking
    # Of links. `busy`: until when it carries a packet; `wake`: when its pending WAKE event happens;
    # `queued`: bytes in its queue, from packet `head` to `tail`; `ingress`: see 2; `since`: when
    # its pause began; `asked`: whether its end has asked for a pause; `turn`: the queue pair that
    # is next in the ring of those it feeds, -1: the ring is empty; `prefer_source`: whether the
    # ring comes before the queue now.
    cdef int64_t[::1] busy, wake, queued, ingress, since
    cdef int32_t[::1] head, tail, turn
    cdef uint8_t[::1] paused, asked, prefer_source
    cdef readonly object link_bytes, link_packets, link_marks, link_pauses, link_paused
    cdef readonly object link_most, link_area
    cdef int64_t[::1] n_bytes, n_packets, n_marks, n_pauses, t_paused, most
    cdef double[::1] area
    # Of nodes: see 2.
    cdef int64_t[::1] used, most_used
    cdef readonly object node_most
    # Of queue pairs. `current`: the message it sends, of which `left` bytes are still to go, -1:
    # none; `last`: the last message that waits; `ring_next`, `ring_before`: its neighbours in the
    # ring of its first link, a doubly linked list in which it stands while it has a message;
    # `next_time`: before which its rate allows no packet; `next_feedback`: before which no mark is
    # reported; `next_timer`: when its timer runs out; `under_way`: bytes not acknowledged;
    # `offered`, `sent_to`: the position behind its last message, and of the next byte.
    cdef int32_t[::1] current, last, ring_next, ring_before
    cdef int64_t[::1] offered, sent_to
    cdef int64_t[::1] left, next_time, next_feedback, next_timer, cuts_of, under_way
    cdef readonly object pair_cuts
    cdef Rate* rates
    cdef Telemetry telemetry
    cdef Losses lost
    # Of messages and gates. `message_next`: behind it in its queue pair; `to_come`: bytes that have
    # not arrived; `gate_left`: what a gate still waits for.
    cdef int32_t[::1] message_next, gate_left
    cdef int64_t[::1] to_come, begin_of, end_of
    cdef readonly object message_begin, message_end
    cdef Packet* packets
    cdef int32_t unused, n_room
    cdef Event* events
    cdef int64_t n_events, room, pushed, n_work
    cdef readonly int64_t done, happened, now
    cdef uint64_t random_state
    cdef Control control
    cdef int32_t mtu, congestion, recovering, ack_size
    cdef bint cut_through, pausing, windowed, scaling, acknowledging, adaptive, stamping
    cdef double most_marked, buffer, share
    cdef int64_t resume_offset
    cdef bint failed  # to get memory

    def __cinit__(self, given, settings):
        cdef double line
        cdef int64_t i, n = len(given.rate), m = len(given.message_bytes), k = len(given.cap)
        self.rate, self.latency, self.target = given.rate, given.latency, given.target
        self.marking, self.low, self.high = given.marking, given.low, given.high
        self.path_first, self.path_link = given.path_first, given.path_link
        self.pair_first, self.cap = given.pair_first, given.cap
        self.pair_delay, self.pair_return = given.pair_delay, given.pair_return
        self.window, self.under_way = given.window, np.zeros(k, np.int64)
        self.pair_timeout = given.pair_timeout
        self.offered, self.sent_to = np.zeros(k, np.int64), np.zeros(k, np.int64)
        self.congestion = {
            "none": UNCONTROLLED, "dcqcn": DCQCN, "timely": TIMELY, "hpcc": HPCC,
            "hpcc-pint": HPCC_PINT, "dctcp": DCTCP}[settings.congestion]
        self.stamping = self.congestion == HPCC or self.congestion == HPCC_PINT
        self.recovering = {
            "none": LOSSLESS, "go-back-n": GO_BACK_N, "selective-repeat": SELECTIVE_REPEAT}[
            settings.recovery]
        self.adaptive = settings.routing == "adaptive"
        self.windowed = np.isfinite(given.window).any() or self.congestion == DCTCP
        self.scaling = settings.window_scales or self.stamping
        self.ack_size = settings.ack_size
        self.ack_first, self.ack_delay = given.ack_first, given.ack_delay
        self.acknowledging = (
            self.windowed or self.recovering or self.congestion > DCQCN or self.ack_size > 0)
        self.message_bytes, self.message_pair = given.message_bytes, given.message_pair
        self.message_start, self.message_opens = given.message_start, given.message_opens
        self.gate_next, self.gate_first = given.gate_next, given.gate_first
        self.gate_message = given.gate_message
        self.gate_left = given.gate_count.copy()
        self.busy, self.wake = np.zeros(n, np.int64), np.full(n, INT64_MAX)
        self.queued, self.ingress = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.since = np.zeros(n, np.int64)
        self.head, self.tail = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
        self.turn = np.full(n, -1, np.int32)
        self.paused, self.asked = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
        self.prefer_source = np.zeros(n, np.uint8)
        self.link_bytes, self.link_packets = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.link_marks, self.link_pauses = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.link_paused, self.link_most = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.link_area = np.zeros(n)
        self.n_bytes, self.n_packets, self.n_marks = (
            self.link_bytes, self.link_packets, self.link_marks)
        self.n_pauses, self.t_paused, self.most = (
            self.link_pauses, self.link_paused, self.link_most)
        self.area = self.link_area
        self.node_most = np.zeros(given.n_nodes, np.int64)
        self.used, self.most_used = np.zeros(given.n_nodes, np.int64), self.node_most
        self.current, self.last = np.full(k, -1, np.int32), np.full(k, -1, np.int32)
        self.ring_next, self.ring_before = np.full(k, -1, np.int32), np.full(k, -1, np.int32)
        self.left, self.next_time = np.zeros(k, np.int64), np.zeros(k, np.int64)
        self.next_feedback = np.zeros(k, np.int64)
        self.next_timer = np.zeros(k, np.int64)
        self.pair_cuts = np.zeros(k, np.int64)
        self.cuts_of = self.pair_cuts
        self.message_next = np.full(m, -1, np.int32)
        self.to_come = given.message_bytes.copy()
        self.message_begin, self.message_end = np.full(m, -1, np.int64), np.full(m, -1, np.int64)
        self.begin_of, self.end_of = self.message_begin, self.message_end
        self.mtu, self.cut_through = settings.mtu, settings.switching == "cut-through"
        self.pausing = settings.pfc
        self.most_marked, self.buffer = settings.pmax, settings.buffer
        self.share, self.resume_offset = settings.pfc_share, settings.resume_offset
        self.random_state = settings.seed
        control = settings.control
        self.control = Control(
            control.gain, control.additive, control.hyper, control.least, control.bytes,
            control.timer, control.alpha_timer, control.feedback, control.fast, control.clamp)
        self.telemetry = Telemetry(self.congestion, settings.watching, given)
        self.lost = Losses(self.recovering, settings, given)
        self.unused = -1
        self.rates = <Rate*>realloc(NULL, max(k, 1) * sizeof(Rate))
        if self.rates == NULL:
            raise MemoryError
        for i in range(k):
            line = min(self.cap[i], self.rate[self.first_link(i)])
            reset(&self.rates[i], line, line / settings.reference_rate * 1e12, control.least)
            self.telemetry.begin(self, i, line)
        for i in range(len(given.gate_count)):
            if given.gate_count[i] == 0:
                self.open_messages(i)
        for i in range(m):
            if given.message_gate[i] < 0:
                self.release(i)

    def __dealloc__(self):
        free(self.packets)
        free(self.events)
        free(self.rates)

    @property
    def link_drops(self):
        return self.lost.link_drops

    @property
    def pair_resent(self):
        return self.lost.pair_resent

    @property
    def pair_timeouts(self):
        return self.lost.pair_timeouts

    @property
    def pair_answered(self):
        """Where packets are dropped: bytes of each queue pair that its sender knows to have come."""
        return np.asarray(self.lost.unanswered)

    def run(self, int64_t budget):
        """Let up to so many events happen; return whether there is more to come."""
        cdef Event event
        cdef int64_t stop = self.happened + budget
        with nogil:
            while self.n_work and self.done < self.end_of.shape[0] and self.happened < stop:
                event = self.events[0]
                self.n_events -= 1
                self.events[0] = self.events[self.n_events]
                sink(self.events, self.n_events)
                self.n_work -= event.kind != TIMER
                self.now = event.time
                self.happened += 1
                self.happen(event.kind, event.item)
                if self.failed:
                    break
        if self.failed:
            raise MemoryError
        return self.n_work > 0 and self.done < self.end_of.shape[0]

    # --- events ---------------------------------------------------------------------------------

    cdef void happen(self, int32_t kind, int32_t item) noexcept nogil:
        if kind == ARRIVE:
            arrive(self, item)
        elif kind == DELIVER:
            deliver(self, item)
        elif kind == ANSWER:
            enqueue(self, item, self.path_link[self.packets[item].at])
        elif kind == WAKE:
            if self.wake[item] == self.now:
                self.wake[item] = INT64_MAX
                self.send(item)
        elif kind == RELEASE:
            self.offer(item)
        elif kind == PAUSE:
            self.paused[item] = True
            self.since[item] = self.now
            self.n_pauses[item] += 1
        elif kind == RESUME:
            self.paused[item] = False
            self.t_paused[item] += self.now - self.since[item]
            self.send(item)
        elif kind == NOTIFY:
            cut(&self.rates[item], &self.control, self.now)
            self.cuts_of[item] += 1
            self.start_timer(item)
        elif kind == ACKNOWLEDGE:
            acknowledge(self, item)
        elif kind == EXPIRE:
            self.lost.expire(self, item)
        else:
            self.tick(item)

    # A cut starts the timer anew. An event of before is known by its time: cuts of one queue pair
    # are never at the same time.

    cdef void start_timer(self, int32_t pair) noexcept nogil:
        self.next_timer[pair] = self.now + self.control.timer
        push(self, self.next_timer[pair], TIMER, pair)

    cdef void tick(self, int32_t pair) noexcept nogil:
        cdef Rate* rate = &self.rates[pair]
        if rate.limited and self.next_timer[pair] == self.now:
            rate.timer_steps += 1
            increase(rate, &self.control)
            self.start_timer(pair)

    # --- messages -------------------------------------------------------------------------------

    cdef void release(self, int64_t message) noexcept nogil:
        """Let the sender begin with a message: all that it waited for has arrived."""
        cdef int64_t time = max(self.now, self.message_start[message])
        push(self, time + self.pair_delay[self.message_pair[message]], RELEASE, <int32_t>message)

    cdef void open_messages(self, int64_t gate) noexcept nogil:
        """Open a gate: release the messages behind it, and count the next gate down by one."""
        cdef int64_t i
        while gate >= 0:
            for i in range(self.gate_first[gate], self.gate_first[gate + 1]):
                self.release(self.gate_message[i])
            gate = self.gate_next[gate]
            if gate >= 0:
                self.gate_left[gate] -= 1
                if self.gate_left[gate]:
                    return

    cdef void offer(self, int32_t message) noexcept nogil:
        """Append a message to its queue pair, and a pair that was idle to its first link's ring."""
        cdef int32_t pair = self.message_pair[message]
        if self.last[pair] >= 0:
            self.message_next[self.last[pair]] = message
        elif self.recovering:
            self.lost.first(pair, message)
        self.last[pair] = message
        if self.recovering:
            self.lost.message_at[message] = self.offered[pair]
        self.offered[pair] += self.message_bytes[message]
        if self.current[pair] >= 0:
            return
        self.current[pair] = message
        self.left[pair] = self.message_bytes[message]
        self.join_ring(pair)

    cdef void join_ring(self, int32_t pair) noexcept nogil:
        """Put a queue pair that has something to send last into its first link's ring."""
        cdef int32_t link = self.first_link(pair), first = self.turn[link], before
        if self.ring_next[pair] >= 0:
            return
        if first < 0:
            self.turn[link] = self.ring_next[pair] = self.ring_before[pair] = pair
        else:  # last in the ring
            before = self.ring_before[first]
            self.ring_next[before] = self.ring_before[first] = pair
            self.ring_next[pair], self.ring_before[pair] = first, before
        self.send(link)

    cdef void leave_ring(self, int32_t pair, int32_t link) noexcept nogil:
        cdef int32_t after = self.ring_next[pair], before = self.ring_before[pair]
        self.ring_next[pair] = -1
        if after == pair:
            self.turn[link] = -1
            return
        self.ring_next[before], self.ring_before[after] = after, before
        if self.turn[link] == pair:
            self.turn[link] = after

    cdef int32_t first_link(self, int64_t pair) noexcept nogil:
        return self.path_link[self.path_first[self.pair_first[pair]]]

    # --- links ----------------------------------------------------------------------------------

    cdef void wake_at(self, int32_t link, int64_t time) noexcept nogil:
        if time < self.wake[link]:
            self.wake[link] = time
            push(self, time, WAKE, link)

    cdef void send(self, int32_t link) noexcept nogil:
        """Put the next packet on a link, if the link is free and there is one that may go."""
        cdef int32_t pair = -1, packet
        cdef int64_t soonest = INT64_MAX
        if self.paused[link]:
            return
        if self.busy[link] > self.now:
            self.wake_at(link, self.busy[link])
            return
        if self.turn[link] >= 0 and (self.head[link] < 0 or self.prefer_source[link]):
            pair = self.next_ready_pair(link, &soonest)
        if pair >= 0:
            self.prefer_source[link] = False
            packet = self.packet_of(pair, link)
            if packet < 0:
                return
        elif self.head[link] >= 0:
            self.prefer_source[link] = True
            packet = self.head[link]
            self.head[link] = self.packets[packet].next
            count_queue(self, link, -self.packets[packet].size)
        else:
            if soonest < INT64_MAX:
                self.wake_at(link, soonest)
            return
        self.start(link, packet)
        if self.head[link] >= 0 or self.turn[link] >= 0:
            self.wake_at(link, self.busy[link])

    cdef int32_t next_ready_pair(self, int32_t link, int64_t* soonest) noexcept nogil:
        """Return the first queue pair of a link's ring, from `turn` on, that may send now.

        If none may: -1, and `soonest` is when the rate of the first of them lets it. One round of
        the ring is enough for either, and only rates below the line's and full windows make it go
        beyond the first pair.
        """
        cdef int32_t first = self.turn[link], pair = first
        while True:
            if self.next_time[pair] > self.now:
                soonest[0] = min(soonest[0], self.next_time[pair])
            elif not self.windowed or self.under_way[pair] < self.window_now(pair):
                return pair
            elif self.recovering and self.lost.has_lost(self, pair):
                return pair
            pair = self.ring_next[pair]
            if pair == first:
                return -1

    cdef double window_now(self, int32_t pair) noexcept nogil:
        """Queue pair → its window now: bytes that may be sent and not acknowledged; 1 or more."""
        if self.congestion == DCTCP:
            return min(self.window[pair], self.telemetry.watches[pair].reference)
        if not self.scaling:
            return self.window[pair]
        return max(1.0, self.window[pair] * self.rates[pair].current / self.rates[pair].line)

    cdef int32_t packet_of(self, int32_t pair, int32_t link) noexcept nogil:
        """Make the next packet of a queue pair."""
        cdef int32_t number = new_packet(self), message = self.current[pair], size
        cdef int32_t path = <int32_t>self.pair_first[pair]
        cdef int64_t many = self.pair_first[pair + 1] - path, position = -1
        cdef Packet* packet
        cdef Rate* rate = &self.rates[pair]
        if number < 0:
            return -1
        if self.recovering == SELECTIVE_REPEAT:
            position = self.lost.next_lost(self, pair, &message, &size)
        if position < 0:
            position = self.sent_to[pair]
            size = <int32_t>min(<int64_t>self.mtu, self.left[pair])
        if many > 1:
            path += <int32_t>(random(self) % <uint64_t>many)
        packet = &self.packets[number]
        packet.message, packet.ingress, packet.marked = message, -1, False
        packet.path, packet.stamps, packet.refused = path, 0, False
        packet.position, packet.sent, packet.answered = position, self.now, 0
        packet.at = <int32_t>self.path_first[path]
        packet.end = <int32_t>self.path_first[path + 1]
        packet.size = size
        if self.begin_of[message] < 0:
            self.begin_of[message] = self.now
        if self.recovering:
            self.lost.sending(self, pair, position, size)
        self.turn[link] = self.ring_next[pair]
        if position == self.sent_to[pair]:
            self.advance(pair, size)
        if self.current[pair] < 0 and not (self.recovering and self.lost.has_lost(self, pair)):
            self.leave_ring(pair, link)
        # At the line's rate the link itself is what holds it back, but not below.
        self.next_time[pair] = self.now + <int64_t>(size / rate.current)
        if rate.limited and self.control.bytes:
            rate.sent += size
            if rate.sent >= self.control.bytes:
                rate.sent -= self.control.bytes
                rate.byte_steps += 1
                increase(rate, &self.control)
        return number

    cdef void advance(self, int32_t pair, int32_t size) noexcept nogil:
        """Count new bytes of a queue pair as sent."""
        self.left[pair] -= size
        self.sent_to[pair] += size
        self.under_way[pair] += size
        if self.left[pair]:
            return
        self.current[pair] = self.message_next[self.current[pair]]
        if self.current[pair] >= 0:
            self.left[pair] = self.message_bytes[self.current[pair]]

    cdef void start(self, int32_t link, int32_t number) noexcept nogil:
        """Put a packet on a link that is free."""
        cdef Packet* packet = &self.packets[number]
        cdef int64_t takes = <int64_t>ceil(packet.size / self.rate[link]), early = 0
        cdef int32_t after
        self.busy[link] = self.now + takes
        if self.stamping and self.marking[link] and not packet.answered:
            self.telemetry.stamp(self, link, number)
        self.n_bytes[link] += packet.size
        self.n_packets[link] += 1
        if packet.ingress >= 0:
            count_ingress(self, packet.ingress, -packet.size)
        packet.at += 1
        if packet.at == packet.end:
            push(self, self.now + takes + self.latency[link], DELIVER, number)
            return
        if self.cut_through:  # it may go on as soon as it then never has to wait for its own tail
            after = self.path_link[packet.at]
            early = min(takes, <int64_t>(packet.size / self.rate[after]))
        push(self, self.now + takes + self.latency[link] - early, ARRIVE, number)


include "memory.pxi"
include "queues.pxi"
include "receiver.pxi"
include "telemetry.pxi"
include "losses.pxi"
