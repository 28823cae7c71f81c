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

/* The fresh outputs' stores. On failure none is left. */
static ttc_status make_outputs(ttc_device *dev, const ttc_plan *plan, ttc_store **stores, ttc_error *err) {
  memset(stores, 0, plan->nout * sizeof(ttc_store *));
  for (uint32_t k = 0; k < plan->low.nproduct; k++) {
    const ttc__product *q = &plan->low.products[k];
    if (q->out < 0) {
      continue;
    }
    ttc_status st = ttc__store_make(dev, true, &q->base, ttc__base_nbyte(&q->base), &stores[q->out], err);
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

/* Dispatch lock held, room reserved. */
static ttc_status enqueue(ttc_device *dev, ttc_plan *plan, const ttc_call *call, ttc_result *res, ttc_error *err) {
  const ttc__site *site = &dev->site;
  ttc_store **outs = plan->nout <= 4 ? res->inline_stores : malloc(plan->nout * sizeof *outs);
  record *r = ttc__queue_slot(dev);
  if (outs == NULL || !record_arrays(r, site->nstore + plan->nout, plan->nnumber)) {
    if (outs != res->inline_stores) {
      free(outs);
    }
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  ttc_status st = make_outputs(dev, plan, outs, err);
  if (st != TTC_OK) {
    r->nstore = 0;
    r->plan = NULL;
    ttc__record_done(r);
    if (outs != res->inline_stores) {
      free(outs);
    }
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
  res->specs = plan->outs;
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
  if (outs == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  ttc_status st = make_outputs(dev, plan, outs, err);
  if (st != TTC_OK) {
    if (outs != res->inline_stores) {
      free(outs);
    }
    return st;
  }
  atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
  res->plan = plan;
  res->nout = plan->nout;
  res->specs = plan->outs;
  res->stores = outs;
  return TTC_OK;
}

/* Dispatch lock held: the plan for the call, its key left in dev->site. */
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
  *no_memory = !ttc__key_make(&dev->site, call, (uint64_t)dev->precision | (uint64_t)dev->options << 8);
  if (*no_memory) {
    return NULL;
  }
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

static ttc_status make_room(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_error *err) {
  ttc__asked asked = {.op = call->op,
                      .nout = nout,
                      .specs = specs,
                      .into = call->ninto != 0 ? call->into : NULL,
                      .nbyte = ttc__fresh_nbyte(call, nout, specs)};
  return ttc__memory_make_room(dev, &asked, err);
}

void ttc_result_done(ttc_result *res) {
  if (res->stores != res->inline_stores) {
    free(res->stores);
  }
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
    plan->bases[k] = site->stores[k]->keyed.base;
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
                      .for_tpu = dev->for_tpu,
                      .verified = verified,
                      .locations = plan->dump != NULL,
                      .precision = (shlo_precision)dev->precision};
  TTC_TRY(ttc__lower(&in, &plan->low, err));
  if (atomic_load_explicit(&ttc__dumping, memory_order_relaxed)) {
    ttc__dump(&in);
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

/* Dispatch lock held, the key in dev->site. */
static ttc_status define(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_plan **out,
                         ttc_error *err) {
  ttc_plan *plan = ttc__plan_new(dev, call->op);
  if (plan == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
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
  if (again != NULL && lower(dev, call, false, plan->nout, plan->outs, again, &err) == TTC_OK) {
    plan->low.text = again->low.text;
    again->low.text = NULL;
  }
  plan->keeps_text = true;
  if (again != NULL) {
    ttc__plan_release(again);
  }
}

ttc_status ttc_call_run(ttc_device *dev, const ttc_call *call, ttc_result *res, ttc_error *err) {
  bool no_memory;
  TTC_TRY(prepare(dev, call, err));
  TTC_TRY(reserve(dev, call, err));
  ttc_plan *plan = look_up(dev, call, &no_memory);
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
    if (!kept_back(call)) {
      plan = plan->low.nverify != 0 ? without_checks(dev, plan, call) : plan;
    } else if (plan->low.text == NULL && !plan->keeps_text && atomic_load(&plan->state) == PLAN_READY) {
      lower_again(dev, call, plan);
    }
    st = compile_only() ? pretend(dev, plan, res, err) : enqueue(dev, plan, call, res, err);
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
    st = compile_only() ? pretend(dev, plan, res, err) : enqueue(dev, plan, call, res, err);
  }
  ttc__lock_drop(&dev->dispatch);
  while (old != NULL) {
    ttc_plan *next = old->next_job;
    ttc__plan_release(old);
    old = next;
  }
  return st == TTC_OK ? finish(dev, call, res, err) : st;
}
