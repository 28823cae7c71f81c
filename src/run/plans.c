/* The plan of a call: looked up under the call's key, and made where there is none. The dispatch lock is held all along, the key
 * looked up last is in dev->site, and where dev->widened is set both are of dev->wide.call. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "run/run.h"

/* ---------------------------------------------------------------------------------------------------------- looking up */

/* A store made as plain bytes (resize_, a bare storage) and not yet used takes the shape of the tensor that first overwrites it
 * whole, so that later calls find it as if that tensor had made it. */
static void adopt_shape(const ttc_tensor *t) {
  ttc_store *s = t->store;
  if (!s->keyed.base.flat || s->used || t->offset != 0) {
    return;
  }
  ttc_spec spec = {.dtype = (ttc_dtype)t->dtype, .ndim = t->ndim};
  memcpy(spec.sizes, t->sizes, t->ndim * sizeof(int64_t));
  memcpy(spec.strides, t->strides, t->ndim * sizeof(int64_t));
  ttc__base base;
  if (ttc__base_of_spec(&spec, &base) && ttc__base_nbyte(&base) == s->nbyte) {
    s->keyed.base = base;
  }
}

/* Does it write one tensor, whose store nobody has used? */
static bool is_fresh(const ttc_call *call) {
  return call->ninto == 1 && call->into[0] != NULL && !call->into[0]->store->used;
}

static ttc_plan *plan_of_key(ttc_device *dev) {
  size_t n = dev->site.nword * sizeof(uint64_t);
  uint64_t hash = ttc__hash64(dev->site.words, n);
  ttc_plan *plan = ttc__map_get(dev->plans, dev->site.words, n, hash);
  if (plan != NULL && atomic_load_explicit(&plan->state, memory_order_acquire) == PLAN_FAILED) {
    /* Whoever called it then has its error; a call from now on tries again (memory may be there now). */
    ttc__map_del(dev->plans, dev->site.words, n, hash);
    ttc__plan_release(plan);
    plan = NULL;
  }
  return plan;
}

/* What else than the call makes a program another one. */
static uint64_t salt_of(const ttc_device *dev) {
  return (uint64_t)dev->precision | (uint64_t)dev->options << 8;
}

/* The call, which stands in dev->wide. dev->widened is not set where it is known to have no such plan. */
static ttc_plan *look_up_wide(ttc_device *dev, bool *no_memory) {
  *no_memory = !ttc__key_make_wide(&dev->site, &dev->wide, salt_of(dev));
  ttc_plan *plan = *no_memory ? NULL : plan_of_key(dev);
  dev->widened = plan == NULL || !plan->refuses;
  return plan;
}

/* The call as it is, after it was to be made wide: then a target that nobody has used was made open for it. */
static ttc_plan *look_up_narrow(ttc_device *dev, const ttc_call *call, bool *no_memory) {
  for (uint32_t k = 0; k < call->ninto; k++) {
    if (call->into[k] != NULL && !call->into[k]->store->used) {
      call->into[k]->store->keyed.base.open = 0;
    }
  }
  dev->widened = false;
  *no_memory = !ttc__key_make(&dev->site, call, salt_of(dev));
  return *no_memory ? NULL : plan_of_key(dev);
}

/* A call that reads open stores: made wide if it can be. */
static ttc_plan *look_up_open(ttc_device *dev, const ttc_call *call, bool *no_memory) {
  bool copies = ttc__is_plain_copy(call) && !call->into[0]->store->used && ttc__open_target(&dev->wide, call);
  if (ttc__widen(&dev->wide, call, copies)) {
    ttc_plan *plan = look_up_wide(dev, no_memory);
    if (dev->widened) {
      return plan;
    }
  }
  return look_up_narrow(dev, call, no_memory);
}

ttc_plan *ttc__look_up(ttc_device *dev, const ttc_call *call, bool *no_memory) {
  bool fresh = is_fresh(call);
  for (uint32_t k = 0; k < call->ninto; k++) {
    if (call->into[k] != NULL) {
      adopt_shape(call->into[k]);
    }
  }
  if (fresh) {
    call->into[0]->store->keyed.base.open = 0; /* a look before this one may have made it open */
  }
  /* Read once: what ttc__define makes must be what the key says. */
  uint32_t own = call->settings;
  dev->precision = (own & 3) != 0 ? (int)(own & 3) - 1 : atomic_load_explicit(&ttc__matmul_precision, memory_order_relaxed);
  dev->options = own >> 2 != 0 ? own >> 2 : atomic_load_explicit(&ttc__option_set, memory_order_relaxed);
  dev->widened = false;
  *no_memory = !ttc__key_make(&dev->site, call, salt_of(dev));
  if (*no_memory) {
    return NULL;
  }
  if (dev->site.open && call->narrow == 0) {
    return look_up_open(dev, call, no_memory);
  }
  ttc_plan *plan = plan_of_key(dev);
  if (plan == NULL && call->narrow == 0 && ttc__widen_parts(&dev->wide, call, fresh)) {
    plan = look_up_wide(dev, no_memory);
    return dev->widened ? plan : look_up_narrow(dev, call, no_memory);
  }
  return plan;
}

/* ------------------------------------------------------------------------------------------------------ the last module */

/* The thread's own copy, freed with the thread. */
static pthread_key_t last_module;
static pthread_once_t last_module_once = PTHREAD_ONCE_INIT;
static bool has_last_module;
static void make_last_module(void) {
  has_last_module = pthread_key_create(&last_module, free) == 0;
}

static void keep_module(const char *text) {
  pthread_once(&last_module_once, make_last_module);
  if (has_last_module) {
    char *copy = strdup(text);
    free(pthread_getspecific(last_module));
    if (pthread_setspecific(last_module, copy) != 0) {
      free(copy);
    }
  }
}

const char *ttc_last_module(void) {
  pthread_once(&last_module_once, make_last_module);
  const char *text = has_last_module ? pthread_getspecific(last_module) : NULL;
  return text != NULL ? text : "";
}

/* -------------------------------------------------------------------------------------------------------------- making */

ttc_plan *ttc__plan_new(ttc_device *dev, uint32_t op) {
  static atomic_uint_fast64_t serials;
  ttc_plan *plan = calloc(1, sizeof *plan);
  if (plan != NULL) {
    plan->serial = atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed);
    atomic_init(&plan->refs, 1);
    atomic_init(&plan->state, PLAN_COMPILING);
    plan->dev = dev;
    plan->op = op;
    plan->options = dev->options;
    plan->dump = ttc__dump_dir();
  }
  return plan;
}

/* specs: of this call's results, which the plan's are as long as the bound. TTC_UNIMPLEMENTED: they cannot be. */
static ttc_status set_outs(ttc_plan *plan, uint32_t nout, const ttc_spec *specs, const ttc__opened *open, ttc_error *err) {
  plan->outs = malloc((nout + 1) * sizeof *plan->outs);
  if (plan->outs == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  plan->nout = nout;
  plan->opened = *open;
  bool fits = true;
  for (uint32_t k = 0; k < nout; k++) {
    plan->outs[k] = specs[k];
    if (open->any && specs[k].dtype != TTC_DTYPE_INVALID) {
      fits = fits && ttc__spec_stretch(&plan->outs[k], ttc__opened_axes(open, k), open, true);
    }
  }
  return fits ? TTC_OK : TTC_FAIL(err, TTC_UNIMPLEMENTED, "a result is not %lld long", (long long)open->length);
}

/* The plan's results are set. */
static ttc_status lower(ttc_device *dev, const ttc_call *call, bool verified, ttc_plan *plan, ttc_error *err) {
  const ttc__site *site = &dev->site;
  plan->bases = calloc(site->nstore + 1, sizeof *plan->bases);
  if (plan->bases == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  for (uint32_t k = 0; k < site->nstore; k++) {
    plan->bases[k] = dev->widened ? ttc__base_physical(&site->stores[k]->keyed.base) : site->stores[k]->keyed.base;
  }
  for (uint32_t k = 0; k < call->ninto && !dev->widened; k++) {
    plan->closes = plan->closes || (call->into[k] != NULL && call->into[k]->store->keyed.base.open != 0);
  }
  ttc__lower_in in = {.call = call,
                      .nout = plan->nout,
                      .outs = plan->outs,
                      .nslot = site->nstore,
                      .bases = plan->bases,
                      .slots = site->slots,
                      .open = dev->widened ? dev->wide.open : NULL,
                      .nopen = dev->wide.nopen,
                      .opened = plan->opened,
                      .for_tpu = dev->for_tpu,
                      .verified = verified,
                      .locations = plan->dump != NULL,
                      .precision = (shlo_precision)dev->precision};
  TTC_TRY(ttc__lower(&in, &plan->low, err));
  if (atomic_load_explicit(&ttc__dumping, memory_order_relaxed)) {
    ttc__dump(&in);
  }
  for (uint32_t k = 0; k < site->nstore; k++) {
    plan->bases[k] = ttc__base_physical(&plan->bases[k]);
  }
  for (uint32_t i = 0; i < plan->low.nparam; i++) {
    plan->nnumber += plan->low.params[i].kind == TTC__PARAM_NUMBER || plan->low.params[i].kind == TTC__PARAM_RNG;
  }
  plan->fresh_nbyte = ttc__fresh_nbyte(call, plan->nout, plan->outs);
  keep_module(plan->low.text);
  return TTC_OK;
}

/* Under the key, with a reference taken over. */
static bool put(ttc_device *dev, ttc_plan *plan) {
  size_t n = dev->site.nword * sizeof(uint64_t);
  return ttc__map_put(dev->plans, dev->site.words, n, ttc__hash64(dev->site.words, n), plan);
}

static bool has_part(const ttc__wide *w) {
  uint32_t k = 0;
  while (k < w->nopen && w->open[k].kind != TTC__OPEN_PART) {
    k++;
  }
  return k < w->nopen;
}

#define KEPT_NBYTE ((size_t)1 << 20)

static ttc_status make(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, const ttc__opened *open,
                       ttc_plan **out, ttc_error *err) {
  ttc_plan *plan = ttc__plan_new(dev, call->op);
  if (plan == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  ttc_status st = set_outs(plan, nout, specs, open, err);
  plan->opened.length = dev->widened ? 0 : open->length;
  st = st == TTC_OK ? lower(dev, call, false, plan, err) : st;
  plan->keeps_text = call->op >= ttc_op_count() && plan->low.text_nbyte <= KEPT_NBYTE;
  plan->placed = dev->widened && !dev->site.open && has_part(&dev->wide);
  if (st == TTC_OK && !put(dev, plan)) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  if (st != TTC_OK) {
    ttc__plan_release(plan);
    return st;
  }
  ttc__pool_submit(dev, plan);
  *out = plan;
  return TTC_OK;
}

/* Under the wide key stands from now on that the call has no wide plan. Without memory for that it is tried again. */
static void refuse(ttc_device *dev, const ttc_call *call) {
  ttc_plan *mark = ttc__plan_new(dev, call->op);
  if (mark != NULL) {
    mark->refuses = true;
    atomic_store(&mark->state, PLAN_READY);
    if (!put(dev, mark)) {
      ttc__plan_release(mark);
    }
  }
}

/* The call reads nothing that is open. Does it make what is: one of those that ever more places are put together or counted with,
 * or that are as long as a batch? Then *out is its plan, or it stands in dev->wide. */
static void begin_to_grow(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_plan **out,
                          bool *no_memory) {
  ttc_error ignored;
  ttc__opened open;
  if (ttc__growing(dev->lengths, call, &open) && make(dev, call, nout, specs, &open, out, &ignored) == TTC_OK) {
    return;
  }
  if (is_fresh(call) ? ttc__growing_range(dev->lengths, call, &dev->wide) : ttc__widen_closed(&dev->wide, call)) {
    *out = look_up_wide(dev, no_memory);
    if (!dev->widened) {
      *out = look_up_narrow(dev, call, no_memory);
    }
  }
}

static const ttc__opened not_open = {.outer = 1, .inner = 1};

ttc_status ttc__define(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_plan **out,
                       ttc_error *err) {
  const ttc__wide *w = &dev->wide;
  bool no_memory = false;
  *out = NULL;
  if (!dev->widened && !dev->site.open && dev->lengths != NULL) {
    begin_to_grow(dev, call, nout, specs, out, &no_memory);
  }
  if (dev->widened && *out == NULL && !no_memory) {
    ttc_status st = make(dev, &w->call, nout, specs, &w->opened, out, err);
    if (st == TTC_OK || st == TTC_RESOURCE_EXHAUSTED) {
      return st;
    }
    ttc__log(TTC__LOG_DEBUG, "a program for each length: %s", err->message);
    refuse(dev, call);
    *out = look_up_narrow(dev, call, &no_memory);
  }
  if (no_memory) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  return *out != NULL ? TTC_OK : make(dev, call, nout, specs, &not_open, out, err);
}

/* ----------------------------------------------------------------------------------------------------------- once more */

/* The same call lowered again; NULL: it cannot be, for want of memory say. */
static ttc_plan *lower_again(ttc_device *dev, const ttc_call *call, const ttc_plan *plan, bool verified) {
  ttc_error ignored;
  ttc_plan *again = ttc__plan_new(dev, call->op);
  if (again == NULL) {
    return NULL;
  }
  if (set_outs(again, plan->nout, plan->outs, &not_open, &ignored) == TTC_OK) {
    again->opened = plan->opened;
    if (lower(dev, call, verified, again, &ignored) == TTC_OK) {
      return again;
    }
  }
  ttc__plan_release(again);
  return NULL;
}

void ttc__define_bare(ttc_device *dev, const ttc_call *call, ttc_plan *plan) {
  plan->bare = lower_again(dev, call, plan, true);
  if (plan->bare != NULL) {
    plan->bare->low.nverify = 0;
    ttc__pool_submit(dev, plan->bare);
  }
}

void ttc__define_text(ttc_device *dev, const ttc_call *call, ttc_plan *plan) {
  ttc_plan *again = lower_again(dev, call, plan, false);
  if (again != NULL) {
    plan->low.text = again->low.text;
    again->low.text = NULL;
  }
  plan->keeps_text = true;
  ttc__plan_release(again);
}
