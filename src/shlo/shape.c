#include "shlo/internal.h"

static bool rank_ok(shlo *b, const char *op, int ndim) {
  if (ndim >= 0 && ndim <= SHLO__MAX_NDIM) {
    return true;
  }
  SHLO_FAIL(b, op, "%d dims asked for, expected 0 to %d", ndim, SHLO__MAX_NDIM);
  return false;
}

ttc_val shlo_reshape(shlo *b, ttc_val x, int ndim, const int64_t *dims) {
  const char *op = "shlo_reshape";
  if (!shlo__ready(b, op, 1, &x) || !rank_ok(b, op, ndim)) {
    return TTC_POISON;
  }
  shlo_type t = shlo__type(shlo_dtype(b, x), ndim, dims);
  if (shlo__same_dims(&t, shlo_typeof(b, x))) {
    return x;
  }
  if (shlo__nelem(&t) != shlo_nelem(b, x)) {
    return SHLO_FAIL(b, op, "%s has not as many elements as %s", SHLO_NAME(b, x), shlo__describe(&t).text);
  }
  return shlo__op(b, "stablehlo.reshape", 1, &x, &t);
}

ttc_val shlo_transpose(shlo *b, ttc_val x, const int *perm) {
  bool seen[SHLO__MAX_NDIM];
  if (!shlo__ready(b, "shlo_transpose", 1, &x)) {
    return TTC_POISON;
  }
  shlo_type from = *shlo_typeof(b, x), t = from;
  if (!shlo__axes(b, "shlo_transpose", "axis", t.ndim, t.ndim, perm, seen)) {
    return TTC_POISON;
  }
  bool identity = true;
  for (int k = 0; k < t.ndim; k++) {
    t.dims[k] = from.dims[perm[k]];
    identity = identity && perm[k] == k;
  }
  if (identity) {
    return x;
  }
  bool swaps = t.ndim >= 2 && perm[t.ndim - 1] == t.ndim - 2 && perm[t.ndim - 2] == t.ndim - 1;
  for (int k = 0; k < t.ndim - 2; k++) {
    swaps = swaps && perm[k] == k;
  }
  if (swaps && b->values[x.id].swaps != 0) { /* back to what it was */
    return shlo_swapped(b, x);
  }
  shlo__attr_axes(b, "permutation", t.ndim, perm);
  ttc_val v = shlo__op(b, "stablehlo.transpose", 1, &x, &t);
  if (swaps && v.id >= 0) {
    b->values[v.id].swaps = x.id + 1;
  }
  return v;
}

ttc_val shlo_swapped(const shlo *b, ttc_val v) {
  return v.id >= 0 && v.id < b->nvalue ? (ttc_val){b->values[v.id].swaps - 1} : TTC_POISON;
}

ttc_val shlo_broadcast_in_dim(shlo *b, ttc_val x, int ndim, const int64_t *dims, const int *axes) {
  const char *op = "shlo_broadcast_in_dim";
  bool seen[SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 1, &x) || !rank_ok(b, op, ndim)) {
    return TTC_POISON;
  }
  shlo_type from = *shlo_typeof(b, x), t = shlo__type(from.dtype, ndim, dims);
  if (!shlo__axes(b, op, "result axis", ndim, from.ndim, axes, seen)) {
    return TTC_POISON;
  }
  for (int k = 0; k < from.ndim; k++) {
    if (from.dims[k] != 1 && from.dims[k] != t.dims[axes[k]]) {
      return SHLO_FAIL(b, op, "axis %d of %s does not broadcast to axis %d of %s", k, SHLO_NAME(b, x), axes[k],
                       shlo__describe(&t).text);
    }
  }
  shlo__attr_axes(b, "broadcast_dimensions", from.ndim, axes);
  return shlo__op(b, "stablehlo.broadcast_in_dim", 1, &x, &t);
}

ttc_val shlo_broadcast_to(shlo *b, ttc_val x, int ndim, const int64_t *dims) {
  const char *op = "shlo_broadcast_to";
  int axes[SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 1, &x) || !rank_ok(b, op, ndim)) {
    return TTC_POISON;
  }
  shlo_type from = *shlo_typeof(b, x), t = shlo__type(from.dtype, ndim, dims);
  if (shlo__same_dims(&from, &t)) {
    return x;
  }
  if (from.ndim > ndim) {
    return SHLO_FAIL(b, op, "%s has more dims than %s", shlo__describe(&from).text, shlo__describe(&t).text);
  }
  for (int k = 0; k < from.ndim; k++) {
    axes[k] = k + ndim - from.ndim;
    if (from.dims[k] != 1 && from.dims[k] != t.dims[axes[k]]) {
      return SHLO_FAIL(b, op, "%s does not broadcast to %s", shlo__describe(&from).text, shlo__describe(&t).text);
    }
  }
  return shlo_broadcast_in_dim(b, x, ndim, dims, axes);
}

ttc_val shlo_unsqueeze(shlo *b, ttc_val x, int axis) {
  const char *op = "shlo_unsqueeze";
  int64_t dims[SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 1, &x)) {
    return TTC_POISON;
  }
  const shlo_type *t = shlo_typeof(b, x);
  if (axis < 0 || axis > t->ndim || t->ndim == SHLO__MAX_NDIM) {
    return SHLO_FAIL(b, op, "axis %d is out of range for %s", axis, SHLO_NAME(b, x));
  }
  for (int k = 0; k <= t->ndim; k++) {
    dims[k] = k < axis ? t->dims[k] : k == axis ? 1 : t->dims[k - 1];
  }
  return shlo_reshape(b, x, t->ndim + 1, dims);
}

ttc_val shlo_squeeze(shlo *b, ttc_val x, int axis) {
  const char *op = "shlo_squeeze";
  int64_t dims[SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 1, &x)) {
    return TTC_POISON;
  }
  const shlo_type *t = shlo_typeof(b, x);
  if (axis < 0 || axis >= t->ndim || t->dims[axis] != 1) {
    return SHLO_FAIL(b, op, "axis %d of %s is not of size 1", axis, SHLO_NAME(b, x));
  }
  for (int k = 0; k + 1 < t->ndim; k++) {
    dims[k] = k < axis ? t->dims[k] : t->dims[k + 1];
  }
  return shlo_reshape(b, x, t->ndim - 1, dims);
}

ttc_val shlo_slice(shlo *b, ttc_val x, const int64_t *start, const int64_t *limit, const int64_t *stride) {
  const char *op = "shlo_slice";
  int64_t step[SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 1, &x)) {
    return TTC_POISON;
  }
  shlo_type from = *shlo_typeof(b, x), t = from;
  for (int k = 0; k < t.ndim; k++) {
    step[k] = stride != NULL ? stride[k] : 1;
    if (step[k] < 1 || start[k] < 0 || limit[k] < start[k] || limit[k] > from.dims[k]) {
      return SHLO_FAIL(b, op, "axis %d of %s has no [%lld:%lld:%lld]", k, SHLO_NAME(b, x), (long long)start[k], (long long)limit[k],
                       (long long)step[k]);
    }
    t.dims[k] = (limit[k] - start[k]) / step[k] + ((limit[k] - start[k]) % step[k] != 0);
  }
  if (shlo__same_dims(&from, &t)) {
    return x;
  }
  shlo__attr_i64s(b, "start_indices", t.ndim, start);
  shlo__attr_i64s(b, "limit_indices", t.ndim, limit);
  shlo__attr_i64s(b, "strides", t.ndim, step);
  return shlo__op(b, "stablehlo.slice", 1, &x, &t);
}

ttc_val shlo_slice_axis(shlo *b, ttc_val x, int axis, int64_t start, int64_t limit) {
  int64_t lo[SHLO__MAX_NDIM] = {0}, hi[SHLO__MAX_NDIM];
  if (!shlo__ready(b, "shlo_slice_axis", 1, &x)) {
    return TTC_POISON;
  }
  const shlo_type *t = shlo_typeof(b, x);
  if (axis < 0 || axis >= t->ndim) {
    return SHLO_FAIL(b, "shlo_slice_axis", "axis %d of %s is out of range", axis, SHLO_NAME(b, x));
  }
  for (int k = 0; k < t->ndim; k++) {
    hi[k] = t->dims[k];
  }
  lo[axis] = start;
  hi[axis] = limit;
  return shlo_slice(b, x, lo, hi, NULL);
}

ttc_val shlo_pad(shlo *b, ttc_val x, ttc_val value, const int64_t *lo, const int64_t *hi, const int64_t *interior) {
  const char *op = "shlo_pad";
  ttc_val xs[2] = {x, value};
  int64_t inner[SHLO__MAX_NDIM];
  if (!shlo__ready(b, op, 2, xs)) {
    return TTC_POISON;
  }
  shlo_type from = *shlo_typeof(b, x), t = from;
  if (shlo_ndim(b, value) != 0 || shlo_dtype(b, value) != t.dtype) {
    return SHLO_FAIL(b, op, "expected a %s scalar to pad %s with, got %s", ttc_dtype_name(t.dtype), SHLO_NAME(b, x),
                     SHLO_NAME(b, value));
  }
  bool nothing = true;
  for (int k = 0; k < t.ndim; k++) {
    inner[k] = interior != NULL ? interior[k] : 0;
    int64_t gaps = t.dims[k] > 0 ? t.dims[k] - 1 : 0, n = 0;
    bool overflow = inner[k] < 0 || __builtin_mul_overflow(gaps, inner[k], &n) || __builtin_add_overflow(n, t.dims[k], &n) ||
                    __builtin_add_overflow(n, lo[k], &n) || __builtin_add_overflow(n, hi[k], &n);
    if (overflow || n < 0) {
      return SHLO_FAIL(b, op, "axis %d of %s cannot be padded by %lld, %lld, interior %lld", k, SHLO_NAME(b, x), (long long)lo[k],
                       (long long)hi[k], (long long)inner[k]);
    }
    nothing = nothing && lo[k] == 0 && hi[k] == 0 && n == t.dims[k];
    t.dims[k] = n;
  }
  if (nothing) {
    return x;
  }
  if (shlo__nelem(&from) == 0) {
    return shlo_broadcast_to(b, value, t.ndim, t.dims);
  }
  shlo__attr_i64s(b, "edge_padding_low", t.ndim, lo);
  shlo__attr_i64s(b, "edge_padding_high", t.ndim, hi);
  shlo__attr_i64s(b, "interior_padding", t.ndim, inner);
  return shlo__op(b, "stablehlo.pad", 2, xs, &t);
}

ttc_val shlo_concat(shlo *b, int n, const ttc_val *xs, int axis) {
  const char *op = "shlo_concat";
  if (!shlo__ready(b, op, n, xs)) {
    return TTC_POISON;
  }
  if (n < 1) {
    return SHLO_FAIL(b, op, "nothing to concatenate");
  }
  shlo_type t = *shlo_typeof(b, xs[0]);
  if (axis < 0 || axis >= t.ndim) {
    return SHLO_FAIL(b, op, "axis %d of %s is out of range", axis, SHLO_NAME(b, xs[0]));
  }
  for (int k = 1; k < n; k++) {
    shlo_type y = *shlo_typeof(b, xs[k]);
    int64_t size = y.ndim > axis ? y.dims[axis] : 0;
    y.dims[axis] = t.dims[axis];
    if (!shlo__same_type(&t, &y)) {
      return SHLO_FAIL(b, op, "%s and %s differ beyond axis %d", SHLO_NAME(b, xs[0]), SHLO_NAME(b, xs[k]), axis);
    }
    t.dims[axis] += size;
  }
  if (n == 1) {
    return xs[0];
  }
  shlo__attr(b, "dimension = %d : i64", axis);
  return shlo__op(b, "stablehlo.concatenate", n, xs, &t);
}

ttc_val shlo_reverse(shlo *b, ttc_val x, int naxis, const int *axes) {
  bool seen[SHLO__MAX_NDIM];
  if (!shlo__ready(b, "shlo_reverse", 1, &x)) {
    return TTC_POISON;
  }
  shlo_type t = *shlo_typeof(b, x);
  if (!shlo__axes(b, "shlo_reverse", "axis", t.ndim, naxis, axes, seen)) {
    return TTC_POISON;
  }
  if (naxis == 0) {
    return x;
  }
  shlo__attr_axes(b, "dimensions", naxis, axes);
  return shlo__op(b, "stablehlo.reverse", 1, &x, &t);
}

ttc_val shlo_barrier(shlo *b, ttc_val x) {
  return shlo__ready(b, "shlo_barrier", 1, &x) ? shlo__op_same(b, "stablehlo.optimization_barrier", 1, &x) : TTC_POISON;
}
