/* How a tile runs: see tiles.pyx. Loops over lanes are plain; the compiler makes vectors of them. */

#ifndef MPISIM_TILES_H
#define MPISIM_TILES_H

#include "hashes.h"

enum { ALL_CAME = -2, STARTED = -1 };  /* of Group.came */
enum { OUTER, COLUMNS, SCATTERED };  /* of Slot.kind */
enum { WIDTH = 8 };  /* registers are padded to a multiple of so many lanes */

#define NEVER INT64_MIN
#define INLINED static inline __attribute__((always_inline))

typedef struct {  /* one operation of a communicator; all 0 before anything has run */
    int64_t time;  /* the latest ready time so far; once started, the start */
    int32_t last;  /* the member that was ready then, plus 1; the lowest if several */
    int32_t came;  /* hosted members that have posted; ALL_CAME, STARTED */
} Group;

typedef struct {  /* of a group, where it matters */
    int32_t away;  /* minus the messages still to come from other processes */
    int32_t waiter;  /* first tile that is blocked here, plus 1 */
} Waiting;

typedef struct {  /* what a slot of a rank is bound to */
    int64_t group;  /* the first one of the communicator */
    int32_t members;  /* hosted ones, each counted by all its slots */
    uint8_t role;
} Bond;

typedef struct {
    Bond *bond;  /* of each lane */
    int32_t *column;  /* of each lane: which of the tile's groups */
    int64_t n_groups;
    uint8_t kind;  /* OUTER: members elsewhere; COLUMNS: lane l has group l % n_groups */
} Slot;

typedef struct {
    const Instruction *code;
    const int64_t *duration;
    const int32_t *operands, *final;
    int64_t *value;  /* ends, register by register, lane by lane */
    int32_t *pending;  /* of each register: 0; n > 0: row n - 1 is a communication that the groups
        in `value` are to start; n < 0: row -n - 1 is the last so far of a kernel of several, or
        eager ones, whose end is `value` as far as known */
    int64_t *clock, *device;  /* of each lane */
    int64_t *eager;  /* ready times of EAGER rows */
    uint64_t *factor, *key;  /* of each lane; NULL where kernels take as long as they say */
    int32_t *local, *number;  /* of each lane */
    Slot *slot;
    int32_t n_lanes, width, n_slots, n_registers, n_final, n_rows, row, n_eager, next_waiter, ended;
} Tile;

typedef struct {
    Tile *tiles;
    int32_t *ready;  /* a stack of tiles that can move */
    Group *groups;
    Waiting *waiting;
    int64_t *posted;
    int64_t *begin, *best, *who;  /* lanes of whichever tile runs */
    const uint64_t *jitter;
    int64_t n_ready, n_posted, rows_done;
} Machine;

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* --- groups ----------------------------------------------------------------------------------- */

static inline void merge(Group *group, int64_t ready, int32_t last)
{
    if (group->last == 0 || ready > group->time || (ready == group->time && last < group->last)) {
        group->time = ready;
        group->last = last;
    }
}

static inline void tell(Machine *m, int64_t group) { m->posted[m->n_posted++] = group; }

static inline void start_if_complete(Machine *m, int64_t group, int owner)
{
    Waiting *waiting = &m->waiting[group];
    if (m->groups[group].came != ALL_CAME || waiting->away != 0)
        return;
    m->groups[group].came = STARTED;
    for (int32_t waiter = waiting->waiter; waiter > 0; waiter = m->tiles[waiter - 1].next_waiter)
        m->ready[m->n_ready++] = waiter - 1;
    waiting->waiter = 0;
    if (owner)
        tell(m, group);
}

static inline void deliver(Machine *m, int64_t group, int64_t time, int32_t last, int owner)
{
    merge(&m->groups[group], time, last);
    m->waiting[group].away++;
    start_if_complete(m, group, owner);
}

/* Tell the groups of the k-th communication on a slot when each of the first lanes is ready. */
INLINED void post(Machine *m, const Tile *t, const Slot *s, int32_t k, const int64_t lanes)
{
    for (int64_t l = 0; l < lanes; l++) {
        const Bond *bond = &s->bond[l];
        const int64_t number = bond->group + k;
        Group *group = &m->groups[number];
        merge(group, m->begin[l], t->number[l] + 1);
        if (++group->came == bond->members) {
            group->came = ALL_CAME;
            if (bond->role == PEER || bond->role == MEMBER)
                tell(m, number);
            start_if_complete(m, number, bond->role == OWNER);
        }
    }
}

/* Start the groups of a slot all of whose members are lanes of the tile, at m->best each. Lane l has
   the group l % n; members of a group are lanes in the order of their numbers: the first that is
   ready last is the lowest. */
INLINED void start_columns(Machine *m, const Tile *t, const Slot *s, int32_t k, const int64_t n)
{
    const int64_t *begin = m->begin, lanes = t->n_lanes;
    int64_t *best = m->best, *who = m->who;
    EACH(g, n) {
        best[g] = begin[g];
        who[g] = 0;
    }
    for (int64_t first = n; first < lanes; first += n) {
        EACH(g, n) {
            const int64_t ready = begin[first + g];
            who[g] = ready > best[g] ? first : who[g];
            best[g] = later(ready, best[g]);
        }
    }
    for (int64_t g = 0; g < n; g++) {
        Group *group = &m->groups[s->bond[g].group + k];
        *group = (Group){best[g], t->number[who[g] + g] + 1, STARTED};
    }
}

/* Likewise, where all lanes are one group. */
INLINED void start_all(Machine *m, const Tile *t, const Slot *s, int32_t k)
{
    const int64_t *begin = m->begin, lanes = t->n_lanes;
    int64_t best = begin[0], who = 0;
    EACH(l, lanes) best = later(best, begin[l]);
    for (int64_t l = lanes - 1; l >= 0; l--)
        who = begin[l] == best ? l : who;
    m->best[0] = best;
    m->groups[s->bond[0].group + k] = (Group){best, t->number[who] + 1, STARTED};
}

/* Likewise, however groups lie; m->best of each lane's column. */
static void start_scattered(Machine *m, const Tile *t, const Slot *s, int32_t k)
{
    for (int64_t l = 0; l < t->n_lanes; l++)
        merge(&m->groups[s->bond[l].group + k], m->begin[l], t->number[l] + 1);
    for (int64_t l = 0; l < t->n_lanes; l++) {
        m->groups[s->bond[l].group + k].came = STARTED;
        m->best[s->column[l]] = m->groups[s->bond[l].group + k].time;
    }
}

/* --- registers -------------------------------------------------------------------------------- */

/* The group without a start that a lane needs for a register to be known, or -1. */
static inline int64_t missing(const Machine *m, const Tile *t, int32_t reg, int64_t lane)
{
    if (t->pending[reg] > 0) {
        const int64_t group = t->value[(int64_t)reg * t->width + lane];
        return m->groups[group].came == STARTED ? -1 : group;
    }
    for (int32_t row = -t->pending[reg] - 1; row >= 0; row--) {
        const Instruction *x = &t->code[row];
        if (!x->eager) {
            const int64_t group = t->slot[x->slot].bond[lane].group + x->ordinal;
            if (m->groups[group].came != STARTED)
                return group;
        }
        if (x->opcode != JOIN)
            break;
    }
    return -1;
}

static inline void wait_for(Machine *m, Tile *t, int64_t group)
{
    t->next_waiter = m->waiting[group].waiter;
    m->waiting[group].waiter = (int32_t)(t - m->tiles) + 1;
}

/* As settle, for a kernel of several communications or eager ones. */
static int settle_batch(Machine *m, Tile *t, int32_t reg)
{
    int64_t *value = t->value + (int64_t)reg * t->width;
    for (int64_t l = 0; l < t->n_lanes; l++) {
        const int64_t group = missing(m, t, reg, l);
        if (group >= 0) {
            wait_for(m, t, group);
            return 0;
        }
    }
    for (int32_t row = -t->pending[reg] - 1;; row--) {
        const Instruction *x = &t->code[row];
        const Bond *bond = t->slot[x->slot].bond;
        const int64_t duration = t->duration[row];
        if (!x->eager)
            for (int64_t l = 0; l < t->n_lanes; l++)
                value[l] = later(value[l], m->groups[bond[l].group + x->ordinal].time + duration);
        if (x->opcode != JOIN)
            break;
    }
    return 1;
}

/* Make a pending register known; 0, and the tile is blocked, if it cannot be. */
INLINED int settle(Machine *m, Tile *t, int32_t reg, const int64_t lanes)
{
    int64_t *value = t->value + (int64_t)reg * t->width;
    const int32_t row = t->pending[reg] > 0 ? t->pending[reg] - 1 : -t->pending[reg] - 1;
    if (t->pending[reg] > 0) {
        const int64_t duration = t->duration[row];
        for (int64_t l = 0; l < lanes; l++)
            if (m->groups[value[l]].came != STARTED) {
                wait_for(m, t, value[l]);
                return 0;
            }
        for (int64_t l = 0; l < lanes; l++)
            value[l] = m->groups[value[l]].time + duration;
    } else if (!settle_batch(m, t, reg)) {
        return 0;
    }
    t->pending[reg] = 0;
    if (t->code[row].tops)
        for (int64_t l = 0; l < lanes; l++)
            t->device[l] = later(t->device[l], value[l]);
    return 1;
}

static int settle_lane(Machine *m, Tile *t, int32_t reg) { return settle(m, t, reg, 1); }

static int settle_lanes(Machine *m, Tile *t, int32_t reg) { return settle(m, t, reg, t->n_lanes); }

/* What a row reads, or at the end what must have ended; *n registers. */
static inline const int32_t *reads(const Tile *t, int32_t row, int32_t *n)
{
    if (row >= t->n_rows) {
        *n = t->n_final;
        return t->final;
    }
    *n = t->code[row].n_before + t->code[row].n_waits;
    return t->operands + t->code[row].first_wait - t->code[row].n_before;
}

/* The group without a start that keeps a lane from its next row, or -1. */
static inline int64_t blocked_on(const Machine *m, const Tile *t, int64_t lane)
{
    int32_t n;
    const int32_t *operand = reads(t, t->row, &n);
    for (int32_t i = 0; i < n; i++) {
        const int64_t group = t->ended ? -1 : missing(m, t, operand[i], lane);
        if (group >= 0)
            return group;
    }
    return -1;
}

#endif
