/* Family "fft": discrete Fourier transforms over any axes.
 *
 * StableHLO transforms the last axes, at most three, and divides inverse transforms by the length; PyTorch names axes and a
 * normalization (0: none, 1: by the root of the number of points, 2: by that number), whichever the direction. */
#include <math.h>

#include "op/window.h"

/* v · (factor for normalization `norm` of n points) · (undo, if the inverse transform has divided by n) */
static ttc_val normalize(shlo *b, ttc_val v, int64_t norm, double n, bool divided) {
  double f = norm == 1 ? 1 / sqrt(n) : norm == 2 ? 1 / n : 1;
  f = divided ? f * n : f;
  if (f == 1) {
    return v;
  }
  ttc_dtype d = shlo_dtype(b, v);
  return shlo_mul(b, v, shlo_const_f(b, d, f, 0, NULL));
}

/* One transform of `axis`, whose result has length `len` there for IRFFT. */
static ttc_val transform(shlo *b, ttc_val x, int axis, shlo_fft_kind kind, int64_t len) {
  int last = shlo_ndim(b, x) - 1;
  ttc_val v = shlo_fft(b, ttc__move_axis(b, x, axis, last), kind, 1, &len);
  return ttc__move_axis(b, v, last, axis);
}

static double points(const ttc_lower *c, int ints, int nd, const int64_t *sizes) {
  double n = 1;
  for (int k = 0; k < op_list_len(c, ints); k++) {
    int64_t axis = op_ints(c, ints, k);
    n *= (double)sizes[axis < 0 ? axis + nd : axis];
  }
  return n;
}

static int axis_at(const ttc_lower *c, int k, int nd) {
  int64_t axis = op_ints(c, 1, k);
  return (int)(axis < 0 ? axis + nd : axis);
}

/* Complex transforms of the first `count` axes of argument 1. */
static ttc_val transform_axes(shlo *b, ttc_lower *c, ttc_val x, int count, bool forward) {
  int nd = shlo_ndim(b, x);
  for (int k = 0; k < count; k++) {
    int axis = axis_at(c, k, nd);
    x = transform(b, x, axis, forward ? SHLO_FFT : SHLO_IFFT, shlo_dim(b, x, axis));
  }
  return x;
}

/* aten::_fft_c2c(self, dim, normalization, forward) */
static void lower_c2c(shlo *b, ttc_lower *c) {
  bool forward = op_bool(c, 3);
  int nd = op_in_ndim(c, 0);
  ttc_val v = transform_axes(b, c, op_in(c, 0), op_list_len(c, 1), forward);
  op_ret(c, 0, normalize(b, v, op_int(c, 2, 0), points(c, 1, nd, op_in_sizes(c, 0)), !forward));
}

/* aten::_fft_r2c(self, dim, normalization, onesided): the last axis of dim is the halved one. */
static void lower_r2c(shlo *b, ttc_lower *c) {
  int nd = op_in_ndim(c, 0), count = op_list_len(c, 1);
  ttc_val v;
  if (count == 0 || !op_bool(c, 3)) {
    v = transform_axes(b, c, op_in_as(c, 0, op_out_dtype(c, 0)), count, true);
  } else {
    int axis = axis_at(c, count - 1, nd);
    v = transform(b, op_in(c, 0), axis, SHLO_RFFT, op_in_dim(c, 0, axis));
    v = transform_axes(b, c, v, count - 1, true);
  }
  op_ret(c, 0, normalize(b, v, op_int(c, 2, 0), points(c, 1, nd, op_in_sizes(c, 0)), false));
}

/* aten::_fft_c2r(self, dim, normalization, last_dim_size): an inverse transform of a spectrum whose other half is the conjugate. */
static void lower_c2r(shlo *b, ttc_lower *c) {
  int nd = op_in_ndim(c, 0), count = op_list_len(c, 1);
  int64_t len = op_int(c, 3, 1);
  ttc_val v = op_in(c, 0);
  if (count == 0) {
    op_ret(c, 0, shlo_1(b, SHLO_REAL, v));
    return;
  }
  int axis = axis_at(c, count - 1, nd);
  v = transform_axes(b, c, v, count - 1, false);
  v = ttc__take_strided(b, v, axis, 0, len / 2 + 1, 1);
  v = transform(b, v, axis, SHLO_IRFFT, len);
  op_ret(c, 0, normalize(b, v, op_int(c, 2, 0), points(c, 1, nd, op_out_sizes(c, 0)), true));
}

const ttc_op_row ttc__fft_rows[] = {
    {"_fft_c2c", lower_c2c, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"_fft_r2c", lower_r2c, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
    {"_fft_c2r", lower_c2r, 0, TOL_LOOSE, 0, 0, NULL, NULL, 0, PAD_CANNOT},
};
TTC_FAMILY(fft)
