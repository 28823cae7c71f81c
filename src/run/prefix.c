/* Stores larger than the tensor in them: one program then serves every length up to a bound. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/run.h"
#include "ttc_prefix.h"

/* What a RECORD_PREFIX copies: stores[0] becomes stores[1]'s view, in order, and then pads. */
struct ttc__prefix {
  int64_t sizes[TTC_MAX_NDIM], strides[TTC_MAX_NDIM], offset;
  int ndim;
  ttc_dtype dtype;
  ttc__base base; /* of stores[1] */
  unsigned char pad[16];
};

/* Elements from the view's first to its last, 0 if it has none. */
static int64_t extent(int ndim, const int64_t *sizes, const int64_t *strides) {
  int64_t n = 1;
  for (int k = 0; k < ndim; k++) {
    if (sizes[k] == 0) {
      return 0;
    }
    n += (sizes[k] - 1) * strides[k];
  }
  return n;
}

/* from: the view's first element. Rows of one element or, where the last axis is dense, of a whole axis. */
static void gather(const ttc__prefix *p, const char *from, char *to) {
  size_t w = ttc_dtype_nbyte(p->dtype), row = w;
  int n = p->ndim;
  if (n > 0 && p->strides[n - 1] == 1) {
    row = (size_t)p->sizes[--n] * w;
  }
  int64_t at[TTC_MAX_NDIM] = {0}, left = ttc__nelem(n, p->sizes);
  while (left-- > 0) {
    int64_t place = 0;
    for (int k = 0; k < n; k++) {
      place += at[k] * p->strides[k];
    }
    memcpy(to, from + (size_t)place * w, row);
    to += row;
    for (int k = n - 1; k >= 0 && ++at[k] == p->sizes[k]; k--) {
      at[k] = 0;
    }
  }
}

static void fill(const ttc__prefix *p, char *to, const char *end) {
  size_t w = ttc_dtype_nbyte(p->dtype);
  for (; to < end; to += w) {
    memcpy(to, p->pad, w);
  }
}

static ttc_status read_view(const ttc__prefix *p, ttc_store *src, char *to, ttc_error *err) {
  size_t w = ttc_dtype_nbyte(p->dtype), span = (size_t)extent(p->ndim, p->sizes, p->strides) * w, at = (size_t)p->offset * w;
  if (src->buf == NULL || span == 0) { /* undefined contents */
    return TTC_OK;
  }
  if (ttc__is_dense(p->ndim, p->sizes, p->strides)) {
    return ttc__store_read(src, &p->base, at, span, to, err);
  }
  char *from = malloc(span);
  if (from == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory for %zu bytes", span);
  }
  ttc_status st = ttc__store_read(src, &p->base, at, span, from, err);
  if (st == TTC_OK) {
    gather(p, from, to);
  }
  free(from);
  return st;
}

static ttc_status copy(ttc_device *dev, record *r, ttc_error *err) {
  const ttc__prefix *p = r->prefix;
  ttc_store *dst = r->stores[0];
  size_t nbyte = ttc__base_nbyte(&r->base), used = (size_t)ttc__nelem(p->ndim, p->sizes) * ttc_dtype_nbyte(p->dtype);
  char *bytes = calloc(1, nbyte != 0 ? nbyte : 1);
  if (bytes == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory for %zu bytes", nbyte);
  }
  pjrt_buffer *buf = NULL;
  ttc_status st = read_view(p, r->stores[1], bytes, err);
  if (st == TTC_OK) {
    fill(p, bytes + used, bytes + nbyte);
    st = pjrt_buffer_from_host(dev->client, dev->index, p->dtype, r->base.ndim, r->base.dims, bytes, &buf, err);
  }
  if (st == TTC_OK) {
    ttc__store_set(dst, buf, &r->base, r->stores[1]->writer);
  }
  free(bytes);
  return st;
}

void ttc__prefix_launch(ttc_device *dev, record *r, ttc_error *err) {
  ttc_store *dst = r->stores[0], *src = r->stores[1];
  if (src->poison != NULL) {
    ttc__store_poison(dst, src->poison, src->writer);
  } else if (copy(dev, r, err) != TTC_OK) {
    ttc__poison *p = ttc__poison_by(src->writer, err);
    ttc__note_error(dev, p);
    ttc__store_poison(dst, p, src->writer);
    ttc__poison_release(p);
  }
  free(r->prefix);
  r->prefix = NULL;
}

/* Dispatch lock held: is the store already that? */
static bool fits(const ttc_tensor *t, int64_t nelem) {
  const ttc__base *base = &t->store->keyed.base;
  return t->offset == 0 && base->dtype == t->dtype && base->ndim == 1 && base->open == 0 && base->dims[0] == nelem &&
         ttc__is_dense(t->ndim, t->sizes, t->strides);
}

static ttc__prefix *describe(const ttc_tensor *t, const ttc_scalar *pad) {
  ttc__prefix *p = calloc(1, sizeof *p);
  if (p != NULL) {
    memcpy(p->sizes, t->sizes, t->ndim * sizeof(int64_t));
    memcpy(p->strides, t->strides, t->ndim * sizeof(int64_t));
    p->offset = t->offset;
    p->ndim = t->ndim;
    p->dtype = (ttc_dtype)t->dtype;
    ttc__scalar_encode(pad, p->dtype, p->pad);
  }
  return p;
}

static ttc_status check(const ttc_tensor *t, int64_t nelem, ttc_error *err) {
  size_t w = ttc_dtype_nbyte((ttc_dtype)t->dtype);
  if (t->ndim > TTC_MAX_NDIM || w == 0 || ttc__nelem(t->ndim, t->sizes) > nelem) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "a tensor of %d dimensions is no prefix of %lld elements", t->ndim,
                    (long long)nelem);
  }
  int64_t have = (int64_t)(t->store->nbyte / w), span = extent(t->ndim, t->sizes, t->strides);
  if (t->offset < 0 || span > have || t->offset > have - span) {
    return TTC_FAIL(err, TTC_OUT_OF_RANGE, "a view of %lld elements from element %lld reaches past its storage of %zu bytes",
                    (long long)span, (long long)t->offset, t->store->nbyte);
  }
  return TTC_OK;
}

/* Dispatch lock held, room reserved. */
static void publish(ttc_store *dst, ttc_store *src, ttc__prefix *p) {
  record *r = ttc__queue_slot(dst->dev);
  p->base = src->keyed.base;
  r->kind = RECORD_PREFIX;
  r->plan = NULL;
  r->prefix = p;
  r->base = dst->keyed.base;
  r->nstore = 2;
  r->nnumber = 0;
  r->stores = r->inline_stores;
  r->numbers = r->inline_numbers;
  r->stores[0] = dst;
  r->stores[1] = src;
  dst->used = src->used = true;
  ttc__store_retain_as(dst, STORE_QUEUED);
  ttc__store_retain_as(src, STORE_QUEUED);
  ttc__queue_publish(dst->dev, false);
}

ttc_status ttc_store_prefix(const ttc_tensor *t, int64_t nelem, const ttc_scalar *pad, bool fresh, ttc_store **out,
                            ttc_error *err) {
  ttc_device *dev = t->store->dev;
  TTC_TRY(ttc__usable(dev, err));
  TTC_TRY(check(t, nelem, err));
  if (!fresh) {
    ttc__lock_take(&dev->dispatch);
    bool same = fits(t, nelem);
    ttc__lock_drop(&dev->dispatch);
    if (same) {
      ttc_store_retain(t->store);
      *out = t->store;
      return TTC_OK;
    }
  }
  ttc_spec spec = {.dtype = (ttc_dtype)t->dtype, .ndim = 1, .sizes = {nelem}, .strides = {1}};
  ttc_store *dst;
  TTC_TRY(ttc_store_new(dev, (size_t)nelem * ttc_dtype_nbyte(spec.dtype), &spec, &dst, err));
  ttc__prefix *p = describe(t, pad);
  ttc_status st =
      p != NULL ? ttc__queue_reserve_after(dev, TTC_CUT_CALL, err) : TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  if (st != TTC_OK) {
    free(p);
    ttc_store_release(dst);
    return st;
  }
  publish(dst, t->store, p);
  ttc__lock_drop(&dev->dispatch);
  *out = dst;
  return TTC_OK;
}
