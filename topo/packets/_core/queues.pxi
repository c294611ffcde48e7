# Included by simulator.pyx.
# Packets at a switch, or behind a sender's NIC: where they go on, marks, queues, and pauses of the
# links that they come by.


cdef void arrive(Simulator it, int32_t number) noexcept nogil:
    """Queue a packet for its next link: it has arrived at the node before it."""
    cdef Packet* packet = &it.packets[number]
    cdef int32_t link
    if it.adaptive and not packet.answered:
        choose_path(it, packet)
    link = it.path_link[packet.at]
    packet.ingress = it.path_link[packet.at - 1]
    if packet.answered:
        count_ingress(it, packet.ingress, packet.size)
        enqueue(it, number, link)
        return
    if it.recovering and it.marking[link] and it.lost.has_no_room(
            it, link, it.target[packet.ingress], packet.size):
        it.lost.drops[link] += 1
        forget(it, number)
        return
    if it.marking[link] and it.queued[link] > it.low[link] and not packet.marked:
        if it.queued[link] > it.high[link] or uniform(it) < it.most_marked * (
                it.queued[link] - it.low[link]) / (it.high[link] - it.low[link]):
            packet.marked = True
            it.n_marks[link] += 1
    count_ingress(it, packet.ingress, packet.size)
    enqueue(it, number, link)


cdef void enqueue(Simulator it, int32_t number, int32_t link) noexcept nogil:
    cdef Packet* packet = &it.packets[number]
    packet.next = -1
    if it.head[link] < 0:
        it.head[link] = number
    else:
        it.packets[it.tail[link]].next = number
    it.tail[link] = number
    count_queue(it, link, packet.size)
    it.send(link)


cdef void choose_path(Simulator it, Packet* packet) noexcept nogil:
    """Let a packet go on by the path whose next link has the least to send before it.

    Of its pair's paths all are equally long, so that those that lead through the node where it
    is have as many links behind it. Where several are alike chance decides.
    """
    cdef int32_t pair = it.message_pair[packet.message], link, i, path, best = packet.path
    cdef int32_t first = <int32_t>it.pair_first[pair]
    cdef int32_t many = <int32_t>(it.pair_first[pair + 1] - first), offset
    cdef int64_t hop = packet.at - it.path_first[packet.path]
    cdef int32_t here = it.target[it.path_link[packet.at - 1]]
    cdef double waits, least = -1
    if many == 1:
        return
    offset = <int32_t>(random(it) % <uint64_t>many)
    for i in range(many):
        path = first + (i + offset) % many
        if it.target[it.path_link[it.path_first[path] + hop - 1]] != here:
            continue
        link = it.path_link[it.path_first[path] + hop]
        waits = it.queued[link] / it.rate[link] + max(0, it.busy[link] - it.now)
        if least < 0 or waits < least:
            best, least = path, waits
    packet.path = best
    packet.at = <int32_t>(it.path_first[best] + hop)
    packet.end = <int32_t>it.path_first[best + 1]


cdef void count_queue(Simulator it, int32_t link, int64_t bytes) noexcept nogil:
    # Bytes times the time of leaving less that of coming: what the mean follows from.
    it.area[link] -= <double>bytes * it.now
    it.queued[link] += bytes
    if it.queued[link] > it.most[link]:
        it.most[link] = it.queued[link]


cdef void count_ingress(Simulator it, int32_t link, int64_t bytes) noexcept nogil:
    """Change what waits of a link at its end by some bytes: pause the link, or resume it."""
    cdef int32_t node = it.target[link]
    cdef double allowed
    it.ingress[link] += bytes
    it.used[node] += bytes
    if it.used[node] > it.most_used[node]:
        it.most_used[node] = it.used[node]
    if not it.pausing:
        return
    allowed = max(0.0, it.share * (it.buffer - it.used[node]))
    if bytes > 0 and not it.asked[link] and it.ingress[link] > allowed:
        it.asked[link] = True
        push(it, it.now + it.latency[link], PAUSE, link)
    elif bytes < 0 and it.asked[link] and (
            not it.ingress[link] or it.ingress[link] + it.resume_offset <= allowed):
        it.asked[link] = False
        push(it, it.now + it.latency[link], RESUME, link)
