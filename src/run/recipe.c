/* Recipes of fused programs: what a caller notes under the dispatch lock when it asks for one, from which another thread then joins
 * the texts; and what is fallen back on where a launch finds no memory for the whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "graph/sums.h"
#include "run/fuse.h"

#define MAX_FUSED_TEXT ((size_t)24 << 20)
#define LENT_FROM 4096u /* bytes: smaller memory is not worth handing on */
#define REST 64u        /* times that a program is passed over after a launch failed */

void ttc__recipe_free(ttc__recipe *e) {
  if (e == NULL) {
    return;
  }
  for (uint32_t i = 0; e->parts != NULL && i < e->npart; i++) {
    ttc__plan_release(e->parts[i].plan);
  }
  free(e->parts);
  free(e->slots);
  free(e->bases);
  free(e->flags);
  free(atomic_load(&e->lines));
  free(e->places);
  free(e->sizes);
  free(e);
}

/* ------------------------------------------------------------------------------------------------- noting, in the caller */

static ttc__recipe *allocate(const ttc__fuse *f, uint32_t npart) {
  ttc__recipe *e = calloc(1, sizeof *e);
  if (e == NULL) {
    return NULL;
  }
  e->parts = calloc(npart + 1, sizeof *e->parts);
  e->slots = calloc(f->nref + 1, sizeof *e->slots);
  e->bases = malloc((f->nslot + 1) * sizeof *e->bases);
  e->flags = malloc(f->nslot + 1);
  if (e->parts == NULL || e->slots == NULL || e->bases == NULL || e->flags == NULL) {
    ttc__recipe_free(e);
    return NULL;
  }
  return e;
}

bool ttc__recipe_possible(ttc_device *dev, uint32_t n) {
  size_t nbyte = 0;
  for (uint32_t i = 0; i < n; i++) {
    const ttc_plan *plan = ttc__trace_record(dev, i)->plan;
    if (plan != NULL && (plan->low.text == NULL || plan->low.foreign || plan->closes)) { /* closes: bases are not what they were */
      return false;
    }
    nbyte += plan != NULL ? plan->low.text_nbyte / 8 : 0; /* most parts share their function with others */
  }
  return nbyte <= MAX_FUSED_TEXT;
}

ttc__recipe *ttc__recipe_take(ttc_device *dev, uint32_t n, const uint8_t *flags) {
  const ttc__fuse *f = dev->fuse;
  ttc__recipe *e = allocate(f, n);
  for (uint32_t i = 0; e != NULL && i < n; i++) {
    const record *r = ttc__trace_record(dev, i);
    if (r->plan != NULL) {
      e->parts[e->npart++] = (ttc__recipe_part){.plan = r->plan, .nstore = r->nstore};
      atomic_fetch_add_explicit(&r->plan->refs, 1, memory_order_relaxed);
    }
  }
  if (e != NULL) {
    e->nslot = f->nslot;
    memcpy(e->slots, f->slots, f->nref * sizeof *e->slots);
    memcpy(e->flags, flags, f->nslot);
    for (uint32_t s = 0; s < f->nslot; s++) {
      e->bases[s] = ttc__base_physical(&f->stores[s]->keyed.base);
      bool dies = !ttc__store_owned(f->stores[s]);
      e->flags[s] |= (flags[s] & SLOT_OUTSIDE) != 0 && dies && f->stores[s]->nbyte >= LENT_FROM ? SLOT_DIES : 0;
      bool inside = (flags[s] & (SLOT_OUTSIDE | SLOT_ALIVE)) == 0;
      e->unwritten_nbyte += inside ? (int64_t)ttc__base_nbyte(&e->bases[s]) : 0;
    }
  }
  return e;
}

/* ------------------------------------------------------------------------------------- joining, in the thread that compiles */

static const char *name_of(const ttc_plan *plan) {
  const ttc_op_row *row = ttc__op_row(plan->op);
  return row != NULL ? row->name : "?";
}

/* An op for the program's name in errors, reports and profiles: "mm .. sum (23 fused calls)". */
static uint32_t name_program(const ttc__recipe *e) {
  char name[128];
  const ttc_plan *first = e->parts[0].plan;
  snprintf(name, sizeof name, "%.40s .. %.40s (%u fused calls)", name_of(first), name_of(e->parts[e->npart - 1].plan), e->npart);
  ttc_op_row row = {.name = name, .tol = TOL_LOOSE};
  uint32_t named = ttc__op_register_copy(&row);
  return named != UINT32_MAX ? named : first->op;
}

/* Sizes of the numbers that the calls have, in the order of `places`. */
static bool list_sizes(ttc__recipe *e) {
  e->sizes = malloc(e->nplace + 1);
  uint32_t k = 0, end = 0;
  for (uint32_t i = 0; e->sizes != NULL && i < e->npart; i++) {
    const ttc__lowered *low = &e->parts[i].plan->low;
    for (uint32_t j = 0; j < low->nparam; j++) {
      const ttc__param *q = &low->params[j];
      if (q->kind == TTC__PARAM_NUMBER || q->kind == TTC__PARAM_RNG) {
        uint32_t size = q->kind == TTC__PARAM_RNG ? 8 : (uint32_t)ttc_dtype_nbyte((ttc_dtype)q->dtype);
        end = e->places[k] + size > end ? e->places[k] + size : end;
        e->sizes[k++] = (uint8_t)size;
      }
    }
  }
  e->nnumber = (end + (uint32_t)sizeof(number) - 1) / (uint32_t)sizeof(number);
  return e->sizes != NULL && k == e->nplace;
}

ttc_status ttc__recipe_join(ttc_plan *plan, ttc_error *err) {
  ttc__recipe *e = plan->recipe;
  ttc__part *parts = calloc(e->npart + 1, sizeof *parts);
  ttc__fused_slot *slots = calloc(e->nslot + 1, sizeof *slots);
  plan->bases = calloc(e->nslot + 1, sizeof *plan->bases);
  if (parts == NULL || slots == NULL || plan->bases == NULL) {
    free(parts);
    free(slots);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  plan->op = name_program(e);
  for (uint32_t i = 0, ref = 0; i < e->npart; ref += e->parts[i++].nstore) {
    const ttc_plan *part = e->parts[i].plan;
    parts[i] = (ttc__part){.low = &part->low, .stores = e->slots + ref, .nin = e->parts[i].nstore - part->nout};
  }
  for (uint32_t s = 0, outside = 0; s < e->nslot; s++) {
    slots[s] = (ttc__fused_slot){.base = &e->bases[s],
                                 .outside = (e->flags[s] & SLOT_OUTSIDE) != 0,
                                 .alive = (e->flags[s] & SLOT_ALIVE) != 0,
                                 .dies = (e->flags[s] & SLOT_DIES) != 0};
    if (slots[s].outside) {
      plan->bases[outside++] = e->bases[s];
    } else if (slots[s].alive) {
      plan->nout++;
    }
  }
  ttc__composition in = {.npart = e->npart, .nslot = e->nslot, .parts = parts, .slots = slots, .for_tpu = plan->dev->for_tpu};
  ttc__summed summed;
  ttc__sum_products(&in, &summed);
  ttc_status st = ttc__compose(&summed.all, &plan->low, &e->places, &e->nplace, err);
  ttc__summed_free(&summed);
  free(parts);
  free(slots);
  if (st == TTC_OK && !list_sizes(e)) {
    st = TTC_FAIL(err, TTC_INTERNAL, "a fused program: its numbers do not fit");
  }
  return st;
}

/* ------------------------------------------------------------------------ the whole cannot be launched: part by part */

/* The stores of one run: those of the record, and others for what the whole program would not have written. */
typedef struct unfolding {
  uint32_t *last;     /* [nslot] the part that uses it last */
  ttc_store **stores; /* [nslot] one reference each, taken from the record where it is there */
  ttc_store **lent;   /* of one part */
  number *numbers;    /* likewise */
} unfolding;

static void end_unfolding(const ttc__recipe *e, unfolding *u) {
  for (uint32_t s = 0; u->stores != NULL && s < e->nslot; s++) {
    ttc_store_release(u->stores[s]);
  }
  free(u->last);
  free(u->stores);
  free(u->lent);
  free(u->numbers);
}

/* All that is to be had of the host's memory, before anything is changed. */
static bool make_stores(ttc_device *dev, const ttc__recipe *e, unfolding *u) {
  ttc_error ignored;
  uint32_t nstore = 1, nnumber = 1;
  for (uint32_t i = 0; i < e->npart; i++) {
    nstore = e->parts[i].nstore > nstore ? e->parts[i].nstore : nstore;
    nnumber = e->parts[i].plan->nnumber > nnumber ? e->parts[i].plan->nnumber : nnumber;
  }
  u->last = calloc(e->nslot + 1, sizeof *u->last);
  u->stores = calloc(e->nslot + 1, sizeof(ttc_store *));
  u->lent = calloc(nstore, sizeof(ttc_store *));
  u->numbers = calloc(nnumber, sizeof *u->numbers);
  bool ok = u->last != NULL && u->stores != NULL && u->lent != NULL && u->numbers != NULL;
  for (uint32_t s = 0; ok && s < e->nslot; s++) {
    if ((e->flags[s] & SLOT_OUTSIDE) == 0) {
      ok = ttc__store_make(dev, false, &e->bases[s], ttc__base_nbyte(&e->bases[s]), &u->stores[s], &ignored) == TTC_OK;
    }
  }
  return ok;
}

/* Take over the record's stores, which it lists as fuse_records does: what is held longer than it is used stays in memory. */
static void take_stores(const ttc__recipe *e, unfolding *u, record *r) {
  uint32_t from = 0, ref = 0;
  for (int fresh = 0; fresh < 2; fresh++) {
    for (uint32_t s = 0; s < e->nslot; s++) {
      bool outside = (e->flags[s] & SLOT_OUTSIDE) != 0, given = (e->flags[s] & SLOT_ALIVE) != 0;
      if ((fresh == 0 ? outside : !outside && given) && r->stores[from++] != NULL) {
        ttc_store_release(u->stores[s]);
        u->stores[s] = r->stores[from - 1];
        ttc__store_retain_as(u->stores[s], STORE_OWNED - STORE_QUEUED);
        r->stores[from - 1] = NULL;
      }
    }
  }
  for (uint32_t i = 0; i < e->npart; i++) {
    for (uint32_t k = 0; k < e->parts[i].nstore; k++, ref++) {
      if (e->slots[ref] != UINT32_MAX) {
        u->last[e->slots[ref]] = i;
      }
    }
  }
}

/* Part i with its stores' slots. *nth: numbers used up by the parts before. What later parts use has a reference more meanwhile,
 * which tells the launch not to give its memory to a result. */
static void launch_part(ttc_device *dev, unfolding *u, uint32_t i, const uint32_t *slots, const record *whole, uint32_t *nth) {
  const ttc__recipe *e = whole->plan->recipe;
  record part = {.kind = RECORD_LAUNCH,
                 .tag = whole->tag,
                 .plan = e->parts[i].plan,
                 .nstore = e->parts[i].nstore,
                 .nnumber = e->parts[i].plan->nnumber,
                 .stores = u->lent,
                 .numbers = u->numbers};
  for (uint32_t k = 0; k < part.nstore; k++) {
    part.stores[k] = slots[k] != UINT32_MAX ? u->stores[slots[k]] : NULL;
    if (part.stores[k] != NULL && u->last[slots[k]] != i) {
      ttc_store_retain(part.stores[k]);
    }
  }
  for (uint32_t k = 0; k < part.nnumber; k++, ++*nth) {
    part.numbers[k] = (number){{0}};
    memcpy(part.numbers[k].bytes, (const char *)whole->numbers + e->places[*nth], e->sizes[*nth]);
  }
  ttc_error err;
  dev->line = ttc__where_part(whole->plan->recipe, i);
  (void)ttc__launch(dev, &part, &err); /* it is compiled: nothing is cancelled */
  dev->line = NULL;
  for (uint32_t k = 0; k < part.nstore; k++) {
    ttc_store_release(part.stores[k]);
    if (slots[k] != UINT32_MAX && u->last[slots[k]] == i) {
      u->stores[slots[k]] = NULL;
    }
  }
}

ttc_status ttc__recipe_unfold(ttc_device *dev, record *r, const ttc_error *why, bool *done) {
  ttc__recipe *e = r->plan->recipe;
  ttc_error err;
  unfolding u = {0};
  for (uint32_t i = 0; i < e->npart; i++) { /* before anything is changed: the record may be launched anew */
    TTC_TRY(ttc__plan_wait(e->parts[i].plan, &err));
  }
  *done = make_stores(dev, e, &u);
  if (*done) {
    take_stores(e, &u, r);
    if (why != NULL && atomic_exchange(&e->rest, REST) == 0) {
      ttc__log(why->code == TTC_RESOURCE_EXHAUSTED ? TTC__LOG_DEBUG : TTC__LOG_WARN,
               "%u calls go on as single ones, for as one program they failed: %s", e->npart, why->message);
    }
    for (uint32_t i = 0, ref = 0, nth = 0; i < e->npart; ref += e->parts[i++].nstore) {
      launch_part(dev, &u, i, e->slots + ref, r, &nth);
    }
  }
  end_unfolding(e, &u);
  return TTC_OK;
}
