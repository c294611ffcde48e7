# Included by simulator.pyx.
# The reaction point of DCQCN (Zhu et al., SIGCOMM 2015, section 3): what a sender's rate does.

cdef struct Control:  # parameters, rates in bytes per ps
    double gain
    double additive
    double hyper
    double least
    int64_t bytes  # between two steps of the byte counter; 0: it does not count
    int64_t timer  # ps
    int64_t alpha_timer
    int64_t feedback  # least time between two notifications of a receiver
    int32_t fast  # steps of fast recovery
    bint clamp  # a cut before the first step after another lowers the target, too


cdef struct Rate:  # of a queue pair
    double current
    double target
    double line
    double scale  # of increments: the line's rate over that which they hold for
    double least  # below which no rate is cut
    double alpha
    int64_t last_cut  # ps; -1: none yet
    int64_t sent  # since the byte counter's last step
    int32_t byte_steps
    int32_t timer_steps
    bint limited


cdef inline void reset(Rate* rate, double line, double scale, double least) noexcept nogil:
    rate.current = rate.target = rate.line = line
    rate.scale = scale
    rate.least = least * scale
    rate.alpha = 1.0
    rate.sent = 0
    rate.last_cut = -1
    rate.byte_steps = rate.timer_steps = 0
    rate.limited = False


cdef inline void cut(Rate* rate, const Control* control, int64_t now) noexcept nogil:
    """A congestion notification has come: equations 1 and 2 of the paper."""
    if rate.last_cut >= 0:
        rate.alpha *= pow(1 - control.gain, (now - rate.last_cut) // control.alpha_timer)
    if control.clamp or rate.byte_steps or rate.timer_steps or not rate.limited:
        rate.target = rate.current
    rate.current = max(rate.least, rate.current * (1 - rate.alpha / 2))
    rate.alpha = (1 - control.gain) * rate.alpha + control.gain
    rate.last_cut = now
    rate.sent = 0
    rate.byte_steps = rate.timer_steps = 0
    rate.limited = True


cdef inline void increase(Rate* rate, const Control* control) noexcept nogil:
    """The timer or the byte counter has made a step: fast recovery, additive or hyper increase."""
    cdef int32_t most = max(rate.byte_steps, rate.timer_steps), beyond
    if control.bytes:
        beyond = min(rate.byte_steps, rate.timer_steps) - control.fast + 1
    else:  # the timer alone: one additive step, then hyper increase by one increment at a time
        beyond = most > control.fast
    if beyond > 0:
        rate.target += beyond * control.hyper * rate.scale
    elif most >= control.fast:
        rate.target += control.additive * rate.scale
    rate.target = min(rate.target, rate.line)
    rate.current = (rate.target + rate.current) / 2
    if rate.current >= rate.line:
        rate.current = rate.line
        rate.limited = False
