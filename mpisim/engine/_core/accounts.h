/* Accounts of ranks, eight side by side: their rows are replayed and added up in one pass.

   A lane is a rank. The recurrence is that of `replay` in rows.pyx, for LANES ranks of one list of
   instructions, whose communications are known; x[k * LANES + l] is entry k of lane l. Loops over
   lanes are plain, and the compiler makes vectors of them.

   INTERVALS. `cover` merges lists of intervals, each in order of their begins; which list an
   interval is in does not matter. Rows of the two streams with most rows are put, in program order,
   into the *chain*: a list without overlap, entry by entry the same rows on all lanes. A lane on
   which a row begins before its chain has ended gets an empty entry there, and the interval goes to
   the list of the row's own stream. Most programs alternate between two streams, so nearly all
   of a rank stands in its chain, and `cover` hardly ever goes from list to list.

   PARTS. What an interval is, is a number, its *part*. Where several are under way the least counts:
   at every moment the time goes to one part, and the parts of a rank add up to the time in which
   anything was under way. Numbers below n_compute compute, those below n_device communicate. Of the
   others, work of the host, the step waits only when all of the device has ended: what is idle before
   is not for their sake. */

#ifndef MPISIM_ACCOUNTS_H
#define MPISIM_ACCOUNTS_H

#include "tile_state.h"

enum { LANES = 8, MAX_PARTS = 64 };

typedef struct {  /* intervals in order of their begins */
    int64_t *begin, *end;
    uint8_t *part;
    int64_t stride;  /* from one begin or end to the next */
    int64_t at, n;  /* the next to visit; how many there are */
    const int64_t *total;  /* of a chain, how long it is, by part; of another list NULL */
} List;

typedef struct {  /* the parts of a rank */
    int64_t n, n_compute, n_device;
} Parts;

INLINED int communicates(const Parts *parts, int64_t part)
{
    return part >= parts->n_compute && part < parts->n_device;
}

typedef struct {  /* a row on the device, as it is added up; not launched: key < 0 */
    int32_t key, stream;
    uint8_t part, waiting, chained;  /* waiting: of a communication, its part until it starts */
} Entry;

typedef struct {
    const Instruction *code;
    const int32_t *operands;
    int64_t n_rows, until;
    const Entry *entry;  /* of each row */
    const int64_t *duration[LANES];  /* of each row, but for factors */
    const uint64_t *factor, *key, *jitter;  /* of each lane; the table; NULL: none */
    const int64_t *start[LANES], *finish[LANES];  /* of each communication */
    int64_t *registers, *clock;
    int64_t *spent, *waited, *longest;  /* by key */
    int64_t *chain_begin, *chain_end;
    int64_t *chained;  /* how long the chain is, by part */
    uint8_t *chain_part;
    Parts parts;
    List *list;  /* of each lane n_lists: the chain, then one for each stream */
    int64_t n_lists, n_chain;
    int one_duration, whole;  /* all lanes have the same durations; all factors are 1 */
} Lanes;

/* --- intervals -------------------------------------------------------------------------------- */

/* Put an interval that is not empty into its place. */
static inline void insert(List *list, int64_t begin, int64_t end, uint8_t part)
{
    int64_t at = list->n;
    if (at && list->end[at - 1] == begin && list->part[at - 1] == part) {  /* most kernels */
        list->end[at - 1] = end;
        return;
    }
    for (; at && list->begin[at - 1] > begin; at--) {  /* rare: rows of a stream are in order */
        list->begin[at] = list->begin[at - 1];
        list->end[at] = list->end[at - 1];
        list->part[at] = list->part[at - 1];
    }
    list->begin[at] = begin;
    list->end[at] = end;
    list->part[at] = part;
    list->n++;
}

/* Let a list sink to its place in a heap of lists by the begin of their next interval. */
static inline void sink(List *list, int32_t *heap, int64_t at, int64_t n)
{
#define NEXT(i) list[heap[i]].begin[list[heap[i]].at * list[heap[i]].stride]
    const int32_t own = heap[at];
    const int64_t time = NEXT(at);
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && NEXT(child + 1) < NEXT(child);
        if (NEXT(child) >= time)
            break;
        heap[at] = heap[child];
    }
    heap[at] = own;
}

/* The first entry from `at` on that begins after a time; that of `at` does not. */
static inline int64_t first_after(const List *list, int64_t at, int64_t time)
{
    int64_t step = 1, low = at, high;
    while (low + step < list->n && list->begin[(low + step) * list->stride] <= time) {
        low += step;
        step *= 2;
    }
    high = low + step < list->n ? low + step : list->n;
    while (low + 1 < high) {
        const int64_t middle = low + (high - low) / 2;
        if (list->begin[middle * list->stride] <= time)
            low = middle;
        else
            high = middle;
    }
    return high;
}

typedef struct {  /* a part that is under way, and until when */
    int64_t end;
    uint8_t part;
} Active;

/* What is under way, as far as it will count: the part that counts now is last, and each before it
   has a larger number and ends later. So those that count after it are in order, too. */
typedef struct {
    Active step[MAX_PARTS];
    int64_t n, now;
} Underway;

/* Give the time up to some moment to the parts that count. */
static inline void advance(Underway *a, int64_t until, int64_t *covered)
{
    while (a->n && a->now < until) {
        const Active *counts = &a->step[a->n - 1];
        const int64_t end = counts->end < until ? counts->end : until;
        covered[counts->part] += later(end, a->now) - a->now;
        a->now = later(end, a->now);
        if (counts->end <= a->now)
            a->n--;
    }
    a->now = until;
}

/* A part is under way from now until its end. */
static inline void activate(Underway *a, uint8_t part, int64_t end)
{
    int64_t above = a->n, below;
    while (above && a->step[above - 1].part < part)
        above--;
    if (above < a->n && a->step[above].end >= end)
        return;  /* one that goes before it ends no earlier */
    for (below = above; below && a->step[below - 1].end <= end; below--)
        ;
    if (below && a->step[below - 1].part == part)
        return;
    if (below == above) {
        for (int64_t i = a->n; i > above; i--)
            a->step[i] = a->step[i - 1];
        a->n++;
    } else {
        for (int64_t i = above; i < a->n; i++)
            a->step[below + 1 + i - above] = a->step[i];
        a->n += below + 1 - above;
    }
    a->step[below] = (Active){end, part};
}

/* Of the work of the host count what is left of it when all of the device has ended. */
static void wait_for_host(
    const List *list, int64_t n_lists, const Parts *parts, int64_t *covered)
{
    int64_t device = 0, host = 0, found = 0;
    for (int64_t part = parts->n_device; part < parts->n; part++) {
        found += covered[part];
        covered[part] = 0;
    }
    if (!found)
        return;
    for (int64_t i = 0; i < n_lists; i++) {
        for (int64_t at = 0; at < list[i].n; at++) {
            const int64_t last = list[i].end[at * list[i].stride];
            if (list[i].begin[at * list[i].stride] == last)
                continue;
            if (list[i].part[at] < parts->n_device)
                device = later(device, last);
            else
                host = later(host, last);
        }
    }
    covered[parts->n_device] = host > device ? host - device : 0;
}

/* Add up the time that intervals cover, by the part that counts, and behind the parts the time in
   which any communication was under way: lists are merged. The common case, an interval that
   begins when all before it are over, is counted in `alone`; there all of a chain stands from the
   begin, and what meets other intervals is taken away. */
CLONES static void cover(
    List *list, int64_t n_lists, int32_t *heap, const Parts *parts, int64_t *covered)
{
    int64_t alone[MAX_PARTS] = {0}, over = 0, left = 0, latest = -1;
    int64_t communicating = 0, reach = 0;  /* in what met; up to when there is a communication */
    Underway active;
    active.n = active.now = 0;
    for (int64_t i = 0; i < n_lists; i++) {
        list[i].at = 0;
        if (list[i].n)
            heap[left++] = (int32_t)i;
        for (int64_t part = 0; list[i].total && part < parts->n; part++)
            alone[part] += list[i].total[part * LANES];
    }
    for (int64_t i = left - 1; i >= 0; i--)
        sink(list, heap, i, left);
    while (left) {
        /* The list goes on as long as its intervals begin before those of all others. */
        List *own = &list[heap[0]];
        int64_t other = INT64_MAX, at = own->at;
        for (int64_t i = 1; i < 3 && i < left; i++)
            other = NEXT(i) < other ? NEXT(i) : other;
        const int64_t *begin = own->begin, *end = own->end, stride = own->stride, n = own->n;
        int64_t first = begin[at * stride];
        do {
            int64_t last = end[at * stride];
            uint8_t part = own->part[at];
            if (first >= over) {  /* most */
                if (active.n)
                    advance(&active, over, covered);
                if (own->total) {  /* those that follow begin when it is over */
                    at = first_after(own, at, other) - 1;
                    last = end[at * stride];
                    part = own->part[at];
                } else {
                    alone[part] += last - first;
                }
                over = last;
                latest = part;
            } else if (last > first) {
                if (latest >= 0) {  /* until now it was alone */
                    active.now = first;
                    alone[latest] -= over - first;
                    activate(&active, (uint8_t)latest, over);
                    if (communicates(parts, latest)) {
                        communicating += over - first;
                        reach = over;
                    }
                    latest = -1;
                } else {
                    advance(&active, first, covered);
                }
                if (own->total)
                    alone[part] -= last - first;
                activate(&active, part, last);
                if (communicates(parts, part) && last > reach) {
                    communicating += last - later(first, reach);
                    reach = last;
                }
                over = later(over, last);
            }
            at++;
        } while (at < n && (first = begin[at * stride]) <= other);
        own->at = at;
        if (at == n)
            heap[0] = heap[--left];
        if (left)
            sink(list, heap, 0, left);
    }
    advance(&active, over, covered);
    for (int64_t part = 0; part < parts->n; part++) {
        covered[part] += alone[part];
        communicating += communicates(parts, part) ? alone[part] : 0;
    }
    covered[parts->n] += communicating;
    if (parts->n > parts->n_device)
        wait_for_host(list, n_lists, parts, covered);
#undef NEXT
}

/* --- lanes ------------------------------------------------------------------------------------ */

/* Put what lies in [0, until] of an interval of each lane into its place. */
INLINED void put(Lanes *t, const Entry *x, uint8_t part, const int64_t *begin, const int64_t *end)
{
    int64_t first[LANES], last[LANES], over[LANES], early = 0, apart = 0;
    const int64_t n = t->n_chain, until = t->until;
    int64_t *latest = t->chain_end + (n - 1) * LANES;
    EACH(l, LANES) {
        first[l] = later(begin[l], 0);
        last[l] = end[l] < until ? end[l] : until;
    }
    if (!x->chained) {
        for (int64_t l = 0; l < LANES; l++)
            if (first[l] < last[l])
                insert(&t->list[l * t->n_lists + 1 + x->stream], first[l], last[l], part);
        return;
    }
    EACH(l, LANES) {
        const int64_t empty = first[l] >= last[l];
        over[l] = latest[l];
        first[l] = empty ? over[l] : first[l];
        last[l] = empty ? over[l] : last[l];
        apart |= first[l] ^ over[l];
    }
    int64_t *chained = t->chained + part * LANES;
    if (!apart && t->chain_part[n - 1] == part) {  /* most kernels */
        EACH(l, LANES) {
            chained[l] += last[l] - over[l];
            latest[l] = last[l];
        }
        return;
    }
    EACH(l, LANES) early |= first[l] < over[l];
    for (int64_t l = 0; early && l < LANES; l++)
        if (first[l] < over[l]) {
            insert(&t->list[l * t->n_lists + 1 + x->stream], first[l], last[l], part);
            first[l] = last[l] = over[l];
        }
    int64_t *from = t->chain_begin + n * LANES, *to = t->chain_end + n * LANES;
    EACH(l, LANES) {
        from[l] = first[l];
        to[l] = last[l];
        chained[l] += last[l] - first[l];
    }
    t->chain_part[n] = part;
    t->n_chain++;
}

/* Add a row of each lane to the sums of its key, and to what is covered. */
INLINED void add_row(
    Lanes *t, const Entry *x, const int64_t *begin, const int64_t *wire, const int64_t *end)
{
    if (x->key < 0)
        return;
    int64_t *spent = t->spent + (int64_t)x->key * LANES;
    int64_t *longest = t->longest + (int64_t)x->key * LANES;
    EACH(l, LANES) {
        const int64_t length = end[l] - wire[l];
        spent[l] += length;
        longest[l] = later(longest[l], length);
    }
    if (communicates(&t->parts, x->part)) {
        int64_t *waited = t->waited + (int64_t)x->key * LANES;
        EACH(l, LANES) waited[l] += wire[l] - begin[l];
        put(t, x, x->waiting, begin, wire);
    }
    put(t, x, x->part, wire, end);
}

/* end = begin + how long a kernel takes on each lane. */
INLINED void add_kernel(const Lanes *t, int64_t row, const int64_t *begin, int64_t *end)
{
    uint64_t duration[LANES];
    const uint64_t *factor = t->factor, *key = t->key, *jitter = t->jitter;
    if (t->one_duration) {
        const uint64_t one = (uint64_t)t->duration[0][row];
        EACH(l, LANES) duration[l] = one;
    } else {
        for (int64_t l = 0; l < LANES; l++)
            duration[l] = (uint64_t)t->duration[l][row];
    }
    if (!factor) {
        EACH(l, LANES) end[l] = begin[l] + (int64_t)duration[l];
        return;
    }
    if (!jitter) {
        EACH(l, LANES) end[l] = begin[l] + (int64_t)scaled(duration[l], factor[l]);
        return;
    }
    /* As jitter_factors in mpisim/engine/duration_factors.py. */
    const uint64_t salt = ((uint64_t)row + 1) * UINT64_C(0x9E3779B97F4A7C15);
    uint64_t drawn[LANES];
    EACH(l, LANES) drawn[l] = jitter[mix(key[l] + salt) >> 52];
    if (!t->whole)
        EACH(l, LANES) drawn[l] = scaled(drawn[l], factor[l]);
    if (t->one_duration && duration[0] >> 32 == 0) {  /* most: it has no upper half */
        const uint64_t one = duration[0], half = UINT64_C(1) << 31;
        EACH(l, LANES) {
            const uint64_t part = (uint32_t)drawn[l];
            end[l] = begin[l] + (int64_t)(one * (drawn[l] >> 32) + ((one * part + half) >> 32));
        }
        return;
    }
    EACH(l, LANES) end[l] = begin[l] + (int64_t)scaled(duration[l], drawn[l]);
}

/* Replay ranks, and add up their rows. */
CLONES static void account_lanes(Lanes *t)
{
    int64_t host[LANES], begin[LANES], wire[LANES], end[LANES], k = 0;
    int64_t *clock = t->clock;
    EACH(l, LANES) begin[l] = NO_TIME;
    for (int64_t row = 0; row < t->n_rows; row++) {
        const Instruction *x = &t->code[row];
        const int32_t *operand = t->operands + x->first_wait;
        int64_t *out = t->registers + (int64_t)x->target * LANES;
        if (x->opcode == HOST) {
            EACH(l, LANES) clock[l] += x->host;
            continue;
        }
        if (x->opcode <= SIMPLE_POST) {
            const int64_t *a = t->registers + (int64_t)x->stream * LANES;
            const int64_t *b = t->registers + (int64_t)x->wait * LANES;
            const int64_t shift = x->host + x->launch, step = x->host + x->launch_cost;
            const int64_t gap = x->gap;
            EACH(l, LANES) {
                begin[l] = later(later(a[l], b[l]) + gap, clock[l] + shift);
                clock[l] += step;
            }
        } else if (x->opcode != JOIN) {  /* which begins with the row before */
            EACH(l, LANES) host[l] = clock[l] + x->host;
            if (x->opcode <= BATCH && x->n_leading > (x->stream >= 0)) {
                const int64_t *free = t->registers + (int64_t)operand[-x->n_leading] * LANES;
                EACH(l, LANES) host[l] = later(host[l], free[l]);
            }
            EACH(l, LANES) end[l] = NO_TIME;
            if (x->opcode <= BATCH && x->stream >= 0) {
                const int64_t *a = t->registers + (int64_t)x->stream * LANES;
                EACH(l, LANES) end[l] = a[l];
            }
            for (int32_t i = 0; i < x->n_waits; i++) {
                const int64_t *a = t->registers + (int64_t)operand[i] * LANES;
                EACH(l, LANES) end[l] = later(end[l], a[l]);
            }
            if (x->opcode == HOST_WAIT) {
                EACH(l, LANES) clock[l] = later(host[l], end[l]) + x->launch_cost;
                continue;
            }
            /* The end of every kernel is a time: only a row that follows none has no such input. */
            const int64_t gap = x->stream >= 0 || x->n_waits ? x->gap : 0;
            EACH(l, LANES) {
                begin[l] = later(end[l] + gap, host[l] + x->launch);
                clock[l] = host[l] + x->launch_cost;
            }
        }
        if (x->opcode == SIMPLE_KERNEL || x->opcode == KERNEL) {
            add_kernel(t, row, begin, end);
            EACH(l, LANES) out[l] = end[l];
            add_row(t, &t->entry[row], begin, begin, end);
            continue;
        }
        for (int64_t l = 0; l < LANES; l++) {
            wire[l] = t->start[l][k];
            end[l] = t->finish[l][k];
        }
        k++;
        if (x->opcode < JOIN) {
            EACH(l, LANES) out[l] = end[l];
        } else {
            EACH(l, LANES) out[l] = later(out[l], end[l]);
        }
        add_row(t, &t->entry[row], begin, wire, end);
    }
}

#endif
