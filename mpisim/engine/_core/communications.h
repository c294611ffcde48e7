/* Communications of the tiled core: who is ready, and what starts.

   A communication starts when the last of its members is ready; one loop does it for all lanes of
   the tile that posts. Which loop is a matter of the slot (Slot.kind):

     OUTSIDE    post() counts the lanes one by one; the last of all members, here or heard from
                another process by deliver(), starts the communication and wakes its waiters
     COLUMNS    all members of each communicator are lanes, n_columns apart: start_columns(), or
                start_all() where there is but one communicator
     SCATTERED  all members are lanes, anywhere: start_scattered()

   The last three need no waiters: see COMMUNICATIONS in tile_state.h, and why neither the order of
   posts nor the number of processes shows. */

#ifndef MPISIM_COMMUNICATIONS_H
#define MPISIM_COMMUNICATIONS_H

#include "tile_state.h"

/* Take in when a member is ready. Commutative and associative. */
static inline void merge(Communication *communication, int64_t ready, int32_t last)
{
    if (communication->last == 0 || ready > communication->time
        || (ready == communication->time && last < communication->last)) {
        communication->time = ready;
        communication->last = last;
    }
}

/* Put a communication into the outbox: other processes have to know of it. */
static inline void notify(EngineState *e, int64_t number) { e->outgoing[e->n_outgoing++] = number; }

/* Start a communication all of whose members are ready, and wake the tiles that wait for it.
   Its owner tells the processes of the members. */
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

/* Put a tile into the list of waiters of a communication that has not started. */
static inline void wait_for(EngineState *e, Tile *t, int64_t number)
{
    t->next_waiter = e->waiting[number].waiter;
    e->waiting[number].waiter = (int32_t)(t - e->tiles) + 1;
}

/* A message: the last of another process's members is ready. */
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

/* Start the k-th communications on a slot all of whose members are lanes of the tile, at e->start
   each. Lane l has column l % n; members are lanes in the order of their numbers, so the first that
   is ready last is the lowest. */
INLINED void start_columns(EngineState *e, const Tile *t, const Slot *s, int32_t k, const int64_t n)
{
    const int64_t *begin = e->begin, lanes = t->n_lanes;
    int64_t *start = e->start, *last_lane = e->last_lane;
    EACH(g, n) {
        start[g] = begin[g];
        last_lane[g] = 0;
    }
    for (int64_t first = n; first < lanes; first += n) {
        EACH(g, n) {
            const int64_t ready = begin[first + g];
            last_lane[g] = ready > start[g] ? first : last_lane[g];
            start[g] = later(ready, start[g]);
        }
    }
    for (int64_t g = 0; g < n; g++) {
        Communication *communication = &e->communications[s->binding[g].first + k];
        *communication = (Communication){start[g], t->number[last_lane[g] + g] + 1, STARTED};
    }
}

/* Likewise, where all lanes are members of one communicator. */
INLINED void start_all(EngineState *e, const Tile *t, const Slot *s, int32_t k)
{
    const int64_t *begin = e->begin, lanes = t->n_lanes;
    int64_t start = begin[0], last_lane = 0;
    EACH(l, lanes) start = later(start, begin[l]);
    for (int64_t l = lanes - 1; l >= 0; l--)
        last_lane = begin[l] == start ? l : last_lane;
    e->start[0] = start;
    e->communications[s->binding[0].first + k]
        = (Communication){start, t->number[last_lane] + 1, STARTED};
}

/* Likewise, wherever members lie; e->start of each lane's column. */
static void start_scattered(EngineState *e, const Tile *t, const Slot *s, int32_t k)
{
    for (int64_t l = 0; l < t->n_lanes; l++)
        merge(&e->communications[s->binding[l].first + k], e->begin[l], t->number[l] + 1);
    for (int64_t l = 0; l < t->n_lanes; l++) {
        e->communications[s->binding[l].first + k].posted = STARTED;
        e->start[s->column[l]] = e->communications[s->binding[l].first + k].time;
    }
}

#endif
