# Included by simulator.pyx.
# Senders that look at every acknowledgement: HPCC (Li et al., SIGCOMM 2019, algorithm 1) by what the
# switches of its way wrote into the packet, TIMELY (Mittal et al., SIGCOMM 2015, algorithm 1) by how
# long the packet was under way. Both change their reference once in a round trip, as in the ns-3 of
# HPCC's authors (rdma-hw.cc of alibaba-edu/High-Precision-Congestion-Control).

cdef struct Stamp:  # of one switch's port, when a packet left by it
    int64_t time
    int64_t bytes  # that had left before
    int64_t queued  # behind the packet


cdef struct Watch:  # of a queue pair
    double reference  # rate that the next ones are made of: Wc over the round trip, in HPCC
    double load  # HPCC: U, what is under way over what fills the fullest link
    double slope  # TIMELY: filtered difference of two round trips, ps
    int64_t before  # TIMELY: the last round trip, ps
    int64_t update_at  # an acknowledgement beyond this position changes the reference; 0: the first
    int32_t stage  # increments since the last decrease


cdef struct Watching:  # parameters
    double target  # HPCC: eta
    int32_t stages  # HPCC: maxStage
    double filter  # TIMELY: alpha
    double decrease  # TIMELY: beta
    int64_t low  # TIMELY: round trips below it are not looked at, ps
    int64_t high
    int64_t least_trip


cdef inline double hpcc_rate(
        Watch* watch, const Watching* given, const Control* control, const Rate* rate,
        double load, int64_t tau, int64_t trip, bint whole) noexcept nogil:
    """Load of the fullest link in the last `tau` ps → the sender's new rate."""
    cdef double share = min(tau, trip) / <double>trip, over, found
    cdef int32_t stage
    watch.load = (1 - share) * watch.load + share * load
    over = watch.load / given.target
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
