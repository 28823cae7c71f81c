/* A bump allocator: one a compile, freed whole. Not thread safe. */
#ifndef TTC_BASE_ARENA_H
#define TTC_BASE_ARENA_H

#include <stddef.h>

typedef struct ttc__arena ttc__arena;

/* max_nbyte caps the sum of all allocations. NULL when out of memory. */
ttc__arena *ttc__arena_new(size_t max_nbyte);
void ttc__arena_free(ttc__arena *a);
/* Zeroed, 16-byte aligned; NULL when out of memory or over the cap. */
void *ttc__arena_alloc(ttc__arena *a, size_t nbyte);
char *ttc__arena_strdup(ttc__arena *a, const char *s);

#endif
