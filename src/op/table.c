/* Collects the families' rows into one table; ops registered later (graphs) follow the rows. */
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "base/map.h"
#include "op/lower.h"

typedef struct family {
  const char *name;
  const ttc_op_row *rows;
  const unsigned *nrow;
} family;

#define ENTRY(f) {#f, ttc__##f##_rows, &ttc__##f##_nrow},
static const family families[] = {TTC__FAMILIES(ENTRY)};
#undef ENTRY
#define NFAMILY (sizeof families / sizeof *families)

/* Registered ops live in chunks that never move, so that readers need no lock. */
#define CHUNK 256u
#define NCHUNK 4096u
typedef struct dynamic_op {
  const ttc_op_row *row;
  void *data;
  ttc__program_fn program;
} dynamic_op;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const ttc_op_row **rows;
static const char **row_family;
static ttc__map *by_name;
static uint32_t nrow;
static dynamic_op *chunks[NCHUNK];
static uint32_t ndynamic;
static ttc__lock register_lock = TTC__LOCK_INIT(TTC__RANK_CACHE);

static void build(void) {
  uint32_t n = 0;
  for (size_t f = 0; f < NFAMILY; f++) {
    n += *families[f].nrow;
  }
  rows = calloc(n + 1, sizeof *rows);
  row_family = calloc(n + 1, sizeof *row_family);
  by_name = ttc__map_new();
  TTC_ASSERT(rows != NULL && row_family != NULL && by_name != NULL);
  for (size_t f = 0; f < NFAMILY; f++) {
    for (unsigned i = 0; i < *families[f].nrow; i++) {
      const ttc_op_row *r = &families[f].rows[i];
      size_t len = strlen(r->name);
      uint64_t hash = ttc__hash64(r->name, len);
      TTC_ASSERT(ttc__map_get(by_name, r->name, len, hash) == NULL); /* two rows of one name */
      rows[nrow] = r;
      row_family[nrow] = families[f].name;
      TTC_ASSERT(ttc__map_put(by_name, r->name, len, hash, (void *)(uintptr_t)(nrow + 1)));
      nrow++;
    }
  }
}

static const dynamic_op *dynamic(uint32_t op) {
  uint32_t i = op - nrow;
  if (i >= __atomic_load_n(&ndynamic, __ATOMIC_ACQUIRE)) {
    return NULL;
  }
  return &chunks[i / CHUNK][i % CHUNK];
}

const ttc_op_row *ttc__op_row(uint32_t op) {
  pthread_once(&once, build);
  if (op < nrow) {
    return rows[op];
  }
  const dynamic_op *d = dynamic(op);
  return d != NULL ? d->row : NULL;
}

const char *ttc__op_family(uint32_t op) {
  pthread_once(&once, build);
  return op < nrow ? row_family[op] : "graph";
}

void *ttc__op_data(uint32_t op) {
  const dynamic_op *d = op >= nrow ? dynamic(op) : NULL;
  return d != NULL ? d->data : NULL;
}

ttc__program_fn ttc__op_program(uint32_t op) {
  const dynamic_op *d = op >= nrow ? dynamic(op) : NULL;
  return d != NULL ? d->program : NULL;
}

uint32_t ttc__op_register(const ttc_op_row *row, void *data) {
  return ttc__op_register_program(row, data, NULL);
}

uint32_t ttc__op_register_copy(const ttc_op_row *row) {
  ttc_op_row *own = malloc(sizeof *own);
  char *name = strdup(row->name);
  uint32_t op = UINT32_MAX;
  if (own != NULL && name != NULL) {
    *own = *row;
    own->name = name;
    op = ttc__op_register(own, NULL);
  }
  if (op == UINT32_MAX) {
    free(own);
    free(name);
  }
  return op;
}

uint32_t ttc__op_register_program(const ttc_op_row *row, void *data, ttc__program_fn fn) {
  pthread_once(&once, build);
  uint32_t op = UINT32_MAX;
  ttc__lock_take(&register_lock);
  uint32_t i = ndynamic;
  if (i / CHUNK < NCHUNK) {
    dynamic_op **chunk = &chunks[i / CHUNK];
    if (*chunk == NULL) {
      *chunk = calloc(CHUNK, sizeof **chunk);
    }
    if (*chunk != NULL) {
      (*chunk)[i % CHUNK] = (dynamic_op){row, data, fn};
      __atomic_store_n(&ndynamic, i + 1, __ATOMIC_RELEASE);
      op = nrow + i;
    }
  }
  ttc__lock_drop(&register_lock);
  return op;
}

uint32_t ttc_op_count(void) {
  pthread_once(&once, build);
  return nrow;
}

uint32_t ttc_op_find(const char *name) {
  pthread_once(&once, build);
  size_t len = strlen(name);
  uintptr_t v = (uintptr_t)ttc__map_get(by_name, name, len, ttc__hash64(name, len));
  return v != 0 ? (uint32_t)(v - 1) : UINT32_MAX;
}

bool ttc_op_get(uint32_t op, ttc_op_info *out) {
  static const struct {
    double rtol, atol;
  } tolerances[] = {[TOL_EXACT] = {0, 0},       [TOL_2ULP] = {3e-7, 1e-38}, [TOL_4ULP] = {6e-7, 1e-37}, [TOL_SUM] = {1.3e-6, 1e-5},
                    [TOL_DOT] = {1.3e-6, 1e-5}, [TOL_LOOSE] = {1e-4, 1e-4}, [TOL_RANDOM] = {0, 0}};
#define WORD(name, word) word,
  static const char *const pads[] = {TTC__PADS(WORD)};
#undef WORD
  const ttc_op_row *r = ttc__op_row(op);
  if (r == NULL) {
    return false;
  }
  *out = (ttc_op_info){.name = r->name,
                       .family = ttc__op_family(op),
                       .flags = r->flags,
                       .rtol = tolerances[r->tol].rtol,
                       .atol = tolerances[r->tol].atol,
                       .note = r->note != NULL ? r->note : "",
                       .pad = pads[r->pad]};
  return true;
}
