/* A StableHLO module that somebody else made as an op: it is keyed, cached, launched and donated like any other, but its text is
 * compiled as it is. So a call must bring the very arrays that it takes. */
#include <stdlib.h>
#include <string.h>

#include "op/lower.h"
#include "ttc_module.h"

#define MODULE_MAX_NBYTE ((size_t)1 << 30)

typedef struct module {
  ttc_op_row row;
  char *text; /* NUL terminated, for those who look into it as text */
  size_t nbyte;
  uint32_t nin, nout;
  ttc_spec *ins, *outs;
  int32_t *writes; /* [nout] */
} module;

static void free_module(module *m) {
  if (m != NULL) {
    free((void *)(uintptr_t)m->row.name);
    free(m->text);
    free(m->ins);
    free(m->outs);
    free(m->writes);
    free(m);
  }
}

static bool same_sizes(int ndim, const int64_t *a, const int64_t *b) {
  return ndim == 0 || memcmp(a, b, (size_t)ndim * sizeof *a) == 0;
}

/* ---------------------------------------------------------------------------------------------------------- calling */

/* Argument i: the module's dtype and sizes, and nothing else in its store. */
static ttc_status check_argument(const module *m, const ttc_tensor *t, const ttc__base *base, uint32_t i, ttc_error *err) {
  const ttc_spec *s = &m->ins[i];
  if (t->dtype != s->dtype || t->ndim != s->ndim || !same_sizes(s->ndim, t->sizes, s->sizes)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT,
                    "%s: argument %u is %s of %d dimensions, expected %s of %d dimensions with its sizes", m->row.name, i,
                    ttc_dtype_name((ttc_dtype)t->dtype), t->ndim, ttc_dtype_name(s->dtype), s->ndim);
  }
  bool whole = t->offset == 0 && ttc__is_dense(t->ndim, t->sizes, t->strides) && base->dtype == t->dtype && base->ndim == t->ndim &&
               same_sizes(t->ndim, base->dims, t->sizes);
  if (!whole) {
    return TTC_FAIL(err, TTC_UNIMPLEMENTED, "%s: argument %u is a view; a module takes whole, contiguous tensors: pass a copy",
                    m->row.name, i);
  }
  return TTC_OK;
}

static ttc_status check_result(const module *m, const ttc__lower_in *in, uint32_t k, ttc_error *err) {
  const ttc_spec *a = &in->outs[k], *b = &m->outs[k];
  if (a->dtype != b->dtype || a->ndim != b->ndim || !same_sizes(a->ndim, a->sizes, b->sizes) ||
      !same_sizes(a->ndim, a->strides, b->strides)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: result %u is not what the module gives", m->row.name, k);
  }
  const ttc_tensor *into = k < in->call->ninto ? in->call->into[k] : NULL;
  if (m->writes[k] < 0) {
    return into == NULL ? TTC_OK : TTC_FAIL(err, TTC_UNIMPLEMENTED, "%s: result %u is a tensor of its own", m->row.name, k);
  }
  const ttc_tensor *from = in->call->args[m->writes[k]].tensor;
  if (into == NULL || into->store != from->store || into->dtype != from->dtype || into->ndim != from->ndim || into->offset != 0 ||
      !same_sizes(from->ndim, into->sizes, from->sizes) || !ttc__is_dense(into->ndim, into->sizes, into->strides)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: result %u is to be written into argument %d", m->row.name, k, m->writes[k]);
  }
  return TTC_OK;
}

static ttc_status check_call(const module *m, const ttc__lower_in *in, ttc_error *err) {
  const ttc_call *call = in->call;
  if (call->narg != m->nin || in->nout != m->nout) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s takes %u tensors and gives %u, the call has %u and %u", m->row.name, m->nin,
                    m->nout, call->narg, in->nout);
  }
  for (uint32_t i = 0; i < m->nin; i++) {
    if (call->args[i].kind != TTC_ARG_TENSOR || ttc__absent(call->args[i].tensor)) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: argument %u is no tensor", m->row.name, i);
    }
    TTC_TRY(check_argument(m, call->args[i].tensor, &in->bases[in->slots[i]], i, err));
  }
  for (uint32_t k = 0; k < m->nout; k++) {
    TTC_TRY(check_result(m, in, k, err));
    for (uint32_t i = 0; m->writes[k] >= 0 && i < m->nin; i++) {
      if (i != (uint32_t)m->writes[k] && in->slots[i] == in->slots[m->writes[k]]) {
        return TTC_FAIL(err, TTC_UNIMPLEMENTED, "%s: arguments %u and %d share memory that is written", m->row.name, i,
                        m->writes[k]);
      }
    }
  }
  return TTC_OK;
}

/* One parameter an argument, one product a result, in the module's order. */
static ttc_status give(const ttc__lower_in *in, void *data, ttc__lowered *out, ttc_error *err) {
  const module *m = data;
  TTC_TRY(check_call(m, in, err));
  out->text = malloc(m->nbyte + 1);
  out->params = calloc(m->nin + 1, sizeof *out->params);
  out->products = calloc(m->nout + 1, sizeof *out->products);
  if (out->text == NULL || out->params == NULL || out->products == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  memcpy(out->text, m->text, m->nbyte + 1);
  out->text_nbyte = m->nbyte;
  for (uint32_t i = 0; i < m->nin; i++) {
    out->params[out->nparam++] = (ttc__param){.kind = TTC__PARAM_STORE, .i = in->slots[i]};
  }
  for (uint32_t k = 0; k < m->nout; k++) {
    ttc__product *p = &out->products[out->nproduct++];
    if (m->writes[k] >= 0) {
      uint32_t slot = in->slots[m->writes[k]];
      *p = (ttc__product){.out = TTC__PRODUCT_SLOT, .slot = slot, .base = in->bases[slot]};
    } else {
      p->out = (int32_t)k;
      (void)ttc__base_of_spec(&m->outs[k], &p->base); /* dense, as ttc_module_load has seen */
    }
  }
  out->foreign = true;
  return TTC_OK;
}

static void refuse(shlo *b, ttc_lower *c) {
  (void)b;
  op_refuse(c, "a module is no part of a graph");
}

/* ---------------------------------------------------------------------------------------------------------- loading */

static ttc_status check_spec(const char *name, const char *what, uint32_t k, const ttc_spec *s, ttc_error *err) {
  if (s->dtype <= TTC_DTYPE_INVALID || s->dtype >= TTC_NDTYPE || s->ndim < 0 || s->ndim > TTC_MAX_NDIM) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: %s %u has dtype %d and %d dimensions", name, what, k, (int)s->dtype, s->ndim);
  }
  int64_t nbyte = (int64_t)ttc_dtype_nbyte(s->dtype);
  for (int i = 0; i < s->ndim; i++) {
    if (s->sizes[i] < 0 || __builtin_mul_overflow(nbyte, s->sizes[i], &nbyte)) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: %s %u has size %lld in dimension %d", name, what, k, (long long)s->sizes[i],
                      i);
    }
  }
  ttc__base base;
  if (!ttc__base_of_spec(s, &base)) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: %s %u is not dense", name, what, k);
  }
  return TTC_OK;
}

static size_t occurrences(const char *text, size_t nbyte, const char *word) {
  size_t n = 0, len = strlen(word);
  for (const char *at = text; (at = memmem(at, nbyte - (size_t)(at - text), word, len)) != NULL; at += len) {
    n++;
  }
  return n;
}

static ttc_status check_module(const module *m, ttc_error *err) {
  const char *name = m->row.name;
  size_t nwritten = 0;
  for (uint32_t i = 0; i < m->nin; i++) {
    TTC_TRY(check_spec(name, "parameter", i, &m->ins[i], err));
    if (!ttc__is_dense(m->ins[i].ndim, m->ins[i].sizes, m->ins[i].strides)) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: parameter %u is not contiguous", name, i);
    }
  }
  for (uint32_t k = 0; k < m->nout; k++) {
    TTC_TRY(check_spec(name, "result", k, &m->outs[k], err));
    int32_t into = m->writes[k];
    if (into < 0) {
      continue;
    }
    if ((uint32_t)into >= m->nin || m->ins[into].dtype != m->outs[k].dtype || m->ins[into].ndim != m->outs[k].ndim ||
        !same_sizes(m->outs[k].ndim, m->ins[into].sizes, m->outs[k].sizes) ||
        !ttc__is_dense(m->outs[k].ndim, m->outs[k].sizes, m->outs[k].strides)) {
      return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: result %u cannot be the new contents of parameter %d", name, k, into);
    }
    for (uint32_t j = 0; j < k; j++) {
      if (m->writes[j] == into) {
        return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: parameter %d is written by results %u and %u", name, into, j, k);
      }
    }
    nwritten++;
  }
  /* Whose memory a program takes must be known here: the caller's tensor would be lost. */
  if (occurrences(m->text, m->nbyte, "tf.aliasing_output") > nwritten || occurrences(m->text, m->nbyte, "jax.buffer_donor") > 0) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: the module takes the memory of parameters that it is not said to write", name);
  }
  return TTC_OK;
}

static void *copy(const void *p, size_t n, size_t size) {
  void *q = calloc(n + 1, size);
  if (q != NULL && n != 0) {
    memcpy(q, p, n * size);
  }
  return q;
}

ttc_status ttc_module_load(const char *name, const void *text, size_t nbyte, uint32_t nin, const ttc_spec *ins, uint32_t nout,
                           const ttc_spec *outs, const int32_t *writes, uint32_t *op, ttc_error *err) {
  if (nbyte == 0 || nbyte > MODULE_MAX_NBYTE) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: expected a module of 1 to %zu bytes, got %zu", name, MODULE_MAX_NBYTE, nbyte);
  }
  if (nout == 0) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "%s: a module must give something", name);
  }
  module *m = calloc(1, sizeof *m);
  if (m == NULL) {
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  *m = (module){.row = {.name = strdup(name), .rule = refuse, .tol = TOL_LOOSE},
                .text = copy(text, nbyte, 1),
                .nbyte = nbyte,
                .nin = nin,
                .nout = nout,
                .ins = copy(ins, nin, sizeof *ins),
                .outs = copy(outs, nout, sizeof *outs),
                .writes = calloc(nout, sizeof *writes)};
  ttc_status st = TTC_OK;
  if (m->row.name == NULL || m->text == NULL || m->ins == NULL || m->outs == NULL || m->writes == NULL) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  for (uint32_t k = 0; st == TTC_OK && k < nout; k++) {
    m->writes[k] = writes != NULL && writes[k] >= 0 ? writes[k] : -1;
  }
  st = st == TTC_OK ? check_module(m, err) : st;
  uint32_t id = st == TTC_OK ? ttc__op_register_program(&m->row, m, give) : UINT32_MAX;
  if (st == TTC_OK && id == UINT32_MAX) {
    st = TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "out of memory");
  }
  if (st != TTC_OK) {
    free_module(m);
    return st;
  }
  *op = id;
  return TTC_OK;
}
