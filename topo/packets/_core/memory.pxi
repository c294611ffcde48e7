# Included by simulator.pyx.
# Memory of events and of packets, which grows as needed, and random numbers.


cdef void push(Simulator it, int64_t time, int32_t kind, int32_t item) noexcept nogil:
    cdef Event* grown
    cdef Event* event
    if it.n_events == it.room:
        it.room = max(1 << 12, 2 * it.room)
        grown = <Event*>realloc(it.events, it.room * sizeof(Event))
        if grown == NULL:
            it.failed = True
            it.room = it.n_events
            return
        it.events = grown
    event = &it.events[it.n_events]
    event.time, event.order, event.kind, event.item = time, it.pushed, kind, item
    it.pushed += 1
    it.n_work += kind != TIMER
    rise(it.events, it.n_events)
    it.n_events += 1


cdef int32_t new_packet(Simulator it) noexcept nogil:
    cdef int32_t number = it.unused, more
    cdef Packet* grown
    if number >= 0:
        it.unused = it.packets[number].next
        return number
    more = max(1 << 10, it.n_room)
    if it.n_room <= (1 << 29):  # numbers are int32
        grown = <Packet*>realloc(it.packets, (<int64_t>it.n_room + more) * sizeof(Packet))
    else:
        grown = NULL
    if grown == NULL:
        it.failed = True
        return -1
    it.packets = grown
    if not it.telemetry.have_room(<int64_t>it.n_room + more):
        it.failed = True
        return -1
    for number in range(it.n_room + more - 1, it.n_room, -1):
        it.packets[number].next = it.unused
        it.unused = number
    number = it.n_room
    it.n_room += more
    return number


cdef void forget(Simulator it, int32_t number) noexcept nogil:
    it.packets[number].next = it.unused
    it.unused = number


cdef uint64_t random(Simulator it) noexcept nogil:
    """The next number of splitmix64 (Steele et al., OOPSLA 2014)."""
    cdef uint64_t mixed
    it.random_state += <uint64_t>0x9E3779B97F4A7C15
    mixed = it.random_state
    mixed = (mixed ^ mixed >> 30) * <uint64_t>0xBF58476D1CE4E5B9
    mixed = (mixed ^ mixed >> 27) * <uint64_t>0x94D049BB133111EB
    return mixed ^ mixed >> 31


cdef double uniform(Simulator it) noexcept nogil:
    return (random(it) >> 11) * (1.0 / 9007199254740992.0)
