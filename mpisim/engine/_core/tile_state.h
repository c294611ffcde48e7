/* State of the tiled core: tiles of lanes, registers, communications.

   A tile is ranks of one table and one array of durations, its lanes, side by side. All lanes
   are at the same row; a row is decoded once for all of them. Read on in communications.h (who is
   ready, what starts), registers.h (what a row reads is known, or whom the tile waits for) and
   lanes.h (what a row does). Letters: e the engine, t a tile, s a slot, x an instruction, l a lane.

   EXAMPLE. Two ranks of one table, which begin at 0 and at 4; launches and gaps take no time:

      row 0  a kernel of 5                           → register 0
      row 1  an all-reduce of 3, that waits for it   → register 1
      row 2  a kernel of 2, that waits for that      → register 2

   As lanes of one tile all members are inside (COLUMNS), and no row ever blocks:

      row 0  value = 5, 9
      row 1  starts in place at max(5, 9) = 9: value = 12, 12; pending[1] = 0
      row 2  value = 14, 14

   As two tiles (OUTSIDE), of which the first runs first:

      tile 0  row 0  value = 5
              row 1  posts: time 5, last rank 0, posted 1 of 2; value = the communication's number,
                     pending[1] = 2, that is row 1 plus 1
              row 2  reads register 1: not STARTED, so wait_for() and back to run_tiles
      tile 1  row 0  value = 9
              row 1  posts: time 9, last rank 1, posted 2 of 2; STARTED, and tile 0 is on `ready`
              row 2  resolve(): value = 9 + 3 = 12, pending[1] = 0; then 14
      tile 0  row 2  tried again: resolve() as above; 14

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
   in the list of waiters of one communication that has not started, or has ended or is parked.
   wait_for() is called for the first such communication that is found, and ends the attempt;
   starting it puts its waiters onto the stack. So a tile may proceed when every lane knows all
   that the row reads, and no wake-up is lost. Lanes of a tile can wait for each other: then no
   tile can move though some lanes could, and Core.split() parts the lanes that can go on from those
   that cannot. Repeating this ends with tiles of one lane, so no deadlock is reported that ranks by
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

   HORIZON. A tile that needs the end of a communication which is looked up, at the horizon or
   later, is *parked*: it stays where it is, on no list, until the run is over. Times of rows before are as
   in a run without a horizon.

   INTEGERS. Times are int64 ps: a start offset and the sum of all durations of a rank are below
   2**60 each (mpisim/engine/cost.py). Registers, lanes, rows and ranks are int32; numbers of
   communications int64. Lanes from n_lanes to width pad vectors: they start at 0, hold numbers
   that nobody reads, and grow no faster than those of other lanes. */

#ifndef MPISIM_TILE_STATE_H
#define MPISIM_TILE_STATE_H

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
    /* Scratch of whichever tile runs: of each lane, when it is ready; of each column of a slot,
       when its communication starts and which lane is ready last. */
    int64_t *begin, *start, *last_lane;
    const uint64_t *jitter;
    const int64_t *taken;  /* of each communication: see TAKEN */
    int64_t horizon;  /* see HORIZON */
    int64_t n_ready, n_outgoing, rows_done;
} EngineState;

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
