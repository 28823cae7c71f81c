#include "base/map.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
  uint64_t hash;
  size_t n;
  unsigned char *key; /* NULL: free slot */
  void *value;        /* NULL with a key: removed */
} entry;

struct ttc__map {
  entry *slots;
  size_t cap, count, used; /* used counts removed entries too */
};

static inline uint64_t load64(const unsigned char *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline uint64_t mix(uint64_t a, uint64_t b) {
  __extension__ unsigned __int128 r = (unsigned __int128)a * b;
  return (uint64_t)r ^ (uint64_t)(r >> 64);
}

/* Multiply-and-fold over 16 bytes a round, in the manner of wyhash. */
uint64_t ttc__hash64(const void *bytes, size_t n) {
  const unsigned char *p = bytes;
  const uint64_t k0 = 0x9e3779b97f4a7c15u, k1 = 0xd6e8feb86659fd93u;
  uint64_t h = mix(n ^ k0, k1);
  for (; n >= 16; n -= 16, p += 16) {
    h = mix(load64(p) ^ k1 ^ h, load64(p + 8) ^ k0);
  }
  unsigned char tail[16] = {0};
  if (n != 0) {
    memcpy(tail, p, n);
  }
  return mix(mix(load64(tail) ^ k0 ^ h, load64(tail + 8) ^ k1), k0);
}

ttc__map *ttc__map_new(void) {
  return calloc(1, sizeof(ttc__map));
}

void ttc__map_free(ttc__map *m) {
  if (m == NULL) {
    return;
  }
  for (size_t i = 0; i < m->cap; i++) {
    free(m->slots[i].key);
  }
  free(m->slots);
  free(m);
}

size_t ttc__map_count(const ttc__map *m) {
  return m->count;
}

static entry *find(const ttc__map *m, const void *key, size_t n, uint64_t hash) {
  if (m->cap == 0) {
    return NULL;
  }
  for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
    entry *e = &m->slots[i];
    if (e->key == NULL) {
      return NULL;
    }
    if (e->hash == hash && e->n == n && memcmp(e->key, key, n) == 0 && e->value != NULL) {
      return e;
    }
  }
}

void *ttc__map_get(const ttc__map *m, const void *key, size_t n, uint64_t hash) {
  entry *e = find(m, key, n, hash);
  return e != NULL ? e->value : NULL;
}

static void place(entry *slots, size_t cap, const entry *e) {
  size_t i = e->hash & (cap - 1);
  while (slots[i].key != NULL) {
    i = (i + 1) & (cap - 1);
  }
  slots[i] = *e;
}

static bool grow(ttc__map *m) {
  size_t cap = 64;
  while (cap < (m->count + 1) * 4) {
    cap *= 2;
  }
  entry *slots = calloc(cap, sizeof *slots);
  if (slots == NULL) {
    return false;
  }
  for (size_t i = 0; i < m->cap; i++) {
    if (m->slots[i].value != NULL) {
      place(slots, cap, &m->slots[i]);
    } else {
      free(m->slots[i].key);
    }
  }
  free(m->slots);
  m->slots = slots;
  m->cap = cap;
  m->used = m->count;
  return true;
}

bool ttc__map_put(ttc__map *m, const void *key, size_t n, uint64_t hash, void *value) {
  entry *old = find(m, key, n, hash);
  if (old != NULL) {
    old->value = value;
    return true;
  }
  if ((m->used + 1) * 2 > m->cap && !grow(m)) {
    return false;
  }
  entry e = {.hash = hash, .n = n, .key = malloc(n != 0 ? n : 1), .value = value};
  if (e.key == NULL) {
    return false;
  }
  memcpy(e.key, key, n);
  place(m->slots, m->cap, &e);
  m->count++;
  m->used++;
  return true;
}

void *ttc__map_del(ttc__map *m, const void *key, size_t n, uint64_t hash) {
  entry *e = find(m, key, n, hash);
  if (e == NULL) {
    return NULL;
  }
  void *value = e->value;
  e->value = NULL;
  m->count--;
  return value;
}

bool ttc__map_next(const ttc__map *m, size_t *it, const void **key, size_t *n, void **value) {
  for (; *it < m->cap; ++*it) {
    const entry *e = &m->slots[*it];
    if (e->value != NULL) {
      *key = e->key;
      *n = e->n;
      *value = e->value;
      ++*it;
      return true;
    }
  }
  return false;
}
