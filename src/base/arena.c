#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_NBYTE ((size_t)16 << 10)

typedef struct block {
  struct block *next;
  size_t used, cap;
  _Alignas(16) char data[];
} block;

struct ttc__arena {
  block *head;
  size_t total, max;
};

ttc__arena *ttc__arena_new(size_t max_nbyte) {
  ttc__arena *a = calloc(1, sizeof *a);
  if (a != NULL) {
    a->max = max_nbyte;
  }
  return a;
}

void ttc__arena_free(ttc__arena *a) {
  if (a == NULL) {
    return;
  }
  for (block *b = a->head; b != NULL;) {
    block *next = b->next;
    free(b);
    b = next;
  }
  free(a);
}

void *ttc__arena_alloc(ttc__arena *a, size_t nbyte) {
  if (nbyte > a->max - a->total || nbyte > SIZE_MAX - sizeof(block) - 15) {
    return NULL;
  }
  size_t n = (nbyte + 15) & ~(size_t)15;
  block *b = a->head;
  if (b == NULL || b->cap - b->used < n) {
    size_t cap = n > BLOCK_NBYTE ? n : BLOCK_NBYTE;
    b = malloc(sizeof *b + cap);
    if (b == NULL) {
      return NULL;
    }
    b->used = 0;
    b->cap = cap;
    b->next = a->head;
    a->head = b;
  }
  void *p = b->data + b->used;
  b->used += n;
  a->total += nbyte;
  memset(p, 0, nbyte);
  return p;
}

char *ttc__arena_strdup(ttc__arena *a, const char *s) {
  size_t n = strlen(s) + 1;
  char *p = ttc__arena_alloc(a, n);
  if (p != NULL) {
    memcpy(p, s, n);
  }
  return p;
}
