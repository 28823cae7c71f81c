/* embedding_bag: rows of an embedding gathered and reduced, bag by bag. The rows of the table are in index.c.
 *
 * Bag j holds the indices offsets[j] .. offsets[j + 1] - 1. N indices, J bags, V x D weights. */
#include "op/index.h"

enum { MODE_SUM, MODE_MEAN, MODE_MAX };

/* s64[N]: the bag of each index: how many offsets are not above its place, less one. */
static ttc_val bag_of(shlo *b, ttc_val offsets, int64_t njoin, int64_t nindex) {
  ttc_dtype d = shlo_dtype(b, offsets);
  ttc_val place = shlo_iota(b, d, 0, 1, &nindex), zero = shlo_const_i(b, TTC_S64, 0, 0, NULL);
  ttc_val seq = shlo_slice_axis(b, offsets, 0, 0, njoin);
  ttc_val at = ttc__bound(b, seq, NULL, zero, place, njoin, true);
  return ttc__once(b, shlo_sub(b, at, elem_i(b, at, 1)));
}

/* d[N]: 1, or 0 for the padding index. */
static ttc_val counts(shlo *b, ttc_val idx, int64_t padding, ttc_dtype d) {
  if (padding < 0) {
    ttc__shape n = ttc__shape_of(b, idx);
    return shlo_const_i(b, d, 1, n.n, n.at);
  }
  return shlo_convert(b, elem_cmp(b, SHLO_NE, idx, (double)padding), d);
}

/* Result k from v, zeros after it where the result is longer; nothing of v where it is empty. */
static void give_padded(shlo *b, ttc_lower *c, int k, ttc_val v) {
  int64_t lo[2] = {0, 0}, hi[2] = {0, 0};
  for (int j = 0; j < op_out_ndim(c, k); j++) {
    if (op_out_sizes(c, k)[j] == 0) {
      op_ret(c, k, shlo_const_i(b, op_out_dtype(c, k), 0, op_out_ndim(c, k), op_out_sizes(c, k)));
      return;
    }
    hi[j] = op_out_sizes(c, k)[j] - shlo_dim(b, v, j);
  }
  op_ret(c, k, shlo_pad(b, v, elem_i(b, v, 0), lo, hi, NULL));
}

/* The largest of each bag's rows (0 for an empty bag), and which index it came from, [J, D]. */
static void reduce_max(shlo *b, ttc_val rows, ttc_val bag, ttc_val idx, ttc_val size, int64_t nbag, ttc_val *out, ttc_val *which) {
  int64_t n = shlo_dim(b, rows, 0), dims[2] = {nbag, shlo_dim(b, rows, 1)}, rdims[2] = {n, dims[1]};
  ttc_dtype d = shlo_dtype(b, rows);
  ttc_val start = shlo_broadcast_to(b, shlo_lowest(b, d), 2, dims);
  *out = ttc__scatter_rows(b, SHLO_SCATTER_MAX, start, bag, rows, 0);
  ttc_val hit = shlo_compare(b, SHLO_EQ, rows, shlo_take(b, *out, bag, 0));
  ttc_val place = shlo_iota(b, TTC_S64, 0, 2, rdims), none = shlo_const_i(b, TTC_S64, n, 0, NULL);
  place = shlo_select(b, hit, place, none);
  ttc_val first = ttc__scatter_rows(b, SHLO_SCATTER_MIN, shlo_broadcast_to(b, none, 2, dims), bag, place, 0);
  ttc_val empty = shlo_unsqueeze(b, elem_cmp(b, SHLO_EQ, size, 0), 1);
  *which = shlo_convert(b, shlo_take(b, idx, first, 0), TTC_S64);
  *which = shlo_select(b, empty, shlo_const_i(b, TTC_S64, 0, 0, NULL), *which);
  *out = shlo_select(b, empty, elem_i(b, *out, 0), *out);
}

/* _embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)
 * -> output [J, D], bag of each index [N], bags' sizes, index of each maximum [J, D] */
void ttc__lower_bag(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_in_dtype(c, 0));
  int64_t nbag = op_out_sizes(c, 0)[0], padding = op_int(c, 8, -1), mode = op_int(c, 4, 0);
  ttc_val w = op_in(c, 0), idx = op_in(c, 1);
  int64_t n = shlo_nelem(b, idx), dims[2] = {nbag, shlo_dim(b, w, 1)};
  ttc_val bag = bag_of(b, op_in(c, 2), nbag, n);
  ttc_val rows = shlo_convert(b, shlo_take(b, w, ttc__user_indices(b, c, TTC__FAULT_BAG, idx, 0, shlo_dim(b, w, 0), false), 0), d);
  ttc_val size =
      ttc__scatter_rows(b, SHLO_SCATTER_ADD, shlo_const_i(b, TTC_S64, 0, 1, &nbag), bag, counts(b, idx, padding, TTC_S64), 0);
  /* Padding goes to no bag. */
  ttc_val there = shlo_compare(b, SHLO_NE, counts(b, idx, padding, TTC_S32), shlo_const_i(b, TTC_S32, 0, 0, NULL));
  ttc_val target = shlo_select(b, there, bag, elem_i(b, bag, nbag)), out, which = shlo_const_i(b, TTC_S64, 0, 2, dims);
  if (op_given(c, 6)) {
    rows = shlo_mul(b, rows, shlo_unsqueeze(b, op_in_as(c, 6, d), 1));
  }
  if (mode == MODE_MAX) {
    reduce_max(b, rows, target, idx, size, nbag, &out, &which);
  } else {
    out = ttc__scatter_rows(b, SHLO_SCATTER_ADD, shlo_const_i(b, d, 0, 2, dims), target, rows, 0);
    if (mode == MODE_MEAN) {
      out = shlo_div(b, out, shlo_unsqueeze(b, shlo_convert(b, shlo_2(b, SHLO_MAX, size, elem_i(b, size, 1)), d), 1));
    }
  }
  op_ret(c, 0, out);
  give_padded(b, c, 1, bag);
  give_padded(b, c, 2, size);
  if (op_out_ndim(c, 3) == 2) {
    give_padded(b, c, 3, which);
  } else {
    op_ret(c, 3, shlo_const_i(b, op_out_dtype(c, 3), 0, op_out_ndim(c, 3), op_out_sizes(c, 3)));
  }
}

/* The arguments' places in _embedding_bag_backward and _embedding_bag_dense_backward. */
typedef struct places {
  int offsets, bag, size, which, freq, mode, weights, padding;
} places;
static const places arguments[] = {{2, 3, 4, 5, 7, 8, 10, 11}, {-1, 2, 3, 4, 6, 7, 8, 9}};

static ttc_val bag_argument(shlo *b, ttc_lower *c, const places *at, int64_t n) {
  if (at->offsets >= 0 && op_in_dim(c, at->bag, 0) != n) {
    return bag_of(b, op_in(c, at->offsets), op_in_dim(c, at->size, 0), n);
  }
  return op_in(c, at->bag);
}

/* grad of the weights [V, D] from grad [J, D], indices [N] */
void ttc__lower_bag_backward(shlo *b, ttc_lower *c) {
  const places *at = &arguments[op_param(c)];
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  int64_t nrow = op_out_sizes(c, 0)[0], mode = op_int(c, at->mode, 0), padding = op_int(c, at->padding, -1);
  if (op_param(c) == 0 && op_bool(c, 9)) {
    op_refuse(c, "sparse gradients of embedding_bag");
    return;
  }
  ttc_val g = op_in_as(c, 0, d), idx = ttc__indices(b, op_in(c, 1), nrow, false);
  ttc_val size = shlo_slice_axis(b, op_in(c, at->size), 0, 0, shlo_dim(b, g, 0));
  ttc_val zeros = shlo_const_i(b, d, 0, 2, op_out_sizes(c, 0));
  if (mode == MODE_MAX) {
    ttc_val which = op_in_as(c, at->which, TTC_S64), full = shlo_unsqueeze(b, elem_cmp(b, SHLO_GT, size, 0), 1);
    which = shlo_select(b, full, which, elem_i(b, which, nrow));
    op_ret(c, 0, ttc__scatter_along(b, SHLO_SCATTER_ADD, zeros, which, g, 0));
    return;
  }
  int64_t n = shlo_nelem(b, idx);
  ttc_val bag = bag_argument(b, c, at, n);
  if (mode == MODE_MEAN) {
    g = shlo_div(b, g, shlo_unsqueeze(b, shlo_convert(b, shlo_2(b, SHLO_MAX, size, elem_i(b, size, 1)), d), 1));
  }
  ttc_val rows = shlo_take(b, g, bag, 0);
  if (op_given(c, at->weights)) {
    rows = shlo_mul(b, rows, shlo_unsqueeze(b, op_in_as(c, at->weights, d), 1));
  }
  if (op_bool(c, at->freq)) {
    ttc_val often = ttc__scatter_rows(b, SHLO_SCATTER_ADD, shlo_const_i(b, d, 0, 1, &nrow), idx, shlo_const_i(b, d, 1, 1, &n), 0);
    rows = shlo_div(b, rows, shlo_unsqueeze(b, shlo_take(b, often, idx, 0), 1));
  }
  if (padding >= 0) {
    idx = shlo_select(b, elem_cmp(b, SHLO_EQ, idx, (double)padding), elem_i(b, idx, nrow), idx);
  }
  op_ret(c, 0, ttc__scatter_rows(b, SHLO_SCATTER_ADD, zeros, idx, rows, 0));
}

/* _embedding_bag_per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx) -> [N]: grad row ·
 * weight row of each index, 0 for padding */
void ttc__lower_bag_weights_backward(shlo *b, ttc_lower *c) {
  ttc_dtype d = ttc__dtype_op(op_out_dtype(c, 0));
  ttc_val g = op_in_as(c, 0, d), w = op_in(c, 1), idx = ttc__indices(b, op_in(c, 2), shlo_dim(b, w, 0), false);
  int64_t n = shlo_nelem(b, idx), nbag = shlo_dim(b, g, 0);
  int axes[1] = {1};
  ttc_val bag = op_in_dim(c, 4, 0) == n ? op_in(c, 4) : bag_of(b, op_in(c, 3), nbag, n);
  ttc_val rows = shlo_mul(b, shlo_take(b, g, bag, 0), shlo_convert(b, shlo_take(b, w, idx, 0), d));
  op_ret(c, 0, shlo_mul(b, shlo_reduce(b, SHLO_SUM, rows, 1, axes), counts(b, idx, op_int(c, 6, -1), d)));
}
