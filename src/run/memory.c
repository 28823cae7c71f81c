/* Memory: may another tensor be made, and what to do and say when not.
 *
 * A call is refused at its own line, before anything is queued: the sizes of all stores there are, computed or not, are summed when
 * they are made (`promised`), so that running out leaves every tensor as it was. Only what the compiler takes for itself can still
 * be missing at a launch; that surfaces as any launch's error does.
 *
 * Where the device is simulated its memory is the machine's. XLA:CPU takes it from malloc, which promises more than there is:
 * whoever then touches it is killed. So the machine's free memory is looked at before large tensors, and each time the promises
 * have grown by a piece. */
#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run/run.h"

#define MIB ((int64_t)1 << 20)
#define RESERVE (128 * MIB)  /* of the machine's memory, left alone */
#define PIECE_MIN (16 * MIB) /* promises that may be made between two looks at the machine's memory */
#define PIECE_MAX (256 * MIB)

/* ---------------------------------------------------------------------------------------------------- the machine */

/* The number after `name` (or at the start) of a file of the kernel's; -1 if there is none. */
static int64_t read_number(const char *path, const char *name) {
  char line[256];
  int64_t found = -1;
  FILE *f = fopen(path, "re");
  if (f == NULL) {
    return -1;
  }
  while (found < 0 && fgets(line, sizeof line, f) != NULL) {
    size_t n = strlen(name);
    char *end;
    if (strncmp(line, name, n) == 0) {
      long long v = strtoll(line + n, &end, 10);
      found = end != line + n && v >= 0 ? v : -1;
    }
  }
  fclose(f);
  return found;
}

/* A container's limit (control groups 2, then 1), or -1. */
static int64_t container_limit(void) {
  int64_t n = read_number("/sys/fs/cgroup/memory.max", "");
  n = n >= 0 ? n : read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "");
  return n > ((int64_t)1 << 60) ? -1 : n;
}

int64_t ttc__machine_nbyte(void) {
  int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), n = container_limit();
  return n > 0 && n < all ? n : all;
}

/* Bytes that could be used now without anything being killed; INT64_MAX if the kernel does not say. */
static int64_t machine_free(void) {
  int64_t n = read_number("/proc/meminfo", "MemAvailable:"), cap = container_limit();
  n = n >= 0 ? n * 1024 : INT64_MAX;
  if (cap > 0) {
    int64_t used = read_number("/sys/fs/cgroup/memory.current", ""), cached;
    if (used >= 0) {
      cached = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
    } else {
      used = read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", "");
      cached = read_number("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file ");
    }
    if (used >= 0 && cap - used + (cached > 0 ? cached : 0) < n) {
      n = cap - used + (cached > 0 ? cached : 0);
    }
  }
  return n < 0 ? 0 : n;
}

/* ------------------------------------------------------------------------------------------------------ the limit */

ttc_status ttc__memory_init(ttc_device *dev, ttc_error *err) {
  const char *s = getenv("TORCH_TPU_MEMORY_LIMIT");
  atomic_store(&dev->limit_nbyte, dev->info.memory_limit_nbyte);
  if (s == NULL || s[0] == '\0') {
    return TTC_OK;
  }
  static const char units[] = "KMGT";
  char *end;
  errno = 0;
  double v = strtod(s, &end);
  const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
  if (unit != NULL) {
    end++;
    v *= (double)((int64_t)1 << (10 * (unit - units + 1)));
  } else if (v <= 1) {
    v *= (double)dev->info.memory_limit_nbyte;
  }
  if (end == s || *end != '\0' || errno != 0 || !(v >= 1) || v > 0x1p62) {
    return TTC_FAIL(
        err, TTC_INVALID_ARGUMENT,
        "TORCH_TPU_MEMORY_LIMIT=%.40s: expected bytes, with K, M, G or T if need be (\"12G\"), or a part of the device's "
        "memory (\"0.5\")",
        s);
  }
  atomic_store(&dev->limit_nbyte, (int64_t)v);
  return TTC_OK;
}

void ttc_device_set_memory_limit(ttc_device *dev, int64_t nbyte) {
  atomic_store(&dev->limit_nbyte, nbyte > 0 ? nbyte : dev->info.memory_limit_nbyte);
  atomic_store(&dev->ceiling_nbyte, 0); /* looked at anew by the next tensor */
}

static bool has_room(ttc_device *dev, int64_t need) {
  int64_t limit = atomic_load(&dev->limit_nbyte), promised = atomic_load(&dev->promised_nbyte);
  if (need > limit || promised > limit - need) {
    return false;
  }
  int64_t ceiling = limit;
  if (dev->info.simulated) {
    int64_t pending = promised - atomic_load(&dev->live_nbyte), left = machine_free();
    left -= RESERVE + need + (pending > 0 ? pending : 0);
    if (left < 0) {
      return false;
    }
    int64_t piece = left / 4;
    piece = piece < PIECE_MIN ? PIECE_MIN : (piece > PIECE_MAX ? PIECE_MAX : piece);
    ceiling = promised + need + piece < limit ? promised + need + piece : limit;
  }
  atomic_store(&dev->ceiling_nbyte, ceiling);
  return true;
}

/* ----------------------------------------------------------------------------------------------------- the report */

typedef struct holder {
  ttc__base base;
  uint32_t writer;
  int64_t count, nbyte;
} holder;

enum { MAX_HOLDERS = 64, SHOWN = 4 };

static int by_nbyte(const void *a, const void *b) {
  int64_t x = ((const holder *)a)->nbyte, y = ((const holder *)b)->nbyte;
  return (x < y) - (x > y);
}

static bool alike(const holder *h, const ttc_store *s) {
  return h->writer == s->writer && h->base.dtype == s->buf_base.dtype && h->base.ndim == s->buf_base.ndim &&
         memcmp(h->base.dims, s->buf_base.dims, h->base.ndim * sizeof *h->base.dims) == 0;
}

/* Launch lock held. Stores grouped by shape and by the op that wrote them, the largest groups first; returns how many. */
static int find_holders(ttc_device *dev, holder *all, int64_t *nstore) {
  int n = 0;
  *nstore = 0;
  ttc__lock_take(&dev->store_lock);
  for (const ttc_store *s = dev->live; s != NULL; s = s->next) {
    int k = 0;
    ++*nstore;
    while (k < n && !alike(&all[k], s)) {
      k++;
    }
    if (k == MAX_HOLDERS) { /* more kinds than places: the smallest gives way to a larger one */
      qsort(all, MAX_HOLDERS, sizeof *all, by_nbyte);
      k = MAX_HOLDERS - 1;
      if (all[k].nbyte >= (int64_t)s->buf_nbyte) {
        continue;
      }
      n = k;
    }
    if (k == n) {
      all[n++] = (holder){.base = s->buf_base, .writer = s->writer};
    }
    all[k].count++;
    all[k].nbyte += (int64_t)s->buf_nbyte;
  }
  ttc__lock_drop(&dev->store_lock);
  qsort(all, (size_t)n, sizeof *all, by_nbyte);
  return n;
}

typedef struct text {
  char at[1400];
  size_t n;
} text;

__attribute__((format(printf, 2, 3))) static void say(text *t, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(t->at + t->n, sizeof t->at - t->n, fmt, ap);
  va_end(ap);
  t->n += n < 0 ? 0 : (size_t)n;
  t->n = t->n < sizeof t->at ? t->n : sizeof t->at - 1;
}

static void say_size(text *t, int64_t nbyte) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double v = (double)nbyte;
  int u = 0;
  while (v >= 1024 && u < 6) {
    v /= 1024;
    u++;
  }
  say(t, u == 0 ? "%.0f %s" : "%.2f %s", v, units[u]);
}

static void say_shape(text *t, ttc_dtype d, int ndim, const int64_t *dims) {
  say(t, "%s[", ttc_dtype_name(d));
  for (int k = 0; k < ndim; k++) {
    say(t, k == 0 ? "%lld" : ",%lld", (long long)dims[k]);
  }
  say(t, "]");
}

/* Launch lock held. */
static void say_held(text *t, ttc_device *dev) {
  static const char nobody[] = "the host";
  holder all[MAX_HOLDERS];
  int64_t nstore;
  int n = find_holders(dev, all, &nstore);
  say(t, " Held: ");
  say_size(t, atomic_load(&dev->live_nbyte));
  say(t, " by %lld tensors (peak ", (long long)nstore);
  say_size(t, atomic_load(&dev->peak_nbyte));
  say(t, "); allowed: ");
  say_size(t, atomic_load(&dev->limit_nbyte));
  if (dev->info.simulated) {
    say(t, "; free on this machine: ");
    say_size(t, machine_free());
  }
  for (int k = 0; k < n && k < SHOWN; k++) {
    const ttc_op_row *row = all[k].writer != UINT32_MAX ? ttc__op_row(all[k].writer) : NULL;
    say(t, k == 0 ? ". Largest: " : "; ");
    say_size(t, all[k].nbyte);
    say(t, " in %lld x ", (long long)all[k].count);
    say_shape(t, (ttc_dtype)all[k].base.dtype, all[k].base.ndim, all[k].base.dims);
    say(t, " from %s", row != NULL ? row->name : nobody);
  }
  say(t, ". The limit is TORCH_TPU_MEMORY_LIMIT or torch.tpu.set_per_process_memory_fraction");
}

/* ------------------------------------------------------------------------------------------------------ no memory */

/* Launch lock held: what is in flight is waited for and what is only kept for speed is given back. */
static void give_back(ttc_device *dev) {
  for (uint32_t k = 0; k < NUMBER_CACHE; k++) {
    pjrt_buffer_free(dev->client, dev->numbers[k].buf);
    dev->numbers[k].buf = NULL;
  }
#ifdef __GLIBC__
  if (dev->info.simulated) {
    malloc_trim(0);
  }
#endif
}

ttc_status ttc_device_reclaim(ttc_device *dev, ttc_error *err) {
  err->op[0] = '\0';
  TTC_TRY(ttc__usable(dev, err));
  TTC_TRY(ttc__compute_all(dev, err));
  TTC_TRY(ttc__launch_take(dev, err));
  give_back(dev);
  ttc__lock_drop(&dev->launch);
  return TTC_OK;
}

void ttc__memory_reclaim_launching(ttc_device *dev) {
  ttc__compute_launched(dev);
  give_back(dev);
}

ttc_status ttc__memory_look_at_launch(ttc_device *dev, int64_t nbyte, ttc_error *err) {
  text t = {.n = 0};
  if (!dev->info.simulated || machine_free() - RESERVE >= nbyte) { /* elsewhere the plugin says it itself */
    return TTC_OK;
  }
  say_size(&t, nbyte);
  return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "it takes %s for itself while it runs", t.at);
}

void ttc__memory_explain(ttc_device *dev, ttc_error *err) {
  text t = {.n = 0};
  say(&t, "tpu:%d is out of memory while running this op (%.300s).", dev->index, err->message);
  say_held(&t, dev);
  (void)TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "%s", t.at);
}

ttc_status ttc__memory_make_room(ttc_device *dev, const ttc__asked *asked, ttc_error *err) {
  if (has_room(dev, asked->nbyte)) {
    return TTC_OK;
  }
  ttc__fuse_cut(dev, TTC_CUT_MEMORY);
  TTC_TRY(ttc_device_reclaim(dev, err));
  TTC_TRY(ttc__launch_take(dev, err));
  ttc_status st = TTC_OK;
  if (!has_room(dev, asked->nbyte)) {
    const ttc_op_row *row = asked->op != UINT32_MAX ? ttc__op_row(asked->op) : NULL;
    text t = {.n = 0};
    say(&t, "tpu:%d is out of memory: %s asks for ", dev->index, row != NULL ? row->name : "a new tensor");
    say_size(&t, asked->nbyte);
    for (uint32_t k = 0, shown = 0; k < asked->nout && shown < SHOWN; k++) {
      const ttc_spec *s = &asked->specs[k];
      if (s->dtype != TTC_DTYPE_INVALID && (asked->into == NULL || asked->into[k] == NULL)) {
        say(&t, shown++ == 0 ? ": " : ", ");
        say_shape(&t, s->dtype, s->ndim, s->sizes);
      }
    }
    say(&t, ".");
    say_held(&t, dev);
    err->op[0] = '\0';
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "%s", t.at);
  }
  ttc__lock_drop(&dev->launch);
  return st;
}

int64_t ttc__fresh_nbyte(const ttc_call *call, uint32_t nout, const ttc_spec *specs) {
  int64_t sum = 0;
  for (uint32_t k = 0; k < nout; k++) {
    int64_t n = (int64_t)ttc_dtype_nbyte(specs[k].dtype);
    if (call->ninto != 0 && call->into[k] != NULL) {
      continue;
    }
    for (int i = 0; i < specs[k].ndim; i++) {
      n = specs[k].sizes[i] == 0 ? 0 : n; /* an empty tensor, however long its other sides */
    }
    for (int i = 0; i < specs[k].ndim && n != 0; i++) {
      if (__builtin_mul_overflow(n, specs[k].sizes[i], &n)) {
        return INT64_MAX;
      }
    }
    if (__builtin_add_overflow(sum, n, &sum)) {
      return INT64_MAX;
    }
  }
  return sum;
}
