/* Family "index": joining tensors, reading them at indices, and the rows of the files that write at indices. */
#include "op/index.h"

#include <string.h>

/* ------------------------------------------------------------------------------------------------------- shared */

ttc__shape ttc__shape_of(shlo *b, ttc_val v) {
  const shlo_type *t = shlo_typeof(b, v);
  ttc__shape d = {.n = t->ndim};
  memcpy(d.at, t->dims, (size_t)t->ndim * sizeof *t->dims);
  return d;
}

ttc_val ttc__flatten(shlo *b, ttc_val v) {
  int64_t n[1] = {shlo_nelem(b, v)};
  return shlo_reshape(b, v, 1, n);
}

ttc_val ttc__unfold_axis(shlo *b, ttc_val v, int axis, int n, const int64_t *dims) {
  ttc__shape d = ttc__shape_of(b, v), out = {.n = 0};
  for (int k = 0; k < d.n; k++) {
    for (int j = 0; k == axis && j < n; j++) {
      out.at[out.n++] = dims[j];
    }
    if (k != axis) {
      out.at[out.n++] = d.at[k];
    }
  }
  return shlo_reshape(b, v, out.n, out.at);
}

/* A TPU has 32-bit registers: there s32 is used wherever it can hold every index. */
ttc_val ttc__indices(shlo *b, ttc_val i, int64_t n, bool wrap) {
  ttc_dtype d = shlo_dtype(b, i);
  bool narrow = shlo_for_tpu(b) && n < INT32_MAX;
  i = shlo_convert(b, i, narrow || d == TTC_S32 ? TTC_S32 : TTC_S64);
  if (!wrap) {
    return i;
  }
  return shlo_select(b, elem_cmp(b, SHLO_LT, i, 0), shlo_add(b, i, elem_i(b, i, n)), i);
}

ttc_val ttc__user_indices(shlo *b, ttc_lower *c, ttc__fault kind, ttc_val i, int axis, int64_t n, bool wrap) {
  op_check_indices(c, b, kind, i, axis, n, wrap);
  return ttc__indices(b, i, n, wrap);
}

/* --------------------------------------------------------------------------------------------------------- joining */

enum { PIECE = 128 }; /* long lists are joined in pieces */

/* Along the axis that is open in the result, and perhaps in the first part: the others are written where that ends. */
static void cat_open(shlo *b, ttc_lower *c, int axis) {
  ttc_dtype d = op_out_dtype(c, 0);
  ttc_val x = op_list_in_as(c, 0, 0, d), at = op_length(c, 0, 0, axis);
  int64_t size = shlo_dim(b, x, axis), lo[TTC_MAX_NDIM] = {0}, hi[TTC_MAX_NDIM] = {0}, inside[TTC_MAX_NDIM] = {0};
  at = at.id >= 0 ? at : shlo_const_i(b, TTC_S32, size, 0, NULL);
  hi[axis] = op_out_sizes(c, 0)[axis] - size;
  x = shlo_pad(b, x, shlo_convert(b, shlo_const_i(b, TTC_S32, 0, 0, NULL), d), lo, hi, inside);
  for (int k = 1; k < op_list_len(c, 0); k++) {
    ttc_val v = op_list_in_as(c, 0, k, d);
    x = shlo_dynamic_update_axis(b, x, v, axis, at);
    at = shlo_add(b, at, shlo_const_i(b, TTC_S32, shlo_dim(b, v, axis), 0, NULL));
  }
  op_ret(c, 0, x);
}

/* cat(tensors, dim): tensors of shape [0] are left out, whatever the others' number of axes. */
static void lower_cat(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_out_dtype(c, 0);
  int axis = op_axis(c, 1, op_out_ndim(c, 0)), n = 0, len = op_list_len(c, 0);
  if (op_out_open(c, axis) && len > 0) {
    cat_open(b, c, axis);
    return;
  }
  ttc_val part[PIECE];
  for (int k = 0; k < len; k++) {
    ttc_val v = op_list_in_as(c, 0, k, d);
    if (shlo_ndim(b, v) == 1 && shlo_dim(b, v, 0) == 0) {
      continue;
    }
    part[n++] = v;
    if (n == PIECE) {
      part[0] = shlo_concat(b, n, part, axis);
      n = 1;
    }
  }
  op_ret(c, 0, n == 0 ? shlo_const_i(b, d, 0, op_out_ndim(c, 0), op_out_sizes(c, 0)) : shlo_concat(b, n, part, axis));
}

/* stack(tensors, dim): cat of tensors with a new axis. */
static void lower_stack(shlo *b, ttc_lower *c) {
  ttc_dtype d = op_out_dtype(c, 0);
  int axis = op_axis(c, 1, op_out_ndim(c, 0)), n = 0, len = op_list_len(c, 0);
  ttc_val part[PIECE];
  for (int k = 0; k < len; k++) {
    part[n++] = shlo_unsqueeze(b, op_list_in_as(c, 0, k, d), axis);
    if (n == PIECE) {
      part[0] = shlo_concat(b, n, part, axis);
      n = 1;
    }
  }
  op_ret(c, 0, shlo_concat(b, n, part, axis));
}

/* ------------------------------------------------------------------------------------------- reading at indices */

/* gather(x, dim, index): y[i, j] = x[index[i, j], j] for dim 0. x is cut to index's sizes on the other axes, which are batch axes.
 */
static void lower_gather(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__at_least_1d(b, op_in(c, 0)), idx = ttc__at_least_1d(b, op_in(c, 2));
  int n = shlo_ndim(b, x), axis = op_axis(c, 1, n);
  if (shlo_nelem(b, idx) == 0) { /* may have any number of axes */
    op_ret(c, 0, shlo_const_i(b, op_out_dtype(c, 0), 0, op_out_ndim(c, 0), op_out_sizes(c, 0)));
    return;
  }
  shlo_gather_spec s = {.ncollapsed = 1, .collapsed = {axis}, .nindex = 1, .index_map = {axis}, .index_vector_axis = n};
  for (int k = 0; k < n; k++) {
    s.slice_sizes[k] = 1;
    if (k != axis) {
      s.operand_batch[s.nbatch] = k;
      s.index_batch[s.nbatch++] = k;
      x = shlo_slice_axis(b, x, k, 0, shlo_dim(b, idx, k));
    }
  }
  idx = ttc__user_indices(b, c, TTC__FAULT_POSITION, idx, axis, shlo_dim(b, x, axis), false);
  ttc__give(b, c, 0, shlo_gather(b, x, idx, &s));
}

/* index_select(x, dim, index)     PyTorch's CPU kernel for the second axis raises another error than the others. */
static void lower_index_select(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__at_least_1d(b, op_in(c, 0)), idx = ttc__at_least_1d(b, op_in(c, 2));
  if (shlo_ndim(b, idx) > 1) {
    shlo_error(b, TTC_INVALID_ARGUMENT, "index_select(): Index is supposed to be a vector");
    return;
  }
  int axis = op_axis(c, 1, shlo_ndim(b, x));
  ttc__fault kind = axis == 1 ? TTC__FAULT_POSITION : TTC__FAULT_ROW;
  ttc__give(b, c, 0, shlo_take(b, x, ttc__user_indices(b, c, kind, idx, axis, shlo_dim(b, x, axis), false), axis));
}

/* embedding(weight[V, ..], indices, ..) */
static void lower_embedding(shlo *b, ttc_lower *c) {
  ttc_val w = op_in(c, 0);
  op_ret(c, 0, shlo_take(b, w, ttc__user_indices(b, c, TTC__FAULT_ROW, op_in(c, 1), 0, shlo_dim(b, w, 0), false), 0));
}

/* take(x, index): of x flattened */
static void lower_take(shlo *b, ttc_lower *c) {
  ttc_val x = ttc__flatten(b, op_in(c, 0));
  op_ret(c, 0, shlo_take(b, x, ttc__user_indices(b, c, TTC__FAULT_FLAT, op_in(c, 1), 0, shlo_nelem(b, x), true), 0));
}

static bool is_mask(ttc_dtype d) {
  return d == TTC_BOOL || d == TTC_U8;
}

bool ttc__find_places(shlo *b, ttc_lower *c, int arg, const ttc__shape *x, bool vouched, ttc__places *p) {
  ttc_val idx[TTC_MAX_NDIM];
  bool adjacent = true;
  *p = (ttc__places){.n = 0};
  for (int k = 0; k < op_list_len(c, arg); k++) {
    if (!op_list_given(c, arg, k)) {
      continue;
    }
    if (is_mask(op_list_dtype(c, arg, k))) {
      op_refuse(c, "%s by a mask: the number of elements depends on data", op_name(c));
      return false;
    }
    adjacent = adjacent && (p->n == 0 || p->axis[p->n - 1] == k - 1);
    p->axis[p->n] = k;
    ttc_val v = op_list_in(c, arg, k), length = op_length(c, 0, 0, k);
    if (length.id >= 0) {
      op_check_open(c, b, TTC__FAULT_INDEX, v, k, length);
      v = shlo_convert(b, v, TTC_S64);
      v = shlo_select(b, elem_cmp(b, SHLO_LT, v, 0), shlo_add(b, v, shlo_convert(b, length, TTC_S64)), v);
    } else if (!vouched) {
      op_check_indices(c, b, TTC__FAULT_INDEX, v, k, x->at[k], true);
    }
    v = ttc__indices(b, v, x->at[k], length.id < 0);
    idx[p->n++] = v;
    ttc__shape s = ttc__shape_of(b, v), *all = &p->shape;
    for (; all->n < s.n; all->n++) {
      memmove(all->at + 1, all->at, (size_t)all->n * sizeof *all->at);
      all->at[0] = 1;
    }
    for (int j = 0; j < s.n; j++) {
      int64_t *d = &all->at[all->n - s.n + j];
      *d = *d == 1 ? s.at[j] : *d;
    }
  }
  p->at = adjacent && p->n > 0 ? p->axis[0] : 0;
  ttc_dtype d = TTC_S32;
  for (int k = 0; k < p->n; k++) {
    d = shlo_dtype(b, idx[k]) == TTC_S64 ? TTC_S64 : d;
  }
  for (int k = 0; k < p->n; k++) {
    idx[k] = shlo_broadcast_to(b, shlo_convert(b, idx[k], d), p->shape.n, p->shape.at);
    idx[k] = shlo_unsqueeze(b, idx[k], p->shape.n);
  }
  if (p->n > 0) {
    p->vector = shlo_concat(b, p->n, idx, p->shape.n);
  }
  return p->n > 0;
}

/* index.Tensor(x, indices), _unsafe_index.Tensor alike        param: 1 for the latter, whose caller vouches for the indices */
static void lower_index(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  ttc__shape d = ttc__shape_of(b, x);
  ttc__places p;
  if (!ttc__find_places(b, c, 1, &d, op_param(c) != 0, &p)) {
    if (!shlo_failed(b)) {
      op_ret(c, 0, x);
    }
    return;
  }
  shlo_gather_spec s = {.ncollapsed = p.n, .nindex = p.n, .index_vector_axis = p.shape.n};
  bool indexed[TTC_MAX_NDIM] = {false};
  for (int k = 0; k < p.n; k++) {
    s.collapsed[k] = s.index_map[k] = p.axis[k];
    indexed[p.axis[k]] = true;
  }
  for (int k = 0, j = 0; k < d.n; k++) {
    s.slice_sizes[k] = indexed[k] ? 1 : d.at[k];
    if (!indexed[k]) {
      s.offset_dims[s.noffset++] = j < p.at ? j : j + p.shape.n;
      j++;
    }
  }
  op_ret(c, 0, shlo_gather(b, x, p.vector, &s));
}

/* ------------------------------------------------------------------------------------------------------- moving */

/* flip(x, dims) */
static void lower_flip(shlo *b, ttc_lower *c) {
  int ndim = op_in_ndim(c, 0), n = 0, axes[TTC_MAX_NDIM];
  for (int k = 0; k < op_list_len(c, 1) && k < TTC_MAX_NDIM && ndim > 0; k++) {
    int64_t a = op_ints(c, 1, k);
    axes[n++] = (int)(a < 0 ? a + ndim : a);
  }
  op_ret(c, 0, n > 0 ? shlo_reverse(b, op_in(c, 0), n, axes) : op_in(c, 0));
}

/* y[i] = x[(i - shift) mod n] along an axis */
static ttc_val roll_axis(shlo *b, ttc_val x, int axis, int64_t shift) {
  int64_t n = shlo_dim(b, x, axis);
  int64_t cut = n > 0 ? (n - shift % n) % n : 0;
  if (cut == 0) {
    return x;
  }
  ttc_val parts[2] = {shlo_slice_axis(b, x, axis, cut, n), shlo_slice_axis(b, x, axis, 0, cut)};
  return shlo_concat(b, 2, parts, axis);
}

/* roll(x, shifts, dims): without dims, of x flattened. */
static void lower_roll(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  int ndim = op_in_ndim(c, 0), n = op_list_len(c, 2);
  if (n == 0) {
    ttc__give(b, c, 0, roll_axis(b, ttc__flatten(b, x), 0, op_ints(c, 1, 0)));
    return;
  }
  for (int k = 0; k < n && ndim > 0; k++) {
    int64_t a = op_ints(c, 2, k);
    x = roll_axis(b, x, (int)(a < 0 ? a + ndim : a), op_ints(c, 1, k));
  }
  op_ret(c, 0, x);
}

/* --------------------------------------------------------------------------------------------------------- rows */

#define EXACT(n, r, p) ELEM_ROW(n, r, p, TOL_EXACT)
#define SUM(n, r, p) ELEM_ROW(n, r, p, TOL_SUM)
const ttc_op_row ttc__index_rows[] = {
    {ELEM_HEAD("cat", lower_cat, 0, TOL_EXACT), .pad = PAD_JOIN},
    {ELEM_HEAD("stack", lower_stack, 0, TOL_EXACT), .pad = PAD_JOIN},
    {ELEM_HEAD("gather", lower_gather, 0, TOL_EXACT), .pad = PAD_TAKE},
    {ELEM_HEAD("index_select", lower_index_select, 0, TOL_EXACT), .pad = PAD_TAKE},
    {ELEM_HEAD("embedding", lower_embedding, 0, TOL_EXACT), .pad = PAD_TAKE},
    EXACT("take", lower_take, 0),
    {ELEM_HEAD("index.Tensor", lower_index, 0, TOL_EXACT),
     .note = "masks are turned into indices first, which waits for the device", .pad = PAD_TAKE},
    {ELEM_HEAD("_unsafe_index.Tensor", lower_index, 1, TOL_EXACT), .pad = PAD_TAKE},
    {ELEM_HEAD("flip", lower_flip, 0, TOL_EXACT), .pad = PAD_VIEW},
    {ELEM_HEAD("roll", lower_roll, 0, TOL_EXACT), .pad = PAD_VIEW},
    /* writing: scatter.c */
    {ELEM_HEAD("scatter.src", ttc__lower_scatter, TTC__SCATTER_SET, TOL_EXACT), .pad = PAD_PUT},
    {ELEM_HEAD("scatter.value", ttc__lower_scatter, TTC__SCATTER_SET, TOL_EXACT), .pad = PAD_PUT},
    SUM("scatter.reduce", ttc__lower_scatter, TTC__SCATTER_REDUCE),
    SUM("scatter.value_reduce", ttc__lower_scatter, TTC__SCATTER_REDUCE),
    {ELEM_HEAD("scatter_add", ttc__lower_scatter, TTC__SCATTER_ADD, TOL_SUM), .pad = PAD_PUT},
    SUM("scatter_reduce.two", ttc__lower_scatter_reduce, 0),
    SUM("index_reduce", ttc__lower_scatter_reduce, 1),
    {ELEM_HEAD("index_add", ttc__lower_index_add, 0, TOL_SUM), .unit_args = 1u << 4, .pad = PAD_PUT},
    {ELEM_HEAD("index_copy", ttc__lower_index_copy, 0, TOL_EXACT), .pad = PAD_PUT},
    {ELEM_HEAD("index_fill.int_Scalar", ttc__lower_index_fill, 0, TOL_EXACT), .pad = PAD_PUT},
    {ELEM_HEAD("index_fill.int_Tensor", ttc__lower_index_fill, 0, TOL_EXACT), .pad = PAD_PUT},
    {ELEM_HEAD("index_put", ttc__lower_index_put, 0, TOL_SUM), .pad = PAD_PUT},
    SUM("_index_put_impl", ttc__lower_index_put, 0),
    {ELEM_HEAD("_unsafe_index_put", ttc__lower_index_put, 1, TOL_SUM), .pad = PAD_PUT},
    SUM("put", ttc__lower_put, 0),
    {ELEM_HEAD("embedding_dense_backward", ttc__lower_embedding_backward, 0, TOL_SUM), .pad = PAD_PUT},
    {ELEM_HEAD("embedding_renorm", ttc__lower_embedding_renorm, 0, TOL_SUM), .static_args = 1u << 3},
    /* masks and counts: masked.c */
    {
        ELEM_HEAD("masked_scatter", ttc__lower_masked_scatter, 0, TOL_EXACT),
    },
    EXACT("masked_scatter_backward", ttc__lower_masked_scatter_backward, 0),
    {ELEM_HEAD("nonzero", ttc__lower_nonzero, 0, TOL_EXACT), .flags = TTC_OP_DATA_SIZE},
    {ELEM_HEAD("nonzero_static", ttc__lower_nonzero_static, 0, TOL_EXACT)},
    {ELEM_HEAD("_unique2", ttc__lower_unique, 1, TOL_EXACT), .flags = TTC_OP_DATA_SIZE},
    {ELEM_HEAD("unique_consecutive", ttc__lower_unique, 0, TOL_EXACT), .flags = TTC_OP_DATA_SIZE},
    {ELEM_HEAD("unique_dim", ttc__lower_unique_dim, 1, TOL_EXACT), .flags = TTC_OP_DATA_SIZE},
    {ELEM_HEAD("unique_dim_consecutive", ttc__lower_unique_dim, 0, TOL_EXACT), .flags = TTC_OP_DATA_SIZE},
    /* embedding_bag: bag.c */
    SUM("_embedding_bag", ttc__lower_bag, 0),
    SUM("_embedding_bag_forward_only", ttc__lower_bag, 0),
    /* eagerly a kernel in Python chooses between this and a sparse gradient */
    {ELEM_HEAD("_embedding_bag_backward", ttc__lower_bag_backward, 0, TOL_SUM), .flags = TTC_OP_GRAPH_ONLY},
    SUM("_embedding_bag_dense_backward", ttc__lower_bag_backward, 1),
    SUM("_embedding_bag_per_sample_weights_backward", ttc__lower_bag_weights_backward, 0),
};
TTC_FAMILY(index)
