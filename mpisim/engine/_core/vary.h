/* Durations of a rank whose kernels vary: see mpisim/engine/duration_factors.py. */

#ifndef MPISIM_VARY_H
#define MPISIM_VARY_H

#include "digest.h"

/* Vary the durations of some rows by `factor` and, where `jitter` is the table of factors and not
   NULL, by one drawn for the row. Only hashes are vectors: the processor gathers slowly. */
CLONES static void vary_rows(
    int64_t *duration, const int64_t *row, int64_t n, uint64_t factor, uint64_t key,
    const uint64_t *jitter)
{
    enum { BLOCK = 128 };
    uint64_t word[BLOCK];
    if (!jitter) {
        for (int64_t i = 0; i < n; i++)
            duration[row[i]] = (int64_t)scaled((uint64_t)duration[row[i]], factor);
        return;
    }
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = n - first < BLOCK ? n - first : BLOCK;
        EACH(i, count)
            word[i] = mix(key + ((uint64_t)row[first + i] + 1) * UINT64_C(0x9E3779B97F4A7C15)) >> 52;
        for (int64_t i = 0; i < count; i++) {
            int64_t *one = &duration[row[first + i]];
            *one = (int64_t)scaled((uint64_t)*one, scaled(jitter[word[i]], factor));
        }
    }
}

#endif
