# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""How far kernels get beside communications, and communications beside kernels.

Each kernel and each communication is worked out by itself, in one order, so its result does not
depend on the others passed beside it. Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport int64_t, uint64_t

cdef uint64_t GOLDEN = <uint64_t>0x9E3779B97F4A7C15

cdef int64_t EXACT = <int64_t>1 << 49
"""Of shorter times, in ps, errors of 2**-53 never show when they are rounded."""

cdef enum:
    LEAST_KNOWN = 1 << 10  # factors that there is room for at first: enough for most plans
    MAX_KNOWN = 1 << 15  # factors that are kept
    PLACES = 4  # of the hash table, for each factor


cdef struct Interval:  # its beginning, and the load from there on
    int64_t time
    int64_t taken
    int64_t bandwidth
    int64_t which
    int64_t following  # the next interval with load from here on; n: none


cdef inline uint64_t mixed(uint64_t word) noexcept nogil:
    word = (word ^ (word >> 29)) * GOLDEN
    return word ^ (word >> 32)


cdef inline uint64_t hashed(const int64_t* key) noexcept nogil:
    """Return the hash of a kernel, multiprocessors taken, bandwidth and communication."""
    return mixed(
        mixed(mixed(mixed(<uint64_t>key[0]) + <uint64_t>key[1]) + <uint64_t>key[2])
        + <uint64_t>key[3]
    )


cdef inline Py_ssize_t cross_unloaded(
    Py_ssize_t at, int64_t begin, double* spent, double* left, const Interval* of, Py_ssize_t n
) noexcept nogil:
    """Take a kernel over intervals without load; return the next interval with load, -2 if it ends.

    `of` begins with the time before the first interval, as number -1.
    """
    cdef Py_ssize_t to = of[at].following
    cdef double room, needed = left[0]
    if to == at:
        return at
    if to == n:
        spent[0] += needed
        return -2
    room = <double>(of[to].time - begin) - spent[0]
    if needed <= room:
        spent[0] += needed
        return -2
    spent[0] += room
    left[0] -= room
    return to


cdef class KernelFactors:
    """Slowdown factors of kernels, worked out once for each kernel and load; the last are kept.

    Parameters
    ----------
    factor : callable
        (kernels, multiprocessors taken, bandwidth, communication that counts, shape (p,) each) →
        (factors of the kernels' time, shape (p,); their dependence on each number of the model,
        shape (p, n_terms)). Each must depend on its own kernel and load alone.
    n_terms : int
    """

    cdef object factor
    cdef Py_ssize_t n_terms
    cdef int64_t n_known, n_worked_out  # those between the two are still to be worked out
    cdef int64_t capacity
    cdef int64_t[::1] number  # by hash: entry of the arrays below, or -1
    cdef int64_t[:, ::1] key  # kernel, multiprocessors taken, bandwidth, communication
    cdef double[::1] slower
    cdef double[:, ::1] rests_on
    cdef double[:, ::1] room  # scratch, as is the next
    cdef int64_t[:, ::1] found

    def __init__(self, factor, Py_ssize_t n_terms):
        self.factor, self.n_terms = factor, n_terms
        self.key = np.empty((0, 4), np.int64)
        self.slower, self.rests_on = np.empty(0), np.empty((0, n_terms))
        self.n_known = self.n_worked_out = 0
        self.room, self.found = np.empty((2, 1)), np.empty((2, 1), np.int64)
        self.make_room(LEAST_KNOWN)

    cdef make_room(self, int64_t capacity):
        """Have room for so many factors, and keep those that are known."""
        cdef int64_t i
        cdef uint64_t at
        known = slice(0, self.n_known)
        key, slower, rests_on = map(np.asarray, (self.key, self.slower, self.rests_on))
        self.number = np.full(PLACES * capacity, -1)
        self.key = np.empty((capacity, 4), np.int64)
        self.slower, self.rests_on = np.empty(capacity), np.empty((capacity, self.n_terms))
        self.capacity = capacity
        np.asarray(self.key)[known], np.asarray(self.slower)[known] = key[known], slower[known]
        np.asarray(self.rests_on)[known] = rests_on[known]
        for i in range(self.n_known):
            at = hashed(&self.key[i, 0]) & <uint64_t>(PLACES * capacity - 1)
            while self.number[at] >= 0:
                at = (at + 1) & <uint64_t>(PLACES * capacity - 1)
            self.number[at] = i

    cdef inline int64_t find(self, int64_t kernel, const Interval* load) noexcept nogil:
        """Return the entry of a kernel beside a load, which may be new; -1: there is no room."""
        cdef int64_t[4] wanted
        wanted[0], wanted[1], wanted[2], wanted[3] = kernel, load.taken, load.bandwidth, load.which
        cdef uint64_t at = hashed(wanted)
        cdef int64_t found
        cdef int64_t* key
        while True:
            at &= <uint64_t>(PLACES * self.capacity - 1)
            found = self.number[at]
            if found < 0:
                break
            key = &self.key[found, 0]
            if (
                key[0] == kernel and key[1] == load.taken
                and key[2] == load.bandwidth and key[3] == load.which
            ):
                return found
            at += 1
        if self.n_known == self.capacity:
            return -1
        found = self.number[at] = self.n_known
        self.n_known += 1
        key = &self.key[found, 0]
        key[0], key[1], key[2], key[3] = kernel, load.taken, load.bandwidth, load.which
        return found

    cdef void look_ahead(
        self,
        int64_t kernel,
        int64_t begin,
        Py_ssize_t at,
        double spent,
        double left,
        const Interval* of,
        Py_ssize_t n,
    ) noexcept nogil:
        """Find the loads that a kernel is sure to meet from an interval on, as if all are new.

        No factor is below 1, so it gets no further in any interval than with a factor of 1 in
        place of those that are not known yet. All of them are then worked out at once.
        """
        cdef int64_t entry
        cdef double room, needed, slower
        while at >= 0:
            entry = self.find(kernel, &of[at])
            if entry < 0:
                return
            slower = self.slower[entry] if entry < self.n_worked_out else 1.0
            room = <double>(of[at + 1].time - begin) - spent
            needed = left * slower
            if needed <= room:
                return
            spent += room
            left -= room / slower
            at = cross_unloaded(at + 1, begin, &spent, &left, of, n)

    cdef work_out(self):
        """Work out what was not found, or make room where there is no more."""
        cdef Py_ssize_t first = self.n_worked_out, last = self.n_known
        if first == last and self.capacity < MAX_KNOWN:
            self.make_room(2 * self.capacity)
            return
        if first == last:
            self.n_known = self.n_worked_out = 0
            np.asarray(self.number)[:] = -1
            return
        kernel, taken, bandwidth, which = np.asarray(self.key)[first:last].T.copy()
        slower, rests_on = self.factor(kernel, taken, bandwidth.astype(float), which)
        np.asarray(self.slower)[first:last] = slower
        np.asarray(self.rests_on)[first:last] = rests_on
        self.n_worked_out = last

    def slowed(
        self,
        const int64_t[::1] begin,
        const int64_t[::1] rows,
        const int64_t[::1] kernel,
        const int64_t[::1] alone,
        const double[:] scale,
        const int64_t[::1] time,
        const int64_t[::1] taken,
        const double[::1] bandwidth,
        const int64_t[::1] which,
    ):
        """Times of kernels alone → beside communications.

        Parameters
        ----------
        begin : int64
            Of all rows, in ps.
        rows, kernel, alone : int64, shape (k,)
            The row of each kernel, which kernel it is, and its time alone at speed 1.
        scale : float64, shape (k,)
            How many times as long it takes on its rank.
        time : int64, shape (n,)
            Of the beginning of each interval.
        taken, bandwidth, which
            The load of each, whole numbers; the last has none.

        Returns
        -------
        met : int64, shape (g,)
            Kernels that run beside a load, ascending, or are so long that rounding shows.
        spent : float64, shape (g,)
            Their times on the rank. All others take exactly as long as alone.
        terms : float64, shape (g, n_terms)
            The dependence of their factors, times the time spent with each.
        """
        cdef Py_ssize_t i, j, g, at = -1, count = 0, k = rows.shape[0], n = time.shape[0]
        cdef int64_t entry, first
        cdef double room, needed, step
        if self.room.shape[1] < k:
            self.room, self.found = np.empty((2, k)), np.empty((2, k), np.int64)
        cdef double* spent = &self.room[0, 0]
        cdef double* left = &self.room[1, 0]
        cdef int64_t* met = &self.found[0, 0]
        cdef int64_t* interval = &self.found[1, 0]
        cdef int64_t[::1] room_for = np.empty((n + 1) * (sizeof(Interval) // 8), np.int64)
        cdef Interval* of = <Interval*>&room_for[0] + 1
        with nogil:
            for at in range(n - 1, -2, -1):
                of[at].following = n if at == n - 1 else of[at + 1].following
                if at < 0:
                    break
                of[at].time, of[at].taken, of[at].which = time[at], taken[at], which[at]
                of[at].bandwidth = <int64_t>bandwidth[at]
                if taken[at] > 0 or bandwidth[at] > 0:
                    of[at].following = at
            for i in range(k):
                first = begin[rows[i]]
                while at + 1 < n and of[at + 1].time <= first:
                    at += 1
                while at >= 0 and of[at].time > first:
                    at -= 1
                spent[count], left[count] = 0.0, <double>alone[i] * scale[i]
                interval[count] = cross_unloaded(at, first, &spent[count], &left[count], of, n)
                met[count] = i
                count += interval[count] >= 0 or alone[i] >= EXACT
        met_array = np.array(self.found[0, :count])
        terms_array = np.zeros((count, self.n_terms))
        pending_array = np.arange(count)
        cdef double[:, ::1] terms = terms_array
        cdef int64_t[::1] pending = pending_array
        cdef Py_ssize_t n_pending = count
        while n_pending:
            with nogil:
                count, n_pending = n_pending, 0
                for i in range(count):
                    g = pending[i]
                    first, at = begin[rows[met[g]]], interval[g]
                    while at >= 0:
                        entry = self.find(kernel[met[g]], &of[at])
                        if entry < 0 or entry >= self.n_worked_out:
                            self.look_ahead(
                                kernel[met[g]], first, at, spent[g], left[g], of, n
                            )
                            interval[g] = at
                            pending[n_pending] = g
                            n_pending += 1
                            break
                        room = <double>(of[at + 1].time - first) - spent[g]
                        needed = left[g] * self.slower[entry]
                        step = needed if needed <= room else room
                        spent[g] += step
                        for j in range(self.n_terms):
                            terms[g, j] += self.rests_on[entry, j] * step
                        if needed <= room:
                            break
                        left[g] -= step / self.slower[entry]
                        at = cross_unloaded(at + 1, first, &spent[g], &left[g], of, n)
            if n_pending:
                self.work_out()
        return met_array, np.array(self.room[0, : len(met_array)]), terms_array


cdef by_time(const int64_t[::1] time, const int64_t[::1] rows):
    """Return the order of the times of some rows, or None if it is theirs."""
    cdef Py_ssize_t i
    for i in range(1, rows.shape[0]):
        if time[rows[i]] < time[rows[i - 1]]:
            return np.argsort(np.asarray(time)[rows], kind="stable")
    return None


cdef class CommunicationFactors:
    """Slowdown factors of communications beside kernels, by their use of the memory's bandwidth.

    Parameters
    ----------
    factor : callable
        Use of the bandwidth, 0 to 1, float64 of shape (p,) → factors, float64 of shape (p,). Each
        must depend on its own use alone.
    one : int
        Parts that are all of the bandwidth; more count as so many.
    """

    cdef object factor
    cdef int64_t one
    cdef int64_t[::1] time, use  # scratch

    def __init__(self, factor, int64_t one):
        self.factor, self.one = factor, one
        self.time = self.use = np.empty(1, np.int64)

    def memory_use(
        self,
        const int64_t[::1] begin,
        const int64_t[::1] end,
        const int64_t[::1] rows,
        const int64_t[::1] parts,
    ):
        """Add up the parts of memory bandwidth that kernels use, over time, for `slowed`.

        Parameters
        ----------
        begin, end : int64
            Of all rows, in ps; none ends before it begins.
        rows, parts : int64, shape (k,)
            The row of each kernel, and how many parts it uses.

        Returns
        -------
        time : int64, shape (n,)
            When the use changes, ascending. A view that the next call writes to.
        use : int64, shape (n,)
            Parts in use from there on: 0 from the last on.
        """
        cdef Py_ssize_t k = rows.shape[0], i = 0, j = 0, n = 0, one, other
        cdef int64_t now = 0, at
        if self.time.shape[0] < 2 * k:
            self.time, self.use = np.empty((2, 2 * k), np.int64)
        cdef int64_t* time = &self.time[0]
        cdef int64_t* use = &self.use[0]
        by_begin, by_end = by_time(begin, rows), by_time(end, rows)
        cdef const int64_t[::1] first = by_begin, last = by_end
        cdef bint sorted_begins = by_begin is None, sorted_ends = by_end is None
        with nogil:
            while j < k:
                other = j if sorted_ends else last[j]
                if i < k:
                    one = i if sorted_begins else first[i]
                if i < k and begin[rows[one]] <= end[rows[other]]:  # those that begin come first
                    at = begin[rows[one]]
                    now += parts[one]
                    i += 1
                else:
                    at = end[rows[other]]
                    now -= parts[other]
                    j += 1
                n += n == 0 or time[n - 1] != at
                time[n - 1], use[n - 1] = at, now
        return np.asarray(self.time)[:n], np.asarray(self.use)[:n]

    def slowed(
        self,
        const int64_t[::1] begin,
        const double[::1] lasting,
        const int64_t[::1] time,
        const int64_t[::1] use,
    ):
        """Wire times without slowdown → beside kernels.

        See `mpisim.overlap.timeline.slowed_communications`.
        """
        cdef Py_ssize_t m = begin.shape[0], n = time.shape[0], i, at = 0, now
        cdef int64_t reached
        cdef double room, needed, left, spent, pace
        found_array = np.empty(m)
        cdef double[::1] found = found_array
        cdef const double[::1] paces = 1 / self.factor(np.minimum(use, self.one) / self.one)
        with nogil:
            for i in range(m):
                while at < n and time[at] <= begin[i]:
                    at += 1
                while at > 0 and time[at - 1] > begin[i]:
                    at -= 1
                # From its own begin on: nothing but what runs beside it shows in a rounding.
                now, reached, left, spent = at - 1, begin[i], lasting[i], 0.0
                while True:
                    pace = 1.0 if now < 0 else paces[now]
                    needed = left / pace
                    if now == n - 1:  # after the last of them
                        break
                    room = <double>(time[now + 1] - reached)
                    if needed <= room:
                        break
                    spent += room
                    left -= room * pace
                    now += 1
                    reached = time[now]
                found[i] = spent + needed
        return found_array
