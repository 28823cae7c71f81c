/* Stores: life, contents, accounting. */
#include <stdlib.h>
#include <string.h>

#include "run/run.h"

#ifdef TTC_CHECK_LOCKS
#define MAX_SPARE 0 /* sanitizers see each store's end */
#else
#define MAX_SPARE 4096 /* stores kept for reuse */
#endif

size_t ttc__base_nbyte(const ttc__base *base) {
  return (size_t)ttc__nelem(base->ndim, base->dims) * ttc_dtype_nbyte((ttc_dtype)base->dtype);
}

void ttc__base_flat(ttc__base *base, ttc_dtype d, size_t nbyte) {
  size_t w = ttc_dtype_nbyte(d);
  if (w == 0 || nbyte % w != 0) {
    d = TTC_U8;
    w = 1;
  }
  memset(base, 0, sizeof *base);
  base->dtype = (uint8_t)d;
  base->ndim = 1;
  base->flat = 1;
  base->dims[0] = (int64_t)(nbyte / w);
}

/* Stores are made by callers and mostly freed by the launch thread, a pattern that malloc pays for. Freed ones are pushed on a
 * stack from any thread; whoever makes stores takes the whole stack at once, so that no pop races with another. Dispatch lock held,
 * or not at all: then malloc. */
static ttc_store *reuse(ttc_device *dev) {
  if (dev->spare == NULL) {
    dev->spare = atomic_exchange_explicit(&dev->freed, NULL, memory_order_acquire);
    atomic_store_explicit(&dev->nfreed, 0, memory_order_relaxed);
  }
  ttc_store *s = dev->spare;
  if (s != NULL) {
    dev->spare = s->next;
  }
  return s;
}

static void recycle(ttc_store *s) {
  ttc_device *dev = s->dev;
  if (atomic_fetch_add_explicit(&dev->nfreed, 1, memory_order_relaxed) >= MAX_SPARE) {
    atomic_fetch_sub_explicit(&dev->nfreed, 1, memory_order_relaxed);
    free(s);
    return;
  }
  s->next = atomic_load_explicit(&dev->freed, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&dev->freed, &s->next, s, memory_order_release, memory_order_relaxed)) {
  }
}

ttc_status ttc__store_make(ttc_device *dev, bool locked, const ttc__base *base, size_t nbyte, ttc_store **out, ttc_error *err) {
  ttc_store *s = locked ? reuse(dev) : NULL;
  if (s == NULL) {
    s = malloc(sizeof *s);
  }
  if (s == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory");
  }
  s->keyed.base = *base;
  s->keyed.mark = 0;
  s->keyed.slot = 0;
  s->dev = dev;
  atomic_init(&s->refs, STORE_OWNED);
  s->used = false;
  s->nbyte = nbyte;
  s->born = atomic_load_explicit(&dev->recorded, memory_order_relaxed);
  s->verified = 0;
  s->buf = NULL;
  s->buf_nbyte = 0;
  s->poison = NULL;
  s->writer = UINT32_MAX;
  s->awaited = true;
  s->lags = false;
  s->next = NULL;
  s->prev = NULL;
  ttc__promise(dev, nbyte, 1);
  *out = s;
  return TTC_OK;
}

ttc_status ttc_store_new(ttc_device *dev, size_t nbyte, const ttc_spec *spec, ttc_store **out, ttc_error *err) {
  ttc__base base;
  TTC_TRY(ttc__usable(dev, err));
  if (spec != NULL && (spec->ndim < 0 || spec->ndim > TTC_MAX_NDIM)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected at most %d dimensions, got %d", TTC_MAX_NDIM, spec->ndim);
  }
  if (nbyte > (size_t)INT64_MAX / 2) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "a storage of %zu bytes is larger than any device", nbyte);
  }
  if (spec == NULL || !ttc__base_of_spec(spec, &base) || ttc__base_nbyte(&base) != nbyte) {
    ttc__base_flat(&base, spec != NULL ? spec->dtype : TTC_U8, nbyte);
  }
  if (!ttc__memory_fits(dev, (int64_t)nbyte)) {
    ttc__asked asked = {.op = UINT32_MAX, .nout = spec != NULL ? 1 : 0, .specs = spec, .nbyte = (int64_t)nbyte};
    TTC_TRY(ttc__memory_make_room(dev, &asked, err));
  }
  return ttc__store_make(dev, false, &base, nbyte, out, err);
}

void ttc_store_retain(ttc_store *s) {
  ttc__store_retain_as(s, STORE_OWNED);
}

static void raise(_Atomic int64_t *now, _Atomic int64_t *peak, int64_t delta) {
  int64_t n = atomic_load_explicit(now, memory_order_relaxed) + delta;
  atomic_store_explicit(now, n, memory_order_relaxed);
  if (n > atomic_load_explicit(peak, memory_order_relaxed)) {
    atomic_store_explicit(peak, n, memory_order_relaxed);
  }
}

/* Store lock held, so that plain writes do; readers take no lock. */
static void account(ttc_device *dev, int64_t nbyte, int64_t nbuffer) {
  raise(&dev->live_nbyte, &dev->peak_nbyte, nbyte);
  raise(&dev->live_nbuffer, &dev->peak_nbuffer, nbuffer);
}

/* Launch lock held. */
static void account_new(ttc_device *dev, size_t nbyte) {
  atomic_store_explicit(&dev->made_nbyte, atomic_load_explicit(&dev->made_nbyte, memory_order_relaxed) + nbyte,
                        memory_order_relaxed);
  atomic_store_explicit(&dev->made_nbuffer, atomic_load_explicit(&dev->made_nbuffer, memory_order_relaxed) + 1,
                        memory_order_relaxed);
}

/* Launch lock held, or nobody else can see the store. */
void ttc__store_clear(ttc_store *s) {
  ttc_device *dev = s->dev;
  if (ttc__forked()) { /* this process may use neither the plugin nor locks, whose holders it lacks */
    s->buf = NULL;
  }
  if (s->buf != NULL) {
    bool ending = atomic_load_explicit(&dev->stop, memory_order_relaxed);
    if (!s->awaited && s->lags && !ending) {
      ttc__result_dropped(dev, s->buf);
    }
    ttc__lock_take(&dev->store_lock);
    if (s->prev != NULL) {
      *s->prev = s->next;
      if (s->next != NULL) {
        s->next->prev = s->prev;
      }
      s->prev = NULL;
    }
    account(dev, -(int64_t)s->buf_nbyte, -1);
    ttc__lock_drop(&dev->store_lock);
    if (!ending) { /* past the end, the process's exit frees */
      pjrt_buffer_free(dev->client, s->buf);
    }
    s->buf = NULL;
  }
  if (s->poison != NULL) {
    ttc__poison_release(s->poison);
    s->poison = NULL;
  }
}

void ttc__store_release_as(ttc_store *s, uint64_t unit) {
  uint64_t left = s != NULL ? atomic_fetch_sub_explicit(&s->refs, unit, memory_order_acq_rel) - unit : STORE_IN_USE;
  if ((left & STORE_IN_USE) == 0) {
    ttc__store_clear(s);
    ttc__promise(s->dev, s->nbyte, -1);
    if (left == 0 || atomic_fetch_or_explicit(&s->refs, STORE_GONE, memory_order_acq_rel) == 0) {
      recycle(s);
    }
  }
}

/* Whoever comes last of this and the mark's setting above recycles. */
void ttc__store_forget(ttc_store *s) {
  if (atomic_fetch_sub_explicit(&s->refs, STORE_NOTED, memory_order_acq_rel) == (STORE_GONE | STORE_NOTED)) {
    recycle(s);
  }
}

void ttc_store_release(ttc_store *s) {
  ttc__store_release_as(s, STORE_OWNED);
}

size_t ttc_store_nbyte(const ttc_store *s) {
  return s->nbyte;
}
ttc_device *ttc_store_device(const ttc_store *s) {
  return s->dev;
}

void ttc__store_set(ttc_store *s, pjrt_buffer *buf, const ttc__base *base, uint32_t writer) {
  ttc_device *dev = s->dev;
  size_t nbyte = ttc__base_nbyte(base);
  if (s->buf != NULL) { /* replaced in place: stay on the list */
    if (!s->awaited && s->lags) {
      ttc__result_dropped(dev, s->buf);
    }
    pjrt_buffer_free(dev->client, s->buf);
    if (nbyte != s->buf_nbyte) {
      ttc__lock_take(&dev->store_lock);
      account(dev, (int64_t)nbyte - (int64_t)s->buf_nbyte, 0);
      ttc__lock_drop(&dev->store_lock);
    }
  } else {
    ttc__lock_take(&dev->store_lock);
    s->next = dev->live;
    s->prev = &dev->live;
    if (dev->live != NULL) {
      dev->live->prev = &s->next;
    }
    dev->live = s;
    account(dev, (int64_t)nbyte, 1);
    ttc__lock_drop(&dev->store_lock);
  }
  account_new(dev, nbyte);
  if (s->poison != NULL) {
    ttc__poison_release(s->poison);
    s->poison = NULL;
  }
  s->buf = buf;
  s->buf_base = *base;
  s->buf_nbyte = nbyte;
  s->writer = writer;
  s->awaited = false;
  s->lags = false;
}

void ttc__store_poison(ttc_store *s, ttc__poison *p, uint32_t writer) {
  ttc__poison_retain(p);
  ttc__store_clear(s);
  s->poison = p;
  s->writer = writer;
}

ttc_status ttc__store_fill_undefined(ttc_store *s, const ttc__base *base, ttc_error *err) {
  pjrt_buffer *buf;
  TTC_TRY(pjrt_buffer_new(s->dev->client, s->dev->index, (ttc_dtype)base->dtype, base->ndim, base->dims, &buf, err));
  ttc__store_set(s, buf, base, UINT32_MAX);
  return TTC_OK;
}

/* Bytes of an open store's contents from the buffer's, row by row of its innermost open axis. */
static void gather_rows(const ttc__base *base, const char *from, size_t offset, size_t nbyte, char *dst) {
  ttc__base physical = ttc__base_physical(base);
  int a = 31 - __builtin_clz(base->open);
  int64_t dense[TTC_MAX_NDIM];
  ttc__dense_strides(base->ndim, physical.dims, dense);
  size_t width = ttc_dtype_nbyte((ttc_dtype)base->dtype), row = (size_t)(base->dims[a] * dense[a]) * width;
  for (size_t done = 0; done < nbyte;) {
    size_t at = (offset + done) % row, left = row - at < nbyte - done ? row - at : nbyte - done, where = at;
    int64_t rows = (int64_t)((offset + done) / row);
    for (int k = a - 1; k >= 0; k--) {
      where += (size_t)(rows % base->dims[k] * dense[k]) * width;
      rows /= base->dims[k];
    }
    memcpy(dst + done, from + where, left);
    done += left;
  }
}

/* Of an open store the whole buffer is fetched and the rows that are in it are put together here: a program would be one for each
 * length. */
ttc_status ttc__store_read(ttc_store *s, const ttc__base *base, size_t offset, size_t nbyte, void *dst, ttc_error *err) {
  pjrt_client *client = s->dev->client;
  ttc__base physical = ttc__base_physical(base);
  size_t whole = ttc__base_nbyte(&physical), all = ttc__base_nbyte(base);
  bool rows = base->open != 0 && whole == s->buf_nbyte &&
              ((base->open & (base->open - 1)) != 0 || ttc__nelem(__builtin_ctz(base->open), base->dims) != 1);
  if (!rows) {
    return pjrt_buffer_to_host(client, s->buf, offset, nbyte, dst, err);
  }
  if (offset + nbyte > all) {
    return TTC_FAIL(err, TTC_OUT_OF_RANGE, "expected to read within %zu bytes, got %zu from byte %zu on", all, nbyte, offset);
  }
  char *from = malloc(whole);
  if (from == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of host memory for %zu bytes", whole);
  }
  ttc_status st = pjrt_buffer_to_host(client, s->buf, 0, whole, from, err);
  if (st == TTC_OK) {
    gather_rows(base, from, offset, nbyte, dst);
  }
  free(from);
  return st;
}
