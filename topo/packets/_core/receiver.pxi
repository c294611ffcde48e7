# Included by simulator.pyx.
# Packets at their destination, the messages that they complete, and acknowledgements.


cdef void deliver(Simulator it, int32_t number) noexcept nogil:
    """Take a packet at its destination, and acknowledge it where senders look at that."""
    cdef Packet* packet = &it.packets[number]
    cdef int32_t pair = it.message_pair[packet.message]
    cdef bint taken = True, answered = it.acknowledging
    if packet.answered:
        acknowledge(it, number)
        return
    if packet.marked and it.congestion == DCQCN and it.now >= it.next_feedback[pair]:
        it.next_feedback[pair] = it.now + it.control.feedback
        push(it, it.now + it.pair_return[pair], NOTIFY, pair)
    if it.recovering:
        taken = it.lost.take(it, pair, packet, &answered)
    if taken:
        count_down(it, packet.message, packet.size)
    if answered:
        send_back(it, number)
    else:
        forget(it, number)


cdef void send_back(Simulator it, int32_t number) noexcept nogil:
    """Acknowledge a packet: by itself over the links back, or after their latencies alone."""
    cdef Packet* packet = &it.packets[number]
    cdef int32_t pair = it.message_pair[packet.message]
    packet.at = <int32_t>it.ack_first[packet.path]
    packet.end = <int32_t>it.ack_first[packet.path + 1]
    if packet.at == packet.end:
        push(it, it.now + it.pair_return[pair], ACKNOWLEDGE, number)
        return
    packet.answered, packet.size, packet.ingress = packet.size, it.ack_size, -1
    push(it, it.now + it.ack_delay[packet.path], ANSWER, number)


cdef void count_down(Simulator it, int32_t message, int32_t size) noexcept nogil:
    """Count bytes of a message that have arrived; the last ones end it."""
    cdef int32_t gate
    it.to_come[message] -= size
    if it.to_come[message]:
        return
    it.end_of[message] = it.now
    it.done += 1
    gate = it.message_opens[message]
    if gate >= 0:
        it.gate_left[gate] -= 1
        if not it.gate_left[gate]:
            it.open_messages(gate)


cdef void acknowledge(Simulator it, int32_t number) noexcept nogil:
    """Take a packet off what its queue pair has under way, and let the pair go on."""
    cdef Packet* packet = &it.packets[number]
    cdef int32_t pair = it.message_pair[packet.message]
    if packet.answered:
        packet.size = packet.answered
    if not it.recovering:
        packet.answer = packet.position + packet.size
        it.under_way[pair] -= packet.size
    else:
        it.lost.answer(it, pair, packet)
    if it.congestion > DCQCN:
        it.telemetry.watch(it, pair, number)
    forget(it, number)
    if it.ring_next[pair] >= 0:
        it.send(it.first_link(pair))
