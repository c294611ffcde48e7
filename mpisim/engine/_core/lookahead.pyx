# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Lookahead: a time before which no flow can arrive that hosted ranks have still to post.

Called when nothing here can move and no message is under way. `earliest` is when the next event of
all processes happens. What is not known yet follows from some event; so, unless times run
*backwards* (see `contended`), it lies at or after `earliest`.

Why the result is a bound. Every time of a run is a maximum of sums, of ends of kernels, what the
CPU spends, gaps and durations. The functions below walk these same expressions. They replace an end
that is known by itself, an end that is not by a bound of it, and leave terms out where nothing is
known of them; a maximum of lower bounds, or of fewer terms, is a lower bound. Each end is bounded:

- the next kernel of a stream (`end_bound`): its begin plus its duration, or, if it has posted, what
  is known of its communications (`post_bound`);
- a later kernel of the stream (`kernel_bound`): that, plus the durations and gaps in between. The
  duration of a flow is the one it has alone, and no flow is faster than alone;
- the CPU (`cpu_bound`): the row that it is blocked at, plus what it spends up to a later one.

Of each stream only the *front* counts, the first kernel that has not begun and may flow: what the
stream posts after that begins after its end. A communication waits for its last member, so members
are merged by MAX (`note_member`), and the earliest of the communications decides. Members on other
processes are left out: that only lowers a maximum. An EAGER post is the exception: what follows
does not wait for its end, so its ready time itself bounds all later posts of the stream.

Each step of the walk leads to an earlier row in program order, or from a stream to the kernel it is
at, so it ends; each bound of a stream or a CPU is worked out once a `round` and kept.

Callers are trusted: no index is checked.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free

from .common cimport BATCH, NO_TIME, Instruction, StreamEntry
from .contended_state cimport (
    RESOLVED, Communication, RankState, StreamState, at_row, end_for_rank, end_in, is_kernel,
    number_of,
)
from .events cimport Events
from .memory cimport resized
from .rank_states cimport RankStates


@cython.final
cdef class Lookahead:
    """Bounds on what the hosted ranks post next.

    Parameters
    ----------
    ranks : RankStates
    events : Events
        Of the same core; both are only read.
    """

    def __cinit__(self, RankStates ranks, Events events):
        self.ranks = ranks
        self.events = events

    def __dealloc__(self):
        free(self.touched)

    def safe_time(self, int64_t earliest):
        """Return a time before which no flow can arrive that ranks here have still to post.

        Parameters
        ----------
        earliest : int
            When the next event of all processes is, in ps.
        """
        cdef int64_t safe = INT64_MAX, i
        cdef RankStates ranks = self.ranks
        cdef Communication* state = self.events.state
        with nogil:
            self.earliest = earliest
            self.round += 1
            self.n_touched = 0
            for i in range(ranks.n):
                if ranks.state[i].left:
                    safe = min(safe, self.next_posts(&ranks.state[i]))
            for i in range(self.n_touched):
                safe = min(safe, state[self.touched[i]].bound)
            for i in range(self.n_touched):
                state[self.touched[i]].bound = NO_TIME
        return safe

    cdef int64_t next_posts(self, RankState* rank) noexcept nogil:
        """Note the next post of each stream; return the earliest EAGER one."""
        cdef int64_t safe = INT64_MAX, ready
        cdef int32_t s, row, first
        cdef StreamState* stream
        for s in range(rank.n_streams):
            stream = &rank.streams[s]
            self.find_front(rank, stream)
            if stream.front == stream.n_kernels:
                continue
            ready = self.begin_bound(rank, stream, stream.front)
            first = stream.kernels[stream.front]
            for row in range(first, first + rank.entries[first].n_rows):
                if self.ranks.route_of(rank, row) < 0:
                    continue
                if rank.instructions[row].eager:
                    safe = min(safe, ready)
                    continue
                self.note_member(
                    number_of(rank, row), ready + self.events.latency[rank.price[row]])
        return safe

    cdef void note_member(self, int64_t number, int64_t bound) noexcept nogil:
        """Merge when a member lets a flow arrive at the earliest."""
        cdef Communication* communication = &self.events.state[number]
        if self.n_touched == self.touched_room:
            self.touched_room = max(2 * self.touched_room, 256)
            self.touched = <int64_t*>resized(self.touched, self.touched_room * sizeof(int64_t))
        self.touched[self.n_touched] = number
        self.n_touched += 1
        communication.bound = max(communication.bound, bound)

    cdef void find_front(self, RankState* rank, StreamState* stream) noexcept nogil:
        """Find the first kernel of a stream that has not begun and may flow."""
        cdef int32_t row, first
        stream.front = max(stream.front, stream.done + stream.pending + stream.promised)
        while stream.front < stream.n_kernels:
            first = stream.kernels[stream.front]
            if not is_kernel(&rank.instructions[first]):
                for row in range(first, first + rank.entries[first].n_rows):
                    if self.ranks.route_of(rank, row) >= 0:
                        return
            stream.front += 1

    cdef int64_t begin_bound(
        self, RankState* rank, StreamState* stream, int64_t kernel
    ) noexcept nogil:
        """When a kernel of a stream, which has not begun, can begin at the earliest."""
        cdef int32_t row = stream.kernels[kernel], i
        cdef const Instruction* x = &rank.instructions[row]
        cdef int32_t first = rank.entries[row].first_wait
        cdef int64_t begin = at_row(&rank.times, row)[0], spent
        if rank.row <= row:  # not launched
            begin = self.cpu_bound(rank) + rank.clock[row] - rank.clock[rank.row]
            begin += x.launch - x.launch_cost
        if kernel > stream.done:  # what comes before it
            spent = stream.spent[kernel] - stream.spent[stream.done] - stream.span[kernel]
            begin = max(begin, self.end_bound(rank, stream) + spent)
        elif kernel:
            begin = max(begin, stream.end + x.gap)
        for i in range(first, first + x.n_waits):
            begin = max(begin, self.kernel_bound(rank, rank.waits[i]) + x.gap)
        return begin if self.ranks.backwards else max(begin, self.earliest)

    cdef int64_t end_bound(self, RankState* rank, StreamState* stream) noexcept nogil:
        """When the next kernel of a stream can end at the earliest."""
        cdef int64_t bound = NO_TIME
        cdef int32_t row = stream.kernels[stream.done], i
        if stream.round != self.round:
            if stream.pending:
                for i in range(row, row + rank.entries[row].n_rows):
                    bound = max(bound, self.post_bound(rank, i, row))
            else:
                bound = self.begin_bound(rank, stream, stream.done)
                bound += stream.span[stream.done]
            stream.bound = bound
            stream.round = self.round
        return stream.bound

    cdef int64_t post_bound(self, RankState* rank, int32_t row, int32_t kernel) noexcept nogil:
        """When a communication that this rank has posted can end at the earliest."""
        cdef int64_t duration = rank.duration[row], end
        cdef Communication* communication
        if rank.instructions[row].eager:
            return at_row(&rank.times, kernel)[0] + duration
        communication = &self.events.state[number_of(rank, row)]
        if communication.missing == RESOLVED:
            return end_for_rank(rank, row, communication)
        end = communication.time + duration
        if communication.missing > 0 and not self.ranks.backwards:
            return max(end, self.earliest + duration)  # a hosted member has still to post
        if self.ranks.route_of(rank, row) < 0:
            return end
        if communication.flow >= 0:  # active: from now on at its highest rate
            end = max(end, self.events.sharing.bound(communication.flow, self.earliest))
        return max(end, self.earliest)

    cdef int64_t cpu_bound(self, RankState* rank) noexcept nogil:
        """When the CPU can have done the row that it has come to at the earliest."""
        cdef const Instruction* x = &rank.instructions[rank.row]
        cdef const StreamEntry* entry = &rank.entries[rank.row]
        cdef int64_t bound = rank.host + x.host
        cdef int32_t i
        if rank.round != self.round:
            if x.opcode <= BATCH:  # blocked by the launch queue
                bound = max(bound, self.kernel_bound(rank, entry.queue))
            else:
                for i in range(entry.first_wait, entry.first_wait + x.n_waits):
                    bound = max(bound, self.kernel_bound(rank, rank.waits[i]))
            rank.bound = bound + x.launch_cost
            rank.round = self.round
        return rank.bound

    cdef int64_t kernel_bound(self, RankState* rank, int32_t kernel) noexcept nogil:
        """When a kernel, told by its first row, ends, or can end at the earliest."""
        cdef const StreamEntry* entry = &rank.entries[kernel]
        cdef StreamState* stream = &rank.streams[entry.stream]
        if stream.done > entry.index:
            return end_in(&rank.times, rank.entries, kernel)
        return self.end_bound(rank, stream) + stream.spent[entry.index] - stream.spent[stream.done]
