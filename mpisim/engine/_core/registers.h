/* Registers of the tiled core: an end that is read becomes known, or the tile waits.

   resolve() is the one way from a pending register to a known one: for all lanes of the tile or for
   none, so that a blocked row can be tried again as if nothing had happened. blocked_on() asks the
   same for one lane and changes nothing. What pending registers hold: REGISTERS in tile_state.h. */

#ifndef MPISIM_REGISTERS_H
#define MPISIM_REGISTERS_H

#include "communications.h"

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
