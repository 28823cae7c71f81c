/* What a person at a terminal sees of a long compile: one line, written over and over, gone at the end. Whoever waits for the
 * program writes it, between two naps of the wait, so there is no thread to stop and nothing that outlives a Ctrl-C. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run/run.h"

#define SHOW_AFTER_NS ((int64_t)2 * 1000000000)

static atomic_flag taken = ATOMIC_FLAG_INIT;

static bool wanted(void) {
  const char *quiet = getenv("TORCH_TPU_QUIET");
  return isatty(STDERR_FILENO) == 1 && (quiet == NULL || quiet[0] == '\0' || strcmp(quiet, "0") == 0);
}

void ttc__progress_show(ttc__progress *p, const ttc_plan *plan) {
  int64_t waited = ttc__now_ns() - p->since_ns;
  if (waited < SHOW_AFTER_NS || (!p->shown && (!wanted() || atomic_flag_test_and_set(&taken)))) {
    return;
  }
  p->shown = true;
  ttc_device *dev = plan->dev;
  const char *name = ttc__op_row(plan->op)->name;
  ttc__lock_take(&dev->pool_lock);
  int njob = dev->njob + dev->nworker - dev->nworker_idle;
  ttc__lock_drop(&dev->pool_lock);
  if (njob > 1) {
    dprintf(STDERR_FILENO, "\r\033[Kcompiling %.60s and %d more: %lld s", name, njob - 1, (long long)(waited / 1000000000));
  } else {
    dprintf(STDERR_FILENO, "\r\033[Kcompiling %.60s: %lld s", name, (long long)(waited / 1000000000));
  }
}

void ttc__progress_end(ttc__progress *p) {
  if (p->shown) {
    dprintf(STDERR_FILENO, "\r\033[K");
    atomic_flag_clear(&taken);
  }
}
