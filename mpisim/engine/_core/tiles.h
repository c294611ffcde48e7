/* State of the tiled core: tiles, registers, communications. lanes.h executes rows.

   A tile is ranks of one table and one array of durations, its lanes, side by side. All lanes
   are at the same row; a row is decoded once for all of them. Letters: e the engine, t a tile, s
   a slot, x an instruction, l a lane.

   REGISTERS. Register r of lane l is value[r * width + l]. What it means is the same for all
   lanes and stands in pending[r]:
     0       the end of a kernel, known;
     n > 0   row n - 1 is a communication alone in its kernel, not eager: value is its number;
     n < 0   row -n - 1 is the last posted row of a kernel of several communications, or of eager
             ones: value is the latest of the eager ends, NO_TIME if none.
   resolve() turns the second and third into the first, for all lanes or for none. A row writes
   its target only after all that it reads is known (can_run), so a blocked row has done nothing
   but make registers known, and is tried again later.

   TILES. Between two calls of run_tiles a tile either stands once on the stack `ready`, or once
   in the list of waiters of one communication that has not started, or has ended or is parked. wait_for() is
   called for the first such communication that is found, and ends the attempt; starting it puts
   its waiters onto the stack. So a tile may proceed when every lane knows all that the row
   reads, and no wake-up is lost. Lanes of a tile can wait for each other: then no tile can move
   though some lanes could, and Core.split() parts the lanes that can go on from those that
   cannot. Repeating this ends with tiles of one lane, so no deadlock is reported that ranks by
   themselves would not come to.

   COMMUNICATIONS. `posted` counts hosted members up to `members`, then ALL_POSTED; STARTED when
   all messages from other processes have come as well. It starts at the MAX of ready times; of
   members ready then, the lowest number counts as last. MAX and MIN are commutative and
   associative, so neither the order in which tiles run nor the number of processes shows in a
   result. Where all members on a slot are lanes of one tile (COLUMNS, SCATTERED) they all post
   in the same row: the communication starts there and then, and nobody else can be waiting for
   it.

   TAKEN. Where communications share links, `taken` says how long each takes whose row is
   looked_up, and duration is 0 there. It is given, and the same for all members whose row is; one
   with a duration of its own takes that. Slots with such rows are OUTSIDE, wherever their members
   are, so that only resolve() asks.

   HORIZON. A tile that needs the end of a communication which is looked up, at the horizon or later,
   is *parked*: it stays where it is, on no list, until the run is over. Times of rows before are as
   in a run without a horizon.

   INTEGERS. Times are int64 ps: a start offset and the sum of all durations of a rank are below
   2**60 each (mpisim/engine/cost.py). Registers, lanes, rows and ranks are int32; numbers of
   communications int64. Lanes from n_lanes to width pad vectors: they start at 0, hold numbers
   that nobody reads, and grow no faster than those of other lanes. */

#ifndef MPISIM_TILES_H
#define MPISIM_TILES_H

#include "digest.h"

enum { ALL_POSTED = -2, STARTED = -1 };  /* of Communication.posted */
enum { OUTSIDE, COLUMNS, SCATTERED };  /* of Slot.kind */
enum { WIDTH = 8 };  /* registers are padded to a multiple of so many lanes */

#define INLINED static inline __attribute__((always_inline))

typedef struct {  /* one communication; all 0 before anything has run */
    int64_t time;  /* the latest ready time so far; once started, the start */
    int32_t last;  /* the member that was ready then, plus 1; the lowest if several */
    int32_t posted;  /* hosted members that have posted; ALL_POSTED, STARTED */
} Communication;

typedef struct {  /* of a communication; most never need it, and its memory is then never touched */
    int32_t remote;  /* minus the messages still to come from other processes */
    int32_t waiter;  /* first tile that is blocked here, plus 1 */
} Waiting;

typedef struct {  /* what a slot of a rank is bound to: a communicator */
    int64_t first;  /* number of its first communication */
    int32_t members;  /* hosted ones, each counted by all its slots */
    uint8_t role;
} SlotBinding;

typedef struct {
    SlotBinding *binding;  /* of each lane */
    int32_t *column;  /* of each lane: which of the communicators bound in this tile */
    int64_t n_columns;
    uint8_t kind;  /* OUTSIDE: some member is no lane of the tile; COLUMNS: lane l has column
        l % n_columns, and members of one communicator are lanes in the order of their numbers */
} Slot;

typedef struct {
    const Instruction *code;
    const int64_t *duration;
    const uint8_t *looked_up;  /* of each row: see TAKEN; NULL where no links are shared */
    const int32_t *operands, *final;
    int64_t *value;  /* registers; see above */
    int32_t *pending;
    int64_t *clock, *device;  /* of each lane: the CPU's time; the latest end on the device */
    int64_t *eager;  /* ready times of EAGER rows */
    uint64_t *factor, *key;  /* of each lane; NULL where kernels take as long as priced */
    int32_t *local, *number;  /* of each lane */
    Slot *slot;
    int32_t n_lanes, width, n_slots, n_registers, n_final, n_rows, row, n_eager, next_waiter, ended,
        parked;
} Tile;

typedef struct {
    Tile *tiles;
    int32_t *ready;  /* a stack of tiles that can move */
    Communication *communications;
    Waiting *waiting;
    int64_t *outgoing;  /* communications to tell other processes about */
    int64_t *begin, *best, *who;  /* scratch: of each lane of whichever tile runs */
    const uint64_t *jitter;
    const int64_t *taken;  /* of each communication: see TAKEN */
    int64_t horizon;  /* see HORIZON */
    int64_t n_ready, n_outgoing, rows_done;
} EngineState;

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* --- communications --------------------------------------------------------------------------- */

static inline void merge(Communication *communication, int64_t ready, int32_t last)
{
    if (communication->last == 0 || ready > communication->time
        || (ready == communication->time && last < communication->last)) {
        communication->time = ready;
        communication->last = last;
    }
}

static inline void notify(EngineState *e, int64_t number) { e->outgoing[e->n_outgoing++] = number; }

static inline void start_if_complete(EngineState *e, int64_t number, int owner)
{
    Waiting *waiting = &e->waiting[number];
    if (e->communications[number].posted != ALL_POSTED || waiting->remote != 0)
        return;
    e->communications[number].posted = STARTED;
    for (int32_t waiter = waiting->waiter; waiter > 0; waiter = e->tiles[waiter - 1].next_waiter)
        e->ready[e->n_ready++] = waiter - 1;
    waiting->waiter = 0;
    if (owner)
        notify(e, number);
}

static inline void deliver(EngineState *e, int64_t number, int64_t time, int32_t last, int owner)
{
    merge(&e->communications[number], time, last);
    e->waiting[number].remote++;
    start_if_complete(e, number, owner);
}

/* Post the k-th communication on a slot, for the first lanes: each is ready at e->begin. */
INLINED void post(EngineState *e, const Tile *t, const Slot *s, int32_t k, const int64_t lanes)
{
    for (int64_t l = 0; l < lanes; l++) {
        const SlotBinding *binding = &s->binding[l];
        const int64_t number = binding->first + k;
        Communication *communication = &e->communications[number];
        merge(communication, e->begin[l], t->number[l] + 1);
        if (++communication->posted == binding->members) {
            communication->posted = ALL_POSTED;
            if (binding->role == PEER || binding->role == MEMBER)
                notify(e, number);
            start_if_complete(e, number, binding->role == OWNER);
        }
    }
}

/* Start the k-th communications on a slot all of whose members are lanes of the tile, at e->best
   each. Lane l has column l % n; members are lanes in the order of their numbers, so the first that
   is ready last is the lowest. */
INLINED void start_columns(EngineState *e, const Tile *t, const Slot *s, int32_t k, const int64_t n)
{
    const int64_t *begin = e->begin, lanes = t->n_lanes;
    int64_t *best = e->best, *who = e->who;
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
        Communication *communication = &e->communications[s->binding[g].first + k];
        *communication = (Communication){best[g], t->number[who[g] + g] + 1, STARTED};
    }
}

/* Likewise, where all lanes are members of one communicator. */
INLINED void start_all(EngineState *e, const Tile *t, const Slot *s, int32_t k)
{
    const int64_t *begin = e->begin, lanes = t->n_lanes;
    int64_t best = begin[0], who = 0;
    EACH(l, lanes) best = later(best, begin[l]);
    for (int64_t l = lanes - 1; l >= 0; l--)
        who = begin[l] == best ? l : who;
    e->best[0] = best;
    e->communications[s->binding[0].first + k] = (Communication){best, t->number[who] + 1, STARTED};
}

/* Likewise, wherever members lie; e->best of each lane's column. */
static void start_scattered(EngineState *e, const Tile *t, const Slot *s, int32_t k)
{
    for (int64_t l = 0; l < t->n_lanes; l++)
        merge(&e->communications[s->binding[l].first + k], e->begin[l], t->number[l] + 1);
    for (int64_t l = 0; l < t->n_lanes; l++) {
        e->communications[s->binding[l].first + k].posted = STARTED;
        e->best[s->column[l]] = e->communications[s->binding[l].first + k].time;
    }
}

/* --- registers -------------------------------------------------------------------------------- */

/* The communication without a start that a lane needs for a register to be known, or -1. */
static inline int64_t unresolved(const EngineState *e, const Tile *t, int32_t reg, int64_t lane)
{
    if (t->pending[reg] > 0) {
        const int64_t number = t->value[(int64_t)reg * t->width + lane];
        return e->communications[number].posted == STARTED ? -1 : number;
    }
    for (int32_t row = -t->pending[reg] - 1; row >= 0; row--) {
        const Instruction *x = &t->code[row];
        if (!x->eager) {
            const int64_t number = t->slot[x->slot].binding[lane].first + x->ordinal;
            if (e->communications[number].posted != STARTED)
                return number;
        }
        if (x->opcode != JOIN)
            break;
    }
    return -1;
}

/* When a communication that has started, the row's, ends. */
INLINED int64_t end_of(
    const EngineState *e, const Tile *t, int32_t row, int64_t number, int64_t duration)
{
    const int64_t end = e->communications[number].time + duration;
    return t->looked_up && t->looked_up[row] ? end + e->taken[number] : end;
}

static inline void wait_for(EngineState *e, Tile *t, int64_t number)
{
    t->next_waiter = e->waiting[number].waiter;
    e->waiting[number].waiter = (int32_t)(t - e->tiles) + 1;
}

/* Whether a communication of a kernel of several, all of which have started, ends too late. */
static int is_beyond(const EngineState *e, const Tile *t, int32_t reg)
{
    for (int32_t row = -t->pending[reg] - 1;; row--) {
        const Instruction *x = &t->code[row];
        for (int64_t l = 0; !x->eager && l < t->n_lanes; l++) {
            const int64_t number = t->slot[x->slot].binding[l].first + x->ordinal;
            if (end_of(e, t, row, number, t->duration[row]) >= e->horizon)
                return 1;
        }
        if (x->opcode != JOIN)
            return 0;
    }
}

/* As resolve, for a kernel of several communications or eager ones. */
static int resolve_batch(EngineState *e, Tile *t, int32_t reg)
{
    int64_t *value = t->value + (int64_t)reg * t->width;
    for (int64_t l = 0; l < t->n_lanes; l++) {
        const int64_t number = unresolved(e, t, reg, l);
        if (number >= 0) {
            wait_for(e, t, number);
            return 0;
        }
    }
    if (e->horizon < INT64_MAX && is_beyond(e, t, reg)) {
        t->parked = 1;
        return 0;
    }
    for (int32_t row = -t->pending[reg] - 1;; row--) {
        const Instruction *x = &t->code[row];
        const SlotBinding *binding = t->slot[x->slot].binding;
        const int64_t duration = t->duration[row];
        if (!x->eager)
            for (int64_t l = 0; l < t->n_lanes; l++) {
                const int64_t number = binding[l].first + x->ordinal;
                value[l] = later(value[l], end_of(e, t, row, number, duration));
            }
        if (x->opcode != JOIN)
            break;
    }
    return 1;
}

/* Make a pending register known; 0, and the tile is blocked, if it cannot be. */
INLINED int resolve(EngineState *e, Tile *t, int32_t reg, const int64_t lanes)
{
    int64_t *value = t->value + (int64_t)reg * t->width;
    const int32_t row = t->pending[reg] > 0 ? t->pending[reg] - 1 : -t->pending[reg] - 1;
    if (t->pending[reg] > 0) {
        const int64_t duration = t->duration[row];
        for (int64_t l = 0; l < lanes; l++)
            if (e->communications[value[l]].posted != STARTED) {
                wait_for(e, t, value[l]);
                return 0;
            }
        for (int64_t l = 0; e->horizon < INT64_MAX && l < lanes; l++)
            if (end_of(e, t, row, value[l], duration) >= e->horizon) {
                t->parked = 1;
                return 0;
            }
        for (int64_t l = 0; l < lanes; l++)
            value[l] = end_of(e, t, row, value[l], duration);
    } else if (!resolve_batch(e, t, reg)) {
        return 0;
    }
    t->pending[reg] = 0;
    if (t->code[row].may_end_last)
        for (int64_t l = 0; l < lanes; l++)
            t->device[l] = later(t->device[l], value[l]);
    return 1;
}

static int resolve_lane(EngineState *e, Tile *t, int32_t reg) { return resolve(e, t, reg, 1); }

static int resolve_lanes(EngineState *e, Tile *t, int32_t reg)
{
    return resolve(e, t, reg, t->n_lanes);
}

/* What a row reads, or at the end what must have ended; *n registers. */
static inline const int32_t *reads(const Tile *t, int32_t row, int32_t *n)
{
    if (row >= t->n_rows) {
        *n = t->n_final;
        return t->final;
    }
    *n = t->code[row].n_leading + t->code[row].n_waits;
    return t->operands + t->code[row].first_wait - t->code[row].n_leading;
}

/* The communication without a start that keeps a lane from its next row, or -1. */
static inline int64_t blocked_on(const EngineState *e, const Tile *t, int64_t lane)
{
    int32_t n;
    const int32_t *operand = reads(t, t->row, &n);
    for (int32_t i = 0; i < n; i++) {
        const int64_t number = t->ended ? -1 : unresolved(e, t, operand[i], lane);
        if (number >= 0)
            return number;
    }
    return -1;
}

#endif
