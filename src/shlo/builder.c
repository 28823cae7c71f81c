#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shlo/internal.h"

/* More text than any program of ours; a cap so that a runaway rule is an error. */
#define MAX_TEXT ((size_t)1 << 28)

shlo *shlo_new(const char *module_name) {
  shlo *b = calloc(1, sizeof *b);
  if (b == NULL) {
    return NULL;
  }
  ttc__str_init(&b->body, MAX_TEXT);
  ttc__str_init(&b->attrs, MAX_TEXT);
  size_t n = 0;
  for (const char *c = module_name; *c != '\0' && n + 1 < sizeof b->name; c++) {
    bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_' || (n > 0 && *c >= '0' && *c <= '9');
    b->name[n++] = letter ? *c : '_';
  }
  if (n == 0) {
    b->name[n++] = 'm';
  }
  b->name[n] = '\0';
  b->regions[0] = (shlo__region){0, false};
  b->nregion = 1;
  b->next_region = 1;
  return b;
}

void shlo_free(shlo *b) {
  if (b == NULL) {
    return;
  }
  ttc__str_free(&b->body);
  ttc__str_free(&b->attrs);
  free(b->values);
  free(b->alias);
  free(b->results);
  free(b);
}

void shlo_set_for_tpu(shlo *b, bool for_tpu) {
  b->for_tpu = for_tpu;
}

bool shlo_for_tpu(const shlo *b) {
  return b->for_tpu;
}

void shlo_set_precision(shlo *b, shlo_precision p) {
  b->precision = p;
}

void shlo_set_locations(shlo *b, bool on) {
  b->locations = on;
}

void shlo_source(shlo *b, const char *op, const char *file, int line) {
  b->op = op;
  b->file = file;
  b->line = line;
}

bool shlo_failed(const shlo *b) {
  return b->failed;
}

/* ---- errors */

static ttc_val note(shlo *b, const char *file, int line, ttc_status code, const char *op, const char *fmt, va_list ap) {
  if (!b->failed) {
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    b->failed = true;
    size_t n = strlen(text);
    if (b->file != NULL && n < sizeof text - 1) {
      snprintf(text + n, sizeof text - n, " (%s at %s:%d)", b->op, b->file, b->line);
    } else if (b->op != NULL && n < sizeof text - 1) {
      snprintf(text + n, sizeof text - n, " (%s)", b->op);
    }
    ttc__fail_at(&b->err, code, file, line, "%s%s%s", op, op[0] != '\0' ? ": " : "", text);
  }
  return TTC_POISON;
}

ttc_val shlo__fail(shlo *b, const char *file, int line, ttc_status code, const char *op, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  ttc_val v = note(b, file, line, code, op, fmt, ap);
  va_end(ap);
  return v;
}

ttc_val shlo_error(shlo *b, ttc_status code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  ttc_val v = note(b, __FILE__, __LINE__, code == TTC_OK ? TTC_INTERNAL : code, "", fmt, ap);
  va_end(ap);
  return v;
}

static void out_of_memory(shlo *b) {
  shlo__fail(b, __FILE__, __LINE__, TTC_RESOURCE_EXHAUSTED, "shlo", "out of memory");
}

shlo__name shlo__describe(const shlo_type *t) {
  shlo__name n;
  int len = snprintf(n.text, sizeof n.text, "%s[", ttc_dtype_name(t->dtype));
  for (int k = 0; k < t->ndim && len >= 0 && (size_t)len < sizeof n.text - 24; k++) {
    len += snprintf(n.text + len, sizeof n.text - (size_t)len, "%s%lld", k > 0 ? "," : "", (long long)t->dims[k]);
  }
  snprintf(n.text + len, sizeof n.text - (size_t)len, "]");
  return n;
}

/* ---- types */

static const shlo_type poison_type = {.dtype = TTC_F32, .ndim = 0};

static bool known(const shlo *b, ttc_val v) {
  return v.id >= 0 && v.id < b->nvalue;
}

const shlo_type *shlo_typeof(shlo *b, ttc_val v) {
  return known(b, v) ? &b->values[v.id].type : &poison_type;
}

ttc_dtype shlo_dtype(shlo *b, ttc_val v) {
  return shlo_typeof(b, v)->dtype;
}

int shlo_ndim(shlo *b, ttc_val v) {
  return shlo_typeof(b, v)->ndim;
}

int64_t shlo_dim(shlo *b, ttc_val v, int axis) {
  const shlo_type *t = shlo_typeof(b, v);
  if (axis < 0 || axis >= t->ndim) {
    if (known(b, v)) {
      SHLO_FAIL(b, "shlo_dim", "axis %d of %s is out of range", axis, shlo__describe(t).text);
    }
    return 1;
  }
  return t->dims[axis];
}

int64_t shlo__nelem(const shlo_type *t) {
  int64_t n = 1;
  for (int k = 0; k < t->ndim; k++) {
    n *= t->dims[k];
  }
  return n;
}

int64_t shlo_nelem(shlo *b, ttc_val v) {
  return shlo__nelem(shlo_typeof(b, v));
}

shlo_type shlo__type(ttc_dtype d, int ndim, const int64_t *dims) {
  shlo_type t = {.dtype = d, .ndim = ndim};
  for (int k = 0; k < ndim && k < SHLO__MAX_NDIM; k++) {
    t.dims[k] = dims[k];
  }
  return t;
}

bool shlo__same_dims(const shlo_type *x, const shlo_type *y) {
  return x->ndim == y->ndim && memcmp(x->dims, y->dims, (size_t)x->ndim * sizeof *x->dims) == 0;
}

bool shlo__same_type(const shlo_type *x, const shlo_type *y) {
  return x->dtype == y->dtype && shlo__same_dims(x, y);
}

/* Sizes non-negative and, even with zeros left out, countable: XLA multiplies them too. */
static bool sound(shlo *b, const char *op, const shlo_type *t) {
  if (t->dtype <= TTC_DTYPE_INVALID || t->dtype >= TTC_NDTYPE) {
    SHLO_FAIL(b, op, "dtype %d is none of ttc_dtype", (int)t->dtype);
    return false;
  }
  if (t->ndim < 0 || t->ndim > SHLO__MAX_NDIM) {
    SHLO_FAIL(b, op, "the result has %d dims, expected 0 to %d", t->ndim, SHLO__MAX_NDIM);
    return false;
  }
  int64_t n = 16;
  for (int k = 0; k < t->ndim; k++) {
    if (t->dims[k] < 0) {
      SHLO_FAIL(b, op, "the result %s has a negative size", shlo__describe(t).text);
      return false;
    }
    if (t->dims[k] > 0 && __builtin_mul_overflow(n, t->dims[k], &n)) {
      SHLO_FAIL(b, op, "the result %s has too many elements", shlo__describe(t).text);
      return false;
    }
  }
  return true;
}

/* ---- values */

static bool grow(shlo *b, void **array, int32_t n, int32_t *cap, size_t size) {
  if (n < *cap) {
    return true;
  }
  int32_t want = *cap == 0 ? 64 : *cap * 2;
  void *p = realloc(*array, (size_t)want * size);
  if (p == NULL) {
    out_of_memory(b);
    return false;
  }
  *array = p;
  *cap = want;
  return true;
}

static ttc_val new_value(shlo *b, const shlo_type *t, int32_t name, int32_t sub) {
  void *p = b->values;
  if (!grow(b, &p, b->nvalue, &b->value_cap, sizeof *b->values)) {
    return TTC_POISON;
  }
  b->values = p;
  b->values[b->nvalue] = (shlo__value){*t, name, sub, b->regions[b->nregion - 1].serial, 0};
  return (ttc_val){b->nvalue++};
}

/* Is the value's region open, with nothing that stands alone in between? */
static bool visible(const shlo *b, ttc_val v) {
  for (int k = b->nregion - 1; k >= 0; k--) {
    if (b->regions[k].serial == b->values[v.id].region) {
      return true;
    }
    if (!b->regions[k].captures) {
      return false;
    }
  }
  return false;
}

bool shlo__ready(shlo *b, const char *op, int n, const ttc_val *xs) {
  if (b->failed) {
    return false;
  }
  for (int k = 0; k < n; k++) {
    if (!known(b, xs[k])) {
      shlo__fail(b, __FILE__, __LINE__, TTC_INTERNAL, op, "operand %d is no value of this builder (id %d)", k, (int)xs[k].id);
      return false;
    }
    if (!visible(b, xs[k])) {
      shlo__fail(b, __FILE__, __LINE__, TTC_INTERNAL, op, "operand %d, %s, belongs to another region", k, SHLO_NAME(b, xs[k]));
      return false;
    }
  }
  return true;
}

bool shlo__axes(shlo *b, const char *op, const char *what, int ndim, int n, const int *axes, bool *seen) {
  memset(seen, 0, SHLO__MAX_NDIM * sizeof *seen);
  for (int k = 0; k < n; k++) {
    if (axes[k] < 0 || axes[k] >= ndim) {
      SHLO_FAIL(b, op, "%s %d is out of range, expected 0 to %d", what, axes[k], ndim - 1);
      return false;
    }
    if (seen[axes[k]]) {
      SHLO_FAIL(b, op, "%s %d is named twice", what, axes[k]);
      return false;
    }
    seen[axes[k]] = true;
  }
  return true;
}

/* ---- parameters and results */

ttc_val shlo_param(shlo *b, ttc_dtype dtype, int ndim, const int64_t *dims) {
  shlo_type t = shlo__type(dtype, ndim, dims);
  void *p = b->alias;
  if (b->failed || !sound(b, "shlo_param", &t)) {
    return TTC_POISON;
  }
  if (!grow(b, &p, b->nparam, &b->param_cap, sizeof *b->alias)) {
    return TTC_POISON;
  }
  b->alias = p;
  ttc_val v = new_value(b, &t, -1, b->nparam);
  if (v.id >= 0) {
    b->values[v.id].region = 0; /* the function's, wherever it is first asked for */
    b->alias[b->nparam++] = -1;
  }
  return v;
}

void shlo_param_alias(shlo *b, int param, int output) {
  if (param < 0 || param >= b->nparam) {
    SHLO_FAIL(b, "shlo_param_alias", "parameter %d is out of range, there are %d", param, (int)b->nparam);
    return;
  }
  b->alias[param] = output;
}

void shlo_result(shlo *b, ttc_val v) {
  void *p = b->results;
  if (shlo__ready(b, "shlo_result", 1, &v) && grow(b, &p, b->nresult, &b->result_cap, sizeof *b->results)) {
    b->results = p;
    b->results[b->nresult++] = v;
  }
}

/* ---- text of values and types */

static void put_value(shlo *b, ttc_val v) {
  const shlo__value *x = &b->values[v.id];
  if (x->name < 0) {
    ttc__str_addf(&b->body, "%%arg%d", (int)x->sub);
  } else if (x->sub < 0) {
    ttc__str_addf(&b->body, "%%%d", (int)x->name);
  } else {
    ttc__str_addf(&b->body, "%%%d#%d", (int)x->name, (int)x->sub);
  }
}

static void put_values(shlo *b, int n, const ttc_val *xs) {
  for (int k = 0; k < n; k++) {
    ttc__str_add(&b->body, k > 0 ? ", " : "");
    put_value(b, xs[k]);
  }
}

static void put_type(ttc__str *s, const shlo_type *t) {
  ttc__str_add(s, "tensor<");
  for (int k = 0; k < t->ndim; k++) {
    ttc__str_addf(s, "%lldx", (long long)t->dims[k]);
  }
  ttc__str_addf(s, "%s>", ttc__dtype_mlir(t->dtype));
}

static void put_types(shlo *b, ttc__str *s, int n, const ttc_val *xs) {
  for (int k = 0; k < n; k++) {
    ttc__str_add(s, k > 0 ? ", " : "");
    put_type(s, &b->values[xs[k].id].type);
  }
}

static void put_indent(shlo *b) {
  ttc__str_addf(&b->body, "%*s", 2 + 2 * b->nregion, "");
}

void shlo_comment(shlo *b, const char *text) {
  if (b->failed) {
    return;
  }
  put_indent(b);
  ttc__str_add(&b->body, "// ");
  for (const char *c = text; *c != '\0'; c++) {
    /* One line, and nothing a text editor or a parser could trip over. */
    ttc__str_addn(&b->body, *c >= ' ' && *c < 127 ? c : " ", 1);
  }
  ttc__str_add(&b->body, "\n");
}

/* The end of an operation's text. */
static void end_line(shlo *b) {
  if (b->locations && b->file != NULL) {
    ttc__str_addf(&b->body, " loc(\"%s\":%d:0)", b->file, b->line);
  }
  ttc__str_add(&b->body, "\n");
}

/* ---- attributes */

void shlo__attr(shlo *b, const char *fmt, ...) {
  char text[512];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  ttc__str_add(&b->attrs, b->attrs.len > 0 ? ", " : "");
  ttc__str_add(&b->attrs, text);
}

void shlo__attr_i64s(shlo *b, const char *name, int n, const int64_t *v) {
  shlo__attr(b, "%s = array<i64%s", name, n > 0 ? ": " : "");
  for (int k = 0; k < n; k++) {
    ttc__str_addf(&b->attrs, "%s%lld", k > 0 ? ", " : "", (long long)v[k]);
  }
  ttc__str_add(&b->attrs, ">");
}

void shlo__attr_axes(shlo *b, const char *name, int n, const int *v) {
  shlo__attr(b, "%s = array<i64%s", name, n > 0 ? ": " : "");
  for (int k = 0; k < n; k++) {
    ttc__str_addf(&b->attrs, "%s%d", k > 0 ? ", " : "", v[k]);
  }
  ttc__str_add(&b->attrs, ">");
}

void shlo__attr_bools(shlo *b, const char *name, int n, const bool *v) {
  shlo__attr(b, "%s = array<i1%s", name, n > 0 ? ": " : "");
  for (int k = 0; k < n; k++) {
    ttc__str_addf(&b->attrs, "%s%s", k > 0 ? ", " : "", v[k] ? "true" : "false");
  }
  ttc__str_add(&b->attrs, ">");
}

void shlo__attr_padding(shlo *b, int n, const int64_t *lo, const int64_t *hi) {
  shlo__attr(b, "padding = dense<[");
  for (int k = 0; k < n; k++) {
    ttc__str_addf(&b->attrs, "%s[%lld, %lld]", k > 0 ? ", " : "", (long long)lo[k], (long long)hi[k]);
  }
  ttc__str_addf(&b->attrs, "]> : tensor<%dx2xi64>", n);
}

void shlo__attr_list(shlo *b, int n, const int *v) {
  ttc__str_add(&b->attrs, "[");
  for (int k = 0; k < n; k++) {
    ttc__str_addf(&b->attrs, "%s%d", k > 0 ? ", " : "", v[k]);
  }
  ttc__str_add(&b->attrs, "]");
}

/* ---- operations */

static void put_attrs(shlo *b) {
  if (b->attrs.failed) {
    out_of_memory(b);
  }
  if (b->attrs.len > 0) {
    ttc__str_addf(&b->body, " <{");
    ttc__str_addn(&b->body, b->attrs.data, b->attrs.len);
    ttc__str_add(&b->body, "}>");
    ttc__str_clear(&b->attrs);
  }
}

ttc_val shlo__op(shlo *b, const char *op, int n, const ttc_val *xs, const shlo_type *result) {
  if (b->failed || !sound(b, op, result)) {
    return TTC_POISON;
  }
  int32_t name = b->nname++;
  put_indent(b);
  ttc__str_addf(&b->body, "%%%d = \"%s\"(", (int)name, op);
  put_values(b, n, xs);
  ttc__str_add(&b->body, ")");
  put_attrs(b);
  ttc__str_add(&b->body, " : (");
  put_types(b, &b->body, n, xs);
  ttc__str_add(&b->body, ") -> ");
  put_type(&b->body, result);
  end_line(b);
  return new_value(b, result, name, -1);
}

ttc_val shlo__op_same(shlo *b, const char *op, int n, const ttc_val *xs) {
  shlo_type t = b->values[xs[0].id].type;
  int32_t name = b->nname++;
  put_indent(b);
  ttc__str_addf(&b->body, "%%%d = %s ", (int)name, op);
  put_values(b, n, xs);
  ttc__str_add(&b->body, " : ");
  put_type(&b->body, &t);
  end_line(b);
  return new_value(b, &t, name, -1);
}

ttc_val shlo__constant(shlo *b, const char *text, const shlo_type *t) {
  if (b->failed || !sound(b, "shlo_const", t)) {
    return TTC_POISON;
  }
  int32_t name = b->nname++;
  put_indent(b);
  ttc__str_addf(&b->body, "%%%d = stablehlo.constant dense<", (int)name);
  /* MLIR has no splat of nothing. */
  ttc__str_add(&b->body, shlo__nelem(t) == 0 ? "" : text);
  ttc__str_add(&b->body, "> : ");
  put_type(&b->body, t);
  end_line(b);
  return new_value(b, t, name, -1);
}

ttc_val shlo__zeros(shlo *b, const shlo_type *t) {
  return shlo_const_i(b, t->dtype, 0, t->ndim, t->dims);
}

/* ---- operations with regions */

int32_t shlo__op_begin(shlo *b, const char *op, int n, const ttc_val *xs, int nresult) {
  int32_t name = b->nname++;
  put_indent(b);
  ttc__str_addf(&b->body, "%%%d", (int)name);
  if (nresult != 1) {
    ttc__str_addf(&b->body, ":%d", nresult);
  }
  ttc__str_addf(&b->body, " = \"%s\"(", op);
  put_values(b, n, xs);
  ttc__str_add(&b->body, ")");
  put_attrs(b);
  ttc__str_add(&b->body, " (");
  return name;
}

void shlo__op_end(shlo *b, int32_t name, int n, const ttc_val *xs, int nresult, const shlo_type *types, ttc_val *results) {
  for (int k = 0; k < nresult; k++) {
    results[k] = TTC_POISON;
  }
  for (int k = 0; k < nresult; k++) {
    if (b->failed || !sound(b, "shlo", &types[k])) {
      return;
    }
  }
  if (b->body.len > 2 && b->body.data[b->body.len - 1] == '(') { /* no region followed */
    b->body.len -= 2;
    ttc__str_add(&b->body, " : (");
  } else {
    ttc__str_add(&b->body, ") : (");
  }
  put_types(b, &b->body, n, xs);
  ttc__str_add(&b->body, nresult == 1 ? ") -> " : ") -> (");
  for (int k = 0; k < nresult; k++) {
    ttc__str_add(&b->body, k > 0 ? ", " : "");
    put_type(&b->body, &types[k]);
    results[k] = new_value(b, &types[k], name, nresult == 1 ? -1 : k);
  }
  ttc__str_add(&b->body, nresult == 1 ? "" : ")");
  end_line(b);
}

bool shlo__region_begin(shlo *b, bool captures, int n, const shlo_type *types, ttc_val *args) {
  if (b->nregion == SHLO__MAX_DEPTH) {
    SHLO_FAIL(b, "shlo", "regions nest deeper than %d", SHLO__MAX_DEPTH);
    return false;
  }
  bool first = b->body.len > 0 && b->body.data[b->body.len - 1] == '(';
  b->regions[b->nregion++] = (shlo__region){b->next_region++, captures};
  ttc__str_add(&b->body, first ? "{\n" : ", {\n");
  ttc__str_addf(&b->body, "%*s^bb0(", 2 * b->nregion, "");
  for (int k = 0; k < n; k++) {
    args[k] = new_value(b, &types[k], b->nname++, -1);
    if (args[k].id < 0) {
      b->nregion--;
      return false;
    }
    ttc__str_add(&b->body, k > 0 ? ", " : "");
    put_value(b, args[k]);
    ttc__str_add(&b->body, ": ");
    put_type(&b->body, &types[k]);
  }
  ttc__str_add(&b->body, "):\n");
  return true;
}

void shlo__region_end(shlo *b, int n, const ttc_val *results) {
  if (!b->failed) {
    put_indent(b);
    ttc__str_add(&b->body, "\"stablehlo.return\"(");
    put_values(b, n, results);
    ttc__str_add(&b->body, ") : (");
    put_types(b, &b->body, n, results);
    ttc__str_add(&b->body, ") -> ()\n");
    ttc__str_addf(&b->body, "%*s}", 2 * b->nregion, "");
  }
  b->nregion--;
}

void shlo__combine_region(shlo *b, ttc_dtype d, shlo_op2 op) {
  shlo_type t[2] = {{.dtype = d}, {.dtype = d}};
  ttc_val args[2], r;
  if (shlo__region_begin(b, false, 2, t, args)) {
    r = shlo_2(b, op, args[0], args[1]);
    shlo__region_end(b, 1, &r);
  }
}

void shlo__body_region(shlo *b, const char *op, bool captures, int narg, const shlo_type *args, int nwant, const shlo_type *want,
                       shlo_body body, void *ctx) {
  ttc_val in[SHLO__MAX_OPERAND], out[SHLO__MAX_OPERAND];
  for (int k = 0; k < nwant; k++) {
    out[k] = TTC_POISON;
  }
  if (b->failed || !shlo__region_begin(b, captures, narg, args, in)) {
    return;
  }
  body(b, ctx, in, out);
  if (shlo__ready(b, op, nwant, out)) {
    for (int k = 0; k < nwant; k++) {
      const shlo_type *got = shlo_typeof(b, out[k]);
      if (!shlo__same_type(got, &want[k])) {
        SHLO_FAIL(b, op, "the body's result %d is %s, expected %s", k, shlo__describe(got).text, shlo__describe(&want[k]).text);
        break;
      }
    }
  }
  shlo__region_end(b, nwant, out);
}

/* ---- the module */

/* Parameters may lie anywhere among the values; they are in order. */
static const shlo_type *param_type(const shlo *b, int32_t param, int32_t *from) {
  while (b->values[*from].name >= 0 || b->values[*from].sub != param) {
    ++*from;
  }
  return &b->values[*from].type;
}

/* Each donated parameter goes to one result of its own type. */
static bool check_alias(shlo *b, int param) {
  int out = b->alias[param];
  if (out < 0) {
    return true;
  }
  if (out >= b->nresult) {
    SHLO_FAIL(b, "shlo_param_alias", "parameter %d is donated to result %d, there are %d", param, out, (int)b->nresult);
    return false;
  }
  int32_t from = 0;
  const shlo_type *p = param_type(b, param, &from), *r = &b->values[b->results[out].id].type;
  if (!shlo__same_type(p, r)) {
    SHLO_FAIL(b, "shlo_param_alias", "parameter %d, %s, is donated to result %d, %s: types differ", param, shlo__describe(p).text,
              out, shlo__describe(r).text);
    return false;
  }
  for (int k = 0; k < param; k++) {
    if (b->alias[k] == out) {
      SHLO_FAIL(b, "shlo_param_alias", "parameters %d and %d are both donated to result %d", k, param, out);
      return false;
    }
  }
  return true;
}

static void put_signature(shlo *b, ttc__str *s) {
  int32_t at = 0;
  ttc__str_addf(s, "module @%s {\n  func.func public @main(", b->name);
  for (int k = 0; k < b->nparam; k++) {
    ttc__str_addf(s, "%s%%arg%d: ", k > 0 ? ", " : "", k);
    put_type(s, param_type(b, k, &at));
    if (b->alias[k] >= 0) {
      ttc__str_addf(s, " {tf.aliasing_output = %d : i32}", (int)b->alias[k]);
    }
  }
  ttc__str_add(s, ") -> (");
  put_types(b, s, b->nresult, b->results);
  ttc__str_add(s, ") {\n");
}

ttc_status shlo_finish(shlo *b, char **text, ttc_error *err) {
  for (int k = 0; k < b->nparam && !b->failed; k++) {
    check_alias(b, k);
  }
  if (b->failed) {
    return ttc__fail_at(err, b->err.code, b->err.file, b->err.line, "%s", b->err.message);
  }
  ttc__str s;
  ttc__str_init(&s, MAX_TEXT + (1 << 20));
  put_signature(b, &s);
  ttc__str_add(&b->body, b->nresult > 0 ? "    return " : "    return");
  put_values(b, b->nresult, b->results);
  ttc__str_addn(&s, ttc__str_get(&b->body), b->body.len);
  if (b->nresult > 0) {
    ttc__str_add(&s, " : ");
    put_types(b, &s, b->nresult, b->results);
  }
  ttc__str_add(&s, "\n  }\n}\n");
  char *out = b->body.failed ? NULL : ttc__str_take(&s);
  if (out == NULL) {
    ttc__str_free(&s);
    return TTC_FAIL(err, TTC_RESOURCE_EXHAUSTED, "shlo_finish: the program's text is too long or memory ran out");
  }
  *text = out;
  return TTC_OK;
}
