/* Which lines of Python the calls of a fused program come from, for errors. They are asked for in one round only, the one after its
 * program was asked for, so that they cost nothing afterwards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/fuse.h"

#define MAX_LINES 65536u
#define MAX_TOLD 3

static ttc_line_fn *_Atomic source;

void ttc_set_line_source(ttc_line_fn *fn) {
  atomic_store(&source, fn);
}

/* Lines live for ever, each once; their numbers begin with 1. */
static ttc__lock lines_lock = TTC__LOCK_INIT(TTC__RANK_CACHE);
static ttc__map *numbers;
static char **lines;
static uint32_t nline, line_cap;

static uint32_t number_of(const char *line) {
  size_t n = strlen(line);
  uint64_t hash = ttc__hash64(line, n);
  ttc__lock_take(&lines_lock);
  numbers = numbers != NULL ? numbers : ttc__map_new();
  uint32_t found = numbers != NULL ? (uint32_t)(uintptr_t)ttc__map_get(numbers, line, n, hash) : 0;
  if (found == 0 && numbers != NULL && nline < MAX_LINES) {
    if (nline == line_cap) {
      char **p = realloc(lines, (2 * line_cap + 64) * sizeof *p);
      lines = p != NULL ? p : lines;
      line_cap = p != NULL ? 2 * line_cap + 64 : line_cap;
    }
    char *copy = nline < line_cap ? strdup(line) : NULL;
    void *next = (void *)(uintptr_t)(nline + 1);  // NOLINT: a number, kept as a pointer
    if (copy != NULL && ttc__map_put(numbers, line, n, hash, next)) {
      lines[nline++] = copy;
      found = nline;
    } else {
      free(copy);
    }
  }
  ttc__lock_drop(&lines_lock);
  return found;
}

static const char *line_of(uint32_t at) {
  ttc__lock_take(&lines_lock);
  const char *line = at != 0 ? lines[at - 1] : "";
  ttc__lock_drop(&lines_lock);
  return line;
}

#define UNASKED UINT32_MAX
static _Thread_local uint32_t here = UNASKED;

void ttc__where_ask(void) {
  char line[256] = "";
  ttc_line_fn *ask = atomic_load(&source);
  if (ask != NULL) {
    ask(line, sizeof line);
  }
  here = line[0] != '\0' ? number_of(line) : 0;
}

/* ------------------------------------------------------------------------------------------------- under the dispatch lock */

#define ROUNDS 64u /* cuts after which the lines of what does not come again are given up */

static uint32_t *place_of(ttc__fuse *f, uint32_t i) {
  return &f->lines[(f->first + i) & (NOTED_LINES - 1)];
}

void ttc__where_begin(ttc_device *dev) {
  ttc__fuse *f = dev->fuse;
  if (atomic_load(&source) == NULL) {
    return;
  }
  if (f->unplaced++ == 0) {
    memset(f->lines, 0xff, sizeof f->lines);
    atomic_store_explicit(&dev->asks_lines, true, memory_order_relaxed);
  }
  f->rounds = ROUNDS;
}

void ttc__where_note(ttc__fuse *f, uint32_t i) {
  *place_of(f, i) = here;
  here = UNASKED;
}

void ttc__where_keep(ttc_device *dev, uint32_t n, ttc__recipe *e) {
  ttc__fuse *f = dev->fuse;
  uint32_t k = 0;
  if (atomic_load_explicit(&e->lines, memory_order_relaxed) != NULL) {
    return;
  }
  uint32_t *kept = calloc(e->npart + 1, sizeof *kept);
  for (uint32_t i = 0; kept != NULL && i < n; i++) {
    if (ttc__trace_record(dev, i)->plan != NULL) {
      kept[k] = *place_of(f, i);
      if (kept[k++] == UNASKED) {
        free(kept);
        return;
      }
    }
  }
  atomic_store_explicit(&e->lines, kept, memory_order_release);
  f->unplaced--;
}

void ttc__where_cut(ttc_device *dev) {
  ttc__fuse *f = dev->fuse;
  if (--f->rounds == 0 || f->unplaced == 0) {
    f->unplaced = 0;
    atomic_store_explicit(&dev->asks_lines, false, memory_order_relaxed);
  }
}

/* ---------------------------------------------------------------------------------------------------- under the launch lock */

const char *ttc__where_part(ttc__recipe *e, uint32_t i) {
  const uint32_t *at = atomic_load_explicit(&e->lines, memory_order_acquire);
  return at != NULL ? line_of(at[i]) : "";
}

void ttc__where_checked(ttc_device *dev, ttc_plan *plan) {
  if (dev->checker != plan) {
    ttc__plan_release(dev->checker);
    dev->checker = plan;
    dev->ncheckers++;
    atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
  }
}

void ttc__where_forget(ttc_device *dev) {
  ttc__plan_release(dev->checker);
  dev->checker = NULL;
  dev->ncheckers = 0;
}

void ttc__where_tell(ttc_device *dev, uint32_t op, ttc_error *err) {
  ttc__recipe *e = dev->ncheckers == 1 ? dev->checker->recipe : NULL;
  const char *told[MAX_TOLD] = {0};
  int n = 0;
  for (uint32_t i = 0; e != NULL && i < e->npart; i++) {
    const char *line = e->parts[i].plan->op == op ? ttc__where_part(e, i) : "";
    int k = 0;
    while (k < n && told[k] != line) { /* each line is there once */
      k++;
    }
    if (line[0] != '\0' && k == MAX_TOLD) {
      return; /* too many to be of help */
    }
    if (line[0] != '\0' && k == n) {
      told[n++] = line;
    }
  }
  for (int k = 0; k < n; k++) {
    size_t at = strlen(err->message);
    snprintf(err->message + at, sizeof err->message - at, "%s%s", k == 0 ? " (called at " : " or at ", told[k]);
  }
  size_t at = strlen(err->message);
  snprintf(err->message + at, sizeof err->message - at, "%s", n != 0 ? ")" : "");
}
