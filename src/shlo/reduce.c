#include "shlo/internal.h"

static const shlo_op2 combine_op[] = {
    [SHLO_SUM] = SHLO_ADD, [SHLO_PROD] = SHLO_MUL, [SHLO_AMAX] = SHLO_MAX,    [SHLO_AMIN] = SHLO_MIN,
    [SHLO_ALL] = SHLO_AND, [SHLO_ANY] = SHLO_OR,   [SHLO_BIT_XOR] = SHLO_XOR,
};

/* Does this combination exist for the operand's dtype? */
static bool combines(shlo *b, const char *op, shlo_combine c, ttc_val x) {
  ttc_dtype d = shlo_dtype(b, x);
  const char *want = NULL;
  switch (c) {
    case SHLO_ALL:
    case SHLO_ANY:
      want = d != TTC_BOOL ? "bool for ALL and ANY" : NULL;
      break;
    case SHLO_BIT_XOR:
      want = !ttc__is_integral(d) ? "bool or integer for BIT_XOR" : NULL;
      break;
    case SHLO_AMAX:
    case SHLO_AMIN:
      want = d == TTC_BOOL || ttc__is_complex(d) ? "integer or float for AMAX and AMIN" : NULL;
      break;
    default:
      want = d == TTC_BOOL ? "a number for SUM and PROD" : NULL;
      break;
  }
  if (want != NULL) {
    SHLO_FAIL(b, op, "expected %s, got %s", want, SHLO_NAME(b, x));
  }
  return want == NULL;
}

static ttc_val neutral(shlo *b, shlo_combine c, ttc_dtype d) {
  switch (c) {
    case SHLO_PROD:
    case SHLO_ALL:
      return shlo_const_i(b, d, 1, 0, NULL);
    case SHLO_AMAX:
      return shlo_lowest(b, d);
    case SHLO_AMIN:
      return shlo_highest(b, d);
    default:
      return shlo_const_i(b, d, 0, 0, NULL);
  }
}

/* t without the axes marked in gone. */
static shlo_type without(const shlo_type *t, const bool *gone) {
  shlo_type r = {.dtype = t->dtype};
  for (int k = 0; k < t->ndim; k++) {
    if (!gone[k]) {
      r.dims[r.ndim++] = t->dims[k];
    }
  }
  return r;
}

ttc_val shlo_reduce(shlo *b, shlo_combine c, ttc_val x, int naxis, const int *axes) {
  const char *op = "shlo_reduce";
  bool gone[SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 1, &x) || !combines(b, op, c, x)) {
    return TTC_POISON;
  }
  shlo_type from = *shlo_typeof(b, x);
  if (!shlo__axes(b, op, "axis", from.ndim, naxis, axes, gone)) {
    return TTC_POISON;
  }
  if (naxis == 0) {
    return x;
  }
  shlo_type t = without(&from, gone);
  ttc_val xs[2] = {x, neutral(b, c, from.dtype)}, r = TTC_POISON;
  if (b->failed) {
    return r;
  }
  shlo__attr_axes(b, "dimensions", naxis, axes);
  int32_t name = shlo__op_begin(b, "stablehlo.reduce", 2, xs, 1);
  shlo__combine_region(b, from.dtype, combine_op[c]);
  shlo__op_end(b, name, 2, xs, 1, &t, &r);
  return r;
}

void shlo_reduce_body(shlo *b, int n, const ttc_val *xs, const ttc_val *inits, int naxis, const int *axes, shlo_body body,
                      void *ctx, ttc_val *results) {
  const char *op = "shlo_reduce_body";
  bool gone[SHLO__MAX_NDIM];
  ttc_val all[SHLO__MAX_OPERAND];
  shlo_type scalars[SHLO__MAX_OPERAND], out[SHLO__MAX_OPERAND];
  if (n < 1 || 2 * n > SHLO__MAX_OPERAND) {
    SHLO_FAIL(b, op, "%d operands, expected 1 to %d", n, SHLO__MAX_OPERAND / 2);
    return;
  }
  for (int k = 0; k < n; k++) {
    all[k] = xs[k];
    all[n + k] = inits[k];
  }
  for (int k = 0; k < n; k++) {
    results[k] = TTC_POISON; /* may be xs' own array */
  }
  if (!shlo__ready(b, op, 2 * n, all)) {
    return;
  }
  shlo_type first = *shlo_typeof(b, all[0]);
  if (!shlo__axes(b, op, "axis", first.ndim, naxis, axes, gone)) {
    return;
  }
  for (int k = 0; k < n; k++) {
    shlo_type t = *shlo_typeof(b, all[k]), scalar = {.dtype = t.dtype};
    if (!shlo__same_dims(&t, &first) || !shlo__same_type(&scalar, shlo_typeof(b, all[n + k]))) {
      SHLO_FAIL(b, op, "operand %d is %s with neutral element %s beside %s", k, SHLO_NAME(b, all[k]), SHLO_NAME(b, all[n + k]),
                shlo__describe(&first).text);
      return;
    }
    scalars[k] = scalars[n + k] = scalar;
    out[k] = without(&t, gone);
  }
  if (naxis == 0) {
    for (int k = 0; k < n; k++) {
      results[k] = all[k];
    }
    return;
  }
  shlo__attr_axes(b, "dimensions", naxis, axes);
  int32_t name = shlo__op_begin(b, "stablehlo.reduce", 2 * n, all, n);
  shlo__body_region(b, op, false, 2 * n, scalars, n, scalars, body, ctx);
  shlo__op_end(b, name, 2 * n, all, n, out, results);
}

/* Windows that fit into `dim` padded by lo and hi; -1 for a bad description. */
static int64_t window_count(int64_t dim, int64_t window, int64_t stride, int64_t dilation, int64_t lo, int64_t hi) {
  if (window < 1 || stride < 1 || dilation < 1) {
    return -1;
  }
  int64_t reach, room;
  if (__builtin_mul_overflow(window - 1, dilation, &reach) || __builtin_add_overflow(dim, lo, &room) ||
      __builtin_add_overflow(room, hi, &room) || room < 0) {
    return -1;
  }
  return room <= reach ? 0 : (room - reach - 1) / stride + 1;
}

ttc_val shlo_reduce_window(shlo *b, shlo_combine c, ttc_val x, const int64_t *window, const int64_t *stride,
                           const int64_t *dilation, const int64_t *lo, const int64_t *hi) {
  const char *op = "shlo_reduce_window";
  int64_t ones[SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 1, &x) || !combines(b, op, c, x)) {
    return TTC_POISON;
  }
  shlo_type from = *shlo_typeof(b, x), t = from;
  for (int k = 0; k < t.ndim; k++) {
    ones[k] = 1;
  }
  dilation = dilation != NULL ? dilation : ones;
  for (int k = 0; k < t.ndim; k++) {
    t.dims[k] = window_count(from.dims[k], window[k], stride[k], dilation[k], lo[k], hi[k]);
    if (t.dims[k] < 0) {
      return SHLO_FAIL(b, op, "axis %d of %s has no windows of %lld, stride %lld, dilation %lld, padding %lld and %lld", k,
                       SHLO_NAME(b, x), (long long)window[k], (long long)stride[k], (long long)dilation[k], (long long)lo[k],
                       (long long)hi[k]);
    }
  }
  if (t.ndim == 0) {
    return x;
  }
  ttc_val xs[2] = {x, neutral(b, c, from.dtype)}, r = TTC_POISON;
  if (b->failed) {
    return r;
  }
  if (shlo__nelem(&from) == 0 || shlo__nelem(&t) == 0) {
    return shlo_broadcast_to(b, xs[1], t.ndim, t.dims);
  }
  shlo__attr_i64s(b, "window_dimensions", t.ndim, window);
  shlo__attr_i64s(b, "window_strides", t.ndim, stride);
  shlo__attr_i64s(b, "base_dilations", t.ndim, ones);
  shlo__attr_i64s(b, "window_dilations", t.ndim, dilation);
  shlo__attr_padding(b, t.ndim, lo, hi);
  int32_t name = shlo__op_begin(b, "stablehlo.reduce_window", 2, xs, 1);
  shlo__combine_region(b, from.dtype, combine_op[c]);
  shlo__op_end(b, name, 2, xs, 1, &t, &r);
  return r;
}

/* The select region: x >= y, so that the first of equals stays chosen, with NaN above all. */
static void select_region(shlo *b, ttc_dtype d) {
  shlo_type t[2] = {{.dtype = d}, {.dtype = d}};
  ttc_val a[2];
  if (shlo__region_begin(b, false, 2, t, a)) {
    ttc_val ge = shlo_compare(b, SHLO_GE, a[0], a[1]);
    if (ttc__is_float(d)) {
      ge = shlo_2(b, SHLO_OR, ge, shlo_is_nan(b, a[0]));
    }
    shlo__region_end(b, 1, &ge);
  }
}

ttc_val shlo_select_and_scatter_max(shlo *b, ttc_val x, ttc_val source, const int64_t *window, const int64_t *stride,
                                    const int64_t *lo, const int64_t *hi) {
  const char *op = "shlo_select_and_scatter_max";
  ttc_val xs[3] = {x, source, TTC_POISON}, r = TTC_POISON;
  if (!shlo__ready(b, op, 2, xs) || !combines(b, op, SHLO_AMAX, x)) {
    return r;
  }
  shlo_type t = *shlo_typeof(b, x), want = t;
  for (int k = 0; k < t.ndim; k++) {
    want.dims[k] = window_count(t.dims[k], window[k], stride[k], 1, lo[k], hi[k]);
  }
  if (!shlo__same_type(&want, shlo_typeof(b, source))) {
    return SHLO_FAIL(b, op, "the windows over %s want a source %s, got %s", SHLO_NAME(b, x), shlo__describe(&want).text,
                     SHLO_NAME(b, source));
  }
  if (t.ndim == 0) {
    return source;
  }
  if (shlo__nelem(&t) == 0 || shlo__nelem(&want) == 0) {
    return shlo__zeros(b, &t);
  }
  xs[2] = shlo_const_i(b, t.dtype, 0, 0, NULL);
  shlo__attr_i64s(b, "window_dimensions", t.ndim, window);
  shlo__attr_i64s(b, "window_strides", t.ndim, stride);
  shlo__attr_padding(b, t.ndim, lo, hi);
  int32_t name = shlo__op_begin(b, "stablehlo.select_and_scatter", 3, xs, 1);
  select_region(b, t.dtype);
  shlo__combine_region(b, t.dtype, SHLO_ADD);
  shlo__op_end(b, name, 3, xs, 1, &t, &r);
  return r;
}
