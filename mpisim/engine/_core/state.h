/* What the compiled cores share. */

#ifndef MPISIM_STATE_H
#define MPISIM_STATE_H

#include <stdint.h>

enum { PLAIN, PLAIN_MEET, KERNEL, MEET, BATCH, JOIN, HOST, HOST_WAIT };
enum { LOCAL, PEER, MEMBER, OWNER };

typedef struct {  /* laid out as in mpisim/engine/lowering.py; numpy checks the fields */
    int64_t host, launch, launch_cost, gap;
    int32_t target, stream, other, first_wait, n_waits, slot, ordinal;
    uint8_t opcode, eager, n_before, tops;
} Instruction;

/* Scramble a word: see mpisim/engine/digest.py. */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* (value * factor + 2^31) >> 32, exactly: see scaled in mpisim/engine/duration_factors.py. */
static inline uint64_t scaled(uint64_t value, uint64_t factor)
{
    const uint64_t high = value >> 32, low = (uint32_t)value, part = (uint32_t)factor;
    return value * (factor >> 32) + high * part + ((low * part + (UINT64_C(1) << 31)) >> 32);
}

#endif
