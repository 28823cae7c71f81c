/* What is launched ahead of its trace's cut. Keeping records back is worth it only where they may become one program; other code
 * would have the device wait while it is recorded, and wait itself afterwards. So a trace is kept back while it is how a piece with
 * a program begins, told by its plans alone, and once it is not its records are given to the queue as they come. A trace whose
 * pieces are found late, when a loop is seen in it, is learned as a whole: a program was there and could not be used.
 *
 * Such a record leaves its shell in the ring: the plan, and which stores the call had. What a trace is told by at its cut, what its
 * program is made of, loops and lines are all taken from shells as from records. Stores' addresses stay theirs until then; their
 * contents go when nobody else has them, as in Strict. */
#include <stdlib.h>

#include "run/fuse.h"

/* Paths that share a bit have a trace kept back for a record too long. */
static uint64_t *word_of(ttc__fuse *f, uint64_t path, uint64_t *bit) {
  uint64_t at = path / (UINT64_MAX / BEGINNINGS + 1);
  *bit = UINT64_C(1) << (at & 63);
  return &f->beginnings[at >> 6];
}

static void learn(ttc__fuse *f, uint64_t path) {
  uint64_t bit, *word = word_of(f, path, &bit);
  *word |= bit;
}

void ttc__ahead_learn(ttc__fuse *f, const ttc__recipe *e) {
  uint64_t path = 0;
  for (uint32_t i = 0; i < e->npart; i++) {
    path = ttc__mix(path, e->parts[i].plan->serial);
    learn(f, path);
  }
}

/* Programs are made in the order they are asked for. */
void ttc__ahead_look(ttc__fuse *f) {
  while (f->nasked != 0) {
    ttc_plan *plan = f->asked[f->first_asked];
    int state = atomic_load_explicit(&plan->state, memory_order_acquire);
    if (state == PLAN_COMPILING) {
      return;
    }
    if (state == PLAN_READY) {
      ttc__ahead_learn(f, plan->recipe);
    }
    ttc__plan_release(plan);
    f->first_asked = (f->first_asked + 1) % MAX_WAITING;
    f->nasked--;
  }
}

void ttc__ahead_await(ttc__fuse *f, ttc_plan *plan) {
  ttc__ahead_look(f);
  if (f->nasked < MAX_WAITING) {
    atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
    f->asked[(f->first_asked + f->nasked++) % MAX_WAITING] = plan;
  }
}

void ttc__ahead_reset(ttc_device *dev) {
  ttc__fuse *f = dev->fuse;
  for (uint32_t i = 0; f->missed && i < f->npath; i++) {
    learn(f, f->paths[i]);
  }
  f->missed = false;
  f->path = 0;
  f->npath = 0;
  f->ahead = atomic_load_explicit(&dev->sent, memory_order_relaxed) != 0;
}

void ttc__ahead_add(ttc__fuse *f, const record *r) {
  if (r->plan != NULL) { /* copies into new stores are no part of what a trace is known by */
    uint64_t bit;
    f->path = ttc__mix(f->path, r->plan->serial);
    f->paths[f->npath++] = f->path;
    f->ahead = f->ahead || (*word_of(f, f->path, &bit) & bit) == 0;
  }
}

void ttc__ahead_send(ttc_device *dev) {
  uint32_t sent = atomic_load_explicit(&dev->sent, memory_order_relaxed);
  uint32_t n = atomic_load_explicit(&dev->open, memory_order_relaxed);
  for (uint32_t i = sent; i < n; i++) {
    record *r = ttc__trace_record(dev, i);
    atomic_store_explicit(&r->shell, SHELL_NOTED, memory_order_relaxed);
    for (uint32_t k = 0; k < r->nstore; k++) {
      if (r->stores[k] != NULL) {
        ttc__store_retain_as(r->stores[k], STORE_NOTED);
      }
    }
  }
  atomic_store_explicit(&dev->sent, n, memory_order_relaxed);
  atomic_fetch_add(&dev->head, n - sent);
  ttc__queue_wake_if_due(dev);
}

void ttc__ahead_done(ttc_device *dev, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    record *r = ttc__trace_record(dev, i);
    for (uint32_t k = 0; k < r->nstore; k++) {
      if (r->stores[k] != NULL) {
        ttc__store_forget(r->stores[k]);
      }
    }
    if (atomic_exchange_explicit(&r->shell, SHELL_NONE, memory_order_acq_rel) == SHELL_LAUNCHED) {
      ttc__record_free(r);
    }
  }
}
