# Included by simulator.pyx.
# Switches that drop packets, and queue pairs that send them again.
#
# The bytes of a queue pair have positions, and its messages follow each other in one stream. Every
# packet that arrives is acknowledged by the position before which nothing is missing; one behind a
# gap says so (`refused`).
#
# Go-back-N, as InfiniBand's reliable connections: the receiver throws away what is behind a gap, and
# says so once for each gap; the sender then sends everything from the gap on again. Selective repeat,
# as IRN (Mittal et al., SIGCOMM 2018): the receiver keeps it, and the sender sends again what has not
# been acknowledged while something behind it has, each packet once until all that was under way when
# the first gap was seen has arrived (a recovery). What is lost without anything behind it, or twice,
# is found when nothing new has been acknowledged for `pair_timeout`: then all that has not been is
# sent again.
#
# 1. unanswered <= sent_to <= offered; what is under way is between the first two.
# 2. Whenever anything is under way an EXPIRE event stands (`expiring`), so that no loss is forgotten.
# 3. A queue pair is in its ring exactly while it has something to send, for the first time or again.

cdef enum:
    ARRIVED = 1  # at the receiver
    KNOWN = 2  # to the sender


cdef class Losses:
    """State of `Simulator` where switches drop packets; empty where they do not."""

    cdef int32_t kind
    cdef double share
    cdef readonly object link_drops, pair_resent, pair_timeouts
    cdef int64_t[::1] drops, resent, timeouts
    # Of queue pairs, positions. `unanswered`: before it all has been acknowledged; `furthest`: of
    # what was ever sent; `expected`: before it all has arrived; `refused_at`: the gap that was
    # told last; `recover_to`: which ends a recovery; `known_to`: of the last packet that the
    # sender knows to have arrived; `resend`: from where on it looks for what has not. `deadline`:
    # when what is under way counts as lost.
    cdef int64_t[::1] unanswered, furthest, expected, refused_at, recover_to, known_to, resend
    cdef int64_t[::1] deadline
    cdef uint8_t[::1] in_recovery, expiring
    # The messages that hold `unanswered`, `expected` and `resend`, or the ones before them.
    cdef int32_t[::1] unanswered_message, expected_message, resend_message
    # Of messages: the position of their first byte, and the number of their first packet.
    cdef int64_t[::1] message_at, first_packet
    cdef uint8_t[::1] state  # of packets: ARRIVED, KNOWN

    def __cinit__(self, int32_t kind, settings, given):
        cdef int64_t k = len(given.cap) if kind else 0, m = len(given.message_bytes) if kind else 0
        self.kind, self.share = kind, settings.drop_share
        self.link_drops = np.zeros(len(given.rate), np.int64)
        self.pair_resent = np.zeros(len(given.cap), np.int64)
        self.pair_timeouts = np.zeros(len(given.cap), np.int64)
        self.drops, self.resent, self.timeouts = (
            self.link_drops, self.pair_resent, self.pair_timeouts)
        self.unanswered, self.furthest = np.zeros(k, np.int64), np.zeros(k, np.int64)
        self.expected, self.refused_at = np.zeros(k, np.int64), np.full(k, -1, np.int64)
        self.recover_to, self.known_to = np.zeros(k, np.int64), np.zeros(k, np.int64)
        self.resend, self.deadline = np.zeros(k, np.int64), np.zeros(k, np.int64)
        self.in_recovery, self.expiring = np.zeros(k, np.uint8), np.zeros(k, np.uint8)
        self.unanswered_message = np.full(k, -1, np.int32)
        self.expected_message = np.full(k, -1, np.int32)
        self.resend_message = np.full(k, -1, np.int32)
        self.message_at = np.zeros(m, np.int64)
        many = -(-given.message_bytes[:m] // settings.mtu) * (kind == SELECTIVE_REPEAT)
        self.first_packet = np.concatenate([[0], np.cumsum(many)]).astype(np.int64)
        self.state = np.zeros(int(many.sum()), np.uint8)

    cdef void first(self, int32_t pair, int32_t message) noexcept nogil:
        """Begin a queue pair's stream with a message."""
        self.unanswered_message[pair] = self.expected_message[pair] = message
        self.resend_message[pair] = message

    # --- switches -------------------------------------------------------------------------------

    cdef bint has_no_room(self, Simulator it, int32_t link, int32_t node, int32_t size) noexcept nogil:
        """Return whether a packet is more than its egress queue may take of its switch's buffer."""
        cdef double free_bytes = it.buffer - it.used[node]
        return size > free_bytes or it.queued[link] + size > self.share * free_bytes

    # --- receivers ------------------------------------------------------------------------------

    cdef bint take(
            self, Simulator it, int32_t pair, Packet* packet, bint* answered) noexcept nogil:
        """Return whether a packet that has arrived is a new one that the receiver keeps."""
        cdef bint taken
        cdef int64_t number
        if self.kind == GO_BACK_N:
            taken = packet.position == self.expected[pair]
            if taken:
                self.expected[pair] += packet.size
            elif packet.position > self.expected[pair]:
                packet.refused = True
                answered[0] = self.refused_at[pair] != self.expected[pair]
                self.refused_at[pair] = self.expected[pair]
        else:
            number = self.number_of(it, packet.message, packet.position)
            taken = not self.state[number] & ARRIVED
            self.state[number] |= ARRIVED
            self.move_expected(it, pair)
            packet.refused = packet.position > self.expected[pair]
        packet.answer = self.expected[pair]
        return taken

    cdef void move_expected(self, Simulator it, int32_t pair) noexcept nogil:
        cdef int64_t at = self.expected[pair], end
        cdef int32_t message = self.expected_message[pair]
        while True:
            end = self.message_at[message] + it.message_bytes[message]
            if at == end:
                if it.message_next[message] < 0:
                    break
                message = it.message_next[message]
            elif self.state[self.number_of(it, message, at)] & ARRIVED:
                at = min(at + it.mtu, end)
            else:
                break
        self.expected[pair], self.expected_message[pair] = at, message

    cdef int64_t number_of(self, Simulator it, int32_t message, int64_t position) noexcept nogil:
        return self.first_packet[message] + (position - self.message_at[message]) // it.mtu

    # --- senders --------------------------------------------------------------------------------

    cdef void sending(self, Simulator it, int32_t pair, int64_t position, int32_t size) noexcept nogil:
        """Count a packet that its sender puts on the link, and let it be missed."""
        if position < self.furthest[pair]:
            self.resent[pair] += 1
        else:
            self.furthest[pair] = position + size
        if not it.under_way[pair]:
            self.deadline[pair] = it.now + it.pair_timeout[pair]
        if not self.expiring[pair]:
            self.expiring[pair] = True
            push(it, self.deadline[pair], EXPIRE, pair)

    cdef void answer(self, Simulator it, int32_t pair, Packet* packet) noexcept nogil:
        """Take an acknowledgement: what has arrived, and whether something is missing."""
        if self.kind == SELECTIVE_REPEAT:
            self.state[self.number_of(it, packet.message, packet.position)] |= KNOWN
            self.known_to[pair] = max(self.known_to[pair], packet.position)
        if packet.answer > self.unanswered[pair]:
            self.unanswered[pair] = packet.answer
            self.deadline[pair] = it.now + it.pair_timeout[pair]
        if self.kind == GO_BACK_N:
            # Beyond what is to be sent next if that was taken for lost too early.
            if packet.refused or packet.answer > it.sent_to[pair]:
                self.go_back(it, pair)
        elif self.in_recovery[pair]:
            self.in_recovery[pair] = self.unanswered[pair] < self.recover_to[pair]
        elif packet.refused:
            self.recover(it, pair)
        it.under_way[pair] = it.sent_to[pair] - self.unanswered[pair]
        self.enter_or_leave(it, pair)

    cdef void expire(self, Simulator it, int32_t pair) noexcept nogil:
        """Send again what is under way, if nothing new has been acknowledged for too long."""
        self.expiring[pair] = self.unanswered[pair] < it.sent_to[pair]
        if not self.expiring[pair]:
            return
        if it.now < self.deadline[pair]:
            push(it, self.deadline[pair], EXPIRE, pair)
            return
        self.timeouts[pair] += 1
        self.deadline[pair] = it.now + it.pair_timeout[pair]
        push(it, self.deadline[pair], EXPIRE, pair)
        if self.kind == GO_BACK_N:
            self.go_back(it, pair)
            it.under_way[pair] = 0
        else:
            self.recover(it, pair)
            self.known_to[pair] = it.sent_to[pair]
        self.enter_or_leave(it, pair)
        it.send(it.first_link(pair))

    cdef void go_back(self, Simulator it, int32_t pair) noexcept nogil:
        """Let a queue pair go on from the first byte that has not been acknowledged."""
        cdef int32_t message = self.message_of_unanswered(it, pair)
        it.sent_to[pair] = self.unanswered[pair]
        if self.unanswered[pair] == it.offered[pair]:
            it.current[pair] = -1
            return
        it.current[pair] = message
        it.left[pair] = (
            self.message_at[message] + it.message_bytes[message] - self.unanswered[pair])

    cdef void enter_or_leave(self, Simulator it, int32_t pair) noexcept nogil:
        """Let a queue pair be in its ring if it has something to send, and else not."""
        if it.current[pair] >= 0 or self.has_lost(it, pair):
            it.join_ring(pair)
        elif it.ring_next[pair] >= 0:
            it.leave_ring(pair, it.first_link(pair))

    cdef void recover(self, Simulator it, int32_t pair) noexcept nogil:
        """Begin a recovery: look for what is lost from the first byte not acknowledged on."""
        self.in_recovery[pair], self.recover_to[pair] = True, it.sent_to[pair]
        self.resend[pair] = self.unanswered[pair]
        self.resend_message[pair] = self.message_of_unanswered(it, pair)

    cdef int32_t message_of_unanswered(self, Simulator it, int32_t pair) noexcept nogil:
        cdef int32_t message = self.unanswered_message[pair]
        while it.message_next[message] >= 0 and (
                self.unanswered[pair] >= self.message_at[message] + it.message_bytes[message]):
            message = it.message_next[message]
        self.unanswered_message[pair] = message
        return message

    cdef bint has_lost(self, Simulator it, int32_t pair) noexcept nogil:
        """Return whether something is to be sent again; leaves `resend` at it."""
        cdef int64_t at = self.resend[pair], end
        cdef int32_t message
        if self.kind != SELECTIVE_REPEAT or not self.in_recovery[pair]:
            return False
        message = self.resend_message[pair]
        while at < self.known_to[pair]:
            end = self.message_at[message] + it.message_bytes[message]
            if at == end:
                message = it.message_next[message]
            elif self.state[self.number_of(it, message, at)] & KNOWN:
                at = min(at + it.mtu, end)
            else:
                break
        self.resend[pair], self.resend_message[pair] = at, message
        return at < self.known_to[pair]

    cdef int64_t next_lost(
            self, Simulator it, int32_t pair, int32_t* message, int32_t* size) noexcept nogil:
        """Return the position of the next packet to be sent again; -1 for none."""
        cdef int64_t at
        if not self.has_lost(it, pair):
            return -1
        at, message[0] = self.resend[pair], self.resend_message[pair]
        size[0] = <int32_t>min(
            <int64_t>it.mtu, self.message_at[message[0]] + it.message_bytes[message[0]] - at)
        self.resend[pair] = at + size[0]
        return at
