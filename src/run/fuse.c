/* The open trace: keeping records back, cutting, and running what was cut as one program where there is one.
 *
 * Two tiers: a piece that is seen for the first time runs record by record, from the plans that Strict mode has; seen a second time
 * it also has its fused program made in the background, and uses it from the moment it is ready. So nothing ever waits for such a
 * program, and a piece that comes once costs no compile. */
#include "run/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define MAX_PIECES 4096u
#define MAX_PROGRAMS 1024u       /* about 100 kB each on XLA:CPU */
#define FORGOTTEN_PART 16u       /* of them at a time, the longest unused */
#define MAX_VARIANTS 4u          /* of a piece, that have programs */
#define MAX_LISTED 32u           /* of a piece */
#define MAX_MORE_NBYTE (1 << 20) /* that a program may write for the sake of other variants */
#define SEEN_BEFORE 2u           /* times a piece must have come before its program is made */
#define SEEN_OFTEN 32u           /* the same where another program gives its results and more */
#define MADE_HERE (1u << 31u)    /* in a key, with a slot that is not from before the trace */
#define HELD_PART 10             /* of the device's memory, that records may hold for nobody else */

/* A program of a piece: for given results that somebody may read afterwards. */
typedef struct variant {
  uint64_t seen; /* times that just these were wanted */
  bool asked;    /* a program was asked for */
  ttc_plan *plan;
  struct variant *next;
  uint8_t flags[]; /* [nslot] SLOT_* */
} variant;

/* Pieces with the same plans, wired alike. */
typedef struct piece {
  bool hopeless;
  uint64_t seen, last_use; /* last_use: count of traces cut then */
  uint32_t nvariant, nasked;
  variant *variants;
} piece;

ttc_status ttc__fuse_init(ttc_device *dev, ttc_error *err) {
  ttc__fuse *f = calloc(1, sizeof *f);
  if (f != NULL) {
    f->pieces = ttc__map_new();
    f->last = calloc(LAST_PLACES, sizeof *f->last);
  }
  if (f == NULL || f->pieces == NULL || f->last == NULL) {
    if (f != NULL) {
      ttc__map_free(f->pieces);
      free(f->last);
      free(f);
    }
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  f->look_at_nbyte = atomic_load(&dev->limit_nbyte) / HELD_PART;
  dev->fuse = f;
  ttc__lock_take(&dev->plan_lock);
  atomic_store(&dev->keeps_texts, true);
  ttc__lock_drop(&dev->plan_lock);
  return TTC_OK;
}

/* ------------------------------------------------------------------------------------------------ what a piece is */

static bool grow_words(ttc__fuse *f, size_t n) {
  if (n > f->word_cap) {
    uint32_t *p = realloc(f->words, 2 * n * sizeof *p);
    if (p == NULL) {
      return false;
    }
    f->words = p;
    f->word_cap = 2 * n;
  }
  return true;
}

static bool grow_refs(ttc__fuse *f, size_t n) {
  if (n <= f->ref_cap) {
    return true;
  }
  size_t cap = 2 * n;
  uint32_t *slots = realloc(f->slots, cap * sizeof *slots);
  f->slots = slots != NULL ? slots : f->slots;
  ttc_store **stores = realloc(f->stores, cap * sizeof *stores);
  f->stores = stores != NULL ? stores : f->stores;
  uint8_t *flags = realloc(f->flags, cap);
  f->flags = flags != NULL ? flags : f->flags;
  if (slots == NULL || stores == NULL || flags == NULL) {
    return false;
  }
  f->ref_cap = cap;
  return true;
}

/* Does the record make the contents of its store k, or of a store without contents all of them? Then nothing from before the trace
 * is in it. */
static bool makes(const ttc__fuse *f, const record *r, uint32_t k) {
  if (k >= r->nstore - r->plan->nout) {
    return true;
  }
  bool reads = false;
  for (uint32_t i = 0; i < r->plan->low.nparam && !reads; i++) {
    reads = r->plan->low.params[i].kind == TTC__PARAM_STORE && r->plan->low.params[i].i == k;
  }
  return !reads && r->stores[k]->born >= f->first;
}

static uint32_t slot_of(ttc__fuse *f, ttc_store *s, uint64_t mark, bool made_here) {
  if (s->keyed.mark != mark) {
    s->keyed.mark = mark;
    s->keyed.slot = f->nslot;
    f->stores[f->nslot] = s;
    f->flags[f->nslot++] = made_here ? 0 : SLOT_OUTSIDE;
  }
  return s->keyed.slot;
}

/* Stores made in the piece that a record after it uses. */
static void keep_for(ttc__fuse *f, const record *r, uint64_t mark) {
  for (uint32_t k = 0; k < r->nstore; k++) {
    const ttc_store *s = r->stores[k];
    if (s != NULL && s->keyed.mark == mark && (f->flags[s->keyed.slot] & SLOT_OUTSIDE) == 0) {
      f->flags[s->keyed.slot] |= SLOT_ALIVE;
    }
  }
}

/* The key of the first n records: plans, and what is wired to what. In the flags: who of the stores made here has another owner, or
 * is used by the trace's other records. Copies into new stores come before the launches, wherever in the trace they are made, and
 * are no part of it. Returns how many are launches; 0: none, or out of memory. */
static uint32_t describe(ttc_device *dev, uint32_t n) {
  ttc__fuse *f = dev->fuse;
  uint64_t mark = ttc__key_mark();
  uint32_t launches = 0;
  f->nslot = f->nref = 0;
  f->nword = 0;
  for (uint32_t i = 0; i < n; i++) {
    record *r = ttc__trace_record(dev, i);
    if (r->plan == NULL) {
      continue;
    }
    if (!grow_words(f, f->nword + r->nstore + 2) || !grow_refs(f, f->nref + r->nstore)) {
      return 0;
    }
    launches++;
    f->words[f->nword++] = (uint32_t)r->plan->serial;
    f->words[f->nword++] = (uint32_t)(r->plan->serial >> 32);
    for (uint32_t k = 0; k < r->nstore; k++) {
      ttc_store *s = r->stores[k];
      bool met = s != NULL && s->keyed.mark == mark;
      bool made_here = s != NULL && !met && makes(f, r, k);
      uint32_t slot = s != NULL ? slot_of(f, s, mark, made_here) : UINT32_MAX;
      f->slots[f->nref++] = slot;
      f->words[f->nword++] = slot ^ (made_here ? MADE_HERE : 0);
    }
  }
  for (uint32_t s = 0; s < f->nslot; s++) {
    if ((f->flags[s] & SLOT_OUTSIDE) == 0 && ttc__store_owned(f->stores[s])) {
      f->flags[s] |= SLOT_ALIVE;
    }
  }
  for (uint32_t i = n, open = atomic_load_explicit(&dev->open, memory_order_relaxed); i < open; i++) {
    keep_for(f, ttc__trace_record(dev, i), mark);
  }
  return launches;
}

/* ------------------------------------------------------------------------------------------------------- programs */

static void free_piece(piece *p) {
  for (variant *v = p->variants, *next; v != NULL; v = next) {
    next = v->next;
    ttc__plan_release(v->plan);
    free(v);
  }
  free(p);
}

static bool is_kept(const piece *p) {
  for (const variant *v = p->variants; v != NULL; v = v->next) {
    if (v->asked) {
      return true;
    }
  }
  return false;
}

/* Pieces with a program that were used last before this are forgotten: a process may meet ever new ones. 0: none is. */
static uint64_t forgotten_before(ttc__fuse *f) {
  uint64_t *uses = f->nprogram >= MAX_PROGRAMS ? malloc(ttc__map_count(f->pieces) * sizeof *uses) : NULL;
  size_t it = 0, n, k = 0;
  const void *key;
  void *value;
  while (uses != NULL && ttc__map_next(f->pieces, &it, &key, &n, &value)) {
    uses[k] = ((const piece *)value)->last_use;
    k += is_kept(value) ? 1 : 0;
  }
  uint64_t before = ttc__oldest_kept(uses, k, FORGOTTEN_PART);
  free(uses);
  return before;
}

/* Traces that begin as p does are kept back. */
static void learn(ttc__fuse *f, const piece *p) {
  for (const variant *v = p->variants; v != NULL; v = v->next) {
    if (v->plan != NULL && atomic_load_explicit(&v->plan->state, memory_order_acquire) == PLAN_READY) {
      ttc__ahead_learn(f, v->plan->recipe);
    }
  }
}

/* Pieces without a program are forgotten when there are very many. */
static void weed(ttc__fuse *f) {
  bool many = ttc__map_count(f->pieces) >= MAX_PIECES;
  uint64_t before = forgotten_before(f);
  ttc__map *kept = many || before != 0 ? ttc__map_new() : NULL;
  if (kept == NULL) {
    return;
  }
  size_t it = 0, n;
  const void *key;
  void *value;
  memset(f->beginnings, 0, sizeof f->beginnings);
  while (ttc__map_next(f->pieces, &it, &key, &n, &value)) {
    piece *p = value;
    bool keep = is_kept(p) ? p->last_use >= before : !many;
    if (!keep || !ttc__map_put(kept, key, n, ttc__hash64(key, n), value)) {
      f->nprogram -= p->nasked;
      free_piece(p);
    } else {
      learn(f, p);
    }
  }
  ttc__map_free(f->pieces);
  f->pieces = kept;
}

/* NULL when out of memory. */
static piece *find_piece(ttc__fuse *f) {
  size_t n = f->nword * sizeof *f->words;
  uint64_t hash = ttc__hash64(f->words, n);
  piece *p = ttc__map_get(f->pieces, f->words, n, hash);
  if (p == NULL) {
    weed(f);
    p = calloc(1, sizeof *p);
    if (p != NULL && !ttc__map_put(f->pieces, f->words, n, hash, p)) {
      free(p);
      p = NULL;
    }
    f->stats.traces += p != NULL ? 1 : 0;
  }
  if (p != NULL) {
    p->last_use = f->stats.runs;
  }
  return p;
}

/* The variant for just the results that are wanted now; NULL when out of memory, or when there are too many. */
static variant *find_variant(const ttc__fuse *f, piece *p) {
  variant *v = p->variants;
  while (v != NULL && memcmp(v->flags, f->flags, f->nslot) != 0) {
    v = v->next;
  }
  if (v == NULL && p->nvariant < MAX_LISTED) {
    v = calloc(1, sizeof *v + f->nslot);
    if (v != NULL) {
      memcpy(v->flags, f->flags, f->nslot);
      v->next = p->variants;
      p->variants = v;
      p->nvariant++;
    }
  }
  return v;
}

/* Bytes of results that it gives and nobody wants now. */
static int64_t given_in_vain(const ttc__fuse *f, const variant *v) {
  int64_t sum = 0;
  for (uint32_t s = 0; s < f->nslot; s++) {
    sum += (v->flags[s] & ~f->flags[s]) != 0 ? (int64_t)f->stores[s]->nbyte : 0;
  }
  return sum;
}

/* Does it give all the results that are wanted now? */
static bool covers(const ttc__fuse *f, const variant *v) {
  for (uint32_t s = 0; s < f->nslot; s++) {
    if ((f->flags[s] & ~v->flags[s]) != 0) {
      return false;
    }
  }
  return true;
}

/* The options of the first launch; there is one. */
static uint32_t options_of(ttc_device *dev, uint32_t n) {
  uint32_t i = 0;
  while (i + 1 < n && ttc__trace_record(dev, i)->plan == NULL) {
    i++;
  }
  return ttc__trace_record(dev, i)->plan->options;
}

/* Have the variant's program made. False: it cannot be. Joining the texts takes milliseconds, which the caller does not spend. */
static bool ask_for(ttc_device *dev, uint32_t n, variant *v) {
  if (!ttc__recipe_possible(dev, n)) {
    return false;
  }
  dev->options = options_of(dev, n);
  ttc_plan *plan = ttc__plan_new(dev, UINT32_MAX);
  if (plan == NULL) {
    return true;
  }
  plan->recipe = ttc__recipe_take(dev, n, v->flags);
  if (plan->recipe == NULL) {
    ttc__plan_release(plan);
    return true;
  }
  v->asked = true;
  v->plan = plan;
  dev->fuse->stats.programs++;
  ttc__pool_submit_later(dev, plan);
  ttc__ahead_await(dev->fuse, plan);
  ttc__where_begin(dev);
  return true;
}

/* Is it there to be used? Forgets it if it could not be made. */
static bool is_ready(ttc_device *dev, uint32_t n, piece *p, variant *v) {
  if (v->plan == NULL) {
    return false;
  }
  int state = atomic_load_explicit(&v->plan->state, memory_order_acquire);
  if (state == PLAN_FAILED) {
    const ttc_error *why = ttc__poison_error(v->plan->error);
    p->hopeless |= why->code == TTC_UNIMPLEMENTED;
    ttc__log(p->hopeless ? TTC__LOG_DEBUG : TTC__LOG_WARN,
             "%u calls could not be compiled as one program and go on as single ones: %s", n, why->message);
    ttc__plan_release(v->plan);
    v->plan = NULL;
    dev->fuse->stats.failed++;
  }
  return state == PLAN_READY;
}

/* Shall it be passed over this time, because a launch of it failed not long ago? */
static bool rests(const variant *v) {
  _Atomic uint32_t *rest = &v->plan->recipe->rest;
  uint32_t left = atomic_load_explicit(rest, memory_order_relaxed);
  if (left != 0) {
    atomic_store_explicit(rest, left - 1, memory_order_relaxed);
  }
  return left != 0;
}

/* What the variant's program would give if it gave all that is made in the piece, bytes. */
static int64_t all_nbyte(const ttc__fuse *f) {
  int64_t sum = 0;
  for (uint32_t s = 0; s < f->nslot; s++) {
    sum += (f->flags[s] & SLOT_OUTSIDE) == 0 ? (int64_t)f->stores[s]->nbyte : 0;
  }
  return sum;
}

/* Have the variant's program give more than is wanted now: every single number, which a loss may be that is looked at now and then;
 * what others of the piece want, too, if that is little; and everything, if that is little and one program was not enough (x = x +
 * y for ever, where each x that is held on the way is another one). Fewer kinds are met then. */
static void take_more(const ttc__fuse *f, const piece *p, variant *v) {
  bool all = p->nasked != 0 && all_nbyte(f) <= MAX_MORE_NBYTE;
  for (uint32_t s = 0; s < f->nslot; s++) {
    const ttc__base *base = &f->stores[s]->keyed.base;
    bool inside = (v->flags[s] & SLOT_OUTSIDE) == 0, one = ttc__nelem(base->ndim, base->dims) == 1;
    v->flags[s] |= inside && (one || all) ? SLOT_ALIVE : 0;
  }
  int64_t more = 0;
  for (int round = 0; round < 2 && more <= MAX_MORE_NBYTE; round++) {
    for (uint32_t s = 0; s < f->nslot; s++) {
      uint8_t wanted = 0;
      for (const variant *w = p->variants; w != NULL; w = w->next) {
        wanted |= w->flags[s];
      }
      more += round == 0 && wanted != v->flags[s] ? (int64_t)f->stores[s]->nbyte : 0;
      v->flags[s] |= round == 1 ? wanted : 0;
    }
  }
}

static bool spares_more(const variant *v, const variant *than) {
  return than == NULL || v->plan->recipe->unwritten_nbyte > than->plan->recipe->unwritten_nbyte;
}

/* The program to run the piece with, or NULL: the one that gives just the wanted results, or one that gives them and more. */
static variant *program_of(ttc_device *dev, uint32_t n, piece *p) {
  ttc__fuse *f = dev->fuse;
  variant *exact = find_variant(f, p), *best = NULL;
  bool coming = false;
  for (variant *v = p->variants; v != NULL; v = v->next) {
    if (v->asked && covers(f, v)) {
      bool ready = is_ready(dev, n, p, v);
      coming |= v->plan != NULL;
      best = ready && !rests(v) && (v == exact || spares_more(v, best)) ? v : best;
    }
  }
  p->seen++;
  if (exact != NULL && !exact->asked && !p->hopeless && p->nasked < MAX_VARIANTS) {
    exact->seen++;
    bool known = exact->seen >= SEEN_BEFORE || p->seen > SEEN_BEFORE;
    bool wasteful = best != NULL && exact->seen >= SEEN_OFTEN && given_in_vain(f, best) > MAX_MORE_NBYTE;
    if ((coming ? wasteful : known) && ttc__pool_nlater(dev) < MAX_WAITING) {
      take_more(f, p, exact);
      p->nasked++;
      f->nprogram++;
      p->hopeless = !ask_for(dev, n, exact);
    }
  }
  return best;
}

/* --------------------------------------------------------------------------------------------------------- cutting */

static void move_record(record *to, record *from) {
  if (to == from) {
    return;
  }
  bool stores = from->stores == from->inline_stores, numbers = from->numbers == from->inline_numbers;
  *to = *from;
  to->stores = stores ? to->inline_stores : to->stores;
  to->numbers = numbers ? to->inline_numbers : to->numbers;
}

/* The first n records are not the trace's any more. */
static void publish(ttc_device *dev, uint32_t n) {
  uint32_t sent = atomic_load_explicit(&dev->sent, memory_order_relaxed), shells = sent < n ? sent : n;
  ttc__ahead_done(dev, shells);
  atomic_store_explicit(&dev->sent, sent - shells, memory_order_relaxed);
  atomic_fetch_sub_explicit(&dev->open, n, memory_order_relaxed);
  atomic_fetch_add(&dev->head, n - shells);
}

/* One record that runs the n first; false when out of memory. */
static bool fuse_records(ttc_device *dev, uint32_t n, ttc_plan *plan, record *out) {
  ttc__fuse *f = dev->fuse;
  const ttc__recipe *e = plan->recipe;
  uint32_t k = 0, nstore = 0;
  ttc_store **stores = malloc((f->nslot + 1) * sizeof *stores);
  number *numbers = malloc((e->nnumber + 1) * sizeof *numbers);
  if (stores == NULL || numbers == NULL) {
    free(stores);
    free(numbers);
    return false;
  }
  for (int fresh = 0; fresh < 2; fresh++) {
    for (uint32_t s = 0; s < f->nslot; s++) {
      bool outside = (f->flags[s] & SLOT_OUTSIDE) != 0, given = (e->flags[s] & SLOT_ALIVE) != 0;
      if (fresh == 0 ? outside : !outside && given) {
        bool wanted = outside || (f->flags[s] & SLOT_ALIVE) != 0;
        stores[nstore++] = wanted ? f->stores[s] : NULL;
        if (wanted) {
          ttc__store_retain_as(f->stores[s], STORE_QUEUED);
        }
      }
    }
  }
  for (uint32_t i = 0; i < n; i++) {
    const record *r = ttc__trace_record(dev, i);
    for (uint32_t j = 0; j < r->nnumber; j++, k++) {
      memcpy((char *)numbers + e->places[k], r->numbers[j].bytes, e->sizes[k]);
    }
  }
  *out = (record){.kind = RECORD_LAUNCH,
                  .tag = ttc__trace_record(dev, 0)->tag,
                  .nstore = nstore,
                  .nnumber = e->nnumber,
                  .plan = plan,
                  .stores = stores,
                  .numbers = numbers};
  atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
  plan->last_use = atomic_load_explicit(&dev->calls, memory_order_relaxed);
  return true;
}

/* Put the fused record in place of the n first; what is not a launch (copies into new stores) goes before it. */
static uint32_t replace(ttc_device *dev, uint32_t n, record *fused) {
  uint32_t kept = 0, total = atomic_load_explicit(&dev->open, memory_order_relaxed);
  for (uint32_t i = 0; i < n; i++) {
    record *r = ttc__trace_record(dev, i);
    if (r->kind == RECORD_LAUNCH) {
      ttc__record_done(r);
    } else {
      move_record(ttc__trace_record(dev, kept++), r);
    }
  }
  move_record(ttc__trace_record(dev, kept++), fused);
  for (uint32_t i = n; i < total; i++) {
    move_record(ttc__trace_record(dev, kept + i - n), ttc__trace_record(dev, i));
  }
  atomic_store_explicit(&dev->open, total - n + kept, memory_order_relaxed);
  return kept;
}

/* Which lines the piece's calls come from. */
static void keep_lines(ttc_device *dev, uint32_t n, const piece *p) {
  for (const variant *v = p != NULL ? p->variants : NULL; v != NULL; v = v->next) {
    if (v->plan != NULL) {
      ttc__where_keep(dev, n, v->plan->recipe);
    }
  }
  ttc__where_cut(dev);
}

void ttc__fuse_cut_first(ttc_device *dev, uint32_t n, ttc_cut reason) {
  ttc__fuse *f = dev->fuse;
  uint32_t launches = describe(dev, n), queued = n;
  record fused;
  f->stats.runs++;
  f->stats.cuts[reason]++;
  piece *p = launches > 1 ? find_piece(f) : NULL;
  if (atomic_load_explicit(&dev->asks_lines, memory_order_relaxed)) {
    keep_lines(dev, n, p);
  }
  const variant *v = p != NULL ? program_of(dev, n, p) : NULL;
  bool kept = atomic_load_explicit(&dev->sent, memory_order_relaxed) == 0;
  f->missed = f->missed || (v != NULL && !kept);
  if (v != NULL && kept && fuse_records(dev, n, v->plan, &fused)) {
    f->stats.hits++;
    f->stats.fused += launches;
    f->stats.unwritten_nbyte += (uint64_t)v->plan->recipe->unwritten_nbyte;
    queued = replace(dev, n, &fused);
  }
  f->first += n;
  publish(dev, queued);
  if (!kept) {
    ttc__queue_wake_if_due(dev);
  } else if (reason != TTC_CUT_READ && reason != TTC_CUT_SYNC) { /* there the cutter launches it himself */
    ttc__queue_hurry(dev);
  }
}

static void trace_is_new(ttc_device *dev) {
  ttc__fuse *f = dev->fuse;
  f->held_nbyte = 0;
  f->look_at_nbyte = atomic_load_explicit(&dev->limit_nbyte, memory_order_relaxed) / HELD_PART;
  ttc__loop_reset(dev);
  ttc__ahead_reset(dev);
}

void ttc__fuse_cut_locked(ttc_device *dev, ttc_cut reason) {
  uint32_t n = atomic_load_explicit(&dev->open, memory_order_relaxed);
  if (n != 0) {
    ttc__fuse_cut_first(dev, n, reason);
    trace_is_new(dev);
  }
}

void ttc__fuse_cut(ttc_device *dev, ttc_cut reason) {
  if (atomic_load_explicit(&dev->open, memory_order_relaxed) != 0) {
    ttc__lock_take(&dev->dispatch);
    ttc__fuse_cut_locked(dev, reason);
    ttc__lock_drop(&dev->dispatch);
  }
}

/* ------------------------------------------------------------------------------------------------------- recording */

/* Bytes that only the trace's records still hold: memory that would be free if the calls had run. */
static int64_t held_for_nobody(ttc_device *dev, uint32_t n) {
  ttc__fuse *f = dev->fuse;
  int64_t sum = 0;
  (void)describe(dev, n);
  for (uint32_t s = 0; s < f->nslot; s++) {
    bool outside = (f->flags[s] & SLOT_OUTSIDE) != 0;
    if (outside && !ttc__store_owned(f->stores[s])) {
      sum += (int64_t)f->stores[s]->nbyte;
    }
  }
  for (uint32_t i = 0; i < n; i++) {
    const record *r = ttc__trace_record(dev, i);
    const ttc_store *s = r->kind == RECORD_UPLOAD && !ttc__store_owned(r->stores[0]) ? r->stores[0] : NULL;
    bool used = s != NULL && s->keyed.slot < f->nslot && f->stores[s->keyed.slot] == s;
    sum += s != NULL && !used ? (int64_t)s->nbyte : 0;
  }
  return sum;
}

/* Does the trace hold more than it may? Looked at each time the sum of what its records touch has grown by that much. */
static bool too_heavy(ttc_device *dev, const record *r, uint32_t n) {
  ttc__fuse *f = dev->fuse;
  for (uint32_t k = 0; k < r->nstore; k++) {
    f->held_nbyte += r->stores[k] != NULL ? (int64_t)r->stores[k]->nbyte : 0;
  }
  if (f->held_nbyte <= f->look_at_nbyte) {
    return false;
  }
  int64_t most = atomic_load_explicit(&dev->limit_nbyte, memory_order_relaxed) / HELD_PART;
  f->look_at_nbyte = 2 * f->held_nbyte;
  return held_for_nobody(dev, n) > most;
}

/* What makes it another round of a loop. Steps of a recurrent net read parts of one tensor, each at another place: they are no
 * loop, and are worth one program. */
static uint64_t token_of(const record *r) {
  if (r->plan == NULL) {
    return (uint64_t)r->kind << 56 | r->base.dtype;
  }
  uint64_t token = r->plan->serial;
  for (uint32_t k = 0; r->plan->placed && k < r->nnumber; k++) {
    token = ttc__mix(token, ttc__hash64(&r->numbers[k], sizeof r->numbers[k]));
  }
  return token;
}

/* The records left in the trace after a cut begin it anew. */
static void count_again(ttc_device *dev) {
  uint32_t n = atomic_load_explicit(&dev->open, memory_order_relaxed), again;
  trace_is_new(dev);
  for (uint32_t i = 0; i < n; i++) {
    const record *r = ttc__trace_record(dev, i);
    (void)ttc__loop_add(dev, i, token_of(r), &again);
    ttc__ahead_add(dev->fuse, r);
  }
}

void ttc__fuse_append(ttc_device *dev) {
  ttc__fuse *f = dev->fuse;
  uint32_t n = atomic_load_explicit(&dev->open, memory_order_relaxed);
  uint64_t token = token_of(ttc__trace_record(dev, n));
  bool asked = atomic_load_explicit(&dev->asks_lines, memory_order_relaxed); /* before a cut may begin to */
  bool loops = n != 0 && (f->stepped || (f->ended && ttc__loop_begins(dev, token)));
  atomic_store_explicit(&dev->open, n + 1, memory_order_relaxed);
  if (loops) {
    ttc__fuse_cut_first(dev, n, TTC_CUT_LOOP);
    trace_is_new(dev);
    n = 0;
  }
  if (n == 0) {
    ttc__queue_opened(dev);
    ttc__ahead_look(f);
  }
  if (asked) {
    ttc__where_note(f, n);
  }
  f->stats.nodes++;
  atomic_fetch_add_explicit(&dev->recorded, 1, memory_order_relaxed);
  ttc__ahead_add(f, ttc__trace_record(dev, n));
  uint32_t again = 0, begin = ttc__loop_add(dev, n, token, &again);
  if (again != 0) {
    if (begin != 0) {
      ttc__fuse_cut_first(dev, begin, TTC_CUT_LOOP);
    }
    while (atomic_load_explicit(&dev->open, memory_order_relaxed) >= again) {
      ttc__fuse_cut_first(dev, again, TTC_CUT_LOOP);
    }
    count_again(dev);
  } else if (n + 1 == MAX_NODES) {
    ttc__fuse_cut_locked(dev, TTC_CUT_NODES);
  } else if (too_heavy(dev, ttc__trace_record(dev, n), n + 1)) {
    ttc__fuse_cut_locked(dev, TTC_CUT_MEMORY);
  }
  if (f->ahead) {
    ttc__ahead_send(dev);
  }
}

/* ------------------------------------------------------------------------------------------------------- for users */

void ttc_device_stepped(ttc_device *dev) {
  if (!ttc__forked() && atomic_load_explicit(&dev->open, memory_order_relaxed) != 0) {
    ttc__lock_take(&dev->dispatch);
    dev->fuse->stepped = atomic_load_explicit(&dev->open, memory_order_relaxed) != 0;
    ttc__lock_drop(&dev->dispatch);
  }
}

const char *ttc_cut_name(unsigned cut) {
#define WORD(name, word) word,
  static const char *const words[] = {TTC_CUTS(WORD)};
#undef WORD
  return cut < TTC_NCUT ? words[cut] : NULL;
}

void ttc_device_get_fuse_stats(ttc_device *dev, ttc_fuse_stats *out) {
  memset(out, 0, sizeof *out);
  if (!ttc__forked()) {
    ttc__lock_take(&dev->dispatch);
    if (dev->fuse != NULL) {
      *out = dev->fuse->stats;
    }
    ttc__lock_drop(&dev->dispatch);
    out->compiling = ttc__pool_nlater(dev);
  }
}

ttc_status ttc_device_wait_fused(ttc_device *dev, ttc_error *err) {
  err->op[0] = '\0';
  for (;;) {
    TTC_TRY(ttc__usable(dev, err));
    if (ttc__pool_nlater(dev) == 0) {
      return TTC_OK;
    }
    if (ttc__interrupted()) {
      return TTC_FAIL(err, TTC_CANCELLED, "interrupted while programs were being compiled");
    }
    ttc__pool_wait_later(dev, 100000000);
  }
}
