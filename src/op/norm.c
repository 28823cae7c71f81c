/* Normalisation: layer, group, batch and RMS norm with their backwards, renorm, weight norm.
 *
 * Everything is computed in the input's op type (f32 for 16-bit floats) and rounded once. With xhat = (x - mean) rstd, n elements a
 * mean is taken over, and h = g w the gradient of xhat:
 *     dx = rstd (h - mean(h) - xhat mean(h xhat))      dw = sum(g xhat)      db = sum(g)
 * (RMS norm has no mean: the term mean(h) is missing.) On XLA:CPU the means sit behind barriers, or each loop computes them again.
 */
#include <string.h>

#include "op/reduce.h"

/* ---- what they share */

/* Arrays are looked at as 4-d, [a, b, c, d] with some sizes 1, so that statistics, weights and data broadcast. */
typedef struct view4 {
  int64_t dims[4];
} view4;

static ttc_val as4(shlo *b, ttc_val x, view4 v) {
  return shlo_reshape(b, x, 4, v.dims);
}

/* An optional tensor argument as 4-d in dtype d, or poison-free "absent": given is false. */
typedef struct maybe {
  bool given;
  ttc_val v;
} maybe;

static maybe maybe_in(shlo *b, ttc_lower *c, int arg, ttc_dtype d, view4 v) {
  if (!op_given(c, arg)) {
    return (maybe){false, TTC_POISON};
  }
  return (maybe){true, as4(b, op_in_as(c, arg, d), v)};
}

static ttc_val times(shlo *b, ttc_val x, maybe w) {
  return w.given ? shlo_mul(b, x, w.v) : x;
}
static ttc_val plus(shlo *b, ttc_val x, maybe w) {
  return w.given ? shlo_add(b, x, w.v) : x;
}

/* Mean over ax and mean squared distance from it, kept. */
static void moments(shlo *b, ttc_val x, const ttc__axes *ax, ttc_val *mean, ttc_val *var) {
  *mean = ttc__once(b, ttc__mean_keep(b, x, ax));
  ttc_val d = shlo_sub(b, x, *mean);
  *var = ttc__mean_keep(b, shlo_mul(b, d, d), ax);
}

static ttc_val inverse_std(shlo *b, ttc_val var, ttc_val eps) {
  return ttc__once(b, shlo_1(b, SHLO_RSQRT, shlo_add(b, var, eps)));
}

static ttc_val normalise(shlo *b, ttc_val x, ttc_val mean, ttc_val rstd) {
  return shlo_mul(b, shlo_sub(b, x, mean), rstd);
}

/* rstd (h - mean(h) - xhat mean(h xhat)) */
static ttc_val input_gradient(shlo *b, ttc_val h, ttc_val xhat, ttc_val rstd, const ttc__axes *over, bool centred) {
  ttc_val along = ttc__once(b, ttc__mean_keep(b, shlo_mul(b, h, xhat), over));
  ttc_val d = shlo_sub(b, h, shlo_mul(b, xhat, along));
  if (centred) {
    d = shlo_sub(b, d, ttc__once(b, ttc__mean_keep(b, h, over)));
  }
  return shlo_mul(b, d, rstd);
}

/* dw and db, whichever is wanted as results 1 and 2 (or 1 alone). */
static void parameter_gradients(shlo *b, ttc_lower *c, ttc_val g, ttc_val xhat, const ttc__axes *over, bool bias) {
  if (op_wanted(c, 1)) {
    ttc__give(b, c, 1, ttc__reduce_keep(b, SHLO_SUM, shlo_mul(b, g, xhat), over));
  }
  if (bias && op_wanted(c, 2)) {
    ttc__give(b, c, 2, ttc__reduce_keep(b, SHLO_SUM, g, over));
  }
}

static ttc_dtype op_type(const ttc_lower *c, int arg) {
  return ttc__dtype_op(op_in_dtype(c, arg));
}

static bool refuse_complex(ttc_lower *c, int arg) {
  if (ttc__is_float(op_in_dtype(c, arg))) {
    return false;
  }
  op_refuse(c, "%s of %s is not lowered", op_name(c), ttc_dtype_name(op_in_dtype(c, arg)));
  return true;
}

/* A norm over groups of elements: the input's views, and the axes of a group and of what shares a weight. */
typedef struct grouped {
  view4 data, stat, weight;
  ttc__axes within, across;
} grouped;

/* The input (argument `input`) normalised, times weight plus bias (arguments `weight` and the one after) -> y, mean, rstd */
static void centred_norm(shlo *b, ttc_lower *c, const grouped *r, int weight, int eps) {
  ttc_dtype d = op_type(c, 0);
  ttc_val x = as4(b, op_in_as(c, 0, d), r->data), mean, var;
  moments(b, x, &r->within, &mean, &var);
  ttc_val rstd = inverse_std(b, var, op_num(c, eps, 0, d));
  ttc_val y = normalise(b, x, mean, rstd);
  y = plus(b, times(b, y, maybe_in(b, c, weight, d, r->weight)), maybe_in(b, c, weight + 1, d, r->weight));
  ttc__give(b, c, 0, y);
  ttc__give(b, c, 1, mean);
  ttc__give(b, c, 2, rstd);
}

/* (g, input, .., mean, rstd, weight, ..): mean is argument `mean`. */
static void centred_norm_backward(shlo *b, ttc_lower *c, const grouped *r, int mean) {
  ttc_dtype d = op_type(c, 1);
  ttc_val g = as4(b, op_in_as(c, 0, d), r->data), x = as4(b, op_in_as(c, 1, d), r->data);
  ttc_val m = as4(b, op_in_as(c, mean, d), r->stat), rstd = as4(b, op_in_as(c, mean + 1, d), r->stat);
  ttc_val xhat = normalise(b, x, m, rstd);
  if (op_wanted(c, 0)) {
    ttc_val h = times(b, g, maybe_in(b, c, mean + 2, d, r->weight));
    ttc__give(b, c, 0, input_gradient(b, h, xhat, rstd, &r->within, true));
  }
  parameter_gradients(b, c, g, xhat, &r->across, true);
}

/* ---- layer and RMS norm: rows of `n` elements, the trailing axes of normalized_shape: [rows, 1, 1, n] */

static grouped rows_of(const ttc_lower *c, int input, int shape_arg) {
  int ndim = op_in_ndim(c, input), inner = op_list_len(c, shape_arg);
  int64_t m = 1, n = 1;
  for (int i = 0; i < ndim; i++) {
    *(i < ndim - inner ? &m : &n) *= op_in_dim(c, input, i);
  }
  return (grouped){.data = {{m, 1, 1, n}},
                   .stat = {{m, 1, 1, 1}},
                   .weight = {{1, 1, 1, n}},
                   .within = ttc__axes_one(3),
                   .across = ttc__axes_one(0)};
}

/* native_layer_norm(input, normalized_shape, weight, bias, eps) -> y, mean, rstd */
static void lower_layer_norm(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 0)) {
    return;
  }
  grouped r = rows_of(c, 0, 1);
  centred_norm(b, c, &r, 2, 4);
}

/* native_layer_norm_backward(g, input, normalized_shape, mean, rstd, weight, bias, output_mask) */
static void lower_layer_norm_backward(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 1)) {
    return;
  }
  grouped r = rows_of(c, 1, 2);
  centred_norm_backward(b, c, &r, 3);
}

/* The epsilon of _fused_rms_norm when it is None: the input dtype's own. */
static double default_eps(ttc_dtype d) {
  switch (d) {
    case TTC_F16:
    case TTC_BF16:
    case TTC_F32:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

/* _fused_rms_norm(input, normalized_shape, weight, eps) -> y = x rsqrt(mean(x^2) + eps) w, rsqrt(..) */
static void lower_rms_norm(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 0)) {
    return;
  }
  grouped r = rows_of(c, 0, 1);
  ttc_dtype d = op_type(c, 0);
  ttc_val x = as4(b, op_in_as(c, 0, d), r.data);
  ttc_val eps = op_given(c, 3) ? op_num(c, 3, 0, d) : shlo_const_f(b, d, default_eps(op_in_dtype(c, 0)), 0, NULL);
  ttc_val rstd = inverse_std(b, ttc__mean_keep(b, shlo_mul(b, x, x), &r.within), eps);
  ttc__give(b, c, 0, times(b, shlo_mul(b, x, rstd), maybe_in(b, c, 2, d, r.weight)));
  ttc__give(b, c, 1, rstd);
}

/* _fused_rms_norm_backward(g, input, normalized_shape, rstd, weight, output_mask) */
static void lower_rms_norm_backward(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 1)) {
    return;
  }
  grouped r = rows_of(c, 1, 2);
  ttc_dtype d = op_type(c, 1);
  ttc_val g = as4(b, op_in_as(c, 0, d), r.data), x = as4(b, op_in_as(c, 1, d), r.data);
  ttc_val rstd = as4(b, op_in_as(c, 3, d), r.stat);
  ttc_val xhat = shlo_mul(b, x, rstd);
  if (op_wanted(c, 0)) {
    ttc_val h = times(b, g, maybe_in(b, c, 4, d, r.weight));
    ttc__give(b, c, 0, input_gradient(b, h, xhat, rstd, &r.within, false));
  }
  parameter_gradients(b, c, g, xhat, &r.across, false);
}

/* ---- group norm: [N, groups, channels a group, HxW], statistics over the last two */

/* n_arg: where N, C, HxW, group begin. */
static grouped groups_of(const ttc_lower *c, int n_arg) {
  int64_t n = op_int(c, n_arg, 1), ch = op_int(c, n_arg + 1, 1), hw = op_int(c, n_arg + 2, 1), g = op_int(c, n_arg + 3, 1);
  int64_t each = g > 0 ? ch / g : 0;
  return (grouped){.data = {{n, g, each, hw}},
                   .stat = {{n, g, 1, 1}},
                   .weight = {{1, g, each, 1}},
                   .within = {.n = 2, .at = {2, 3}},
                   .across = {.n = 2, .at = {0, 3}}};
}

/* native_group_norm(input, weight, bias, N, C, HxW, group, eps) -> y, mean, rstd */
static void lower_group_norm(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 0)) {
    return;
  }
  grouped r = groups_of(c, 3);
  centred_norm(b, c, &r, 1, 7);
}

/* native_group_norm_backward(g, input, mean, rstd, weight, N, C, HxW, group, output_mask) */
static void lower_group_norm_backward(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 1)) {
    return;
  }
  grouped r = groups_of(c, 5);
  centred_norm_backward(b, c, &r, 2);
}

/* ---- batch norm: [N, C, 1, rest], statistics over all but C */

typedef struct batch {
  view4 data, stat;
  ttc__axes rest;
  int64_t n; /* elements a channel */
} batch;

static batch batch_of(const ttc_lower *c, int input) {
  int ndim = op_in_ndim(c, input);
  int64_t n = op_in_dim(c, input, 0), ch = ndim > 1 ? op_in_dim(c, input, 1) : 1, rest = 1;
  for (int i = 2; i < ndim; i++) {
    rest *= op_in_dim(c, input, i);
  }
  return (batch){.data = {{n, ch, 1, rest}}, .stat = {{1, ch, 1, 1}}, .rest = {.n = 2, .at = {0, 3}}, .n = n * rest};
}

/* Where an overload has its arguments; -1: it has none. `first_new` is the result that receives the new running mean. */
typedef struct batch_form {
  int mean, training, momentum, eps, first_new;
} batch_form;
typedef enum batch_kind { BATCH_LEGIT, BATCH_NO_STATS, BATCH_NO_TRAINING, BATCH_UPDATE } batch_kind;
static const batch_form batch_forms[] = {
    [BATCH_LEGIT] = {3, 5, 6, 7, 3},
    [BATCH_NO_STATS] = {-1, 3, 4, 5, -1},
    [BATCH_NO_TRAINING] = {3, -1, 5, 6, -1},
    [BATCH_UPDATE] = {3, -1, 5, 6, 4},
};

/* Saved statistics: in evaluation PyTorch's CPU kernel returns empty ones. */
static void give_saved(shlo *b, ttc_lower *c, int k, ttc_val v) {
  const int64_t *sizes = op_out_sizes(c, k);
  if (op_out_ndim(c, k) == 1 && sizes[0] == 0) {
    op_ret(c, k, shlo_const_f(b, shlo_dtype(b, v), 0, 1, sizes));
  } else {
    ttc__give(b, c, k, v);
  }
}

/* (1 - momentum) old + momentum new */
static ttc_val blend(shlo *b, ttc_val old, ttc_val new, ttc_val momentum) {
  ttc_val keep = shlo_sub(b, shlo_const_like(b, momentum, 1), momentum);
  return shlo_add(b, shlo_mul(b, keep, old), shlo_mul(b, momentum, new));
}

static void give_running(shlo *b, ttc_lower *c, const batch_form *f, const batch *r, ttc_val mean, ttc_val var, bool training) {
  ttc_dtype d = shlo_dtype(b, mean);
  if (f->first_new < 0 || op_nout(c) <= f->first_new || !op_given(c, f->mean)) {
    return;
  }
  ttc_val old_mean = as4(b, op_in_as(c, f->mean, d), r->stat), old_var = as4(b, op_in_as(c, f->mean + 1, d), r->stat);
  if (training) {
    ttc_val momentum = op_num(c, f->momentum, 0, d);
    old_mean = blend(b, old_mean, mean, momentum);
    double unbias = (double)r->n / (double)(r->n - 1); /* the running variance is the unbiased one */
    old_var = blend(b, old_var, ttc__const2(b, SHLO_MUL, var, unbias), momentum);
  }
  ttc__give(b, c, f->first_new, old_mean);
  ttc__give(b, c, f->first_new + 1, old_var);
}

/* native_batch_norm and kin -> y, save_mean, save_invstd[, reserve], then the running statistics that are written in place. */
static void lower_batch_norm(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 0)) {
    return;
  }
  batch_kind kind = (batch_kind)op_param(c);
  const batch_form *f = &batch_forms[kind];
  bool training = kind == BATCH_UPDATE || (f->training >= 0 && op_bool(c, f->training)) || kind == BATCH_NO_STATS;
  batch r = batch_of(c, 0);
  ttc_dtype d = op_type(c, 0);
  ttc_val x = as4(b, op_in_as(c, 0, d), r.data), mean, var;
  if (training) {
    moments(b, x, &r.rest, &mean, &var);
  } else {
    mean = as4(b, op_in_as(c, f->mean, d), r.stat);
    var = as4(b, op_in_as(c, f->mean + 1, d), r.stat);
  }
  ttc_val rstd = inverse_std(b, var, op_num(c, f->eps, 0, d));
  ttc_val scale = ttc__once(b, times(b, rstd, maybe_in(b, c, 1, d, r.stat)));
  ttc__give(b, c, 0, plus(b, normalise(b, x, mean, scale), maybe_in(b, c, 2, d, r.stat)));
  give_saved(b, c, 1, mean);
  give_saved(b, c, 2, rstd);
  if (kind == BATCH_UPDATE) {
    op_ret(c, 3, shlo_const_i(b, op_out_dtype(c, 3), 0, op_out_ndim(c, 3), op_out_sizes(c, 3)));
  }
  give_running(b, c, f, &r, mean, var, training);
}

/* What native_batch_norm and kin (8 arguments; 7 without `training`) give on CPU, where PyTorch's Meta kernels say otherwise: no
 * saved statistics in evaluation, and else of the parameters' dtype. */
static ttc_status infer_batch_norm(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  uint32_t n = call->ninto > 3 ? call->ninto : 3;
  if (max < n || call->narg < 7 || call->args[0].kind != TTC_ARG_TENSOR || call->args[0].tensor->ndim < 2) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "batch norm expects an input of two dimensions or more");
  }
  const ttc_tensor *x = call->args[0].tensor;
  specs[0] = (ttc_spec){.dtype = (ttc_dtype)x->dtype, .ndim = x->ndim};
  memcpy(specs[0].sizes, x->sizes, x->ndim * sizeof *x->sizes);
  int order[TTC_MAX_NDIM];
  if (ttc__dense_order(x->ndim, x->sizes, x->strides, order)) {
    memcpy(specs[0].strides, x->strides, x->ndim * sizeof *x->strides);
  } else {
    ttc__dense_strides(x->ndim, x->sizes, specs[0].strides);
  }
  static const int owners[] = {3, 1, 0}; /* running_mean, weight, input */
  ttc_dtype d = TTC_DTYPE_INVALID;
  for (int k = 0; k < 3 && d == TTC_DTYPE_INVALID; k++) {
    const ttc_arg *a = &call->args[owners[k]];
    d = a->kind == TTC_ARG_TENSOR ? (ttc_dtype)a->tensor->dtype : TTC_DTYPE_INVALID;
  }
  bool training = call->narg == 8 && call->args[5].i != 0;
  specs[1] = specs[2] = (ttc_spec){.dtype = d, .ndim = 1, .sizes = {training ? x->sizes[1] : 0}, .strides = {1}};
  for (uint32_t k = 3; k < n; k++) {
    const ttc_tensor *t = call->into[k];
    specs[k] = (ttc_spec){.dtype = (ttc_dtype)t->dtype, .ndim = t->ndim, .sizes = {t->sizes[0]}, .strides = {1}};
  }
  *nout = n;
  return TTC_OK;
}

/* native_batch_norm_backward, batch_norm_backward(g, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
 * output_mask, ..). In evaluation the statistics are constants: dx = g w rstd. */
static void lower_batch_norm_backward(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 1)) {
    return;
  }
  bool train = op_bool(c, 7);
  batch r = batch_of(c, 1);
  ttc_dtype d = op_type(c, 1);
  ttc_val g = as4(b, op_in_as(c, 0, d), r.data), x = as4(b, op_in_as(c, 1, d), r.data);
  ttc_val mean = as4(b, op_in_as(c, train ? 5 : 3, d), r.stat), rstd;
  if (train) {
    rstd = as4(b, op_in_as(c, 6, d), r.stat);
  } else {
    rstd = inverse_std(b, as4(b, op_in_as(c, 4, d), r.stat), op_num(c, 8, 0, d));
  }
  ttc_val xhat = normalise(b, x, mean, rstd);
  if (op_wanted(c, 0)) {
    ttc_val scale = ttc__once(b, times(b, rstd, maybe_in(b, c, 2, d, r.stat)));
    ttc__give(b, c, 0, train ? input_gradient(b, g, xhat, scale, &r.rest, true) : shlo_mul(b, g, scale));
  }
  parameter_gradients(b, c, g, xhat, &r.rest, true);
}

/* ---- renorm, weight norm */

static ttc__axes all_but(int ndim, int axis) {
  ttc__axes ax = {0};
  for (int i = 0; i < ndim; i++) {
    if (i != axis) {
      ax.at[ax.n++] = i;
    }
  }
  return ax;
}

/* renorm(self, p, dim, maxnorm): slices along dim whose p-norm is larger than maxnorm are scaled down to it. */
static void lower_renorm(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__up(b, op_in(c, 0));
  int ndim = shlo_ndim(b, x);
  ttc__axes ax = all_but(ndim, op_axis(c, 2, ndim));
  ttc_val norm = ttc__norm_keep(b, x, op_static_f(c, 1), &ax);
  ttc_val most = op_num(c, 3, 0, shlo_dtype(b, norm));
  ttc_val scale = shlo_div(b, most, ttc__const2(b, SHLO_ADD, norm, 1e-7));
  scale = shlo_select(b, shlo_compare(b, SHLO_GT, norm, most), scale, shlo_const_like(b, norm, 1));
  ttc__give(b, c, 0, shlo_mul(b, x, ttc__once(b, shlo_convert(b, scale, shlo_dtype(b, x)))));
}

/* _weight_norm_interface(v, g, dim) -> w = v g / |v|, |v| over all axes but dim */
static void lower_weight_norm(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 0)) {
    return;
  }
  ttc_dtype d = op_type(c, 0);
  ttc_val v = op_in_as(c, 0, d), g = op_in_as(c, 1, d);
  int ndim = shlo_ndim(b, v);
  ttc__axes ax = all_but(ndim, op_axis(c, 2, ndim));
  ttc_val norm = ttc__once(b, ttc__norm_keep(b, v, 2.0, &ax));
  shlo_type t = *shlo_typeof(b, norm);
  ttc_val scale = ttc__once(b, shlo_div(b, shlo_reshape(b, g, t.ndim, t.dims), norm));
  ttc__give(b, c, 0, shlo_mul(b, v, scale));
  ttc__give(b, c, 1, norm);
}

/* _weight_norm_interface_backward(dw, v, g, norms, dim): with s = sum(dw v) over all axes but dim,
 *     dg = s / |v|      dv = (g / |v|) (dw - v s / |v|^2) */
static void lower_weight_norm_backward(shlo *b, ttc_lower *c) {
  if (refuse_complex(c, 1)) {
    return;
  }
  ttc_dtype d = op_type(c, 1);
  ttc_val dw = op_in_as(c, 0, d), v = op_in_as(c, 1, d), g = op_in_as(c, 2, d), norm = op_in_as(c, 3, d);
  int ndim = shlo_ndim(b, v);
  ttc__axes ax = all_but(ndim, op_axis(c, 4, ndim));
  ttc_val s = ttc__once(b, ttc__reduce_keep(b, SHLO_SUM, shlo_mul(b, dw, v), &ax));
  shlo_type t = *shlo_typeof(b, s);
  norm = shlo_reshape(b, norm, t.ndim, t.dims);
  g = shlo_reshape(b, g, t.ndim, t.dims);
  ttc_val ratio = shlo_div(b, s, norm);
  ttc_val along = ttc__once(b, shlo_div(b, ratio, norm)), scale = ttc__once(b, shlo_div(b, g, norm));
  ttc__give(b, c, 0, shlo_mul(b, scale, shlo_sub(b, dw, shlo_mul(b, v, along))));
  ttc__give(b, c, 1, ratio);
}

#define BATCH_ROW(name, kind, pad) {name, lower_batch_norm, kind, TOL_SUM, TTC_OP_NO_META, 0, infer_batch_norm, NULL, 0, pad}

const ttc_op_row ttc__norm_rows[] = {
    TTC_ROW_PAD("native_layer_norm", lower_layer_norm, 0, TOL_SUM, NORM),
    TTC_ROW_PAD("native_layer_norm_backward", lower_layer_norm_backward, 0, TOL_LOOSE, NORM_BACK),
    TTC_ROW_PAD("_fused_rms_norm", lower_rms_norm, 0, TOL_SUM, NORM),
    TTC_ROW_PAD("_fused_rms_norm_backward", lower_rms_norm_backward, 0, TOL_LOOSE, NORM_BACK),
    TTC_ROW_PAD("native_group_norm", lower_group_norm, 0, TOL_SUM, BATCH),
    TTC_ROW_PAD("native_group_norm_backward", lower_group_norm_backward, 0, TOL_LOOSE, BATCH_BACK),
    BATCH_ROW("native_batch_norm", BATCH_LEGIT, PAD_CANNOT),
    BATCH_ROW("_native_batch_norm_legit", BATCH_LEGIT, PAD_CANNOT),
    TTC_ROW("_native_batch_norm_legit_functional", lower_batch_norm, BATCH_LEGIT, TOL_SUM),
    TTC_ROW("_native_batch_norm_legit.no_stats", lower_batch_norm, BATCH_NO_STATS, TOL_SUM),
    BATCH_ROW("_native_batch_norm_legit_no_training", BATCH_NO_TRAINING, PAD_BATCH),
    TTC_ROW("_batch_norm_with_update", lower_batch_norm, BATCH_UPDATE, TOL_SUM),
    TTC_ROW("_batch_norm_with_update_functional", lower_batch_norm, BATCH_UPDATE, TOL_SUM),
    TTC_ROW("native_batch_norm_backward", lower_batch_norm_backward, 0, TOL_LOOSE),
    TTC_ROW("batch_norm_backward", lower_batch_norm_backward, 0, TOL_LOOSE),
    TTC_ROW_STATIC("renorm", lower_renorm, 0, TOL_SUM, 1u << 1),
    TTC_ROW("_weight_norm_interface", lower_weight_norm, 0, TOL_SUM),
    TTC_ROW("_weight_norm_interface_backward", lower_weight_norm_backward, 0, TOL_SUM),
};
TTC_FAMILY(norm)
