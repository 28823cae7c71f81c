/* Between host memory and stores. */
#include <stdlib.h>
#include <string.h>

#include "run/fuse.h"

static size_t tensor_nbyte(const ttc_tensor *t) {
  return (size_t)ttc__nelem(t->ndim, t->sizes) * ttc_dtype_nbyte((ttc_dtype)t->dtype);
}

static ttc_status check_ndim(const ttc_tensor *t, ttc_error *err) {
  if (t->ndim > TTC_MAX_NDIM) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected at most %d dimensions, got %d", TTC_MAX_NDIM, t->ndim);
  }
  return TTC_OK;
}

static void spec_of(const ttc_tensor *t, ttc_spec *spec) {
  spec->dtype = (ttc_dtype)t->dtype;
  spec->ndim = t->ndim;
  memcpy(spec->sizes, t->sizes, t->ndim * sizeof(int64_t));
  ttc__dense_strides(t->ndim, t->sizes, spec->strides);
}

/* One call of the row "copy" (aten::copy: result = src in self's shape and dtype). */
static ttc_status run_copy(ttc_device *dev, const ttc_tensor *self, const ttc_tensor *src, const ttc_tensor *into, bool narrow,
                           ttc_result *res, ttc_error *err) {
  uint32_t op = ttc_op_find("copy");
  TTC_ASSERT(op != UINT32_MAX);
  ttc_arg args[3] = {{.kind = TTC_ARG_TENSOR, .n = 1, .tensor = self},
                     {.kind = TTC_ARG_TENSOR, .n = 1, .tensor = src},
                     {.kind = TTC_ARG_BOOL, .i = 0}};
  const ttc_tensor *targets[1] = {into};
  bool beside = atomic_load_explicit(&dev->open, memory_order_relaxed) != 0; /* calls that are kept back */
  ttc_call call = {
      .op = op, .narg = 3, .args = args, .ninto = into != NULL ? 1 : 0, .into = targets, .defer = beside ? 1 : 0, .narrow = narrow};
  ttc_status st = ttc_call_run(dev, &call, res, err);
  if (st == TTC_NOT_FOUND) {
    ttc_spec spec;
    spec_of(self, &spec);
    st = ttc_call_define(dev, &call, 1, &spec, res, err);
  }
  return st;
}

ttc_status ttc__store_close(ttc_store *s, ttc_error *err) {
  ttc__lock_take(&s->dev->dispatch);
  ttc__base base = s->keyed.base;
  ttc__lock_drop(&s->dev->dispatch);
  if (base.open == 0) {
    return TTC_OK;
  }
  int64_t n = ttc__nelem(base.ndim, base.dims), one = 1;
  ttc_tensor flat = {.store = s, .sizes = &n, .strides = &one, .value = -1, .dtype = base.dtype, .ndim = 1};
  ttc_result res;
  TTC_TRY(run_copy(s->dev, &flat, &flat, &flat, true, &res, err));
  ttc_result_done(&res);
  return TTC_OK;
}

/* ------------------------------------------------------------------------------------------------- host to device */

/* A record of one store and no program. Dispatch lock held, room reserved. One that fills a store which no call has seen may be
 * kept back with the calls. */
static void publish_one(ttc_store *s, record_kind kind, const ttc__base *base, pjrt_buffer *buf) {
  record *r = ttc__queue_slot(s->dev);
  r->kind = (uint8_t)kind;
  r->plan = NULL;
  r->buf = buf;
  r->base = *base;
  r->nstore = 1;
  r->nnumber = 0;
  r->stores = r->inline_stores;
  r->numbers = r->inline_numbers;
  r->stores[0] = s;
  ttc__store_retain_as(s, STORE_QUEUED);
  if (atomic_load_explicit(&s->dev->open, memory_order_relaxed) != 0) {
    ttc__fuse_append(s->dev);
  } else {
    ttc__queue_publish(s->dev, false);
  }
}

/* Dispatch-ordered: from here on the store holds `base`, filled by buf. */
static ttc_status enqueue_upload(ttc_store *s, const ttc__base *base, pjrt_buffer *buf, ttc_error *err) {
  ttc_device *dev = s->dev;
  TTC_TRY(ttc__queue_reserve(dev, err));
  if (s->used) {
    ttc__fuse_cut_locked(dev, TTC_CUT_CALL);
  }
  s->keyed.base = *base;
  s->used = true;
  s->verified = 0;
  ttc__base physical = ttc__base_physical(base);
  publish_one(s, RECORD_UPLOAD, &physical, buf);
  ttc__lock_drop(&dev->dispatch);
  return TTC_OK;
}

/* A batch that takes more up to its bound has programs for its length, rather than twice the memory. */
#define MAX_BATCH_NBYTE ((size_t)256 << 20)

/* Data for a new store: is one axis of theirs another size each time? Then the store is open along it. */
static bool open_batch(ttc_device *dev, const ttc_tensor *dst, ttc__base *base) {
  if (dev->lengths == NULL || dst->ndim == 0) {
    return false;
  }
  ttc__lock_take(&dev->dispatch);
  uint64_t calls = atomic_load_explicit(&dev->calls, memory_order_relaxed);
  int axis = dst->store->used ? -1 : ttc__batch_axis(dev->lengths, (ttc_dtype)base->dtype, base->ndim, base->dims, calls);
  ttc__lock_drop(&dev->dispatch);
  if (axis >= 0) {
    base->open = (uint16_t)(1u << axis);
    base->bound = ttc__batch_bound(base->dims[axis]);
    ttc__base physical = ttc__base_physical(base);
    base->open = ttc__base_nbyte(&physical) <= MAX_BATCH_NBYTE ? base->open : 0;
  }
  return base->open != 0;
}

/* The data as the buffer of an open store has them, with 0 past the length. NULL: out of memory. */
static void *stretch(const ttc__base *base, const void *src) {
  int a = __builtin_ctz(base->open);
  size_t inner = (size_t)ttc__nelem(base->ndim - a - 1, base->dims + a + 1) * ttc_dtype_nbyte((ttc_dtype)base->dtype);
  size_t rows = (size_t)ttc__nelem(a, base->dims), row = inner * (size_t)base->dims[a], wide = inner * (size_t)base->bound;
  char *to = calloc(rows, wide);
  for (size_t k = 0; to != NULL && k < rows; k++) {
    memcpy(to + k * wide, (const char *)src + k * row, row);
  }
  return to;
}

/* Does C-contiguous data in t's shape, laid down row-major, give the store's bytes exactly? */
static bool covers_in_order(const ttc_tensor *t) {
  return t->offset == 0 && ttc__is_dense(t->ndim, t->sizes, t->strides) && tensor_nbyte(t) == t->store->nbyte;
}

ttc_status ttc_copy_from_host(const ttc_tensor *dst, const void *src, size_t nbyte, ttc_error *err) {
  ttc_device *dev = dst->store->dev;
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  TTC_TRY(check_ndim(dst, err));
  if (nbyte != tensor_nbyte(dst)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "copy from host: expected %zu bytes, got %zu", tensor_nbyte(dst), nbyte);
  }
  if (nbyte == 0) {
    return TTC_OK;
  }
  ttc_spec spec;
  ttc__base base;
  spec_of(dst, &spec);
  if (!ttc__base_of_spec(&spec, &base)) {
    return TTC_FAIL(err, TTC_INTERNAL, "copy from host: a dense tensor is not dense");
  }
  pjrt_buffer *buf;
  if (covers_in_order(dst)) {
    void *longer = open_batch(dev, dst, &base) ? stretch(&base, src) : NULL;
    base.open = longer != NULL ? base.open : 0;
    ttc__base physical = ttc__base_physical(&base);
    const void *from = longer != NULL ? longer : src;
    ttc_status st = pjrt_buffer_from_host(dev->client, dev->index, spec.dtype, base.ndim, physical.dims, from, &buf, err);
    if (st == TTC_RESOURCE_EXHAUSTED && (st = ttc_device_reclaim(dev, err)) == TTC_OK) {
      st = pjrt_buffer_from_host(dev->client, dev->index, spec.dtype, base.ndim, physical.dims, from, &buf, err);
    }
    free(longer);
    TTC_TRY(st);
    st = enqueue_upload(dst->store, &base, buf, err);
    if (st != TTC_OK) {
      pjrt_buffer_free(dev->client, buf);
    }
    return st;
  }
  ttc_store *stage;
  TTC_TRY(ttc__store_make(dev, false, &base, nbyte, &stage, err));
  ttc_tensor from = {
      .store = stage, .sizes = spec.sizes, .strides = spec.strides, .value = -1, .dtype = dst->dtype, .ndim = dst->ndim};
  ttc_status st = ttc_copy_from_host(&from, src, nbyte, err);
  if (st == TTC_OK) {
    ttc_result res;
    st = run_copy(dev, dst, &from, dst, false, &res, err);
    if (st == TTC_OK) {
      ttc_result_done(&res);
    }
  }
  ttc_store_release(stage);
  return st;
}

/* ------------------------------------------------------------------------------------------------- device to host */

/* Reading s failed. If its contents are what is wrong, they are poison, and this reader the one who reports it. */
static void blame_contents(ttc_store *s, ttc_error *err) {
  ttc_error why = {0};
  ttc__poison *p = ttc__poison_by(s->writer, err);
  ttc_status st = pjrt_buffer_await(s->dev->client, s->buf, &why);
  if (st != TTC_OK) {
    (void)ttc__poison_claim(p);
    ttc__store_poison(s, p, s->writer);
  }
  ttc__poison_release(p);
}

/* Everything called so far is launched, and what s holds then is computed. On TTC_OK the launch lock is held. */
static ttc_status settle(ttc_store *s, ttc_error *err) {
  for (bool settled = false;;) {
    TTC_TRY(ttc__launch_all(s->dev, err));
    TTC_TRY(ttc__compute_store(s, &settled, err));
    if (settled) {
      return TTC_OK;
    }
  }
}

static ttc_status read_bytes(ttc_store *s, size_t offset, size_t nbyte, void *dst, ttc_error *err) {
  ttc_device *dev = s->dev;
  ttc__lock_take(&dev->dispatch);
  ttc__base base = s->keyed.base; /* the launch side does not know how much of an open buffer is in use */
  ttc__lock_drop(&dev->dispatch);
  TTC_TRY(settle(s, err));
  ttc_status st = TTC_OK;
  if (s->poison != NULL) {
    *err = *ttc__poison_error(s->poison);
    st = err->code;
    (void)ttc__poison_claim(s->poison);
  } else if (s->buf == NULL) {
    memset(dst, 0, nbyte); /* undefined contents: nothing was ever written */
  } else {
    st = ttc__store_read(s, &base, offset, nbyte, dst, err);
    if (st == TTC_OK) {
      s->awaited = true;
    } else {
      blame_contents(s, err);
    }
  }
  if (st == TTC_OK) {
    st = ttc__report_fault(dev, true, err);
  }
  ttc__lock_drop(&dev->launch);
  ttc__leave();
  return st;
}

ttc_status ttc_copy_to_host(const ttc_tensor *src, void *dst, size_t nbyte, ttc_error *err) {
  ttc_device *dev = src->store->dev;
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  TTC_TRY(check_ndim(src, err));
  if (nbyte != tensor_nbyte(src)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "copy to host: expected %zu bytes, got %zu", tensor_nbyte(src), nbyte);
  }
  if (nbyte == 0) {
    return TTC_OK;
  }
  size_t w = ttc_dtype_nbyte((ttc_dtype)src->dtype);
  if (ttc__is_dense(src->ndim, src->sizes, src->strides)) {
    size_t have = src->store->nbyte;
    if (src->offset < 0 || nbyte > have || (size_t)src->offset > (have - nbyte) / w) {
      return TTC_FAIL(err, TTC_OUT_OF_RANGE, "a view of %zu bytes from element %lld reaches past its storage of %zu bytes", nbyte,
                      (long long)src->offset, have);
    }
    return read_bytes(src->store, (size_t)src->offset * w, nbyte, dst, err);
  }
  ttc_result res;
  TTC_TRY(run_copy(dev, src, src, NULL, false, &res, err));
  ttc_status st = read_bytes(res.stores[0], 0, nbyte, dst, err);
  ttc_store_release(res.stores[0]);
  ttc_result_done(&res);
  return st;
}

ttc_status ttc_store_resize(ttc_store *s, size_t nbyte, ttc_error *err) {
  ttc_device *dev = s->dev;
  TTC_TRY(ttc__usable(dev, err));
  if (nbyte > (size_t)INT64_MAX / 2) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "a storage of %zu bytes is larger than any device", nbyte);
  }
  TTC_TRY(ttc__store_close(s, err));
  TTC_TRY(ttc__queue_reserve(dev, err));
  if (nbyte > s->nbyte && !ttc__memory_fits(dev, (int64_t)(nbyte - s->nbyte))) {
    ttc__asked asked = {.op = UINT32_MAX, .nbyte = (int64_t)(nbyte - s->nbyte)};
    ttc__lock_drop(&dev->dispatch);
    TTC_TRY(ttc__memory_make_room(dev, &asked, err));
    TTC_TRY(ttc__queue_reserve(dev, err));
  }
  if (nbyte == s->nbyte) {
    ttc__lock_drop(&dev->dispatch);
    return TTC_OK;
  }
  if (s->used) { /* calls that are kept back may have it as it was */
    ttc__fuse_cut_locked(dev, TTC_CUT_CALL);
  }
  ttc__base_flat(&s->keyed.base, (ttc_dtype)s->keyed.base.dtype, nbyte);
  ttc__promise(dev, s->nbyte, -1);
  ttc__promise(dev, nbyte, 1);
  s->nbyte = nbyte;
  s->verified = 0;
  if (s->used) {
    publish_one(s, RECORD_RESIZE, &s->keyed.base, NULL);
  }
  if (nbyte == 0) { /* nothing is left to have a shape */
    s->used = false;
  }
  ttc__lock_drop(&dev->dispatch);
  return TTC_OK;
}
