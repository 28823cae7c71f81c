/* The hot path: a call becomes a record. */
#include <stdlib.h>
#include <string.h>

#include "run/fuse.h"
#include "ttc_see.h"

/* A store made as plain bytes (resize_, a bare storage) and not yet used takes the shape of the tensor that first overwrites it
 * whole, so that later calls find it as if that tensor had made it. Dispatch lock held. */
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

static ttc_status check_tensor(ttc_device *dev, const ttc_tensor *t, ttc_error *err) {
  if (t->store == NULL) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected a tensor with a storage, got a value of a graph");
  }
  if (t->store->dev != dev) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT,
                    "Expected all tensors to be on the same device, but found at least two devices, tpu:%d and tpu:%d!", dev->index,
                    t->store->dev->index);
  }
  if (t->ndim > TTC_MAX_NDIM) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected at most %d dimensions, got %d", TTC_MAX_NDIM, t->ndim);
  }
  return TTC_OK;
}

static ttc_status prepare(ttc_device *dev, const ttc_call *call, ttc_error *err) {
  TTC_TRY(ttc__usable(dev, err));
  for (uint32_t i = 0; i < call->narg; i++) {
    const ttc_arg *a = &call->args[i];
    uint32_t n = a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS ? a->n : 0;
    for (uint32_t k = 0; k < n; k++) {
      if (!ttc__absent(&a->tensor[k])) {
        TTC_TRY(check_tensor(dev, &a->tensor[k], err));
      }
    }
  }
  for (uint32_t k = 0; k < call->ninto; k++) {
    if (call->into[k] != NULL) {
      TTC_TRY(check_tensor(dev, call->into[k], err));
    }
  }
  return TTC_OK;
}

/* ------------------------------------------------------------------------------------------------------- records */

static bool record_arrays(record *r, uint32_t nstore, uint32_t nnumber) {
  r->stores = nstore <= RECORD_INLINE_STORES ? r->inline_stores : malloc(nstore * sizeof *r->stores);
  r->numbers = nnumber <= RECORD_INLINE_NUMBERS ? r->inline_numbers : malloc(nnumber * sizeof *r->numbers);
  if (r->stores == NULL || r->numbers == NULL) {
    if (r->stores != r->inline_stores) {
      free(r->stores);
    }
    if (r->numbers != r->inline_numbers) {
      free(r->numbers);
    }
    return false;
  }
  r->nstore = nstore;
  r->nnumber = nnumber;
  return true;
}

static void encode_numbers(const ttc_plan *plan, const ttc_call *call, number *numbers) {
  for (uint32_t i = 0, k = 0; i < plan->low.nparam; i++) {
    const ttc__param *q = &plan->low.params[i];
    if (q->kind == TTC__PARAM_STORE || q->kind == TTC__PARAM_FAULT) {
      continue;
    }
    number *v = &numbers[k++];
    memset(v, 0, sizeof *v);
    if (q->kind == TTC__PARAM_RNG) {
      memcpy(v->bytes, &call->args[q->i].rng[q->k], sizeof(uint64_t));
    } else {
      ttc__scalar_encode(&call->args[q->i].scalar[q->k], (ttc_dtype)q->dtype, v->bytes);
    }
  }
}

static int64_t out_length(const ttc_device *dev, const ttc_plan *plan) {
  return plan->out_length != 0 ? plan->out_length : dev->wide.out_length;
}

/* The base of an open result, whose buffer is `bound`. */
static ttc__base open_base(const ttc_device *dev, const ttc_plan *plan, const ttc__product *q) {
  const ttc_spec *spec = &plan->outs[q->out];
  int order[TTC_MAX_NDIM], k = 0;
  ttc__base base = q->base;
  if (ttc__dense_order(spec->ndim, spec->sizes, spec->strides, order)) {
    while (order[k] != spec->ndim - plan->out_open) {
      k++;
    }
    base.open = (uint8_t)(k + 1);
    base.bound = base.dims[k];
    base.dims[k] = out_length(dev, plan);
  }
  return base;
}

/* The fresh outputs' stores. On failure none is left. */
static ttc_status make_outputs(ttc_device *dev, const ttc_plan *plan, ttc_store **stores, ttc_error *err) {
  memset(stores, 0, plan->nout * sizeof(ttc_store *));
  for (uint32_t k = 0; k < plan->low.nproduct; k++) {
    const ttc__product *q = &plan->low.products[k];
    if (q->out < 0) {
      continue;
    }
    ttc__base open;
    const ttc__base *base = &q->base;
    if (plan->out_open != 0) {
      open = open_base(dev, plan, q);
      base = &open;
    }
    ttc_status st = ttc__store_make(dev, true, base, ttc__base_nbyte(base), &stores[q->out], err);
    if (st != TTC_OK) {
      for (uint32_t j = 0; j < plan->nout; j++) {
        ttc_store_release(stores[j]);
      }
      return st;
    }
    stores[q->out]->used = true;
  }
  return TTC_OK;
}

static _Thread_local bool compile_only_here;
static atomic_int ncompile_only; /* threads that only compile: looked at first, for it costs less */

bool ttc_compile_only(bool on) {
  bool before = compile_only_here;
  compile_only_here = on;
  atomic_fetch_add(&ncompile_only, (int)on - (int)before);
  return before;
}

static inline bool compile_only(void) {
  return atomic_load_explicit(&ncompile_only, memory_order_relaxed) != 0 && compile_only_here;
}

/* Is the call one to be kept back? Only if somebody is there to launch it should nobody read anything. */
static inline bool kept_back(const ttc_call *call) {
  return call->defer != 0 && call->blocking == 0;
}

static ttc_status wait_compiled(ttc_plan *plan, ttc_error *err) {
  ttc__progress progress = {.since_ns = ttc__now_ns()};
  ttc_status st;
  while ((st = ttc__plan_wait(plan, err)) == TTC_CANCELLED && !atomic_load(&plan->dev->stop)) {
    if (ttc__interrupted()) {
      st = TTC_FAIL(err, TTC_CANCELLED, "interrupted while a program was being compiled");
      break;
    }
    ttc__progress_show(&progress, plan);
  }
  ttc__progress_end(&progress);
  if (st == TTC_OK && plan->error != NULL) {
    *err = *ttc__poison_error(plan->error);
    st = err->code;
  }
  return st;
}

/* A call of a thread in Debug mode, or one that is only compiled: wait for it. On failure nothing is left of its results. */
static ttc_status wait_for(ttc_device *dev, ttc_result *res, ttc_error *err) {
  ttc_status st = compile_only() ? wait_compiled(res->plan, err) : ttc__settle(dev, err);
  if (st != TTC_OK) {
    for (uint32_t k = 0; k < res->nout; k++) {
      ttc_store_release(res->stores[k]);
    }
    ttc_result_done(res);
  }
  return st;
}

/* The call is queued or kept back, no lock held. A program still being compiled is the launch thread's to wait for. */
static ttc_status finish(ttc_device *dev, const ttc_call *call, ttc_result *res, ttc_error *err) {
  if (call->prompt != 0 && !kept_back(call) && !compile_only()) {
    ttc__queue_prompt(dev, atomic_load_explicit(&res->plan->state, memory_order_acquire) == PLAN_READY);
  }
  return call->blocking != 0 || compile_only() ? wait_for(dev, res, err) : TTC_OK;
}

/* ------------------------------------------------------------------------------------------ what is known of stores */

static bool knows(const ttc_device *dev, const ttc_store *s, const ttc__verify *v) {
  return s->verified != 0 && s->verified_epoch == atomic_load_explicit(&dev->epoch, memory_order_relaxed) &&
         s->verified <= v->size && (v->wrap || !s->verified_wrap);
}

/* The call is as good as run: if a check of its fails, whoever reads next is told. */
static void learn(ttc_device *dev, const ttc_plan *plan) {
  for (uint32_t k = 0; k < plan->low.nverify; k++) {
    const ttc__verify *v = &plan->low.verify[k];
    ttc_store *s = dev->site.stores[v->slot];
    if (!knows(dev, s, v)) {
      s->verified = v->size;
      s->verified_wrap = v->wrap;
      s->verified_epoch = atomic_load_explicit(&dev->epoch, memory_order_relaxed);
    }
  }
}

static bool all_known(const ttc_device *dev, const ttc_plan *plan) {
  for (uint32_t k = 0; k < plan->low.nverify; k++) {
    if (!knows(dev, dev->site.stores[plan->low.verify[k].slot], &plan->low.verify[k])) {
      return false;
    }
  }
  return true;
}

/* The plan's specs of results, as long as this call's results are. NULL: out of memory. */
static const ttc_spec *stretched(const ttc_device *dev, const ttc_plan *plan) {
  ttc_spec *specs = malloc((plan->nout + 1) * sizeof *specs);
  for (uint32_t k = 0; specs != NULL && k < plan->nout; k++) {
    specs[k] = plan->outs[k];
    if (specs[k].dtype != TTC_DTYPE_INVALID) {
      (void)ttc__spec_stretch(&specs[k], plan->out_open, out_length(dev, plan));
    }
  }
  return specs;
}

static inline const ttc_spec *specs_of(const ttc_device *dev, const ttc_plan *plan) {
  return plan->out_open == 0 ? plan->outs : stretched(dev, plan);
}

static inline void free_results(const ttc_plan *plan, const ttc_spec *specs, ttc_store **outs, const ttc_result *res) {
  if (specs != plan->outs) {
    free((void *)(uintptr_t)specs);
  }
  if (outs != res->inline_stores) {
    free(outs);
  }
}

/* Dispatch lock held, room reserved. */
static ttc_status enqueue(ttc_device *dev, ttc_plan *plan, const ttc_call *call, ttc_result *res, ttc_error *err) {
  const ttc__site *site = &dev->site;
  ttc_store **outs = plan->nout <= 4 ? res->inline_stores : malloc(plan->nout * sizeof *outs);
  const ttc_spec *specs = specs_of(dev, plan);
  record *r = ttc__queue_slot(dev);
  if (outs == NULL || specs == NULL || !record_arrays(r, site->nstore + plan->nout, plan->nnumber)) {
    free_results(plan, specs, outs, res);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  ttc_status st = make_outputs(dev, plan, outs, err);
  if (st != TTC_OK) {
    r->nstore = 0;
    r->plan = NULL;
    ttc__record_done(r);
    free_results(plan, specs, outs, res);
    return st;
  }
  for (uint32_t k = 0; k < site->nstore; k++) {
    r->stores[k] = site->stores[k];
    r->stores[k]->used = true;
    ttc_store_retain(r->stores[k]);
  }
  for (uint32_t k = 0; k < plan->nout; k++) {
    r->stores[site->nstore + k] = outs[k];
    if (outs[k] != NULL) {
      atomic_store_explicit(&outs[k]->refs, 2, memory_order_relaxed); /* nobody else knows it yet */
    }
  }
  if (plan->low.nverify != 0) {
    learn(dev, plan);
  }
  for (uint32_t k = 0; k < call->ninto; k++) {
    if (call->into[k] != NULL) {
      call->into[k]->store->verified = 0;
      if (!dev->widened) {
        call->into[k]->store->keyed.base.open = 0; /* if it was, the program has written it anew (plan->closes) */
      }
    }
  }
  encode_numbers(plan, call, r->numbers);
  plan->last_use = atomic_load_explicit(&dev->calls, memory_order_relaxed);
  r->kind = RECORD_LAUNCH;
  r->tag = atomic_load_explicit(&dev->tracing, memory_order_relaxed) ? ttc__trace_tag() : 0;
  r->plan = plan;
  r->buf = NULL;
  atomic_fetch_add_explicit(&plan->refs, 2, memory_order_relaxed); /* the record's and the result's */
  res->plan = plan;
  res->nout = plan->nout;
  res->specs = specs;
  res->stores = outs;
  if (kept_back(call)) {
    ttc__fuse_append(dev);
  } else {
    ttc__queue_publish(dev, call->prompt != 0);
  }
  atomic_store_explicit(&dev->calls, plan->last_use + 1, memory_order_relaxed); /* the dispatch lock is held */
  return TTC_OK;
}

/* As enqueue, without a launch. */
static ttc_status pretend(ttc_device *dev, ttc_plan *plan, ttc_result *res, ttc_error *err) {
  ttc_store **outs = plan->nout <= 4 ? res->inline_stores : malloc(plan->nout * sizeof *outs);
  const ttc_spec *specs = specs_of(dev, plan);
  ttc_status st = outs != NULL && specs != NULL ? make_outputs(dev, plan, outs, err)
                                                : TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  if (st != TTC_OK) {
    free_results(plan, specs, outs, res);
    return st;
  }
  atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
  res->plan = plan;
  res->nout = plan->nout;
  res->specs = specs;
  res->stores = outs;
  return TTC_OK;
}

/* The plan under the key in dev->site. */
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

/* A call that reads open stores: made wide if it can be. */
static ttc_plan *look_up_open(ttc_device *dev, const ttc_call *call, uint64_t salt, bool *no_memory) {
  bool copies = ttc__is_plain_copy(call) && !call->into[0]->store->used && ttc__open_target(call);
  if (ttc__widen(&dev->wide, call, copies)) {
    *no_memory = !ttc__key_make_wide(&dev->site, &dev->wide, salt);
    ttc_plan *plan = *no_memory ? NULL : plan_of_key(dev);
    dev->widened = plan == NULL || !plan->refuses;
    if (dev->widened) {
      return plan;
    }
  }
  if (copies) {
    call->into[0]->store->keyed.base.open = 0;
  }
  *no_memory = *no_memory || !ttc__key_make(&dev->site, call, salt);
  return *no_memory ? NULL : plan_of_key(dev);
}

/* Dispatch lock held: the plan for the call, its key left in dev->site. Where dev->widened is set, it is dev->wide's. */
static ttc_plan *look_up(ttc_device *dev, const ttc_call *call, bool *no_memory) {
  for (uint32_t k = 0; k < call->ninto; k++) {
    if (call->into[k] != NULL) {
      adopt_shape(call->into[k]);
    }
  }
  /* Read once: what define() makes must be what the key says. */
  uint32_t own = call->settings;
  dev->precision = (own & 3) != 0 ? (int)(own & 3) - 1 : atomic_load_explicit(&ttc__matmul_precision, memory_order_relaxed);
  dev->options = own >> 2 != 0 ? own >> 2 : atomic_load_explicit(&ttc__option_set, memory_order_relaxed);
  uint64_t salt = (uint64_t)dev->precision | (uint64_t)dev->options << 8;
  dev->widened = false;
  *no_memory = !ttc__key_make(&dev->site, call, salt);
  if (*no_memory) {
    return NULL;
  }
  return dev->site.open ? look_up_open(dev, call, salt, no_memory) : plan_of_key(dev);
}

static ttc_status make_room(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_error *err) {
  ttc__asked asked = {.op = call->op,
                      .nout = nout,
                      .specs = specs,
                      .into = call->ninto != 0 ? call->into : NULL,
                      .nbyte = ttc__fresh_nbyte(call, nout, specs)};
  return ttc__memory_make_room(dev, &asked, err);
}

void ttc_result_done(ttc_result *res) {
  free_results(res->plan, res->specs, res->stores, res);
  ttc__plan_release(res->plan);
}

/* ---------------------------------------------------------------------------------------------------------- defining */

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

static ttc_status lower(ttc_device *dev, const ttc_call *call, bool verified, uint32_t nout, const ttc_spec *specs, ttc_plan *plan,
                        ttc_error *err) {
  const ttc__site *site = &dev->site;
  plan->bases = calloc(site->nstore + 1, sizeof *plan->bases);
  plan->outs = malloc((nout + 1) * sizeof *plan->outs);
  if (plan->bases == NULL || plan->outs == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  for (uint32_t k = 0; k < site->nstore; k++) {
    plan->bases[k] = dev->widened ? ttc__base_physical(&site->stores[k]->keyed.base) : site->stores[k]->keyed.base;
  }
  for (uint32_t k = 0; k < call->ninto && !dev->widened; k++) {
    plan->closes = plan->closes || (call->into[k] != NULL && call->into[k]->store->keyed.base.open != 0);
  }
  if (nout != 0) {
    memcpy(plan->outs, specs, nout * sizeof *specs);
  }
  plan->nout = nout;
  ttc__lower_in in = {.call = call,
                      .nout = nout,
                      .outs = plan->outs,
                      .nslot = site->nstore,
                      .bases = plan->bases,
                      .slots = site->slots,
                      .open = dev->widened ? dev->wide.open : NULL,
                      .out_open = plan->out_open,
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
  plan->fresh_nbyte = ttc__fresh_nbyte(call, nout, specs);
  keep_module(plan->low.text);
  return TTC_OK;
}

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

#define KEPT_NBYTE ((size_t)1 << 20)

/* A plan for the call, whose key is in dev->site. out_open, out_length: as in ttc_plan, specs being as long as the bound. */
static ttc_status make_plan(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, uint8_t out_open,
                            int64_t out_length, ttc_plan **out, ttc_error *err) {
  ttc_plan *plan = ttc__plan_new(dev, call->op);
  if (plan == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  plan->out_open = out_open;
  plan->out_length = out_length;
  ttc_status st = lower(dev, call, false, nout, specs, plan, err);
  plan->keeps_text = call->op >= ttc_op_count() && plan->low.text_nbyte <= KEPT_NBYTE;
  size_t n = dev->site.nword * sizeof(uint64_t);
  if (st == TTC_OK && !ttc__map_put(dev->plans, dev->site.words, n, ttc__hash64(dev->site.words, n), plan)) {
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

/* The same with results that are open: specs are what the front end says this call's look like. TTC_UNIMPLEMENTED: they cannot be.
 */
static ttc_status make_open_plan(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, uint8_t out_open,
                                 int64_t length, int64_t bound, ttc_plan **out, ttc_error *err) {
  ttc_spec *wide = malloc((nout + 1) * sizeof *wide);
  if (wide == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  bool fits = true;
  for (uint32_t k = 0; k < nout; k++) {
    wide[k] = specs[k];
    if (out_open != 0 && specs[k].dtype != TTC_DTYPE_INVALID) {
      fits = fits && specs[k].ndim >= out_open && specs[k].sizes[specs[k].ndim - out_open] == length &&
             ttc__spec_stretch(&wide[k], out_open, bound);
    }
  }
  ttc_status st = fits ? make_plan(dev, call, nout, wide, out_open, dev->widened ? 0 : length, out, err)
                       : TTC_FAIL(err, TTC_UNIMPLEMENTED, "a result is not as long as it should be");
  free(wide);
  return st;
}

/* Under the wide key stands that there is no wide plan; the key and plan of the call as it is then. */
static ttc_status refuse(ttc_device *dev, const ttc_call *call, ttc_plan **out, ttc_error *err) {
  ttc_plan *mark = ttc__plan_new(dev, call->op);
  size_t n = dev->site.nword * sizeof(uint64_t);
  if (mark != NULL) {
    mark->refuses = true;
    atomic_store(&mark->state, PLAN_READY);
    if (!ttc__map_put(dev->plans, dev->site.words, n, ttc__hash64(dev->site.words, n), mark)) {
      ttc__plan_release(mark);
    }
  }
  dev->widened = false;
  if (ttc__is_plain_copy(call) && !call->into[0]->store->used) {
    call->into[0]->store->keyed.base.open = 0;
  }
  if (!ttc__key_make(&dev->site, call, (uint64_t)dev->precision | (uint64_t)dev->options << 8)) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  *out = plan_of_key(dev);
  return TTC_OK;
}

/* aten::arange of ever more places, made wide. */
static ttc_status define_range(ttc_device *dev, uint32_t nout, const ttc_spec *specs, ttc_plan **out, ttc_error *err) {
  const ttc__wide *w = &dev->wide;
  if (!ttc__key_make_wide(&dev->site, w, (uint64_t)dev->precision | (uint64_t)dev->options << 8)) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  dev->widened = true;
  *out = plan_of_key(dev);
  return *out != NULL ? TTC_OK : make_open_plan(dev, &w->call, nout, specs, w->out_open, w->out_length, w->out_bound, out, err);
}

/* Dispatch lock held, the key in dev->site. */
static ttc_status define(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_plan **out,
                         ttc_error *err) {
  *out = NULL;
  if (dev->widened) {
    const ttc__wide *w = &dev->wide;
    ttc_status st = make_open_plan(dev, &w->call, nout, specs, w->out_open, w->out_length, w->out_bound, out, err);
    if (st != TTC_UNIMPLEMENTED) {
      return st;
    }
    TTC_TRY(refuse(dev, call, out, err));
  } else if (dev->growths != NULL && !dev->site.open) {
    int64_t total, bound;
    uint8_t out_open = ttc__growing(dev->growths, call, &total, &bound);
    if (out_open != 0 && make_open_plan(dev, call, nout, specs, out_open, total, bound, out, err) == TTC_OK) {
      return TTC_OK;
    }
    if (call->ninto == 1 && call->into[0] != NULL && !call->into[0]->store->used &&
        ttc__growing_range(dev->growths, call, &dev->wide)) {
      return define_range(dev, nout, specs, out, err);
    }
  }
  return *out != NULL ? TTC_OK : make_plan(dev, call, nout, specs, 0, 0, out, err);
}

#define SETTLED_OFTEN 8

/* What a call with this plan runs: a plan without checks where each of them is known to pass and this was so several times before.
 * Dispatch lock held, the key in dev->site. */
static ttc_plan *without_checks(ttc_device *dev, ttc_plan *plan, const ttc_call *call) {
  if (!all_known(dev, plan)) {
    return plan;
  }
  if (plan->bare == NULL && ++plan->nsettled == SETTLED_OFTEN && call->op < ttc_op_count()) {
    ttc_error err;
    ttc_plan *bare = ttc__plan_new(dev, call->op);
    if (bare != NULL) {
      bare->out_open = plan->out_open;
      bare->out_length = plan->out_length;
    }
    if (bare != NULL && lower(dev, call, true, plan->nout, plan->outs, bare, &err) == TTC_OK) {
      bare->low.nverify = 0;
      ttc__pool_submit(dev, bare);
      plan->bare = bare;
    } else if (bare != NULL) {
      ttc__plan_release(bare);
    }
  }
  bool ready = plan->bare != NULL && atomic_load_explicit(&plan->bare->state, memory_order_acquire) == PLAN_READY;
  plan->last_use = atomic_load_explicit(&dev->calls, memory_order_relaxed);
  return ready ? plan->bare : plan;
}

/* Room for the call's record; whatever is kept back goes before one that is not to be. On TTC_OK the dispatch lock is held. */
static ttc_status reserve(ttc_device *dev, const ttc_call *call, ttc_error *err) {
  if (!kept_back(call)) {
    return compile_only() ? ttc__queue_reserve(dev, err) : ttc__queue_reserve_after(dev, TTC_CUT_MODE, err);
  }
  if (atomic_load_explicit(&dev->asks_lines, memory_order_relaxed)) {
    ttc__where_ask();
  }
  TTC_TRY(ttc__queue_reserve(dev, err));
  ttc_status st = dev->fuse == NULL ? ttc__fuse_init(dev, err) : TTC_OK;
  if (st != TTC_OK) {
    ttc__lock_drop(&dev->dispatch);
  }
  return st;
}

/* A plan whose text was not kept becomes part of a fused program: lower it once more. Dispatch lock held, the key in dev->site. */
static void lower_again(ttc_device *dev, const ttc_call *call, ttc_plan *plan) {
  ttc_error err;
  ttc_plan *again = ttc__plan_new(dev, call->op);
  if (again != NULL) {
    again->out_open = plan->out_open;
  }
  if (again != NULL && lower(dev, call, false, plan->nout, plan->outs, again, &err) == TTC_OK) {
    plan->low.text = again->low.text;
    again->low.text = NULL;
  }
  plan->keeps_text = true;
  if (again != NULL) {
    ttc__plan_release(again);
  }
}

/* A program that somebody else made takes stores as they are. */
static ttc_status close_stores(const ttc_call *call, ttc_error *err) {
  for (uint32_t i = 0; i < call->narg; i++) {
    const ttc_arg *a = &call->args[i];
    for (uint32_t k = 0; (a->kind == TTC_ARG_TENSOR || a->kind == TTC_ARG_TENSORS) && k < a->n; k++) {
      if (!ttc__absent(&a->tensor[k])) {
        TTC_TRY(ttc__store_close(a->tensor[k].store, err));
      }
    }
  }
  return TTC_OK;
}

ttc_status ttc_call_run(ttc_device *dev, const ttc_call *call, ttc_result *res, ttc_error *err) {
  bool no_memory;
  TTC_TRY(prepare(dev, call, err));
  TTC_TRY(reserve(dev, call, err));
  ttc_plan *plan = look_up(dev, call, &no_memory);
  if (dev->site.open && ttc__op_program(call->op) != NULL) {
    ttc__lock_drop(&dev->dispatch);
    TTC_TRY(close_stores(call, err));
    TTC_TRY(reserve(dev, call, err));
    plan = look_up(dev, call, &no_memory);
  }
  if (plan != NULL && !ttc__memory_fits(dev, plan->fresh_nbyte)) {
    atomic_fetch_add(&plan->refs, 1);
    ttc__lock_drop(&dev->dispatch);
    ttc_status room = make_room(dev, call, plan->nout, plan->outs, err);
    ttc__plan_release(plan);
    TTC_TRY(room);
    TTC_TRY(reserve(dev, call, err));
    plan = look_up(dev, call, &no_memory);
  }
  ttc_status st = TTC_NOT_FOUND;
  if (no_memory) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  } else if (plan != NULL) {
    const ttc_call *own = dev->widened ? &dev->wide.call : call;
    if (!kept_back(call)) {
      plan = plan->low.nverify != 0 ? without_checks(dev, plan, own) : plan;
    } else if (plan->low.text == NULL && !plan->keeps_text && atomic_load(&plan->state) == PLAN_READY) {
      lower_again(dev, own, plan);
    }
    st = compile_only() ? pretend(dev, plan, res, err) : enqueue(dev, plan, own, res, err);
  }
  ttc__lock_drop(&dev->dispatch);
  return st == TTC_OK ? finish(dev, call, res, err) : st;
}

ttc_status ttc_call_define(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_result *res,
                           ttc_error *err) {
  bool no_memory;
  TTC_TRY(prepare(dev, call, err));
  if (!ttc__memory_fits(dev, ttc__fresh_nbyte(call, nout, specs))) {
    TTC_TRY(make_room(dev, call, nout, specs, err));
  }
  TTC_TRY(reserve(dev, call, err));
  ttc_status st = TTC_OK;
  ttc_plan *old = ttc__plans_evict(dev);
  ttc_plan *plan = look_up(dev, call, &no_memory); /* another thread may have been first */
  if (no_memory) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  } else if (plan == NULL) {
    st = define(dev, call, nout, specs, &plan, err);
  }
  if (st == TTC_OK) {
    st = compile_only() ? pretend(dev, plan, res, err) : enqueue(dev, plan, dev->widened ? &dev->wide.call : call, res, err);
  }
  ttc__lock_drop(&dev->dispatch);
  while (old != NULL) {
    ttc_plan *next = old->next_job;
    ttc__plan_release(old);
    old = next;
  }
  return st == TTC_OK ? finish(dev, call, res, err) : st;
}
