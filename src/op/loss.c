/* Losses: elementwise ones with a reduction, nll_loss, margins. `reduction` is 0 none, 1 mean, 2 sum; mean divides by the number of
 * elements of the loss. Computed in the op type, rounded once. */
#include <math.h>

#include "op/ctc.h"
#include "op/elem.h"
#include "op/reduce.h"

enum { NONE = 0, MEAN = 1, SUM = 2 };

static void give_reduced(shlo *b, ttc_lower *c, ttc_val v, int64_t reduction) {
  if (reduction == NONE) {
    op_ret(c, 0, v);
    return;
  }
  ttc__axes ax = ttc__axes_all(shlo_ndim(b, v));
  ttc__give(b, c, 0, reduction == MEAN ? ttc__mean_keep(b, v, &ax) : ttc__reduce_keep(b, SHLO_SUM, v, &ax));
}

/* Gradient factor of an elementwise loss: g, or g / n for a mean. */
static ttc_val per_element(shlo *b, ttc_val g, ttc_val x, int64_t reduction) {
  return reduction == MEAN ? ttc__const2(b, SHLO_DIV, g, (double)shlo_nelem(b, x)) : g;
}

static ttc_val scalar_like(shlo *b, ttc_val x, double v) {
  return shlo_const_f(b, shlo_dtype(b, x), v, 0, NULL);
}
static ttc_val times_c(shlo *b, ttc_val x, double v) {
  return ttc__const2(b, SHLO_MUL, x, v);
}

/* ---- of two tensors: mse, smooth l1, huber, soft margin */

typedef enum pair_loss { MSE, SMOOTH_L1, HUBER, SOFT_MARGIN } pair_loss;

/* mse: (x-t)^2.  smooth_l1: z < beta ? z^2 / (2 beta) : z - beta/2.  huber: z <= delta ? z^2 / 2 : delta (z - delta/2); z = |x-t|.
 * soft margin: log(1 + e^(-t x)). */
static ttc_val pair_value(shlo *b, pair_loss kind, ttc_val x, ttc_val t, ttc_val bound) {
  ttc_val d = shlo_sub(b, x, t);
  if (kind == MSE) {
    return shlo_mul(b, d, d);
  }
  if (kind == SOFT_MARGIN) {
    return shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_EXP, shlo_1(b, SHLO_NEG, shlo_mul(b, x, t))));
  }
  ttc_val z = shlo_1(b, SHLO_ABS, d), half_square = times_c(b, shlo_mul(b, d, d), 0.5);
  ttc_val outside = shlo_sub(b, z, times_c(b, bound, 0.5));
  if (kind == SMOOTH_L1) {
    return shlo_select(b, shlo_compare(b, SHLO_LT, z, bound), shlo_div(b, half_square, bound), outside);
  }
  return shlo_select(b, shlo_compare(b, SHLO_LE, z, bound), half_square, shlo_mul(b, bound, outside));
}

/* Derivatives of the above by x. Beyond the bound: -1 or 1 (smooth l1), -delta or delta (huber). */
static ttc_val pair_slope(shlo *b, pair_loss kind, ttc_val x, ttc_val t, ttc_val bound) {
  ttc_val d = shlo_sub(b, x, t);
  if (kind == MSE) {
    return times_c(b, d, 2.0);
  }
  if (kind == SOFT_MARGIN) {
    ttc_val z = shlo_1(b, SHLO_EXP, shlo_1(b, SHLO_NEG, shlo_mul(b, x, t)));
    ttc_val s = shlo_div(b, shlo_mul(b, t, z), ttc__const2(b, SHLO_ADD, z, 1.0));
    return shlo_1(b, SHLO_NEG, s);
  }
  ttc_val high = kind == HUBER ? bound : scalar_like(b, d, 1.0), low = shlo_1(b, SHLO_NEG, high);
  ttc_val inside = kind == HUBER ? d : shlo_div(b, d, bound);
  ttc_val s = shlo_select(b, shlo_compare(b, SHLO_GE, d, bound), high, inside);
  return shlo_select(b, shlo_compare(b, SHLO_LE, d, shlo_1(b, SHLO_NEG, bound)), low, s);
}

/* (self, target, reduction[, bound]) */
static void lower_pair(shlo *b, ttc_lower *c) {
  pair_loss kind = (pair_loss)op_param(c);
  ttc_dtype d = ttc__dtype_op(op_promote(c, 0, 1));
  ttc_val bound = kind == SMOOTH_L1 || kind == HUBER ? op_num(c, 3, 0, d) : TTC_POISON;
  give_reduced(b, c, pair_value(b, kind, op_in_as(c, 0, d), op_in_as(c, 1, d), bound), op_int(c, 2, MEAN));
}

/* (g, self, target, reduction[, bound]) */
static void lower_pair_backward(shlo *b, ttc_lower *c) {
  pair_loss kind = (pair_loss)op_param(c);
  ttc_dtype d = ttc__dtype_op(op_promote(c, 0, 2));
  ttc_val bound = kind == SMOOTH_L1 || kind == HUBER ? op_num(c, 4, 0, d) : TTC_POISON;
  ttc_val x = op_in_as(c, 1, d), g = per_element(b, op_in_as(c, 0, d), x, op_int(c, 3, MEAN));
  op_ret(c, 0, shlo_mul(b, pair_slope(b, kind, x, op_in_as(c, 2, d), bound), g));
}

/* ---- binary cross entropy */

/* binary_cross_entropy(x, t, weight, reduction): -w (t max(log x, -100) + (1-t) max(log(1-x), -100)) */
static void lower_bce(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  ttc_val x = op_in_as(c, 0, d), t = op_in_as(c, 1, d);
  ttc_val log_x = ttc__const2(b, SHLO_MAX, shlo_1(b, SHLO_LOG, x), -100.0);
  ttc_val log_rest = ttc__const2(b, SHLO_MAX, shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_NEG, x)), -100.0);
  ttc_val loss = shlo_sub(b, shlo_mul(b, ttc__const2(b, SHLO_SUB, t, 1.0), log_rest), shlo_mul(b, t, log_x));
  if (op_given(c, 2)) {
    loss = shlo_mul(b, loss, op_in_as(c, 2, d));
  }
  ttc_val inside = elem_and(b, elem_cmp(b, SHLO_GE, x, 0), elem_cmp(b, SHLO_LE, x, 1));
  op_fault_if(c, b, elem_any(b, elem_not(b, inside)), TTC__FAULT_UNIT_INPUT, TTC_POISON, 0, 0);
  give_reduced(b, c, loss, op_int(c, 3, MEAN));
}

/* binary_cross_entropy_backward(g, x, t, weight, reduction): g w (x - t) / max((1-x) x, 1e-12) */
static void lower_bce_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  ttc_val x = op_in_as(c, 1, d), t = op_in_as(c, 2, d);
  ttc_val g = per_element(b, op_in_as(c, 0, d), x, op_int(c, 4, MEAN));
  ttc_val flat = ttc__const2(b, SHLO_MAX, shlo_mul(b, shlo_sub(b, scalar_like(b, x, 1), x), x), 1e-12);
  ttc_val r = shlo_div(b, shlo_mul(b, g, shlo_sub(b, x, t)), flat);
  if (op_given(c, 3)) {
    r = shlo_mul(b, r, op_in_as(c, 3, d));
  }
  op_ret(c, 0, r);
}

/* binary_cross_entropy_with_logits(x, t, weight, pos_weight, reduction):
 *     w ((1-t) x + (1 + (pos-1) t) softplus(-x)),  softplus(-x) = log1p(e^-|x|) + max(-x, 0) */
static void lower_bce_logits(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  ttc_val x = op_in_as(c, 0, d), t = op_in_as(c, 1, d);
  ttc_val minus = shlo_1(b, SHLO_NEG, x);
  ttc_val soft = shlo_1(b, SHLO_LOG1P, shlo_1(b, SHLO_EXP, shlo_1(b, SHLO_NEG, shlo_1(b, SHLO_ABS, x))));
  soft = shlo_add(b, soft, ttc__const2(b, SHLO_MAX, minus, 0.0));
  if (op_given(c, 3)) {
    ttc_val more = shlo_mul(b, ttc__const2(b, SHLO_SUB, op_in_as(c, 3, d), 1.0), t);
    soft = shlo_mul(b, soft, ttc__const2(b, SHLO_ADD, more, 1.0));
  }
  ttc_val loss = shlo_add(b, shlo_mul(b, shlo_sub(b, scalar_like(b, x, 1), t), x), soft);
  if (op_given(c, 2)) {
    loss = shlo_mul(b, loss, op_in_as(c, 2, d));
  }
  give_reduced(b, c, loss, op_int(c, 4, MEAN));
}

/* ---- nll_loss: x is looked at as [N, C, S] and the target as [N, 1, S], S the pixels of nll_loss2d, else 1 */

typedef struct nll {
  int64_t data[3], spot[3];
  ttc_dtype place;                 /* integers wide enough for a flat index */
  ttc_val safe, ignored, in_range; /* [N, 1, S]; safe: the target clamped into range */
  ttc_val weight;                  /* [N, 1, S] or scalar one; 0 where ignored */
} nll;

static nll nll_of(shlo *b, ttc_lower *c, int self, ttc_dtype d) {
  int ndim = op_in_ndim(c, self), class_axis = ndim > 1 ? 1 : 0;
  nll r = {.data = {class_axis ? op_in_dim(c, self, 0) : 1, op_in_dim(c, self, class_axis), 1}};
  for (int i = class_axis + 1; i < ndim; i++) {
    r.data[2] *= op_in_dim(c, self, i);
  }
  r.spot[0] = r.data[0];
  r.spot[1] = 1;
  r.spot[2] = r.data[2];
  r.place = r.data[0] * r.data[1] * r.data[2] < INT32_MAX ? TTC_S32 : TTC_S64;
  ttc_dtype kind = op_in_dtype(c, self + 1);
  if (kind != TTC_S64 && kind != TTC_U8) {
    shlo_error(b, TTC_INVALID_ARGUMENT, "expected target dtype to be Long or Byte, but got %s", ttc_dtype_name(kind));
  }
  ttc_val target = shlo_convert(b, shlo_reshape(b, op_in(c, self + 1), 3, r.spot), TTC_S64);
  ttc_val zero = shlo_const_i(b, TTC_S64, 0, 0, NULL), last = shlo_const_i(b, TTC_S64, r.data[1] - 1, 0, NULL);
  ttc_val safe = shlo_clamp(b, zero, target, last);
  r.ignored = shlo_compare(b, SHLO_EQ, target, shlo_const_i(b, TTC_S64, op_int(c, self + 4, -100), 0, NULL));
  r.in_range = shlo_compare(b, SHLO_EQ, safe, target);
  r.safe = shlo_convert(b, safe, r.place);
  ttc_val none = shlo_const_f(b, d, 0, 0, NULL);
  r.weight = shlo_const_f(b, d, 1, 0, NULL);
  if (op_given(c, self + 2)) {
    int64_t n = r.spot[0] * r.spot[2];
    r.weight = shlo_reshape(b, shlo_take(b, op_in_as(c, self + 2, d), shlo_reshape(b, r.safe, 1, &n), 0), 3, r.spot);
  }
  r.weight = shlo_select(b, r.ignored, none, r.weight);
  return r;
}

/* x[n, target[n, s], s] as [N, 1, S]: one gather on the flat array. */
static ttc_val nll_pick(shlo *b, const nll *r, ttc_val x) {
  int64_t flat = r->data[0] * r->data[1] * r->data[2], n = r->spot[0] * r->spot[2];
  ttc_val at = shlo_mul(b, shlo_iota(b, r->place, 0, 3, r->spot), shlo_const_i(b, r->place, r->data[1] * r->data[2], 0, NULL));
  at = shlo_add(b, at, shlo_mul(b, r->safe, shlo_const_i(b, r->place, r->data[2], 0, NULL)));
  at = shlo_add(b, at, shlo_iota(b, r->place, 2, 3, r->spot));
  ttc_val v = shlo_take(b, shlo_reshape(b, x, 1, &flat), shlo_reshape(b, at, 1, &n), 0);
  return shlo_reshape(b, v, 3, r->spot);
}

/* nll_loss(2d)_forward(self, target, weight, reduction, ignore_index) -> loss, total weight: -w[t] x[t], summed or divided by
 * sum(w[t]). A target out of range is a fault, and gives NaN. */
static void lower_nll(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  nll r = nll_of(b, c, 0, d);
  int64_t reduction = op_int(c, 3, MEAN);
  ttc_val target = shlo_convert(b, op_in(c, 1), TTC_S64), zero = shlo_const_f(b, d, 0, 0, NULL);
  ttc_val ignored = shlo_compare(b, SHLO_EQ, target, shlo_const_i(b, TTC_S64, op_int(c, 4, -100), 0, NULL));
  target = shlo_select(b, ignored, shlo_const_i(b, TTC_S64, 0, 0, NULL), target);
  op_check_indices(c, b, TTC__FAULT_TARGET, target, 0, r.data[1], false);
  ttc_val loss = shlo_mul(b, shlo_1(b, SHLO_NEG, nll_pick(b, &r, op_in_as(c, 0, d))), r.weight);
  loss = shlo_select(b, r.in_range, loss, shlo_const_f(b, d, NAN, 0, NULL));
  loss = shlo_select(b, r.ignored, zero, loss);
  if (reduction == NONE && op_in_ndim(c, 0) > 1) {
    ttc__give(b, c, 0, loss);
    ttc__give(b, c, 1, zero);
    return;
  }
  ttc__axes ax = ttc__axes_all(3);
  ttc_val sum = ttc__reduce_keep(b, SHLO_SUM, loss, &ax);
  ttc_val total = ttc__reduce_keep(b, SHLO_SUM, shlo_broadcast_to(b, r.weight, 3, r.spot), &ax);
  ttc__give(b, c, 0, reduction == MEAN ? shlo_div(b, sum, total) : sum);
  ttc__give(b, c, 1, total);
}

/* nll_loss(2d)_backward(g, self, target, weight, reduction, ignore_index, total_weight): -w[t] g (/ total) at the target, else 0;
 * written in one pass by comparing every place with the target. */
static void lower_nll_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 1));
  nll r = nll_of(b, c, 1, d);
  int64_t reduction = op_int(c, 4, MEAN);
  ttc_val g = op_in_as(c, 0, d);
  g = reduction == NONE ? shlo_reshape(b, g, 3, r.spot) : shlo_reshape(b, g, 0, NULL);
  ttc_val slope = shlo_mul(b, shlo_1(b, SHLO_NEG, g), r.weight);
  if (reduction == MEAN) {
    slope = shlo_div(b, slope, shlo_reshape(b, op_in_as(c, 6, d), 0, NULL));
  }
  ttc_val zero = shlo_const_f(b, d, 0, 0, NULL);
  slope = shlo_select(b, r.in_range, slope, shlo_const_f(b, d, NAN, 0, NULL));
  slope = shlo_select(b, r.ignored, zero, slope);
  ttc_val hit = shlo_compare(b, SHLO_EQ, shlo_iota(b, r.place, 1, 3, r.data), r.safe);
  ttc__give(b, c, 0, shlo_select(b, hit, slope, zero));
}

/* ---- margins over classes: rows [N, C], a vector is one row */

typedef struct classes {
  int64_t n, count;
} classes;

static classes classes_of(const ttc_lower *c, int self) {
  int ndim = op_in_ndim(c, self);
  return (classes){.n = ndim > 1 ? op_in_dim(c, self, 0) : 1, .count = ndim > 0 ? op_in_dim(c, self, ndim - 1) : 1};
}

static ttc_val as_rows(shlo *b, ttc_val x, int64_t n, int64_t m) {
  int64_t dims[2] = {n, m};
  return shlo_reshape(b, x, 2, dims);
}

static ttc_val sum_row(shlo *b, ttc_val x) {
  ttc__axes ax = ttc__axes_one(1);
  return ttc__reduce_keep(b, SHLO_SUM, x, &ax);
}

/* The pieces of multi_margin_loss: hit [N, C] marks the target, z = max(margin - x[t] + x, 0) off the target and 0 on it. */
typedef struct margin_parts {
  classes k;
  ttc_val hit, z, weight; /* weight [N, 1] */
  double p;
} margin_parts;

/* Arguments from `self` on: self, target, p, margin, weight. */
static margin_parts margin_of(shlo *b, ttc_lower *c, int self, ttc_dtype d) {
  margin_parts m = {.k = classes_of(c, self), .p = op_static_f(c, self + 2)};
  int64_t dims[2] = {m.k.n, m.k.count};
  ttc_val x = as_rows(b, op_in_as(c, self, d), m.k.n, m.k.count);
  ttc_val target = as_rows(b, op_in_as(c, self + 1, TTC_S64), m.k.n, 1);
  ttc_val zero = scalar_like(b, x, 0);
  m.hit = shlo_compare(b, SHLO_EQ, shlo_iota(b, TTC_S64, 1, 2, dims), target);
  ttc_val at = ttc__once(b, sum_row(b, shlo_select(b, m.hit, x, zero)));
  ttc_val z = shlo_add(b, shlo_sub(b, op_num(c, self + 3, 0, d), at), x);
  m.z = shlo_select(b, m.hit, zero, ttc__const2(b, SHLO_MAX, z, 0.0));
  m.weight = scalar_like(b, x, 1);
  if (op_given(c, self + 4)) {
    ttc_val w = as_rows(b, op_in_as(c, self + 4, d), 1, m.k.count);
    m.weight = ttc__once(b, sum_row(b, shlo_select(b, m.hit, w, zero)));
  }
  return m;
}

/* multi_margin_loss(self, target, p, margin, weight, reduction): w[t] / C sum over i != t of max(0, margin - x[t] + x[i])^p */
static void lower_multi_margin(shlo *b, ttc_lower *c) {
  margin_parts m = margin_of(b, c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  op_check_indices(c, b, TTC__FAULT_MARGIN_TARGET, op_in(c, 1), 0, m.k.count, false);
  ttc_val v = sum_row(b, m.p == 1.0 ? m.z : shlo_mul(b, m.z, m.z));
  v = times_c(b, shlo_mul(b, v, m.weight), 1.0 / (double)m.k.count);
  int64_t reduction = op_int(c, 5, MEAN);
  if (reduction == NONE) {
    ttc__give(b, c, 0, v);
  } else {
    give_reduced(b, c, v, reduction);
  }
}

/* multi_margin_loss_backward(g, self, target, p, margin, weight, reduction): h[i] = g w[t] / C (p = 1: 1, p = 2: 2 z) where z > 0,
 * and minus their sum at the target. */
static void lower_multi_margin_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 1));
  margin_parts m = margin_of(b, c, 1, d);
  int64_t reduction = op_int(c, 6, MEAN);
  ttc_val zero = scalar_like(b, m.z, 0), one = scalar_like(b, m.z, 1);
  ttc_val h = m.p == 1.0 ? shlo_select(b, shlo_compare(b, SHLO_GT, m.z, zero), one, zero) : times_c(b, m.z, 2.0);
  ttc_val g = op_in_as(c, 0, d);
  g = reduction == NONE ? as_rows(b, g, m.k.n, 1) : as_rows(b, g, 1, 1);
  double share = 1.0 / (double)(m.k.count * (reduction == MEAN ? m.k.n : 1));
  h = shlo_mul(b, h, ttc__once(b, times_c(b, shlo_mul(b, g, m.weight), share)));
  ttc_val back = ttc__once(b, shlo_1(b, SHLO_NEG, sum_row(b, h)));
  ttc__give(b, c, 0, shlo_select(b, m.hit, back, h));
}

/* multilabel margin: targets of a row are its entries before the first negative one. used [N, C, 1] of the target list, hit
 * [N, C list, C classes], is_target [N, 1, C] and z = max(0, 1 - x[t] + x[i]) for i no target, as [N, C list, C classes]. */
typedef struct label_parts {
  classes k;
  ttc_val hit, is_target, z;
} label_parts;

static label_parts labels_of(shlo *b, ttc_lower *c, int self, ttc_dtype d) {
  label_parts m = {.k = classes_of(c, self)};
  int64_t n = m.k.n, k = m.k.count, list[3] = {n, k, 1}, one_row[3] = {n, 1, k}, cube[3] = {n, k, k};
  ttc_val x = shlo_reshape(b, op_in_as(c, self, d), 3, one_row);
  ttc_val t = shlo_reshape(b, op_in_as(c, self + 1, TTC_S64), 3, list);
  ttc_val end = ttc__first_place(b, shlo_compare(b, SHLO_LT, t, shlo_const_i(b, TTC_S64, 0, 0, NULL)), 1);
  ttc_val used = shlo_compare(b, SHLO_LT, shlo_iota(b, shlo_dtype(b, end), 1, 3, list), end);
  m.hit = shlo_2(b, SHLO_AND, used, shlo_compare(b, SHLO_EQ, shlo_iota(b, TTC_S64, 2, 3, cube), t));
  ttc__axes over_list = ttc__axes_one(1), over_class = ttc__axes_one(2);
  m.is_target = ttc__once(b, ttc__reduce_keep(b, SHLO_ANY, m.hit, &over_list));
  ttc_val zero = shlo_const_f(b, d, 0, 0, NULL);
  ttc_val at = ttc__once(b, ttc__reduce_keep(b, SHLO_SUM, shlo_select(b, m.hit, x, zero), &over_class));
  ttc_val z = shlo_add(b, shlo_sub(b, shlo_const_f(b, d, 1, 0, NULL), at), x);
  ttc_val counts = shlo_2(b, SHLO_AND, used, shlo_1(b, SHLO_NOT, m.is_target));
  m.z = shlo_select(b, counts, ttc__const2(b, SHLO_MAX, z, 0.0), zero);
  return m;
}

/* multilabel_margin_loss_forward(self, target, reduction) -> sum(z) / C a row, is_target in self's dtype */
static void lower_multilabel(shlo *b, ttc_lower *c) {
  label_parts m = labels_of(b, c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  ttc__axes ax = {.n = 2, .at = {1, 2}};
  ttc_val v = times_c(b, ttc__reduce_keep(b, SHLO_SUM, m.z, &ax), 1.0 / (double)m.k.count);
  int64_t reduction = op_int(c, 2, MEAN);
  if (reduction == NONE) {
    ttc__give(b, c, 0, v);
  } else {
    give_reduced(b, c, v, reduction);
  }
  ttc__give(b, c, 1, m.is_target);
}

/* multilabel_margin_loss_backward(g, self, target, reduction, is_target): g / C for each z > 0, at i, and minus it at the target.
 */
static void lower_multilabel_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 1));
  label_parts m = labels_of(b, c, 1, d);
  int64_t reduction = op_int(c, 3, MEAN), n = m.k.n, k = m.k.count;
  ttc_val zero = shlo_const_f(b, d, 0, 0, NULL), one = shlo_const_f(b, d, 1, 0, NULL);
  ttc_val on = ttc__once(b, shlo_select(b, shlo_compare(b, SHLO_GT, m.z, zero), one, zero));
  ttc__axes over_list = ttc__axes_one(1), over_class = ttc__axes_one(2);
  ttc_val up = ttc__reduce_keep(b, SHLO_SUM, on, &over_list);
  ttc_val count = ttc__once(b, ttc__reduce_keep(b, SHLO_SUM, on, &over_class));
  ttc_val down = ttc__reduce_keep(b, SHLO_SUM, shlo_select(b, m.hit, count, zero), &over_list);
  int64_t each[3] = {n, 1, 1}, single[3] = {1, 1, 1};
  ttc_val g = shlo_reshape(b, op_in_as(c, 0, d), 3, reduction == NONE ? each : single);
  g = times_c(b, g, 1.0 / (double)(k * (reduction == MEAN ? n : 1)));
  ttc__give(b, c, 0, shlo_mul(b, shlo_sub(b, up, down), g));
}

/* The backwards without a Meta kernel: the result is as self, argument 1. */
static ttc_status infer_as_self(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  if (max < 1 || call->narg < 2 || call->args[1].kind != TTC_ARG_TENSOR) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected a tensor as the second argument");
  }
  const ttc_tensor *t = call->args[1].tensor;
  specs[0] = (ttc_spec){.dtype = (ttc_dtype)t->dtype, .ndim = t->ndim};
  for (int i = 0; i < t->ndim; i++) {
    specs[0].sizes[i] = t->sizes[i];
  }
  ttc__dense_strides(t->ndim, t->sizes, specs[0].strides);
  *nout = 1;
  return TTC_OK;
}

/* multilabel_margin_loss_forward(self, target, reduction): PyTorch's Meta kernel gives a lone sample's loss an axis. */
static ttc_status infer_multilabel(const ttc_call *call, uint32_t max, ttc_spec *specs, uint32_t *nout, ttc_error *err) {
  const ttc_arg *a = call->args;
  if (max < 2 || call->narg < 3 || a[0].kind != TTC_ARG_TENSOR || a[1].kind != TTC_ARG_TENSOR) {
    return TTC_FAIL(err, TTC_INVALID_ARGUMENT, "expected two tensors");
  }
  const ttc_tensor *x = a[0].tensor, *t = a[1].tensor;
  bool same = x->ndim == t->ndim && x->ndim <= 2 && (x->ndim == 0 || x->sizes[x->ndim - 1] > 0);
  for (int k = 0; same && k < x->ndim; k++) {
    same = x->sizes[k] == t->sizes[k];
  }
  if (!same) { /* the CPU's kernel says what is wrong */
    return TTC_FAIL(err, TTC_UNIMPLEMENTED, "these shapes");
  }
  specs[0] = (ttc_spec){.dtype = (ttc_dtype)x->dtype, .ndim = a[2].i == NONE && x->ndim == 2 ? 1 : 0, .sizes = {x->sizes[0]}};
  ttc__dense_strides(specs[0].ndim, specs[0].sizes, specs[0].strides);
  specs[1] = (ttc_spec){.dtype = (ttc_dtype)x->dtype, .ndim = t->ndim};
  for (int k = 0; k < t->ndim; k++) {
    specs[1].sizes[k] = t->sizes[k];
  }
  ttc__dense_strides(t->ndim, t->sizes, specs[1].strides);
  *nout = 2;
  return TTC_OK;
}

const ttc_op_row ttc__loss_rows[] = {
    TTC_ROW_PAD("mse_loss", lower_pair, MSE, TOL_SUM, LOSS),
    TTC_ROW_PAD("mse_loss_backward", lower_pair_backward, MSE, TOL_4ULP, LOSS),
    TTC_ROW_PAD("smooth_l1_loss", lower_pair, SMOOTH_L1, TOL_SUM, LOSS),
    TTC_ROW_PAD("smooth_l1_loss_backward", lower_pair_backward, SMOOTH_L1, TOL_4ULP, LOSS),
    TTC_ROW_PAD("huber_loss", lower_pair, HUBER, TOL_SUM, LOSS),
    TTC_ROW_PAD("huber_loss_backward", lower_pair_backward, HUBER, TOL_4ULP, LOSS),
    TTC_ROW_PAD("soft_margin_loss", lower_pair, SOFT_MARGIN, TOL_SUM, LOSS),
    TTC_ROW_PAD("soft_margin_loss_backward", lower_pair_backward, SOFT_MARGIN, TOL_4ULP, LOSS),
    TTC_ROW_PAD("binary_cross_entropy", lower_bce, 0, TOL_SUM, LOSS),
    TTC_ROW_PAD("binary_cross_entropy_backward", lower_bce_backward, 0, TOL_SUM, LOSS),
    TTC_ROW_PAD("binary_cross_entropy_with_logits", lower_bce_logits, 0, TOL_SUM, LOSS),
    TTC_ROW_PAD("nll_loss_forward", lower_nll, 0, TOL_SUM, NLL),
    TTC_ROW_PAD("nll_loss_backward", lower_nll_backward, 0, TOL_4ULP, NLL),
    TTC_ROW_PAD("nll_loss2d_forward", lower_nll, 0, TOL_SUM, NLL),
    TTC_ROW_PAD("nll_loss2d_backward", lower_nll_backward, 0, TOL_4ULP, NLL),
    TTC_ROW_STATIC("multi_margin_loss", lower_multi_margin, 0, TOL_SUM, 1u << 2),
    {"multi_margin_loss_backward", lower_multi_margin_backward, 0, TOL_SUM, TTC_OP_NO_META, 1u << 3, infer_as_self, NULL, 0,
     PAD_CANNOT},
    {"multilabel_margin_loss_forward", lower_multilabel, 0, TOL_SUM, TTC_OP_NO_META, 0, infer_multilabel, NULL, 0, PAD_CANNOT},
    {"multilabel_margin_loss_backward", lower_multilabel_backward, 0, TOL_SUM, TTC_OP_NO_META, 0, infer_as_self, NULL, 0,
     PAD_CANNOT},
    {"_ctc_loss.Tensor", ttc__lower_ctc, 0, TOL_LOOSE, TTC_OP_NO_META, 0, ttc__infer_ctc, "float32 and float64", 0, PAD_CANNOT},
    {"_ctc_loss_backward.Tensor", ttc__lower_ctc_backward, 0, TOL_LOOSE, TTC_OP_NO_META, 0, infer_as_self, NULL, 0, PAD_CANNOT},
};
TTC_FAMILY(loss)
