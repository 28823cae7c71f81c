/* Running reductions along one axis: cumsum, cumprod, cummax, cummin, logcumsumexp.
 *
 * All are one generic scan over an associative combine. reduce_window with a window of the whole axis is avoided: XLA:CPU plugins
 * have aborted on it, and odd-even recursion costs 0.4-1.5 s to compile there. Instead: XLA:CPU  a while loop that walks a short
 * axis; a long axis is cut into blocks of 64 that are walked side by side, their last elements are scanned in turn, and each block
 * is combined with what came before it. TPU      the same blocks, of 128, and inside a block log2 steps of "combine with the
 * element 2^k before". */
#include "op/reduce.h"

enum {
  CPU_BLOCK = 64,      /* and the axis that is always walked directly */
  CPU_WALK = 512,      /* longest axis walked directly in small arrays */
  CPU_SMALL = 1 << 19, /* elements */
  TPU_BLOCK = 128
};

typedef struct scan_job {
  int axis;
  ttc_val neutral;
  ttc__combine combine;
} scan_job;

/* Loop state: i (s32), the carry (size 1 along the axis), the array, whose element i is replaced in place. One array only: with
 * two, each update is fused with the other's slice, and XLA:CPU copies both arrays in every step. */
enum { AT, CARRY, WHOLE, NSTATE };

static void walk_more(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  const scan_job *j = ctx;
  int64_t len = shlo_dim(b, args[WHOLE], j->axis);
  results[0] = shlo_compare(b, SHLO_LT, args[AT], shlo_const_i(b, TTC_S32, len, 0, NULL));
}

static void walk_step(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  const scan_job *j = ctx;
  shlo_type t = *shlo_typeof(b, args[WHOLE]);
  t.dims[j->axis] = 1;
  ttc_val at[3 * TTC_MAX_NDIM];
  ttc_val zero = shlo_const_i(b, TTC_S32, 0, 0, NULL);
  for (int i = 0; i < t.ndim; i++) {
    at[i] = i == j->axis ? args[AT] : zero;
  }
  ttc_val now = shlo_dynamic_slice(b, args[WHOLE], at, t.dims);
  results[AT] = shlo_add(b, args[AT], shlo_const_i(b, TTC_S32, 1, 0, NULL));
  results[CARRY] = j->combine(b, args[CARRY], now);
  results[WHOLE] = shlo_dynamic_update_slice(b, args[WHOLE], results[CARRY], at);
}

static ttc_val walk(shlo *b, scan_job *j, ttc_val x) {
  shlo_type t = *shlo_typeof(b, x);
  t.dims[j->axis] = 1;
  ttc_val init[NSTATE], done[NSTATE];
  init[AT] = shlo_const_i(b, TTC_S32, 0, 0, NULL);
  init[CARRY] = shlo_broadcast_to(b, j->neutral, t.ndim, t.dims);
  init[WHOLE] = x;
  shlo_while(b, NSTATE, init, walk_more, walk_step, j, done);
  return done[WHOLE];
}

/* x moved `by` places to the right along the axis, neutral elements coming in. */
static ttc_val shift(shlo *b, const scan_job *j, ttc_val x, int64_t by) {
  int64_t lo[3 * TTC_MAX_NDIM] = {0}, hi[3 * TTC_MAX_NDIM] = {0};
  lo[j->axis] = by;
  hi[j->axis] = -by;
  return shlo_pad(b, x, j->neutral, lo, hi, NULL);
}

static ttc_val double_up(shlo *b, const scan_job *j, ttc_val x) {
  int64_t len = shlo_dim(b, x, j->axis);
  for (int64_t by = 1; by < len; by *= 2) {
    x = j->combine(b, shift(b, j, x, by), x);
  }
  return x;
}

/* [.., len, ..] as [.., blocks, block, ..], padded with neutral elements. */
static ttc_val cut(shlo *b, const scan_job *j, ttc_val x, int64_t nblock, int64_t block) {
  shlo_type t = *shlo_typeof(b, x);
  int64_t lo[3 * TTC_MAX_NDIM] = {0}, hi[3 * TTC_MAX_NDIM] = {0};
  hi[j->axis] = nblock * block - t.dims[j->axis];
  if (hi[j->axis] > 0) {
    x = shlo_pad(b, x, j->neutral, lo, hi, NULL);
  }
  for (int i = t.ndim; i > j->axis + 1; i--) {
    t.dims[i] = t.dims[i - 1];
  }
  t.dims[j->axis] = nblock;
  t.dims[j->axis + 1] = block;
  return shlo_reshape(b, x, t.ndim + 1, t.dims);
}

static ttc_val scan(shlo *b, scan_job *j, ttc_val x);

static ttc_val scan_blocks(shlo *b, scan_job *j, int64_t block, ttc_val x) {
  shlo_type whole = *shlo_typeof(b, x);
  int64_t len = whole.dims[j->axis], nblock = (len + block - 1) / block;
  scan_job inner = *j;
  inner.axis = j->axis + 1;
  ttc_val part = scan(b, &inner, cut(b, j, x, nblock, block));
  ttc_val total = shlo_squeeze(b, shlo_slice_axis(b, part, inner.axis, block - 1, block), inner.axis);
  ttc_val before = shlo_unsqueeze(b, shift(b, j, scan(b, j, total), 1), inner.axis);
  shlo_type t = *shlo_typeof(b, part);
  ttc_val full = j->combine(b, shlo_broadcast_to(b, before, t.ndim, t.dims), part);
  whole.dims[j->axis] = nblock * block;
  return shlo_slice_axis(b, shlo_reshape(b, full, whole.ndim, whole.dims), j->axis, 0, len);
}

static ttc_val scan(shlo *b, scan_job *j, ttc_val x) {
  int64_t len = shlo_dim(b, x, j->axis), n = shlo_nelem(b, x);
  if (len <= 1 || n == 0) {
    return x;
  }
  if (shlo_for_tpu(b)) {
    return len <= TPU_BLOCK ? double_up(b, j, x) : scan_blocks(b, j, TPU_BLOCK, x);
  }
  bool direct = len <= CPU_BLOCK || (len <= CPU_WALK && n <= CPU_SMALL);
  return direct ? walk(b, j, x) : scan_blocks(b, j, CPU_BLOCK, x);
}

ttc_val ttc__scan(shlo *b, ttc_val x, ttc_val neutral, int axis, ttc__combine combine) {
  scan_job j = {.axis = axis, .neutral = neutral, .combine = combine};
  return scan(b, &j, x);
}

/* ---- combines */

static ttc_val combine_add(shlo *b, ttc_val x, ttc_val y) {
  return shlo_add(b, x, y);
}
static ttc_val combine_mul(shlo *b, ttc_val x, ttc_val y) {
  return shlo_mul(b, x, y);
}
static ttc_val combine_min(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_MIN, x, y);
}
ttc_val ttc__combine_max(shlo *b, ttc_val x, ttc_val y) {
  return shlo_2(b, SHLO_MAX, x, y);
}

/* log(e^x + e^y) = max + log1p(e^(min - max)); equal infinities would give inf - inf, so there the max stands. */
static ttc_val combine_logaddexp(shlo *b, ttc_val x, ttc_val y) {
  ttc_val hi = shlo_2(b, SHLO_MAX, x, y), lo = shlo_2(b, SHLO_MIN, x, y);
  ttc_val sum = shlo_add(b, hi, shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_EXP, shlo_sub(b, lo, hi))));
  ttc_val infinite = shlo_1(b, SHLO_NOT, shlo_1(b, SHLO_IS_FINITE, hi));
  return shlo_select(b, shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_EQ, lo, hi), infinite), hi, sum);
}

/* ---- rules */

static void lower_cumsum(shlo *b, ttc_lower *c) {
  bool product = op_param(c) == SHLO_PROD;
  ttc_dtype d = op_out_dtype(c, 0);
  ttc_dtype acc = d == TTC_BOOL ? TTC_S32 : ttc__dtype_op(d);
  ttc_val x = shlo_convert(b, ttc__at_least_1d(b, op_in_as(c, 0, d)), acc);
  ttc_val neutral = shlo_const_i(b, acc, product ? 1 : 0, 0, NULL);
  x = ttc__scan(b, x, neutral, op_axis(c, 1, shlo_ndim(b, x)), product ? combine_mul : combine_add);
  ttc__give(b, c, 0, x);
}

/* cummax, cummin: the running extreme, and where it was last met: the running maximum of the places whose element is the extreme so
 * far. A NaN stays the extreme, and only later NaN take its place. */
static void lower_cummax(shlo *b, ttc_lower *c) {
  bool largest = op_param(c) == SHLO_AMAX;
  ttc_val x = ttc__at_least_1d(b, op_in(c, 0));
  x = shlo_dtype(b, x) == TTC_BOOL ? shlo_convert(b, x, TTC_U8) : x;
  shlo_type t = *shlo_typeof(b, x);
  int axis = op_axis(c, 1, t.ndim);
  ttc_val neutral = largest ? shlo_lowest(b, t.dtype) : shlo_highest(b, t.dtype);
  ttc_val y = ttc__once(b, ttc__scan(b, x, neutral, axis, largest ? ttc__combine_max : combine_min));
  ttc_val met = shlo_compare(b, SHLO_EQ, x, y);
  met = ttc__is_float(t.dtype) ? shlo_2(b, SHLO_OR, met, shlo_is_nan(b, x)) : met;
  ttc_dtype place = t.dims[axis] < INT32_MAX ? TTC_S32 : TTC_S64;
  ttc_val zero = shlo_const_i(b, place, 0, 0, NULL);
  ttc_val at = shlo_select(b, met, shlo_iota(b, place, axis, t.ndim, t.dims), zero);
  ttc__give(b, c, 0, y);
  ttc__give(b, c, 1, ttc__scan(b, at, zero, axis, ttc__combine_max));
}

static void lower_logcumsumexp(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  if (ttc__is_complex(d)) {
    op_refuse(c, "%s of %s is not lowered", op_name(c), ttc_dtype_name(d));
    return;
  }
  ttc_val x = ttc__at_least_1d(b, op_in_as(c, 0, d));
  ttc__give(b, c, 0, ttc__scan(b, x, shlo_lowest(b, d), op_axis(c, 1, shlo_ndim(b, x)), combine_logaddexp));
}

const ttc_op_row ttc__scan_rows[] = {
    TTC_ROW_PAD("cumsum", lower_cumsum, SHLO_SUM, TOL_SUM, SCAN_ZERO),
    TTC_ROW_PAD("cumprod", lower_cumsum, SHLO_PROD, TOL_SUM, SCAN_ONE),
    TTC_ROW_PAD("cummax", lower_cummax, SHLO_AMAX, TOL_EXACT, SCAN_LOWEST),
    TTC_ROW_PAD("cummin", lower_cummax, SHLO_AMIN, TOL_EXACT, SCAN_HIGHEST),
    TTC_ROW_PAD("logcumsumexp", lower_logcumsumexp, 0, TOL_SUM, SCAN_LOWEST),
};
TTC_FAMILY(scan)
