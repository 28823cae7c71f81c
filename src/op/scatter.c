/* Writing at indices: scatter, index_add, index_put and their kin. The rows are in index.c.
 *
 * 16-bit floats are summed in f32 and rounded once. Of several writes to one place the last stays, as in PyTorch's CPU kernels. */
#include "op/index.h"

/* ------------------------------------------------------------------------------------------------------- shared */

ttc_val ttc__scatter_along(shlo *b, shlo_scatter_kind kind, ttc_val x, ttc_val idx, ttc_val src, int axis) {
  if (shlo_nelem(b, idx) == 0) { /* may have any number of axes */
    return x;
  }
  ttc__shape d = ttc__shape_of(b, idx);
  int64_t corner[TTC_MAX_NDIM] = {0};
  ttc_val part = x;
  shlo_scatter_spec s = {.ninserted = 1, .inserted = {axis}, .nindex = 1, .index_map = {axis}, .index_vector_axis = d.n};
  for (int k = 0; k < d.n; k++) {
    src = shlo_slice_axis(b, src, k, 0, d.at[k]);
    if (k != axis) {
      part = shlo_slice_axis(b, part, k, 0, d.at[k]);
      s.operand_batch[s.nbatch] = k;
      s.index_batch[s.nbatch++] = k;
    }
  }
  part = shlo_scatter(b, kind, part, ttc__indices(b, idx, shlo_dim(b, x, axis), false), src, &s);
  return shlo_update_slice(b, x, part, corner);
}

ttc_val ttc__scatter_rows(shlo *b, shlo_scatter_kind kind, ttc_val x, ttc_val idx, ttc_val rows, int axis) {
  shlo_scatter_spec s = {.ninserted = 1, .inserted = {axis}, .nindex = 1, .index_map = {axis}, .index_vector_axis = 1};
  for (int k = 0; k < shlo_ndim(b, x); k++) {
    if (k != axis) {
      s.update_window[s.nwindow++] = k;
    }
  }
  return shlo_scatter(b, kind, x, idx, rows, &s);
}

ttc_val ttc__times(shlo *b, ttc_lower *c, ttc_val v, int i) {
  if (!op_given(c, i) || op_num_is_one(c, i)) {
    return v;
  }
  ttc_val k = op_num(c, i, 0, shlo_dtype(b, v));
  return shlo_dtype(b, v) == TTC_BOOL ? elem_and(b, v, k) : shlo_mul(b, v, k);
}

/* How elements that meet are combined. */
typedef enum how { HOW_SET, HOW_SUM, HOW_PROD, HOW_MEAN, HOW_AMAX, HOW_AMIN } how;
static const shlo_scatter_kind kinds[] = {[HOW_SET] = SHLO_SCATTER_SET,  [HOW_SUM] = SHLO_SCATTER_ADD,
                                          [HOW_PROD] = SHLO_SCATTER_MUL, [HOW_MEAN] = SHLO_SCATTER_ADD,
                                          [HOW_AMAX] = SHLO_SCATTER_MAX, [HOW_AMIN] = SHLO_SCATTER_MIN};

static how read_how(const ttc_lower *c, int i) {
  static const struct {
    const char *name;
    how is;
  } names[] = {{"sum", HOW_SUM},   {"add", HOW_SUM},   {"prod", HOW_PROD}, {"multiply", HOW_PROD},
               {"mean", HOW_MEAN}, {"amax", HOW_AMAX}, {"amin", HOW_AMIN}};
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
    if (op_str_is(c, i, names[k].name)) {
      return names[k].is;
    }
  }
  return HOW_SET;
}

/* ---------------------------------------------------------------------------------------------------- scatter */

/* scatter(x, dim, index, src or value[, reduce]), scatter_add        param: TTC__SCATTER_* */
void ttc__lower_scatter(shlo *b, ttc_lower *c) {
  static const how plain[] = {[TTC__SCATTER_SET] = HOW_SET, [TTC__SCATTER_ADD] = HOW_SUM};
  how h = op_param(c) == TTC__SCATTER_REDUCE ? read_how(c, 4) : plain[op_param(c)];
  ttc_dtype d = h == HOW_SET ? op_in_dtype(c, 0) : ttc__dtype_op(op_in_dtype(c, 0));
  ttc_val x = ttc__at_least_1d(b, op_in_as(c, 0, d)), idx = ttc__at_least_1d(b, op_in(c, 2));
  ttc__shape shape = ttc__shape_of(b, idx);
  ttc_val src = op_in_as(c, 3, d);
  src = op_is_number(c, 3) ? shlo_broadcast_to(b, src, shape.n, shape.at) : ttc__at_least_1d(b, src);
  int axis = op_axis(c, 1, shlo_ndim(b, x));
  op_check_indices(c, b, TTC__FAULT_POSITION, idx, axis, shlo_dim(b, x, axis), false);
  ttc_val length = op_length(c, 2, 0, axis);
  if (length.id >= 0) { /* what is past it goes nowhere */
    idx = shlo_select(b, op_inside(b, axis, shape.n, shape.at, length), idx, elem_i(b, idx, shlo_dim(b, x, axis)));
  }
  ttc__give(b, c, 0, ttc__scatter_along(b, kinds[h], x, idx, src, axis));
}

/* What a reduction starts from where self does not count. */
static ttc_val neutral(shlo *b, how h, ttc_dtype d) {
  switch (h) {
    case HOW_AMAX:
      return shlo_lowest(b, d);
    case HOW_AMIN:
      return shlo_highest(b, d);
    default:
      return shlo_const_i(b, d, h == HOW_PROD ? 1 : 0, 0, NULL);
  }
}

/* Floats divide, integers round down. */
static ttc_val divide_mean(shlo *b, ttc_val sum, ttc_val count) {
  ttc_val q = shlo_div(b, sum, count);
  if (ttc__is_inexact(shlo_dtype(b, sum)) || ttc__is_unsigned(shlo_dtype(b, sum))) {
    return q;
  }
  ttc_val below = elem_and(b, elem_cmp(b, SHLO_LT, sum, 0), shlo_compare(b, SHLO_NE, shlo_mul(b, q, count), sum));
  return shlo_sub(b, q, shlo_convert(b, below, shlo_dtype(b, sum)));
}

/* scatter_reduce(x, dim, index, src, reduce, include_self), index_reduce alike        param: 1 for index_reduce */
void ttc__lower_scatter_reduce(shlo *b, ttc_lower *c) {
  ttc_val (*scatter)(shlo *, shlo_scatter_kind, ttc_val, ttc_val, ttc_val, int) =
      op_param(c) == 1 ? ttc__scatter_rows : ttc__scatter_along;
  how h = read_how(c, 4);
  bool include_self = op_bool(c, 5);
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  ttc_val x = ttc__at_least_1d(b, op_in_as(c, 0, d)), idx = ttc__at_least_1d(b, op_in(c, 2));
  ttc_val src = ttc__at_least_1d(b, op_in_as(c, 3, d));
  int axis = op_axis(c, 1, shlo_ndim(b, x));
  ttc__shape sd = ttc__shape_of(b, src);
  op_check_indices(c, b, op_param(c) == 1 ? TTC__FAULT_ROW : TTC__FAULT_POSITION, idx, axis, shlo_dim(b, x, axis), false);
  if (op_param(c) == 0) {
    sd = ttc__shape_of(b, idx);
  }
  if (!include_self) {
    x = scatter(b, SHLO_SCATTER_SET, x, idx, shlo_broadcast_to(b, neutral(b, h, d), sd.n, sd.at), axis);
  }
  ttc_val r = scatter(b, kinds[h], x, idx, src, axis);
  if (h == HOW_MEAN) {
    ttc__shape xd = ttc__shape_of(b, x);
    ttc_val count = shlo_const_i(b, d, include_self ? 1 : 0, xd.n, xd.at);
    count = scatter(b, SHLO_SCATTER_ADD, count, idx, shlo_const_i(b, d, 1, sd.n, sd.at), axis);
    r = divide_mean(b, r, shlo_2(b, SHLO_MAX, count, shlo_const_i(b, d, 1, 0, NULL)));
  }
  ttc__give(b, c, 0, r);
}

/* ------------------------------------------------------------------------------------------------ along one axis */

/* Operands of index_add, index_copy: (x, dim, index, source) in the type d. A wrong index is this kind of fault. */
typedef struct operands {
  ttc_val x, idx, source;
  int axis;
} operands;
static operands load(shlo *b, ttc_lower *c, ttc_dtype d, ttc__fault kind) {
  operands o = {.x = ttc__at_least_1d(b, op_in_as(c, 0, d)), .idx = ttc__at_least_1d(b, op_in(c, 2))};
  o.axis = op_axis(c, 1, shlo_ndim(b, o.x));
  o.source = ttc__at_least_1d(b, op_in_as(c, 3, d));
  o.idx = ttc__user_indices(b, c, kind, o.idx, o.axis, shlo_dim(b, o.x, o.axis), false);
  return o;
}

/* index_add(x, dim, index, source, alpha): x[index[j]] += alpha · source[j] */
void ttc__lower_index_add(shlo *b, ttc_lower *c) {
  operands o = load(b, c, ttc__dtype_op(op_in_dtype(c, 0)), op_in_ndim(c, 0) > 1 ? TTC__FAULT_POSITION : TTC__FAULT_ROW);
  ttc__give(b, c, 0, ttc__scatter_rows(b, SHLO_SCATTER_ADD, o.x, o.idx, ttc__times(b, c, o.source, 4), o.axis));
}

void ttc__lower_index_copy(shlo *b, ttc_lower *c) {
  operands o = load(b, c, op_in_dtype(c, 0), TTC__FAULT_INDEX);
  ttc__give(b, c, 0, ttc__scatter_rows(b, SHLO_SCATTER_SET, o.x, o.idx, o.source, o.axis));
}

/* index_fill(x, dim, index, value): a mask along the axis is marked, then one select. */
void ttc__lower_index_fill(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__at_least_1d(b, op_in(c, 0));
  ttc__shape d = ttc__shape_of(b, x);
  int axis = op_axis(c, 1, d.n), axes[1] = {axis};
  ttc_val idx = ttc__user_indices(b, c, TTC__FAULT_INDEX, ttc__at_least_1d(b, op_in(c, 2)), axis, d.at[axis], true);
  ttc_val mark = shlo_const_i(b, TTC_BOOL, 1, 1, ttc__shape_of(b, idx).at);
  ttc_val hit = ttc__scatter_rows(b, SHLO_SCATTER_SET, shlo_const_i(b, TTC_BOOL, 0, 1, &d.at[axis]), idx, mark, 0);
  hit = shlo_broadcast_in_dim(b, hit, d.n, d.at, axes);
  ttc_val value = shlo_reshape(b, op_in_as(c, 3, op_in_dtype(c, 0)), 0, NULL);
  ttc__give(b, c, 0, shlo_select(b, hit, value, x));
}

/* put(x, index, source, accumulate): into x flattened */
void ttc__lower_put(shlo *b, ttc_lower *c) {
  bool add = op_bool(c, 3);
  ttc_dtype d = add ? ttc__dtype_op(op_in_dtype(c, 0)) : op_in_dtype(c, 0);
  ttc_val x = ttc__flatten(b, op_in_as(c, 0, d)), idx = ttc__flatten(b, op_in(c, 1));
  idx = ttc__user_indices(b, c, TTC__FAULT_FLAT, idx, 0, shlo_nelem(b, x), true);
  ttc_val source = ttc__flatten(b, op_in_as(c, 2, d));
  ttc__give(b, c, 0, ttc__scatter_rows(b, add ? SHLO_SCATTER_ADD : SHLO_SCATTER_SET, x, idx, source, 0));
}

/* ---------------------------------------------------------------------------------------------------- index_put */

/* The one given index, if there is one and it is a mask; else -1. */
static int only_mask(const ttc_lower *c) {
  int at = -1;
  for (int k = 0; k < op_list_len(c, 1); k++) {
    if (!op_list_given(c, 1, k)) {
      continue;
    }
    if (at >= 0) {
      return -1;
    }
    at = k;
  }
  return at >= 0 && (op_list_dtype(c, 1, at) == TTC_BOOL || op_list_dtype(c, 1, at) == TTC_U8) ? at : -1;
}

/* x[:, mask, ..] = values, or += : no index is needed. Element i of the mask takes the value at its rank among the true ones, which
 * a running count gives; values that are one for all are only broadcast. */
static ttc_val put_masked(shlo *b, ttc_lower *c, ttc_val x, ttc_val values, int at, bool add) {
  ttc_val mask = op_list_in_as(c, 1, at, TTC_BOOL);
  ttc__shape xd = ttc__shape_of(b, x), md = ttc__shape_of(b, mask);
  int after = xd.n - at - md.n, axes[TTC_MAX_NDIM], axis = shlo_ndim(b, values) - 1 - after;
  if (axis >= 0) {
    int64_t ones[TTC_MAX_NDIM];
    for (int k = 0; k < md.n; k++) {
      ones[k] = 1;
    }
    if (shlo_dim(b, values, axis) != 1) {
      ttc_val rank = ttc__once(b, ttc__running_count(b, ttc__flatten(b, mask))), ones_found = ttc__last(b, rank);
      int64_t given = shlo_dim(b, values, axis);
      op_fault_if(c, b, elem_cmp(b, SHLO_NE, ones_found, (double)given), TTC__FAULT_MASKED_VALUES, ones_found, 0, given);
      values = shlo_take(b, values, shlo_sub(b, rank, elem_i(b, rank, 1)), axis);
      values = ttc__unfold_axis(b, values, axis, md.n, md.at);
    } else {
      values = ttc__unfold_axis(b, values, axis, md.n, ones);
    }
  }
  for (int k = 0; k < md.n; k++) {
    axes[k] = at + k;
  }
  mask = shlo_broadcast_in_dim(b, mask, xd.n, xd.at, axes);
  if (add) {
    values = shlo_dtype(b, x) == TTC_BOOL ? elem_or(b, x, values) : shlo_add(b, x, values);
  }
  return shlo_select(b, mask, values, x);
}

/* index_put(x, indices, values, accumulate) */
void ttc__lower_index_put(shlo *b, ttc_lower *c) {
  bool add = op_bool(c, 3);
  ttc_dtype d = add ? ttc__dtype_op(op_in_dtype(c, 0)) : op_in_dtype(c, 0);
  ttc_val x = op_in_as(c, 0, d), values = op_in_as(c, 2, d);
  ttc__shape xd = ttc__shape_of(b, x), vd = {.n = 0};
  ttc__places p;
  int mask = only_mask(c);
  if (mask >= 0) {
    op_ret(c, 0, put_masked(b, c, x, values, mask, add));
    return;
  }
  if (!ttc__find_places(b, c, 1, &xd, op_param(c) != 0, &p)) {
    if (!shlo_failed(b)) {
      op_ret(c, 0, !add ? values : d == TTC_BOOL ? elem_or(b, x, values) : shlo_add(b, x, values));
    }
    return;
  }
  shlo_scatter_spec s = {.ninserted = p.n, .nindex = p.n, .index_vector_axis = p.shape.n};
  bool indexed[TTC_MAX_NDIM] = {false};
  for (int k = 0; k < p.n; k++) {
    s.inserted[k] = s.index_map[k] = p.axis[k];
    indexed[p.axis[k]] = true;
  }
  for (int k = 0, j = 0; k < xd.n; k++) {
    if (!indexed[k]) {
      s.update_window[s.nwindow++] = j < p.at ? j : j + p.shape.n;
      vd.at[s.update_window[s.nwindow - 1]] = xd.at[k];
      j++;
    }
  }
  for (int j = 0; j < p.shape.n; j++) {
    vd.at[p.at + j] = p.shape.at[j];
  }
  vd.n = xd.n - p.n + p.shape.n;
  values = shlo_broadcast_to(b, values, vd.n, vd.at);
  op_ret(c, 0, shlo_scatter(b, add ? SHLO_SCATTER_ADD : SHLO_SCATTER_SET, x, p.vector, values, &s));
}

/* ---------------------------------------------------------------------------------------------------- embedding */

/* embedding_dense_backward(grad[.., D], indices, num_weights, padding_idx, scale_grad_by_freq): rows of grad are added up where
 * their index says; those of padding_idx are sent out of range, where scatter drops them. */
void ttc__lower_embedding_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  int64_t padding = op_int(c, 3, -1), n = op_out_sizes(c, 0)[0], width = op_out_sizes(c, 0)[1];
  ttc_val idx = ttc__indices(b, ttc__flatten(b, op_in(c, 1)), n, false);
  int64_t dims[2] = {shlo_nelem(b, idx), width};
  ttc_val g = shlo_reshape(b, op_in_as(c, 0, d), 2, dims);
  if (op_bool(c, 4)) {
    ttc_val count = shlo_const_i(b, d, 0, 1, &n);
    count = ttc__scatter_rows(b, SHLO_SCATTER_ADD, count, idx, shlo_const_i(b, d, 1, 1, dims), 0);
    g = shlo_div(b, g, shlo_unsqueeze(b, shlo_take(b, count, idx, 0), 1));
  }
  if (padding >= 0) {
    idx = shlo_select(b, elem_cmp(b, SHLO_EQ, idx, (double)padding), elem_i(b, idx, n), idx);
  }
  op_ret(c, 0, ttc__scatter_rows(b, SHLO_SCATTER_ADD, shlo_const_i(b, d, 0, 2, op_out_sizes(c, 0)), idx, g, 0));
}

/* embedding_renorm(weight, indices, max_norm, norm_type): rows in use with a norm above max_norm are scaled down to it. */
void ttc__lower_embedding_renorm(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  ttc_val w = op_in(c, 0), idx = ttc__flatten(b, op_in(c, 1));
  idx = ttc__user_indices(b, c, TTC__FAULT_ROW, idx, 0, shlo_dim(b, w, 0), false);
  ttc_val rows = shlo_convert(b, shlo_take(b, w, idx, 0), d), most = op_num(c, 2, 0, d);
  ttc__axes ax = ttc__axes_one(1);
  ttc_val norm = ttc__norm_keep(b, rows, op_static_f(c, 3), &ax);
  ttc_val scale = shlo_div(b, most, shlo_add(b, norm, elem_f(b, norm, 1e-7)));
  scale = shlo_select(b, shlo_compare(b, SHLO_GT, norm, most), scale, elem_f(b, norm, 1));
  rows = shlo_convert(b, shlo_mul(b, rows, scale), op_in_dtype(c, 0));
  op_ret(c, 0, ttc__scatter_rows(b, SHLO_SCATTER_SET, w, idx, rows, 0));
}
