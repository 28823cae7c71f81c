/* What the elementwise families share: which type a rule computes in, and small formulas.
 *
 * PyTorch's CPU kernels convert arguments to the promoted type, compute 16-bit floats in f32 and round once; so do these. */
#ifndef TTC_OP_ELEM_H
#define TTC_OP_ELEM_H

#include "op/op.h"

/* Rows: ELEM_ROW(name, rule, param, tolerance), or {ELEM_HEAD(...), .flags = ..} where there is more to say. */
#define ELEM_HEAD(n, r, p, t) .name = (n), .rule = (r), .param = (int)(p), .tol = (t)
#define ELEM_ROW(n, r, p, t) {ELEM_HEAD(n, r, p, t)}
/* The same, for ops whose result at a place depends on that place alone. */
#define EACH_HEAD(n, r, p, t) ELEM_HEAD(n, r, p, t), .pad = PAD_EACH
#define EACH_ROW(n, r, p, t) {EACH_HEAD(n, r, p, t)}

/* The type of arguments first..last for functions that exist for floats only: integers become the default float. */
static inline ttc_dtype elem_promote_float(const ttc_lower *c, int first, int last) {
  ttc_dtype d = op_promote(c, first, last);
  if (!ttc__is_inexact(d))
    d = op_out_dtype(c, 0);
  return ttc__is_inexact(d) ? d : TTC_F32;
}
/* The type a float function of tensor argument i computes in. */
static inline ttc_dtype elem_float(const ttc_lower *c, int i) {
  return ttc__dtype_op(elem_promote_float(c, i, i));
}

/* Argument i rounded to the promoted type d, then in the type d is computed in. */
static inline ttc_val elem_in(shlo *b, ttc_lower *c, int i, ttc_dtype d) {
  return shlo_convert(b, op_in_as(c, i, d), ttc__dtype_op(d));
}

/* Scalars of x's type, which broadcast. */
static inline ttc_val elem_f(shlo *b, ttc_val x, double v) {
  return shlo_const_f(b, shlo_dtype(b, x), v, 0, NULL);
}
static inline ttc_val elem_i(shlo *b, ttc_val x, int64_t v) {
  return shlo_const_i(b, shlo_dtype(b, x), v, 0, NULL);
}
static inline ttc_val elem_cmp(shlo *b, shlo_cmp cmp, ttc_val x, double v) {
  ttc_dtype d = shlo_dtype(b, x);
  ttc_val y = ttc__is_inexact(d) ? shlo_const_f(b, d, v, 0, NULL) : shlo_const_i(b, d, (int64_t)v, 0, NULL);
  return shlo_compare(b, cmp, x, y);
}
static inline ttc_val elem_not(shlo *b, ttc_val x) {
  return shlo_1(b, SHLO_NOT, x);
}
static inline ttc_val elem_and(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_AND, x, y);
}
static inline ttc_val elem_or(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_OR, x, y);
}
static inline ttc_val elem_square(shlo *b, ttc_val x) {
  return shlo_mul(b, x, x);
}
static inline ttc_val elem_rsub(shlo *b, double v, ttc_val x) {
  return shlo_sub(b, elem_f(b, x, v), x);
}

/* bool: the sign bit is set (-0 and -NaN too). Through f32, since a TPU cannot reinterpret f64. */
static inline ttc_val elem_signbit(shlo *b, ttc_val x) {
  ttc_dtype d = shlo_dtype(b, x);
  if (d == TTC_BOOL || ttc__is_unsigned(d))
    return shlo_compare(b, SHLO_NE, x, x);
  if (!ttc__is_float(d))
    return elem_cmp(b, SHLO_LT, x, 0);
  return elem_cmp(b, SHLO_LT, shlo_bitcast(b, shlo_convert(b, x, TTC_F32), TTC_S32), 0);
}
static inline ttc_val elem_select_f(shlo *b, ttc_val pred, double v, ttc_val x) {
  return shlo_select(b, pred, elem_f(b, x, v), x);
}
/* Whether any element of a bool is true: a scalar, for the conditions of loops. */
static inline ttc_val elem_any(shlo *b, ttc_val x) {
  int axes[TTC_MAX_NDIM], n = shlo_ndim(b, x);
  for (int k = 0; k < n; k++)
    axes[k] = k;
  return shlo_reduce(b, SHLO_ANY, x, n, axes);
}
/* Towards zero. */
static inline ttc_val elem_trunc(shlo *b, ttc_val x) {
  return shlo_select(b, elem_cmp(b, SHLO_LT, x, 0), shlo_1(b, SHLO_CEIL, x), shlo_1(b, SHLO_FLOOR, x));
}

/* ttc_infer for rows with TTC_OP_NO_META: one result, dense, of the first argument's dtype and shape. */
ttc_status ttc__infer_like_first(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err);
/* Fill a dense spec's strides from its sizes. */
void ttc__spec_dense(ttc_spec *s);
/* How many elements of a sorted stretch of n are below v (`right`: not above v), s64, of v's shape. Stretches lie in the 1-D seq;
 * that of each v begins at base (s64, broadcast to v). sorter (NULL: none), laid out as seq, lists each stretch's sorted order. */
ttc_val ttc__bound(shlo *b, ttc_val seq, const ttc_val *sorter, ttc_val base, ttc_val v, int64_t n, bool right);

#endif
