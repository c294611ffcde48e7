/* What all compiled engine modules share: instructions, roles, and two functions on words. */

#ifndef MPISIM_COMMON_H
#define MPISIM_COMMON_H

#include <stdint.h>

/* As Opcode in mpisim/engine/lowering.py. The order matters: a row is launched on a stream up to
   BATCH, belongs to the device up to JOIN, and reads at most two registers up to SIMPLE_POST. */
enum { SIMPLE_KERNEL, SIMPLE_POST, KERNEL, POST, BATCH, JOIN, HOST, HOST_WAIT };

/* As Role in mpisim/engine/distribution.py. */
enum { LOCAL, PEER, MEMBER, OWNER };

#define NO_TIME INT64_MIN /* before any time: nothing has happened yet */

typedef struct {  /* laid out as INSTRUCTION in mpisim/engine/lowering.py; numpy checks it */
    int64_t host, launch, launch_cost, gap;
    int32_t target, stream, wait, first_wait, n_waits, slot, ordinal;
    uint8_t opcode, eager, n_leading, may_end_last;
} Instruction;

/* Scramble a word: see mpisim/engine/digest.py. */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* (value * factor + 2^31) >> 32, exactly: see scaled in mpisim/engine/variation.py. No term
   overflows while the result fits: value is split into halves, and factor into its integer and
   fractional part. */
static inline uint64_t scaled(uint64_t value, uint64_t factor)
{
    const uint64_t high = value >> 32, low = (uint32_t)value, part = (uint32_t)factor;
    return value * (factor >> 32) + high * part + ((low * part + (UINT64_C(1) << 31)) >> 32);
}

#endif
