/* TileDigest in C: see mpisim/engine/digest.py. */

#ifndef MPISIM_DIGEST_H
#define MPISIM_DIGEST_H

#include "common.h"

/* Loops over lanes pay most where vectors are widest; the loader picks what the processor has. */
#if defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && defined(__x86_64__) \
    && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define CLONES
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define EACH(lane, n) \
    _Pragma("GCC ivdep") _Pragma("GCC unroll 1") for (int64_t lane = 0; lane < (n); lane++)
#else
#define EACH(lane, n) for (int64_t lane = 0; lane < (n); lane++)
#endif

/* Add the hashes of the n communications of one slot, in order, `times` times to a 128-bit sum of
   two words, without those that `counted` says 0 of. Starts lie `stride` words apart. */
CLONES __attribute__((unused)) static void add_hashes(
    int64_t n, const uint64_t *low, const uint64_t *high, const uint64_t *counted,
    const int64_t *duration, const int64_t *start, int64_t stride, const uint64_t *size,
    int64_t times, uint64_t *sum)
{
    enum { BLOCK = 128 };
    uint64_t words[2][BLOCK], starts[BLOCK];
    unsigned __int128 total = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t m = n - first < BLOCK ? n - first : BLOCK;
        for (int64_t i = 0; i < m; i++)
            starts[i] = (uint64_t)start[(first + i) * stride];
        EACH(i, m) {
            const uint64_t at = starts[i];
            const uint64_t end = at + (uint64_t)duration[first + i];
            words[0][i] = mix(mix((low[first + i] + size[0]) ^ at) ^ end) * counted[first + i];
            words[1][i] = mix(mix((high[first + i] + size[1]) ^ at) ^ end) * counted[first + i];
        }
        for (int64_t i = 0; i < m; i++)
            total += ((unsigned __int128)words[1][i] << 64) | words[0][i];
    }
    total = total * (unsigned __int128)times + (((unsigned __int128)sum[1] << 64) | sum[0]);
    sum[0] = (uint64_t)total;
    sum[1] = (uint64_t)(total >> 64);
}

/* Likewise the hash of a rank's end. */
static inline void add_end(int64_t end, const uint64_t *seed, int64_t times, uint64_t *sum)
{
    unsigned __int128 total = ((unsigned __int128)mix((uint64_t)end ^ seed[1]) << 64)
        | mix((uint64_t)end ^ seed[0]);
    total = total * (unsigned __int128)times + (((unsigned __int128)sum[1] << 64) | sum[0]);
    sum[0] = (uint64_t)total;
    sum[1] = (uint64_t)(total >> 64);
}

#endif
