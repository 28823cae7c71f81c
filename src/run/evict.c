/* Plans are kept for calls to come, but not for ever: a program that meets ever new shapes would keep every executable it made. */
#include <stdio.h>
#include <stdlib.h>

#include "run/run.h"

#define MAX_PLANS 4096      /* an executable of XLA:CPU holds about 100 kB */
#define LOOK_EACH_TIMES 128 /* that a plan is made, for a look takes milliseconds */
#define MAPPINGS_PART 2     /* of those that a process may have: fused programs and others want some too */

/* An executable of XLA:CPU has 4 to 20 mappings of memory, of which Linux lets a process have 65,530 if not told otherwise
 * (vm.max_map_count). At the last one XLA does not fail, but ends the process: when it makes a program, or when that is run. */
static bool many_mappings(void) {
  FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
  long most = 0, n = 0;
  char bytes[4096];
  bool known = f != NULL && fscanf(f, "%ld", &most) == 1;
  if (f != NULL) {
    fclose(f);
  }
  f = known ? fopen("/proc/self/maps", "re") : NULL; /* a line each */
  for (size_t got; f != NULL && (got = fread(bytes, 1, sizeof bytes, f)) != 0;) {
    for (size_t k = 0; k < got; k++) {
      n += bytes[k] == '\n' ? 1 : 0;
    }
  }
  if (f != NULL) {
    fclose(f);
  }
  return n > most / MAPPINGS_PART;
}

static int by_use(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

uint64_t ttc__oldest_kept(uint64_t *uses, size_t n, size_t part) {
  if (n == 0) {
    return 0;
  }
  qsort(uses, n, sizeof *uses, by_use);
  return uses[n / part];
}

typedef struct victim {
  const void *key;
  size_t n;
} victim;

ttc_plan *ttc__plans_evict(ttc_device *dev) {
  size_t count = ttc__map_count(dev->plans), it = 0, n, seen = 0, nvictim = 0;
  bool many = dev->info.simulated && ++dev->nmade % LOOK_EACH_TIMES == 0 && many_mappings();
  if (count < MAX_PLANS && !many) {
    return NULL;
  }
  uint64_t *uses = malloc(count * sizeof *uses);
  victim *victims = malloc(count * sizeof *victims);
  const void *key;
  void *value;
  while (uses != NULL && victims != NULL && ttc__map_next(dev->plans, &it, &key, &n, &value)) {
    uses[seen++] = ((const ttc_plan *)value)->last_use;
  }
  uint64_t oldest_kept = ttc__oldest_kept(uses, seen, many ? 2 : 4);
  for (it = 0; oldest_kept != 0 && ttc__map_next(dev->plans, &it, &key, &n, &value);) {
    const ttc_plan *plan = value;
    if (plan->last_use < oldest_kept && atomic_load(&plan->refs) == 1) { /* neither queued nor being compiled */
      victims[nvictim++] = (victim){key, n};
    }
  }
  ttc_plan *list = NULL;
  for (size_t k = 0; k < nvictim; k++) {
    ttc_plan *plan = ttc__map_del(dev->plans, victims[k].key, victims[k].n, ttc__hash64(victims[k].key, victims[k].n));
    plan->next_job = list;
    list = plan;
  }
  free(uses);
  free(victims);
  return list;
}
