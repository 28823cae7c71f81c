/* The hot path: a call becomes a record. What is done once for each kind of call is in plans.c. */
#include <stdlib.h>
#include <string.h>

#include "run/fuse.h"
#include "ttc_see.h"

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

/* ------------------------------------------------------------------------------------------------------- results */

/* How this call's results are open. */
static ttc__opened opened(const ttc_device *dev, const ttc_plan *plan) {
  ttc__opened o = plan->opened;
  o.length = o.length != 0 ? o.length : dev->wide.opened.length;
  return o;
}

/* The fresh outputs' stores, into an array of NULLs. */
static ttc_status make_outputs(ttc_device *dev, const ttc_plan *plan, ttc_store **stores, ttc_error *err) {
  for (uint32_t k = 0; k < plan->low.nproduct; k++) {
    const ttc__product *q = &plan->low.products[k];
    if (q->out < 0) {
      continue;
    }
    ttc__base open;
    const ttc__base *base = &q->base;
    if (plan->opened.any) {
      ttc__opened o = opened(dev, plan);
      if (ttc__base_of_open(&plan->outs[q->out], ttc__opened_axes(&o, (uint32_t)q->out), &o, &open)) { /* so it was for the plan */
        base = &open;
      }
    }
    TTC_TRY(ttc__store_make(dev, true, base, ttc__base_nbyte(base), &stores[q->out], err));
    stores[q->out]->used = true;
  }
  return TTC_OK;
}

/* The plan's specs of results, as long as this call's results are. NULL: out of memory. */
static const ttc_spec *stretched(const ttc_device *dev, const ttc_plan *plan) {
  ttc_spec *specs = malloc((plan->nout + 1) * sizeof *specs);
  ttc__opened o = opened(dev, plan);
  for (uint32_t k = 0; specs != NULL && k < plan->nout; k++) {
    specs[k] = plan->outs[k];
    if (specs[k].dtype != TTC_DTYPE_INVALID) {
      (void)ttc__spec_stretch(&specs[k], ttc__opened_axes(&o, k), &o, false);
    }
  }
  return specs;
}

static inline void free_arrays(const ttc_result *res) {
  if (res->specs != res->plan->outs) {
    free((void *)(uintptr_t)res->specs);
  }
  if (res->stores != res->inline_stores) {
    free(res->stores);
  }
}

static void drop_results(const ttc_result *res) {
  for (uint32_t k = 0; k < res->nout; k++) {
    ttc_store_release(res->stores[k]);
  }
  free_arrays(res);
}

/* The result without its reference to the plan. On failure nothing is left of it. */
static inline ttc_status make_results(ttc_device *dev, ttc_plan *plan, ttc_result *res, ttc_error *err) {
  res->plan = plan;
  res->nout = plan->nout;
  res->stores = plan->nout <= 4 ? res->inline_stores : malloc(plan->nout * sizeof(ttc_store *));
  res->specs = !plan->opened.any ? plan->outs : stretched(dev, plan);
  if (res->stores == NULL || res->specs == NULL) {
    free_arrays(res);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  memset(res->stores, 0, plan->nout * sizeof(ttc_store *));
  ttc_status st = make_outputs(dev, plan, res->stores, err);
  if (st != TTC_OK) {
    drop_results(res);
  }
  return st;
}

void ttc_result_done(ttc_result *res) {
  free_arrays(res);
  ttc__plan_release(res->plan);
}

/* ------------------------------------------------------------------------------------------------------- waiting */

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
    drop_results(res);
    ttc__plan_release(res->plan);
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

/* ------------------------------------------------------------------------------------------------------- running */

/* Dispatch lock held, room reserved. */
static ttc_status enqueue(ttc_device *dev, ttc_plan *plan, const ttc_call *call, ttc_result *res, ttc_error *err) {
  const ttc__site *site = &dev->site;
  TTC_TRY(make_results(dev, plan, res, err));
  record *r = ttc__queue_slot(dev);
  if (!record_arrays(r, site->nstore + plan->nout, plan->nnumber)) {
    drop_results(res);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  for (uint32_t k = 0; k < site->nstore; k++) {
    r->stores[k] = site->stores[k];
    r->stores[k]->used = true;
    ttc__store_retain_as(r->stores[k], STORE_QUEUED);
  }
  for (uint32_t k = 0; k < plan->nout; k++) {
    ttc_store *out = res->stores[k];
    r->stores[site->nstore + k] = out;
    if (out != NULL) {
      atomic_store_explicit(&out->refs, STORE_OWNED + STORE_QUEUED, memory_order_relaxed); /* nobody else knows it yet */
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
  TTC_TRY(make_results(dev, plan, res, err));
  atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
  return TTC_OK;
}

static ttc_status make_room(ttc_device *dev, const ttc_call *call, uint32_t nout, const ttc_spec *specs, ttc_error *err) {
  ttc__asked asked = {.op = call->op,
                      .nout = nout,
                      .specs = specs,
                      .into = call->ninto != 0 ? call->into : NULL,
                      .nbyte = ttc__fresh_nbyte(call, nout, specs)};
  return ttc__memory_make_room(dev, &asked, err);
}

#define SETTLED_OFTEN 8

/* What a call with this plan runs: a plan without checks where each of them is known to pass and this was so several times before.
 * Dispatch lock held. */
static ttc_plan *without_checks(ttc_device *dev, ttc_plan *plan, const ttc_call *call) {
  if (!all_known(dev, plan)) {
    return plan;
  }
  if (plan->bare == NULL && ++plan->nsettled == SETTLED_OFTEN && call->op < ttc_op_count()) {
    ttc__define_bare(dev, call, plan);
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
  ttc_plan *plan = ttc__look_up(dev, call, &no_memory);
  if (dev->site.open && ttc__op_program(call->op) != NULL) {
    ttc__lock_drop(&dev->dispatch);
    TTC_TRY(close_stores(call, err));
    TTC_TRY(reserve(dev, call, err));
    plan = ttc__look_up(dev, call, &no_memory);
  }
  if (plan != NULL && !ttc__memory_fits(dev, plan->fresh_nbyte)) {
    atomic_fetch_add(&plan->refs, 1);
    ttc__lock_drop(&dev->dispatch);
    ttc_status room = make_room(dev, call, plan->nout, plan->outs, err);
    ttc__plan_release(plan);
    TTC_TRY(room);
    TTC_TRY(reserve(dev, call, err));
    plan = ttc__look_up(dev, call, &no_memory);
  }
  ttc_status st = TTC_NOT_FOUND;
  if (no_memory) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  } else if (plan != NULL) {
    const ttc_call *own = dev->widened ? &dev->wide.call : call;
    if (!kept_back(call)) {
      plan = plan->low.nverify != 0 ? without_checks(dev, plan, own) : plan;
    } else if (plan->low.text == NULL && !plan->keeps_text && atomic_load(&plan->state) == PLAN_READY) {
      ttc__define_text(dev, own, plan);
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
  ttc_plan *plan = ttc__look_up(dev, call, &no_memory); /* another thread may have been first */
  if (no_memory) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  } else if (plan == NULL) {
    st = ttc__define(dev, call, nout, specs, &plan, err);
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
