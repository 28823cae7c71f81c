/* Loops in the open trace. A training loop that reads nothing has no cuts of its own, and a cut just anywhere would give another
 * piece each time. So a stretch of calls that comes again right after itself is found, cut off, and remembered: from then on the
 * trace is cut where such a stretch ends and one begins. */
#include "run/fuse.h"

#define SHORT 8u          /* records: a repetition shorter than this is a chain (x = x + 1) rather than a step */
#define FEWEST 16u        /* records of a piece of steps */
#define FEWEST_CHAIN 128u /* of a piece of a chain */

/* Records of a piece that repeats every `period`. */
static uint32_t piece(uint32_t period) {
  uint32_t fewest = period < SHORT ? FEWEST_CHAIN : FEWEST;
  return (fewest + period - 1) / period * period;
}

void ttc__loop_reset(ttc_device *dev) {
  ttc__fuse *f = dev->fuse;
  f->prefix = 0;
  f->period = f->run = f->same = f->other = 0;
  f->ended = f->stepped = false;
}

/* Could record i be the next round's record j? Stores that were made since the round before must be as old as their counterparts
 * were. Of older ones, weights and batches, it is counted how many are the same: the same weights tell the next round of a loop
 * from the next of several equal layers, though a batch may be another. */
static bool alike(ttc_device *dev, uint32_t i, uint32_t j, uint32_t *same, uint32_t *other) {
  const record *a = ttc__trace_record(dev, i), *b = ttc__trace_record(dev, j);
  uint32_t n = a->nstore - (a->plan != NULL ? a->plan->nout : 0), period = i - j;
  uint64_t first = dev->fuse->first;
  if (a->nstore != b->nstore) {
    return false;
  }
  for (uint32_t k = 0; k < n; k++) {
    const ttc_store *s = a->stores[k], *t = b->stores[k];
    bool old = s->born + period < first + i && t->born + period < first + j;
    if (s == t) {
      ++*same;
    } else if (s->born - t->born == period) {
      continue;
    } else if (old) {
      ++*other;
    } else {
      return false;
    }
  }
  return true;
}

/* The record before i with this token, if it is in the trace; i is noted in its place. */
static bool last_place(ttc__fuse *f, uint64_t token, uint32_t i, uint32_t *at) {
  ttc__last_place *p = &f->last[ttc__mix(0, token) >> 20 & (LAST_PLACES - 1)];
  bool found = p->token == token && p->at >= f->first && p->at < f->first + i;
  *at = found ? (uint32_t)(p->at - f->first) : 0;
  *p = (ttc__last_place){.token = token, .at = f->first + i};
  return found;
}

static void remember(ttc__fuse *f, uint32_t first, uint32_t n) {
  uint64_t h = 0;
  for (uint32_t k = 0; k < n; k++) {
    h = ttc__mix(h, f->tokens[first + k]);
  }
  for (uint32_t k = 0; k < f->nloop; k++) {
    if (f->loops[k].hash == h && f->loops[k].n == n) {
      return;
    }
  }
  f->loops[f->next_loop] = (ttc__loop){.n = n, .hash = h, .head = f->tokens[first]};
  f->next_loop = (f->next_loop + 1) % MAX_LOOPS;
  f->nloop += f->nloop < MAX_LOOPS ? 1 : 0;
}

bool ttc__loop_begins(const ttc_device *dev, uint64_t token) {
  const ttc__fuse *f = dev->fuse;
  for (uint32_t k = 0; f->ended && k < f->nloop; k++) {
    if (f->loops[k].head == token) {
      return true;
    }
  }
  return false;
}

uint32_t ttc__loop_add(ttc_device *dev, uint32_t i, uint64_t token, uint32_t *again) {
  ttc__fuse *f = dev->fuse;
  uint32_t last;
  f->tokens[i] = token;
  f->prefix = ttc__mix(f->prefix, token);
  f->ended = false;
  for (uint32_t k = 0; k < f->nloop; k++) {
    f->ended |= f->loops[k].n == i + 1 && f->loops[k].hash == f->prefix;
  }
  bool seen = last_place(f, token, i, &last);
  if (f->period == 0 || f->tokens[i - f->period] != token || !alike(dev, i, i - f->period, &f->same, &f->other)) {
    f->same = f->other = f->run = f->period = 0;
    f->period = seen && alike(dev, i, last, &f->same, &f->other) ? i - last : 0;
  }
  f->run += f->period != 0 ? 1 : 0;
  if (f->period == 0 || f->run < piece(f->period) || f->other > f->same) {
    return 0;
  }
  uint32_t begin = i + 1 - f->run - f->period;
  *again = piece(f->period);
  remember(f, begin, *again);
  return begin;
}
