/* Sorting of (key, item) pairs by key: merges of runs, as they come mostly in order. */

#ifndef MPISIM_SORT_H
#define MPISIM_SORT_H

#include <stdint.h>
#include <string.h>

typedef struct {  /* as Entry in heap.pxd */
    int64_t key, item;
} SortEntry;

enum { SORT_RUN = 16 };

/* Sort entries by key; equal keys keep their order. `scratch` has room for as many. */
static inline void sort_entries(SortEntry *entries, SortEntry *scratch, int64_t n)
{
    SortEntry *from = entries, *to = scratch, *other;
    for (int64_t first = 0; first < n; first += SORT_RUN) {
        const int64_t end = first + SORT_RUN < n ? first + SORT_RUN : n;
        for (int64_t i = first + 1; i < end; i++) {
            const SortEntry entry = from[i];
            int64_t at = i;
            for (; at > first && from[at - 1].key > entry.key; at--)
                from[at] = from[at - 1];
            from[at] = entry;
        }
    }
    for (int64_t width = SORT_RUN; width < n; width *= 2) {
        for (int64_t first = 0; first < n; first += 2 * width) {
            const int64_t middle = first + width < n ? first + width : n;
            const int64_t end = first + 2 * width < n ? first + 2 * width : n;
            int64_t a = first, b = middle, at = first;
            if (b == end || from[b - 1].key <= from[b].key) {  /* in order already */
                memcpy(to + first, from + first, (size_t)(end - first) * sizeof(SortEntry));
                continue;
            }
            while (a < middle && b < end)
                to[at++] = from[b].key < from[a].key ? from[b++] : from[a++];
            memcpy(to + at, from + a, (size_t)(middle - a) * sizeof(SortEntry));
            memcpy(to + at + (middle - a), from + b, (size_t)(end - b) * sizeof(SortEntry));
        }
        other = from;
        from = to;
        to = other;
    }
    if (from != entries)
        memcpy(entries, from, (size_t)n * sizeof(SortEntry));
}

#endif
