# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Per-load work on links: see `mpisim.engine.contention` and `mpisim.results.link_use`.

Callers are trusted: no index is checked.
"""

import numpy as np

from libc.stdint cimport INT64_MIN, int64_t, uint8_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    typedef unsigned __int128 uint128_t;
    """
    ctypedef int uint128_t

cdef extern from "math.h":
    double ceil(double) noexcept nogil

cdef enum:
    WEIGHT_BITS = 20  # of mpisim.topo.network.WEIGHT_ONE

cdef struct Pattern:
    const int64_t* group
    const int64_t* rate
    const int64_t* route
    const int64_t* link
    const int64_t* weight
    Py_ssize_t n_groups, n_loads
    Py_ssize_t at, load  # what is still to come

cdef struct Link:
    uint128_t total  # of all groups but the current one
    uint128_t heaviest  # of that
    int64_t group
    uint8_t several


def full_links(const int64_t[::1] capacity, patterns, const uint8_t[::1] one_by_one):
    """Find links that can be full: see `mpisim.engine.contention.links_that_can_saturate`."""
    cdef Py_ssize_t n_links = capacity.shape[0], n_patterns = len(patterns), p, l
    cdef int64_t g
    cdef Pattern* of = <Pattern*>calloc(n_patterns + 1, sizeof(Pattern))
    cdef Link* links = <Link*>calloc(n_links + 1, sizeof(Link))
    cdef Pattern* x
    cdef Link* y
    cdef uint128_t load
    cdef const int64_t[::1] group, rate, route, link, weight
    found_array = np.zeros(n_links, bool)
    cdef uint8_t[::1] found = found_array.view(np.uint8)
    try:
        if of is NULL or links is NULL:
            raise MemoryError("no memory for loads of links")
        for p, one in enumerate(patterns):
            x = &of[p]
            group, rate, route, link, weight = one
            x.n_groups, x.n_loads = group.shape[0], link.shape[0]
            if x.n_groups and x.n_loads:
                x.group, x.rate, x.route = &group[0], &rate[0], &route[0]
                x.link, x.weight = &link[0], &weight[0]
        with nogil:
            for l in range(n_links):
                links[l].group = -1
            for g in range(one_by_one.shape[0]):
                for p in range(n_patterns):
                    x = &of[p]
                    if x.load == x.n_loads or x.group[x.at] != g:
                        continue
                    while x.load < x.n_loads and x.route[x.load] == x.at:
                        y = &links[x.link[x.load]]
                        load = <uint128_t>x.weight[x.load] * <uint128_t>x.rate[x.at]
                        if y.group != g:
                            y.total += y.heaviest
                            y.heaviest = load
                            y.group = g
                        elif load > y.heaviest:
                            y.heaviest = load
                        y.several |= not one_by_one[g]
                        x.load += 1
                    x.at += 1
            for l in range(n_links):
                y = &links[l]
                found[l] = y.group >= 0 and (
                    y.several
                    or y.total + y.heaviest > <uint128_t>capacity[l] << WEIGHT_BITS
                )
    finally:
        free(of)
        free(links)
    return found_array


def depths(
    const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] order,
    const int64_t[::1] index,
):
    """Add up how long at least one, and at least two, of some intervals were under way.

    Parameters
    ----------
    begin, end : int64
    order : int64, shape (m,)
        Intervals, place after place, those of one place by their begins.
    index : int64, shape (n + 1,)
        Place p has the intervals ``order[index[p]:index[p + 1]]``.

    Returns
    -------
    int64, shape (2, n)
    """
    found_array = np.zeros((2, index.shape[0] - 1), np.int64)
    cdef int64_t[:, ::1] found = found_array
    cdef Py_ssize_t p, i
    # Up to `one` something goes on, up to `two` another thing besides: no earlier one ends later.
    cdef int64_t one, two, first, last, both
    with nogil:
        for p in range(index.shape[0] - 1):
            one = two = INT64_MIN
            for i in range(index[p], index[p + 1]):
                first, last = begin[order[i]], end[order[i]]
                both = min(one, last)
                found[1, p] += max(both - max(first, two), 0) if both > first else 0
                two = max(two, both)
                found[0, p] += max(last - max(first, one), 0)
                one = max(one, last)
    return found_array


def pair_depths(
    const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] user,
    const int64_t[::1] order, const int64_t[::1] index, Py_ssize_t most,
):
    """Add up how long two users of a place were there at the same time.

    That is how long at least two intervals of either were under way, less how long two of the one
    were, and less how long two of the other.

    Parameters
    ----------
    begin, end, user : int64
        Of each interval.
    order, index
        As for `depths`.
    most : int
        Places with more users than this are left out.

    Returns
    -------
    int64, shape (k, 4)
        Place, user, another with a higher number, and the time if it is not 0; ascending.
    """
    cdef Py_ssize_t p, i, j, n, n_users, a, b, longest = 0
    for p in range(index.shape[0] - 1):
        longest = max(longest, index[p + 1] - index[p])
    # The intervals of each user of a place, user after user, and how long two of one go on.
    cdef int64_t[::1] mine = np.empty(longest, np.int64), which = np.empty(longest, np.int64)
    cdef int64_t[::1] users = np.empty(most + 1, np.int64), first = np.empty(most + 2, np.int64)
    cdef int64_t[::1] own = np.empty(most + 1, np.int64)
    cdef int64_t time
    found = []
    for p in range(index.shape[0] - 1):
        n, n_users = index[p + 1] - index[p], 0
        for i in range(n):
            time = user[order[index[p] + i]]
            j = 0
            while j < n_users and users[j] < time:
                j += 1
            if j < n_users and users[j] == time:
                continue
            if n_users == most:
                n_users = -1
                break
            for a in range(n_users, j, -1):
                users[a] = users[a - 1]
            users[j] = time
            n_users += 1
        if n_users < 2:
            continue
        for j in range(n_users + 1):
            first[j] = 0
        for i in range(n):
            j = 0
            while users[j] != user[order[index[p] + i]]:
                j += 1
            which[i] = j
            first[j + 1] += 1
        for j in range(n_users):
            first[j + 1] += first[j]
        for i in range(n):  # `first` then is where the next user's begin
            mine[first[which[i]]] = order[index[p] + i]
            first[which[i]] += 1
        for j in range(n_users, 0, -1):
            first[j] = first[j - 1]
        first[0] = 0
        for j in range(n_users):
            own[j] = doubled(begin, end, mine, first[j], first[j + 1], 0, 0)
        for a in range(n_users):
            for b in range(a + 1, n_users):
                time = doubled(begin, end, mine, first[a], first[a + 1], first[b], first[b + 1])
                time -= own[a] + own[b]
                if time:  # less than none where either was there twice beside the other's two
                    found.append((p, users[a], users[b], time))
    return np.array(found, np.int64).reshape(-1, 4)


cdef int64_t doubled(
    const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] order, Py_ssize_t a,
    Py_ssize_t a_end, Py_ssize_t b, Py_ssize_t b_end,
) noexcept nogil:
    """How long two of some intervals go on, those of two ranges, each by their begins."""
    cdef int64_t one = INT64_MIN, two = INT64_MIN, both, total = 0, at
    while a < a_end or b < b_end:
        if b == b_end or (a < a_end and begin[order[a]] <= begin[order[b]]):
            at = order[a]
            a += 1
        else:
            at = order[b]
            b += 1
        both = min(one, end[at])
        if both > begin[at]:
            total += max(both - max(begin[at], two), 0)
        two = max(two, both)
        one = max(one, end[at])
    return total


def carried(
    const int64_t[::1] route_index,
    const int64_t[::1] route_link,
    const double[::1] route_weight,
    const int64_t[::1] route,
    const int64_t[::1] begin,
    const int64_t[::1] end,
    const int64_t[::1] volume,
    Py_ssize_t n_links,
    double width,
    Py_ssize_t n_bins,
):
    """Add up what flows move over each link, and when.

    The bytes moved before t are the sum of rate * (t - begin) over what has begun, less the same
    from its end on: two steps and two slopes a flow, added up at the first edge of a bin that is
    not before them.

    Parameters
    ----------
    route_index, route_link, route_weight
        Route r has the links ``route_link[route_index[r]:route_index[r + 1]]``; weights are bytes
        over the link per byte of payload.
    route, begin, end, volume : int64, shape (k,)
        Of each flow.
    n_links : int
    width : float
        Time of a bin.
    n_bins : int

    Returns
    -------
    bytes : float64, shape (n_links,)
    value, slope : float64, shape (2, n_links, n_bins + 1)
        Of what begins, and of what ends.
    """
    bytes_array = np.zeros(n_links)
    values, slopes = np.zeros((2, 2, n_links, n_bins + 1))
    cdef double[::1] moved = bytes_array
    cdef double[:, :, ::1] value = values, slope = slopes
    cdef Py_ssize_t i, j, link, first, last
    cdef int64_t length
    cdef double at, ahead, left, amount, rate
    with nogil:
        for i in range(route.shape[0]):
            length = max(end[i] - begin[i], 1)
            at = min(<double>begin[i] / width, <double>n_bins)
            first = <Py_ssize_t>ceil(at)
            ahead = (<double>first - at) * width
            at = min(<double>max(end[i], begin[i] + 1) / width, <double>n_bins)
            last = <Py_ssize_t>ceil(at)
            left = (<double>last - at) * width
            for j in range(route_index[route[i]], route_index[route[i] + 1]):
                link = route_link[j]
                amount = route_weight[j] * <double>volume[i]
                rate = amount / <double>length
                moved[link] += amount
                value[0, link, first] += rate * ahead
                slope[0, link, first] += rate
                value[1, link, last] -= rate * left
                slope[1, link, last] -= rate
    return bytes_array, values, slopes


def flows_by_link(
    const int64_t[::1] route_index,
    const int64_t[::1] route_link,
    const int64_t[::1] route,
    const int64_t[::1] order,
    Py_ssize_t n_links,
):
    """List the flows over each link.

    Parameters
    ----------
    route_index, route_link
        As for `carried`.
    route : int64, shape (k,)
        Of each flow.
    order : int64, shape (k,)
        All flows, in the order in which those of a link are to be listed.
    n_links : int

    Returns
    -------
    flows : int64, shape (m,)
        Link after link.
    index : int64, shape (n_links + 1,)
        Link l has the flows ``flows[index[l]:index[l + 1]]``.
    """
    index_array = np.zeros(n_links + 1, np.int64)
    cdef int64_t[::1] index = index_array
    cdef Py_ssize_t i, j
    cdef int64_t r
    with nogil:
        for i in range(route.shape[0]):
            for j in range(route_index[route[i]], route_index[route[i] + 1]):
                index[route_link[j] + 1] += 1
        for i in range(n_links):
            index[i + 1] += index[i]
    flows_array, ends = np.empty(index_array[n_links], np.int64), index_array[:-1].copy()
    cdef int64_t[::1] flows = flows_array, place = ends
    with nogil:
        for i in range(order.shape[0]):
            r = route[order[i]]
            for j in range(route_index[r], route_index[r + 1]):
                flows[place[route_link[j]]] = order[i]
                place[route_link[j]] += 1
    return flows_array, index_array


def joined(
    const int64_t[::1] group, const int64_t[::1] link, Py_ssize_t n_groups, Py_ssize_t n_links
):
    """Number connected sets of groups, joined by links (union-find); loads are pairs (group, link).

    Returns
    -------
    int64, shape (n_groups,)
        0 and up, in the order of the lowest of each number.
    """
    label_array = np.arange(n_groups)
    cdef int64_t[::1] label = label_array  # a group that is lower, or the lowest itself
    cdef int64_t[::1] on_link = np.full(n_links, -1)
    cdef Py_ssize_t i
    cdef int64_t a, b, n = 0
    with nogil:
        for i in range(group.shape[0]):
            if on_link[link[i]] < 0:
                on_link[link[i]] = group[i]
                continue
            a, b = lowest(label, group[i]), lowest(label, on_link[link[i]])
            if a < b:
                label[b] = a
            else:
                label[a] = b
        for i in range(n_groups):
            if label[i] == i:
                label[i] = n
                n += 1
            else:
                label[i] = label[label[i]]  # numbered by now: it is lower
    return label_array


cdef inline int64_t lowest(int64_t[::1] label, int64_t i) noexcept nogil:
    while label[i] != i:
        label[i] = label[label[i]]
        i = label[i]
    return i
