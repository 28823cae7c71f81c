/* Running reductions along one axis: cumsum, cumprod, cummax, cummin, logcumsumexp.
 *
 * All are one generic scan over an associative combine. reduce_window with a window of the whole axis is avoided: XLA:CPU plugins
 * have aborted on it, and odd-even recursion costs 0.4-1.5 s to compile there. Instead: XLA:CPU  a while loop that walks a short
 * axis; a long axis is cut into blocks of 64 that are walked side by side, their last elements are scanned in turn, and each block
 * is combined with what came before it. TPU      the same blocks, of 128, and inside a block log2 steps of "combine with the
 * element 2^k before". */
#include "op/reduce.h"

enum {
  MAX_SCANNED = 2,     /* arrays scanned together */
  CPU_BLOCK = 64,      /* and the axis that is always walked directly */
  CPU_WALK = 512,      /* longest axis walked directly in small arrays */
  CPU_SMALL = 1 << 19, /* elements */
  TPU_BLOCK = 128
};

typedef struct scan_job {
  int n, axis;
  const ttc_val *neutral;
  ttc__combine combine;
} scan_job;

/* Loop state: i (s32), then the carries (size 1 along the axis), then the arrays, of which element i is replaced. */
static void walk_more(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  const scan_job *j = ctx;
  int64_t len = shlo_dim(b, args[1 + j->n], j->axis);
  results[0] = shlo_compare(b, SHLO_LT, args[0], shlo_const_i(b, TTC_S32, len, 0, NULL));
}

static void walk_step(shlo *b, void *ctx, const ttc_val *args, ttc_val *results) {
  const scan_job *j = ctx;
  const ttc_val *carry = args + 1, *whole = args + 1 + j->n;
  shlo_type t = *shlo_typeof(b, whole[0]);
  t.dims[j->axis] = 1;
  ttc_val at[3 * TTC_MAX_NDIM];
  ttc_val zero = shlo_const_i(b, TTC_S32, 0, 0, NULL);
  for (int i = 0; i < t.ndim; i++) {
    at[i] = i == j->axis ? args[0] : zero;
  }
  ttc_val now[MAX_SCANNED];
  for (int k = 0; k < j->n; k++) {
    now[k] = shlo_dynamic_slice(b, whole[k], at, t.dims);
  }
  results[0] = shlo_add(b, args[0], shlo_const_i(b, TTC_S32, 1, 0, NULL));
  j->combine(b, j->n, carry, now, results + 1);
  for (int k = 0; k < j->n; k++) {
    results[1 + j->n + k] = shlo_dynamic_update_slice(b, whole[k], results[1 + k], at);
  }
}

static void walk(shlo *b, scan_job *j, const ttc_val *xs, ttc_val *out) {
  ttc_val init[1 + 2 * MAX_SCANNED], done[1 + 2 * MAX_SCANNED];
  shlo_type t = *shlo_typeof(b, xs[0]);
  t.dims[j->axis] = 1;
  init[0] = shlo_const_i(b, TTC_S32, 0, 0, NULL);
  for (int k = 0; k < j->n; k++) {
    init[1 + k] = shlo_broadcast_to(b, j->neutral[k], t.ndim, t.dims);
    init[1 + j->n + k] = xs[k];
  }
  shlo_while(b, 1 + 2 * j->n, init, walk_more, walk_step, j, done);
  for (int k = 0; k < j->n; k++) {
    out[k] = done[1 + j->n + k];
  }
}

/* x moved `by` places to the right along the axis, neutral elements coming in. */
static ttc_val shift(shlo *b, const scan_job *j, int k, ttc_val x, int64_t by) {
  int64_t lo[3 * TTC_MAX_NDIM] = {0}, hi[3 * TTC_MAX_NDIM] = {0};
  lo[j->axis] = by;
  hi[j->axis] = -by;
  return shlo_pad(b, x, j->neutral[k], lo, hi, NULL);
}

static void double_up(shlo *b, scan_job *j, const ttc_val *xs, ttc_val *out) {
  int64_t len = shlo_dim(b, xs[0], j->axis);
  for (int k = 0; k < j->n; k++) {
    out[k] = xs[k];
  }
  for (int64_t by = 1; by < len; by *= 2) {
    ttc_val before[MAX_SCANNED], next[MAX_SCANNED];
    for (int k = 0; k < j->n; k++) {
      before[k] = shift(b, j, k, out[k], by);
    }
    j->combine(b, j->n, before, out, next);
    for (int k = 0; k < j->n; k++) {
      out[k] = next[k];
    }
  }
}

static void scan(shlo *b, scan_job *j, const ttc_val *xs, ttc_val *out);

/* [.., len, ..] as [.., blocks, block, ..], padded with neutral elements. */
static ttc_val cut(shlo *b, const scan_job *j, int k, ttc_val x, int64_t nblock, int64_t block) {
  shlo_type t = *shlo_typeof(b, x);
  int64_t lo[3 * TTC_MAX_NDIM] = {0}, hi[3 * TTC_MAX_NDIM] = {0};
  hi[j->axis] = nblock * block - t.dims[j->axis];
  if (hi[j->axis] > 0) {
    x = shlo_pad(b, x, j->neutral[k], lo, hi, NULL);
  }
  for (int i = t.ndim; i > j->axis + 1; i--) {
    t.dims[i] = t.dims[i - 1];
  }
  t.dims[j->axis] = nblock;
  t.dims[j->axis + 1] = block;
  return shlo_reshape(b, x, t.ndim + 1, t.dims);
}

static void scan_blocks(shlo *b, scan_job *j, int64_t block, const ttc_val *xs, ttc_val *out) {
  shlo_type whole = *shlo_typeof(b, xs[0]);
  int64_t len = whole.dims[j->axis], nblock = (len + block - 1) / block;
  ttc_val in[MAX_SCANNED], part[MAX_SCANNED], total[MAX_SCANNED], before[MAX_SCANNED], full[MAX_SCANNED];
  for (int k = 0; k < j->n; k++) {
    in[k] = cut(b, j, k, xs[k], nblock, block);
  }
  scan_job inner = *j;
  inner.axis = j->axis + 1;
  scan(b, &inner, in, part);
  for (int k = 0; k < j->n; k++) {
    total[k] = shlo_squeeze(b, shlo_slice_axis(b, part[k], inner.axis, block - 1, block), inner.axis);
  }
  scan(b, j, total, before);
  for (int k = 0; k < j->n; k++) {
    before[k] = shlo_unsqueeze(b, shift(b, j, k, before[k], 1), inner.axis);
    shlo_type t = *shlo_typeof(b, part[k]);
    before[k] = shlo_broadcast_to(b, before[k], t.ndim, t.dims);
  }
  j->combine(b, j->n, before, part, full);
  whole.dims[j->axis] = nblock * block;
  for (int k = 0; k < j->n; k++) {
    out[k] = shlo_slice_axis(b, shlo_reshape(b, full[k], whole.ndim, whole.dims), j->axis, 0, len);
  }
}

static void scan(shlo *b, scan_job *j, const ttc_val *xs, ttc_val *out) {
  int64_t len = shlo_dim(b, xs[0], j->axis);
  if (len <= 1 || shlo_nelem(b, xs[0]) == 0) {
    for (int k = 0; k < j->n; k++) {
      out[k] = xs[k];
    }
  } else if (shlo_for_tpu(b)) {
    if (len <= TPU_BLOCK) {
      double_up(b, j, xs, out);
    } else {
      scan_blocks(b, j, TPU_BLOCK, xs, out);
    }
  } else if (len <= CPU_BLOCK || (len <= CPU_WALK && shlo_nelem(b, xs[0]) <= CPU_SMALL)) {
    walk(b, j, xs, out);
  } else {
    scan_blocks(b, j, CPU_BLOCK, xs, out);
  }
}

void ttc__scan(shlo *b, int n, const ttc_val *xs, const ttc_val *neutral, int axis, ttc__combine combine, ttc_val *out) {
  TTC_ASSERT(n <= MAX_SCANNED);
  scan_job j = {.n = n, .axis = axis, .neutral = neutral, .combine = combine};
  scan(b, &j, xs, out);
}

/* ---- combines */

static void combine_add(shlo *b, int n, const ttc_val *x, const ttc_val *y, ttc_val *out) {
  (void)n;
  out[0] = shlo_add(b, x[0], y[0]);
}

static void combine_mul(shlo *b, int n, const ttc_val *x, const ttc_val *y, ttc_val *out) {
  (void)n;
  out[0] = shlo_mul(b, x[0], y[0]);
}

/* (value, place): the later one wins a tie and, being NaN, everything; a NaN is never left for a number. */
static void combine_extreme(shlo *b, shlo_cmp cmp, const ttc_val *x, const ttc_val *y, ttc_val *out) {
  ttc_val later = shlo_compare(b, cmp, y[0], x[0]);
  if (ttc__is_float(shlo_dtype(b, x[0]))) {
    later = shlo_2(b, SHLO_OR, later, shlo_is_nan(b, y[0]));
  }
  out[0] = shlo_select(b, later, y[0], x[0]);
  out[1] = shlo_select(b, later, y[1], x[1]);
}

static void combine_max(shlo *b, int n, const ttc_val *x, const ttc_val *y, ttc_val *out) {
  (void)n;
  combine_extreme(b, SHLO_GE, x, y, out);
}

static void combine_min(shlo *b, int n, const ttc_val *x, const ttc_val *y, ttc_val *out) {
  (void)n;
  combine_extreme(b, SHLO_LE, x, y, out);
}

/* log(e^x + e^y) = max + log1p(e^(min - max)); equal infinities would give inf - inf, so there the max stands. */
static void combine_logaddexp(shlo *b, int n, const ttc_val *x, const ttc_val *y, ttc_val *out) {
  (void)n;
  ttc_val hi = shlo_2(b, SHLO_MAX, x[0], y[0]), lo = shlo_2(b, SHLO_MIN, x[0], y[0]);
  ttc_val sum = shlo_add(b, hi, shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_EXP, shlo_sub(b, lo, hi))));
  ttc_val one_inf = shlo_2(b, SHLO_AND, shlo_compare(b, SHLO_EQ, lo, hi), shlo_1(b, SHLO_NOT, shlo_1(b, SHLO_IS_FINITE, hi)));
  out[0] = shlo_select(b, one_inf, hi, sum);
}

/* ---- rules */

static void lower_cumsum(shlo *b, ttc_lower *c) {
  bool product = op_param(c) == SHLO_PROD;
  ttc_dtype d = op_out_dtype(c, 0);
  ttc_dtype acc = d == TTC_BOOL ? TTC_S32 : ttc__dtype_op(d);
  ttc_val x = shlo_convert(b, ttc__at_least_1d(b, op_in_as(c, 0, d)), acc), y;
  ttc_val neutral = shlo_const_i(b, acc, product ? 1 : 0, 0, NULL);
  ttc__scan(b, 1, &x, &neutral, op_axis(c, 1, shlo_ndim(b, x)), product ? combine_mul : combine_add, &y);
  ttc__give(b, c, 0, y);
}

static void lower_cummax(shlo *b, ttc_lower *c) {
  bool largest = op_param(c) == SHLO_AMAX;
  ttc_val xs[2], ys[2], neutral[2];
  xs[0] = ttc__at_least_1d(b, op_in(c, 0));
  if (shlo_dtype(b, xs[0]) == TTC_BOOL) {
    xs[0] = shlo_convert(b, xs[0], TTC_U8);
  }
  shlo_type t = *shlo_typeof(b, xs[0]);
  int axis = op_axis(c, 1, t.ndim);
  ttc_dtype place = t.dims[axis] < INT32_MAX ? TTC_S32 : TTC_S64;
  xs[1] = shlo_iota(b, place, axis, t.ndim, t.dims);
  neutral[0] = largest ? shlo_lowest(b, t.dtype) : shlo_highest(b, t.dtype);
  neutral[1] = shlo_const_i(b, place, 0, 0, NULL);
  ttc__scan(b, 2, xs, neutral, axis, largest ? combine_max : combine_min, ys);
  ttc__give(b, c, 0, ys[0]);
  ttc__give(b, c, 1, ys[1]);
}

static void lower_logcumsumexp(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  if (ttc__is_complex(d)) {
    op_refuse(c, "%s of %s is not lowered", op_name(c), ttc_dtype_name(d));
    return;
  }
  ttc_val x = ttc__at_least_1d(b, op_in_as(c, 0, d)), y;
  ttc_val neutral = shlo_lowest(b, d);
  ttc__scan(b, 1, &x, &neutral, op_axis(c, 1, shlo_ndim(b, x)), combine_logaddexp, &y);
  ttc__give(b, c, 0, y);
}

const ttc_op_row ttc__scan_rows[] = {
    TTC_ROW("cumsum", lower_cumsum, SHLO_SUM, TOL_SUM),      TTC_ROW("cumprod", lower_cumsum, SHLO_PROD, TOL_SUM),
    TTC_ROW("cummax", lower_cummax, SHLO_AMAX, TOL_EXACT),   TTC_ROW("cummin", lower_cummax, SHLO_AMIN, TOL_EXACT),
    TTC_ROW("logcumsumexp", lower_logcumsumexp, 0, TOL_SUM),
};
TTC_FAMILY(scan)
