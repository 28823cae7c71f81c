/* For the tests of src/run through ttc.h: a device on the fake plugin, tensors, calls. The fake plugin computes nothing: what is
 * tested with it is bookkeeping. */
#ifndef TTC_TESTS_RUN_TOOLS_H
#define TTC_TESTS_RUN_TOOLS_H

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "fake_plugin.h"
#include "ttc.h"

static ttc_device *dev;
static ttc_error err;
static fake_plugin_live_fn *fake_live;
static fake_plugin_fail_fn *fake_fail;
static fake_plugin_failed_fn *fake_failed;
static fake_plugin_count_fn *fake_count;
static fake_plugin_delay_fn *fake_delay;
static fake_plugin_hold_fn *fake_hold;

#define OK(call)                                                                  \
  do {                                                                            \
    bool ok_ = (call) == TTC_OK;                                                  \
    if (!ok_) {                                                                   \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, err.message); \
    }                                                                             \
    CHECK(ok_);                                                                   \
  } while (0)
/* In a test's own threads, which have an error `e` each and count in `wrong`. */
#define MUST(call)                                   \
  do {                                               \
    if ((call) != TTC_OK) {                          \
      fprintf(stderr, "%s: %s\n", #call, e.message); \
      atomic_fetch_add(&wrong, 1);                   \
    }                                                \
  } while (0)
#define IS(call, code) CHECK_EQ((call), (code))
#define DIMS(...)                                                        \
  (int)(sizeof((const int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { \
    __VA_ARGS__                                                          \
  }
#define SCALAR 0, NULL

/* Nothing is cached on disk. */
static inline void choose_plugin(const char *path) {
  setenv("TORCH_TPU_PLUGIN", path, 1);
  setenv("TORCH_TPU_CACHE", "0", 1);
}

/* The fake plugin. */
static inline const char *choose_fake(void) {
  const char *path = getenv("TTC_FAKE_PLUGIN");
  if (path == NULL) {
    fprintf(stderr, "TTC_FAKE_PLUGIN is not set\n");
    exit(1);
  }
  choose_plugin(path);
  return path;
}

/* Opens tpu:0 of the plugin. */
static inline void open_plugin(const char *path) {
  choose_plugin(path);
  if (ttc_device_open(0, &dev, &err) != TTC_OK) {
    fprintf(stderr, "open: %s\n", err.message);
    exit(1);
  }
}

static inline void open_fake(void) {
  const char *path = choose_fake();
  open_plugin(path);
  void *lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  void *found[] = {dlsym(lib, "fake_plugin_live"),  dlsym(lib, "fake_plugin_fail"),  dlsym(lib, "fake_plugin_failed"),
                   dlsym(lib, "fake_plugin_count"), dlsym(lib, "fake_plugin_delay"), dlsym(lib, "fake_plugin_hold")};
  memcpy(&fake_live, &found[0], sizeof found[0]);
  memcpy(&fake_fail, &found[1], sizeof found[1]);
  memcpy(&fake_failed, &found[2], sizeof found[2]);
  memcpy(&fake_count, &found[3], sizeof found[3]);
  memcpy(&fake_delay, &found[4], sizeof found[4]);
  memcpy(&fake_hold, &found[5], sizeof found[5]);
}

/* ---- tensors: a view with its sizes, and a reference to its store */

typedef struct ten {
  ttc_store *store;
  int64_t sizes[TTC_MAX_NDIM], strides[TTC_MAX_NDIM], offset;
  ttc_dtype dtype;
  int ndim;
} ten;

static inline ttc_tensor as_arg(const ten *x) {
  return (ttc_tensor){.store = x->store,
                      .sizes = x->sizes,
                      .strides = x->strides,
                      .offset = x->offset,
                      .value = -1,
                      .dtype = (uint8_t)x->dtype,
                      .ndim = (uint8_t)x->ndim};
}

static inline ttc_spec dense(ttc_dtype d, int ndim, const int64_t *sizes) {
  ttc_spec s = {.dtype = d, .ndim = ndim};
  int64_t stride = 1;
  for (int k = ndim - 1; k >= 0; k--) {
    s.sizes[k] = sizes[k];
    s.strides[k] = stride;
    stride *= sizes[k];
  }
  return s;
}

static inline size_t spec_nbyte(const ttc_spec *s) {
  size_t n = ttc_dtype_nbyte(s->dtype);
  for (int k = 0; k < s->ndim; k++) {
    n *= (size_t)s->sizes[k];
  }
  return n;
}

static inline ten of_spec(ttc_store *store, const ttc_spec *s) {
  ten x = {.store = store, .dtype = s->dtype, .ndim = s->ndim};
  memcpy(x.sizes, s->sizes, sizeof x.sizes);
  memcpy(x.strides, s->strides, sizeof x.strides);
  return x;
}

/* Undefined contents; store NULL on failure. */
static inline ten empty(ttc_dtype d, int ndim, const int64_t *sizes) {
  ttc_spec s = dense(d, ndim, sizes);
  ttc_store *store = NULL;
  if (ttc_store_new(dev, spec_nbyte(&s), &s, &store, &err) != TTC_OK) {
    store = NULL;
  }
  return of_spec(store, &s);
}

/* Bytes no dtype. */
static inline ten empty_flat(size_t nbyte, ttc_dtype d, int ndim, const int64_t *sizes) {
  ttc_spec s = dense(d, ndim, sizes);
  ttc_store *store = NULL;
  if (ttc_store_new(dev, nbyte, NULL, &store, &err) != TTC_OK) {
    store = NULL;
  }
  return of_spec(store, &s);
}

/* The same store, seen otherwise; no reference of its own. */
static inline ten view(const ten *x, int64_t offset, int ndim, const int64_t *sizes, const int64_t *strides) {
  ten v = {.store = x->store, .dtype = x->dtype, .ndim = ndim, .offset = offset};
  memcpy(v.sizes, sizes, (size_t)ndim * sizeof *sizes);
  memcpy(v.strides, strides, (size_t)ndim * sizeof *strides);
  return v;
}

static inline size_t ten_nbyte(const ten *x) {
  ttc_spec s = dense(x->dtype, x->ndim, x->sizes);
  return spec_nbyte(&s);
}

static inline ttc_status put(const ten *x, const void *data) {
  ttc_tensor t = as_arg(x);
  return ttc_copy_from_host(&t, data, ten_nbyte(x), &err);
}
static inline ttc_status get(const ten *x, void *data) {
  ttc_tensor t = as_arg(x);
  return ttc_copy_to_host(&t, data, ten_nbyte(x), &err);
}

/* ---- calls */

enum { MAX_TEN = 16 };
typedef struct what {
  const char *op;
  uint32_t narg;
  ttc_arg args[MAX_TEN];
  ttc_tensor tensors[MAX_TEN];
  ttc_scalar numbers[MAX_TEN];
  uint32_t ntensor, nnumber;
  const ten *into;
  ttc_spec spec; /* of the one result */
} what;

static inline void tensor_arg(what *w, const ten *x) {
  w->tensors[w->ntensor] = as_arg(x);
  w->args[w->narg++] = (ttc_arg){.kind = TTC_ARG_TENSOR, .n = 1, .tensor = &w->tensors[w->ntensor++]};
}
static inline void number_arg(what *w, double v) {
  w->numbers[w->nnumber] = (ttc_scalar){.kind = TTC_SCALAR_FLOAT, .wrapped = 1, .re = v};
  w->args[w->narg++] = (ttc_arg){.kind = TTC_ARG_SCALAR, .n = 1, .scalar = &w->numbers[w->nnumber++]};
}

static _Thread_local bool was_hit;
static uint32_t deferring; /* 1: calls may be kept back */

/* The call w; *out (may be NULL) receives the result where it is a fresh one. */
static inline ttc_status run_err(const what *w, ten *out, ttc_error *e) {
  ttc_tensor into;
  const ttc_tensor *target = NULL;
  if (w->into != NULL) {
    into = as_arg(w->into);
    target = &into;
  }
  ttc_call call = {
      .op = ttc_op_find(w->op), .narg = w->narg, .args = w->args, .ninto = w->into != NULL, .into = &target, .defer = deferring};
  ttc_result res;
  ttc_status st = ttc_call_run(dev, &call, &res, e);
  was_hit = st == TTC_OK;
  if (st == TTC_NOT_FOUND) {
    st = ttc_call_define(dev, &call, 1, &w->spec, &res, e);
  }
  if (st == TTC_OK) {
    if (w->into == NULL && out != NULL) {
      *out = of_spec(res.stores[0], &res.specs[0]);
    } else if (w->into == NULL) {
      ttc_store_release(res.stores[0]);
    }
    ttc_result_done(&res);
  }
  return st;
}
static inline ttc_status run(const what *w, ten *out) {
  return run_err(w, out, &err);
}

/* add.Tensor(a, b, alpha=..), fresh in a's shape, or into a tensor. */
static inline ttc_status add_err(const ten *a, const ten *b, double alpha, const ten *into, ten *out, ttc_error *e) {
  what w = {.op = "add.Tensor", .into = into, .spec = dense(a->dtype, a->ndim, a->sizes)};
  tensor_arg(&w, a);
  tensor_arg(&w, b);
  number_arg(&w, alpha);
  return run_err(&w, out, e);
}
static inline ttc_status add(const ten *a, const ten *b, double alpha, const ten *into, ten *out) {
  return add_err(a, b, alpha, into, out, &err);
}

static inline ttc_stats stats(void) {
  ttc_stats s;
  ttc_device_get_stats(dev, &s);
  return s;
}

static inline void nap_ms(long ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

#endif
