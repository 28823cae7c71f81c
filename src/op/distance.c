/* Distances between rows (cdist, pdist) and counts in bins (histc). */
#include <math.h>

#include "op/reduce.h"

/* ---- distance of rows along the last axis: d is the difference, p the order */

static ttc_val row_distance(shlo *b, ttc_val d, double p) {
  ttc__axes ax = ttc__axes_one(shlo_ndim(b, d) - 1);
  return ttc__norm_keep(b, d, p, &ax);
}

/* Gradient of the distance `dist` (size 1 along the last axis) by d, times g:
 *     p = 1: sign(d)    p = 2: d / dist    p = inf: sign(d) where |d| = dist    else: sign(d) (|d| / dist)^(p-1)
 * 0 where dist is 0 (and, for p < 1, where d is). */
static ttc_val row_slope(shlo *b, ttc_val d, ttc_val dist, ttc_val g, double p) {
  ttc_val zero = shlo_const_like(b, d, 0), sign = shlo_1(b, SHLO_SIGN, d), mag = shlo_1(b, SHLO_ABS, d), s;
  if (p == 0.0) {
    return zero;
  }
  if (p == 1.0) {
    return shlo_mul(b, g, sign);
  }
  if (isinf(p)) {
    return shlo_select(b, shlo_compare(b, SHLO_EQ, mag, dist), shlo_mul(b, g, sign), zero);
  }
  if (p == 2.0) {
    s = shlo_mul(b, d, shlo_div(b, g, dist));
  } else {
    s = shlo_mul(b, shlo_mul(b, g, sign), ttc__const2(b, SHLO_POW, shlo_div(b, mag, dist), p - 1.0));
  }
  ttc_val none = shlo_compare(b, SHLO_EQ, dist, shlo_const_like(b, dist, 0));
  if (p < 1.0) {
    none = shlo_2(b, SHLO_OR, none, shlo_compare(b, SHLO_EQ, d, zero));
  }
  return shlo_select(b, none, zero, s);
}

/* x1[.., P, 1, M] - x2[.., 1, R, M] */
static ttc_val differences(shlo *b, ttc_val x1, ttc_val x2) {
  return shlo_sub(b, shlo_unsqueeze(b, x1, shlo_ndim(b, x1) - 1), shlo_unsqueeze(b, x2, shlo_ndim(b, x2) - 2));
}

/* x with the result's batch axes: dims of result k, then x's own last two. */
static ttc_val with_batch(shlo *b, ttc_lower *c, ttc_val x) {
  shlo_type t = *shlo_typeof(b, x);
  int64_t dims[3 * TTC_MAX_NDIM];
  int nd = op_out_ndim(c, 0);
  for (int i = 0; i < nd; i++) {
    dims[i] = i < nd - 2 ? op_out_sizes(c, 0)[i] : t.dims[t.ndim - nd + i];
  }
  return shlo_broadcast_to(b, x, nd, dims);
}

/* |x1 - x2|^2 = |x1|^2 + |x2|^2 - 2 x1 x2^T, as PyTorch does for many rows. */
static ttc_val euclid_by_dot(shlo *b, ttc_lower *c, ttc_val x1, ttc_val x2) {
  x1 = with_batch(b, c, x1);
  x2 = with_batch(b, c, x2);
  int nd = shlo_ndim(b, x1), nbatch = nd - 2, last = nd - 1, axes[TTC_MAX_NDIM];
  for (int i = 0; i < nbatch; i++) {
    axes[i] = i;
  }
  ttc__axes ax = ttc__axes_one(last);
  ttc_val s1 = ttc__reduce_keep(b, SHLO_SUM, shlo_mul(b, x1, x1), &ax),
          s2 = ttc__reduce_keep(b, SHLO_SUM, shlo_mul(b, x2, x2), &ax);
  s2 = shlo_unsqueeze(b, shlo_squeeze(b, s2, last), last - 1); /* [.., R, 1] to [.., 1, R] */
  ttc_val dot = shlo_dot(b, x1, x2, nbatch, axes, axes, 1, &last, &last, shlo_dtype(b, x1));
  ttc_val sq = shlo_sub(b, shlo_add(b, s1, s2), ttc__const2(b, SHLO_MUL, dot, 2.0));
  return shlo_1(b, SHLO_SQRT, ttc__const2(b, SHLO_MAX, sq, 0.0));
}

/* _cdist_forward(x1, x2, p, compute_mode): mode 0 (None) may use a product for p = 2 with more than 25 rows, 1 does, 2 does not. */
static void lower_cdist(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  ttc_val x1 = op_in_as(c, 0, d), x2 = op_in_as(c, 1, d);
  double p = op_static_f(c, 2);
  int64_t mode = op_int(c, 3, 0);
  bool many = op_in_dim(c, 0, -2) > 25 || op_in_dim(c, 1, -2) > 25;
  if (p == 2.0 && (mode == 1 || (mode == 0 && many))) {
    op_ret(c, 0, euclid_by_dot(b, c, x1, x2));
    return;
  }
  ttc_val r = row_distance(b, differences(b, x1, x2), p);
  ttc__give(b, c, 0, r);
}

/* _cdist_backward(g, x1, x2, p, cdist): by x1, the sum over x2's rows. */
static void lower_cdist_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  ttc_val diff = differences(b, op_in_as(c, 1, d), op_in_as(c, 2, d));
  int last = shlo_ndim(b, diff) - 1;
  ttc_val g = op_in_as(c, 0, d), dist = op_in_as(c, 4, d);
  ttc_val s =
      row_slope(b, diff, shlo_unsqueeze(b, dist, shlo_ndim(b, dist)), shlo_unsqueeze(b, g, shlo_ndim(b, g)), op_static_f(c, 3));
  ttc__axes ax = ttc__axes_one(last - 1);
  s = shlo_squeeze(b, ttc__reduce_keep(b, SHLO_SUM, s, &ax), last - 1);
  /* x1's batch axes may have been broadcast: sum them away. */
  int extra = shlo_ndim(b, s) - op_out_ndim(c, 0);
  ttc__axes away = {0};
  for (int i = 0; i < shlo_ndim(b, s); i++) {
    if (i < extra || (op_out_sizes(c, 0)[i - extra] == 1 && shlo_dim(b, s, i) != 1)) {
      away.at[away.n++] = i;
    }
  }
  ttc__give(b, c, 0, ttc__reduce_keep(b, SHLO_SUM, s, &away));
}

/* ---- pdist: pairs i < j of n rows in row-major order of the upper triangle */

/* Row i and column j of pair k: i = floor(n' - sqrt(n'^2 - 2k - 1)), n' = n - 1/2, in f64 as PyTorch does. */
static void pair_rows(shlo *b, int64_t n, int64_t npair, ttc_val *i, ttc_val *j) {
  double half = (double)n - 0.5;
  ttc_val k = shlo_iota(b, TTC_S64, 0, 1, &npair);
  ttc_val kf = shlo_convert(b, k, TTC_F64);
  ttc_val root = ttc__const2(b, SHLO_SUB, ttc__const2(b, SHLO_SUB, ttc__const2(b, SHLO_MUL, kf, -2.0), 1.0), -half * half);
  root = shlo_1(b, SHLO_SQRT, root);
  *i = shlo_convert(b, shlo_1(b, SHLO_FLOOR, ttc__const2(b, SHLO_ADD, shlo_1(b, SHLO_NEG, root), half)), TTC_S64);
  ttc_val one = shlo_const_i(b, TTC_S64, 1, 0, NULL), two = shlo_const_i(b, TTC_S64, 2, 0, NULL);
  ttc_val above = shlo_mul(b, *i, shlo_const_i(b, TTC_S64, n, 0, NULL));
  ttc_val triangle = shlo_div(b, shlo_mul(b, *i, shlo_add(b, *i, one)), two);
  *j = shlo_add(b, shlo_add(b, shlo_sub(b, k, above), triangle), shlo_add(b, *i, one));
}

/* _pdist_forward(self [n, m], p) -> [n (n-1) / 2] */
static void lower_pdist(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  int64_t npair = op_out_sizes(c, 0)[0];
  if (npair == 0) {
    op_ret(c, 0, shlo_const_f(b, d, 0, 1, &npair));
    return;
  }
  ttc_val x = op_in_as(c, 0, d), i, j;
  pair_rows(b, op_in_dim(c, 0, 0), npair, &i, &j);
  ttc__give(b, c, 0, row_distance(b, shlo_sub(b, shlo_take(b, x, i, 0), shlo_take(b, x, j, 0)), op_static_f(c, 1)));
}

/* _pdist_backward(g, self, p, pdist): every pair adds its slope to row i and takes it from row j. */
static void lower_pdist_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 1));
  int64_t n = op_in_dim(c, 1, 0), m = op_in_dim(c, 1, 1), npair = op_in_dim(c, 0, 0);
  int64_t column[2] = {npair, 1}, whole[2] = {n, m};
  ttc_val zero = shlo_const_f(b, d, 0, 2, whole);
  if (npair == 0 || m == 0) {
    op_ret(c, 0, zero);
    return;
  }
  ttc_val x = op_in_as(c, 1, d), i, j;
  pair_rows(b, n, npair, &i, &j);
  ttc_val diff = shlo_sub(b, shlo_take(b, x, i, 0), shlo_take(b, x, j, 0));
  ttc_val dist = shlo_reshape(b, op_in_as(c, 3, d), 2, column), g = shlo_reshape(b, op_in_as(c, 0, d), 2, column);
  ttc_val s = row_slope(b, diff, dist, g, op_static_f(c, 2));
  shlo_scatter_spec spec = {
      .nwindow = 1, .update_window = {1}, .ninserted = 1, .inserted = {0}, .nindex = 1, .index_map = {0}, .index_vector_axis = 1};
  ttc_val r = shlo_scatter(b, SHLO_SCATTER_ADD, zero, shlo_reshape(b, i, 2, column), s, &spec);
  op_ret(c, 0, shlo_scatter(b, SHLO_SCATTER_ADD, r, shlo_reshape(b, j, 2, column), shlo_1(b, SHLO_NEG, s), &spec));
}

/* ---- histc */

enum { ONE_HOT_MOST = 1 << 24 }; /* comparisons up to which elements are counted by comparing with every bin */

static ttc_val count_by_compare(shlo *b, ttc_val bin, int64_t n, int64_t bins) {
  int64_t grid[2] = {bins, n}, row[2] = {1, n};
  ttc_val hit = shlo_compare(b, SHLO_EQ, shlo_iota(b, TTC_S32, 0, 2, grid), shlo_reshape(b, bin, 2, row));
  ttc__axes ax = ttc__axes_one(1);
  return ttc__reduce_keep(b, SHLO_SUM, shlo_convert(b, hit, TTC_S32), &ax);
}

static ttc_val count_by_scatter(shlo *b, ttc_val bin, int64_t n, int64_t bins) {
  int64_t column[2] = {n, 1}, size = bins + 1; /* the last one takes what is in no bin */
  shlo_scatter_spec spec = {.ninserted = 1, .inserted = {0}, .nindex = 1, .index_map = {0}, .index_vector_axis = 1};
  ttc_val zero = shlo_const_i(b, TTC_S32, 0, 1, &size), one = shlo_const_i(b, TTC_S32, 1, 1, &n);
  ttc_val r = shlo_scatter(b, SHLO_SCATTER_ADD, zero, shlo_reshape(b, bin, 2, column), one, &spec);
  return shlo_slice_axis(b, r, 0, 0, bins);
}

/* histc(self, bins, min, max): bin of x is (x - lo) / (hi - lo) bins, x = hi in the last; min = max means the data's own range, and
 * when that is one value too, one below and above it. Elements outside (and NaN) are not counted. */
static void lower_histc(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  int64_t n = 1, bins = op_int(c, 1, 100);
  for (int i = 0; i < op_in_ndim(c, 0); i++) {
    n *= op_in_dim(c, 0, i);
  }
  if (n == 0) {
    op_ret(c, 0, shlo_const_i(b, op_out_dtype(c, 0), 0, 1, &bins));
    return;
  }
  ttc_dtype f = ttc__is_float(d) ? d : TTC_F64;
  ttc_val x = shlo_reshape(b, op_in_as(c, 0, f), 1, &n), lo = op_num(c, 2, 0, f), hi = op_num(c, 3, 0, f);
  ttc_val same = shlo_compare(b, SHLO_EQ, lo, hi);
  int axis = 0;
  lo = shlo_select(b, same, shlo_reduce(b, SHLO_AMIN, x, 1, &axis), lo);
  hi = shlo_select(b, same, shlo_reduce(b, SHLO_AMAX, x, 1, &axis), hi);
  same = shlo_compare(b, SHLO_EQ, lo, hi);
  lo = ttc__once(b, shlo_select(b, same, ttc__const2(b, SHLO_SUB, lo, 1.0), lo));
  hi = ttc__once(b, shlo_select(b, same, ttc__const2(b, SHLO_ADD, hi, 1.0), hi));
  /* Behind barriers XLA neither divides first nor multiplies by a reciprocal: either would move elements that lie on an edge. */
  ttc_val scaled = shlo_barrier(b, ttc__const2(b, SHLO_MUL, shlo_sub(b, x, lo), (double)bins));
  ttc_val at = shlo_div(b, scaled, shlo_barrier(b, shlo_broadcast_to(b, shlo_sub(b, hi, lo), 1, &n)));
  ttc_val bin = shlo_2(b, SHLO_MIN, shlo_convert(b, at, TTC_S32), shlo_const_i(b, TTC_S32, bins - 1, 0, NULL));
  ttc_val inside = shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_GE, x, lo), shlo_compare(b, SHLO_LE, x, hi));
  bin = shlo_select(b, inside, bin, shlo_const_i(b, TTC_S32, bins, 0, NULL));
  bool few = n <= ONE_HOT_MOST / bins;
  ttc__give(b, c, 0, few ? count_by_compare(b, bin, n, bins) : count_by_scatter(b, bin, n, bins));
}

const ttc_op_row ttc__distance_rows[] = {
    TTC_ROW_STATIC("_cdist_forward", lower_cdist, 0, TOL_SUM, 1u << 2),
    TTC_ROW_STATIC("_cdist_backward", lower_cdist_backward, 0, TOL_SUM, 1u << 3),
    TTC_ROW_STATIC("_pdist_forward", lower_pdist, 0, TOL_SUM, 1u << 1),
    TTC_ROW_STATIC("_pdist_backward", lower_pdist_backward, 0, TOL_SUM, 1u << 2),
    TTC_ROW("histc", lower_histc, 0, TOL_EXACT),
};
TTC_FAMILY(distance)
