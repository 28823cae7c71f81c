/* softmax, log_softmax and their backwards. 16-bit floats are computed in f32 and rounded once. */
#include <math.h>

#include "op/elem.h"
#include "op/reduce.h"

/* What both begin with: x in its op type, at least 1-d, less its largest along the axis. A row of -inf gives NaN, as on CPU. */
static ttc_val centred(shlo *b, ttc_val x, int axis) {
  ttc__axes ax = ttc__axes_one(axis);
  ttc_val m = ttc__reduce_keep(b, SHLO_AMAX, x, &ax);
  return shlo_sub(b, x, ttc__once(b, m));
}

/* y = e^(x - max) / sum. On XLA:CPU one division a row and a product an element is a fifth faster than a division an element. */
static ttc_val softmax(shlo *b, ttc_val x, int axis) {
  ttc__axes ax = ttc__axes_one(axis);
  ttc_val e = shlo_1(b, SHLO_EXP, centred(b, x, axis));
  ttc_val s = ttc__reduce_keep(b, SHLO_SUM, e, &ax);
  if (shlo_for_tpu(b)) {
    return shlo_div(b, e, s);
  }
  return shlo_mul(b, e, ttc__once(b, shlo_div(b, shlo_const_like(b, s, 1), s)));
}

/* x as the rule computes in it; `axis` is argument 1. The result's dtype decides (half_to_float, dtype=). */
static ttc_val input(shlo *b, ttc_lower *c, int arg) {
  return ttc__at_least_1d(b, op_in_as(c, arg, ttc__dtype_op(op_in_dtype(c, arg))));
}

static void lower_softmax(shlo *b, ttc_lower *c) {
  ttc_val x = input(b, c, 0);
  ttc__give(b, c, 0, softmax(b, x, op_axis(c, 1, shlo_ndim(b, x))));
}

/* y = (x - max) - log(sum e^(x - max)) */
static void lower_log_softmax(shlo *b, ttc_lower *c) {
  ttc_val x = input(b, c, 0);
  int axis = op_axis(c, 1, shlo_ndim(b, x));
  ttc__axes ax = ttc__axes_one(axis);
  ttc_val d = centred(b, x, axis);
  ttc_val s = ttc__reduce_keep(b, SHLO_SUM, shlo_1(b, SHLO_EXP, d), &ax);
  ttc__give(b, c, 0, shlo_sub(b, d, ttc__once(b, shlo_1(b, SHLO_LOG, s))));
}

/* _safe_softmax(self, dim, dtype): a row with nothing but -inf gives zeros instead of NaN. */
static void lower_safe_softmax(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__at_least_1d(b, op_in_as(c, 0, ttc__dtype_op(op_out_dtype(c, 0))));
  int axis = op_axis(c, 1, shlo_ndim(b, x));
  ttc__axes ax = ttc__axes_one(axis);
  ttc_val y = softmax(b, x, axis);
  ttc_val none = ttc__reduce_keep(b, SHLO_ALL, shlo_compare(b, SHLO_EQ, x, shlo_const_like(b, x, -INFINITY)), &ax);
  ttc__give(b, c, 0, shlo_select(b, none, shlo_const_like(b, y, 0), y));
}

/* dx = y (g - sum(g y)) */
static ttc_val softmax_backward(shlo *b, ttc_val g, ttc_val y, int axis) {
  ttc__axes ax = ttc__axes_one(axis);
  ttc_val s = ttc__once(b, ttc__reduce_keep(b, SHLO_SUM, shlo_mul(b, g, y), &ax));
  return shlo_mul(b, y, shlo_sub(b, g, s));
}

/* _softmax_backward_data(grad, output, dim, input_dtype) */
static void lower_softmax_backward(shlo *b, ttc_lower *c) {
  ttc_val g = input(b, c, 0), y = input(b, c, 1);
  ttc__give(b, c, 0, softmax_backward(b, g, y, op_axis(c, 2, shlo_ndim(b, y))));
}

/* dx = g - e^y sum(g) */
static void lower_log_softmax_backward(shlo *b, ttc_lower *c) {
  ttc_val g = input(b, c, 0), y = input(b, c, 1);
  ttc__axes ax = ttc__axes_one(op_axis(c, 2, shlo_ndim(b, y)));
  ttc_val s = ttc__once(b, ttc__reduce_keep(b, SHLO_SUM, g, &ax));
  ttc__give(b, c, 0, shlo_sub(b, g, shlo_mul(b, shlo_1(b, SHLO_EXP, y), s)));
}

/* ---- with a mask: true takes an entry out */

/* The mask of _masked_softmax, to broadcast against x: mask_type 0 [L, L] and 1 [B, L] of an x [B, heads, L, L], else of x's own
 * shape. Other shapes are refused, for the CPU's kernel to say what is wrong. */
static ttc_val mask_of(shlo *b, ttc_lower *c, int i, ttc_val x, int64_t type) {
  ttc_val m = op_in_as(c, i, TTC_BOOL);
  shlo_type t = *shlo_typeof(b, x);
  const int64_t *sizes = op_in_sizes(c, i);
  bool fits = op_in_ndim(c, i) == t.ndim;
  for (int k = 0; fits && k < t.ndim; k++) {
    fits = sizes[k] == t.dims[k];
  }
  if (fits) {
    return m;
  }
  int axes[2] = {type == 1 ? 0 : 2, 3};
  if (type > 1 || t.ndim != 4 || op_in_ndim(c, i) != 2 || sizes[0] != t.dims[axes[0]] || sizes[1] != t.dims[3]) {
    op_refuse(c, "%s with a mask of this shape", op_name(c));
    return TTC_POISON;
  }
  return shlo_broadcast_in_dim(b, m, 4, t.dims, axes);
}

/* _masked_softmax(self, mask, dim, mask_type): a row with nothing left gives NaN, as on CPU. */
static void lower_masked_softmax(shlo *b, ttc_lower *c) {
  ttc_val x = input(b, c, 0);
  int n = shlo_ndim(b, x), axis = op_given(c, 2) ? op_axis(c, 2, n) : n - 1;
  ttc_val out = mask_of(b, c, 1, x, op_int(c, 3, 2)), never = shlo_const_f(b, shlo_dtype(b, x), -INFINITY, 0, NULL);
  ttc__give(b, c, 0, softmax(b, shlo_select(b, out, never, x), axis));
}

/* _masked_softmax_backward(grad, output, mask, dim): entries taken out get no gradient. */
static void lower_masked_softmax_backward(shlo *b, ttc_lower *c) {
  ttc_val g = input(b, c, 0), y = input(b, c, 1), zero = shlo_const_like(b, y, 0);
  int n = shlo_ndim(b, y), axis = op_given(c, 3) ? op_axis(c, 3, n) : n - 1;
  ttc_val out = mask_of(b, c, 2, y, 2);
  ttc_val kept = shlo_select(b, out, zero, y);
  ttc__give(b, c, 0, softmax_backward(b, g, kept, axis));
}

#define MASKED(n, r) {n, r, 0, TOL_SUM, TTC_OP_NO_META, 0, ttc__infer_like_first, NULL, 0, PAD_CANNOT}
const ttc_op_row ttc__softmax_rows[] = {
    TTC_ROW_PAD("_softmax", lower_softmax, 0, TOL_SUM, SOFTMAX),
    TTC_ROW_PAD("_log_softmax", lower_log_softmax, 0, TOL_SUM, SOFTMAX),
    TTC_ROW_PAD("_safe_softmax", lower_safe_softmax, 0, TOL_SUM, SOFTMAX),
    TTC_ROW_PAD("_softmax_backward_data", lower_softmax_backward, 0, TOL_SUM, SOFTMAX_BACK),
    TTC_ROW_PAD("_log_softmax_backward_data", lower_log_softmax_backward, 0, TOL_SUM, SOFTMAX_BACK),
    MASKED("_masked_softmax", lower_masked_softmax),
    MASKED("_masked_softmax_backward", lower_masked_softmax_backward),
};
TTC_FAMILY(softmax)
