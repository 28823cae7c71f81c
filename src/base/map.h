/* A hash map from byte strings to pointers (open addressing). Keys are copied. Not thread safe. */
#ifndef TTC_BASE_MAP_H
#define TTC_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ttc__map ttc__map;

/* 64 bits, well mixed, not secure: for tables in memory only. */
uint64_t ttc__hash64(const void *bytes, size_t n);

ttc__map *ttc__map_new(void); /* NULL when out of memory */
void ttc__map_free(ttc__map *m);
size_t ttc__map_count(const ttc__map *m);
/* NULL if absent. hash must be ttc__hash64(key, n). */
void *ttc__map_get(const ttc__map *m, const void *key, size_t n, uint64_t hash);
/* Insert or replace; false when out of memory (the map is unchanged). value must not be NULL. */
bool ttc__map_put(ttc__map *m, const void *key, size_t n, uint64_t hash, void *value);
/* The removed value, or NULL. */
void *ttc__map_del(ttc__map *m, const void *key, size_t n, uint64_t hash);
/* Visit all entries: *it starts at 0; false at the end. The map must not change meanwhile. */
bool ttc__map_next(const ttc__map *m, size_t *it, const void **key, size_t *n, void **value);

#endif
