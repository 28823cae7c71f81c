/* Family "pad": constant, reflection and replication padding, and their gradients.
 *
 * `pad` lists (before, after) pairs from the last axis backwards; a negative amount crops. Reflection and replication work axis by
 * axis: a border is a reversed slice, or one slice broadcast, joined to the middle. */
#include "op/window.h"

/* aten::constant_pad_nd(self, pad, value); where self ends at a number, nothing goes before it, and the value goes behind that. */
static void lower_constant(shlo *b, ttc_lower *c) {
  int64_t lo[TTC_MAX_NDIM] = {0}, hi[TTC_MAX_NDIM] = {0};
  int nd = op_in_ndim(c, 0), npair = op_list_len(c, 1) / 2;
  for (int k = 0; k < npair && k < nd; k++) {
    lo[nd - 1 - k] = op_ints(c, 1, 2 * k);
    hi[nd - 1 - k] = op_ints(c, 1, 2 * k + 1);
  }
  ttc_val x = op_in(c, 0), value = op_num(c, 2, 0, op_in_dtype(c, 0));
  for (int k = 0; k < nd; k++) {
    ttc_val length = op_length(c, 0, 0, k);
    if (length.id >= 0) {
      x = shlo_select(b, op_inside(b, k, nd, op_in_sizes(c, 0), length), x, value);
      hi[k] = op_out_sizes(c, 0)[k] - op_in_dim(c, 0, k);
    }
  }
  op_ret(c, 0, shlo_pad(b, x, value, lo, hi, NULL));
}

/* The border of `n` elements before (after) the middle of axis: mirrored about the first (last) element, or that element repeated.
 */
static ttc_val border(shlo *b, ttc_val x, int axis, int64_t n, bool after, bool mirror) {
  int64_t len = shlo_dim(b, x, axis), dims[TTC_MAX_NDIM];
  if (mirror) {
    return shlo_reverse(b, ttc__take_strided(b, x, axis, after ? len - 1 - n : 1, n, 1), 1, &axis);
  }
  ttc_val edge = ttc__take_strided(b, x, axis, after ? len - 1 : 0, 1, 1);
  int nd = ttc__dims(b, edge, dims);
  dims[axis] = n;
  return shlo_broadcast_to(b, edge, nd, dims);
}

static ttc_val pad_axis(shlo *b, ttc_val x, int axis, int64_t lo, int64_t hi, bool mirror) {
  ttc_val parts[3];
  int n = 0;
  int64_t len = shlo_dim(b, x, axis), cut_lo = lo < 0 ? -lo : 0, cut_hi = hi < 0 ? -hi : 0;
  if (lo > 0) {
    parts[n++] = border(b, x, axis, lo, false, mirror);
  }
  parts[n++] = ttc__take_strided(b, x, axis, cut_lo, len - cut_lo - cut_hi, 1);
  if (hi > 0) {
    parts[n++] = border(b, x, axis, hi, true, mirror);
  }
  return n == 1 ? parts[0] : shlo_concat(b, n, parts, axis);
}

/* aten::{reflection,replication}_pad{1,2,3}d(self, padding); param: mirror. */
static void lower_pad(shlo *b, ttc_lower *c) {
  ttc_val x = op_in(c, 0);
  int nd = op_in_ndim(c, 0);
  for (int k = 0; k < op_list_len(c, 1) / 2; k++) {
    x = pad_axis(b, x, nd - 1 - k, op_ints(c, 1, 2 * k), op_ints(c, 1, 2 * k + 1), op_param(c) != 0);
  }
  op_ret(c, 0, x);
}

/* A border's gradient, put at its place in an axis of length len and added. */
static ttc_val add_border(shlo *b, ttc_val sum, ttc_val part, int axis, int64_t len, bool after, bool mirror) {
  ttc_val zero = shlo_const_i(b, shlo_dtype(b, part), 0, 0, NULL);
  int64_t n = shlo_dim(b, part, axis);
  if (mirror) {
    int64_t at = after ? len - 1 - n : 1;
    part = ttc__pad_axis(b, shlo_reverse(b, part, 1, &axis), axis, zero, at, len - n - at, 0);
  } else {
    int64_t at = after ? len - 1 : 0;
    part = shlo_unsqueeze(b, shlo_reduce(b, SHLO_SUM, part, 1, &axis), axis);
    part = ttc__pad_axis(b, part, axis, zero, at, len - 1 - at, 0);
  }
  return shlo_add(b, sum, part);
}

static ttc_val unpad_axis(shlo *b, ttc_val g, int axis, int64_t len, int64_t lo, int64_t hi, bool mirror) {
  int64_t cut_lo = lo < 0 ? -lo : 0, cut_hi = hi < 0 ? -hi : 0, whole = shlo_dim(b, g, axis);
  ttc_val zero = shlo_const_i(b, shlo_dtype(b, g), 0, 0, NULL);
  ttc_val sum = ttc__take_strided(b, g, axis, lo > 0 ? lo : 0, len - cut_lo - cut_hi, 1);
  sum = ttc__pad_axis(b, sum, axis, zero, cut_lo, cut_hi, 0);
  if (lo > 0) {
    sum = add_border(b, sum, ttc__take_strided(b, g, axis, 0, lo, 1), axis, len, false, mirror);
  }
  if (hi > 0) {
    sum = add_border(b, sum, ttc__take_strided(b, g, axis, whole - hi, hi, 1), axis, len, true, mirror);
  }
  return sum;
}

/* aten::{reflection,replication}_pad{1,2,3}d_backward(grad_output, self, padding) */
static void lower_pad_backward(shlo *b, ttc_lower *c) {
  ttc_val g = op_in_as(c, 0, ttc__dtype_op(op_in_dtype(c, 0)));
  int nd = op_in_ndim(c, 1);
  for (int k = 0; k < op_list_len(c, 2) / 2; k++) {
    int axis = nd - 1 - k;
    g = unpad_axis(b, g, axis, op_in_dim(c, 1, axis), op_ints(c, 2, 2 * k), op_ints(c, 2, 2 * k + 1), op_param(c) != 0);
  }
  op_ret(c, 0, g);
}

enum { REPLICATE, MIRROR };

const ttc_op_row ttc__pad_rows[] = {
    {"constant_pad_nd", lower_constant, 0, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_VIEW},
    {"reflection_pad1d", lower_pad, MIRROR, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"reflection_pad2d", lower_pad, MIRROR, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"reflection_pad3d", lower_pad, MIRROR, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"reflection_pad1d_backward", lower_pad_backward, MIRROR, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"reflection_pad2d_backward", lower_pad_backward, MIRROR, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"reflection_pad3d_backward", lower_pad_backward, MIRROR, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"replication_pad1d", lower_pad, REPLICATE, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"replication_pad2d", lower_pad, REPLICATE, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"replication_pad3d", lower_pad, REPLICATE, TOL_EXACT, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"replication_pad1d_backward", lower_pad_backward, REPLICATE, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"replication_pad2d_backward", lower_pad_backward, REPLICATE, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
    {"replication_pad3d_backward", lower_pad_backward, REPLICATE, TOL_SUM, 0, 0, NULL, NULL, 0, PAD_BATCH},
};
TTC_FAMILY(pad)
