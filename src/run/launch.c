/* One record: resolve stores to buffers, execute, put the results where they belong. Failures poison what should have been written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/fuse.h"

void ttc__note_error(ttc_device *dev, ttc__poison *p) {
  int n = 0;
  for (int i = 0; i < dev->nerror; i++) { /* what a reader has reported meanwhile need not be kept */
    if (ttc__poison_claimed(dev->errors[i])) {
      ttc__poison_release(dev->errors[i]);
    } else {
      dev->errors[n++] = dev->errors[i];
    }
  }
  if (n < MAX_ERRORS) {
    dev->errors[n++] = ttc__poison_retain(p);
  }
  dev->nerror = n;
}

ttc_status ttc__report_error(ttc_device *dev, ttc_error *err) {
  ttc_status st = TTC_OK;
  for (int i = 0; i < dev->nerror; i++) {
    if (ttc__poison_claim(dev->errors[i]) && st == TTC_OK) {
      *err = *ttc__poison_error(dev->errors[i]);
      st = err->code;
    }
    ttc__poison_release(dev->errors[i]);
  }
  dev->nerror = 0;
  return st;
}

static ttc_status fault_buffer(ttc_device *dev, pjrt_buffer **arg, ttc_error *err) {
  static const int64_t none[TTC__FAULT_WORDS], n = TTC__FAULT_WORDS;
  if (dev->fault == NULL) {
    TTC_TRY(pjrt_buffer_from_host(dev->client, dev->index, TTC_S64, 1, &n, none, &dev->fault, err));
  }
  *arg = dev->fault;
  return TTC_OK;
}

static void forget_fault(ttc_device *dev) {
  ttc__where_forget(dev);
  pjrt_buffer_free(dev->client, dev->fault);
  dev->fault = NULL;
  dev->fault_is_new = false;
}

static void say_when(ttc_error *err) {
  size_t n = strlen(err->message);
  snprintf(err->message + n, sizeof err->message - n,
           ". An earlier call found this and it is told now, when a result is read: `with torch.tpu.set_eager_mode("
           "torch.tpu.EagerMode.DEBUG)` or TORCH_TPU_LAUNCH_BLOCKING=1 makes the call itself raise");
}

ttc_status ttc__report_fault(ttc_device *dev, bool late, ttc_error *err) {
  int64_t words[TTC__FAULT_WORDS];
  if (!dev->fault_is_new) {
    return TTC_OK;
  }
  ttc_error why; /* that the program failed is told by its results */
  if (pjrt_buffer_to_host(dev->client, dev->fault, 0, sizeof words, words, &why) != TTC_OK) {
    forget_fault(dev);
    return TTC_OK;
  }
  dev->fault_is_new = false;
  if (words[0] == 0) {
    ttc__where_forget(dev);
    return TTC_OK;
  }
  ttc_status st = ttc__fault_error(words, err);
  ttc__where_tell(dev, (uint32_t)(words[0] - 1), err);
  forget_fault(dev);
  atomic_fetch_add(&dev->epoch, 1); /* other calls' faults, found later, were not kept */
  if (late) {
    say_when(err);
  }
  return st;
}

static ttc_store *product_store(record *r, const ttc__product *q) {
  return r->stores[q->out >= 0 ? r->nstore - r->plan->nout + (uint32_t)q->out : q->slot];
}

static void poison_results(record *r, ttc__poison *p) {
  const ttc_plan *plan = r->plan;
  for (uint32_t k = 0; k < plan->low.nproduct; k++) {
    const ttc__product *q = &plan->low.products[k];
    ttc_store *s = q->out != TTC__PRODUCT_FAULT ? product_store(r, q) : NULL;
    if (s != NULL) {
      ttc__store_poison(s, p, plan->op);
    }
  }
}

ttc__poison *ttc__poison_by(uint32_t writer, ttc_error *err) {
  const ttc_op_row *row = writer != UINT32_MAX ? ttc__op_row(writer) : NULL;
  if (row != NULL) {
    snprintf(err->op, sizeof err->op, "%s", row->name);
  }
  return ttc__poison_new(err);
}

static void fail(ttc_device *dev, record *r, ttc_error *err) {
  if (dev->line != NULL && dev->line[0] != '\0') {
    size_t n = strlen(err->message);
    snprintf(err->message + n, sizeof err->message - n, " (called at %s)", dev->line);
  }
  ttc__poison *p = ttc__poison_by(r->plan->op, err);
  ttc__note_error(dev, p);
  poison_results(r, p);
  ttc__poison_release(p);
}

/* A program that checks did not run: what its call was taken to have found out is not known. */
static void distrust(ttc_device *dev, const ttc_plan *plan) {
  if (plan->low.nverify != 0) {
    atomic_fetch_add(&dev->epoch, 1);
  }
}

/* Buffers to free once the launch is made: Philox words, and numbers pushed out of the table. */
typedef struct leftovers {
  pjrt_buffer **bufs;
  uint32_t n;
} leftovers;

/* Numbers come back: alpha=1, lr, eps. A direct-mapped table keeps their device copies. */
static pjrt_buffer *number_buffer(ttc_device *dev, ttc_dtype d, const number *v, leftovers *left, ttc_error *err) {
  uint64_t h = ttc__hash64(v, sizeof *v) ^ (uint64_t)d * 0x9e3779b97f4a7c15u;
  cached_number *c = &dev->numbers[(h >> 20) & (NUMBER_CACHE - 1)];
  if (c->buf != NULL && c->dtype == d && memcmp(&c->value, v, sizeof *v) == 0) {
    return c->buf;
  }
  pjrt_buffer *buf;
  if (pjrt_buffer_from_host(dev->client, dev->index, d, 0, NULL, v->bytes, &buf, err) != TTC_OK) {
    return NULL;
  }
  if (c->buf != NULL) {
    left->bufs[left->n++] = c->buf; /* an earlier parameter of this very call may be using it */
  }
  c->buf = buf;
  c->dtype = (uint8_t)d;
  c->value = *v;
  return buf;
}

/* base: what the program takes the store to hold; its contents are these or undefined. */
static ttc_status resolve_store(ttc_store *s, const ttc__base *base, pjrt_buffer **arg, ttc__poison **poison, ttc_error *err) {
  if (s->poison != NULL) {
    *poison = s->poison;
    *err = *ttc__poison_error(s->poison);
    return err->code;
  }
  if (s->buf == NULL) {
    TTC_TRY(ttc__store_fill_undefined(s, base, err));
  }
  *arg = s->buf;
  return TTC_OK;
}

static ttc_status resolve(ttc_device *dev, record *r, pjrt_buffer **args, leftovers *left, ttc__poison **poison, ttc_error *err) {
  const ttc__lowered *low = &r->plan->low;
  uint32_t k = 0;
  for (uint32_t i = 0; i < low->nparam; i++) {
    const ttc__param *q = &low->params[i];
    if (q->kind == TTC__PARAM_STORE) {
      TTC_TRY(resolve_store(r->stores[q->i], &r->plan->bases[q->i], &args[i], poison, err));
    } else if (q->kind == TTC__PARAM_NUMBER) {
      args[i] = number_buffer(dev, (ttc_dtype)q->dtype, &r->numbers[k++], left, err);
      if (args[i] == NULL) {
        return err->code;
      }
    } else if (q->kind == TTC__PARAM_FAULT) {
      TTC_TRY(fault_buffer(dev, &args[i], err));
    } else if (q->kind == TTC__PARAM_PACK) {
      int64_t n = q->k;
      TTC_TRY(pjrt_buffer_from_host(dev->client, dev->index, (ttc_dtype)q->dtype, 1, &n, (const char *)r->numbers + q->i, &args[i],
                                    err));
      left->bufs[left->n++] = args[i];
    } else {
      TTC_TRY(pjrt_buffer_from_host(dev->client, dev->index, TTC_U64, 0, NULL, r->numbers[k++].bytes, &args[i], err));
      left->bufs[left->n++] = args[i];
    }
  }
  return TTC_OK;
}

static void place_results(ttc_device *dev, record *r, pjrt_buffer **outs) {
  const ttc_plan *plan = r->plan;
  for (uint32_t k = 0; k < plan->low.nproduct; k++) {
    const ttc__product *q = &plan->low.products[k];
    if (q->out == TTC__PRODUCT_FAULT) {
      pjrt_buffer_free(dev->client, dev->fault);
      dev->fault = outs[k];
      dev->fault_is_new = true;
      if (plan->recipe != NULL || dev->checker != NULL) {
        ttc__where_checked(dev, r->plan);
      }
      continue;
    }
    ttc_store *s = product_store(r, q);
    if (s != NULL) {
      ttc__store_set(s, outs[k], &q->base, plan->op);
      s->lags = plan->lags;
    } else {
      pjrt_buffer_free(dev->client, outs[k]);
    }
  }
}

/* Scratch arrays live on the device, under the launch lock. */
static bool reserve_scratch(ttc_device *dev, uint32_t n) {
  if (n > dev->scratch_cap) {
    pjrt_buffer **p = realloc(dev->scratch, 3u * n * sizeof *p);
    if (p == NULL) {
      return false;
    }
    dev->scratch = p;
    int64_t *kept = realloc(dev->kept, n * sizeof *kept);
    if (kept == NULL) {
      return false;
    }
    dev->kept = kept;
    dev->scratch_cap = n;
  }
  return true;
}

static void free_leftovers(ttc_device *dev, leftovers *left) {
  for (uint32_t i = 0; i < left->n; i++) {
    pjrt_buffer_free(dev->client, left->bufs[i]);
  }
  left->n = 0;
}

/* The arguments whose memory the program must leave alone, though it may be handed on to a result: those of stores that somebody
 * else has too. */
static uint32_t keep_back(ttc_device *dev, const record *r) {
  const ttc__lowered *low = &r->plan->low;
  uint32_t n = 0;
  for (uint32_t i = 0; (r->plan->recipe != NULL || r->plan->opened.any) && i < low->nparam; i++) {
    bool lent = low->params[i].kind == TTC__PARAM_STORE && low->params[i].k != 0;
    if (lent && !ttc__store_alone(r->stores[low->params[i].i])) {
      dev->kept[n++] = i;
    }
  }
  return n;
}

/* A result that is missing would be taken for undefined contents. */
static ttc_status execute(ttc_device *dev, const record *r, pjrt_buffer **args, pjrt_buffer **outs, ttc_error *err) {
  const ttc_plan *plan = r->plan;
  uint32_t n = plan->low.nproduct, nkept = keep_back(dev, r);
  TTC_TRY(ttc__memory_check_launch(dev, pjrt_exe_temp_nbyte(plan->exe), err));
  memset(outs, 0, n * sizeof *outs);
  TTC_TRY(pjrt_execute(plan->exe, args, plan->low.nparam, dev->kept, nkept, outs, err));
  for (uint32_t k = 0; k < n; k++) {
    if (outs[k] == NULL) {
      for (uint32_t j = 0; j < n; j++) {
        pjrt_buffer_free(dev->client, outs[j]);
      }
      return TTC_FAIL(err, TTC_INTERNAL, "PJRT_LoadedExecutable_Execute: the plugin says it succeeded but gives no result %u", k);
    }
  }
  return TTC_OK;
}

/* Once more after everything that can be given back was. The error stays the first one's. */
static ttc_status retry(ttc_device *dev, record *r, pjrt_buffer **args, pjrt_buffer **outs, leftovers *left, ttc__poison **poison,
                        ttc_error *err) {
  ttc_error again = {0};
  free_leftovers(dev, left);
  ttc__memory_reclaim_launching(dev);
  ttc_status st = resolve(dev, r, args, left, poison, &again);
  if (st == TTC_OK) {
    st = execute(dev, r, args, outs, &again);
  }
  if (st != TTC_OK && *poison == NULL) {
    if (r->plan->recipe == NULL) { /* else its calls are tried next, and say so themselves */
      ttc__memory_explain(dev, err);
    }
    return TTC_RESOURCE_EXHAUSTED;
  }
  return st;
}

static ttc_status launch_plan(ttc_device *dev, record *r, ttc_error *err) {
  ttc_plan *plan = r->plan;
  TTC_TRY(ttc__plan_wait(plan, err));
  if (atomic_load_explicit(&plan->state, memory_order_acquire) == PLAN_FAILED) {
    *err = *ttc__poison_error(plan->error);
    distrust(dev, plan);
    fail(dev, r, err);
    return TTC_OK;
  }
  uint32_t n = plan->low.nparam > plan->low.nproduct ? plan->low.nparam : plan->low.nproduct;
  if (!reserve_scratch(dev, n)) {
    (void)TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
    fail(dev, r, err);
    return TTC_OK;
  }
  pjrt_buffer **args = dev->scratch, **outs = args + dev->scratch_cap;
  leftovers left = {.bufs = outs + dev->scratch_cap};
  ttc__poison *poison = NULL;
  int64_t launch_ns = dev->trace != NULL ? ttc__now_ns() : 0;
  ttc_status st = resolve(dev, r, args, &left, &poison, err);
  if (st == TTC_OK) {
    st = execute(dev, r, args, outs, err);
  }
  if (st == TTC_RESOURCE_EXHAUSTED && poison == NULL) {
    st = retry(dev, r, args, outs, &left, &poison, err);
  }
  if (st != TTC_OK && plan->recipe != NULL) { /* its calls may do without it, or some of them, and are named if they fail */
    bool done;
    free_leftovers(dev, &left);
    TTC_TRY(ttc__recipe_unfold(dev, r, poison == NULL ? err : NULL, &done));
    if (done) {
      return TTC_OK;
    }
  }
  if (st == TTC_OK) {
    if (dev->trace != NULL) {
      ttc__trace_launched(dev, r, outs, launch_ns);
    }
    place_results(dev, r, outs);
  } else {
    distrust(dev, plan);
    if (poison != NULL) {
      poison_results(r, poison);
    } else {
      fail(dev, r, err);
    }
  }
  free_leftovers(dev, &left);
  return TTC_OK;
}

/* storage.resize_ of a store with contents: through the host, for it is rare. */
static ttc_status resize(ttc_device *dev, record *r, ttc_error *err) {
  ttc_store *s = r->stores[0];
  size_t nbyte = ttc__base_nbyte(&r->base), keep = s->buf_nbyte < nbyte ? s->buf_nbyte : nbyte;
  if (nbyte == 0) {
    ttc__store_clear(s);
  }
  if (s->buf == NULL) {
    return TTC_OK;
  }
  char *bytes = calloc(1, nbyte != 0 ? nbyte : 1);
  if (bytes == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory for %zu bytes", nbyte);
  }
  pjrt_buffer *buf = NULL;
  ttc_status st = pjrt_buffer_to_host(dev->client, s->buf, 0, keep, bytes, err);
  if (st == TTC_OK) {
    st = pjrt_buffer_from_host(dev->client, dev->index, (ttc_dtype)r->base.dtype, r->base.ndim, r->base.dims, bytes, &buf, err);
  }
  if (st == TTC_OK) {
    ttc__store_set(s, buf, &r->base, s->writer);
  }
  free(bytes);
  return st;
}

ttc_status ttc__launch(ttc_device *dev, record *r, ttc_error *err) {
  memset(err->op, 0, sizeof err->op);
  switch ((record_kind)r->kind) {
    case RECORD_LAUNCH:
      return launch_plan(dev, r, err);
    case RECORD_UPLOAD:
      ttc__store_set(r->stores[0], r->buf, &r->base, UINT32_MAX);
      r->buf = NULL;
      return TTC_OK;
    case RECORD_RESIZE:
      if (resize(dev, r, err) != TTC_OK) {
        snprintf(err->op, sizeof err->op, "resize_");
        ttc__poison *p = ttc__poison_new(err);
        ttc__note_error(dev, p);
        ttc__store_poison(r->stores[0], p, UINT32_MAX);
        ttc__poison_release(p);
      }
      return TTC_OK;
    case RECORD_PREFIX:
      ttc__prefix_launch(dev, r, err);
      return TTC_OK;
    case RECORD_EVENT:
      ttc__event_launch(dev, r->event);
      return TTC_OK;
    case RECORD_WAIT:
      return ttc__event_block(r->event, err);
  }
  return TTC_OK;
}

void ttc__record_done(record *r) {
  for (uint32_t k = 0; k < r->nstore; k++) {
    ttc__store_release_as(r->stores[k], STORE_QUEUED);
  }
  if (atomic_load_explicit(&r->shell, memory_order_acquire) == SHELL_NONE ||
      atomic_exchange_explicit(&r->shell, SHELL_LAUNCHED, memory_order_acq_rel) == SHELL_NONE) {
    ttc__record_free(r);
  }
}

void ttc__record_free(record *r) {
  ttc__plan_release(r->plan);
  if (r->stores != r->inline_stores) {
    free(r->stores);
  }
  if (r->numbers != r->inline_numbers) {
    free(r->numbers);
  }
}
