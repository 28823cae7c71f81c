/* Reductions: sum, mean, prod, any, all, amax, max, argmax, var, norm, logsumexp and their kin.
 *
 * 16-bit floats are summed in f32 and rounded once, integers and bool in int64 (the result's dtype), as PyTorch's CPU kernels do.
 */
#include "op/reduce.h"

#include <math.h>

/* How a row names the axes: not at all, by an int list (none: all), by an int (None: all), always argument 1. */
enum { OF_ALL = 0, OF_LIST = 0x100, OF_INT = 0x200, OF_MASK = 0xf00 };
/* Flags of rules that serve several overloads. */
enum { KEEP_EMPTY = 0x1000 };

/* ---- shared helpers */

ttc__axes ttc__axes_all(int ndim) {
  ttc__axes ax = {.n = ndim};
  for (int i = 0; i < ndim; i++) {
    ax.at[i] = i;
  }
  return ax;
}

ttc__axes ttc__axes_one(int axis) {
  return (ttc__axes){.n = 1, .at = {axis}};
}

ttc__axes ttc__axes_list(const ttc_lower *c, int arg, int ndim) {
  int n = op_given(c, arg) ? op_list_len(c, arg) : 0;
  if (n == 0 || ndim == 0) {
    return ttc__axes_all(ndim);
  }
  bool used[TTC_MAX_NDIM] = {false};
  for (int k = 0; k < n; k++) {
    int64_t a = op_ints(c, arg, k);
    a = a < 0 ? a + ndim : a;
    if (a >= 0 && a < ndim) {
      used[a] = true;
    }
  }
  ttc__axes ax = {0};
  for (int i = 0; i < ndim; i++) {
    if (used[i]) {
      ax.at[ax.n++] = i;
    }
  }
  return ax;
}

ttc__axes ttc__axes_int(const ttc_lower *c, int arg, int ndim) {
  if (ndim == 0 || !op_given(c, arg)) {
    return ttc__axes_all(ndim);
  }
  return ttc__axes_one(op_axis(c, arg, ndim));
}

int64_t ttc__axes_count(shlo *b, ttc_val x, const ttc__axes *ax) {
  int64_t n = 1;
  for (int i = 0; i < ax->n; i++) {
    n *= shlo_dim(b, x, ax->at[i]);
  }
  return n;
}

ttc_val ttc__reduce_keep(shlo *b, shlo_combine how, ttc_val x, const ttc__axes *ax) {
  shlo_type t = *shlo_typeof(b, x);
  for (int i = 0; i < ax->n; i++) {
    t.dims[ax->at[i]] = 1;
  }
  ttc_val r = ax->n > 0 ? shlo_reduce(b, how, x, ax->n, ax->at) : x;
  return shlo_reshape(b, r, t.ndim, t.dims);
}

ttc_val ttc__count(shlo *b, ttc_dtype d, int64_t n) {
  return shlo_const_f(b, d, (double)n, 0, NULL);
}

ttc_val ttc__mean_keep(shlo *b, ttc_val x, const ttc__axes *ax) {
  ttc_val sum = ttc__reduce_keep(b, SHLO_SUM, x, ax);
  return shlo_div(b, sum, ttc__count(b, shlo_dtype(b, x), ttc__axes_count(b, x, ax)));
}

ttc_val ttc__up(shlo *b, ttc_val x) {
  return shlo_convert(b, x, ttc__dtype_op(shlo_dtype(b, x)));
}

ttc_val ttc__once(shlo *b, ttc_val x) {
  return shlo_for_tpu(b) ? x : shlo_barrier(b, x);
}

void ttc__give(shlo *b, ttc_lower *c, int k, ttc_val v) {
  if (op_wanted(c, k)) {
    op_ret(c, k, shlo_reshape(b, v, op_out_ndim(c, k), op_out_sizes(c, k)));
  }
}

ttc_val ttc__const2(shlo *b, shlo_op2 op, ttc_val x, double v) {
  return shlo_2(b, op, x, shlo_const_f(b, shlo_dtype(b, x), v, 0, NULL));
}

ttc_val ttc__at_least_1d(shlo *b, ttc_val x) {
  int64_t one = 1;
  return shlo_ndim(b, x) == 0 ? shlo_reshape(b, x, 1, &one) : x;
}

ttc_val ttc__first_place(shlo *b, ttc_val hit, int axis) {
  shlo_type t = *shlo_typeof(b, hit);
  ttc_dtype d = t.dims[axis] < INT32_MAX ? TTC_S32 : TTC_S64;
  ttc_val place = shlo_iota(b, d, axis, t.ndim, t.dims);
  ttc_val none = shlo_const_i(b, d, t.dims[axis], 0, NULL);
  ttc__axes ax = ttc__axes_one(axis);
  return ttc__reduce_keep(b, SHLO_AMIN, shlo_select(b, hit, place, none), &ax);
}

/* bool has no order in StableHLO's reductions: u8 has the same one. */
static ttc_val orderable(shlo *b, ttc_val x) {
  return shlo_dtype(b, x) == TTC_BOOL ? shlo_convert(b, x, TTC_U8) : x;
}

void ttc__extreme(shlo *b, ttc_val x, int axis, bool largest, ttc_val *val, ttc_val *idx) {
  x = orderable(b, x);
  ttc__axes ax = ttc__axes_one(axis);
  ttc_val m = ttc__reduce_keep(b, largest ? SHLO_AMAX : SHLO_AMIN, x, &ax);
  if (val != NULL) {
    *val = m;
  }
  if (idx == NULL) {
    return;
  }
  /* If there is a NaN the extreme is NaN and equals nothing; if there is none, is_nan adds nothing. */
  ttc_val hit = shlo_compare(b, SHLO_EQ, x, ttc__once(b, m));
  if (ttc__is_float(shlo_dtype(b, x))) {
    hit = shlo_2(b, SHLO_OR, hit, shlo_is_nan(b, x));
  }
  *idx = ttc__first_place(b, hit, axis);
}

static ttc_val sum_powers(shlo *b, ttc_val mag, double p, const ttc__axes *ax) {
  ttc_val s = ttc__reduce_keep(b, SHLO_SUM, ttc__const2(b, SHLO_POW, mag, p), ax);
  return ttc__const2(b, SHLO_POW, s, 1.0 / p);
}

ttc_val ttc__norm_keep(shlo *b, ttc_val x, double p, const ttc__axes *ax) {
  if (p == 2.0 && !ttc__is_complex(shlo_dtype(b, x))) {
    return shlo_1(b, SHLO_SQRT, ttc__reduce_keep(b, SHLO_SUM, shlo_mul(b, x, x), ax));
  }
  ttc_val mag = shlo_1(b, SHLO_ABS, x);
  if (isinf(p)) {
    return ttc__reduce_keep(b, p > 0 ? SHLO_AMAX : SHLO_AMIN, mag, ax);
  }
  if (p == 0.0) {
    ttc_val on = shlo_compare(b, SHLO_NE, mag, shlo_const_like(b, mag, 0));
    return ttc__reduce_keep(b, SHLO_SUM, shlo_convert(b, on, shlo_dtype(b, mag)), ax);
  }
  if (p == 1.0) {
    return ttc__reduce_keep(b, SHLO_SUM, mag, ax);
  }
  if (p == 2.0) {
    return shlo_1(b, SHLO_SQRT, ttc__reduce_keep(b, SHLO_SUM, shlo_mul(b, mag, mag), ax));
  }
  return sum_powers(b, mag, p, ax);
}

/* ---- rules */

static ttc__axes axes_of(const ttc_lower *c) {
  int ndim = op_in_ndim(c, 0);
  switch (op_param(c) & OF_MASK) {
    case OF_LIST:
      return ttc__axes_list(c, 1, ndim);
    case OF_INT:
      return ttc__axes_int(c, 1, ndim);
    default:
      return ttc__axes_all(ndim);
  }
}

typedef enum sum_kind { SUM, MEAN, NANSUM, PROD } sum_kind;

/* sum / n. XLA turns a division by a constant, or by a scalar spread out, into a product with its reciprocal, so that the mean of
 * 41 ones would not be one. On XLA:CPU a divisor behind a barrier is divided by; powers of two and results of 16 bits do not need
 * it. */
static ttc_val exact_mean(shlo *b, ttc_lower *c, ttc_val x, const ttc__axes *ax, ttc_dtype result) {
  int64_t n = 1;
  ttc_dtype d = shlo_dtype(b, x);
  ttc_val places = TTC_POISON;
  for (int i = 0; i < ax->n; i++) {
    ttc_val here = op_places(c, 0, ax->at[i]);
    n *= here.id >= 0 ? 1 : shlo_dim(b, x, ax->at[i]);
    places = here.id < 0 ? places : places.id < 0 ? here : shlo_mul(b, places, here);
  }
  if (places.id < 0 && (shlo_for_tpu(b) || d != result || !ttc__is_float(d) || (n & (n - 1)) == 0)) {
    return ttc__mean_keep(b, x, ax);
  }
  ttc_val sum = ttc__reduce_keep(b, SHLO_SUM, x, ax), count = shlo_const_f(b, d, (double)n, 0, NULL);
  count = places.id >= 0 ? shlo_mul(b, count, shlo_convert(b, places, d)) : count;
  shlo_type t = *shlo_typeof(b, sum);
  return shlo_div(b, sum, ttc__once(b, shlo_broadcast_to(b, count, t.ndim, t.dims)));
}

/* sum, mean, nansum, prod: the input is cast to the result's dtype first (aten's dtype=), then accumulated in its op type. */
static void lower_sum(shlo *b, ttc_lower *c) {
  sum_kind kind = (sum_kind)(op_param(c) & 0xff);
  ttc__axes ax = axes_of(c);
  ttc_val x = ttc__up(b, op_in_as(c, 0, op_out_dtype(c, 0)));
  if (kind == NANSUM && ttc__is_inexact(shlo_dtype(b, x))) {
    x = shlo_select(b, shlo_is_nan(b, x), shlo_const_like(b, x, 0), x);
  }
  if (kind == MEAN) {
    ttc__give(b, c, 0, exact_mean(b, c, x, &ax, op_out_dtype(c, 0)));
  } else if (shlo_dtype(b, x) == TTC_BOOL) {
    ttc__give(b, c, 0, ttc__reduce_keep(b, kind == PROD ? SHLO_ALL : SHLO_ANY, x, &ax));
  } else {
    ttc__give(b, c, 0, ttc__reduce_keep(b, kind == PROD ? SHLO_PROD : SHLO_SUM, x, &ax));
  }
}

/* any, all: of anything, by x != 0 (NaN is true). any.dims with an empty list reduces nothing, unlike with None. */
static void lower_any_all(shlo *b, ttc_lower *c) {
  ttc__axes ax = axes_of(c);
  if ((op_param(c) & KEEP_EMPTY) && op_given(c, 1) && op_list_len(c, 1) == 0) {
    ax.n = 0;
  }
  shlo_combine how = (shlo_combine)(op_param(c) & 0xff);
  ttc__give(b, c, 0, ttc__reduce_keep(b, how, op_in_as(c, 0, TTC_BOOL), &ax));
}

static ttc_val extreme_value(shlo *b, ttc_val x, bool largest, const ttc__axes *ax) {
  return ttc__reduce_keep(b, largest ? SHLO_AMAX : SHLO_AMIN, orderable(b, x), ax);
}

/* amax, amin, and max, min of the whole tensor. */
static void lower_amax(shlo *b, ttc_lower *c) {
  ttc__axes ax = axes_of(c);
  if ((op_param(c) & OF_MASK) == OF_ALL && shlo_nelem(b, op_in(c, 0)) == 0) {
    shlo_error(b, TTC_INVALID_ARGUMENT, "%s(): Expected reduction dim to be specified for input.numel() == 0.", op_name(c));
    return;
  }
  ttc__give(b, c, 0, extreme_value(b, op_in(c, 0), (op_param(c) & 0xff) == SHLO_AMAX, &ax));
}

static void lower_aminmax(shlo *b, ttc_lower *c) {
  ttc__axes ax = axes_of(c);
  ttc_val x = op_in(c, 0);
  ttc__give(b, c, 0, extreme_value(b, x, false, &ax));
  ttc__give(b, c, 1, extreme_value(b, x, true, &ax));
}

/* max.dim, min.dim: values and the places of the first ones. */
static void lower_max_dim(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__at_least_1d(b, op_in(c, 0)), val, idx;
  ttc__extreme(b, x, op_axis(c, 1, shlo_ndim(b, x)), op_param(c) == SHLO_AMAX, &val, &idx);
  ttc__give(b, c, 0, val);
  ttc__give(b, c, 1, idx);
}

/* argmax, argmin: over the flattened tensor when dim is None. */
static void lower_argmax(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0), idx;
  int64_t n = shlo_nelem(b, x);
  bool flat = !op_given(c, 1) || shlo_ndim(b, x) == 0;
  x = flat ? shlo_reshape(b, x, 1, &n) : x;
  ttc__extreme(b, x, flat ? 0 : op_axis(c, 1, shlo_ndim(b, x)), op_param(c) == SHLO_AMAX, NULL, &idx);
  ttc__give(b, c, 0, idx);
}

typedef enum var_kind { VAR = 0, STD = 1, WITH_MEAN = 2 } var_kind;

/* Two passes: mean, then the mean of squared distances; a complex variance is the sum of its parts' (|x - mean|^2). */
static void lower_var(shlo *b, ttc_lower *c) {
  ttc__axes ax = ttc__axes_list(c, 1, op_in_ndim(c, 0));
  double correction = op_given(c, 2) ? op_static_f(c, 2) : 1.0;
  if (!ttc__is_inexact(op_in_dtype(c, 0))) {
    shlo_error(b, TTC_INVALID_ARGUMENT, "std and var only support floating point and complex dtypes");
    return;
  }
  ttc_val x = ttc__up(b, op_in(c, 0));
  ttc_val mean = ttc__once(b, ttc__mean_keep(b, x, &ax));
  ttc_val dist = shlo_sub(b, x, mean);
  ttc_val sq;
  if (ttc__is_complex(shlo_dtype(b, x))) {
    ttc_val re = shlo_1(b, SHLO_REAL, dist), im = shlo_1(b, SHLO_IMAG, dist);
    sq = shlo_add(b, shlo_mul(b, re, re), shlo_mul(b, im, im));
  } else {
    sq = shlo_mul(b, dist, dist);
  }
  double free_n = (double)ttc__axes_count(b, x, &ax) - correction;
  ttc_val v = ttc__const2(b, SHLO_DIV, ttc__reduce_keep(b, SHLO_SUM, sq, &ax), free_n > 0 ? free_n : 0.0);
  if (op_param(c) & STD) {
    v = shlo_1(b, SHLO_SQRT, v);
  }
  ttc__give(b, c, 0, v);
  if (op_param(c) & WITH_MEAN) {
    ttc__give(b, c, 1, mean);
  }
}

/* Which argument of a norm overload holds what; -1: it has none. */
typedef enum norm_args { NORM_P, NORM_P_DIM, NORM_P_DIM_DTYPE, NORM_P_DTYPE, NORM_DIST } norm_args;

/* norm, linalg_vector_norm, dist: the order is part of the program; None means 2. */
static void lower_norm(shlo *b, ttc_lower *c) {
  norm_args form = (norm_args)op_param(c);
  int p_arg = form == NORM_DIST ? 2 : 1;
  int dtype_arg = form == NORM_P_DIM_DTYPE ? 4 : form == NORM_P_DTYPE ? 2 : -1;
  double p = op_given(c, p_arg) ? op_static_f(c, p_arg) : 2.0;
  ttc_val x;
  if (form == NORM_DIST) {
    ttc_dtype d = ttc__dtype_op(op_promote(c, 0, 1));
    x = shlo_sub(b, op_in_as(c, 0, d), op_in_as(c, 1, d));
  } else {
    x = op_in(c, 0);
    if (dtype_arg >= 0) {
      x = shlo_convert(b, x, op_dtype_arg(c, dtype_arg, shlo_dtype(b, x)));
    }
    x = ttc__up(b, x);
  }
  bool has_dim = form == NORM_P_DIM || form == NORM_P_DIM_DTYPE;
  ttc__axes ax = has_dim ? ttc__axes_list(c, 2, shlo_ndim(b, x)) : ttc__axes_all(shlo_ndim(b, x));
  ttc__give(b, c, 0, ttc__norm_keep(b, x, p, &ax));
}

static void lower_count_nonzero(shlo *b, ttc_lower *c) {
  ttc__axes ax = axes_of(c);
  ttc_val on = op_in_as(c, 0, TTC_BOOL);
  ttc_dtype d = ttc__axes_count(b, on, &ax) < INT32_MAX ? TTC_S32 : TTC_S64;
  ttc__give(b, c, 0, ttc__reduce_keep(b, SHLO_SUM, shlo_convert(b, on, d), &ax));
}

/* logsumexp: m + log(sum(exp(x - m))), m the largest where finite, else 0 (so that a row of -inf gives -inf, of inf inf). */
static void lower_logsumexp(shlo *b, ttc_lower *c) {
  ttc__axes ax = axes_of(c);
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  if (ttc__is_complex(d)) {
    op_refuse(c, "%s of %s is not lowered", op_name(c), ttc_dtype_name(d));
    return;
  }
  ttc_val x = op_in_as(c, 0, d);
  ttc_val m = ttc__reduce_keep(b, SHLO_AMAX, x, &ax);
  m = ttc__once(b, shlo_select(b, shlo_1(b, SHLO_IS_FINITE, m), m, shlo_const_like(b, m, 0)));
  ttc_val s = ttc__reduce_keep(b, SHLO_SUM, shlo_1(b, SHLO_EXP, shlo_sub(b, x, m)), &ax);
  ttc__give(b, c, 0, shlo_add(b, shlo_1(b, SHLO_LOG, s), m));
}

static void lower_trace(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__up(b, op_in_as(c, 0, op_out_dtype(c, 0)));
  shlo_type t = *shlo_typeof(b, x);
  ttc_val on = shlo_compare(b, SHLO_EQ, shlo_iota(b, TTC_S64, 0, t.ndim, t.dims), shlo_iota(b, TTC_S64, 1, t.ndim, t.dims));
  ttc__axes ax = ttc__axes_all(t.ndim);
  ttc__give(b, c, 0, ttc__reduce_keep(b, SHLO_SUM, shlo_select(b, on, x, shlo_const_like(b, x, 0)), &ax));
}

/* hash_tensor: xor of the elements' 64-bit patterns, floats as f64, integers sign extended. */
static void lower_hash_tensor(shlo *b, ttc_lower *c) {
  ttc__axes ax = axes_of(c);
  ttc_dtype d = op_in_dtype(c, 0);
  if (ttc__is_complex(d) || op_int(c, 3, 0) != 0) {
    op_refuse(c, "hash_tensor of %s is not lowered", ttc_dtype_name(d));
    return;
  }
  ttc_val x = ttc__is_float(d) ? shlo_bitcast(b, op_in_as(c, 0, TTC_F64), TTC_U64) : op_in_as(c, 0, TTC_U64);
  ttc__give(b, c, 0, ttc__reduce_keep(b, SHLO_BIT_XOR, x, &ax));
}

const ttc_op_row ttc__reduce_rows[] = {
    TTC_ROW_PAD("sum", lower_sum, SUM | OF_ALL, TOL_SUM, FOLD_ZERO),
    TTC_ROW_PAD("sum.dim_IntList", lower_sum, SUM | OF_LIST, TOL_SUM, FOLD_ZERO),
    TTC_ROW_PAD("mean", lower_sum, MEAN | OF_ALL, TOL_SUM, MEAN),
    TTC_ROW_PAD("mean.dim", lower_sum, MEAN | OF_LIST, TOL_SUM, MEAN),
    TTC_ROW_PAD("nansum", lower_sum, NANSUM | OF_LIST, TOL_SUM, FOLD_ZERO),
    TTC_ROW_PAD("prod", lower_sum, PROD | OF_ALL, TOL_SUM, FOLD_ONE),
    TTC_ROW_PAD("prod.dim_int", lower_sum, PROD | OF_INT, TOL_SUM, FOLD_ONE),
    TTC_ROW_PAD("any", lower_any_all, SHLO_ANY | OF_ALL, TOL_EXACT, FOLD_ZERO),
    TTC_ROW_PAD("any.dim", lower_any_all, SHLO_ANY | OF_INT, TOL_EXACT, FOLD_ZERO),
    TTC_ROW_PAD("any.dims", lower_any_all, SHLO_ANY | OF_LIST | KEEP_EMPTY, TOL_EXACT, FOLD_ZERO),
    TTC_ROW_PAD("all", lower_any_all, SHLO_ALL | OF_ALL, TOL_EXACT, FOLD_ONE),
    TTC_ROW_PAD("all.dim", lower_any_all, SHLO_ALL | OF_INT, TOL_EXACT, FOLD_ONE),
    TTC_ROW_PAD("all.dims", lower_any_all, SHLO_ALL | OF_LIST | KEEP_EMPTY, TOL_EXACT, FOLD_ONE),
    TTC_ROW_PAD("amax", lower_amax, SHLO_AMAX | OF_LIST, TOL_EXACT, FOLD_LOWEST),
    TTC_ROW_PAD("amin", lower_amax, SHLO_AMIN | OF_LIST, TOL_EXACT, FOLD_HIGHEST),
    TTC_ROW_PAD("max", lower_amax, SHLO_AMAX | OF_ALL, TOL_EXACT, FOLD_LOWEST),
    TTC_ROW_PAD("min", lower_amax, SHLO_AMIN | OF_ALL, TOL_EXACT, FOLD_HIGHEST),
    TTC_ROW_PAD("max.dim", lower_max_dim, SHLO_AMAX, TOL_EXACT, FOLD_LOWEST),
    TTC_ROW_PAD("min.dim", lower_max_dim, SHLO_AMIN, TOL_EXACT, FOLD_HIGHEST),
    TTC_ROW_PAD("argmax", lower_argmax, SHLO_AMAX, TOL_EXACT, FOLD_LOWEST),
    TTC_ROW_PAD("argmin", lower_argmax, SHLO_AMIN, TOL_EXACT, FOLD_HIGHEST),
    TTC_ROW("aminmax", lower_aminmax, OF_INT, TOL_EXACT),
    TTC_ROW_STATIC_PAD("var.correction", lower_var, VAR, TOL_SUM, 1u << 2, VAR),
    TTC_ROW_STATIC_PAD("std.correction", lower_var, STD, TOL_SUM, 1u << 2, VAR),
    TTC_ROW_STATIC_PAD("var_mean.correction", lower_var, VAR | WITH_MEAN, TOL_SUM, 1u << 2, VAR),
    TTC_ROW_STATIC_PAD("std_mean.correction", lower_var, STD | WITH_MEAN, TOL_SUM, 1u << 2, VAR),
    TTC_ROW_STATIC_PAD("norm.Scalar", lower_norm, NORM_P, TOL_SUM, 1u << 1, FOLD_ZERO),
    TTC_ROW_STATIC_PAD("norm.ScalarOpt_dim", lower_norm, NORM_P_DIM, TOL_SUM, 1u << 1, FOLD_ZERO),
    TTC_ROW_STATIC_PAD("norm.ScalarOpt_dim_dtype", lower_norm, NORM_P_DIM_DTYPE, TOL_SUM, 1u << 1, FOLD_ZERO),
    TTC_ROW_STATIC_PAD("norm.ScalarOpt_dtype", lower_norm, NORM_P_DTYPE, TOL_SUM, 1u << 1, FOLD_ZERO),
    TTC_ROW_STATIC_PAD("linalg_vector_norm", lower_norm, NORM_P_DIM_DTYPE, TOL_SUM, 1u << 1, FOLD_ZERO),
    TTC_ROW_STATIC("dist", lower_norm, NORM_DIST, TOL_SUM, 1u << 2),
    TTC_ROW_PAD("count_nonzero", lower_count_nonzero, OF_INT, TOL_EXACT, FOLD_ZERO),
    TTC_ROW_PAD("count_nonzero.dim_IntList", lower_count_nonzero, OF_LIST, TOL_EXACT, FOLD_ZERO),
    TTC_ROW_PAD("logsumexp", lower_logsumexp, OF_LIST, TOL_SUM, FOLD_LOWEST),
    TTC_ROW("trace", lower_trace, 0, TOL_SUM),
    TTC_ROW("hash_tensor", lower_hash_tensor, OF_LIST, TOL_EXACT),
};
TTC_FAMILY(reduce)
