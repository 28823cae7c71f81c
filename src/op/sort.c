/* Order: sort, topk, kthvalue, median, nanmedian, mode. All sort (value, place) pairs, stable, NaN above every number. */
#include <math.h>

#include "op/reduce.h"

/* bool has no order in StableHLO: u8 has the same one. */
static ttc_val sortable(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__at_least_1d(b, op_in(c, 0));
  return shlo_dtype(b, x) == TTC_BOOL ? shlo_convert(b, x, TTC_U8) : x;
}

static void sort_pairs(shlo *b, ttc_val x, int axis, bool descending, ttc_val *val, ttc_val *idx) {
  shlo_type t = *shlo_typeof(b, x);
  ttc_dtype place = t.dims[axis] < INT32_MAX ? TTC_S32 : TTC_S64;
  ttc_val in[2] = {x, shlo_iota(b, place, axis, t.ndim, t.dims)}, out[2];
  shlo_sort(b, 2, in, axis, descending, out);
  *val = out[0];
  *idx = out[1];
}

/* sort (dim, descending at 1, 2) and sort.stable (at 2, 3); param: where dim is. */
static void lower_sort(shlo *b, ttc_lower *c) {
  ttc_val x = sortable(b, c), val, idx;
  int dim_arg = op_param(c);
  sort_pairs(b, x, op_axis(c, dim_arg, shlo_ndim(b, x)), op_bool(c, dim_arg + 1), &val, &idx);
  ttc__give(b, c, 0, val);
  ttc__give(b, c, 1, idx);
}

/* topk of f32 by the plugin's own TopK, of 16-bit floats through f32. NaN, above every number in PyTorch, has its sign cleared
 * first; the smallest are the largest of -x, where a NaN (now negative) comes last. */
static void top_floats(shlo *b, ttc_val x, int axis, int64_t k, bool largest, ttc_val *val, ttc_val *idx) {
  shlo_type t = *shlo_typeof(b, x);
  int perm[TTC_MAX_NDIM], last = t.ndim - 1;
  for (int i = 0; i < t.ndim; i++) {
    perm[i] = i == axis ? last : i == last ? axis : i;
  }
  x = shlo_select(b, shlo_is_nan(b, x), shlo_const_f(b, t.dtype, NAN, 0, NULL), x);
  x = shlo_transpose(b, shlo_convert(b, largest ? x : shlo_1(b, SHLO_NEG, x), TTC_F32), perm);
  shlo_top_k(b, x, k, val, idx);
  *val = shlo_transpose(b, largest ? *val : shlo_1(b, SHLO_NEG, *val), perm);
  *idx = shlo_transpose(b, *idx, perm);
}

/* topk(self, k, dim, largest, sorted): sorted or not, the result is sorted. The one largest (or, without NaN, smallest) needs no
 * sort; among floats the smallest is not the minimum: NaN is above all numbers here. */
static void lower_topk(shlo *b, ttc_lower *c) {
  ttc_val x = sortable(b, c), val, idx;
  int axis = op_axis(c, 2, shlo_ndim(b, x));
  int64_t k = op_int(c, 1, 1);
  bool largest = op_bool(c, 3);
  ttc_dtype d = shlo_dtype(b, x);
  if (k == 1 && shlo_dim(b, x, axis) > 0 && (largest || !ttc__is_float(d))) {
    ttc__extreme(b, x, axis, largest, &val, &idx);
  } else if (ttc__is_float(d) && ttc__dtype_op(d) == TTC_F32) {
    top_floats(b, x, axis, k, largest, &val, &idx);
  } else {
    sort_pairs(b, x, axis, largest, &val, &idx);
    val = shlo_slice_axis(b, val, axis, 0, k);
    idx = shlo_slice_axis(b, idx, axis, 0, k);
  }
  ttc__give(b, c, 0, val);
  ttc__give(b, c, 1, idx);
}

/* kthvalue(self, k, dim, keepdim): the k-th smallest, k from 1. */
static void lower_kthvalue(shlo *b, ttc_lower *c) {
  ttc_val x = sortable(b, c), val, idx;
  int axis = op_axis(c, 2, shlo_ndim(b, x));
  int64_t k = op_int(c, 1, 1);
  sort_pairs(b, x, axis, false, &val, &idx);
  ttc__give(b, c, 0, shlo_slice_axis(b, val, axis, k - 1, k));
  ttc__give(b, c, 1, shlo_slice_axis(b, idx, axis, k - 1, k));
}

/* x at place `at` along the axis (kept), without a gather: all but one element is zero in the sum. */
static ttc_val pick(shlo *b, ttc_val x, ttc_val at, int axis) {
  shlo_type t = *shlo_typeof(b, x);
  ttc_val hit = shlo_compare(b, SHLO_EQ, shlo_iota(b, shlo_dtype(b, at), axis, t.ndim, t.dims), at);
  ttc__axes ax = ttc__axes_one(axis);
  return ttc__reduce_keep(b, SHLO_SUM, shlo_select(b, hit, x, shlo_const_like(b, x, 0)), &ax);
}

enum { MEDIAN_DIM = 1, MEDIAN_SKIP_NAN = 2 };

/* The lower median: place (n-1)/2 of the sorted values. NaN wins (median), or n counts numbers only (nanmedian). */
static void median_along(shlo *b, ttc_val x, int axis, bool skip_nan, ttc_val *val, ttc_val *idx) {
  int64_t n = shlo_dim(b, x, axis);
  ttc_val sv, si;
  sort_pairs(b, x, axis, false, &sv, &si);
  bool may_be_nan = ttc__is_float(shlo_dtype(b, x));
  if (may_be_nan && skip_nan) {
    ttc__axes ax = ttc__axes_one(axis);
    ttc_dtype place = shlo_dtype(b, si);
    ttc_val nan = shlo_convert(b, shlo_is_nan(b, x), place);
    ttc_val left = shlo_sub(b, shlo_const_i(b, place, n, 0, NULL), ttc__reduce_keep(b, SHLO_SUM, nan, &ax));
    left = shlo_2(b, SHLO_MAX, left, shlo_const_i(b, place, 1, 0, NULL));
    ttc_val one = shlo_const_i(b, place, 1, 0, NULL), two = shlo_const_i(b, place, 2, 0, NULL);
    ttc_val at = shlo_div(b, shlo_sub(b, left, one), two);
    *val = pick(b, sv, at, axis);
    *idx = pick(b, si, at, axis);
    return;
  }
  *val = shlo_slice_axis(b, sv, axis, (n - 1) / 2, (n - 1) / 2 + 1);
  *idx = shlo_slice_axis(b, si, axis, (n - 1) / 2, (n - 1) / 2 + 1);
  if (may_be_nan) {
    ttc_val last = shlo_slice_axis(b, sv, axis, n - 1, n);
    ttc_val any = shlo_is_nan(b, last);
    *val = shlo_select(b, any, last, *val);
    *idx = shlo_select(b, any, ttc__first_place(b, shlo_is_nan(b, x), axis), *idx);
  }
}

static void lower_median(shlo *b, ttc_lower *c) {
  ttc_val x = sortable(b, c), val, idx;
  bool skip_nan = (op_param(c) & MEDIAN_SKIP_NAN) != 0;
  if (op_param(c) & MEDIAN_DIM) {
    median_along(b, x, op_axis(c, 1, shlo_ndim(b, x)), skip_nan, &val, &idx);
    ttc__give(b, c, 0, val);
    ttc__give(b, c, 1, idx);
    return;
  }
  int64_t n = shlo_nelem(b, x);
  if (n == 0) {
    ttc_dtype d = shlo_dtype(b, x);
    op_ret(c, 0, ttc__is_float(d) ? shlo_const_f(b, d, NAN, 0, NULL) : shlo_lowest(b, d));
    return;
  }
  median_along(b, shlo_reshape(b, x, 1, &n), 0, skip_nan, &val, &idx);
  ttc__give(b, c, 0, val);
}

/* mode(self, dim, keepdim): in the sorted values, the end of the first of the longest runs of equals. The length of the run so far
 * is the distance from its start, and its start is the running maximum of the places that differ from their predecessor. */
static void lower_mode(shlo *b, ttc_lower *c) {
  ttc_val x = sortable(b, c), sv, si;
  int axis = op_axis(c, 1, shlo_ndim(b, x));
  sort_pairs(b, x, axis, false, &sv, &si);
  shlo_type t = *shlo_typeof(b, si);
  int64_t n = t.dims[axis];
  if (n == 0) {
    op_refuse(c, "mode over an empty dimension");
    return;
  }
  ttc_val place = shlo_iota(b, t.dtype, axis, t.ndim, t.dims);
  ttc_val differs = shlo_compare(b, SHLO_NE, shlo_slice_axis(b, sv, axis, 1, n), shlo_slice_axis(b, sv, axis, 0, n - 1));
  ttc_val zero = shlo_const_i(b, t.dtype, 0, 0, NULL);
  ttc_val later = shlo_select(b, differs, shlo_slice_axis(b, place, axis, 1, n), zero);
  t.dims[axis] = 1;
  ttc_val both[2] = {shlo_broadcast_to(b, zero, t.ndim, t.dims), later};
  ttc_val start = shlo_concat(b, 2, both, axis), at;
  start = ttc__scan(b, start, zero, axis, ttc__combine_max);
  ttc__extreme(b, shlo_sub(b, place, start), axis, true, NULL, &at);
  ttc__give(b, c, 0, pick(b, sv, at, axis));
  ttc__give(b, c, 1, pick(b, si, at, axis));
}

const ttc_op_row ttc__sort_rows[] = {
    TTC_ROW_PAD("sort", lower_sort, 1, TOL_EXACT, SORT),
    TTC_ROW_PAD("sort.stable", lower_sort, 2, TOL_EXACT, SORT),
    TTC_ROW_PAD("topk", lower_topk, 0, TOL_EXACT, SORT),
    TTC_ROW_PAD("kthvalue", lower_kthvalue, 0, TOL_EXACT, WHOLE),
    TTC_ROW("median", lower_median, 0, TOL_EXACT),
    TTC_ROW_PAD("median.dim", lower_median, MEDIAN_DIM, TOL_EXACT, WHOLE),
    TTC_ROW("nanmedian", lower_median, MEDIAN_SKIP_NAN, TOL_EXACT),
    TTC_ROW_PAD("nanmedian.dim", lower_median, MEDIAN_DIM | MEDIAN_SKIP_NAN, TOL_EXACT, WHOLE),
    TTC_ROW_PAD("mode", lower_mode, 0, TOL_EXACT, WHOLE),
};
TTC_FAMILY(sort)
