/* Rows of the tiled core: what each does to all lanes of a tile. Invariants stand in tile_state.h.

   A row that is launched begins at
     max(end of the stream's previous kernel + gap, ends of its waits + gap, clock + host + launch),
   where the clock first waits for the launch queue. As all kernels a row reads have real ends, the
   gap is added once to their maximum. The CPU goes on to clock + host + launch_cost.

   EXAMPLE. host 2 (what the CPU does before), launch 3 (from the call until the kernel can begin),
   launch_cost 4 (of the call), gap 1. At clock 0 a row can begin at 0 + 2 + 3 = 5, and the clock
   is 6. The next can begin at 6 + 5 = 11; if the kernel before it ends at 20, at 20 + 1 = 21.

   advance() executes rows until can_run() finds one that reads what is not known; of that row
   nothing has happened. run_tiles() takes tiles from the stack until none can move. The width, the
   lanes with padding, is a constant in the copies of advance() for few lanes and for one. Loops
   over lanes are plain; the compiler makes vectors of them, and `EACH` promises that lanes do not
   alias. */

#ifndef MPISIM_LANES_H
#define MPISIM_LANES_H

#include "registers.h"

/* out = begin + how long a kernel takes on each lane. */
INLINED void add_durations(
    const EngineState *e, const Tile *t, int32_t row, int64_t *out, int64_t width)
{
    const uint64_t duration = (uint64_t)t->duration[row], *factor = t->factor;
    const int64_t *begin = e->begin;
    if (!factor) {
        EACH(l, width) out[l] = begin[l] + (int64_t)duration;
    } else if (!e->jitter) {
        EACH(l, width) out[l] = begin[l] + (int64_t)scaled(duration, factor[l]);
    } else {
        /* As jitter_factors in mpisim/engine/duration_factors.py. */
        const uint64_t salt = ((uint64_t)row + 1) * UINT64_C(0x9E3779B97F4A7C15);
        const uint64_t *key = t->key, *jitter = e->jitter;
        EACH(l, width) {
            const uint64_t drawn = scaled(jitter[mix(key[l] + salt) >> 52], factor[l]);
            out[l] = begin[l] + (int64_t)scaled(duration, drawn);
        }
    }
}

/* Post a communication that is not alone in its kernel, or eager. */
static void post_of_batch(EngineState *e, Tile *t, const Instruction *x, int32_t row)
{
    const Slot *s = &t->slot[x->slot];
    int64_t *value = t->value + (int64_t)x->target * t->width;
    t->pending[x->target] = -row - 1;
    for (int64_t l = 0; x->opcode == BATCH && l < t->n_lanes; l++)
        value[l] = NO_TIME;
    if (x->eager) {
        int64_t *ready = t->eager + (int64_t)t->n_eager++ * t->n_lanes;
        for (int64_t l = 0; l < t->n_lanes; l++) {
            ready[l] = e->begin[l];
            value[l] = later(value[l], e->begin[l] + t->duration[row]);
        }
    }
    if (s->kind == OUTSIDE)
        post(e, t, s, x->ordinal, t->n_lanes);
    else if (!x->eager && s->kind == COLUMNS)
        start_columns(e, t, s, x->ordinal, s->n_columns);
    else if (!x->eager)
        start_scattered(e, t, s, x->ordinal);
}

/* e->begin = when a row that is launched can begin; the clock goes on. */
INLINED void launch(
    EngineState *e, Tile *t, const Instruction *x, const int32_t *operand, int64_t width)
{
    const int64_t shift = x->host + x->launch, step = x->host + x->launch_cost, gap = x->gap;
    int64_t *clock = t->clock, *begin = e->begin;
    if (x->n_leading > (x->stream >= 0)) {
        const int64_t *free = t->value + operand[0] * width, host = x->host;
        EACH(l, width) clock[l] = later(clock[l], free[l] - host);
    }
    if (x->stream < 0 && x->n_waits == 0) {
        EACH(l, width) {
            begin[l] = clock[l] + shift;
            clock[l] += step;
        }
        return;
    }
    const int64_t *before = t->value + operand[x->n_leading - (x->stream >= 0)] * width;
    EACH(l, width) begin[l] = before[l];
    for (int32_t i = x->n_leading + (x->stream < 0); i < x->n_leading + x->n_waits; i++) {
        const int64_t *end = t->value + operand[i] * width;
        EACH(l, width) begin[l] = later(begin[l], end[l]);
    }
    EACH(l, width) {
        begin[l] = later(begin[l] + gap, clock[l] + shift);
        clock[l] += step;
    }
}

/* As launch, for a row that follows a kernel of its stream and waits for one other at most;
   out = when it can begin, and `more`. */
INLINED void launch_simple(
    Tile *t, const Instruction *x, int64_t *out, int64_t more, int64_t width)
{
    const int64_t shift = x->host + x->launch, step = x->host + x->launch_cost, gap = x->gap;
    const int64_t *a = t->value + x->stream * width, *b = t->value + x->wait * width;
    int64_t *clock = t->clock;
    EACH(l, width) {
        out[l] = later(later(a[l], b[l]) + gap, clock[l] + shift) + more;
        clock[l] += step;
    }
}

INLINED void wait_on_host(
    Tile *t, const Instruction *x, const int32_t *operand, int64_t width)
{
    const int64_t host = x->host, tail = x->launch_cost;
    int64_t *clock = t->clock;
    EACH(l, width) clock[l] += host;
    for (int32_t i = 0; i < x->n_waits; i++) {
        const int64_t *end = t->value + operand[i] * width;
        EACH(l, width) clock[l] = later(clock[l], end[l]);
    }
    EACH(l, width) clock[l] += tail;
}

/* Start the communications on a slot within a tile; out = when each lane has ended. */
INLINED void end_columns(
    EngineState *e, const Tile *t, const Slot *s, int32_t k, int64_t duration, int64_t *out,
    const int64_t n)
{
    const int64_t *start = e->start, lanes = t->n_lanes;
    start_columns(e, t, s, k, n);
    for (int64_t first = 0; first < lanes; first += n) {
        EACH(g, n) out[first + g] = start[g] + duration;
    }
}

/* A communication alone in its kernel, whose lanes are ready at e->begin. */
INLINED void communicate(
    EngineState *e, Tile *t, const Instruction *x, int32_t row, int64_t *out, int64_t width)
{
    const Slot *s = &t->slot[x->slot];
    const int64_t duration = t->duration[row];
    if (s->kind == OUTSIDE) {
        const int64_t lanes = width == 1 ? 1 : t->n_lanes;
        for (int64_t l = 0; l < lanes; l++)
            out[l] = s->binding[l].first + x->ordinal;
        t->pending[x->target] = row + 1;
        post(e, t, s, x->ordinal, lanes);
    } else if (s->kind == SCATTERED) {
        start_scattered(e, t, s, x->ordinal);
        for (int64_t l = 0; l < t->n_lanes; l++)
            out[l] = e->start[s->column[l]] + duration;
    } else if (s->n_columns == 1) {
        start_all(e, t, s, x->ordinal);
        const int64_t end = e->start[0] + duration;
        EACH(l, width) out[l] = end;
    } else if (s->n_columns == WIDTH) {
        end_columns(e, t, s, x->ordinal, duration, out, WIDTH);
    } else {
        end_columns(e, t, s, x->ordinal, duration, out, s->n_columns);
    }
}

INLINED void execute(EngineState *e, Tile *t, int32_t row, int64_t width)
{
    const Instruction *x = &t->code[row];
    const int32_t *operand = t->operands + x->first_wait - x->n_leading;
    int64_t *device = t->device, *out = t->value + x->target * width;
    if (x->opcode == SIMPLE_KERNEL && !t->factor) {  /* most rows: no detour by e->begin */
        launch_simple(t, x, out, t->duration[row], width);
    } else if (x->opcode <= BATCH) {
        if (x->opcode <= SIMPLE_POST)
            launch_simple(t, x, e->begin, 0, width);
        else
            launch(e, t, x, operand, width);
        if (x->opcode == SIMPLE_KERNEL || x->opcode == KERNEL)
            add_durations(e, t, row, out, width);
        else if (x->opcode == BATCH)
            post_of_batch(e, t, x, row);
        else
            communicate(e, t, x, row, out, width);
    } else if (x->opcode == JOIN) {
        post_of_batch(e, t, x, row);
    } else if (x->opcode == HOST) {
        const int64_t host = x->host;
        EACH(l, width) t->clock[l] += host;
        return;
    } else {
        wait_on_host(t, x, operand, width);
        return;
    }
    if (x->may_end_last && !t->pending[x->target]) {
        EACH(l, width) device[l] = later(device[l], out[l]);
    }
}

INLINED int is_known(EngineState *e, Tile *t, int32_t reg, int64_t width)
{
    if (!t->pending[reg])
        return 1;
    return width == 1 ? resolve_lane(e, t, reg) : resolve_lanes(e, t, reg);
}

/* Whether all that a row reads is known. */
INLINED int can_run(EngineState *e, Tile *t, int32_t row, int64_t width)
{
    if (row < t->n_rows && t->code[row].opcode <= SIMPLE_POST) {
        const Instruction *x = &t->code[row];
        return is_known(e, t, x->stream, width) && is_known(e, t, x->wait, width);
    }
    int32_t n;
    const int32_t *operand = reads(t, row, &n);
    for (int32_t i = 0; i < n; i++)
        if (!is_known(e, t, operand[i], width))
            return 0;
    return 1;
}

/* Execute rows until the tile blocks (0) or has ended (1). */
INLINED int advance(EngineState *e, Tile *t, int64_t width)
{
    int32_t row = t->row;
    while (can_run(e, t, row, width)) {
        if (row >= t->n_rows) {
            t->row = row;
            return 1;
        }
        execute(e, t, row++, width);
    }
    t->row = row;
    return 0;
}

CLONES static int advance_lanes(EngineState *e, Tile *t)
{
    switch (t->width) {  /* of few lanes, loops of known length */
    case WIDTH: return advance(e, t, WIDTH);
    case 2 * WIDTH: return advance(e, t, 2 * WIDTH);
    case 4 * WIDTH: return advance(e, t, 4 * WIDTH);
    default: return advance(e, t, t->width & -WIDTH);
    }
}

static int advance_lane(EngineState *e, Tile *t) { return advance(e, t, 1); }

/* Run tiles until none can move or `budget` rows are done; return how many ranks have ended. */
static inline int64_t run_tiles(EngineState *e, int64_t budget)
{
    const int64_t stop = e->rows_done + budget;
    int64_t ended = 0;
    while (e->n_ready > 0 && e->rows_done < stop) {
        Tile *t = &e->tiles[e->ready[--e->n_ready]];
        const int32_t before = t->row;
        t->ended = t->n_lanes == 1 ? advance_lane(e, t) : advance_lanes(e, t);
        e->rows_done += (int64_t)(t->row - before) * t->n_lanes;
        if (t->ended)
            ended += t->n_lanes;
    }
    return ended;
}

#endif
