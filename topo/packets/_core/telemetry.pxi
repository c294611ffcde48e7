# Included by simulator.pyx.
# Senders that look at every acknowledgement: HPCC (Li et al., SIGCOMM 2019, algorithm 1) by what
# the switches of its way wrote into the packet, or, with PINT (Ben Basat et al., SIGCOMM 2020), by
# the largest load that one of them had, in a few bits; TIMELY (Mittal et al., SIGCOMM 2015,
# algorithm 1) by how long the packet was under way; DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257)
# by whether it was marked. All but the last change their reference once in a round trip, as in the
# ns-3 of HPCC's authors (rdma-hw.cc of alibaba-edu/High-Precision-Congestion-Control).

cdef struct Stamp:  # of one switch's port, when a packet left by it
    int64_t time
    int64_t bytes  # that had left before
    int64_t queued  # behind the packet


cdef struct Port:  # of a switch, with PINT
    int64_t time  # when the last packet left by it
    int64_t size  # of that packet
    double load  # what left and waits, over what fills the port: filtered over a round trip


cdef struct Watch:  # of a queue pair
    double reference  # rate that the next ones are made of: Wc over the round trip, in HPCC;
    # DCTCP: the window, bytes
    double load  # HPCC: U, what is under way over what fills the fullest link; DCTCP: alpha
    double slope  # TIMELY: filtered difference of two round trips, ps
    int64_t before  # TIMELY: the last round trip, ps
    int64_t update_at  # an acknowledgement beyond this position changes the reference; 0: the first
    int32_t stage  # increments since the last decrease; DCTCP: 1 once the first window has grown
    int64_t acknowledged, marked  # DCTCP: bytes of this round trip
    int64_t cut_until  # DCTCP: acknowledgements up to this position are of packets before the cut


cdef struct Watching:  # parameters
    double target  # HPCC: eta
    int32_t stages  # HPCC: maxStage
    double base  # PINT: codes are powers of it
    double unit  # PINT: the least load that has a code
    double share  # PINT: of packets that tell a sender anything
    double filter  # TIMELY: alpha
    double decrease  # TIMELY: beta
    int64_t low  # TIMELY: round trips below it are not looked at, ps
    int64_t high
    int64_t least_trip
    double gain  # DCTCP: g
    int64_t first  # DCTCP: packets of the first window


cdef class Telemetry:
    """State of `Simulator` where senders look at acknowledgements; empty where they do not."""

    cdef Watching given
    cdef const int64_t[::1] trip  # of queue pairs: a round trip without queues
    cdef Watch* watches
    cdef Stamp* last_stamps  # `n_stamps` of each queue pair: of the last acknowledgement
    cdef Stamp* stamps  # `n_stamps` of each packet
    cdef int32_t n_stamps  # 0 without HPCC
    cdef Port* ports  # of links; with PINT
    cdef double longest  # PINT: the longest round trip without queues, ps

    def __cinit__(self, int32_t congestion, settings, given):
        cdef int64_t k = max(len(given.cap), 1)
        self.given = Watching(
            settings.target, settings.stages, settings.base, settings.unit, settings.share,
            settings.filter, settings.decrease, settings.low,
            settings.high, settings.least_trip, settings.gain, settings.first)
        self.trip = given.pair_trip
        self.watches = <Watch*>calloc(k, sizeof(Watch))
        if congestion == HPCC:
            self.n_stamps = max(1, int(np.diff(given.path_first).max(initial=1)))
            self.last_stamps = <Stamp*>calloc(k * self.n_stamps, sizeof(Stamp))
        if congestion == HPCC_PINT:
            self.longest = max(1, given.pair_trip.max(initial=1))
            self.ports = <Port*>calloc(max(len(given.rate), 1), sizeof(Port))
            if self.ports == NULL:
                raise MemoryError
        if self.watches == NULL or (self.n_stamps and self.last_stamps == NULL):
            raise MemoryError

    def __dealloc__(self):
        free(self.watches)
        free(self.stamps)
        free(self.last_stamps)
        free(self.ports)

    cdef void begin(self, Simulator it, int32_t pair, double line) noexcept nogil:
        """Let a queue pair begin at its line's rate; with DCTCP with its first window."""
        self.watches[pair].reference = line
        if it.congestion == DCTCP:
            self.watches[pair].reference = <double>self.given.first * it.mtu
            self.watches[pair].load = 1

    cdef bint have_room(self, int64_t n_packets) noexcept nogil:
        """Return whether there is memory for the stamps of so many packets, and take it."""
        cdef Stamp* stamps
        if not self.n_stamps:
            return True
        stamps = <Stamp*>realloc(self.stamps, n_packets * self.n_stamps * sizeof(Stamp))
        if stamps == NULL:
            return False
        self.stamps = stamps
        return True

    cdef void stamp(self, Simulator it, int32_t link, int32_t number) noexcept nogil:
        """Write into a packet what HPCC's switches do as it leaves (INT, PINT)."""
        cdef Packet* packet = &it.packets[number]
        cdef Stamp* stamp
        if it.congestion == HPCC_PINT:
            packet.stamps = max(packet.stamps, self.encoded(it, self.load_of(it, link, packet)))
            return
        stamp = &self.stamps[<int64_t>number * self.n_stamps + packet.stamps]
        stamp.time, stamp.bytes = it.now, it.n_bytes[link]
        stamp.queued = it.queued[link]
        packet.stamps += 1

    cdef double load_of(self, Simulator it, int32_t link, const Packet* packet) noexcept nogil:
        """Take a packet that leaves by a port into its load (SwitchNotifyDequeue there)."""
        cdef Port* port = &self.ports[link]
        cdef double passed = min(<double>(it.now - port.time), self.longest)
        cdef double filled = it.rate[link] * self.longest  # bytes in a round trip
        port.load = (
            port.load * (1 - passed / self.longest) + port.size / filled
            + it.queued[link] / filled * passed / self.longest)
        port.time, port.size = it.now, packet.size
        return port.load

    cdef int32_t encoded(self, Simulator it, double load) noexcept nogil:
        """Load → exponent, the one above or below by chance, so that the mean of many is right."""
        cdef double units = max(1.0, ceil(load / self.given.unit))
        cdef double below = floor(log(units) / log(self.given.base))
        cdef double least = pow(self.given.base, below)
        return <int32_t>below + (uniform(it) < (units - least) / (least * (self.given.base - 1)))

    cdef void watch(self, Simulator it, int32_t pair, int32_t number) noexcept nogil:
        """Let a sender learn from an acknowledgement; TIMELY does so once a round trip."""
        cdef Packet* packet = &it.packets[number]
        cdef Watch* watch = &self.watches[pair]
        cdef Rate* rate = &it.rates[pair]
        cdef bint whole = packet.answer > watch.update_at, first = watch.update_at == 0
        cdef int64_t trip = it.now - packet.sent, tau = 0
        cdef double load, share
        if it.congestion == DCTCP:
            if dctcp_window(watch, &self.given, packet, it.mtu, whole, it.sent_to[pair]):
                it.cuts_of[pair] += 1
        elif it.congestion == TIMELY:
            if whole and not first:
                rate.current = timely_rate(watch, &self.given, &it.control, rate, trip)
            elif first:
                watch.before = trip
        elif it.congestion == HPCC_PINT:
            if self.given.share < 1 and uniform(it) >= self.given.share:
                return
            watch.load = self.given.unit * pow(self.given.base, packet.stamps)
            if not first:
                rate.current = hpcc_rate(watch, &self.given, &it.control, rate, whole)
        else:
            load = self.fullest(it, pair, number, &tau)
            if tau and not first:
                share = min(tau, self.trip[pair]) / <double>self.trip[pair]
                watch.load = (1 - share) * watch.load + share * load
                rate.current = hpcc_rate(watch, &self.given, &it.control, rate, whole)
        if whole:
            watch.update_at = it.sent_to[pair]

    cdef double fullest(
            self, Simulator it, int32_t pair, int32_t number, int64_t* tau) noexcept nogil:
        """Acknowledgement → load of the fullest port since the one before, and that time."""
        cdef Packet* packet = &it.packets[number]
        cdef Stamp* new = &self.stamps[<int64_t>number * self.n_stamps]
        cdef Stamp* old = &self.last_stamps[<int64_t>pair * self.n_stamps]
        cdef int64_t link = it.path_first[packet.path], i = 0, passed
        cdef double rate, load, most = 0
        while i < packet.stamps:
            if it.marking[it.path_link[link]]:
                rate, passed = it.rate[it.path_link[link]], new[i].time - old[i].time
                if passed > 0:
                    load = (new[i].bytes - old[i].bytes) / (passed * rate) + min(
                        new[i].queued, old[i].queued) / (rate * self.trip[pair])
                    if load > most or not tau[0]:
                        most, tau[0] = load, passed
                    old[i] = new[i]
                i += 1
            link += 1
        return most


cdef inline double hpcc_rate(
        Watch* watch, const Watching* given, const Control* control, const Rate* rate,
        bint whole) noexcept nogil:
    """Load of the fullest link → the sender's new rate."""
    cdef double over = watch.load / given.target, found
    cdef int32_t stage
    if over >= 1 or watch.stage >= given.stages:
        found, stage = watch.reference / over + control.additive * rate.scale, 0
    else:
        found, stage = watch.reference + control.additive * rate.scale, watch.stage + 1
    found = max(rate.least, min(found, rate.line))
    if whole:
        watch.reference, watch.stage = found, stage
    return found


cdef inline double timely_rate(
        Watch* watch, const Watching* given, const Control* control, const Rate* rate,
        int64_t trip) noexcept nogil:
    """A round trip → the sender's new rate."""
    cdef double change = <double>(trip - watch.before), found = watch.reference, gradient
    watch.slope = (1 - given.filter) * watch.slope + given.filter * change
    gradient = watch.slope / given.least_trip
    if trip < given.low or (trip <= given.high and gradient <= 0):
        found += (control.hyper if watch.stage >= 5 else control.additive) * rate.scale
        watch.stage += 1
    else:
        watch.stage = 0
        if trip > given.high:
            found *= 1 - given.decrease * (1 - given.high / <double>trip)
        else:
            found *= max(0.0, 1 - given.decrease * gradient)
    watch.before = trip
    watch.reference = max(rate.least, min(found, rate.line))
    return watch.reference


cdef inline bint dctcp_window(
        Watch* watch, const Watching* given, const Packet* packet, int32_t mtu, bint whole,
        int64_t sent_to) noexcept nogil:
    """An acknowledgement → the sender's new window, and whether it was cut."""
    watch.acknowledged += packet.size
    if packet.marked:
        watch.marked += packet.size
    if whole:
        if watch.update_at:
            watch.load += given.gain * (watch.marked / <double>watch.acknowledged - watch.load)
        watch.acknowledged = watch.marked = 0
    if packet.answer <= watch.cut_until:  # sent before the last cut: it says nothing of this window
        return False
    if packet.marked:
        watch.reference = max(<double>mtu, watch.reference * (1 - watch.load / 2))
        watch.cut_until = sent_to
        watch.stage = 1
        return True
    if watch.stage:
        watch.reference += <double>mtu * packet.size / watch.reference  # a packet a round trip
    else:
        watch.reference += packet.size  # twice as much a round trip, until the first mark
    return False
